//! Signals: the polite ones as a file to poll, and an explanation for the one that a removed adaptor raises.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd;

/// Turns SIGTERM, SIGINT and SIGHUP of this thread into a file that becomes readable.
pub fn termination() -> io::Result<File> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set before anything else uses it, and all pointers are to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC) {
            file if file >= 0 => Ok(File::from_raw_fd(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

extern "C" fn bus_error(_signal: libc::c_int) {
    const TEXT: &[u8] = b"ardma: the adaptor was removed (or does not answer) during an access\n";
    // SAFETY: `write` and `_exit` may be called in a signal handler, and the text is static.
    unsafe {
        libc::write(2, TEXT.as_ptr().cast(), TEXT.len());
        libc::_exit(3);
    }
}

/// Makes an access to a removed adaptor end the tool with a sentence.
pub fn explain_bus_error() {
    let handler: extern "C" fn(libc::c_int) = bus_error;
    // SAFETY: the handler calls only what a signal handler may.
    unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) };
}
