//! Messages of other nodes: a store to a doorbell puts one into a queue, and an interrupt tells the guest.
//!
//! A node's doorbells are the first bytes of its window of the I/O space. A request to one is executed by the master unit, in
//! the order and under the lease of all others, but here, without an operation on memory.
//!
//! Invariant: what was put into the queue leaves it only when the guest takes it, or by a reset. Each message in it whose
//! doorbell has a vector that is not masked has been told of by that vector, or will be at [`Messages::poll_timeout`] at the
//! latest.

mod doorbells;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

pub use self::doorbells::{DOORBELLS, Doorbell, Doorbells, ENTRY_SIZE, TABLE_SIZE};
use super::Instant;
use super::address::{IO_OWN_SIZE, Location, NodeId, Space};
use super::status::Code;
use super::transaction::{Content, RequestKind};

/// The most messages that wait for the guest.
pub const LIMIT: u32 = 1024;
/// The size of a doorbell in the I/O space, in bytes.
pub const DOORBELL_SIZE: u64 = 8;
/// The bytes of a node's window of the I/O space that are doorbells.
const DOORBELLS_END: u64 = DOORBELLS as u64 * DOORBELL_SIZE;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Which node sent it.
    pub source: NodeId,
    /// Which doorbell it rang.
    pub doorbell: u8,
    /// Its size in bytes, 4 or 8.
    pub size: u8,
    /// What it says; one of 4 bytes has zeros above.
    pub data: u64,
}

impl Message {
    /// The message as MESSAGE_INFO has it.
    pub fn info(self) -> u64 {
        let Self { source, doorbell, size, .. } = self;
        1 << 31 | u64::from(size) << 16 | u64::from(doorbell) << 8 | u64::from(source.0)
    }
}

/// When the guest is told of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coalescing {
    /// As soon as so many wait for a vector; with 0 or 1 at once.
    pub count: u32,
    /// And at latest when the first of them has waited for so long; with 0 at once.
    pub time: Duration,
}

/// The messages of one doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Backlog {
    /// That are in the queue.
    queued: u32,
    /// The newest of them, of which the guest was not told.
    untold: u32,
}

/// The queue of messages and what tells the guest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Messages {
    doorbells: Doorbells,
    coalescing: Coalescing,
    queue: VecDeque<Message>,
    /// How many the guest has taken.
    taken: u64,
    overflows: u32,
    /// How many of each doorbell and node were put into the queue, wrapping.
    accepted: BTreeMap<(u8, NodeId), u32>,
    /// Of the doorbells with messages in the queue.
    backlogs: BTreeMap<u8, Backlog>,
    /// For each vector that waits for more messages: since when.
    since: BTreeMap<u16, Instant>,
}

/// Whether the adaptor itself answers there, and no window.
pub fn is_own(at: Location) -> bool {
    at.space == Space::Io && at.offset < IO_OWN_SIZE
}

impl Messages {
    /// Executes a request of another node to the adaptor's own part of the I/O space, at this offset of it. A read returns
    /// the room in the queue and, above it, how many messages of this node and doorbell were put into it.
    ///
    /// # Errors
    /// The code with which it is refused: nothing is there, the access is not a doorbell as a whole, the node may not ring
    /// it, or there is no room.
    pub fn serve(&mut self, source: NodeId, offset: u64, kind: &RequestKind) -> Result<Bytes, Code> {
        if offset >= DOORBELLS_END {
            return Err(Code::NoWindow);
        }
        let number = u8::try_from(offset / DOORBELL_SIZE).map_err(|_| Code::NoWindow)?;
        let size = u8::try_from(kind.len()).unwrap_or(u8::MAX);
        if !offset.is_multiple_of(DOORBELL_SIZE) || !matches!(size, 4 | 8) {
            return Err(Code::BadSize);
        }
        let doorbell = self.doorbells.get(number);
        if !doorbell.is_open_to(source) {
            return Err(Code::AccessDenied);
        }
        match kind {
            RequestKind::Write(Content::Bytes(data)) => {
                let mut bytes = [0; 8];
                bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
                self.push(Message { source, doorbell: number, size, data: u64::from_le_bytes(bytes) })?;
                Ok(Bytes::new())
            }
            // A message is no transfer.
            RequestKind::Write(Content::Lent(_)) | RequestKind::Atomic(_) => Err(Code::BadSize),
            RequestKind::Read { .. } => {
                let room = if doorbell.is_held() { 0 } else { self.room() };
                let accepted = self.accepted.get(&(number, source)).copied().unwrap_or(0);
                let answer = u64::from(room) | u64::from(accepted) << 32;
                Ok(Bytes::copy_from_slice(answer.to_le_bytes().get(..usize::from(size)).unwrap_or_default()))
            }
        }
    }

    fn push(&mut self, message: Message) -> Result<(), Code> {
        if self.room() == 0 || self.doorbells.get(message.doorbell).is_held() {
            self.overflows = self.overflows.saturating_add(1);
            return Err(Code::NoResources);
        }
        let accepted = self.accepted.entry((message.doorbell, message.source)).or_default();
        *accepted = accepted.wrapping_add(1);
        let backlog = self.backlogs.entry(message.doorbell).or_default();
        backlog.queued = backlog.queued.saturating_add(1);
        backlog.untold = backlog.untold.saturating_add(1);
        self.queue.push_back(message);
        Ok(())
    }

    /// The oldest message.
    pub fn front(&self) -> Option<Message> {
        self.queue.front().copied()
    }

    /// The number of the oldest message, or of the next one where there is none: they are counted from 0 on since the
    /// reset, wrapping.
    pub const fn number(&self) -> u32 {
        (self.taken & u32::MAX as u64) as u32
    }

    /// The guest has taken the oldest message. Ignored unless it has this number.
    pub fn pop(&mut self, number: u32) {
        if number != self.number() {
            return;
        }
        let Some(message) = self.queue.pop_front() else { return };
        self.taken = self.taken.wrapping_add(1);
        if let Some(backlog) = self.backlogs.get_mut(&message.doorbell) {
            backlog.queued = backlog.queued.saturating_sub(1);
            // The oldest were told of first.
            backlog.untold = backlog.untold.min(backlog.queued);
            if backlog.queued == 0 {
                self.backlogs.remove(&message.doorbell);
            }
        }
    }

    /// How many messages wait.
    pub fn count(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// How many messages were put into the queue since the reset.
    pub fn received(&self) -> u64 {
        self.taken.wrapping_add(self.count().into())
    }

    /// How many messages were refused since the reset because there was no room, or their doorbell was held.
    pub const fn overflows(&self) -> u32 {
        self.overflows
    }

    /// The doorbell table.
    pub const fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// The doorbell table, to be written.
    pub const fn doorbells_mut(&mut self) -> &mut Doorbells {
        &mut self.doorbells
    }

    /// Says when the guest is to be told of messages.
    pub const fn set_coalescing(&mut self, coalescing: Coalescing) {
        self.coalescing = coalescing;
    }

    /// The vectors to raise now. Ask after each call of another method.
    pub fn poll_vectors(&mut self, now: Instant) -> Vec<u16> {
        if self.backlogs.is_empty() && self.since.is_empty() {
            return Vec::new();
        }
        let mut waiting: BTreeMap<u16, u32> = BTreeMap::new();
        for (&number, backlog) in self.backlogs.iter().filter(|(_, backlog)| backlog.untold > 0) {
            if let Some(vector) = self.doorbells.get(number).vector() {
                let count = waiting.entry(vector).or_default();
                *count = count.saturating_add(backlog.untold);
            }
        }
        self.since.retain(|vector, _| waiting.contains_key(vector));
        let Coalescing { count: enough, time } = self.coalescing;
        // In a full queue nothing more comes to wait for.
        let at_once = time.is_zero() || self.room() == 0;
        let mut raised = Vec::new();
        for (vector, count) in waiting {
            let since = *self.since.entry(vector).or_insert(now);
            if at_once || count >= enough || since.after(time) <= now {
                raised.push(vector);
                self.note_told(vector);
            }
        }
        raised
    }

    fn note_told(&mut self, vector: u16) {
        self.since.remove(&vector);
        for (&number, backlog) in &mut self.backlogs {
            if self.doorbells.get(number).vector() == Some(vector) {
                backlog.untold = 0;
            }
        }
    }

    /// When [`Self::poll_vectors`] is to be asked again, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.since.values().min().map(|since| since.after(self.coalescing.time))
    }

    /// Back to the state after power-on: the queue is empty and every doorbell closed.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    fn room(&self) -> u32 {
        LIMIT.saturating_sub(self.count())
    }
}
