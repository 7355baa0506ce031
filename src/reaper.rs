//! Gives back what takes the kernel long: the memory of a guest that has gone, files and sockets that may hold the last
//! reference to such memory.
//!
//! Freeing 1 GiB takes the kernel some hundred milliseconds. A thread does it, so that the event loop goes on meanwhile. What is
//! handed over is not used any more by anybody: nothing waits for its end, and the process may end before.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Things in waiting from which on the one who has another gives it back itself: each may hold a descriptor or a mapping.
const MOST: usize = 4096;

/// What is dropped.
type Thing = Box<dyn Send>;

/// How many things wait, or are being dropped.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Drops `thing` in the reaper's thread; here where that can't be had, or has very much to do.
pub fn release(thing: impl Send + 'static) {
    if WAITING.load(Ordering::Relaxed) < MOST
        && let Some(reaper) = reaper()
    {
        WAITING.fetch_add(1, Ordering::Relaxed);
        // Where the thread has ended, what could not be sent is dropped here.
        let _ = reaper.send(Box::new(thing));
    }
}

fn reaper() -> Option<&'static Sender<Thing>> {
    static REAPER: OnceLock<Option<Sender<Thing>>> = OnceLock::new();
    let reaper = REAPER.get_or_init(|| {
        let (sender, things) = channel::<Thing>();
        let work = move || {
            for thing in things {
                drop(thing);
                WAITING.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let started = thread::Builder::new().name("reaper".to_owned()).spawn(work);
        started.map(|_| sender).inspect_err(|error| log::error!("can't start a thread: {error}")).ok()
    });
    reaper.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, sync_channel};
    use std::time::Duration;

    /// Says when it is dropped, and waits then until it may go on.
    struct Slow(Sender<()>, std::sync::mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.send(());
            let _ = self.1.recv();
        }
    }

    #[test]
    fn what_takes_long_is_dropped_by_another_thread() {
        let (begins, begun) = channel();
        let (go_on, gate) = sync_channel(1);
        release(Slow(begins, gate));
        begun.recv_timeout(Duration::from_secs(20)).unwrap();
        // It is still under way here, and what comes after it waits.
        let (begins, later) = channel();
        let (_open, gate) = sync_channel::<()>(1);
        drop(_open);
        release(Slow(begins, gate));
        assert_eq!(later.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        go_on.send(()).unwrap();
        assert_ne!(later.recv_timeout(Duration::from_secs(20)), Err(RecvTimeoutError::Timeout));
    }
}
