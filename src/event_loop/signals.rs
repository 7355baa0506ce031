//! The signals that a daemon gets, as something to poll.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use crate::poller::{Interest, Poller, Token};

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Hangup,
}

/// Catches signals; each sets a flag and wakes the poller.
#[derive(Debug)]
pub struct Signals {
    wake: UnixStream,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// Begins to catch.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn new(poller: &Poller, token: Token) -> io::Result<Self> {
        let (wake, sender) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            // In this order: who is woken finds the flag set.
            if signal != SIGHUP {
                flag::register(signal, Arc::clone(&stop))?;
            }
            pipe::register(signal, sender.try_clone()?)?;
        }
        poller.add(&wake, token, Interest::READ)?;
        Ok(Self { wake, stop })
    }

    /// The most important signal since the last call.
    pub fn take(&mut self) -> Option<Signal> {
        let mut bytes = [0; 64];
        let woken = matches!(self.wake.read(&mut bytes), Ok(1..));
        if self.stop.load(Ordering::Acquire) {
            return Some(Signal::Stop);
        }
        woken.then_some(Signal::Hangup)
    }
}
