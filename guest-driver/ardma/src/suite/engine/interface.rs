//! Tests of the driver's calls for the DMA engine: an errno for each bad argument, and nothing is left.

use super::super::tap::{Problem, Verdict, equal, refused};
use super::{Case, Context, case, register};
use ardma::abi::{self, engine};
use ardma::{Adaptor, ExportOptions, LocalRights, Memory, Nodes, PAGE, QueueOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

pub const CASES: &[Case] = &[
    case("memory is registered only with arguments that make sense", "driver interface", bad_memory),
    case("queues are made only in memory of the same file, and inside it", "driver interface", bad_queues),
    case("memory stays registered while a queue or a window is in it", "driver interface", busy),
    case("a doorbell page is mapped by its own file only, and alone", "Isolation", doorbell_pages),
    case("registered memory is exported only as it may be", "driver interface", bad_exports),
    case("registered memory need not be aligned, and is found where it is", "driver interface", unaligned),
    case("hundreds of keys and queues come and go", "driver interface", many),
];

/// A call whose argument is this program's own memory or none.
fn call<T: abi::Argument>(adaptor: &Adaptor, mut argument: T) -> io::Result<T> {
    // SAFETY: the tests name memory that no reference reaches, and that outlives the key.
    unsafe { abi::call(adaptor.as_fd(), &mut argument) }.map(|()| argument)
}

fn bad_memory(context: &Context) -> Verdict {
    let adaptor = &context.adaptor;
    drop(register(adaptor, PAGE, LocalRights::ALL)?);
    let memory = Memory::new(PAGE)?;
    let good = engine::Register {
        address: memory.address(),
        length: PAGE,
        rights: engine::LOCAL_READ,
        ..engine::Register::default()
    };
    let bad = |what, argument, errno| refused(what, call(adaptor, argument).map(drop), errno);
    bad("length 0", engine::Register { length: 0, ..good }, libc::EINVAL)?;
    bad("no right", engine::Register { rights: 0, ..good }, libc::EINVAL)?;
    bad("an unknown right", engine::Register { rights: 4, ..good }, libc::EINVAL)?;
    bad("a key", engine::Register { key: 1, ..good }, libc::EINVAL)?;
    bad("unmapped memory", engine::Register { address: 0x1000, ..good }, libc::EFAULT)?;
    bad("a kernel address", engine::Register { address: 1 << 63, ..good }, libc::EFAULT)?;
    bad("a length beyond all memory", engine::Register { length: u64::MAX, ..good }, libc::EFAULT)?;
    let unknown = engine::Deregister { key: 0xdead_beef, reserved: 0 };
    refused("an unknown key", call(adaptor, unknown).map(drop), libc::ENOENT)?;
    let field = engine::Deregister { key: 1, reserved: 1 };
    refused("a field that is not zero", call(adaptor, field).map(drop), libc::EINVAL)
}

fn bad_queues(context: &Context) -> Verdict {
    let adaptor = &context.adaptor;
    let memory = register(adaptor, PAGE.saturating_mul(2), LocalRights::ALL)?;
    let good = engine::CreateQueue {
        submission: 0,
        completion: PAGE,
        key: memory.key(),
        entries_log2: 5,
        eventfd: engine::NO_EVENTFD,
        ..engine::CreateQueue::default()
    };
    let bad = |what, argument, errno| refused(what, call(adaptor, argument).map(drop), errno);
    bad("too few entries", engine::CreateQueue { entries_log2: 1, ..good }, libc::EINVAL)?;
    bad("too many entries", engine::CreateQueue { entries_log2: 13, ..good }, libc::EINVAL)?;
    bad("a ring beyond the memory", engine::CreateQueue { entries_log2: 10, ..good }, libc::EINVAL)?;
    bad("a misaligned ring", engine::CreateQueue { submission: 8, ..good }, libc::EINVAL)?;
    bad("no room for the head", engine::CreateQueue { completion: 0, ..good }, libc::EINVAL)?;
    bad("a ring at the end of all offsets", engine::CreateQueue { submission: !63, ..good }, libc::EINVAL)?;
    bad("an unknown key", engine::CreateQueue { key: 0, ..good }, libc::ENOENT)?;
    bad("no eventfd", engine::CreateQueue { eventfd: 9999, ..good }, libc::EBADF)?;
    let file = adaptor.as_fd().as_raw_fd() as u32;
    bad("a file that is no eventfd", engine::CreateQueue { eventfd: file, ..good }, libc::EINVAL)?;
    let read_only = register(adaptor, PAGE.saturating_mul(2), LocalRights::READ)?;
    bad("rings that can't be written", engine::CreateQueue { key: read_only.key(), ..good }, libc::EINVAL)?;
    let other = Adaptor::open(&context.device)?;
    refused("another file's key", call(&other, good).map(drop), libc::ENOENT)?;

    let queue = call(adaptor, good)?;
    let destroy = engine::DestroyQueue { doorbell: queue.doorbell };
    refused("another file's queue", call(&other, destroy).map(drop), libc::ENOENT)?;
    call(adaptor, destroy)?;
    refused("a queue that is gone", call(adaptor, destroy).map(drop), libc::ENOENT)
}

fn busy(context: &Context) -> Verdict {
    let adaptor = &context.adaptor;
    let memory = register(adaptor, PAGE.saturating_mul(2), LocalRights::ALL)?;
    let queue = call(
        adaptor,
        engine::CreateQueue {
            completion: PAGE,
            key: memory.key(),
            entries_log2: 2,
            eventfd: engine::NO_EVENTFD,
            ..engine::CreateQueue::default()
        },
    )?;
    let errno = |result: Result<(), ardma::Error>| result.err().and_then(|error| error.errno());
    equal("with a queue", errno(memory.end()), Some(libc::EBUSY))?;
    call(adaptor, engine::DestroyQueue { doorbell: queue.doorbell })?;
    let mut export = memory.export(0, PAGE, &ExportOptions::default())?;
    equal("with a window", errno(memory.end()), Some(libc::EBUSY))?;
    export.end()?;
    Ok(memory.end()?)
}

/// Tries to map as much of a file.
fn map(adaptor: &Adaptor, offset: u64, length: usize, flags: i32) -> io::Result<()> {
    let (file, offset) = (adaptor.as_fd().as_raw_fd(), offset as libc::off_t);
    // SAFETY: new memory at addresses that the kernel chooses, which is unmapped before anybody uses it.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), length, libc::PROT_WRITE, flags, file, offset);
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(base, length);
    }
    Ok(())
}

fn doorbell_pages(context: &Context) -> Verdict {
    let adaptor = &context.adaptor;
    let memory = register(adaptor, PAGE.saturating_mul(2), LocalRights::ALL)?;
    let queue = call(
        adaptor,
        engine::CreateQueue {
            completion: PAGE,
            key: memory.key(),
            entries_log2: 2,
            eventfd: engine::NO_EVENTFD,
            ..engine::CreateQueue::default()
        },
    )?;
    let (page, shared) = (PAGE as usize, libc::MAP_SHARED);
    map(adaptor, queue.doorbell, page, shared)?;
    let other = Adaptor::open(&context.device)?;
    refused("by another file", map(&other, queue.doorbell, page, shared), libc::ENXIO)?;
    refused("two pages", map(adaptor, queue.doorbell, page.saturating_mul(2), shared), libc::EINVAL)?;
    refused("private", map(adaptor, queue.doorbell, page, libc::MAP_PRIVATE), libc::EINVAL)?;
    let neighbour = queue.doorbell ^ PAGE;
    refused("the next queue's", map(adaptor, neighbour, page, shared), libc::ENXIO)?;
    refused("an earlier queue's", map(adaptor, queue.doorbell ^ 1 << 28, page, shared), libc::ENXIO)?;
    call(adaptor, engine::DestroyQueue { doorbell: queue.doorbell })?;
    refused("of a queue that is gone", map(adaptor, queue.doorbell, page, shared), libc::ENXIO)
}

fn bad_exports(context: &Context) -> Verdict {
    let adaptor = &context.adaptor;
    let memory = register(adaptor, PAGE.saturating_mul(2), LocalRights::READ)?;
    let good = engine::ExportKey {
        key: memory.key(),
        rights: abi::RIGHT_READ,
        length: PAGE,
        offset: abi::OFFSET_ANY,
        nodes: Nodes::ALL.words(),
        ..engine::ExportKey::default()
    };
    let bad = |what, argument: engine::ExportKey, errno| {
        let result = call(adaptor, argument);
        if let Ok(made) = &result {
            call(adaptor, abi::Unexport { offset: made.offset, ..abi::Unexport::default() })?;
        }
        refused(what, result.map(drop), errno)
    };
    bad("an unknown key", engine::ExportKey { key: 0, ..good }, libc::ENOENT)?;
    bad("more than there is", engine::ExportKey { length: PAGE.saturating_mul(3), ..good }, libc::EINVAL)?;
    bad("a start behind the end", engine::ExportKey { start: PAGE.saturating_mul(2), ..good }, libc::EINVAL)?;
    bad("a start near 2^64", engine::ExportKey { start: 0_u64.wrapping_sub(PAGE), ..good }, libc::EINVAL)?;
    bad("a misaligned start", engine::ExportKey { start: 8, ..good }, libc::EINVAL)?;
    bad("a misaligned length", engine::ExportKey { length: 8, ..good }, libc::EINVAL)?;
    bad("no right", engine::ExportKey { rights: 0, ..good }, libc::EINVAL)?;
    bad("nothing but to lie beyond", engine::ExportKey { rights: abi::RIGHT_BEYOND, ..good }, libc::EINVAL)?;
    bad("no node", engine::ExportKey { nodes: [0; 4], ..good }, libc::EINVAL)?;
    bad("a field that is not zero", engine::ExportKey { reserved: 1, ..good }, libc::EINVAL)?;
    bad("writing what is read only", engine::ExportKey { rights: abi::RIGHT_WRITE, ..good }, libc::EACCES)?;
    let far = context.adaptor.fixed().window_size;
    bad("beyond the window", engine::ExportKey { offset: far, ..good }, libc::EINVAL)?;
    let beyond = engine::ExportKey { offset: far, rights: good.rights | abi::RIGHT_BEYOND, ..good };
    let failed = |what| move |error: io::Error| Problem::Fail(format!("{what} beyond the window: {error}"));
    let made = call(adaptor, beyond).map_err(failed("export"))?;
    equal("offset beyond the window", made.offset, far)?;
    call(adaptor, abi::Unexport { offset: far, ..abi::Unexport::default() }).map_err(failed("unexport"))?;
    Ok(())
}

fn unaligned(context: &Context) -> Verdict {
    let adaptor = &context.adaptor;
    drop(register(adaptor, PAGE, LocalRights::ALL)?);
    let memory = Memory::new(PAGE.saturating_mul(4))?;
    let made = call(
        adaptor,
        engine::Register {
            address: memory.address().saturating_add(100),
            length: PAGE.saturating_mul(2),
            rights: engine::LOCAL_READ,
            ..engine::Register::default()
        },
    )?;
    equal("offset behind the key", made.offset, 100)?;
    // Three pages hold it.
    let whole = engine::ExportKey {
        key: made.key,
        rights: abi::RIGHT_READ,
        length: PAGE.saturating_mul(3),
        offset: abi::OFFSET_ANY,
        nodes: Nodes::ALL.words(),
        ..engine::ExportKey::default()
    };
    let window = call(adaptor, whole)?;
    call(adaptor, abi::Unexport { offset: window.offset, ..abi::Unexport::default() })?;
    let more = engine::ExportKey { length: PAGE.saturating_mul(4), ..whole };
    refused("a fourth page", call(adaptor, more).map(drop), libc::EINVAL)?;
    call(adaptor, engine::Deregister { key: made.key, reserved: 0 })?;
    Ok(())
}

fn many(context: &Context) -> Verdict {
    let adaptor = Adaptor::open(&context.device)?;
    drop(register(&adaptor, PAGE, LocalRights::ALL)?);
    for _ in 0..3 {
        let keys = (0..300).map(|_| register(&adaptor, PAGE, LocalRights::ALL));
        let keys = keys.collect::<Result<Vec<_>, Problem>>()?;
        let mut numbers: Vec<u32> = keys.iter().map(ardma::Registered::key).collect();
        numbers.sort_unstable();
        numbers.dedup();
        equal("different keys", numbers.len(), 300)?;
        let options = QueueOptions { entries: 4, scatter: 0, ..QueueOptions::default() };
        let queues = (0..100).map(|_| adaptor.connect(&options));
        drop(queues.collect::<Result<Vec<_>, _>>()?);
    }
    Ok(())
}
