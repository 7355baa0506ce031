//! Clients that keep to the protocol, among them the crate's.

use assured_rdma::vfio::Begin;

use super::*;

#[test]
fn client_sees_the_regions_and_interrupts() {
    with_client(|client| {
        assert_eq!(client.region(0).unwrap().size, 4096);
        assert_eq!(client.region(2).unwrap().size, 1 << 32);
        assert_eq!(client.region(1).unwrap().flags, 0);
        assert_eq!(client.region(8).unwrap().size, 0);
        assert!(client.region(9).is_none());
        let irq = client.get_irq_info(vfio::VFIO_PCI_MSIX_IRQ_INDEX).unwrap();
        assert_eq!((irq.count, irq.flags), (4, vfio::VFIO_IRQ_INFO_EVENTFD));
        assert_eq!(client.get_irq_info(vfio::VFIO_PCI_INTX_IRQ_INDEX).unwrap().count, 0);
    });
}

#[test]
fn loads_see_what_was_stored() {
    let mut device = with_client(|client| {
        client.region_write(BAR0, 8, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        client.region_write(CONFIG, 0, &[9; 4096]).unwrap();
        let mut data = [0; 4];
        client.region_read(BAR0, 10, &mut data).unwrap();
        assert_eq!(data, [3, 4, 5, 6]);
        let mut config = [0; 4096];
        client.region_read(CONFIG, 0, &mut config).unwrap();
        assert_eq!(config, [9; 4096]);
    });
    assert_eq!(device.bytes(BAR0, 8, 1), [1]);
}

#[test]
fn guest_memory_is_reached_through_its_file() {
    let file = memfd(0x3000);
    let mut device = with_client(|client| {
        client.dma_map(0x1000, 0x10_0000, 0x1000, file.as_raw_fd()).unwrap();
        client.dma_map(0x2000, 0x20_0000, 0x1000, file.as_raw_fd()).unwrap();
        client.dma_unmap(0x20_0000, 0x1000).unwrap();
        client.dma_unmap(0x4000_0000, 0x4000_0000).unwrap();
    });
    let write = |address| MemoryOperation::Write {
        id: OperationId(0),
        home: Home::Guest,
        segments: vec![Segment { address, len: 3 }],
        data: bytes::Bytes::from_static(b"abc"),
    };
    let execute = |operation| device.memory.execute(&operation, &Begin::WAITS).done().unwrap();
    // This process has the file open, but not mapped, so that the guest has to show that it is its memory.
    assert_eq!(device.memory.overview(), Overview::Unknown);
    assert_eq!(execute(write(0x10_0010)), Err(MemoryFault::NotShared));
    file.write_all_at(&0x0102_0304_u64.to_le_bytes(), 0x1080).unwrap();
    let segment = Segment { address: 0x10_0080, len: 128 };
    execute(MemoryOperation::Descriptor { id: OperationId(0), segment, proof: 0x0102_0304 }).unwrap();
    execute(write(0x10_0010)).unwrap();
    assert!(execute(write(0x20_0010)).is_err());
    let mut found = [0; 3];
    file.read_exact_at(&mut found, 0x1010).unwrap();
    assert_eq!(&found, b"abc");
    assert_eq!(device.memory.overview(), Overview::Shared);
    device.interrupts.disconnect_all();
}

#[test]
fn vectors_are_signalled_and_reset_arrives() {
    let events: Vec<EventFd> = (0..2).map(|_| EventFd::new(libc::EFD_NONBLOCK).unwrap()).collect();
    let trigger = vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    let device = with_client(|client| {
        let fds: Vec<RawFd> = events.iter().map(AsRawFd::as_raw_fd).collect();
        let msix = vfio::VFIO_PCI_MSIX_IRQ_INDEX;
        client.set_irqs(msix, vfio::VFIO_IRQ_SET_DATA_EVENTFD | trigger, 0, 1, &[]).unwrap();
        client.set_irqs(msix, vfio::VFIO_IRQ_SET_DATA_EVENTFD | trigger, 1, 2, &fds).unwrap();
        client
            .set_irqs(vfio::VFIO_PCI_INTX_IRQ_INDEX, vfio::VFIO_IRQ_SET_DATA_NONE | trigger, 0, 0, &[])
            .unwrap();
        client.reset().unwrap();
    });
    assert_eq!(device.changes, [(1, true), (2, true)]);
    assert_eq!(device.resets, 1);
    device.interrupts.signal(2);
    assert_eq!(events[1].read().unwrap(), 1);
    assert!(events[0].read().is_err());
}

// A bus is a FIFO: nothing passes a load that waits.

#[test]
fn nothing_is_handed_out_behind_a_load_that_is_not_answered() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let mut connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    let messages = [version(), load(1, BAR0, 0, 4), store(2, NO_REPLY, BAR0, 0, &[1]), load(3, BAR0, 8, 2)];
    client.write_all(&messages.concat()).unwrap();
    assert_eq!(connection.receive().unwrap(), Intake::Some);
    let Ok(Some(Request::Load { token, len: 4, .. })) = connection.next_request() else { panic!() };
    assert!(connection.next_request().unwrap().is_none());
    connection.flush().unwrap();
    assert_eq!(reply(&mut client).0.id, 0);

    connection.reply_load(token, &[5, 6]);
    let Ok(Some(Request::Store { token: None, data, .. })) = connection.next_request() else { panic!() };
    assert_eq!(&data[..], [1]);
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.flush().unwrap();
    let (header, body) = reply(&mut client);
    // A short answer is lengthened with all-ones.
    assert_eq!((header.id, &body[RegionAccess::SIZE..]), (1, &[5, 6, 0xff, 0xff][..]));

    // A token of a connection that is gone answers nothing on the next one.
    let (_client, server) = UnixStream::pair().unwrap();
    let mut next = Connection::new(server, ConnectionId(2), shape()).unwrap();
    next.reply_load(token, &[0, 0]);
    assert!(!next.wants_write());
}

#[test]
fn requests_held_back_by_replies_are_told_of_when_these_are_sent() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let mut connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    client.write_all(&[version(), load(1, 2, 0, 100_000), load(2, 2, 0, 4)].concat()).unwrap();
    assert_eq!(connection.receive().unwrap(), Intake::Some);
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[]);
    assert!(connection.next_request().unwrap().is_none(), "too much waits to be sent");
    assert!(connection.flush().unwrap());
    let Ok(Some(Request::Load { len: 4, token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[]);
    assert!(!connection.flush().unwrap(), "nothing was held back");
}

#[test]
fn what_a_client_stored_before_it_went_is_handed_out() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let mut connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    client.write_all(&[version(), store(1, NO_REPLY, BAR0, 0, &[7])].concat()).unwrap();
    assert!(!connection.peer_is_gone());
    drop(client);
    assert!(connection.peer_is_gone());
    assert_eq!(connection.receive().unwrap(), Intake::Some);
    assert_eq!(connection.receive().unwrap(), Intake::End);
    assert!(matches!(connection.next_request(), Ok(Some(Request::Store { .. }))));
    assert!(connection.next_request().unwrap().is_none());
}

// Streams cut anywhere.

#[test]
fn any_cut_of_the_stream_gives_the_same_replies() {
    let messages = [
        version(),
        store(1, NO_REPLY, BAR0, 0, b"abcdefgh"),
        load(2, BAR0, 2, 4),
        store(3, 0, BAR0, 1, b"Z"),
    ]
    .concat();
    for cut in 1..messages.len() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
        let mut device = Device::new();
        for part in [&messages[..cut], &messages[cut..]] {
            client.write_all(part).unwrap();
            assert_eq!(connection.receive().unwrap(), Intake::Some);
            while let Some(request) = connection.next_request().unwrap() {
                device.handle(&mut connection, request);
            }
        }
        connection.flush().unwrap();
        assert_eq!(reply(&mut client).0.id, 0);
        let (header, body) = reply(&mut client);
        assert_eq!((header.id, &body[RegionAccess::SIZE..]), (2, &b"cdef"[..]));
        assert_eq!(reply(&mut client).0.id, 3);
        assert_eq!(device.bytes(BAR0, 0, 3), b"aZc");
    }
}

#[test]
fn many_messages_in_one_write_byte_by_byte_and_in_bulk() {
    let (mut client, server) = start();
    let mut stream = version();
    for index in 0..20_000_u32 {
        stream.extend(store(1, NO_REPLY, BAR0, u64::from(index % 1024) * 4, &index.to_le_bytes()));
    }
    let (bytes, bulk) = stream.split_at(2000);
    for byte in bytes {
        client.write_all(&[*byte]).unwrap();
    }
    client.write_all(bulk).unwrap();
    reply(&mut client);
    in_step(&mut client);
    drop(client);
    let (mut device, broken) = server.join().unwrap();
    assert_eq!(broken, None);
    assert_eq!(device.posted, 20_000);
    // The last of them at offset 0.
    assert_eq!(device.bytes(BAR0, 0, 4), (19 * 1024_u32).to_le_bytes());
}

#[test]
fn a_full_megabyte_is_stored_and_loaded() {
    let (mut client, server) = UnixStream::pair().unwrap();
    let connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    let server = thread::spawn(move || {
        let mut connection = connection;
        let mut kept = bytes::Bytes::new();
        while connection.receive().unwrap() != Intake::End {
            while let Some(request) = connection.next_request().unwrap() {
                match request {
                    Request::Store { token, data, .. } => {
                        kept = data;
                        connection.reply(token, Ok(()));
                    }
                    Request::Load { token, .. } => connection.reply_load(token, &kept),
                    other => panic!("{other:?}"),
                }
            }
            connection.flush().unwrap();
            wait(&connection);
        }
    });
    negotiate(&mut client);
    let data: Vec<u8> = (0..MAX_TRANSFER).map(|index| u8::try_from(index % 251).unwrap()).collect();
    let message = store(1, 0, 2, 0, &data);
    assert_eq!(message.len(), MAX_MESSAGE);
    client.write_all(&message).unwrap();
    assert_eq!(reply(&mut client).0.flags, 1);
    client.write_all(&load(2, 2, 0, u32::try_from(MAX_TRANSFER).unwrap())).unwrap();
    assert_eq!(&reply(&mut client).1[RegionAccess::SIZE..], &data[..]);
    drop(client);
    server.join().unwrap();
}
