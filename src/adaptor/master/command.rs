//! The command mailbox: takes a descriptor out of guest memory, step by step, and acts on it.
//!
//! Invariant: at most one memory operation is under way, each step is about a page of the list at most, and a command takes a
//! bounded number of them: one for the descriptor, two for each list page, and a page is read only while runs are
//! missing, so that a list that bites its tail ends too. Nothing changes before all is validated.

use super::access_buffer::Fault;
use super::descriptor::{DESCRIPTOR_MAGIC, DESCRIPTOR_SIZE, Descriptor, LIST_PAGE_SIZE, Listing, Purpose};
use super::window::{ExportError, Windows};
use crate::adaptor::dma;
use crate::adaptor::memory::{MemoryFault, MemoryOperation, MemoryResult, OperationId, Segment};
use bytes::Bytes;

/// Where in its descriptor PROBE writes its answer.
const PROBE_ANSWER: u64 = 0x78;

/// What COMMAND_STATUS reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CommandStatus {
    /// Done.
    Ok = 0,
    /// Not done yet.
    Busy = 1,
    /// No such command.
    BadOpcode = 2,
    /// Misaligned, or its opcode or a field that has to be 0 is wrong.
    BadDescriptor = 3,
    /// What stands in memory is not what the driver wrote: the guest's memory is not shared.
    NotShared = 4,
    /// Descriptor, list or a run is not in memory that the adaptor can reach.
    MemoryFault = 5,
    /// Offset, length, rights or the run list are not as specified.
    BadArgument = 6,
    /// The window overlaps another, or no gap is large enough.
    NoSpace = 7,
    /// More windows, runs, keys, queues or mapped ranges than the adaptor holds.
    TooMany = 8,
    /// No window begins at this offset, or there is no such key or queue.
    NotFound = 9,
    /// A queue has its rings in that memory.
    InUse = 10,
}

impl From<ExportError> for CommandStatus {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::BadArgument => Self::BadArgument,
            ExportError::NoSpace => Self::NoSpace,
            ExportError::TooMany => Self::TooMany,
        }
    }
}

/// What the bus side knows by itself about the guest's memory, all of it as it is mapped now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemoryView {
    /// Nothing stands against its being shared with the adaptor.
    #[default]
    Unknown,
    /// Some of it is not shared, or is not known to be.
    Partly,
    /// It is surely not shared.
    Private,
}

/// Whether adaptor and guest see the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Nothing has shown it yet.
    #[default]
    Unknown,
    /// A PROBE has succeeded.
    Shared,
    /// They do not, as far as the last command's descriptor lay in it, or in all that is mapped.
    NotShared,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Finished {
    /// What COMMAND_STATUS reads from now on.
    pub status: CommandStatus,
    /// What COMMAND_RESULT reads from now on; 0 unless the command succeeded.
    pub result: u64,
}

/// A memory operation that the mailbox needs, still without a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Read(Vec<Segment>),
    /// Read a descriptor that begins with this number.
    Descriptor(Segment, u64),
    /// Whether they can be read, or written.
    Touch(Vec<Segment>, bool),
    Write(Segment, Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Opcode {
    Export,
    Unexport,
    Probe,
    Register,
    Deregister,
    CreateQueue,
    DestroyQueue,
}

impl Opcode {
    const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            1 => Some(Self::Export),
            2 => Some(Self::Unexport),
            3 => Some(Self::Probe),
            4 => Some(Self::Register),
            5 => Some(Self::Deregister),
            6 => Some(Self::CreateQueue),
            7 => Some(Self::DestroyQueue),
            _ => None,
        }
    }

    const fn is_for_engine(self) -> bool {
        !matches!(self, Self::Export | Self::Unexport | Self::Probe)
    }
}

/// What the registers said when the command was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Order {
    opcode: Opcode,
    bits: u32,
    address: u64,
    cookie: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    Descriptor(Order),
    List(Listing),
    /// The last page's runs are being touched, to see whether they can be reached.
    Touch(Listing),
    Probe,
    /// A window was removed; operations named before this one may still go to its memory.
    Drain(OperationId),
    /// The DMA engine has the order, or is to get it.
    Engine,
}

/// The command mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mailbox {
    state: State,
    step: Option<Step>,
    /// The operation that the step was, where it was put back.
    fault: Option<Fault>,
    order: Option<dma::Order>,
    last: Finished,
    finished: Option<Finished>,
    view: MemoryView,
    proven: Sharing,
}

impl Mailbox {
    pub(super) const fn new() -> Self {
        Self {
            state: State::Idle,
            step: None,
            fault: None,
            order: None,
            last: Finished { status: CommandStatus::Ok, result: 0 },
            finished: None,
            view: MemoryView::Unknown,
            proven: Sharing::Unknown,
        }
    }

    /// Drops a command under way and what was learnt about memory; the bus side's view stays.
    pub(super) fn reset(&mut self) {
        *self = Self { view: self.view, ..Self::new() };
    }

    pub(super) fn set_view(&mut self, view: MemoryView) {
        self.view = view;
    }

    pub(super) fn sharing(&self) -> Sharing {
        match self.view {
            MemoryView::Private => Sharing::NotShared,
            MemoryView::Partly | MemoryView::Unknown => self.proven,
        }
    }

    pub(super) const fn view(&self) -> MemoryView {
        self.view
    }

    pub(super) fn last(&self) -> Finished {
        self.last
    }

    pub(super) const fn has_finished(&self) -> bool {
        self.finished.is_some()
    }

    pub(super) fn take_finished(&mut self) -> Option<Finished> {
        self.finished.take()
    }

    /// The next step, and the name that it had where it was put back.
    pub(super) fn take_step(&mut self) -> Option<(Step, Option<OperationId>)> {
        if self.fault.is_some_and(|fault| !fault.is_served) {
            return None;
        }
        Some((self.step.take()?, self.fault.take().map(|fault| fault.id)))
    }

    /// The step taken last was not begun; it comes again when its page faults were served.
    pub(super) fn put_back(&mut self, id: OperationId, operation: MemoryOperation) {
        self.step = match operation {
            MemoryOperation::Read { segments, .. } => Some(Step::Read(segments)),
            MemoryOperation::Descriptor { segment, proof, .. } => Some(Step::Descriptor(segment, proof)),
            MemoryOperation::Touch { segments, write, .. } => Some(Step::Touch(segments, write)),
            MemoryOperation::Write { mut segments, data, .. } => {
                segments.pop().map(|segment| Step::Write(segment, data))
            }
            MemoryOperation::Transfer { .. } | MemoryOperation::Atomic { .. } => None,
        };
        self.fault = Some(Fault { id, is_served: false });
    }

    /// The page faults of operation `id` were served, if the step waits for that.
    pub(super) fn serve(&mut self, id: OperationId) {
        if let Some(fault) = self.fault.as_mut().filter(|fault| fault.id == id) {
            fault.is_served = true;
        }
    }

    /// The step whose operation `id` was put back is not to come again. Returns whether it waited.
    pub(super) fn give_up(&mut self, id: OperationId) -> bool {
        let waits = self.fault.take_if(|fault| fault.id == id).is_some();
        waits && self.step.take().is_some()
    }

    /// What the DMA engine is to do; how that ended comes by [`Self::order_done`].
    pub(super) const fn take_order(&mut self) -> Option<dma::Order> {
        self.order.take()
    }

    /// How the order taken last has ended.
    pub(super) fn order_done(&mut self, result: Result<u64, CommandStatus>) {
        if matches!(self.state, State::Engine) {
            self.state = State::Idle;
            match result {
                Ok(result) => self.finish(CommandStatus::Ok, result),
                Err(status) => self.finish(status, 0),
            }
        }
    }

    /// A write to COMMAND.
    pub(super) fn start(&mut self, bits: u32, address: u64, cookie: u32) {
        if !matches!(self.state, State::Idle) {
            return;
        }
        let Some(opcode) = Opcode::from_bits(bits) else { return self.finish(CommandStatus::BadOpcode, 0) };
        if !address.is_multiple_of(DESCRIPTOR_SIZE as u64) {
            return self.finish(CommandStatus::BadDescriptor, 0);
        }
        self.last = Finished { status: CommandStatus::Busy, result: 0 };
        self.state = State::Descriptor(Order { opcode, bits, address, cookie });
        let proof = u64::from(cookie) << 32 | u64::from(DESCRIPTOR_MAGIC);
        self.step = Some(Step::Descriptor(Segment { address, len: DESCRIPTOR_SIZE }, proof));
    }

    /// The step taken last has ended. `next` is a name that no memory operation has yet.
    pub(super) fn step_done(&mut self, result: MemoryResult, windows: &mut Windows, next: OperationId) {
        let state = core::mem::replace(&mut self.state, State::Idle);
        let is_own = matches!(state, State::Descriptor(_) | State::Probe);
        let outcome = match result {
            Err(MemoryFault::NotShared) => Err(CommandStatus::NotShared),
            Err(MemoryFault::TooManyRanges) => Err(CommandStatus::TooMany),
            Err(_) => Err(CommandStatus::MemoryFault),
            Ok(bytes) => self.advance(state, &bytes, windows, next),
        };
        match outcome {
            Ok(None) => {}
            Ok(Some(result)) => self.finish(CommandStatus::Ok, result),
            Err(status) => {
                // A list or a run may lie in other memory than that which the driver itself uses.
                if status == CommandStatus::NotShared && is_own {
                    self.proven = Sharing::NotShared;
                }
                self.finish(status, 0);
            }
        }
    }

    /// Memory operations named before `oldest` have ended; `None` where all have.
    pub(super) fn settle(&mut self, oldest: Option<OperationId>) {
        if let State::Drain(before) = self.state
            && oldest.is_none_or(|oldest| oldest >= before)
        {
            self.state = State::Idle;
            self.finish(CommandStatus::Ok, 0);
        }
    }

    fn finish(&mut self, status: CommandStatus, result: u64) {
        self.last = Finished { status, result };
        self.finished = Some(self.last);
    }

    /// Goes on from `state`: to another (`None`), or to the command's result.
    fn advance(
        &mut self,
        state: State,
        bytes: &[u8],
        windows: &mut Windows,
        next: OperationId,
    ) -> Result<Option<u64>, CommandStatus> {
        match state {
            State::Idle | State::Drain(_) | State::Engine => self.state = state,
            State::Descriptor(order) => {
                let is_for_engine = order.opcode.is_for_engine();
                let descriptor = Descriptor::check(bytes, order.bits, order.cookie, is_for_engine)?;
                match order.opcode {
                    Opcode::Export => {
                        let listing = descriptor.listing(windows.get(descriptor.space()))?;
                        self.read_page(listing);
                    }
                    Opcode::Unexport => {
                        let windows = windows.get_mut(descriptor.space());
                        windows.remove(descriptor.u64_at(0x10)).ok_or(CommandStatus::NotFound)?;
                        self.state = State::Drain(next);
                    }
                    Opcode::Probe => {
                        let answer = u64::from(order.cookie) << 32 | u64::from(!order.cookie);
                        let segment = Segment { address: order.address.wrapping_add(PROBE_ANSWER), len: 8 };
                        self.step = Some(Step::Write(segment, Bytes::copy_from_slice(&answer.to_le_bytes())));
                        self.state = State::Probe;
                    }
                    Opcode::Register => self.read_page(descriptor.registration()?),
                    Opcode::Deregister => self.give(dma::Order::Deregister(descriptor.key())),
                    Opcode::CreateQueue => self.give(dma::Order::Create(descriptor.queue()?)),
                    Opcode::DestroyQueue => self.give(dma::Order::Destroy(descriptor.u64_at(0x10))),
                }
            }
            State::List(mut listing) => {
                let touched = listing.take_page(bytes)?;
                if touched.is_empty() {
                    return self.go_on(listing, windows);
                }
                self.step = Some(Step::Touch(touched, listing.writes()));
                self.state = State::Touch(listing);
            }
            State::Touch(listing) => return self.go_on(listing, windows),
            State::Probe => {
                self.proven = Sharing::Shared;
                return Ok(Some(0));
            }
        }
        Ok(None)
    }

    /// A page of the list has been taken in: reads the next one, or makes the window.
    fn go_on(&mut self, listing: Listing, windows: &mut Windows) -> Result<Option<u64>, CommandStatus> {
        if listing.missing > 0 {
            self.read_page(listing);
            return Ok(None);
        }
        let Listing { list, mut runs, .. } = listing;
        runs.shrink();
        match list {
            Purpose::Export(export, space) => Ok(Some(windows.get_mut(space).place(&export, runs)?)),
            Purpose::Register { len, rights, domain } => {
                if runs.len() != len {
                    return Err(CommandStatus::BadArgument);
                }
                self.give(dma::Order::Register { domain, rights, runs });
                Ok(None)
            }
        }
    }

    fn give(&mut self, order: dma::Order) {
        self.order = Some(order);
        self.state = State::Engine;
    }

    fn read_page(&mut self, listing: Listing) {
        self.step = Some(Step::Read(vec![Segment { address: listing.next, len: LIST_PAGE_SIZE }]));
        self.state = State::List(listing);
    }
}
