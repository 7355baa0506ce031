//! A queue of the DMA engine as a process in the guest has it: rings in memory, and no call of any driver.

use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use vm_memory::{Address, Bytes, GuestAddress};

use super::guest::{Bus, Guest, IO, IO_PART, READ, WRITE};
use super::node::PATIENCE;

/// Commands of the mailbox.
const REGISTER: u32 = 4;
const CREATE: u32 = 6;
/// The bytes of an entry, of a completion, and of what stands before the completions.
const SUBMISSION: u64 = 64;
const COMPLETION: u64 = 32;
const HEAD: u64 = 64;
const PAGE: u64 = 4096;

pub const WRITING: u8 = 1;
pub const READING: u8 = 2;
pub const INLINE: u8 = 2;

/// An operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Operation {
    pub opcode: u8,
    pub flags: u8,
    pub node: u8,
    pub remote: u64,
    pub len: u64,
    pub key: u32,
    pub local: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub status: u32,
    pub cookie: u64,
    pub done: u64,
    pub former: u64,
}

/// See the module.
pub struct Queue {
    number: u64,
    submissions: u64,
    completions: u64,
    entries: u32,
    posted: u32,
    reaped: u32,
}

/// Registers a run of memory; gives its key.
pub fn register<B: Bus>(guest: &mut Guest<B>, domain: u32, address: u64, len: u64) -> u32 {
    let list = guest.write_list(address, len);
    let rights = u64::from(READ | WRITE);
    let fields = [(0x18, len, 8), (0x20, rights, 4), (0x24, 1, 4), (0x28, list, 8), (0x30, domain.into(), 4)];
    u32::try_from(guest.command(REGISTER, &fields).unwrap()).unwrap()
}

impl Queue {
    /// The bytes that the rings of a queue take.
    pub const fn size(entries: u32) -> u64 {
        let bytes = entries as u64 * (SUBMISSION + COMPLETION) + HEAD;
        bytes.next_multiple_of(PAGE)
    }

    /// A queue of a domain with its rings at `address`, where they have [`Self::size`] bytes.
    pub fn create<B: Bus>(guest: &mut Guest<B>, domain: u32, address: u64, entries: u32) -> Self {
        let key = register(guest, domain, address, Self::size(entries));
        let completions = u64::from(entries) * SUBMISSION + HEAD;
        let log = u64::from(entries.ilog2());
        let fields = [
            (0x10, 0, 8),
            (0x18, completions, 8),
            (0x24, log, 4),
            (0x30, domain.into(), 4),
            (0x34, key.into(), 4),
        ];
        let number = guest.command(CREATE, &fields).unwrap();
        let completions = address + completions;
        Self { number, submissions: address, completions, entries, posted: 0, reaped: 0 }
    }

    /// Operations that may be posted now.
    pub const fn room(&self) -> u32 {
        self.entries - self.posted.wrapping_sub(self.reaped)
    }

    /// Puts an operation into the ring; its cookie is its index. Where the adaptor does not look at the ring, [`Self::ring`] makes it.
    pub fn post<B: Bus>(&mut self, guest: &Guest<B>, operation: &Operation) {
        let mut entry = [0u8; SUBMISSION as usize];
        entry[4..7].copy_from_slice(&[operation.opcode, operation.flags, operation.node]);
        entry[8..16].copy_from_slice(&u64::from(self.posted).to_le_bytes());
        entry[16..24].copy_from_slice(&operation.remote.to_le_bytes());
        entry[24..32].copy_from_slice(&operation.len.to_le_bytes());
        if operation.flags & INLINE != 0 {
            entry[32..40].copy_from_slice(&operation.local.to_le_bytes());
        } else {
            entry[32..36].copy_from_slice(&operation.key.to_le_bytes());
            entry[40..48].copy_from_slice(&operation.local.to_le_bytes());
        }
        let place = GuestAddress(self.submissions + u64::from(self.posted % self.entries) * SUBMISSION);
        guest.memory.write_slice(&entry[4..], place.unchecked_add(4)).unwrap();
        self.posted = self.posted.wrapping_add(1);
        guest.memory.store(self.posted, place, Ordering::Release).unwrap();
    }

    /// Rings the doorbell, where the adaptor says that it has to be.
    pub fn ring<B: Bus>(&self, guest: &mut Guest<B>) {
        fence(Ordering::SeqCst);
        let awake: u32 = guest.memory.load(GuestAddress(self.completions - HEAD), Ordering::Relaxed).unwrap();
        if awake == 0 {
            guest.client.write(IO, 3 * IO_PART + PAGE * self.number, &self.posted.to_le_bytes());
        }
    }

    /// Takes the next completion.
    pub fn poll<B: Bus>(&mut self, guest: &Guest<B>) -> Option<Completion> {
        let at = self.completions + u64::from(self.reaped % self.entries) * COMPLETION;
        let index: u32 = guest.memory.load(GuestAddress(at), Ordering::Acquire).unwrap();
        let next = self.reaped.wrapping_add(1);
        if index != next || self.reaped == self.posted {
            return None;
        }
        self.reaped = next;
        let bytes: [u8; COMPLETION as usize] = guest.memory(at);
        let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let status = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        Some(Completion { status, cookie: wide(8), done: wide(16), former: wide(24) })
    }

    /// Waits for the next completion.
    pub fn wait<B: Bus>(&mut self, guest: &Guest<B>) -> Completion {
        let begin = Instant::now();
        loop {
            if let Some(completion) = self.poll(guest) {
                return completion;
            }
            assert!(begin.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }
}
