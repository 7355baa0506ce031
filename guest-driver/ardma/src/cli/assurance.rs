//! `ardma check`, `failed` and `read-ahead`: what became of accesses, and what loads may bring.
//!
//! Blocks are told a line each: what was asked, where, how many bytes, the status word in hex, and its meaning, such as
//! `check 2:0x1000 4096 0x00000000 ok`.

use super::{Failure, parse_place};
use ardma::{Adaptor, FailedBlock, Nodes, Place, parse_size};
use std::io::Write;
use std::time::{Duration, Instant};

/// Arguments of `ardma check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Where.
    #[arg(value_name = "NODE:OFFSET", value_parser = parse_place)]
    place: Place,
    /// How many bytes: each of their blocks is checked.
    #[arg(value_name = "LENGTH", value_parser = parse_size, default_value = "1")]
    length: u64,
    /// Leave the errors where they are.
    #[arg(long)]
    peek: bool,
    /// Ask once about all of it, and leave the errors where they are: the answer is the first error of each direction.
    #[arg(long, conflicts_with = "peek")]
    range: bool,
}

/// Arguments of `ardma failed`.
#[derive(Debug, clap::Args)]
pub struct FailedArguments {
    /// Wait so many seconds for a block to fail where none has.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u32,
}

/// Arguments of `ardma read-ahead`.
#[derive(Debug, clap::Args)]
pub struct ReadAheadArguments {
    /// From these nodes, until the adaptor is reset: ids and ranges such as 1,3-5, or all, or none. Shows them where it is
    /// not given.
    #[arg(value_name = "NODES")]
    nodes: Option<String>,
    /// How old what was fetched may be, in microseconds.
    #[arg(long, value_name = "MICROSECONDS", requires = "nodes")]
    time: Option<u32>,
}

/// Checks, or peeks, or asks about all of it at once.
pub fn check(adaptor: &Adaptor, arguments: &CheckArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let CheckArguments { place, length, peek, range } = *arguments;
    let window = adaptor.map(place, length)?;
    if range {
        let status = adaptor.check_range(place, place.plus(length.saturating_sub(1)))?;
        writeln!(out, "range {place} {length} {status}")?;
        return if status.is_ok() { Ok(()) } else { Err(Failure::Told) };
    }
    let mut all_ok = true;
    for part in window.blocks(0, length) {
        let (what, status) =
            if peek { ("peek", window.peek(part.offset)?) } else { ("check", window.check(part.offset)?) };
        writeln!(out, "{what} {} {} {status}", place.plus(part.offset), part.length)?;
        all_ok &= status.is_ok();
    }
    if all_ok { Ok(()) } else { Err(Failure::Told) }
}

/// Shows the blocks that have errors; fails where there are some.
pub fn failed(adaptor: &Adaptor, arguments: &FailedArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let limit = Duration::from_secs(arguments.wait.into());
    let start = Instant::now();
    let mut any = false;
    loop {
        // Events first, then the blocks: one that fails between the two is seen by the next wait.
        adaptor.events()?;
        while let Some(block) = adaptor.next_failed()? {
            writeln!(out, "{}", line(&block, adaptor.fixed().block_size()))?;
            any = true;
        }
        let left = limit.saturating_sub(start.elapsed());
        if any || left.is_zero() {
            break;
        }
        adaptor.wait(left)?;
    }
    for node in adaptor.nodes()?.iter().filter(|node| node.is_overflowed()) {
        writeln!(out, "overflow {}: more blocks of it may have failed (see ardma ack)", node.node)?;
        any = true;
    }
    if any { Err(Failure::Told) } else { Ok(()) }
}

fn line(block: &FailedBlock, size: u64) -> String {
    let what = if block.is_io { "failed-io" } else { "failed" };
    format!("{what} {} {size} {}", block.place, block.status)
}

/// Chooses the nodes, or shows them.
pub fn read_ahead(
    adaptor: &Adaptor,
    arguments: &ReadAheadArguments,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (mut nodes, mut time) = adaptor.read_ahead()?;
    if let Some(text) = &arguments.nodes {
        nodes = match text.as_str() {
            "none" => Nodes::NONE,
            text => text.parse().map_err(|error: ardma::ParseError| Failure::Usage(error.to_string()))?,
        };
        time = arguments.time.map_or(time, |time| Duration::from_micros(time.into()));
        adaptor.set_read_ahead(nodes, time)?;
    }
    writeln!(out, "read-ahead: nodes {nodes}, for {} us", time.as_micros())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ardma::Status;

    #[test]
    fn failed_blocks_are_a_line_each() {
        let place = Place { node: 2, offset: 0x3000 };
        let mut block = FailedBlock { place, is_io: false, status: Status::from_bits(0x82) };
        let text = line(&block, 4096);
        assert!(text.starts_with("failed 2:0x3000 4096 0x00000082 "), "{text}");
        block.is_io = true;
        assert!(line(&block, 4096).starts_with("failed-io 2:0x3000 "));
    }
}
