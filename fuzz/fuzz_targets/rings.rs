//! A guest that writes whatever it likes into the rings of its queues, their doorbells and its commands, against a whole adaptor.
//!
//! What has to hold: the engine touches registered memory only, and at the other node what is exported only; and every step
//! ends after a bounded number of operations.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use assured_rdma::adaptor::address::{Geometry, NodeId};
use assured_rdma::adaptor::memory::{MemoryFault, MemoryOperation, Segment};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::{Adaptor, Instant, Region, Settings, backplane};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

/// Guest memory: a page for descriptors, one for lists, and the rest, of which the first half can be registered.
const MEMORY: usize = 0x2_0000;
const DESCRIPTOR: usize = 0;
const LIST: usize = 0x1000;
const OPEN: std::ops::Range<u64> = 0x2000..0x1_0000;
/// The other node exports this much, from the beginning of its memory.
const EXPORTED: u64 = 0x4000;
const WINDOW: u64 = 1 << 20;
/// Where doorbell pages begin in BAR1.
const PAGES: u64 = 3 << 20;
const STEPS: usize = 300;
/// Memory operations of one step, at most: a ring of 4096 entries, each of which can have a list and many pieces.
const OPERATIONS: usize = 200_000;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Registers memory from this page on.
    Register {
        page: u8,
        pages: u8,
        rights: u8,
        domain: u8,
    },
    /// A queue with rings at these multiples of 64.
    Create {
        key: u8,
        submissions: u16,
        completions: u16,
        log2: u8,
        coalesce: u8,
        domain: u8,
    },
    Deregister(u8),
    Destroy(u8),
    /// A descriptor of any bytes.
    Command {
        opcode: u8,
        fields: Vec<(u8, u64)>,
    },
    /// Any bytes in the guest's memory.
    Poke {
        at: u16,
        bytes: Vec<u8>,
    },
    /// An entry for a queue that may be there: the next one of its ring, or one beside it.
    Post {
        queue: u8,
        skew: u8,
        opcode: u8,
        flags: u8,
        remote: u32,
        len: u32,
        key: u8,
        local: u32,
        operand: u64,
    },
    Ring {
        queue: u8,
        register: u8,
        value: u32,
    },
    Probe,
    Wait(u16),
    Link(bool),
    Master(bool),
    Reset,
    ResetOther,
}

struct Queue {
    number: u32,
    submissions: u64,
    entries: u32,
    posted: u32,
}

struct Stage {
    now: Instant,
    nodes: [Adaptor; 2],
    memories: [Vec<u8>; 2],
    keys: Vec<u32>,
    queues: Vec<Queue>,
    cookie: u32,
    linked: bool,
}

fn adaptor(node: u8) -> Adaptor {
    let ms = Duration::from_millis;
    let timing = Timing { deadline: ms(500), lease: ms(150), keepalive: ms(2000) };
    let mut adaptor = Adaptor::new(Settings {
        node: NodeId(node),
        geometry: Geometry::new(16, WINDOW).unwrap(),
        peers: [NodeId(1), NodeId(2)].into_iter().collect(),
        timing,
        gather: Duration::ZERO,
        seed: u64::from(node),
    });
    adaptor.handle_store(Instant::ZERO, Region::Config, 4, &[6, 0]).unwrap();
    adaptor
}

impl Stage {
    fn new() -> Self {
        let mut stage = Self {
            now: Instant::from_nanos(1_000_000),
            nodes: [adaptor(1), adaptor(2)],
            memories: [vec![0; MEMORY], vec![0; MEMORY]],
            keys: vec![0],
            queues: Vec::new(),
            cookie: 0,
            linked: false,
        };
        stage.nodes[0].set_queue_poll(Duration::from_micros(50));
        stage.link(true);
        stage.export();
        stage
    }

    fn link(&mut self, up: bool) {
        self.linked = up;
        let [a, b] = &mut self.nodes;
        if up {
            backplane::join(self.now, &mut [a, b]);
        } else {
            a.handle_link_down(self.now, NodeId(2));
            b.handle_link_down(self.now, NodeId(1));
        }
        self.settle();
    }

    fn export(&mut self) {
        let list = [0u64, EXPORTED].map(u64::to_le_bytes).concat();
        self.memories[1][LIST..LIST + 16].copy_from_slice(&list);
        let rights = 0b1_0011 | 1 << 32;
        let fields = [(0x10, 0), (0x18, EXPORTED), (0x20, rights), (0x28, LIST as u64), (0x40, u64::MAX)];
        self.command(1, 1, &fields);
    }

    fn command(&mut self, node: usize, opcode: u32, fields: &[(u8, u64)]) -> Option<u32> {
        self.cookie += 1;
        let descriptor = &mut self.memories[node][DESCRIPTOR..DESCRIPTOR + 128];
        descriptor.fill(0);
        for &(at, value) in fields {
            let at = usize::from(at) % 121;
            descriptor[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        for (at, word) in [(0, 0x4344_5241), (4, self.cookie), (8, opcode)] {
            descriptor[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        for (register, value) in [(0x40, 0), (0x44, 0), (0x48, self.cookie), (0x4c, opcode)] {
            let bytes = value.to_le_bytes();
            self.nodes[node].handle_store(self.now, Region::Registers, register, &bytes).unwrap();
        }
        self.settle();
        // A refusal leaves a result of 0.
        let tag = assured_rdma::adaptor::LoadTag(0);
        self.nodes[node].handle_load(self.now, tag, Region::Registers, 0x50, 16);
        let data = self.nodes[node].poll_completion().unwrap().data;
        let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
        (word(0) == 0).then(|| word(8))
    }

    /// Carries out everything that follows.
    fn settle(&mut self) {
        let mut operations = 0;
        loop {
            let mut progress = false;
            for node in 0..2 {
                while let Some(operation) = self.nodes[node].poll_memory(self.now) {
                    progress = true;
                    operations += 1;
                    assert!(operations < OPERATIONS, "it does not come to an end");
                    self.execute(node, &operation);
                }
                while self.nodes[node].poll_event().is_some() {}
                while self.nodes[node].poll_interrupt().is_some() {}
            }
            if self.linked {
                let [a, b] = &mut self.nodes;
                progress |= backplane::exchange(self.now, &mut [a, b]);
            }
            if !progress {
                return;
            }
        }
    }

    fn execute(&mut self, node: usize, operation: &MemoryOperation) {
        let result = match operation {
            MemoryOperation::Read { .. } | MemoryOperation::Descriptor { .. } => {
                self.read(node, operation.segments())
            }
            MemoryOperation::Touch { segments, .. } => self.read(node, segments).map(|_| Bytes::new()),
            MemoryOperation::Write { segments, data, .. } => self.write(node, segments, data),
            MemoryOperation::Transfer { segments, from, .. } => {
                let lender = usize::from(from.lender.0) - 1;
                let lends = self.nodes[lender].lends(from);
                let data =
                    if lends { self.read(lender, &from.source.segments) } else { Err(MemoryFault::Lender) };
                data.and_then(|data| self.write(node, segments, &data))
            }
            MemoryOperation::Atomic { segment, action, .. } => {
                judge(node, segment, true);
                let place = &mut self.memories[node][segment.address as usize..][..8];
                let former: [u8; 8] = place.try_into().unwrap();
                place.copy_from_slice(&action.apply(u64::from_le_bytes(former)).to_le_bytes());
                Ok(Bytes::copy_from_slice(&former))
            }
        };
        self.nodes[node].handle_memory_done(self.now, operation.id(), result);
    }

    fn read(&self, node: usize, segments: &[Segment]) -> Result<Bytes, MemoryFault> {
        segments.iter().for_each(|segment| judge(node, segment, false));
        let memory = &self.memories[node];
        let parts = segments.iter().map(|segment| &memory[segment.address as usize..][..segment.len]);
        Ok(parts.collect::<Vec<_>>().concat().into())
    }

    fn write(&mut self, node: usize, segments: &[Segment], data: &[u8]) -> Result<Bytes, MemoryFault> {
        segments.iter().for_each(|segment| judge(node, segment, true));
        assert_eq!(segments.iter().map(|segment| segment.len).sum::<usize>(), data.len());
        let mut rest = data;
        for segment in segments {
            let (part, behind) = rest.split_at(segment.len);
            self.memories[node][segment.address as usize..][..segment.len].copy_from_slice(part);
            rest = behind;
        }
        Ok(Bytes::new())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Register { page, pages, rights, domain } => {
                let first = u64::from(page) % 14;
                let pages = 1 + u64::from(pages) % (14 - first);
                let list = [OPEN.start + first * 4096, pages * 4096].map(u64::to_le_bytes).concat();
                self.memories[0][LIST..LIST + 4096].fill(0);
                self.memories[0][LIST..LIST + 16].copy_from_slice(&list);
                let rights = u64::from(rights % 4);
                let fields = [
                    (0x18, pages * 4096),
                    (0x20, rights | 1 << 32),
                    (0x28, LIST as u64),
                    (0x30, u64::from(domain % 2)),
                ];
                let key = self.command(0, 4, &fields);
                self.keys.extend(key);
            }
            Step::Create { key, submissions, completions, log2, coalesce, domain } => {
                let key = self.key(key);
                let (submissions, completions) = (u64::from(submissions) * 64, u64::from(completions) * 64);
                let fields = [
                    (0x10, submissions),
                    (0x18, completions),
                    (0x20, u64::from(log2 % 13) << 32),
                    (0x28, u64::from(coalesce % 4) | 100 << 32),
                    (0x30, u64::from(key) << 32 | u64::from(domain % 2)),
                ];
                if let Some(number) = self.command(0, 6, &fields) {
                    let entries = 1 << (log2 % 13);
                    self.queues.push(Queue {
                        number,
                        submissions: OPEN.start + submissions,
                        entries,
                        posted: 0,
                    });
                }
            }
            Step::Deregister(key) => {
                let key = self.key(key);
                self.command(0, 5, &[(0x30, u64::from(key) << 32)]);
            }
            Step::Destroy(number) => {
                self.command(0, 7, &[(0x10, number.into())]);
            }
            Step::Command { opcode, fields } => {
                // A list anywhere may name memory that is none of this target's business.
                if matches!(opcode, 5..=7) {
                    self.command(0, opcode.into(), &fields);
                }
            }
            Step::Poke { at, bytes } => {
                let at = OPEN.start as usize + usize::from(at) % 0xe000;
                let len = bytes.len().min(MEMORY - at);
                self.memories[0][at..at + len].copy_from_slice(&bytes[..len]);
            }
            Step::Post { queue, skew, opcode, flags, remote, len, key, local, operand } => {
                let key = self.key(key);
                let count = self.queues.len().max(1);
                let Some(queue) = self.queues.get_mut(usize::from(queue) % count) else { return };
                let index = queue.posted;
                queue.posted = queue.posted.wrapping_add(1).wrapping_add(u32::from(skew == 7));
                let mut entry = [0; 64];
                entry[..4].copy_from_slice(&index.wrapping_add(1).to_le_bytes());
                entry[4..8].copy_from_slice(&[opcode % 8, flags & 0xf, 2, operand as u8]);
                let fields =
                    [u64::from(index), remote.into(), len.into(), key.into(), local.into(), operand, operand];
                for (at, value) in (0x08..).step_by(8).zip(fields) {
                    entry[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
                let at = queue.submissions + u64::from(index % queue.entries) * 64;
                if let Some(place) = self.memories[0].get_mut(at as usize..at as usize + 64) {
                    place.copy_from_slice(&entry);
                }
            }
            Step::Ring { queue, register, value } => {
                let count = self.queues.len().max(1);
                let number =
                    self.queues.get(usize::from(queue) % count).map_or(queue.into(), |queue| queue.number);
                let at = PAGES + u64::from(number) * 4096 + u64::from(register % 4) * 8;
                self.nodes[0].handle_store(self.now, Region::Io, at, &value.to_le_bytes()).unwrap();
            }
            Step::Probe => {
                while let Some(operation) = self.nodes[0].poll_probe(self.now) {
                    self.execute(0, &operation);
                }
            }
            Step::Wait(micros) => {
                self.now = self.now.after(Duration::from_micros(u64::from(micros) * 8));
                for node in &mut self.nodes {
                    if node.poll_timeout().is_some_and(|at| at <= self.now) {
                        node.handle_timeout(self.now);
                    }
                }
            }
            Step::Link(up) => self.link(up),
            Step::Master(on) => {
                let command = if on { 6 } else { 2 };
                self.nodes[0].handle_store(self.now, Region::Config, 4, &[command, 0]).unwrap();
            }
            Step::Reset => {
                self.nodes[0].handle_reset(self.now);
                self.nodes[0].handle_store(self.now, Region::Config, 4, &[6, 0]).unwrap();
                self.queues.clear();
            }
            Step::ResetOther => {
                self.nodes[1].handle_reset(self.now);
                self.nodes[1].handle_store(self.now, Region::Config, 4, &[6, 0]).unwrap();
                self.export();
            }
        }
        self.settle();
    }

    fn key(&self, index: u8) -> u32 {
        self.keys[usize::from(index) % self.keys.len()]
    }
}

/// Whether the engine, or a request of the other node, may touch these bytes.
fn judge(node: usize, segment: &Segment, is_write: bool) {
    let end = segment.address.checked_add(segment.len as u64).expect("a segment does not wrap");
    let is_command = end <= OPEN.start && !is_write;
    let is_granted = match node {
        0 => OPEN.start <= segment.address && end <= OPEN.end,
        _ => end <= EXPORTED,
    };
    assert!(is_command || is_granted, "isolation: {segment:?} of node {node}");
}

fuzz_target!(|steps: Vec<Step>| {
    let mut stage = Stage::new();
    steps.into_iter().take(STEPS).for_each(|step| stage.step(step));
});
