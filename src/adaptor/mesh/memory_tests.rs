//! Writes of what is in the guest's memory when they are sent, and sent again.

use bytes::Bytes;

use super::Mesh;
use super::packet::{Body, Incarnation, Stamp};
use super::sequence::{Epoch, Sequence};
use super::stalled_tests::{PEER, from_peer, linked, no_memory, prove, start};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, Place};
use crate::adaptor::channel::Channel;
use crate::adaptor::memory::{Home, MemoryFault, Segment, Source};
use crate::adaptor::status::Code;
use crate::adaptor::transaction::{Payload, Request, RequestKind, TransactionId};

fn submit(mesh: &mut Mesh, now: Instant, id: u64) {
    let source = Source { home: Home::Guest, segments: vec![Segment { address: id, len: 8 }], len: 8 };
    let kind = RequestKind::Write(Payload::Memory(source));
    let place = Place { node: PEER, at: Location::memory(0) };
    mesh.submit(Channel::Bulk, Request { id: TransactionId(id), place, kind, posted: now });
}

/// The lengths of the writes that are sent; `gone` is the one whose memory is not there.
fn sent(mesh: &mut Mesh, gone: Option<u64>) -> Vec<usize> {
    let mut load = |source: &Source| {
        let is_gone = source.segments.iter().any(|segment| Some(segment.address) == gone);
        if is_gone { Err(MemoryFault::Unmapped) } else { Ok(Bytes::from(vec![7; source.len]).into()) }
    };
    let packets = core::iter::from_fn(|| mesh.poll_packet(start(), PEER, &mut load));
    let lengths = |packet: super::Packet| match packet.body {
        Body::Write { data, .. } => vec![data.len()],
        Body::Batch { batch, .. } => batch.requests().map(|(_, kind)| kind.len()).collect(),
        _ => Vec::new(),
    };
    packets.flat_map(lengths).collect()
}

fn answer(mesh: &mut Mesh, body: Body) {
    let packet = super::Packet { channel: Channel::Bulk, ..from_peer(body) };
    mesh.handle_packet(start(), PEER, packet);
}

fn nak(mesh: &mut Mesh, expected: u32) {
    answer(mesh, Body::Nak { epoch: Epoch(0), expected: Sequence(expected), stamp: Stamp(1) });
}

fn done(mesh: &mut Mesh, first: u32, count: u32, code: Code) {
    let (epoch, first, stamp, data) = (Epoch(0), Sequence(first), Stamp(1), Bytes::new());
    answer(mesh, Body::Done { epoch, first, count, code, stamp, data });
}

fn ends(mesh: &mut Mesh) -> Vec<(u64, Code)> {
    core::iter::from_fn(|| mesh.poll_finished()).map(|(_, end)| (end.id.0, end.code)).collect()
}

fn up() -> Mesh {
    let mut mesh = linked();
    prove(&mut mesh, start(), 0);
    mesh
}

#[test]
fn no_false_ok_a_write_without_its_bytes_is_never_ok_whatever_the_answer() {
    let mut mesh = up();
    (1..=3).for_each(|id| submit(&mut mesh, start(), id));
    assert_eq!(sent(&mut mesh, Some(2)), [8, 0, 8]);
    // Its memory is there again when all is repeated: it is still the same transaction.
    nak(&mut mesh, 0);
    assert_eq!(sent(&mut mesh, None), [8, 0, 8]);
    done(&mut mesh, 0, 3, Code::Ok);
    assert_eq!(ends(&mut mesh), [(1, Code::Ok), (2, Code::LocalFault), (3, Code::Ok)]);
    // The same names again have no past.
    submit(&mut mesh, start(), 2);
    assert_eq!(sent(&mut mesh, None), [8]);
    done(&mut mesh, 3, 1, Code::Ok);
    assert_eq!(ends(&mut mesh), [(2, Code::Ok)]);
}

#[test]
fn no_false_ok_what_was_sent_and_can_not_be_repeated_is_of_unknown_outcome() {
    let mut mesh = up();
    (1..=2).for_each(|id| submit(&mut mesh, start(), id));
    assert_eq!(sent(&mut mesh, None), [8, 8]);
    nak(&mut mesh, 0);
    assert_eq!(sent(&mut mesh, Some(1)), [0, 8]);
    done(&mut mesh, 0, 1, Code::BadSize);
    done(&mut mesh, 1, 1, Code::Ok);
    assert_eq!(ends(&mut mesh), [(1, Code::LinkLost), (2, Code::Ok)]);
}

#[test]
fn what_could_not_be_sent_is_forgotten_with_its_epoch_and_its_life() {
    let mut mesh = up();
    (1..=2).for_each(|id| submit(&mut mesh, start(), id));
    assert_eq!(sent(&mut mesh, Some(1)), [0, 8]);
    mesh.reincarnate(start(), Incarnation(12), &[]);
    assert_eq!(ends(&mut mesh), []);
    // The bulk channel alone is given up, and goes on in another epoch.
    let mut mesh = up();
    (1..=2).for_each(|id| submit(&mut mesh, start(), id));
    assert_eq!(sent(&mut mesh, Some(1)), [0, 8]);
    let late = start().after(core::time::Duration::from_millis(360));
    mesh.handle_timeout(late);
    let later = start().after(core::time::Duration::from_millis(600));
    mesh.handle_timeout(later);
    assert_eq!(ends(&mut mesh), [(1, Code::LocalFault), (2, Code::Timeout)]);
    submit(&mut mesh, later, 1);
    let packet = core::iter::from_fn(|| {
        mesh.poll_packet(later, PEER, &mut |source| Ok(Bytes::from(vec![7; source.len]).into()))
    });
    let written = packet.filter_map(|packet| match packet.body {
        Body::Write { data, progress, .. } => Some((progress.epoch, data.len())),
        _ => None,
    });
    assert_eq!(written.collect::<Vec<_>>(), [(Epoch(1), 8)]);
    assert_eq!(mesh.poll_packet(later, PEER, &mut no_memory).map(|packet| packet.body), None);
}

/// The lengths of the writes that are sent while the memory of `absent` is being brought in.
fn sent_without(mesh: &mut Mesh, absent: u64) -> Vec<usize> {
    let mut load = |source: &Source| {
        let is_absent = source.segments.iter().any(|segment| segment.address == absent);
        if is_absent { Err(MemoryFault::Absent) } else { Ok(Bytes::from(vec![7; source.len]).into()) }
    };
    let packets = core::iter::from_fn(|| mesh.poll_packet(start(), PEER, &mut load));
    let lengths = |packet: super::Packet| match packet.body {
        Body::Write { data, .. } => vec![data.len()],
        Body::Batch { batch, .. } => batch.requests().map(|(_, kind)| kind.len()).collect(),
        _ => Vec::new(),
    };
    packets.flat_map(lengths).collect()
}

#[test]
fn order_what_comes_after_memory_that_is_brought_in_waits_for_it() {
    for fault in [None, Some(MemoryFault::Unmapped)] {
        let mut mesh = up();
        (1..=4).for_each(|id| submit(&mut mesh, start(), id));
        assert_eq!(sent_without(&mut mesh, 3), [8, 8]);
        assert_eq!(sent(&mut mesh, None), [0; 0], "it is not asked for again and again");
        mesh.handle_pages(PEER, fault.map_or(Ok(()), Err));
        let len = if fault.is_some() { 0 } else { 8 };
        assert_eq!(sent(&mut mesh, None), [len, 8]);
        done(&mut mesh, 0, 4, Code::Ok);
        let third = if fault.is_some() { Code::LocalFault } else { Code::Ok };
        assert_eq!(ends(&mut mesh), [(1, Code::Ok), (2, Code::Ok), (3, third), (4, Code::Ok)]);
    }
}

#[test]
fn memory_that_does_not_come_in_time_ends_with_its_epoch() {
    let mut mesh = up();
    (1..=2).for_each(|id| submit(&mut mesh, start(), id));
    assert_eq!(sent_without(&mut mesh, 1), [0; 0]);
    let late = start().after(core::time::Duration::from_millis(360));
    mesh.handle_timeout(late);
    assert_eq!(ends(&mut mesh), [(1, Code::NotSent), (2, Code::NotSent)]);
    // What comes now is nobody's, and what is asked for next does not wait for it.
    mesh.handle_pages(PEER, Err(MemoryFault::Unmapped));
    submit(&mut mesh, late, 1);
    let packet = core::iter::from_fn(|| {
        mesh.poll_packet(late, PEER, &mut |source| Ok(Bytes::from(vec![7; source.len]).into()))
    });
    assert_eq!(
        packet.filter(|packet| matches!(&packet.body, Body::Write { data, .. } if data.len() == 8)).count(),
        1
    );
}
