//! The relation with one other node: which incarnation it is, whether it can be reached, and the two flows.
//!
//! A peer is believed to be an incarnation only after it sent back a nonce that was made for this; so a packet that some
//! router kept from an earlier life cannot bring that life back. Invariant: requests are sent only while `proven`, and packets of
//! the flows are taken only between the two incarnations that were proven.
//!
//! States, as the bus sees them: *down* (transactions end with link down at once), *up*, and *interrupted* (the link was
//! lost a moment ago: transactions wait for it to come back, within their deadline).

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use super::initiator::Initiator;
use super::limits::{FORMER_LIVES, HELLO_AGAIN, HELLO_GAP, KEEPALIVE_PARTS};
use super::packet::{Body, Incarnation, Packet, Progress};
use super::responder::{Freshness, Responder, Ticket};
use super::sequence::Sequence;
use super::{Timing, Wanted};
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::event::Event;
use crate::adaptor::master::Inbound;
use crate::adaptor::random::Random;
use crate::adaptor::status::{Code, Direction};
use crate::adaptor::transaction::{Finished, Request, RequestKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reach {
    Down,
    Up,
    Interrupted { until: Instant },
}

/// What a session produced for other units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outputs {
    pub(super) inbound: VecDeque<Wanted>,
    pub(super) events: VecDeque<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    node: NodeId,
    peer: NodeId,
    timing: Timing,
    incarnation: Incarnation,
    peer_incarnation: Option<Incarnation>,
    /// How long a lease of the peer's requests lasts: the shorter of what both nodes are configured with.
    lease: Duration,
    link: bool,
    /// The peer sent a nonce back on this link, and nothing timed out since.
    proven: bool,
    reach: Reach,
    reach_changes: u32,
    nonce: Option<u64>,
    owed_echo: Option<u64>,
    hello_at: Instant,
    hello_sent: Instant,
    /// A Hello is due that the link has not taken yet.
    hello_waits: bool,
    unanswered: u32,
    /// Last words of an earlier incarnation of this node.
    farewell: VecDeque<Packet>,
    initiator: Initiator,
    responder: Responder,
    /// What was accepted of earlier incarnations of the peer. One of them may come back, where two adaptors have one id
    /// and take turns; what it sent before must not be executed again.
    former: VecDeque<(Incarnation, Responder)>,
    random: Random,
}

impl Session {
    pub(super) fn new(
        node: NodeId,
        peer: NodeId,
        incarnation: Incarnation,
        timing: Timing,
        random: Random,
    ) -> Self {
        Self {
            node,
            peer,
            timing,
            incarnation,
            peer_incarnation: None,
            lease: timing.lease,
            link: false,
            proven: false,
            reach: Reach::Down,
            reach_changes: 0,
            nonce: None,
            owed_echo: None,
            hello_at: Instant::ZERO,
            hello_sent: Instant::ZERO,
            hello_waits: false,
            unanswered: 0,
            farewell: VecDeque::new(),
            initiator: Initiator::new(timing.time_to_try(), timing.lease),
            responder: Responder::new(timing.lease),
            former: VecDeque::new(),
            random,
        }
    }

    pub(super) const fn peer_incarnation(&self) -> Option<Incarnation> {
        self.peer_incarnation
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.reach, Reach::Up)
    }

    /// How often the node became reachable or unreachable.
    pub(super) const fn reach_changes(&self) -> u32 {
        self.reach_changes
    }

    /// The node itself was reset and lives on as `incarnation`: the flows end, and requests that still waited here are
    /// answered as flushed.
    pub(super) fn reincarnate(&mut self, now: Instant, incarnation: Incarnation, flushed: &[Ticket]) {
        for &ticket in flushed {
            self.responder.answer(ticket, Code::Flushed, Bytes::new());
        }
        self.farewell.clear();
        if self.link && self.proven {
            while let Some(body) = self.responder.poll(now) {
                let last_word = self.packet(body);
                self.farewell.push_back(last_word);
            }
        }
        self.incarnation = incarnation;
        self.initiator = Initiator::new(self.timing.time_to_try(), self.timing.lease);
        self.responder = Responder::new(self.lease);
        self.former.clear();
        self.reach = Reach::Down;
        if self.link {
            self.doubt(now);
        }
    }

    pub(super) fn handle_link_up(&mut self, now: Instant) {
        self.link = true;
        self.unanswered = 0;
        self.owed_echo = None;
        self.doubt(now);
    }

    pub(super) fn handle_link_down(&mut self, now: Instant) {
        self.link = false;
        self.proven = false;
        self.nonce = None;
        self.farewell.clear();
        self.initiator.pause();
        if self.reach == Reach::Up {
            self.reach = Reach::Interrupted { until: now.after(self.timing.time_to_try()) };
        }
    }

    /// The peer has to prove itself (again) before requests are sent.
    fn doubt(&mut self, now: Instant) {
        self.proven = false;
        self.nonce = None;
        self.hello_at = now;
        self.hello_sent = Instant::ZERO;
        self.hello_waits = false;
    }

    pub(super) fn submit(&mut self, request: Request) {
        match self.reach {
            Reach::Down => self.initiator.refuse(request.id, Code::LinkDown),
            Reach::Up | Reach::Interrupted { .. } => self.initiator.submit(request),
        }
    }

    pub(super) fn poll_finished(&mut self) -> Option<Finished> {
        self.initiator.poll_finished()
    }

    pub(super) fn handle_corrupt(&mut self) {
        self.initiator.handle_corrupt();
    }

    pub(super) fn handle_packet(&mut self, now: Instant, packet: Packet, out: &mut Outputs) {
        if packet.source != self.peer || packet.destination != self.node || !self.link {
            return;
        }
        let from = packet.source_incarnation;
        if let Body::Hello { wants_reply, epoch, nonce, echo, lease } = packet.body {
            if wants_reply {
                self.owed_echo = Some(nonce);
            }
            self.handle_hello(now, from, echo, Duration::from_micros(lease.into()), out);
            if self.peer_incarnation == Some(from) && self.responder.handle_epoch(epoch) == Freshness::New {
                out.inbound.push_back(Wanted::Discard(self.peer));
            }
            return;
        }
        if self.peer_incarnation != Some(from) || packet.destination_incarnation != self.incarnation {
            // One of us knows the other as an incarnation that is over, or not yet: talk about it.
            self.hello_at = self.hello_at.min(self.hello_sent.after(HELLO_GAP).max(now));
            return;
        }
        self.heard(now);
        match packet.body {
            // The ends of a link keep their own packets to themselves.
            Body::Hello { .. } | Body::Join { .. } | Body::Refuse { .. } | Body::Routes(_) => {}
            Body::Write { progress, sequence, offset, data } => {
                // A copy, so that a request that waits does not hold all of what was received with it.
                let kind = RequestKind::Write(Bytes::copy_from_slice(&data));
                self.handle_request(now, progress, sequence, offset, kind, out);
            }
            Body::Read { progress, sequence, offset, len } => {
                self.handle_request(now, progress, sequence, offset, RequestKind::Read { len }, out);
            }
            Body::Confirm { progress, sent } => {
                if self.handle_progress(now, progress, out) {
                    self.responder.handle_probe(sent);
                }
            }
            Body::Done { epoch, first, count, code, stamp, data } => {
                self.initiator.handle_stamp(stamp);
                self.initiator.handle_done(now, epoch, first, count, code, &data);
            }
            Body::Nak { epoch, expected, stamp } => {
                self.initiator.handle_stamp(stamp);
                self.initiator.handle_nak(epoch, expected);
            }
            Body::Ask { stamp, .. } => {
                self.initiator.handle_stamp(stamp);
                self.initiator.handle_ask();
            }
        }
    }

    /// Whether the packet belongs to the current epoch.
    fn handle_progress(&mut self, now: Instant, progress: Progress, out: &mut Outputs) -> bool {
        match self.responder.handle_epoch(progress.epoch) {
            Freshness::Stale => return false,
            Freshness::Current => {}
            Freshness::New => out.inbound.push_back(Wanted::Discard(self.peer)),
        }
        self.responder.handle_progress(now, progress);
        true
    }

    fn handle_request(
        &mut self,
        now: Instant,
        progress: Progress,
        sequence: Sequence,
        offset: u64,
        kind: RequestKind,
        out: &mut Outputs,
    ) {
        if !self.handle_progress(now, progress, out) {
            return;
        }
        if let Some(ticket) = self.responder.handle_request(sequence, kind.direction(), kind.len()) {
            let ticket = ticket.to_bits();
            out.inbound.push_back(Wanted::Request(Inbound { source: self.peer, ticket, offset, kind }));
        }
    }

    fn handle_hello(
        &mut self,
        now: Instant,
        from: Incarnation,
        echo: u64,
        lease: Duration,
        out: &mut Outputs,
    ) {
        if echo != 0 && self.nonce == Some(echo) {
            self.nonce = None;
            self.proven = true;
            self.heard(now);
            self.adopt(now, from, lease, out);
        } else if self.peer_incarnation == Some(from) {
            self.heard(now);
        } else {
            self.hello_at = self.hello_at.min(self.hello_sent.after(HELLO_GAP).max(now));
        }
    }

    /// The peer is alive as this incarnation. It reports writes as soon as `lease` has run out.
    fn adopt(&mut self, now: Instant, from: Incarnation, lease: Duration, out: &mut Outputs) {
        match self.peer_incarnation.replace(from) {
            Some(known) if known == from => {}
            earlier => {
                self.lease = lease.min(self.timing.lease);
                let known = self.former.iter().position(|(life, _)| *life == from);
                let known = known.and_then(|index| self.former.remove(index)).map(|(_, responder)| responder);
                let fresh = known.unwrap_or_else(|| Responder::new(self.lease));
                let mut former = core::mem::replace(&mut self.responder, fresh);
                if let Some(earlier) = earlier {
                    former.set_aside();
                    self.former.push_back((earlier, former));
                    if self.former.len() > FORMER_LIVES {
                        self.former.pop_front();
                    }
                    out.events.push_back(Event::PeerRestarted(self.peer, from));
                    self.give_up(now, Code::PeerRestarted, Code::LinkDown, out);
                    self.proven = true;
                }
                out.inbound.push_back(Wanted::Discard(self.peer));
            }
        }
        self.settle(now, out);
    }

    /// Becomes *up* where everything for it is there.
    fn settle(&mut self, now: Instant, out: &mut Outputs) {
        let Some(incarnation) = self.peer_incarnation else { return };
        if !self.link || !self.proven || self.initiator.has_condemned() || self.reach == Reach::Up {
            return;
        }
        if self.reach == Reach::Down {
            self.reach_changes = self.reach_changes.wrapping_add(1);
            out.events.push_back(Event::LinkUp(self.peer, incarnation));
        }
        self.reach = Reach::Up;
        self.initiator.resume(now);
    }

    /// Gives up what is under way; the peer has to prove itself again.
    fn give_up(&mut self, now: Instant, sent: Code, unsent: Code, out: &mut Outputs) {
        self.initiator.abandon(now, sent, unsent);
        if self.reach != Reach::Down {
            self.reach = Reach::Down;
            self.reach_changes = self.reach_changes.wrapping_add(1);
            out.events.push_back(Event::LinkDown(self.peer));
        }
        if self.link {
            self.doubt(now);
        }
    }

    fn heard(&mut self, now: Instant) {
        self.unanswered = 0;
        if self.proven {
            self.hello_at = now.after(self.hello_interval());
            self.hello_waits = false;
        }
    }

    fn hello_interval(&self) -> Duration {
        let part = self.timing.keepalive.checked_div(KEEPALIVE_PARTS).unwrap_or_default();
        if self.proven { part } else { part.min(HELLO_AGAIN) }
    }

    /// Hellos without an answer after which the link is cut.
    fn hello_limit(&self) -> u32 {
        let interval = self.hello_interval().as_nanos().max(1);
        let parts = self.timing.keepalive.as_nanos().checked_div(interval).unwrap_or(1);
        u32::try_from(parts).unwrap_or(u32::MAX).saturating_sub(1)
    }

    fn packet(&self, body: Body) -> Packet {
        Packet {
            source: self.node,
            destination: self.peer,
            source_incarnation: self.incarnation,
            destination_incarnation: self.peer_incarnation.unwrap_or(Incarnation(0)),
            body,
        }
    }

    pub(super) fn poll_packet(&mut self, now: Instant) -> Option<Packet> {
        if !self.link {
            return None;
        }
        if let Some(packet) = self.farewell.pop_front() {
            return Some(packet);
        }
        let body = self
            .poll_hello(now)
            .or_else(|| self.responder.poll(now))
            .or_else(|| if self.proven { self.initiator.poll(now) } else { None })?;
        Some(self.packet(body))
    }

    fn poll_hello(&mut self, now: Instant) -> Option<Body> {
        let wants_reply = self.hello_waits || self.hello_at <= now;
        if !wants_reply && self.owed_echo.is_none() {
            return None;
        }
        let mut nonce = 0;
        if wants_reply {
            nonce = *self.nonce.get_or_insert_with(|| self.random.next_nonzero());
            if !core::mem::take(&mut self.hello_waits) {
                self.unanswered = self.unanswered.saturating_add(1);
                self.hello_at = now.after(self.hello_interval());
            }
            self.hello_sent = now;
        }
        let echo = self.owed_echo.take().unwrap_or(0);
        let lease = u32::try_from(self.timing.lease.as_micros()).unwrap_or(u32::MAX);
        Some(Body::Hello { wants_reply, epoch: self.initiator.epoch(), nonce, echo, lease })
    }

    pub(super) fn may_execute(&self, now: Instant, direction: Direction) -> bool {
        self.responder.may_execute(now, direction)
    }

    pub(super) fn answer(&mut self, ticket: Ticket, code: Code, data: Bytes) {
        self.responder.answer(ticket, code, data);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let interrupted = match self.reach {
            Reach::Interrupted { until } => Some(until),
            Reach::Up | Reach::Down => None,
        };
        let linked = self.link.then_some(self.hello_at);
        let answering = if self.link { self.responder.poll_timeout() } else { None };
        [interrupted, linked, answering, self.initiator.poll_timeout()].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outputs) {
        self.initiator.handle_timeout(now);
        if matches!(self.reach, Reach::Interrupted { until } if until <= now) {
            self.give_up(now, Code::LinkLost, Code::LinkDown, out);
        } else if self.initiator.has_expired(now) {
            let (sent, unsent) = if self.link {
                (self.initiator.reason(), Code::NotSent)
            } else {
                (Code::LinkLost, Code::LinkDown)
            };
            self.give_up(now, sent, unsent, out);
        }
        if self.link && self.hello_at <= now {
            if self.unanswered >= self.hello_limit() {
                out.events.push_back(Event::CutLink(self.peer));
                self.unanswered = 0;
                self.hello_waits = false;
                self.hello_at = now.after(self.timing.keepalive);
            } else {
                // It counts even where the link takes nothing more, so that such a link is cut too.
                self.hello_waits = true;
                self.unanswered = self.unanswered.saturating_add(1);
                self.hello_at = now.after(self.hello_interval());
            }
        }
        if self.link {
            self.responder.handle_timeout(now);
        }
        self.settle(now, out);
    }
}
