//! Clocks that drift and stand still, and round trips that are long.

use std::time::Duration;

use assured_rdma::adaptor::Event;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::status::{Class, Code};

use crate::network::Faults;
use crate::world::{DEADLINE, EXPORTED, LEASE, TIMING, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn put(world: &mut World, value: u64, offset: u64) {
    world.store(A, B, offset, &value.to_le_bytes()).unwrap();
}

fn held(world: &mut World, offset: u64) -> u64 {
    let at = (EXPORTED + offset) as usize;
    u64::from_le_bytes(world.memory(B)[at..at + 8].try_into().unwrap())
}

fn code(word: u32) -> Code {
    Code::from_bits(word as u8).unwrap()
}

/// A write that travels for `delay`, from a node with a fast clock to one with a slow clock, while
/// A confirms until its time to try is over. Returns its code, and what B's memory holds at the
/// report and a while after.
fn late_write(delay: Duration) -> (Code, u64, u64) {
    let mut world = World::new(1, 2);
    let now = world.now;
    world.clock(A).drifts(now, 500);
    world.clock(B).drifts(now, -500);
    // One second of drift, and a lease for the channel.
    world.run_for(millis(1000));
    put(&mut world, 1, 0);
    assert_eq!(world.check(A, B, 0), 0);
    world.write_delay = delay;
    put(&mut world, 0xdead, 8);
    world.idle(A);
    let word = world.check(A, B, 8);
    let at_report = held(&mut world, 8);
    world.run_for(millis(50));
    (code(word), at_report, held(&mut world, 8))
}

#[test]
fn no_write_is_executed_after_its_report_where_clocks_drift_apart() {
    let mut unknown = 0;
    for micros in (470_000..500_000).step_by(20) {
        let (code, at_report, later) = late_write(Duration::from_micros(micros));
        assert_eq!(at_report, later, "after {micros} us: {code}");
        unknown += u32::from(code.class() == Class::Unknown);
    }
    assert!(unknown > 100, "{unknown} writes were reported as unknown");
}

/// B stands still, and its clock with it, while a write to it waits in its socket under a lease
/// that it believes to be good.
fn write_to_a_frozen_node(freeze: impl FnOnce(&mut World, Duration)) -> (World, Code) {
    let mut world = World::new(1, 2);
    put(&mut world, 1, 0);
    assert_eq!(world.check(A, B, 0), 0);
    freeze(&mut world, millis(1500));
    put(&mut world, 0xdead, 8);
    let code = code(world.check(A, B, 8));
    (world, code)
}

#[test]
fn no_write_is_executed_after_its_report_by_a_node_that_notices_that_it_stood_still() {
    let (mut world, code) = write_to_a_frozen_node(|world, time| world.freeze(B, time));
    assert_eq!(code, Code::Timeout);
    world.run_for(millis(3000));
    assert_eq!(held(&mut world, 8), 0);
    assert!(world.run_until(millis(1000), |world| world.is_up(A, B)));
    put(&mut world, 3, 8);
    assert_eq!(world.check(A, B, 8), 0);
}

/// What README tells under Limits: where nothing tells the node, it executes what came under the
/// leases that it had, and no more.
#[test]
fn a_node_that_does_not_notice_executes_under_the_leases_that_it_had_and_no_longer() {
    let (mut world, code) = write_to_a_frozen_node(|world, time| world.freeze_unnoticed(B, time));
    assert_eq!(code, Code::Timeout);
    world.run_for(millis(3000));
    assert_eq!(held(&mut world, 8), 0xdead, "nobody can tell");
    // Its clock has run for a lease's time before the write came.
    let (mut world, code) = write_to_a_frozen_node(|world, time| {
        world.faults = Faults { loss: 1000, ..Faults::NONE };
        world.run_for(LEASE);
        world.faults = Faults::NONE;
        world.freeze_unnoticed(B, time);
    });
    assert_eq!(code, Code::Timeout);
    world.run_for(millis(3000));
    assert_eq!(held(&mut world, 8), 0);
}

/// A writes, and the write travels for `delay`. From `deaf` on all packets that are sent are lost,
/// those among them which would tell B that the write is given up; 10 ms later A's clock jumps.
/// Returns whether the write was executed.
fn write_across_a_jump(delay: Duration, deaf: Duration, jump: Duration) -> bool {
    let mut world = World::new(1, 2);
    put(&mut world, 1, 0);
    assert_eq!(world.check(A, B, 0), 0);
    world.write_delay = delay;
    put(&mut world, 0xdead, 8);
    world.idle(A);
    world.run_for(deaf);
    world.faults = Faults { loss: 1000, ..Faults::NONE };
    world.run_for(millis(10));
    world.jump(A, jump);
    let start = world.now;
    let word = world.check(A, B, 8);
    assert!(world.now.since(start) <= DEADLINE);
    let at_report = held(&mut world, 8);
    world.run_for(millis(1000));
    assert_eq!(held(&mut world, 8), at_report, "{delay:?}, {deaf:?}, {jump:?}: {}", code(word));
    at_report == 0xdead
}

#[test]
fn a_report_is_not_early_where_the_clock_of_the_initiating_node_jumps_ahead() {
    for jump in [100, 340, 400, 600, 5000] {
        // The write is tried still.
        for delay in [20, 60, 100, 130] {
            assert!(write_across_a_jump(millis(delay), millis(5), millis(jump)), "{delay}, {jump}");
        }
        // It is given up, and its lease is not over.
        for delay in [360, 380, 400, 420, 440] {
            assert!(write_across_a_jump(millis(delay), millis(345), millis(jump)), "{delay}, {jump}");
        }
    }
}

/// Two nodes with a long way between them.
fn far(way: Duration, timing: fn(NodeId) -> Timing) -> World {
    let mut world = World::with_timing(1, 2, timing);
    world.cut(A, B);
    world.network.way = way;
    world.run_for(millis(1000));
    world.link(A, B);
    world.run_for(millis(2000));
    world
}

fn state(world: &mut World, at: NodeId, node: NodeId) -> u64 {
    world.register(at, 0x1000 + 16 * u64::from(node.0)) & 0xffff_ffff
}

#[test]
fn leases_follow_the_round_trip_within_the_deadline() {
    for way in [1, 9, 10, 20, 50, 70, 76].map(millis) {
        let timings: [fn(NodeId) -> Timing; 2] = [|_| TIMING, |_| Timing { lease: millis(20), ..TIMING }];
        for timing in timings {
            let mut world = far(way, timing);
            for value in 1..20u64 {
                put(&mut world, value, 0);
                let word = world.check(A, B, 0);
                assert_eq!(code(word), Code::Ok, "a round trip of {:?}, write {value}", way * 2);
                assert_eq!(held(&mut world, 0), value);
                world.run_for(millis(value * 20));
            }
            assert_eq!(state(&mut world, A, B), 3);
            let told = |event: &(NodeId, Event)| matches!(event.1, Event::RoundTripTooLong { .. });
            assert!(!world.events.iter().any(told));
        }
    }
}

#[test]
fn a_round_trip_that_is_too_long_for_any_lease_is_told_once_and_shows_in_the_registers() {
    let mut world = far(millis(100), |_| TIMING);
    for value in 1..10u64 {
        put(&mut world, value, 0);
        assert!(!code(world.check(A, B, 0)).is_ok());
        world.run_until(millis(3000), |world| world.is_up(A, B));
    }
    let told = |at| {
        let is_it = move |event: &&(NodeId, Event)| {
            event.0 == at && matches!(event.1, Event::RoundTripTooLong { .. })
        };
        world.events.iter().filter(is_it).count()
    };
    assert_eq!((told(A), told(B)), (1, 1));
    assert_eq!((state(&mut world, A, B) & 0x10, state(&mut world, B, A) & 0x10), (0x10, 0x10));
    assert!(world.register(B, 0x78) > 0, "leases were late");
    // It is near again.
    world.network.way = Duration::ZERO;
    world.run_for(millis(6000));
    assert_eq!(state(&mut world, A, B), 3);
    put(&mut world, 77, 0);
    assert_eq!(world.check(A, B, 0), 0);
}

#[test]
fn nodes_with_other_leases_say_so_and_write_all_the_same() {
    let timing = |node| Timing { lease: if node == A { millis(20) } else { LEASE }, ..TIMING };
    let mut world = World::with_timing(1, 2, timing);
    for _ in 0..3 {
        world.cut(A, B);
        world.run_for(millis(1000));
        world.link(A, B);
        world.run_for(millis(3000));
    }
    put(&mut world, 7, 0);
    assert_eq!(world.check(A, B, 0), 0);
    // A lease of 150 ms might be one of 20 ms that has grown, but not the other way round.
    assert_eq!((state(&mut world, A, B), state(&mut world, B, A)), (3, 0x23));
    let told = world.events.iter().filter(|event| matches!(event.1, Event::LeaseDiffers { .. })).count();
    assert_eq!(told, 1, "once");
    world.reset(A);
    world.run_for(millis(100));
    assert_eq!(state(&mut world, B, A), 0x23);
}

/// A proxy passes so much of each connection, and then nothing.
#[test]
fn a_link_that_carries_an_introduction_and_nothing_more_is_not_up() {
    let mut world = World::new(1, 2);
    world.network.allowance = Some(130);
    world.cut(A, B);
    world.link(A, B);
    world.run_for(millis(10));
    assert!(world.is_up(A, B), "it is introduced");
    let changes = |world: &mut World| world.register(A, 0x1000 + 16 * u64::from(B.0)) >> 32;
    let before = changes(&mut world);
    let mut up = 0;
    for _ in 0..200 {
        world.run_for(millis(100));
        up += u32::from(world.is_up(A, B));
    }
    assert!(up <= 20, "up for {} ms of 20 s", up * 100);
    assert_eq!(changes(&mut world), before + 1, "it went down");
    world.network.allowance = None;
    assert!(world.run_until(millis(5000), |world| world.is_up(A, B)));
    put(&mut world, 7, 0);
    assert_eq!(world.check(A, B, 0), 0);
}
