//! Clients and peers that break the rules, against real processes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use assured_rdma::adaptor::address::{Location, NodeId};
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::mesh::batch::Collector;
use assured_rdma::adaptor::mesh::framing::Framer;
use assured_rdma::adaptor::mesh::neighbour::Role;
use assured_rdma::adaptor::mesh::packet::{Body, Incarnation, Packet, Progress, Stamp};
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};
use assured_rdma::adaptor::mesh::versions::Versions;
use assured_rdma::adaptor::transaction::RequestKind;

use super::BUFFER;
use super::fairness::longest_load;
use super::guest::{Guest, READ};
use super::node::{Node, PATIENCE, Place};

const REGION_READ: u16 = 9;
const ACCESS: u32 = 2;

fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap();
    let mut bytes = [1u16.to_le_bytes(), command.to_le_bytes()].concat();
    for word in [size, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

fn load(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let body = [&offset.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes()].concat();
    message(REGION_READ, &body)
}

/// A client that has introduced itself.
fn client(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&message(1, b"\0\0\0\0{}\0")).unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let size = u32::from_le_bytes(header[4..8].try_into().unwrap());
    stream.read_exact(&mut vec![0; size as usize - 16]).unwrap();
    stream
}

/// The part of a processor's time that the process uses in the next second.
fn load_of(node: &Node) -> f64 {
    let begin = (Instant::now(), node.processor_time());
    thread::sleep(Duration::from_secs(1));
    (node.processor_time() - begin.1).as_secs_f64() / begin.0.elapsed().as_secs_f64()
}

/// Sends until the other side takes nothing more.
fn fill(stream: &mut UnixStream, message: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    let mut idle = 0;
    while idle < 20 {
        if stream.write(message).is_ok_and(|len| len > 0) {
            idle = 0;
        } else {
            idle += 1;
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_client_that_takes_no_answers_and_closes_half_of_its_socket_costs_no_processor_time() {
    let place = Place::new();
    let mut node = place.start(1, &[], &["--peer", "2"]);
    let mut stream = client(&place.socket(1));
    fill(&mut stream, &load(ACCESS, 0, 1 << 20));
    assert!(load_of(&node) < 0.1);
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let load = load_of(&node);
    assert!(load < 0.1, "{load}");
    node.wait_for("guest detached");
    drop(client(&place.socket(1)));
}

#[test]
fn a_client_that_asks_much_at_once_gets_every_answer() {
    const REGION_INFO: u16 = 5;
    const QUESTIONS: usize = 4000;
    let place = Place::new();
    // An adaptor that sleeps as soon as it has nothing to do, and whom nothing but its guest wakes.
    let _node = place.start(1, &[], &["--peer", "2", "--poll", "0s"]);
    let mut stream = client(&place.socket(1));
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut asked = [0; 32];
    asked[..4].copy_from_slice(&32u32.to_le_bytes());
    stream.write_all(&message(REGION_INFO, &asked).repeat(QUESTIONS)).unwrap();
    let mut answers = vec![0; QUESTIONS * 48];
    stream.read_exact(&mut answers).expect("every question is answered");
}

#[test]
fn clients_that_are_turned_away_again_and_again_hold_up_no_load() {
    let place = Place::new();
    let mut node = place.start(1, &[], &["--peer", "2"]);
    let mut guest = Guest::attach(&place.socket(1));
    let end = Instant::now() + Duration::from_secs(2);
    let flood = || while Instant::now() < end && UnixStream::connect(place.socket(1)).is_ok() {};
    thread::scope(|scope| {
        scope.spawn(flood);
        scope.spawn(flood);
        while Instant::now() < end {
            let begin = Instant::now();
            guest.register(0);
            let waited = begin.elapsed();
            assert!(waited < Duration::from_millis(500), "{waited:?}");
        }
    });
    node.wait_for("turned away");
    let lines = node.log().iter().filter(|line| line.contains("turned away")).count();
    assert!(lines < 40, "{lines} lines");
}

#[test]
fn a_guest_that_resets_again_and_again_does_not_fill_the_log() {
    let place = Place::new();
    let mut node = place.start(1, &[], &["--peer", "2"]);
    let mut guest = Guest::attach(&place.socket(1));
    let before = guest.incarnation();
    for _ in 0..2000 {
        guest.reset();
    }
    assert_ne!(guest.incarnation(), before);
    node.wait_for("reset, now");
    assert!(node.log().len() < 500, "{} lines", node.log().len());
}

/// Another node as far as its Join and its Hello go.
struct Peer {
    stream: TcpStream,
    framer: Framer,
    victim: Incarnation,
}

impl Peer {
    const ID: NodeId = NodeId(2);
    const SELF: Incarnation = Incarnation(0xbad);

    fn connect(place: &Place) -> Self {
        let stream = TcpStream::connect(place.address(1)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer = Self { stream, framer: Framer::default(), victim: Incarnation(0) };
        peer.send(&[Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: true }]);
        assert!(matches!(peer.next().body, Body::Join { .. }));
        peer.send(&[Body::Hello {
            versions: Versions::OWN,
            epoch: Epoch(0),
            nonce: 7,
            echo: 0,
            lease: 150_000,
            inventory: 0,
        }]);
        loop {
            let packet = peer.next();
            peer.victim = packet.source_incarnation;
            let Body::Hello { nonce, echo, .. } = packet.body else { panic!("{packet:?}") };
            if nonce != 0 {
                let welcome = Body::Hello {
                    versions: Versions::OWN,
                    epoch: Epoch(0),
                    nonce: 0,
                    echo: nonce,
                    lease: 150_000,
                    inventory: 0,
                };
                peer.send(&[welcome]);
            }
            if echo == 7 {
                return peer;
            }
        }
    }

    fn wire(&self, bodies: &[Body]) -> Vec<u8> {
        self.wire_in(Channel::Small, bodies)
    }

    fn wire_in(&self, channel: Channel, bodies: &[Body]) -> Vec<u8> {
        let mut wire = Vec::new();
        for body in bodies {
            let packet = Packet {
                source: Self::ID,
                destination: NodeId(1),
                source_incarnation: Self::SELF,
                destination_incarnation: match body {
                    Body::Join { .. } => Incarnation(0),
                    _ => self.victim,
                },
                channel,
                body: body.clone(),
            };
            packet.emit(&mut wire);
        }
        wire
    }

    fn send(&mut self, bodies: &[Body]) {
        let wire = self.wire(bodies);
        self.stream.write_all(&wire).unwrap();
    }

    fn next(&mut self) -> Packet {
        loop {
            if let Some(packet) = self.framer.next_packet() {
                return packet.unwrap();
            }
            let mut bytes = [0; 4096];
            let len = self.stream.read(&mut bytes).unwrap();
            assert_ne!(len, 0, "the node closed the connection");
            self.framer.push(&bytes[..len]);
        }
    }
}

fn progress() -> Progress {
    Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) }
}

#[test]
fn a_peer_that_asks_and_takes_no_answers_costs_neither_processor_time_nor_memory_and_is_cut() {
    let place = Place::new();
    let mut node = place.start(1, &[], &["--peer", "2"]);
    let mut guest = Guest::attach(&place.socket(1));
    let window = guest.export(BUFFER, 0x1_0000, READ);
    let mut peer = Peer::connect(&place);
    node.wait_for("node 2: up");
    let reads: Vec<Body> = (0..16)
        .map(|n| Body::Read {
            progress: progress(),
            sequence: Sequence(n),
            at: Location::memory(window),
            len: 0x1_0000,
        })
        .collect();
    peer.send(&reads);
    // Each makes it send all answers again.
    for _ in 0..50 {
        peer.send(&[Body::Confirm { progress: progress(), sent: Sequence(16) }]);
        thread::sleep(Duration::from_millis(10));
    }
    let load = load_of(&node);
    assert!(load < 0.1, "{load}");
    assert!(node.memory() < 64 << 20, "{} bytes", node.memory());
    node.wait_for("no sign of life");
}

/// What a peer may send as often as it likes.
fn floods() -> Vec<(&'static str, Channel, Vec<Body>)> {
    let hello = |nonce| Body::Hello {
        versions: Versions::OWN,
        epoch: Epoch(0),
        nonce,
        echo: 0,
        lease: 150_000,
        inventory: 5,
    };
    let batch = |first: u32| {
        let mut requests = Collector::default();
        (0..200).for_each(|_| requests.push(Location::memory(0), &RequestKind::Read { len: 64 }));
        Body::Batch { progress: progress(), first: Sequence(first), batch: requests.finish().unwrap() }
    };
    let small = |n| Body::Write {
        progress: progress(),
        sequence: Sequence(n),
        at: Location::memory(8),
        data: vec![1; 8].into(),
    };
    let message = |n| Body::Write {
        progress: progress(),
        sequence: Sequence(n),
        at: Location::io(8),
        data: vec![1; 8].into(),
    };
    let entries = vec![1; 512 * 64];
    vec![
        ("hello", Channel::Small, vec![hello(9), hello(0)]),
        (
            "join",
            Channel::Small,
            vec![Body::Join { role: Role::NODE, versions: Versions::OWN, wants_reply: true }],
        ),
        ("inquire", Channel::Small, vec![Body::Inquire]),
        ("inventory", Channel::Small, vec![Body::Inventory { version: 5, entries: entries.into() }]),
        ("batch", Channel::Bulk, (0..8).map(|n| batch(200 * n)).collect()),
        ("small", Channel::Small, (0..64).map(small).collect()),
        ("messages", Channel::Small, (0..64).map(message).collect()),
        ("confirm", Channel::Bulk, vec![Body::Confirm { progress: progress(), sent: Sequence(1600) }]),
    ]
}

#[test]
fn a_peer_that_sends_as_much_as_it_can_holds_up_no_load() {
    let place = Place::new();
    let mut node = place.start(1, &[], &["--peer", "2", "--keepalive", "60s"]);
    let mut guest = Guest::attach(&place.socket(1));
    guest.export(BUFFER, 0x1_0000, READ);
    let mut peer = Peer::connect(&place);
    node.wait_for("node 2: up");
    let mut drain = peer.stream.try_clone().unwrap();
    thread::spawn(move || while drain.read(&mut [0; 1 << 16]).is_ok_and(|len| len > 0) {});
    let mut longest = Vec::new();
    for (what, channel, bodies) in floods() {
        let once = peer.wire_in(channel, &bodies);
        let wire = once.repeat((1 << 20) / once.len());
        let time = longest_load(&node, &mut guest, || {
            let end = Instant::now() + Duration::from_millis(300);
            while Instant::now() < end {
                peer.stream.write_all(&wire).unwrap();
            }
        });
        longest.push((what, time));
    }
    println!("{longest:?}");
    assert!(longest.iter().all(|&(_, time)| time < Duration::from_millis(50)), "{longest:?}");
}
