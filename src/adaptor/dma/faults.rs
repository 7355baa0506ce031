//! Memory operations that wait until their pages were brought in.
//!
//! Invariant: each of them counts as one that is under way, of its queue and in the order of names, until it has ended; what was
//! destroyed or reset meanwhile is never handed out again.

use super::keys::Key;
use super::orders::Waiting;
use super::queue::Number;
use super::{Engine, OperationId, Purpose};
use crate::adaptor::Instant;
use crate::adaptor::memory::{MemoryFault, MemoryOperation};

/// An operation that was not begun.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fault {
    operation: MemoryOperation,
    /// Its pages are there.
    is_served: bool,
}

impl Engine {
    /// Whether an operation that was handed out may still be begun.
    pub fn may_begin(&self, id: OperationId) -> bool {
        self.running.iter().any(|(running, ..)| *running == id)
    }

    /// An operation that was handed out is not begun, because pages have to be brought in for it; it comes again after
    /// [`Self::handle_pages`].
    pub fn put_back(&mut self, now: Instant, operation: MemoryOperation) {
        if self.may_begin(operation.id()) {
            self.faults.push_back(Fault { operation, is_served: false });
            if let Some(Waiting::Key(key)) = self.waiting {
                self.drop_faults_of_key(now, key);
            }
        }
    }

    /// The pages that an operation waits for are there, or can't be had.
    pub fn handle_pages(&mut self, now: Instant, id: OperationId, result: Result<(), MemoryFault>) {
        let Some(at) = self.faults.iter().position(|fault| fault.operation.id() == id) else { return };
        match result {
            Ok(()) => {
                if let Some(fault) = self.faults.get_mut(at) {
                    fault.is_served = true;
                }
            }
            Err(fault) => {
                self.faults.remove(at);
                self.handle_done(now, id, Err(fault));
            }
        }
    }

    /// The next operation whose pages are there by now.
    pub(super) fn next_served(&mut self) -> Option<MemoryOperation> {
        let at = self.faults.iter().position(|fault| fault.is_served)?;
        self.faults.remove(at).map(|fault| fault.operation)
    }

    /// What waits for pages of memory that is to be let go of is not begun any more: who waits for that waits for no disk.
    pub(super) fn drop_faults_of_key(&mut self, now: Instant, key: Key) {
        let running = self.running.iter();
        let ids: Vec<_> = running
            .filter(|(.., purpose)| match purpose {
                Purpose::List(of, _) => *of == key,
                Purpose::Land(transfer) => self.transfers.holds(*transfer, key),
                Purpose::Ring | Purpose::Complete | Purpose::Wake | Purpose::Doze => false,
            })
            .map(|(id, ..)| *id)
            .collect();
        for id in ids {
            self.handle_pages(now, id, Err(MemoryFault::Unmapped));
        }
    }

    /// What waits of a queue is not begun any more.
    pub(super) fn drop_faults(&mut self, now: Instant, number: Number) {
        let of_queue = self.running.iter().filter(|(_, other, _)| *other == number);
        let ids: Vec<_> = of_queue.map(|(id, ..)| *id).collect();
        for id in ids {
            self.handle_pages(now, id, Err(MemoryFault::Unmapped));
        }
    }
}
