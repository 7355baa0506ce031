//! The responding side of a flow: takes the requests of one other node in order, each once, and keeps their answers until these are acknowledged.
//!
//! A write is executed only under a lease: this side sends the time with everything it sends, the initiating side sends the
//! latest such stamp back together with its epoch, and for the lease's time *from the stamp*, less a guard band, the requests of
//! that epoch may be executed. Invariant: the numbers from `acknowledged` on belong first to `answers`, then to `queue`; `expected` comes after them.

use core::time::Duration;
use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::batch::{MAX_BATCH, SHORT};
use super::limits::{ASK_AGAIN, ASK_SELDOM, Window, guarded};
use super::packet::{Body, Progress, Stamp};
use super::sequence::{Epoch, Sequence};
use crate::adaptor::Instant;
use crate::adaptor::status::{Code, Direction};

/// Names a request at this node between its arrival and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    epoch: Epoch,
    sequence: Sequence,
}

impl Ticket {
    /// The ticket as a number.
    pub const fn to_bits(self) -> u64 {
        (self.epoch.0 as u64) << 32 | self.sequence.0 as u64
    }

    /// The ticket with this number.
    pub const fn from_bits(bits: u64) -> Self {
        Self { epoch: Epoch((bits >> 32) as u32), sequence: Sequence(bits as u32) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Answer {
    direction: Direction,
    code: Code,
    data: Bytes,
    /// What the request counts against the window.
    bytes: usize,
}

/// What a packet's epoch says about the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It belongs to an abandoned epoch.
    Stale,
    /// It belongs to the current epoch.
    Current,
    /// It opens a new epoch; whatever waits from before is not to be executed.
    New,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Responder {
    lease: Duration,
    window: Window,
    epoch: Option<Epoch>,
    acknowledged: Sequence,
    answers: VecDeque<Answer>,
    /// Requests that were accepted and not answered yet, with their bytes.
    queue: VecDeque<(Direction, usize)>,
    queued_writes: usize,
    expected: Sequence,
    bytes: usize,
    /// Index of the next answer to send.
    cursor: usize,
    /// Answers that were sent at least once: only these can be acknowledged. Else a peer could have reads executed without end
    /// and take none of their answers.
    told: usize,
    lease_until: Instant,
    /// Stamps of before this time grant nothing: the clock may have stood still since.
    stamps_from: Instant,
    /// The time until a lease that was asked for is asked for again.
    ask_pause: Duration,
    /// Before this time the lease is not asked for again.
    ask_at: Instant,
    /// It is time to ask, but the link has not taken the question yet.
    ask_waits: bool,
    nak_wanted: bool,
    /// What was accepted of this epoch is forgotten, so that nothing of it may be taken.
    closed: bool,
    /// The initiating side is to be told so.
    closed_wanted: bool,
    /// The last gap that was reported; it is reported again only when the initiating side probes.
    reported_gap: Option<Sequence>,
}

impl Responder {
    pub(super) const fn new(lease: Duration, window: Window) -> Self {
        Self {
            lease,
            window,
            epoch: None,
            acknowledged: window.first,
            answers: VecDeque::new(),
            queue: VecDeque::new(),
            queued_writes: 0,
            expected: window.first,
            bytes: 0,
            cursor: 0,
            told: 0,
            lease_until: Instant::ZERO,
            stamps_from: Instant::ZERO,
            ask_pause: ASK_AGAIN,
            ask_at: Instant::ZERO,
            ask_waits: false,
            nak_wanted: false,
            closed: false,
            closed_wanted: false,
            reported_gap: None,
        }
    }

    /// A responder for a peer of which only the last epoch is remembered: whatever is newer is taken.
    pub(super) fn after(lease: Duration, window: Window, epoch: Option<Epoch>) -> Self {
        Self { epoch, closed: true, closed_wanted: true, ..Self::new(lease, window) }
    }

    /// The latest epoch that was named.
    pub(super) const fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// How long the leases of the peer's requests last.
    pub(super) const fn set_lease(&mut self, lease: Duration) {
        self.lease = lease;
    }

    /// The clock may have stood still until `now`: no lease from before is good.
    pub(super) const fn drop_leases(&mut self, now: Instant) {
        self.lease_until = Instant::ZERO;
        self.stamps_from = now;
        self.ask_at = Instant::ZERO;
        self.ask_pause = ASK_AGAIN;
    }

    /// The link is lost: what is to be repeated is asked for on the next one.
    pub(super) const fn pause(&mut self) {
        self.cursor = self.told;
    }

    /// An epoch was named, by a Hello or by a packet of the flow.
    pub(super) fn handle_epoch(&mut self, epoch: Epoch) -> Freshness {
        match self.epoch {
            Some(current) if epoch < current => Freshness::Stale,
            Some(current) if epoch == current && self.closed => {
                self.closed_wanted = true;
                Freshness::Stale
            }
            Some(current) if epoch == current => Freshness::Current,
            _ => {
                let stamps_from = self.stamps_from;
                *self = Self { epoch: Some(epoch), stamps_from, ..Self::new(self.lease, self.window) };
                Freshness::New
            }
        }
    }

    /// What every packet of the initiating side tells, for the current epoch: acknowledged answers are dropped, and
    /// the stamp renews the lease. Returns whether a write waits for a lease, and this one is over already.
    pub(super) fn handle_progress(&mut self, now: Instant, progress: Progress) -> bool {
        while self.acknowledged < progress.acknowledge && self.told > 0 {
            let Some(answer) = self.answers.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(answer.bytes);
            self.acknowledged = self.acknowledged.plus(1);
            self.cursor = self.cursor.saturating_sub(1);
            self.told = self.told.saturating_sub(1);
        }
        let is_late = self.take_stamp(now, progress.echo);
        if self.lease_until > now {
            // The question was answered; the next one need not wait.
            self.ask_at = Instant::ZERO;
        } else {
            // The initiating side is there: it is asked soon.
            self.ask_at = self.ask_at.min(now.after(ASK_AGAIN));
        }
        self.ask_pause = ASK_AGAIN;
        is_late
    }

    /// A stamp came back. One that this side can not have given since its clock is known to run grants nothing. Returns whether it
    /// came too late for a write that waits.
    fn take_stamp(&mut self, now: Instant, echo: Stamp) -> bool {
        let asked = Instant::from_nanos(echo.0);
        if echo == Stamp(0) || asked > now || asked < self.stamps_from {
            return false;
        }
        self.lease_until = self.lease_until.max(asked.after(guarded(self.lease)));
        self.queued_writes > 0 && self.lease_until <= now
    }

    /// A request came; a ticket means that it is next in order and shall be executed.
    pub(super) fn handle_request(
        &mut self,
        sequence: Sequence,
        direction: Direction,
        bytes: usize,
    ) -> Option<Ticket> {
        if sequence != self.expected {
            if sequence > self.expected && self.reported_gap != Some(self.expected) {
                self.nak_wanted = true;
            }
            return None;
        }
        let held = self.answers.len().saturating_add(self.queue.len());
        let total = self.bytes.saturating_add(bytes);
        if held >= self.window.requests || total > self.window.bytes {
            return None;
        }
        let epoch = self.epoch?;
        self.bytes = total;
        self.queue.push_back((direction, bytes));
        self.queued_writes = self.queued_writes.saturating_add(writes(direction));
        self.expected = self.expected.plus(1);
        Some(Ticket { epoch, sequence })
    }

    /// The initiating side probes: it has sent everything before `sent`, and not all answers have arrived. Where answers are being
    /// repeated already, that goes on.
    pub(super) fn handle_probe(&mut self, sent: Sequence) {
        if self.cursor >= self.told {
            self.cursor = 0;
        }
        self.nak_wanted |= sent > self.expected;
    }

    /// Whether a request may be executed now. Reading memory changes nothing, so that it needs no lease.
    pub(super) fn may_execute(&self, now: Instant, direction: Direction) -> bool {
        direction == Direction::Read || now < self.lease_until
    }

    /// A request was executed or refused. Tickets of an abandoned epoch are ignored.
    pub(super) fn answer(&mut self, ticket: Ticket, code: Code, data: Bytes) {
        let next = self.acknowledged.plus(u32::try_from(self.answers.len()).unwrap_or(u32::MAX));
        if Some(ticket.epoch) != self.epoch || ticket.sequence != next {
            return;
        }
        if let Some((direction, bytes)) = self.queue.pop_front() {
            self.queued_writes = self.queued_writes.saturating_sub(writes(direction));
            self.answers.push_back(Answer { direction, code, data, bytes });
        }
    }

    /// When a lease has to be asked for, if none is given until then.
    fn ask_due(&self) -> Option<Instant> {
        (self.queued_writes > 0).then(|| self.lease_until.max(self.ask_at))
    }

    /// Whether something waits to be sent.
    pub(super) fn has_next(&self) -> bool {
        self.nak_wanted || self.ask_waits || self.closed_wanted || self.cursor < self.answers.len()
    }

    /// How many of the next answers go in one packet: those that are good and short, or the first alone.
    fn gathered(&self) -> usize {
        let mut bytes = 0usize;
        let fits = |answer: &&Answer| {
            let len = answer.data.len();
            bytes = bytes.saturating_add(len);
            answer.code.is_ok() && len <= SHORT && bytes <= MAX_BATCH
        };
        self.answers.iter().skip(self.cursor).take_while(fits).count().max(1)
    }

    /// What the next `count` answers bring, one after the other.
    fn data_of(&self, count: usize) -> Bytes {
        let answers = || self.answers.iter().skip(self.cursor).take(count);
        let len = answers().map(|answer| answer.data.len()).fold(0, usize::saturating_add);
        let mut all = BytesMut::with_capacity(len);
        answers().for_each(|answer| all.extend_from_slice(&answer.data));
        all.freeze()
    }

    /// The next packet to send.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Body> {
        let epoch = self.epoch?;
        let stamp = Stamp(now.as_nanos().max(1));
        if core::mem::take(&mut self.closed_wanted) {
            let (first, data) = (self.acknowledged, Bytes::new());
            return Some(Body::Done { epoch, first, count: 1, code: Code::PeerRestarted, stamp, data });
        }
        if let Some(answer) = self.answers.get(self.cursor) {
            let first = self.acknowledged.plus(u32::try_from(self.cursor).unwrap_or(u32::MAX));
            let count = self.gathered();
            let data = match count {
                1 => answer.data.clone(),
                _ => self.data_of(count),
            };
            let count_field = u32::try_from(count).unwrap_or(u32::MAX);
            let body = Body::Done { epoch, first, count: count_field, code: answer.code, stamp, data };
            self.cursor = self.cursor.saturating_add(count);
            self.told = self.told.max(self.cursor);
            return Some(body);
        }
        if self.nak_wanted {
            self.nak_wanted = false;
            self.reported_gap = Some(self.expected);
            return Some(Body::Nak { epoch, expected: self.expected, stamp });
        }
        self.handle_timeout(now);
        let asks = core::mem::take(&mut self.ask_waits) && self.queued_writes > 0 && self.lease_until <= now;
        asks.then_some(Body::Ask { epoch, stamp })
    }

    /// Notes whether the lease has to be asked for.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.ask_due().is_some_and(|at| at <= now) {
            self.ask_at = now.after(self.ask_pause);
            self.ask_pause = self.ask_pause.saturating_mul(2).min(ASK_SELDOM);
            self.ask_waits = true;
        }
    }

    /// When to call [`Self::handle_timeout`], and then [`Self::poll`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.ask_due()
    }
}

/// 1 for a write, 0 for a read.
const fn writes(direction: Direction) -> usize {
    matches!(direction, Direction::Write) as usize
}
