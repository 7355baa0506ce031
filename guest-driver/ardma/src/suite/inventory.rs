//! Tests of what nodes tell each other of their exports.

use super::local::exportable;
use super::tap::{Problem, Verdict, equal, holds, refused};
use super::{Case, Context, SCRATCH};
use ardma::{Adaptor, Entry, EntryKind, ExportOptions, Memory, Name, PAGE, Place, Space, abi};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    case("this node's list begins with the node itself", "device page", own_node),
    case(
        "calls that make no sense are refused, and there is nothing behind a list",
        "driver interface",
        bad_calls,
    ),
    case(
        "an export is in this node's list as it was asked for, for as long as it is there",
        "device page",
        life,
    ),
    case("each change of a list is an event, which wakes who waits", "device page", event),
    case("the peer lists itself and the scratch memory", "device page", scratch),
    case("the peer lists what may only be read as that", "device page", read_only),
    case("the peer lists what is in its I/O space as that", "device page", ports),
    case("the peer does not list what is for others", "Isolation", denied),
];

/// How long an event, or what a peer announces, may be on its way.
const LIMIT: Duration = Duration::from_secs(5);

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "inventory", name, contract, run }
}

fn own_id(context: &Context) -> u8 {
    u8::try_from(context.adaptor.fixed().node).unwrap_or(u8::MAX)
}

/// What the node lists at the place.
fn entry_at(adaptor: &Adaptor, place: Place) -> Result<Option<Entry>, Problem> {
    let entries = adaptor.inventory(place.node)?;
    Ok(entries.into_iter().find(|entry| entry.kind != EntryKind::Node && entry.place == place))
}

/// Where the peer exports what an optional argument names.
fn place(context: &Context, space: Space, offset: Option<u64>) -> Result<Place, Problem> {
    let offset = offset.ok_or_else(|| Problem::Skip("not given where it is".to_owned()))?;
    Ok(Place { node: context.peer()?, space, offset })
}

/// What the peer lists there, once it has arrived.
fn arrives(context: &Context, space: Space, offset: Option<u64>) -> Result<Entry, Problem> {
    let place = place(context, space, offset)?;
    let adaptor = Adaptor::open(&context.device)?;
    let start = Instant::now();
    loop {
        adaptor.events()?;
        let left = LIMIT.saturating_sub(start.elapsed());
        match entry_at(&adaptor, place)? {
            None if !left.is_zero() => adaptor.wait(left)?,
            entry => return is_listed(entry),
        };
    }
}

fn is_listed(entry: Option<Entry>) -> Result<Entry, Problem> {
    entry.ok_or_else(|| Problem::Fail("it is not listed".to_owned()))
}

fn own_node(context: &Context) -> Verdict {
    let entries = context.adaptor.inventory(own_id(context))?;
    let first = is_listed(entries.first().copied())?;
    equal("kind", first.kind, EntryKind::Node)?;
    equal("length", first.length, context.adaptor.fixed().window_size)?;
    let nodes = entries.iter().filter(|entry| entry.kind == EntryKind::Node).count();
    equal("entries for the node", nodes, 1)
}

fn bad_calls(context: &Context) -> Verdict {
    let node = context.adaptor.fixed().node;
    let ask = |mut argument: abi::Inventory| {
        // SAFETY: only EXPORT has a condition.
        unsafe { abi::call(context.adaptor.as_fd(), &mut argument) }.map(|()| argument)
    };
    let good = abi::Inventory { node, ..abi::Inventory::default() };
    let bad = |what, argument| refused(what, ask(argument).map(drop), libc::EINVAL);
    bad("node 256", abi::Inventory { node: 256, ..good })?;
    bad("entry 2^24", abi::Inventory { index: 1 << 24, ..good })?;
    bad("a field that is not zero", abi::Inventory { reserved: 1, ..good })?;
    let count = ask(good)?.count;
    for index in [count, (1 << 24) - 1] {
        let entry = ask(abi::Inventory { index, ..good })?;
        equal(format!("kind of entry {index} of {count}"), entry.kind, abi::KIND_NONE)?;
        equal("its length", entry.length, 0)?;
    }
    Ok(())
}

fn life(context: &Context) -> Verdict {
    exportable(context)?;
    for (space, read, write, name) in [
        (Space::Memory, true, false, "ardma-test-memory"),
        (Space::Io, false, true, "abcdefghijklmnopqrstuvwx"),
    ] {
        let name: Name = name.parse().map_err(ardma::Error::from)?;
        let options = ExportOptions { space, read, write, name, ..ExportOptions::default() };
        let mut export = context.adaptor.export(Memory::new(PAGE)?, &options)?;
        let place = export.place();
        let entry = is_listed(entry_at(&context.adaptor, place)?)?;
        equal("the entry", entry, Entry { kind: EntryKind::Memory, place, length: PAGE, read, write, name })?;
        export.end()?;
        equal("after its end", entry_at(&context.adaptor, place)?, None)?;
    }
    let unnamed = context.adaptor.export(Memory::new(PAGE)?, &ExportOptions::default())?;
    equal("no name", is_listed(entry_at(&context.adaptor, unnamed.place())?)?.name, Name::NONE)
}

fn event(context: &Context) -> Verdict {
    exportable(context)?;
    let adaptor = Adaptor::open(&context.device)?;
    let mut export = None;
    for what in ["an export", "its end"] {
        let before = adaptor.info()?.event_count(abi::EVENT_INVENTORY);
        adaptor.events()?;
        export = match export {
            None => Some(context.adaptor.export(Memory::new(PAGE)?, &ExportOptions::default())?),
            Some(_) => None,
        };
        let start = Instant::now();
        while adaptor.events()? & abi::EVENT_INVENTORY == 0 {
            let left = LIMIT.saturating_sub(start.elapsed());
            holds(!left.is_zero(), || format!("{what}: no event"))?;
            adaptor.wait(left)?;
        }
        let after = adaptor.info()?.event_count(abi::EVENT_INVENTORY);
        holds(after > before, || format!("{what}: {before} events before and {after} after"))?;
    }
    Ok(())
}

fn scratch(context: &Context) -> Verdict {
    let entry = arrives(context, Space::Memory, context.arguments.offset)?;
    equal("kind", entry.kind, EntryKind::Memory)?;
    equal("rights to read and write", (entry.read, entry.write), (true, true))?;
    holds(entry.length >= SCRATCH, || format!("it has {} bytes", entry.length))?;
    let first = is_listed(context.adaptor.inventory(context.peer()?)?.first().copied())?;
    equal("the first entry", first.kind, EntryKind::Node)
}

fn read_only(context: &Context) -> Verdict {
    let entry = arrives(context, Space::Memory, context.arguments.read_only)?;
    equal("rights to read and write", (entry.read, entry.write), (true, false))
}

fn ports(context: &Context) -> Verdict {
    let entry = arrives(context, Space::Io, context.arguments.io)?;
    equal("rights to read and write", (entry.read, entry.write), (true, true))
}

fn denied(context: &Context) -> Verdict {
    let place = place(context, Space::Memory, context.arguments.denied)?;
    equal("the entry", entry_at(&context.adaptor, place)?, None)
}
