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
mod leases;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use self::leases::Leases;
use super::exchange::{Exchange, InventoryNews};
use super::flows::Flows;
use super::initiator::Initiator;
use super::limits::{FORMER_LIVES, MOST_TRIALS, Window};
use super::packet::{Body, Incarnation, MAX_PAYLOAD, Packet, Progress};
use super::responder::{Freshness, Ticket};
use super::sequence::{Epoch, Sequence};
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

/// A count for people, on which nothing depends: the model checker takes states that differ in it for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally(u64);

impl Tally {
    const fn count(&mut self) {
        self.0 = self.0.saturating_add(1);
    }

    pub(super) const fn sum(self) -> u64 {
        self.0
    }
}

impl core::hash::Hash for Tally {
    fn hash<H: core::hash::Hasher>(&self, _: &mut H) {}
}

/// What a session produced for other units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Outputs {
    pub(super) inbound: VecDeque<Wanted>,
    pub(super) events: VecDeque<Event>,
    pub(super) inventories: VecDeque<(NodeId, InventoryNews)>,
    /// Stamps that came back too late to give a lease to a write that waited for one.
    pub(super) late_leases: Tally,
    /// Packets of peers that are not known here.
    pub(super) unknown: Tally,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session {
    node: NodeId,
    peer: NodeId,
    timing: Timing,
    window: Window,
    incarnation: Incarnation,
    peer_incarnation: Option<Incarnation>,
    leases: Leases,
    link: bool,
    /// The peer's last Hello was of versions of which none is spoken here.
    is_strange: bool,
    /// The peer sent a nonce back on this link, and nothing timed out since.
    proven: bool,
    reach: Reach,
    reach_changes: u32,
    /// Nonces that may come back, and when each was sent.
    nonces: VecDeque<(u64, Instant)>,
    owed_echo: Option<u64>,
    hello_at: Instant,
    /// A Hello goes at this time even where other packets come from the peer.
    refresh_at: Instant,
    hello_sent: Instant,
    /// A Hello is due that the link has not taken yet.
    hello_waits: bool,
    /// There is something to tell that no Hello has told yet.
    has_news: bool,
    unanswered: u32,
    /// Before this time a Hello does not count as one more: it was sent for another reason than silence.
    count_from: Instant,
    /// Round trips that have to work before the peer is up, because the links before this one fell silent.
    trials: u8,
    trials_left: u8,
    /// The link fell silent, and is to be lost.
    is_silent: bool,
    /// Last words of an earlier incarnation of this node.
    farewell: VecDeque<Packet>,
    flows: PerChannel<Flows>,
    /// Earlier incarnations of the peer, and the last epoch of each. One of them may come back, where two adaptors have one id
    /// and take turns; what it sent before must not be executed again.
    former: VecDeque<(Incarnation, PerChannel<Option<Epoch>>)>,
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
            leases: Leases::new(timing),
            link: false,
            is_strange: false,
            proven: false,
            reach: Reach::Down,
            reach_changes: 0,
            nonces: VecDeque::new(),
            owed_echo: None,
            hello_at: Instant::ZERO,
            refresh_at: Instant::ZERO,
            hello_sent: Instant::ZERO,
            hello_waits: false,
            has_news: false,
            unanswered: 0,
            count_from: Instant::ZERO,
            trials: 0,
            trials_left: 0,
            is_silent: false,
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
        self.leases.begin_life(self.timing);
        let lease = self.leases.of_peer();
        self.flows = PerChannel::new(|channel| Flows::new(channel, self.timing, self.window, lease));
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
        self.trials_left = if self.trials > 0 { self.trials.saturating_add(1) } else { 0 };
        self.doubt(now);
    }

    pub(super) fn handle_link_down(&mut self, now: Instant, out: &mut Outputs) {
        let fell_silent = self.fell_silent();
        self.link = false;
        self.proven = false;
        self.nonces.clear();
        self.farewell.clear();
        for flows in self.flows.values_mut() {
            flows.initiator.pause();
            flows.responder.pause();
        }
        if fell_silent {
            self.trials = self.trials.saturating_mul(2).saturating_add(1).min(MOST_TRIALS);
            self.give_up(now, Code::LinkLost, Code::LinkDown, out);
        } else if self.reach == Reach::Up {
            self.reach = Reach::Interrupted { until: now.after(self.leases.time_to_try(self.timing)) };
        }
    }

    /// The peer has to prove itself (again) before requests are sent.
    fn doubt(&mut self, now: Instant) {
        self.proven = false;
        self.nonces.clear();
        self.is_silent = false;
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
        if let Body::Hello { versions, epoch, nonce, echo, lease, inventory } = packet.body {
            if nonce != 0 {
                self.owed_echo = Some(nonce);
            }
            if !self.speaks_alike(versions, out) {
                return;
            }
            let lease = Duration::from_micros(lease.into());
            self.handle_hello(now, from, echo, lease, out);
            if self.peer_incarnation == Some(from) {
                self.inventory.handle_version(inventory);
                self.note_peer_lease(lease);
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
            self.speak_soon(now);
            return;
        }
        self.heard(now);
        let channel = packet.channel;
        let initiator = &mut self.flows.get_mut(channel).initiator;
        match packet.body {
            // The ends of a link keep their own packets to themselves.
            Body::Hello { .. } | Body::Join { .. } | Body::Refuse { .. } | Body::Routes(_) => {}
            Body::Unknown(_) => out.unknown.count(),
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
            Body::Done { epoch, code: Code::PeerRestarted, .. } => {
                if epoch == initiator.epoch() {
                    self.handle_forgotten(now, channel, out);
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

    /// The peer knows nothing any more of the epoch of a channel, since another adaptor had this node's id meanwhile.
    fn handle_forgotten(&mut self, now: Instant, channel: Channel, out: &mut Outputs) {
        match channel {
            Channel::Small => self.give_up(now, Code::PeerRestarted, Code::LinkDown, out),
            Channel::Bulk => {
                let initiator = &mut self.flows.get_mut(channel).initiator;
                initiator.abandon(now, Code::PeerRestarted, Code::NotSent);
                initiator.confirm();
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
        if responder.handle_progress(now, progress) {
            out.late_leases.count();
        }
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
        // One that asks for more than an answer carries is refused, and so moves nothing.
        let is_refused = matches!(kind, RequestKind::Read { .. }) && kind.len() > MAX_PAYLOAD;
        let bytes = if is_refused { 0 } else { kind.len() };
        if let Some(ticket) = responder.handle_request(sequence, kind.direction(), bytes) {
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
        if let Some(sent) = self.take_nonce(echo) {
            self.proven = true;
            self.heard(now);
            self.adopt(now, from, lease, out);
            self.handle_round_trip(now, sent, out);
            self.settle(now, out);
        } else if self.peer_incarnation == Some(from) {
            self.heard(now);
        } else {
            self.speak_soon(now);
        }
    }

    /// The peer is alive as this incarnation. It reports writes as soon as `lease` has run out.
    fn adopt(&mut self, now: Instant, from: Incarnation, lease: Duration, out: &mut Outputs) {
        match self.peer_incarnation.replace(from) {
            Some(known) if known == from => {}
            earlier => {
                self.meet_lease(lease, out);
                let known = self.former.iter().position(|(life, _)| *life == from);
                let epochs = known.and_then(|index| self.former.remove(index)).map(|(_, epochs)| epochs);
                let was = PerChannel::new(|channel| self.flows.get(channel).responder.epoch());
                for channel in Channel::ALL {
                    let epoch = epochs.as_ref().map(|epochs| *epochs.get(channel));
                    let responder = self.responder_after(channel, epoch);
                    self.flows.get_mut(channel).responder = responder;
                }
                self.inventory.forget();
                out.inventories.push_back((self.peer, InventoryNews::Forgotten));
                if let Some(earlier) = earlier {
                    self.former.push_back((earlier, was));
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
    }

    /// Becomes *up* where everything for it is there.
    fn settle(&mut self, now: Instant, out: &mut Outputs) {
        let Some(incarnation) = self.peer_incarnation else { return };
        let condemned = self.flows.values().any(|flows| flows.initiator.has_condemned());
        if !self.link || !self.proven || self.trials_left > 0 || condemned || self.reach == Reach::Up {
            return;
        }
        self.fit_leases(now);
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
            self.speak_soon(now);
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
                self.is_silent = true;
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
