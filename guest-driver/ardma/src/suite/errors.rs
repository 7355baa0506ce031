//! Tests of accesses that have to fail: each with its code, kept until a check returns it.

use super::tap::{Problem, Verdict, equal, holds};
use super::{Case, Context, clear};
use ardma::{Code, Place, RemoteWindow, Word, abi};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    case(
        "a store where nothing is exported: no such window, until it is checked",
        "No lost error",
        store_no_window,
    ),
    case("a load where nothing is exported: all-ones and no such window", "No false OK", load_no_window),
    case("an error stays through accesses and checks elsewhere", "No lost error", sticks),
    case("an error of one block is not another block's", "No lost error", blocks_apart),
    case("the directions are kept apart", "No lost error", directions_apart),
    case("a check of one byte tells and clears one direction after the other", "No lost error", small_checks),
    case("the last bytes of the window are answered", "Bounded", window_end),
    case("an unknown node: no route", "No false OK", unknown_node),
    case("no right: access denied, in both directions", "Isolation", denied),
    case("a window that is read-only: stores are denied and change nothing", "Isolation", read_only),
    case("an error raises the event", "device page", event),
];

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "errors", name, contract, run }
}

/// Fails unless a check returns these codes, and the next one OK.
pub fn codes(window: &RemoteWindow, what: &str, offset: u64, write: Code, read: Code) -> Verdict {
    let status = window.check(offset)?;
    holds((status.write(), status.read()) == (write, read), || {
        format!("{what}: the check answers {status}, expected write: {write}; read: {read}")
    })?;
    let status = window.check(offset)?;
    holds(status.is_ok(), || format!("{what}: the check after the check answers {status}"))
}

fn store_no_window(context: &Context) -> Verdict {
    let window = context.unexported()?;
    for offset in [0, 1, 8, 4088] {
        window.store(offset, 1_u64)?;
        codes(&window, &format!("8 bytes at {offset}"), 0, Code::NoWindow, Code::Ok)?;
        clear(&window)?;
    }
    window.write_bytes(0, &[1; 256])?;
    codes(&window, "joined stores", 255, Code::NoWindow, Code::Ok)
}

fn load_no_window(context: &Context) -> Verdict {
    let window = context.unexported()?;
    load_of::<u8>(&window)?;
    load_of::<u16>(&window)?;
    load_of::<u32>(&window)?;
    load_of::<u64>(&window)
}

fn load_of<T: Word>(window: &RemoteWindow) -> Verdict {
    equal("the data", window.load::<T>(16)?, T::ONES)?;
    codes(window, &format!("{} bytes", size_of::<T>()), 16, Code::Ok, Code::NoWindow)
}

fn sticks(context: &Context) -> Verdict {
    let (window, scratch) = (context.unexported()?, context.scratch()?);
    window.store(0, 1_u64)?;
    for value in 0..100_u64 {
        scratch.store(0, value)?;
        equal("a load elsewhere", scratch.load::<u64>(0)?, value)?;
        let status = scratch.check(0)?;
        holds(status.is_ok(), || format!("the check elsewhere answers {status}"))?;
    }
    codes(&window, "after accesses elsewhere", 0, Code::NoWindow, Code::Ok)
}

fn blocks_apart(context: &Context) -> Verdict {
    let window = context.unexported()?;
    let second = context.adaptor.fixed().block_size();
    window.store(0, 1_u64)?;
    let status = window.check(second)?;
    holds(status.is_ok(), || format!("the next block's check answers {status}"))?;
    codes(&window, "the block itself", 0, Code::NoWindow, Code::Ok)
}

fn directions_apart(context: &Context) -> Verdict {
    let window = context.unexported()?;
    window.load::<u32>(0)?;
    codes(&window, "a failed load", 0, Code::Ok, Code::NoWindow)?;
    window.store(0, 1_u32)?;
    codes(&window, "a failed store", 0, Code::NoWindow, Code::Ok)?;
    window.load::<u32>(0)?;
    window.store(0, 1_u32)?;
    codes(&window, "both", 0, Code::NoWindow, Code::NoWindow)
}

fn small_checks(context: &Context) -> Verdict {
    let window = context.unexported()?;
    let fail_both = || {
        window.store(0, 1_u32)?;
        window.load::<u32>(0).map(drop)
    };
    let bits = Code::NoWindow.bits();
    fail_both()?;
    equal("2 bytes", window.check_part::<u16>(0)?, u16::from_le_bytes([bits, bits]))?;
    codes(&window, "after 2 bytes", 0, Code::Ok, Code::Ok)?;
    for offset in 0..4 {
        fail_both()?;
        equal("1 byte, the write code", window.check_part::<u8>(offset)?, bits)?;
        codes(&window, "after the write code", 0, Code::Ok, Code::NoWindow)?;
        fail_both()?;
        equal("1 byte, the write code", window.check_part::<u8>(offset)?, bits)?;
        equal("1 byte, then the read code", window.check_part::<u8>(offset)?, bits)?;
        equal("1 byte, then nothing", window.check_part::<u8>(offset)?, 0)?;
    }
    Ok(())
}

fn window_end(context: &Context) -> Verdict {
    let info = context.adaptor.fixed();
    let last = Place::memory(context.peer()?, info.window_size.saturating_sub(8));
    let window = context.adaptor.map(last, 8)?;
    clear(&window)?;
    let limit = Duration::from_micros(info.deadline_us.into()).saturating_add(Duration::from_secs(1));
    for offset in 0..8 {
        let start = Instant::now();
        window.store(offset, 1_u8)?;
        window.load::<u8>(offset)?;
        let status = window.check(offset)?;
        holds(status.is_answer(), || format!("the check at {offset} answers {status}"))?;
        holds(start.elapsed() <= limit.saturating_mul(3), || format!("it took {:?}", start.elapsed()))?;
    }
    Ok(())
}

fn unknown_node(context: &Context) -> Verdict {
    let known: Vec<u32> = context.adaptor.nodes()?.iter().map(|node| node.node).collect();
    let unknown = (0..context.adaptor.fixed().node_count).find(|id| !known.contains(id));
    let unknown = unknown.and_then(|id| u8::try_from(id).ok());
    let node =
        unknown.ok_or_else(|| Problem::Skip("every node of the access space is configured".to_owned()))?;
    let window = context.adaptor.map(Place::memory(node, 0), 4096)?;
    clear(&window)?;
    window.store(0, 1_u64)?;
    codes(&window, "a store", 0, Code::NoRoute, Code::Ok)?;
    equal("the data", window.load::<u64>(0)?, u64::MAX)?;
    codes(&window, "a load", 0, Code::Ok, Code::NoRoute)
}

fn denied(context: &Context) -> Verdict {
    let window = context.blocks(context.arguments.denied, "--denied")?;
    window.store(0, 1_u64)?;
    codes(&window, "a store", 0, Code::AccessDenied, Code::Ok)?;
    equal("the data", window.load::<u64>(0)?, u64::MAX)?;
    codes(&window, "a load", 0, Code::Ok, Code::AccessDenied)
}

fn read_only(context: &Context) -> Verdict {
    let window = context.blocks(context.arguments.read_only, "--read-only")?;
    let before = window.load::<u64>(0)?;
    codes(&window, "a load", 0, Code::Ok, Code::Ok)?;
    window.store(0, !before)?;
    codes(&window, "a store", 0, Code::AccessDenied, Code::Ok)?;
    equal("the data after the store", window.load::<u64>(0)?, before)?;
    codes(&window, "the load after the store", 0, Code::Ok, Code::Ok)
}

fn event(context: &Context) -> Verdict {
    let window = context.unexported()?;
    if context.adaptor.info()?.error_count != 0 {
        return Err(Problem::Skip("other accesses have left errors in the log".to_owned()));
    }
    context.adaptor.events()?;
    window.store(0, 1_u64)?;
    // The store is on its way until it is checked, or until a buffer's time is over.
    let start = Instant::now();
    let limit = Duration::from_secs(5);
    let mut seen = 0;
    while seen & abi::EVENT_ERROR == 0 && start.elapsed() < limit {
        context.adaptor.wait(limit.saturating_sub(start.elapsed()))?;
        seen |= context.adaptor.events()?;
    }
    let count = context.adaptor.info()?.error_count;
    codes(&window, "the store", 0, Code::NoWindow, Code::Ok)?;
    holds(seen & abi::EVENT_ERROR != 0, || "there was no event in 5 seconds".to_owned())?;
    equal("blocks in the log", count, 1)?;
    equal("blocks in the log after the check", context.adaptor.info()?.error_count, 0)
}
