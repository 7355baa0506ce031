//! Nobody is kept waiting by what another one may do, however much of it: while one guest, or a peer, does its legal worst,
//! another guest's loads are answered within a bounded time of the adaptor's processor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::guest::queue::{self, Entry, FLAG_LIST, HEAD_SIZE, Queue, SUBMISSION_SIZE, SUBMITTED, list};
use super::guest::{Guest, READ, WRITE};
use super::node::{Node, PATIENCE, Place};
use vfio_user::Client;

/// Time of the adaptor's processor from a load to its answer.
const BOUND: Duration = Duration::from_millis(50);
/// How long each kind of work goes on where it has no end of its own.
const A_WHILE: Duration = Duration::from_millis(700);

const FAILED_BLOCK: u64 = 0x120;
const FAILED_POP: u64 = 0x128;
const RANGE_START: u64 = 0x108;
const RANGE_END: u64 = 0x110;
const RANGE_STATUS: u64 = 0x118;
const EXPORT: u32 = 1;
const UNEXPORT: u32 = 2;
const REGISTER: u32 = 4;
const DEREGISTER: u32 = 5;
const DOMAIN: u32 = 5;

const MEMORY: u64 = 48 << 20;
const RUNS: u64 = 1 << 20;
/// Where list pages begin.
const LISTS: u64 = 8 << 20;
/// Where runs of one page are, and others not far.
const PAGES: u64 = 32 << 20;
/// A window that can be of any length.
const FAR: u64 = 1 << 40;

/// Does `work` while loads of `guest` are answered. The longest takes the node's processor so long.
pub fn longest_load(node: &Node, guest: &mut Guest, work: impl FnOnce() + Send) -> Duration {
    let is_over = AtomicBool::new(false);
    let (mut longest, mut loads) = (Duration::ZERO, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            work();
            is_over.store(true, Ordering::Relaxed);
        });
        while !is_over.load(Ordering::Relaxed) {
            let before = node.processor_clock();
            assert_eq!(guest.register(0), u32::from_le_bytes(*b"ARDM"));
            longest = longest.max(node.processor_clock() - before);
            loads += 1;
        }
    });
    assert!(loads > 10, "only {loads} loads were made meanwhile");
    longest
}

/// Writes a list of so many runs that do not touch.
fn write_runs(guest: &Guest) {
    let mut pages = Vec::new();
    let mut left = RUNS;
    while left > 0 {
        let count = left.min(255);
        left -= count;
        let mut page = Vec::with_capacity(4096);
        for run in 0..count {
            page.extend((PAGES + 0x2000 * (run % 2)).to_le_bytes());
            page.extend(0x1000u64.to_le_bytes());
        }
        page.resize(0xff0, 0);
        let next = LISTS + pages.len() as u64 + 4096;
        page.extend(if left > 0 { next } else { 0 }.to_le_bytes());
        page.resize(4096, 0);
        pages.extend(page);
    }
    guest.set_memory(LISTS, &pages);
}

fn command(guest: &mut Guest, opcode: u32, fields: &[(usize, u64)]) -> u64 {
    let (status, result) = guest.command(opcode, fields);
    assert_eq!(status, 0, "opcode {opcode}");
    result
}

/// A million runs are registered and exported, and both are taken back.
fn long_lists(guest: &mut Guest) {
    write_runs(guest);
    let shape = [(0x18, RUNS << 12), (0x28, LISTS)];
    for _ in 0..2 {
        let fields = [&shape[..], &[(0x20, 3 | RUNS << 32), (0x30, DOMAIN.into())]].concat();
        let key = command(guest, REGISTER, &fields);
        let export = [&shape[..], &[(0x20, 0x23 | RUNS << 32), (0x10, FAR), (0x40, u64::MAX)]].concat();
        command(guest, EXPORT, &export);
        command(guest, DEREGISTER, &[(0x30, key << 32)]);
        command(guest, UNEXPORT, &[(0x10, FAR)]);
    }
}

/// Sixteen queues with operations of a thousand pieces each, to and from another node.
fn scattered(guest: &mut Guest, node: u8, window: u64) {
    let key = guest.register_memory(PAGES, 16 << 20, DOMAIN);
    let (table, entries) = (8 << 20, 64u32);
    let pieces: Vec<_> = (0..1024).map(|at| (key, 0x1000 * at + 7, 1)).collect();
    guest.set_memory(PAGES + table, &list(&pieces));
    let mut queues: Vec<_> = (0..16u64)
        .map(|number| {
            let begin = (9 << 20) + 0x4000 * number;
            let completions = begin + u64::from(entries) * SUBMISSION_SIZE + HEAD_SIZE;
            let name = guest.create_queue(key, DOMAIN, (begin, completions), entries);
            (name, Queue::new(PAGES + begin, PAGES + completions, entries))
        })
        .collect();
    let write = Entry {
        opcode: queue::WRITE,
        flags: FLAG_LIST,
        node,
        remote: window,
        len: 1024,
        key,
        list_entries: 1024,
        local: table,
        ..Entry::default()
    };
    let begin = Instant::now();
    let mut done = 0;
    while begin.elapsed() < A_WHILE || queues.iter().any(|(_, queue)| queue.room() < entries) {
        assert!(begin.elapsed() < PATIENCE, "no completion");
        for (number, queue) in &mut queues {
            while let Some(completion) = queue.poll(guest) {
                assert_eq!((completion.status, completion.done), (0, 1024));
                done += 1;
            }
            while begin.elapsed() < A_WHILE && queue.room() > 0 {
                let opcode = if queue.posted % 2 == 0 { queue::WRITE } else { queue::READ };
                queue.post(guest, &Entry { opcode, ..write });
            }
            if queue.must_ring(guest) {
                guest.ring_queue(*number, SUBMITTED, queue.posted);
            }
        }
    }
    assert!(done > 16, "{done}");
}

/// Every block of the log has failed; ranges over all of them are asked about, and they are taken out of the queue.
fn failures(guest: &mut Guest, node: u8) {
    for block in 0..5000 {
        guest.store(node, (128 << 20) + 4096 * block, &[1; 8]);
    }
    guest.check(node, 128 << 20);
    for (at, word) in [(RANGE_START, 0), (RANGE_START + 4, 0), (RANGE_END, 0), (RANGE_END + 4, 1 << 24)] {
        guest.write_register(at, word);
    }
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        assert_ne!(guest.register(RANGE_STATUS), 0);
        guest.register(FAILED_BLOCK);
        guest.write_register(FAILED_POP, 0);
    }
}

/// Ranges over everything are asked about, as often as they are answered.
fn ranges(guest: &mut Guest) {
    for (at, word) in [(RANGE_START, 0), (RANGE_START + 4, 0), (RANGE_END, 0), (RANGE_END + 4, 1 << 24)] {
        guest.write_register(at, word);
    }
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        assert_ne!(guest.register(RANGE_STATUS), u32::MAX);
    }
}

fn resets(guest: &mut Guest) {
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        (0..100).for_each(|_| guest.reset());
    }
    // What was posted has been done when this is answered.
    guest.register(0);
}

fn doorbells(guest: &mut Guest) {
    let begin = Instant::now();
    while begin.elapsed() < A_WHILE {
        (0..256).for_each(|number| guest.ring_queue(number, SUBMITTED, 1));
    }
    guest.register(0);
}

#[test]
fn a_guest_that_does_its_worst_holds_up_no_load_of_another_bus() {
    let place = Place::new();
    let second = place.socket(5).display().to_string();
    let node = place.start(4, &[], &["--socket-path", &second, "--bus-bits", "2", "--peer", "1"]);
    // Memory that may be cut costs the adaptor most: each run of pages is faulted in before it is copied.
    let file = tempfile::tempfile().unwrap();
    file.set_len(MEMORY).unwrap();
    let mut busy = Guest::in_file(Client::new(&place.socket(4)).unwrap(), MEMORY, file);
    let mut other = Guest::attach(&place.socket(5));
    busy.wait_for_node(5, true);
    let window = other.export(1 << 20, 1 << 20, READ | WRITE);
    let mut longest = Vec::new();
    let mut measure = |what, work: &mut (dyn FnMut(&mut Guest) + Send)| {
        longest.push((what, longest_load(&node, &mut other, || work(&mut busy))));
    };
    measure("long lists", &mut long_lists);
    measure("scattered", &mut |guest| scattered(guest, 5, window));
    measure("failures", &mut |guest| failures(guest, 5));
    measure("doorbells", &mut doorbells);
    measure("resets", &mut resets);
    println!("{longest:?}");
    assert!(longest.iter().all(|&(_, time)| time < BOUND), "{longest:?}");
}

#[test]
fn ranges_over_the_largest_space_hold_up_no_load_of_another_bus() {
    let place = Place::new();
    let second = place.socket(5).display().to_string();
    let buses = ["--socket-path", &second, "--bus-bits", "2", "--peer", "1"];
    let node = place.start(4, &[], &[&buses[..], &["--nodes", "256", "--window-size", "8G"]].concat());
    let mut busy = Guest::attach(&place.socket(4));
    let mut other = Guest::attach(&place.socket(5));
    let longest = longest_load(&node, &mut other, || ranges(&mut busy));
    println!("{longest:?}");
    assert!(longest < BOUND, "{longest:?}");
}
