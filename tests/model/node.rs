//! A node of the model: a whole adaptor, its side of the link, and the first byte of each block that it exports.
//!
//! Invariant: what the adaptor has to say is always taken out at once; only what may wait in reality (packets in the
//! network, requests before their execution) waits in a state.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use ahash::AHasher;
use assured_rdma::adaptor::address::{Geometry, NodeId};
use assured_rdma::adaptor::memory::{MemoryOperation, OperationId, Segment};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::framing::Framer;
use assured_rdma::adaptor::{Adaptor, Event, Instant, LoadTag, Region, Settings, target};
use bytes::Bytes;

use crate::bounds::Bounds;

/// Blocks that the target exports.
pub const BLOCKS: usize = 2;
pub const BLOCK: u64 = 4096;
/// The initiating and the responding node, as indices.
pub const A: usize = 0;
pub const B: usize = 1;

const EXPORTED: u64 = 0x10_000;
const LIST: u64 = 0x1000;
const WINDOW: u64 = BLOCKS as u64 * BLOCK;
/// A bus of the model has one load at a time.
const TAG: LoadTag = LoadTag(0);

/// The node with this index.
pub fn id(index: usize) -> NodeId {
    NodeId(1 + index as u8)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    Down,
    Up,
}

/// What was done to a node's memory for the other one.
#[derive(Clone, Copy, Debug)]
pub enum Execution {
    Write { value: u8, block: usize },
    Read { len: usize, block: usize, value: u8 },
}

/// What came out of an adaptor.
#[derive(Default)]
pub struct Outputs {
    pub packets: Vec<Bytes>,
    /// The answer to the load that the bus waits for.
    pub answer: Option<Bytes>,
    /// The shell is asked to cut the link.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    index: usize,
    adaptor: Adaptor,
    pub link: Link,
    memory: [u8; BLOCKS],
    /// How many of its blocks it exports.
    exported: usize,
    /// How often it was started or reset, in all and as a process.
    pub life: u8,
    process: u8,
    /// A memory operation that was executed, but whose end the adaptor has not been told.
    running: Option<(OperationId, Bytes)>,
}

impl Node {
    pub fn new(index: usize, bounds: &Bounds, now: Instant) -> Self {
        let adaptor = Self::start(index, bounds.timing, 0);
        let mut node = Self {
            index,
            adaptor,
            link: Link::Up,
            memory: [0; BLOCKS],
            exported: bounds.exported,
            life: 0,
            process: 0,
            running: None,
        };
        node.boot(now);
        node
    }

    fn start(index: usize, timing: Timing, process: u8) -> Adaptor {
        let settings = Settings {
            node: id(index),
            geometry: Geometry::new(4, WINDOW).unwrap(),
            peers: [id(A), id(B)].into_iter().collect(),
            timing,
            // Stores are not joined here, so that each is a transaction.
            gather: Duration::ZERO,
            seed: 100 * u64::from(process) + index as u64,
        };
        let limits = target::Limits {
            write_buffers: 8,
            write_buffers_per_node: 8,
            fetch_buffers: 2,
            checks: 1,
            logged_blocks: BLOCKS,
        };
        Adaptor::with_limits(settings, limits)
    }

    /// The node's own clock, which begins anew with its process. Nobody may depend on another node's.
    pub fn clock(&self, now: Instant) -> Instant {
        now.after(self.ahead())
    }

    fn ahead(&self) -> Duration {
        match (self.index, self.process) {
            (A, 0) => Duration::from_secs(3),
            (B, 0) => Duration::from_secs(7),
            _ => Duration::ZERO,
        }
    }

    /// When it wants to be woken, by the clock of the model.
    pub fn timeout(&self) -> Option<Instant> {
        let at = self.adaptor.poll_timeout()?.since(Instant::ZERO);
        Some(Instant::ZERO.after(at.saturating_sub(self.ahead())))
    }

    /// The process dies and is started again. Its memory is that of the guest, which lives on.
    pub fn crash(&mut self, now: Instant, bounds: &Bounds) {
        self.life += 1;
        self.process += 1;
        self.running = None;
        self.adaptor = Self::start(self.index, bounds.timing, self.process);
        self.boot(now);
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
        let now = self.clock(now);
        let adaptor = &mut self.adaptor;
        let mut store = |region, offset, data: &[u8]| {
            adaptor.handle_store(now, region, offset, data).unwrap();
        };
        store(Region::Config, 4, &[6, 0]);
        store(Region::Registers, 0x48, &1u32.to_le_bytes());
        store(Region::Registers, 0x4c, &1u32.to_le_bytes());
        while let Some(operation) = adaptor.poll_memory(now) {
            let MemoryOperation::Read { id, segments } = operation else { panic!("an export only reads") };
            let data = segments.iter().flat_map(|segment| export_command(segment, self.exported)).collect();
            adaptor.handle_memory_done(now, id, Ok(data));
        }
        assert_eq!(self.register(now, 0x50) as u32, 0, "the window is exported");
    }

    fn register(&mut self, now: Instant, offset: u64) -> u64 {
        self.adaptor.handle_load(now, TAG, Region::Registers, offset, 8);
        let answer = self.adaptor.poll_completion().expect("a register answers at once");
        u64::from_le_bytes(answer.data[..].try_into().unwrap())
    }

    /// How many of its bus's transactions did not end well, since it was started or reset.
    pub fn errors(&mut self, now: Instant) -> u64 {
        self.register(self.clock(now), 0x98)
    }

    pub fn store(&mut self, now: Instant, block: usize, value: u8) {
        let now = self.clock(now);
        self.adaptor.handle_store(now, Region::Access, space(block), &[value; 8]).expect("a buffer is free");
    }

    pub fn load(&mut self, now: Instant, block: usize, len: usize) {
        self.adaptor.handle_load(self.clock(now), TAG, Region::Access, space(block), len);
    }

    pub fn check(&mut self, now: Instant, block: usize) {
        self.adaptor.handle_load(self.clock(now), TAG, Region::Assurance, space(block), 4);
    }

    pub fn wake(&mut self, now: Instant) {
        self.adaptor.handle_timeout(self.clock(now));
    }

    pub fn link_up(&mut self, now: Instant) {
        self.link = Link::Up;
        self.adaptor.handle_link_up(self.clock(now), id(1 - self.index));
    }

    pub fn link_down(&mut self, now: Instant) {
        self.link = Link::Down;
        self.adaptor.handle_link_down(self.clock(now), id(1 - self.index));
    }

    /// Bytes of one packet arrive, as they were sent.
    pub fn receive(&mut self, now: Instant, wire: &Bytes) {
        let mut framer = Framer::default();
        framer.push(wire);
        let packet = framer.next_packet().expect("a whole packet").expect("an intact packet");
        self.adaptor.handle_packet(self.clock(now), id(1 - self.index), packet);
    }

    /// Bytes of one packet arrive, but not as they were sent.
    pub fn receive_corrupt(&mut self) {
        self.adaptor.handle_corrupt(id(1 - self.index));
    }

    /// Executes the next request that may be executed now; [`Self::finish`] is to follow.
    pub fn execute(&mut self, now: Instant) -> Option<Execution> {
        let now = self.clock(now);
        let operation = self.adaptor.poll_memory(now)?;
        let name = operation.id();
        let (execution, data) = match operation {
            MemoryOperation::Write { segments, data, .. } => {
                let (block, value) = (block_of(&segments), data[0]);
                assert_eq!(data[..], [value; 8], "what is executed was stored");
                self.memory[block] = value;
                (Execution::Write { value, block }, Bytes::new())
            }
            MemoryOperation::Read { segments, .. } => {
                let (block, len) = (block_of(&segments), segments[0].len);
                let value = self.memory[block];
                (Execution::Read { len, block, value }, vec![value; len].into())
            }
        };
        self.running = Some((name, data));
        Some(execution)
    }

    /// Tells the adaptor that what was executed is done.
    pub fn finish(&mut self, now: Instant) {
        if let Some((name, data)) = self.running.take() {
            self.adaptor.handle_memory_done(self.clock(now), name, Ok(data));
        }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Takes out what the adaptor has to say, but not more than `room` packets.
    pub fn take_outputs(&mut self, now: Instant, room: usize) -> Outputs {
        let mut outputs = Outputs::default();
        let now = self.clock(now);
        while let Some(event) = self.adaptor.poll_event() {
            outputs.cut |= matches!(event, Event::CutLink(_));
        }
        while let Some(completion) = self.adaptor.poll_completion() {
            assert_eq!((completion.tag, &outputs.answer), (TAG, &None), "one load at a time");
            outputs.answer = Some(completion.data);
        }
        if self.link == Link::Up {
            while outputs.packets.len() < room {
                let Some(packet) = self.adaptor.poll_packet(now, id(1 - self.index)) else { break };
                let mut wire = Vec::new();
                packet.emit(&mut wire);
                outputs.packets.push(wire.into());
            }
        }
        outputs
    }
}

/// Offset in the access space of a block of the target's window.
fn space(block: usize) -> u64 {
    u64::from(id(B).0) * WINDOW + block as u64 * BLOCK
}

fn block_of(segments: &[Segment]) -> usize {
    assert_eq!(segments.len(), 1);
    ((segments[0].address - EXPORTED) / BLOCK) as usize
}

/// What stands in memory where a command is read: a descriptor at 0 and its list of one run.
fn export_command(segment: &Segment, blocks: usize) -> Vec<u8> {
    let len = blocks as u64 * BLOCK;
    let mut bytes = vec![0; segment.len];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    match segment.address {
        0 => {
            put(0, b"ARDC");
            put(0x04, &1u32.to_le_bytes());
            put(0x08, &1u32.to_le_bytes());
            put(0x18, &len.to_le_bytes());
            put(0x20, &0b11u32.to_le_bytes());
            put(0x24, &1u32.to_le_bytes());
            put(0x28, &LIST.to_le_bytes());
            put(0x40, &u64::MAX.to_le_bytes());
        }
        LIST => {
            put(0, &EXPORTED.to_le_bytes());
            put(8, &len.to_le_bytes());
        }
        _ => {}
    }
    bytes
}

/// A node that states share until one of them changes it, with a digest, so that what did not change is not hashed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    node: Arc<Node>,
    digest: u64,
}

impl Shared {
    pub fn new(node: Node) -> Self {
        let mut shared = Self { node: Arc::new(node), digest: 0 };
        shared.change(|_| ());
        shared
    }

    /// Changes the node.
    pub fn change<R>(&mut self, change: impl FnOnce(&mut Node) -> R) -> R {
        let node = Arc::make_mut(&mut self.node);
        let result = change(node);
        let mut hasher = AHasher::default();
        node.hash(&mut hasher);
        self.digest = hasher.finish();
        result
    }
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
