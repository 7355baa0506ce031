//! The queue of failed blocks: each is told of once, none is told of that has no error.

use std::collections::BTreeMap;

use super::*;

impl Rig {
    /// The node and index of the block that is first in the queue.
    pub(super) fn take_failed(&mut self) -> Option<(u8, u64)> {
        self.target.take_failed().map(|block| (block.node.0, block.index))
    }

    /// Takes and pops everything.
    pub(super) fn drain_failed(&mut self) -> Vec<(u8, u64)> {
        core::iter::from_fn(|| {
            let block = self.take_failed();
            self.target.pop_failed();
            block
        })
        .collect()
    }
}

/// The queue as its users have to see it; blocks are counted through the space.
#[derive(Default)]
pub(super) struct QueueModel {
    /// Blocks in the queue, each with the number of its coming.
    queued: BTreeMap<u64, u64>,
    taken: Option<(u64, u64)>,
    comings: u64,
}

impl QueueModel {
    /// A block has errors, and software does not know of all of them.
    pub(super) fn push(&mut self, block: u64) {
        self.comings += 1;
        self.queued.entry(block).or_insert(self.comings);
    }

    /// A check returned errors of a block; `rest` says whether it has more, of which nobody was told.
    pub(super) fn checked(&mut self, block: u64, rest: bool) {
        if rest {
            self.comings += 1;
            self.queued.insert(block, self.comings);
        } else {
            self.queued.remove(&block);
        }
    }

    /// Software was shown this block.
    pub(super) fn took(&mut self, block: Option<u64>) {
        assert_eq!(block.is_none(), self.queued.is_empty(), "the queue is empty, or not");
        self.taken = block.map(|block| {
            let coming = self.queued.get(&block);
            (block, *coming.unwrap_or_else(|| panic!("block {block} has no errors, or was popped")))
        });
    }

    /// Software popped what it was shown.
    pub(super) fn popped(&mut self) {
        if let Some((block, coming)) = self.taken.take()
            && self.queued.get(&block) == Some(&coming)
        {
            self.queued.remove(&block);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }
}

#[test]
fn no_lost_error_each_failed_block_is_queued_once_in_the_order_of_starting() {
    let mut rig = Rig::new();
    rig.store(2, 0, &[1]);
    rig.store(1, 4092, &[1; 8]);
    rig.load(1, 4096, 8);
    rig.idle();
    let requests = rig.requests();
    for request in requests.iter().rev() {
        rig.complete(request, Code::NoWindow);
    }
    assert_eq!(rig.answer().unwrap().1, [0xff; 8]);
    assert_eq!(rig.target.failed_blocks(), 3);
    assert_eq!(rig.take_failed(), Some((2, 0)), "it failed last, and was started first");
    assert_eq!(rig.drain_failed(), [(2, 0), (1, 0), (1, 1)]);
    // Further errors of a block that software has been told of.
    rig.write(2, 8, Code::NoWindow);
    rig.read(2, 8, 8, Code::NoWindow);
    assert_eq!(rig.take_failed(), None);
    assert_eq!(rig.target.logged_blocks(), 3, "popping clears no error");
}

#[test]
fn no_lost_error_a_block_comes_again_when_it_fails_after_a_check() {
    let mut rig = Rig::new();
    rig.write(1, 0, Code::NoWindow);
    assert_eq!(rig.drain_failed(), [(1, 0)]);
    assert_ne!(rig.status(1, 0), 0);
    rig.write(1, 0, Code::NoWindow);
    assert_eq!(rig.drain_failed(), [(1, 0)]);
}

#[test]
fn a_block_that_is_checked_leaves_the_queue_and_one_that_is_peeked_at_does_not() {
    let mut rig = Rig::new();
    rig.write(1, 0, Code::NoWindow);
    rig.write(2, 0, Code::NoWindow);
    rig.peek(1, 0, 4);
    assert_eq!(rig.target.failed_blocks(), 2);
    rig.check(1, 0, 4);
    assert_eq!(rig.drain_failed(), [(2, 0)]);
}

#[test]
fn no_lost_error_what_a_check_leaves_of_a_block_is_told_of_again() {
    let mut rig = Rig::new();
    rig.write(1, 0, Code::NoWindow);
    rig.read(1, 0, 8, Code::Timeout);
    assert_eq!(rig.drain_failed(), [(1, 0)]);
    rig.target.poll_failed_event();
    // One byte has room for the write's code only.
    rig.check(1, 0, 1);
    assert_eq!(rig.answer().unwrap().1, [Code::NoWindow.bits()]);
    assert!(rig.target.poll_failed_event());
    assert_eq!(rig.drain_failed(), [(1, 0)]);
    assert_eq!(rig.status(1, 0), word(Code::Timeout, Code::Ok));

    // The last read is started after the check, and fails before that is answered.
    rig.load(1, 0, 4);
    rig.load(1, 64, 4);
    rig.check(1, 0, 4);
    rig.load(1, 128, 4);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::NoWindow);
    rig.complete(&requests[2], Code::AccessDenied);
    assert_eq!(rig.drain_failed(), [(1, 0)]);
    rig.complete(&requests[1], Code::Ok);
    let answers: Vec<_> = core::iter::from_fn(|| rig.answer()).map(|(_, data)| data).collect();
    assert_eq!(answers.last(), Some(&vec![0, Code::NoWindow.bits(), 0, 0]));
    assert_eq!(rig.drain_failed(), [(1, 0)]);
    assert_eq!(rig.status(1, 0), word(Code::AccessDenied, Code::Ok));
    assert_eq!(rig.drain_failed(), []);
}

#[test]
fn a_check_that_returns_both_directions_raises_no_event() {
    let mut rig = Rig::new();
    rig.write(1, 0, Code::NoWindow);
    rig.read(1, 0, 8, Code::NoWindow);
    rig.drain_failed();
    assert!(rig.target.poll_failed_event());
    rig.status(1, 0);
    assert!(!rig.target.poll_failed_event());
}

#[test]
fn no_lost_error_a_late_pop_removes_only_what_was_taken() {
    let mut rig = Rig::new();
    rig.target.pop_failed();
    rig.write(1, 0, Code::NoWindow);
    rig.target.pop_failed();
    assert_eq!(rig.target.taken_failed(), None, "nothing was taken");
    assert_eq!(rig.take_failed(), Some((1, 0)));
    // Another thread checks the block before it is popped here, and it fails anew; another fails as well.
    rig.status(1, 0);
    rig.write(2, 0, Code::NoWindow);
    rig.write(1, 0, Code::NoWindow);
    rig.target.pop_failed();
    rig.target.pop_failed();
    assert_eq!(rig.drain_failed(), [(2, 0), (1, 0)]);
}

#[test]
fn no_lost_error_a_late_pop_does_not_remove_what_a_check_has_left() {
    let mut rig = Rig::new();
    rig.load(1, 0, 4);
    rig.load(1, 64, 4);
    rig.check(1, 0, 4);
    rig.load(1, 128, 4);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::NoWindow);
    rig.complete(&requests[2], Code::AccessDenied);
    assert_eq!(rig.take_failed(), Some((1, 0)));
    rig.complete(&requests[1], Code::Ok);
    let answers: Vec<_> = core::iter::from_fn(|| rig.answer()).map(|(_, data)| data).collect();
    assert_eq!(answers.last(), Some(&vec![0, Code::NoWindow.bits(), 0, 0]));
    rig.target.pop_failed();
    assert_eq!(rig.drain_failed(), [(1, 0)], "the load after the check failed, and nobody was told");
    // The other direction, of which a check of one byte says nothing.
    rig.status(1, 0);
    rig.write(1, 0, Code::NoWindow);
    rig.read(1, 0, 8, Code::Timeout);
    assert_eq!(rig.take_failed(), Some((1, 0)));
    rig.check(1, 0, 1);
    rig.target.pop_failed();
    assert_eq!(rig.drain_failed(), [(1, 0)]);
}

#[test]
fn the_queue_is_bounded_by_the_log_and_goes_with_it() {
    let mut rig = Rig::with_limits(Limits { logged_blocks: 2, ..Limits::default() });
    for block in 0..4 {
        rig.write(1, block * 4096, Code::NoWindow);
    }
    assert_eq!(rig.target.failed_blocks(), 2);
    assert!(rig.target.overflowed(NodeId(1)));
    rig.target.acknowledge_overflow(NodeId(1));
    assert_eq!(rig.target.failed_blocks(), 2);
    rig.take_failed();
    rig.target.reset();
    assert_eq!((rig.target.failed_blocks(), rig.target.taken_failed(), rig.take_failed()), (0, None, None));
}

#[test]
fn each_block_that_comes_raises_the_event() {
    let mut rig = Rig::new();
    assert!(!rig.target.poll_failed_event());
    for block in 0..2 {
        rig.write(1, block * 4096, Code::NoWindow);
        assert!(rig.target.poll_failed_event());
        assert!(!rig.target.poll_failed_event());
    }
    rig.write(1, 0, Code::NoWindow);
    assert!(!rig.target.poll_failed_event());
}
