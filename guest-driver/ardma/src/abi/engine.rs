//! The calls of the DMA engine: registered memory, queues, windows of registered memory.

#[cfg(test)]
use super::Field;
use super::{Argument, NAME_SIZE, READ, WRITE, request};

/// Right of the engine here: it may read the memory, to send it.
pub const LOCAL_READ: u32 = 1 << 0;
/// Right of the engine here: it may write the memory: what it fetched, and the rings of a queue.
pub const LOCAL_WRITE: u32 = 1 << 1;

/// `CreateQueue::eventfd`: none.
pub const NO_EVENTFD: u32 = u32::MAX;

arguments! {
    /// Pins memory of this process, and lets the engine reach it.
    Register = (READ | WRITE, 0x30) {
        /// In: start of the memory.
        address: u64,
        /// In: bytes.
        length: u64,
        /// Out: offset of the memory's first byte behind the key.
        offset: u64,
        /// In: `LOCAL_*`.
        rights: u32,
        /// Out: the key, never 0.
        key: u32,
    }

    /// Takes registered memory back.
    Deregister = (WRITE, 0x31) {
        /// In: the key.
        key: u32,
        /// 0.
        reserved: u32,
    }

    /// Makes a queue, whose rings are in registered memory.
    CreateQueue = (READ | WRITE, 0x32) {
        /// In: offset of the submission ring behind the key.
        submission: u64,
        /// In: offset of the completion ring.
        completion: u64,
        /// In: the key.
        key: u32,
        /// In: log2 of the entries of each ring.
        entries_log2: u32,
        /// In: raise an interrupt for so many completions.
        coalesce_count: u32,
        /// In: and when the first of them is so old, in microseconds.
        coalesce_us: u32,
        /// In: a file descriptor, or [`NO_EVENTFD`].
        eventfd: u32,
        /// Out: the queue's number.
        queue: u32,
        /// Out: offset of its doorbell page for mmap.
        doorbell: u64,
    }

    /// Destroys a queue.
    DestroyQueue = (WRITE, 0x33) {
        /// In: as [`CreateQueue`] gave it.
        doorbell: u64,
    }

    /// Makes a window of registered memory.
    ExportKey = (READ | WRITE, 0x34) {
        /// In: the key.
        key: u32,
        /// In: `RIGHT_*`.
        rights: u32,
        /// In: offset behind the key.
        start: u64,
        /// In: bytes.
        length: u64,
        /// In: offset in this node's window or `OFFSET_ANY`; out: offset.
        offset: u64,
        /// In: who has the rights: bit `n % 64` of word `n / 64`.
        nodes: [u64; 4],
        /// In: by which these find it.
        name: [u8; NAME_SIZE],
        /// 0.
        reserved: u64,
    }
}
