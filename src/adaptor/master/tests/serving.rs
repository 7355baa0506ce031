//! Requests of other nodes: what is executed, refused, discarded and flushed.

use super::*;
use crate::adaptor::memory::{Lent, Source};
use crate::adaptor::mesh::limits::{LENT_BYTES, WINDOW_REQUESTS};
use crate::adaptor::mesh::packet::Incarnation;
use crate::adaptor::transaction::Content;

#[test]
fn a_write_and_a_read_are_executed_in_order() {
    let (mut master, mut memory) = exporting();
    master.push(write(2, 10, 0xff8, b"assured!")).unwrap();
    master.push(read(2, 11, 0xffa, 6)).unwrap();
    memory.serve(&mut master);
    let first = master.poll_answer().unwrap();
    assert_eq!(first, Answer { origin: origin(2), ticket: 10, code: Code::Ok, data: Bytes::new() });
    let second = master.poll_answer().unwrap();
    assert_eq!((second.ticket, second.code, &second.data[..]), (11, Code::Ok, &b"sured!"[..]));
    assert_eq!(&memory.bytes[0x4ff8..0x5000], b"assured!");
    assert_eq!((master.served_writes(), master.served_reads(), master.refused()), (1, 1, 0));
}

#[test]
fn what_is_refused_is_answered_with_its_code_and_touches_nothing() {
    let (mut master, mut memory) = exporting();
    let before = (memory.bytes.clone(), memory.operations);
    for request in [
        write(2, 0, 0x1000, b"x"),
        write(2, 1, 0xfff, b"xy"),
        write(3, 2, 0, b"x"),
        write(2, 3, 0, b""),
        read(2, 4, 0, 0),
        read(2, 5, 0, 0x10001),
        read(2, 6, 0, u32::MAX),
        write(2, 7, u64::MAX, b"xy"),
    ] {
        master.push(request).unwrap();
    }
    memory.serve(&mut master);
    let mut codes = answers(&mut master);
    codes.sort_by_key(|answer| answer.1);
    let codes: Vec<Code> = codes.into_iter().map(|answer| answer.2).collect();
    assert_eq!(codes[..4], [Code::NoWindow, Code::NoWindow, Code::AccessDenied, Code::BadSize]);
    assert_eq!(codes[4..], [Code::BadSize, Code::BadSize, Code::BadSize, Code::NoWindow]);
    assert_eq!((memory.bytes, memory.operations), before);
    assert_eq!((master.served_writes(), master.served_reads(), master.refused()), (0, 0, 8));
}

#[test]
fn a_memory_fault_is_a_target_fault() {
    let (mut master, mut memory) = exporting();
    for fault in [MemoryFault::Unmapped, MemoryFault::ReadOnly, MemoryFault::NotShared] {
        memory.fault = Some(fault);
        master.push(write(2, 0, 0, b"x")).unwrap();
        master.push(read(2, 1, 0, 1)).unwrap();
        memory.serve(&mut master);
        assert_eq!(answers(&mut master), [(2, 0, Code::TargetFault), (2, 1, Code::TargetFault)]);
    }
    assert_eq!((master.served_writes(), master.served_reads(), master.refused()), (0, 0, 6));
}

fn lent(ticket: u64, offset: u64, len: usize) -> Inbound {
    let source = Source { home: Home::Guest, segments: vec![Segment { address: 7, len }], len };
    let lent = Lent { lender: NodeId(2), life: Incarnation(5), source };
    let kind = RequestKind::Write(Content::Lent(lent));
    Inbound { origin: origin(2), ticket, at: Location::memory(offset), kind }
}

#[test]
fn what_is_lent_is_copied_under_the_rules_of_every_write_and_may_be_longer() {
    let (mut master, _) = exporting();
    master.push(lent(0, 8, 16)).unwrap();
    let operation = master.poll_operation(|_, _| true).unwrap();
    let MemoryOperation::Transfer { id, home, segments, from } = &operation else { panic!("{operation:?}") };
    assert_eq!((home, &segments[..]), (&Home::Guest, &[Segment { address: 0x4008, len: 16 }][..]));
    assert_eq!((from.lender, from.life, from.source.len), (NodeId(2), Incarnation(5), 16));
    master.handle_done(*id, Ok(Bytes::new()));
    // Beyond the window; and longer than is allowed for, from here on.
    let longest = LENT_BYTES as usize;
    for (ticket, len) in (1..).zip([0x1000, longest, longest + 1]) {
        master.push(lent(ticket, 8, len)).unwrap();
        assert_eq!(master.poll_operation(|_, _| true), None);
    }
    let codes = [Code::Ok, Code::NoWindow, Code::NoWindow, Code::BadSize];
    assert_eq!(answers(&mut master), [0, 1, 2, 3].map(|at| (2, at as u64, codes[at])));
    assert_eq!((master.served_writes(), master.refused()), (1, 3));
}

#[test]
fn memory_that_is_not_lent_any_more_is_a_fault_of_the_one_who_lent_it() {
    let (mut master, _) = exporting();
    master.push(lent(0, 8, 16)).unwrap();
    let operation = master.poll_operation(|_, _| true).unwrap();
    master.handle_done(operation.id(), Err(MemoryFault::Lender));
    assert_eq!(answers(&mut master), [(2, 0, Code::LocalFault)]);
}

#[test]
fn what_fails_in_the_midst_is_not_called_not_executed() {
    let (mut master, _) = exporting();
    for (fault, code) in [
        (MemoryFault::Unmapped, Code::TargetFault),
        (MemoryFault::Refused, Code::TargetFault),
        (MemoryFault::Partial, Code::Partial),
    ] {
        for request in [write(2, 0, 0, b"bytes"), read(2, 0, 0, 8)] {
            master.push(request).unwrap();
            let operation = master.poll_operation(|_, _| true).unwrap();
            master.handle_done(operation.id(), Err(fault));
            assert_eq!(answers(&mut master), [(2, 0, code)]);
        }
    }
}

#[test]
fn a_read_that_brings_another_number_of_bytes_is_a_target_fault() {
    let (mut master, _) = exporting();
    for bytes in [&b"1234567"[..], b"123456789", b""] {
        master.push(read(2, 0, 0, 8)).unwrap();
        let operation = master.poll_operation(|_, _| true).unwrap();
        master.handle_done(id_of(&operation), Ok(Bytes::from_static(bytes)));
        assert_eq!(answers(&mut master), [(2, 0, Code::TargetFault)]);
    }
}

#[test]
fn one_request_of_a_source_is_under_way_at_a_time() {
    let (mut master, mut memory) = exporting();
    master.push(write(2, 0, 0, b"a")).unwrap();
    master.push(write(2, 1, 0, b"b")).unwrap();
    let operation = master.poll_operation(|_, _| true).unwrap();
    assert!(!master.is_quiet());
    assert_eq!(master.poll_operation(|_, _| true), None);
    let (id, result) = memory.execute(operation);
    master.handle_done(id, result);
    memory.serve(&mut master);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok), (2, 1, Code::Ok)]);
    assert!(master.is_quiet());
}

#[test]
fn a_source_without_a_lease_waits_and_holds_up_no_other() {
    let (mut master, mut memory) = exporting();
    master.push(write(1, 0, 0, b"a")).unwrap();
    master.push(write(2, 0, 0, b"b")).unwrap();
    let may_execute = |from, _| from != origin(1);
    let operation = master.poll_operation(may_execute).unwrap();
    let (id, result) = memory.execute(operation);
    master.handle_done(id, result);
    assert_eq!(master.poll_operation(may_execute), None);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok)]);
    assert_eq!(master.waiting(), 1);
    memory.serve(&mut master);
    assert_eq!(answers(&mut master), [(1, 0, Code::AccessDenied)]);
}

#[test]
fn what_is_discarded_is_neither_executed_nor_answered() {
    let (mut master, mut memory) = exporting();
    master.push(read(2, 0, 0x1000, 8)).unwrap(); // refused: its answer waits when the session ends
    master.push(write(2, 1, 0, b"old")).unwrap();
    master.push(write(2, 2, 0, b"old")).unwrap();
    let under_way = master.poll_operation(|_, _| true).unwrap();
    master.discard(origin(2));
    assert_eq!(answers(&mut master), []);
    // The next session's request waits for the one that may still reach memory.
    master.push(write(2, 0, 0, b"new")).unwrap();
    assert_eq!(master.poll_operation(|_, _| true), None);
    let (id, result) = memory.execute(under_way);
    master.handle_done(id, result);
    memory.serve(&mut master);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok)]);
    assert_eq!(&memory.bytes[0x4000..0x4003], b"new");
}

#[test]
fn a_flush_returns_what_was_not_begun_and_drops_the_windows() {
    let (mut master, mut memory) = exporting();
    for ticket in 0..3 {
        master.push(write(2, ticket, 0, b"x")).unwrap();
    }
    master.push(write(1, 7, 0, b"x")).unwrap();
    let under_way = master.poll_operation(|from, _| from == origin(2)).unwrap();
    assert_eq!(master.flush(), [(origin(1), 7), (origin(2), 1), (origin(2), 2)]);
    assert!(!master.is_quiet());
    master.handle_done(id_of(&under_way), Ok(Bytes::new()));
    assert!(master.is_quiet());
    assert_eq!(answers(&mut master), [], "its outcome is unknown to those who asked");
    assert_eq!(master.windows(Space::Memory).iter().count(), 0);
    assert_eq!((master.served_writes(), master.served_reads(), master.refused()), (0, 0, 0));
    master.push(write(2, 0, 0, b"x")).unwrap();
    memory.serve(&mut master);
    assert_eq!(answers(&mut master), [(2, 0, Code::NoWindow)]);
}

#[test]
fn an_operation_that_is_not_known_is_ignored() {
    let (mut master, _) = exporting();
    master.push(read(2, 0, 0, 1)).unwrap();
    let id = id_of(&master.poll_operation(|_, _| true).unwrap());
    master.handle_done(OperationId(id.0 + 1), Ok(Bytes::from_static(b"x")));
    assert_eq!(answers(&mut master), []);
    master.handle_done(id, Ok(Bytes::from_static(b"x")));
    master.handle_done(id, Ok(Bytes::from_static(b"x")));
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok)]);
}

#[test]
fn a_full_share_is_refused() {
    let (mut master, _) = exporting();
    for ticket in 0..WINDOW_REQUESTS as u64 {
        master.push(read(2, ticket, 0, 1)).unwrap();
    }
    assert_eq!(master.push(read(2, 999, 0, 1)), Err(Full));
    assert_eq!(master.push(read(3, 0, 0, 1)), Ok(()));
}

#[test]
fn a_store_to_a_doorbell_is_a_message_and_no_memory_operation() {
    let (mut master, _) = exporting();
    master.messages_mut().doorbells_mut().set_byte(0x20, 1 << 2);
    let ring = |ticket, offset, data: &'static [u8]| Inbound {
        at: Location::io(offset),
        ..write(2, ticket, 0, data)
    };
    let ask = |ticket, offset| Inbound { at: Location::io(offset), ..read(2, ticket, 0, 8) };
    for request in
        [ring(0, 0, b"message!"), ring(1, 8, b"message!"), ring(2, 0, b"a"), ask(3, 0), ask(4, 0x200)]
    {
        master.push(request).unwrap();
    }
    assert_eq!(master.poll_operation(|_, _| false), None);
    assert_eq!(master.messages().count(), 0, "without a lease nothing is executed");
    assert_eq!(master.poll_operation(|_, _| true), None);
    let codes = [Code::Ok, Code::AccessDenied, Code::BadSize, Code::Ok, Code::NoWindow];
    let expected: Vec<_> = (0..).zip(codes).map(|(ticket, code)| (2, ticket, code)).collect();
    assert_eq!(answers(&mut master), expected);
    let data = u64::from_le_bytes(*b"message!");
    assert_eq!(master.messages().front().map(|message| message.data), Some(data));
    assert_eq!((master.served_writes(), master.served_reads(), master.refused()), (1, 1, 3));
}

#[test]
fn a_message_does_not_pass_a_write_before_it() {
    let (mut master, mut memory) = exporting();
    master.messages_mut().doorbells_mut().set_byte(0x20, 1 << 2);
    master.push(write(2, 0, 0, b"data")).unwrap();
    master.push(Inbound { at: Location::io(0), ..write(2, 1, 0, b"done") }).unwrap();
    let operation = master.poll_operation(|_, _| true).unwrap();
    assert_eq!((master.poll_operation(|_, _| true), master.messages().count()), (None, 0));
    let (id, result) = memory.execute(operation);
    master.handle_done(id, result);
    memory.serve(&mut master);
    assert_eq!(master.messages().count(), 1);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok), (2, 1, Code::Ok)]);
}

#[test]
fn a_flush_drops_messages_and_closes_the_doorbells() {
    let (mut master, _) = exporting();
    master.messages_mut().doorbells_mut().set_byte(0x20, 1 << 2);
    let ring = |ticket| Inbound { at: Location::io(0), ..write(2, ticket, 0, b"data") };
    master.push(ring(0)).unwrap();
    assert_eq!(master.poll_operation(|_, _| true), None);
    master.push(ring(1)).unwrap();
    assert_eq!(master.flush(), [(origin(2), 1)]);
    assert_eq!(master.messages().count(), 0);
    master.push(ring(2)).unwrap();
    assert_eq!(master.poll_operation(|_, _| true), None);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok), (2, 2, Code::AccessDenied)]);
}
