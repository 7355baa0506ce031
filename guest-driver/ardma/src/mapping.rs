//! Mapped memory: what is mapped is unmapped once, and never reached beyond its end.
//!
//! Memory of both kinds (of the device, and of this process while it is exported) changes by itself,
//! so there are no references to it: bytes are copied in and out by volatile accesses.

use crate::device::Process;
use crate::error::Error;
use crate::word::{load_bytes, store_bytes};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit of mappings and exports in bytes.
pub const PAGE: u64 = 4096;

/// A range of addresses of this process.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// The only process that has it; where there is none a child has it as well.
    process: Option<Process>,
}

// SAFETY: the addresses are of the process and not of a thread; `&self` methods of the users of a
// mapping make single volatile accesses, which may run beside each other.
unsafe impl Send for Mapping {}

// SAFETY: as above. Two threads at one place may see parts of each other's bytes, as with the other parties that
// change this memory at any time; nothing relies on whole values but words that are accessed at once.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps part of a device file, shared.
    pub(crate) fn device(
        device: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        protection: i32,
    ) -> io::Result<Self> {
        let offset =
            libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
        Self::map(length, protection, libc::MAP_SHARED, device.as_raw_fd(), offset)
    }

    fn map(length: usize, protection: i32, flags: i32, file: i32, offset: libc::off_t) -> io::Result<Self> {
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast())
            .map(|base| Self { base, length, process: None })
            .ok_or_else(|| io::Error::from(io::ErrorKind::Other))
    }

    /// Of a mapping that children do not get: at its addresses they may have something else.
    pub(crate) fn not_for_children(mut self) -> io::Result<Self> {
        self.process = Some(Process::current()?);
        Ok(self)
    }

    /// The address of `length` bytes from `offset` on.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        if let Some(process) = self.process {
            process.verify()?;
        }
        let fits = usize::try_from(offset)
            .ok()
            .filter(|&start| start.checked_add(length).is_some_and(|end| end <= self.length));
        match fits {
            // SAFETY: offset + length is inside the mapping.
            Some(start) => Ok(unsafe { self.base.as_ptr().add(start) }),
            None => Err(Error::Outside { offset, length: length as u64, available: self.length as u64 }),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.process.is_some_and(|process| !process.is_current()) {
            return;
        }
        // SAFETY: the mapping is this value's own, and no address of it outlives the value.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Memory of this process that can be exported: zeroed, page-aligned, a multiple of [`PAGE`] long.
#[derive(Debug)]
pub struct Memory(Mapping);

impl Memory {
    /// Memory for at least `length` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is none, or `length` is 0.
    pub fn new(length: u64) -> Result<Self, Error> {
        let rounded = length.checked_next_multiple_of(PAGE).and_then(|length| usize::try_from(length).ok());
        let failed = |source| Error::Memory { length: usize::try_from(length).unwrap_or(usize::MAX), source };
        let rounded = rounded.ok_or_else(|| failed(io::Error::from_raw_os_error(libc::ENOMEM)))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let mapping =
            Mapping::map(rounded, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).map_err(failed)?;
        // A child process must not get these pages: copying on write would part them from the pinned ones.
        // SAFETY: the range is the mapping just made.
        if unsafe { libc::madvise(mapping.base.as_ptr().cast(), rounded, libc::MADV_DONTFORK) } < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(Self(mapping.not_for_children().map_err(failed)?))
    }

    /// Bytes of memory.
    pub const fn length(&self) -> u64 {
        self.0.length as u64
    }

    /// The address of `length` bytes from `offset` on.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Error> {
        self.0.at(offset, length)
    }

    /// Adds to 8 bytes at an offset that is a multiple of 8, wrapping, as one step for everybody: processors and DMA engines.
    /// Returns what they were. (Emulated machines with one processor only are no such everybody.)
    ///
    /// # Errors
    /// [`Error::Outside`] and [`Error::Misaligned`]; nothing was changed then.
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, Error> {
        if !offset.is_multiple_of(8) {
            return Err(Error::Misaligned { offset, size: 8 });
        }
        let at = self.at(offset, 8)?;
        // SAFETY: the address is inside the mapping, which outlives this call, and aligned.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        Ok(word.fetch_add(value, Ordering::SeqCst))
    }

    /// Fills `length` bytes from a file.
    ///
    /// # Errors
    /// [`Error::Outside`] where not all are inside, [`Error::File`] where the file has fewer or can't be read.
    pub fn read_file(&self, offset: u64, file: &File, from: u64, length: usize) -> Result<(), Error> {
        let to = self.at(offset, length)?;
        // SAFETY: `to` has that many bytes of this mapping behind it; the kernel writes them, no reference does.
        all_of(length, from, |done, at| unsafe {
            libc::pread(file.as_raw_fd(), to.add(done).cast(), length.saturating_sub(done), at)
        })
    }

    /// Writes `length` bytes to a file.
    ///
    /// # Errors
    /// As [`Memory::read_file`].
    pub fn write_file(&self, offset: u64, file: &File, to: u64, length: usize) -> Result<(), Error> {
        let from = self.at(offset, length)?;
        // SAFETY: `from` has that many bytes of this mapping behind it; the kernel reads them, as they are then.
        all_of(length, to, |done, at| unsafe {
            libc::pwrite(file.as_raw_fd(), from.add(done).cast(), length.saturating_sub(done), at)
        })
    }

    /// Copies bytes out, as they are now.
    ///
    /// # Errors
    /// [`Error::Outside`] where not all are inside; then nothing is copied.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let from = self.0.at(offset, to.len())?;
        // SAFETY: `at` gave an address with that many bytes of this mapping behind it.
        unsafe { load_bytes(from, to) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let to = self.0.at(offset, from.len())?;
        // SAFETY: `at` gave an address with that many bytes of this mapping behind it.
        unsafe { store_bytes(to, from) };
        Ok(())
    }

    /// Calls `each` with the first `length` bytes as they are now, in parts of at most 64 KiB.
    ///
    /// # Errors
    /// [`Error::Outside`] where there are fewer, or what `each` returns.
    pub fn for_each_part<E: From<Error>>(
        &self,
        length: u64,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if length > self.length() {
            return Err(Error::Outside { offset: 0, length, available: self.length() }.into());
        }
        let mut buffer = vec![0; 64 << 10];
        let mut offset = 0_u64;
        while offset < length {
            let size = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
            let part = buffer.get_mut(..size).unwrap_or_default();
            self.read(offset, part)?;
            each(part)?;
            offset = offset.saturating_add(size as u64);
        }
        Ok(())
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        let part = [byte; 4096];
        let mut offset = 0_u64;
        while self.write(offset, &part).is_ok() {
            offset = offset.saturating_add(PAGE);
        }
    }

    /// Its first address, for calls to the module. Nothing but the methods here may reach what is behind it.
    pub fn address(&self) -> u64 {
        self.0.base.as_ptr().expose_provenance() as u64
    }
}

/// Calls until all bytes are done: with how many were, and where in the file the next one is.
fn all_of(length: usize, start: u64, mut call: impl FnMut(usize, libc::off_t) -> isize) -> Result<(), Error> {
    let mut done = 0_usize;
    while done < length {
        let at = start.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok());
        let at = at.ok_or_else(|| Error::File(io::Error::from_raw_os_error(libc::EOVERFLOW)))?;
        match usize::try_from(call(done, at)) {
            Ok(0) => return Err(Error::File(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => done = done.saturating_add(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(Error::File(error)),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_whole_pages() {
        let memory = Memory::new(5000).unwrap();
        assert_eq!(memory.length(), 8192);
        assert_eq!(memory.address() % PAGE, 0);
        let mut bytes = vec![1; 8192];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn nothing_is_reached_beyond_the_end() {
        let memory = Memory::new(PAGE).unwrap();
        memory.write(4090, b"abcdef").unwrap();
        assert!(matches!(memory.write(4091, b"abcdef"), Err(Error::Outside { .. })));
        assert!(matches!(memory.read(u64::MAX, &mut [0; 2]), Err(Error::Outside { .. })));
        let mut tail = [0; 6];
        memory.read(4090, &mut tail).unwrap();
        assert_eq!(&tail, b"abcdef");
        assert!(matches!(Memory::new(0), Err(Error::Memory { .. })));
        assert!(matches!(Memory::new(u64::MAX), Err(Error::Memory { .. })));
    }

    #[test]
    fn additions_are_of_aligned_words() {
        let memory = Memory::new(PAGE).unwrap();
        assert_eq!(memory.fetch_add(8, 3).unwrap(), 0);
        assert_eq!(memory.fetch_add(8, u64::MAX).unwrap(), 3);
        assert_eq!(memory.fetch_add(8, 0).unwrap(), 2);
        assert!(matches!(memory.fetch_add(4, 1), Err(Error::Misaligned { .. })));
        assert!(matches!(memory.fetch_add(PAGE, 1), Err(Error::Outside { .. })));
    }

    #[test]
    fn files_are_read_and_written() {
        let file = crate::remote_tests::file(10_000);
        let memory = Memory::new(PAGE * 2).unwrap();
        memory.write(5, b"some bytes").unwrap();
        memory.write_file(5, &file, 7000, 10).unwrap();
        memory.read_file(4096, &file, 7000, 10).unwrap();
        let mut back = [0; 10];
        memory.read(4096, &mut back).unwrap();
        assert_eq!(&back, b"some bytes");
        assert!(matches!(memory.read_file(0, &file, 9999, 2), Err(Error::File(_))));
        assert!(matches!(memory.read_file(8190, &file, 0, 3), Err(Error::Outside { .. })));
    }

    #[test]
    fn fill_and_parts_cover_all_of_it() {
        let memory = Memory::new(200_000).unwrap();
        memory.fill(0x5a);
        let mut seen = 0;
        memory
            .for_each_part(150_001, |part| {
                assert!(part.iter().all(|&byte| byte == 0x5a));
                seen += part.len();
                Ok::<_, Error>(())
            })
            .unwrap();
        assert_eq!(seen, 150_001);
        assert!(memory.for_each_part(memory.length() + 1, |_| Ok::<_, Error>(())).is_err());
    }
}
