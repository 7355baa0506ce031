//! The responding side: executes what other nodes ask for on this node's memory.
//!
//! Requests wait in the master access buffer, are checked against the window table and become
//! memory operations, which the bus side carries out; those to doorbells become messages. The command mailbox, by which the guest
//! makes and removes windows, needs memory as well and takes its operations from the same names.
//!
//! Requests for other devices of the bus end only when these have answered, which may take long.
//!
//! Invariant: of each origin at most one request is under way, so that its order holds (a read that
//! nobody waits for any more changes nothing and does not count); and what was discarded never gets
//! an answer, so that no answer is taken for that of another request.

mod access_buffer;
mod command;
mod descriptor;
mod window;

pub use access_buffer::{Full, Inbound};
pub use command::{CommandStatus, Finished, MemoryView, Sharing};
use window::Windows;
pub use window::{
    Access, ExportError, GRAIN, HostedWindow, MAX_REQUEST, MAX_RUNS, MAX_WINDOWS, Rights, Window, WindowTable,
};

use super::address::{Location, Space};
use super::channel::Origin;
use super::dma;
use super::memory::{Home, MemoryFault, MemoryOperation, MemoryResult, OperationId, Segment};
use super::messages::{self, Messages};
use super::status::{Code, Direction};
use super::transaction::{Atomic, Content, RequestKind};
use access_buffer::AccessBuffer;
use bytes::Bytes;
use command::{Mailbox, Step};
use std::collections::VecDeque;

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
    Write { origin: Origin, ticket: u64, at: Location },
    /// A request that changes a number.
    Atomic { origin: Origin, ticket: u64, at: Location, atomic: Atomic },
    /// A request that reads `len` bytes.
    Read { origin: Origin, ticket: u64, at: Location, len: usize },
}

impl Purpose {
    /// Whose request it is.
    const fn origin(self) -> Option<Origin> {
        match self {
            Self::Command => None,
            Self::Write { origin, .. } | Self::Atomic { origin, .. } | Self::Read { origin, .. } => {
                Some(origin)
            }
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

impl Running {
    /// Whether later requests of `origin` have to wait for its end.
    fn holds_up(&self, origin: Origin) -> bool {
        let is_harmless = self.is_discarded && matches!(self.purpose, Purpose::Read { .. });
        self.purpose.origin() == Some(origin) && !is_harmless
    }
}

/// The master unit, with its access buffer, window table and command mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Master {
    windows: Windows,
    buffer: AccessBuffer,
    mailbox: Mailbox,
    messages: Messages,
    /// In the order of their names.
    running: VecDeque<(OperationId, Running)>,
    answers: VecDeque<Answer>,
    next: OperationId,
    /// Whether the bus takes requests for its devices now.
    is_bus_ready: bool,
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
            messages: Messages::default(),
            running: VecDeque::new(),
            answers: VecDeque::new(),
            next: OperationId(0),
            is_bus_ready: true,
            command_was_last: false,
            served_writes: 0,
            served_reads: 0,
            refused: 0,
        }
    }

    /// Makes a window for a hosted device. It stays until the process ends: neither a reset nor the guest removes it.
    ///
    /// # Errors
    /// Where it cannot be made; nothing has changed then.
    pub fn host(&mut self, window: &HostedWindow) -> Result<Location, ExportError> {
        let space = window.space;
        let offset = self.windows.get_mut(space).host(window)?;
        Ok(Location { space, offset })
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
        let of_origin = |running: &&mut Running| running.purpose.origin() == Some(origin);
        for running in self.running.iter_mut().map(|(_, running)| running).filter(of_origin) {
            running.is_discarded = true;
        }
    }

    /// The function is reset: drops the guest's windows, commands, messages, what was learnt about memory and the counters.
    ///
    /// Returns origin and ticket of the requests that were not begun and never will be, to be
    /// answered with [`Code::Flushed`]. Those under way are not answered: their outcome is unknown.
    pub fn flush(&mut self) -> Vec<(Origin, u64)> {
        self.windows.clear();
        self.mailbox.reset();
        self.messages.reset();
        for (_, running) in &mut self.running {
            running.is_discarded = true;
        }
        (self.served_writes, self.served_reads, self.refused) = (0, 0, 0);
        self.buffer.drain().map(|request| (request.origin, request.ticket)).collect()
    }

    /// The next memory operation: of the command mailbox and of the origins in turn, of each the
    /// oldest request if it `may_execute`. Requests that are refused become answers on the way.
    pub fn poll_operation(
        &mut self,
        may_execute: impl Fn(Origin, Direction) -> bool,
    ) -> Option<MemoryOperation> {
        let others_first = core::mem::take(&mut self.command_was_last);
        if others_first && let Some(operation) = self.next_request(&may_execute) {
            return Some(operation);
        }
        if let Some((step, id)) = self.mailbox.take_step() {
            self.command_was_last = true;
            let id = self.begin(Purpose::Command, id);
            return Some(match step {
                Step::Read(segments) => MemoryOperation::Read { id, home: Home::Guest, segments },
                Step::Descriptor(segment, proof) => MemoryOperation::Descriptor { id, segment, proof },
                Step::Touch(segments, write) => {
                    MemoryOperation::Touch { id, home: Home::Guest, segments, write }
                }
                Step::Write(segment, data) => {
                    MemoryOperation::Write { id, home: Home::Guest, segments: vec![segment], data }
                }
            });
        }
        if others_first { None } else { self.next_request(&may_execute) }
    }

    /// The operation of the next origin in turn.
    fn next_request(&mut self, may_execute: &impl Fn(Origin, Direction) -> bool) -> Option<MemoryOperation> {
        loop {
            let (running, windows, is_bus_ready) = (&self.running, &self.windows, self.is_bus_ready);
            let is_idle = |origin| running.iter().all(|(_, running)| !running.holds_up(origin));
            let is_taken =
                |request: &_| is_bus_ready || !matches!(resolve(windows, request), Ok((Home::Bus, _)));
            let (request, id) = self.buffer.take(|request| {
                is_idle(request.origin)
                    && may_execute(request.origin, request.kind.direction())
                    && is_taken(request)
            })?;
            if messages::is_own(request.at) {
                self.serve_itself(&request);
                continue;
            }
            match resolve(&self.windows, &request) {
                Ok((home, segments)) => return Some(self.execute(request, id, home, segments)),
                Err(code) => self.answer(request.origin, request.ticket, code, Bytes::new()),
            }
        }
    }

    /// Executes a request to the adaptor's own part of the I/O space.
    fn serve_itself(&mut self, request: &Inbound) {
        let Inbound { origin, ticket, at, kind } = request;
        match self.messages.serve(origin.node, at.offset, kind) {
            Ok(data) => {
                self.count_served(kind.direction());
                self.answer(*origin, *ticket, Code::Ok, data);
            }
            Err(code) => self.answer(*origin, *ticket, code, Bytes::new()),
        }
    }

    /// Whether the bus takes requests for its devices from now on. (It does at first.) Other requests do not wait for it, unless they
    /// come after one that does, from the same origin.
    pub const fn set_bus_ready(&mut self, is_ready: bool) {
        self.is_bus_ready = is_ready;
    }

    /// Whether an operation that was handed out may be begun now, as by [`Self::poll_operation`].
    pub fn may_begin(&self, id: OperationId, may_execute: impl Fn(Origin, Direction) -> bool) -> bool {
        let running = self.running.iter().rev().find(|&&(running, _)| running == id);
        running.is_some_and(|(_, running)| {
            let is_allowed = match running.purpose {
                Purpose::Command => true,
                Purpose::Write { origin, .. } | Purpose::Atomic { origin, .. } => {
                    may_execute(origin, Direction::Write)
                }
                Purpose::Read { origin, .. } => may_execute(origin, Direction::Read),
            };
            is_allowed && !running.is_discarded
        })
    }

    /// An operation that was handed out is not begun, because pages have to be brought in for it. It waits until
    /// [`Self::handle_pages`], is looked at afresh then and comes again, under the same name, if it is still to be executed. Meanwhile it
    /// is a request that was not begun. Returns as [`Self::handle_done`].
    pub fn put_back(&mut self, operation: MemoryOperation) -> bool {
        let id = operation.id();
        let Some(at) = self.running.iter().rposition(|&(running, _)| running == id) else { return false };
        let Some((_, Running { purpose, is_discarded })) = self.running.remove(at) else { return false };
        if !is_discarded {
            self.keep(id, purpose, operation);
        }
        self.mailbox.settle(self.running.front().map(|&(oldest, _)| oldest));
        self.mailbox.has_finished()
    }

    /// Puts an operation back to where it came from.
    fn keep(&mut self, id: OperationId, purpose: Purpose, operation: MemoryOperation) {
        let (origin, ticket, at, kind) = match (purpose, operation) {
            (Purpose::Command, operation) => return self.mailbox.put_back(id, operation),
            (Purpose::Write { origin, ticket, at }, MemoryOperation::Write { data, .. }) => {
                (origin, ticket, at, RequestKind::Write(Content::Bytes(data)))
            }
            (Purpose::Write { origin, ticket, at }, MemoryOperation::Transfer { from, .. }) => {
                (origin, ticket, at, RequestKind::Write(Content::Lent(from)))
            }
            (Purpose::Atomic { origin, ticket, at, atomic }, _) => {
                (origin, ticket, at, RequestKind::Atomic(atomic))
            }
            (Purpose::Read { origin, ticket, at, len }, _) => {
                (origin, ticket, at, RequestKind::Read { len: u32::try_from(len).unwrap_or(u32::MAX) })
            }
            // No operation of a write reads or changes a number.
            (Purpose::Write { origin, ticket, .. }, _) => {
                return self.answer(origin, ticket, Code::TargetFault, Bytes::new());
            }
        };
        self.buffer.put_back(Inbound { origin, ticket, at, kind }, id);
    }

    /// The pages that an operation waits for are there, or can't be had. Returns as [`Self::handle_done`].
    pub fn handle_pages(&mut self, id: OperationId, result: Result<(), MemoryFault>) -> bool {
        match result {
            Ok(()) => {
                self.mailbox.serve(id);
                self.buffer.serve(id);
                false
            }
            Err(fault) => {
                if let Some(Inbound { origin, ticket, .. }) = self.buffer.give_up(id) {
                    self.answer(origin, ticket, fault_code(fault), Bytes::new());
                } else if self.mailbox.give_up(id) {
                    self.mailbox.step_done(Err(fault), &mut self.windows, self.next);
                    return true;
                }
                false
            }
        }
    }

    /// A memory operation has ended. An `id` that is not known, or not any more, is ignored. Returns whether a command may have got
    /// on by that; else nothing but an answer has come of it.
    pub fn handle_done(&mut self, id: OperationId, result: MemoryResult) -> bool {
        // What was begun last mostly ends first.
        let Some(at) = self.running.iter().rposition(|&(running, _)| running == id) else { return false };
        let Some((_, running)) = self.running.remove(at) else { return false };
        let is_command = running.purpose == Purpose::Command;
        if !running.is_discarded {
            self.end(running.purpose, result);
        }
        self.mailbox.settle(self.running.front().map(|&(oldest, _)| oldest));
        is_command || self.mailbox.has_finished()
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

    /// What a command wants of the DMA engine; how that ended is to be told by [`Self::finish_order`].
    pub const fn poll_order(&mut self) -> Option<dma::Order> {
        self.mailbox.take_order()
    }

    /// How the order of [`Self::poll_order`] ended: COMMAND_RESULT, or why not.
    pub fn finish_order(&mut self, result: Result<u64, CommandStatus>) {
        self.mailbox.order_done(result);
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

    /// What the bus side knows about the guest's memory.
    pub const fn memory_view(&self) -> MemoryView {
        self.mailbox.view()
    }

    /// The messages of other nodes.
    pub const fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The messages of other nodes, to be taken or told of.
    pub const fn messages_mut(&mut self) -> &mut Messages {
        &mut self.messages
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

    fn execute(
        &mut self,
        request: Inbound,
        id: Option<OperationId>,
        home: Home,
        segments: Vec<Segment>,
    ) -> MemoryOperation {
        let Inbound { origin, ticket, at, kind } = request;
        match kind {
            RequestKind::Write(content) => {
                let id = self.begin(Purpose::Write { origin, ticket, at }, id);
                match content {
                    Content::Bytes(data) => MemoryOperation::Write { id, home, segments, data },
                    Content::Lent(from) => MemoryOperation::Transfer { id, home, segments, from },
                }
            }
            RequestKind::Read { .. } => {
                let len = segments.iter().map(|segment| segment.len).sum();
                let id = self.begin(Purpose::Read { origin, ticket, at, len }, id);
                MemoryOperation::Read { id, home, segments }
            }
            RequestKind::Atomic(atomic) => {
                let id = self.begin(Purpose::Atomic { origin, ticket, at, atomic }, id);
                let segment = segments.first().copied().unwrap_or(Segment { address: 0, len: 0 });
                MemoryOperation::Atomic { id, home, segment, action: atomic.action() }
            }
        }
    }

    /// Names a memory operation; later ones have greater names. One that was put back keeps the `former` name, but is a later one all the
    /// same: it was looked up just now.
    fn begin(&mut self, purpose: Purpose, former: Option<OperationId>) -> OperationId {
        let id = former.unwrap_or(self.next);
        if former.is_none() {
            self.next = OperationId(id.0.wrapping_add(1));
        }
        self.running.push_back((id, Running { purpose, is_discarded: false }));
        id
    }

    fn end(&mut self, purpose: Purpose, result: MemoryResult) {
        match (purpose, result) {
            (Purpose::Command, result) => self.mailbox.step_done(result, &mut self.windows, self.next),
            (Purpose::Write { origin, ticket, .. }, Ok(_)) => {
                self.count_served(Direction::Write);
                self.answer(origin, ticket, Code::Ok, Bytes::new());
            }
            (Purpose::Read { origin, ticket, len, .. }, Ok(data)) if data.len() == len => {
                self.count_served(Direction::Read);
                self.answer(origin, ticket, Code::Ok, data);
            }
            (Purpose::Atomic { origin, ticket, .. }, Ok(former)) if former.len() == Atomic::SIZE as usize => {
                self.count_served(Direction::Write);
                self.answer(origin, ticket, Code::Ok, former);
            }
            (
                Purpose::Write { origin, ticket, .. }
                | Purpose::Atomic { origin, ticket, .. }
                | Purpose::Read { origin, ticket, .. },
                result,
            ) => {
                let code = result.err().map_or(Code::TargetFault, fault_code);
                self.answer(origin, ticket, code, Bytes::new());
            }
        }
    }

    fn count_served(&mut self, direction: Direction) {
        let served = match direction {
            Direction::Write => &mut self.served_writes,
            Direction::Read => &mut self.served_reads,
        };
        *served = served.saturating_add(1);
    }

    fn answer(&mut self, origin: Origin, ticket: u64, code: Code, data: Bytes) {
        if !code.is_ok() {
            self.refused = self.refused.saturating_add(1);
        }
        self.answers.push_back(Answer { origin, ticket, code, data });
    }
}

/// How a request ends whose operation was not executed.
const fn fault_code(fault: MemoryFault) -> Code {
    match fault {
        MemoryFault::Lender => Code::LocalFault,
        MemoryFault::Partial => Code::Partial,
        MemoryFault::Busy | MemoryFault::Absent => Code::NoResources,
        MemoryFault::Unmapped
        | MemoryFault::TooManyRanges
        | MemoryFault::ReadOnly
        | MemoryFault::NotShared
        | MemoryFault::Refused => Code::TargetFault,
    }
}

/// What a request reaches, if it may.
fn resolve(windows: &Windows, request: &Inbound) -> Result<(Home, Vec<Segment>), Code> {
    let access = match &request.kind {
        RequestKind::Write(_) => Access::Write,
        RequestKind::Read { .. } => Access::Read,
        RequestKind::Atomic(_) if !request.at.offset.is_multiple_of(Atomic::SIZE.into()) => {
            return Err(Code::BadSize);
        }
        RequestKind::Atomic(_) => Access::Atomic,
    };
    let len = u64::try_from(request.kind.len()).unwrap_or(u64::MAX);
    if len > MAX_REQUEST && !matches!(request.kind, RequestKind::Write(Content::Lent(_))) {
        return Err(Code::BadSize);
    }
    let windows = windows.get(request.at.space);
    match windows.resolve(request.origin.node, access, request.at.offset, len)? {
        // What is asked of a device has no former value.
        (Home::Bus, _) if access == Access::Atomic => Err(Code::TargetFault),
        // Several accesses, of which a device might do some.
        (Home::Bus, segments) if segments.len() > 1 => Err(Code::BadSize),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests;
