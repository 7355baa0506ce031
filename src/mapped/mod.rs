//! Memory whose bytes others change at any time: a file that is mapped into this process, or memory of its own.
//!
//! No reference to the bytes is ever made: they are copied, through volatile accesses.
//!
//! A mapped file that becomes shorter would kill this process with SIGBUS on access. QEMU seals its memfds against that. For a
//! file without this seal the pages are faulted in just before each copy, which finds a shortened file, a full file system
//! or a lack of huge pages before the first byte is copied. (On the machine where this was measured that costs 0.6 us, and a
//! copy of 4 KiB 0.4; `pwrite` or `process_vm_writev` instead of the copy would cost 1.7 us and would not keep the order of
//! stores.) A file that is cut during the copy itself is found as well: the mapping is lost then, and the copy may have been
//! done in part.
//!
//! A page that is not in memory may take long to come, so [`Piece::presence`] is asked before each access; the [`pager`] brings it in.

mod direct;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
pub mod huge_pages;
mod ordered;
pub mod pager;
mod presence;
mod region;
mod trap;

use crate::adaptor::memory::{AtomicAction, MemoryFault, MemoryResult};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub use direct::copy;
use presence::Origin;
pub use presence::{Pages, Presence, look_for_swap};
pub use region::Held;
use region::Region;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// A run of memory.
#[derive(Debug)]
pub struct Mapping {
    region: Arc<Region>,
    /// Device and inode of its file, where it has one: another mapping of that may be of the same bytes.
    file: Option<(u64, u64)>,
    /// Every page of it is there, or can be had.
    steady: bool,
    /// The size in bytes of its pages: of memory from a pool of huge pages nothing smaller can be mapped or unmapped.
    page: usize,
    /// Some of its pages are not the file's any more.
    lost: AtomicBool,
}

/// Some bytes of a mapping.
pub struct Piece<'a> {
    slice: VolatileSlice<'a>,
    /// Where in the mapping they begin.
    start: usize,
    mapping: &'a Mapping,
}

/// What came of an attempt at an operation.
#[derive(Debug)]
pub enum Attempt {
    /// It has ended.
    Done(MemoryResult),
    /// Nothing was done, as it may not be begun any more.
    Late,
    /// Nothing was done, as these pages of its own memory have to be brought in before.
    Absent(Vec<Pages>),
    /// The same, with pages of the memory that was lent for it.
    LenderAbsent(Vec<Pages>),
}

impl From<MemoryFault> for Attempt {
    fn from(fault: MemoryFault) -> Self {
        Self::Done(Err(fault))
    }
}

impl Attempt {
    /// How the operation ended; `None` where nothing was done.
    pub fn done(self) -> Option<MemoryResult> {
        match self {
            Self::Done(result) => Some(result),
            Self::Late | Self::Absent(_) | Self::LenderAbsent(_) => None,
        }
    }
}

/// What is known of an operation when it is attempted.
pub struct Begin<'a> {
    /// Its pages were brought in just now.
    pub served: bool,
    /// So were those that were lent.
    pub lender_served: bool,
    /// Whether it may still be begun. Asked after everything that may have taken time, and before the first byte.
    pub allowed: &'a dyn Fn() -> bool,
}

impl Begin<'static> {
    /// For an operation that needs no leave, and may wait for its pages.
    pub const WAITS: Self = Self { served: true, lender_served: true, allowed: &|| true };
}

/// Makes sure that what follows finds all the bytes. Returns whether that may have taken time; or what else is to be said.
///
/// # Errors
/// What the attempt has come to, where it can't go on.
pub fn prepare(pieces: &[Piece<'_>], write: bool, served: bool) -> Result<bool, Attempt> {
    let mut took_time = false;
    let mut absent = Vec::new();
    for piece in pieces {
        match piece.presence(write, served)? {
            Presence::Here => {}
            Presence::Now => took_time = true,
            Presence::Absent(pages) => absent.push(pages),
        }
    }
    if absent.is_empty() { Ok(took_time) } else { Err(Attempt::Absent(absent)) }
}

impl Mapping {
    /// Maps `len` bytes of a file that has them, for all who map it to see. Both ends have to be those of pages of the file, which may be huge.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn of_file(place: FileOffset, len: usize, writable: bool) -> io::Result<Self> {
        let huge = huge_page(place.file());
        let page = huge.unwrap_or_else(page_size);
        // What is not mapped in whole pages can't be unmapped either.
        if huge.is_some() && !(len.is_multiple_of(page) && place.start().is_multiple_of(page as u64)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let origin = Origin::of(place.file(), is_sealed(place.file()), writable);
        let steady = !origin.may_be_cut();
        let metadata = place.file().metadata()?;
        if !steady {
            trap::arm()?;
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let memory = MmapRegion::build(Some(place), len, protection, flags).map_err(system_error)?;
        let file = Some((metadata.dev(), metadata.ino()));
        Ok(Self { region: Region::new(memory, origin), file, steady, page, lost: AtomicBool::new(false) })
    }

    /// New memory of `len` bytes, all 0, that nobody else sees.
    ///
    /// # Errors
    /// Where the system has not so much.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = MmapRegion::build(None, len, libc::PROT_READ | libc::PROT_WRITE, flags);
        let memory = memory.map_err(system_error)?;
        let (region, lost) = (Region::new(memory, Origin::Memory), AtomicBool::new(false));
        Ok(Self { region, file: None, steady: true, page: page_size(), lost })
    }

    /// Whether some of its pages are not the file's any more, so that it is of no more use.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// `len` bytes from the byte `start` on; `None` where they do not lie in it.
    pub fn piece(&self, start: u64, len: u64) -> Option<Piece<'_>> {
        let memory = self.region.memory()?;
        let start = usize::try_from(start).ok()?;
        let slice = memory.get_slice(start, usize::try_from(len).ok()?).ok()?;
        Some(Piece { slice, start, mapping: self })
    }
}

impl Piece<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Copies the bytes out. Both have the same length.
    ///
    /// # Errors
    /// Where the file was cut meanwhile; `data` holds anything then.
    pub fn load(&self, data: &mut [u8]) -> Result<(), MemoryFault> {
        self.copy(|| {
            self.slice.copy_to(data);
        })
    }

    /// Copies `data` in, in the order of addresses and aligned words at once. Both have the same length.
    ///
    /// # Errors
    /// [`MemoryFault::Partial`] where the file was cut meanwhile: some of `data` may be in it.
    pub fn store(&self, data: &[u8]) -> Result<(), MemoryFault> {
        self.copy(|| ordered::store_in_order(&self.slice, data)).map_err(|_| MemoryFault::Partial)
    }

    /// Changes the number that these bytes are, at once, and returns what it was. Everything before and after is ordered by it.
    ///
    /// # Errors
    /// Where they are not 8 aligned bytes, or as for [`Self::store`].
    pub fn atomic(&self, action: AtomicAction) -> Result<u64, MemoryFault> {
        let number = self.slice.get_atomic_ref::<AtomicU64>(0).map_err(|_| MemoryFault::Refused)?;
        if self.slice.len() != size_of::<AtomicU64>() {
            return Err(MemoryFault::Refused);
        }
        let mut former = 0;
        self.copy(|| {
            fence(Ordering::SeqCst);
            former = match action {
                AtomicAction::Add(value) if cfg!(target_endian = "little") => {
                    number.fetch_add(value, Ordering::SeqCst)
                }
                action => {
                    let apply = |old| Some(action.apply(u64::from_le(old)).to_le());
                    let (Ok(old) | Err(old)) = number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, apply);
                    u64::from_le(old)
                }
            };
            fence(Ordering::SeqCst);
        })
        .map_err(|_| MemoryFault::Partial)?;
        Ok(former)
    }

    fn copy(&self, copy: impl FnOnce()) -> Result<(), MemoryFault> {
        if self.mapping.steady {
            copy();
            return Ok(());
        }
        let guard = self.slice.ptr_guard();
        if trap::watched(guard.as_ptr(), self.slice.len(), self.mapping.page, copy) {
            return Ok(());
        }
        self.mapping.lost.store(true, Ordering::Relaxed);
        Err(MemoryFault::Unmapped)
    }
}

fn system_error(error: MmapRegionError) -> io::Error {
    match error {
        MmapRegionError::Mmap(error) => error,
        _ => io::ErrorKind::InvalidInput.into(),
    }
}

fn page_size() -> usize {
    // SAFETY: sysconf only looks a number up.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// The size in bytes of the huge pages that the file has, if it has any.
fn huge_page(file: &File) -> Option<usize> {
    let system = rustix::fs::fstatfs(file).ok()?;
    let size = usize::try_from(system.f_bsize).ok().filter(|size| size.is_power_of_two())?;
    (system.f_type == libc::HUGETLBFS_MAGIC).then_some(size)
}

/// Whether the file can't become shorter any more.
fn is_sealed(file: &File) -> bool {
    // SAFETY: F_GET_SEALS takes no argument and touches no memory of ours.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;
