//! Two nodes with a guest each, the near one of which uses memory that the far one has exported.

use std::path::Path;

use super::guest::queue::{COMPLETION_SIZE, Entry, HEAD_SIZE, Queue, SUBMISSION_SIZE, SUBMITTED};
use super::guest::{ACCESS, ASSURANCE, Guest, READ, REGISTERS, WINDOW, WRITE};
use super::node::{Node, Place};
use super::wire::{Wait, Wire, load, store};

/// The near guest's node, and the far one's. An adaptor with two buses can have both.
pub const NEAR: u8 = 2;
pub const FAR: u8 = 3;
/// How many bytes the far guest exports, from offset 0 of its window on.
pub const EXPORTED: u64 = 1 << 20;
/// How many bytes a check is about.
pub const BLOCK: u64 = 4096;
/// Where they are in the far guest's memory.
const BUFFER: u64 = 1 << 20;
/// Where queues are.
const RINGS: u64 = BUFFER + EXPORTED;
const ENTRIES: u32 = 2048;
/// The completions, behind the submissions and their own head.
const COMPLETIONS: u64 = ENTRIES as u64 * SUBMISSION_SIZE + HEAD_SIZE;
const RINGS_SIZE: u64 = (COMPLETIONS + ENTRIES as u64 * COMPLETION_SIZE).next_multiple_of(4096);
const MEMORY: u64 = RINGS + RINGS_SIZE;
const DOMAIN: u32 = 1;

const RANGE_START: u64 = 0x108;
const RANGE_STATUS: u64 = 0x118;

/// The guest that starts everything.
pub type Near = Guest<Wire>;

/// See the module.
pub struct Pair {
    pub near: Near,
    far: Guest<Wire>,
    /// Where the window begins.
    window: u64,
    /// The near guest's first.
    pub nodes: Vec<Node>,
    /// Goes last, when nobody is left in it.
    _place: Place,
}

impl Pair {
    /// Two adaptors, linked over TCP; they and the guests wait in this way.
    pub fn start(wait: Wait) -> Self {
        let place = Place::new();
        let nodes = vec![place.start(NEAR, &[FAR], options(wait)), place.start(FAR, &[NEAR], options(wait))];
        Self::meet(place, nodes, wait)
    }

    /// As [`Self::start`], with somebody in between: the near adaptor dials what `between` makes of the far one's address.
    pub fn start_over(wait: Wait, between: impl FnOnce(&Place) -> String) -> Self {
        let place = Place::new();
        let own = NEAR.to_string();
        let far = place.start(FAR, &[], &[options(wait), &["--peer", &own]].concat());
        let peer = format!("{FAR}={}", between(&place));
        let near = place.start(NEAR, &[], &[options(wait), &["--peer", &peer]].concat());
        Self::meet(place, vec![near, far], wait)
    }

    /// One adaptor with two buses.
    pub fn start_on_one_adaptor(wait: Wait) -> Self {
        let place = Place::new();
        let socket = place.socket(FAR).display().to_string();
        let nodes = vec![place.start(NEAR, &[], &[options(wait), &["--socket-path", &socket]].concat())];
        Self::meet(place, nodes, wait)
    }

    fn meet(place: Place, nodes: Vec<Node>, wait: Wait) -> Self {
        let mut near = attach(&place.socket(NEAR), MEMORY, wait);
        let mut far = attach(&place.socket(FAR), MEMORY, wait);
        let (near_life, far_life) = (near.incarnation(), far.incarnation());
        near.wait_for_life(FAR, far_life);
        far.wait_for_life(NEAR, near_life);
        let window = far.export(BUFFER, EXPORTED, READ | WRITE);
        Self { near, far, window, nodes, _place: place }
    }

    /// An offset in BAR2 and BAR4 of the near guest.
    pub fn at(&self, offset: u64) -> u64 {
        WINDOW * u64::from(FAR) + self.window + offset
    }

    /// What is in the far guest's memory.
    pub fn memory(&self, offset: u64) -> [u8; 8] {
        self.far.memory(BUFFER + offset)
    }

    /// A queue of the near guest, for transfers between its memory and what the far one exports.
    pub fn engine(&mut self) -> Engine {
        let key = self.near.register_memory(BUFFER, EXPORTED, DOMAIN);
        let rings = self.near.register_memory(RINGS, RINGS_SIZE, DOMAIN);
        let number = self.near.create_queue(rings, DOMAIN, (0, COMPLETIONS), ENTRIES);
        Engine { queue: Queue::new(RINGS, RINGS + COMPLETIONS, ENTRIES), number, key, window: self.window }
    }

    /// Messages that store `len` bytes, 8 at a time, all of them `value`.
    pub fn stores(&self, len: u64, value: u64) -> Vec<u8> {
        (0..len).step_by(8).flat_map(|offset| store(ACCESS, self.at(offset), &value.to_le_bytes())).collect()
    }

    /// Messages whose answer is the status of the first `len` bytes: a check, or a question about the range where it is more than a block.
    pub fn check(&self, len: u64) -> Vec<u8> {
        if len <= BLOCK {
            return load(ASSURANCE, self.at(0), 4);
        }
        let address = u64::from(FAR) << 48 | self.window;
        [
            store(REGISTERS, RANGE_START, &address.to_le_bytes()),
            store(REGISTERS, RANGE_START + 8, &(address + len).to_le_bytes()),
            load(REGISTERS, RANGE_STATUS, 4),
        ]
        .concat()
    }

    /// Loads the first `len` bytes, 8 at a time, and holds them against `value`.
    pub fn read_back(&mut self, len: u64, value: u64) {
        let mut message = load(ACCESS, self.at(0), 8);
        for offset in (0..len).step_by(8) {
            message[16..24].copy_from_slice(&self.at(offset).to_le_bytes());
            assert_eq!(self.near.client.ask(&message), value.to_le_bytes(), "at {offset:#x}");
        }
    }
}

/// A queue, and what its operations are about.
pub struct Engine {
    pub queue: Queue,
    number: u32,
    key: u32,
    window: u64,
}

impl Engine {
    /// Rings the doorbell, where it has to be.
    pub fn ring(&self, near: &mut Near) {
        if self.queue.must_ring(near) {
            near.ring_queue(self.number, SUBMITTED, self.queue.posted);
        }
    }

    /// The operation of this number: each is about the bytes behind those of the one before, and at the end they begin again.
    pub fn operation(&self, opcode: u8, len: u64, number: u64) -> Entry {
        let at = number * len % EXPORTED;
        Entry {
            opcode,
            node: FAR,
            remote: self.window + at,
            len,
            key: self.key,
            local: at,
            ..Entry::default()
        }
    }
}

/// Attaches a guest with so much memory.
pub fn attach(socket: &Path, memory: u64, wait: Wait) -> Guest<Wire> {
    Guest::over(Wire::connect(socket, wait), memory)
}

/// What makes an adaptor wait in this way; polling is its default. On a busy machine nothing shall fail because it is late.
fn options(wait: Wait) -> &'static [&'static str] {
    match wait {
        Wait::Block => &["--poll", "0s", "--deadline", "4s"],
        Wait::Poll => &["--deadline", "4s"],
    }
}
