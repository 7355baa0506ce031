//! The process's file descriptors: how many there may be, and that strangers and guests leave enough of them to others.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a guest may need: its socket, an event for each vector, what may be under way on its socket, and the files of its memory.
const OF_A_GUEST: u64 = 128;

/// What this process needs itself from time to time: a connection that was accepted and is not judged yet, a file that is looked at.
const OWN: u64 = 16;

/// Descriptors below this number are for whoever connects over TCP; the kernel gives out the lowest that is free.
static FOR_STRANGERS: AtomicU64 = AtomicU64::new(u64::MAX);

/// The most files of a guest's memory: more than QEMU has slots for DIMMs and nodes. And the least, whatever the limit is.
const MOST_FILES: usize = 1024;
const LEAST_FILES: usize = 32;
/// The most files of all guests. Each is mapped, and Linux lets a process have 65530 mappings.
const FILES_OF_ALL: usize = 32 << 10;
/// The bytes in these files, half of what a process can address on x86-64.
const BYTES_OF_ALL: u64 = 1 << 46;

/// What a guest may have of them.
static FILES: AtomicUsize = AtomicUsize::new(MOST_FILES);
static BYTES: AtomicU64 = AtomicU64::new(BYTES_OF_ALL);

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
    let strangers = limit.saturating_sub(kept);
    FOR_STRANGERS.store(strangers, Ordering::Relaxed);
    // Half of what strangers may have: who comes over the network needs some whatever guests do.
    let files = usize::try_from(strangers / 2).unwrap_or(usize::MAX).min(FILES_OF_ALL);
    let count = usize::try_from(guests).unwrap_or(usize::MAX).max(1);
    let share = files.checked_div(count).unwrap_or(files).clamp(LEAST_FILES, MOST_FILES);
    FILES.store(share, Ordering::Relaxed);
    BYTES.store(BYTES_OF_ALL.checked_div(guests.max(1)).unwrap_or(BYTES_OF_ALL), Ordering::Relaxed);
}

/// How many files the memory of a guest may be in, and how many bytes these may have together, so that other guests have as much.
pub fn share_of_a_guest() -> (usize, u64) {
    (FILES.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
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
