//! Readiness of file descriptors: level-triggered epoll with timeouts finer than a millisecond.
//!
//! Level-triggered, so that whoever takes only a part of what is there in one turn is told again in the next.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// The most readiness reports taken in one turn; the others come in the next.
const REPORTS: usize = 64;

/// Names a registered descriptor in reports. A token is not used again, so that a report which was overtaken by
/// the end of its descriptor finds nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What is to be reported about a descriptor. Errors and hang-ups always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// There is something to read, or to accept.
    pub readable: bool,
    /// There is room to write, or a connection attempt has ended.
    pub writable: bool,
}

impl Interest {
    /// Reading only.
    pub const READ: Self = Self { readable: true, writable: false };
    /// Writing only.
    pub const WRITE: Self = Self { readable: false, writable: true };
    /// Nothing but the end.
    pub const NONE: Self = Self { readable: false, writable: false };

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::RDHUP;
        flags.set(epoll::EventFlags::IN, self.readable);
        flags.set(epoll::EventFlags::OUT, self.writable);
        flags
    }
}

/// What is the matter with a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which one.
    pub token: Token,
    /// Reading would give something: data, the end, or an error.
    pub readable: bool,
    /// Writing would do something.
    pub writable: bool,
    /// The other side has closed, or the descriptor has failed.
    pub closed: bool,
}

/// A set of registered descriptors.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// Where the process may open no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a descriptor. It leaves the set when it is closed.
    ///
    /// # Errors
    /// As the kernel gives them; not for a fresh, open descriptor unless memory or limits are exhausted.
    pub fn add(&self, source: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::add(&self.epoll, source, data, interest.flags())?)
    }

    /// Changes what is reported about a descriptor of the set.
    ///
    /// # Errors
    /// Where it is not in the set.
    pub fn modify(&self, source: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token.0);
        Ok(epoll::modify(&self.epoll, source, data, interest.flags())?)
    }

    /// Takes a descriptor out of the set, where it may stay open for a while.
    ///
    /// # Errors
    /// Where it is not in the set.
    pub fn remove(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Waits until something is to report or `timeout` is over (`None`: for ever), and fills `reports`. A signal ends the wait early.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub fn wait(&self, reports: &mut Reports, timeout: Option<Duration>) -> io::Result<()> {
        reports.raw.clear();
        let exact = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let result = match epoll::wait(&self.epoll, spare_capacity(&mut reports.raw), exact.as_ref()) {
            // A kernel, or a sandbox, without epoll_pwait2 takes whole milliseconds only.
            Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                let rounded = timeout.and_then(|timeout| Timespec::try_from(whole_millis(timeout)).ok());
                epoll::wait(&self.epoll, spare_capacity(&mut reports.raw), rounded.as_ref())
            }
            result => result,
        };
        match result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// `duration`, rounded up.
fn whole_millis(duration: Duration) -> Duration {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// Room for reports, used again and again.
pub struct Reports {
    raw: Vec<epoll::Event>,
}

impl Default for Reports {
    fn default() -> Self {
        Self { raw: Vec::with_capacity(REPORTS) }
    }
}

impl Reports {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The reports of the last wait.
    pub fn iter(&self) -> impl Iterator<Item = Report> {
        use epoll::EventFlags as Flags;
        self.raw.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            let closed = flags.intersects(Flags::RDHUP | Flags::HUP | Flags::ERR);
            Report {
                token: Token(data.u64()),
                readable: closed || flags.contains(Flags::IN),
                writable: flags.intersects(Flags::OUT | Flags::HUP | Flags::ERR),
                closed,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn reports_until_it_is_taken_and_at_the_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let poller = Poller::new().unwrap();
        let mut reports = Reports::default();
        poller.add(&ours, Token(7), Interest::READ).unwrap();
        poller.wait(&mut reports, Some(Duration::ZERO)).unwrap();
        assert!(reports.is_empty());
        theirs.write_all(b"x").unwrap();
        for _ in 0..2 {
            poller.wait(&mut reports, None).unwrap();
            let report = Report { token: Token(7), readable: true, writable: false, closed: false };
            assert_eq!(reports.iter().collect::<Vec<_>>(), [report]);
        }
        poller.modify(&ours, Token(7), Interest::WRITE).unwrap();
        poller.wait(&mut reports, None).unwrap();
        assert!(reports.iter().all(|report| report.writable && !report.closed));
        poller.modify(&ours, Token(7), Interest::NONE).unwrap();
        drop(theirs);
        poller.wait(&mut reports, None).unwrap();
        assert!(reports.iter().all(|report| report.closed));
        drop(ours);
        poller.wait(&mut reports, Some(Duration::from_micros(20))).unwrap();
        assert!(reports.is_empty());
    }
}
