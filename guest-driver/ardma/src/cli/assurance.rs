//! `ardma failed` and `read-ahead`: the blocks that have errors, and what loads may bring.
//!
//! Blocks are told a line each: where, how many bytes, the status word in hex, and its meaning, such as
//! `failed 2:0x1000 4096 0x00000082 ...`.

use super::Failure;
use ardma::{Adaptor, FailedBlock, Nodes};
use std::io::Write;
use std::time::{Duration, Instant};

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
    format!("failed {} {size} {}", block.place, block.status)
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
    use ardma::{Place, Status};

    #[test]
    fn failed_blocks_are_a_line_each() {
        let block = FailedBlock { place: Place::memory(2, 0x3000), status: Status::from_bits(0x82) };
        let text = line(&block, 4096);
        assert!(text.starts_with("failed 2:0x3000 4096 0x00000082 "), "{text}");
    }
}
