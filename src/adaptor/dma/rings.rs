//! Rings in the guest's memory: entries are taken, completions written, and the guest is told whether it has to ring.
//!
//! Invariant: an entry is taken only if its index was seen by an earlier read than the one that brings its body, because the
//! guest writes the index last; and before a queue is at rest its ring is looked at once more after the guest was told.

use bytes::{BufMut, Bytes, BytesMut};

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
        if !core::mem::replace(&mut queue.tells, false) {
            return None;
        }
        let (key, rest) = (queue.shape.key, queue.rest);
        let at = queue.shape.completions.saturating_sub(HEAD_SIZE);
        let mut segments = Vec::with_capacity(1);
        self.keys.locate(key, at, 8, &mut segments)?;
        match rest {
            Rest::Awake(_) => {
                let id = self.begin(number, Purpose::Wake);
                let data = Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 0]);
                Some(MemoryOperation::Write { id, home: Home::Guest, segments, data })
            }
            Rest::Dozing => {
                let segment = segments.pop()?;
                let id = self.begin(number, Purpose::Doze);
                let action = AtomicAction::Swap(0);
                Some(MemoryOperation::Atomic { id, home: Home::Guest, segment, action })
            }
            Rest::Asleep | Rest::LastLook => None,
        }
    }

    /// The guest was told that the queue is at rest, or will be if nothing is found.
    pub(super) fn dozed(&mut self, number: Number) {
        if let Some(queue) = self.queue(number) {
            queue.rest = Rest::LastLook;
            queue.look = true;
        }
    }

    /// Reads entries of the submission ring, as many as may be taken.
    pub(super) fn look(&mut self, number: Number) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        let room = queue.room();
        if room == 0 || queue.is_reading {
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
        let beside = self.beside;
        let Some(queue) = self.queue(number) else { return };
        queue.is_reading = false;
        let Ok(data) = result else {
            // Nothing can be told to the guest; its next doorbell has the ring looked at again.
            queue.known = 0;
            queue.rest = Rest::Asleep;
            self.awake.retain(|&other| other != number);
            return;
        };
        if queue.is_closing {
            return;
        }
        let (head, mut posted) = (queue.head, 0u32);
        let size = usize::try_from(SUBMISSION_SIZE).unwrap_or(usize::MAX);
        for entry in data.chunks_exact(size) {
            if index_of(entry) != head.wrapping_add(posted).wrapping_add(1) {
                break;
            }
            if queue.known > 0 && queue.may_take() {
                queue.take(Operation::new(Submission::parse(entry), beside));
                queue.known = queue.known.saturating_sub(1);
            } else {
                queue.known = 0;
            }
            posted = posted.saturating_add(1);
        }
        queue.known = posted.saturating_sub(queue.head.wrapping_sub(head));
        // Those that were taken, those that are known, and as many again.
        queue.reach = posted.saturating_mul(2);
        queue.look |= posted > 0;
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
        if queue.is_writing || queue.done.is_empty() {
            return None;
        }
        let (shape, index) = (queue.shape, queue.written);
        let done: Vec<_> = queue.done.drain(..queue.done.len().min(MOST_COMPLETIONS)).collect();
        queue.is_writing = true;
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
        let id = self.begin(number, Purpose::Complete(count));
        Some(MemoryOperation::Write { id, home: Home::Guest, segments, data: data.freeze() })
    }

    pub(super) fn completions_were_written(
        &mut self,
        now: Instant,
        number: Number,
        count: u32,
        is_there: bool,
    ) {
        let Some(queue) = self.queue(number) else { return };
        queue.is_writing = false;
        queue.written = queue.written.wrapping_add(count);
        if is_there && !queue.is_closing {
            self.wake(now, number, false);
            self.check_alarm(now, number);
        }
    }
}
