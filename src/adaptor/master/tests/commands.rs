//! The command mailbox: what the guest can ask for, and what it gets wrong.

use super::*;
use proptest::prelude::*;

/// A fresh master and memory with the usual EXPORT laid down, then spoilt by `change`.
fn spoilt(change: impl Fn(&mut Memory)) -> CommandStatus {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0);
    change(&mut memory);
    let (status, result) = memory.command(&mut master, 1);
    assert_eq!(status == CommandStatus::Ok, master.windows(Space::Memory).iter().count() == 1);
    assert_eq!(result, 0);
    status
}

/// Lays down an EXPORT of `count` scattered pages at offset 0 and its list.
fn put_long_export(memory: &mut Memory, count: u64) {
    memory.put_export(0);
    memory.put(DESCRIPTOR + 0x18, &(count * 0x1000).to_le_bytes());
    memory.put(DESCRIPTOR + 0x24, &(count as u32).to_le_bytes());
    for index in 0..count {
        let page = LIST + index / 255 * 0x1000;
        let run = [((8 + 2 * index) * 0x1000).to_le_bytes(), 0x1000u64.to_le_bytes()].concat();
        memory.put(page + index % 255 * 16, &run);
        let next = if index / 255 < (count - 1) / 255 { page + 0x1000 } else { 0 };
        memory.put(page + 0xff0, &next.to_le_bytes());
    }
}

#[test]
fn an_export_makes_a_window_and_returns_its_offset() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0x5000);
    assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0x5000));
    memory.put_export(u64::MAX);
    assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0));
    let (offset, window) = master.windows(Space::Memory).iter().last().unwrap();
    assert_eq!(
        (offset, window.len(), window.rights()),
        (0x5000, 0x1000, Rights { read: true, write: true, atomic: false })
    );
    assert!(window.nodes().contains(NodeId(2)) && !window.nodes().contains(NodeId(1)));
}

#[test]
fn a_command_is_busy_until_it_is_done_and_a_second_one_is_ignored_meanwhile() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0);
    master.start_command(1, DESCRIPTOR, COOKIE);
    assert_eq!((master.command_status(), master.poll_finished()), (CommandStatus::Busy, None));
    master.start_command(99, 3, 0);
    assert_eq!((master.command_status(), master.poll_finished()), (CommandStatus::Busy, None));
    memory.serve(&mut master);
    assert_eq!(master.command_status(), CommandStatus::Ok);
}

#[test]
fn a_long_list_does_not_hold_up_requests() {
    let (mut master, mut memory) = exporting();
    memory.bytes.resize(8 << 20, 0);
    put_long_export(&mut memory, 510);
    memory.put(DESCRIPTOR + 0x10, &u64::MAX.to_le_bytes());
    master.start_command(1, DESCRIPTOR, COOKIE);
    for ticket in 0..3 {
        master.push(read(2, ticket, 0, 8)).unwrap();
    }
    for _ in 0..6 {
        let (id, result) = memory.execute(master.poll_operation(|_, _| true).unwrap());
        master.handle_done(id, result);
    }
    assert_eq!(answers(&mut master).len(), 3, "every second operation is a request's");
    assert_eq!(master.command_status(), CommandStatus::Busy);
    memory.serve(&mut master);
    assert_eq!(master.command_status(), CommandStatus::Ok);
}

#[test]
fn a_list_goes_over_pages() {
    for count in [1, 254, 255, 256, 510, 511] {
        let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(8 << 20));
        put_long_export(&mut memory, count);
        assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0), "{count} runs");
        assert_eq!(master.windows(Space::Memory).iter().next().unwrap().1.run_count() as u64, count);
        assert_eq!(memory.operations as u64, 1 + 2 * count.div_ceil(255));
    }
}

#[test]
fn a_list_that_ends_early_or_never_is_refused() {
    let ended = |change: fn(&mut Memory)| {
        let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(8 << 20));
        put_long_export(&mut memory, 300);
        change(&mut memory);
        (memory.command(&mut master, 1).0, memory.operations)
    };
    // The descriptor, then page and runs, then the second page and its runs.
    let bad = |operations| (CommandStatus::BadArgument, operations);
    assert_eq!(ended(|_| ()), (CommandStatus::Ok, 5));
    assert_eq!(ended(|m| m.put(LIST + 0xff0, &[0; 8])), bad(2), "no second page");
    assert_eq!(ended(|m| m.put(LIST + 0xff0, &LIST.to_le_bytes())), bad(4), "a cycle");
    assert_eq!(ended(|m| m.put(LIST + 0xff0, &[8])), bad(2), "misaligned");
    assert_eq!(ended(|m| m.put(LIST + 0xff8, &[1])), bad(2), "not 0");
    assert_eq!(ended(|m| m.put(LIST + 0x1ff0, &[0, 0x10])), bad(4), "a third page");
    assert_eq!(ended(|m| m.put(LIST + 0xff7, &[0x70])), (CommandStatus::MemoryFault, 4), "out of memory");
}

#[test]
fn an_unknown_opcode_is_told() {
    let (mut master, mut memory) = exporting();
    let operations = memory.operations;
    for opcode in [0, 8, u32::MAX] {
        assert_eq!(memory.command(&mut master, opcode), (CommandStatus::BadOpcode, 0));
    }
    assert_eq!(memory.operations, operations);
}

#[test]
fn a_wrong_descriptor_is_told() {
    let (mut master, _) = exporting();
    master.start_command(1, DESCRIPTOR + 64, COOKIE);
    assert_eq!(master.command_status(), CommandStatus::BadDescriptor);
    assert_eq!(spoilt(|m| m.put(DESCRIPTOR + 8, &[2])), CommandStatus::BadDescriptor);
    for at in [0x0c, 0x0f, 0x30, 0x3f] {
        assert_eq!(spoilt(|m| m.put(DESCRIPTOR + at, &[1])), CommandStatus::BadDescriptor, "{at:#x}");
    }
    let name_and_probe = spoilt(|m| m.put(DESCRIPTOR + 0x60, &[0xff; 32]));
    assert_eq!(name_and_probe, CommandStatus::Ok, "the name and PROBE's field are free");
}

#[test]
fn wrong_arguments_are_told() {
    let fields: [(u64, &[u8]); 17] = [
        (0x10, &[1]),                                           // offset misaligned
        (0x10, &[0, 0, 0, 0x10]),                               // offset at the end of the window
        (0x10, &[0, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), // offset + length is 2^64
        (0x18, &[0, 0]),                                        // no length
        (0x18, &[1]),                                           // length misaligned
        (0x18, &[0, 0x20]),                                     // more length than runs
        (0x18, &[0, 0, 0, 0x20]),                               // longer than the window
        (0x20, &[0]),                                           // no rights
        (0x20, &[0x43]),                                        // unknown rights
        (0x20, &[0x2b]),                                        // far in the I/O space
        (0x23, &[1]),                                           // unknown rights
        (0x24, &[0]),                                           // no runs
        (0x24, &[2]),                                           // more runs than the length has pages
        (0x27, &[0xff]),                                        // far more
        (0x28, &[8]),                                           // list misaligned
        (0x28, &[0, 0]),                                        // no list
        (0x29, &[0x18]),                                        // list misaligned
    ];
    for (at, bytes) in fields {
        assert_eq!(
            spoilt(|m| m.put(DESCRIPTOR + at, bytes)),
            CommandStatus::BadArgument,
            "{at:#x} {bytes:?}"
        );
    }
    let runs: [(u64, &[u8]); 5] = [
        (0, &[8]),                                           // address misaligned
        (8, &[8]),                                           // length misaligned
        (8, &[0, 0]),                                        // no length
        (8, &[0, 0x20]),                                     // longer than the window
        (8, &[0, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), // wraps
    ];
    for (at, bytes) in runs {
        assert_eq!(spoilt(|m| m.put(LIST + at, bytes)), CommandStatus::BadArgument, "{at:#x} {bytes:?}");
    }
}

#[test]
fn runs_that_do_not_add_up_are_told() {
    // Two runs of a page each for three pages, then two pages' worth in the first of two runs.
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    put_long_export(&mut memory, 2);
    memory.put(DESCRIPTOR + 0x18, &0x3000u64.to_le_bytes());
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::BadArgument);
    put_long_export(&mut memory, 2);
    memory.put(LIST + 8, &0x2000u64.to_le_bytes());
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::BadArgument);
}

#[test]
fn memory_that_cannot_be_reached_is_told() {
    assert_eq!(spoilt(|m| m.put(LIST + 4, &[1])), CommandStatus::MemoryFault, "a run");
    assert_eq!(spoilt(|m| m.put(DESCRIPTOR + 0x2c, &[1])), CommandStatus::MemoryFault, "the list");
    assert_eq!(spoilt(|m| m.fault = Some(MemoryFault::Unmapped)), CommandStatus::MemoryFault);
    assert_eq!(spoilt(|m| m.fault = Some(MemoryFault::ReadOnly)), CommandStatus::MemoryFault);
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    master.start_command(1, u64::MAX - 127, COOKIE);
    memory.serve(&mut master);
    assert_eq!(master.command_status(), CommandStatus::MemoryFault);
}

#[test]
fn overlap_and_too_much_are_told() {
    let (mut master, mut memory) = exporting();
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::NoSpace);
    memory.put_export(0x1000);
    let len = 0x1000 * (MAX_RUNS as u64 + 1);
    memory.put(DESCRIPTOR + 0x18, &len.to_le_bytes());
    memory.put(DESCRIPTOR + 0x24, &(MAX_RUNS as u32 + 1).to_le_bytes());
    let mut wide = Master::new(1 << 40);
    assert_eq!(memory.command(&mut wide, 1).0, CommandStatus::TooMany);
    memory.put_export(u64::MAX);
    for _ in 1..MAX_WINDOWS {
        assert_eq!(memory.command(&mut master, 1).0, CommandStatus::Ok);
    }
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::TooMany);
}

#[test]
fn an_unexport_removes_the_window_at_exactly_its_offset() {
    let (mut master, mut memory) = exporting();
    memory.put_descriptor(2, 0x1000);
    assert_eq!(memory.command(&mut master, 2).0, CommandStatus::NotFound);
    memory.put_descriptor(2, 0);
    assert_eq!(memory.command(&mut master, 2).0, CommandStatus::Ok);
    assert_eq!(master.windows(Space::Memory).iter().count(), 0);
    assert_eq!(memory.command(&mut master, 2).0, CommandStatus::NotFound);
}

#[test]
fn a_window_of_bus_addresses_is_made_without_touching_them() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0x5000);
    memory.put(DESCRIPTOR + 0x20, &[7]);
    memory.put(LIST, &0xfebf_0000u64.to_le_bytes());
    assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0x5000));
    assert_eq!(memory.operations, 2, "the descriptor and the list");
    master.push(read(2, 7, 0x5008, 4)).unwrap();
    let operation = master.poll_operation(|_, _| true).unwrap();
    let MemoryOperation::Read { id, home: Home::Bus, segments } = operation else { panic!("{operation:?}") };
    assert_eq!(segments, [Segment { address: 0xfebf_0008, len: 4 }]);
    master.handle_done(id, Err(MemoryFault::Refused));
    assert_eq!(master.poll_answer().unwrap().code, Code::TargetFault);
}

#[test]
fn memory_that_may_not_be_written_is_not_exported_or_registered_for_writing() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0x5000);
    memory.is_read_only = true;
    for (rights, status) in [
        (3, CommandStatus::MemoryFault),
        (2, CommandStatus::MemoryFault),
        (0x10, CommandStatus::MemoryFault),
        (1, CommandStatus::Ok),
    ] {
        memory.put(DESCRIPTOR + 0x20, &[rights]);
        assert_eq!(memory.command(&mut master, 1).0, status, "rights {rights}");
    }
    assert_eq!(master.windows(Space::Memory).iter().count(), 1);
    memory.put(DESCRIPTOR + 8, &[4]);
    memory.put(DESCRIPTOR + 0x20, &[2]);
    assert_eq!(memory.command(&mut master, 4).0, CommandStatus::MemoryFault);
    memory.put(DESCRIPTOR + 0x20, &[1]);
    assert_eq!(memory.command(&mut master, 4).0, CommandStatus::Ok);
}

#[test]
fn windows_of_the_io_space_are_apart_and_leave_the_adaptors_own_part() {
    let (mut master, mut memory) = exporting();
    memory.put_export(0);
    memory.put(DESCRIPTOR + 0x20, &[0xb]);
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::BadArgument);
    memory.put(DESCRIPTOR + 0x10, &u64::MAX.to_le_bytes());
    assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0x1000));
    let found = |master: &Master| Space::ALL.map(|space| master.windows(space).iter().count());
    assert_eq!(found(&master), [1, 1]);
    memory.put_descriptor(2, 0x1000);
    assert_eq!(memory.command(&mut master, 2).0, CommandStatus::NotFound);
    memory.put(DESCRIPTOR + 0x20, &[8]);
    assert_eq!(memory.command(&mut master, 2).0, CommandStatus::Ok);
    assert_eq!(found(&master), [1, 0]);
}

#[test]
fn when_an_unexport_is_done_nothing_more_lands() {
    let (mut master, mut memory) = exporting();
    master.push(write(2, 0, 0, b"x")).unwrap();
    let landing = master.poll_operation(|_, _| true).unwrap();
    master.push(write(2, 1, 0, b"y")).unwrap();
    memory.put_descriptor(2, 0);
    master.start_command(2, DESCRIPTOR, COOKIE);
    memory.serve(&mut master);
    assert_eq!(master.command_status(), CommandStatus::Busy, "a write may still land");
    let (id, result) = memory.execute(landing);
    master.handle_done(id, result);
    assert_eq!(master.command_status(), CommandStatus::Ok);
    let bytes = memory.bytes.clone();
    memory.serve(&mut master);
    assert_eq!(memory.bytes, bytes);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok), (2, 1, Code::NoWindow)]);
}

#[test]
fn an_unexport_does_not_wait_for_requests_that_began_after_it() {
    let (mut master, mut memory) = exporting();
    memory.put_export(0x1000);
    memory.put(DESCRIPTOR + 0x40, &[0xff]);
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::Ok);
    master.push(write(2, 0, 0, b"x")).unwrap();
    master.push(write(1, 0, 0x1000, b"x")).unwrap();
    let before = master.poll_operation(|from, _| from == origin(2)).unwrap();
    memory.put_descriptor(2, 0);
    master.start_command(2, DESCRIPTOR, COOKIE);
    let (id, result) = memory.execute(master.poll_operation(|_, _| false).unwrap());
    master.handle_done(id, result);
    let _after = master.poll_operation(|from, _| from == origin(1)).unwrap();
    assert_eq!(master.command_status(), CommandStatus::Busy);
    master.handle_done(id_of(&before), Ok(Bytes::new()));
    assert_eq!(master.command_status(), CommandStatus::Ok);
}

#[test]
fn a_probe_writes_its_answer_and_shows_that_memory_is_shared() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_descriptor(3, 0);
    assert_eq!(master.sharing(), Sharing::Unknown);
    assert_eq!(memory.command(&mut master, 3), (CommandStatus::Ok, 0));
    let answer = [(!COOKIE).to_le_bytes(), COOKIE.to_le_bytes()].concat();
    assert_eq!(memory.bytes[0xf8..0x100], answer);
    assert_eq!(master.sharing(), Sharing::Shared);
}

#[test]
fn memory_that_is_not_the_guests_is_told_until_a_probe_succeeds() {
    let (mut master, mut private) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    assert_eq!(private.command(&mut master, 1), (CommandStatus::NotShared, 0), "all zero: no magic number");
    assert_eq!(master.sharing(), Sharing::NotShared);
    let mut shared = Memory::new(1 << 20);
    shared.put_descriptor(3, 0);
    assert_eq!(shared.command(&mut master, 3).0, CommandStatus::Ok);
    assert_eq!(master.sharing(), Sharing::Shared);
    shared.put_export(0);
    assert_eq!(shared.command(&mut master, 1).0, CommandStatus::Ok);
}

#[test]
fn another_cookie_or_a_fault_that_says_so_is_not_shared() {
    assert_eq!(spoilt(|m| m.put(DESCRIPTOR + 4, &[1])), CommandStatus::NotShared);
    assert_eq!(spoilt(|m| m.put(DESCRIPTOR, &[1])), CommandStatus::NotShared);
    assert_eq!(spoilt(|m| m.fault = Some(MemoryFault::NotShared)), CommandStatus::NotShared);
}

#[test]
fn what_the_bus_side_knows_of_all_memory_outlives_a_reset_and_not_that_memory() {
    let mut master = Master::new(WINDOW_SIZE);
    master.set_memory_view(MemoryView::Private);
    assert_eq!(master.sharing(), Sharing::NotShared);
    assert!(master.flush().is_empty());
    assert_eq!(master.sharing(), Sharing::NotShared);
    for view in [MemoryView::Partly, MemoryView::Unknown] {
        master.set_memory_view(view);
        assert_eq!((master.sharing(), master.memory_view()), (Sharing::Unknown, view));
    }
}

#[test]
fn a_run_in_memory_that_is_not_shared_refuses_that_export_alone() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_descriptor(3, 0);
    assert_eq!(memory.command(&mut master, 3).0, CommandStatus::Ok);
    master.set_memory_view(MemoryView::Partly);
    for (fault, status) in [
        (MemoryFault::NotShared, CommandStatus::NotShared),
        (MemoryFault::TooManyRanges, CommandStatus::TooMany),
        (MemoryFault::Unmapped, CommandStatus::MemoryFault),
    ] {
        memory.put_export(0);
        master.start_command(1, DESCRIPTOR, COOKIE);
        // The descriptor and the list can be read, and the run can't.
        for _ in 0..2 {
            let (id, result) = memory.execute(master.poll_operation(|_, _| true).unwrap());
            master.handle_done(id, result);
        }
        let touch = master.poll_operation(|_, _| true).unwrap();
        master.handle_done(touch.id(), Err(fault));
        assert_eq!((master.command_status(), master.sharing()), (status, Sharing::Shared));
    }
    memory.put_export(0);
    assert_eq!(memory.command(&mut master, 1).0, CommandStatus::Ok);
}

#[test]
fn a_reset_cancels_the_command_and_its_late_completion_is_ignored() {
    let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 20));
    memory.put_export(0);
    master.start_command(1, DESCRIPTOR, COOKIE);
    let late = master.poll_operation(|_, _| true).unwrap();
    master.flush();
    assert_eq!((master.command_status(), master.is_quiet()), (CommandStatus::Ok, false));
    master.start_command(1, DESCRIPTOR, COOKIE);
    master.handle_done(id_of(&late), Err(MemoryFault::Unmapped));
    assert_eq!(master.command_status(), CommandStatus::Busy);
    memory.serve(&mut master);
    assert_eq!(master.command_status(), CommandStatus::Ok);
    // Also before the operation was taken.
    master.start_command(2, DESCRIPTOR, COOKIE);
    master.flush();
    assert_eq!((master.poll_operation(|_, _| true), master.poll_finished()), (None, None));
}

proptest! {
    #[test]
    fn hostile_descriptors_and_lists_end_and_never_panic(
        opcode in 0u32..9,
        patches in prop::collection::vec((0u64..0x2000, any::<u64>()), 0..6),
        narrow in prop::collection::vec((0x80u64..0x100, any::<u8>()), 0..3),
    ) {
        let (mut master, mut memory) = (Master::new(WINDOW_SIZE), Memory::new(1 << 16));
        memory.put_export(0);
        memory.put(DESCRIPTOR + 8, &opcode.to_le_bytes());
        for (at, value) in patches {
            memory.put(at & !7, &value.to_le_bytes());
        }
        for (at, value) in narrow {
            memory.put(at, &[value]);
        }
        let (status, _) = memory.command(&mut master, opcode);
        prop_assert_ne!(status, CommandStatus::Busy);
        prop_assert!(memory.operations <= 3);
        let made = opcode == 1 && status == CommandStatus::Ok;
        prop_assert_eq!(master.windows(Space::Memory).iter().count(), usize::from(made));
    }
}
