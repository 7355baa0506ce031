//! A vfio-user client that sends what it likes, with and without file descriptors, to a server that has a real memory map and
//! real interrupts: nothing panics, each command gets its one reply in order, each command of the server ends once, and little
//! is held.
#![no_main]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use arbitrary::Arbitrary;
use assured_rdma::adaptor::memory::{Home, MemoryOperation, OperationId, Segment};
use assured_rdma::vfio::message::{
    DeviceInfo, DmaAccess, DmaMap, DmaUnmap, HEADER_SIZE, Header, IrqInfo, Kind, RegionAccess, RegionInfo,
    SetIrqs,
};
use assured_rdma::vfio::{
    Begin, Connection, ConnectionId, DeviceShape, DmaKind, DmaRefused, GuestMemory, Intake, Interrupts,
    MAX_DMA, MAX_DMA_TRANSFER, ReplyToken, Request, Sharing,
};
use assured_rdma_fuzz::held::held;
use libfuzzer_sys::fuzz_target;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const SHAPE: DeviceShape = DeviceShape { regions: [4096, 0, 1 << 32, 0, 1 << 32, 0, 0, 4096, 0], vectors: 4 };
const NO_REPLY: u32 = 1 << 4;
/// Bytes of the file that stands for guest memory.
const FILE: u64 = 0x1_0000;
/// What a connection may hold, above what it holds at its beginning: both buffers, a message and its data.
const HELD_LIMIT: usize = 6 << 20;

#[derive(Arbitrary, Debug)]
enum Body {
    Version(bool),
    Map { page: u8, pages: u8, offset: u8, flags: u8 },
    Unmap { page: u8, pages: u8, flags: u8 },
    Info,
    RegionInfo(u8),
    IrqInfo(u8),
    SetIrqs { flags: u8, index: u8, start: u8, count: u8, data: Vec<u8> },
    Load { region: u8, offset: u16, count: u32 },
    Store { region: u8, offset: u16, data: Vec<u8> },
    Reset,
    Other { command: u16, data: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
enum Step {
    Send {
        body: Body,
        flags: u8,
        /// Added to the right size; mostly 0, since a wrong one breaks the connection.
        size: Option<i8>,
        descriptors: u8,
    },
    Raw(Vec<u8>),
    /// The server takes a turn, and answers what waits.
    Serve,
    /// The client takes its replies.
    Read,
    /// The server asks the client to read or write.
    Dma {
        write: bool,
        address: u64,
        len: u32,
    },
    /// The client answers one of these, as it should or otherwise.
    Answer {
        which: u8,
        error: Option<u8>,
        /// Added to the length of the data.
        extra: i8,
        echo: bool,
        count: Option<u64>,
    },
    /// Another node's request reaches guest memory.
    Access {
        write: bool,
        page: u8,
        offset: u16,
        len: u16,
    },
}

fn page(number: u8) -> u64 {
    u64::from(number) << 12
}

impl Body {
    fn emit(&self) -> (u16, Vec<u8>) {
        let mut out = Vec::new();
        let command = match self {
            Self::Version(polite) => {
                out.extend_from_slice(if *polite { b"\0\0\0\0{}\0" } else { b"\0\0\0\0{\"capabilities\":3" });
                1
            }
            Self::Map { page: at, pages, offset, flags } => {
                let (address, size) = (page(*at), page(*pages));
                DmaMap { argsz: 32, flags: (*flags).into(), offset: page(*offset), address, size }
                    .emit(&mut out);
                2
            }
            Self::Unmap { page: at, pages, flags } => {
                let (address, size) = (page(*at), page(*pages));
                DmaUnmap { argsz: 24, flags: (*flags).into(), address, size }.emit(&mut out);
                3
            }
            Self::Info => {
                DeviceInfo { argsz: 16, flags: 0, regions: 0, interrupts: 0 }.emit(&mut out);
                4
            }
            Self::RegionInfo(index) => {
                let index = (*index).into();
                RegionInfo { argsz: 32, flags: 0, index, capabilities: 0, size: 0, offset: 0 }.emit(&mut out);
                5
            }
            Self::IrqInfo(index) => {
                IrqInfo { argsz: 16, flags: 0, index: (*index).into(), count: 0 }.emit(&mut out);
                7
            }
            Self::SetIrqs { flags, index, start, count, data } => {
                let argsz = u32::try_from(20 + data.len()).expect("is short");
                let (flags, index) = ((*flags).into(), (*index).into());
                let (start, count) = ((*start).into(), (*count).into());
                SetIrqs { argsz, flags, index, start, count }.emit(&mut out);
                out.extend_from_slice(data);
                8
            }
            Self::Load { region, offset, count } => {
                let (offset, region) = ((*offset).into(), (*region).into());
                RegionAccess { offset, region, count: *count }.emit(&mut out);
                9
            }
            Self::Store { region, offset, data } => {
                let count = u32::try_from(data.len()).expect("is short");
                let (offset, region) = ((*offset).into(), (*region).into());
                RegionAccess { offset, region, count }.emit(&mut out);
                out.extend_from_slice(data);
                10
            }
            Self::Reset => 13,
            Self::Other { command, data } => {
                out.extend_from_slice(data);
                *command
            }
        };
        (command, out)
    }
}

/// What the client sends with its messages, made once.
struct Sent {
    memory: File,
    event: EventFd,
}

impl Sent {
    fn new() -> Self {
        let memory =
            rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd is to be had");
        let memory = File::from(memory);
        memory.set_len(FILE).expect("it has a length");
        Self { memory, event: EventFd::new(EFD_NONBLOCK).expect("an eventfd is to be had") }
    }
}

thread_local! {
    static SENT: Sent = Sent::new();
    static REPLIES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Both ends of a connection.
struct Talk {
    client: UnixStream,
    connection: Connection,
    memory: GuestMemory,
    interrupts: Interrupts,
    /// Commands that wait for a reply; unknown once the client sent bytes that may be anything.
    expected: Option<VecDeque<u16>>,
    next_id: u16,
    waiting: Option<(ReplyToken, usize)>,
    is_over: bool,
    next_operation: u64,
    /// The server's commands that have not ended.
    unended: BTreeSet<OperationId>,
    /// Those that the client has seen and not answered, by their ids.
    asked: BTreeMap<u16, (u16, DmaAccess)>,
}

impl Talk {
    fn new() -> Self {
        let (client, server) = UnixStream::pair().expect("a socket pair is to be had");
        client.set_nonblocking(true).expect("it can be made non-blocking");
        Self {
            client,
            connection: Connection::new(server, ConnectionId(1), SHAPE).expect("it can be made non-blocking"),
            memory: GuestMemory::new(),
            interrupts: Interrupts::new(SHAPE.vectors),
            expected: Some(VecDeque::new()),
            next_id: 0,
            waiting: None,
            is_over: false,
            next_operation: 0,
            unended: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }

    fn send(&mut self, body: &Body, flags: u8, size: Option<i8>, descriptors: u8) {
        let (command, body) = body.emit();
        let flags = u32::from(flags & 0x3f);
        let right = u32::try_from(HEADER_SIZE + body.len()).expect("is short");
        let size = right.wrapping_add_signed(size.unwrap_or(0).into());
        let header = Header { id: self.next_id, command, size, flags, error: 0 };
        self.next_id = self.next_id.wrapping_add(1);
        if size != right {
            self.expected = None;
        }
        let mut message = Vec::new();
        header.emit(&mut message);
        message.extend(body);
        let sent = SENT.with(|sent| {
            let fds: Vec<RawFd> = (0..descriptors % 20)
                .map(|n| if n % 4 == 0 { sent.memory.as_raw_fd() } else { sent.event.as_raw_fd() })
                .collect();
            if fds.is_empty() || descriptors < 0x80 {
                self.client.write(&message).map_err(|_| ())
            } else {
                self.client.send_with_fds(&[&message[..]], &fds).map_err(|_| ())
            }
        });
        match sent {
            Ok(len) if len == message.len() => {
                if let Some(expected) = &mut self.expected
                    && header.kind() != Kind::Reply
                    && flags & NO_REPLY == 0
                {
                    expected.push_back(header.id);
                }
            }
            // The socket is full: part of the message is lost, or all of it.
            Ok(_) => self.expected = None,
            Err(()) => {}
        }
    }

    /// The server asks for something.
    fn dma(&mut self, write: bool, address: u64, len: u32) {
        let len = usize::try_from(len).expect("fits") % (MAX_DMA_TRANSFER + 2);
        let kind = if write { DmaKind::Write(vec![3; len].into()) } else { DmaKind::Read(len) };
        let operation = OperationId(self.next_operation);
        self.next_operation += 1;
        let can = self.connection.can_send_dma();
        match self.connection.send_dma(operation, address, &kind) {
            Ok(()) => assert!(self.unended.insert(operation) && can),
            Err(DmaRefused::NotNow) => assert!(!can),
            Err(DmaRefused::Range) => {
                assert!(len == 0 || len > MAX_DMA_TRANSFER || address.checked_add(len as u64 - 1).is_none())
            }
        }
        assert!(self.unended.len() <= MAX_DMA);
    }

    fn answer(&mut self, which: u8, error: Option<u8>, extra: i8, echo: bool, count: Option<u64>) {
        let Some(nth) = usize::from(which).checked_rem(self.asked.len()) else { return };
        let (&id, &(command, access)) = self.asked.iter().nth(nth).expect("there are as many");
        self.asked.remove(&id);
        let mut body = Vec::new();
        if error.is_none() {
            if echo {
                DmaAccess { count: count.unwrap_or(access.count), ..access }.emit(&mut body);
            }
            if command == 11 {
                let len = usize::try_from(access.count).expect("is short");
                body.resize(body.len() + len.saturating_add_signed(extra.into()), 5);
            }
        }
        let header = match error {
            Some(error) => Header::error_reply(id, command, error.into()),
            None => Header::reply(id, command, body.len()),
        };
        let mut message = Vec::new();
        header.emit(&mut message);
        message.extend(body);
        if !matches!(self.client.write(&message), Ok(len) if len == message.len()) {
            self.expected = None;
        }
    }

    /// Takes out how commands of the server ended.
    fn end_commands(&mut self) {
        while let Some(done) = self.connection.poll_dma() {
            assert!(self.unended.remove(&done.operation), "a command ends once");
            if let Ok(data) = done.result {
                assert!(data.len() <= MAX_DMA_TRANSFER);
            }
        }
    }

    fn serve(&mut self) {
        if self.is_over {
            return;
        }
        if let Some((token, len)) = self.waiting.take() {
            self.connection.reply_load(token, &vec![7; len.min(1 << 20)]);
        }
        loop {
            let intake = self.connection.receive();
            self.end_commands();
            loop {
                match self.connection.next_request() {
                    Ok(Some(request)) => self.handle(request),
                    Ok(None) => break,
                    Err(_) => {
                        self.is_over = true;
                        break;
                    }
                }
            }
            let flushed = self.connection.flush();
            if flushed.is_err() || matches!(intake, Err(_) | Ok(Intake::End)) {
                self.is_over = true;
            }
            // As the event loop does: what came, what was held back by replies, what found no room before.
            let again = match intake {
                Ok(Intake::Some) => true,
                Ok(Intake::Full) => self.connection.wants_read(),
                _ => false,
            };
            if self.is_over || !(again || matches!(flushed, Ok(true))) {
                return;
            }
        }
    }

    fn handle(&mut self, request: Request) {
        match request {
            // Answered later.
            Request::Load { token, len, .. } => self.waiting = Some((token, len)),
            Request::Store { token, .. } | Request::Reset { token } => self.connection.reply(token, Ok(())),
            Request::DmaMap { token, map, file } => {
                let result = self.memory.map(&map, file, |_| Sharing::Shared);
                self.connection.reply(token, result.map_err(|error| error.errno()));
            }
            Request::DmaUnmap { token, unmap } => {
                let result = self.memory.unmap(&unmap);
                self.connection.reply(token, result.map_err(|error| error.errno()));
            }
            Request::SetIrqs { token, set, events } => {
                let result = self.interrupts.apply(&set, events);
                while let Some(change) = self.interrupts.poll_change() {
                    assert!(change.vector < SHAPE.vectors);
                    self.interrupts.signal(change.vector);
                }
                self.connection.reply(token, result);
            }
        }
    }

    /// Takes what has come, and looks whether it is whole replies, to the right commands.
    fn read(&mut self, replies: &mut Vec<u8>) {
        let mut buffer = [0; 4096];
        loop {
            match self.client.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => replies.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => break,
            }
        }
        while let Some(header) = Header::parse(replies) {
            let size = header.message_size().expect("a message has a possible size");
            if replies.len() < size {
                break;
            }
            if header.kind() == Kind::Command {
                let access = DmaAccess::parse(&replies[HEADER_SIZE..]).expect("it says where");
                let data = size - HEADER_SIZE - DmaAccess::SIZE;
                assert!(match header.command {
                    11 => data == 0,
                    _ => header.command == 12 && data as u64 == access.count,
                });
                let before = self.asked.insert(header.id, (header.command, access));
                assert!(before.is_none() || self.expected.is_none(), "an id is not used twice at a time");
                replies.drain(..size);
                continue;
            }
            assert_eq!(header.kind(), Kind::Reply);
            replies.drain(..size);
            if let Some(expected) = &mut self.expected {
                assert_eq!(
                    expected.pop_front(),
                    Some(header.id),
                    "replies come in order, one for each command"
                );
            }
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    REPLIES.with_borrow_mut(|replies| {
        replies.clear();
        let mut talk = Talk::new();
        // Most clients begin as they should.
        if !matches!(steps.first(), Some(Step::Raw(_))) {
            talk.send(&Body::Version(true), 0, None, 0);
        }
        let at_start = held();
        for step in &steps {
            match step {
                Step::Send { body, flags, size, descriptors } => talk.send(body, *flags, *size, *descriptors),
                Step::Raw(bytes) => {
                    talk.expected = None;
                    let _ = talk.client.write(bytes);
                }
                Step::Serve => talk.serve(),
                Step::Read => talk.read(replies),
                Step::Dma { write, address, len } => talk.dma(*write, *address, *len),
                Step::Answer { which, error, extra, echo, count } => {
                    talk.answer(*which, *error, *extra, *echo, *count);
                }
                Step::Access { write, page: at, offset, len } => {
                    let address = page(*at) + u64::from(*offset);
                    let segments = vec![Segment { address, len: (*len).into() }];
                    let id = OperationId(0);
                    let operation = if *write {
                        MemoryOperation::Write {
                            id,
                            home: Home::Guest,
                            segments,
                            data: vec![1; (*len).into()].into(),
                        }
                    } else {
                        MemoryOperation::Read { id, home: Home::Guest, segments }
                    };
                    let _ = talk.memory.execute(&operation, &Begin::WAITS);
                }
            }
            assert!(held() < at_start + HELD_LIMIT, "bounded: {} bytes are held", held() - at_start);
        }
        // Everything that can be answered is answered in the end.
        loop {
            talk.serve();
            let before = replies.len();
            talk.read(replies);
            if talk.waiting.is_none()
                && (talk.is_over || !talk.connection.wants_write())
                && replies.len() == before
            {
                break;
            }
        }
        if let Some(expected) = &talk.expected
            && !talk.is_over
        {
            assert!(expected.is_empty(), "{} commands were not answered", expected.len());
        }
        // And everything that the server asked for ends with the client.
        talk.connection.fail_dma();
        talk.end_commands();
        assert!(talk.unended.is_empty());
    });
});
