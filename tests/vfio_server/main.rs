//! The vfio-user server against `vfio_user::Client`, and against clients that break the rules.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic)]

mod client;
mod descriptors;
mod dma;
mod hostile;
mod path;

use assured_rdma::adaptor::memory::{Home, MemoryFault, MemoryOperation, OperationId, Segment};
use assured_rdma::vfio::message::{
    DmaMap, DmaUnmap, HEADER_SIZE, Header, IrqInfo, MAX_MESSAGE, MAX_TRANSFER, RegionAccess, RegionInfo,
    SetIrqs,
};
use assured_rdma::vfio::{
    Connection, ConnectionId, DeviceShape, GuestMemory, Intake, Interrupts, ListenError, Listener, Overview,
    Request, sharing_in,
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
    let mut again = false;
    loop {
        if !again {
            wait(&connection);
        }
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
        match connection.flush() {
            Ok(more) if intake != Intake::End => again = more,
            _ => return (device, None),
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
