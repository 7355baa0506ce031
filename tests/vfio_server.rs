//! The vfio-user server against `vfio_user::Client`, and against clients that break the rules.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic)]

use assured_rdma::adaptor::memory::{MemoryOperation, OperationId, Segment};
use assured_rdma::vfio::message::{
    DmaMap, DmaUnmap, HEADER_SIZE, Header, IrqInfo, MAX_MESSAGE, MAX_TRANSFER, RegionAccess, RegionInfo,
    SetIrqs,
};
use assured_rdma::vfio::{
    Connection, ConnectionId, DeviceShape, GuestMemory, Intake, Interrupts, ListenError, Listener, Request,
    Sharing, sharing_in,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{self, JoinHandle};
use vfio_bindings::bindings::vfio;
use vfio_user::{Client, Command};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use vmm_sys_util::tempdir::TempDir;

const BAR0: u32 = 0;
const CONFIG: u32 = 7;

fn shape() -> DeviceShape {
    DeviceShape { regions: [4096, 0, 1 << 32, 0, 1 << 32, 0, 0, 4096, 0], vectors: 4 }
}

/// A device that is only memory: BAR0 and configuration space.
struct Device {
    bars: [Vec<u8>; 2],
    memory: GuestMemory,
    interrupts: Interrupts,
    resets: usize,
    changes: Vec<(u16, bool)>,
    posted: usize,
}

impl Device {
    fn new() -> Self {
        Self {
            bars: [vec![0; 4096], vec![0; 4096]],
            memory: GuestMemory::new(),
            interrupts: Interrupts::new(shape().vectors),
            resets: 0,
            changes: Vec::new(),
            posted: 0,
        }
    }

    fn bytes(&mut self, region: u32, offset: u64, len: usize) -> &mut [u8] {
        let begin = usize::try_from(offset).unwrap();
        &mut self.bars[usize::from(region == CONFIG)][begin..begin + len]
    }

    fn handle(&mut self, connection: &mut Connection, request: Request) {
        match request {
            Request::Load { token, region, offset, len } => {
                let data = self.bytes(region, offset, len).to_vec();
                connection.reply_load(token, &data);
            }
            Request::Store { token, region, offset, data } => {
                self.bytes(region, offset, data.len()).copy_from_slice(&data);
                self.posted += usize::from(token.is_none());
                connection.reply(token, Ok(()));
            }
            Request::DmaMap { token, map, file } => {
                let pid = connection.peer_pid();
                let result = self.memory.map(&map, file, |file| sharing_in(pid, file));
                connection.reply(token, result.map_err(|error| error.errno()));
            }
            Request::DmaUnmap { token, unmap } => {
                let result = self.memory.unmap(&unmap);
                connection.reply(token, result.map_err(|error| error.errno()));
            }
            Request::SetIrqs { token, set, events } => {
                let result = self.interrupts.apply(&set, events);
                while let Some(change) = self.interrupts.poll_change() {
                    self.changes.push((change.vector, change.connected));
                }
                connection.reply(token, result);
            }
            Request::Reset { token } => {
                self.resets += 1;
                connection.reply(token, Ok(()));
            }
        }
    }
}

fn wait(connection: &Connection) {
    let read = if connection.wants_read() { libc::POLLIN } else { 0 };
    let write = if connection.wants_write() { libc::POLLOUT } else { 0 };
    let mut poll = libc::pollfd { fd: connection.as_fd().as_raw_fd(), events: read | write, revents: 0 };
    // SAFETY: one valid `pollfd`.
    unsafe { libc::poll(&mut poll, 1, -1) };
}

/// Serves until the client goes or breaks the protocol; gives the device and what was wrong.
fn serve(mut connection: Connection) -> (Device, Option<String>) {
    let mut device = Device::new();
    loop {
        wait(&connection);
        let intake = connection.receive().unwrap();
        loop {
            match connection.next_request() {
                Ok(Some(request)) => device.handle(&mut connection, request),
                Ok(None) => break,
                Err(broken) => {
                    let _ = connection.flush();
                    return (device, Some(broken.to_string()));
                }
            }
        }
        let sent = connection.flush();
        if intake == Intake::End || sent.is_err() {
            return (device, None);
        }
    }
}

/// Serves a raw client of the other end.
fn start() -> (UnixStream, JoinHandle<(Device, Option<String>)>) {
    let (client, server) = UnixStream::pair().unwrap();
    let connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    (client, thread::spawn(move || serve(connection)))
}

fn with_client(test: impl FnOnce(&mut Client)) -> Device {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    let mut listener = Listener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        loop {
            let mut poll =
                libc::pollfd { fd: listener.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid `pollfd`.
            unsafe { libc::poll(&mut poll, 1, -1) };
            if let Some(connection) = listener.accept(false, &shape()).unwrap() {
                return serve(connection);
            }
        }
    });
    let mut client = Client::new(&path).unwrap();
    test(&mut client);
    client.shutdown().unwrap();
    let (device, broken) = server.join().unwrap();
    assert_eq!(broken, None);
    device
}

fn memfd(len: u64) -> File {
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(c"server-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: just opened, owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len).unwrap();
    file
}

fn command(id: u16, command: Command, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER_SIZE + body.len()).unwrap();
    let mut out = Vec::new();
    Header { id, command: command as u16, size, flags, error: 0 }.emit(&mut out);
    out.extend_from_slice(body);
    out
}

const NO_REPLY: u32 = 0x10;
const ERROR_REPLY: u32 = 0x21;

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    RegionAccess { offset, region, count }.emit(&mut out);
    out.extend_from_slice(data);
    out
}

fn load(id: u16, region: u32, offset: u64, count: u32) -> Vec<u8> {
    command(id, Command::RegionRead, 0, &access(region, offset, count, &[]))
}

fn store(id: u16, flags: u32, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let count = u32::try_from(data.len()).unwrap();
    command(id, Command::RegionWrite, flags, &access(region, offset, count, data))
}

fn version() -> Vec<u8> {
    command(0, Command::Version, 0, b"\0\0\0\0{}\0")
}

fn dma_map(id: u16, page: u64) -> Vec<u8> {
    let mut body = Vec::new();
    DmaMap { argsz: 32, flags: 3, offset: 0, address: page * 4096, size: 4096 }.emit(&mut body);
    command(id, Command::DmaMap, 0, &body)
}

fn reply(stream: &mut UnixStream) -> (Header, Vec<u8>) {
    let mut bytes = [0; HEADER_SIZE];
    stream.read_exact(&mut bytes).unwrap();
    let header = Header::parse(&bytes).unwrap();
    let mut body = vec![0; usize::try_from(header.size).unwrap() - HEADER_SIZE];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

fn negotiate(stream: &mut UnixStream) {
    stream.write_all(&version()).unwrap();
    assert_eq!(reply(stream).0.flags, 1);
}

/// Sends a message that has to be refused, and looks whether the stream is still in step.
fn refused(stream: &mut UnixStream, message: &[u8], errno: i32) {
    stream.write_all(message).unwrap();
    let (header, body) = reply(stream);
    assert_eq!(
        (header.flags, header.error, body.len()),
        (ERROR_REPLY, errno.unsigned_abs(), 0),
        "{message:?}"
    );
    in_step(stream);
}

fn in_step(stream: &mut UnixStream) {
    stream.write_all(&load(0x7777, BAR0, 0, 4)).unwrap();
    let (header, body) = reply(stream);
    assert_eq!((header.id, header.flags, body.len()), (0x7777, 1, RegionAccess::SIZE + 4));
}

// The good way, with the crate's client.

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
        segments: vec![Segment { address, len: 3 }],
        data: bytes::Bytes::from_static(b"abc"),
    };
    device.memory.execute(&write(0x10_0010)).unwrap();
    assert!(device.memory.execute(&write(0x20_0010)).is_err());
    let mut found = [0; 3];
    file.read_exact_at(&mut found, 0x1010).unwrap();
    assert_eq!(&found, b"abc");
    // This process has the file open, but not mapped.
    assert_eq!(device.memory.sharing(), Sharing::Unknown);
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

// Clients that break the rules.

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

// File descriptors.

/// Takes what the client sends as requests, replying to each.
fn requests(connection: &mut Connection) -> VecDeque<Request> {
    let mut requests = VecDeque::new();
    while connection.receive().unwrap() == Intake::Some {
        while let Some(mut request) = connection.next_request().unwrap() {
            if let Request::DmaMap { token, .. } | Request::SetIrqs { token, .. } = &mut request {
                let token = token.take();
                connection.reply(token, Ok(()));
            }
            requests.push_back(request);
        }
    }
    requests
}

fn pair() -> (UnixStream, Connection) {
    let (mut client, server) = UnixStream::pair().unwrap();
    let connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    client.write_all(&version()).unwrap();
    (client, connection)
}

fn set_irqs(id: u16, start: u32, count: u32) -> Vec<u8> {
    let flags = vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut body = Vec::new();
    SetIrqs { argsz: 20, flags, index: vfio::VFIO_PCI_MSIX_IRQ_INDEX, start, count }.emit(&mut body);
    command(id, Command::SetIrqs, 0, &body)
}

#[test]
fn descriptors_belong_to_the_message_they_came_with() {
    let (client, mut connection) = pair();
    let files: Vec<File> = (1..=3).map(memfd).collect();
    // Everything is in the socket before the first receive.
    let plain = |message: Vec<u8>| (&client).write_all(&message).unwrap();
    let with = |message: Vec<u8>, file: usize| {
        client.send_with_fds(&[&message[..]], &[files[file].as_raw_fd()]).unwrap();
    };
    plain(store(1, NO_REPLY, BAR0, 0, &[1]));
    plain(dma_map(2, 0));
    with(dma_map(3, 1), 0);
    with(dma_map(4, 2), 1);
    plain(dma_map(5, 3));
    plain(store(6, NO_REPLY, BAR0, 0, &[1]));
    with(dma_map(7, 4), 2);
    plain(dma_map(8, 5));
    // Sent at once with others behind it, among them none that takes descriptors.
    with([set_irqs(9, 0, 1), store(10, NO_REPLY, BAR0, 0, &[1; 64])].concat(), 0);
    let found: Vec<_> = requests(&mut connection)
        .into_iter()
        .filter_map(|request| match request {
            Request::DmaMap { map, file, .. } => {
                Some((map.address / 4096, file.map(|file| File::from(file).metadata().unwrap().len())))
            }
            Request::SetIrqs { events, .. } => Some((100, Some(u64::try_from(events.len()).unwrap()))),
            _ => None,
        })
        .collect();
    let expected =
        [(0, None), (1, Some(1)), (2, Some(2)), (3, None), (4, Some(3)), (5, None), (100, Some(1))];
    assert_eq!(found, expected);
}

#[test]
fn descriptors_find_their_message_however_it_is_cut() {
    let message = dma_map(1, 7);
    let file = memfd(5);
    for cut in 1..message.len() {
        let (mut client, mut connection) = pair();
        client.write_all(&store(1, NO_REPLY, BAR0, 0, &[1; 16])).unwrap();
        client.send_with_fds(&[&message[..cut]], &[file.as_raw_fd()]).unwrap();
        assert!(requests(&mut connection).iter().all(|request| matches!(request, Request::Store { .. })));
        client.write_all(&message[cut..]).unwrap();
        client.write_all(&dma_map(2, 8)).unwrap();
        let found = requests(&mut connection);
        assert!(matches!(found[0], Request::DmaMap { file: Some(_), .. }), "cut at {cut}");
        assert!(matches!(found[1], Request::DmaMap { file: None, .. }), "cut at {cut}");
    }
}

#[test]
fn sixteen_vectors_connect_with_one_message_and_more_are_refused() {
    let events: Vec<EventFd> = (0..20).map(|_| EventFd::new(libc::EFD_NONBLOCK).unwrap()).collect();
    let fds: Vec<RawFd> = events.iter().map(AsRawFd::as_raw_fd).collect();
    let (mut client, mut connection) = pair();
    client.send_with_fds(&[&set_irqs(1, 0, 16)[..]], &fds[..16]).unwrap();
    client.send_with_fds(&[&set_irqs(2, 0, 17)[..]], &fds[..17]).unwrap();
    let found = requests(&mut connection);
    assert_eq!(found.len(), 1);
    assert!(matches!(&found[0], Request::SetIrqs { events, .. } if events.len() == 16));
    connection.flush().unwrap();
    assert_eq!((reply(&mut client).0.id, reply(&mut client).0.error), (0, 0));
    let (header, _) = reply(&mut client);
    assert_eq!((header.id, header.error), (2, libc::EINVAL.unsigned_abs()));
}

fn open_events() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|link| link.to_string_lossy().contains("flood-test"))
        .count()
}

#[test]
fn a_flood_of_descriptors_is_bounded_and_closed() {
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(c"flood-test".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: just opened, owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    let (mut client, mut connection) = pair();
    client.write_all(&load(1, BAR0, 0, 4)).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut messages = 0;
    while messages < 50
        && client.send_with_fds(&[&store(2, NO_REPLY, BAR0, 0, &[1])[..]], &[file.as_raw_fd(); 16]).is_ok()
    {
        messages += 1;
    }
    assert!(messages > 10);
    // The load is not answered, so that all of it has to wait.
    while connection.wants_read() && connection.receive().unwrap() == Intake::Some {}
    assert!(open_events() <= 1 + 5 * 16, "{}", open_events());
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[0; 4]);
    assert_eq!(requests(&mut connection).len(), messages);
    assert_eq!(open_events(), 1);
}

#[test]
fn a_client_that_takes_no_replies_is_not_served_without_end() {
    let (client, mut connection) = pair();
    client.set_nonblocking(true).unwrap();
    let question = command(1, Command::DeviceGetInfo, 0, &[0; 16]);
    let mut asked = 0;
    for _ in 0..200_000 {
        if (&client).write_all(&question).is_err() {
            let before = connection.receive().unwrap();
            assert!(connection.next_request().unwrap().is_none());
            connection.flush().unwrap();
            if before == Intake::Some && !connection.wants_read() {
                break;
            }
        }
        asked += 1;
    }
    assert!(connection.wants_write() && !connection.wants_read(), "{asked}");
}

// The socket's path.

#[test]
fn a_stale_path_is_replaced_and_a_live_one_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&path).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::Alive(_)), "{error}");
    assert!(error.to_string().contains("in use"));
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_path_that_is_no_socket_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("file");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&path), Err(ListenError::NotASocket(_))));
    assert!(matches!(Listener::bind(dir.as_path()), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let absent = dir.as_path().join("absent/socket");
    assert!(Listener::bind(&absent).unwrap_err().to_string().contains("absent/socket"));
    let long = Path::new("/tmp").join("x".repeat(200));
    assert!(Listener::bind(&long).unwrap_err().to_string().contains("at most 107"));
}

#[test]
fn only_our_own_socket_is_removed() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    // Another inode, which is not that of the removed one.
    let other = dir.as_path().join("other");
    let _other = UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, &path).unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn a_second_client_is_turned_away_and_the_next_one_served() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    let mut listener = Listener::bind(&path).unwrap();
    assert!(listener.accept(false, &shape()).unwrap().is_none());
    let first = UnixStream::connect(&path).unwrap();
    let connection = listener.accept(false, &shape()).unwrap().unwrap();
    assert_eq!(connection.peer_pid(), libc::pid_t::try_from(std::process::id()).ok());
    let mut second = UnixStream::connect(&path).unwrap();
    assert!(listener.accept(true, &shape()).unwrap().is_none());
    assert_eq!(second.read(&mut [0]).unwrap(), 0);
    drop(first);
    assert!(connection.peer_is_gone());
    let _third = UnixStream::connect(&path).unwrap();
    let next = listener.accept(!connection.peer_is_gone(), &shape()).unwrap().unwrap();
    assert_ne!(next.id(), connection.id());
}
