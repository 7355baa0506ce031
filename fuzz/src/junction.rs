//! The stage of the target `router`: a router between two honest nodes and up to [`LINKS`] hostile neighbours, which are nodes and
//! routers as the fuzzer likes, and an adaptor's [`Paths`] that has the same neighbours.
//!
//! What has to hold, whatever they say: nothing panics; a packet goes once, unchanged and in the order of its flow, to a neighbour that leads to its
//! destination, and only if its source is behind the link on which it came; who waits to be admitted is served nothing; nobody is refused without a
//! rival; timers lead to rest; the bytes that wait keep to the limit; the sources of each channel share a link fairly; and the honest nodes reach each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::channel::{Channel, Origin};
use assured_rdma::adaptor::mesh::framing::{Frame, Framer};
use assured_rdma::adaptor::mesh::neighbour::{Identity, LinkId, MAX_HOPS, Neighbour, Refusal, Routes};
use assured_rdma::adaptor::mesh::packet::{Body, HEADER_LEN, Incarnation, MAX_PAYLOAD, Packet, hops};
use assured_rdma::router::{Router, RouterEvent, Settings};

use crate::held::held;
use crate::packets::{confirm, crc, wire};
use crate::ways::Ways;

/// How many links hostile neighbours have at once.
pub const LINKS: u8 = 6;
/// Hostile neighbours speak of the nodes below this; the honest ones come after.
pub const NODES: u8 = 7;
const HONEST: [(LinkId, NodeId); 2] = [(LinkId(1), NodeId(NODES)), (LinkId(2), NodeId(NODES + 1))];
/// Hostile packets of one input, so that an input is not slow.
const MOST_PACKETS: u64 = 3000;

const BUFFER: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_millis(500);
/// Above the buffer: routes, the queues' own memory, and what this stage remembers.
const HELD_LIMIT: usize = BUFFER + (2 << 20);
/// The largest packet, which is what a source may send in its turn.
const LARGEST: usize = HEADER_LEN + MAX_PAYLOAD;
const SELF: Incarnation = Incarnation(1000);

/// A neighbour as a careful observer sees it.
struct Port {
    neighbour: Neighbour,
    admitted: bool,
    contested: Option<Instant>,
    /// What it leads to, with distances from the router.
    leads_to: BTreeMap<NodeId, (u8, Incarnation)>,
}

/// A packet that the router may pass on.
struct Passing {
    /// The links that led to its destination.
    links: Vec<LinkId>,
    origin: Origin,
    crc: u32,
    hops: u8,
}

/// See the module.
pub struct Junction {
    now: Instant,
    router: Router,
    ways: Ways,
    ports: BTreeMap<LinkId, Port>,
    slots: BTreeMap<u8, LinkId>,
    next_link: u64,
    /// Packets by the number that stands where their source's incarnation does.
    passing: BTreeMap<u64, Passing>,
    /// The last packet of each flow that came out of a link.
    last: BTreeMap<(LinkId, Origin, NodeId), u64>,
    packets: u64,
    at_rest: usize,
}

impl Default for Junction {
    fn default() -> Self {
        let settings = Settings { incarnation: SELF, buffer: BUFFER, patience: PATIENCE };
        let mut junction = Self {
            now: Instant::from_nanos(1_000_000),
            router: Router::new(settings),
            ways: Ways::new(NodeId(NODES - 1)),
            ports: BTreeMap::new(),
            slots: BTreeMap::new(),
            next_link: 10,
            passing: BTreeMap::new(),
            last: BTreeMap::new(),
            packets: 0,
            at_rest: held(),
        };
        for (link, node) in HONEST {
            junction.join(link, Neighbour { identity: Identity::Node(node), incarnation: Incarnation(9) });
        }
        junction
    }
}

impl Junction {
    fn join(&mut self, link: LinkId, neighbour: Neighbour) {
        // A node has one link: another of the same life replaces it, one of another life comes when it is gone.
        if neighbour.identity != Identity::Router
            && let Some((&old, _)) =
                self.ports.iter().find(|(_, port)| port.neighbour.identity == neighbour.identity)
        {
            self.leave(old);
        }
        let port = Port { neighbour, admitted: false, contested: None, leads_to: BTreeMap::new() };
        self.ports.insert(link, port);
        self.router.handle_link_up(self.now, link, neighbour);
        self.ways.up(link, neighbour);
        self.compare_lives();
    }

    fn leave(&mut self, link: LinkId) {
        if self.ports.remove(&link).is_some() {
            self.router.handle_link_down(self.now, link);
            self.ways.down(link);
            self.compare_lives();
        }
    }

    /// A hostile neighbour's link comes up, in the place of an earlier one.
    pub fn up(&mut self, slot: u8, identity: Identity, life: u8) {
        self.down(slot);
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.slots.insert(slot % LINKS, link);
        self.join(link, Neighbour { identity, incarnation: Incarnation(life.into()) });
    }

    /// A hostile neighbour's link is gone.
    pub fn down(&mut self, slot: u8) {
        if let Some(link) = self.slots.remove(&(slot % LINKS)) {
            self.leave(link);
        }
    }

    fn link(&self, slot: u8) -> Option<LinkId> {
        let &link = self.slots.get(&(slot % LINKS))?;
        self.ports.contains_key(&link).then_some(link)
    }

    /// A hostile neighbour goes on as another incarnation.
    pub fn reborn(&mut self, slot: u8, life: u8) {
        let Some(link) = self.link(slot) else { return };
        let Some(port) = self.ports.get_mut(&link) else { return };
        port.neighbour.incarnation = Incarnation(life.into());
        if let (Identity::Node(node), true) = (port.neighbour.identity, port.admitted) {
            port.leads_to.insert(node, (1, port.neighbour.incarnation));
        }
        self.router.handle_reborn(self.now, link, port.neighbour);
        self.compare_lives();
    }

    /// A hostile neighbour says which nodes it reaches.
    pub fn tell_routes(&mut self, slot: u8, routes: Routes) {
        let Some(link) = self.link(slot) else { return };
        let Some(port) = self.ports.get_mut(&link) else { return };
        if port.neighbour.identity == Identity::Router {
            port.leads_to = routes
                .iter()
                .filter(|route| route.distance < MAX_HOPS)
                .map(|route| (route.node, (route.distance + 1, route.incarnation)))
                .collect();
        }
        self.ways.routes(link, &routes);
        let packet =
            Packet::between(port.neighbour.identity, NodeId(0), Incarnation(1), Body::Routes(routes));
        self.router.handle_packet(self.now, link, &frame(&wire(&packet)));
        self.compare_lives();
    }

    /// Another life of the node than this, of which a router tells.
    fn rival(&self, neighbour: Neighbour) -> Option<Incarnation> {
        let Identity::Node(node) = neighbour.identity else { return None };
        let routers = self.ports.values().filter(|port| port.neighbour.identity == Identity::Router);
        let lives = routers.filter_map(|port| port.leads_to.get(&node)).map(|&(_, life)| life);
        lives.filter(|&life| life != neighbour.incarnation).min_by_key(|life| life.0)
    }

    /// Who has no rival is let in.
    fn compare_lives(&mut self) {
        let rivals: Vec<_> =
            self.ports.iter().map(|(&link, port)| (link, self.rival(port.neighbour))).collect();
        for (link, rival) in rivals {
            let Some(port) = self.ports.get_mut(&link) else { continue };
            if rival.is_some() {
                port.contested.get_or_insert(self.now);
                continue;
            }
            port.contested = None;
            port.admitted = true;
            if let Identity::Node(node) = port.neighbour.identity {
                port.leads_to.insert(node, (1, port.neighbour.incarnation));
            }
        }
    }

    /// A hostile neighbour sends a packet that has passed `hops` routers.
    pub fn send(&mut self, slot: u8, packet: Packet, hops: u8) {
        // Routes are told by another way.
        let counts = self.packets < MOST_PACKETS && !matches!(packet.body, Body::Routes(_));
        if let Some(link) = self.link(slot).filter(|_| counts) {
            self.hand_in(link, packet, hops);
        }
    }

    fn hand_in(&mut self, link: LinkId, mut packet: Packet, hops: u8) {
        self.packets += 1;
        packet.source_incarnation = Incarnation(self.packets);
        let mut wire = wire(&packet);
        wire[6] |= hops << 4;
        let frame = frame(&wire);
        let sender = &self.ports[&link];
        let passes = sender.admitted
            && sender.leads_to.contains_key(&packet.source)
            && hops < MAX_HOPS
            && !matches!(packet.body, Body::Join { .. } | Body::Refuse { .. });
        if passes {
            let leads = |(&other, port): (&LinkId, &Port)| {
                (other != link && port.admitted && port.leads_to.contains_key(&packet.destination))
                    .then_some(other)
            };
            let links = self.ports.iter().filter_map(leads).collect();
            let origin = Origin { node: packet.source, channel: packet.channel };
            let passing = Passing { links, origin, crc: crc(&wire), hops };
            self.passing.insert(self.packets, passing);
        }
        self.router.handle_packet(self.now, link, &frame);
    }

    /// A neighbour takes up to `count` packets.
    pub fn take(&mut self, slot: u8, count: usize) {
        if let Some(link) = self.link(slot) {
            for _ in 0..count {
                if self.take_one(link).is_none() {
                    break;
                }
            }
        }
    }

    /// The next packet for the link: its origin and length, `None` for the origin where it is the router's own.
    fn take_one(&mut self, link: LinkId) -> Option<(Option<Origin>, usize)> {
        let wire = self.router.poll_packet(link)?;
        let port = self.ports.get(&link).expect("only a neighbour is sent anything");
        assert!(port.admitted, "who waits to be admitted is sent nothing");
        let Frame { packet, .. } = frame(&wire);
        if let Body::Routes(routes) = &packet.body {
            self.check_routes(link, routes);
            return Some((None, wire.len()));
        }
        let number = packet.source_incarnation.0;
        let passing = self.passing.remove(&number).expect("it may be passed on, and only once");
        assert!(passing.links.contains(&link), "it goes to who leads to its destination");
        assert_eq!((passing.crc, passing.hops + 1), (crc(&wire), hops(&wire)), "it is as it was");
        let last = self.last.insert((link, passing.origin, packet.destination), number);
        assert!(last < Some(number), "a flow keeps its order");
        Some((Some(passing.origin), wire.len()))
    }

    fn check_routes(&self, link: LinkId, routes: &Routes) {
        for route in routes.iter() {
            let told_by = |(&other, port): (&LinkId, &Port)| {
                other != link && port.leads_to.get(&route.node) == Some(&(route.distance, route.incarnation))
            };
            assert!(self.ports.iter().any(told_by), "node {} is reached by another link", route.node);
        }
    }

    /// Time passes, and what is due happens.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(due) = self.router.poll_timeout().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.router.handle_timeout(self.now);
            self.follow_events();
            assert!(self.router.poll_timeout().is_none_or(|next| next > self.now), "timers come to rest");
        }
        self.now = end;
    }

    /// Carries out what the router decided.
    pub fn follow_events(&mut self) {
        let mut refused = BTreeSet::new();
        while let Some(event) = self.router.poll_event() {
            let RouterEvent::Refuse(link, refusal, rival) = event else { continue };
            let port = self.ports.get(&link).expect("only a neighbour is refused");
            assert_eq!(refusal, Refusal::Duplicate);
            assert_eq!(self.rival(port.neighbour), Some(rival));
            assert!(!port.admitted || rival.0 < port.neighbour.incarnation.0, "the first stays");
            let since = port.contested.expect("has a rival");
            assert!(since.after(PATIENCE) <= self.now, "the rival has time to go");
            refused.insert(link);
        }
        for link in refused {
            self.ports.remove(&link);
            self.ways.down(link);
        }
        self.compare_lives();
    }

    /// The adaptor finds a node silent. A direct link with it would be cut.
    pub fn silence(&mut self, node: NodeId) {
        if let Some(link) = self.ways.silence(node) {
            self.leave(link);
        }
    }

    /// What has to hold at any moment.
    pub fn check(&self) {
        assert!(self.router.buffered() <= BUFFER, "{} bytes wait", self.router.buffered());
        let held = held().saturating_sub(self.at_rest);
        assert!(held < HELD_LIMIT, "bounded: {held} bytes are held");
        let counters = self.router.counters();
        let dropped = counters.unroutable + counters.overflowed + counters.strange + counters.looping;
        assert!(counters.forwarded + dropped <= self.packets + self.next_link * 256);
        self.ways.check();
    }

    /// However it went, and though nobody else takes anything, the honest nodes reach each other.
    pub fn end(mut self) {
        for [from, to] in [HONEST, [HONEST[1], HONEST[0]]] {
            let packet = confirm(from.1, to.1);
            let number = self.packets + 1;
            self.hand_in(from.0, packet, 0);
            let mut ahead = 0;
            while self.passing.contains_key(&number) {
                assert!(self.take_one(to.0).is_some(), "an honest packet finds room");
                ahead += 1;
                assert!(ahead <= MOST_PACKETS, "and its turn comes");
            }
        }
        for link in self.ports.keys().copied().collect::<Vec<_>>() {
            self.drain(link);
        }
        assert_eq!(self.router.buffered(), 0, "what is taken waits no more");
    }

    /// Takes all that waits, and looks at how sources share.
    fn drain(&mut self, link: LinkId) {
        let mut taken = Vec::new();
        while let Some((origin, len)) = self.take_one(link) {
            taken.extend(origin.map(|origin| (origin, len)));
        }
        for channel in Channel::ALL {
            check_shares(taken.iter().copied().filter(|(origin, _)| origin.channel == channel));
        }
    }
}

/// In the order in which they were taken, as long as two origins have something, they have the same share.
fn check_shares(taken: impl Iterator<Item = (Origin, usize)> + Clone) {
    let mut total: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (origin, len) in taken.clone() {
        *total.entry(origin.node).or_default() += len;
    }
    let mut so_far: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut busy: BTreeSet<NodeId> = total.keys().copied().collect();
    for (origin, len) in taken {
        let sent = so_far.entry(origin.node).or_default();
        *sent += len;
        if *sent == total[&origin.node] {
            busy.remove(&origin.node);
        }
        let shares = busy.iter().map(|node| so_far.get(node).copied().unwrap_or(0));
        if let (Some(least), Some(most)) = (shares.clone().min(), shares.max()) {
            assert!(most - least <= 3 * LARGEST, "fair: one sent {most} bytes, another {least}");
        }
    }
}

/// The packet as a link brings it.
fn frame(wire: &[u8]) -> Frame {
    let mut framer = Framer::default();
    framer.push(wire);
    framer.next_frame().expect("is whole").expect("is intact")
}
