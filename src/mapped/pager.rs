//! Serves page faults that may take long, in threads: the event loop goes on meanwhile, and so does everybody whose pages are elsewhere.
//!
//! Each group of memory, what one guest has or one device, has threads of its own, so that nobody waits for another's disk. Invariant: a
//! group has [`THREADS`] threads and [`MOST_JOBS`] faults in waiting at most; and pages stay mapped until a thread is done with them,
//! whatever has become of who asked.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::Pages;
use crate::adaptor::address::NodeId;
use crate::adaptor::memory::{DeviceId, MemoryFault, OperationId, Segment};

/// Threads of a group at most: so many faults a disk has to serve at a time.
const THREADS: usize = 4;
/// Faults of a group that wait for a thread at most.
const MOST_JOBS: usize = 256;
/// A thread without work ends after this time.
const IDLE: Duration = Duration::from_secs(10);
/// For so long pages are taken to be there after they were brought in.
const FRESH: Duration = Duration::from_secs(1);
/// With so many faults that were served, those are forgotten that nobody came back for.
const FORGET_AT: usize = 1024;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// That of the guest of the bus with this number.
    Guest(usize),
    /// That of a hosted device.
    Device(DeviceId),
}

/// What waits for pages, by the number of its bus, and for which: what comes later under the same name may need others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiter {
    /// A memory operation.
    Operation(usize, OperationId, Place),
    /// The next packet for a node.
    Packet(usize, NodeId, Place),
}

/// Stands for the addresses of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

impl Place {
    /// Of these runs of memory, those of several parties one after the other.
    pub fn of(runs: &[&[Segment]]) -> Self {
        let mut hasher = DefaultHasher::new();
        runs.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A fault that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Who waits for that.
    pub waiter: Waiter,
    /// Whose pages they are.
    pub group: Group,
    /// Whether they are there.
    pub result: Result<(), MemoryFault>,
}

struct Job {
    waiter: Waiter,
    pages: Vec<Pages>,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// What the threads of a group share.
#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None` where none comes for a while, so that the thread ends.
    fn next(&self) -> Option<Job> {
        let mut work = self.lock();
        loop {
            if let Some(job) = work.jobs.pop_front() {
                return Some(job);
            }
            work.idle = work.idle.saturating_add(1);
            let (woken, wait) = self.more.wait_timeout(work, IDLE).unwrap_or_else(PoisonError::into_inner);
            work = woken;
            work.idle = work.idle.saturating_sub(1);
            if wait.timed_out() && work.jobs.is_empty() {
                work.threads = work.threads.saturating_sub(1);
                return None;
            }
        }
    }
}

/// See the module.
pub struct Pager {
    groups: BTreeMap<Group, Arc<Shared>>,
    wake: Arc<OwnedFd>,
    sender: Sender<Served>,
    done: Receiver<Served>,
    /// What was served and not come back for, and when.
    fresh: BTreeMap<Waiter, Vec<(Group, Instant)>>,
}

impl Pager {
    /// A pager without threads.
    ///
    /// # Errors
    /// Where the process may open no more descriptors.
    pub fn new() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, done) = channel();
        Ok(Self { groups: BTreeMap::new(), wake, sender, done, fresh: BTreeMap::new() })
    }

    /// Brings pages in; that they are there comes from [`Self::poll`].
    ///
    /// # Errors
    /// [`MemoryFault::Busy`] where the group has too much to do, or there can be no thread for it.
    pub fn bring_in(&mut self, group: Group, waiter: Waiter, pages: Vec<Pages>) -> Result<(), MemoryFault> {
        let shared = Arc::clone(self.groups.entry(group).or_default());
        let mut work = shared.lock();
        if work.jobs.len() >= MOST_JOBS {
            return Err(MemoryFault::Busy);
        }
        work.jobs.push_back(Job { waiter, pages });
        if work.idle < work.jobs.len() && work.threads < THREADS {
            match self.start(group, &shared) {
                Ok(()) => work.threads = work.threads.saturating_add(1),
                Err(error) if work.threads == 0 => {
                    log::error!("can't start a thread: {error}");
                    work.jobs.pop_back();
                    return Err(MemoryFault::Busy);
                }
                Err(_) => {}
            }
        }
        drop(work);
        shared.more.notify_one();
        Ok(())
    }

    fn start(&self, group: Group, shared: &Arc<Shared>) -> io::Result<()> {
        let (shared, sender, wake) = (Arc::clone(shared), self.sender.clone(), Arc::clone(&self.wake));
        let work = move || {
            while let Some(Job { waiter, pages }) = shared.next() {
                let result = pages.iter().try_for_each(Pages::bring_in);
                // It may be the last who has them mapped.
                drop(pages);
                if sender.send(Served { waiter, group, result }).is_err() {
                    return;
                }
                // Where its number is full, the loop is woken already.
                let _ = rustix::io::write(&*wake, &1u64.to_ne_bytes());
            }
        };
        thread::Builder::new().name("pager".to_owned()).spawn(work).map(drop)
    }

    /// Takes back what woke the loop.
    pub fn handle_report(&self) {
        // There is nothing where it was taken before.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }

    /// A fault that was served.
    pub fn poll(&mut self) -> Option<Served> {
        let served = self.done.try_recv().ok()?;
        if served.result.is_ok() {
            if self.fresh.len() >= FORGET_AT {
                self.fresh.retain(|_, groups| groups.iter().any(|(_, at)| at.elapsed() < FRESH));
            }
            self.fresh.entry(served.waiter).or_default().push((served.group, Instant::now()));
        }
        Some(served)
    }

    /// Whether anything was served of late, so that it is worth asking for what.
    pub fn serves(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Whether the pages of this group that `waiter` needs were brought in just now.
    pub fn has_served(&self, waiter: Waiter, group: Group) -> bool {
        self.fresh
            .get(&waiter)
            .is_some_and(|groups| groups.iter().any(|(of, at)| *of == group && at.elapsed() < FRESH))
    }

    /// What waited does not any more.
    pub fn forget(&mut self, waiter: Waiter) {
        self.fresh.remove(&waiter);
    }
}

impl AsFd for Pager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
