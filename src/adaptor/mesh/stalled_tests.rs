//! A peer that reads nothing: the link takes no packets, and timers go on all the same.

use core::time::Duration;

use super::limits::{WINDOW_BYTES, Window};
use super::packet::{Body, Incarnation, Packet, Progress, Stamp};
use super::sequence::{Epoch, Sequence};
use super::versions::Versions;
use super::{Mesh, Ticket, Timing, Wanted};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, NodeId};
use crate::adaptor::channel::Channel;
use crate::adaptor::event::Event;
use crate::adaptor::memory::{MemoryFault, Source};
use crate::adaptor::random::Random;
use crate::adaptor::status::Code;
use crate::adaptor::transaction::Content;

pub(super) const NODE: NodeId = NodeId(1);
pub(super) const PEER: NodeId = NodeId(2);
pub(super) const LIFE: Incarnation = Incarnation(11);
const PEER_LIFE: Incarnation = Incarnation(22);
pub(super) const KEEPALIVE: Duration = Duration::from_secs(2);

pub(super) fn no_memory(_: &Source) -> Result<Content, MemoryFault> {
    Err(MemoryFault::Unmapped)
}

pub(super) fn start() -> Instant {
    Instant::ZERO.after(Duration::from_secs(1))
}

/// A node whose link to the peer is open.
pub(super) fn linked() -> Mesh {
    let timing = Timing {
        deadline: Duration::from_millis(500),
        lease: Duration::from_millis(150),
        keepalive: KEEPALIVE,
    };
    let peers = [PEER].into_iter().collect();
    let mut mesh = Mesh::new(NODE, LIFE, peers, timing, Window::default(), &mut Random::new(1));
    mesh.handle_link_up(start(), PEER);
    mesh
}

pub(super) fn from_peer(body: Body) -> Packet {
    let (source, destination) = (PEER, NODE);
    Packet {
        source,
        destination,
        source_incarnation: PEER_LIFE,
        destination_incarnation: LIFE,
        channel: Channel::Small,
        body,
    }
}

/// The peer proves its life, and names this version of its inventory.
pub(super) fn prove(mesh: &mut Mesh, now: Instant, inventory: u32) {
    let hello = mesh.poll_packet(now, PEER, &mut no_memory);
    let Some(Packet { body: Body::Hello { nonce, .. }, .. }) = hello else { panic!("{hello:?}") };
    let epoch = Epoch(0);
    let answer =
        Body::Hello { versions: Versions::OWN, epoch, nonce: 0, echo: nonce, lease: 150_000, inventory };
    mesh.handle_packet(now, PEER, from_peer(answer));
    assert!(mesh.peer(PEER).is_some_and(|peer| peer.up));
}

/// The peer proves its life, then sends a write without a lease, and takes nothing any more.
pub(super) fn stalled_with_a_write() -> Mesh {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    let (epoch, sequence) = (Epoch(0), Sequence(0));
    let progress = Progress { epoch, acknowledge: sequence, echo: Stamp(0) };
    let write = Body::Write { progress, sequence, at: Location::memory(0), data: vec![1].into() };
    mesh.handle_packet(start(), PEER, from_peer(write));
    mesh
}

/// Goes from timer to timer until the link is to be cut.
fn time_to_cut(mut mesh: Mesh) -> Duration {
    let mut now = start();
    loop {
        while let Some(event) = mesh.poll_event() {
            if event == Event::CutLink(PEER) {
                return now.since(start());
            }
        }
        let at_once = mesh.poll_timeout().expect("a link has a timer").max(now);
        mesh.handle_timeout(at_once);
        let next = mesh.poll_timeout().expect("a link has a timer");
        assert!(next > at_once, "what was done at {at_once:?} is not due again at once");
        now = at_once;
    }
}

#[test]
fn a_peer_that_never_reads_is_cut_in_time_and_without_a_busy_loop() {
    assert!(time_to_cut(linked()) <= KEEPALIVE);
}

#[test]
fn hellos_that_are_sent_for_other_reasons_do_not_cut_a_link_with_a_long_way() {
    let mut mesh = stalled_with_a_write();
    let mut hellos = 0;
    for version in 1..100 {
        // A guest exports window after window, and all that is under way to the peer is of its earlier life.
        let now = start().after(Duration::from_millis(u64::from(version)));
        mesh.set_inventory_version(now, version);
        mesh.handle_packet(
            now,
            PEER,
            Packet { source_incarnation: Incarnation(23), ..from_peer(Body::Inquire) },
        );
        mesh.handle_timeout(now);
        let packets = core::iter::from_fn(|| mesh.poll_packet(now, PEER, &mut no_memory));
        hellos += packets.filter(|packet| matches!(packet.body, Body::Hello { .. })).count();
        let cut = core::iter::from_fn(|| mesh.poll_event()).any(|event| event == Event::CutLink(PEER));
        assert!(!cut, "after {version} ms");
    }
    assert!((15..25).contains(&hellos), "{hellos}");
    assert!(time_to_cut(mesh) <= KEEPALIVE);
}

#[test]
fn a_peer_that_stops_reading_with_a_write_under_way_is_cut_in_time_and_without_a_busy_loop() {
    assert!(time_to_cut(stalled_with_a_write()) <= KEEPALIVE);
}

#[test]
fn a_lease_that_was_to_be_asked_for_is_asked_for_when_the_link_takes_packets_again() {
    let mut mesh = stalled_with_a_write();
    mesh.handle_timeout(start());
    let now = start().after(Duration::from_millis(1));
    let asked = core::iter::from_fn(|| mesh.poll_packet(now, PEER, &mut no_memory))
        .any(|p| matches!(p.body, Body::Ask { .. }));
    assert!(asked);
}

#[test]
fn an_answer_that_was_not_sent_cannot_be_acknowledged() {
    let mut mesh = stalled_with_a_write();
    // A write, which is never executed.
    while mesh.poll_inbound().is_some() {}
    let mut executed = 0;
    for n in 0..1000 {
        let progress = Progress { epoch: Epoch(1), acknowledge: Sequence(n), echo: Stamp(0) };
        let read = Body::Read { progress, sequence: Sequence(n), at: Location::memory(0), len: 0x1_0000 };
        mesh.handle_packet(start(), PEER, from_peer(read));
        while let Some(wanted) = mesh.poll_inbound() {
            let Wanted::Request(request) = wanted else { continue };
            let ticket = Ticket::from_bits(request.ticket);
            mesh.answer(request.origin, ticket, Code::Ok, vec![0; 0x1_0000].into());
            executed += request.kind.len();
        }
    }
    assert_eq!(executed, WINDOW_BYTES);
}

/// The state of the generator that gave this number last.
fn state_from(mut z: u64) -> u64 {
    let unshift = |z: u64, by: u32| (0..64 / by).fold(z, |y, _| z ^ y >> by);
    let inverse = |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))));
    z = unshift(z, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    z = unshift(z, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(z, 30)
}

#[test]
fn a_nonce_does_not_give_away_the_next() {
    let mut random = Random::new(99);
    let mut copy = Random::new(state_from(random.next()));
    assert_eq!(copy.next(), random.next(), "the generator can be read from one number");
    let mut mesh = linked();
    let mut nonce = |now| {
        mesh.handle_link_up(now, PEER);
        match mesh.poll_packet(now, PEER, &mut no_memory) {
            Some(Packet { body: Body::Hello { nonce, .. }, .. }) => nonce,
            other => panic!("{other:?}"),
        }
    };
    let (first, second) = (nonce(start()), nonce(start().after(KEEPALIVE)));
    let mut guess = Random::new(state_from(first));
    assert!((0..4).all(|_| guess.next() != second));
}
