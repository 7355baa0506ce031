//! One client's connection: bytes and descriptors in, requests out, replies back.
//!
//! Requests are handed out in the order of the stream and one at a time: after one that expects a reply there is no
//! next one until it is answered. What needs only the device's shape is answered in here. A malformed message is
//! answered with an error and the stream stays in step, as long as its size field can be believed.
//!
//! Commands of this server to its client go beside all that, see [`dma`].
//!
//! All buffers are bounded. Where the input is full, [`Connection::wants_read`] is false and the socket keeps the
//! rest; where replies are not taken, no further request is handed out.

mod commands;
mod dma;

pub use dma::{DmaDone, DmaError, DmaKind, DmaRefused, MAX_DMA, MAX_DMA_TRANSFER, MAX_DMA_WRITE};

use super::descriptors::{Descriptor, DescriptorQueue};
use super::message::{Command, HEADER_SIZE, Header, Kind, MAX_MESSAGE, RegionAccess};
use super::request::{ConnectionId, DeviceShape, Echo, ReplyToken, Request};
use super::socket::{self, Missing};
use super::version::Agreement;
use bytes::{Buf, Bytes, BytesMut};
use log::warn;
use std::fmt;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Bytes that one receive asks for.
const READ_SIZE: usize = 64 << 10;
/// Bytes of unread messages from which on nothing more is received, unless one message alone is longer.
const INPUT_LIMIT: usize = 256 << 10;
/// The same while replies are awaited, which may stand behind stores.
const INPUT_LIMIT_AWAITING: usize = 1 << 20;
/// Bytes of unsent replies from which on no request is handed out.
const OUTPUT_LIMIT: usize = 64 << 10;

/// What [`Connection::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// Something came; there may be more.
    Some,
    /// Nothing was received, as there is no room: take requests first.
    Full,
    /// There is nothing at hand.
    Nothing,
    /// The client has closed. What it sent before can still be taken with `next_request`.
    End,
}

/// Why a connection can't go on. It has to be dropped; a `flush` before that delivers the last replies.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// A size field that no message can have, so that the next message can't be found.
    Size(u32),
    /// The first message is not VERSION but this command.
    NotVersion(u16),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(
                f,
                "the vfio-user client sent a message of {size} bytes (possible are {HEADER_SIZE} to {MAX_MESSAGE})"
            ),
            Self::NotVersion(command) => {
                write!(f, "the vfio-user client began with command {command} instead of VERSION")
            }
        }
    }
}

impl std::error::Error for Broken {}

/// A message taken off the stream.
struct Message {
    header: Header,
    body: Bytes,
    descriptors: Vec<Descriptor>,
    /// Why descriptors that it came with are missing.
    missing: Option<Missing>,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    id: ConnectionId,
    shape: DeviceShape,
    input: BytesMut,
    /// Where `input` begins, in bytes from the start of the stream.
    position: u64,
    descriptors: DescriptorQueue,
    output: BytesMut,
    dma: dma::Commands,
    /// What was agreed on by VERSION.
    agreed: Option<Agreement>,
    waiting_for_reply: bool,
    is_drained: bool,
}

impl Connection {
    /// Takes over a client's stream.
    ///
    /// # Errors
    /// Where the stream can't be made non-blocking.
    pub fn new(stream: UnixStream, id: ConnectionId, shape: DeviceShape) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            id,
            shape,
            input: BytesMut::with_capacity(READ_SIZE),
            position: 0,
            descriptors: DescriptorQueue::default(),
            output: BytesMut::new(),
            dma: dma::Commands::default(),
            agreed: None,
            waiting_for_reply: false,
            is_drained: false,
        })
    }

    /// Which connection this is.
    pub const fn id(&self) -> ConnectionId {
        self.id
    }

    /// Ends the connection for the client; the descriptor, and those that were received, stay open until this is dropped.
    pub fn close(&self) {
        // It fails where the client has closed before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// What client and server have agreed on, once they have.
    pub const fn agreed(&self) -> Option<Agreement> {
        self.agreed
    }

    /// The client's process id as this process sees it; `None` where it is unknown or in another namespace.
    pub fn peer_pid(&self) -> Option<libc::pid_t> {
        socket::peer_pid(&self.stream)
    }

    /// Whether the client has closed its end. What it sent before may still be unread.
    pub fn peer_is_gone(&self) -> bool {
        socket::peer_is_gone(&self.stream)
    }

    /// Whether there is room for more input: wait for the socket to be readable only then.
    pub fn wants_read(&self) -> bool {
        self.descriptors.has_room() && self.input.len() < self.input_limit()
    }

    /// The input limit; the length of the message that is being received where that is more.
    fn input_limit(&self) -> usize {
        let current = Header::parse(&self.input).and_then(|header| header.message_size());
        let limit = if self.dma.are_unanswered() { INPUT_LIMIT_AWAITING } else { INPUT_LIMIT };
        limit.max(current.unwrap_or(0))
    }

    /// Whether replies or commands are waiting for the socket to become writable.
    pub fn wants_write(&self) -> bool {
        !self.output.is_empty() || !self.dma.unsent.is_empty()
    }

    fn has_room_for_replies(&self) -> bool {
        self.output.len() < OUTPUT_LIMIT
    }

    /// Whether the last receive took all that there was, so that another one would only cost time before the socket is readable again.
    pub const fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Receives once, without waiting.
    ///
    /// # Errors
    /// Where the socket fails; the connection is then of no more use.
    pub fn receive(&mut self) -> io::Result<Intake> {
        if !self.wants_read() {
            return Ok(Intake::Full);
        }
        self.input.reserve(READ_SIZE);
        let room = self.input.capacity().saturating_sub(self.input.len());
        self.is_drained = false;
        let received = loop {
            match socket::receive(&self.stream, &mut self.input) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Intake::Nothing),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Intake::End),
                other => break other?,
            }
        };
        if received.len == 0 {
            return Ok(Intake::End);
        }
        let has_descriptors = !received.descriptors.is_empty() || received.missing.is_some();
        if has_descriptors {
            let begin = self.input.len().saturating_sub(received.len);
            self.descriptors.push(&self.input, self.position, begin, received.descriptors, received.missing);
        }
        // A receive also ends behind descriptors.
        self.is_drained = received.len < room && !has_descriptors;
        self.pick_replies();
        Ok(Intake::Some)
    }

    /// The next request, if a whole one is at hand and the one before has been answered.
    ///
    /// # Errors
    /// Where the client broke the protocol so that the connection has to be dropped.
    pub fn next_request(&mut self) -> Result<Option<Request>, Broken> {
        while !self.waiting_for_reply && self.has_room_for_replies() {
            let position = self.position;
            let Some(message) = self.next_message()? else { break };
            match message.header.kind() {
                Kind::Command => {}
                Kind::Reply => {
                    if !self.dma.was_picked(position) {
                        complain(&message.header, "a reply that nothing asked for");
                    }
                    continue;
                }
                Kind::Invalid => {
                    self.refuse(&message.header, libc::EINVAL, "neither a command nor a reply");
                    continue;
                }
            }
            if self.agreed.is_none() && !matches!(Command::n(message.header.command), Some(Command::Version))
            {
                self.refuse(&message.header, libc::EINVAL, "a command before VERSION");
                return Err(Broken::NotVersion(message.header.command));
            }
            if let Some(request) = self.handle_command(message) {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    fn next_message(&mut self) -> Result<Option<Message>, Broken> {
        let Some(header) = Header::parse(&self.input) else { return Ok(None) };
        let size = header.message_size().ok_or(Broken::Size(header.size))?;
        if self.input.len() < size {
            return Ok(None);
        }
        let mut body = self.input.split_to(size).freeze();
        body.advance(HEADER_SIZE);
        let (descriptors, missing) = self.descriptors.take(self.position);
        self.position = self.position.saturating_add(size as u64);
        Ok(Some(Message { header, body, descriptors, missing }))
    }

    /// Answers a load with its data. Data of another length than was asked for are cut, or lengthened with all-ones.
    pub fn reply_load(&mut self, token: ReplyToken, data: &[u8]) {
        let Echo::Access(access) = token.echo else {
            return self.reply_ok(token);
        };
        if !self.accept(&token) {
            return;
        }
        let asked = usize::try_from(access.count).unwrap_or(0);
        let data = data.get(..asked).unwrap_or(data);
        let body = RegionAccess::SIZE.saturating_add(asked);
        Header::reply(token.id, token.command, body).emit(&mut self.output);
        access.emit(&mut self.output);
        self.output.extend_from_slice(data);
        let missing = asked.saturating_sub(data.len());
        self.output.resize(self.output.len().saturating_add(missing), 0xff);
    }

    /// Says that a request (other than a load) was done.
    pub fn reply_ok(&mut self, token: ReplyToken) {
        if !self.accept(&token) {
            return;
        }
        let mut body = Vec::new();
        match &token.echo {
            Echo::Nothing => {}
            Echo::Access(access) => access.emit(&mut body),
            Echo::Unmap(unmap) => unmap.emit(&mut body),
        }
        Header::reply(token.id, token.command, body.len()).emit(&mut self.output);
        self.output.extend_from_slice(&body);
    }

    /// Says that a request was refused, with an errno. Not for what a guest does wrong: that is device state.
    pub fn reply_error(&mut self, token: ReplyToken, errno: i32) {
        if self.accept(&token) {
            Header::error_reply(token.id, token.command, errno).emit(&mut self.output);
        }
    }

    /// Answers a request whose token may be absent: done, or an errno.
    pub fn reply(&mut self, token: Option<ReplyToken>, result: Result<(), i32>) {
        match (token, result) {
            (None, _) => {}
            (Some(token), Ok(())) => self.reply_ok(token),
            (Some(token), Err(errno)) => self.reply_error(token, errno),
        }
    }

    fn accept(&mut self, token: &ReplyToken) -> bool {
        let own = token.connection == self.id;
        if own {
            self.waiting_for_reply = false;
        }
        own
    }

    /// Sends replies, and then commands, as many as the socket takes without waiting. Returns whether that made room for requests
    /// which [`Connection::next_request`] held back: ask it again, since nothing else will tell of them.
    ///
    /// # Errors
    /// Where the socket fails; the connection is then of no more use.
    pub fn flush(&mut self) -> io::Result<bool> {
        let was_full = !self.has_room_for_replies();
        if self.dma.is_begun && !self.send_command()? {
            return Ok(false);
        }
        if send(&mut self.stream, &mut self.output)? {
            while self.send_command()? && self.dma.ask_next() {}
        }
        Ok(was_full && self.has_room_for_replies())
    }

    /// Sends what is left of a command. Returns whether nothing is.
    fn send_command(&mut self) -> io::Result<bool> {
        let before = self.dma.unsent.len();
        let is_sent = send(&mut self.stream, &mut self.dma.unsent)?;
        self.dma.is_begun = !is_sent && (self.dma.is_begun || self.dma.unsent.len() < before);
        Ok(is_sent)
    }
}

fn complain(header: &Header, problem: &str) {
    warn!("vfio-user client sent {problem} (command {})", header.command);
}

/// Writes from the front of `bytes`. Returns whether the socket took all of them.
fn send(stream: &mut UnixStream, bytes: &mut impl Buf) -> io::Result<bool> {
    while bytes.has_remaining() {
        match stream.write(bytes.chunk()) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes.advance(sent.min(bytes.remaining())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
