//! Pages that take long to come: what waits for them, and what becomes of it meanwhile.

use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::NodeId;

use crate::world::{DEADLINE, EXPORTED, LEASE, Slow, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const TIMEOUT: u32 = 0xc1;
const NO_WINDOW: u32 = 0x82;
const FLUSHED: u32 = 0x44;
/// Every page is brought in elsewhere, in up to 3 s.
const ELSEWHERE: Slow = Slow { faults: 1000, longest: 3_000_000, unseen: 0 };
/// Every page fault has the process stand still, for up to 400 ms.
const UNSEEN: Slow = Slow { faults: 1000, longest: 800_000, unseen: 1000 };

/// A stores at B, and the operation has a page fault; no other has.
fn store_with_fault(world: &mut World, slow: Slow, offset: u64, value: u64) {
    let before = world.page_faults;
    world.slow = slow;
    world.store(A, B, offset, &value.to_le_bytes()).unwrap();
    world.idle(A);
    assert!(world.run_until(DEADLINE, |world| world.page_faults > before), "it comes to B's memory");
    world.slow = Slow::NONE;
}

fn held(world: &mut World, offset: u64) -> u64 {
    let at = (EXPORTED + offset) as usize;
    u64::from_le_bytes(world.memory(B)[at..at + 8].try_into().unwrap())
}

#[test]
fn no_ghost_writes_however_long_a_page_takes() {
    let (mut done, mut late) = (0, 0);
    for seed in 0..60 {
        for slow in [ELSEWHERE, UNSEEN] {
            let mut world = World::new(seed, 2);
            store_with_fault(&mut world, slow, 0, 7);
            world.spared = Some(A);
            let status = world.check(A, B, 0);
            let then = held(&mut world, 0);
            world.run_for(Duration::from_secs(4));
            assert!(status == 0 || status == TIMEOUT, "{status:#x}");
            // What was reported as OK is there, and what was not never comes.
            assert_eq!((then, held(&mut world, 0)), if status == 0 { (7, 7) } else { (0, 0) });
            (done, late) = if status == 0 { (done + 1, late) } else { (done, late + 1) };
            world.store(A, B, 8, &8u64.to_le_bytes()).unwrap();
            assert_eq!((world.check(A, B, 8), held(&mut world, 8)), (0, 8));
        }
    }
    assert!(done > 20 && late > 20, "{done} in time, {late} late");
}

#[test]
fn a_page_that_comes_after_the_lease_and_before_the_deadline_is_written_under_another_lease() {
    let mut written = 0;
    for seed in 0..60 {
        let mut world = World::new(seed, 2);
        let begin = world.now;
        store_with_fault(&mut world, Slow { longest: 320_000, ..ELSEWHERE }, 0, 7);
        assert_eq!(world.check(A, B, 0), 0);
        assert_eq!(held(&mut world, 0), 7);
        written += u32::from(world.now.since(begin) > LEASE);
    }
    assert!(written > 10, "{written}");
}

#[test]
fn order_is_kept_behind_a_page_and_nobody_else_waits() {
    let mut world = World::new(5, 3);
    store_with_fault(&mut world, Slow { longest: 300_000, ..ELSEWHERE }, 0, 7);
    world.store(A, B, 8, &8u64.to_le_bytes()).unwrap();
    world.idle(A);
    world.store(C, B, 16, &9u64.to_le_bytes()).unwrap();
    let begin = world.now;
    assert_eq!(world.check(C, B, 16), 0);
    assert!(world.now.since(begin) < Duration::from_millis(1));
    assert_eq!([0, 8, 16].map(|at| held(&mut world, at)), [0, 0, 9]);
    assert_eq!(world.check(A, B, 0), 0);
    assert_eq!([0, 8, 16].map(|at| held(&mut world, at)), [7, 8, 9]);
    let executed: Vec<_> = world.executions.iter().map(|execution| execution.data[0]).collect();
    assert_eq!(executed, [9, 7, 8]);
}

#[test]
fn isolation_what_waits_for_a_page_does_not_land_in_a_window_that_is_closed() {
    for slow in [ELSEWHERE, Slow { longest: 200_000, ..ELSEWHERE }] {
        let mut world = World::new(6, 2);
        store_with_fault(&mut world, slow, 0, 7);
        let begin = world.now;
        world.unexport(B);
        assert_eq!(world.now, begin, "that is acknowledged at once");
        let status = world.check(A, B, 0);
        assert!(status == NO_WINDOW || status == TIMEOUT, "{status:#x}");
        world.export(B, 0b11, u64::MAX);
        world.run_for(Duration::from_secs(4));
        assert_eq!(held(&mut world, 0), 0);
    }
}

#[test]
fn isolation_a_reset_flushes_what_waits_for_a_page() {
    for slow in [ELSEWHERE, UNSEEN] {
        let mut world = World::new(7, 2);
        store_with_fault(&mut world, slow, 0, 7);
        world.reset(B);
        world.export(B, 0b11, u64::MAX);
        let status = world.check(A, B, 0);
        // It was not executed; or its answer was lost with the life of B.
        assert!(status == FLUSHED || status >> 6 == 3, "{status:#x}");
        world.run_for(Duration::from_secs(4));
        assert_eq!(held(&mut world, 0), 0);
    }
}

#[test]
fn a_command_waits_for_its_descriptor_and_a_reset_ends_that() {
    let mut world = World::new(8, 2);
    world.slow = ELSEWHERE;
    world.memory(B)[..128].fill(0);
    for (register, value) in [(0x40, 0), (0x44, 0), (0x48, 77), (0x4c, 3)] {
        world.set_register(B, register, value);
    }
    assert_eq!(world.register(B, 0x50) as u32, 1, "busy");
    world.reset(B);
    world.slow = Slow::NONE;
    world.export(B, 0b11, u64::MAX);
    world.run_for(Duration::from_secs(4));
    assert_eq!(world.register(B, 0x50) as u32, 0, "what was reset says nothing more");
    let data = world.load(A, Region::Access, World::space(B, 0), 8);
    assert_eq!(data[..], [0; 8]);
}
