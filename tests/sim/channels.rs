//! Accesses do not wait behind bulk traffic, and bulk traffic does not starve behind accesses.

use std::time::Duration;

use assured_rdma::adaptor::address::{Location, NodeId, Place};
use assured_rdma::adaptor::memory::{Home, Segment, Source};
use assured_rdma::adaptor::mesh::limits::{BULK_BYTES, WINDOW_BYTES};
use assured_rdma::adaptor::status::Code;
use assured_rdma::adaptor::transaction::{Payload, Request, RequestKind, TransactionId};
use assured_rdma::adaptor::{Event, Region};
use bytes::Bytes;

use crate::network::Station;
use crate::world::{DEADLINE, EXPORT_LEN, EXPORTED, TIMING, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const R: Station = Station::Router(0);
/// Bytes of one bulk write; a link of this rate carries it in 655 us.
const LEN: usize = 64 << 10;
const RATE: u64 = 100;

fn direct() -> World {
    World::new(3, 2)
}

fn routed() -> World {
    World::with_routers(3, 2, 1, &[(A.into(), R), (B.into(), R)], |_| TIMING)
}

/// Hands in more bulk writes, so that `depth` of them are under way.
fn fill(world: &mut World, next: &mut u64, depth: u64) {
    while *next - (world.ends.len() as u64) < depth {
        *next += 1;
        let kind = RequestKind::Write(Bytes::from(vec![0xb0; LEN]).into());
        world.bulk(A, B, 0, TransactionId(*next), kind);
    }
}

/// A transfer of 64 MiB that keeps its window full: how long the longest load meanwhile took.
fn longest_load(mut world: World) -> Duration {
    let depth = 2 * (WINDOW_BYTES / LEN) as u64;
    world.network.rate = RATE;
    let (mut next, mut longest) = (0, Duration::ZERO);
    while world.ends.len() < 1024 {
        fill(&mut world, &mut next, depth);
        let start = world.now;
        let tag = world.begin_load(A, Region::Access, World::space(B, EXPORT_LEN - 4), 4);
        while world.answer(A, tag).is_none() {
            assert!(world.now.since(start) <= DEADLINE, "bounded");
            world.step();
        }
        longest = longest.max(world.now.since(start));
    }
    assert!(world.ends.iter().all(|(_, end)| end.code.is_ok()));
    longest
}

#[test]
fn a_load_does_not_wait_behind_a_transfer() {
    // One packet that is under way already on each link, and the way there and back.
    assert!(longest_load(direct()) < Duration::from_millis(2), "{:?}", longest_load(direct()));
    assert!(longest_load(routed()) < Duration::from_millis(3), "{:?}", longest_load(routed()));
}

#[test]
fn a_transfer_gets_on_while_stores_keep_the_link_busy() {
    let mut world = direct();
    world.network.rate = 1;
    world.bulk(A, B, 0, TransactionId(1), RequestKind::Write(Bytes::from(vec![0xb0; 64]).into()));
    let start = world.now;
    let mut offset = 0;
    while world.ends.is_empty() {
        // Stores that can't be joined, more than the link carries.
        for _ in 0..4 {
            offset = (offset + 16) % EXPORT_LEN;
            let _ = world.store(A, B, offset, &[1; 8]);
        }
        world.step();
        assert!(world.now.since(start) < Duration::from_millis(100), "it gets its turn");
    }
    assert_eq!(world.ends[0].1.code, Code::Ok);
}

#[test]
fn a_transfer_that_is_too_much_for_the_link_fails_alone() {
    let mut world = direct();
    // A packet takes 65 ms, so that what is handed in at once would take a second.
    world.network.rate = 1;
    let mut next = 0;
    fill(&mut world, &mut next, 16);
    while world.ends.len() < 16 {
        world.read(A, B, EXPORT_LEN - 4, 4);
        assert_eq!(world.check(A, B, EXPORT_LEN - 4), 0, "accesses go on");
    }
    let failed = world.ends.iter().filter(|(_, end)| !end.code.is_ok()).count();
    assert!(failed > 0 && failed < 16, "{:?}", world.ends);
    let lost = |event: &(NodeId, Event)| matches!(event.1, Event::LinkDown(_));
    assert!(!world.events.iter().any(lost), "there is no doubt about the peer: {:?}", world.events);
    world.bulk(A, B, 0, TransactionId(17), RequestKind::Write(Bytes::from(vec![0xb1; 64]).into()));
    assert!(world.run_until(DEADLINE, |world| world.ends.len() == 17));
    assert_eq!(world.ends[16].1.code, Code::Ok, "the next epoch works");
}

/// Of memory that the guest has exported, `len` bytes from `offset` on.
fn from_memory(offset: u64, len: usize) -> RequestKind<Payload> {
    let segments = [(offset, len / 3), (offset + (len / 3) as u64, len - len / 3)]
        .map(|(offset, len)| Segment { address: EXPORTED + offset, len });
    RequestKind::Write(Payload::Memory(Source { home: Home::Guest, segments: segments.to_vec(), len }))
}

#[test]
fn a_transfer_brings_what_is_in_memory_when_it_is_sent() {
    let mut world = direct();
    world.bulk(
        B,
        A,
        0,
        TransactionId(1),
        RequestKind::Write(Bytes::from_static(b"what is to be sent").into()),
    );
    assert!(world.run_until(DEADLINE, |world| world.ends.len() == 1));
    world.bulk(A, B, 64, TransactionId(2), from_memory(0, 18));
    assert!(world.run_until(DEADLINE, |world| world.ends.len() == 2));
    assert_eq!(world.ends[1].1.code, Code::Ok);
    assert_eq!(world.read(A, B, 64, 8)[..], *b"what is ");
    assert_eq!(world.read(A, B, 75, 8)[..], *b"be sent\0");
}

#[test]
fn a_transfer_out_of_memory_that_is_not_there_fails_alone() {
    let mut world = direct();
    let nowhere =
        Source { home: Home::Guest, segments: vec![Segment { address: 1 << 40, len: 64 }], len: 64 };
    world.bulk(A, B, 0, TransactionId(1), RequestKind::Write(Bytes::from_static(&[1; 8]).into()));
    world.bulk(A, B, 0, TransactionId(2), RequestKind::Write(Payload::Memory(nowhere)));
    world.bulk(A, B, 8, TransactionId(3), from_memory(0, 64));
    assert!(world.run_until(DEADLINE, |world| world.ends.len() == 3));
    let ends: Vec<_> = world.ends.iter().map(|(_, end)| (end.id.0, end.code)).collect();
    assert_eq!(ends, [(1, Code::Ok), (2, Code::LocalFault), (3, Code::Ok)]);
    assert_eq!(world.read(A, B, 0, 8)[..], [1; 8], "nothing was written");
}

#[test]
fn a_transfer_that_fills_its_window_is_sent_once() {
    let mut world = direct();
    let count = (BULK_BYTES / LEN) as u64;
    let before = world.packets;
    let now = world.now;
    for id in 1..=2 * count {
        let kind = RequestKind::Write(Bytes::from(vec![0xb0; LEN]).into());
        let place = Place { node: B, at: Location::memory(0) };
        world.adaptor(A).handle_bulk(now, Request { id: TransactionId(id), place, kind, posted: now });
    }
    assert!(world.run_until(DEADLINE, |world| world.ends.len() as u64 == 2 * count));
    assert!(world.ends.iter().all(|(_, end)| end.code.is_ok()));
    let sent = world.packets - before;
    assert!(sent < 2 * (2 * count) + 8, "{sent} packets for {} writes, their answers and leases", 2 * count);
}
