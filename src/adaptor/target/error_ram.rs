//! The error RAM: how the transactions on each block failed, until a check has returned it.
//!
//! Invariant: an error that was logged is in its block's entry, or was merged into an earlier one of the
//! same block and direction that no check has returned yet, or its node's overflow flag is set.

use std::collections::{BTreeMap, BTreeSet};

use super::blocks::Blocks;
use super::check::Look;
use crate::adaptor::address::{Block, NodeId};
use crate::adaptor::status::{Code, Direction};
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

/// The error log of a bus: an entry for each block with errors, at most `capacity` of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ErrorRam {
    capacity: usize,
    entries: BTreeMap<Block, Entry>,
    /// Nodes of which an error found no room. It is not known any more on which block it was.
    overflowed: BTreeSet<NodeId>,
    event: bool,
}

impl ErrorRam {
    /// An empty log with room for `capacity` blocks.
    pub const fn new(capacity: usize) -> Self {
        Self { capacity, entries: BTreeMap::new(), overflowed: BTreeSet::new(), event: false }
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
            let mut entry = Entry::default();
            *entry.errors_mut(direction) = Some(Errors { first: error, last: error });
            self.entries.insert(block, entry);
        } else {
            self.event |= self.overflowed.insert(block.node);
        }
    }

    /// Returns the first error on `blocks`, in their order, among the transactions started before the
    /// check `before`, and clears what it returned, unless it is a peek: the errors of that one block and direction.
    ///
    /// [`Code::LogOverflow`] stands for a block without an error of its own whose node overflowed; it is
    /// not cleared here, because any other block of the node may be the one meant.
    pub fn answer(
        &mut self,
        blocks: Blocks,
        direction: Direction,
        before: TransactionId,
        look: Look,
    ) -> Code {
        for block in blocks.iter() {
            let errors = self.entries.get(&block).and_then(|entry| entry.errors(direction));
            match errors {
                Some(errors) if errors.first.order < before => {
                    if look == Look::Clear {
                        self.clear_before(block, direction, before);
                    }
                    return errors.first.code;
                }
                _ if self.overflowed.contains(&block.node) => return Code::LogOverflow,
                _ => {}
            }
        }
        Code::Ok
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
            self.entries.remove(&block);
        }
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
