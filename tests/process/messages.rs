//! Messages between real adaptors: stores to doorbells, the queue behind registers, and interrupts as eventfds.

use std::time::Instant;

use vmm_sys_util::eventfd::EventFd;

use super::guest::{Guest, Message};
use super::node::{PATIENCE, Place};
use super::{attach, wait_for_reset};

const LIMIT: u64 = 1024;
const OK: u8 = 0;
const NO_RESOURCES: u8 = 0x43;
const ACCESS_DENIED: u8 = 0x83;

/// Waits for an interrupt.
fn wait_for(event: &EventFd) {
    let begin = Instant::now();
    while event.read().is_err() {
        assert!(begin.elapsed() < PATIENCE, "no interrupt");
        std::thread::yield_now();
    }
}

/// What a driver does in its handler, until so many messages are there.
fn collect(guest: &mut Guest, event: &EventFd, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        wait_for(event);
        messages.extend(std::iter::from_fn(|| guest.take_message()));
    }
    messages
}

fn message(source: u8, doorbell: u8, data: u64) -> Message {
    Message { source, doorbell, size: 8, data }
}

#[test]
fn messages_go_both_ways_in_order_and_raise_their_vector() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    let (far_event, near_event) = (far.connect(3), near.connect(15));
    far.open_doorbell(5, 3);
    near.open_doorbell(63, 15);
    for value in 0..1000 {
        near.ring(2, 5, value);
    }
    assert_eq!(near.io_check(2), OK);
    let expected: Vec<Message> = (0..1000).map(|value| message(1, 5, value)).collect();
    assert_eq!(collect(&mut far, &far_event, 1000), expected);
    far.ring_short(1, 63, 0xffff_fffe);
    assert_eq!(far.io_check(1), OK);
    let short = Message { size: 4, ..message(2, 63, 0xffff_fffe) };
    assert_eq!(collect(&mut near, &near_event, 1), [short]);
    near.ring(2, 6, 1);
    assert_eq!(near.io_check(2), ACCESS_DENIED, "nobody has opened it");
    assert_eq!(far.take_message(), None);
}

#[test]
fn a_queue_that_overflows_and_a_vector_that_is_masked_lose_nothing() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    far.open_doorbell(0, 1);
    // The vector has no eventfd yet, as when it is masked.
    let mut executed = 0;
    for value in 0..LIMIT + 5 {
        near.ring(2, 0, value);
        match near.io_check(2) {
            OK => executed += 1,
            code => assert_eq!((code, executed), (NO_RESOURCES, LIMIT)),
        }
    }
    assert_eq!(near.ask(2, 0), LIMIT << 32);
    let event = far.connect(1);
    let expected: Vec<Message> = (0..LIMIT).map(|value| message(1, 0, value)).collect();
    assert_eq!(collect(&mut far, &event, expected.len()), expected);
    assert!(event.read().is_err(), "one interrupt told of all");
    // Masked in the doorbell's own entry.
    far.mask_doorbell(0, 1);
    near.ring(2, 0, 7);
    assert_eq!(near.io_check(2), OK);
    assert!(event.read().is_err());
    far.open_doorbell(0, 1);
    assert_eq!(collect(&mut far, &event, 1), [message(1, 0, 7)]);
}

#[test]
fn interrupts_are_coalesced_by_count_and_by_time() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    let event = far.connect(2);
    far.open_doorbell(9, 2);
    far.coalesce(10, u32::MAX);
    for value in 0..10 {
        assert!(event.read().is_err(), "after {value} messages");
        near.ring(2, 9, value);
        assert_eq!(near.io_check(2), OK);
    }
    assert_eq!(collect(&mut far, &event, 10).len(), 10);
    far.coalesce(10, 1000);
    near.ring(2, 9, 0);
    assert_eq!(near.io_check(2), OK);
    assert_eq!(collect(&mut far, &event, 1), [message(1, 9, 0)]);
}

#[test]
fn a_guest_that_goes_takes_its_queue_along_and_the_next_one_finds_none_of_it() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    for round in 0..3 {
        let mut far = attach(&place, 2, &mut one, 1);
        near.ring(2, 0, round);
        assert_eq!(near.io_check(2), ACCESS_DENIED, "closed until the driver opens it");
        assert_eq!(far.take_message(), None);
        far.open_doorbell(0, 1);
        near.ring(2, 0, round);
        assert_eq!(near.io_check(2), OK);
        if round == 1 {
            far.reset();
            one.wait_for(&format!("node 2: up, incarnation {:016x}", far.incarnation()));
            assert_eq!(far.take_message(), None);
        }
        drop(far);
        two.wait_for("guest detached");
        wait_for_reset(&mut two, 2, &mut one);
    }
}
