//! Rings in the guest's memory: entries are taken, completions written, and the guest is told whether it has to ring.
//!
//! Invariant: an entry is taken only if its index was seen by an earlier read than the one that brings its body, because the
//! guest writes the index last; and before a queue is at rest its ring is looked at once more after the guest was told. Where a
//! ring can't be reached nothing is lost and nothing is assumed: it is tried again until it can.

use bytes::{BufMut, Bytes, BytesMut};
use core::time::Duration;

use super::entry::{COMPLETION_SIZE, HEAD_SIZE, SUBMISSION_SIZE, Submission, index_of};
use super::operation::Operation;
use super::queue::{Number, Queue, Rest};
use super::{Engine, Purpose};
use crate::adaptor::Instant;
use crate::adaptor::memory::{AtomicAction, Home, MemoryOperation, MemoryResult, Segment};

/// The most entries that are read at once.
const MOST_ENTRIES: u32 = 128;
/// Entries that are read where nothing is known of them.
const LEAST_ENTRIES: u32 = 8;
/// The most completions that are written at once.
const MOST_COMPLETIONS: usize = 256;
/// Entries of all queues that are taken and not completed, beyond those that each queue may have.
const MAX_TAKEN: u32 = 1 << 16;
/// When a ring that could not be reached is tried again.
const RETRY: Duration = Duration::from_millis(20);

impl Engine {
    /// There is, or was, work for the queue. With `look` its ring has to be looked at; else that may wait for its turn.
    pub(super) fn wake(&mut self, now: Instant, number: Number, look: bool) {
        let until = now.after(self.poll);
        let polls = !self.poll.is_zero();
        let Some(queue) = self.queue(number) else { return };
        queue.look |= look;
        match queue.rest {
            Rest::Awake(_) => queue.rest = Rest::Awake(until),
            Rest::Asleep | Rest::LastLook if polls => {
                queue.rest = Rest::Awake(until);
                queue.tells = true;
                self.awake.push(number);
            }
            Rest::Asleep | Rest::Dozing | Rest::LastLook => {}
        }
        self.list(number);
    }

    /// Queues whose time is over are told to rest.
    pub(super) fn put_to_rest(&mut self, now: Instant) {
        let mut at = 0;
        while let Some(&number) = self.awake.get(at) {
            match self.queue(number).map(|queue| (queue.rest, queue)) {
                Some((Rest::Awake(until), _)) if until > now => at = at.saturating_add(1),
                Some((_, queue)) => {
                    (queue.rest, queue.tells) = (Rest::Dozing, true);
                    self.awake.swap_remove(at);
                    self.list(number);
                }
                None => {
                    self.awake.swap_remove(at);
                }
            }
        }
    }

    /// Writes to memory whether the queue is awake. What comes after is read after that is visible.
    pub(super) fn tell_rest(&mut self, number: Number) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        // One after the other, so that the last word is the last that lands.
        if queue.is_telling || queue.is_stalled || !core::mem::replace(&mut queue.tells, false) {
            return None;
        }
        let (key, rest) = (queue.shape.key, queue.rest);
        let at = queue.shape.completions.saturating_sub(HEAD_SIZE);
        let mut segments = Vec::with_capacity(1);
        self.keys.locate(key, at, 8, &mut segments)?;
        match rest {
            Rest::Awake(_) => {
                self.queue(number)?.is_telling = true;
                let id = self.begin(number, Purpose::Wake);
                let data = Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 0]);
                Some(MemoryOperation::Write { id, home: Home::Guest, segments, data })
            }
            Rest::Dozing => {
                let segment = segments.pop()?;
                self.queue(number)?.is_telling = true;
                let id = self.begin(number, Purpose::Doze);
                let action = AtomicAction::Swap(0);
                Some(MemoryOperation::Atomic { id, home: Home::Guest, segment, action })
            }
            Rest::Asleep | Rest::LastLook => None,
        }
    }

    /// The guest was told that the queue is awake, or was not; then it rings, which does no harm.
    pub(super) fn woke(&mut self, number: Number) {
        if let Some(queue) = self.queue(number) {
            queue.is_telling = false;
        }
    }

    /// The guest was told that the queue is at rest, or will be if nothing is found. Where that failed it is told again: it does
    /// not ring as long as it takes the queue to be awake.
    pub(super) fn dozed(&mut self, now: Instant, number: Number, is_told: bool) {
        let Some(queue) = self.queue(number) else { return };
        queue.is_telling = false;
        if is_told {
            queue.rest = Rest::LastLook;
            queue.look = true;
        } else {
            queue.tells = true;
            self.stall(now, number);
        }
    }

    /// A ring of the queue can't be reached: it is tried again later.
    fn stall(&mut self, now: Instant, number: Number) {
        let Some(queue) = self.queue(number) else { return };
        if !core::mem::replace(&mut queue.is_stalled, true) {
            self.stalled.push(number);
            self.retry_at.get_or_insert(now.after(RETRY));
            self.tell_state(number);
        }
    }

    /// Tries again what could not be reached.
    pub fn retry(&mut self) {
        self.retry_at = None;
        for number in core::mem::take(&mut self.stalled) {
            if let Some(queue) = self.queue(number) {
                queue.is_stalled = false;
            }
            self.list(number);
        }
    }

    /// Whoever waits for a completion of the queue is told that there is none, and may look at its state.
    fn tell_state(&mut self, number: Number) {
        if self.queue(number).is_some_and(|queue| queue.armed.is_some()) {
            self.tell_ready(number);
        }
    }

    /// Reads entries of the submission ring, as many as may be taken.
    pub(super) fn look(&mut self, number: Number) -> Option<MemoryOperation> {
        let spare = MAX_TAKEN.saturating_sub(self.taken);
        let queue = self.queue(number)?;
        let room = queue.room(spare);
        if room == 0 || queue.is_reading || queue.is_stalled || queue.is_overrun {
            return None;
        }
        let count = queue.reach.clamp(LEAST_ENTRIES, MOST_ENTRIES).min(room);
        let (shape, head) = (queue.shape, queue.head);
        let segments = self.places(number, shape.submissions, SUBMISSION_SIZE, head, count)?;
        let queue = self.queue(number)?;
        (queue.look, queue.is_reading) = (false, true);
        let id = self.begin(number, Purpose::Ring);
        Some(MemoryOperation::Read { id, home: Home::Guest, segments })
    }

    /// Where so many entries of a ring are, from this index on.
    fn places(&self, number: Number, ring: u64, size: u64, index: u32, count: u32) -> Option<Vec<Segment>> {
        let shape = self.get(number)?.shape;
        let at = index & shape.entries.wrapping_sub(1);
        let first = count.min(shape.entries.saturating_sub(at));
        let mut segments = Vec::with_capacity(2);
        for (at, count) in [(at, first), (0, count.saturating_sub(first))] {
            let offset = ring.checked_add(u64::from(at).checked_mul(size)?)?;
            let len = u64::from(count).checked_mul(size)?;
            self.keys.locate(shape.key, offset, len, &mut segments)?;
        }
        Some(segments)
    }

    pub(super) fn ring_was_read(&mut self, now: Instant, number: Number, result: MemoryResult) {
        let (beside, spare) = (self.beside, MAX_TAKEN.saturating_sub(self.taken));
        let Some(queue) = self.queue(number) else { return };
        queue.is_reading = false;
        let Ok(data) = result else {
            (queue.known, queue.look) = (0, true);
            return self.stall(now, number);
        };
        if queue.is_closing {
            return;
        }
        let (head, mut posted) = (queue.head, 0u32);
        let size = usize::try_from(SUBMISSION_SIZE).unwrap_or(usize::MAX);
        for entry in data.chunks_exact(size) {
            let ahead = index_of(entry).wrapping_sub(head.wrapping_add(posted).wrapping_add(1));
            if ahead != 0 {
                // One that comes later stands there: the one that is missing was overwritten.
                queue.is_overrun = ahead.cast_signed() > 0;
                break;
            }
            if queue.known > 0 && queue.room(spare) > 0 {
                queue.take(Operation::new(Submission::parse(entry), beside));
                queue.known = queue.known.saturating_sub(1);
            }
            posted = posted.saturating_add(1);
        }
        let (taken, is_overrun) = (queue.head.wrapping_sub(head), queue.is_overrun);
        queue.known = posted.saturating_sub(taken);
        // Those that were taken, those that are known, and as many again.
        queue.reach = posted.saturating_mul(2);
        queue.look |= posted > 0;
        self.taken = self.taken.saturating_add(taken);
        if is_overrun {
            self.tell_state(number);
        }
        let Some(queue) = self.queue(number) else { return };
        if posted > 0 {
            self.wake(now, number, false);
        } else if queue.rest == Rest::LastLook && !queue.look {
            queue.rest = Rest::Asleep;
        }
    }

    /// Moves operations of the queue that have ended to its completions.
    pub(super) fn harvest(&mut self, number: Number) {
        let failed = self.queue(number).map_or(0, Queue::harvest);
        self.failed = self.failed.saturating_add(failed);
    }

    /// Writes completions that are due: the first one's index and status after all else, so that who looks at them in order sees
    /// whole ones only.
    pub(super) fn write_completions(&mut self, number: Number) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        if queue.writing > 0 || queue.is_stalled || queue.done.is_empty() {
            return None;
        }
        let (shape, index) = (queue.shape, queue.written);
        queue.writing = queue.done.len().min(MOST_COMPLETIONS);
        let done: Vec<_> = queue.done.iter().take(MOST_COMPLETIONS).copied().collect();
        let count = u32::try_from(done.len()).unwrap_or(u32::MAX);
        let mut segments =
            self.places(number, shape.completions, COMPLETION_SIZE, index, count).unwrap_or_default();
        let front = Segment { address: segments.first()?.address, len: 8 };
        if let Some(first) = segments.first_mut() {
            first.address = first.address.saturating_add(8);
            first.len = first.len.saturating_sub(8);
        }
        segments.push(front);
        let mut data = BytesMut::with_capacity(done.len().saturating_mul(32));
        let mut first = None;
        for (completion, index) in done.iter().zip((0..count).map(|step| index.wrapping_add(step))) {
            let front = completion.front(index);
            match first {
                None => first = Some(front),
                Some(_) => data.put_slice(&front),
            }
            data.put_slice(&completion.rest());
        }
        data.put_slice(&first?);
        let id = self.begin(number, Purpose::Complete);
        Some(MemoryOperation::Write { id, home: Home::Guest, segments, data: data.freeze() })
    }

    pub(super) fn completions_were_written(&mut self, now: Instant, number: Number, is_there: bool) {
        let Some(queue) = self.queue(number) else { return };
        let written = core::mem::take(&mut queue.writing);
        if !is_there {
            return self.stall(now, number);
        }
        queue.done.drain(..written.min(queue.done.len()));
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        queue.written = queue.written.wrapping_add(written);
        let is_closing = queue.is_closing;
        self.taken = self.taken.saturating_sub(written);
        if !is_closing {
            self.wake(now, number, false);
            self.check_alarm(now, number);
        }
    }
}
