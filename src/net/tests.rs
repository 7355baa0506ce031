//! Real sockets on loopback, driven by one thread in an order drawn from a seed and in made-up time.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use bytes::Bytes;

mod hostile;
mod refused;
mod routers;
mod spans;
mod tls;

use super::{Company, Credentials, LinkEvent, Links, Settings};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, NodeId};
use crate::adaptor::channel::Channel;
use crate::adaptor::mesh::neighbour::{End, Identity, LinkId, Neighbour, Refusal, Role};
use crate::adaptor::mesh::packet::{Body, HEADER_LEN, Incarnation, Packet, Progress, Stamp};
use crate::adaptor::mesh::sequence::{Epoch, Sequence};
use crate::adaptor::mesh::versions::Versions;
use crate::adaptor::random::Random;
use crate::poller::{Poller, Reports, Token};

const FIRST_TOKEN: Token = Token(16);
const LOW: NodeId = NodeId(1);
const HIGH: NodeId = NodeId(2);

fn packet(source: NodeId, destination: NodeId, body: Body) -> Packet {
    let (source_incarnation, destination_incarnation) = (Incarnation(1), Incarnation(0));
    Packet { source, destination, source_incarnation, destination_incarnation, channel: Channel::Small, body }
}

fn hello(source: NodeId, destination: NodeId) -> Packet {
    let body =
        Body::Hello { versions: Versions::OWN, epoch: Epoch(0), nonce: 1, echo: 0, lease: 0, inventory: 0 };
    packet(source, destination, body)
}

/// A first packet of `source` in its life `life`.
fn join(source: NodeId, destination: NodeId, life: u64) -> Packet {
    let body = Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: true };
    Packet::between(Identity::Node(source), destination, Incarnation(life), body)
}

fn write(source: NodeId, destination: NodeId, sequence: u32, data: Bytes) -> Packet {
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
    packet(
        source,
        destination,
        Body::Write { progress, sequence: Sequence(sequence), at: Location::memory(0), data },
    )
}

fn wire(packet: &Packet) -> Vec<u8> {
    let mut wire = Vec::new();
    packet.emit(&mut wire);
    wire
}

/// Gives every test loopback addresses of its own: 127.X.Y.node.
fn address(test: u8, node: NodeId) -> SocketAddr {
    let run = std::process::id().to_le_bytes();
    SocketAddr::from(([127, 128 | run[0], test, node.0], 40_000 + u16::from(run[1])))
}

/// A node: its links and a stand-in for the core, which says Hello on each new link.
struct Side {
    node: NodeId,
    settings: Settings,
    poller: Rc<Poller>,
    links: Links,
    reports: Reports,
    nodes: BTreeMap<LinkId, NodeId>,
    outbox: BTreeMap<NodeId, VecDeque<Packet>>,
    received: Vec<Packet>,
    ups: usize,
    /// What was said about this node's id being somebody else's.
    duplicate: Vec<bool>,
}

impl Side {
    fn new(now: Instant, settings: Settings) -> Self {
        let poller = Rc::new(Poller::new().unwrap());
        let links = Links::new(now, &poller, settings.clone(), FIRST_TOKEN).unwrap();
        Self {
            node: settings.own.identity().id(),
            settings,
            poller,
            links,
            reports: Reports::default(),
            nodes: BTreeMap::new(),
            outbox: BTreeMap::new(),
            received: Vec::new(),
            ups: 0,
            duplicate: Vec::new(),
        }
    }

    fn at(now: Instant, test: u8, node: NodeId, peers: &[(NodeId, Option<SocketAddr>)]) -> Self {
        Self::secured(now, test, node, peers, None)
    }

    fn secured(
        now: Instant,
        test: u8,
        node: NodeId,
        peers: &[(NodeId, Option<SocketAddr>)],
        credentials: Option<Credentials>,
    ) -> Self {
        let own = Neighbour { end: End::node(node), incarnation: Incarnation(node.0.into()) };
        let settings = Settings {
            own,
            listen: Some(address(test, node)),
            company: Company::Nodes(peers.iter().copied().collect()),
            routers: Vec::new(),
            keepalive: Duration::from_secs(2),
            congestion: None,
            credentials,
            seed: u64::from(node.0),
        };
        Self::new(now, settings)
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.outbox.contains_key(&node)
    }

    /// One turn, with at most `reports` reports.
    fn turn(&mut self, now: Instant, reports: usize) {
        self.look();
        self.act(now, reports);
    }

    /// The first half of a turn: finds out what is ready.
    fn look(&mut self) {
        self.poller.wait(&mut self.reports, Some(Duration::ZERO)).unwrap();
    }

    /// The second half: works on that, whatever has happened since.
    fn act(&mut self, now: Instant, reports: usize) {
        for report in self.reports.iter().take(reports) {
            self.links.handle_report(now, report);
        }
        self.links.handle_timeout(now);
        while let Some(event) = self.links.poll_event(now) {
            match event {
                LinkEvent::Up(link, neighbour) => {
                    let node = neighbour.identity().id();
                    self.nodes.insert(link, node);
                    let queue = VecDeque::from([hello(self.node, node)]);
                    assert!(self.outbox.insert(node, queue).is_none(), "a second link to {node}");
                    self.ups += 1;
                }
                LinkEvent::Duplicate(duplicate) => self.duplicate.push(duplicate),
                LinkEvent::Down(link) => {
                    let node = self.nodes.remove(&link).unwrap();
                    assert!(self.outbox.remove(&node).is_some(), "no link to {node} to lose");
                }
                LinkEvent::Packet(link, frame) => {
                    assert!(self.nodes.contains_key(&link), "a packet without a link");
                    assert_eq!(frame.wire, wire(&frame.packet));
                    self.received.push(frame.packet);
                }
                LinkEvent::Corrupt(_) => panic!("corrupt"),
            }
        }
        let (outbox, nodes) = (&mut self.outbox, &self.nodes);
        self.links.transmit(|link, out| {
            let packet = outbox.get_mut(&nodes[&link]).unwrap().pop_front();
            packet.map(|packet| packet.emit(out)).is_some()
        });
    }

    fn cut(&mut self, now: Instant, node: NodeId) {
        if let Some((&link, _)) = self.nodes.iter().find(|&(_, &there)| there == node) {
            self.links.cut(now, link, "for the test");
        }
    }
}

/// Two nodes in one world.
struct World {
    now: Instant,
    random: Random,
    sides: [Side; 2],
}

impl World {
    /// Both nodes listen and dial.
    fn new(test: u8, seed: u64) -> Self {
        Self::secured(test, seed, [None, None])
    }

    /// The same, each with its credentials.
    fn secured(test: u8, seed: u64, [low, high]: [Option<Credentials>; 2]) -> Self {
        let now = Instant::ZERO;
        let low = Side::secured(now, test, LOW, &[(HIGH, Some(address(test, HIGH)))], low);
        let high = Side::secured(now, test, HIGH, &[(LOW, Some(address(test, LOW)))], high);
        Self { now, random: Random::new(seed), sides: [low, high] }
    }

    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.random.next() % limit).unwrap()
    }

    /// Half a turn of a random side after a random time of up to `millis`.
    fn step(&mut self, millis: u64) {
        let micros = self.random.next() % (millis * 1000 + 1);
        self.now = self.now.after(Duration::from_micros(micros));
        let (side, reports) = (self.below(2), self.below(4));
        if self.below(2) == 0 {
            self.sides[side].look();
        } else {
            self.sides[side].act(self.now, reports);
        }
    }

    /// Whether both sides have one and the same connection and nothing besides.
    fn is_joined(&self) -> bool {
        let [low, high] = &self.sides;
        let ends = low.links.ends();
        let joined = low.is_up(HIGH) && high.is_up(LOW) && ends.len() == 1;
        joined && high.links.ends().iter().map(|&(local, remote)| (remote, local)).eq(ends)
    }

    /// Steps until both are joined, and on for three seconds in which nothing changes.
    fn join(&mut self, seed: u64) {
        let begin = self.now;
        while !self.is_joined() {
            self.step(10);
            let took = self.now.since(begin);
            assert!(took < Duration::from_secs(10), "seed {seed}: no link after {took:?}");
        }
        let (joined, ups) = (self.now, self.ups());
        while self.now.since(joined) < Duration::from_secs(3) {
            self.step(50);
        }
        assert!(self.is_joined() && self.ups() == ups, "seed {seed}: the link does not stay");
    }

    fn ups(&self) -> usize {
        self.sides.iter().map(|side| side.ups).sum()
    }

    fn restart(&mut self, side: usize) {
        let mut settings = self.sides[side].settings.clone();
        settings.own.incarnation.0 += 1000;
        // The port has to be free before it is taken again.
        let poller = Rc::new(Poller::new().unwrap());
        let none = Settings { listen: None, ..settings.clone() };
        self.sides[side].links = Links::new(self.now, &poller, none, FIRST_TOKEN).unwrap();
        self.sides[side] = Side::new(self.now, settings);
    }
}

#[test]
fn both_dialing_at_once_end_with_one_link() {
    dial_at_once(300, |seed| World::new(1, seed));
}

fn dial_at_once(seeds: u64, world: impl Fn(u64) -> World) {
    let mut most = 0;
    for seed in 0..seeds {
        let mut world = world(seed);
        // Without the higher node's patience, so that they do meet.
        world.sides[1].links.dial_now(world.now);
        world.join(seed);
        most = most.max(world.ups());
    }
    // A link each, and one more where the higher node gave up its own.
    assert!(most <= 4, "{most} links to agree on one");
}

#[test]
fn whatever_breaks_they_come_together_again() {
    break_things(100, |seed| World::new(2, seed));
}

fn break_things(seeds: u64, world: impl Fn(u64) -> World) {
    for seed in 0..seeds {
        let mut world = world(seed);
        for _ in 0..8 {
            for _ in 0..world.below(60) {
                world.step(5);
            }
            let side = world.below(2);
            match world.below(4) {
                0 => world.restart(side),
                1 => {
                    world.restart(0);
                    world.restart(1);
                }
                _ => {
                    let now = world.now;
                    let node = world.sides[1 - side].node;
                    world.sides[side].cut(now, node);
                }
            }
        }
        world.join(seed);
    }
}

#[test]
fn an_address_that_leads_nowhere_does_not_keep_the_peer_out() {
    let mut now = Instant::ZERO;
    // Connections are made there, and nothing comes.
    let silent = TcpListener::bind(address(3, NodeId(9))).unwrap();
    let mut low = Side::at(now, 3, LOW, &[(HIGH, Some(silent.local_addr().unwrap()))]);
    let mut high = Side::at(now, 3, HIGH, &[(LOW, Some(address(3, LOW)))]);
    let joined = |low: &Side, high: &Side| high.received.len() == 1 && low.received.len() == 1;
    while !joined(&low, &high) {
        now = now.after(Duration::from_millis(10));
        low.turn(now, 10);
        high.turn(now, 10);
        assert!(now.since(Instant::ZERO) < Duration::from_secs(10), "no link");
    }
}

#[test]
fn a_peer_without_address_connects_to_us() {
    let mut now = Instant::ZERO;
    let mut low = Side::at(now, 4, LOW, &[(HIGH, None)]);
    let mut high = Side::at(now, 4, HIGH, &[(LOW, Some(address(4, LOW)))]);
    for _ in 0..100 {
        now = now.after(Duration::from_millis(10));
        low.turn(now, 10);
        high.turn(now, 10);
    }
    assert_eq!(low.received, [hello(HIGH, LOW)]);
    assert_eq!(high.received, [hello(LOW, HIGH)]);
}

#[test]
fn a_peer_that_is_away_is_dialed_a_few_times_only() {
    let mut now = Instant::ZERO;
    let mut low = Side::at(now, 5, LOW, &[(HIGH, Some(address(5, HIGH)))]);
    let mut turns = 0;
    while now.since(Instant::ZERO) < Duration::from_secs(60) {
        low.turn(now, 10);
        // As the event loop does: sleep until there is something to do.
        let next = low.links.poll_timeout().unwrap();
        now = next.max(now.after(Duration::from_millis(1)));
        turns += 1;
    }
    assert!((30..200).contains(&turns), "{turns} turns in a minute");
    assert_eq!(low.ups, 0);
}

/// Turns of `side` over half a second, in which it closes `stranger`, or not.
fn is_closed(side: &mut Side, now: &mut Instant, stranger: &TcpStream) -> bool {
    for _ in 0..5 {
        *now = now.after(Duration::from_millis(100));
        side.turn(*now, 100);
    }
    stranger.set_nonblocking(true).unwrap();
    loop {
        match (&*stranger).read(&mut [0; 100]) {
            Ok(0) => return true,
            // Last words.
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn strangers_are_turned_away() {
    let mut now = Instant::ZERO;
    let mut side = Side::at(now, 6, LOW, &[(HIGH, None)]);
    let mut corrupt = wire(&join(HIGH, LOW, 7));
    corrupt[40] ^= 1;
    let router = Body::Join { role: Role::Router, versions: Versions::OWN, wants_reply: true };
    let router = Packet::between(Identity::Router, LOW, Incarnation(7), router);
    for (what, bytes) in [
        ("another language", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a node that is not configured", wire(&join(NodeId(3), LOW, 7))),
        ("this node itself", wire(&join(LOW, LOW, 7))),
        ("this life of another node", wire(&join(HIGH, LOW, 1))),
        ("a life without a number", wire(&join(HIGH, LOW, 0))),
        ("a Join for another node", wire(&join(HIGH, NodeId(3), 7))),
        ("a router", wire(&router)),
        ("a Hello", wire(&hello(HIGH, LOW))),
        ("a small packet that is no Join", wire(&write(HIGH, LOW, 0, Bytes::new()))),
        ("a large packet that is no Join", wire(&write(HIGH, LOW, 0, vec![1; 1000].into()))),
        ("a corrupt Join", corrupt),
    ] {
        let mut stranger = TcpStream::connect(address(6, LOW)).unwrap();
        stranger.write_all(&bytes).unwrap();
        assert!(is_closed(&mut side, &mut now, &stranger), "{what}");
        assert_eq!(side.ups, 0, "{what}");
    }
    // Half a Join is given time, but not for ever.
    let mut slow = TcpStream::connect(address(6, LOW)).unwrap();
    slow.write_all(&wire(&join(HIGH, LOW, 7))[..HEADER_LEN / 2]).unwrap();
    assert!(!is_closed(&mut side, &mut now, &slow));
    assert!((0..4).any(|_| is_closed(&mut side, &mut now, &slow)));
    // A Join that comes in two parts is as good as another.
    let mut guest = TcpStream::connect(address(6, LOW)).unwrap();
    guest.write_all(&wire(&join(HIGH, LOW, 7))[..10]).unwrap();
    assert!(!is_closed(&mut side, &mut now, &guest));
    guest.write_all(&wire(&join(HIGH, LOW, 7))[10..]).unwrap();
    assert!(!is_closed(&mut side, &mut now, &guest));
    assert!(side.is_up(HIGH));
}

#[test]
fn strangers_are_few() {
    let mut now = Instant::ZERO;
    let mut side = Side::at(now, 7, LOW, &[(HIGH, None)]);
    let strangers: Vec<_> = (0..300)
        .map(|_| {
            let stranger = TcpStream::connect(address(7, LOW)).unwrap();
            now = now.after(Duration::from_micros(1));
            side.turn(now, 10);
            stranger
        })
        .collect();
    assert_eq!(side.links.ends().len(), 256);
    assert!(is_closed(&mut side, &mut now, &strangers[0]));
    assert!(!is_closed(&mut side, &mut now, &strangers[299]));
}

#[test]
fn a_dialed_node_must_be_the_one_that_was_meant() {
    let mut now = Instant::ZERO;
    let mut low = Side::at(now, 8, LOW, &[(HIGH, Some(address(8, NodeId(3))))]);
    let other = TcpListener::bind(address(8, NodeId(3))).unwrap();
    low.turn(now, 10);
    low.turn(now, 10);
    let (mut stream, _) = other.accept().unwrap();
    assert_eq!(next_packet(&mut stream), join(LOW, HIGH, 1));
    stream.write_all(&wire(&join(NodeId(3), LOW, 7))).unwrap();
    now = now.after(Duration::from_millis(1));
    low.turn(now, 10);
    assert!(!low.is_up(HIGH) && low.ups == 0 && low.received.is_empty());
    let refuse = Body::Refuse { reason: Refusal::WrongIdentity };
    assert_eq!(next_packet(&mut stream).body, refuse);
}

/// The next packet without payload on a stream of the test's own.
fn next_packet(stream: &mut TcpStream) -> Packet {
    let mut bytes = [0; HEADER_LEN];
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    Packet::parse(Bytes::copy_from_slice(&bytes)).unwrap()
}

/// A connection of the test's own that claims to be `node` in its life `life`.
fn claim(side: &mut Side, now: Instant, to: SocketAddr, node: NodeId, life: u64) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(&wire(&join(node, side.node, life))).unwrap();
    for _ in 0..3 {
        side.turn(now, 100);
    }
    stream
}

#[test]
fn the_first_keeps_a_node_id_while_it_gives_signs_of_life() {
    let mut now = Instant::ZERO;
    let mut side = Side::at(now, 10, LOW, &[(HIGH, None)]);
    let to = address(10, LOW);
    let mut first = claim(&mut side, now, to, HIGH, 7);
    assert_eq!(
        next_packet(&mut first),
        Packet {
            body: Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: false },
            ..join(LOW, HIGH, 1)
        }
    );
    assert_eq!(next_packet(&mut first), hello(LOW, HIGH));
    // Another life claims to be it: the first is asked, answers, and stays.
    let mut second = claim(&mut side, now, to, HIGH, 8);
    assert_eq!(next_packet(&mut first), join(LOW, HIGH, 1));
    let alive = Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: false };
    first.write_all(&wire(&Packet { body: alive, ..join(HIGH, LOW, 7) })).unwrap();
    side.turn(now, 100);
    assert_eq!(next_packet(&mut second).body, Body::Refuse { reason: Refusal::Duplicate });
    assert!(is_closed(&mut side, &mut now, &second) && side.ups == 1);
    // The same life is let in at once, wherever it comes from.
    let mut again = claim(&mut side, now, to, HIGH, 7);
    assert_eq!(
        next_packet(&mut again).body,
        Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: false }
    );
    assert_eq!(side.ups, 2);
    // Without a sign of life from the holder, the claim wins within a quarter of the keepalive time.
    let mut third = claim(&mut side, now, to, HIGH, 9);
    assert_eq!(side.ups, 2);
    now = now.after(Duration::from_millis(501));
    side.turn(now, 100);
    side.turn(now, 100);
    assert_eq!(side.ups, 3);
    assert_eq!(
        next_packet(&mut third).body,
        Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: false }
    );
    // Nobody becomes another one on its link.
    assert!(side.is_up(HIGH));
    third.write_all(&wire(&join(HIGH, LOW, 10))).unwrap();
    assert!(is_closed(&mut side, &mut now, &third) && !side.is_up(HIGH));
}

#[test]
fn who_is_refused_as_a_duplicate_knows_and_comes_back_slowly() {
    let mut now = Instant::ZERO;
    let listener = TcpListener::bind(address(11, HIGH)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut low = Side::at(now, 11, LOW, &[(HIGH, Some(address(11, HIGH)))]);
    let mut dials = 0;
    while now.since(Instant::ZERO) < Duration::from_secs(20) {
        low.turn(now, 10);
        if let Ok((mut stream, _)) = listener.accept() {
            dials += 1;
            let refuse = Body::Refuse { reason: Refusal::Duplicate };
            stream.write_all(&wire(&packet(HIGH, LOW, refuse))).unwrap();
        }
        now = now.after(Duration::from_millis(10));
    }
    assert!((10..=20).contains(&dials), "{dials} attempts in 20 s");
    assert_eq!(low.duplicate, [true]);
    let mut stream = loop {
        low.turn(now, 10);
        now = now.after(Duration::from_millis(10));
        if let Ok((stream, _)) = listener.accept() {
            break stream;
        }
    };
    stream.write_all(&wire(&join(HIGH, LOW, 7))).unwrap();
    low.turn(now, 10);
    low.turn(now, 10);
    assert_eq!(low.duplicate, [true, false]);
    assert!(low.is_up(HIGH));
}

#[test]
fn a_silent_link_is_cut_after_the_keepalive_time_and_one_with_answers_is_not() {
    let mut now = Instant::ZERO;
    let mut side = Side::at(now, 12, LOW, &[(HIGH, None)]);
    let mut silent = claim(&mut side, now, address(12, LOW), HIGH, 7);
    next_packet(&mut silent);
    next_packet(&mut silent);
    let mut asked = 0;
    let begin = now;
    // Answers for five seconds, then no more.
    while side.is_up(HIGH) {
        now = side.links.poll_timeout().unwrap().max(now.after(Duration::from_millis(1)));
        side.turn(now, 10);
        silent.set_nonblocking(true).unwrap();
        if now.since(begin) < Duration::from_secs(5) && silent.peek(&mut [0]).is_ok() {
            assert_eq!(next_packet(&mut silent), join(LOW, HIGH, 1));
            asked += 1;
            let alive = Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: false };
            silent.write_all(&wire(&Packet { body: alive, ..join(HIGH, LOW, 7) })).unwrap();
            side.turn(now, 10);
        }
    }
    assert!((8..=10).contains(&asked), "{asked}");
    let took = now.since(begin);
    assert!((Duration::from_secs(6)..=Duration::from_millis(7100)).contains(&took), "{took:?}");
}

#[test]
fn bulk_arrives_whole_and_in_order_through_full_sockets() {
    send_bulk(World::new(9, 1));
}

fn send_bulk(mut world: World) {
    world.join(1);
    let expected: Vec<_> = (0..2000u32)
        .map(|n| {
            let len = usize::try_from(n * 7919 % 60_000).unwrap();
            write(LOW, HIGH, n, vec![n.to_le_bytes()[0]; len].into())
        })
        .collect();
    world.sides[0].outbox.get_mut(&HIGH).unwrap().extend(expected.iter().cloned());
    world.sides[1].received.clear();
    // The receiver is slower than the sender, so that the socket is full most of the time.
    let mut turns = 0;
    while world.sides[1].received.len() < expected.len() {
        world.sides[0].turn(world.now, 10);
        world.sides[0].turn(world.now, 10);
        world.sides[1].turn(world.now, 10);
        turns += 1;
        assert!(turns < 1_000_000, "stuck");
    }
    assert!(world.sides[1].received == expected);
    // What was sent before a close is still delivered.
    world.sides[0].outbox.get_mut(&HIGH).unwrap().push_back(expected[5].clone());
    world.sides[0].turn(world.now, 10);
    world.sides[0].cut(world.now, HIGH);
    world.sides[1].turn(world.now, 10);
    world.sides[1].turn(world.now, 10);
    assert_eq!(world.sides[1].received.last(), Some(&expected[5]));
    assert!(!world.sides[1].is_up(LOW));
}
