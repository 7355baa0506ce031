//! What an adaptor holds for its guest and for a peer is bounded as docs/performance.md says, whatever these do: counted by
//! the allocator, at the limits.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic, clippy::expect_used)]

#[allow(dead_code)] // what others use of it
#[path = "support/queue.rs"]
mod queue;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use assured_rdma::adaptor::address::{Geometry, Location, NodeId, NodeSet, Place};
use assured_rdma::adaptor::memory::{MemoryFault, MemoryOperation, MemoryResult, Segment};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::framing::Framer;
use assured_rdma::adaptor::transaction::{Payload, Request, RequestKind, TransactionId};
use assured_rdma::adaptor::{Adaptor, Instant, LoadTag, Region, Settings, backplane};
use bytes::Bytes;

use queue::{Entry, FLAG_LIST, HEAD_SIZE, Queue, SUBMISSION_SIZE, Shared, descriptor, list};

/// Counts the bytes that are held.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's allocator's; only numbers are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
/// One test counts at a time.
static TURN: Mutex<()> = Mutex::new(());

const OWN: NodeId = NodeId(0);
const NODES: u16 = 256;
const MEMORY: usize = 32 << 20;
const IO_PART: u64 = NODES as u64 * (64 << 10);

/// The bound that the documentation gives for what follows "at most" before these words, in bytes.
fn documented(what: &str) -> usize {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
    let text = std::fs::read_to_string(path).unwrap().replace('\n', " ");
    let before = text.split(what).next().unwrap();
    assert_ne!(before.len(), text.len(), "the page does not say what is held {what}");
    let words: Vec<&str> = before.split_whitespace().collect();
    let [.., number, "MiB"] = words[..] else { panic!("no bound before {what:?}") };
    number.parse::<usize>().unwrap() << 20
}

struct Stage {
    now: Instant,
    own: Adaptor,
    peers: Vec<Adaptor>,
    memory: Vec<u8>,
    cookie: u32,
}

impl Shared for std::cell::RefCell<&mut Vec<u8>> {
    fn load(&self, at: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.borrow()[at as usize..][..out.len()]);
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn adaptor(node: NodeId) -> Adaptor {
    let settings = Settings {
        node,
        geometry: Geometry::new(NODES, 1 << 20).unwrap(),
        peers: NodeSet::ALL,
        timing: Timing {
            deadline: Duration::from_secs(1),
            lease: Duration::from_millis(300),
            keepalive: Duration::from_secs(9),
        },
        gather: Duration::ZERO,
        seed: u64::from(node.0) + 7,
    };
    let mut adaptor = Adaptor::new(settings);
    adaptor.handle_store(Instant::ZERO, Region::Config, 4, &[6, 0]).unwrap();
    adaptor
}

impl Stage {
    /// One adaptor and so many others beside it, which know each other.
    fn new(peers: u8) -> Self {
        let mut own = adaptor(OWN);
        let mut peers: Vec<_> = (1..=peers).map(|node| adaptor(NodeId(node))).collect();
        let mut now = Instant::from_nanos(1_000_000);
        let mut all: Vec<_> = core::iter::once(&mut own).chain(&mut peers).collect();
        backplane::join(now, &mut all);
        for _ in 0..50 {
            while backplane::exchange(now, &mut all) {}
            now = now.after(Duration::from_millis(1));
            all.iter_mut().for_each(|adaptor| adaptor.handle_timeout(now));
        }
        Self { now, own, peers, memory: vec![0; MEMORY], cookie: 0 }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn execute(&mut self, operation: &MemoryOperation) -> MemoryResult {
        let range = |segment: &Segment| segment.address as usize..segment.address as usize + segment.len;
        match operation {
            MemoryOperation::Read { segments, .. } => {
                Ok(segments.iter().flat_map(|segment| self.memory[range(segment)].to_vec()).collect())
            }
            MemoryOperation::Descriptor { segment, .. } => {
                Ok(Bytes::copy_from_slice(&self.memory[range(segment)]))
            }
            MemoryOperation::Touch { .. } => Ok(Bytes::new()),
            MemoryOperation::Write { segments, data, .. } => {
                let mut rest = &data[..];
                for segment in segments {
                    let (part, behind) = rest.split_at(segment.len);
                    self.memory[range(segment)].copy_from_slice(part);
                    rest = behind;
                }
                Ok(Bytes::new())
            }
            MemoryOperation::Atomic { .. } => Ok(Bytes::from_static(&[0; 8])),
            MemoryOperation::Transfer { .. } => Err(MemoryFault::Lender),
        }
    }

    /// Does everything that there is to do without the others.
    fn settle(&mut self) {
        loop {
            while let Some(operation) = self.own.poll_memory(self.now) {
                let result = self.execute(&operation);
                self.own.handle_memory_done(self.now, operation.id(), result);
            }
            if self.own.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.own.handle_timeout(self.now);
        }
    }

    fn load(&mut self, offset: u64) -> u64 {
        self.own.handle_load(self.now, LoadTag(1), Region::Registers, offset, 8);
        u64::from_le_bytes(self.own.poll_completion().unwrap().data[..].try_into().unwrap())
    }

    /// Gives a command, and returns its result.
    fn command(&mut self, opcode: u32, fields: &[(usize, u64)]) -> u64 {
        self.cookie += 1;
        let mut bytes = descriptor(fields);
        for (at, word) in [(0, u32::from_le_bytes(*b"ARDC")), (4, self.cookie), (8, opcode)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.put(0, &bytes);
        for (register, word) in [(0x40, 0), (0x44, 0), (0x48, self.cookie), (0x4c, opcode)] {
            self.own.handle_store(self.now, Region::Registers, register, &word.to_le_bytes()).unwrap();
        }
        self.settle();
        assert_eq!(self.load(0x50) as u32, 0, "opcode {opcode}");
        self.load(0x58)
    }
}

/// Where list pages begin, and what is not theirs: rings, a scatter list, data.
const LISTS: usize = 0x1000;
const REST: usize = 20 << 20;

/// A list of a million runs that do not touch, all in the same pages.
fn write_runs(stage: &mut Stage, runs: usize) {
    let (mut left, mut at) = (runs, LISTS);
    while left > 0 {
        let count = left.min(255);
        left -= count;
        for run in 0..count {
            let address = (REST + 0x2000 * (run % 2)) as u64;
            stage.put(at + 16 * run, &[address, 0x1000].map(u64::to_le_bytes).concat());
        }
        let next = if left > 0 { at + 4096 } else { 0 };
        stage.put(at + 0xff0, &(next as u64).to_le_bytes());
        at += 4096;
    }
}

#[test]
fn a_guest_at_all_of_its_limits_is_held_within_what_is_documented() {
    const RUNS: u64 = 1 << 20;
    const ENTRIES: u64 = 4096;
    let _turn = TURN.lock().unwrap();
    // As many nodes as the engine may have requests under way for.
    let mut stage = Stage::new(17);
    write_runs(&mut stage, RUNS as usize);
    let before = HELD.load(Ordering::Relaxed);

    let shape = [(0x18, RUNS << 12), (0x28, LISTS as u64)];
    let export = [&shape[..], &[(0x10, 1 << 40), (0x20, 0x23 | RUNS << 32)]].concat();
    stage.command(1, &export);
    for _ in 0..3 {
        stage.command(4, &[&shape[..], &[(0x20, 3 | RUNS << 32)]].concat());
    }
    // One more, with the rings of all queues: they are in the same memory.
    let (len, submissions) = (4u64 << 20, 0u64);
    stage.put(LISTS, &[(REST as u64), len].map(u64::to_le_bytes).concat());
    stage.put(LISTS + 0xff0, &[0; 8]);
    let key = stage.command(4, &[(0x18, len), (0x20, 3 | 1 << 32), (0x28, LISTS as u64)]) as u32;
    let completions = ENTRIES * SUBMISSION_SIZE + HEAD_SIZE;
    let mut queues = Vec::new();
    for _ in 0..4096 {
        let fields = [
            (0x10, submissions),
            (0x18, completions),
            (0x20, u64::from(ENTRIES.ilog2()) << 32),
            (0x30, u64::from(key) << 32),
        ];
        queues.push(stage.command(6, &fields));
    }
    // Each entry is about a thousand bytes that are scattered.
    let table = 1u64 << 20;
    let pieces: Vec<_> = (0..1024u64).map(|at| (key, (2 << 20) + 0x400 * at + 1, 1)).collect();
    stage.put(REST + table as usize, &list(&pieces));
    let mut ring = Queue::new(REST as u64, REST as u64 + completions, ENTRIES as u32);
    for index in 0..ENTRIES {
        let entry = Entry {
            opcode: if index % 2 == 0 { queue::READ } else { queue::WRITE },
            flags: FLAG_LIST,
            node: 1 + (index % 17) as u8,
            len: 1024,
            key,
            list_entries: 1024,
            local: table,
            ..Entry::default()
        };
        ring.post(&std::cell::RefCell::new(&mut stage.memory), &entry);
    }
    for number in queues {
        let at = 3 * IO_PART + number * 4096;
        stage.own.handle_store(stage.now, Region::Io, at, &[0; 4]).unwrap();
        stage.settle();
    }
    // And the bus's own stores: as many as find a buffer.
    let mut stores = 0u64;
    while stores < 100_000 {
        let (node, offset) = (1 + stores % 17, stores / 17 * 16 % (1 << 20));
        if stage.own.handle_store(stage.now, Region::Access, node << 20 | offset, &[1; 8]).is_err() {
            break;
        }
        stores += 1;
    }
    let held = HELD.load(Ordering::Relaxed) - before;
    let bound = documented("for its guest");
    println!("{} KiB are held for a guest, of {} KiB", held >> 10, bound >> 10);
    assert!(held <= bound, "{held} bytes of {bound}");
    assert!(held > bound / 3, "{held} bytes: the limits were not reached");
}

/// Packets of `from` for the first adaptor, over a wire: nothing is shared.
fn carry(from: &mut Adaptor, stage_now: Instant, own: &mut Adaptor, framer: &mut Framer) {
    let mut load = |source: &assured_rdma::adaptor::memory::Source| Ok(Bytes::from(vec![5; source.len]));
    while let Some(packet) = from.poll_packet(stage_now, OWN, &mut load) {
        let mut wire = Vec::new();
        packet.emit(&mut wire);
        framer.push(&wire);
        drop(wire);
        while let Some(packet) = framer.next_packet() {
            let packet = packet.unwrap();
            own.handle_packet(stage_now, packet.source, packet);
        }
    }
}

#[test]
fn a_peer_at_all_of_its_limits_is_held_within_what_is_documented() {
    let _turn = TURN.lock().unwrap();
    let mut stage = Stage::new(1);
    write_runs(&mut stage, 1);
    stage.put(LISTS, &[(REST as u64), 1 << 20].map(u64::to_le_bytes).concat());
    let nodes = [0x40, 0x48, 0x50, 0x58].map(|at| (at, u64::MAX));
    let fields = [(0x10, 0), (0x18, 1 << 20), (0x20, 3 | 1 << 32), (0x28, LISTS as u64)];
    stage.command(1, &[&fields[..], &nodes].concat());
    let before = HELD.load(Ordering::Relaxed);
    let mut framer = Framer::default();
    let place = Place { node: OWN, at: Location::memory(0) };
    let mut peer = stage.peers.remove(0);
    let with_peer = HELD.load(Ordering::Relaxed);
    // Reads that are executed and whose answers it does not take, then writes that may not be executed.
    for id in 0..2000 {
        let kind = if id < 30 {
            RequestKind::Read { len: 0x1_0000 }
        } else if id < 70 {
            RequestKind::Write(Payload::Bytes(Bytes::from_static(&[1; 0x1_0000])))
        } else {
            RequestKind::Write(Payload::Bytes(Bytes::from_static(&[1; 8])))
        };
        let posted = stage.now;
        peer.handle_bulk(stage.now, Request { id: TransactionId(id), place, kind, posted });
    }
    let own_of_peer = HELD.load(Ordering::Relaxed) - with_peer;
    let _ = before;
    carry(&mut peer, stage.now, &mut stage.own, &mut framer);
    stage.settle();
    carry(&mut peer, stage.now, &mut stage.own, &mut framer);
    let held = HELD.load(Ordering::Relaxed) - with_peer - own_of_peer;
    let bound = documented("for each peer");
    println!("{} KiB are held for a peer, of {} KiB", held >> 10, bound >> 10);
    assert!(held <= bound, "{held} bytes of {bound}");
    assert!(held > bound / 5, "{held} bytes: the limits were not reached");
}
