//! A node of the model: a whole adaptor, its end of the link, and what stands in the blocks that it exports.
//!
//! Invariant: of what the adaptor has to say, only packets for which the network has no room stay in it.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ahash::AHasher;
use assured_rdma::adaptor::address::{BLOCK_SIZE, Geometry, Location, NodeId, Place};
use assured_rdma::adaptor::memory::{MemoryFault, MemoryOperation, OperationId, Segment};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::framing::Framer;
use assured_rdma::adaptor::mesh::packet::Body;
use assured_rdma::adaptor::transaction::{Finished, Request, RequestKind, TransactionId};
use assured_rdma::adaptor::{Adaptor, Event, Instant, LoadTag, Region, Settings, target};
use bytes::Bytes;

use crate::bounds::Bounds;
use crate::guest;

/// Blocks in the window of a node.
pub const BLOCKS: usize = 2;
/// A slow clock loses one part in so many.
const LOST: u32 = 32;
/// A bus has one load at a time, so it needs no more names.
const TAG: LoadTag = LoadTag(0);

/// A is the node whose bus makes accesses, B the one that they go to. C is an adaptor with the node id of A; it is linked
/// only while it has taken A's place, and makes no accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    A,
    B,
    C,
}

impl Side {
    /// The two ends of the link, and the nodes that belong there.
    pub const ENDS: [Self; 2] = [Self::A, Self::B];
    pub const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    /// The end to which this node sends.
    pub const fn other(self) -> Self {
        match self {
            Self::A | Self::C => Self::B,
            Self::B => Self::A,
        }
    }

    const fn id(self) -> NodeId {
        match self {
            Self::A | Self::C => NodeId(1),
            Self::B => NodeId(2),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What was done to a node's memory for the other one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    Write { block: usize, data: Bytes },
    Read { block: usize, len: usize, value: u8 },
}

/// A memory operation of which the adaptor does not know yet that it was executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    name: OperationId,
    data: Bytes,
    execution: Execution,
}

/// What came out of an adaptor.
#[derive(Default)]
pub struct Outputs {
    pub packets: Vec<Bytes>,
    /// The answer to the load that the bus waits for.
    pub answer: Option<Bytes>,
    /// Transactions of the bulk channel that have ended.
    pub ends: Vec<Finished>,
    /// More requests are under way than the window allows.
    pub exceeds_window: bool,
    /// The shell is asked to cut the link.
    pub cut: bool,
    /// A packet has several requests.
    pub batch: bool,
    /// A packet is the answer to several requests.
    pub joint_answer: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    side: Side,
    adaptor: Adaptor,
    pub is_linked: bool,
    /// The value in all the bytes of a block that are used.
    memory: [u8; BLOCKS],
    exported: usize,
    /// Requests that may be under way.
    window: usize,
    /// Its clock runs slower than that of the model.
    is_slow: bool,
    /// How often it was started or reset.
    pub life: u8,
    /// How often its process was started.
    process: u8,
    /// Memory operations that were executed, of which the adaptor does not know yet.
    running: Vec<Running>,
}

impl Node {
    /// A node after its start, its window exported.
    pub fn new(side: Side, bounds: &Bounds, now: Instant) -> Self {
        let mut node = Self {
            side,
            adaptor: start(side, bounds, 0),
            is_linked: false,
            memory: [0; BLOCKS],
            exported: bounds.exported,
            window: bounds.window.requests,
            is_slow: bounds.slow_clock && side == Side::B,
            life: 0,
            process: 0,
            running: Vec::new(),
        };
        node.boot(now);
        node
    }

    /// The process dies and is started again. Its memory is that of the guest, which lives on.
    pub fn crash(&mut self, now: Instant, bounds: &Bounds) {
        self.life += 1;
        self.process += 1;
        self.running.clear();
        self.adaptor = start(self.side, bounds, self.process);
        self.boot(now);
        self.link_up(now);
    }

    /// The function is reset.
    pub fn reset(&mut self, now: Instant) {
        self.life += 1;
        self.adaptor.handle_reset(self.clock(now));
        // A load that waited is answered, but its bus does not listen any more.
        while self.adaptor.poll_completion().is_some() {}
        self.boot(now);
    }

    /// Does what a driver does first: it enables the function and exports the window.
    fn boot(&mut self, now: Instant) {
        let local = self.clock(now);
        for (region, offset, data) in guest::EXPORT {
            self.adaptor.handle_store(local, region, offset, data).expect("registers are never busy");
        }
        while let Some(operation) = self.adaptor.poll_memory(local) {
            let id = operation.id();
            assert!(
                matches!(
                    operation,
                    MemoryOperation::Read { .. }
                        | MemoryOperation::Descriptor { .. }
                        | MemoryOperation::Touch { .. }
                ),
                "an export only reads"
            );
            let bytes =
                operation.segments().iter().flat_map(|segment| guest::command_memory(segment, self.exported));
            let data = bytes.collect();
            self.adaptor.handle_memory_done(local, id, Ok(data));
        }
        assert_eq!(self.register(now, 0x50) as u32, 0, "the window is exported");
    }

    /// The node's own clock, which begins anew with its process: nobody may depend on another node's.
    fn clock(&self, now: Instant) -> Instant {
        let passed = now.since(Instant::ZERO);
        let lost = if self.is_slow { passed / LOST } else { Duration::ZERO };
        Instant::ZERO.after(passed - lost).after(self.ahead())
    }

    fn ahead(&self) -> Duration {
        match (self.side, self.process) {
            (Side::A, 0) => Duration::from_secs(3),
            (Side::B, 0) => Duration::from_secs(7),
            _ => Duration::ZERO,
        }
    }

    /// When it wants to be woken, by the clock of the model.
    pub fn timeout(&self) -> Option<Instant> {
        let at = self.adaptor.poll_timeout()?.since(Instant::ZERO);
        let passed = at.saturating_sub(self.ahead());
        if !self.is_slow {
            return Some(Instant::ZERO.after(passed));
        }
        // The first moment at which the clock shows that time.
        let nanos = passed.as_nanos() as u64;
        let moment = nanos.saturating_add(nanos / u64::from(LOST - 1));
        (0..3)
            .map(|later| Instant::from_nanos(moment.saturating_add(later)))
            .find(|&moment| self.clock(moment).since(Instant::ZERO) >= at)
    }

    pub fn wake(&mut self, now: Instant) {
        self.adaptor.handle_timeout(self.clock(now));
    }

    fn register(&mut self, now: Instant, offset: u64) -> u64 {
        self.adaptor.handle_load(self.clock(now), TAG, Region::Registers, offset, 8);
        let answer = self.adaptor.poll_completion().expect("a register answers at once");
        u64::from_le_bytes(answer.data[..].try_into().expect("8 bytes"))
    }

    /// How many transactions of its bus did not end well, since it was started or reset.
    pub fn errors(&mut self, now: Instant) -> u64 {
        self.register(now, 0x98)
    }

    pub fn store(&mut self, now: Instant, block: usize, value: u8) {
        let result = self.adaptor.handle_store(self.clock(now), Region::Access, space(block), &[value; 8]);
        result.expect("a buffer is free");
    }

    pub fn load(&mut self, now: Instant, block: usize, len: usize) {
        self.adaptor.handle_load(self.clock(now), TAG, Region::Access, space(block), len);
    }

    pub fn check(&mut self, now: Instant, block: usize) {
        self.adaptor.handle_load(self.clock(now), TAG, Region::Assurance, space(block), 4);
    }

    /// Hands in a write of the bulk channel, which is named after its value.
    pub fn transfer(&mut self, now: Instant, block: usize, value: u8) {
        let request = Request {
            id: TransactionId(value.into()),
            place: Place { node: Side::B.id(), at: Location::memory(block as u64 * BLOCK_SIZE) },
            kind: RequestKind::Write(Bytes::from(vec![value; 8]).into()),
            posted: self.clock(now),
        };
        self.adaptor.handle_bulk(self.clock(now), request);
    }

    /// Hands in a read of the bulk channel with this name and length.
    pub fn fetch(&mut self, now: Instant, block: usize, (name, len): (u8, usize)) {
        let request = Request {
            id: TransactionId(name.into()),
            place: Place { node: Side::B.id(), at: Location::memory(block as u64 * BLOCK_SIZE) },
            kind: RequestKind::Read { len: len as u32 },
            posted: self.clock(now),
        };
        self.adaptor.handle_bulk(self.clock(now), request);
    }

    pub fn link_up(&mut self, now: Instant) {
        self.is_linked = true;
        self.adaptor.handle_link_up(self.clock(now), self.side.other().id());
    }

    pub fn link_down(&mut self, now: Instant) {
        self.is_linked = false;
        self.adaptor.handle_link_down(self.clock(now), self.side.other().id());
    }

    /// The bytes of a packet arrive as they were sent.
    pub fn receive(&mut self, now: Instant, wire: &Bytes) {
        let mut framer = Framer::default();
        framer.push(wire);
        let packet = framer.next_packet().expect("a whole packet").expect("an intact packet");
        self.adaptor.handle_packet(self.clock(now), self.side.other().id(), packet);
    }

    /// The bytes of a packet arrive, but not as they were sent.
    pub fn receive_corrupt(&mut self) {
        self.adaptor.handle_corrupt(self.side.other().id());
    }

    /// Executes the next request that may be executed now; [`Self::finish`] is to follow.
    pub fn execute(&mut self, now: Instant) -> Option<Execution> {
        let operation = self.adaptor.poll_memory(self.clock(now))?;
        let name = operation.id();
        let (execution, data) = match operation {
            MemoryOperation::Write { segments, data, .. } => {
                let block = block_of(&segments);
                self.memory[block] = data[0];
                (Execution::Write { block, data }, Bytes::new())
            }
            MemoryOperation::Read { segments, .. } => {
                let (block, len) = (block_of(&segments), segments[0].len);
                let value = self.memory[block];
                (Execution::Read { block, len, value }, vec![value; len].into())
            }
            MemoryOperation::Descriptor { .. }
            | MemoryOperation::Touch { .. }
            | MemoryOperation::Transfer { .. }
            | MemoryOperation::Atomic { .. } => {
                panic!("nobody asks for {operation:?}")
            }
        };
        self.running.push(Running { name, data, execution: execution.clone() });
        Some(execution)
    }

    /// Tells the adaptor that one of the memory operations that were executed is done.
    pub fn finish(&mut self, now: Instant, place: usize) {
        let Running { name, data, .. } = self.running.remove(place);
        self.adaptor.handle_memory_done(self.clock(now), name, Ok(data));
    }

    /// The same for all of them.
    pub fn finish_all(&mut self, now: Instant) {
        while self.is_running() {
            self.finish(now, 0);
        }
    }

    pub const fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    pub fn running(&self) -> impl ExactSizeIterator<Item = &Execution> {
        self.running.iter().map(|running| &running.execution)
    }

    /// Takes out what the adaptor has to say, but not more than `room` packets.
    pub fn take_outputs(&mut self, now: Instant, room: usize) -> Outputs {
        let mut outputs = Outputs::default();
        while let Some(event) = self.adaptor.poll_event() {
            outputs.cut |= matches!(event, Event::CutLink(_));
        }
        while let Some(completion) = self.adaptor.poll_completion() {
            assert_eq!((completion.tag, &outputs.answer), (TAG, &None), "one load at a time");
            outputs.answer = Some(completion.data);
        }
        outputs.ends.extend(std::iter::from_fn(|| self.adaptor.poll_bulk()));
        while self.is_linked && outputs.packets.len() < room {
            let packet = self
                .adaptor
                .poll_packet(self.clock(now), self.side.other().id(), &mut |_| Err(MemoryFault::Unmapped));
            let Some(packet) = packet else { break };
            // These are for people to read, and would multiply the states: the network loses them.
            if matches!(packet.body, Body::Inquire | Body::Inventory { .. }) {
                continue;
            }
            outputs.batch |= matches!(&packet.body, Body::Batch { batch, .. } if batch.count() > 1);
            outputs.joint_answer |= matches!(packet.body, Body::Done { count: 2.., .. });
            outputs.exceeds_window |= requests_under_way(&packet.body) > self.window;
            let mut wire = Vec::new();
            packet.emit(&mut wire);
            outputs.packets.push(wire.into());
        }
        outputs
    }
}

/// How many requests are without an answer, as far as a packet tells.
fn requests_under_way(body: &Body) -> usize {
    match body {
        Body::Write { progress, sequence, .. } | Body::Read { progress, sequence, .. } => {
            sequence.distance_from(progress.acknowledge) as usize + 1
        }
        Body::Batch { progress, first, batch } => {
            first.plus(batch.count()).distance_from(progress.acknowledge) as usize
        }
        _ => 0,
    }
}

fn start(side: Side, bounds: &Bounds, process: u8) -> Adaptor {
    let its_own = bounds.lease_of_target.filter(|_| side == Side::B);
    let lease = its_own.unwrap_or(bounds.timing.lease);
    let settings = Settings {
        node: side.id(),
        geometry: Geometry::new(4, BLOCKS as u64 * BLOCK_SIZE).expect("a good geometry"),
        peers: Side::ENDS.map(Side::id).into_iter().collect(),
        timing: Timing { lease, ..bounds.timing },
        // Stores are not joined here, so that each is a transaction.
        gather: Duration::ZERO,
        seed: 100 * u64::from(process) + side as u64,
    };
    // As few as are needed, because every state has them.
    let limits = target::Limits {
        write_buffers: 8,
        write_buffers_per_node: 8,
        fetch_buffers: 1,
        checks: 1,
        logged_blocks: BLOCKS,
    };
    Adaptor::with_limits(settings, limits, bounds.window)
}

/// Offset in the access space of a block of B's window.
fn space(block: usize) -> u64 {
    (u64::from(Side::B.id().0) * BLOCKS as u64 + block as u64) * BLOCK_SIZE
}

fn block_of(segments: &[Segment]) -> usize {
    assert_eq!(segments.len(), 1, "the window is one run of memory");
    ((segments[0].address - guest::EXPORTED) / BLOCK_SIZE) as usize
}

/// A node that states share until one of them changes it, with what takes long to find out, so that
/// it is found out once: a digest, and whether there is something to execute at a moment.
#[derive(Clone, Debug)]
pub struct Shared {
    node: Arc<Node>,
    digest: u64,
    can_execute: OnceLock<(Instant, bool)>,
}

impl Shared {
    pub fn new(node: Node) -> Self {
        Self { digest: digest(&node), node: Arc::new(node), can_execute: OnceLock::new() }
    }

    pub fn change<R>(&mut self, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = Arc::make_mut(&mut self.node);
        let result = change(node);
        self.digest = digest(node);
        self.can_execute = OnceLock::new();
        result
    }

    /// Whether there is a request that may be executed now.
    pub fn can_execute(&self, now: Instant) -> bool {
        let find_out = || Node::clone(&self.node).execute(now).is_some();
        match *self.can_execute.get_or_init(|| (now, find_out())) {
            (moment, can_execute) if moment == now => can_execute,
            _ => find_out(),
        }
    }
}

impl PartialEq for Shared {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl Eq for Shared {}

fn digest(node: &Node) -> u64 {
    let mut hasher = AHasher::default();
    node.hash(&mut hasher);
    hasher.finish()
}

impl std::ops::Deref for Shared {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Hash for Shared {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}
