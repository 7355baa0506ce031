//! Networks of routers, with links that carry packets in order, each when chance wants it.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::adaptor::address::Location;
use crate::adaptor::buses::{Buses, Span};
use crate::adaptor::channel::Channel;
use crate::adaptor::mesh::framing::Framer;
use crate::adaptor::mesh::neighbour::Route;
use crate::adaptor::mesh::packet::{Progress, Stamp};
use crate::adaptor::mesh::sequence::{Epoch, Sequence};
use crate::adaptor::random::Random;

const PATIENCE: Duration = Duration::from_millis(500);

fn node(id: u8) -> super::End {
    super::End::node(NodeId(id))
}

fn frame(wire: &[u8]) -> Frame {
    let mut framer = Framer::default();
    framer.push(wire);
    framer.next_frame().unwrap().unwrap()
}

fn confirm(source: u8, destination: u8) -> Packet {
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
    Packet {
        source: NodeId(source),
        destination: NodeId(destination),
        source_incarnation: Incarnation(1),
        destination_incarnation: Incarnation(2),
        channel: Channel::Small,
        body: Body::Confirm { progress, sent: Sequence(0) },
    }
}

fn wire(packet: &Packet) -> Bytes {
    let mut wire = Vec::new();
    packet.emit(&mut wire);
    wire.into()
}

/// What is at an end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Router(usize),
    Node(u8),
}

struct Link {
    ends: [End; 2],
    /// What is under way to each end.
    travelling: [VecDeque<Bytes>; 2],
}

struct Network {
    now: Instant,
    random: Random,
    routers: Vec<Router>,
    links: BTreeMap<LinkId, Link>,
    next_link: u64,
    /// Lives of nodes, by link.
    lives: BTreeMap<LinkId, u64>,
    /// What nodes were told and sent.
    told: BTreeMap<LinkId, Routes>,
    arrived: Vec<(u8, Packet, u8)>,
    refused: Vec<LinkId>,
    steps: usize,
}

impl Network {
    fn new(routers: usize, seed: u64) -> Self {
        let router = |n: usize| {
            let incarnation = Incarnation(1000 + u64::try_from(n).unwrap());
            Router::new(Settings { incarnation, buffer: 16 << 20, patience: PATIENCE })
        };
        Self {
            now: Instant::ZERO,
            random: Random::new(seed),
            routers: (0..routers).map(router).collect(),
            links: BTreeMap::new(),
            next_link: 1,
            lives: BTreeMap::new(),
            told: BTreeMap::new(),
            arrived: Vec::new(),
            refused: Vec::new(),
            steps: 0,
        }
    }

    fn join(&mut self, a: End, b: End, life: u64) -> LinkId {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        self.links.insert(link, Link { ends: [a, b], travelling: [VecDeque::new(), VecDeque::new()] });
        self.lives.insert(link, life);
        for (end, other) in [(a, b), (b, a)] {
            let neighbour = match other {
                End::Router(n) => {
                    Neighbour { end: super::End::Router, incarnation: self.routers[n].settings.incarnation }
                }
                End::Node(id) => Neighbour { end: node(id), incarnation: Incarnation(life) },
            };
            if let End::Router(n) = end {
                self.routers[n].handle_link_up(self.now, link, neighbour);
            }
        }
        link
    }

    fn cut(&mut self, link: LinkId) {
        self.told.remove(&link);
        for end in self.links.remove(&link).unwrap().ends {
            if let End::Router(n) = end {
                self.routers[n].handle_link_down(self.now, link);
            }
        }
    }

    /// Lets one thing happen; returns whether there was anything.
    fn step(&mut self) -> bool {
        self.steps += 1;
        for n in 0..self.routers.len() {
            while let Some(event) = self.routers[n].poll_event() {
                if let RouterEvent::Refuse(link, ..) = event {
                    self.refused.push(link);
                    self.told.remove(&link);
                    self.links.remove(&link);
                }
            }
        }
        for (&id, link) in &mut self.links {
            for (side, &end) in link.ends.iter().enumerate() {
                if let End::Router(n) = end
                    && link.travelling[1 - side].len() < 4
                {
                    link.travelling[1 - side].extend(self.routers[n].poll_packet(id));
                }
            }
        }
        let busy: Vec<_> = self
            .links
            .iter()
            .flat_map(|(&id, link)| [0, 1].map(|side| (id, side, link.travelling[side].is_empty())))
            .filter(|&(_, _, empty)| !empty)
            .collect();
        if busy.is_empty() {
            return false;
        }
        let (id, side, _) = busy[usize::try_from(self.random.next()).unwrap() % busy.len()];
        let link = self.links.get_mut(&id).unwrap();
        let packet = link.travelling[side].pop_front().unwrap();
        let hops = hops(&packet);
        let frame = frame(&packet);
        match link.ends[side] {
            End::Router(n) => self.routers[n].handle_packet(self.now, id, &frame),
            End::Node(at) => match frame.packet.body {
                Body::Routes(routes) => drop(self.told.insert(id, routes)),
                _ => self.arrived.push((at, frame.packet, hops)),
            },
        }
        true
    }

    fn settle(&mut self) {
        let limit = self.steps + 200_000;
        while self.step() {
            assert!(self.steps < limit, "it does not come to rest");
        }
    }

    /// Time passes, as far as routers care.
    fn wait(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for router in &mut self.routers {
            if router.poll_timeout().is_some_and(|at| at <= self.now) {
                router.handle_timeout(self.now);
            }
        }
        self.settle();
    }

    fn send(&mut self, from: LinkId, packet: &Packet) {
        let link = self.links.get_mut(&from).unwrap();
        let side = link.ends.iter().position(|end| matches!(end, End::Router(_))).unwrap();
        link.travelling[side].push_back(wire(packet));
    }

    /// Distances of every router from each node, by breadth first.
    fn distances(&self, to: u8) -> Vec<Option<u8>> {
        let mut distances = vec![None; self.routers.len()];
        let mut edge: BTreeSet<usize> = BTreeSet::new();
        for link in self.links.values() {
            match link.ends {
                [End::Router(n), End::Node(id)] | [End::Node(id), End::Router(n)] if id == to => {
                    edge.insert(n);
                }
                _ => {}
            }
        }
        for distance in 1..=MAX_HOPS {
            let mut next = BTreeSet::new();
            for &n in &edge {
                if distances[n].is_none() {
                    distances[n] = Some(distance);
                    for link in self.links.values() {
                        if let [End::Router(a), End::Router(b)] = link.ends {
                            if a == n {
                                next.insert(b);
                            }
                            if b == n {
                                next.insert(a);
                            }
                        }
                    }
                }
            }
            edge = next;
        }
        distances
    }

    /// Holds tables, what nodes were told, and the ways of packets against the true distances.
    fn check(&mut self, nodes: &BTreeMap<u8, LinkId>) {
        for id in 0..=20u8 {
            let distances = self.distances(id);
            for (n, router) in self.routers.iter().enumerate() {
                let known = router.table.way(NodeId(id)).map(|way| way.distance);
                assert_eq!(known, distances[n], "node {id} at router {n}");
            }
            for (&other, link) in nodes.iter().filter(|&(&other, _)| other != id) {
                let told = self.told[link].iter().any(|route| route.node == NodeId(id));
                let End::Router(at) = self.links[link].ends[0] else { unreachable!() };
                assert_eq!(told, distances[at].is_some(), "what node {other} was told of node {id}");
            }
        }
        self.arrived.clear();
        for (&from, &link) in nodes {
            for &to in nodes.keys() {
                self.send(link, &confirm(from, to));
            }
        }
        self.settle();
        let arrived = core::mem::take(&mut self.arrived);
        for (at, packet, hops) in &arrived {
            assert_eq!(packet.destination, NodeId(*at));
            let End::Router(from) = self.links[&nodes[&packet.source.0]].ends[0] else { unreachable!() };
            assert_eq!(Some(*hops), self.distances(*at)[from], "the shortest way");
        }
        let pairs = nodes.iter().flat_map(|(&from, link)| {
            let End::Router(at) = self.links[link].ends[0] else { unreachable!() };
            nodes.keys().filter(move |&&to| to != from).map(move |&to| (at, to)).collect::<Vec<_>>()
        });
        let reachable = pairs.filter(|&(at, to)| self.distances(to)[at].is_some()).count();
        assert_eq!(arrived.len(), reachable, "each packet arrives where there is a way, and once");
    }
}

#[test]
fn two_nodes_at_one_router_reach_each_other_and_nobody_else() {
    let mut network = Network::new(1, 1);
    let one = network.join(End::Router(0), End::Node(1), 11);
    network.settle();
    assert_eq!(network.told[&one].iter().count(), 0, "an empty list is told too");
    let two = network.join(End::Router(0), End::Node(2), 12);
    network.settle();
    network.check(&BTreeMap::from([(1, one), (2, two)]));
    // Nobody speaks for another, and nobody is there as node 3.
    network.send(one, &confirm(2, 2));
    network.send(one, &confirm(1, 3));
    network.settle();
    assert!(network.arrived.is_empty());
    let counters = network.routers[0].counters();
    // One packet of each node to itself was part of the check.
    assert_eq!((counters.strange, counters.unroutable, counters.forwarded), (1, 3, 2));
    network.cut(two);
    network.settle();
    assert_eq!(network.told[&one].iter().count(), 0);
}

#[test]
fn what_only_the_two_nodes_know_passes_and_what_is_between_ends_does_not() {
    let mut network = Network::new(1, 1);
    let from = network.join(End::Node(1), End::Router(0), 1);
    network.join(End::Node(2), End::Router(0), 2);
    network.settle();
    for (at, value, passes) in [(2, 2, true), (3, 16, true), (3, 191, true), (3, 192, false), (3, 255, false)]
    {
        let mut bytes = wire(&confirm(1, 2)).to_vec();
        bytes[at] = value;
        bytes[12..16].fill(0);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        network.send(from, &frame(&bytes).packet);
        network.settle();
        let arrived = network.arrived.pop().map(|(to, packet, _)| (to, wire(&packet)));
        assert_eq!(arrived, passes.then(|| (2, bytes.into())), "byte {at} is {value}");
    }
}

#[test]
fn only_fifteen_routers_are_passed() {
    let mut network = Network::new(17, 2);
    for n in 1..17 {
        network.join(End::Router(n - 1), End::Router(n), 0);
    }
    let far = [14, 15, 16].map(|n| network.join(End::Router(n), End::Node(u8::try_from(n).unwrap()), 5));
    let near = network.join(End::Router(0), End::Node(1), 11);
    network.settle();
    let reached: Vec<u8> = network.told[&near].iter().map(|route| route.node.0).collect();
    assert_eq!(reached, [14]);
    network.send(near, &confirm(1, 14));
    network.send(near, &confirm(1, 15));
    network.settle();
    assert_eq!(network.arrived.len(), 1);
    assert_eq!(network.arrived[0].2, 15);
    let back: Vec<u8> = network.told[&far[1]].iter().map(|route| route.node.0).collect();
    assert_eq!(back, [14, 16]);
}

#[test]
fn a_second_life_of_a_node_is_refused_wherever_it_comes() {
    let mut network = Network::new(3, 3);
    network.join(End::Router(0), End::Router(1), 0);
    network.join(End::Router(1), End::Router(2), 0);
    let first = network.join(End::Router(0), End::Node(7), 99);
    let other = network.join(End::Router(2), End::Node(1), 11);
    network.settle();
    let second = network.join(End::Router(2), End::Node(7), 5);
    network.settle();
    network.send(other, &confirm(1, 7));
    network.send(second, &confirm(7, 1));
    network.settle();
    assert_eq!(network.arrived.len(), 1, "the newcomer gets nothing and sends nothing");
    assert!(!network.told.contains_key(&second) && network.refused.is_empty());
    network.wait(PATIENCE);
    assert_eq!(network.refused, [second]);
    // One that moves is let in as soon as its earlier place is known to be left.
    let moved = network.join(End::Router(2), End::Node(7), 5);
    network.settle();
    network.cut(first);
    network.settle();
    assert!(network.told.contains_key(&moved));
    network.wait(PATIENCE);
    assert_eq!(network.refused, [second]);
    network.check(&BTreeMap::from([(1, other), (7, moved)]));
}

#[test]
fn where_two_lives_met_too_late_one_stays() {
    for (here, there) in [(5, 9), (9, 5)] {
        let mut network = Network::new(4, here);
        network.join(End::Router(0), End::Router(1), 0);
        network.join(End::Router(2), End::Router(3), 0);
        let one = network.join(End::Router(0), End::Node(7), here);
        let two = network.join(End::Router(3), End::Node(7), there);
        network.settle();
        network.join(End::Router(1), End::Router(2), 0);
        network.settle();
        network.wait(PATIENCE);
        assert_eq!(network.refused, [if here < there { two } else { one }]);
        network.wait(PATIENCE);
        assert_eq!(network.refused.len(), 1);
    }
}

/// A router with node 7 at its link 9, which waits because the router at link 1 names another life of it; the
/// one at link 2 names the same life, and is nearer.
fn contested() -> Router {
    let settings = Settings { incarnation: Incarnation(1), buffer: 16 << 20, patience: PATIENCE };
    let mut router = Router::new(settings);
    let now = Instant::ZERO;
    for (link, distance, life) in [(1, 5, 50), (2, 2, 60)] {
        let neighbour = Neighbour { end: super::End::Router, incarnation: Incarnation(link) };
        router.handle_link_up(now, LinkId(link), neighbour);
        let routes = Routes::new([Route { node: NodeId(7), distance, incarnation: Incarnation(life) }]);
        let packet = Packet::between(Identity::Router, NodeId(0), Incarnation(link), Body::Routes(routes));
        router.handle_packet(now, LinkId(link), &frame(&wire(&packet)));
    }
    let neighbour = Neighbour { end: node(7), incarnation: Incarnation(60) };
    router.handle_link_up(now, LinkId(9), neighbour);
    assert_eq!(router.poll_timeout(), Some(now.after(PATIENCE)));
    assert!(router.poll_packet(LinkId(9)).is_none());
    router
}

#[test]
fn who_waits_is_let_in_when_its_rival_is_gone_whichever_way_was_the_best() {
    let mut router = contested();
    router.handle_link_down(Instant::ZERO, LinkId(1));
    assert_eq!(router.poll_timeout(), None);
    assert!(router.poll_packet(LinkId(9)).is_some());
}

#[test]
fn an_adaptor_is_reached_by_every_node_that_it_has_and_speaks_for_no_other() {
    let now = Instant::ZERO;
    let settings = Settings { incarnation: Incarnation(1), buffer: 16 << 20, patience: PATIENCE };
    let mut router = Router::new(settings);
    // Three of four buses at link 1, a node at link 2, and a router at link 3.
    let buses = Buses::new(Span::new(NodeId(4), 2).unwrap(), 3).unwrap();
    let ends = [super::End::Adaptor(buses), node(1), super::End::Router];
    for (link, end) in (1..).map(LinkId).zip(ends) {
        router.handle_link_up(now, link, Neighbour { end, incarnation: Incarnation(100 + link.0) });
    }
    let told = |router: &mut Router, link| match frame(&router.poll_packet(LinkId(link)).unwrap()).packet.body
    {
        Body::Routes(routes) => {
            routes.iter().map(|r| (r.node.0, r.distance, r.incarnation.0)).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&mut router, 1), [(1, 1, 102)]);
    let of_adaptor = [(4, 1, 101), (5, 1, 101), (6, 1, 101)];
    assert_eq!(told(&mut router, 2), of_adaptor);
    assert_eq!(told(&mut router, 3), [&[(1, 1, 102)][..], &of_adaptor].concat());
    for (link, source, destination, way) in [
        (1, 6, 1, Some(2)),
        (2, 1, 5, Some(1)),
        (1, 7, 1, None),
        (2, 1, 7, None),
        (2, 4, 5, None),
        (1, 4, 5, None),
    ] {
        router.handle_packet(now, LinkId(link), &frame(&wire(&confirm(source, destination))));
        let passed = (1..=3).find(|&link| router.poll_packet(LinkId(link)).is_some());
        assert_eq!(passed, way, "from {source} to {destination} over link {link}");
    }
    // The router there reaches another adaptor that has one of the nodes: one of the two has to go.
    let reach = |router: &mut Router, list: &[(u8, u64)]| {
        let route = |&(node, life): &(u8, u64)| Route {
            node: NodeId(node),
            distance: 1,
            incarnation: Incarnation(life),
        };
        let routes = Body::Routes(Routes::new(list.iter().map(route)));
        let packet = Packet::between(Identity::Router, NodeId(0), Incarnation(103), routes);
        router.handle_packet(now, LinkId(3), &frame(&wire(&packet)));
    };
    reach(&mut router, &[(7, 50), (8, 50)]);
    assert_eq!(router.poll_timeout(), None, "node 7 is not there");
    reach(&mut router, &[(6, 101)]);
    assert_eq!(router.poll_timeout(), None, "it is the same adaptor");
    reach(&mut router, &[(6, 200)]);
    assert_eq!(router.poll_timeout(), None, "the other one goes");
    reach(&mut router, &[(4, 200), (6, 50)]);
    assert_eq!(router.poll_timeout(), Some(now.after(PATIENCE)));
    router.handle_timeout(now.after(PATIENCE));
    let refused = |event: &RouterEvent| matches!(event, RouterEvent::Refuse(LinkId(1), _, Incarnation(50)));
    assert!(core::iter::from_fn(|| router.poll_event()).any(|event| refused(&event)));
    assert_eq!(router.table.way(NodeId(5)), None);
}

#[test]
fn a_slow_destination_stops_nobody_else() {
    let now = Instant::ZERO;
    let settings = Settings { incarnation: Incarnation(1), buffer: 16 << 20, patience: PATIENCE };
    let mut router = Router::new(settings);
    for id in 1..=3u8 {
        let neighbour = Neighbour { end: node(id), incarnation: Incarnation(10) };
        router.handle_link_up(now, LinkId(id.into()), neighbour);
        while router.poll_packet(LinkId(id.into())).is_some() {}
    }
    let data = Bytes::from(vec![7; 60_000]);
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
    let body = Body::Write { progress, sequence: Sequence(0), at: Location::memory(0), data };
    let to = |destination| frame(&wire(&Packet { body: body.clone(), ..confirm(1, destination) }));
    let (slow, fast) = (to(2), to(3));
    while router.poll_packet(LinkId(3)).is_some() {}
    for _ in 0..1000 {
        router.handle_packet(now, LinkId(1), &slow);
        router.handle_packet(now, LinkId(1), &fast);
        assert!(
            router.poll_packet(LinkId(3)).is_some(),
            "nothing waits behind what the slow one does not take"
        );
    }
    assert!(router.buffered() <= 6 << 20);
    assert!(router.counters().overflowed > 800);
    router.handle_link_down(now, LinkId(2));
    assert_eq!(router.buffered(), 0);
}

#[test]
fn however_many_flood_a_newcomer_has_room_for_a_window() {
    let now = Instant::ZERO;
    let mut router =
        Router::new(Settings { incarnation: Incarnation(1), buffer: 64 << 20, patience: PATIENCE });
    for (link, end) in [(1, super::End::Router), (2, node(2)), (3, node(3))] {
        router.handle_link_up(now, LinkId(link), Neighbour { end, incarnation: Incarnation(10) });
    }
    let flooding = 10..60u8;
    let route = |node| Route { node: NodeId(node), distance: 1, incarnation: Incarnation(1) };
    let body = Body::Routes(Routes::new(flooding.clone().map(route)));
    router.handle_packet(
        now,
        LinkId(1),
        &frame(&wire(&Packet::between(Identity::Router, NodeId(0), Incarnation(10), body))),
    );
    while router.poll_packet(LinkId(2)).is_some() {}
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
    let write = |source, sequence, len| {
        let data = Bytes::from(vec![source; len]);
        let body = Body::Write { progress, sequence: Sequence(sequence), at: Location::memory(0), data };
        frame(&wire(&Packet { body, ..confirm(source, 2) }))
    };
    // They take turns, so that all of them hold the same.
    for round in 0..40 {
        for source in flooding.clone() {
            router.handle_packet(now, LinkId(1), &write(source, round, 60_000));
        }
    }
    assert!(router.buffered() > 63 << 20 && router.counters().overflowed > 800);
    let before = router.counters();
    for sequence in 0..256 {
        router.handle_packet(now, LinkId(3), &write(3, sequence, 4096));
        assert!(router.buffered() <= 64 << 20);
    }
    // Nor does it lose that when they go on.
    for round in 0..40 {
        for source in flooding.clone() {
            router.handle_packet(now, LinkId(1), &write(source, round, 60_000));
        }
    }
    let mut next = 0;
    while let Some(packet) = router.poll_packet(LinkId(2)) {
        if let Packet { source: NodeId(3), body: Body::Write { sequence, .. }, .. } = frame(&packet).packet {
            assert_eq!(sequence, Sequence(next));
            next += 1;
        }
    }
    assert_eq!((next, router.buffered()), (256, 0));
    let counters = router.counters();
    assert_eq!(
        counters.forwarded + counters.overflowed,
        before.forwarded + before.overflowed + 256 + 40 * 50
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is linked and cut, once it rests every router knows the shortest way to each node, and packets take it.
    #[test]
    fn networks_come_to_rest_with_the_shortest_ways(
        seed in any::<u64>(),
        routers in 1usize..8,
        changes in proptest::collection::vec((0usize..8, 0usize..8, any::<bool>(), 0usize..40), 1..40),
        homes in proptest::collection::vec(0usize..8, 1..10),
    ) {
        let mut network = Network::new(routers, seed);
        let mut nodes = BTreeMap::new();
        for (home, id) in homes.iter().zip(0u8..) {
            nodes.insert(id, network.join(End::Router(home % routers), End::Node(id), 11));
        }
        for (a, b, cut, steps) in changes {
            let (a, b) = (a % routers, b % routers);
            let between: Vec<LinkId> = network
                .links
                .iter()
                .filter(|(_, link)| link.ends == [End::Router(a), End::Router(b)])
                .map(|(&id, _)| id)
                .collect();
            if cut {
                if let Some(&link) = between.first() {
                    network.cut(link);
                }
            } else if a != b {
                network.join(End::Router(a), End::Router(b), 0);
            }
            for _ in 0..steps {
                network.step();
            }
        }
        network.settle();
        network.wait(PATIENCE);
        prop_assert!(network.refused.is_empty());
        network.check(&nodes);
    }
}
