//! Requests for other devices of the bus, which end later than they begin.

use super::*;

/// A master that exports a page of memory at offset 0, and two of the bus (0xfe00_0000 and 0xfd00_0000) from 0x1000 on.
fn exporting_devices() -> (Master, Memory) {
    let (mut master, mut memory) = exporting();
    memory.put_export(0x1000);
    memory.put(DESCRIPTOR + 0x18, &0x2000u64.to_le_bytes());
    memory.put(DESCRIPTOR + 0x20, &[7]);
    memory.put(DESCRIPTOR + 0x24, &[2]);
    memory.put(DESCRIPTOR + 0x40, &[0b1100]);
    memory.put(LIST, &0xfe00_0000u64.to_le_bytes());
    memory.put(LIST + 16, &0xfd00_0000u64.to_le_bytes());
    memory.put(LIST + 24, &0x1000u64.to_le_bytes());
    assert_eq!(memory.command(&mut master, 1), (CommandStatus::Ok, 0x1000));
    (master, memory)
}

fn next(master: &mut Master) -> Option<(OperationId, Home, u64)> {
    let operation = master.poll_operation(|_, _| true)?;
    Some((operation.id(), operation.home(), operation.segments()[0].address))
}

#[test]
fn only_requests_for_devices_wait_for_the_bus() {
    let (mut master, _) = exporting_devices();
    master.set_bus_ready(false);
    master.push(write(2, 0, 0x1008, b"dev")).unwrap();
    master.push(write(2, 1, 0, b"mem")).unwrap();
    master.push(read(3, 0, 0x1008, 4)).unwrap();
    assert_eq!(next(&mut master), None, "memory of the same origin waits too: order");
    assert_eq!(master.waiting(), 3);
    // What is refused has no need of the bus.
    master.push(write(4, 0, 0x1008, b"x")).unwrap();
    assert_eq!(next(&mut master), None);
    assert_eq!(answers(&mut master), [(4, 0, Code::AccessDenied)]);
    master.set_bus_ready(true);
    let (first, home, address) = next(&mut master).unwrap();
    assert_eq!((home, address), (Home::Bus, 0xfe00_0008));
    let (second, ..) = next(&mut master).unwrap();
    assert_eq!(next(&mut master), None);
    for (id, result) in [(second, Err(MemoryFault::Refused)), (first, Ok(Bytes::new()))] {
        master.handle_done(id, result);
    }
    let mut found = answers(&mut master);
    found.sort_by_key(|answer| answer.0);
    assert_eq!(found, [(2, 0, Code::Ok), (3, 0, Code::TargetFault)]);
    assert_eq!(next(&mut master).unwrap().1, Home::Guest);
}

#[test]
fn a_device_is_accessed_at_once_or_not_at_all() {
    let (mut master, _) = exporting_devices();
    master.push(read(2, 0, 0x1ffc, 8)).unwrap();
    master.push(read(2, 1, 0xffc, 8)).unwrap();
    master.push(read(2, 2, 0x1ffc, 4)).unwrap();
    assert_eq!(next(&mut master).unwrap().2, 0xfe00_0ffc);
    assert_eq!(answers(&mut master), [(2, 0, Code::BadSize), (2, 1, Code::BadSize)]);
}

#[test]
fn an_abandoned_write_to_a_device_holds_up_its_origin_and_an_abandoned_read_does_not() {
    let (mut master, mut memory) = exporting_devices();
    master.push(read(2, 0, 0x1000, 4)).unwrap();
    let (abandoned, ..) = next(&mut master).unwrap();
    master.discard(origin(2));
    master.push(write(2, 0, 0x1000, b"late")).unwrap();
    let (write_id, ..) = next(&mut master).expect("a read that nobody waits for changes nothing");
    master.discard(origin(2));
    master.push(write(2, 0, 0, b"next")).unwrap();
    assert_eq!(next(&mut master), None, "the write may still be carried out, and not after this one");
    master.handle_done(abandoned, Ok(Bytes::from_static(b"1234")));
    assert_eq!(next(&mut master), None);
    master.handle_done(write_id, Ok(Bytes::new()));
    memory.serve(&mut master);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok)]);
    assert!(master.is_quiet());
}

#[test]
fn an_unexport_waits_for_the_device() {
    let (mut master, mut memory) = exporting_devices();
    master.push(write(2, 0, 0x1000, b"dev")).unwrap();
    let (id, ..) = next(&mut master).unwrap();
    memory.put_descriptor(2, 0x1000);
    master.start_command(2, DESCRIPTOR, COOKIE);
    memory.serve(&mut master);
    assert_eq!(master.command_status(), CommandStatus::Busy);
    master.handle_done(id, Ok(Bytes::new()));
    assert_eq!(master.command_status(), CommandStatus::Ok);
    assert_eq!(answers(&mut master), [(2, 0, Code::Ok)]);
}

#[test]
fn a_reset_drops_what_waits_and_forgets_what_is_under_way() {
    let (mut master, _) = exporting_devices();
    master.push(write(2, 0, 0x1000, b"dev")).unwrap();
    master.push(write(2, 1, 0x1000, b"dev")).unwrap();
    let (id, ..) = next(&mut master).unwrap();
    assert_eq!(master.flush(), [(origin(2), 1)]);
    master.handle_done(id, Ok(Bytes::new()));
    assert_eq!(answers(&mut master), [], "nobody knows whether the device has it");
    assert!(master.is_quiet());
}
