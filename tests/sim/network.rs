//! The network between the nodes: it loses, doubles, delays and flips bits, and has routers that hold packets back.
//!
//! What travels between nodes suffers all faults. A router's word on routes arrives in order unless its link is cut, as over TCP.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::framing::{Frame, FrameError, Framer};
use assured_rdma::adaptor::mesh::neighbour::{End, LinkId, Neighbour};
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation};
use assured_rdma::router::{PathEvent, Remedy, Router, RouterEvent, Settings};

use crate::world::{KEEPALIVE, World};

/// Memory of a router's queues.
const BUFFER: usize = 16 << 20;

/// How badly the network behaves; chances are in 1/1000.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub loss: u64,
    pub double: u64,
    pub flip: u64,
    /// The longest time a packet travels beyond the shortest, in microseconds; lets packets overtake each other.
    pub jitter: u64,
    /// Packets that were under way when a link was cut arrive later all the same.
    pub survive_cut: bool,
}

impl Faults {
    pub const NONE: Self = Self { loss: 0, double: 0, flip: 0, jitter: 0, survive_cut: false };
}

/// What has links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Station {
    Node(NodeId),
    Router(u8),
}

impl From<NodeId> for Station {
    fn from(node: NodeId) -> Self {
        Self::Node(node)
    }
}

struct Relay {
    router: Router,
    incarnation: Incarnation,
    paused_until: Instant,
}

struct Parcel {
    at: Instant,
    order: u64,
    link: LinkId,
    from: Station,
    to: Station,
    wire: Vec<u8>,
}

impl PartialEq for Parcel {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Parcel {}
impl PartialOrd for Parcel {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Parcel {
    /// The earliest is the greatest, as the heap wants it.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[derive(Default)]
pub struct Network {
    routers: BTreeMap<u8, Relay>,
    /// Every pair that was ever linked, the lower first; and the link, while there is one.
    links: BTreeMap<(Station, Station), Option<LinkId>>,
    /// Routers that may not send to a neighbour, and until when: what is for it waits in the router.
    stalled: BTreeMap<(Station, Station), Instant>,
    /// Links, from the first station to the second, that take nothing more, as a full socket.
    full: BTreeSet<(Station, Station)>,
    /// Bytes that each direction of a link carries in a microsecond; 0 for any number.
    pub rate: u64,
    /// How much longer than the shortest time every packet travels.
    pub way: Duration,
    /// How many more packets with this command are lost.
    pub losses: BTreeMap<u8, u32>,
    /// Bytes that each direction of a link carries before it carries nothing more; none for any number.
    pub allowance: Option<usize>,
    carried: BTreeMap<(LinkId, Station), usize>,
    /// Until when a direction of a link is busy with what it was given.
    busy: BTreeMap<(Station, Station), Instant>,
    parcels: BinaryHeap<Parcel>,
    sent: u64,
    next_link: u64,
    /// How often a router refused a node.
    pub refusals: u64,
}

fn pair(a: Station, b: Station) -> (Station, Station) {
    if a < b { (a, b) } else { (b, a) }
}

fn is_routes(wire: &[u8]) -> bool {
    wire[3] == 11
}

impl Network {
    pub fn is_full(&self, now: Instant, from: Station, to: Station) -> bool {
        self.full.contains(&(from, to)) || self.busy.get(&(from, to)).is_some_and(|&until| until > now)
    }

    pub fn next_moment(&self) -> Option<Instant> {
        let parcel = self.parcels.peek().map(|parcel| parcel.at);
        let timers = self
            .routers
            .values()
            .filter_map(|relay| relay.router.poll_timeout().map(|at| at.max(relay.paused_until)));
        let busy = self.busy.values().copied();
        timers.chain(parcel).chain(self.stalled.values().copied()).chain(busy).min()
    }

    /// Whether a packet is one of those that are to be lost.
    fn is_lost(&mut self, link: LinkId, from: Station, wire: &[u8]) -> bool {
        if let Some(left) = self.losses.get_mut(&wire[3]).filter(|left| **left > 0) {
            *left -= 1;
            return true;
        }
        let carried = self.carried.entry((link, from)).or_default();
        *carried += wire.len();
        self.allowance.is_some_and(|allowance| *carried > allowance)
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        self.stalled.retain(|_, until| *until > now);
        self.busy.retain(|_, until| *until > now);
        for relay in self.routers.values_mut().filter(|relay| relay.paused_until <= now) {
            if relay.router.poll_timeout().is_some_and(|at| at <= now) {
                relay.router.handle_timeout(now);
            }
        }
    }
}

impl World {
    pub fn start_router(&mut self, id: u8) {
        let incarnation = Incarnation(self.random.next_nonzero());
        let patience = KEEPALIVE / 4;
        let router = Router::new(Settings { incarnation, buffer: BUFFER, patience });
        self.network.routers.insert(id, Relay { router, incarnation, paused_until: Instant::ZERO });
    }

    /// A router is killed and started again: what it held is lost, and all of its links begin anew.
    pub fn restart_router(&mut self, id: u8) {
        let others = self.neighbours(Station::Router(id));
        for &other in &others {
            self.cut(Station::Router(id), other);
        }
        self.start_router(id);
        for &other in &others {
            self.link(Station::Router(id), other);
        }
    }

    /// What waits in the router for this neighbour stays there for a time.
    pub fn stall(&mut self, router: u8, neighbour: Station, time: Duration) {
        let until = self.now.after(time);
        self.network.stalled.insert((Station::Router(router), neighbour), until);
    }

    /// The socket of the link takes nothing more from `from` until the link is cut.
    pub fn fill(&mut self, from: impl Into<Station>, to: impl Into<Station>) {
        self.network.full.insert((from.into(), to.into()));
    }

    /// Every pair that has been linked.
    pub fn pairs(&self) -> Vec<(Station, Station)> {
        self.network.links.keys().copied().collect()
    }

    /// Forgets that two were ever linked.
    pub fn separate(&mut self, a: impl Into<Station>, b: impl Into<Station>) {
        let (a, b) = (a.into(), b.into());
        self.cut(a, b);
        self.network.links.remove(&pair(a, b));
    }

    pub fn neighbours(&self, station: impl Into<Station>) -> Vec<Station> {
        let station = station.into();
        let pairs = self.network.links.keys();
        pairs.filter_map(|&(a, b)| if a == station { Some(b) } else { (b == station).then_some(a) }).collect()
    }

    pub fn links_of(&self, station: impl Into<Station>) -> Vec<(LinkId, Station)> {
        let station = station.into();
        let linked = |other| Some((self.link_between(station, other)?, other));
        self.neighbours(station).into_iter().filter_map(linked).collect()
    }

    fn link_between(&self, a: Station, b: Station) -> Option<LinkId> {
        self.network.links.get(&pair(a, b)).copied().flatten()
    }

    pub fn is_linked(&self, a: impl Into<Station>, b: impl Into<Station>) -> bool {
        self.link_between(a.into(), b.into()).is_some()
    }

    pub fn paused_until(&mut self, station: Station) -> &mut Instant {
        match station {
            Station::Node(place) => &mut self.nodes.get_mut(&place).unwrap().paused_until,
            Station::Router(id) => &mut self.network.routers.get_mut(&id).unwrap().paused_until,
        }
    }

    fn describe(&self, station: Station) -> Neighbour {
        match station {
            Station::Node(host) => {
                let process = &self.processes[&host];
                Neighbour { end: End::Adaptor(process.buses), incarnation: process.life }
            }
            Station::Router(id) => {
                Neighbour { end: End::Router, incarnation: self.network.routers[&id].incarnation }
            }
        }
    }

    pub fn link(&mut self, a: impl Into<Station>, b: impl Into<Station>) {
        let (a, b) = (a.into(), b.into());
        self.network.next_link += 1;
        let link = LinkId(self.network.next_link);
        self.network.links.insert(pair(a, b), Some(link));
        for (at, other) in [(a, b), (b, a)] {
            let neighbour = self.describe(other);
            match at {
                Station::Node(host) => {
                    self.processes.get_mut(&host).unwrap().paths.handle_link_up(link, neighbour);
                    self.follow_paths(host);
                }
                Station::Router(id) => {
                    let relay = self.network.routers.get_mut(&id).unwrap();
                    relay.router.handle_link_up(self.now, link, neighbour);
                }
            }
        }
        self.take_outputs();
    }

    pub fn cut(&mut self, a: impl Into<Station>, b: impl Into<Station>) {
        let (a, b) = (a.into(), b.into());
        let Some(link) = self.network.links.get_mut(&pair(a, b)).and_then(Option::take) else { return };
        self.network.full.retain(|&(from, to)| pair(from, to) != pair(a, b));
        if !self.faults.survive_cut {
            self.network.parcels.retain(|parcel| parcel.link != link);
        }
        for at in [a, b] {
            match at {
                Station::Node(host) => {
                    self.processes.get_mut(&host).unwrap().paths.handle_link_down(link);
                    self.follow_paths(host);
                }
                Station::Router(id) => {
                    let relay = self.network.routers.get_mut(&id).unwrap();
                    relay.router.handle_link_down(self.now, link);
                }
            }
        }
        self.take_outputs();
    }

    /// Tells the cores of a process what changed on its ways.
    fn follow_paths(&mut self, host: NodeId) {
        let now = self.local(host);
        let process = self.processes.get_mut(&host).unwrap();
        while let Some(event) = process.paths.poll_event() {
            for place in &process.places {
                let adaptor = &mut self.nodes.get_mut(place).unwrap().adaptor;
                match event {
                    PathEvent::Up(peer) => adaptor.handle_link_up(now, peer),
                    PathEvent::Down(peer) => adaptor.handle_link_down(now, peer),
                }
            }
        }
    }

    /// A node hears nothing from a peer: where nothing else is on the link, it is made anew.
    pub fn handle_silence(&mut self, place: NodeId, peer: NodeId) {
        match self.process_of(place).paths.handle_silence(peer) {
            Some(Remedy::Cut(_)) => {
                self.cut(place, peer);
                self.link(place, peer);
            }
            Some(Remedy::Doubt) => {
                let now = self.local(place);
                self.adaptor(place).handle_link_down(now, peer);
                self.adaptor(place).handle_link_up(now, peer);
            }
            None => {}
        }
    }

    pub fn deliver_parcels(&mut self) {
        while self.network.parcels.peek().is_some_and(|parcel| parcel.at <= self.now) {
            let mut parcel = self.network.parcels.pop().unwrap();
            let wakes = *self.paused_until(parcel.to);
            if wakes > self.now {
                parcel.at = wakes;
                self.network.parcels.push(parcel);
            } else {
                self.deliver(&parcel);
            }
        }
    }

    fn deliver(&mut self, parcel: &Parcel) {
        let Some(link) = self.link_between(parcel.from, parcel.to) else { return };
        if is_routes(&parcel.wire) && link != parcel.link {
            return;
        }
        let now = self.now;
        let mut framer = Framer::default();
        framer.push(&parcel.wire);
        let frame = framer.next_frame();
        match parcel.to {
            Station::Router(id) => {
                let relay = self.network.routers.get_mut(&id).unwrap();
                if let Some(Ok(frame)) = frame {
                    relay.router.handle_packet(now, link, &frame);
                }
            }
            Station::Node(host) => {
                self.deliver_frame(host, link, frame);
                self.follow_paths(host);
            }
        }
        self.take_outputs();
    }

    fn deliver_frame(&mut self, host: NodeId, link: LinkId, frame: Option<Result<Frame, FrameError>>) {
        let now = self.local(host);
        let process = self.processes.get_mut(&host).unwrap();
        match frame {
            Some(Ok(Frame { packet, .. })) => {
                if let Body::Routes(routes) = &packet.body {
                    process.paths.handle_routes(link, routes);
                } else if process.paths.may_come_from(link, packet.source)
                    && let Some(number) = process.buses.number(packet.destination)
                {
                    let node = self.nodes.get_mut(&process.places[number]).unwrap();
                    node.adaptor.handle_packet(now, packet.source, packet);
                }
            }
            Some(Err(FrameError::Corrupt | FrameError::Broken(_))) => {
                for peer in process.paths.nodes(link) {
                    for place in &process.places {
                        self.nodes.get_mut(place).unwrap().adaptor.handle_corrupt(peer);
                    }
                }
            }
            None => {}
        }
    }

    pub fn take_router_outputs(&mut self) {
        let ids: Vec<u8> = self.network.routers.keys().copied().collect();
        for id in ids {
            let here = Station::Router(id);
            if self.network.routers[&id].paused_until > self.now {
                continue;
            }
            for (link, other) in self.links_of(here) {
                let stalled = self.network.stalled.contains_key(&(here, other));
                while !stalled
                    && !self.network.is_full(self.now, here, other)
                    && let Some(wire) = self.network.routers.get_mut(&id).unwrap().router.poll_packet(link)
                {
                    self.send(link, here, other, wire.to_vec());
                }
            }
            while let Some(event) = self.network.routers.get_mut(&id).unwrap().router.poll_event() {
                if let RouterEvent::Refuse(link, ..) = event
                    && let Some((_, other)) = self.links_of(here).into_iter().find(|&(id, _)| id == link)
                {
                    self.network.refusals += 1;
                    self.cut(here, other);
                }
            }
        }
    }

    pub fn send(&mut self, link: LinkId, from: Station, to: Station, mut wire: Vec<u8>) {
        let mut travel = Duration::from_micros(20) + self.network.way;
        if let Some(time) = (wire.len() as u64).checked_div(self.network.rate) {
            travel += Duration::from_micros(time);
            self.network.busy.insert((from, to), self.now.after(Duration::from_micros(time)));
        }
        if self.network.is_lost(link, from, &wire) {
            return;
        }
        let faults = if is_routes(&wire) { Faults::NONE } else { self.faults };
        if self.random.next() % 1000 < faults.loss {
            return;
        }
        let copies = 1 + u64::from(self.random.next() % 1000 < faults.double);
        for _ in 0..copies {
            let delay = if faults.jitter == 0 { 0 } else { self.random.next() % faults.jitter };
            if self.random.next() % 1000 < faults.flip {
                let bit = usize::try_from(self.random.next()).unwrap() % (wire.len() * 8);
                wire[bit / 8] ^= 1 << (bit % 8);
            }
            self.network.sent += 1;
            let extra = if wire[3] == 3 { self.write_delay } else { Duration::ZERO };
            let travel = travel + Duration::from_micros(delay) + extra;
            let (at, order) = (self.now.after(travel), self.network.sent);
            self.network.parcels.push(Parcel { at, order, link, from, to, wire: wire.clone() });
        }
    }
}
