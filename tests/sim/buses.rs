//! The contract's lines between the buses of one adaptor, and between these and other nodes.

use std::time::Duration;

use assured_rdma::adaptor::address::{Location, NodeId, Place, Space};
use assured_rdma::adaptor::buses::{Buses, Span};
use assured_rdma::adaptor::event::Event;
use assured_rdma::adaptor::master::Rights;
use assured_rdma::adaptor::memory::{Home, Lent, MemoryOperation, Segment, Source};
use assured_rdma::adaptor::status::{Class, Code};
use assured_rdma::adaptor::transaction::{Payload, Request, RequestKind, TransactionId};
use assured_rdma::adaptor::{Region, backplane};
use bytes::Bytes;

use crate::network::{Faults, Station};
use crate::world::{DEADLINE, EXPORTED, KEEPALIVE, TIMING, World};

/// Two of the four buses that an adaptor can have, and a node elsewhere.
const A: NodeId = NodeId(4);
const B: NodeId = NodeId(5);
const C: NodeId = NodeId(1);
/// Ids of the adaptor that have no bus.
const NO_BUS: [NodeId; 2] = [NodeId(6), NodeId(7)];
const R: Station = Station::Router(0);

/// `pairs` may have A, which stands for the whole process, but not B.
fn world(routers: u8, pairs: &[(Station, Station)]) -> World {
    let adaptor = Buses::new(Span::new(A, 2).unwrap(), 2).unwrap();
    World::with_processes(7, &[Buses::single(C), adaptor], routers, pairs, |_| TIMING)
}

fn linked() -> World {
    world(0, &[(C.into(), A.into())])
}

fn write_code(word: u32) -> Code {
    Code::from_bits(word as u8).unwrap()
}

fn put(world: &mut World, from: NodeId, to: NodeId, offset: u64, value: u64) {
    world.store(from, to, offset, &value.to_le_bytes()).unwrap();
    world.idle(from);
}

fn held(world: &mut World, node: NodeId, offset: u64) -> u64 {
    let at = (EXPORTED + offset) as usize;
    u64::from_le_bytes(world.memory(node)[at..at + 8].try_into().unwrap())
}

#[test]
fn every_bus_reaches_every_other_whatever_is_between_them() {
    for routers in [0, 1] {
        let pairs: &[(Station, Station)] =
            if routers == 0 { &[(C.into(), A.into())] } else { &[(C.into(), R), (A.into(), R)] };
        let mut world = world(routers, pairs);
        for (value, (from, to)) in (1..).zip([(A, B), (B, A), (A, C), (B, C), (C, A), (C, B)]) {
            assert!(world.knows(from, to), "{from} knows {to}");
            let offset = u64::from(from.0) * 0x1000;
            put(&mut world, from, to, offset, value);
            assert_eq!(world.check(from, to, offset), 0, "from {from} to {to}");
            assert_eq!(held(&mut world, to, offset), value);
            assert_eq!(world.read(from, to, offset, 8)[..], value.to_le_bytes());
            assert_eq!(world.check(from, to, offset), 0);
        }
        // Ids of the adaptor that are no bus of it, at once, from its own buses and from elsewhere.
        let before = world.now;
        for from in [A, B, C] {
            for to in NO_BUS {
                put(&mut world, from, to, 0, 1);
                assert_eq!(write_code(world.check(from, to, 0)), Code::NoRoute);
            }
        }
        assert_eq!(world.now, before);
    }
}

#[test]
fn between_buses_nothing_goes_over_a_link_and_it_takes_no_time() {
    let mut world = linked();
    world.cut(C, A);
    world.faults = Faults { loss: 1000, ..Faults::NONE };
    let (packets, before) = (world.packets, world.now);
    for value in 1..1000 {
        put(&mut world, A, B, value * 8, value);
        assert_eq!(world.check(A, B, value * 8), 0);
        assert_eq!(held(&mut world, B, value * 8), value);
    }
    assert_eq!((world.packets, world.now), (packets, before));
    world.run_for(10 * KEEPALIVE);
    assert!(world.is_up(A, B) && world.is_up(B, A), "and it stays up");
}

#[test]
fn between_buses_no_payload_is_copied_but_into_memory() {
    let mut world = linked();
    let data = Bytes::from(vec![7; 4096]);
    world.bulk(A, B, 0, TransactionId(1), RequestKind::Write(data.clone().into()));
    world.bulk(C, B, 4096, TransactionId(2), RequestKind::Write(data.clone().into()));
    world.run_for(Duration::from_millis(1));
    let executed = |offset| {
        world.executions.iter().find(|execution| execution.offset == offset).map(|execution| &execution.data)
    };
    assert_eq!(executed(0).unwrap().as_ptr(), data.as_ptr());
    assert_eq!(executed(4096).unwrap()[..], data[..]);
    assert_ne!(executed(4096).unwrap().as_ptr(), data.as_ptr());
    assert!(world.ends.iter().all(|(_, end)| end.code.is_ok()));
}

#[test]
fn an_adaptor_says_in_its_registers_which_bus_it_is() {
    let mut world = linked();
    for (node, bits) in [(A, 2), (B, 2), (C, 0)] {
        assert_eq!(world.register(node, 0x0c) as u32, u32::from(node.0));
        assert_eq!(world.register(node, 0x14) as u32 >> 8 & 0xff, bits);
    }
    // The other bus is a node like others, from the beginning; only a node's own entry says so.
    assert_eq!(world.register(A, 0x1000 + 16 * 5) & 0xf, 0b0011);
    assert_eq!(world.register(B, 0x1000 + 16 * 5) & 0xf, 0b1000);
}

#[test]
fn isolation_a_window_is_for_the_buses_that_it_names() {
    let mut world = linked();
    world.unexport(B);
    world.export(B, 0b11, 1 << C.0);
    put(&mut world, A, B, 0, 1);
    assert_eq!(write_code(world.check(A, B, 0)), Code::AccessDenied);
    put(&mut world, C, B, 0, 2);
    assert_eq!(world.check(C, B, 0), 0);
    world.unexport(B);
    world.export(B, 0b11, 1 << A.0);
    put(&mut world, C, B, 0, 3);
    assert_eq!(write_code(world.check(C, B, 0)), Code::AccessDenied);
    put(&mut world, A, B, 0, 4);
    assert_eq!(world.check(A, B, 0), 0);
    assert_eq!(held(&mut world, B, 0), 4);
    // What a bus exports says nothing of another's.
    world.unexport(B);
    put(&mut world, C, A, 0, 5);
    assert_eq!(world.check(C, A, 0), 0);
    put(&mut world, A, B, 0, 6);
    assert_eq!(write_code(world.check(A, B, 0)), Code::NoWindow);
}

#[test]
fn a_reset_of_one_bus_under_load_is_seen_by_all_and_touches_no_other() {
    for routers in [0, 1] {
        let pairs: &[(Station, Station)] =
            if routers == 0 { &[(C.into(), A.into())] } else { &[(C.into(), R), (A.into(), R)] };
        let mut world = world(routers, pairs);
        world.faults = Faults { jitter: 300, ..Faults::NONE };
        let mut value = 0u64;
        for round in 0..20 {
            // All are in the midst of writing to each other.
            let mut stored = Vec::new();
            for (from, to) in [(A, B), (C, B), (B, A), (B, C), (A, C), (C, A)] {
                for slot in 0..40 {
                    value += 1;
                    let offset = 0x1000 * u64::from(from.0) + 8 * slot;
                    world.store(from, to, offset, &value.to_le_bytes()).unwrap();
                    stored.push((from, to, offset, value));
                }
                world.idle(from);
            }
            world.run_for(Duration::from_micros(round * 30));
            world.reset(B);
            let erased = held(&mut world, B, 0x1000 * u64::from(A.0));
            for (from, to) in [(A, C), (C, A)] {
                let word = world.check(from, to, 0x1000 * u64::from(from.0));
                assert_eq!(word, 0, "round {round}: from {from} to {to}");
            }
            for (from, to, offset, value) in stored {
                if from != B && to != B {
                    assert_eq!(held(&mut world, to, offset), value);
                }
            }
            // Those who wrote to it know that they can't rely on it, or it was all done before.
            for from in [A, C] {
                let code = write_code(world.check(from, B, 0x1000 * u64::from(from.0)));
                let all = (0..40).all(|slot| held(&mut world, B, 0x1000 * u64::from(from.0) + 8 * slot) != 0);
                assert!(!code.is_ok() || all, "round {round}: no false OK to {from}");
                assert_ne!(code.class(), Class::Permanent, "round {round}: {code}");
            }
            assert_eq!(held(&mut world, B, 0x1000 * u64::from(A.0)), erased, "nothing lands after the reset");
            let known = |world: &mut World| {
                [A, C].iter().all(|&other| world.knows(other, B) && world.knows(B, other))
            };
            // A Hello that was overtaken is repeated after a quarter of the keepalive time.
            assert!(world.run_until(KEEPALIVE, known), "round {round}: it is found again");
            put(&mut world, A, B, 0, 1);
            assert_eq!(write_code(world.check(A, B, 0)), Code::NoWindow, "round {round}");
            world.memory(B).fill(0);
            world.export(B, 0b11, u64::MAX);
        }
        assert_eq!(world.network.refusals, 0, "no reset is taken for another adaptor");
        let restarted = |event: &(NodeId, Event)| matches!(event, (A | C, Event::PeerRestarted(B, _)));
        assert!(world.events.iter().filter(|event| restarted(event)).count() >= 40);
        let lost =
            |event: &(NodeId, Event)| matches!(event, (A, Event::LinkDown(C)) | (C, Event::LinkDown(A)));
        assert!(!world.events.iter().any(lost), "the others' sessions go on");
    }
}

/// What every node is to transfer to every other: a block of its own memory that nobody else can reach, into a block for each.
fn transfer(world: &mut World, pairs: &[(NodeId, NodeId)], first: u64) {
    const FROM: u64 = 0x4000;
    for node in [A, B, C] {
        world.memory(node)[FROM as usize..FROM as usize + 4096].fill(node.0);
    }
    for (id, &(from, to)) in (first..).zip(pairs) {
        let segments = vec![Segment { address: FROM, len: 4096 }];
        let source = Source { home: Home::Guest, segments, len: 4096 };
        let kind = RequestKind::Write(Payload::Memory(source));
        world.bulk(from, to, 0x1000 * u64::from(from.0), TransactionId(id), kind);
    }
}

#[test]
fn a_transfer_brings_the_memory_of_its_own_bus_and_ends_with_a_reset_of_either() {
    let pairs = [(A, B), (C, B), (B, A), (B, C), (A, C), (C, A)];
    let mut world = linked();
    transfer(&mut world, &pairs, 1);
    assert!(world.run_until(DEADLINE, |world| world.ends.len() == pairs.len()));
    assert!(world.ends.iter().all(|(_, end)| end.code.is_ok()), "{:?}", world.ends);
    for (from, to) in pairs {
        let at = (EXPORTED + 0x1000 * u64::from(from.0)) as usize;
        assert!(world.memory(to)[at..at + 4096].iter().all(|&byte| byte == from.0), "from {from} to {to}");
        world.memory(to)[at..at + 4096].fill(0);
    }
    // All of it is under way when one bus is reset.
    for (round, reset) in (1..).zip([A, B, C]) {
        world.ends.clear();
        world.pause(A, Duration::from_millis(1));
        transfer(&mut world, &pairs, 100 * round);
        world.reset(reset);
        let erased = world.memory(reset).to_vec();
        world.run_for(2 * DEADLINE);
        assert_eq!(world.memory(reset), erased, "nothing lands after the reset of {reset}");
        for (id, (from, to)) in (100 * round..).zip(pairs) {
            let ends = world.ends.iter().filter(|(_, end)| end.id.0 == id);
            let codes: Vec<_> = ends.map(|(_, end)| end.code).collect();
            if from == reset {
                assert_eq!(codes, [], "whoever began it is gone");
            } else {
                assert_eq!(codes.len(), 1, "from {from} to {to}");
                assert_eq!(codes[0].is_ok(), to != reset, "from {from} to {to}: {}", codes[0]);
            }
        }
        world.export(reset, 0b11, u64::MAX);
    }
}

/// A begins a transfer of its own memory to B, which has everything that it needs for it and has not executed it.
fn hand_over(world: &mut World, id: u64) -> Lent {
    let now = world.now;
    let source =
        Source { home: Home::Guest, segments: vec![Segment { address: 0x4000, len: 4096 }], len: 4096 };
    let kind = RequestKind::Write(Payload::Memory(source));
    let place = Place { node: B, at: Location::memory(0) };
    world.memory(A)[0x4000..0x5000].fill(0x55);
    world.adaptor(A).handle_bulk(now, Request { id: TransactionId(id), place, kind, posted: now });
    let buses = world.nodes.iter_mut().filter(|(place, _)| [A, B].contains(place));
    let mut adaptors: Vec<_> = buses.map(|(_, node)| &mut node.adaptor).collect();
    while backplane::exchange(now, &mut adaptors) {}
    match world.adaptor(B).clone().poll_memory(now) {
        Some(MemoryOperation::Transfer { from, .. }) if world.adaptor(A).lends(&from) => from,
        operation => panic!("not handed over: {operation:?}"),
    }
}

fn target(world: &mut World) -> Vec<u8> {
    world.memory(B)[EXPORTED as usize..][..4096].to_vec()
}

#[test]
fn isolation_what_was_lent_is_not_read_after_a_reset() {
    let mut world = linked();
    let lent = hand_over(&mut world, 1);
    world.reset(A);
    assert!(!world.adaptor(A).lends(&lent));
    assert_eq!(target(&mut world), [0; 4096], "A's next driver may have anything there");
    assert!(world.run_until(KEEPALIVE, |world| world.knows(A, B) && world.knows(B, A)));
    assert_eq!(target(&mut world), [0; 4096]);
    assert_eq!(world.ends.len(), 0, "whoever began it is gone");
    // The next life lends again.
    hand_over(&mut world, 2);
    world.take_outputs();
    assert_eq!((world.ends[0].1.id, world.ends[0].1.code), (TransactionId(2), Code::Ok));
    assert_eq!(target(&mut world), [0x55; 4096]);
}

#[test]
fn what_was_lent_is_a_fault_of_the_lender_where_it_is_no_bus_master_any_more() {
    let mut world = linked();
    hand_over(&mut world, 1);
    let now = world.now;
    world.adaptor(A).handle_store(now, Region::Config, 4, &[2, 0]).unwrap();
    world.take_outputs();
    assert_eq!((world.ends[0].1.id, world.ends[0].1.code), (TransactionId(1), Code::LocalFault));
    assert_eq!(target(&mut world), [0; 4096]);
    world.adaptor(A).handle_store(now, Region::Config, 4, &[6, 0]).unwrap();
    hand_over(&mut world, 2);
    world.take_outputs();
    assert_eq!(world.ends[1].1.code, Code::Ok);
}

#[test]
fn a_reset_of_the_other_bus_ends_what_was_lent_to_it() {
    let mut world = linked();
    hand_over(&mut world, 1);
    world.reset(B);
    assert_eq!(target(&mut world), [0; 4096]);
    assert!(world.run_until(DEADLINE, |world| !world.ends.is_empty()));
    assert!(!world.ends[0].1.code.is_ok());
    assert_eq!(target(&mut world), [0; 4096]);
}

#[test]
fn memory_that_is_not_there_when_it_is_lent_fails_alone() {
    let mut world = linked();
    hand_over(&mut world, 1);
    let nowhere =
        Source { home: Home::Guest, segments: vec![Segment { address: 1 << 40, len: 64 }], len: 64 };
    world.bulk(A, B, 0, TransactionId(2), RequestKind::Write(Payload::Memory(nowhere)));
    hand_over(&mut world, 3);
    world.take_outputs();
    let ends: Vec<_> = world.ends.iter().map(|(_, end)| (end.id.0, end.code)).collect();
    assert_eq!(ends, [(1, Code::Ok), (2, Code::LocalFault), (3, Code::Ok)]);
}

#[test]
fn memory_is_lent_to_a_device_that_another_bus_hosts() {
    let mut world = linked();
    let rights = Rights { read: true, write: true, atomic: false };
    let at = world.host(B, Space::Memory, 0x10_000, rights);
    let segments = vec![Segment { address: 0x4000, len: 4096 }];
    world.memory(A)[0x4000..0x5000].fill(0x66);
    let source = Source { home: Home::Guest, segments, len: 4096 };
    world.bulk(A, B, at.offset, TransactionId(1), RequestKind::Write(Payload::Memory(source)));
    assert_eq!(world.ends[0].1.code, Code::Ok);
    assert_eq!(world.device(B)[..4096], [0x66; 4096]);
}

#[test]
fn what_a_bus_does_not_answer_is_no_reason_to_give_up_the_link_of_the_others() {
    let mut world = linked();
    // C's packets for bus B are lost, those for bus A are not; the simulation has no fault like this.
    let now = world.now;
    world.adaptor(C).handle_link_down(now, B);
    world.run_for(4 * KEEPALIVE);
    assert!(world.events.contains(&(B, Event::CutLink(C))), "B misses C");
    assert!(world.is_up(A, C) && world.is_up(C, A) && world.is_linked(C, A));
    put(&mut world, C, A, 0, 1);
    assert_eq!(world.check(C, A, 0), 0);
    let now = world.now;
    world.adaptor(C).handle_link_up(now, B);
    assert!(world.run_until(DEADLINE, |world| world.knows(B, C) && world.knows(C, B)), "and finds it again");
}

#[test]
fn an_adaptor_that_overlaps_another_gets_nothing() {
    // One with the id of bus B only, and one with more ids than the first has, at the same router or at another.
    for (first, bits, count) in [(B, 0, 1), (A, 1, 2), (NodeId(0), 3, 6)] {
        let adaptor = Buses::new(Span::new(A, 2).unwrap(), 2).unwrap();
        let (s, t) = (Station::Router(1), Station::Router(2));
        let pairs = [(C.into(), R), (A.into(), R), (R, s), (s, t)];
        let mut world = World::with_processes(3, &[Buses::single(C), adaptor], 3, &pairs, |_| TIMING);
        let place = NodeId(100);
        world.start_process(place, Buses::new(Span::new(first, bits).unwrap(), count).unwrap());
        world.link(place, t);
        for value in 1..100 {
            for to in [A, B] {
                put(&mut world, C, to, 0, value);
                assert_eq!(world.check(C, to, 0), 0);
                assert_eq!(held(&mut world, to, 0), value);
            }
            world.run_for(Duration::from_millis(10));
        }
        assert_eq!(world.network.refusals, 1, "{first}");
        assert!(!world.is_linked(place, t));
        assert!(world.is_linked(A, R));
    }
}
