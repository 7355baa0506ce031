//! An attached guest: its requests on their way to the core, and the answers.
//!
//! The bus is a FIFO. While a load waits for its answer, or a store for a free write buffer, nothing behind it is
//! looked at; what arrives meanwhile waits in the connection's bounded buffer, and then in the socket.

use std::rc::Rc;

use bytes::Bytes;

use crate::adaptor::address::Geometry;
use crate::adaptor::memory::{
    Home, MemoryFault, MemoryOperation, MemoryResult, OperationId, Segment, Source,
};
use crate::adaptor::pci::msix::VECTORS;
use crate::adaptor::{Adaptor, Busy, Completion, Instant, LoadTag, MemoryView, Region};
use crate::event_loop::Turn;
use crate::mapped::{Attempt, Begin};
use crate::poller::{Interest, Poller, Report, Token};
use crate::reaper;
use crate::vfio::{
    Connection, DeviceShape, DmaDone, DmaKind, GuestMemory, Intake, Interrupts, Overview, ReplyToken,
    Request, sharing_in,
};

/// Requests taken in one turn.
const REQUESTS_A_TURN: usize = 256;
const GONE: &str = "it closed its connection";

/// The function as vfio describes it.
pub fn shape(geometry: Geometry) -> DeviceShape {
    let size = |index| region(index).map_or(0, |region| region.size(geometry));
    DeviceShape {
        regions: core::array::from_fn(|index| u32::try_from(index).map_or(0, size)),
        vectors: VECTORS,
    }
}

/// The region with vfio's index.
fn region(index: u32) -> Option<Region> {
    match index {
        0 => Some(Region::Registers),
        1 => Some(Region::Io),
        2 => Some(Region::Access),
        4 => Some(Region::Assurance),
        7 => Some(Region::Config),
        _ => None,
    }
}

/// What the head of the FIFO waits for.
enum Waiting {
    Nothing,
    /// A load for its completion.
    Load(LoadTag, ReplyToken),
    /// A store for a free write buffer.
    Store(Option<ReplyToken>, Region, u64, Bytes),
}

/// See the module.
pub struct Guest {
    connection: Connection,
    label: Rc<str>,
    process: Option<i32>,
    memory: GuestMemory,
    interrupts: Interrupts,
    token: Token,
    interest: Interest,
    waiting: Waiting,
    next_load: u64,
    /// The socket may hold more than was received.
    readable: bool,
    /// Something was handed in since the core was last told that there is nothing more.
    stirred: bool,
}

impl Guest {
    /// A guest that has just connected; lines in the log about it begin with `label`.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn new(
        connection: Connection,
        shape: &DeviceShape,
        poller: &Poller,
        token: Token,
        label: &Rc<str>,
    ) -> std::io::Result<Self> {
        poller.add(&connection, token, Interest::READ)?;
        Ok(Self {
            label: Rc::clone(label),
            process: connection.peer_pid(),
            connection,
            memory: GuestMemory::new(),
            interrupts: Interrupts::new(shape.vectors),
            token,
            interest: Interest::READ,
            waiting: Waiting::Nothing,
            // So that the answer to an earlier guest's load finds none of this one's.
            next_load: token.0 << 32,
            readable: false,
            stirred: false,
        })
    }

    /// Its name in reports.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The id of its process, where it can be known.
    pub fn process(&self) -> Option<i32> {
        self.process
    }

    /// Whether it has closed its end.
    pub fn is_gone(&self) -> bool {
        self.connection.peer_is_gone()
    }

    /// Notes that there is something to read.
    ///
    /// # Errors
    /// Where the guest is gone.
    pub fn handle_report(&mut self, report: Report) -> Result<(), String> {
        self.readable |= report.readable;
        // Nobody waits for the answer any more; and what is behind it, or behind answers that are not taken, is never looked at.
        if report.closed && (!matches!(self.waiting, Waiting::Nothing) || self.connection.wants_write()) {
            return Err(GONE.to_owned());
        }
        Ok(())
    }

    /// Hands in requests until there are no more, one has to wait, or it is the others' turn.
    ///
    /// # Errors
    /// Where the guest is gone, or has to go.
    pub fn feed(&mut self, now: Instant, adaptor: &mut Adaptor) -> Result<Turn, String> {
        let mut progress = self.retry_store(now, adaptor);
        if !matches!(self.waiting, Waiting::Nothing) {
            // Only so that a full socket does not wake the loop again and again.
            self.receive()?;
            return Ok(Turn::of(progress));
        }
        for _ in 0..REQUESTS_A_TURN {
            match self.connection.next_request().map_err(|broken| broken.to_string())? {
                Some(request) => {
                    progress = true;
                    self.stirred = true;
                    // What takes long is done once in a turn.
                    let is_long = matches!(
                        request,
                        Request::DmaMap { .. } | Request::DmaUnmap { .. } | Request::Reset { .. }
                    );
                    let life = adaptor.incarnation();
                    self.handle(now, adaptor, request);
                    if is_long || adaptor.incarnation() != life {
                        return Ok(Turn::Cut);
                    }
                    if !matches!(self.waiting, Waiting::Nothing) {
                        return Ok(Turn::Done);
                    }
                }
                // Even if it is the others' turn now: what came may be whole requests.
                None if self.receive()? => progress = true,
                None => {
                    if core::mem::take(&mut self.stirred) {
                        adaptor.handle_idle(now);
                        progress = true;
                    }
                    return Ok(Turn::of(progress));
                }
            }
        }
        Ok(Turn::Cut)
    }

    /// Receives once. Returns whether anything came.
    fn receive(&mut self) -> Result<bool, String> {
        if !self.readable || !self.connection.wants_read() {
            return Ok(false);
        }
        match self.connection.receive().map_err(|error| error.to_string())? {
            Intake::Some => {
                self.readable = !self.connection.is_drained();
                Ok(true)
            }
            Intake::Full => Ok(false),
            Intake::Nothing => {
                self.readable = false;
                Ok(false)
            }
            Intake::End => Err(GONE.to_owned()),
        }
    }

    fn handle(&mut self, now: Instant, adaptor: &mut Adaptor, request: Request) {
        match request {
            Request::Load { token, region: index, offset, len } => match region(index) {
                Some(region) => {
                    let tag = LoadTag(self.next_load);
                    self.next_load = self.next_load.wrapping_add(1);
                    self.waiting = Waiting::Load(tag, token);
                    adaptor.handle_load(now, tag, region, offset, len);
                }
                None => self.connection.reply_error(token, libc::EINVAL),
            },
            Request::Store { token, region: index, offset, data } => match region(index) {
                Some(region) => self.store(now, adaptor, token, region, offset, data),
                None => self.connection.reply(token, Err(libc::EINVAL)),
            },
            Request::DmaMap { token, map, file } => {
                let process = self.process;
                let result = self.memory.map(&map, file, |file| sharing_in(process, file));
                if let Err(error) = &result {
                    let (label, size, address) = (&self.label, map.size, map.address);
                    log::error!("{label}guest memory of {size:#x} bytes at {address:#x} not mapped: {error}");
                }
                self.connection.reply(token, result.map_err(|error| error.errno()));
                adaptor.handle_memory_view(self.memory_view());
            }
            Request::DmaUnmap { token, unmap } => {
                let result = self.memory.unmap(&unmap);
                if let Err(error) = &result {
                    let (label, address) = (&self.label, unmap.address);
                    log::error!("{label}guest memory at {address:#x} not unmapped: {error}");
                }
                self.connection.reply(token, result.map_err(|error| error.errno()));
                adaptor.handle_memory_view(self.memory_view());
            }
            Request::SetIrqs { token, set, events } => {
                let result = self.interrupts.apply(&set, events);
                self.connection.reply(token, result);
                self.tell_vectors(adaptor);
            }
            Request::Reset { token } => {
                adaptor.handle_reset(now);
                self.connection.reply(token, Ok(()));
            }
        }
    }

    fn store(
        &mut self,
        now: Instant,
        adaptor: &mut Adaptor,
        token: Option<ReplyToken>,
        region: Region,
        offset: u64,
        data: Bytes,
    ) {
        match adaptor.handle_store(now, region, offset, &data) {
            Ok(()) => self.connection.reply(token, Ok(())),
            Err(Busy) => self.waiting = Waiting::Store(token, region, offset, data),
        }
    }

    /// Hands in again a store for which there was no room. Returns whether there is now.
    fn retry_store(&mut self, now: Instant, adaptor: &mut Adaptor) -> bool {
        match core::mem::replace(&mut self.waiting, Waiting::Nothing) {
            Waiting::Store(token, region, offset, data) => {
                self.store(now, adaptor, token, region, offset, data);
                matches!(self.waiting, Waiting::Nothing)
            }
            other => {
                self.waiting = other;
                false
            }
        }
    }

    fn tell_vectors(&mut self, adaptor: &mut Adaptor) {
        while let Some(change) = self.interrupts.poll_change() {
            adaptor.handle_vector(change.vector, change.connected);
        }
    }

    /// What is known of the guest's memory, as the core takes it.
    pub fn memory_view(&self) -> MemoryView {
        match self.memory.overview() {
            Overview::Unknown | Overview::Shared => MemoryView::Unknown,
            Overview::Partly => MemoryView::Partly,
            Overview::Private => MemoryView::Private,
        }
    }

    /// Whether an operation on the guest's bus can be begun.
    pub fn takes_bus_operations(&self) -> bool {
        self.connection.can_send_dma()
    }

    /// Executes an operation on the guest's memory, or begins one on its bus, whose end comes from [`Self::poll_done`]; `None` then.
    pub fn execute(&mut self, operation: &MemoryOperation, begin: &Begin<'_>) -> Option<Attempt> {
        if operation.home() == Home::Guest {
            return Some(self.memory.execute(operation, begin));
        }
        let [segment] = operation.segments() else { return Some(MemoryFault::Refused.into()) };
        // A device's memory (ivshmem's, for one) is reached as the guest's is: what QEMU is asked for may land after a reset.
        if self.memory.holds(segment) {
            return Some(self.memory.execute(operation, begin));
        }
        let kind = match operation {
            MemoryOperation::Read { .. } => DmaKind::Read(segment.len),
            MemoryOperation::Write { data, .. } => DmaKind::Write(data.clone()),
            MemoryOperation::Descriptor { .. }
            | MemoryOperation::Touch { .. }
            | MemoryOperation::Transfer { .. }
            | MemoryOperation::Atomic { .. } => {
                return Some(MemoryFault::Refused.into());
            }
        };
        match self.connection.send_dma(operation.id(), segment.address, &kind) {
            Ok(()) => None,
            Err(_) => Some(MemoryFault::Refused.into()),
        }
    }

    /// Copies bytes of the guest's memory out.
    pub fn load(&self, source: &Source, begin: &Begin<'_>) -> Attempt {
        match source.home {
            Home::Guest => self.memory.load(&source.segments, begin),
            Home::Bus | Home::Hosted(_) => MemoryFault::Refused.into(),
        }
    }

    /// Copies memory of the other guest, whole or not at all, into segments of this one's.
    pub fn copy_from(
        &self,
        segments: &[Segment],
        other: &Self,
        source: &Source,
        begin: &Begin<'_>,
    ) -> Attempt {
        match source.home {
            Home::Guest => self.memory.copy_from(segments, &other.memory, &source.segments, begin),
            Home::Bus | Home::Hosted(_) => MemoryFault::Lender.into(),
        }
    }

    /// An operation on the guest's bus that has ended.
    pub fn poll_done(&mut self) -> Option<(OperationId, MemoryResult)> {
        self.connection.poll_dma().map(result_of)
    }

    /// Answers the load that waits, if it is this one.
    pub fn complete(&mut self, completion: &Completion) {
        match core::mem::replace(&mut self.waiting, Waiting::Nothing) {
            Waiting::Load(tag, token) if tag == completion.tag => {
                self.connection.reply_load(token, &completion.data);
            }
            other => self.waiting = other,
        }
    }

    /// Raises an interrupt.
    pub fn signal(&self, vector: u16) {
        self.interrupts.signal(vector);
    }

    /// Sends what there is to send, and chooses what to wait for. Returns whether there may be requests, or operations on the bus, that
    /// were held back until now.
    ///
    /// # Errors
    /// Where the socket fails.
    pub fn flush(&mut self, poller: &Poller) -> Result<bool, String> {
        let was_ready = self.takes_bus_operations();
        let mut progress = self.connection.flush().map_err(|error| error.to_string())?;
        progress |= !was_ready && self.takes_bus_operations();
        let interest =
            Interest { readable: self.connection.wants_read(), writable: self.connection.wants_write() };
        if interest != self.interest {
            poller.modify(&self.connection, self.token, interest).map_err(|error| error.to_string())?;
            self.interest = interest;
        }
        Ok(progress)
    }

    /// The guest is gone: its interrupts are no longer connected, and its memory is not reached any more; the kernel takes it back while
    /// the loop goes on. Returns operations on its bus that have
    /// ended by that, to be handed in after the core's reset: until then it would take them for not executed.
    pub fn end(mut self, adaptor: &mut Adaptor, poller: &Poller) -> Vec<(OperationId, MemoryResult)> {
        self.interrupts.disconnect_all();
        self.tell_vectors(adaptor);
        adaptor.handle_memory_view(MemoryView::Unknown);
        self.connection.fail_dma();
        let ended = core::iter::from_fn(|| self.poll_done()).collect();
        self.connection.close();
        if let Err(error) = poller.remove(&self.connection) {
            log::error!("{}can't leave a guest: {error}", self.label);
        }
        // What was received, and what was not, may hold the last reference to the guest's memory, too.
        reaper::release((self.memory, self.connection));
        ended
    }
}

/// The machine cuts an access of several bytes as its devices want it, and of those parts some may have been done.
fn result_of(done: DmaDone) -> (OperationId, MemoryResult) {
    let result = done.result.map_err(|error| {
        log::debug!("an access to a device of the guest's bus failed: {error}");
        if done.len > 1 { MemoryFault::Partial } else { MemoryFault::Refused }
    });
    (done.operation, result)
}
