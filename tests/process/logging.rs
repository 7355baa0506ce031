//! What becomes of the log where nobody reads it.

use std::io::Write;
use std::process::Child;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::guest::Guest;
use super::node::{PATIENCE, Place};

/// Does something in a thread of its own, with an end to the patience for it.
fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, done) = channel();
    thread::spawn(move || drop(sender.send(act())));
    done.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// Ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bounded_where_nobody_reads_standard_error_loads_are_answered_and_sigterm_is_obeyed() {
    let place = Place::new();
    let (_reader, mut writer) = std::io::pipe().unwrap();
    // A pipe that is full already: each description has its own flags, so this one is made blocking again for the adaptor.
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    let mut adaptor = Killed(place.start_after("", 1, &[], writer));

    let socket = place.socket(1);
    in_time("loads of a guest", move || {
        // Each attachment and each reset is a line.
        for _ in 0..5 {
            let mut guest = Guest::attach(&socket);
            guest.reset();
            let begin = Instant::now();
            assert_eq!(guest.load::<8>(9, 0), [0xff; 8]);
            assert_eq!(guest.check(9, 0) >> 8, 0x81, "no route");
            assert!(begin.elapsed() < Duration::from_secs(5), "QEMU would have given up");
        }
    });
    // SAFETY: `kill` only takes numbers, and the child has not been waited for, so that its id is still its own.
    assert_eq!(unsafe { libc::kill(adaptor.0.id().cast_signed(), libc::SIGTERM) }, 0);
    let end = Instant::now() + PATIENCE;
    let status = loop {
        assert!(Instant::now() < end, "it does not end");
        if let Some(status) = adaptor.0.try_wait().unwrap() {
            break status;
        }
        thread::yield_now();
    };
    assert!(status.success());
    assert!(!place.socket(1).exists());
}
