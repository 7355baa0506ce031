//! The addresses that a mapping has in this process, for as long as anybody uses them.
//!
//! Invariant: what takes the kernel long when they are given back is done by the reaper.

use std::fs::File;
use std::sync::Arc;

use vm_memory::MmapRegion;

use super::presence::Origin;
use crate::reaper;

/// Taking a mapping of fewer bytes apart takes the kernel about a millisecond at most.
const LARGE: usize = 16 << 20;
/// A large mapping is emptied in steps of so many bytes, so that whoever changes this process's address space meanwhile waits for one
/// step at most.
const STEP: usize = 32 << 20;

/// See the module.
#[derive(Debug)]
pub struct Region {
    /// `None` only while it is dropped.
    memory: Option<MmapRegion>,
    origin: Origin,
}

impl Region {
    pub fn new(memory: MmapRegion, origin: Origin) -> Arc<Self> {
        Arc::new(Self { memory: Some(memory), origin })
    }

    /// What its pages come from.
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    pub const fn memory(&self) -> Option<&MmapRegion> {
        self.memory.as_ref()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if memory.size() >= LARGE {
            return reaper::release(Emptied(memory));
        }
        let _file = memory.file_offset().map(|place| Held::new(Arc::clone(place.arc())));
        drop(memory);
    }
}

/// A reference to a file, whose last one may be to memory far larger than what is mapped of it.
#[derive(Debug)]
pub struct Held(Option<Arc<File>>);

impl Held {
    /// Holds the file.
    pub const fn new(file: Arc<File>) -> Self {
        Self(Some(file))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = self.0.take().and_then(Arc::into_inner) {
            reaper::release(file);
        }
    }
}

/// A mapping that nobody uses any more. Its pages go before its addresses do.
struct Emptied(MmapRegion);

impl Drop for Emptied {
    fn drop(&mut self) {
        let (begin, len) = (self.0.as_ptr(), self.0.size());
        for start in (0..len).step_by(STEP) {
            let step = STEP.min(len.saturating_sub(start));
            // SAFETY: the addresses are those of this mapping, which nobody uses any more. What fails is done by munmap.
            unsafe { libc::madvise(begin.wrapping_byte_add(start).cast(), step, libc::MADV_DONTNEED) };
        }
    }
}
