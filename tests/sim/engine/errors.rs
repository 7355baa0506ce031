//! What fails, how that is told, and what it costs others.

use super::*;
use crate::queue::{FENCE, FLAG_LIST, list};
use crate::world::EXPORT_LEN;

const FLUSHED: u32 = 0x44;
const ERROR_COUNT: u64 = 0x64;
const ERRORS: u64 = 0x98;
const FAILED_OPERATIONS: u64 = 0xb8;

#[test]
fn after_an_error_the_rest_is_flushed_until_it_is_resumed() {
    let (mut world, mut a) = pair();
    let bad = a.write(2, 0, EXPORT_LEN, 8);
    let entries = [a.write(1, 0, 0, 8), bad, a.write(3, 0, 8, 8), a.read(4, 64, 0, 8)];
    a.post_all(&mut world, &entries);
    let found: Vec<_> = (0..4).map(|_| a.wait(&mut world)).collect();
    assert_eq!((found[0].status, found[1].status), (0, 0x82));
    // They were under way with it, and executed.
    assert_eq!((found[2].status, found[3].status), (0, 0));
    let late = a.write(5, 0, 0, 8);
    assert_eq!(a.run(&mut world, &late).status, FLUSHED);
    let fence = Entry { opcode: FENCE, ..Entry::default() };
    assert_eq!(a.run(&mut world, &fence).status, FLUSHED << 8 | FLUSHED);
    // What is posted before the index of RESUME is flushed, whenever it is seen.
    let before = a.read(6, 0, 0, 8);
    a.post(&mut world, &before);
    a.resume(&mut world);
    let after = a.write(7, 0, 0, 8);
    a.post_all(&mut world, &[after]);
    assert_eq!((a.wait(&mut world).status, a.wait(&mut world).status), (FLUSHED << 8, 0));
}

#[test]
fn errors_are_told_by_completions_and_by_nothing_else() {
    let (mut world, mut a) = pair();
    let bad = a.write(1, 0, EXPORT_LEN + 0x1000, 8);
    assert_eq!(a.run(&mut world, &bad).status, 0x82);
    assert_eq!(world.check(A, B, EXPORT_LEN + 0x1000), 0);
    assert_eq!((world.register(A, ERROR_COUNT) as u32, world.register(A, ERRORS)), (0, 0));
    assert_eq!(world.register(A, FAILED_OPERATIONS), 1);
    a.post_all(&mut world, &[bad; 3]);
    (0..3).for_each(|_| assert_eq!(a.wait(&mut world).status, FLUSHED));
    assert_eq!(world.register(A, FAILED_OPERATIONS), 4);
    world.reset(A);
    assert_eq!(world.register(A, FAILED_OPERATIONS), 0);
}

#[test]
fn local_memory_that_is_not_the_queues_is_no_memory() {
    let mut world = World::new(7, 2);
    let (own, other) = (register(&mut world, A, DOMAIN, 3), register(&mut world, A, DOMAIN + 1, 3));
    let read_only = register(&mut world, A, DOMAIN, 1);
    let mut a = create(&mut world, A, (DOMAIN, own), 0, 6, 0).unwrap();
    let stale = register(&mut world, A, DOMAIN, 3);
    assert_eq!(deregister(&mut world, A, stale), 0);
    let write = a.write(1, 0, 0, 8);
    for key in [0, other, stale, u32::MAX] {
        assert_eq!(a.run(&mut world, &Entry { key, ..write }).status, 0x86, "{key:#x}");
        a.resume(&mut world);
    }
    let outside = Entry { local: LEN - 7, ..write };
    assert_eq!(a.run(&mut world, &outside).status, 0x86);
    a.resume(&mut world);
    let read = Entry { key: read_only, ..a.read(1, 0, 0, 8) };
    assert_eq!(a.run(&mut world, &read).status, 0x8600);
    a.resume(&mut world);
    assert_eq!(a.run(&mut world, &Entry { key: read_only, ..write }).status, 0);
    // Good ones around a bad one, read together.
    let entries = [write, Entry { key: other, ..write }, write];
    a.post_all(&mut world, &entries);
    let found = [(); 3].map(|()| a.wait(&mut world).status);
    assert_eq!(found, [0, 0x86, FLUSHED]);
    assert_eq!(world.register(A, ERROR_COUNT) as u32, 0, "no remote block has failed");
}

#[test]
fn memory_that_is_gone_from_the_machine_fails_alone() {
    let (mut world, mut a) = pair();
    // Registered, but behind the end of memory: the first and last byte of each run are looked at, so a hole is in between.
    let entries = [a.write(1, 0, 0, 8), a.write(2, 8, 8, 8)];
    a.post_all(&mut world, &entries);
    assert_eq!((a.wait(&mut world).status, a.wait(&mut world).status), (0, 0));
    // Bus master off: nothing of local memory can be reached, so that the rings stand still.
    let now = world.now;
    world.adaptor(A).handle_store(now, Region::Config, 4, &[2, 0]).unwrap();
    let write = a.write(3, 0, 0, 8);
    a.post_all(&mut world, &[write]);
    world.run_for(A_WHILE);
    assert_eq!(a.poll(&mut world), None);
    set_bus_master(&mut world, true);
    assert_eq!(a.wait(&mut world).status, 0, "without a doorbell");
}

fn set_bus_master(world: &mut World, is_on: bool) {
    let now = world.now;
    world.adaptor(A).handle_store(now, Region::Config, 4, &[if is_on { 6 } else { 2 }, 0]).unwrap();
    world.take_outputs();
}

#[test]
fn completions_wait_for_bus_master() {
    let (mut world, mut a) = pair();
    world.write_delay = Duration::from_millis(3);
    let write = a.write(1, 0, 0, 8);
    a.post_all(&mut world, &[write]);
    world.run_for(Duration::from_millis(1));
    set_bus_master(&mut world, false);
    world.run_for(A_WHILE);
    assert_eq!(a.poll(&mut world), None);
    let state = |world: &mut World| {
        let at = (3 << 20) + u64::from(a.number) * queue::PAGE + 0x18;
        u32::from_le_bytes(world.load(A, Region::Io, at, 4)[..].try_into().unwrap())
    };
    assert_eq!(state(&mut world), 2);
    set_bus_master(&mut world, true);
    assert_eq!(a.wait(&mut world), Completion { status: 0, cookie: 1, done: 8, former: 0 });
    let write = a.write(2, 0, 0, 8);
    assert_eq!(a.run(&mut world, &write).status, 0);
}

#[test]
fn a_queue_that_is_awake_while_bus_master_goes_is_not_asleep_afterwards() {
    let (mut world, mut a) = pair();
    world.adaptor(A).set_queue_poll(Duration::from_millis(1));
    let write = a.write(1, 0, 0, 8);
    assert_eq!(a.run(&mut world, &write).status, 0);
    set_bus_master(&mut world, false);
    // By its own look, and by the one before it goes to rest.
    world.run_for(A_WHILE);
    set_bus_master(&mut world, true);
    a.post_all(&mut world, &[write]);
    assert_eq!(a.wait(&mut world).status, 0, "it rang only if it had to");
}

#[test]
fn malformed_entries_are_told_by_their_cookies() {
    let (mut world, mut a) = pair();
    let good = a.write(1, 0, 0, 8);
    for bad in [
        Entry { opcode: 0, ..good },
        Entry { opcode: 200, ..good },
        Entry { flags: 0x80, ..good },
        Entry { len: 1 << 48, remote: 1, ..good },
        Entry { list_entries: 1, ..good },
        Entry { len: 0, ..good },
        Entry { len: 0, ..a.read(1, 0, 0, 8) },
    ] {
        let found = a.run(&mut world, &Entry { cookie: 0xbad, ..bad });
        assert_eq!((found.status, found.cookie, found.done), (0x8787, 0xbad, 0), "{bad:?}");
        a.resume(&mut world);
    }
    let short = list(&[(a.key, DATA, 7)]);
    a.data(&mut world, 0x100, 24).copy_from_slice(&short);
    let wrong = Entry { flags: FLAG_LIST, list_entries: 1, local: DATA + 0x100, ..good };
    assert_eq!(a.run(&mut world, &wrong).status, 0x87, "the list does not add up");
    a.resume(&mut world);
    assert_eq!(a.run(&mut world, &good).status, 0);
}

#[test]
fn commands_refuse_what_is_wrong() {
    let mut world = World::new(7, 2);
    let key = register(&mut world, A, DOMAIN, 3);
    let read_only = register(&mut world, A, DOMAIN, 1);
    let refused = |world: &mut World, domain, key, place, log2| {
        create(world, A, (domain, key), place, log2, 0).unwrap_err()
    };
    assert_eq!(refused(&mut world, DOMAIN + 1, key, 0, 6), 9);
    assert_eq!(refused(&mut world, DOMAIN, 0, 0, 6), 9);
    assert_eq!(refused(&mut world, DOMAIN, read_only, 0, 6), 6);
    assert_eq!(refused(&mut world, DOMAIN, key, 8, 6), 6);
    assert_eq!(refused(&mut world, DOMAIN, key, 0, 1), 6);
    assert_eq!(refused(&mut world, DOMAIN, key, LEN - 0x40 * 64, 6), 6);
    let a = create(&mut world, A, (DOMAIN, key), 0, 6, 0).unwrap();
    assert_eq!(deregister(&mut world, A, key), 10);
    assert_eq!(destroy(&mut world, A, a.number), 0);
    assert_eq!(destroy(&mut world, A, a.number), 9);
    assert_eq!(deregister(&mut world, A, key), 0);
    assert_eq!(deregister(&mut world, A, key), 9);
}

#[test]
fn a_node_that_is_away_is_told_and_others_go_on() {
    let mut world = World::new(7, 3);
    let mut a = poster(&mut world, A);
    world.cut(A, B);
    world.run_for(DEADLINE);
    let write = a.write(1, 0, 0, 8);
    assert_eq!(a.run(&mut world, &write).status, 0x41);
    a.resume(&mut world);
    assert_eq!(a.run(&mut world, &Entry { node: 3, ..write }).status, 0);
    assert_eq!(a.run(&mut world, &Entry { node: 9, ..write }).status, 0x81);
    a.resume(&mut world);
    assert_eq!(a.run(&mut world, &Entry { node: A.0, ..write }).status, 0x81);
}
