//! The responding side: executes what other nodes ask for on this node's memory.
//!
//! Requests wait in the master access buffer, are checked against the window table and become
//! memory operations, which the bus side carries out. The command mailbox, by which the guest
//! makes and removes windows, needs memory as well and takes its operations from the same names.
//!
//! Invariant: of each origin at most one request is under way, so that its order holds; and what
//! was discarded never gets an answer, so that no answer is taken for that of another request.

mod access_buffer;
mod command;
mod descriptor;
mod window;

pub use access_buffer::{Full, Inbound, MAX_BYTES, MAX_REQUESTS};
pub use command::{CommandStatus, Finished, MemoryView, Sharing};
use window::Windows;
pub use window::{MAX_REQUEST, MAX_RUNS, MAX_WINDOWS, Rights, Window, WindowTable};

use super::address::Space;
use super::channel::Origin;
use super::memory::{Home, MemoryOperation, MemoryResult, OperationId, Segment};
use super::status::{Code, Direction};
use super::transaction::RequestKind;
use access_buffer::AccessBuffer;
use bytes::Bytes;
use command::{Mailbox, Step};
use std::collections::{BTreeMap, VecDeque};

/// How a request of another node ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Who asked.
    pub origin: Origin,
    /// The request's ticket.
    pub ticket: u64,
    /// Whether it was executed, or why not.
    pub code: Code,
    /// What a read that was executed has read; else empty.
    pub data: Bytes,
}

/// What a memory operation under way is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    /// The command mailbox.
    Command,
    /// A request that writes.
    Write { origin: Origin, ticket: u64 },
    /// A request that reads `len` bytes.
    Read { origin: Origin, ticket: u64, len: usize },
}

impl Purpose {
    /// Whose request it is.
    const fn origin(self) -> Option<Origin> {
        match self {
            Self::Command => None,
            Self::Write { origin, .. } | Self::Read { origin, .. } => Some(origin),
        }
    }
}

/// A memory operation under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    purpose: Purpose,
    /// Nobody waits for it any more.
    is_discarded: bool,
}

/// The master unit, with its access buffer, window table and command mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Master {
    windows: Windows,
    buffer: AccessBuffer,
    mailbox: Mailbox,
    running: BTreeMap<OperationId, Running>,
    answers: VecDeque<Answer>,
    next: OperationId,
    /// The last operation was the command mailbox's: others come first now.
    command_was_last: bool,
    served_writes: u64,
    served_reads: u64,
    refused: u64,
}

impl Master {
    /// The responding side of a node whose window of the access space has `window_size` bytes;
    /// nothing is exported yet.
    pub fn new(window_size: u64) -> Self {
        Self {
            windows: Windows::new(window_size),
            buffer: AccessBuffer::default(),
            mailbox: Mailbox::new(),
            running: BTreeMap::new(),
            answers: VecDeque::new(),
            next: OperationId(0),
            command_was_last: false,
            served_writes: 0,
            served_reads: 0,
            refused: 0,
        }
    }

    /// Takes in a request of another node.
    ///
    /// # Errors
    /// Where too much of this origin waits already; the request is dropped then.
    pub fn push(&mut self, request: Inbound) -> Result<(), Full> {
        self.buffer.push(request)
    }

    /// The session or epoch of an origin is over: what it asked for and was not begun is never executed,
    /// and nothing it asked for before is answered any more. A request under way still holds up the
    /// ones that follow until it has ended.
    pub fn discard(&mut self, origin: Origin) {
        self.buffer.discard(origin);
        self.answers.retain(|answer| answer.origin != origin);
        for running in self.running.values_mut().filter(|running| running.purpose.origin() == Some(origin)) {
            running.is_discarded = true;
        }
    }

    /// The device is reset: drops windows, commands, what was learnt about memory and the counters.
    ///
    /// Returns origin and ticket of the requests that were not begun and never will be, to be
    /// answered with [`Code::Flushed`]. Those under way are not answered: their outcome is unknown.
    pub fn flush(&mut self) -> Vec<(Origin, u64)> {
        self.windows.clear();
        self.mailbox.reset();
        for running in self.running.values_mut() {
            running.is_discarded = true;
        }
        (self.served_writes, self.served_reads, self.refused) = (0, 0, 0);
        self.buffer.drain().map(|request| (request.origin, request.ticket)).collect()
    }

    /// The next memory operation: of the command mailbox and of the origins in turn, of each the
    /// oldest request if it `may_execute`. Requests that are refused become answers on the way.
    pub fn poll_operation(
        &mut self,
        may_execute: impl Fn(Origin, &RequestKind) -> bool,
    ) -> Option<MemoryOperation> {
        let others_first = core::mem::take(&mut self.command_was_last);
        if others_first && let Some(operation) = self.next_request(&may_execute) {
            return Some(operation);
        }
        if let Some(step) = self.mailbox.take_step() {
            self.command_was_last = true;
            let id = self.begin(Purpose::Command);
            return Some(match step {
                Step::Read(segments) => MemoryOperation::Read { id, home: Home::Guest, segments },
                Step::Write(segment, data) => {
                    MemoryOperation::Write { id, home: Home::Guest, segments: vec![segment], data }
                }
            });
        }
        if others_first { None } else { self.next_request(&may_execute) }
    }

    /// The operation of the next origin in turn.
    fn next_request(
        &mut self,
        may_execute: &impl Fn(Origin, &RequestKind) -> bool,
    ) -> Option<MemoryOperation> {
        loop {
            let running = &self.running;
            let is_idle = |origin| running.values().all(|running| running.purpose.origin() != Some(origin));
            let request = self
                .buffer
                .take(|request| is_idle(request.origin) && may_execute(request.origin, &request.kind))?;
            match self.resolve(&request) {
                Ok((home, segments)) => return Some(self.execute(request, home, segments)),
                Err(code) => self.answer(request.origin, request.ticket, code, Bytes::new()),
            }
        }
    }

    /// A memory operation has ended. An `id` that is not known, or not any more, is ignored.
    pub fn handle_done(&mut self, id: OperationId, result: MemoryResult) {
        let Some(running) = self.running.remove(&id) else { return };
        if !running.is_discarded {
            self.end(running.purpose, result);
        }
        self.mailbox.settle(self.running.keys().next().copied());
    }

    /// The next answer to another node.
    pub fn poll_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// The guest wrote `opcode` to COMMAND, with these values in COMMAND_ADDRESS and COMMAND_COOKIE.
    /// Ignored while another command is under way.
    pub fn start_command(&mut self, opcode: u32, address: u64, cookie: u32) {
        self.mailbox.start(opcode, address, cookie);
    }

    /// Whether a command has ended since the last call, and how.
    pub fn poll_finished(&mut self) -> Option<Finished> {
        self.mailbox.take_finished()
    }

    /// What COMMAND_STATUS reads.
    pub fn command_status(&self) -> CommandStatus {
        self.mailbox.last().status
    }

    /// What COMMAND_RESULT reads.
    pub fn command_result(&self) -> u64 {
        self.mailbox.last().result
    }

    /// What the bus side knows by itself about the guest's memory. It outlives a reset.
    pub fn set_memory_view(&mut self, view: MemoryView) {
        self.mailbox.set_view(view);
    }

    /// Whether adaptor and guest see the same memory, as far as it is known.
    pub fn sharing(&self) -> Sharing {
        self.mailbox.sharing()
    }

    /// The windows of a space that are exported.
    pub const fn windows(&self, space: Space) -> &WindowTable {
        self.windows.get(space)
    }

    /// Differs after each change of a window.
    pub const fn windows_version(&self) -> u32 {
        self.windows.version()
    }

    /// How many requests of other nodes wait and were not begun.
    pub fn waiting(&self) -> usize {
        self.buffer.len()
    }

    /// Whether no memory operation is under way: nothing that was flushed or discarded can reach
    /// memory any more.
    pub fn is_quiet(&self) -> bool {
        self.running.is_empty()
    }

    /// Write transactions of other nodes executed since the reset.
    pub const fn served_writes(&self) -> u64 {
        self.served_writes
    }

    /// Read transactions of other nodes executed since the reset.
    pub const fn served_reads(&self) -> u64 {
        self.served_reads
    }

    /// Transactions of other nodes that were answered with an error since the reset.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    fn resolve(&self, request: &Inbound) -> Result<(Home, Vec<Segment>), Code> {
        let (direction, len) = match &request.kind {
            RequestKind::Write(data) => (Direction::Write, u64::try_from(data.len()).unwrap_or(u64::MAX)),
            RequestKind::Read { len } => (Direction::Read, u64::from(*len)),
        };
        let windows = self.windows.get(request.at.space);
        let resolved = windows.resolve(request.origin.node, direction, request.at.offset, len)?;
        // Reading ahead must have no effect, and on a bus any load may have one.
        if resolved.0 == Home::Bus && request.kind.is_read_ahead(request.origin.channel) {
            return Err(Code::BadSize);
        }
        Ok(resolved)
    }

    fn execute(&mut self, request: Inbound, home: Home, segments: Vec<Segment>) -> MemoryOperation {
        let Inbound { origin, ticket, kind, .. } = request;
        match kind {
            RequestKind::Write(data) => {
                let id = self.begin(Purpose::Write { origin, ticket });
                MemoryOperation::Write { id, home, segments, data }
            }
            RequestKind::Read { .. } => {
                let len = segments.iter().map(|segment| segment.len).sum();
                let id = self.begin(Purpose::Read { origin, ticket, len });
                MemoryOperation::Read { id, home, segments }
            }
        }
    }

    /// Names a memory operation; later ones have greater names.
    fn begin(&mut self, purpose: Purpose) -> OperationId {
        let id = self.next;
        self.next = OperationId(id.0.wrapping_add(1));
        self.running.insert(id, Running { purpose, is_discarded: false });
        id
    }

    fn end(&mut self, purpose: Purpose, result: MemoryResult) {
        match (purpose, result) {
            (Purpose::Command, result) => self.mailbox.step_done(result, &mut self.windows, self.next),
            (Purpose::Write { origin, ticket }, Ok(_)) => {
                self.served_writes = self.served_writes.saturating_add(1);
                self.answer(origin, ticket, Code::Ok, Bytes::new());
            }
            (Purpose::Read { origin, ticket, len }, Ok(data)) if data.len() == len => {
                self.served_reads = self.served_reads.saturating_add(1);
                self.answer(origin, ticket, Code::Ok, data);
            }
            (Purpose::Write { origin, ticket } | Purpose::Read { origin, ticket, .. }, _) => {
                self.answer(origin, ticket, Code::TargetFault, Bytes::new());
            }
        }
    }

    fn answer(&mut self, origin: Origin, ticket: u64, code: Code, data: Bytes) {
        if !code.is_ok() {
            self.refused = self.refused.saturating_add(1);
        }
        self.answers.push_back(Answer { origin, ticket, code, data });
    }
}

#[cfg(test)]
mod tests;
