//! Routing between links, without input or output: [`Router`] is a router's core, [`Paths`] what an adaptor does with what
//! routers tell it.
//!
//! A router passes packets on as they are, by destination. It answers for nothing: what it loses, the flows send again, and what
//! it keeps too long, leases make harmless.

mod paths;
mod queues;
mod table;

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

pub use self::paths::{PathEvent, Paths, Remedy};
use self::queues::{Budget, Queues, cost};
use self::table::Table;
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::channel::Origin;
use crate::adaptor::mesh::framing::Frame;
use crate::adaptor::mesh::neighbour::{End, Identity, LinkId, MAX_HOPS, Neighbour, Refusal, Routes};
use crate::adaptor::mesh::packet::{Body, Incarnation, Packet, count_hop, hops};

/// What a router is configured with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// This life of the router.
    pub incarnation: Incarnation,
    /// Bytes that may wait in all queues together.
    pub buffer: usize,
    /// How long two adaptors of one node may be known at once, as they are when a node moves, before one of them is refused.
    pub patience: Duration,
}

/// What the shell has to do or to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterEvent {
    /// Refuse the link, because another adaptor that has one of its nodes is reached over other routers.
    Refuse(LinkId, Refusal, Incarnation),
    /// The node can be reached, over so many routers.
    Reached(NodeId, u8, Incarnation),
    /// The node can't be reached any more.
    Lost(NodeId),
}

/// What a router did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets passed on, those included that still wait.
    pub forwarded: u64,
    /// Packets dropped because their destination is not reached, or lies where they came from.
    pub unroutable: u64,
    /// Packets dropped because too much of their flow, or of all flows, waits already.
    pub overflowed: u64,
    /// Packets dropped because their source is not behind the link on which they came.
    pub strange: u64,
    /// Packets dropped because they passed too many routers.
    pub looping: u64,
}

#[derive(Debug)]
struct Port {
    neighbour: Neighbour,
    /// Nothing is passed on before. An adaptor waits while another one seems to have one of its nodes.
    admitted: bool,
    /// Since when such another adaptor is known.
    contested: Option<Instant>,
    /// What it was told last.
    told: Option<Routes>,
    news: bool,
    queues: Queues,
}

/// A router.
#[derive(Debug)]
pub struct Router {
    settings: Settings,
    ports: BTreeMap<LinkId, Port>,
    table: Table,
    budget: Budget,
    counters: Counters,
    events: VecDeque<RouterEvent>,
    /// What the operator was told.
    announced: BTreeMap<NodeId, Incarnation>,
}

impl Router {
    /// A router without links.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ports: BTreeMap::new(),
            table: Table::default(),
            budget: Budget::new(settings.buffer),
            counters: Counters::default(),
            events: VecDeque::new(),
            announced: BTreeMap::new(),
        }
    }

    /// There is a link with this neighbour.
    pub fn handle_link_up(&mut self, now: Instant, link: LinkId, neighbour: Neighbour) {
        let rival = self.rival(&neighbour);
        let (admitted, contested) = (rival.is_none(), rival.map(|_| now));
        let port =
            Port { neighbour, admitted, contested, told: None, news: admitted, queues: Queues::default() };
        self.ports.insert(link, port);
        if admitted && self.table.insert(link, neighbour) {
            self.follow_table(now);
        }
    }

    /// The link is gone, and what waited for it.
    pub fn handle_link_down(&mut self, now: Instant, link: LinkId) {
        if let Some(mut port) = self.ports.remove(&link) {
            port.queues.clear(&mut self.budget);
        }
        if self.table.remove(link) {
            self.follow_table(now);
        }
    }

    /// A packet came over the link.
    pub fn handle_packet(&mut self, now: Instant, link: LinkId, frame: &Frame) {
        let Frame { packet, wire } = frame;
        let Some(port) = self.ports.get(&link).filter(|port| port.admitted) else {
            self.counters.strange = self.counters.strange.saturating_add(1);
            return;
        };
        match &packet.body {
            Body::Routes(routes) => {
                if port.neighbour.end == End::Router && self.table.set_routes(link, routes) {
                    self.follow_table(now);
                }
                return;
            }
            Body::Join { .. } | Body::Refuse { .. } => return,
            Body::Unknown(unknown) if unknown.is_between_ends() => return,
            _ => {}
        }
        let origin = Origin { node: packet.source, channel: packet.channel };
        let counter = if !self.table.names(link, packet.source) {
            &mut self.counters.strange
        } else if hops(wire) >= MAX_HOPS {
            &mut self.counters.looping
        } else if let Some(way) = self.table.way(packet.destination).filter(|way| way.link != link)
            && self.ports.contains_key(&way.link)
        {
            if self.enqueue(way.link, origin, packet.destination, wire) {
                &mut self.counters.forwarded
            } else {
                &mut self.counters.overflowed
            }
        } else {
            &mut self.counters.unroutable
        };
        *counter = counter.saturating_add(1);
    }

    /// Puts a packet into the queue of its flow. Returns whether there was room.
    fn enqueue(&mut self, link: LinkId, origin: Origin, destination: NodeId, wire: &[u8]) -> bool {
        let full = |port: &Port| port.queues.is_flow_full(origin, destination, wire.len());
        if self.ports.get(&link).is_none_or(full) || !self.make_room(origin, cost(wire.len())) {
            return false;
        }
        let Some(port) = self.ports.get_mut(&link) else { return false };
        // A copy of its own: the packet as it arrived keeps all of what was read with it in memory.
        let mut copy = wire.to_vec();
        count_hop(&mut copy);
        port.queues.push(&mut self.budget, origin, destination, Bytes::from(copy))
    }

    /// Sees to it that a packet of the origin finds room: whoever holds most has to give some back, unless that is the
    /// origin itself. Returns whether there is.
    fn make_room(&mut self, origin: Origin, cost: usize) -> bool {
        while !self.budget.has_room(cost) {
            let Some(largest) = self.budget.largest_above(origin, cost) else { return false };
            let fullest = self.ports.values_mut().max_by_key(|port| port.queues.held(largest));
            let dropped = fullest.map_or(0, |port| port.queues.shorten(&mut self.budget, largest));
            if dropped == 0 {
                return false;
            }
            self.counters.forwarded = self.counters.forwarded.saturating_sub(dropped);
            self.counters.overflowed = self.counters.overflowed.saturating_add(dropped);
        }
        true
    }

    /// The next packet for the link, as it goes on the wire. News of routes go before everything that waits.
    pub fn poll_packet(&mut self, link: LinkId) -> Option<Bytes> {
        let port = self.ports.get_mut(&link).filter(|port| port.admitted)?;
        if core::mem::take(&mut port.news) {
            let routes = self.table.routes_for(link);
            if port.told.as_ref() != Some(&routes) {
                port.told = Some(routes.clone());
                let to = port.neighbour.identity().id();
                let mut wire = Vec::new();
                let body = Body::Routes(routes);
                Packet::between(Identity::Router, to, self.settings.incarnation, body).emit(&mut wire);
                return Some(wire.into());
            }
        }
        port.queues.pop(&mut self.budget)
    }

    /// What the shell has to do or to tell.
    pub fn poll_event(&mut self) -> Option<RouterEvent> {
        self.events.pop_front()
    }

    /// What was done so far.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes that wait in all queues.
    pub const fn buffered(&self) -> usize {
        self.budget.used()
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let contested = self.ports.values().filter_map(|port| {
            // Who is here already and is to stay needs no decision.
            let undecided = !port.admitted || self.loses(port);
            port.contested.filter(|_| undecided)
        });
        contested.min().map(|since| since.after(self.settings.patience))
    }

    /// Time has passed: whoever is still one of two adaptors with one node is refused, where it is the newcomer or, where neither is, the one with
    /// the higher number.
    pub fn handle_timeout(&mut self, now: Instant) {
        let patience = self.settings.patience;
        let late = |since: Instant| since.after(patience) <= now;
        let refused: Vec<_> = self
            .ports
            .iter()
            .filter(|(_, port)| port.contested.is_some_and(late) && (!port.admitted || self.loses(port)))
            .filter_map(|(&link, port)| Some((link, self.rival(&port.neighbour)?)))
            .collect();
        for (link, rival) in refused {
            self.handle_link_down(now, link);
            self.events.push_back(RouterEvent::Refuse(link, Refusal::Duplicate, rival));
        }
    }

    fn rival(&self, neighbour: &Neighbour) -> Option<Incarnation> {
        let End::Adaptor(buses) = neighbour.end else { return None };
        self.table.rival(buses, neighbour.incarnation)
    }

    /// Whether the other adaptor that has one of the port's nodes goes before.
    fn loses(&self, port: &Port) -> bool {
        self.rival(&port.neighbour).is_some_and(|rival| rival.0 < port.neighbour.incarnation.0)
    }

    /// Ways have changed: the neighbours have to know, and the adaptors of nodes are compared again.
    fn follow_table(&mut self, now: Instant) {
        let mut admitted = Vec::new();
        for (&link, port) in &mut self.ports {
            port.news |= port.admitted;
            let End::Adaptor(buses) = port.neighbour.end else { continue };
            if self.table.rival(buses, port.neighbour.incarnation).is_some() {
                port.contested.get_or_insert(now);
            } else {
                port.contested = None;
                if !port.admitted {
                    admitted.push((link, port.neighbour));
                }
            }
        }
        let late_comers = !admitted.is_empty();
        for (link, neighbour) in admitted {
            self.table.insert(link, neighbour);
            if let Some(port) = self.ports.get_mut(&link) {
                port.admitted = true;
            }
        }
        if late_comers {
            self.ports.values_mut().for_each(|port| port.news = port.admitted);
        }
        self.announce();
    }

    fn announce(&mut self) {
        let reached: BTreeMap<_, _> =
            self.table.nodes().map(|(node, way)| (node, (way.distance, way.incarnation))).collect();
        for (&node, &(distance, incarnation)) in &reached {
            if self.announced.get(&node) != Some(&incarnation) {
                self.events.push_back(RouterEvent::Reached(node, distance, incarnation));
            }
        }
        for &node in self.announced.keys().filter(|node| !reached.contains_key(node)) {
            self.events.push_back(RouterEvent::Lost(node));
        }
        self.announced = reached.into_iter().map(|(node, (_, incarnation))| (node, incarnation)).collect();
    }
}
