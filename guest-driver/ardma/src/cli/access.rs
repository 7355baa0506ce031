//! `ardma write` and `read`: a few accesses, and what became of them.
//!
//! Each block is told in a line of its own: what was done, where, how many bytes, the status word in hex, and
//! its meaning, such as `write 2:0x10 8 0x00000000 ok`.

use super::{Failure, parse_place};
use ardma::{Adaptor, Direction, Place, RemoteWindow, Word, parse_hex, parse_size};
use std::io::Write;

/// Arguments of `ardma write`.
#[derive(Debug, clap::Args)]
pub struct WriteArguments {
    /// Where the first value goes.
    #[arg(value_name = "NODE:OFFSET", value_parser = parse_place)]
    place: Place,
    /// Values, one store each, one after the other.
    #[arg(value_name = "VALUE", value_parser = parse_size, required_unless_present_any = ["data", "text"])]
    values: Vec<u64>,
    /// Bytes of each store.
    #[arg(long, value_parser = ["1", "2", "4", "8"], default_value = "8")]
    size: String,
    /// Bytes in hex instead of values; the widest aligned stores are used.
    #[arg(long, value_name = "HEX", conflicts_with_all = ["values", "text"])]
    data: Option<String>,
    /// Text instead of values.
    #[arg(long, value_name = "TEXT", conflicts_with = "values")]
    text: Option<String>,
}

/// Arguments of `ardma read`.
#[derive(Debug, clap::Args)]
pub struct ReadArguments {
    /// From where.
    #[arg(value_name = "NODE:OFFSET", value_parser = parse_place)]
    place: Place,
    /// How many bytes.
    #[arg(value_name = "LENGTH", value_parser = parse_size, default_value = "64")]
    length: u64,
    /// Bytes of each load; the widest aligned loads are used where it is not given.
    #[arg(long, value_parser = ["1", "2", "4", "8"])]
    size: Option<String>,
}

/// Stores, and checks.
pub fn write(adaptor: &Adaptor, arguments: &WriteArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let size = number(&arguments.size);
    let bytes = match (&arguments.data, &arguments.text) {
        (Some(hex), _) => Some(parse_hex(hex).map_err(|error| Failure::Usage(error.to_string()))?),
        (None, Some(text)) => Some(text.clone().into_bytes()),
        (None, None) => None,
    };
    let values = arguments.values.len() as u64;
    let length = bytes.as_ref().map_or(values.saturating_mul(size), |bytes| bytes.len() as u64);
    if length == 0 {
        return Err(Failure::Usage("there is nothing to write".to_owned()));
    }
    if bytes.is_none() {
        fits(&arguments.values, size)?;
    }
    let window = adaptor.map(arguments.place, length)?;
    let resets = adaptor.resets()?;
    match bytes {
        Some(bytes) => window.write_bytes(0, &bytes)?,
        None => {
            for (offset, &value) in (0..).step_by(usize::try_from(size).unwrap_or(1)).zip(&arguments.values) {
                match size {
                    1 => window.store(offset, value as u8)?,
                    2 => window.store(offset, value as u16)?,
                    4 => window.store(offset, value as u32)?,
                    _ => window.store(offset, value)?,
                }
            }
        }
    }
    report(adaptor, resets, &window, Direction::Write, out)
}

/// Loads, shows, and checks.
pub fn read(adaptor: &Adaptor, arguments: &ReadArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let size = arguments.size.as_deref().map(number);
    if arguments.length == 0 || size.is_some_and(|size| !arguments.length.is_multiple_of(size)) {
        return Err(Failure::Usage("the length has to be a multiple of the size, and above 0".to_owned()));
    }
    let window = adaptor.map(arguments.place, arguments.length)?;
    let resets = adaptor.resets()?;
    let mut bytes = vec![0; usize::try_from(arguments.length).unwrap_or(usize::MAX)];
    match size {
        None => window.read_bytes(0, &mut bytes)?,
        Some(1) => loads::<u8>(&window, &mut bytes)?,
        Some(2) => loads::<u16>(&window, &mut bytes)?,
        Some(4) => loads::<u32>(&window, &mut bytes)?,
        Some(_) => loads::<u64>(&window, &mut bytes)?,
    }
    hexdump(arguments.place.offset, &bytes, out)?;
    report(adaptor, resets, &window, Direction::Read, out)
}

/// Checks every block of the window and tells of each; unless the adaptor was reset since `resets` was asked for, as then
/// the checks say nothing about what was done before.
fn report(
    adaptor: &Adaptor,
    resets: u32,
    window: &RemoteWindow,
    direction: Direction,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut all_ok = true;
    for part in window.blocks(0, window.length()) {
        let status = window.check(part.offset)?;
        if adaptor.resets()? != resets {
            let place = window.place().plus(part.offset);
            return Err(ardma::Error::Reset { direction, place, length: part.length }.into());
        }
        writeln!(out, "{direction} {} {} {status}", window.place().plus(part.offset), part.length)?;
        all_ok &= status.is_ok();
    }
    if all_ok { Ok(()) } else { Err(Failure::Told) }
}

fn loads<T: Word>(window: &RemoteWindow, bytes: &mut [u8]) -> Result<(), Failure> {
    for (offset, part) in (0..).step_by(size_of::<T>()).zip(bytes.chunks_exact_mut(size_of::<T>())) {
        window.load::<T>(offset)?.to_memory(part);
    }
    Ok(())
}

fn number(size: &str) -> u64 {
    size.parse().unwrap_or(8)
}

fn fits(values: &[u64], size: u64) -> Result<(), Failure> {
    let bits = u32::try_from(size.saturating_mul(8)).unwrap_or(64);
    match values.iter().find(|&&value| value.checked_shr(bits).unwrap_or(0) != 0) {
        Some(value) => Err(Failure::Usage(format!("{value:#x} does not fit into a store of --size {size}"))),
        None => Ok(()),
    }
}

/// Offset, 16 bytes in hex, and the printable ones as text.
fn hexdump(offset: u64, bytes: &[u8], out: &mut dyn Write) -> std::io::Result<()> {
    for (at, line) in (offset..).step_by(16).zip(bytes.chunks(16)) {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String = line
            .iter()
            .map(|&byte| if (b' '..=b'~').contains(&byte) { char::from(byte) } else { '.' })
            .collect();
        writeln!(out, "{at:08x}  {:47}  |{text}|", hex.join(" "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_to_fit_their_store() {
        assert!(fits(&[0xff, 0], 1).is_ok());
        assert!(fits(&[0x100], 1).is_err());
        assert!(fits(&[u64::from(u32::MAX) + 1], 4).is_err());
        assert!(fits(&[u64::MAX], 8).is_ok());
    }

    #[test]
    fn dumps_show_offset_hex_and_text() {
        let mut out = Vec::new();
        hexdump(0x1000, b"remote direct memory\x00\xff", &mut out).unwrap();
        let expected = "00001000  72 65 6d 6f 74 65 20 64 69 72 65 63 74 20 6d 65  |remote direct me|\n\
                        00001010  6d 6f 72 79 00 ff                                |mory..|\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
