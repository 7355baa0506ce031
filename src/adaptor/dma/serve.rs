//! Operations become transactions: pieces are cut, their local memory is looked up, and what they write is read.
//!
//! Invariant: the pieces of a queue are given to the mesh in the order in which they were cut; what has no piece under way holds
//! no memory.

use bytes::Bytes;

use super::entry::{ATOMIC_SIZE, Action, LIST_ENTRY_SIZE, Local, Submission, parse_list};
use super::keys::{Key, LocalRights};
use super::operation::{MAX_PIECE, Piece};
use super::queue::{List, Number, Part, Queue, Source};
use super::transfers::{Held, Kind, Transfer};
use super::{Engine, Purpose};
use crate::adaptor::Instant;
use crate::adaptor::address::{Location, Place};
use crate::adaptor::memory::{Home, MemoryOperation, MemoryResult, Segment};
use crate::adaptor::messages::DOORBELL_SIZE;
use crate::adaptor::status::Code;
use crate::adaptor::transaction::{Atomic, Request, RequestKind, TransactionId};

/// The most pieces of a queue that are cut in one turn.
const PIECES_A_TURN: usize = 128;

/// Whether an operation can go on.
enum Cut {
    /// A piece was cut.
    Part(Part, u64),
    /// The operation is over, or needs another look.
    Next,
    /// Not now.
    Stop,
    /// Its list has to be read before.
    ReadList(Key, u64, u32),
}

impl Engine {
    /// Cuts the pieces of the queue's turn, and reads what they write.
    pub(super) fn gather(&mut self, now: Instant, number: Number) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        if !queue.gathering.is_empty() {
            return None;
        }
        if let Some(part) = queue.single.pop_front() {
            return self.gather_single(now, number, part);
        }
        let (mut bytes, mut list) = (0u64, None);
        while bytes < MAX_PIECE && self.queue(number)?.gathering.len() < PIECES_A_TURN {
            match self.cut(number) {
                Cut::Part(part, len) => {
                    bytes = bytes.saturating_add(len);
                    self.queue(number)?.gathering.push_back(part);
                }
                Cut::Next => {}
                Cut::Stop => break,
                Cut::ReadList(key, offset, count) => {
                    list = Some((key, offset, count));
                    break;
                }
            }
        }
        self.queue(number)?.harvest();
        let operation = self.read_parts(now, number);
        match list {
            Some((key, offset, count)) if operation.is_none() => self.read_list(number, key, offset, count),
            _ => {
                if bytes > 0 || operation.is_some() {
                    self.list(number);
                }
                operation
            }
        }
    }

    /// Cuts the next piece of the operation at the cursor.
    fn cut(&mut self, number: Number) -> Cut {
        let Some(queue) = self.queue(number) else { return Cut::Stop };
        let (cursor, has_failed) = (queue.cursor, queue.has_failed);
        let Some(operation) = queue.operations.get_mut(cursor) else { return Cut::Stop };
        if has_failed {
            if operation.piece() != Piece::Nothing || !operation.is_started() {
                operation.fail(Queue::FLUSHED);
            }
        } else if operation.has_failed() && !operation.is_started() {
            // Malformed.
            queue.fail();
            queue.advance();
            return Cut::Next;
        } else if operation.submission.is_ok_and(|s| s.fence || s.action == Action::Fence)
            && !operation.is_started()
            && cursor > 0
        {
            return Cut::Stop;
        }
        let piece = operation.piece();
        let submission = match (piece, operation.submission) {
            (Piece::Later, _) => return Cut::Stop,
            (Piece::Nothing, _) | (_, Err(_)) => {
                queue.advance();
                return Cut::Next;
            }
            (Piece::Data { .. } | Piece::Atomic | Piece::Message, Ok(submission)) => submission,
        };
        if let Local::List(key, offset, count) = submission.local {
            match queue.list {
                List::Unread if count > 0 => return Cut::ReadList(key, offset, count),
                List::Reading => return Cut::Stop,
                List::Unread | List::Read(_) => {}
            }
        }
        let len = match piece {
            Piece::Data { len, .. } => len,
            _ => ATOMIC_SIZE,
        };
        // A queue that has enough under way goes on when some of it ends.
        if !queue.may_send(len) || !self.ways.take(submission.node, len, number) {
            return Cut::Stop;
        }
        self.hand_out(number, &submission, piece, len)
    }

    /// Notes a piece, for which there is room, as under way.
    fn hand_out(&mut self, number: Number, submission: &Submission, piece: Piece, len: u64) -> Cut {
        let mut held = Held::Nothing;
        let found = self.locate(number, submission, piece, &mut held);
        let Some(queue) = self.queue(number) else { return Cut::Stop };
        let operation = queue.cursor_index();
        queue.requests = queue.requests.saturating_add(1);
        queue.bytes = queue.bytes.saturating_add(len);
        if let Some(operation) = queue.operation(operation) {
            operation.hand_out(piece);
        }
        let offset = submission.remote;
        let at = match (piece, submission.action) {
            (Piece::Data { at, .. }, _) => Location::memory(offset.saturating_add(at)),
            (Piece::Message, Action::Message { doorbell, .. }) => {
                Location::io(u64::from(doorbell).saturating_mul(DOORBELL_SIZE))
            }
            _ => Location::memory(offset),
        };
        let (kind, source) = match (submission.action, found.clone().unwrap_or(Source::None)) {
            (Action::Read, Source::Memory(segments)) => (Kind::Read(segments), Source::None),
            (Action::FetchAdd(_) | Action::CompareSwap { .. }, source) => (Kind::Atomic, source),
            (_, source) => (Kind::Write, source),
        };
        let place = Place { node: submission.node, at };
        let id = self.transfers.insert(Transfer {
            queue: number,
            operation,
            place,
            bytes: len,
            kind,
            held,
            sent: None,
        });
        if found.is_none() {
            // Nothing is sent of what is not there.
            self.end_transfer(Instant::ZERO, id, Code::BadKey, 0);
            return Cut::Next;
        }
        Cut::Part(Part { id, source }, len)
    }

    /// Where the data of a piece is on this side; `None` where the queue's domain has no such memory.
    fn locate(
        &mut self,
        number: Number,
        submission: &Submission,
        piece: Piece,
        held: &mut Held,
    ) -> Option<Source> {
        let Piece::Data { at, len } = piece else {
            return Some(match submission.action {
                Action::Message { data, .. } => Source::Here(Bytes::copy_from_slice(&data.to_le_bytes())),
                _ => Source::None,
            });
        };
        let needed = if submission.action == Action::Read { LocalRights::WRITE } else { LocalRights::READ };
        let queue = self.queues.get_mut(usize::try_from(number).ok()?)?.as_deref_mut()?;
        let domain = queue.shape.domain;
        let mut segments = Vec::new();
        match submission.local {
            Local::None => return None,
            Local::Inline(data) => {
                let data = data.get(..usize::try_from(len).ok()?)?;
                return Some(Source::Here(Bytes::copy_from_slice(data)));
            }
            Local::Memory(key, offset) => {
                let range = (offset.checked_add(at)?, len);
                self.keys.hold(domain, key, needed, range, &mut segments)?;
                held.add(key);
            }
            Local::List(..) => {
                let List::Read(entries) = &mut queue.list else { return None };
                let mut left = len;
                while left > 0 {
                    let entry = entries.front_mut()?;
                    let count = entry.len.min(left);
                    let range = (entry.offset, count);
                    self.keys.hold(domain, entry.key, needed, range, &mut segments)?;
                    held.add(entry.key);
                    entry.offset = entry.offset.checked_add(count)?;
                    entry.len = entry.len.saturating_sub(count);
                    left = left.saturating_sub(count);
                    if entry.len == 0 {
                        entries.pop_front();
                    }
                }
            }
        }
        Some(Source::Memory(segments))
    }

    /// Reads what the parts at hand write, all at once; those that need nothing read are sent.
    fn read_parts(&mut self, now: Instant, number: Number) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        let mut segments = Vec::new();
        for part in &queue.gathering {
            if let Source::Memory(of_part) = &part.source {
                segments.extend_from_slice(of_part);
            }
        }
        if segments.is_empty() {
            self.send_parts(now, number, Bytes::new());
            return None;
        }
        let id = self.begin(number, Purpose::Gather);
        Some(MemoryOperation::Read { id, home: Home::Guest, segments })
    }

    /// Reads what one part writes, after it could not be read together with others.
    fn gather_single(&mut self, now: Instant, number: Number, part: Part) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        if queue.has_failed {
            self.end_transfer(now, part.id, Queue::FLUSHED, 0);
            self.list(number);
            return None;
        }
        queue.gathering.push_back(part);
        self.list(number);
        self.read_parts(now, number)
    }

    /// What the parts write was read, or could not be.
    pub(super) fn gathered(&mut self, now: Instant, number: Number, result: MemoryResult) {
        let Some(queue) = self.queue(number) else { return };
        match result {
            _ if queue.is_closing => {
                let parts = core::mem::take(&mut queue.gathering);
                parts.into_iter().for_each(|part| self.end_transfer(now, part.id, Queue::FLUSHED, 0));
            }
            Ok(data) => self.send_parts(now, number, data),
            Err(_) if queue.gathering.len() > 1 => {
                let mut parts = core::mem::take(&mut queue.gathering);
                parts.append(&mut queue.single);
                queue.single = parts;
            }
            Err(_) => {
                if let Some(part) = queue.gathering.pop_front() {
                    self.end_transfer(now, part.id, Code::BadKey, 0);
                }
            }
        }
    }

    /// Gives the parts to the mesh, in their order, with what was read for them.
    fn send_parts(&mut self, now: Instant, number: Number, mut data: Bytes) {
        let Some(queue) = self.queue(number) else { return };
        for part in core::mem::take(&mut queue.gathering) {
            let payload = payload(part.source, &mut data);
            self.send(now, part.id, payload);
        }
    }

    fn send(&mut self, now: Instant, id: TransactionId, payload: Bytes) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.sent = Some(now);
        let (number, index, place) = (transfer.queue, transfer.operation, transfer.place);
        let bytes = u32::try_from(transfer.bytes).unwrap_or(u32::MAX);
        let kind = match transfer.kind {
            Kind::Write => RequestKind::Write(payload),
            Kind::Read(_) => RequestKind::Read { len: bytes },
            Kind::Atomic => {
                let operation = self.queue(number).and_then(|queue| queue.operation(index));
                match operation.and_then(|operation| operation.submission.ok()).map(|s| s.action) {
                    Some(Action::FetchAdd(value)) => RequestKind::Atomic(Atomic::Add(value)),
                    Some(Action::CompareSwap { compare, swap }) => {
                        RequestKind::Atomic(Atomic::CompareSwap { compare, swap })
                    }
                    _ => return,
                }
            }
        };
        self.requests.push_back(Request { id, place, kind, posted: now });
    }

    /// Puts into local memory what a transaction has read elsewhere.
    pub(super) fn land(&mut self, now: Instant, number: Number) -> Option<MemoryOperation> {
        loop {
            let (id, data) = self.queue(number)?.landings.pop_front()?;
            let Some(Transfer { kind: Kind::Read(segments), .. }) = self.transfers.get_mut(id) else {
                continue;
            };
            let segments = core::mem::take(segments);
            if data.is_empty() {
                self.end_transfer(now, id, Code::Ok, 0);
                continue;
            }
            let id = self.begin(number, Purpose::Land(id));
            return Some(landing(id, segments, data));
        }
    }

    fn read_list(&mut self, number: Number, key: Key, offset: u64, count: u32) -> Option<MemoryOperation> {
        let queue = self.queue(number)?;
        let (domain, index) = (queue.shape.domain, queue.cursor_index());
        let len = u64::from(count).saturating_mul(LIST_ENTRY_SIZE);
        let mut segments = Vec::new();
        let found = self.keys.hold(domain, key, LocalRights::READ, (offset, len), &mut segments);
        let Some(()) = found else {
            self.refuse(number, index, Code::BadKey);
            return None;
        };
        self.queue(number)?.list = List::Reading;
        let id = self.begin(number, Purpose::List);
        Some(MemoryOperation::Read { id, home: Home::Guest, segments })
    }

    pub(super) fn list_was_read(&mut self, number: Number, result: MemoryResult) {
        let Some(queue) = self.queue(number) else { return };
        let index = queue.cursor_index();
        let submission = queue.operation(index).and_then(|operation| operation.submission.ok());
        let Some(Submission { local: Local::List(key, ..), len, .. }) = submission else { return };
        self.keys.release(key);
        let list = match result {
            Ok(data) => parse_list(&data, len).ok_or(Code::BadRequest),
            Err(_) => Err(Code::BadKey),
        };
        match (list, self.queue(number)) {
            (Ok(entries), Some(queue)) => queue.list = List::Read(entries.into()),
            (Err(code), _) => self.refuse(number, index, code),
            (Ok(_), None) => {}
        }
    }

    /// An operation ends before anything of it was sent.
    fn refuse(&mut self, number: Number, index: u32, code: Code) {
        let Some(queue) = self.queue(number) else { return };
        if let Some(operation) = queue.operation(index) {
            operation.fail(code);
        }
        queue.fail();
        queue.advance();
        queue.harvest();
        self.list(number);
    }
}

/// What a transaction writes. `read` is what was read for it and those after it; its own part is taken off.
fn payload(source: Source, read: &mut Bytes) -> Bytes {
    match source {
        Source::None => Bytes::new(),
        Source::Here(data) => data,
        Source::Memory(segments) => {
            let len = segments.iter().fold(0, |sum: usize, segment| sum.saturating_add(segment.len));
            read.split_to(len.min(read.len()))
        }
    }
}

/// Puts what a transaction has read into local memory.
fn landing(id: crate::adaptor::memory::OperationId, segments: Vec<Segment>, data: Bytes) -> MemoryOperation {
    MemoryOperation::Write { id, home: Home::Guest, segments, data }
}
