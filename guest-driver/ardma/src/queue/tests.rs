//! A queue over rings in memory, with an adaptor that is played by the test.

#![allow(clippy::arithmetic_side_effects)]

use super::entry::{COMPLETION, SUBMISSION};
use super::*;
use crate::registered::Registered;

/// The other side of a queue: its memory and its doorbell page.
struct Played {
    rings: Registered,
    doorbell: std::fs::File,
    layout: Layout,
    seen: u32,
}

impl Played {
    /// The next submission, if its index is right.
    fn take(&mut self) -> Option<[u8; SUBMISSION]> {
        let mut entry = [0; SUBMISSION];
        let at = u64::from(self.seen % self.layout.entries) * SUBMISSION as u64;
        self.rings.read(at, &mut entry).unwrap();
        let index = u32::from_le_bytes(entry[..4].try_into().unwrap());
        (index == self.seen.wrapping_add(1)).then(|| {
            self.seen = self.seen.wrapping_add(1);
            entry
        })
    }

    /// Ends the last submission that was taken.
    fn end(&self, entry: &[u8; SUBMISSION], status: u32, former: u64) {
        let mut completion = [0; COMPLETION];
        completion[4..8].copy_from_slice(&status.to_le_bytes());
        completion[8..16].copy_from_slice(&entry[8..16]);
        if status == 0 {
            completion[16..24].copy_from_slice(&entry[24..32]);
        }
        completion[24..].copy_from_slice(&former.to_le_bytes());
        let slot = u64::from(self.seen.wrapping_sub(1) % self.layout.entries);
        let at = self.layout.completions + slot * COMPLETION as u64;
        self.rings.write(at, &completion).unwrap();
        self.rings.write(at, &self.seen.to_le_bytes()).unwrap();
    }

    fn register(&self, at: u64) -> u32 {
        use std::os::unix::fs::FileExt;
        let mut bytes = [0; 4];
        self.doorbell.read_exact_at(&mut bytes, at).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn set_awake(&self, awake: u32) {
        self.rings.write(self.layout.completions - 64, &awake.to_le_bytes()).unwrap();
    }
}

fn pair() -> (Queue, Played) {
    let (adaptor, _file) = crate::remote_tests::fake();
    let layout = Layout::new(2, 2);
    let memory = Registered::pretend(1, Memory::new(layout.length).unwrap());
    let doorbell = crate::remote_tests::file(PAGE);
    let mapping = Mapping::device(doorbell.as_fd(), 0, PAGE as usize, libc::PROT_READ | libc::PROT_WRITE)
        .and_then(Mapping::not_for_children)
        .unwrap();
    let rings = Rings::new(layout, memory.clone(), mapping);
    let queue = Queue::over(&adaptor, None, None, &QueueOptions::default(), 0, rings);
    (queue, Played { rings: memory, doorbell, layout, seen: 0 })
}

/// What a child process finds.
fn in_child(test: impl FnOnce() -> bool) -> bool {
    let mut status = 0;
    // SAFETY: the child has this thread alone; it ends without the destructors of this process.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(i32::from(!test())),
            child => assert_eq!(libc::waitpid(child, &raw mut status, 0), child),
        }
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

#[test]
fn a_child_is_refused_and_leaves_its_parents_queue_alone() {
    let (mut queue, mut adaptor) = pair();
    let memory = memory();
    let write = || Operation::write(memory.part(0, 8).unwrap(), Place::memory(2, 0));
    queue.post(write()).unwrap();
    // In the place of the memory, which it does not have, the child has something of its own.
    let (base, length) = (memory.memory().unwrap().address(), PAGE as usize);
    assert!(in_child(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = std::ptr::without_provenance_mut(base as usize);
        // SAFETY: nothing of the child is there, and so nothing is replaced.
        let own = unsafe { libc::mmap(at, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let refused = [
            queue.post(write()).err(),
            queue.poll().err(),
            queue.wait(Duration::ZERO).err(),
            queue.arm().err(),
            queue.resume().err(),
            memory.write(0, &[1]).err(),
        ];
        // SAFETY: the parent's queue is not used any more by this process.
        drop(unsafe { std::ptr::read(&raw const queue) });
        drop(memory.clone());
        // SAFETY: the page was mapped above, and what was dropped has to have left it.
        let kept = own == at && unsafe { *own.cast::<u8>() } == 0;
        kept && refused.iter().all(|error| matches!(error, Some(Error::Forked)))
    }));
    let entry = adaptor.take().unwrap();
    adaptor.end(&entry, 0, 0);
    assert!(queue.poll().unwrap().is_some_and(|completion| completion.status.is_ok()));
}

#[test]
fn a_child_has_an_identity_of_its_own() {
    let process = crate::device::Process::current().unwrap();
    assert!(in_child(|| {
        let own = crate::device::Process::current().unwrap();
        !process.is_current() && own.is_current() && in_child(|| !own.is_current() && !process.is_current())
    }));
    assert!(process.is_current());
}

fn memory() -> Registered {
    Registered::pretend(9, Memory::new(PAGE).unwrap())
}

#[test]
fn operations_go_round_the_rings_and_come_back_in_order() {
    let (mut queue, mut adaptor) = pair();
    let memory = memory();
    for round in 0..20_u64 {
        let place = Place::memory(2, round * 8);
        queue.post(Operation::write(memory.part(0, 8).unwrap(), place).cookie(round)).unwrap();
        assert_eq!(queue.poll().unwrap(), None);
        let entry = adaptor.take().unwrap();
        assert_eq!(entry[4..8], [1, 0, 2, 0]);
        adaptor.end(&entry, 0, 0);
        let completion = queue.poll().unwrap().unwrap().check().unwrap();
        assert_eq!((completion.cookie, completion.place, completion.bytes), (round, place, 8));
    }
    assert!(adaptor.take().is_none());
    assert_eq!((queue.under_way(), queue.room()), (0, 4));
}

#[test]
fn no_more_is_posted_than_the_rings_hold() {
    let (mut queue, mut adaptor) = pair();
    for _ in 0..4 {
        queue.post(Operation::fence()).unwrap();
    }
    assert!(matches!(queue.post(Operation::fence()), Err(Error::QueueFull { entries: 4 })));
    assert_eq!(queue.post_all([Operation::fence()]).unwrap(), 0);
    let entry = adaptor.take().unwrap();
    adaptor.end(&entry, 0, 0);
    assert!(queue.poll().unwrap().is_some());
    assert_eq!(queue.post_all([Operation::fence(), Operation::fence()]).unwrap(), 1);
}

#[test]
fn memory_stays_registered_until_the_completion_is_taken() {
    let (mut queue, mut adaptor) = pair();
    let memory = memory();
    let alive = memory.watch();
    queue.post(Operation::read(Place::memory(2, 0), memory.all())).unwrap();
    queue
        .post(Operation::write_scattered(
            vec![memory.part(0, 1).unwrap(), memory.part(8, 1).unwrap()],
            Place::memory(2, 0),
        ))
        .unwrap();
    drop(memory);
    for _ in 0..2 {
        assert!(alive.upgrade().is_some());
        let entry = adaptor.take().unwrap();
        adaptor.end(&entry, 0, 0);
        assert!(queue.poll().unwrap().is_some());
    }
    assert!(alive.upgrade().is_none());
}

#[test]
fn an_adaptor_that_is_awake_needs_no_doorbell() {
    let (mut queue, adaptor) = pair();
    adaptor.set_awake(1);
    queue.post(Operation::fence()).unwrap();
    assert_eq!(adaptor.register(0), 0);
    adaptor.set_awake(0);
    queue.post(Operation::fence()).unwrap();
    assert_eq!(adaptor.register(0), 2);
    queue.arm().unwrap();
    assert_eq!(adaptor.register(8), 0);
    queue.resume().unwrap();
    assert_eq!(adaptor.register(16), 2);
}

#[test]
fn a_failed_operation_names_itself() {
    let (mut queue, mut adaptor) = pair();
    queue.post(Operation::fetch_add(Place::memory(2, 0x10), 1)).unwrap();
    let entry = adaptor.take().unwrap();
    adaptor.end(&entry, 0x8282, 5);
    let completion = queue.poll().unwrap().unwrap();
    assert_eq!((completion.former, completion.code()), (5, Code::NoWindow));
    assert_eq!(
        completion.check().unwrap_err().to_string(),
        "fetch-and-add of 8 bytes at 2:0x10 failed: not executed, permanent: no such window (0x82)"
    );
}

#[test]
fn what_was_done_in_part_says_why_the_rest_was_not() {
    let (mut queue, mut adaptor) = pair();
    queue.post(Operation::write(memory().part(0, 8).unwrap(), Place::memory(2, 0))).unwrap();
    let entry = adaptor.take().unwrap();
    adaptor.end(&entry, 0xc7, 0x83);
    let completion = queue.poll().unwrap().unwrap();
    assert_eq!((completion.code(), completion.cause()), (Code::Partial, Code::AccessDenied));
    assert_eq!(
        completion.check().unwrap_err().to_string(),
        "write of 8 bytes at 2:0x0 failed: outcome unknown: executed in part (0xc7); \
         the rest: not executed, permanent: access denied (0x83)"
    );
}

#[test]
fn what_makes_no_sense_is_not_posted() {
    let (mut queue, mut adaptor) = pair();
    let memory = memory();
    let place = Place::memory(2, 0);
    let parts = vec![memory.part(0, 1).unwrap(); 3];
    assert!(matches!(queue.post(Operation::write_scattered(parts, place)), Err(Error::Outside { .. })));
    let long = Operation::write_bytes(&[0; 17], place).unwrap().with_message(0, 0);
    assert!(matches!(queue.post(long), Err(Error::Outside { .. })));
    let io = Operation::write(memory.all(), Place::io(2, 0x1000));
    assert!(matches!(queue.post(io), Err(Error::NotMemory { .. })));
    assert!(adaptor.take().is_none());
}

#[test]
fn a_wait_ends_when_its_time_is_over() {
    let (mut queue, _adaptor) = pair();
    assert!(queue.wait(Duration::from_secs(60)).unwrap().is_none(), "nothing is under way");
    queue.post(Operation::fence()).unwrap();
    assert!(queue.wait(Duration::from_millis(1)).unwrap().is_none());
    let slow = queue.finish(Duration::from_millis(1), |_| Ok::<_, Error>(()));
    assert!(matches!(slow, Err(Error::QueueSlow { under_way: 1, .. })), "{slow:?}");
}
