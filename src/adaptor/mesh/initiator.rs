//! The initiating side of a flow: sends the requests of this node's bus to one other node, in order, until each is answered.
//!
//! Requests are numbered within an epoch, and kept until their answer has come; answers are taken in order only.
//! When a deadline passes or the peer is lost, the epoch is abandoned: what was never sent is finished at once, as
//! not executed; what was sent is *condemned*, and finished as of unknown outcome only when the last lease that this
//! side can have given has run out. Invariant: `first` is the number of `outstanding[0]`, and
//! `cursor <= sent <= outstanding.len()`.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::Find;
use super::batch::{Batch, Collector, is_short};
use super::limits::{PROBE_AFTER, PROBES, Window};
use super::packet::{Body, Progress, Stamp};
use super::sequence::{Epoch, Sequence};
use crate::adaptor::Instant;
use crate::adaptor::address::Location;
use crate::adaptor::channel::Channel;
use crate::adaptor::memory::MemoryFault;
use crate::adaptor::status::{Code, Direction};
use crate::adaptor::transaction::{Content, Extent, Finished, Payload, Request, RequestKind, TransactionId};

/// What kept an answer from coming, since the last one that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Trouble {
    corrupt: bool,
    sequence: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Initiator {
    channel: Channel,
    time_to_try: Duration,
    lease: Duration,
    /// After this time without an answer it is asked for.
    probe_after: Duration,
    window: Window,
    epoch: Epoch,
    first: Sequence,
    outstanding: VecDeque<Request>,
    /// Index of the next request to send.
    cursor: usize,
    /// Requests of this epoch that were sent at least once.
    sent: usize,
    /// Bytes that the outstanding requests move.
    bytes: usize,
    /// Requests for which the window has no room yet.
    waiting: VecDeque<Request>,
    confirm_wanted: bool,
    echo: Stamp,
    /// When this epoch was last confirmed together with a stamp, which may have given a lease.
    leased: Option<Instant>,
    probe_at: Option<Instant>,
    /// Outstanding requests whose bytes could not be had when they were to be sent, with how they end: they go as requests to write
    /// nothing, so that the numbers stay whole.
    faults: BTreeMap<TransactionId, Code>,
    /// The outstanding request whose memory is being brought in: nothing after it is sent before.
    absent: Option<TransactionId>,
    condemned: Vec<(TransactionId, Code)>,
    condemned_until: Instant,
    trouble: Trouble,
    finished: VecDeque<Finished>,
}

impl Initiator {
    pub(super) fn new(channel: Channel, time_to_try: Duration, lease: Duration, window: Window) -> Self {
        Self {
            channel,
            time_to_try,
            lease,
            probe_after: PROBE_AFTER,
            window,
            epoch: window.epoch,
            first: window.first,
            outstanding: VecDeque::new(),
            cursor: 0,
            sent: 0,
            bytes: 0,
            waiting: VecDeque::new(),
            confirm_wanted: false,
            echo: Stamp(0),
            leased: None,
            probe_at: None,
            faults: BTreeMap::new(),
            absent: None,
            condemned: Vec::new(),
            condemned_until: Instant::ZERO,
            trouble: Trouble::default(),
            finished: VecDeque::new(),
        }
    }

    pub(super) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether nothing is under way, nor still to be reported.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.waiting.is_empty() && self.condemned.is_empty()
    }

    /// Leases last so long from now on, and there is so much less time to try. Only for an idle flow: what is under way was to be
    /// reported by the earlier times.
    pub(super) const fn set_lease(&mut self, time_to_try: Duration, lease: Duration) {
        self.time_to_try = time_to_try;
        self.lease = lease;
    }

    /// Answers take so long for their way and that of the request. It may have been measured while the peer stood still, so that
    /// lost answers are asked for several times within the time to try in any case.
    pub(super) fn set_round_trip(&mut self, round_trip: Duration) {
        let usual = round_trip.saturating_add(round_trip.checked_div(2).unwrap_or_default());
        let most = self.time_to_try.checked_div(PROBES).unwrap_or_default();
        self.probe_after = usual.min(most).max(PROBE_AFTER);
    }

    /// The clock may have jumped ahead: what was given a lease is treated as if it had been at this moment.
    pub(super) fn renew_leases(&mut self, now: Instant) {
        self.leased = self.leased.map(|_| now);
        if self.has_condemned() {
            self.condemned_until = self.condemned_until.max(now.after(self.lease));
        }
    }

    /// Whether something waits to be sent.
    pub(super) fn has_next(&self) -> bool {
        self.confirm_wanted || self.absent.is_none() && self.cursor < self.outstanding.len()
    }

    /// Whether transactions of an abandoned epoch are still to be reported.
    pub(super) const fn has_condemned(&self) -> bool {
        !self.condemned.is_empty()
    }

    pub(super) fn submit(&mut self, request: Request) {
        if self.waiting.is_empty() && self.has_room_for(&request) {
            self.take_in(request);
        } else {
            self.waiting.push_back(request);
        }
    }

    /// Finishes a request that is not to be sent at all.
    pub(super) fn refuse(&mut self, id: TransactionId, code: Code) {
        self.finished.push_back(Finished { id, code, data: Bytes::new() });
    }

    pub(super) fn poll_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Whether the window has room for one more request.
    fn has_room_for(&self, request: &Request) -> bool {
        let bytes = self.bytes.saturating_add(request.kind.len());
        self.outstanding.len() < self.window.requests && bytes <= self.window.bytes
    }

    fn take_in(&mut self, request: Request) {
        self.bytes = self.bytes.saturating_add(request.kind.len());
        self.outstanding.push_back(request);
    }

    fn admit(&mut self) {
        while self.waiting.front().is_some_and(|request| self.has_room_for(request)) {
            let Some(request) = self.waiting.pop_front() else { break };
            self.take_in(request);
        }
    }

    const fn progress(&self) -> Progress {
        Progress { epoch: self.epoch, acknowledge: self.first, echo: self.echo }
    }

    /// The next packet to send; only to be called while the peer is proven to be the one that the flow is with.
    pub(super) fn poll(&mut self, now: Instant, find: &mut Find<'_>) -> Option<Body> {
        let progress = self.progress();
        let before = self.cursor;
        let body = if let Some(batch) = self.poll_batch(find) {
            Body::Batch { progress, first: self.first.plus(steps(before)), batch }
        } else if let Some((at, kind)) = self.next_request(find) {
            self.advance();
            let sequence = self.first.plus(steps(before));
            match kind {
                RequestKind::Write(Content::Bytes(data)) => Body::Write { progress, sequence, at, data },
                RequestKind::Write(Content::Lent(from)) => Body::Lend { progress, sequence, at, from },
                RequestKind::Read { len } => Body::Read { progress, sequence, at, len },
                RequestKind::Atomic(atomic) => {
                    Body::Atomic { progress, sequence, at, operands: atomic.operands() }
                }
            }
        } else if self.confirm_wanted {
            Body::Confirm { progress, sent: self.first.plus(steps(self.sent)) }
        } else {
            return None;
        };
        if self.cursor > before {
            self.probe_at.get_or_insert(now.after(self.probe_after));
        }
        self.confirm_wanted = false;
        if self.echo != Stamp(0) {
            self.leased = Some(now);
        }
        Some(body)
    }

    /// The next requests, where several short ones follow each other.
    fn poll_batch(&mut self, find: &mut Find<'_>) -> Option<Batch> {
        let mut next = self.outstanding.iter().skip(self.cursor).take(2).filter(|r| is_short(&r.kind));
        if self.channel != Channel::Bulk || next.nth(1).is_none() {
            return None;
        }
        let mut batch = Collector::default();
        while self.outstanding.get(self.cursor).is_some_and(|request| batch.has_room(&request.kind)) {
            let Some((at, kind)) = self.next_request(find) else { break };
            // What is lent goes alone.
            let Some(kind) = kind.carried() else { break };
            batch.push(at, &kind);
            self.advance();
        }
        batch.finish()
    }

    /// The next request, with what goes for its memory.
    fn next_request(&mut self, find: &mut Find<'_>) -> Option<(Location, RequestKind)> {
        if self.absent.is_some() {
            return None;
        }
        let request = self.outstanding.get(self.cursor)?;
        let kind = match &request.kind {
            RequestKind::Write(Payload::Bytes(data)) => RequestKind::Write(data.clone().into()),
            RequestKind::Write(Payload::Memory(source)) => {
                let found = if self.faults.contains_key(&request.id) { None } else { Some(find(source)) };
                if matches!(found, Some(Err(MemoryFault::Absent))) {
                    self.absent = Some(request.id);
                    return None;
                }
                let found = found
                    .and_then(Result::ok)
                    .filter(|content| content.extent() == source.len)
                    .unwrap_or_else(|| {
                        // If it was sent before, it may have been executed.
                        let code = if self.cursor < self.sent { Code::LinkLost } else { Code::LocalFault };
                        self.faults.entry(request.id).or_insert(code);
                        Bytes::new().into()
                    });
                RequestKind::Write(found)
            }
            RequestKind::Read { len } => RequestKind::Read { len: *len },
            RequestKind::Atomic(atomic) => RequestKind::Atomic(*atomic),
        };
        Some((request.place.at, kind))
    }

    /// The memory that is waited for is there, or can't be had.
    pub(super) fn handle_pages(&mut self, result: Result<(), MemoryFault>) {
        let Some(absent) = self.absent.take() else { return };
        let place = self.outstanding.iter().position(|request| request.id == absent);
        if let (Some(place), Err(_)) = (place, result) {
            // As where it can't be read.
            let code = if place < self.sent { Code::LinkLost } else { Code::LocalFault };
            self.faults.entry(absent).or_insert(code);
        }
    }

    /// The next request was sent.
    fn advance(&mut self) {
        self.cursor = self.cursor.saturating_add(1);
        self.sent = self.sent.max(self.cursor);
    }

    /// A stamp came; it is sent back from now on. What it says is the responding side's business.
    pub(super) fn handle_stamp(&mut self, stamp: Stamp) {
        if stamp != Stamp(0) {
            self.echo = stamp;
        }
    }

    /// The responding side asks whether the epoch is still wanted: the answer names the current one.
    pub(super) const fn handle_ask(&mut self) {
        self.confirm();
    }

    /// Tells the current epoch with the next packet, even if there is no request.
    pub(super) const fn confirm(&mut self) {
        self.confirm_wanted = true;
    }

    pub(super) const fn handle_corrupt(&mut self) {
        self.trouble.corrupt = true;
    }

    /// Requests from `expected` on are missing at the peer.
    pub(super) fn handle_nak(&mut self, epoch: Epoch, expected: Sequence) {
        let Ok(index) = usize::try_from(expected.distance_from(self.first)) else { return };
        if epoch == self.epoch && index < self.sent {
            self.trouble.sequence = true;
            self.cursor = index;
        }
    }

    /// `count` requests from `first` on ended with `code`. What does not continue the answers seen so far, or answers what
    /// was not asked, is ignored: the probe brings the right ones, or the deadline passes.
    pub(super) fn handle_done(
        &mut self,
        now: Instant,
        epoch: Epoch,
        first: Sequence,
        count: u32,
        code: Code,
        data: &Bytes,
    ) {
        if epoch != self.epoch {
            return;
        }
        let known = i64::from(self.first.distance_from(first));
        let fresh = i64::from(count).saturating_sub(known);
        let Ok(fresh) = usize::try_from(fresh) else { return };
        // Of several good answers each request takes as much as it asked for. Those that came before may be in front.
        let asked: usize = self.outstanding.iter().take(fresh).map(brings).fold(0, usize::saturating_add);
        let excess = data.len().checked_sub(asked).filter(|&excess| known > 0 || excess == 0);
        let makes_sense = count == 1 || code.is_ok() && excess.is_some();
        if known < 0 || fresh > self.sent || !makes_sense {
            self.trouble.sequence = true;
            return;
        }
        if fresh == 0 {
            return;
        }
        let mut rest = data.slice(if count > 1 { excess.unwrap_or(0) } else { 0 }..);
        for request in self.outstanding.drain(..fresh) {
            self.bytes = self.bytes.saturating_sub(request.kind.len());
            let code = self.faults.remove(&request.id).unwrap_or(code);
            self.absent.take_if(|absent| *absent == request.id);
            let own = brings(&request).min(rest.len());
            // An answer of another length than was asked for: nobody knows what was done.
            let is_whole = !code.is_ok() || count > 1 || rest.len() == brings(&request);
            let (code, own) = if is_whole { (code, own) } else { (Code::Corrupt, 0) };
            let data = if code.is_ok() { rest.split_to(own) } else { Bytes::new() };
            self.finished.push_back(Finished { id: request.id, code, data });
        }
        self.first = self.first.plus(steps(fresh));
        self.sent = self.sent.saturating_sub(fresh);
        self.cursor = self.cursor.saturating_sub(fresh);
        self.trouble = Trouble::default();
        self.probe_at = (self.sent > 0).then(|| now.after(self.probe_after));
        self.admit();
    }

    /// The link is gone; nothing is sent until [`Self::resume`].
    pub(super) const fn pause(&mut self) {
        self.probe_at = None;
        self.confirm_wanted = false;
    }

    /// The peer is proven on a new link: find out what it has, and go on from there.
    pub(super) fn resume(&mut self, now: Instant) {
        if self.sent > 0 {
            self.confirm_wanted = true;
            self.probe_at = Some(now.after(self.probe_after));
        }
    }

    /// The time at which the oldest request has to be given up.
    fn expires_at(&self) -> Option<Instant> {
        let oldest = self.outstanding.front().or_else(|| self.waiting.front())?;
        Some(oldest.posted.after(self.time_to_try))
    }

    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// Why answers did not come, while the link was up.
    pub(super) const fn reason(&self) -> Code {
        match self.trouble {
            Trouble { corrupt: true, .. } => Code::Corrupt,
            Trouble { sequence: true, .. } => Code::Sequence,
            Trouble { .. } => Code::Timeout,
        }
    }

    /// Gives up everything that is under way and opens a new epoch.
    pub(super) fn abandon(&mut self, now: Instant, sent: Code, unsent: Code) {
        let leases_matter =
            self.outstanding.iter().take(self.sent).any(|r| r.kind.direction() == Direction::Write);
        let until = match self.leased {
            Some(at) if leases_matter => at.after(self.lease),
            _ => now,
        };
        self.condemned_until = self.condemned_until.max(until);
        let outstanding = core::mem::take(&mut self.outstanding);
        for (index, request) in outstanding.into_iter().enumerate() {
            if index < self.sent {
                self.condemned.push((request.id, self.faults.remove(&request.id).unwrap_or(sent)));
            } else {
                self.refuse(request.id, unsent);
            }
        }
        while let Some(request) = self.waiting.pop_front() {
            self.refuse(request.id, unsent);
        }
        self.faults.clear();
        self.absent = None;
        self.epoch = self.epoch.plus(1);
        self.first = self.window.first;
        (self.cursor, self.sent, self.bytes) = (0, 0, 0);
        self.confirm_wanted = false;
        self.echo = Stamp(0);
        self.leased = None;
        self.probe_at = None;
        self.trouble = Trouble::default();
        self.release(now);
    }

    /// Reports the condemned once no lease can cover them any more.
    fn release(&mut self, now: Instant) {
        if now >= self.condemned_until {
            for (id, code) in core::mem::take(&mut self.condemned) {
                self.refuse(id, code);
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let release = self.has_condemned().then_some(self.condemned_until);
        [self.expires_at(), self.probe_at, release].into_iter().flatten().min()
    }

    /// Expiry is the session's to handle, by [`Self::has_expired`], because it also changes the link's state.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.release(now);
        if self.probe_at.is_some_and(|at| at <= now) {
            self.confirm_wanted = true;
            self.probe_at = Some(now.after(self.probe_after));
        }
    }
}

/// The bytes that a request brings where it ends well.
fn brings(request: &Request) -> usize {
    match &request.kind {
        RequestKind::Write(_) => 0,
        kind @ (RequestKind::Read { .. } | RequestKind::Atomic(_)) => kind.len(),
    }
}

/// An index below the window as a number of steps.
fn steps(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
