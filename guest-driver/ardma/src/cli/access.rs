//! `ardma write`, `read` and `check`: a few accesses, and what became of them.
//!
//! Each block is told in a line of its own: what was done, where, how many bytes, the status word in hex, and
//! its meaning, such as `write 2:0x10 8 0x00000000 ok`.
//!
//! The invariant: in the I/O space each access has the size that was asked for. Nothing is read there that was not named.

use super::{Failure, parse_place};
use ardma::{Adaptor, Direction, Place, RemoteWindow, Space, Word, parse_hex, parse_size};
use std::io::Write;

/// Bytes that `ardma read` loads before it shows them: lines of 16, and accesses of every size.
const SHOWN: usize = 256;

/// Arguments of `ardma write`.
#[derive(Debug, clap::Args)]
pub struct WriteArguments {
    /// Where the first value goes; NODE:io:OFFSET is in the I/O space.
    #[arg(value_name = "NODE:OFFSET", value_parser = parse_place)]
    place: Place,
    /// Values, one store each, one after the other.
    #[arg(value_name = "VALUE", value_parser = parse_size, required_unless_present_any = ["data", "text"])]
    values: Vec<u64>,
    /// Bytes of each store; in the I/O space it has to be given. Values go in stores of 8 bytes, and data and text in the widest
    /// aligned ones, where it is not given.
    #[arg(long, value_parser = ["1", "2", "4", "8"])]
    size: Option<String>,
    /// Bytes in hex instead of values.
    #[arg(long, value_name = "HEX", conflicts_with_all = ["values", "text"])]
    data: Option<String>,
    /// Text instead of values.
    #[arg(long, value_name = "TEXT", conflicts_with = "values")]
    text: Option<String>,
    /// Leave the check to a later command.
    #[arg(long)]
    no_check: bool,
}

/// Arguments of `ardma read`.
#[derive(Debug, clap::Args)]
pub struct ReadArguments {
    /// From where; NODE:io:OFFSET is in the I/O space.
    #[arg(value_name = "NODE:OFFSET", value_parser = parse_place)]
    place: Place,
    /// How many bytes; 64 where it is not given, or in the I/O space those of one load.
    #[arg(value_name = "LENGTH", value_parser = parse_size)]
    length: Option<u64>,
    /// Bytes of each load; in the I/O space it has to be given. The widest aligned loads are used where it is not given.
    #[arg(long, value_parser = ["1", "2", "4", "8"])]
    size: Option<String>,
    /// Leave the check to a later command. All-ones may be data, or a failure.
    #[arg(long)]
    no_check: bool,
}

/// Arguments of `ardma check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Where; NODE:io:OFFSET is in the I/O space.
    #[arg(value_name = "NODE:OFFSET", value_parser = parse_place)]
    place: Place,
    /// How many bytes: each of their blocks is checked.
    #[arg(value_name = "LENGTH", value_parser = parse_size, default_value = "1")]
    length: u64,
    /// Leave the errors where they are, so that the next check tells them again.
    #[arg(long)]
    peek: bool,
    /// Ask once about all of it, and leave the errors where they are: the answer is the first error of each direction.
    #[arg(long, conflicts_with = "peek")]
    range: bool,
}

/// What the lines begin with, and how the status is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Access(Direction),
    Check,
    Peek,
}

/// Stores, and checks.
pub fn write(adaptor: &Adaptor, arguments: &WriteArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let size = exact_size(arguments.place, arguments.size.as_deref())?;
    let bytes = match (&arguments.data, &arguments.text) {
        (Some(hex), _) => parse_hex(hex).map_err(|error| Failure::Usage(error.to_string()))?,
        (None, Some(text)) => text.clone().into_bytes(),
        (None, None) => bytes_of(&arguments.values, size.unwrap_or(8))?,
    };
    let is_values = arguments.data.is_none() && arguments.text.is_none();
    let size = if is_values { Some(size.unwrap_or(8)) } else { size };
    whole_accesses(bytes.len() as u64, size)?;
    let window = adaptor.map(arguments.place, bytes.len() as u64)?;
    let lapses = adaptor.lapses()?;
    match size {
        None => window.write_bytes(0, &bytes)?,
        Some(1) => stores::<u8>(&window, &bytes)?,
        Some(2) => stores::<u16>(&window, &bytes)?,
        Some(4) => stores::<u32>(&window, &bytes)?,
        Some(_) => stores::<u64>(&window, &bytes)?,
    }
    if arguments.no_check {
        return Ok(());
    }
    report(adaptor, lapses, &window, What::Access(Direction::Write), out)
}

/// Loads, shows, and checks.
pub fn read(adaptor: &Adaptor, arguments: &ReadArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let size = exact_size(arguments.place, arguments.size.as_deref())?;
    let length = match (arguments.length, arguments.place.space, size) {
        (Some(length), ..) => length,
        (None, Space::Io, Some(size)) => size,
        (None, ..) => 64,
    };
    whole_accesses(length, size)?;
    let window = adaptor.map(arguments.place, length)?;
    let lapses = adaptor.lapses()?;
    let mut buffer = [0; SHOWN];
    // A load is a whole round trip: what is there is shown before the rest is asked for.
    for offset in (0..length).step_by(SHOWN) {
        let left = usize::try_from(length.saturating_sub(offset)).unwrap_or(SHOWN);
        let bytes = buffer.get_mut(..left.min(SHOWN)).unwrap_or_default();
        match size {
            None => window.read_bytes(offset, bytes)?,
            Some(1) => loads::<u8>(&window, offset, bytes)?,
            Some(2) => loads::<u16>(&window, offset, bytes)?,
            Some(4) => loads::<u32>(&window, offset, bytes)?,
            Some(_) => loads::<u64>(&window, offset, bytes)?,
        }
        hexdump(arguments.place.offset.saturating_add(offset), bytes, out)?;
    }
    if arguments.no_check {
        return Ok(());
    }
    report(adaptor, lapses, &window, What::Access(Direction::Read), out)
}

/// Checks only.
pub fn check(adaptor: &Adaptor, arguments: &CheckArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let CheckArguments { place, length, .. } = *arguments;
    let window = adaptor.map(place, length)?;
    if arguments.range {
        let status = adaptor.check_range(place, place.plus(length.saturating_sub(1)))?;
        writeln!(out, "range {place} {length} {status}")?;
        return if status.is_ok() { Ok(()) } else { Err(Failure::Told) };
    }
    let what = if arguments.peek { What::Peek } else { What::Check };
    report(adaptor, adaptor.lapses()?, &window, what, out)
}

/// Checks every block of the window and tells of each; unless the adaptor was reset since `lapses` was asked for, as then
/// the checks say nothing about what was done before.
fn report(
    adaptor: &Adaptor,
    lapses: u32,
    window: &RemoteWindow,
    what: What,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut all_ok = true;
    let name = match what {
        What::Access(direction) => direction.to_string(),
        What::Check => "check".to_owned(),
        What::Peek => "peek".to_owned(),
    };
    for part in window.blocks(0, window.length()) {
        let status =
            if what == What::Peek { window.peek(part.offset)? } else { window.check(part.offset)? };
        let status = adaptor.believe(status)?;
        if let What::Access(direction) = what
            && adaptor.lapses()? != lapses
        {
            let place = window.place().plus(part.offset);
            return Err(ardma::Error::Reset { direction, place, length: part.length }.into());
        }
        writeln!(out, "{name} {} {} {status}", window.place().plus(part.offset), part.length)?;
        all_ok &= status.is_ok();
    }
    if all_ok { Ok(()) } else { Err(Failure::Told) }
}

fn loads<T: Word>(window: &RemoteWindow, start: u64, bytes: &mut [u8]) -> Result<(), Failure> {
    for (offset, part) in (start..).step_by(size_of::<T>()).zip(bytes.chunks_exact_mut(size_of::<T>())) {
        window.load::<T>(offset)?.to_memory(part);
    }
    Ok(())
}

fn stores<T: Word>(window: &RemoteWindow, bytes: &[u8]) -> Result<(), Failure> {
    for (offset, part) in (0..).step_by(size_of::<T>()).zip(bytes.chunks_exact(size_of::<T>())) {
        window.store(offset, T::from_memory(part).unwrap_or_default())?;
    }
    Ok(())
}

/// The size of each access, which has to be said where it matters to what is behind it.
fn exact_size(place: Place, size: Option<&str>) -> Result<Option<u64>, Failure> {
    match (place.space, size) {
        (Space::Io, None) => Err(Failure::Usage(format!(
            "an access to the I/O space at {place} needs its size: --size 1, 2, 4 or 8"
        ))),
        (_, size) => Ok(size.and_then(|size| size.parse().ok())),
    }
}

/// Fails unless the bytes are whole accesses, and one at least.
fn whole_accesses(length: u64, size: Option<u64>) -> Result<(), Failure> {
    if length == 0 || !length.is_multiple_of(size.unwrap_or(1)) {
        return Err(Failure::Usage("the length has to be a multiple of the size, and above 0".to_owned()));
    }
    Ok(())
}

/// The values' bytes in memory, `size` for each.
fn bytes_of(values: &[u64], size: u64) -> Result<Vec<u8>, Failure> {
    let bits = u32::try_from(size.saturating_mul(8)).unwrap_or(64);
    if let Some(value) = values.iter().find(|&&value| value.checked_shr(bits).unwrap_or(0) != 0) {
        return Err(Failure::Usage(format!("{value:#x} does not fit into a store of --size {size}")));
    }
    let size = usize::try_from(size).unwrap_or(8);
    Ok(values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(size)).collect())
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
        assert_eq!(bytes_of(&[0xff, 0], 1).unwrap(), [0xff, 0]);
        assert!(bytes_of(&[0x100], 1).is_err());
        assert_eq!(bytes_of(&[0x1234, 1], 2).unwrap(), [0x34, 0x12, 1, 0]);
        assert!(bytes_of(&[u64::from(u32::MAX) + 1], 4).is_err());
        assert_eq!(bytes_of(&[u64::MAX], 8).unwrap(), [0xff; 8]);
    }

    #[test]
    fn an_access_to_the_io_space_needs_its_size() {
        assert_eq!(exact_size(Place::io(2, 0), Some("2")).unwrap(), Some(2));
        let failure = exact_size(Place::io(2, 0x1000), None).unwrap_err();
        assert!(failure.to_string().contains("at 2:io:0x1000 needs its size"), "{failure}");
        assert_eq!(exact_size(Place::memory(2, 0), None).unwrap(), None);
    }

    #[test]
    fn accesses_are_whole() {
        assert!(whole_accesses(8, Some(4)).is_ok());
        assert!(whole_accesses(3, None).is_ok());
        for (length, size) in [(0, None), (0, Some(1)), (6, Some(4))] {
            assert!(whole_accesses(length, size).is_err(), "{length}");
        }
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
