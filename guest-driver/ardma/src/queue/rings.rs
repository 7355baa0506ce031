//! The rings of a queue in this process's memory, and its doorbell page.
//!
//! The invariants: an entry's index is written after all of its other bytes (release), and a completion's other
//! bytes are read after its index (acquire). What the adaptor writes is read once, into a copy.

use super::entry::{COMPLETION, Ended, SCATTER, SUBMISSION};
use crate::error::Error;
use crate::mapping::{Mapping, Memory, PAGE};
use crate::registered::Registered;
use crate::word::{Word, load_bytes, store_bytes};
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Bytes before the completion ring.
const HEAD: u64 = 64;
/// Doorbell registers, as offsets in the page.
const SUBMITTED: u64 = 0x00;
const ARM: u64 = 0x08;
const RESUME: u64 = 0x10;

/// Where the parts of a queue's memory lie, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub entries: u32,
    pub scatter: u32,
    pub completions: u64,
    pub lists: u64,
    pub length: u64,
}

impl Layout {
    /// For `1 << entries_log2` entries, each with a scatter list of up to `scatter`.
    pub fn new(entries_log2: u32, scatter: u32) -> Self {
        let entries = 1_u32 << entries_log2.clamp(2, 12);
        let scatter = scatter.min(1024);
        let bytes = |size: usize| u64::from(entries).saturating_mul(size as u64);
        let completions = bytes(SUBMISSION).saturating_add(HEAD);
        let lists = completions.saturating_add(bytes(COMPLETION));
        let length = lists.saturating_add(bytes(SCATTER).saturating_mul(scatter.into()));
        let length = length.checked_next_multiple_of(PAGE).unwrap_or(length);
        Self { entries, scatter, completions, lists, length }
    }

    fn slot(&self, index: u32) -> u64 {
        u64::from(index & self.entries.wrapping_sub(1))
    }

    /// Where the scatter list of the `index`-th operation lies.
    pub fn list(&self, index: u32) -> u64 {
        let one = u64::from(self.scatter).saturating_mul(SCATTER as u64);
        self.lists.saturating_add(self.slot(index).saturating_mul(one))
    }
}

/// The rings and the doorbell page.
#[derive(Debug)]
pub struct Rings {
    layout: Layout,
    doorbell: Mapping,
    memory: Registered,
}

impl Rings {
    /// In memory that is zero, has the layout's length, and is this library's own.
    pub fn new(layout: Layout, memory: Registered, doorbell: Mapping) -> Self {
        Self { layout, doorbell, memory }
    }

    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn key(&self) -> u32 {
        self.memory.key()
    }

    fn memory(&self) -> Result<&Memory, Error> {
        self.memory.memory().ok_or(Error::Outside { offset: 0, length: 0, available: 0 })
    }

    /// The index word of an entry there.
    fn index(&self, offset: u64) -> Result<&AtomicU32, Error> {
        let at = self.memory()?.at(offset, 4)?;
        // SAFETY: the address is inside the mapping, which outlives `self`, and aligned: entries are, and the mapping.
        // Everybody accesses these words as a whole.
        Ok(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Puts the `index`-th submission into the ring, where its room is free.
    pub fn put(&self, index: u32, entry: &[u8; SUBMISSION]) -> Result<(), Error> {
        let offset = self.layout.slot(index).saturating_mul(SUBMISSION as u64);
        let at = self.memory()?.at(offset, SUBMISSION)?;
        let Some((word, body)) = entry.split_first_chunk::<4>() else { return Ok(()) };
        // SAFETY: `at` has the entry's length behind it, so behind its first 4 bytes what is left of it.
        unsafe { store_bytes(at.add(4), body) };
        self.index(offset)?.store(u32::from_ne_bytes(*word), Ordering::Release);
        Ok(())
    }

    /// Writes the scatter list of the `index`-th operation.
    pub fn put_list(&self, index: u32, entry: usize, bytes: &[u8; SCATTER]) -> Result<(), Error> {
        let at = self.layout.list(index).saturating_add((entry as u64).saturating_mul(SCATTER as u64));
        self.memory()?.write(at, bytes)
    }

    /// The `index`-th completion, if it is there.
    #[inline]
    pub fn completion(&self, index: u32) -> Result<Option<Ended>, Error> {
        let slot = self.layout.slot(index).saturating_mul(COMPLETION as u64);
        let offset = self.layout.completions.saturating_add(slot);
        if self.index(offset)?.load(Ordering::Acquire) != index.wrapping_add(1).to_le() {
            return Ok(None);
        }
        let mut entry = [0; COMPLETION];
        let at = self.memory()?.at(offset, COMPLETION)?;
        // SAFETY: `at` has that many bytes of the mapping behind it.
        unsafe { load_bytes(at, &mut entry) };
        Ok(Some(Ended::decode(&entry)))
    }

    /// Has the adaptor look for entries, unless it does so by itself. `posted` is how many there are.
    #[inline]
    pub fn kick(&self, posted: u32) -> Result<(), Error> {
        // The adaptor says that it sleeps, and then looks once more: either it sees the entries, or this sees it sleep.
        fence(Ordering::SeqCst);
        let awake = self.layout.completions.saturating_sub(HEAD);
        if self.index(awake)?.load(Ordering::Relaxed) == 0 { self.ring(SUBMITTED, posted) } else { Ok(()) }
    }

    /// An interrupt is to come when the `index`-th completion is there.
    pub fn arm(&self, index: u32) -> Result<(), Error> {
        self.ring(ARM, index)
    }

    /// Entries from the `posted`-th on are executed again.
    pub fn resume(&self, posted: u32) -> Result<(), Error> {
        self.ring(RESUME, posted)
    }

    fn ring(&self, register: u64, value: u32) -> Result<(), Error> {
        let at = self.doorbell.at(register, 4)?;
        // SAFETY: `at` gave an aligned address with 4 bytes of the mapping behind it.
        unsafe { u32::store(at, value.to_le()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_layout_are_aligned_and_apart() {
        for log2 in 2..=12 {
            for scatter in [0, 1, 16, 1024] {
                let layout = Layout::new(log2, scatter);
                assert_eq!(layout.completions % 64, 0);
                assert_eq!(layout.completions, u64::from(layout.entries) * 64 + HEAD);
                assert_eq!(layout.lists, layout.completions + u64::from(layout.entries) * 32);
                let last = layout.list(layout.entries - 1) + u64::from(scatter) * SCATTER as u64;
                assert!(last <= layout.length && layout.length.is_multiple_of(PAGE));
                assert_eq!(layout.list(layout.entries), layout.list(0));
            }
        }
    }
}
