//! The DMA engine between nodes of the simulated network.
//!
//! Each node has registered memory behind its exported window: rings first, then data.

mod errors;
mod lifecycle;
mod operations;
mod outcomes;
mod schedule;
mod telling;
mod truth;

use std::cell::RefCell;
use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::NodeId;

use crate::queue::{self, ARM, Completion, Entry, PAGE, Queue, RESUME, SUBMITTED, Shared, descriptor};
use crate::world::{DEADLINE, MEMORY, World};

pub const A: NodeId = NodeId(1);
pub const B: NodeId = NodeId(2);
pub const DOMAIN: u32 = 0x77;
/// Where registered memory begins in the guest's.
pub const BASE: u64 = 0x20_000;
pub const LEN: u64 = MEMORY as u64 - BASE;
/// Where data begins in registered memory.
pub const DATA: u64 = 0x8_000;

const REGISTER: u32 = 4;
const DEREGISTER: u32 = 5;
const CREATE_QUEUE: u32 = 6;
const DESTROY_QUEUE: u32 = 7;

/// Guest memory from an address on.
struct Memory<'a>(RefCell<&'a mut [u8]>, u64);

impl Shared for Memory<'_> {
    fn load(&self, at: u64, out: &mut [u8]) {
        let at = (self.1 + at) as usize;
        out.copy_from_slice(&self.0.borrow()[at..at + out.len()]);
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        let at = (self.1 + at) as usize;
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// A queue of a node.
#[derive(Clone, Debug)]
pub struct Poster {
    pub node: NodeId,
    pub number: u32,
    pub key: u32,
    pub queue: Queue,
}

/// Registers all of a node's memory for the engine.
pub fn register(world: &mut World, at: NodeId, domain: u32, rights: u64) -> u32 {
    world.memory(at)[0x1000..0x2000].fill(0);
    world.memory(at)[0x1000..0x1008].copy_from_slice(&BASE.to_le_bytes());
    world.memory(at)[0x1008..0x1010].copy_from_slice(&LEN.to_le_bytes());
    let fields = [(0x18, LEN), (0x20, rights | 1 << 32), (0x28, 0x1000), (0x30, domain.into())];
    assert_eq!(world.command(at, REGISTER, descriptor(&fields)), 0, "the memory is registered");
    world.register(at, 0x58) as u32
}

pub fn deregister(world: &mut World, at: NodeId, key: u32) -> u64 {
    world.command(at, DEREGISTER, descriptor(&[(0x30, u64::from(key) << 32)]))
}

/// The command that makes a queue with its rings at `place` in the memory of the key.
pub fn create(
    world: &mut World,
    at: NodeId,
    (domain, key): (u32, u32),
    place: u64,
    log2: u32,
    coalesce: u64,
) -> Result<Poster, u64> {
    let entries = 1 << log2;
    let completions = place + entries * queue::SUBMISSION_SIZE + queue::HEAD_SIZE;
    let end = completions + entries * queue::COMPLETION_SIZE;
    let end = (BASE + end).min(MEMORY as u64);
    world.memory(at)[(BASE + place) as usize..end as usize].fill(0);
    let fields = [
        (0x10, place),
        (0x18, completions),
        (0x20, u64::from(log2) << 32),
        (0x28, coalesce),
        (0x30, u64::from(key) << 32 | u64::from(domain)),
    ];
    match world.command(at, CREATE_QUEUE, descriptor(&fields)) {
        0 => {
            let number = world.register(at, 0x58) as u32;
            Ok(Poster { node: at, number, key, queue: Queue::new(place, completions, entries as u32) })
        }
        status => Err(status),
    }
}

pub fn destroy(world: &mut World, at: NodeId, number: u32) -> u64 {
    world.command(at, DESTROY_QUEUE, descriptor(&[(0x10, number.into())]))
}

/// A node's memory, registered, with a queue of 64 entries.
pub fn poster(world: &mut World, at: NodeId) -> Poster {
    let key = register(world, at, DOMAIN, 3);
    create(world, at, (DOMAIN, key), 0, 6, 0).unwrap()
}

/// Two nodes, and a queue of the first.
pub fn pair() -> (World, Poster) {
    let mut world = World::new(7, 2);
    let poster = poster(&mut world, A);
    (world, poster)
}

impl Poster {
    pub fn ring(&self, world: &mut World, offset: u64, value: u32) {
        let at = (3 << 20) + u64::from(self.number) * PAGE + offset;
        let now = world.local(self.node);
        world.adaptor(self.node).handle_store(now, Region::Io, at, &value.to_le_bytes()).unwrap();
        world.take_outputs();
    }

    /// Posts an entry without a doorbell.
    pub fn post(&mut self, world: &mut World, entry: &Entry) {
        self.queue.post(&Memory(RefCell::new(world.memory(self.node)), BASE), entry);
    }

    /// Posts entries and rings if that is needed.
    pub fn post_all(&mut self, world: &mut World, entries: &[Entry]) {
        entries.iter().for_each(|entry| self.post(world, entry));
        if self.queue.must_ring(&Memory(RefCell::new(world.memory(self.node)), BASE)) {
            self.ring(world, SUBMITTED, self.queue.posted);
        }
    }

    pub fn poll(&mut self, world: &mut World) -> Option<Completion> {
        self.queue.poll(&Memory(RefCell::new(world.memory(self.node)), BASE))
    }

    /// Lets time pass until the next completion.
    pub fn wait(&mut self, world: &mut World) -> Completion {
        let start = world.now;
        loop {
            if let Some(completion) = self.poll(world) {
                return completion;
            }
            assert!(world.now.since(start) <= 4 * DEADLINE, "bounded: no completion");
            world.step();
        }
    }

    /// Posts one entry and waits for its completion.
    pub fn run(&mut self, world: &mut World, entry: &Entry) -> Completion {
        self.post_all(world, core::slice::from_ref(entry));
        self.wait(world)
    }

    /// A write of local memory, both offsets from where data begins.
    pub fn write(&self, cookie: u64, local: u64, remote: u64, len: u64) -> Entry {
        let (key, local) = (self.key, DATA + local);
        Entry { opcode: queue::WRITE, node: B.0, cookie, remote, len, key, local, ..Entry::default() }
    }

    pub fn read(&self, cookie: u64, local: u64, remote: u64, len: u64) -> Entry {
        Entry { opcode: queue::READ, ..self.write(cookie, local, remote, len) }
    }

    pub fn arm(&self, world: &mut World, index: u32) {
        self.ring(world, ARM, index);
    }

    pub fn resume(&self, world: &mut World) {
        self.ring(world, RESUME, self.queue.posted);
    }

    /// The node's data, from this byte of it on.
    pub fn data<'a>(&self, world: &'a mut World, at: u64, len: u64) -> &'a mut [u8] {
        let begin = (BASE + DATA + at) as usize;
        &mut world.memory(self.node)[begin..begin + len as usize]
    }
}

/// What a node exports, from this byte of the window on.
pub fn exported(world: &mut World, at: NodeId, offset: u64, len: u64) -> &mut [u8] {
    let begin = (crate::world::EXPORTED + offset) as usize;
    &mut world.memory(at)[begin..begin + len as usize]
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + seed * 13) ^ (at >> 8)) as u8).collect()
}

/// As long as nothing happens in it, nothing does.
pub const A_WHILE: Duration = Duration::from_millis(50);
