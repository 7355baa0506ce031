//! Operations become transactions: pieces are cut, and their local memory is looked up.
//!
//! Invariant: the pieces of a queue are given to the mesh in the order in which they were cut; what has no piece under way holds
//! no memory.

use bytes::Bytes;

use super::entry::{ATOMIC_SIZE, Action, Local, Submission};
use super::keys::{Key, LocalRights};
use super::list::Next;
use super::operation::{MAX_PIECE, Piece};
use super::queue::Number;
use super::transfers::{Held, Kind, Transfer};
use super::{Engine, Purpose};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, Place};
use crate::adaptor::memory::{Home, MemoryOperation, MemoryResult, OperationId, Segment, Source};
use crate::adaptor::messages::DOORBELL_SIZE;
use crate::adaptor::status::Code;
use crate::adaptor::transaction::{Atomic, Payload, Request, RequestKind};

/// The most pieces of a queue that are cut in one turn.
const PIECES_A_TURN: usize = 128;

/// Memory operations of a queue that may be under way when it begins to land more: all whose pages are there end at once. Those that
/// wait for pages take room that the queues of a guest share.
const MOST_RUNNING: u32 = 8;

/// What came of looking at the operation that is handed out.
enum Cut {
    /// A piece of so many bytes is on its way.
    Sent(u64),
    /// Nothing is to be sent of it now.
    Next,
    /// Nothing can be sent now.
    Stop,
    /// These bytes of its list have to be read before: key, first byte and length.
    ReadList(Key, u64, u64),
}

/// The data of a piece on this side.
enum Found {
    /// None.
    Nothing,
    /// In the entry.
    Here(Bytes),
    /// In local memory.
    Memory(Vec<Segment>),
}

impl Engine {
    /// Cuts the pieces of the queue's turn; reads the scatter list where one is needed. Adds to `work` what was looked at.
    pub(super) fn serve(
        &mut self,
        now: Instant,
        number: Number,
        work: &mut usize,
    ) -> Option<MemoryOperation> {
        let mut bytes = 0u64;
        let mut list = None;
        for _ in 0..PIECES_A_TURN {
            *work = work.saturating_add(1);
            match self.cut(now, number) {
                Cut::Sent(len) => bytes = bytes.saturating_add(len),
                Cut::Next => {}
                Cut::Stop => break,
                Cut::ReadList(key, offset, len) => {
                    list = Some((key, offset, len));
                    break;
                }
            }
            if bytes >= MAX_PIECE {
                break;
            }
        }
        self.harvest(number);
        if bytes > 0 {
            self.list(number);
        }
        list.and_then(|(key, offset, len)| self.read_list(number, key, offset, len))
    }

    /// Cuts the next piece of the operation at the cursor.
    fn cut(&mut self, now: Instant, number: Number) -> Cut {
        let Some(queue) = self.queue(number) else { return Cut::Stop };
        let cursor = queue.cursor;
        if queue.resumes() {
            if cursor > 0 {
                return Cut::Stop;
            }
            queue.go_on();
        }
        let has_failed = queue.has_failed;
        let Some(operation) = queue.operations.get_mut(cursor) else { return Cut::Stop };
        if has_failed {
            if operation.piece() != Piece::Nothing || !operation.is_started() {
                queue.flush();
            }
        } else if operation.has_failed() && !operation.is_started() {
            // Malformed.
            queue.fail();
        } else if operation.submission.is_ok_and(|s| s.fence || s.action == Action::Fence)
            && !operation.is_started()
            && cursor > 0
        {
            return Cut::Stop;
        }
        let Some(operation) = queue.operations.get(cursor) else { return Cut::Stop };
        let mut piece = operation.piece();
        let submission = match (piece, operation.submission) {
            (Piece::Later, _) => return Cut::Stop,
            (Piece::Nothing, _) | (_, Err(_)) => {
                queue.advance();
                return Cut::Next;
            }
            (Piece::Data { .. } | Piece::Atomic | Piece::Message, Ok(submission)) => submission,
        };
        if let (Piece::Data { at, len }, Local::List(key, offset, count)) = (piece, submission.local) {
            match queue.list.next(count) {
                Next::Use(left) => piece = Piece::Data { at, len: len.min(left) },
                Next::Read(begin, len) => return Cut::ReadList(key, offset.saturating_add(begin), len),
                Next::Wait => return Cut::Stop,
                // A list that adds up has entries for every byte.
                Next::End => {
                    let index = queue.cursor_index();
                    self.refuse(number, index, Code::BadRequest);
                    return Cut::Next;
                }
            }
        }
        let len = match piece {
            Piece::Data { len, .. } => len,
            _ => ATOMIC_SIZE,
        };
        // A queue that has enough under way goes on when some of it ends.
        if !queue.may_send(len) {
            return Cut::Stop;
        }
        let mut waits = queue.waits;
        let has_room = self.ways.take(now, submission.node, len, number, &mut waits);
        if let Some(queue) = self.queue(number) {
            queue.waits = waits;
        }
        if !has_room {
            return Cut::Stop;
        }
        self.hand_out(now, number, &submission, piece, len)
    }

    /// Sends a piece, for which there is room.
    fn hand_out(
        &mut self,
        now: Instant,
        number: Number,
        submission: &Submission,
        piece: Piece,
        len: u64,
    ) -> Cut {
        let mut held = Held::Nothing;
        let found = self.locate(number, submission, piece, &mut held);
        let Some(queue) = self.queue(number) else { return Cut::Stop };
        let index = queue.cursor_index();
        queue.requests = queue.requests.saturating_add(1);
        queue.bytes = queue.bytes.saturating_add(len);
        if let Some(operation) = queue.operation(index) {
            operation.hand_out(piece);
        }
        let (at, location) = match (piece, submission.action) {
            (Piece::Data { at, .. }, _) => (at, Location::memory(submission.remote.saturating_add(at))),
            (Piece::Message, Action::Message { doorbell, .. }) => {
                (submission.len, Location::io(u64::from(doorbell).saturating_mul(DOORBELL_SIZE)))
            }
            _ => (0, Location::memory(submission.remote)),
        };
        let place = Place { node: submission.node, at: location };
        let is_there = found.is_some();
        let (kind, request) = match (submission.action, found.unwrap_or(Found::Nothing)) {
            (Action::Read, found) => {
                let landing = if let Found::Memory(segments) = found { segments } else { Vec::new() };
                (Kind::Read(landing), RequestKind::Read { len: u32::try_from(len).unwrap_or(u32::MAX) })
            }
            (Action::FetchAdd(value), _) => (Kind::Atomic, RequestKind::Atomic(Atomic::Add(value))),
            (Action::CompareSwap { compare, swap }, _) => {
                (Kind::Atomic, RequestKind::Atomic(Atomic::CompareSwap { compare, swap }))
            }
            (_, found) => (Kind::Write, RequestKind::Write(payload(found, len))),
        };
        let sent = is_there.then_some(now);
        let transfer = Transfer { queue: number, operation: index, at, place, bytes: len, kind, held, sent };
        let id = self.transfers.insert(transfer);
        if !is_there {
            // Nothing is sent of what is not there.
            self.end_transfer(now, id, Code::BadKey, 0);
            return Cut::Next;
        }
        self.requests.push_back(Request { id, place, kind: request, posted: now });
        Cut::Sent(len)
    }

    /// Where the data of a piece is on this side; `None` where the queue's domain has no such memory.
    fn locate(
        &mut self,
        number: Number,
        submission: &Submission,
        piece: Piece,
        held: &mut Held,
    ) -> Option<Found> {
        let Piece::Data { at, len } = piece else {
            return Some(match submission.action {
                Action::Message { data, .. } => Found::Here(Bytes::copy_from_slice(&data.to_le_bytes())),
                _ => Found::Nothing,
            });
        };
        let needed = if submission.action == Action::Read { LocalRights::WRITE } else { LocalRights::READ };
        let queue = self.queues.get_mut(usize::try_from(number).ok()?)?.as_deref_mut()?;
        let domain = queue.shape.domain;
        let mut segments = Vec::with_capacity(1);
        match submission.local {
            Local::None => return None,
            Local::Inline(data) => {
                let data = data.get(..usize::try_from(len).ok()?)?;
                return Some(Found::Here(Bytes::copy_from_slice(data)));
            }
            Local::Memory(key, offset) => {
                let range = (offset.checked_add(at)?, len);
                self.keys.hold(domain, key, needed, range, &mut segments)?;
                held.add(key);
            }
            Local::List(..) => {
                let mut left = len;
                while left > 0 {
                    let (key, offset, count) = queue.list.use_some(left)?;
                    self.keys.hold(domain, key, needed, (offset, count), &mut segments)?;
                    held.add(key);
                    left = left.saturating_sub(count);
                }
            }
        }
        Some(Found::Memory(segments))
    }

    /// Puts into local memory what a transaction has read elsewhere. Where pages are missing, some at a time.
    pub(super) fn land(&mut self, number: Number) -> Option<MemoryOperation> {
        if self.queue(number)?.running >= MOST_RUNNING {
            return None;
        }
        loop {
            let (id, data) = self.queue(number)?.landings.pop_front()?;
            if let Some(Transfer { kind: Kind::Read(segments), .. }) = self.transfers.get_mut(id) {
                let segments = core::mem::take(segments);
                let id = self.begin(number, Purpose::Land(id));
                return Some(landing(id, segments, data));
            }
        }
    }

    fn read_list(&mut self, number: Number, key: Key, offset: u64, len: u64) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        let (domain, index) = (queue.shape.domain, queue.cursor_index());
        let mut segments = Vec::new();
        let found = self.keys.hold(domain, key, LocalRights::READ, (offset, len), &mut segments);
        let Some(()) = found else {
            self.refuse(number, index, Code::BadKey);
            return None;
        };
        self.queue(number)?.list.begin();
        let id = self.begin(number, Purpose::List(key, index));
        Some(MemoryOperation::Read { id, home: Home::Guest, segments })
    }

    /// A slice of the list of the operation with this index was read.
    pub(super) fn list_was_read(&mut self, number: Number, key: Key, index: u32, result: MemoryResult) {
        self.keys.release(key);
        let Some(queue) = self.queue(number) else { return };
        // The operation may have ended meanwhile.
        if queue.cursor_index() != index || !queue.list.is_reading() {
            return;
        }
        let submission = queue.operation(index).and_then(|operation| operation.submission.ok());
        let Some(Submission { len, local: Local::List(_, _, count), .. }) = submission else { return };
        match result {
            Ok(slice) if queue.list.take(&slice, count, len) => {}
            Ok(_) => self.refuse(number, index, Code::BadRequest),
            Err(_) => self.refuse(number, index, Code::LocalFault),
        }
    }

    /// An operation ends before what is next of it is sent.
    fn refuse(&mut self, number: Number, index: u32, code: Code) {
        let Some(queue) = self.queue(number) else { return };
        if let Some(operation) = queue.operation(index) {
            operation.fail(code);
        }
        queue.fail();
        queue.advance();
        self.harvest(number);
        self.list(number);
    }
}

/// What a transaction carries to its destination.
fn payload(found: Found, len: u64) -> Payload {
    match found {
        Found::Nothing => Payload::Bytes(Bytes::new()),
        Found::Here(data) => Payload::Bytes(data),
        Found::Memory(segments) => {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            Payload::Memory(Source { home: Home::Guest, segments, len })
        }
    }
}

/// What puts into local memory what a transaction has read.
fn landing(id: OperationId, segments: Vec<Segment>, data: Bytes) -> MemoryOperation {
    MemoryOperation::Write { id, home: Home::Guest, segments, data }
}
