//! A queue: its rings, the operations that were taken from one and not yet completed in the other, and what it waits for.
//!
//! Invariant: completions written, completions to be written, operations and entries not taken follow each other in the order
//! of their indices, so that each entry gets one completion, in order.

use bytes::Bytes;
use core::time::Duration;
use std::collections::VecDeque;

use super::entry::{COMPLETION_SIZE, Completion, HEAD_SIZE, SUBMISSION_SIZE};
use super::keys::Key;
use super::list::List;
use super::operation::Operation;
use crate::adaptor::Instant;
use crate::adaptor::master::CommandStatus;
use crate::adaptor::mesh::batch::SHORT;
use crate::adaptor::messages::Coalescing;
use crate::adaptor::status::Code;
use crate::adaptor::transaction::TransactionId;

/// The number of a queue, which is that of its doorbell page.
pub type Number = u32;

/// The most entries of a queue that are taken and not completed.
const MAX_TAKEN: u32 = 2048;
/// Those that it may have taken whatever others have.
const SURE_TAKEN: u32 = 16;
/// The most requests of a queue that are under way.
const MAX_REQUESTS: u32 = 1024;
/// The most bytes that these move.
const MAX_BYTES: u64 = 4 << 20;
/// Bits of STATE: an operation failed, and the queue was not resumed since.
const FAILED: u32 = 1 << 0;
/// A ring could not be reached.
const UNREACHABLE: u32 = 1 << 1;
/// More entries were posted than the ring has.
const OVERRUN: u32 = 1 << 2;
/// Completions that are worth to be written, where what was read is still to be put into local memory.
const ENOUGH: usize = 64;

/// A queue that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueShape {
    /// Whose keys its operations may name.
    pub domain: u32,
    /// The memory that its rings are in.
    pub key: Key,
    /// Where in that the submission ring begins, in bytes.
    pub submissions: u64,
    /// Where the completion ring begins, behind its head.
    pub completions: u64,
    /// Entries in each ring, a power of two.
    pub entries: u32,
    /// When the guest is told of completions that it waits for.
    pub coalescing: Coalescing,
}

impl QueueShape {
    /// The bytes of both rings, as offset and length.
    ///
    /// # Errors
    /// Where they are misaligned or overlap.
    pub(super) fn ranges(&self) -> Result<[(u64, u64); 2], CommandStatus> {
        let bad = CommandStatus::BadArgument;
        let entries = u64::from(self.entries);
        let head = self.completions.checked_sub(HEAD_SIZE).ok_or(bad)?;
        let submissions = entries.saturating_mul(SUBMISSION_SIZE);
        let completions = entries.saturating_mul(COMPLETION_SIZE).saturating_add(HEAD_SIZE);
        let is_aligned = self.submissions.is_multiple_of(64) && self.completions.is_multiple_of(64);
        let apart = self.submissions.checked_add(submissions).ok_or(bad)? <= head
            || head.checked_add(completions).ok_or(bad)? <= self.submissions;
        if !is_aligned || !apart {
            return Err(bad);
        }
        Ok([(self.submissions, submissions), (head, completions)])
    }
}

/// Whether the submission ring is looked at without a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rest {
    /// A doorbell wakes it.
    Asleep,
    /// Until this time, if nothing is found until then.
    Awake(Instant),
    /// The guest is being told that it will be asleep.
    Dozing,
    /// The guest was told, and the ring is looked at once more.
    LastLook,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    pub(super) shape: QueueShape,
    /// The index of the next entry to take.
    pub(super) head: u32,
    /// Entries from there on that were seen to be posted.
    pub(super) known: u32,
    /// Entries that are read at once: more where more are found.
    pub(super) reach: u32,
    /// The ring has to be looked at.
    pub(super) look: bool,
    pub(super) is_reading: bool,
    pub(super) operations: VecDeque<Operation>,
    /// Which operation is handed out next.
    pub(super) cursor: usize,
    pub(super) list: List,
    /// What was read elsewhere and goes to local memory.
    pub(super) landings: VecDeque<(TransactionId, Bytes)>,
    /// It waits for a way.
    pub(super) waits: bool,
    pub(super) requests: u32,
    pub(super) bytes: u64,
    /// After an error, until the guest resumes it.
    pub(super) has_failed: bool,
    /// The first entry that is to be executed again.
    resume_at: Option<u32>,
    /// The entry behind the last one that was flushed since the error.
    flushed: Option<u32>,
    /// What is to be written, from number `written` on; kept until it is there.
    pub(super) done: VecDeque<Completion>,
    /// The index of the next completion to write.
    pub(super) written: u32,
    /// Of `done`, how many are being written.
    pub(super) writing: usize,
    pub(super) rest: Rest,
    /// The guest is to be told whether it is awake.
    pub(super) tells: bool,
    /// It is being told.
    pub(super) is_telling: bool,
    /// Its rings could not be reached, and are left alone until they are tried again.
    pub(super) is_stalled: bool,
    /// An entry was overwritten before it was taken: no more are.
    pub(super) is_overrun: bool,
    pub(super) armed: Option<u32>,
    /// When the guest is told of what it waits for, at the latest.
    pub(super) due: Option<Instant>,
    /// When it is to be looked whether that is so.
    pub(super) alarm_at: Option<Instant>,
    /// It stands in the list of those of which the guest is to be told.
    pub(super) is_ready: bool,
    /// It stands in the list of those that have something to do.
    pub(super) is_listed: bool,
    /// It is to go when nothing of it is under way.
    pub(super) is_closing: bool,
    /// Memory operations under way.
    pub(super) running: u32,
}

impl Queue {
    pub(super) fn new(shape: QueueShape) -> Self {
        Self {
            shape,
            head: 0,
            known: 0,
            reach: 0,
            look: false,
            is_reading: false,
            operations: VecDeque::new(),
            cursor: 0,
            list: List::default(),
            landings: VecDeque::new(),
            waits: false,
            requests: 0,
            bytes: 0,
            has_failed: false,
            resume_at: None,
            flushed: None,
            done: VecDeque::new(),
            written: 0,
            writing: 0,
            rest: Rest::Asleep,
            tells: false,
            is_telling: false,
            is_stalled: false,
            is_overrun: false,
            armed: None,
            due: None,
            alarm_at: None,
            is_ready: false,
            is_listed: false,
            is_closing: false,
            running: 0,
        }
    }

    /// Whether nothing of it is under way.
    pub(super) const fn is_quiet(&self) -> bool {
        self.running == 0 && self.requests == 0
    }

    /// Entries that were taken and not completed.
    pub(super) const fn taken(&self) -> u32 {
        self.head.wrapping_sub(self.written)
    }

    /// How many more entries may be taken now, where `spare` of them may be beyond what each queue may have.
    pub(super) fn room(&self, spare: u32) -> u32 {
        let most = SURE_TAKEN.saturating_add(spare).min(self.shape.entries).min(MAX_TAKEN);
        most.saturating_sub(self.taken())
    }

    /// What STATE reads.
    pub(super) fn state(&self) -> u32 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        bit(self.has_failed, FAILED) | bit(self.is_stalled, UNREACHABLE) | bit(self.is_overrun, OVERRUN)
    }

    /// The guest wants entries from this number on to be executed again. It is not done where some of these were flushed: the
    /// guest did not see that yet.
    pub(super) fn resume(&mut self, at: u32) {
        if self.has_failed && self.flushed.is_none_or(|flushed| at.wrapping_sub(flushed).cast_signed() >= 0) {
            self.resume_at = Some(at);
        }
    }

    /// Whether the entry at the cursor is one from which on entries are executed again.
    pub(super) fn resumes(&self) -> bool {
        let index = self.cursor_index();
        self.has_failed && self.resume_at.is_some_and(|at| index.wrapping_sub(at).cast_signed() >= 0)
    }

    /// All before the entry at the cursor have ended, and it is executed again.
    pub(super) const fn go_on(&mut self) {
        (self.has_failed, self.resume_at, self.flushed) = (false, None, None);
    }

    /// The operation at the cursor is not executed.
    pub(super) fn flush(&mut self) {
        self.flushed = Some(self.cursor_index().wrapping_add(1));
        if let Some(operation) = self.operations.get_mut(self.cursor) {
            operation.fail(Code::Flushed);
        }
    }

    /// Whether another request may be under way.
    pub(super) fn may_send(&self, bytes: u64) -> bool {
        self.requests < MAX_REQUESTS && (self.bytes == 0 || self.bytes.saturating_add(bytes) <= MAX_BYTES)
    }

    /// The index of the oldest operation.
    fn first(&self) -> u32 {
        self.head.wrapping_sub(u32::try_from(self.operations.len()).unwrap_or(u32::MAX))
    }

    /// The operation with this index.
    pub(super) fn operation(&mut self, index: u32) -> Option<&mut Operation> {
        let at = usize::try_from(index.wrapping_sub(self.first())).ok()?;
        self.operations.get_mut(at)
    }

    /// The index of the operation that is handed out next.
    pub(super) fn cursor_index(&self) -> u32 {
        self.first().wrapping_add(u32::try_from(self.cursor).unwrap_or(u32::MAX))
    }

    /// The next operation is handed out.
    pub(super) fn advance(&mut self) {
        self.cursor = self.cursor.saturating_add(1);
        self.list = List::default();
    }

    /// Takes an operation in.
    pub(super) fn take(&mut self, operation: Operation) {
        self.head = self.head.wrapping_add(1);
        self.operations.push_back(operation);
    }

    /// An operation has failed: those that were not begun are not executed.
    pub(super) fn fail(&mut self) {
        if !self.has_failed {
            self.go_on();
            self.has_failed = true;
        }
    }

    /// Moves operations that have ended to the completions; how many of them failed.
    pub(super) fn harvest(&mut self) -> u64 {
        let mut failed = 0u64;
        // What was not handed out whole has not ended, unless it has failed.
        while let Some(operation) = self.operations.front().filter(|operation| operation.has_ended()) {
            if self.cursor == 0 && !operation.has_failed() {
                break;
            }
            let completion = operation.completion();
            failed = failed.saturating_add(operation.has_failed().into());
            if self.cursor == 0 {
                self.list = List::default();
            }
            self.cursor = self.cursor.saturating_sub(1);
            self.operations.pop_front();
            self.done.push_back(completion);
        }
        failed
    }

    /// Whether what was read goes to local memory before completions are written: it is short, and there will be more of them then.
    pub(super) fn lands_first(&self) -> bool {
        let is_short = |(_, data): &(TransactionId, Bytes)| data.len() <= SHORT;
        self.done.len().saturating_sub(self.writing) < ENOUGH && self.landings.front().is_some_and(is_short)
    }

    /// Whether an armed completion is there: at once, or at a time, or not.
    pub(super) fn alarm(&mut self, now: Instant) -> Alarm {
        let Some(at) = self.armed else { return Alarm::Off };
        let fresh = u32::try_from(self.written.wrapping_sub(at).cast_signed()).unwrap_or(0);
        let Coalescing { count, time } = self.shape.coalescing;
        if fresh == 0 {
            return Alarm::Off;
        }
        let due = *self.due.get_or_insert(now.after(time));
        if fresh >= count.max(1) || time == Duration::ZERO || due <= now {
            (self.armed, self.due) = (None, None);
            return Alarm::Now;
        }
        Alarm::At(due)
    }
}

/// When the guest is to be told of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// Not for what is there.
    Off,
    /// At this time at the latest.
    At(Instant),
    /// Now; it does not wait any more.
    Now,
}
