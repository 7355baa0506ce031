//! The relation with one other node: which incarnation it is, whether it can be reached, and the flows: one for each channel
//! and direction.
//!
//! A peer is believed to be an incarnation only after it sent back a nonce that was made for this; so a packet that some
//! router kept from an earlier life cannot bring that life back. Invariant: requests are sent only while `proven`, and packets of
//! the flows are taken only between the two incarnations that were proven.
//!
//! States, as the bus sees them: *down* (transactions end with link down at once), *up*, and *interrupted* (the link was
//! lost a moment ago: transactions wait for it to come back, within their deadline).

mod hellos;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use super::exchange::{Exchange, InventoryNews};
use super::flows::Flows;
use super::initiator::Initiator;
use super::limits::{FORMER_LIVES, HELLO_GAP, Window};
use super::packet::{Body, Incarnation, Packet, Progress};
use super::responder::{Freshness, Responder, Ticket};
use super::sequence::Sequence;
use super::{Find, Timing, Wanted};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, NodeId};
use crate::adaptor::channel::{Channel, Origin, PerChannel, Turns};
use crate::adaptor::event::Event;
use crate::adaptor::master::Inbound;
use crate::adaptor::memory::MemoryFault;
use crate::adaptor::random::Random;
use crate::adaptor::status::{Code, Direction};
use crate::adaptor::transaction::{Atomic, Content, Finished, Request, RequestKind};

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
    pub(super) inventories: VecDeque<(NodeId, InventoryNews)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    node: NodeId,
    peer: NodeId,
    timing: Timing,
    window: Window,
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
    /// Before this time a Hello does not count as one more: it was sent for another reason than silence.
    count_from: Instant,
    /// Last words of an earlier incarnation of this node.
    farewell: VecDeque<Packet>,
    flows: PerChannel<Flows>,
    /// What was accepted of earlier incarnations of the peer. One of them may come back, where two adaptors have one id
    /// and take turns; what it sent before must not be executed again.
    former: VecDeque<(Incarnation, PerChannel<Responder>)>,
    turns: Turns,
    /// What each of the two knows of the other's inventory.
    inventory: Exchange,
    random: Random,
}

impl Session {
    pub(super) fn new(
        node: NodeId,
        peer: NodeId,
        incarnation: Incarnation,
        timing: Timing,
        window: Window,
        random: Random,
    ) -> Self {
        Self {
            node,
            peer,
            timing,
            window,
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
            count_from: Instant::ZERO,
            farewell: VecDeque::new(),
            flows: PerChannel::new(|channel| Flows::new(channel, timing, window, timing.lease)),
            former: VecDeque::new(),
            turns: Turns::default(),
            inventory: Exchange::default(),
            random,
        }
    }

    pub(super) const fn peer_incarnation(&self) -> Option<Incarnation> {
        self.peer_incarnation
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.reach, Reach::Up)
    }

    /// Whether there is a link, so that packets can be sent.
    pub(super) const fn is_linked(&self) -> bool {
        self.link
    }

    /// How often the node became reachable or unreachable.
    pub(super) const fn reach_changes(&self) -> u32 {
        self.reach_changes
    }

    /// The node itself was reset and lives on as `incarnation`: the flows end, and requests that still waited here are
    /// answered as flushed.
    pub(super) fn reincarnate(
        &mut self,
        now: Instant,
        incarnation: Incarnation,
        flushed: &[(Channel, Ticket)],
    ) {
        for &(channel, ticket) in flushed {
            self.flows.get_mut(channel).responder.answer(ticket, Code::Flushed, Bytes::new());
        }
        self.farewell.clear();
        if self.link && self.proven {
            for channel in Channel::ALL {
                while let Some(body) = self.flows.get_mut(channel).responder.poll(now) {
                    let last_word = self.packet(channel, body);
                    self.farewell.push_back(last_word);
                }
            }
        }
        self.incarnation = incarnation;
        self.flows = PerChannel::new(|channel| Flows::new(channel, self.timing, self.window, self.lease));
        self.former.clear();
        self.inventory.forget();
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
        for flows in self.flows.values_mut() {
            flows.initiator.pause();
        }
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
        self.count_from = Instant::ZERO;
        self.hello_waits = false;
    }

    pub(super) fn submit(&mut self, channel: Channel, request: Request) {
        let initiator = &mut self.flows.get_mut(channel).initiator;
        match self.reach {
            Reach::Down => initiator.refuse(request.id, Code::LinkDown),
            // Only the bulk channel can be here: it was given up alone.
            _ if initiator.has_condemned() => initiator.refuse(request.id, Code::NotSent),
            Reach::Up | Reach::Interrupted { .. } => initiator.submit(request),
        }
    }

    pub(super) fn poll_finished(&mut self) -> Option<(Channel, Finished)> {
        let finished = |channel| Some((channel, self.flows.get_mut(channel).initiator.poll_finished()?));
        Channel::ALL.into_iter().find_map(finished)
    }

    pub(super) fn handle_corrupt(&mut self) {
        for flows in self.flows.values_mut() {
            flows.initiator.handle_corrupt();
        }
    }

    pub(super) fn handle_packet(&mut self, now: Instant, packet: Packet, out: &mut Outputs) {
        if packet.source != self.peer || packet.destination != self.node || !self.link {
            return;
        }
        let from = packet.source_incarnation;
        if let Body::Hello { wants_reply, epoch, nonce, echo, lease, inventory } = packet.body {
            if wants_reply {
                self.owed_echo = Some(nonce);
            }
            self.handle_hello(now, from, echo, Duration::from_micros(lease.into()), out);
            if self.peer_incarnation == Some(from) {
                self.inventory.handle_version(inventory);
            }
            // The bulk channel tells a new epoch by its own packets.
            let responder = &mut self.flows.get_mut(Channel::Small).responder;
            if self.peer_incarnation == Some(from) && responder.handle_epoch(epoch) == Freshness::New {
                out.inbound.push_back(Wanted::Discard(self.origin(Channel::Small)));
            }
            return;
        }
        if self.peer_incarnation != Some(from) || packet.destination_incarnation != self.incarnation {
            // One of us knows the other as an incarnation that is over, or not yet: talk about it.
            self.hello_at = self.hello_at.min(self.hello_sent.after(HELLO_GAP).max(now));
            return;
        }
        self.heard(now);
        let channel = packet.channel;
        let initiator = &mut self.flows.get_mut(channel).initiator;
        match packet.body {
            // The ends of a link keep their own packets to themselves.
            Body::Hello { .. } | Body::Join { .. } | Body::Refuse { .. } | Body::Routes(_) => {}
            Body::Inquire if self.inventory.is_answering() => {}
            Body::Inquire => out.inventories.push_back((self.peer, InventoryNews::Asked)),
            Body::Inventory { version, entries } => {
                if self.inventory.handle_arrival(version) {
                    out.inventories.push_back((self.peer, InventoryNews::Arrived { version, entries }));
                }
            }
            Body::Write { progress, sequence, at, data } => {
                if self.handle_progress(now, channel, progress, out) {
                    self.handle_request(channel, sequence, at, RequestKind::Write(data.into()), out);
                }
            }
            Body::Lend { progress, sequence, at, from } => {
                if self.handle_progress(now, channel, progress, out) {
                    self.handle_request(channel, sequence, at, RequestKind::Write(Content::Lent(from)), out);
                }
            }
            Body::Read { progress, sequence, at, len } => {
                if self.handle_progress(now, channel, progress, out) {
                    self.handle_request(channel, sequence, at, RequestKind::Read { len }, out);
                }
            }
            Body::Atomic { progress, sequence, at, operands } => {
                if self.handle_progress(now, channel, progress, out)
                    && let Some(atomic) = Atomic::from_operands(&operands)
                {
                    self.handle_request(channel, sequence, at, RequestKind::Atomic(atomic), out);
                }
            }
            Body::Batch { progress, first, batch } => {
                if self.handle_progress(now, channel, progress, out) {
                    for (place, (at, kind)) in (0u32..).zip(batch.requests()) {
                        self.handle_request(channel, first.plus(place), at, kind.into(), out);
                    }
                }
            }
            Body::Confirm { progress, sent } => {
                if self.handle_progress(now, channel, progress, out) {
                    self.flows.get_mut(channel).responder.handle_probe(sent);
                }
            }
            Body::Done { epoch, first, count, code, stamp, data } => {
                initiator.handle_stamp(stamp);
                initiator.handle_done(now, epoch, first, count, code, &data);
            }
            Body::Nak { epoch, expected, stamp } => {
                initiator.handle_stamp(stamp);
                initiator.handle_nak(epoch, expected);
            }
            Body::Ask { stamp, .. } => {
                initiator.handle_stamp(stamp);
                initiator.handle_ask();
            }
        }
    }

    /// Where the peer's requests of a channel come from, as the master unit calls it.
    const fn origin(&self, channel: Channel) -> Origin {
        Origin { node: self.peer, channel }
    }

    /// Whether the packet belongs to the current epoch.
    fn handle_progress(
        &mut self,
        now: Instant,
        channel: Channel,
        progress: Progress,
        out: &mut Outputs,
    ) -> bool {
        let origin = self.origin(channel);
        let responder = &mut self.flows.get_mut(channel).responder;
        match responder.handle_epoch(progress.epoch) {
            Freshness::Stale => return false,
            Freshness::Current => {}
            Freshness::New => out.inbound.push_back(Wanted::Discard(origin)),
        }
        responder.handle_progress(now, progress);
        true
    }

    /// A request of the current epoch.
    fn handle_request(
        &mut self,
        channel: Channel,
        sequence: Sequence,
        at: Location,
        kind: RequestKind,
        out: &mut Outputs,
    ) {
        let origin = self.origin(channel);
        let responder = &mut self.flows.get_mut(channel).responder;
        if let Some(ticket) = responder.handle_request(sequence, kind.direction(), kind.len()) {
            let ticket = ticket.to_bits();
            out.inbound.push_back(Wanted::Request(Inbound { origin, ticket, at, kind }));
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
                let known =
                    known.and_then(|index| self.former.remove(index)).map(|(_, responders)| responders);
                let mut responders = known.unwrap_or_else(|| {
                    PerChannel::new(|channel| Responder::new(self.lease, self.window.of(channel)))
                });
                for channel in Channel::ALL {
                    let current = &mut self.flows.get_mut(channel).responder;
                    core::mem::swap(responders.get_mut(channel), current);
                }
                self.inventory.forget();
                out.inventories.push_back((self.peer, InventoryNews::Forgotten));
                if let Some(earlier) = earlier {
                    responders.values_mut().for_each(Responder::set_aside);
                    self.former.push_back((earlier, responders));
                    if self.former.len() > FORMER_LIVES {
                        self.former.pop_front();
                    }
                    out.events.push_back(Event::PeerRestarted(self.peer, from));
                    self.give_up(now, Code::PeerRestarted, Code::LinkDown, out);
                    self.proven = true;
                }
                for channel in Channel::ALL {
                    out.inbound.push_back(Wanted::Discard(self.origin(channel)));
                }
            }
        }
        self.settle(now, out);
    }

    /// Becomes *up* where everything for it is there.
    fn settle(&mut self, now: Instant, out: &mut Outputs) {
        let Some(incarnation) = self.peer_incarnation else { return };
        let condemned = self.flows.values().any(|flows| flows.initiator.has_condemned());
        if !self.link || !self.proven || condemned || self.reach == Reach::Up {
            return;
        }
        if self.reach == Reach::Down {
            self.reach_changes = self.reach_changes.wrapping_add(1);
            out.events.push_back(Event::LinkUp(self.peer, incarnation));
        }
        self.reach = Reach::Up;
        for flows in self.flows.values_mut() {
            flows.initiator.resume(now);
        }
    }

    /// Gives up what is under way; the peer has to prove itself again.
    fn give_up(&mut self, now: Instant, sent: Code, unsent: Code, out: &mut Outputs) {
        for flows in self.flows.values_mut() {
            flows.initiator.abandon(now, sent, unsent);
        }
        if self.reach != Reach::Down {
            self.reach = Reach::Down;
            self.reach_changes = self.reach_changes.wrapping_add(1);
            out.events.push_back(Event::LinkDown(self.peer));
        }
        if self.link {
            self.doubt(now);
        }
    }

    fn packet(&self, channel: Channel, body: Body) -> Packet {
        Packet {
            source: self.node,
            destination: self.peer,
            source_incarnation: self.incarnation,
            destination_incarnation: self.peer_incarnation.unwrap_or(Incarnation(0)),
            channel,
            body,
        }
    }

    pub(super) fn poll_packet(&mut self, now: Instant, find: &mut Find<'_>) -> Option<Packet> {
        if !self.link {
            return None;
        }
        if let Some(packet) = self.farewell.pop_front() {
            return Some(packet);
        }
        if let Some(body) = self.poll_hello(now) {
            return Some(self.packet(Channel::Small, body));
        }
        if self.proven
            && let Some(body) = self.inventory.poll()
        {
            return Some(self.packet(Channel::Small, body));
        }
        let proven = self.proven;
        let next = |channel| Some((channel, self.flows.get_mut(channel).poll(now, proven, find)?));
        let (channel, body) = self.turns.order().into_iter().find_map(next)?;
        self.turns.note(channel, self.flows.get(Channel::Bulk).has_next());
        Some(self.packet(channel, body))
    }

    /// This node's inventory has another version now: the peer is told soon.
    pub(super) fn set_inventory_version(&mut self, now: Instant, version: u32) {
        self.inventory.set_own_version(version);
        if self.proven {
            self.hello_at = self.hello_at.min(self.hello_sent.after(HELLO_GAP).max(now));
        }
    }

    /// The answer to [`InventoryNews::Asked`].
    pub(super) fn send_inventory(&mut self, entries: Bytes) {
        self.inventory.send(entries);
    }

    /// The memory that the next packet's bytes are in is there, or can't be had.
    pub(super) fn handle_pages(&mut self, result: Result<(), MemoryFault>) {
        self.flows.values_mut().for_each(|flows| flows.initiator.handle_pages(result));
    }

    pub(super) fn may_execute(&self, now: Instant, channel: Channel, direction: Direction) -> bool {
        self.flows.get(channel).responder.may_execute(now, direction)
    }

    pub(super) fn answer(&mut self, channel: Channel, ticket: Ticket, code: Code, data: Bytes) {
        self.flows.get_mut(channel).responder.answer(ticket, code, data);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let interrupted = match self.reach {
            Reach::Interrupted { until } => Some(until),
            Reach::Up | Reach::Down => None,
        };
        let linked = self.link.then_some(self.hello_at);
        let of_flows = self.flows.values().flat_map(|flows| {
            let answering = if self.link { flows.responder.poll_timeout() } else { None };
            [answering, flows.initiator.poll_timeout()]
        });
        [interrupted, linked].into_iter().chain(of_flows).flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Outputs) {
        for flows in self.flows.values_mut() {
            flows.initiator.handle_timeout(now);
        }
        if matches!(self.reach, Reach::Interrupted { until } if until <= now) {
            self.give_up(now, Code::LinkLost, Code::LinkDown, out);
        } else {
            self.give_up_expired(now, out);
        }
        if self.link && self.hello_at <= now {
            if self.unanswered >= self.hello_limit() && self.count_from <= now {
                out.events.push_back(Event::CutLink(self.peer));
                self.unanswered = 0;
                self.hello_waits = false;
                self.hello_at = now.after(self.timing.keepalive);
            } else {
                // It counts even where the link takes nothing more, so that such a link is cut too.
                self.hello_waits = true;
                self.count_hello(now);
                self.hello_at = now.after(self.hello_interval());
            }
        }
        if self.link {
            for flows in self.flows.values_mut() {
                flows.responder.handle_timeout(now);
            }
        }
        self.settle(now, out);
    }

    /// Gives up what has passed its time: everything, where an access of the bus has; but bulk traffic that is too much for
    /// the way there is no reason to doubt the peer.
    fn give_up_expired(&mut self, now: Instant, out: &mut Outputs) {
        let link = self.link;
        let outcome = |initiator: &Initiator| {
            if link { (initiator.reason(), Code::NotSent) } else { (Code::LinkLost, Code::LinkDown) }
        };
        let small = &self.flows.get(Channel::Small).initiator;
        if small.has_expired(now) {
            let (sent, unsent) = outcome(small);
            self.give_up(now, sent, unsent, out);
        }
        let bulk = &mut self.flows.get_mut(Channel::Bulk).initiator;
        if bulk.has_expired(now) {
            let (sent, unsent) = outcome(bulk);
            bulk.abandon(now, sent, unsent);
            bulk.confirm();
        }
    }
}
