//! Tests of what an adaptor tells beyond the check of a block: ranges, failed blocks, where the spaces lie.

use super::tap::{Problem, Verdict, equal, holds, refused};
use super::{Case, Context, SCRATCH, clear};
use ardma::{Adaptor, Code, Place, RemoteWindow, Status, abi};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    case("the spaces are where the kernel has found the BARs", "device page", spaces),
    case("ranges that make no sense are refused", "driver interface", bad_ranges),
    case("a range tells of an error in any of its blocks and clears nothing", "No false OK", range),
    case("a range waits for the stores before it", "Flush first", range_flushes),
    case("a peek tells what a check would, and clears nothing", "No lost error", peek),
    case("each open file is told of each failed block once, after an event", "No lost error", failed_blocks),
    case(
        "a failed block that was checked is told of only when it fails again",
        "No lost error",
        checked_blocks,
    ),
];

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "assurance", name, contract, run }
}

/// The blocks at the end of the peer's window, where it exports nothing, without errors.
fn unexported(context: &Context) -> Result<RemoteWindow, Problem> {
    let node = context.peer()?;
    let offset = context.adaptor.fixed().window_size.saturating_sub(SCRATCH);
    let window = context.adaptor.map(Place::memory(node, offset), SCRATCH)?;
    clear(&window)?;
    Ok(window)
}

fn status_is(what: &str, status: Status, write: Code, read: Code) -> Verdict {
    holds((status.write(), status.read()) == (write, read), || {
        format!("{what}: {status}, expected write: {write}; read: {read}")
    })
}

fn spaces(context: &Context) -> Verdict {
    let spaces = context.adaptor.spaces()?;
    let info = context.adaptor.fixed();
    let windows = |size: u64| size.saturating_mul(info.node_count.into());
    equal("bytes of registers", spaces.register_extent, 0x1_0000)?;
    equal("bytes of the I/O space", spaces.io_extent, windows(info.io_window_size))?;
    equal("bytes of the access space", spaces.access_extent, windows(info.window_size))?;
    equal("bytes of the assurance space", spaces.assurance_extent, spaces.access_extent)?;

    let name = context.device.file_name().unwrap_or_default();
    let file = std::path::Path::new("/sys/class/assured_rdma").join(name).join("device/resource");
    let text = std::fs::read_to_string(file)?;
    let bars: Vec<u64> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter_map(|start| u64::from_str_radix(start.trim_start_matches("0x"), 16).ok())
        .collect();
    for (index, what, base) in [
        (0_usize, "registers", spaces.register_base),
        (1, "the I/O space", spaces.io_base),
        (2, "the access space", spaces.access_base),
        (4, "the assurance space", spaces.assurance_base),
    ] {
        let bar = bars.get(index).copied();
        holds(bar == Some(base), || format!("{what}: the adaptor says {base:#x}, the kernel {bar:x?}"))?;
    }
    Ok(())
}

fn bad_ranges(context: &Context) -> Verdict {
    let count = context.adaptor.fixed().node_count;
    let at = |node: u32, offset: u64| u64::from(node) << abi::ADDRESS_NODE_SHIFT | offset;
    let try_range = |first, last, reserved| {
        let mut range = abi::Range { first, last, reserved, ..abi::Range::default() };
        // SAFETY: this call touches no memory but its argument.
        unsafe { abi::call(context.adaptor.as_fd(), &mut range) }
    };
    refused("a range that ends before it begins", try_range(at(1, 1), at(1, 0), 0), libc::EINVAL)?;
    refused("a field that is not zero", try_range(0, 0, 1), libc::EINVAL)?;
    refused("a range over two spaces", try_range(0, abi::ADDRESS_IO, 0), libc::EINVAL)?;
    for bit in [57, 58, 59, 63] {
        refused(&format!("bit {bit} of an address"), try_range(0, 1 << bit, 0), libc::EINVAL)?;
    }
    if count < 256 {
        refused("nodes that are not there", try_range(at(count, 0), at(255, 0), 0), libc::ENXIO)?;
    }
    let window = context.adaptor.fixed().window_size;
    refused("behind a window", try_range(at(0, window), at(0, window), 0), libc::ENXIO)?;
    for space in [0, abi::ADDRESS_IO] {
        let all = try_range(space, space | at(256, 0).saturating_sub(1), 0);
        all.map_err(|error| Problem::Fail(format!("all nodes, space {space:#x}: {error}")))?;
    }
    Ok(())
}

fn range(context: &Context) -> Verdict {
    let window = unexported(context)?;
    let first = window.place();
    let last = first.plus(window.length().saturating_sub(1));
    let ask = |from: u64, to: u64| context.adaptor.check_range(first.plus(from), first.plus(to));
    equal("without errors", ask(0, SCRATCH.saturating_sub(1))?, Status::OK)?;
    window.store(0x5008, 1_u64)?;
    window.load::<u64>(0x7000)?;
    for round in 0..2 {
        status_is(
            &format!("all of it, time {round}"),
            context.adaptor.check_range(first, last)?,
            Code::NoWindow,
            Code::NoWindow,
        )?;
    }
    status_is("the block", ask(0x5fff, 0x5fff)?, Code::NoWindow, Code::Ok)?;
    status_is("up to it", ask(0, 0x5000)?, Code::NoWindow, Code::Ok)?;
    equal("before it", ask(0, 0x4fff)?, Status::OK)?;
    status_is("behind it", ask(0x6000, 0xffff)?, Code::Ok, Code::NoWindow)?;
    let node = Place::memory(first.node, 0);
    holds(!context.adaptor.check_range(node, last)?.is_ok(), || "the whole node: ok".to_owned())?;
    clear(&window)?;
    equal("after the checks", context.adaptor.check_range(first, last)?, Status::OK)
}

fn range_flushes(context: &Context) -> Verdict {
    let window = context.scratch()?;
    let last = window.place().plus(SCRATCH.saturating_sub(1));
    for round in 0..20_u64 {
        let value = 0x1111_1111_1111_1111_u64.wrapping_mul(round);
        for block in 0..16_u64 {
            window.store(block << 12, value)?;
        }
        equal("the range", context.adaptor.check_range(window.place(), last)?, Status::OK)?;
        equal("the last value", window.load::<u64>(0xf000)?, value)?;
    }
    Ok(())
}

fn peek(context: &Context) -> Verdict {
    let window = unexported(context)?;
    equal("without errors", window.peek(0)?, Status::OK)?;
    window.store(0, 1_u32)?;
    for _ in 0..3 {
        status_is("a peek", window.peek(4095)?, Code::NoWindow, Code::Ok)?;
    }
    equal("a peek of the next block", window.peek(4096)?, Status::OK)?;
    status_is("the check", window.check(0)?, Code::NoWindow, Code::Ok)?;
    equal("a peek after the check", window.peek(0)?, Status::OK)
}

/// Takes the failed blocks that are told of now; of the window, by their index.
fn told(adaptor: &Adaptor, window: &RemoteWindow) -> Result<Vec<u64>, Problem> {
    let mut told = Vec::new();
    while let Some(block) = adaptor.next_failed()? {
        holds(!block.status.is_ok(), || format!("{} is told of without an error", block.place))?;
        let (place, own) = (block.place, window.place());
        let inside = place.offset.checked_sub(own.offset);
        told.extend(
            inside.filter(|_| (place.node, place.space) == (own.node, own.space)).map(|offset| offset >> 12),
        );
    }
    Ok(told)
}

fn failed_blocks(context: &Context) -> Verdict {
    let window = unexported(context)?;
    let (first, second) = (Adaptor::open(&context.device)?, Adaptor::open(&context.device)?);
    for adaptor in [&first, &second] {
        equal("blocks before", told(adaptor, &window)?, Vec::new())?;
        adaptor.events()?;
    }
    for block in [3_u64, 1, 12] {
        window.store(block << 12, 1_u64)?;
    }
    window.load::<u64>(0x9000)?;
    let expected: BTreeSet<u64> = [1, 3, 9, 12].into();
    for adaptor in [&first, &second] {
        let (start, limit) = (Instant::now(), Duration::from_secs(5));
        let mut seen = BTreeSet::new();
        let mut events = 0;
        while seen.len() < expected.len() && start.elapsed() < limit {
            adaptor.wait(limit.saturating_sub(start.elapsed()))?;
            events |= adaptor.events()?;
            for block in told(adaptor, &window)? {
                holds(seen.insert(block), || format!("block {block} is told of twice"))?;
            }
        }
        equal("the blocks", &seen, &expected)?;
        holds(events & abi::EVENT_FAILED != 0, || "there was no event".to_owned())?;
        equal("blocks afterwards", told(adaptor, &window)?, Vec::new())?;
    }
    let late: BTreeSet<u64> = told(&Adaptor::open(&context.device)?, &window)?.into_iter().collect();
    equal("the blocks, for a file that was opened later", &late, &expected)?;
    clear(&window)?;
    equal("blocks after the checks", told(&Adaptor::open(&context.device)?, &window)?, Vec::new())
}

fn checked_blocks(context: &Context) -> Verdict {
    let window = unexported(context)?;
    let adaptor = Adaptor::open(&context.device)?;
    told(&adaptor, &window)?;
    for block in 0..4_u64 {
        window.store(block << 12, 1_u64)?;
    }
    window.check(0x1000)?;
    let now: BTreeSet<u64> = told(&adaptor, &window)?.into_iter().collect();
    equal("the blocks but for the one that was checked", &now, &[0, 2, 3].into())?;
    window.check(0x2000)?;
    window.store(0x1000, 1_u64)?;
    window.store(0x2000, 1_u64)?;
    window.store(0x3000, 1_u64)?;
    window.peek(0x3000)?;
    let now: BTreeSet<u64> = told(&adaptor, &window)?.into_iter().collect();
    equal("those that failed again", &now, &[1, 2].into())?;
    clear(&window)
}
