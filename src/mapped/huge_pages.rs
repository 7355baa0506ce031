//! Huge pages for tests, out of a pool that only they use.

use std::ffi::CStr;
use std::fs::{self, File};
use std::os::fd::FromRawFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The size in bytes of the pages that tests use.
pub const HUGE: u64 = 2 << 20;

static POOL: Mutex<()> = Mutex::new(());

/// So many pages more than nobody, for as long as this is held.
pub struct Pool {
    before: u64,
    _alone: MutexGuard<'static, ()>,
}

fn setting(name: &str) -> std::path::PathBuf {
    Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").join(name)
}

/// A number of the pool's.
pub fn number(name: &str) -> u64 {
    let text = fs::read_to_string(setting(name)).expect("the kernel has no huge pages of 2 MiB");
    text.trim().parse().unwrap()
}

impl Pool {
    /// # Panics
    /// Where the machine does not give them: a test that needs them has failed then.
    pub fn with(pages: u64) -> Self {
        let alone = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = Self { before: number("nr_hugepages"), _alone: alone };
        pool.resize(pages);
        pool
    }

    /// Makes it larger or smaller.
    pub fn resize(&self, pages: u64) {
        let wanted = self.before + pages;
        fs::write(setting("nr_hugepages"), wanted.to_string())
            .expect("only root can have huge pages set aside");
        assert_eq!(number("nr_hugepages"), wanted, "this machine has no {pages} huge pages of 2 MiB to give");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(setting("nr_hugepages"), self.before.to_string());
    }
}

/// A file in huge pages, which may be of another size than [`HUGE`].
pub fn huge_file(name: &CStr, len: u64, size: u32) -> File {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB | size;
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened and is owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len).unwrap();
    file
}
