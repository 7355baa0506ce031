//! Keys and queues that go, nodes that are reset or restarted: in the midst of what is under way.

use super::*;
use crate::world::{EXPORT_LEN, Slow};

/// Everything behind the rings of the node's registered memory.
fn data_of(world: &mut World) -> Vec<u8> {
    world.memory(A)[(BASE + DATA) as usize..].to_vec()
}

/// Begins a command without waiting for it.
fn begin(world: &mut World, opcode: u32, fields: &[(usize, u64)]) {
    world.command(A, opcode, descriptor(fields));
}

fn is_busy(world: &mut World) -> bool {
    world.register(A, 0x50) & 0xffff_ffff == 1
}

/// A queue with reads of the whole window under way, over a slow link.
fn reading() -> (World, Poster) {
    let (mut world, mut a) = pair();
    let key = register(&mut world, A, DOMAIN, 3);
    exported(&mut world, B, 0, EXPORT_LEN).fill(0x5a);
    world.network.rate = 100;
    let read = Entry { key, ..a.read(1, 0, 0, EXPORT_LEN) };
    a.post_all(&mut world, &[read; 8]);
    world.run_for(Duration::from_micros(1500));
    a.key = key;
    (world, a)
}

#[test]
fn nothing_lands_after_a_key_is_deregistered() {
    let (mut world, mut a) = reading();
    begin(&mut world, DEREGISTER, &[(0x30, u64::from(a.key) << 32)]);
    assert!(is_busy(&mut world), "reads are under way that use it");
    assert!(world.run_until(DEADLINE, |world| !is_busy(world)));
    assert_eq!(world.register(A, 0x50) as u32, 0);
    world.memory(A)[(BASE + DATA) as usize..].fill(0xee);
    let late = a.read(2, 0, 0, 8);
    a.post_all(&mut world, &[late]);
    let found: Vec<_> = (0..9).map(|_| a.wait(&mut world)).collect();
    assert!(found[..8].iter().any(|done| done.status == 0), "{found:?}");
    assert!(found.iter().all(|done| done.status != 0 || done.done == EXPORT_LEN), "{found:?}");
    assert_ne!(found[8].status, 0);
    world.run_for(DEADLINE);
    assert!(data_of(&mut world).iter().all(|&byte| byte == 0xee));
    assert_eq!(deregister(&mut world, A, a.key), 9);
}

/// A read whose landing place is not there for seconds: it is given up where its memory is let go of, or its queue.
#[test]
fn what_waits_for_a_page_holds_up_no_command() {
    for (opcode, seed) in (0..8).flat_map(|seed| [(DEREGISTER, seed), (DESTROY_QUEUE, seed)]) {
        let mut world = World::new(seed, 2);
        let mut a = poster(&mut world, A);
        let key = register(&mut world, A, DOMAIN, 3);
        exported(&mut world, B, 0, 64).fill(0x5a);
        world.spared = Some(A);
        let read = Entry { key, ..a.read(1, 0, 0, 64) };
        a.post_all(&mut world, &[read]);
        world.run_until(DEADLINE, |world| world.register(B, 0xa8) > 0);
        let before = world.page_faults;
        world.slow = Slow { faults: 1000, longest: 60_000_000, unseen: 0 };
        assert!(world.run_until(DEADLINE, |world| world.page_faults > before), "it lands");
        world.slow = Slow::NONE;
        let fields = [(0x10, a.number.into()), (0x30, u64::from(key) << 32)];
        let fields = if opcode == DEREGISTER { &fields[1..] } else { &fields[..1] };
        begin(&mut world, opcode, fields);
        assert!(world.run_until(DEADLINE, |world| !is_busy(world)), "seed {seed}: it waits for a page");
        assert_eq!(world.register(A, 0x50) as u32, 0);
        let then = data_of(&mut world);
        world.run_for(Duration::from_secs(60));
        assert!(data_of(&mut world) == then, "nothing lands after it");
        if opcode == DEREGISTER {
            assert_eq!(a.wait(&mut world).status, 0x8800, "local memory was not there");
        }
    }
}

#[test]
fn nothing_lands_after_a_queue_is_destroyed() {
    let (mut world, a) = reading();
    begin(&mut world, DESTROY_QUEUE, &[(0x10, a.number.into())]);
    assert!(is_busy(&mut world), "reads are under way");
    assert!(world.run_until(DEADLINE, |world| !is_busy(world)));
    world.memory(A)[BASE as usize..].fill(0xee);
    a.ring(&mut world, SUBMITTED, 100);
    world.run_for(DEADLINE);
    assert!(world.memory(A)[BASE as usize..].iter().all(|&byte| byte == 0xee));
    assert_eq!(deregister(&mut world, A, a.key), 0);
    let mut next = poster(&mut world, A);
    assert_eq!(next.number, a.number);
    let write = next.write(1, 0, 0, 8);
    assert_eq!(next.run(&mut world, &write).status, 0);
}

#[test]
fn nothing_lands_and_nothing_is_told_after_a_reset() {
    let (mut world, a) = reading();
    world.reset(A);
    world.memory(A)[BASE as usize..].fill(0xee);
    a.ring(&mut world, SUBMITTED, 100);
    world.run_for(2 * DEADLINE);
    assert!(world.memory(A)[BASE as usize..].iter().all(|&byte| byte == 0xee));
    assert_eq!(destroy(&mut world, A, a.number), 9);
    assert_eq!(deregister(&mut world, A, a.key), 9);
    let mut next = poster(&mut world, A);
    world.run_until(DEADLINE, |world| world.knows(A, B));
    let write = next.write(1, 0, 0, 8);
    assert_eq!(next.run(&mut world, &write).status, 0);
}

#[test]
fn no_ghost_write_of_an_operation_that_was_reported() {
    for kill in [World::restart, World::reset] {
        let (mut world, mut a) = pair();
        world.network.rate = 10;
        for at in 0..8 {
            a.data(&mut world, at * 0x1000, 0x1000).fill(0x11);
            let write = a.write(at, at * 0x1000, at * 0x1000, 0x1000);
            a.post(&mut world, &write);
        }
        a.post_all(&mut world, &[]);
        world.run_for(Duration::from_millis(1));
        kill(&mut world, B);
        let found: Vec<_> = (0..8).map(|_| a.wait(&mut world)).collect();
        assert!(found.iter().any(|done| done.status != 0), "{found:?}");
        world.export(B, 3, u64::MAX);
        exported(&mut world, B, 0, EXPORT_LEN).fill(0xee);
        world.run_for(2 * DEADLINE);
        assert!(exported(&mut world, B, 0, EXPORT_LEN).iter().all(|&byte| byte == 0xee));
        a.resume(&mut world);
        world.run_until(2 * DEADLINE, |world| world.knows(A, B));
        let write = a.write(9, 0, 0, 8);
        assert_eq!(a.run(&mut world, &write).status, 0);
    }
}

#[test]
fn a_short_loss_of_the_link_costs_nothing() {
    let (mut world, mut a) = pair();
    for turn in 0..20 {
        a.data(&mut world, 0, EXPORT_LEN).fill(turn);
        let write = a.write(turn.into(), 0, 0, EXPORT_LEN);
        a.post_all(&mut world, &[write]);
        world.run_for(Duration::from_micros(u64::from(turn) * 7));
        world.cut(A, B);
        world.link(A, B);
        assert_eq!(a.wait(&mut world).status, 0);
        assert!(exported(&mut world, B, 0, EXPORT_LEN).iter().all(|&byte| byte == turn));
    }
}
