//! Clients that break the rules.

use super::*;
use proptest::prelude::*;

#[test]
fn the_first_message_has_to_be_version() {
    let (mut client, server) = start();
    client.write_all(&load(5, BAR0, 0, 4)).unwrap();
    assert_eq!(reply(&mut client).0.error, libc::EINVAL.unsigned_abs());
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert!(server.join().unwrap().1.unwrap().contains("instead of VERSION"));
}

#[test]
fn a_refused_version_may_be_tried_again() {
    let (mut client, _server) = start();
    for body in [&b""[..], b"\0\0\0", b"\x01\0\0\0{}\0", b"\0\0\0\0{\"capa", b"\0\0\0\0[1]\0"] {
        client.write_all(&command(1, Command::Version, 0, body)).unwrap();
        assert_eq!(reply(&mut client).0.error, libc::EINVAL.unsigned_abs());
    }
    negotiate(&mut client);
    refused(&mut client, &version(), libc::EINVAL);
}

#[test]
fn both_sides_keep_to_what_was_agreed_on() {
    let (mut client, _server) = start();
    let with = |capabilities: &str| {
        let body = format!("\0\0\0\0{{\"capabilities\":{{{capabilities}}}}}\0");
        command(0, Command::Version, 0, body.as_bytes())
    };
    client.write_all(&with("\"max_data_xfer_size\":4095")).unwrap();
    assert_eq!(reply(&mut client).0.error, libc::EINVAL.unsigned_abs());
    client.write_all(&with("\"max_data_xfer_size\":4096,\"max_dma_maps\":1,\"pgsizes\":4096")).unwrap();
    let (header, body) = reply(&mut client);
    assert_eq!(header.flags, 1);
    let text = String::from_utf8(body[4..].to_vec()).unwrap();
    assert!(text.contains("\"max_data_xfer_size\":4096,\"max_dma_maps\":1,\"pgsizes\":4096}"), "{text}");
    refused(&mut client, &load(1, 2, 0, 4097), libc::EINVAL);
    refused(&mut client, &store(1, 0, 2, 0, &[1; 4097]), libc::EINVAL);
    client.write_all(&load(2, CONFIG, 0, 4096)).unwrap();
    assert_eq!(reply(&mut client).1.len(), RegionAccess::SIZE + 4096);
    client.write_all(&dma_map(3, 1)).unwrap();
    assert_eq!(reply(&mut client).0.error, 0);
    // A client that maps more than it said is served: what is too much depends on what joins.
    client.write_all(&dma_map(4, 2)).unwrap();
    assert_eq!(reply(&mut client).0.error, 0);
}

#[test]
fn sizes_that_can_not_be_close_the_connection() {
    for size in [0, 15, u32::try_from(MAX_MESSAGE).unwrap() + 1, u32::MAX] {
        let (mut client, server) = start();
        negotiate(&mut client);
        let mut message = load(1, BAR0, 0, 4);
        message[4..8].copy_from_slice(&size.to_le_bytes());
        client.write_all(&message).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
        assert!(server.join().unwrap().1.unwrap().contains(&format!("a message of {size} bytes")));
    }
}

#[test]
fn wrong_accesses_are_refused_and_the_stream_stays_in_step() {
    let (mut client, server) = start();
    negotiate(&mut client);
    let errno = libc::EINVAL;
    for (region, offset, count) in [
        (BAR0, 4096, 1),
        (BAR0, 4093, 4),
        (BAR0, u64::MAX, 4),
        (BAR0, 0, 0),
        (1, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
        (2, 0, u32::try_from(MAX_TRANSFER).unwrap() + 1),
        (2, 0, u32::MAX),
    ] {
        refused(&mut client, &load(1, region, offset, count), errno);
        refused(
            &mut client,
            &command(1, Command::RegionWrite, 0, &access(region, offset, count, b"1234")),
            errno,
        );
    }
    // The count is not the length of the data.
    refused(&mut client, &command(1, Command::RegionWrite, 0, &access(BAR0, 0, 8, b"1234")), errno);
    refused(&mut client, &command(1, Command::RegionWrite, 0, &access(BAR0, 0, 4, b"12345")), errno);
    for short in [
        Command::RegionRead,
        Command::RegionWrite,
        Command::DmaMap,
        Command::DmaUnmap,
        Command::SetIrqs,
        Command::DeviceGetInfo,
        Command::DeviceGetRegionInfo,
        Command::GetIrqInfo,
    ] {
        refused(&mut client, &command(1, short, 0, b"123"), errno);
    }
    let mut body = Vec::new();
    RegionInfo { argsz: 32, flags: 0, index: 9, capabilities: 0, size: 0, offset: 0 }.emit(&mut body);
    refused(&mut client, &command(1, Command::DeviceGetRegionInfo, 0, &body), errno);
    body.clear();
    IrqInfo { argsz: 16, flags: 0, index: 5, count: 0 }.emit(&mut body);
    refused(&mut client, &command(1, Command::GetIrqInfo, 0, &body), errno);
    drop(client);
    assert_eq!(server.join().unwrap().0.bytes(BAR0, 0, 8), [0; 8]);
}

#[test]
fn unknown_commands_are_not_supported() {
    let (mut client, _server) = start();
    negotiate(&mut client);
    for unknown in [Command::GetRegionIoFds, Command::DmaRead, Command::DmaWrite, Command::UserDirtyPages] {
        refused(&mut client, &command(1, unknown, 0, &[0; 100]), libc::EOPNOTSUPP);
    }
    for number in [0_u16, 15, 999, u16::MAX] {
        let mut message = command(1, Command::Unknown, 0, &[0; 100]);
        message[2..4].copy_from_slice(&number.to_le_bytes());
        refused(&mut client, &message, libc::EOPNOTSUPP);
    }
}

#[test]
fn a_message_without_reply_gets_none_even_when_it_is_wrong() {
    let (mut client, _server) = start();
    negotiate(&mut client);
    client.write_all(&store(1, NO_REPLY, BAR0, 4096, &[1])).unwrap();
    client.write_all(&command(2, Command::RegionWrite, NO_REPLY, b"12")).unwrap();
    client.write_all(&command(3, Command::RegionRead, NO_REPLY, &access(BAR0, 0, 4, &[]))).unwrap();
    client.write_all(&command(4, Command::DmaRead, NO_REPLY, &[])).unwrap();
    client.write_all(&command(5, Command::DeviceGetInfo, NO_REPLY, &[0; 16])).unwrap();
    let mut body = Vec::new();
    IrqInfo { argsz: 16, flags: 0, index: vfio::VFIO_PCI_ERR_IRQ_INDEX, count: 0 }.emit(&mut body);
    client.write_all(&command(5, Command::GetIrqInfo, NO_REPLY, &body)).unwrap();
    // A reply that nothing asked for is ignored, too.
    client.write_all(&command(6, Command::DmaRead, 1, &[0; 64])).unwrap();
    in_step(&mut client);
    // Neither command nor reply.
    refused(&mut client, &command(7, Command::RegionRead, 2, &access(BAR0, 0, 4, &[])), libc::EINVAL);
}

#[test]
fn dma_errors_reach_the_client() {
    let (mut client, _server) = start();
    negotiate(&mut client);
    let file = memfd(100);
    client.send_with_fds(&[&dma_map(1, 0)[..]], &[file.as_raw_fd()]).unwrap();
    assert_eq!(reply(&mut client).0.error, libc::EINVAL.unsigned_abs());
    client.write_all(&dma_map(2, 1)).unwrap();
    assert_eq!(reply(&mut client).0.error, 0);
    client.write_all(&dma_map(3, 1)).unwrap();
    assert_eq!(reply(&mut client).0.error, libc::EEXIST.unsigned_abs());
    let mut body = Vec::new();
    DmaUnmap { argsz: 24, flags: 0, address: 0, size: 1 << 63 }.emit(&mut body);
    client.write_all(&command(4, Command::DmaUnmap, 0, &body)).unwrap();
    let (header, echo) = reply(&mut client);
    assert_eq!((header.error, echo), (0, body));
}

proptest! {
    #[test]
    fn every_command_that_wants_a_reply_gets_one(
        messages in proptest::collection::vec(
            (0_u16..16, 0_u32..64, proptest::collection::vec(0_u8..12, 0..64)), 1..40
        )
    ) {
        let (mut client, server) = start();
        negotiate(&mut client);
        let mut expected = Vec::new();
        for (index, (number, flags, body)) in messages.iter().enumerate() {
            let id = u16::try_from(index).unwrap();
            let mut message = command(id, Command::Unknown, *flags, body);
            message[2..4].copy_from_slice(&number.to_le_bytes());
            client.write_all(&message).unwrap();
            if flags & NO_REPLY == 0 && flags & 0xf != 1 {
                expected.push(id);
            }
        }
        for id in expected {
            prop_assert_eq!(reply(&mut client).0.id, id);
        }
        in_step(&mut client);
        drop(client);
        prop_assert_eq!(server.join().unwrap().1, None);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (mut client, server) = start();
        negotiate(&mut client);
        let _ = client.write_all(&bytes);
        drop(client);
        prop_assert!(server.join().is_ok());
    }
}
