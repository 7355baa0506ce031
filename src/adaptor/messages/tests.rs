//! Doorbells, the queue, and what tells the guest of it: cases, and any interleaving against a plain model.

#![allow(clippy::arithmetic_side_effects)]

mod property;

use super::*;
use crate::adaptor::address::NodeSet;

const SENDER: NodeId = NodeId(2);
const OTHER: NodeId = NodeId(3);
const MASKED: u32 = 1 << 31;
const HOLD: u32 = 1 << 30;

fn set_control(messages: &mut Messages, doorbell: u8, control: u32) {
    let at = usize::from(doorbell) * ENTRY_SIZE;
    for (index, byte) in control.to_le_bytes().into_iter().enumerate() {
        messages.doorbells_mut().set_byte(at + index, byte);
    }
}

fn set_nodes(messages: &mut Messages, doorbell: u8, nodes: NodeSet) {
    let at = usize::from(doorbell) * ENTRY_SIZE + 0x20;
    for (index, byte) in nodes.words().into_iter().flat_map(u64::to_le_bytes).enumerate() {
        messages.doorbells_mut().set_byte(at + index, byte);
    }
}

/// Doorbells 0 to 3 are open to the sender, each with its number as vector.
fn open() -> Messages {
    let mut messages = Messages::default();
    for doorbell in 0..4 {
        set_nodes(&mut messages, doorbell, [SENDER].into_iter().collect());
        set_control(&mut messages, doorbell, doorbell.into());
    }
    messages
}

fn write(data: &'static [u8]) -> RequestKind {
    RequestKind::Write(Bytes::from_static(data).into())
}

fn ring(messages: &mut Messages, doorbell: u8, value: u64) -> Result<(), Code> {
    let kind = RequestKind::Write(Bytes::copy_from_slice(&value.to_le_bytes()).into());
    messages.serve(SENDER, u64::from(doorbell) * 8, &kind).map(drop)
}

/// What a load of a doorbell returns: room, and how many were accepted.
fn ask(messages: &mut Messages, node: NodeId, doorbell: u8) -> Result<(u32, u32), Code> {
    let data = messages.serve(node, u64::from(doorbell) * 8, &RequestKind::Read { len: 8 })?;
    let value = u64::from_le_bytes(data[..].try_into().unwrap());
    Ok((value as u32, (value >> 32) as u32))
}

fn take(messages: &mut Messages) -> Option<u64> {
    let front = messages.front()?;
    messages.pop(messages.number());
    Some(front.data)
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

/// No vector.
const NONE: [u16; 0] = [];
const COALESCED: Coalescing = Coalescing { count: 3, time: Duration::from_micros(100) };

#[test]
fn messages_of_both_sizes_come_in_order_with_their_source_and_doorbell() {
    let mut messages = open();
    messages.serve(SENDER, 8, &write(&[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    messages.serve(SENDER, 24, &write(&[0xfe, 0xff, 0xff, 0xff])).unwrap();
    assert_eq!((messages.count(), messages.number(), messages.received()), (2, 0, 2));
    let first = Message { source: SENDER, doorbell: 1, size: 8, data: 0x0807_0605_0403_0201 };
    assert_eq!(messages.front(), Some(first));
    messages.pop(0);
    assert_eq!(
        messages.front(),
        Some(Message { doorbell: 3, size: 4, data: 0xffff_fffe, ..first }),
        "not sign-extended"
    );
    messages.pop(1);
    assert_eq!((messages.front(), messages.number(), messages.received()), (None, 2, 2));
}

#[test]
fn a_message_is_taken_by_its_number_only() {
    let mut messages = open();
    ring(&mut messages, 0, 7).unwrap();
    for number in [1, u32::MAX] {
        messages.pop(number);
        assert_eq!(messages.count(), 1);
    }
    messages.pop(0);
    messages.pop(0);
    messages.pop(1);
    assert_eq!((messages.count(), messages.number()), (0, 1));
}

#[test]
fn accesses_that_are_no_doorbell_as_a_whole_are_refused() {
    let mut messages = open();
    for (offset, data, code) in [
        (0, &[1][..], Code::BadSize),
        (0, &[1; 2], Code::BadSize),
        (4, &[1; 4], Code::BadSize),
        (4, &[1; 8], Code::BadSize),
        (0x1fc, &[1; 8], Code::BadSize),
        (0, &[1; 16], Code::BadSize),
        (0, &[], Code::BadSize),
        (0x200, &[1; 8], Code::NoWindow),
        (0xff8, &[1; 8], Code::NoWindow),
        (0xffc, &[1; 8], Code::NoWindow),
        (0x1f8, &[1; 8], Code::AccessDenied),
    ] {
        let kind = RequestKind::Write(Bytes::copy_from_slice(data).into());
        assert_eq!(messages.serve(SENDER, offset, &kind), Err(code), "{offset:#x} {data:?}");
        let len = data.len() as u32;
        assert_eq!(
            messages.serve(SENDER, offset, &RequestKind::Read { len }),
            Err(code),
            "{offset:#x} {len}"
        );
    }
    assert_eq!((messages.count(), messages.overflows()), (0, 0));
    assert!(is_own(Location::io(0)) && is_own(Location::io(0xfff)));
    assert!(!is_own(Location::io(0x1000)) && !is_own(Location::memory(0)));
}

#[test]
fn each_doorbell_is_closed_to_all_but_its_own_nodes() {
    let mut messages = open();
    set_nodes(&mut messages, 1, [OTHER].into_iter().collect());
    for (node, doorbell, open) in [(SENDER, 0, true), (OTHER, 0, false), (SENDER, 1, false), (OTHER, 1, true)]
    {
        let expected = if open { Ok(Bytes::new()) } else { Err(Code::AccessDenied) };
        assert_eq!(messages.serve(node, doorbell * 8, &write(&[0; 8])), expected, "{node} {doorbell}");
        let asked = ask(&mut messages, node, doorbell as u8);
        assert_eq!(asked.err(), expected.err(), "{node} {doorbell}");
    }
    assert_eq!(messages.count(), 2);
    set_nodes(&mut messages, 0, NodeSet::EMPTY);
    assert_eq!(ring(&mut messages, 0, 1), Err(Code::AccessDenied));
    assert_eq!(messages.count(), 2, "what came before stays");
}

#[test]
fn a_full_queue_refuses_and_forgets_nothing() {
    let mut messages = open();
    for value in 0..u64::from(LIMIT) {
        ring(&mut messages, 0, value).unwrap();
    }
    assert_eq!(ask(&mut messages, SENDER, 0), Ok((0, LIMIT)));
    for _ in 0..3 {
        assert_eq!(ring(&mut messages, 1, 0), Err(Code::NoResources));
    }
    assert_eq!((messages.overflows(), messages.received()), (3, LIMIT.into()));
    assert_eq!(take(&mut messages), Some(0));
    assert_eq!(ask(&mut messages, SENDER, 0), Ok((1, LIMIT)));
    ring(&mut messages, 0, u64::from(LIMIT)).unwrap();
    let rest: Vec<u64> = core::iter::from_fn(|| take(&mut messages)).collect();
    assert_eq!(rest, (1..=u64::from(LIMIT)).collect::<Vec<_>>());
}

#[test]
fn a_held_doorbell_refuses_as_if_there_were_no_room() {
    let mut messages = open();
    set_control(&mut messages, 0, HOLD);
    assert_eq!(ring(&mut messages, 0, 1), Err(Code::NoResources));
    assert_eq!(ask(&mut messages, SENDER, 0), Ok((0, 0)));
    ring(&mut messages, 1, 2).unwrap();
    set_control(&mut messages, 0, 0);
    ring(&mut messages, 0, 3).unwrap();
    assert_eq!((take(&mut messages), take(&mut messages), messages.overflows()), (Some(2), Some(3), 1));
}

#[test]
fn a_load_counts_what_was_accepted_of_this_node_at_this_doorbell() {
    let mut messages = open();
    set_nodes(&mut messages, 0, NodeSet::ALL);
    ring(&mut messages, 0, 1).unwrap();
    ring(&mut messages, 1, 1).unwrap();
    messages.serve(OTHER, 0, &write(&[0; 4])).unwrap();
    messages.serve(OTHER, 0, &write(&[0; 4])).unwrap();
    assert_eq!(ask(&mut messages, SENDER, 0), Ok((LIMIT - 4, 1)));
    assert_eq!(ask(&mut messages, OTHER, 0), Ok((LIMIT - 4, 2)));
    while take(&mut messages).is_some() {}
    assert_eq!(ask(&mut messages, SENDER, 1), Ok((LIMIT, 1)), "taking changes the room only");
    let short = messages.serve(SENDER, 0, &RequestKind::Read { len: 4 }).unwrap();
    assert_eq!(short[..], LIMIT.to_le_bytes());
}

#[test]
fn an_interrupt_tells_of_what_has_come_once() {
    let mut messages = open();
    assert_eq!(messages.poll_vectors(at(0)), NONE);
    ring(&mut messages, 2, 1).unwrap();
    ring(&mut messages, 2, 2).unwrap();
    ring(&mut messages, 3, 3).unwrap();
    assert_eq!(messages.poll_vectors(at(0)), [2, 3]);
    assert_eq!((messages.poll_vectors(at(0)), messages.poll_timeout()), (vec![], None));
    take(&mut messages);
    assert_eq!(messages.poll_vectors(at(1)), NONE);
    ring(&mut messages, 2, 4).unwrap();
    assert_eq!(messages.poll_vectors(at(1)), [2]);
}

#[test]
fn what_comes_while_a_doorbell_is_masked_is_told_of_when_it_is_unmasked() {
    let mut messages = open();
    ring(&mut messages, 1, 1).unwrap();
    assert_eq!(messages.poll_vectors(at(0)), [1]);
    set_control(&mut messages, 1, MASKED | 1);
    assert_eq!(messages.poll_vectors(at(0)), NONE);
    set_control(&mut messages, 1, 1);
    assert_eq!(messages.poll_vectors(at(0)), NONE, "it was told of before");
    set_control(&mut messages, 1, MASKED | 1);
    ring(&mut messages, 1, 2).unwrap();
    assert_eq!((messages.poll_vectors(at(0)), messages.poll_timeout()), (vec![], None));
    // Without a vector that exists it is as if masked.
    set_control(&mut messages, 1, 16);
    assert_eq!(messages.poll_vectors(at(0)), NONE);
    set_control(&mut messages, 1, 7);
    assert_eq!(messages.poll_vectors(at(0)), [7]);
}

#[test]
fn what_was_taken_while_masked_is_not_told_of() {
    let mut messages = open();
    set_control(&mut messages, 1, MASKED | 1);
    ring(&mut messages, 1, 1).unwrap();
    ring(&mut messages, 1, 2).unwrap();
    assert_eq!((take(&mut messages), take(&mut messages)), (Some(1), Some(2)));
    set_control(&mut messages, 1, 1);
    assert_eq!(messages.poll_vectors(at(0)), NONE);
}

#[test]
fn interrupts_are_coalesced_by_count() {
    let mut messages = open();
    messages.set_coalescing(COALESCED);
    set_control(&mut messages, 0, 5);
    set_control(&mut messages, 1, 5);
    ring(&mut messages, 0, 1).unwrap();
    ring(&mut messages, 1, 2).unwrap();
    ring(&mut messages, 2, 3).unwrap();
    assert_eq!((messages.poll_vectors(at(0)), messages.poll_timeout()), (vec![], Some(at(100))));
    ring(&mut messages, 0, 4).unwrap();
    assert_eq!(messages.poll_vectors(at(10)), [5], "vector 2 has one message only");
    assert_eq!(messages.poll_timeout(), Some(at(100)));
}

#[test]
fn interrupts_are_coalesced_by_time() {
    let mut messages = open();
    messages.set_coalescing(COALESCED);
    ring(&mut messages, 0, 1).unwrap();
    assert_eq!(messages.poll_vectors(at(5)), NONE);
    ring(&mut messages, 0, 2).unwrap();
    assert_eq!(messages.poll_vectors(at(104)), NONE);
    assert_eq!(messages.poll_vectors(at(105)), [0]);
    assert_eq!(messages.poll_timeout(), None);
    // What was taken before does not begin the time.
    ring(&mut messages, 0, 3).unwrap();
    assert_eq!(messages.poll_vectors(at(200)), NONE);
    while take(&mut messages).is_some() {}
    assert_eq!((messages.poll_vectors(at(290)), messages.poll_timeout()), (vec![], None));
    ring(&mut messages, 0, 4).unwrap();
    assert_eq!((messages.poll_vectors(at(290)), messages.poll_timeout()), (vec![], Some(at(390))));
}

#[test]
fn a_full_queue_is_told_of_at_once_and_count_or_time_alone_coalesce_nothing() {
    let mut messages = open();
    messages.set_coalescing(Coalescing { count: LIMIT + 1, time: Duration::from_secs(3600) });
    for value in 1..u64::from(LIMIT) {
        ring(&mut messages, 0, value).unwrap();
        assert_eq!(messages.poll_vectors(at(0)), NONE);
    }
    ring(&mut messages, 0, 0).unwrap();
    assert_eq!(messages.poll_vectors(at(0)), [0]);
    for coalescing in [Coalescing { time: Duration::ZERO, ..COALESCED }, Coalescing { count: 1, ..COALESCED }]
    {
        while take(&mut messages).is_some() {}
        messages.set_coalescing(coalescing);
        ring(&mut messages, 0, 0).unwrap();
        assert_eq!(messages.poll_vectors(at(0)), [0]);
    }
}

#[test]
fn a_reset_empties_the_queue_and_closes_the_doorbells() {
    let mut messages = open();
    messages.set_coalescing(COALESCED);
    ring(&mut messages, 0, 1).unwrap();
    take(&mut messages);
    ring(&mut messages, 0, 2).unwrap();
    assert_eq!(messages.poll_vectors(at(0)), NONE);
    messages.reset();
    assert_eq!(messages, Messages::default());
    assert_eq!((messages.poll_vectors(at(1000)), messages.poll_timeout()), (vec![], None));
    assert_eq!(ring(&mut messages, 0, 1), Err(Code::AccessDenied));
    assert_eq!((messages.number(), messages.received(), messages.overflows()), (0, 0, 0));
}
