//! Survives SIGBUS where a mapped file is cut by somebody else in the midst of a copy.
//!
//! The handler puts a page of zeros (a huge one where the file has these) where the copy found none, so that the copy goes on, and the copy's owner is told. A
//! SIGBUS anywhere else ends the process, as it does without this handler.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use libc::{c_int, c_void, siginfo_t};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use vmm_sys_util::signal::register_signal_handler;

/// The copy that is under way in a thread: where its bytes lie in a mapped file, in pages of which size, and whether some of
/// them were not there.
struct Watch {
    begin: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    missed: AtomicBool,
}

thread_local! {
    // Made without an allocation and never dropped, so that the handler can reach it.
    static WATCH: Watch = const {
        Watch {
            begin: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            missed: AtomicBool::new(false),
        }
    };
}

/// Registers the handler, once for the process.
///
/// # Errors
/// Where the system refuses.
pub(super) fn arm() -> io::Result<()> {
    static ARMED: OnceLock<Result<(), i32>> = OnceLock::new();
    let armed =
        ARMED.get_or_init(|| register_signal_handler(libc::SIGBUS, handle).map_err(|error| error.errno()));
    armed.map_err(io::Error::from_raw_os_error)
}

/// Runs `copy`, which touches `len` bytes from `begin` on in a mapped file with pages of `page` bytes (a power of two), and nothing
/// else that could raise SIGBUS. Returns whether all of them were there.
pub(super) fn watched(begin: *const u8, len: usize, page: usize, copy: impl FnOnce()) -> bool {
    WATCH.with(|watch| {
        watch.missed.store(false, Ordering::Relaxed);
        watch.page.store(page, Ordering::Relaxed);
        watch.begin.store(begin.addr(), Ordering::Relaxed);
        watch.end.store(begin.addr().saturating_add(len), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        copy();
        compiler_fence(Ordering::SeqCst);
        watch.end.store(0, Ordering::Relaxed);
        !watch.missed.load(Ordering::Relaxed)
    })
}

/// Runs in the thread whose access failed, and calls nothing but the system.
extern "C" fn handle(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel hands in a valid structure, and for this signal the address is set.
    let address = unsafe { (*info).si_addr() };
    if !WATCH.try_with(|watch| watch.fill(address)).unwrap_or(false) {
        // SAFETY: both only change what this signal does; it is blocked here and comes when the handler returns.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

impl Watch {
    /// Puts a page of zeros at `address`, if the copy is under way there.
    fn fill(&self, address: *mut c_void) -> bool {
        let (begin, end) = (self.begin.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        if !(begin..end).contains(&address.addr()) {
            return false;
        }
        let page = self.page.load(Ordering::Relaxed);
        let start = address.wrapping_byte_sub(address.addr() & page.wrapping_sub(1));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the page lies in a mapping that the copy's owner borrows meanwhile; no reference to its bytes exists.
        let mapped = unsafe { libc::mmap(start, page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        self.missed.store(true, Ordering::Relaxed);
        !ptr::eq(mapped, libc::MAP_FAILED)
    }
}
