//! The library `ardma` for programs in C; `guest-driver/include/ardma.h` says what each function does.
//!
//! The invariant: a handle is a box that was given out, and is taken back once. Nothing panics across the
//! border, and what went wrong stays with the thread that asked.

mod handles;
mod operations;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the error's text for this thread, and turns it into a negative errno.
fn told(error: &ardma::Error) -> c_int {
    let text: Vec<u8> = error.to_string().bytes().filter(|&byte| byte != 0).collect();
    LAST.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    let errno = match error {
        ardma::Error::QueueFull { .. } => libc::EAGAIN,
        ardma::Error::QueueLost { .. } => libc::ESTALE,
        ardma::Error::Outside { .. } | ardma::Error::NotMemory { .. } | ardma::Error::Parse(_) => {
            libc::EINVAL
        }
        other => other.errno().unwrap_or(libc::EIO),
    };
    errno.wrapping_neg()
}

/// A text that is this call's own problem.
fn refused(text: &'static str) -> c_int {
    LAST.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    libc::EINVAL.wrapping_neg()
}

/// 0, or the negative errno of the error.
fn outcome(result: Result<(), ardma::Error>) -> c_int {
    result.map_or_else(|error| told(&error), |()| 0)
}

/// `ardma_error`
#[unsafe(no_mangle)]
pub extern "C" fn ardma_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// `ardma_explain`
///
/// # Safety
/// `text` has room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ardma_explain(status: u32, text: *mut c_char, length: usize) -> *const c_char {
    let words = ardma::Status::from_bits(status).to_string();
    let Some(room) = length.checked_sub(1).filter(|_| !text.is_null()) else { return text };
    let count = words.len().min(room);
    // SAFETY: the caller vouches for `length` bytes, of which one is for the end.
    unsafe {
        std::ptr::copy_nonoverlapping(words.as_ptr(), text.cast(), count);
        text.add(count).write(0);
    }
    text
}

/// The caller's C string.
///
/// # Safety
/// It is one, or null.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
