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
mod fetch_buffer;
mod limits;
mod tag_ram;
#[cfg(test)]
mod tests;
mod write_buffer;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use self::backlog::Backlog;
use self::blocks::Blocks;
pub use self::check::Look;
use self::check::{Check, Checks};
use self::error_ram::ErrorRam;
use self::fetch_buffer::FetchBuffers;
pub use self::limits::Limits;
use self::tag_ram::TagRam;
pub use self::tag_ram::{Tag, Tally};
use self::write_buffer::WriteBuffers;
use super::Instant;
use super::address::{Block, Geometry, NodeId, Place, Space};
use super::bus::{Busy, Completion, LoadTag};
use super::status::{Code, Direction};
use super::transaction::{Request, RequestKind, TransactionId};

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
    /// stores of one backlog may be refused with [`Busy`] in all.
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

    /// A store into the access space, or into the I/O space, where it is a transaction of its own. It is posted: an error
    /// shows in a check only.
    ///
    /// Stores of other than 1, 2, 4 or 8 bytes, or that leave the window of their node, are not executed,
    /// and are logged as [`Code::BadSize`] on the blocks they touch in it; beyond the space there is no
    /// block, and nothing happens.
    ///
    /// # Errors
    /// [`Busy`] where no write buffer is free. Nothing changed: hand the same store in again after a
    /// completion, at latest at [`Target::poll_timeout`]. When the backlog's time is used up, the store is
    /// not executed, and is logged as [`Code::NoResources`].
    pub fn store(&mut self, now: Instant, space: Space, space_offset: u64, data: &[u8]) -> Result<(), Busy> {
        self.bus_is_idle = false;
        let Some(place) = self.geometry.of(space).place(space_offset) else {
            self.backlog.go_on(now);
            count(&mut self.counters.stores);
            return Ok(());
        };
        let valid = self.is_valid(place, data.len());
        if valid && !self.write_buffers.join(place, data) {
            if self.write_buffers.is_free(place.node) {
                self.open_write_buffer(now, place, data);
            } else if self.backlog.wait(now) {
                return Err(Busy);
            } else {
                self.refuse(place, data.len(), Direction::Write, Code::NoResources);
            }
        } else if !valid {
            self.refuse(place, data.len(), Direction::Write, Code::BadSize);
        }
        self.backlog.go_on(now);
        count(&mut self.counters.stores);
        let full = self.write_buffers.close_full(place.node);
        self.requests.extend(full);
        Ok(())
    }

    fn open_write_buffer(&mut self, now: Instant, place: Place, data: &[u8]) {
        self.close(place.node);
        let id = self.start();
        if let Some(number) = self.write_buffers.open(now, id, place, data) {
            let blocks = Blocks::in_window(self.geometry, place, data.len());
            self.tags.start(blocks, Direction::Write, number);
        }
    }

    /// A load from the access space, or from the I/O space. The answer comes from [`Target::poll_completion`]: the data, or
    /// all-ones of `len` bytes where the load failed, with the reason in the log.
    ///
    /// The lengths are those of [`Target::store`]; with any other the load is not executed. The caller
    /// bounds `len`.
    pub fn load(&mut self, now: Instant, tag: LoadTag, space: Space, space_offset: u64, len: usize) {
        self.bus_is_idle = false;
        self.backlog.go_on(now);
        count(&mut self.counters.loads);
        let failed = Completion::all_ones(tag, len);
        let Some(place) = self.geometry.of(space).place(space_offset) else {
            self.completions.push_back(failed);
            return;
        };
        // A read does not pass the writes before it.
        self.close(place.node);
        if !self.is_valid(place, len) {
            self.refuse(place, len, Direction::Read, Code::BadSize);
            self.completions.push_back(failed);
            return;
        }
        let id = self.start();
        let Some(number) = self.fetch_buffers.start(id, tag, place, len) else {
            self.fail(id, place, len, Direction::Read, Code::NoResources);
            self.completions.push_back(failed);
            return;
        };
        self.tags.start(Blocks::in_window(self.geometry, place, len), Direction::Read, number);
        let kind = RequestKind::Read { len: u32::try_from(len).unwrap_or(u32::MAX) };
        self.requests.push_back(Request { id, place, kind, posted: now });
    }

    /// A check: a load from the assurance space. The answer comes from [`Target::poll_completion`] when
    /// every transaction that was started before on the blocks it touches has completed.
    ///
    /// The answer is the status word, little-endian, cut or padded with zeros to `len` bytes; in one byte
    /// it is the write code or, where no write failed, the read code. For each direction it is the first
    /// error in the order of the blocks, and what is returned, and only that, is cleared, unless it is a [`Look::Peek`].
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
        self.bus_is_idle = false;
        self.backlog.go_on(now);
        count(&mut self.counters.checks);
        let blocks = Blocks::in_space(self.geometry.of(space), space_offset, len).filter(|_| len > 0);
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

    /// Nothing more is at hand from the bus: write buffers of nodes with nothing under way are closed, the
    /// others at the node's next completion. Ends a backlog, unless a store was answered with [`Busy`] and
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
            let Some(fetch) = self.fetch_buffers.finish(id, code) else { return };
            self.completions.push_back(if code.is_ok() {
                Completion { tag: fetch.tag, data }
            } else {
                Completion::all_ones(fetch.tag, len)
            });
            self.finish(id, fetch.place, len, Direction::Read, code);
        } else if let Some(closed) = self.write_buffers.finish(id, code) {
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
    /// store has been [`Busy`] long enough.
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

    /// TWB_LOG: how the last transaction of this write buffer ended; [`Code::Ok`] where there was none.
    pub fn write_log(&self, buffer: u16) -> Code {
        self.write_buffers.log(buffer)
    }

    /// TFB_LOG: how the last transaction of this fetch buffer ended; [`Code::Ok`] where there was none.
    pub fn fetch_log(&self, buffer: u16) -> Code {
        self.fetch_buffers.log(buffer)
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
