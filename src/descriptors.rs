//! The process's file descriptors: how many there may be, and that strangers leave enough of them to the guests.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a guest may need: its socket, an event for each vector, what may be under way on its socket, and the files of its memory.
const OF_A_GUEST: u64 = 128;

/// What this process needs itself from time to time: a connection that was accepted and is not judged yet, a file that is looked at.
const OWN: u64 = 16;

/// Descriptors below this number are for whoever connects over TCP; the kernel gives out the lowest that is free.
static FOR_STRANGERS: AtomicU64 = AtomicU64::new(u64::MAX);

/// There are not enough descriptors for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    limit: u64,
    open: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, open } = self;
        write!(
            f,
            "a guest may need {OF_A_GUEST} file descriptors, and {open} of {limit} are in use; {}",
            Advice(*limit)
        )
    }
}

/// What to do where the limit is too low.
#[derive(Clone, Copy, Debug)]
pub struct Advice(pub u64);

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "raise the limit of {} (RLIMIT_NOFILE: ulimit -n, or LimitNOFILE= of a systemd unit)",
            self.0
        )
    }
}

/// How many descriptors this process may have.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit as far as the system lets this process, and keeps so many of what there is then as these guests may need.
pub fn prepare(guests: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        log::debug!("the limit of file descriptors stays as it is: {error}");
    }
    let (limit, guests) = (limit(), u64::try_from(guests).unwrap_or(u64::MAX));
    // Where there are few, peers need some too.
    let kept = OF_A_GUEST.saturating_mul(guests).saturating_add(OWN).min(limit / 2);
    FOR_STRANGERS.store(limit.saturating_sub(kept), Ordering::Relaxed);
}

/// Whether this descriptor, which has just been opened for somebody who connects over TCP, leaves enough to guests.
pub fn leaves_enough(opened: &impl AsFd) -> bool {
    u64::try_from(opened.as_fd().as_raw_fd())
        .is_ok_and(|number| number < FOR_STRANGERS.load(Ordering::Relaxed))
}

/// Whether there is room for a guest that has just connected.
///
/// # Errors
/// Where there is not.
pub fn room_for_a_guest() -> Result<(), Shortage> {
    let limit = limit();
    // Where that can't be read nothing is known, and the guest may try.
    let open =
        std::fs::read_dir("/proc/self/fd").map_or(0, |entries| u64::try_from(entries.count()).unwrap_or(0));
    if limit.saturating_sub(open) >= OF_A_GUEST { Ok(()) } else { Err(Shortage { limit, open }) }
}
