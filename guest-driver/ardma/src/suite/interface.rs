//! Tests of the driver's calls with bad arguments: an errno each, and nothing else happens.

use super::local::exportable;
use super::tap::{Problem, Verdict, equal, holds, refused};
use super::{Case, Context};
use ardma::{Memory, Nodes, PAGE, abi};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    case("exports with bad arguments are refused", bad_exports),
    case("an export says where it is, whatever another thread takes back", raced_exports),
    case("a file that is open for reading only makes and clears nothing", read_only),
    case("exports of BARs with bad arguments are refused", bad_bars),
    case("exports of memory without the access that they need are refused", unmapped_exports),
    case("calls with a bad pointer or an unknown number are refused", bad_calls),
    case("nodes beyond 255 and fields that are not zero are refused", bad_fields),
    case("mappings that are not inside one node's window are refused", bad_places),
    case("mappings with a protection or kind that makes no sense are refused", bad_mappings),
    case("doorbells are opened by one file at a time, and with arguments that make sense", doorbells),
    case("poll waits as long as it was asked to, and not longer", poll),
];

/// Calls that race with others that undo them.
const RACES: u32 = 2000;

/// The spaces that can be mapped: names and bits of the address.
const SPACES: [(&str, u64); 6] = [
    ("access", 0),
    ("assurance", abi::ADDRESS_ASSURANCE),
    ("peek", abi::ADDRESS_ASSURANCE | abi::ADDRESS_PEEK),
    ("I/O", abi::ADDRESS_IO),
    ("I/O assurance", abi::ADDRESS_IO | abi::ADDRESS_ASSURANCE),
    ("I/O peek", abi::ADDRESS_IO | abi::ADDRESS_ASSURANCE | abi::ADDRESS_PEEK),
];

const fn case(name: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "local", name, contract: "driver interface", run }
}

/// An export that would be right.
fn good(memory: &Memory) -> abi::Export {
    abi::Export {
        address: memory.address(),
        length: memory.length(),
        offset: abi::OFFSET_ANY,
        rights: abi::RIGHT_READ,
        nodes: Nodes::ALL.words(),
        ..Default::default()
    }
}

/// An export that has to be refused; where it is not, it is taken back.
fn refuse(context: &Context, what: &str, mut argument: abi::Export, errno: i32) -> Verdict {
    // SAFETY: where it succeeds against expectation, it is ended before the memory (which nothing refers to) goes.
    let result = unsafe { abi::call(context.adaptor.as_fd(), &mut argument) };
    if result.is_ok() {
        let mut undo = abi::Unexport { offset: argument.offset, space: argument.space, ..Default::default() };
        // SAFETY: UNEXPORT touches no memory of this process.
        drop(unsafe { abi::call(context.adaptor.as_fd(), &mut undo) });
    }
    refused(what, result, errno)
}

fn bad_exports(context: &Context) -> Verdict {
    exportable(context)?;
    let memory = Memory::new(PAGE.saturating_mul(4))?;
    let window = context.adaptor.fixed().window_size;
    let bad = |what, change: &dyn Fn(&mut abi::Export)| {
        let mut argument = good(&memory);
        argument.length = PAGE;
        change(&mut argument);
        refuse(context, what, argument, libc::EINVAL)
    };
    bad("a misaligned address", &|export| export.address |= 8)?;
    bad("a misaligned length", &|export| export.length |= 8)?;
    bad("a misaligned offset", &|export| export.offset = 8)?;
    bad("length 0", &|export| export.length = 0)?;
    bad("a length above the window size", &|export| export.length = window.saturating_add(PAGE))?;
    bad("a length near 2^64", &|export| export.length = 0_u64.wrapping_sub(PAGE))?;
    bad("no right", &|export| export.rights = 0)?;
    bad("an unknown right", &|export| export.rights |= 1 << 31)?;
    bad("no node", &|export| export.nodes = [0; 4])?;
    bad("an unknown space", &|export| export.space = 2)?;
    for at in [1, 23] {
        bad("a letter behind the name's end", &|export| {
            export.name = std::array::from_fn(|here| u8::from(here == at));
        })?;
    }
    let io = |offset, pages: u64| {
        move |export: &mut abi::Export| {
            (export.space, export.offset) = (abi::SPACE_IO, offset);
            export.length = PAGE.saturating_mul(pages);
        }
    };
    bad("the adaptor's own part of the I/O space", &io(0, 1))?;
    bad("what goes beyond the I/O space", &io(0xf000, 2))?;
    bad("the whole of the I/O space", &io(abi::OFFSET_ANY, 16))?;
    equal("windows of this file", mine(context)?, 0)
}

fn bad_bars(context: &Context) -> Verdict {
    exportable(context)?;
    let refuse = |what, argument: abi::ExportBar, errno| {
        let good = abi::ExportBar { rights: abi::RIGHT_READ, offset: abi::OFFSET_ANY, ..argument };
        let mut argument = abi::ExportBar { nodes: Nodes::ALL.words(), ..good };
        // SAFETY: the window would be of no memory of this process.
        let result = unsafe { abi::call(context.adaptor.as_fd(), &mut argument) };
        refused(what, result, errno)
    };
    let none = abi::ExportBar::default();
    refuse("a field that is not zero", abi::ExportBar { reserved: 1, ..none }, libc::EINVAL)?;
    refuse("BAR 6", abi::ExportBar { bar: 6, ..none }, libc::EINVAL)?;
    refuse("a function beyond bus 255", abi::ExportBar { function: 1 << 16, ..none }, libc::EINVAL)?;
    refuse("a domain that there is not", abi::ExportBar { domain: u32::MAX, ..none }, libc::ENXIO)?;
    // Function 0:0.0 is the host bridge, which has no BARs.
    refuse("a BAR that there is not", none, libc::ENXIO)?;
    equal("windows of this file", mine(context)?, 0)
}

/// The window goes while the call that makes it returns, and another one comes into its record's place: what the program
/// is told must be the first one's.
fn raced_exports(context: &Context) -> Verdict {
    exportable(context)?;
    let memory = Memory::new(PAGE)?;
    let offset = context.adaptor.fixed().window_size.saturating_sub(PAGE);
    let other = offset.saturating_sub(PAGE);
    let export = |offset| {
        let mut argument = abi::Export { offset, ..good(&memory) };
        // SAFETY: nothing refers to the memory, and the window is gone before it.
        unsafe { abi::call(context.adaptor.as_fd(), &mut argument) }.map(|()| argument.offset)
    };
    let unexport = |offset| {
        let mut argument = abi::Unexport { offset, ..Default::default() };
        // SAFETY: UNEXPORT touches no memory of this process.
        unsafe { abi::call(context.adaptor.as_fd(), &mut argument) }
    };
    let over = AtomicBool::new(false);
    let verdict = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if unexport(offset).is_ok() {
                    drop(export(other));
                    drop(unexport(other));
                }
            }
        });
        let verdict = (0..RACES).try_for_each(|_| match export(offset) {
            Ok(told) => equal("the offset", told, offset),
            // The last one is not taken back yet.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Ok(()),
            Err(error) => Err(error.into()),
        });
        over.store(true, Ordering::Relaxed);
        verdict
    });
    drop(unexport(offset));
    drop(unexport(other));
    verdict?;
    equal("windows of this file", mine(context)?, 0)
}

fn read_only(context: &Context) -> Verdict {
    let file = File::open(&context.device)?;
    let memory = Memory::new(PAGE)?;
    let mut export = good(&memory);
    // SAFETY: the call has to be refused.
    refused("an export", unsafe { abi::call(file.as_fd(), &mut export) }, libc::EACCES)?;
    let mut ack = abi::OverflowAck { node: u32::from(u8::MAX), ..Default::default() };
    // SAFETY: the call has no condition.
    refused("acknowledging overflow", unsafe { abi::call(file.as_fd(), &mut ack) }, libc::EACCES)?;
    let listen = abi::Listen { doorbells: 1, nodes: Nodes::ALL.words(), ..Default::default() };
    refused("listening", abi::listen(file.as_fd(), listen).map(drop), libc::EACCES)?;
    refused("a reset", abi::reset(file.as_fd()), libc::EACCES)?;
    let mut info = abi::Info::default();
    // SAFETY: the call has no condition.
    unsafe { abi::call(file.as_fd(), &mut info) }?;
    let map = |address: u64| {
        let address = libc::off_t::try_from(address).unwrap_or(libc::off_t::MAX);
        let (page, flags) = (PAGE as usize, libc::MAP_SHARED);
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses, and they are not used.
        unsafe {
            match libc::mmap(ptr::null_mut(), page, libc::PROT_READ, flags, file.as_raw_fd(), address) {
                libc::MAP_FAILED => Err(io::Error::last_os_error()),
                base => Ok(libc::munmap(base, page)),
            }
        }
    };
    refused("a mapping whose loads clear errors", map(abi::ADDRESS_ASSURANCE).map(|_| ()), libc::EACCES)?;
    map(abi::ADDRESS_ASSURANCE | abi::ADDRESS_PEEK)?;
    map(0)?;
    Ok(())
}

/// How many windows this file has.
fn mine(context: &Context) -> Result<usize, Problem> {
    Ok(context.adaptor.windows()?.iter().filter(|window| window.flags & abi::WINDOW_MINE != 0).count())
}

fn unmapped_exports(context: &Context) -> Verdict {
    exportable(context)?;
    let memory = Memory::new(PAGE)?;
    let unmapped = abi::Export { address: 0x1000, ..good(&memory) };
    refuse(context, "unmapped memory", unmapped, libc::EFAULT)?;
    let pages = PAGE.saturating_mul(2) as usize;
    // SAFETY: new read-only memory at addresses that the kernel chooses.
    let base = unsafe {
        libc::mmap(ptr::null_mut(), pages, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error().into());
    }
    let read_only = abi::Export {
        address: base.expose_provenance() as u64,
        length: pages as u64,
        rights: abi::RIGHT_READ | abi::RIGHT_WRITE,
        ..good(&memory)
    };
    let verdict = refuse(context, "writing to read-only memory", read_only, libc::EFAULT);
    // SAFETY: the memory just mapped, which nothing uses any more.
    unsafe { libc::munmap(base, pages) };
    verdict?;
    equal("windows of this file", mine(context)?, 0)
}

fn bad_calls(context: &Context) -> Verdict {
    let file = context.adaptor.as_fd().as_raw_fd();
    let call = |request: libc::Ioctl, argument: usize| {
        // SAFETY: the addresses are not mapped, so nothing of this process can be changed.
        match unsafe { libc::ioctl(file, request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    use abi::Argument;
    for (name, request) in [
        ("INFO", abi::Info::REQUEST),
        ("NODE", abi::Node::REQUEST),
        ("EXPORT", abi::Export::REQUEST),
        ("EXPORT_BAR", abi::ExportBar::REQUEST),
        ("UNEXPORT", abi::Unexport::REQUEST),
        ("WINDOW", abi::Window::REQUEST),
        ("OVERFLOW_ACK", abi::OverflowAck::REQUEST),
        ("EVENTS", abi::Events::REQUEST),
        ("LISTEN", abi::Listen::REQUEST),
        ("INVENTORY", abi::Inventory::REQUEST),
    ] {
        refused(&format!("{name} with a null pointer"), call(request, 0), libc::EFAULT)?;
        refused(&format!("{name} with a kernel address"), call(request, 1 << 63), libc::EFAULT)?;
        // The same number with another size of the argument is another call.
        refused(&format!("{name} with another size"), call(request ^ (4 << 16), 0), libc::ENOTTY)?;
    }
    refused("an unknown number", call(abi::RESET | 0xff, 0), libc::ENOTTY)?;
    refused("a terminal's call", call(libc::TCGETS as libc::Ioctl, 0), libc::ENOTTY)
}

fn bad_fields(context: &Context) -> Verdict {
    let device = context.adaptor.as_fd();
    let mut node = abi::Node { node: 256, ..Default::default() };
    // SAFETY: only EXPORT has a condition.
    refused("NODE 256", unsafe { abi::call(device, &mut node) }, libc::EINVAL)?;
    let mut node = abi::Node { reserved: 1, ..Default::default() };
    // SAFETY: as above.
    refused("NODE with a field that is not zero", unsafe { abi::call(device, &mut node) }, libc::EINVAL)?;
    let mut ack = abi::OverflowAck { node: 256, reserved: 0 };
    // SAFETY: as above.
    refused("OVERFLOW_ACK 256", unsafe { abi::call(device, &mut ack) }, libc::EINVAL)?;
    let mut unexport = abi::Unexport { offset: 1, ..Default::default() };
    // SAFETY: as above.
    refused("UNEXPORT of nothing", unsafe { abi::call(device, &mut unexport) }, libc::ENOENT)?;
    let mut window = abi::Window { index: u32::MAX, ..Default::default() };
    // SAFETY: as above.
    refused("WINDOW 2^32 - 1", unsafe { abi::call(device, &mut window) }, libc::ENOENT)
}

/// Tries a mapping, and takes it back.
fn map(context: &Context, address: u64, length: u64, protection: i32, flags: i32) -> io::Result<()> {
    let file = context.adaptor.as_fd().as_raw_fd();
    // SAFETY: the kernel chooses the addresses; nothing reaches them.
    let base = unsafe {
        libc::mmap(ptr::null_mut(), length as usize, protection, flags, file, address as libc::off_t)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made.
    unsafe { libc::munmap(base, length as usize) };
    Ok(())
}

fn bad_places(context: &Context) -> Verdict {
    let info = context.adaptor.fixed();
    let address = |node: u32, offset: u64| u64::from(node) << abi::ADDRESS_NODE_SHIFT | offset;
    for (space, bits) in SPACES {
        let size = if bits & abi::ADDRESS_IO == 0 { info.window_size } else { info.io_window_size };
        let last = size.saturating_sub(PAGE);
        let try_map =
            |address: u64, length| map(context, address | bits, length, libc::PROT_READ, libc::MAP_SHARED);
        try_map(address(info.node, last), PAGE)
            .map_err(|error| Problem::Fail(format!("{space}, last page: {error}")))?;
        let two_pages = PAGE.saturating_mul(2);
        refused(
            &format!("{space}, across the window's end"),
            try_map(address(info.node, last), two_pages),
            libc::ENXIO,
        )?;
        let end = try_map(address(info.node, size), PAGE);
        refused(&format!("{space}, at the window's end"), end, libc::ENXIO)?;
        if info.node_count < 256 {
            let beyond = try_map(address(info.node_count, 0), PAGE);
            refused(&format!("{space}, a node beyond the last"), beyond, libc::ENXIO)?;
        }
        for bad in [59, 62] {
            let result = try_map(address(info.node, 0) | 1 << bad, PAGE);
            holds(result.is_err(), || format!("{space}, bit {bad} of the address set: was accepted"))?;
        }
    }
    for (space, bits) in [("memory", 0), ("I/O", abi::ADDRESS_IO)] {
        let result = map(
            context,
            address(info.node, 0) | bits | abi::ADDRESS_PEEK,
            PAGE,
            libc::PROT_READ,
            libc::MAP_SHARED,
        );
        refused(&format!("{space}, the peek alias of no assurance space"), result, libc::EINVAL)?;
    }
    Ok(())
}

fn bad_mappings(context: &Context) -> Verdict {
    let place = u64::from(context.adaptor.fixed().node) << abi::ADDRESS_NODE_SHIFT;
    let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
    for (space, bits) in SPACES {
        let address = place | bits;
        let private = map(context, address, PAGE, read, libc::MAP_PRIVATE);
        refused(&format!("{space}, private"), private, libc::EINVAL)?;
        let executable = map(context, address, PAGE, read | libc::PROT_EXEC, libc::MAP_SHARED);
        refused(&format!("{space}, executable"), executable, libc::EINVAL)?;
        let writable = map(context, address, PAGE, both, libc::MAP_SHARED);
        if bits & abi::ADDRESS_ASSURANCE != 0 {
            refused(&format!("{space}, for writing"), writable, libc::EACCES)?;
        } else {
            writable.map_err(|error| Problem::Fail(format!("{space}, for reading and writing: {error}")))?;
        }
    }
    Ok(())
}

fn doorbells(context: &Context) -> Verdict {
    let device = context.adaptor.as_fd();
    let good = abi::Listen { doorbells: 1 << 63, nodes: Nodes::ALL.words(), ..Default::default() };
    let listen = |what, argument, errno| refused(what, abi::listen(device, argument).map(drop), errno);
    listen("no doorbell", abi::Listen { doorbells: 0, ..good }, libc::EINVAL)?;
    listen("no node", abi::Listen { nodes: [0; 4], ..good }, libc::EINVAL)?;
    listen("an unknown flag", abi::Listen { flags: 2, ..good }, libc::EINVAL)?;
    listen("a field that is not zero", abi::Listen { reserved: 1, ..good }, libc::EINVAL)?;
    let file = abi::listen(device, good)?;
    listen("a doorbell that is open", abi::Listen { doorbells: 3 << 62, ..good }, libc::EBUSY)?;
    let mask = |doorbells, masked, reserved| {
        let mut argument = abi::Mask { doorbells, masked, reserved };
        // SAFETY: only EXPORT has a condition.
        unsafe { abi::call(file.as_fd(), &mut argument) }
    };
    mask(1 << 63, 1, 0)?;
    refused("masking another's doorbell", mask(1, 1, 0), libc::EINVAL)?;
    refused("masking none", mask(0, 1, 0), libc::EINVAL)?;
    refused("masking by 2", mask(1 << 63, 2, 0), libc::EINVAL)?;
    refused("masking with a field that is not zero", mask(1 << 63, 0, 1), libc::EINVAL)?;
    drop(file);
    // Closed again, and free for the next one.
    abi::listen(device, abi::Listen { doorbells: 3 << 62, ..good })?;
    Ok(())
}

fn poll(context: &Context) -> Verdict {
    let time = Duration::from_millis(50);
    // Links may change meanwhile, so it has several tries.
    for _ in 0..10 {
        context.adaptor.events()?;
        if context.adaptor.wait(Duration::ZERO)? {
            continue;
        }
        let start = Instant::now();
        if !context.adaptor.wait(time)? {
            return holds(start.elapsed() >= time, || format!("it waited for {:?}", start.elapsed()));
        }
    }
    Err(Problem::Fail("there is always an event".to_owned()))
}
