//! The contract's lines where a router is between the nodes.

use std::time::Duration;

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::status::Code;

use crate::network::Station;
use crate::world::{DEADLINE, EXPORTED, TIMING, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const IMPOSTOR: NodeId = NodeId(200);
const R: Station = Station::Router(0);
const S: Station = Station::Router(1);

fn write_code(word: u32) -> Code {
    Code::from_bits(word as u8).unwrap()
}

/// Nodes A and B at router R, C at router S beside it.
fn world() -> World {
    World::with_routers(7, 3, 2, &[(A.into(), R), (B.into(), R), (C.into(), S), (R, S)], |_| TIMING)
}

fn put(world: &mut World, value: u64) {
    world.store(A, B, 0x2000, &value.to_le_bytes()).unwrap();
    world.idle(A);
}

fn held(world: &mut World) -> u64 {
    let at = EXPORTED as usize + 0x2000;
    u64::from_le_bytes(world.memory(B)[at..at + 8].try_into().unwrap())
}

#[test]
fn nodes_find_each_other_over_routers_and_others_have_no_route() {
    let mut world = world();
    for (from, to) in [(A, B), (A, C), (C, A), (B, C)] {
        assert!(world.knows(from, to), "{from} knows {to}");
        world.store(from, to, 0x1000, &[1; 8]).unwrap();
        assert_eq!(world.check(from, to, 0x1000), 0);
    }
    let before = world.now;
    world.store(A, NodeId(9), 0, &[1]).unwrap();
    assert_eq!(write_code(world.check(A, NodeId(9), 0)), Code::NoRoute);
    assert_eq!(world.now, before, "at once");
}

#[test]
fn a_packet_held_in_a_router_beyond_the_report_is_not_executed() {
    let mut world = world();
    put(&mut world, 1);
    assert_eq!(world.check(A, B, 0x2000), 0);
    world.stall(0, B.into(), DEADLINE + Duration::from_millis(200));
    put(&mut world, 2);
    let code = write_code(world.check(A, B, 0x2000));
    assert!(!code.is_ok(), "{code}");
    assert_eq!(held(&mut world), 1);
    world.run_for(Duration::from_secs(2));
    assert_eq!(held(&mut world), 1, "no ghost writes");
    put(&mut world, 3);
    assert_eq!(world.check(A, B, 0x2000), 0);
    assert_eq!(held(&mut world), 3);
}

#[test]
fn a_router_that_restarts_loses_nothing_within_the_deadline() {
    let mut world = world();
    for value in 1..50 {
        put(&mut world, value);
        world.restart_router(0);
        assert_eq!(world.check(A, B, 0x2000), 0);
        assert_eq!(held(&mut world), value);
    }
}

#[test]
fn a_router_that_stays_away_is_link_down_and_not_no_route() {
    let mut world = world();
    for other in [A.into(), B.into(), S] {
        world.cut(R, other);
    }
    put(&mut world, 1);
    assert_eq!(write_code(world.check(A, B, 0x2000)), Code::LinkDown);
    world.link(R, A);
    world.link(R, B);
    world.run_for(Duration::from_millis(50));
    put(&mut world, 2);
    assert_eq!(world.check(A, B, 0x2000), 0);
}

#[test]
fn a_silent_node_behind_a_router_is_found_down() {
    let mut world = world();
    world.pause(B, Duration::from_secs(60));
    assert!(world.run_until(Duration::from_secs(4), |world| !world.is_up(A, B)));
}

#[test]
fn a_second_node_of_one_id_gets_nothing() {
    let mut world = world();
    let life = world.register(A, 0x1008 + 32);
    world.start(IMPOSTOR, B);
    world.link(IMPOSTOR, S);
    for value in 1..100 {
        put(&mut world, value);
        assert_eq!(world.check(A, B, 0x2000), 0);
        assert_eq!(held(&mut world), value);
        world.run_for(Duration::from_millis(10));
        assert_eq!(world.register(A, 0x1008 + 32), life);
    }
    assert_eq!(world.network.refusals, 1);
    assert!(!world.is_linked(IMPOSTOR, S));
    // The same node reset is no second one.
    world.reset(B);
    world.export(B, 0b11, u64::MAX);
    world.run_for(Duration::from_secs(1));
    put(&mut world, 100);
    assert_eq!(write_code(world.check(A, B, 0x2000)), Code::Ok);
    assert_eq!(world.network.refusals, 1);
}

#[test]
fn an_id_that_changes_hands_and_back_executes_nothing_twice() {
    let mut world = world();
    // The first request of an epoch is executed, and its answer is lost.
    let before = world.executions.len();
    put(&mut world, 1);
    assert!(world.run_until(DEADLINE, |world| world.executions.len() > before));
    world.cut(A, R);
    // For a moment somebody else is node 1, and B believes it.
    world.start(IMPOSTOR, A);
    world.link(IMPOSTOR, R);
    world.run_for(Duration::from_millis(20));
    assert_eq!(world.register(B, 0x1008 + 16), world.register(IMPOSTOR, 0x18));
    world.separate(IMPOSTOR, R);
    world.link(A, R);
    // B does not know any more what it did for A, so that nobody does.
    assert_eq!(write_code(world.check(A, B, 0x2000)), Code::PeerRestarted);
    assert_eq!(world.executions.len() - before, 1, "exactly once");
    assert!(world.run_until(DEADLINE, |world| world.is_up(A, B)));
    put(&mut world, 2);
    assert_eq!(world.check(A, B, 0x2000), 0);
    assert_eq!(held(&mut world), 2);
}
