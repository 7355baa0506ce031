//! `ardma failed`: the blocks that have errors.
//!
//! Blocks are told a line each, or neighbours with the same errors in one: where, how many bytes, the status word in hex, and
//! its meaning, such as `failed 2:0x1000 4096 0x00000082 ...`.

use super::Failure;
use ardma::{Adaptor, FailedBlock};
use std::io::Write;
use std::time::{Duration, Instant};

/// Arguments of `ardma failed`.
#[derive(Debug, clap::Args)]
pub struct FailedArguments {
    /// Wait so many seconds for a block to fail where none has.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u32,
}

/// Shows the blocks that have errors; fails where there are some.
pub fn failed(adaptor: &Adaptor, arguments: &FailedArguments, out: &mut dyn Write) -> Result<(), Failure> {
    let limit = Duration::from_secs(arguments.wait.into());
    let start = Instant::now();
    let mut any = false;
    loop {
        // Events first, then the blocks: one that fails between the two is seen by the next wait.
        adaptor.events()?;
        let mut last: Option<Extent> = None;
        while let Some(block) = adaptor.next_failed()? {
            let extent = Extent { first: block, length: adaptor.fixed().block_size() };
            if let Some(extent) = join(&mut last, extent) {
                writeln!(out, "{}", line(&extent))?;
            }
            any = true;
        }
        if let Some(extent) = last {
            writeln!(out, "{}", line(&extent))?;
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

/// Blocks one after the other that have the same errors: an operation of the DMA engine may fail in hundreds of them.
#[derive(Debug, PartialEq, Eq)]
struct Extent {
    first: FailedBlock,
    /// Of all of them, in bytes.
    length: u64,
}

/// Joins an extent to the last one, or takes its place; returns the last one then.
fn join(last: &mut Option<Extent>, next: Extent) -> Option<Extent> {
    match last {
        Some(Extent { first, length })
            if first.place.plus(*length) == next.first.place && first.status == next.first.status =>
        {
            *length = length.saturating_add(next.length);
            None
        }
        _ => last.replace(next),
    }
}

fn line(extent: &Extent) -> String {
    format!("failed {} {} {}", extent.first.place, extent.length, extent.first.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ardma::{Place, Status};

    fn lines(blocks: &[(Place, u32)]) -> Vec<String> {
        let mut last = None;
        let mut told = Vec::new();
        for &(place, status) in blocks {
            let first = FailedBlock { place, status: Status::from_bits(status) };
            told.extend(join(&mut last, Extent { first, length: 4096 }));
        }
        told.extend(last);
        told.iter().map(|extent| line(extent).split(' ').take(4).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn failed_blocks_are_a_line_each_but_for_neighbours_with_the_same_errors() {
        let memory = |offset, status| (Place::memory(2, offset), status);
        assert_eq!(lines(&[]), [""; 0]);
        assert_eq!(lines(&[memory(0x3000, 0x82)]), ["failed 2:0x3000 4096 0x00000082"]);
        let blocks = [
            memory(0x3000, 0x82),
            memory(0x4000, 0x82),
            memory(0x5000, 0x82),
            memory(0x6000, 0x8282),
            memory(0x8000, 0x8282),
            (Place::io(2, 0x9000), 0x8282),
            (Place::memory(3, 0x9000), 0x8282),
        ];
        let expected = [
            "failed 2:0x3000 12288 0x00000082",
            "failed 2:0x6000 4096 0x00008282",
            "failed 2:0x8000 4096 0x00008282",
            "failed 2:io:0x9000 4096 0x00008282",
            "failed 3:0x9000 4096 0x00008282",
        ];
        assert_eq!(lines(&blocks), expected);
    }
}
