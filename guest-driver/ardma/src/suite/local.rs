//! Tests that need no other node: what the adaptor says of itself, and the life of exports.

use super::tap::{Problem, Verdict, equal, holds, refused};
use super::{Case, Context};
use ardma::{Adaptor, Error, Export, ExportOptions, Memory, Nodes, PAGE, Place, abi};
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

pub const CASES: &[Case] = &[
    case("the registers make sense", "device page", registers),
    case("the node table names this node", "device page", node_table),
    case("memory that is not shared is told and refused", "Truth about the guest's memory", private_memory),
    case("an export is listed as it was asked for, and gone after it ends", "Isolation", life_of_an_export),
    case("an export takes the offset that was asked for", "driver interface", chosen_offset),
    case("exports that overlap are refused", "Isolation", overlap),
    case("a file cannot end another file's export", "Isolation", foreign_export),
    case("closing the file ends its exports", "Isolation", closed_file),
    case("an overflow that one program acknowledges is told to the others", "No lost error", acknowledged),
    case("the death of a process ends its exports", "Isolation", killed_process),
];

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "local", name, contract, run }
}

/// Where no error is lost the acknowledgement changes nothing else.
fn acknowledged(context: &Context) -> Verdict {
    let other = Adaptor::open(&context.device)?;
    let (lapses, resets) = (context.adaptor.lapses()?, context.adaptor.resets()?);
    other.acknowledge_overflow(u8::MAX)?;
    holds(context.adaptor.lapses()? != lapses, || "the other program was not told".to_owned())?;
    equal("resets", context.adaptor.resets()?, resets)
}

/// Skips where exports are refused because the memory is not shared.
pub fn exportable(context: &Context) -> Verdict {
    match context.adaptor.info()?.memory {
        abi::MEMORY_NOT_SHARED => {
            Err(Problem::Skip("the guest's memory is not shared with the adaptor".to_owned()))
        }
        _ => Ok(()),
    }
}

fn registers(context: &Context) -> Verdict {
    let info = context.adaptor.info()?;
    equal("major device version", info.device_version >> 16, 1)?;
    equal("READY", info.status & abi::STATUS_READY, abi::STATUS_READY)?;
    holds(info.node < info.node_count, || format!("node {} of {}", info.node, info.node_count))?;
    holds(info.node_count.is_power_of_two() && (2..=256).contains(&info.node_count), || {
        format!("{} nodes", info.node_count)
    })?;
    equal(
        "window size against its log2",
        info.window_size,
        1_u64.checked_shl(info.window_bits).unwrap_or(0),
    )?;
    holds(info.window_size >= PAGE && info.window_bits <= 48, || {
        format!("window size {:#x}", info.window_size)
    })?;
    equal("block size", info.block_size(), 4096)?;
    holds(info.incarnation != 0, || "the incarnation is 0".to_owned())?;
    holds(info.lease_us < info.deadline_us && info.deadline_us < 5_000_000, || {
        format!("deadline {} us, lease {} us: QEMU gives up after 5 s", info.deadline_us, info.lease_us)
    })?;
    equal("incarnation, asked again", context.adaptor.info()?.incarnation, info.incarnation)
}

fn node_table(context: &Context) -> Verdict {
    let info = context.adaptor.info()?;
    let own: Vec<u32> =
        context.adaptor.nodes()?.iter().filter(|node| node.is_self()).map(|node| node.node).collect();
    equal("nodes that are this one", own, vec![info.node])?;
    for node in context.adaptor.nodes()? {
        holds(node.node < info.node_count, || format!("node {} is beyond the access space", node.node))?;
        holds(!node.is_up() || node.incarnation != 0, || {
            format!("node {} is up, its incarnation 0", node.node)
        })?;
    }
    Ok(())
}

fn private_memory(context: &Context) -> Verdict {
    let info = context.adaptor.info()?;
    if info.memory == abi::MEMORY_UNKNOWN {
        return Err(Problem::Skip("the driver could not find out whether the memory is shared".to_owned()));
    }
    if info.memory == abi::MEMORY_SHARED {
        equal("MEMORY_PRIVATE", info.status & abi::STATUS_MEMORY_PRIVATE, 0)?;
        return equal("MEMORY_SHARED", info.status & abi::STATUS_MEMORY_SHARED, abi::STATUS_MEMORY_SHARED);
    }
    let result = context.adaptor.export(Memory::new(PAGE)?, &ExportOptions::default());
    equal("errno", result.err().and_then(|error| error.errno()), Some(libc::EOPNOTSUPP))
}

fn listed(adaptor: &Adaptor, offset: u64) -> Result<Option<abi::Window>, Error> {
    Ok(adaptor.windows()?.into_iter().find(|window| window.offset == offset))
}

fn export(adaptor: &Adaptor, length: u64, offset: Option<u64>) -> Result<Export, Error> {
    adaptor.export(Memory::new(length)?, &ExportOptions { offset, ..ExportOptions::default() })
}

fn life_of_an_export(context: &Context) -> Verdict {
    exportable(context)?;
    let nodes = Nodes::only(3).with(200);
    let options = ExportOptions { write: false, nodes, ..ExportOptions::default() };
    let mut export = context.adaptor.export(Memory::new(40 << 10)?, &options)?;
    let offset = export.place().offset;
    let window =
        listed(&context.adaptor, offset)?.ok_or_else(|| Problem::Fail("it is not listed".to_owned()))?;
    equal("length", window.length, 40 << 10)?;
    equal("rights", window.rights, abi::RIGHT_READ)?;
    equal("nodes", window.nodes, nodes.words())?;
    equal("owner", window.owner, std::process::id())?;
    equal("flags", window.flags, abi::WINDOW_MINE)?;
    export.end()?;
    holds(listed(&context.adaptor, offset)?.is_none(), || "it is still listed".to_owned())?;
    let mut argument = abi::Unexport { offset, ..Default::default() };
    // SAFETY: UNEXPORT touches no memory of this process.
    let again = unsafe { abi::call(context.adaptor.as_fd(), &mut argument) };
    refused("a second end", again, libc::ENOENT)
}

fn chosen_offset(context: &Context) -> Verdict {
    exportable(context)?;
    let free = export(&context.adaptor, 64 << 10, None)?.place().offset;
    let second = free.saturating_add(32 << 10);
    let export = export(&context.adaptor, 4096, Some(second))?;
    equal("offset", export.place().offset, second)
}

fn overlap(context: &Context) -> Verdict {
    exportable(context)?;
    let free = export(&context.adaptor, 16 << 10, None)?.place().offset;
    let at = |pages: u64| free.saturating_add(pages.saturating_mul(PAGE));
    let _middle = export(&context.adaptor, 8192, Some(at(1)))?;
    for (start, pages) in [(0, 2), (1, 1), (1, 2), (2, 2), (0, 4)] {
        let result = export(&context.adaptor, PAGE.saturating_mul(pages), Some(at(start)));
        let errno = result.err().and_then(|error| error.errno());
        equal(
            format!("{pages} pages from page {start} over pages 1 and 2: errno"),
            errno,
            Some(libc::ENOSPC),
        )?;
    }
    let _before = export(&context.adaptor, PAGE, Some(at(0)))?;
    let _after = export(&context.adaptor, PAGE, Some(at(3)))?;
    Ok(())
}

fn foreign_export(context: &Context) -> Verdict {
    exportable(context)?;
    let export = export(&context.adaptor, PAGE, None)?;
    let other = Adaptor::open(&context.device)?;
    let offset = export.place().offset;
    let mut argument = abi::Unexport { offset, ..Default::default() };
    // SAFETY: UNEXPORT touches no memory of this process.
    refused("by another file", unsafe { abi::call(other.as_fd(), &mut argument) }, libc::ENOENT)?;
    let window = listed(&other, offset)?.ok_or_else(|| Problem::Fail("the window is gone".to_owned()))?;
    equal("MINE, seen from the other file", window.flags & abi::WINDOW_MINE, 0)
}

/// Fails unless nothing is listed at the offset and it can be exported again.
fn free_again(context: &Context, offset: u64) -> Verdict {
    holds(listed(&context.adaptor, offset)?.is_none(), || "the window is still listed".to_owned())?;
    export(&context.adaptor, PAGE, Some(offset))?;
    Ok(())
}

fn closed_file(context: &Context) -> Verdict {
    exportable(context)?;
    let memory = Memory::new(PAGE)?;
    let other = Adaptor::open(&context.device)?;
    let mut argument = abi::Export {
        address: memory.address(),
        length: PAGE,
        offset: abi::OFFSET_ANY,
        rights: abi::RIGHT_READ,
        nodes: Nodes::ALL.words(),
        ..Default::default()
    };
    // SAFETY: other nodes may only read, and the memory outlives the file.
    unsafe { abi::call(other.as_fd(), &mut argument) }?;
    holds(listed(&context.adaptor, argument.offset)?.is_some(), || "it was not listed".to_owned())?;
    drop(other);
    free_again(context, argument.offset)
}

fn killed_process(context: &Context) -> Verdict {
    exportable(context)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--device")
        .arg(&context.device)
        .args(["export", "4K"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let place = exported_place(&mut child);
    child.kill()?;
    child.wait()?;
    free_again(context, place?.offset)
}

/// Where a child says that it exports.
fn exported_place(child: &mut Child) -> Result<Place, Problem> {
    let output = child.stdout.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let place = line.strip_prefix("exported ").and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    place.ok_or_else(|| Problem::Fail(format!("`ardma export` said {line:?}")))
}
