//! Commands of this server to its client: reads and writes in the address space of the function's bus, by which other devices'
//! registers are reached too.
//!
//! Nothing waits for a reply but who asked. The client's requests go on meanwhile, and what they are answered is sent first: QEMU
//! carries out none of these commands while it waits for an answer itself. Replies are picked out of the input wherever they
//! are, since one may stand behind stores that wait for just that reply.
//!
//! Invariant: each command that was taken ends once, by [`Connection::poll_dma`]; an id is free again only when its reply was there.

use super::super::message::{Command, DmaAccess, HEADER_SIZE, Header, Kind};
use super::Connection;
use crate::adaptor::memory::OperationId;
use crate::adaptor::mesh::limits::LENT_BYTES;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// The most commands that a client has not answered at a time.
pub const MAX_DMA: usize = 32;
/// The most bytes that one command reads or writes. (QEMU 11.1.3 cuts longer replies short where its socket is full.)
pub const MAX_DMA_TRANSFER: usize = 64 << 10;
/// The most bytes of a write. What is longer than a command goes in several, and ends as one: a write of memory that another bus lends is.
pub const MAX_DMA_WRITE: usize = LENT_BYTES as usize;

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmaKind {
    /// Reads this number of bytes.
    Read(usize),
    /// Writes these bytes.
    Write(Bytes),
}

impl DmaKind {
    /// How many bytes it is about.
    pub fn len(&self) -> usize {
        match self {
            Self::Read(len) => *len,
            Self::Write(data) => data.len(),
        }
    }

    /// Whether it is about no bytes; such a command is not taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    const fn command(&self) -> u16 {
        match self {
            Self::Read(_) => Command::DmaRead as u16,
            Self::Write(_) => Command::DmaWrite as u16,
        }
    }
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaRefused {
    /// Now is not the time, see [`Connection::can_send_dma`].
    NotNow,
    /// No bytes, or more than client and server allow, or beyond the end of the address space.
    Range,
}

/// Why a command has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaError {
    /// The client says so, with this errno. QEMU gives ENODEV where nothing answers, and where the function is no bus master.
    Errno(u32),
    /// The reply is not one to this command.
    Malformed,
    /// The client has gone without an answer, so that nobody knows whether it was carried out.
    Gone,
}

impl fmt::Display for DmaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => {
                let error = std::io::Error::from_raw_os_error(i32::try_from(*errno).unwrap_or(0));
                write!(f, "the client answers: {error}")
            }
            Self::Malformed => f.write_str("the client's answer is malformed"),
            Self::Gone => f.write_str("the client has gone without an answer"),
        }
    }
}

impl std::error::Error for DmaError {}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmaDone {
    /// Which one.
    pub operation: OperationId,
    /// How many bytes it was about.
    pub len: u64,
    /// The bytes read (none for a write), or why there are none.
    pub result: Result<Bytes, DmaError>,
}

/// A command that the client has not answered yet.
#[derive(Debug)]
struct Sent {
    operation: OperationId,
    command: u16,
    access: DmaAccess,
}

impl Sent {
    /// What a reply to this command says.
    fn result(&self, header: &Header, body: &[u8]) -> Result<Bytes, DmaError> {
        if header.is_error() {
            return Err(DmaError::Errno(header.error));
        }
        let is_write = self.command == Command::DmaWrite as u16;
        // QEMU answers a write with the header alone.
        if is_write && body.is_empty() {
            return Ok(Bytes::new());
        }
        let echo = DmaAccess::parse(body).filter(|echo| *echo == self.access).ok_or(DmaError::Malformed)?;
        let data = body.get(DmaAccess::SIZE..).unwrap_or_default();
        let expected = if is_write { 0 } else { echo.count };
        if u64::try_from(data.len()) != Ok(expected) {
            return Err(DmaError::Malformed);
        }
        Ok(Bytes::copy_from_slice(data))
    }
}

/// A write that goes in several commands.
#[derive(Debug)]
struct LongWrite {
    /// Where what is still to be asked for goes.
    address: u64,
    rest: Bytes,
    /// All of its bytes.
    len: u64,
    /// Its commands that the client has not answered.
    unanswered: usize,
    error: Option<DmaError>,
}

/// The commands of a connection.
#[derive(Debug, Default)]
pub(super) struct Commands {
    unanswered: BTreeMap<u16, Sent>,
    /// Of these at most one, the last that was taken, has still something to be asked for.
    long: BTreeMap<OperationId, LongWrite>,
    next_id: u16,
    /// What of the last message is still to be sent.
    pub(super) unsent: Bytes,
    /// The first part of it was sent, so that nothing else may be before the rest was.
    pub(super) is_begun: bool,
    done: VecDeque<DmaDone>,
    /// Up to where the input was searched for replies, in bytes from the start of the stream.
    searched: u64,
    /// Where in the input replies stand that were picked out.
    picked: VecDeque<u64>,
}

impl Commands {
    /// Whether replies are to come.
    pub(super) fn are_unanswered(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Whether the reply that begins at `position` was picked out; it is forgotten then.
    pub(super) fn was_picked(&mut self, position: u64) -> bool {
        self.picked.pop_front_if(|picked| *picked == position).is_some()
    }

    fn free_id(&mut self) -> u16 {
        while self.unanswered.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        id
    }

    /// A command has ended.
    fn end(&mut self, operation: OperationId, mut len: u64, mut result: Result<Bytes, DmaError>) {
        if let Some(long) = self.long.get_mut(&operation) {
            long.unanswered = long.unanswered.saturating_sub(1);
            if let Err(error) = result {
                long.error.get_or_insert(error);
                long.rest.clear();
            }
            if long.unanswered > 0 || !long.rest.is_empty() {
                return;
            }
            result = long.error.map_or(Ok(Bytes::new()), Err);
            len = long.len;
            self.long.remove(&operation);
        }
        self.done.push_back(DmaDone { operation, len, result });
    }

    /// Makes the message of a command the one to be sent.
    fn ask(&mut self, operation: OperationId, address: u64, kind: &DmaKind) {
        let data = match kind {
            DmaKind::Read(_) => &[][..],
            DmaKind::Write(data) => data,
        };
        let (id, command) = (self.free_id(), kind.command());
        let access = DmaAccess { address, count: u64::try_from(kind.len()).unwrap_or(u64::MAX) };
        let body = DmaAccess::SIZE.saturating_add(data.len());
        let mut message = BytesMut::with_capacity(HEADER_SIZE.saturating_add(body));
        Header::command(id, command, body).emit(&mut message);
        access.emit(&mut message);
        message.extend_from_slice(data);
        self.unsent = message.freeze();
        self.unanswered.insert(id, Sent { operation, command, access });
    }

    /// Makes the next part of a long write the command to be sent, the one before having been sent. Returns whether there is one.
    pub(super) fn ask_next(&mut self) -> bool {
        let unfinished = self.long.iter_mut().find(|(_, long)| !long.rest.is_empty());
        let Some((&operation, long)) = unfinished else { return false };
        let part = long.rest.split_to(long.rest.len().min(MAX_DMA_TRANSFER));
        let address = long.address;
        long.address = address.saturating_add(MAX_DMA_TRANSFER as u64);
        long.unanswered = long.unanswered.saturating_add(1);
        self.ask(operation, address, &DmaKind::Write(part));
        true
    }

    /// Whether nothing of what was taken is still to be sent.
    fn is_sent(&self) -> bool {
        self.unsent.is_empty() && self.long.values().all(|long| long.rest.is_empty())
    }
}

impl Connection {
    /// Whether [`Connection::send_dma`] takes a command now: not before VERSION, not while a request waits for its answer, since the
    /// client may do nothing else until then, and not while [`MAX_DMA`] wait or the one before is still to be sent.
    pub fn can_send_dma(&self) -> bool {
        let held = self.dma.unanswered.len().saturating_add(self.dma.done.len());
        self.agreed.is_some() && !self.waiting_for_reply && self.dma.is_sent() && held < MAX_DMA
    }

    /// Asks the client to read or write at a bus address. `flush` sends it; how it ends comes from [`Connection::poll_dma`].
    ///
    /// # Errors
    /// Where nothing was done, and nothing will come from `poll_dma`.
    pub fn send_dma(
        &mut self,
        operation: OperationId,
        address: u64,
        kind: &DmaKind,
    ) -> Result<(), DmaRefused> {
        if !self.can_send_dma() {
            return Err(DmaRefused::NotNow);
        }
        let limit = self.agreed.map_or(0, |agreed| agreed.max_transfer).min(MAX_DMA_TRANSFER);
        let count = u64::try_from(kind.len()).unwrap_or(u64::MAX);
        let is_within = count.checked_sub(1).and_then(|last| address.checked_add(last)).is_some();
        let is_long = matches!(kind, DmaKind::Write(_)) && kind.len() > MAX_DMA_TRANSFER;
        let longest = if is_long && limit == MAX_DMA_TRANSFER { MAX_DMA_WRITE } else { limit };
        if !is_within || kind.len() > longest {
            return Err(DmaRefused::Range);
        }
        match kind {
            DmaKind::Write(data) if is_long => {
                let rest = data.clone();
                let long = LongWrite { address, rest, len: count, unanswered: 0, error: None };
                self.dma.long.insert(operation, long);
                self.dma.ask_next();
            }
            DmaKind::Read(_) | DmaKind::Write(_) => self.dma.ask(operation, address, kind),
        }
        Ok(())
    }

    /// How a command ended.
    pub fn poll_dma(&mut self) -> Option<DmaDone> {
        self.dma.done.pop_front()
    }

    /// The client has gone: whatever it has not answered has failed.
    pub fn fail_dma(&mut self) {
        let long = core::mem::take(&mut self.dma.long);
        let unanswered = core::mem::take(&mut self.dma.unanswered).into_values();
        let short = unanswered.map(|sent| (sent.operation, sent.access.count));
        let short = short.filter(|(operation, _)| !long.contains_key(operation));
        for (operation, len) in short.chain(long.iter().map(|(&operation, long)| (operation, long.len))) {
            self.dma.end(operation, len, Err(DmaError::Gone));
        }
    }

    /// Picks replies out of what was received. They stay in the input until it is their turn to be passed over.
    pub(super) fn pick_replies(&mut self) {
        let mut at = self.dma.searched.max(self.position);
        while self.dma.are_unanswered() {
            let ahead = usize::try_from(at.saturating_sub(self.position)).unwrap_or(usize::MAX);
            let rest = self.input.get(ahead..).unwrap_or_default();
            let Some(header) = Header::parse(rest) else { break };
            // A size that can't be is found when it is this message's turn.
            let Some(message) = header.message_size().and_then(|size| rest.get(..size)) else { break };
            if header.kind() == Kind::Reply
                && self.dma.unanswered.get(&header.id).is_some_and(|sent| sent.command == header.command)
                && let Some(sent) = self.dma.unanswered.remove(&header.id)
            {
                let result = sent.result(&header, message.get(HEADER_SIZE..).unwrap_or_default());
                self.dma.end(sent.operation, sent.access.count, result);
                self.dma.picked.push_back(at);
            }
            at = at.saturating_add(u64::from(header.size));
        }
        self.dma.searched = at;
    }
}
