//! Tests with scratch memory of another node: accesses do what they should, and checks say so.

use super::tap::{Problem, Verdict, equal, holds};
use super::{Case, Context, SCRATCH};
use ardma::{Direction, RemoteWindow, Retries, Status, Transfer, Word};
use std::time::{Duration, Instant};

/// Calls for each size with a function of that size's type.
macro_rules! each_size {
    ($function:ident($($argument:expr),*)) => {{
        $function::<u8>($($argument),*)?;
        $function::<u16>($($argument),*)?;
        $function::<u32>($($argument),*)?;
        $function::<u64>($($argument),*)
    }};
}
pub(super) use each_size;

pub const CASES: &[Case] = &[
    case("the peer is configured and its link is up", "device page", peer_is_up),
    case("stores of 1, 2, 4 and 8 bytes at offsets 0 to 16 are there", "No false OK", stores),
    case("loads of 1, 2, 4 and 8 bytes at offsets 0 to 16 bring what is there", "No false OK", loads),
    case("neighbouring stores that are joined leave what single ones would", "Order, exactly once", joined),
    case("of stores to the same bytes the last one counts", "Order, exactly once", last_store_counts),
    case("a load brings what was stored just before it", "Order, exactly once", loads_after_stores),
    case("accesses at and across the end of a block are there", "No false OK", block_ends),
    case("the last bytes of the scratch memory are reached", "device page", last_bytes),
    case("a check is OK again and again", "No false OK", repeated_checks),
    case("checks of 1 and 2 bytes are OK where those of 4 are", "device page", small_checks),
    case("64K written and read back, with a check of each block", "No false OK", bulk),
    case("the counters of stores, loads and checks rise", "device page", counters),
    case("loads and checks take no longer than the deadline", "Bounded", bounded),
];

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "remote", name, contract, run }
}

/// Bytes that differ from their neighbours and from those of another seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(length)
    .collect()
}

pub fn check_ok(window: &RemoteWindow, what: &str, offset: u64) -> Verdict {
    let status = window.check(offset)?;
    holds(status.is_ok(), || format!("{what}: the check at {offset:#x} answers {status}"))
}

/// Fails unless these bytes are there, loaded and checked.
pub fn found(window: &RemoteWindow, what: &str, offset: u64, expected: &[u8]) -> Verdict {
    let mut bytes = vec![0; expected.len()];
    window.read_bytes(offset, &mut bytes)?;
    for part in window.blocks(offset, expected.len() as u64) {
        check_ok(window, what, part.offset)?;
    }
    equal(what, bytes.as_slice(), expected)
}

fn peer_is_up(context: &Context) -> Verdict {
    let node = context.adaptor.node(context.peer()?)?;
    holds(node.is_configured(), || "it is not configured".to_owned())?;
    holds(node.is_up(), || "its link is down".to_owned())?;
    holds(node.incarnation != 0, || "its incarnation is 0".to_owned())
}

fn stores(context: &Context) -> Verdict {
    let window = context.scratch()?;
    each_size!(stores_of(&window))
}

fn stores_of<T: Word>(window: &RemoteWindow) -> Verdict {
    let size = size_of::<T>();
    for offset in 0..=16_usize {
        let mut expected = pattern(offset as u64, 32);
        window.write_bytes(0, &expected)?;
        let value = pattern(size as u64, size);
        window.store(offset as u64, word::<T>(&value)?)?;
        if let Some(part) = expected.get_mut(offset..offset.saturating_add(size)) {
            part.copy_from_slice(&value);
        }
        let what = format!("{size} bytes at {offset}");
        check_ok(window, &what, 0)?;
        found(window, &what, 0, &expected)?;
    }
    Ok(())
}

pub fn word<T: Word>(bytes: &[u8]) -> Result<T, Problem> {
    T::from_memory(bytes).ok_or_else(|| Problem::Fail("the test itself is wrong".to_owned()))
}

fn loads(context: &Context) -> Verdict {
    let window = context.scratch()?;
    let bytes = pattern(7, 32);
    window.write_bytes(0, &bytes)?;
    each_size!(loads_of(&window, &bytes))
}

fn loads_of<T: Word>(window: &RemoteWindow, bytes: &[u8]) -> Verdict {
    for (offset, expected) in (0..=16_u64).zip(bytes.windows(size_of::<T>())) {
        let what = format!("{} bytes at {offset}", size_of::<T>());
        let value = window.load::<T>(offset)?;
        check_ok(window, &what, offset)?;
        equal(what, value, word(expected)?)?;
    }
    Ok(())
}

fn joined(context: &Context) -> Verdict {
    let window = context.scratch()?;
    for seed in 0..8 {
        let bytes = pattern(seed, 512);
        // Every start gives other sizes; backwards nothing can be joined at its end.
        window.write_bytes(seed, &bytes)?;
        check_ok(&window, "ascending stores", 0)?;
        found(&window, "ascending stores", seed, &bytes)?;
        let bytes = pattern(seed.wrapping_add(100), 512);
        for (offset, &byte) in (0..512).rev().zip(bytes.iter().rev()) {
            window.store(offset, byte)?;
        }
        check_ok(&window, "descending stores", 0)?;
        found(&window, "descending stores", 0, &bytes)?;
    }
    Ok(())
}

fn last_store_counts(context: &Context) -> Verdict {
    let window = context.scratch()?;
    for value in 0..500_u64 {
        window.store(64, value)?;
        window.store(68, value as u16)?;
    }
    check_ok(&window, "overlapping stores", 64)?;
    let expected = (499_u64 & 0xffff_0000_ffff_ffff) | 499 << 32;
    equal("the bytes", window.load::<u64>(64)?, expected)?;
    check_ok(&window, "the load", 64)
}

fn loads_after_stores(context: &Context) -> Verdict {
    let window = context.scratch()?;
    for value in 1..=100_u64 {
        window.store(128, value)?;
        equal("the load", window.load::<u64>(128)?, value)?;
    }
    check_ok(&window, "all of it", 128)
}

fn block_ends(context: &Context) -> Verdict {
    let window = context.scratch()?;
    let block = context.adaptor.fixed().block_size();
    // The scratch memory may begin inside a block.
    let inside = window.place().offset.checked_rem(block).unwrap_or(0);
    let end = block.saturating_sub(inside);
    let start = end.saturating_sub(16);
    for offset in start..end.saturating_add(8) {
        let before = pattern(offset, 40);
        window.write_bytes(start, &before)?;
        window.store(offset, 0x0102_0304_0506_0708_u64)?;
        let mut expected = before;
        let at = usize::try_from(offset.saturating_sub(start)).unwrap_or(0);
        if let Some(part) = expected.get_mut(at..at.saturating_add(8)) {
            part.copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        }
        let what =
            format!("8 bytes, {} before the block's end", i128::from(end).wrapping_sub(i128::from(offset)));
        for part in window.blocks(start, 40) {
            check_ok(&window, &what, part.offset)?;
        }
        found(&window, &what, start, &expected)?;
        equal(what, window.load::<u64>(offset)?, 0x0102_0304_0506_0708)?;
    }
    Ok(())
}

fn last_bytes(context: &Context) -> Verdict {
    let window = context.scratch()?;
    each_size!(last_bytes_of(&window))
}

fn last_bytes_of<T: Word>(window: &RemoteWindow) -> Verdict {
    let size = size_of::<T>();
    let offset = SCRATCH.saturating_sub(size as u64);
    let bytes = pattern(size as u64, size);
    window.store(offset, word::<T>(&bytes)?)?;
    check_ok(window, "the store", offset)?;
    found(window, "the last bytes", offset, &bytes)
}

fn repeated_checks(context: &Context) -> Verdict {
    let window = context.scratch()?;
    window.store(0, 1_u64)?;
    for _ in 0..10 {
        equal("the check", window.check(0)?, Status::OK)?;
    }
    for offset in 0..8 {
        equal("the check", window.check(offset)?, Status::OK)?;
    }
    Ok(())
}

fn small_checks(context: &Context) -> Verdict {
    let window = context.scratch()?;
    let session = u64::from(context.adaptor.info()?.session) << 32;
    for round in 0..4_u64 {
        window.store(0, round)?;
        window.load::<u64>(0)?;
        equal("1 byte", window.check_part::<u8>(round)?, 0)?;
        equal("2 bytes", window.check_part::<u16>(0)?, 0)?;
        equal("4 bytes", window.check_part::<u32>(0)?, 0)?;
        equal("8 bytes", window.check_part::<u64>(0)?, session)?;
    }
    Ok(())
}

fn bulk(context: &Context) -> Verdict {
    let window = context.scratch()?;
    let bytes = pattern(99, SCRATCH as usize);
    let retries = Retries { count: 0, ..Retries::default() };
    let mut transfer = Transfer::new(&context.adaptor, &window, retries);
    transfer.write(0, &bytes)?;
    let mut back = vec![0; bytes.len()];
    transfer.read(0, &mut back)?;
    holds(back == bytes, || {
        let at = back.iter().zip(&bytes).position(|(found, expected)| found != expected);
        format!("what was read back differs first at {at:?}")
    })?;
    equal("errors of other accesses", transfer.counts().other, None)
}

fn counters(context: &Context) -> Verdict {
    let window = context.scratch()?;
    let before = context.adaptor.info()?;
    for _ in 0..10 {
        window.store(0, 5_u64)?;
        window.load::<u64>(0)?;
        check_ok(&window, "an access", 0)?;
    }
    let after = context.adaptor.info()?;
    for (what, before, after) in [
        ("stores", before.stores, after.stores),
        ("loads", before.loads, after.loads),
        ("checks", before.checks, after.checks),
    ] {
        holds(after >= before.saturating_add(10), || {
            format!("{what}: from {before} to {after} in 10 accesses")
        })?;
    }
    equal("errors", after.errors, before.errors)
}

fn bounded(context: &Context) -> Verdict {
    let window = context.scratch()?;
    // The guest's own pauses come on top of the adaptor's deadline.
    let pauses = Duration::from_secs(1);
    let limit = Duration::from_micros(context.adaptor.fixed().deadline_us.into()).saturating_add(pauses);
    for _ in 0..50 {
        for direction in [Direction::Read, Direction::Write] {
            let start = Instant::now();
            match direction {
                Direction::Read => drop(window.load::<u64>(0)?),
                Direction::Write => window.store(0, 0_u64)?,
            }
            window.check(0)?;
            holds(start.elapsed() <= limit.saturating_mul(2), || {
                format!("{direction}: {:?}", start.elapsed())
            })?;
        }
    }
    Ok(())
}
