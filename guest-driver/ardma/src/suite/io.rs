//! Tests of the I/O space, each access to which is carried alone, and of checks that clear nothing.

use super::local::exportable;
use super::remote::{check_ok, each_size, found, pattern, word};
use super::tap::{Problem, Verdict, equal, holds, skip};
use super::{Case, Context, IO_SCRATCH, clear, errors::codes};
use ardma::{Code, Error, Export, ExportOptions, Memory, PAGE, Place, RemoteWindow, Space, Word, abi};

pub const CASES: &[Case] = &[
    case(
        "an export into the I/O space is listed as one, and leaves the memory space alone",
        "device page",
        export,
    ),
    case("accesses of 1, 2, 4 and 8 bytes do what they should", "No false OK", accesses),
    case("of stores to the same bytes the last one counts", "Order, exactly once", last_store_counts),
    case(
        "a load brings what was stored just before it, in either space",
        "Order, exactly once",
        loads_after_stores,
    ),
    case("neighbouring stores are a transaction each", "device page", nothing_is_joined),
    case("the window's last bytes are reached, and nothing behind them", "device page", window_end),
    case("an access over the edge of what is exported is told", "No false OK", over_the_edge),
    case(
        "an error is not that of the same place in memory, nor the other way round",
        "No lost error",
        spaces_apart,
    ),
    case("a peek tells an error and leaves it for the check", "No lost error", peek),
    case("a peek of memory does so too", "No lost error", peek_of_memory),
];

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "io", name, contract, run }
}

impl Context<'_> {
    /// What the peer exports into its I/O space.
    fn ports(&self) -> Result<RemoteWindow, Problem> {
        let offset = self.arguments.io.ok_or_else(|| skip("no --peer and --io given"))?;
        let window = self.adaptor.map(Place::io(self.peer()?, offset), IO_SCRATCH)?;
        clear(&window)?;
        Ok(window)
    }

    /// The block before it, where nothing is, and its own first one.
    fn edge(&self) -> Result<RemoteWindow, Problem> {
        let start = self.ports()?.place();
        let offset = start.offset.checked_sub(PAGE).ok_or_else(|| skip("--io is the first block"))?;
        let window = self.adaptor.map(Place { offset, ..start }, PAGE.saturating_mul(2))?;
        clear(&window)?;
        Ok(window)
    }
}

fn export(context: &Context) -> Verdict {
    exportable(context)?;
    let export_to = |space, offset| -> Result<Export, Error> {
        context.adaptor.export(Memory::new(PAGE)?, &ExportOptions { space, offset, ..Default::default() })
    };
    let ports = export_to(Space::Io, None)?;
    let offset = ports.place().offset;
    holds(offset >= PAGE, || format!("it is at {}, which is the adaptor's own", ports.place()))?;
    let listed = |flags| -> Result<usize, Error> {
        let is_it = |window: &abi::Window| window.offset == offset && window.flags == flags;
        Ok(context.adaptor.windows()?.iter().filter(|window| is_it(window)).count())
    };
    equal("windows in the I/O space there", listed(abi::WINDOW_MINE | abi::WINDOW_IO)?, 1)?;
    let taken = export_to(Space::Io, Some(offset)).err().and_then(|error| error.errno());
    equal("the same place again: errno", taken, Some(libc::ENOSPC))?;
    // Another test's export may be there.
    let before = listed(abi::WINDOW_MINE)?;
    let memory = export_to(Space::Memory, None)?;
    if memory.place().offset == offset {
        equal("windows in the memory space there", listed(abi::WINDOW_MINE)?, before.saturating_add(1))?;
    }
    drop(ports);
    equal("windows in the I/O space after its end", listed(abi::WINDOW_MINE | abi::WINDOW_IO)?, 0)
}

fn accesses(context: &Context) -> Verdict {
    let window = context.ports()?;
    each_size!(accesses_of(&window))
}

fn accesses_of<T: Word>(window: &RemoteWindow) -> Verdict {
    let size = size_of::<T>();
    for offset in (0..32_usize).step_by(size) {
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
        equal(&what, window.load::<T>(offset as u64)?, word(&value)?)?;
        check_ok(window, &what, 0)?;
    }
    Ok(())
}

fn last_store_counts(context: &Context) -> Verdict {
    let window = context.ports()?;
    for value in 0..100_u64 {
        window.store(64, value)?;
        window.store(68, value as u16)?;
    }
    check_ok(&window, "overlapping stores", 64)?;
    equal("the bytes", window.load::<u64>(64)?, 99 | 99 << 32)?;
    check_ok(&window, "the load", 64)
}

fn loads_after_stores(context: &Context) -> Verdict {
    let (ports, memory) = (context.ports()?, context.scratch()?);
    for value in 1..=50_u32 {
        memory.store(128, value)?;
        ports.store(128, !value)?;
        equal("the load from memory", memory.load::<u32>(128)?, value)?;
        memory.store(128, 0_u32)?;
        equal("the load from the I/O space", ports.load::<u32>(128)?, !value)?;
    }
    check_ok(&ports, "the I/O space", 128)?;
    check_ok(&memory, "memory", 128)
}

/// Only transactions that fail are counted on this side.
fn nothing_is_joined(context: &Context) -> Verdict {
    let window = context.edge()?;
    let before = context.adaptor.info()?.errors;
    for offset in (0..64).step_by(4) {
        window.store(offset, 1_u32)?;
    }
    codes(&window, "the stores", 0, Code::NoWindow, Code::Ok)?;
    let stored = context.adaptor.info()?.errors.wrapping_sub(before);
    equal("transactions of 16 neighbouring stores", stored, 16)?;
    equal("the data", window.load::<u64>(0)?, u64::MAX)?;
    codes(&window, "the load", 0, Code::Ok, Code::NoWindow)?;
    equal("transactions in all", context.adaptor.info()?.errors.wrapping_sub(before), 17)
}

fn window_end(context: &Context) -> Verdict {
    let window = context.ports()?;
    let end = window.place().plus(IO_SCRATCH);
    if end.offset != context.adaptor.fixed().io_window_size {
        return Err(skip("what --io names does not go up to the end of the I/O space"));
    }
    each_size!(last_bytes_of(&window))?;
    let beyond = context.adaptor.map(Place { offset: end.offset.saturating_sub(8), ..end }, 16);
    holds(matches!(beyond, Err(Error::Outside { .. })), || "bytes behind the end were mapped".to_owned())
}

fn last_bytes_of<T: Word>(window: &RemoteWindow) -> Verdict {
    let size = size_of::<T>();
    let offset = IO_SCRATCH.saturating_sub(size as u64);
    let bytes = pattern(size as u64, size);
    window.store(offset, word::<T>(&bytes)?)?;
    check_ok(window, "the store", offset)?;
    equal("the last bytes", window.load::<T>(offset)?, word(&bytes)?)?;
    check_ok(window, "the load", offset)
}

/// A processor may cut such an access; what lies outside is told in any case.
fn over_the_edge(context: &Context) -> Verdict {
    let window = context.edge()?;
    let edge = PAGE.saturating_sub(4);
    window.store(edge, 1_u64)?;
    codes(&window, "the store", 0, Code::NoWindow, Code::Ok)?;
    window.load::<u64>(edge)?;
    codes(&window, "the load", 0, Code::Ok, Code::NoWindow)?;
    clear(&window)
}

fn spaces_apart(context: &Context) -> Verdict {
    let ports = context.edge()?;
    let memory = context.adaptor.map(Place { space: Space::Memory, ..ports.place() }, PAGE)?;
    clear(&memory)?;
    ports.store(0, 1_u32)?;
    check_ok(&memory, "memory, after an error in the I/O space", 0)?;
    codes(&ports, "the I/O space", 0, Code::NoWindow, Code::Ok)?;
    let memory = context.unexported()?;
    let here = memory.place();
    memory.store(0, 1_u32)?;
    for offset in
        [ports.place().offset, here.offset & context.adaptor.fixed().io_window_size.saturating_sub(PAGE)]
    {
        let window = context.adaptor.map(Place { space: Space::Io, offset, ..here }, PAGE)?;
        check_ok(&window, "the I/O space, after an error in memory", 0)?;
    }
    codes(&memory, "memory", 0, Code::NoWindow, Code::Ok)
}

fn peek(context: &Context) -> Verdict {
    peeks(&context.edge()?)
}

fn peek_of_memory(context: &Context) -> Verdict {
    peeks(&context.unexported()?)
}

fn peeks(window: &RemoteWindow) -> Verdict {
    equal("a peek where nothing failed", window.peek(0)?.bits(), 0)?;
    window.store(8, 1_u32)?;
    window.load::<u32>(8)?;
    for offset in [0, 1, 8, 4095] {
        let status = window.peek(offset)?;
        holds((status.write(), status.read()) == (Code::NoWindow, Code::NoWindow), || {
            format!("the peek at {offset} answers {status}")
        })?;
    }
    codes(window, "the check after peeks", 0, Code::NoWindow, Code::NoWindow)?;
    equal("a peek after the check", window.peek(0)?.bits(), 0)
}
