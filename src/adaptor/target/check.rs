//! Checks: loads from the assurance space, which wait for what they ask about.
//!
//! Invariant: `waits_for` is the number of transactions that were started on the check's blocks before it
//! and have not completed (one that lies in two of its blocks counts twice); a check in the list waits for
//! at least one.

use bytes::Bytes;

use super::blocks::Blocks;
use super::error_ram::ErrorRam;
use super::{Target, count};
use crate::adaptor::Instant;
use crate::adaptor::address::Space;
use crate::adaptor::bus::{Completion, LoadTag};
use crate::adaptor::status::{Code, StatusWord};
use crate::adaptor::transaction::TransactionId;

/// The length in bytes of a status word.
const STATUS_LEN: usize = 4;

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
        self.answer_word(errors.answer(self.blocks, self.len == 1, self.order, self.look))
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

impl Target {
    /// A check: a load from the assurance space. The answer comes from [`Target::poll_completion`] when
    /// every transaction that was started before on the blocks it touches has completed.
    ///
    /// The answer is the status word, little-endian, cut or padded with zeros to `len` bytes; in one byte
    /// it is the write code or, where no write failed, the read code. For each direction it is the first
    /// error in the order of the blocks ([`Code::LogOverflow`] comes last), and what is returned, and only that, is cleared, unless it is a [`Look::Peek`].
    /// Beyond the space the answer is all-ones. The caller bounds `len`.
    pub fn check(
        &mut self,
        now: Instant,
        tag: LoadTag,
        look: Look,
        space: Space,
        space_offset: u64,
        len: usize,
    ) {
        count(&mut self.counters.checks);
        let blocks = Blocks::in_space(self.geometry.of(space), space_offset, len).filter(|_| len > 0);
        self.ask(now, tag, look, blocks, len);
    }

    /// One question about every block that bytes from address `start` up to, and not including, `end` lie in (see
    /// `Blocks::in_range`). It is answered as a peek is, in 4 bytes, with all-ones where no byte of the range is in
    /// the space. It costs time for what is under way and logged, however long the range is.
    pub fn check_range(&mut self, now: Instant, tag: LoadTag, space: Space, start: u64, end: u64) {
        let blocks = Blocks::in_range(self.geometry.of(space), start, end);
        self.ask(now, tag, Look::Peek, blocks, STATUS_LEN);
    }

    fn ask(&mut self, now: Instant, tag: LoadTag, look: Look, blocks: Option<Blocks>, len: usize) {
        self.bus_is_idle = false;
        self.backlog.go_on(now);
        let Some(blocks) = blocks else {
            self.completions.push_back(Completion::all_ones(tag, len));
            return;
        };
        for node in blocks.nodes() {
            self.close(node);
        }
        let waits_for = self.tags.outstanding(blocks);
        let check = Check { tag, len, look, order: self.start(), blocks, waits_for };
        let answer = if waits_for == 0 {
            check.answer(&mut self.errors)
        } else if let Err(check) = self.checks.wait(check) {
            check.answer_code(Code::NoResources)
        } else {
            return;
        };
        self.completions.push_back(answer);
    }
}
