//! The network adaptor as a state machine without input or output.
//!
//! Nothing in here knows a clock, a thread, a socket or a file: time is an
//! argument ([`Instant`]), guest accesses and packets are handed in by `handle_*`,
//! and what has to be done outside is taken out by `poll_*`. The same code runs in
//! the daemon, in the simulated network and in the tests.
//!
//! [`Adaptor`] ties the units together: the [`target`] unit takes the bus's accesses, the [`mesh`] carries
//! transactions, the [`master`] unit executes those of other nodes, and [`pci`] is what the guest's software sees of it all.

pub mod address;
mod assurance;
pub mod backplane;
pub mod bus;
pub mod buses;
pub mod channel;
pub mod dma;
mod engine;
pub mod event;
mod function;
pub mod inventory;
pub mod master;
pub mod memory;
pub mod mesh;
pub mod messages;
pub mod pci;
pub mod random;
mod register_values;
pub mod runs;
pub mod status;
pub mod target;
mod time;
pub mod transaction;

pub use bus::{Busy, Completion, LoadTag};
pub use event::Event;
pub use master::MemoryView;
pub use pci::Region;
pub use time::Instant;

use core::time::Duration;
use std::collections::VecDeque;

use self::address::{Geometry, Location, NodeId, NodeSet};
use self::assurance::RangeLoads;
use self::channel::Channel;
use self::dma::Engine;
use self::function::{Function, event as events};
use self::inventory::{Inventory, Name};
use self::master::{ExportError, HostedWindow, Master, Sharing};
use self::memory::{Home, Lent, Load, MemoryFault, MemoryOperation, MemoryResult, OperationId, Source};
use self::mesh::limits::Window;
use self::mesh::neighbour::Refusal;
use self::mesh::packet::{Incarnation, Packet};
use self::mesh::{InventoryNews, Mesh, Ticket, Timing, Wanted};
use self::pci::{ConfigAction, Meaning, registers};
use self::random::Random;
use self::target::Target;
use self::transaction::{Content, Finished, Request};

/// QEMU waits for a load's answer for 5 s, the time of the stores before it included, and an answer after that would break
/// the device.
const LONGEST_WAIT: Duration = Duration::from_millis(4_500);

/// What an adaptor is configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// This node.
    pub node: NodeId,
    /// How the access space is cut; the I/O space has as many windows.
    pub geometry: Geometry,
    /// The nodes that it talks to.
    pub peers: NodeSet,
    /// The times that bound every access.
    pub timing: Timing,
    /// How long a write buffer may wait for more stores to join.
    pub gather: Duration,
    /// Where incarnations and nonces come from; must differ from start to start.
    pub seed: u64,
}

/// The network adaptor of one bus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Adaptor {
    settings: Settings,
    random: Random,
    incarnation: Incarnation,
    function: Function,
    target: Target,
    mesh: Mesh,
    master: Master,
    engine: Engine,
    /// The last memory operation was the engine's: others come first now.
    engine_was_last: bool,
    inventory: Inventory,
    /// What guest and operator know of the guest's memory.
    sharing: Sharing,
    /// Another adaptor has this node's id.
    duplicate: bool,
    ranges: RangeLoads,
    completions: VecDeque<Completion>,
    /// Bulk transactions that have ended.
    bulk: VecDeque<Finished>,
    events: VecDeque<Event>,
}

impl Adaptor {
    /// An adaptor in its state after power-on, without links.
    pub fn new(settings: Settings) -> Self {
        Self::with_limits(settings, target::Limits::default(), Window::default())
    }

    /// As [`Adaptor::new`], with other bounds of the target unit and of the flows.
    pub fn with_limits(settings: Settings, limits: target::Limits, window: Window) -> Self {
        let mut random = Random::new(settings.seed);
        let incarnation = Incarnation(random.next_public());
        let Settings { node, geometry, peers, timing, gather, .. } = settings;
        Self {
            settings,
            incarnation,
            function: Function::default(),
            target: Target::with_limits(geometry, gather, backlog_limit(timing.deadline), limits),
            mesh: Mesh::new(node, incarnation, peers, timing, window, &mut random),
            master: Master::new(geometry.window_size()),
            engine: Engine::new(geometry.nodes()),
            engine_was_last: false,
            inventory: Inventory::default(),
            sharing: Sharing::Unknown,
            duplicate: false,
            ranges: RangeLoads::default(),
            completions: VecDeque::new(),
            bulk: VecDeque::new(),
            events: VecDeque::new(),
            random,
        }
    }

    /// This node.
    pub const fn node(&self) -> NodeId {
        self.settings.node
    }

    /// Makes a window for a device that the shell hosts, before the first input. It is there with or without a guest, whatever
    /// that guest's COMMAND register says, and the guest can't remove it. Operations with its [`Home::Hosted`] are the
    /// device's.
    ///
    /// # Errors
    /// Where it cannot be made; nothing has changed then.
    pub fn host(&mut self, window: &HostedWindow) -> Result<Location, ExportError> {
        self.master.host(window)
    }

    /// This life of the node.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Names the bus for the guests of other nodes, before the first input.
    pub const fn set_name(&mut self, name: Name) {
        self.inventory.set_name(name);
    }

    /// The bus loads `len` bytes. The answer comes from [`Self::poll_completion`], at latest after the deadline.
    pub fn handle_load(&mut self, now: Instant, tag: LoadTag, region: Region, offset: u64, len: usize) {
        let meaning = region.decode(self.settings.geometry, offset);
        match meaning {
            _ if !self.function.answers(meaning) => {
                self.completions.push_back(Completion::all_ones(tag, len));
            }
            Meaning::Access(space, offset) => self.target.load(now, tag, space, offset, len),
            Meaning::Check(look, space, offset) => self.target.check(now, tag, look, space, offset, len),
            Meaning::Config(offset) => {
                let mut data = vec![0; len];
                self.function.config.read(offset, &mut data);
                self.completions.push_back(Completion { tag, data: data.into() });
            }
            Meaning::Registers(offset) => self.load_registers(now, tag, offset, len),
            Meaning::Queue(number, offset) => {
                let data = self.engine.peek(number, offset, len);
                self.completions.push_back(Completion { tag, data });
            }
            Meaning::Nothing => self.completions.push_back(Completion::all_ones(tag, len)),
        }
        self.run(now);
    }

    /// The bus stores `data`.
    ///
    /// # Errors
    /// [`Busy`] where no write buffer is free: nothing was done, the same store has to be handed in again.
    pub fn handle_store(
        &mut self,
        now: Instant,
        region: Region,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Busy> {
        let meaning = region.decode(self.settings.geometry, offset);
        match meaning {
            _ if !self.function.answers(meaning) => {}
            Meaning::Access(space, offset) => self.target.store(now, space, offset, data)?,
            Meaning::Queue(number, offset) => self.engine.ring(now, number, offset, data),
            Meaning::Check(..) | Meaning::Nothing => {}
            Meaning::Config(offset) => {
                let was_master = self.function.config.bus_master_enabled();
                if self.function.config.write(offset, data) == Some(ConfigAction::FunctionLevelReset) {
                    self.function.reset_level();
                    self.begin_new_life(now);
                }
                if !was_master && self.function.config.bus_master_enabled() {
                    self.engine.retry();
                }
                let masked = self.function.config.msix_function_masked();
                self.function.msix.set_function_mask(masked);
            }
            Meaning::Registers(offset) => {
                let written = self.function.written;
                let (doorbells, msix) = (self.master.messages_mut().doorbells_mut(), &mut self.function.msix);
                let list = registers::write(offset, data, |r| written.get(r), doorbells, msix);
                for write in list {
                    self.write_register(now, write);
                }
            }
        }
        self.run(now);
        Ok(())
    }

    /// Sends a transaction of a transfer on its way, in the bulk channel: in order with others of the same node there, and
    /// without holding up the bus's accesses. How it ends comes from [`Self::poll_bulk`], at latest after the deadline; names
    /// are the caller's. The caller bounds how much is under way.
    pub fn handle_bulk(&mut self, now: Instant, request: Request) {
        self.mesh.submit(Channel::Bulk, request);
        self.run(now);
    }

    /// How a transaction of [`Self::handle_bulk`] ended. After a reset nothing comes for what was handed in before.
    pub fn poll_bulk(&mut self) -> Option<Finished> {
        self.bulk.pop_front()
    }

    /// The bus has nothing more at hand.
    pub fn handle_idle(&mut self, now: Instant) {
        self.target.idle(now);
        self.run(now);
    }

    /// The function is reset, by the machine or because its guest came or went. The guest's windows are gone when this
    /// returns, those of hosted devices stay; and the node is another incarnation.
    pub fn handle_reset(&mut self, now: Instant) {
        self.function.reset();
        self.begin_new_life(now);
    }

    /// Everything but configuration space and registers starts afresh.
    fn begin_new_life(&mut self, now: Instant) {
        self.target.reset();
        self.bulk.clear();
        self.engine.reset();
        let flushed = self.master.flush().into_iter();
        let flushed: Vec<_> = flushed.map(|(origin, ticket)| (origin, Ticket::from_bits(ticket))).collect();
        self.sharing = self.master.sharing();
        self.incarnation = Incarnation(self.random.next_public());
        self.mesh.reincarnate(now, self.incarnation, &flushed);
        // That the guest's own windows are gone is no news to it.
        let version = self.master.windows_version();
        self.inventory.set_version(version);
        self.mesh.set_inventory_version(now, version);
        self.events.push_back(Event::Reset(self.incarnation));
        if self.duplicate {
            // News to the driver that begins now.
            self.function.raise(events::DUPLICATE);
        }
        self.run(now);
    }

    /// A vector of MSI-X can be signalled from now on, or not any more.
    pub fn handle_vector(&mut self, vector: u16, connected: bool) {
        self.function.msix.connect(vector, connected);
    }

    /// What the host knows of the guest's memory, as it is mapped now.
    pub fn handle_memory_view(&mut self, view: MemoryView) {
        if view != self.master.memory_view() {
            self.function.raise(events::MEMORY);
        }
        self.master.set_memory_view(view);
        self.note_sharing();
    }

    /// A memory operation was executed, or not.
    pub fn handle_memory_done(&mut self, now: Instant, id: OperationId, result: MemoryResult) {
        if Engine::is_own(id) {
            self.engine.handle_done(now, id, result);
            self.pass_on_engine(now);
        } else if self.master.handle_done(id, result) {
            self.run(now);
        } else {
            self.collect_answers();
        }
    }

    /// Whether an operation that was handed out may still be begun: its lease has not ended, nor has it been given up. Ask this after
    /// everything that takes time, just before the first byte.
    pub fn may_begin(&self, now: Instant, id: OperationId) -> bool {
        if Engine::is_own(id) {
            return self.engine.may_begin(id);
        }
        let may_execute = |origin, direction| self.mesh.may_execute(now, origin, direction);
        self.master.may_begin(id, may_execute)
    }

    /// An operation that was handed out was not begun, and its pages are to be brought in; or its lease has ended. It comes again from
    /// [`Self::poll_memory`] after [`Self::handle_pages`], under the same name, if it may be executed then.
    pub fn handle_page_fault(&mut self, now: Instant, operation: MemoryOperation) {
        if Engine::is_own(operation.id()) {
            self.engine.put_back(now, operation);
            self.pass_on_engine(now);
        } else if self.master.put_back(operation) {
            self.run(now);
        }
    }

    /// The pages that an operation waits for are there, or can't be had. One that was given up meanwhile is ignored.
    pub fn handle_pages(&mut self, now: Instant, id: OperationId, result: Result<(), MemoryFault>) {
        if Engine::is_own(id) {
            self.engine.handle_pages(now, id, result);
            self.pass_on_engine(now);
        } else if self.master.handle_pages(id, result) {
            self.run(now);
        } else {
            self.collect_answers();
        }
    }

    /// The pages with the bytes of the next packet for `to`, which were [`MemoryFault::Absent`], are there, or can't be had.
    pub fn handle_source_pages(&mut self, to: NodeId, result: Result<(), MemoryFault>) {
        self.mesh.handle_pages(to, result);
    }

    /// Tells guest and operator when it becomes known whether the guest's memory is shared.
    fn note_sharing(&mut self) {
        let sharing = self.master.sharing();
        if core::mem::replace(&mut self.sharing, sharing) != sharing {
            self.function.raise(events::MEMORY);
            if sharing == Sharing::NotShared {
                self.events.push_back(Event::MemoryNotShared);
            }
        }
    }

    /// A link to the node is open, or a way over routers. A node that was not configured is known from now on.
    pub fn handle_link_up(&mut self, now: Instant, node: NodeId) {
        self.mesh.handle_link_up(now, node);
    }

    /// The link to the node is gone.
    pub fn handle_link_down(&mut self, now: Instant, node: NodeId) {
        self.mesh.handle_link_down(now, node);
        self.run(now);
    }

    /// The other end of a link does not let this node in.
    pub fn handle_refused(&mut self, reason: Refusal) {
        if reason == Refusal::Duplicate {
            self.set_duplicate(true);
        }
    }

    /// Nobody refuses this node any more.
    pub fn handle_admitted(&mut self) {
        self.set_duplicate(false);
    }

    fn set_duplicate(&mut self, duplicate: bool) {
        if core::mem::replace(&mut self.duplicate, duplicate) != duplicate {
            self.function.raise(events::DUPLICATE);
        }
    }

    /// A packet came over the link to `from`.
    pub fn handle_packet(&mut self, now: Instant, from: NodeId, packet: Packet) {
        self.take_packet(now, from, packet.detach());
    }

    /// As [`Self::handle_packet`], where the payload shares memory with nothing but what waits for its answer anyway.
    fn take_packet(&mut self, now: Instant, from: NodeId, packet: Packet) {
        self.mesh.handle_packet(now, from, packet);
        self.run(now);
    }

    /// The clock that gives this adaptor its time may have stood still, or have jumped, before `now`.
    pub fn handle_clock_jump(&mut self, now: Instant) {
        self.mesh.handle_clock_jump(now);
        self.run(now);
    }

    /// A packet with a bad CRC came over the link to `from`.
    pub fn handle_corrupt(&mut self, from: NodeId) {
        self.mesh.handle_corrupt(from);
    }

    /// The answer to a load.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Whether the bus takes operations on its devices ([`Home::Bus`]) from now on; it does at first. Others do not wait for it.
    pub const fn handle_bus_ready(&mut self, is_ready: bool) {
        self.master.set_bus_ready(is_ready);
    }

    /// A memory operation, to be begun at once. One on the bus may end later, and others come meanwhile.
    pub fn poll_memory(&mut self, now: Instant) -> Option<MemoryOperation> {
        loop {
            let next = self.next_operation(now);
            let Some(operation) = &next else { return None };
            let hosted = matches!(operation.home(), Home::Hosted(_));
            // A function that may not be bus master reaches no memory.
            let fault = if !hosted && !self.function.config.bus_master_enabled() {
                MemoryFault::Unmapped
            } else if operation.home() == Home::Bus && self.is_own(operation) {
                MemoryFault::Refused
            } else {
                return next;
            };
            self.handle_memory_done(now, operation.id(), Err(fault));
        }
    }

    /// Whether an operation on the bus would come back to this function.
    fn is_own(&self, operation: &MemoryOperation) -> bool {
        let geometry = self.settings.geometry;
        operation.segments().iter().any(|segment| self.function.config.is_own(geometry, segment))
    }

    /// The next packet for the link to `to`; `load` gives it bytes of the guest's memory, which a function that may not be bus master doesn't reach.
    pub fn poll_packet(&mut self, now: Instant, to: NodeId, load: &mut Load<'_>) -> Option<Packet> {
        let is_master = self.function.config.bus_master_enabled();
        let mut find = |source: &Source| {
            if is_master { load(source).map(Content::Bytes) } else { Err(MemoryFault::Unmapped) }
        };
        self.mesh.poll_packet(now, to, &mut find)
    }

    /// As [`Self::poll_packet`], for another bus of the same process: the guest's memory is lent to it.
    fn lend_packet(&mut self, now: Instant, to: NodeId) -> Option<Packet> {
        let (lender, life) = (self.node(), self.incarnation);
        let mut find = |source: &Source| Ok(Content::Lent(Lent { lender, life, source: source.clone() }));
        self.mesh.poll_packet(now, to, &mut find)
    }

    /// The nodes for which there may be a packet.
    fn talked_to(&self) -> impl Iterator<Item = NodeId> {
        self.mesh.talked_to()
    }

    /// The buses of this process are these nodes, of which this one is one.
    fn join(&mut self, now: Instant, nodes: NodeSet) {
        let own = self.node();
        self.engine.set_beside(nodes);
        (0..=u8::MAX)
            .map(NodeId)
            .filter(|&node| node != own && nodes.contains(node))
            .for_each(|node| self.handle_link_up(now, node));
    }

    /// Whether memory that this function has lent may be read now: not after a reset, nor where it may not be bus master.
    pub fn lends(&self, lent: &Lent) -> bool {
        lent.lender == self.node()
            && lent.life == self.incarnation
            && self.function.config.bus_master_enabled()
    }

    /// A vector to signal.
    pub fn poll_interrupt(&mut self) -> Option<u16> {
        self.function.msix.poll()
    }

    /// What the operator or the shell has to know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let messages = self.master.messages().poll_timeout();
        let engine = self.engine.poll_timeout();
        [self.target.poll_timeout(), self.mesh.poll_timeout(), messages, engine].into_iter().flatten().min()
    }

    /// Time has passed. Hand in what has arrived before, so that an answer that is already here does not count as late.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.mesh.handle_timeout(now);
        self.target.handle_timeout(now);
        self.engine.handle_timeout(now);
        self.run(now);
    }

    /// Passes on what the units have for each other.
    fn run(&mut self, now: Instant) {
        self.submit_requests(now);
        while let Some((channel, finished)) = self.mesh.poll_finished() {
            match channel {
                Channel::Small => {
                    self.target.complete(now, finished.id, finished.code, finished.data);
                    self.submit_requests(now);
                }
                Channel::Bulk if Engine::carries(finished.id) => self.engine.complete(now, finished),
                Channel::Bulk => self.bulk.push_back(finished),
            }
        }
        while let Some(inbound) = self.mesh.poll_inbound() {
            match inbound {
                Wanted::Discard(origin) => self.master.discard(origin),
                // The flow's window is the buffer's bound, so that it is never full.
                Wanted::Request(request) => {
                    let _ = self.master.push(request);
                }
            }
        }
        self.collect_answers();
        while let Some(order) = self.master.poll_order() {
            self.engine.handle_order(now, order);
        }
        self.pass_on_engine(now);
        while self.master.poll_finished().is_some() {
            self.function.raise(events::COMMAND);
        }
        self.note_sharing();
        while let Some(completion) = self.target.poll_completion() {
            let completion = self.finish_register_load(completion);
            self.completions.push_back(completion);
        }
        while let Some(event) = self.mesh.poll_event() {
            if let Event::LinkUp(..) | Event::LinkDown(_) | Event::PeerRestarted(..) = event {
                self.function.raise(events::LINK);
            }
            self.events.push_back(event);
        }
        if self.target.poll_error_event() {
            self.function.raise(events::ERROR);
        }
        if self.target.poll_failed_event() {
            self.function.raise(events::FAILED);
        }
        self.exchange_inventories(now);
        self.tell_of_messages(now);
    }

    /// Tells and learns what nodes export.
    fn exchange_inventories(&mut self, now: Instant) {
        let version = self.master.windows_version();
        let mut news = self.inventory.set_version(version);
        if news {
            self.mesh.set_inventory_version(now, version);
        }
        while let Some((peer, what)) = self.mesh.poll_inventory() {
            match what {
                InventoryNews::Asked => {
                    let window_size = self.settings.geometry.window_size();
                    let list = self.inventory.list_for(&self.master, window_size, peer);
                    self.mesh.send_inventory(peer, list);
                }
                InventoryNews::Arrived { version, entries } => {
                    news |= self.inventory.put(peer, version, &entries);
                }
                InventoryNews::Forgotten => news |= self.inventory.forget(peer),
            }
        }
        if news {
            self.function.raise(events::INVENTORY);
        }
    }

    fn tell_of_messages(&mut self, now: Instant) {
        for vector in self.master.messages_mut().poll_vectors(now) {
            self.function.msix.raise(vector);
        }
    }

    fn submit_requests(&mut self, now: Instant) {
        while let Some(request) = self.target.poll_request(now) {
            self.mesh.submit(Channel::Small, request);
        }
    }

    fn collect_answers(&mut self) {
        while let Some(answer) = self.master.poll_answer() {
            let ticket = Ticket::from_bits(answer.ticket);
            self.mesh.answer(answer.origin, ticket, answer.code, answer.data);
        }
    }
}

/// How long the stores before a load may wait, in all; after that the load may take the whole deadline.
fn backlog_limit(deadline: Duration) -> Duration {
    deadline.min(LONGEST_WAIT.saturating_sub(deadline))
}
