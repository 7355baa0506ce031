//! A client of the vfio-user socket as QEMU is one: stores wait for no reply. It can send many messages at once, and poll for answers.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use assured_rdma::vfio::message::{Command, DmaMap, HEADER_SIZE, Header, RegionAccess};
use vfio_user::DmaMapFlags;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::guest::Bus;

const NO_REPLY: u32 = 1 << 4;

/// Bytes of a load, and of what comes before the data in its reply.
pub const LOAD: usize = HEADER_SIZE + RegionAccess::SIZE;
/// Bytes of a store of 8 bytes.
pub const STORE: usize = LOAD + 8;

/// How to wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Block,
    /// Looking again and again, and leaving the processor to others in between.
    Poll,
}

/// See the module.
pub struct Wire {
    stream: UnixStream,
}

impl Wire {
    /// Connects to an adaptor.
    pub fn connect(socket: &Path, wait: Wait) -> Self {
        let wire = Self::over(UnixStream::connect(socket).unwrap());
        wire.set_wait(wait);
        wire
    }

    /// Introduces itself to the server at the other end.
    pub fn over(stream: UnixStream) -> Self {
        let mut wire = Self { stream };
        let capabilities = b"{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":1048576}}\0";
        wire.send(&command(Command::Version, 0, &[&[0; 4], &capabilities[..]].concat()));
        let mut header = [0; HEADER_SIZE];
        wire.receive(&mut header);
        let size = usize::try_from(Header::parse(&header).unwrap().size).unwrap();
        wire.receive(&mut vec![0; size - HEADER_SIZE]);
        wire
    }

    /// How to wait from now on.
    pub fn set_wait(&self, wait: Wait) {
        self.stream.set_nonblocking(wait == Wait::Poll).unwrap();
    }

    /// Sends messages.
    pub fn send(&mut self, messages: &[u8]) {
        send(&mut self.stream, messages);
    }

    /// Waits for so many bytes.
    pub fn receive(&mut self, bytes: &mut [u8]) {
        assert!(receive(&mut self.stream, bytes), "the server has closed");
    }

    /// Sends messages of which the last is a load of `N` bytes, and waits for these.
    pub fn ask<const N: usize>(&mut self, messages: &[u8]) -> [u8; N] {
        self.send(messages);
        let mut head = [0; LOAD];
        self.receive(&mut head);
        let header = Header::parse(&head).unwrap();
        assert!(!header.is_error(), "{header:?}");
        let mut data = [0; N];
        self.receive(&mut data);
        data
    }
}

impl Bus for Wire {
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) {
        self.send(&load(region, offset, data.len()));
        self.receive(&mut [0; LOAD]);
        self.receive(data);
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.send(&store(region, offset, data));
    }

    fn map(&mut self, address: u64, size: u64, file: &File) {
        let flags = DmaMapFlags::READ_WRITE.bits();
        let mut body = Vec::new();
        DmaMap { argsz: DmaMap::SIZE as u32, flags, offset: 0, address, size }.emit(&mut body);
        let message = command(Command::DmaMap, 0, &body);
        let sent = self.stream.send_with_fds(&[&message[..]], &[file.as_raw_fd()]).unwrap();
        assert_eq!(sent, message.len());
        let mut reply = [0; HEADER_SIZE];
        self.receive(&mut reply);
        assert!(!Header::parse(&reply).unwrap().is_error());
    }
}

/// A load of `count` bytes.
pub fn load(region: u32, offset: u64, count: usize) -> Vec<u8> {
    command(Command::RegionRead, 0, &access(region, offset, count, &[]))
}

/// A store that waits for no reply.
pub fn store(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    command(Command::RegionWrite, NO_REPLY, &access(region, offset, data.len(), data))
}

fn access(region: u32, offset: u64, count: usize, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    RegionAccess { offset, region, count: count.try_into().unwrap() }.emit(&mut body);
    body.extend_from_slice(data);
    body
}

fn command(command: Command, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    let size = u32::try_from(HEADER_SIZE + body.len()).unwrap();
    Header { id: 1, command: command as u16, size, flags, error: 0 }.emit(&mut message);
    message.extend_from_slice(body);
    message
}

/// Sends all bytes, polling where the stream does not block.
pub fn send(stream: &mut impl Write, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Fills the buffer, polling where the stream does not block. False at the end of the stream.
pub fn receive(stream: &mut impl Read, buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return false,
            Ok(len) => filled += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}
