//! The mesh interface: carries transactions to other nodes, and theirs to this one, in order and exactly once.
//!
//! It keeps a [`session`](self) for each configured peer, and for each other node as soon as there is a way to it. Packets
//! arrive over links, which may be cut, and come back; the flows survive that.

pub mod batch;
mod exchange;
mod flows;
pub mod framing;
mod initiator;
pub mod limits;
pub mod neighbour;
mod numbers;
pub mod packet;
mod responder;
pub mod sequence;
mod session;
pub mod versions;

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod batch_tests;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod exchange_tests;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod lease_tests;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod memory_tests;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod packet_tests;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod stalled_tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

pub use self::exchange::InventoryNews;
use self::limits::Window;
use self::packet::{Incarnation, Packet};
pub use self::responder::Ticket;
use self::session::{Outputs, Session, Tally};
use super::Instant;
use super::address::{NodeId, NodeSet};
use super::channel::{Channel, Origin};
use super::event::Event;
use super::master::Inbound;
use super::memory::{MemoryFault, Source};
use super::random::Random;
use super::status::{Code, Direction};
use super::transaction::{Content, Finished, Request};

/// The times that bound everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// The longest time from the start of a transaction to its report.
    pub deadline: Duration,
    /// The part at its end in which nothing is tried any more, because leases run out.
    pub lease: Duration,
    /// A link on which nothing comes for this time is cut.
    pub keepalive: Duration,
}

impl Timing {
    /// The part of the deadline in which a transaction is tried.
    pub fn time_to_try(&self) -> Duration {
        self.deadline.saturating_sub(self.lease)
    }
}

/// What goes for a [`Source`] to a node: its bytes, or where it can have them.
pub type Find<'a> = dyn FnMut(&Source) -> Result<Content, MemoryFault> + 'a;

/// What another node wants of this one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// A request that is next in order; its ticket is to be handed back with the answer.
    Request(Inbound),
    /// The requests from there that were not executed yet are not to be executed any more.
    Discard(Origin),
}

/// What is known of a peer, for the node table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerState {
    /// Whether it can be reached.
    pub up: bool,
    /// How often that changed.
    pub changes: u32,
    /// Its incarnation, 0 where none was seen.
    pub incarnation: u64,
    /// The round trip is too long for writes to be executed under their leases.
    pub too_far: bool,
    /// It is configured with another deadline or lease.
    pub lease_differs: bool,
}

/// The sessions of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    node: NodeId,
    incarnation: Incarnation,
    timing: Timing,
    window: Window,
    random: Random,
    sessions: BTreeMap<NodeId, Session>,
    /// The sessions in which a transaction may have ended. To look at all of them for each packet takes long where there are many.
    stirred: BTreeSet<NodeId>,
    /// The linked nodes for which there may be a packet: all that anything happened with since there was none.
    talked_to: BTreeSet<NodeId>,
    /// Transactions to nodes that are not known.
    unroutable: VecDeque<(Channel, Finished)>,
    outputs: Outputs,
    inventory_version: u32,
}

impl Mesh {
    /// A mesh interface of `node` in its life `incarnation`, with the `peers` that it is configured to talk to.
    pub fn new(
        node: NodeId,
        incarnation: Incarnation,
        peers: NodeSet,
        timing: Timing,
        window: Window,
        random: &mut Random,
    ) -> Self {
        let random = Random::new(random.next());
        let mut mesh = Self {
            node,
            incarnation,
            timing,
            window,
            random,
            sessions: BTreeMap::new(),
            stirred: BTreeSet::new(),
            talked_to: BTreeSet::new(),
            unroutable: VecDeque::new(),
            outputs: Outputs::default(),
            inventory_version: 0,
        };
        for peer in (0..=u8::MAX).map(NodeId).filter(|&peer| peers.contains(peer)) {
            mesh.add(peer);
        }
        mesh
    }

    fn add(&mut self, peer: NodeId) {
        let Self { node, incarnation, timing, window, .. } = *self;
        if peer != node && !self.sessions.contains_key(&peer) {
            let random = Random::new(self.random.next());
            let mut session = Session::new(node, peer, incarnation, timing, window, random);
            session.set_inventory_version(Instant::ZERO, self.inventory_version);
            self.sessions.insert(peer, session);
        }
    }

    /// Sends a transaction on its way; how it ends comes from [`Self::poll_finished`].
    pub fn submit(&mut self, channel: Channel, request: Request) {
        match self.session(request.place.node) {
            Some(session) => {
                let node = request.place.node;
                session.submit(channel, request);
                self.stirred.insert(node);
            }
            None => {
                let unroutable = Finished { id: request.id, code: Code::NoRoute, data: Bytes::new() };
                self.unroutable.push_back((channel, unroutable));
            }
        }
    }

    /// How a transaction ended.
    pub fn poll_finished(&mut self) -> Option<(Channel, Finished)> {
        if let Some(unroutable) = self.unroutable.pop_front() {
            return Some(unroutable);
        }
        while let Some(node) = self.stirred.first() {
            let finished = self.sessions.get_mut(node).and_then(Session::poll_finished);
            if finished.is_some() {
                return finished;
            }
            self.stirred.pop_first();
        }
        None
    }

    /// A link to the node is open, or a way over routers.
    pub fn handle_link_up(&mut self, now: Instant, node: NodeId) {
        self.add(node);
        if let Some(session) = self.sessions.get_mut(&node) {
            session.handle_link_up(now);
            self.talked_to.insert(node);
        }
    }

    /// The link to the node is gone.
    pub fn handle_link_down(&mut self, now: Instant, node: NodeId) {
        if let Some(session) = self.sessions.get_mut(&node) {
            session.handle_link_down(now, &mut self.outputs);
            self.stirred.insert(node);
            self.talked_to.remove(&node);
        }
    }

    /// A packet came over the link to `from`.
    pub fn handle_packet(&mut self, now: Instant, from: NodeId, packet: Packet) {
        if let Some(session) = self.sessions.get_mut(&from) {
            session.handle_packet(now, packet, &mut self.outputs);
            self.stirred.insert(from);
            if session.is_linked() {
                self.talked_to.insert(from);
            }
        }
    }

    /// A packet with a bad CRC came over the link to `from`.
    pub fn handle_corrupt(&mut self, from: NodeId) {
        if let Some(session) = self.sessions.get_mut(&from) {
            session.handle_corrupt();
        }
    }

    /// This node was reset and lives on as `incarnation`; the requests with these tickets were still waiting.
    pub fn reincarnate(&mut self, now: Instant, incarnation: Incarnation, flushed: &[(Origin, Ticket)]) {
        self.incarnation = incarnation;
        self.unroutable.clear();
        self.outputs.inbound.clear();
        self.outputs.late_leases = Tally::default();
        self.outputs.unknown = Tally::default();
        let mut tickets: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
        for &(origin, ticket) in flushed {
            tickets.entry(origin.node).or_default().push((origin.channel, ticket));
        }
        for (&peer, session) in &mut self.sessions {
            let tickets = tickets.get(&peer).map_or(&[][..], Vec::as_slice);
            session.reincarnate(now, incarnation, tickets);
            if session.is_linked() {
                self.talked_to.insert(peer);
            }
        }
    }

    /// What other nodes want, in the order of its arrival.
    pub fn poll_inbound(&mut self) -> Option<Wanted> {
        self.outputs.inbound.pop_front()
    }

    /// Whether a request from `origin` may be executed at this moment.
    pub fn may_execute(&self, now: Instant, origin: Origin, direction: Direction) -> bool {
        let session = self.sessions.get(&origin.node);
        session.is_some_and(|session| session.may_execute(now, origin.channel, direction))
    }

    /// A request from `origin` was executed or refused.
    pub fn answer(&mut self, origin: Origin, ticket: Ticket, code: Code, data: Bytes) {
        if let Some(session) = self.session(origin.node) {
            session.answer(origin.channel, ticket, code, data);
        }
    }

    /// The next packet for `to`; `find` gives it what is in the guest's memory.
    pub fn poll_packet(&mut self, now: Instant, to: NodeId, find: &mut Find<'_>) -> Option<Packet> {
        let packet = self.sessions.get_mut(&to)?.poll_packet(now, find);
        if packet.is_none() {
            self.talked_to.remove(&to);
        }
        packet
    }

    /// The memory with the bytes of the next packet for `to`, which `find` did not have, is there, or can't be had.
    pub fn handle_pages(&mut self, to: NodeId, result: Result<(), MemoryFault>) {
        if let Some(session) = self.session(to) {
            session.handle_pages(result);
        }
    }

    /// The nodes for which [`Self::poll_packet`] may have a packet, in rising order; for the others it has none.
    pub fn talked_to(&self) -> impl Iterator<Item = NodeId> {
        self.talked_to.iter().copied()
    }

    /// The session with a node that may have something to say afterwards.
    fn session(&mut self, node: NodeId) -> Option<&mut Session> {
        let session = self.sessions.get_mut(&node)?;
        if session.is_linked() {
            self.talked_to.insert(node);
        }
        Some(session)
    }

    /// What the operator or the shell has to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.outputs.events.pop_front()
    }

    /// What is known of a node; `None` where it was neither configured nor ever reached.
    pub fn peer(&self, node: NodeId) -> Option<PeerState> {
        self.sessions.get(&node).map(|session| PeerState {
            up: session.is_up(),
            changes: session.reach_changes(),
            incarnation: session.peer_incarnation().map_or(0, |incarnation| incarnation.0),
            too_far: session.is_too_far(),
            lease_differs: session.differs(),
        })
    }

    /// What peers say about inventories. Take out all of it after each call of another method.
    pub fn poll_inventory(&mut self) -> Option<(NodeId, InventoryNews)> {
        self.outputs.inventories.pop_front()
    }

    /// This node's inventory has another version now.
    pub fn set_inventory_version(&mut self, now: Instant, version: u32) {
        self.inventory_version = version;
        for (&node, session) in &mut self.sessions {
            session.set_inventory_version(now, version);
            if session.is_linked() {
                self.talked_to.insert(node);
            }
        }
    }

    /// The answer to [`InventoryNews::Asked`]: what `to` may know of this node's inventory, of its present version.
    pub fn send_inventory(&mut self, to: NodeId, entries: Bytes) {
        if let Some(session) = self.session(to) {
            session.send_inventory(entries);
        }
    }

    /// How often since the reset a lease for a write that waited was over when it came.
    pub const fn late_leases(&self) -> u64 {
        self.outputs.late_leases.sum()
    }

    /// How many packets of other nodes since the reset were of a version, or had a command, that is not known here.
    pub const fn unknown_packets(&self) -> u64 {
        self.outputs.unknown.sum()
    }

    /// The clock that gives this node its time may have stood still, or have jumped, before `now`: what was executed under leases
    /// needs another one, and what gave leases waits for their whole time once more.
    pub fn handle_clock_jump(&mut self, now: Instant) {
        for (&node, session) in &mut self.sessions {
            session.handle_clock_jump(now);
            if session.is_linked() {
                self.talked_to.insert(node);
            }
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sessions.values().filter_map(Session::poll_timeout).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for (&node, session) in &mut self.sessions {
            self.stirred.insert(node);
            if session.is_linked() && session.poll_timeout().is_some_and(|at| at <= now) {
                self.talked_to.insert(node);
            }
            session.handle_timeout(now, &mut self.outputs);
        }
    }
}
