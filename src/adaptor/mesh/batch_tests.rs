//! Requests and answers that travel together, and what a flow makes of them.

use bytes::Bytes;

use super::batch::{Batch, Collector};
use super::packet::{Body, Packet, Progress, Stamp};
use super::sequence::{Epoch, Sequence};
use super::stalled_tests::{PEER, from_peer, linked, no_memory, prove, start};
use super::{Mesh, Ticket, Wanted};
use crate::adaptor::address::{Location, Place};
use crate::adaptor::channel::Channel;
use crate::adaptor::master::Inbound;
use crate::adaptor::status::Code;
use crate::adaptor::transaction::{Atomic, Payload, Request, RequestKind, TransactionId};

const AT: Location = Location::memory(0x40);

fn up() -> Mesh {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    while mesh.poll_packet(start(), PEER, &mut no_memory).is_some() {}
    mesh
}

fn submit(mesh: &mut Mesh, channel: Channel, id: u64, kind: RequestKind<Payload>) {
    let place = Place { node: PEER, at: AT };
    mesh.submit(channel, Request { id: TransactionId(id), place, kind, posted: start() });
}

fn receive(mesh: &mut Mesh, channel: Channel, body: Body) {
    mesh.handle_packet(start(), PEER, Packet { channel, ..from_peer(body) });
}

fn done(mesh: &mut Mesh, first: u32, count: u32, data: &'static [u8]) {
    let (epoch, first, stamp, data) = (Epoch(0), Sequence(first), Stamp(1), Bytes::from_static(data));
    receive(mesh, Channel::Bulk, Body::Done { epoch, first, count, code: Code::Ok, stamp, data });
}

fn sent(mesh: &mut Mesh) -> Vec<Body> {
    core::iter::from_fn(|| mesh.poll_packet(start(), PEER, &mut no_memory))
        .map(|packet| packet.body)
        .collect()
}

fn ends(mesh: &mut Mesh) -> Vec<(u64, Bytes)> {
    let ends = core::iter::from_fn(|| mesh.poll_finished());
    ends.map(|(_, end)| (end.id.0, if end.code.is_ok() { end.data } else { panic!("{end:?}") })).collect()
}

fn write(len: usize) -> RequestKind<Payload> {
    RequestKind::Write(Payload::Bytes(vec![9; len].into()))
}

fn read(len: u32) -> RequestKind<Payload> {
    RequestKind::Read { len }
}

/// Sends a write, two reads and an atomic operation together.
fn four_under_way() -> Mesh {
    let mut mesh = up();
    let add = RequestKind::Atomic(Atomic::Add(1));
    let kinds = [write(3), read(2), add, read(4)];
    (1..).zip(kinds).for_each(|(id, kind)| submit(&mut mesh, Channel::Bulk, id, kind));
    assert!(
        matches!(&sent(&mut mesh)[..], [Body::Batch { first: Sequence(0), batch, .. }] if batch.count() == 4)
    );
    mesh
}

#[test]
fn short_requests_of_the_bulk_channel_travel_together_and_nothing_else_does() {
    let mut mesh = up();
    submit(&mut mesh, Channel::Bulk, 1, read(8));
    assert!(matches!(sent(&mut mesh)[..], [Body::Read { sequence: Sequence(0), .. }]), "nothing waits");
    for (id, kind) in (2..).zip([write(512), read(1 << 16), write(513), read(8), write(0)]) {
        submit(&mut mesh, Channel::Bulk, id, kind);
    }
    let bodies = sent(&mut mesh);
    let [Body::Batch { first, batch, .. }, Body::Write { sequence, .. }, Body::Batch { first: last, .. }] =
        &bodies[..]
    else {
        panic!("{bodies:?}")
    };
    assert_eq!((*first, *sequence, *last), (Sequence(1), Sequence(3), Sequence(4)));
    let kinds: Vec<_> = batch.clone().requests().collect();
    assert_eq!(
        kinds,
        [(AT, RequestKind::Write(vec![9; 512].into())), (AT, RequestKind::Read { len: 1 << 16 })]
    );
    for id in 10..12 {
        submit(&mut mesh, Channel::Small, id, read(8));
    }
    assert!(matches!(sent(&mut mesh)[..], [Body::Read { .. }, Body::Read { .. }]));
}

#[test]
fn several_answers_in_one_give_each_request_its_own_bytes() {
    let mut mesh = four_under_way();
    done(&mut mesh, 0, 4, b"abFORMER!wxyz");
    assert_eq!(ends(&mut mesh), [], "a byte too few");
    done(&mut mesh, 0, 4, b"abFORMER!!wxyz.");
    assert_eq!(ends(&mut mesh), [], "a byte too many");
    done(&mut mesh, 0, 4, b"abFORMER!!wxyz");
    let expected = [(1, &b""[..]), (2, b"ab"), (3, b"FORMER!!"), (4, b"wxyz")];
    assert_eq!(ends(&mut mesh), expected.map(|(id, data)| (id, Bytes::from_static(data))));
}

#[test]
fn of_answers_that_begin_before_the_first_missing_one_the_rest_is_taken() {
    let mut mesh = four_under_way();
    done(&mut mesh, 0, 2, b"ab");
    assert_eq!(ends(&mut mesh).len(), 2);
    done(&mut mesh, 0, 4, b"FORMER!!wxy");
    assert_eq!(ends(&mut mesh), [], "less than the missing ones asked for");
    done(&mut mesh, 0, 4, b"abFORMER!!wxyz");
    let expected = [(3, &b"FORMER!!"[..]), (4, b"wxyz")];
    assert_eq!(ends(&mut mesh), expected.map(|(id, data)| (id, Bytes::from_static(data))));
}

fn batch(first: u32, count: u32, acknowledge: u32) -> Body {
    let mut collector = Collector::default();
    (0..count).for_each(|_| collector.push(AT, &RequestKind::Read { len: 2 }));
    let batch: Batch = collector.finish().unwrap();
    let progress = Progress { epoch: Epoch(0), acknowledge: Sequence(acknowledge), echo: Stamp(0) };
    Body::Batch { progress, first: Sequence(first), batch }
}

/// The next request that has arrived.
fn wanted(mesh: &mut Mesh) -> Option<Inbound> {
    core::iter::from_fn(|| mesh.poll_inbound()).find_map(|wanted| match wanted {
        Wanted::Request(request) => Some(request),
        Wanted::Discard(_) => None,
    })
}

/// Executes what has arrived; the place of each in its flow.
fn executed(mesh: &mut Mesh) -> Vec<u32> {
    let mut places = Vec::new();
    while let Some(request) = wanted(mesh) {
        let place = (request.ticket & u64::from(u32::MAX)) as u32;
        let data = Bytes::from(vec![place as u8; 2]);
        mesh.answer(request.origin, Ticket::from_bits(request.ticket), Code::Ok, data);
        places.push(place);
    }
    places
}

#[test]
fn a_batch_is_taken_request_by_request() {
    let mut mesh = up();
    receive(&mut mesh, Channel::Bulk, batch(0, 3, 0));
    assert_eq!(executed(&mut mesh), [0, 1, 2]);
    let answers = sent(&mut mesh);
    let [Body::Done { first: Sequence(0), count: 3, data, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(data[..], [0, 0, 1, 1, 2, 2]);
    // What was taken before is not taken again.
    receive(&mut mesh, Channel::Bulk, batch(1, 4, 2));
    assert_eq!(executed(&mut mesh), [3, 4]);
    assert!(matches!(sent(&mut mesh)[..], [Body::Done { first: Sequence(3), count: 2, .. }]));
    // A gap is told of once, whatever number of requests is behind it.
    receive(&mut mesh, Channel::Bulk, batch(7, 4, 5));
    assert!(executed(&mut mesh).is_empty());
    assert!(matches!(sent(&mut mesh)[..], [Body::Nak { expected: Sequence(5), .. }]));
}

#[test]
fn an_answer_that_is_long_or_no_success_travels_alone() {
    let mut mesh = up();
    receive(&mut mesh, Channel::Bulk, batch(0, 6, 0));
    let lengths = [2, 512, 513, 0, 2, 2];
    for (place, len) in lengths.into_iter().enumerate() {
        let request = wanted(&mut mesh).unwrap_or_else(|| panic!("request {place} is missing"));
        let code = if len == 0 { Code::TargetFault } else { Code::Ok };
        mesh.answer(request.origin, Ticket::from_bits(request.ticket), code, vec![0; len].into());
    }
    let counts = sent(&mut mesh).into_iter().map(|body| match body {
        Body::Done { count, data, .. } => (count, data.len()),
        other => panic!("{other:?}"),
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(2, 514), (1, 513), (1, 0), (2, 4)]);
}
