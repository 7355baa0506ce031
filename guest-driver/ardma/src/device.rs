//! An open device file, and the process that opened it.
//!
//! The invariant: what one process has made by a file another process does not use or end. A child that fork(2) made
//! has the parent's handles, but not the memory of its queues, and its calls would end what is the parent's.

use crate::abi;
use crate::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks this process; the kernel gives a child a page of zeros in its place.
static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();

/// A process, as opposed to those that it forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

impl Process {
    /// This process.
    ///
    /// # Errors
    /// Where there is no memory for its mark.
    pub(crate) fn current() -> io::Result<Self> {
        let Some(mark) = *MARK.get_or_init(|| page().ok()) else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        match mark.compare_exchange(0, now(), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(Self(mark.load(Ordering::Relaxed))),
            Err(known) => Ok(Self(known)),
        }
    }

    /// Whether it is this process. It costs two loads.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        matches!(MARK.get(), Some(Some(mark)) if mark.load(Ordering::Relaxed) == self.0)
    }

    /// Nothing, in this process.
    ///
    /// # Errors
    /// [`Error::Forked`] in another one.
    #[inline]
    pub(crate) fn verify(self) -> Result<(), Error> {
        if self.is_current() { Ok(()) } else { Err(Error::Forked) }
    }
}

/// Nanoseconds since the machine was booted: no process has the number of one that it descends from.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to one structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let (seconds, nanoseconds) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds).max(1)
}

/// A word that is 0 at first, and in every child.
fn page() -> io::Result<&'static AtomicU64> {
    let (length, protection) = (crate::PAGE as usize, libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing else uses. They are never unmapped, aligned,
    // and zero.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0);
        if base == libc::MAP_FAILED || libc::madvise(base, length, libc::MADV_WIPEONFORK) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(AtomicU64::from_ptr(base.cast()))
    }
}

/// An open device file. Its calls fail with `ECHILD` in other processes than that which opened it.
#[derive(Debug)]
pub(crate) struct Device {
    file: File,
    process: Process,
}

impl Device {
    pub(crate) fn new(file: File) -> io::Result<Self> {
        Ok(Self { file, process: Process::current()? })
    }

    /// Nothing, in the process that opened the file.
    #[inline]
    pub(crate) fn verify(&self) -> Result<(), Error> {
        self.process.verify()
    }

    /// The file, for a call.
    pub(crate) fn own(&self) -> io::Result<BorrowedFd<'_>> {
        if !self.process.is_current() {
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        Ok(self.file.as_fd())
    }

    /// Makes a call.
    ///
    /// # Safety
    /// As of [`abi::call`].
    pub(crate) unsafe fn call<T: abi::Argument>(&self, argument: &mut T) -> io::Result<()> {
        // SAFETY: the caller's contract.
        unsafe { abi::call(self.own()?, argument) }
    }

    /// A call that touches no memory but its argument.
    pub(crate) fn ask<T: abi::Argument + crate::adaptor::Question>(
        &self,
        argument: &mut T,
    ) -> io::Result<()> {
        // SAFETY: only calls that are no `Question` have a condition.
        unsafe { self.call(argument) }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
