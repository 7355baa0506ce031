//! A poster's side of a queue of the DMA engine, over any memory that it shares with the adaptor.
//!
//! It knows the layout of rings and doorbells from docs/device.md and nothing of the code under test.

use std::sync::atomic::{Ordering, fence};

pub const SUBMISSION_SIZE: u64 = 64;
pub const COMPLETION_SIZE: u64 = 32;
pub const HEAD_SIZE: u64 = 64;

pub const SUBMITTED: u64 = 0x00;
pub const ARM: u64 = 0x08;
pub const RESUME: u64 = 0x10;
/// The size of a doorbell page.
pub const PAGE: u64 = 4096;

pub const WRITE: u8 = 1;
pub const READ: u8 = 2;
pub const MESSAGE: u8 = 3;
pub const FETCH_ADD: u8 = 4;
pub const COMPARE_SWAP: u8 = 5;
pub const FENCE: u8 = 6;

pub const FLAG_FENCE: u8 = 1 << 0;
pub const FLAG_INLINE: u8 = 1 << 1;
pub const FLAG_LIST: u8 = 1 << 2;

/// Memory that the adaptor sees too.
pub trait Shared {
    fn load(&self, at: u64, out: &mut [u8]);
    fn store(&self, at: u64, bytes: &[u8]);

    fn load_u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.load(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}

/// An entry of the submission ring; what a field means depends on the opcode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    pub opcode: u8,
    pub flags: u8,
    pub node: u8,
    pub doorbell: u8,
    pub cookie: u64,
    pub remote: u64,
    pub len: u64,
    pub key: u32,
    pub list_entries: u32,
    pub local: u64,
    pub operand: u64,
    pub compare: u64,
    /// Stands in place of key, local offset and operands.
    pub inline: Option<[u8; 32]>,
}

impl Entry {
    /// The entry without its index.
    pub fn bytes(&self) -> [u8; 64] {
        let mut entry = [0; 64];
        entry[4..8].copy_from_slice(&[self.opcode, self.flags, self.node, self.doorbell]);
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x08, &self.cookie.to_le_bytes());
        put(0x10, &self.remote.to_le_bytes());
        put(0x18, &self.len.to_le_bytes());
        put(0x20, &self.key.to_le_bytes());
        put(0x24, &self.list_entries.to_le_bytes());
        put(0x28, &self.local.to_le_bytes());
        put(0x30, &self.operand.to_le_bytes());
        put(0x38, &self.compare.to_le_bytes());
        if let Some(data) = self.inline {
            let len = if self.opcode == MESSAGE { 16 } else { 32 };
            put(0x20, &data[..len]);
        }
        entry
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub status: u32,
    pub cookie: u64,
    pub done: u64,
    pub former: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Where the rings begin in the shared memory.
    pub submissions: u64,
    pub completions: u64,
    pub entries: u32,
    /// How many entries were posted, wrapping.
    pub posted: u32,
    /// How many completions were seen, wrapping.
    pub reaped: u32,
}

impl Queue {
    pub fn new(submissions: u64, completions: u64, entries: u32) -> Self {
        Self { submissions, completions, entries, posted: 0, reaped: 0 }
    }

    /// How many more entries may be posted now.
    pub fn room(&self) -> u32 {
        self.entries - self.posted.wrapping_sub(self.reaped)
    }

    /// Posts an entry. [`Self::must_ring`] says whether the adaptor has to be told.
    pub fn post(&mut self, memory: &impl Shared, entry: &Entry) {
        assert!(self.room() > 0, "more is posted than the ring holds");
        let at = self.submissions + u64::from(self.posted % self.entries) * SUBMISSION_SIZE;
        self.posted = self.posted.wrapping_add(1);
        memory.store(at + 4, &entry.bytes()[4..]);
        fence(Ordering::Release);
        memory.store(at, &self.posted.to_le_bytes());
    }

    /// Whether [`SUBMITTED`] has to be written, with [`Self::posted`].
    pub fn must_ring(&self, memory: &impl Shared) -> bool {
        fence(Ordering::SeqCst);
        memory.load_u32(self.completions - HEAD_SIZE) == 0
    }

    /// The next completion.
    pub fn poll(&mut self, memory: &impl Shared) -> Option<Completion> {
        let at = self.completions + u64::from(self.reaped % self.entries) * COMPLETION_SIZE;
        if memory.load_u32(at) != self.reaped.wrapping_add(1) {
            return None;
        }
        fence(Ordering::Acquire);
        let mut entry = [0; 32];
        memory.load(at, &mut entry);
        self.reaped = self.reaped.wrapping_add(1);
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
        Some(Completion {
            status: u32::from_le_bytes(entry[4..8].try_into().unwrap()),
            cookie: word(0x08),
            done: word(0x10),
            former: word(0x18),
        })
    }
}

/// A scatter list of (key, offset, length).
pub fn list(entries: &[(u32, u64, u64)]) -> Vec<u8> {
    let words = entries.iter().flat_map(|&(key, offset, len)| [u64::from(key), offset, len]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The descriptor of a command, without magic number, cookie and opcode.
pub fn descriptor(fields: &[(usize, u64)]) -> [u8; 128] {
    let mut descriptor = [0; 128];
    for &(at, value) in fields {
        descriptor[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    descriptor
}
