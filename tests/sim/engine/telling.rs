//! When the guest is told of completions, and when the adaptor of entries.

use super::*;
use crate::queue::HEAD_SIZE;

const EVENT: u64 = 0x30;
const EVENT_ENABLE: u64 = 0x34;
const QUEUE_VECTOR: u64 = 0x1b4;
const QUEUE_READY: u64 = 0x1b8;
const QUEUE: u32 = 1 << 8;
const NONE: u32 = u32::MAX;

fn next_ready(world: &mut World) -> u32 {
    let tag = world.begin_load(A, Region::Registers, QUEUE_READY, 4);
    u32::from_le_bytes(world.answer(A, tag).unwrap()[..].try_into().unwrap())
}

/// Vectors of the event come out at once.
fn enable(world: &mut World) {
    let now = world.now;
    let adaptor = world.adaptor(A);
    // MSI-X on, and vector 3 unmasked.
    adaptor.handle_store(now, Region::Config, 0x92, &[0x00, 0x80]).unwrap();
    adaptor.handle_vector(3, true);
    adaptor.handle_store(now, Region::Registers, 0x8000 + 3 * 16 + 12, &[0; 4]).unwrap();
    world.set_register(A, QUEUE_VECTOR, 3);
    world.set_register(A, EVENT_ENABLE, QUEUE);
}

fn interrupts(world: &mut World) -> usize {
    let found = world.interrupts.iter().filter(|&&interrupt| interrupt == (A, 3)).count();
    world.interrupts.clear();
    found
}

#[test]
fn an_armed_completion_raises_one_interrupt_and_names_its_queue() {
    let (mut world, mut a) = pair();
    enable(&mut world);
    let write = a.write(1, 0, 0, 8);
    a.run(&mut world, &write);
    assert_eq!((interrupts(&mut world), next_ready(&mut world)), (0, NONE), "nobody has asked");
    a.arm(&mut world, 2);
    a.run(&mut world, &write);
    assert_eq!((interrupts(&mut world), next_ready(&mut world)), (0, NONE), "not the one that was asked for");
    a.run(&mut world, &write);
    assert_eq!(interrupts(&mut world), 1);
    world.set_register(A, EVENT, QUEUE);
    assert_eq!((next_ready(&mut world), next_ready(&mut world)), (a.number, NONE));
    a.run(&mut world, &write);
    assert_eq!((interrupts(&mut world), next_ready(&mut world)), (0, NONE), "once");
    a.arm(&mut world, 3);
    assert_eq!((interrupts(&mut world), next_ready(&mut world)), (1, a.number), "it is there already");
}

#[test]
fn completions_are_coalesced_by_count_and_time() {
    let mut world = World::new(7, 2);
    enable(&mut world);
    let key = register(&mut world, A, DOMAIN, 3);
    // 3 completions, or 2 ms.
    let mut a = create(&mut world, A, (DOMAIN, key), 0, 6, 3 | 2000 << 32).unwrap();
    let write = a.write(1, 0, 0, 8);
    a.arm(&mut world, 0);
    a.run(&mut world, &write);
    a.run(&mut world, &write);
    assert_eq!(interrupts(&mut world), 0);
    a.run(&mut world, &write);
    assert_eq!((interrupts(&mut world), next_ready(&mut world)), (1, a.number));
    world.set_register(A, EVENT, QUEUE);
    a.arm(&mut world, 3);
    a.run(&mut world, &write);
    world.run_for(Duration::from_micros(1900));
    assert_eq!(interrupts(&mut world), 0);
    world.run_for(Duration::from_micros(200));
    assert_eq!((interrupts(&mut world), next_ready(&mut world)), (1, a.number));
}

fn awake(world: &mut World, a: &Poster) -> u32 {
    let at = (BASE + a.queue.completions - HEAD_SIZE) as usize;
    u32::from_le_bytes(world.memory(A)[at..at + 4].try_into().unwrap())
}

#[test]
fn a_queue_that_is_awake_needs_no_doorbell_and_says_when_it_does_again() {
    let (mut world, mut a) = pair();
    world.adaptor(A).set_queue_poll(Duration::from_millis(1));
    let write = a.write(1, 0, 0, 8);
    a.run(&mut world, &write);
    assert_eq!(awake(&mut world, &a), 1);
    // Found by a look.
    a.post(&mut world, &write);
    let now = world.now;
    world.probe(A);
    world.take_outputs();
    assert_eq!(a.wait(&mut world).status, 0);
    // Posted at the last moment, and found when it is put to rest.
    let done = world.now;
    a.post(&mut world, &write);
    assert_eq!(awake(&mut world, &a), 1);
    assert_eq!(a.wait(&mut world).status, 0);
    assert!(world.now.since(done) >= Duration::from_micros(900), "nobody looked before");
    assert!(world.now.since(now) < Duration::from_millis(3));
    world.run_for(Duration::from_millis(2));
    assert_eq!(awake(&mut world, &a), 0);
    assert!(!world.adaptor(A).is_polling());
    a.post(&mut world, &write);
    world.run_for(A_WHILE);
    assert_eq!(a.poll(&mut world), None, "it sleeps");
    a.post_all(&mut world, &[]);
    assert_eq!(a.wait(&mut world).status, 0);
}

#[test]
fn pages_without_a_queue_and_odd_accesses_are_ignored() {
    let (mut world, mut a) = pair();
    let write = a.write(1, 0, 0, 8);
    a.post(&mut world, &write);
    let (now, page) = (world.now, (3 << 20) + u64::from(a.number) * PAGE);
    for (offset, data) in [
        (0u64, &[0xff; 2][..]),
        (4, &[0xff; 4]),
        (0x18, &[0xff; 4]),
        (0xffc, &[0xff; 4]),
        (0x1000, &[0xff; 4]),
    ] {
        world.adaptor(A).handle_store(now, Region::Io, page + offset, data).unwrap();
    }
    let last = (4 << 20) - 4;
    world.adaptor(A).handle_store(now, Region::Io, last, &[0; 4]).unwrap();
    assert_eq!(&world.load(A, Region::Io, page, 8)[..], [0; 8]);
    world.run_for(A_WHILE);
    assert_eq!(a.poll(&mut world), None);
    world.adaptor(A).handle_store(now, Region::Io, page, &[1, 0, 0, 0, 9, 9, 9, 9]).unwrap();
    assert_eq!(a.wait(&mut world).status, 0);
}
