//! The error RAM: how the transactions on each block failed, until a check has returned it.
//!
//! Invariant: an error that was logged is in its block's entry, or was merged into an earlier one of the
//! same block and direction that no check has returned yet, or its node's overflow flag is set. A block has been in the
//! queue of failed blocks since its first error, or since the last check that left an error of it.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::Blocks;
use super::check::Look;
use super::failed::FailedQueue;
use crate::adaptor::address::{Block, NodeId};
use crate::adaptor::status::{Code, Direction, StatusWord};
use crate::adaptor::transaction::TransactionId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Error {
    code: Code,
    order: TransactionId,
}

/// The errors of one block and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Errors {
    /// The one that was started first: what a check returns.
    first: Error,
    /// The one that was started last. A check that was begun before it must not clear it.
    last: Error,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    write: Option<Errors>,
    read: Option<Errors>,
    /// What brought the block into the queue of failed blocks, while it is there.
    queued: Option<TransactionId>,
}

impl Entry {
    const fn errors(&self, direction: Direction) -> Option<Errors> {
        match direction {
            Direction::Write => self.write,
            Direction::Read => self.read,
        }
    }

    fn errors_mut(&mut self, direction: Direction) -> &mut Option<Errors> {
        match direction {
            Direction::Write => &mut self.write,
            Direction::Read => &mut self.read,
        }
    }

    const fn is_empty(&self) -> bool {
        self.write.is_none() && self.read.is_none()
    }
}

/// What a check finds in one direction.
#[derive(Clone, Copy)]
struct Found {
    code: Code,
    /// Whose error it is; `None` where it is nobody's.
    block: Option<Block>,
}

impl Found {
    const NOTHING: Self = Self { code: Code::Ok, block: None };
}

/// The error log of a bus: an entry for each block with errors, at most `capacity` of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorRam {
    capacity: usize,
    entries: BTreeMap<Block, Entry>,
    /// Nodes of which an error found no room. It is not known any more on which block it was.
    overflowed: BTreeSet<NodeId>,
    failed: FailedQueue,
    event: bool,
}

impl ErrorRam {
    /// An empty log with room for `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: BTreeMap::new(),
            overflowed: BTreeSet::new(),
            failed: FailedQueue::default(),
            event: false,
        }
    }

    /// Logs that the transaction `order` failed on `blocks`.
    pub fn log(&mut self, blocks: Blocks, direction: Direction, code: Code, order: TransactionId) {
        for block in blocks.iter() {
            self.log_on(block, direction, Error { code, order });
        }
    }

    fn log_on(&mut self, block: Block, direction: Direction, error: Error) {
        if let Some(entry) = self.entries.get_mut(&block) {
            let errors = entry.errors_mut(direction).get_or_insert(Errors { first: error, last: error });
            if error.order < errors.first.order {
                errors.first = error;
            }
            if error.order > errors.last.order {
                errors.last = error;
            }
        } else if self.entries.len() < self.capacity {
            self.event |= self.entries.is_empty();
            let mut entry = Entry { queued: Some(error.order), ..Entry::default() };
            *entry.errors_mut(direction) = Some(Errors { first: error, last: error });
            self.entries.insert(block, entry);
            self.failed.push(error.order, block);
        } else {
            self.event |= self.overflowed.insert(block.node);
        }
    }

    /// Returns, for each direction, the first error on `blocks`, in their order, among the transactions started before
    /// the check `before`, and clears what it returned, unless it is a peek: the errors of that one block and direction.
    /// With `one_only` it is the write error or, where there is none, the read error.
    ///
    /// Where there is none, [`Code::LogOverflow`] stands for a node of theirs that overflowed; it is
    /// not cleared here, because any other block of the node may be the one meant. Takes time for what is logged on
    /// the blocks, not for each of them.
    pub fn answer(
        &mut self,
        blocks: Blocks,
        one_only: bool,
        before: TransactionId,
        look: Look,
    ) -> StatusWord {
        let write = self.find(blocks, Direction::Write, before);
        let read = if one_only && !write.code.is_ok() {
            Found::NOTHING
        } else {
            self.find(blocks, Direction::Read, before)
        };
        if look == Look::Clear {
            for (block, direction) in [(write.block, Direction::Write), (read.block, Direction::Read)] {
                if let Some(block) = block {
                    self.clear_before(block, direction, before);
                }
            }
            for block in [write.block, read.block].into_iter().flatten() {
                self.queue_what_is_left(block);
            }
        }
        StatusWord { read: read.code, write: write.code }
    }

    fn find(&self, blocks: Blocks, direction: Direction, before: TransactionId) -> Found {
        let mut logged = self.entries.range(blocks.range());
        let found = logged.find_map(|(&block, entry)| {
            let errors = entry.errors(direction).filter(|errors| errors.first.order < before)?;
            Some(Found { code: errors.first.code, block: Some(block) })
        });
        let overflowed = || self.overflowed.range(blocks.node_range()).next().is_some();
        match found {
            Some(found) => found,
            None if overflowed() => Found { code: Code::LogOverflow, block: None },
            None => Found::NOTHING,
        }
    }

    /// Clears what happened before the check `before`. What came after it had been merged with that, so
    /// the last error remains, with an order so low that no later check misses an error between the two.
    fn clear_before(&mut self, block: Block, direction: Direction, before: TransactionId) {
        let Some(entry) = self.entries.get_mut(&block) else { return };
        let errors = entry.errors_mut(direction);
        *errors = errors
            .filter(|errors| errors.last.order > before)
            .map(|Errors { last, .. }| Errors { first: Error { code: last.code, order: before }, last });
        if entry.is_empty() {
            if let Some(order) = entry.queued {
                self.failed.remove(order, block);
            }
            self.entries.remove(&block);
        }
    }

    /// Software that was told of the block and has checked it does not know of what that check left.
    fn queue_what_is_left(&mut self, block: Block) {
        let Some(entry) = self.entries.get_mut(&block) else { return };
        if entry.queued.is_some() {
            return self.failed.keep(block);
        }
        let left = [entry.write, entry.read].into_iter().flatten().map(|errors| errors.last.order).max();
        if let Some(order) = left {
            entry.queued = left;
            self.failed.push(order, block);
        }
    }

    /// Shows software the failed block that is first in the queue; all of the queue's blocks have errors in the log.
    pub fn take_failed(&mut self) -> Option<Block> {
        self.failed.take()
    }

    /// What [`Self::take_failed`] showed last, unless it was popped since.
    pub fn taken_failed(&self) -> Option<Block> {
        self.failed.taken()
    }

    /// Removes the block that was taken from the queue. Its errors stay in the log.
    pub fn pop_failed(&mut self) {
        if let Some(entry) = self.failed.pop().and_then(|block| self.entries.get_mut(&block)) {
            entry.queued = None;
        }
    }

    /// How many blocks are in the queue.
    pub fn failed_len(&self) -> usize {
        self.failed.len()
    }

    /// True once after a block came into the queue.
    pub fn take_failed_event(&mut self) -> bool {
        self.failed.take_event()
    }

    /// How many blocks have errors logged.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether an error of `node` found no room since the last acknowledgement.
    pub fn overflowed(&self, node: NodeId) -> bool {
        self.overflowed.contains(&node)
    }

    /// Software knows that any access to `node` may have failed until now.
    pub fn acknowledge_overflow(&mut self, node: NodeId) {
        self.overflowed.remove(&node);
    }

    /// True once after an error was logged in the empty log, or a node overflowed.
    pub fn take_event(&mut self) -> bool {
        core::mem::take(&mut self.event)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }
}
