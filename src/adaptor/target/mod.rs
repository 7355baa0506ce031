//! The target unit: what the bus does to the access and assurance spaces, up to the mesh and back.
//!
//! It is the document's PCI_IF target unit with its target control (TCTR): stores are posted into write
//! buffers, loads wait in fetch buffers, the tag RAM knows what is under way, and the error RAM keeps what
//! failed until a check returns it.
//!
//! Invariant: each transaction that was started either is under way (and in the tag RAM), or was executed,
//! or its error stands in the error RAM; a check answers only when nothing that was started before it is
//! under way.

mod backlog;
mod blocks;
mod check;
mod error_ram;
mod failed;
mod fetch_buffer;
mod limits;
mod loads;
mod stores;
mod tag_ram;
#[cfg(test)]
mod tests;
mod write_buffer;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use self::backlog::Backlog;
use self::blocks::Blocks;
use self::check::Checks;
pub use self::check::Look;
use self::error_ram::ErrorRam;
use self::fetch_buffer::FetchBuffers;
pub use self::limits::Limits;
use self::tag_ram::TagRam;
pub use self::tag_ram::{Tag, Tally};
use self::write_buffer::WriteBuffers;
use super::Instant;
use super::address::{Block, Geometry, NodeId, Place};
use super::bus::Completion;
use super::status::{Code, Direction};
use super::transaction::{Request, TransactionId};

/// What happened since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Stores into the access and I/O spaces, executed or not; each of those that were joined counts.
    pub stores: u64,
    /// Loads from the access and I/O spaces.
    pub loads: u64,
    /// Loads from the assurance spaces.
    pub checks: u64,
    /// Transactions that did not end with [`Code::Ok`].
    pub errors: u64,
}

fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// The target unit of one bus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Of memory; that of the I/O space follows from it.
    geometry: Geometry,
    gather: Duration,
    next_id: u64,
    write_buffers: WriteBuffers,
    fetch_buffers: FetchBuffers,
    tags: TagRam,
    errors: ErrorRam,
    checks: Checks,
    backlog: Backlog,
    /// Nothing came from the bus since it was last idle.
    bus_is_idle: bool,
    requests: VecDeque<Request>,
    completions: VecDeque<Completion>,
    counters: Counters,
}

impl Target {
    /// A target unit with the usual limits.
    ///
    /// `gather` is how long a write buffer may wait for more stores to join; `deadline` is how long the
    /// stores of one backlog may be refused with [`Busy`](crate::adaptor::Busy) in all.
    pub fn new(geometry: Geometry, gather: Duration, deadline: Duration) -> Self {
        Self::with_limits(geometry, gather, deadline, Limits::default())
    }

    /// A target unit with other limits.
    pub fn with_limits(geometry: Geometry, gather: Duration, deadline: Duration, limits: Limits) -> Self {
        Self {
            geometry,
            gather,
            next_id: 1,
            write_buffers: WriteBuffers::new(limits.write_buffers, limits.write_buffers_per_node),
            fetch_buffers: FetchBuffers::new(limits.fetch_buffers),
            tags: TagRam::default(),
            errors: ErrorRam::new(limits.logged_blocks),
            checks: Checks::new(limits.checks),
            backlog: Backlog::new(deadline),
            bus_is_idle: true,
            requests: VecDeque::new(),
            completions: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Nothing more is at hand from the bus: write buffers of nodes with nothing under way are closed, the
    /// others at the node's next completion. Ends a backlog, unless a store was answered with [`Busy`](crate::adaptor::Busy) and
    /// not yet handed in again.
    pub fn idle(&mut self, now: Instant) {
        self.bus_is_idle = true;
        self.backlog.idle();
        for (node, opened) in self.write_buffers.open_nodes() {
            if !self.is_under_way(node) || self.is_overdue(opened, now) {
                self.close(node);
            }
        }
    }

    /// The next transaction for the mesh, in the order in which they were closed; for each node that is the
    /// order of the bus.
    pub fn poll_request(&mut self, now: Instant) -> Option<Request> {
        self.close_overdue(now);
        self.requests.pop_front()
    }

    /// The mesh says how a transaction ended; `data` is what was read. An `id` that is not under way is
    /// ignored.
    ///
    /// A read that ended well but brought more or less data than was asked for is [`Code::Corrupt`].
    pub fn complete(&mut self, now: Instant, id: TransactionId, code: Code, data: Bytes) {
        // What was not handed out cannot have ended; to believe it would let a write be executed after its
        // report.
        if self.requests.iter().any(|request| request.id == id) {
            return;
        }
        if let Some(len) = self.fetch_buffers.len(id) {
            let code = if code.is_ok() && data.len() != len { Code::Corrupt } else { code };
            let Some(fetch) = self.fetch_buffers.finish(id) else { return };
            self.completions.push_back(if code.is_ok() {
                Completion { tag: fetch.tag, data }
            } else {
                Completion::all_ones(fetch.tag, len)
            });
            self.finish(id, fetch.place, len, Direction::Read, code);
        } else if let Some(closed) = self.write_buffers.finish(id) {
            self.finish(id, closed.place, closed.len, Direction::Write, code);
        }
        self.close_overdue(now);
    }

    /// Logs how a transaction that was under way ended, and answers the checks that waited for it.
    fn finish(&mut self, id: TransactionId, place: Place, len: usize, direction: Direction, code: Code) {
        if !code.is_ok() {
            self.fail(id, place, len, direction, code);
        }
        let blocks = Blocks::in_window(self.geometry, place, len);
        self.tags.finish(blocks, direction);
        for check in self.checks.finish(id, blocks) {
            let answer = check.answer(&mut self.errors);
            self.completions.push_back(answer);
        }
        if self.bus_is_idle {
            self.close(place.node);
        }
    }

    /// The next answer to a load or a check. Take out all of them after each call of another method: they
    /// are not bounded otherwise.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// When [`Target::handle_timeout`] is due: a write buffer has waited long enough for more stores, or a
    /// store has been [`Busy`](crate::adaptor::Busy) long enough.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let gathered = self.write_buffers.oldest_open().map(|opened| opened.after(self.gather));
        [gathered, self.backlog.until()].into_iter().flatten().min()
    }

    /// Does what is due by `now`. A store that is waiting has to be handed in again after this.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.backlog.expire(now);
        self.close_overdue(now);
    }

    /// Forgets everything: buffers, log, overflow and counters. Loads that wait are answered with all-ones,
    /// checks with [`Code::LogOverflow`] for both directions: nothing is known any more. Ids go on rising, so that late completions are
    /// ignored.
    pub fn reset(&mut self) {
        let fetches = self.fetch_buffers.clear();
        self.completions.extend(fetches.map(|fetch| Completion::all_ones(fetch.tag, fetch.len)));
        let checks = self.checks.clear();
        self.completions.extend(checks.iter().map(|check| check.answer_code(Code::LogOverflow)));
        self.write_buffers.clear();
        self.tags.clear();
        self.errors.clear();
        self.backlog.clear();
        self.requests.clear();
        self.counters = Counters::default();
        self.bus_is_idle = true;
    }

    /// How many blocks have an error in the log.
    pub fn logged_blocks(&self) -> usize {
        self.errors.len()
    }

    /// Whether an error of `node` found no room in the log since the last acknowledgement.
    pub fn overflowed(&self, node: NodeId) -> bool {
        self.errors.overflowed(node)
    }

    /// Software knows now that any earlier access to `node` may have failed.
    pub fn acknowledge_overflow(&mut self, node: NodeId) {
        self.errors.acknowledge_overflow(node);
    }

    /// True once after an error was logged in the empty log, or a node's errors overflowed.
    pub fn poll_error_event(&mut self) -> bool {
        self.errors.take_event()
    }

    /// Shows software the failed block that is first in the queue; `None` where it is empty. It stays there.
    pub fn take_failed(&mut self) -> Option<Block> {
        self.errors.take_failed()
    }

    /// The failed block that [`Target::take_failed`] showed last, unless it was popped since.
    pub fn taken_failed(&self) -> Option<Block> {
        self.errors.taken_failed()
    }

    /// Software has taken note of the block that it was shown: it leaves the queue. Its errors stay until they are checked.
    pub fn pop_failed(&mut self) {
        self.errors.pop_failed();
    }

    /// How many failed blocks are in the queue.
    pub fn failed_blocks(&self) -> usize {
        self.errors.failed_len()
    }

    /// True once after a block came into the queue of failed blocks.
    pub fn poll_failed_event(&mut self) -> bool {
        self.errors.take_failed_event()
    }

    /// What the tag RAM holds for a block: the transactions under way on it.
    pub fn tag(&self, block: Block) -> Tag {
        self.tags.get(block)
    }

    /// What happened since the last reset.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    fn start(&mut self) -> TransactionId {
        let id = TransactionId(self.next_id);
        self.next_id = self.next_id.saturating_add(1);
        id
    }

    fn is_valid(&self, place: Place, len: usize) -> bool {
        let in_window = u64::try_from(len)
            .ok()
            .and_then(|len| place.at.offset.checked_add(len))
            .is_some_and(|end| end <= self.geometry.of(place.at.space).window_size());
        matches!(len, 1 | 2 | 4 | 8) && in_window
    }

    /// Starts a transaction that ends at once.
    fn refuse(&mut self, place: Place, len: usize, direction: Direction, code: Code) {
        let id = self.start();
        self.fail(id, place, len, direction, code);
    }

    fn fail(&mut self, id: TransactionId, place: Place, len: usize, direction: Direction, code: Code) {
        count(&mut self.counters.errors);
        self.errors.log(Blocks::in_window(self.geometry, place, len), direction, code, id);
    }

    fn is_under_way(&self, node: NodeId) -> bool {
        self.write_buffers.any_closed(node) || self.fetch_buffers.any(node)
    }

    fn close(&mut self, node: NodeId) {
        let request = self.write_buffers.close(node);
        self.requests.extend(request);
    }

    fn close_overdue(&mut self, now: Instant) {
        if self.write_buffers.oldest_open().is_some_and(|opened| self.is_overdue(opened, now)) {
            for (node, opened) in self.write_buffers.open_nodes() {
                if self.is_overdue(opened, now) {
                    self.close(node);
                }
            }
        }
    }

    fn is_overdue(&self, opened: Instant, now: Instant) -> bool {
        opened.after(self.gather) <= now
    }
}
