//! The failed blocks that software has not been told of: a queue beside the error RAM.
//!
//! A block is in it from its first error on until it is popped or its errors are checked, so software that takes them out
//! one by one finds every failed block without a search. An entry is named by the transaction that failed and the block.
//! One that left because its errors were checked never comes back under its name, so that software which pops late, what
//! it was shown before, cannot remove a newer entry of the same block.
//!
//! Invariant: only blocks with an entry in the error RAM are in the queue, each once, so its bound is the log's.

use std::collections::BTreeSet;

use crate::adaptor::address::Block;
use crate::adaptor::transaction::TransactionId;

/// The queue: blocks in the order in which the transactions that failed were started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FailedQueue {
    waiting: BTreeSet<(TransactionId, Block)>,
    /// What software was shown last and has not popped.
    taken: Option<(TransactionId, Block)>,
    /// The block that was shown has failed otherwise since, so that it stays.
    has_more: bool,
    event: bool,
}

impl FailedQueue {
    /// The transaction `order` failed on a block that is not in the queue.
    pub fn push(&mut self, order: TransactionId, block: Block) {
        self.waiting.insert((order, block));
        self.event = true;
    }

    /// The errors of a block that `order` brought into the queue are checked.
    pub fn remove(&mut self, order: TransactionId, block: Block) {
        self.waiting.remove(&(order, block));
    }

    /// A check has left errors of a block that is in the queue: whoever was shown it before does not know of them.
    pub fn keep(&mut self, block: Block) {
        if self.taken() == Some(block) {
            self.has_more = true;
            self.event = true;
        }
    }

    /// Shows software the head of the queue. It stays there until [`Self::pop`].
    pub fn take(&mut self) -> Option<Block> {
        self.has_more = false;
        self.taken = self.waiting.first().copied();
        self.taken()
    }

    /// What [`Self::take`] showed last, unless it was popped since.
    pub fn taken(&self) -> Option<Block> {
        self.taken.map(|(_, block)| block)
    }

    /// Removes what was taken, and says what it was; `None` where nothing was, or where it has left already.
    pub fn pop(&mut self) -> Option<Block> {
        let taken = self.taken.take().filter(|_| !self.has_more)?;
        self.waiting.remove(&taken).then_some(taken.1)
    }

    /// How many blocks are in the queue.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// True once after a block came into the queue.
    pub fn take_event(&mut self) -> bool {
        core::mem::take(&mut self.event)
    }
}
