//! What a peer may send back as a stamp, what it may ask for and answer, and what of it counts.

use core::time::Duration;

use bytes::Bytes;

use super::packet::{Body, Packet, Progress, Stamp};
use super::sequence::{Epoch, Sequence};
use super::stalled_tests::{
    KEEPALIVE, PEER, from_peer, linked, no_memory, prove, stalled_with_a_write, start,
};
use super::versions::Versions;
use super::{Mesh, Ticket, Wanted};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, Place};
use crate::adaptor::channel::{Channel, Origin};
use crate::adaptor::event::Event;
use crate::adaptor::status::{Code, Direction};
use crate::adaptor::transaction::{Payload, Request, RequestKind, TransactionId};

const LEASE: Duration = Duration::from_millis(150);
const ORIGIN: Origin = Origin { node: PEER, channel: Channel::Small };

fn after(millis: u64) -> Instant {
    start().after(Duration::from_millis(millis))
}

fn packets(mesh: &mut Mesh, now: Instant) -> Vec<Body> {
    core::iter::from_fn(|| mesh.poll_packet(now, PEER, &mut no_memory)).map(|packet| packet.body).collect()
}

/// The peer confirms its epoch with this stamp.
fn confirm(mesh: &mut Mesh, now: Instant, stamp: u64) {
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(stamp) };
    mesh.handle_packet(now, PEER, from_peer(Body::Confirm { progress, sent: Sequence(1) }));
}

fn is_leased(mesh: &Mesh, now: Instant) -> bool {
    mesh.may_execute(now, ORIGIN, Direction::Write)
}

/// The stamp of the question for a lease that goes now.
fn asked(mesh: &mut Mesh, now: Instant) -> u64 {
    mesh.handle_timeout(now);
    let stamp = packets(mesh, now).into_iter().find_map(|body| match body {
        Body::Ask { stamp, .. } => Some(stamp.0),
        _ => None,
    });
    stamp.expect("a lease is asked for")
}

#[test]
fn a_stamp_that_was_never_given_grants_nothing() {
    for stamp in [u64::MAX, start().as_nanos() + 1, start().as_nanos() + 3_600_000_000_000, 0, 1] {
        let mut mesh = stalled_with_a_write();
        confirm(&mut mesh, start(), stamp);
        assert!(!is_leased(&mesh, start()), "stamp {stamp}");
    }
    let mut mesh = stalled_with_a_write();
    let stamp = asked(&mut mesh, after(5));
    confirm(&mut mesh, after(6), stamp);
    assert!(is_leased(&mesh, after(6)));
}

#[test]
fn a_lease_ends_a_guard_band_before_the_initiating_side_reports() {
    let mut mesh = stalled_with_a_write();
    let stamp = asked(&mut mesh, start());
    confirm(&mut mesh, after(1), stamp);
    let end = Instant::from_nanos(stamp).after(LEASE * 15 / 16);
    assert!(is_leased(&mesh, Instant::from_nanos(end.as_nanos() - 1)) && !is_leased(&mesh, end));
    // Clocks that differ by 500 ppm each, and 9 ms in which the process does not run.
    assert!(end.after(Duration::from_millis(9)) <= Instant::from_nanos(stamp).after(LEASE * 999 / 1000));
}

#[test]
fn a_stamp_of_before_the_clock_stood_still_grants_nothing_afterwards() {
    let mut mesh = stalled_with_a_write();
    let stamp = asked(&mut mesh, start());
    confirm(&mut mesh, after(1), stamp);
    assert!(is_leased(&mesh, after(2)));
    mesh.handle_clock_jump(after(2));
    assert!(!is_leased(&mesh, after(2)));
    confirm(&mut mesh, after(2), stamp);
    assert!(!is_leased(&mesh, after(2)), "the same stamp once more");
    let stamp = asked(&mut mesh, after(2));
    confirm(&mut mesh, after(3), stamp);
    assert!(is_leased(&mesh, after(3)));
}

#[test]
fn a_lease_is_asked_for_less_and_less_often_where_the_peer_is_silent() {
    let mut mesh = stalled_with_a_write();
    let mut asks = 0;
    for millis in 0..3000 {
        mesh.handle_timeout(after(millis));
        asks += packets(&mut mesh, after(millis)).iter().filter(|b| matches!(b, Body::Ask { .. })).count();
    }
    assert!((8..20).contains(&asks), "{asks} questions in 3 s");
    // A word of it, though it grants nothing, brings the next question soon.
    confirm(&mut mesh, after(3000), 0);
    mesh.handle_timeout(after(3020));
    assert!(packets(&mut mesh, after(3020)).iter().any(|body| matches!(body, Body::Ask { .. })));
}

#[test]
fn a_stamp_that_comes_back_too_late_for_a_write_that_waits_is_counted() {
    let mut mesh = stalled_with_a_write();
    let stamp = asked(&mut mesh, start());
    confirm(&mut mesh, after(150), stamp);
    assert!(!is_leased(&mesh, after(150)));
    assert_eq!(mesh.late_leases(), 1);
}

#[test]
fn a_question_for_answers_adds_nothing_to_a_repeat_that_is_under_way() {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    for n in 0..8 {
        let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
        let read = Body::Read { progress, sequence: Sequence(n), at: Location::memory(0), len: 4096 };
        mesh.handle_packet(start(), PEER, from_peer(read));
        while let Some(Wanted::Request(request)) = mesh.poll_inbound() {
            mesh.answer(ORIGIN, Ticket::from_bits(request.ticket), Code::Ok, vec![0; 4096].into());
        }
    }
    let answers = |mesh: &mut Mesh| {
        packets(mesh, start()).iter().filter(|body| matches!(body, Body::Done { .. })).count()
    };
    assert_eq!(answers(&mut mesh), 8);
    let mut repeated = 0;
    for _ in 0..4 {
        confirm(&mut mesh, start(), 0);
        // The link takes one packet only.
        let next = mesh.poll_packet(start(), PEER, &mut no_memory);
        repeated += usize::from(matches!(next, Some(Packet { body: Body::Done { .. }, .. })));
    }
    repeated += answers(&mut mesh);
    assert_eq!(repeated, 8, "each answer once more");
    confirm(&mut mesh, start(), 0);
    assert_eq!(answers(&mut mesh), 8, "the next repeat");
}

#[test]
fn a_read_of_more_than_any_answer_carries_is_handed_on_to_be_refused() {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    for (n, len) in [0x1_0001, 2 << 20, u32::MAX].into_iter().enumerate() {
        let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(0), echo: Stamp(0) };
        let read = Body::Read { progress, sequence: Sequence(n as u32), at: Location::memory(0), len };
        mesh.handle_packet(start(), PEER, from_peer(read));
        let wanted = core::iter::from_fn(|| mesh.poll_inbound());
        let found = wanted.filter(|wanted| matches!(wanted, Wanted::Request(_))).count();
        assert_eq!(found, 1, "a read of {len} bytes");
    }
}

/// One write and one read of 8 bytes are sent.
fn with_requests() -> Mesh {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    let place = Place { node: PEER, at: Location::memory(0) };
    let write = RequestKind::Write(Payload::Bytes(vec![1; 8].into()));
    for (id, kind) in [(1, write), (2, RequestKind::Read { len: 8 })] {
        let request = Request { id: TransactionId(id), place, kind, posted: start() };
        mesh.submit(Channel::Small, request);
    }
    packets(&mut mesh, start());
    mesh
}

fn done(mesh: &mut Mesh, first: u32, data: &'static [u8]) -> Vec<(u64, Code)> {
    let (epoch, first, stamp) = (Epoch(0), Sequence(first), Stamp(1));
    let data = Bytes::from_static(data);
    let body = Body::Done { epoch, first, count: 1, code: Code::Ok, stamp, data };
    mesh.handle_packet(start(), PEER, from_peer(body));
    core::iter::from_fn(|| mesh.poll_finished()).map(|(_, end)| (end.id.0, end.code)).collect()
}

#[test]
fn an_answer_of_another_length_ends_a_request_of_either_kind_as_corrupt_at_once() {
    for data in [&b"x"[..], b"12345678"] {
        let mut mesh = with_requests();
        assert_eq!(done(&mut mesh, 0, data), [(1, Code::Corrupt)], "of a write");
    }
    for data in [&b""[..], b"1234567", b"123456789"] {
        let mut mesh = with_requests();
        assert_eq!(done(&mut mesh, 0, b""), [(1, Code::Ok)]);
        assert_eq!(done(&mut mesh, 1, data), [(2, Code::Corrupt)], "of a read: {} bytes", data.len());
    }
}

#[test]
fn a_stamp_is_sent_back_as_it_came() {
    let mut mesh = with_requests();
    for stamp in [7, u64::MAX, 5] {
        mesh.handle_packet(start(), PEER, from_peer(Body::Ask { epoch: Epoch(0), stamp: Stamp(stamp) }));
        let echoes = packets(&mut mesh, start()).into_iter().filter_map(|body| match body {
            Body::Confirm { progress, .. } => Some(progress.echo.0),
            _ => None,
        });
        assert_eq!(echoes.collect::<Vec<_>>(), [stamp]);
    }
}

#[test]
fn a_hello_without_a_nonce_that_was_given_proves_nothing() {
    let mut mesh = linked();
    let given = packets(&mut mesh, start()).into_iter().find_map(|body| match body {
        Body::Hello { nonce, .. } => Some(nonce),
        _ => None,
    });
    let given = given.expect("it introduces itself");
    for echo in [0, given ^ 1, given] {
        let (epoch, lease) = (Epoch(0), 150_000);
        let hello = Body::Hello { versions: Versions::OWN, epoch, nonce: 0, echo, lease, inventory: 0 };
        mesh.handle_packet(start(), PEER, from_peer(hello));
        assert_eq!(mesh.peer(PEER).is_some_and(|peer| peer.up), echo == given);
    }
}

#[test]
fn a_link_on_which_nothing_comes_any_more_is_down_and_counted() {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    let changes = mesh.peer(PEER).expect("it is known").changes;
    let mut now = start();
    let cut = loop {
        now = mesh.poll_timeout().expect("a link has a timer").max(now);
        mesh.handle_timeout(now);
        packets(&mut mesh, now);
        if core::iter::from_fn(|| mesh.poll_event()).any(|event| event == Event::CutLink(PEER)) {
            break now;
        }
    };
    assert!(cut.since(start()) <= KEEPALIVE);
    mesh.handle_link_down(cut, PEER);
    let peer = mesh.peer(PEER).expect("it is known");
    assert!(!peer.up && peer.changes == changes + 1, "{peer:?}");
    // The next link has to carry more than an introduction.
    mesh.handle_link_up(cut, PEER);
    let mut trips = 0;
    while !mesh.peer(PEER).is_some_and(|peer| peer.up) {
        now = mesh.poll_timeout().expect("a link has a timer").max(now);
        mesh.handle_timeout(now);
        for body in packets(&mut mesh, now) {
            let Body::Hello { nonce: nonce @ 1.., .. } = body else { continue };
            trips += 1;
            let (epoch, lease) = (Epoch(0), 150_000);
            let reply =
                Body::Hello { versions: Versions::OWN, epoch, nonce: 0, echo: nonce, lease, inventory: 0 };
            mesh.handle_packet(now, PEER, from_peer(reply));
        }
    }
    assert_eq!(trips, 2);
    assert!(now.since(cut) < Duration::from_millis(50));
}

#[test]
fn a_peer_of_other_versions_is_down_and_told_once() {
    let mut mesh = linked();
    let versions = Versions::new(2, 9, 0).unwrap();
    let hello =
        |nonce, echo| Body::Hello { versions, epoch: Epoch(0), nonce, echo, lease: 150_000, inventory: 0 };
    let mut told = 0;
    for _ in 0..3 {
        mesh.handle_timeout(after(0));
        let nonce = packets(&mut mesh, after(0)).into_iter().find_map(|body| match body {
            Body::Hello { nonce, .. } => Some(nonce),
            _ => None,
        });
        mesh.handle_packet(after(0), PEER, from_peer(hello(7, nonce.unwrap_or(0))));
        let events = core::iter::from_fn(|| mesh.poll_event());
        told += events
            .filter(|event| matches!(event, Event::VersionDiffers { versions: v, .. } if *v == versions))
            .count();
        assert!(mesh.peer(PEER).is_some_and(|peer| !peer.up));
    }
    assert_eq!(told, 1);
    // It hears all the same what this node speaks.
    let answer =
        packets(&mut mesh, after(1)).into_iter().any(|body| matches!(body, Body::Hello { echo: 7, .. }));
    assert!(answer);
}
