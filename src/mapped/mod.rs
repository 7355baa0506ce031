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

mod direct;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
pub mod huge_pages;
mod ordered;
mod region;
mod trap;

use crate::adaptor::memory::{AtomicAction, MemoryFault};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub use direct::copy;
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
    mapping: &'a Mapping,
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
        // A pool of huge pages may be empty.
        let steady = huge.is_none() && is_sealed(place.file());
        let metadata = place.file().metadata()?;
        if !steady {
            trap::arm()?;
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let memory = MmapRegion::build(Some(place), len, protection, flags).map_err(system_error)?;
        let file = Some((metadata.dev(), metadata.ino()));
        Ok(Self { region: Region::new(memory), file, steady, page, lost: AtomicBool::new(false) })
    }

    /// New memory of `len` bytes, all 0, that nobody else sees.
    ///
    /// # Errors
    /// Where the system has not so much.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = MmapRegion::build(None, len, libc::PROT_READ | libc::PROT_WRITE, flags);
        let memory = memory.map_err(system_error)?;
        let (region, lost) = (Region::new(memory), AtomicBool::new(false));
        Ok(Self { region, file: None, steady: true, page: page_size(), lost })
    }

    /// Whether some of its pages are not the file's any more, so that it is of no more use.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// `len` bytes from the byte `start` on; `None` where they do not lie in it.
    pub fn piece(&self, start: u64, len: u64) -> Option<Piece<'_>> {
        let memory = self.region.memory()?;
        let slice = memory.get_slice(usize::try_from(start).ok()?, usize::try_from(len).ok()?).ok()?;
        Some(Piece { slice, mapping: self })
    }
}

impl Piece<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Makes sure that what follows finds all the bytes.
    ///
    /// # Errors
    /// Where it would not.
    pub fn prepare(&self, write: bool) -> Result<(), MemoryFault> {
        if self.mapping.is_lost() {
            return Err(MemoryFault::Unmapped);
        }
        if self.mapping.steady { Ok(()) } else { fault_in(&self.slice, write) }
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

/// Makes the pages present, so that the copy that follows finds them.
fn fault_in(slice: &VolatileSlice<'_>, write: bool) -> Result<(), MemoryFault> {
    let guard = slice.ptr_guard_mut();
    let begin = guard.as_ptr();
    let into_page = begin.addr() & page_size().wrapping_sub(1);
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let len = slice.len().saturating_add(into_page);
    loop {
        // SAFETY: the pages lie in a mapping that `slice` borrows, which begins at a page; populating changes no contents.
        let result = unsafe { libc::madvise(begin.wrapping_byte_sub(into_page).cast(), len, advice) };
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

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;
