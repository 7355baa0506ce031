//! Whether the pages of a piece are there, and how they are brought in where they are not.
//!
//! Nothing here that the event loop calls waits for a disk, a server or a swap device, as far as that can be known: a page fault that may
//! take long is served by a [pager](super::pager) in another thread. What can't be known is bounded by asking for the lease again after it.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vm_memory::{VolatileMemory, VolatileSlice};

use super::Piece;
use super::region::Region;
use crate::adaptor::memory::MemoryFault;

/// Where a write of a page may be begun without a thread's help after it was brought in, or written, so lately.
const LATELY: Duration = Duration::from_millis(100);
/// Pages of a file of which it is known when they were brought in.
const KNOWN_PAGES: usize = 1024;
/// The most pages that are asked for at once.
const PAGES_AT_ONCE: usize = 1024;

/// File systems on disks of this host: ext2 to 4, XFS, Btrfs, F2FS.
const ON_DISK: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// Whether this host has anything swapped out now.
static SWAPS: AtomicBool = AtomicBool::new(false);

/// Finds out whether this host swaps. Call it now and then.
pub fn look_for_swap() {
    // SAFETY: zeros are a valid value of this structure, which the call fills.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: as above; nothing else is touched.
    if unsafe { libc::sysinfo(&raw mut info) } == 0 {
        SWAPS.store(info.totalswap != info.freeswap, Ordering::Relaxed);
    }
}

/// Whether an access can go on.
#[derive(Debug)]
pub enum Presence {
    /// At once.
    Here,
    /// Time may have passed before it could: what was checked before has to be checked again.
    Now,
    /// When these pages have been brought in.
    Absent(Pages),
}

/// Pages that are to be brought in. They stay mapped meanwhile.
#[derive(Clone, Debug)]
pub struct Pages {
    region: Arc<Region>,
    start: usize,
    len: usize,
    write: bool,
}

impl Pages {
    /// Brings them in, however long that takes.
    ///
    /// # Errors
    /// Where they can't be had.
    pub fn bring_in(&self) -> Result<(), MemoryFault> {
        let memory = self.region.memory().ok_or(MemoryFault::Unmapped)?;
        let slice = memory.get_slice(self.start, self.len).map_err(|_| MemoryFault::Unmapped)?;
        fault_in(&slice, self.write)?;
        self.region.origin().note(self.start, self.len, self.write);
        Ok(())
    }
}

/// What the pages of a region come from.
#[derive(Debug)]
pub enum Origin {
    /// Memory of the host, which it may swap out.
    Memory,
    /// The same, but the file may be cut, or have no room for a page.
    Cuttable,
    /// A pool of huge pages: each is cleared when it is used for the first time, which takes a while, and there may be none.
    HugePages,
    /// A file elsewhere.
    File {
        /// The kernel tells which of its pages are in memory.
        tells: bool,
        /// When pages were brought in for writing, where the file is on a disk of this host. Elsewhere a write may have to wait for a server
        /// each time.
        lately: Option<Lately>,
    },
}

impl Origin {
    /// What the pages of `file` come from. `sealed` says that it can't be cut.
    pub fn of(file: &File, sealed: bool, writable: bool) -> Self {
        let kind = rustix::fs::fstatfs(file).map_or(0, |system| system.f_type);
        match kind {
            libc::HUGETLBFS_MAGIC => Self::HugePages,
            libc::TMPFS_MAGIC if sealed => Self::Memory,
            libc::TMPFS_MAGIC => Self::Cuttable,
            kind => Self::File {
                tells: writable || is_own(file),
                lately: ON_DISK.contains(&kind).then(Lately::default),
            },
        }
    }

    /// Whether pages may be gone in the midst of a copy.
    pub const fn may_be_cut(&self) -> bool {
        !matches!(self, Self::Memory)
    }

    /// Pages were brought in.
    fn note(&self, start: usize, len: usize, write: bool) {
        if let Self::File { lately: Some(lately), .. } = self
            && write
        {
            lately.note(start, len);
        }
    }
}

/// Whether the kernel tells about the pages of a file that this process may only read.
fn is_own(file: &File) -> bool {
    // SAFETY: it only returns a number.
    let user = unsafe { libc::geteuid() };
    user == 0 || file.metadata().is_ok_and(|metadata| metadata.uid() == user)
}

/// When pages were brought in for writing; of many the oldest are forgotten.
#[derive(Debug)]
pub struct Lately {
    since: Instant,
    /// Of each page, at a place that its number gives, the number and the time in milliseconds.
    pages: Box<[AtomicU64]>,
}

impl Default for Lately {
    fn default() -> Self {
        let pages = core::iter::repeat_with(|| AtomicU64::new(u64::MAX)).take(KNOWN_PAGES).collect();
        Self { since: Instant::now(), pages }
    }
}

impl Lately {
    /// Bits of the time.
    const TIME: u32 = 24;
    const TIME_MASK: u64 = 0xff_ffff;

    fn millis(&self) -> u64 {
        let millis = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(0);
        millis & Self::TIME_MASK
    }

    fn place(&self, page: u64) -> Option<&AtomicU64> {
        let count = u64::try_from(self.pages.len()).unwrap_or(1);
        self.pages.get(usize::try_from(page.checked_rem(count)?).ok()?)
    }

    fn note(&self, start: usize, len: usize) {
        let now = self.millis();
        for page in pages_of(start, len) {
            if let Some(place) = self.place(page) {
                place.store(page << Self::TIME | now, Ordering::Relaxed);
            }
        }
    }

    fn has(&self, start: usize, len: usize) -> bool {
        let now = self.millis();
        let limit = u64::try_from(LATELY.as_millis()).unwrap_or(0);
        pages_of(start, len).all(|page| {
            let known = self.place(page).map_or(u64::MAX, |place| place.load(Ordering::Relaxed));
            let age = now.wrapping_sub(known) & Self::TIME_MASK;
            known >> Self::TIME == page && age <= limit
        })
    }
}

/// The numbers of the pages that these bytes are in.
fn pages_of(start: usize, len: usize) -> impl Iterator<Item = u64> {
    let page = super::page_size();
    let last = start.saturating_add(len.saturating_sub(1));
    let number = move |at: usize| at.checked_div(page).and_then(|at| u64::try_from(at).ok()).unwrap_or(0);
    number(start)..=number(last)
}

impl Piece<'_> {
    /// Whether what follows finds all the bytes, and when. `served` says that its pages were brought in just now.
    ///
    /// # Errors
    /// Where it would not.
    pub fn presence(&self, write: bool, served: bool) -> Result<Presence, MemoryFault> {
        if self.mapping.is_lost() {
            return Err(MemoryFault::Unmapped);
        }
        let origin = self.mapping.region.origin();
        let swaps = SWAPS.load(Ordering::Relaxed);
        if matches!(origin, Origin::Memory) && !swaps || self.len() == 0 {
            return Ok(Presence::Here);
        }
        let is_quick = served
            || match origin {
                Origin::Cuttable if !swaps => true,
                Origin::Memory | Origin::Cuttable | Origin::HugePages => self.is_in_memory(),
                Origin::File { tells, .. } if !write => *tells && self.is_in_memory(),
                Origin::File { lately, .. } => {
                    lately.as_ref().is_some_and(|lately| lately.has(self.start, self.len()))
                }
            };
        if !is_quick {
            let region = Arc::clone(&self.mapping.region);
            return Ok(Presence::Absent(Pages { region, start: self.start, len: self.len(), write }));
        }
        fault_in(&self.slice, write)?;
        origin.note(self.start, self.len(), write);
        Ok(Presence::Now)
    }

    /// Whether the kernel has all of its pages in memory.
    fn is_in_memory(&self) -> bool {
        let guard = self.slice.ptr_guard();
        let (mut begin, mut len) = whole_pages(guard.as_ptr(), self.len());
        let mut states = [0u8; PAGES_AT_ONCE];
        while len > 0 {
            let part = len.min(PAGES_AT_ONCE.saturating_mul(super::page_size()));
            let count = part.div_ceil(super::page_size().max(1));
            // SAFETY: the call writes a byte for each page that begins in `part` bytes, for which there is room.
            if unsafe { libc::mincore(begin.cast_mut().cast(), part, states.as_mut_ptr()) } != 0 {
                return false;
            }
            if !states.iter().take(count).all(|state| state & 1 == 1) {
                return false;
            }
            begin = begin.wrapping_byte_add(part);
            len = len.saturating_sub(part);
        }
        true
    }
}

/// The pages with these bytes: where the first of them begins, and their length up to the last of the bytes.
fn whole_pages(begin: *const u8, len: usize) -> (*const u8, usize) {
    let into_page = begin.addr() & super::page_size().wrapping_sub(1);
    (begin.wrapping_byte_sub(into_page), len.saturating_add(into_page))
}

/// Makes the pages present, so that the copy that follows finds them.
fn fault_in(slice: &VolatileSlice<'_>, write: bool) -> Result<(), MemoryFault> {
    let guard = slice.ptr_guard_mut();
    let (begin, len) = whole_pages(guard.as_ptr(), slice.len());
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: the pages lie in a mapping that `slice` borrows, which begins at a page; populating changes no contents.
        let result = unsafe { libc::madvise(begin.cast_mut().cast(), len, advice) };
        if result == 0 {
            return Ok(());
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // A kernel before 5.14 can't tell.
            Some(libc::EINVAL) => return Ok(()),
            _ => return Err(MemoryFault::Unmapped),
        }
    }
}
