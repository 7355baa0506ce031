//! Checks: loads from the assurance space, which wait for what they ask about.
//!
//! Invariant: `waits_for` is the number of transactions that were started on the check's blocks before it
//! and have not completed (one that lies in two of its blocks counts twice); a check in the list waits for
//! at least one.

use bytes::Bytes;

use super::blocks::Blocks;
use super::error_ram::ErrorRam;
use crate::adaptor::bus::{Completion, LoadTag};
use crate::adaptor::status::{Code, Direction, StatusWord};
use crate::adaptor::transaction::TransactionId;

/// What becomes of an error that a check answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// It is cleared.
    Clear,
    /// It stays.
    Peek,
}

/// A check that has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    /// What the bus calls it.
    pub tag: LoadTag,
    /// Bytes to answer.
    pub len: usize,
    /// What becomes of the errors.
    pub look: Look,
    /// Transactions with a lower number were started before it.
    pub order: TransactionId,
    /// What it asks about.
    pub blocks: Blocks,
    /// Transactions still to be completed.
    pub waits_for: usize,
}

impl Check {
    /// The answer from the error log, which loses what is returned and only that, unless this is a peek. One byte has room for
    /// one direction: for writes first, and for reads where no write failed.
    pub fn answer(&self, errors: &mut ErrorRam) -> Completion {
        let write = errors.answer(self.blocks, Direction::Write, self.order, self.look);
        let read = if self.len == 1 && !write.is_ok() {
            Code::Ok
        } else {
            errors.answer(self.blocks, Direction::Read, self.order, self.look)
        };
        self.answer_word(StatusWord { read, write })
    }

    /// An answer that does not come from the log: `code` for both directions.
    pub fn answer_code(&self, code: Code) -> Completion {
        self.answer_word(StatusWord { read: code, write: code })
    }

    fn answer_word(&self, word: StatusWord) -> Completion {
        let bits = word.bits();
        let bits = if self.len == 1 && word.write.is_ok() { bits >> 8 } else { bits };
        let mut data = bits.to_le_bytes().to_vec();
        data.resize(self.len, 0);
        Completion { tag: self.tag, data: Bytes::from(data) }
    }
}

/// The checks that wait, in the order of the bus; at most `limit`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Checks {
    limit: usize,
    waiting: Vec<Check>,
}

impl Checks {
    /// No check; room for `limit`.
    pub const fn new(limit: usize) -> Self {
        Self { limit, waiting: Vec::new() }
    }

    /// Keeps a check until it waits for nothing; handed back where there is no room.
    pub fn wait(&mut self, check: Check) -> Result<(), Check> {
        if self.waiting.len() >= self.limit {
            return Err(check);
        }
        self.waiting.push(check);
        Ok(())
    }

    /// The transaction `id` on `blocks` completed; hands back the checks that now wait for nothing.
    pub fn finish(&mut self, id: TransactionId, blocks: Blocks) -> Vec<Check> {
        for check in self.waiting.iter_mut().filter(|check| id < check.order) {
            check.waits_for = check.waits_for.saturating_sub(check.blocks.common(&blocks));
        }
        self.waiting.extract_if(.., |check| check.waits_for == 0).collect()
    }

    /// Forgets every check and hands them back.
    pub fn clear(&mut self) -> Vec<Check> {
        core::mem::take(&mut self.waiting)
    }
}
