//! What becomes of guests and of the log where file descriptors run out.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use vfio_user::Client;

use super::guest::Guest;
use super::node::{PATIENCE, Place};

/// An adaptor that may have only so many descriptors, and its log.
struct Adaptor {
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Adaptor {
    fn start(place: &Place, descriptors: u32) -> Self {
        Self::start_as(place, descriptors, 1, &[])
    }

    fn start_as(place: &Place, descriptors: u32, node: u8, options: &[&str]) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        let child = place.start_after(&format!("ulimit -n {descriptors};"), node, options, writer);
        Self { child, lines: read(reader), log: Vec::new() }
    }

    /// Waits for a line with all of these parts.
    fn wait_for(&mut self, parts: &[&str]) {
        let end = Instant::now() + PATIENCE;
        while !self.log.last().is_some_and(|line| parts.iter().all(|part| line.contains(part))) {
            let patience = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(patience);
            self.log.push(line.unwrap_or_else(|_| panic!("no line with {parts:?} in {:#?}", self.log)));
        }
    }

    /// The whole log; the process ends.
    fn log(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.log.extend(self.lines.iter());
        core::mem::take(&mut self.log)
    }

    /// How many lines there are in all with this part; the process ends.
    fn end(self, part: &str) -> usize {
        self.log().iter().filter(|line| line.contains(part)).count()
    }
}

impl Drop for Adaptor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(reader: PipeReader) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).lines() {
            let _ = sender.send(line.unwrap());
        }
    });
    lines
}

#[test]
fn a_guest_for_which_there_are_too_few_is_turned_away_and_told_why() {
    let place = Place::new();
    let mut adaptor = Adaptor::start(&place, 100);
    let attempts = 200;
    for _ in 0..attempts {
        assert!(Client::new(&place.socket(1)).is_err(), "it was attached");
    }
    adaptor.wait_for(&["guest turned away", "of 100 are in use", "RLIMIT_NOFILE", "LimitNOFILE="]);
    let lines = adaptor.end("guest turned away");
    assert!((1..attempts / 2).contains(&lines), "{lines} lines");
}

#[test]
fn strangers_leave_a_guest_enough() {
    let place = Place::new();
    let mut adaptor = Adaptor::start(&place, 300);
    // More than there can be: they come again, as those that say nothing are closed after a while.
    let address = place.address(1);
    let (stop, stopped) = channel::<()>();
    let crowd = thread::spawn(move || {
        let mut open = Vec::new();
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            open.extend(TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok());
            if open.len() > 400 {
                open.drain(..200);
            }
        }
    });
    adaptor.wait_for(&["can't accept a connection", "RLIMIT_NOFILE"]);
    for _ in 0..10 {
        let mut guest = Guest::attach(&place.socket(1));
        let events: Vec<_> = (0..16).map(|vector| guest.connect(vector)).collect();
        guest.export(0, 0x1000, super::READ);
        assert_eq!(guest.load::<8>(9, 0), [0xff; 8]);
        assert_eq!(guest.check(9, 0) >> 8, 0x81, "no route");
        assert_eq!(events.len(), 16);
    }
    drop(stop);
    crowd.join().unwrap();
    let lines = adaptor.end("can't accept a connection");
    assert!(lines < 60, "{lines} lines");
}

/// Maps ranges, each of which has a file of its own, that the adaptor keeps.
fn map_files(client: &mut Client, count: u64) {
    for range in 0..count {
        let file = File::from(memfd_create("range", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(4096).unwrap();
        client.dma_map(0, (1 << 32) + range * 8192, 4096, file.as_raw_fd()).unwrap();
    }
}

#[test]
fn a_guest_with_many_files_leaves_others_enough() {
    let place = Place::new();
    let second = place.socket(5).display().to_string();
    let options = ["--socket-path", &second, "--bus-bits", "1", "--peer", "1"];
    let mut adaptor = Adaptor::start_as(&place, 500, 4, &options);
    let mut greedy = Client::new(&place.socket(4)).unwrap();
    map_files(&mut greedy, 600);
    adaptor.wait_for(&["not mapped", "limit of 500"]);
    let mut guest = Guest::attach(&place.socket(5));
    let events: Vec<_> = (0..16).map(|vector| guest.connect(vector)).collect();
    guest.export(0, 0x1000, super::READ);
    assert_eq!(events.len(), 16);
    // So does it to who comes over the network.
    let strangers: Vec<_> = (0..50).map(|_| TcpStream::connect(place.address(4)).unwrap()).collect();
    let mut byte = [0];
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        // It is closed when it does not introduce itself in time.
        assert!(matches!(std::io::Read::read(&mut stranger, &mut byte), Ok(0)));
    }
    let log = adaptor.log();
    let is_short = |line: &&String| line.contains("turned away") || line.contains("can't accept");
    assert_eq!(log.iter().find(is_short), None);
}

#[test]
fn memory_for_which_there_is_none_left_is_refused_and_the_limit_is_named() {
    let place = Place::new();
    let mut adaptor = Adaptor::start(&place, 160);
    let mut guest = Guest::attach(&place.socket(1));
    map_files(&mut guest.client, 200);
    adaptor.wait_for(&["no room for one more file", "limit of 160"]);
    assert_eq!(guest.load::<8>(9, 0), [0xff; 8]);
    assert_eq!(guest.check(9, 0) >> 8, 0x81, "the guest lives on");
    let mut log = adaptor.log();
    log.retain(|line| line.contains("client sent") || line.contains(" not mapped: "));
    assert!(log.iter().all(|line| line.contains("no room")), "it is not the client's fault: {log:#?}");
    assert!((1..100).contains(&log.len()), "{} lines", log.len());
}
