//! Real processes under load, while a proxy, signals and restarts make their lives hard; every status is held against what the
//! target's memory holds.
//!
//! `CHAOS_SECONDS=n` makes it longer (default 8 for each story).

use std::time::{Duration, Instant};

use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::status::{Class, Code};

use super::guest::{Guest, READ, WRITE};
use super::node::{Node, Place};
use super::proxy::{Mode, Proxy};
use super::{BUFFER, QEMU_PATIENCE};

const WINDOW: u64 = 0x8_0000;
const SLOT: u64 = 8;

/// A store whose outcome was reported, and what its place held at that moment.
struct Reported {
    slot: u64,
    held: [u8; 8],
}

/// Stores, checks, and judges.
struct Judge {
    near: Guest,
    far: Guest,
    window: u64,
    next_slot: u64,
    value: u64,
    failed: Vec<Reported>,
    random: Random,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    stores: u64,
    ok: u64,
    not_executed: u64,
    unknown: u64,
    longest: Duration,
}

impl Judge {
    fn slots(&self) -> u64 {
        WINDOW / SLOT
    }

    /// One to sixteen stores into one block, and one check of it.
    fn round(&mut self) {
        let count = 1 + self.random.next() % 16;
        // A block has its stores checked once, so that its code is about these.
        self.next_slot = self.next_slot.next_multiple_of(4096 / SLOT);
        if self.next_slot + count > self.slots() {
            self.verdict();
            self.next_slot = 0;
        }
        let first = self.next_slot;
        let mut stored = Vec::new();
        for slot in first..first + count {
            self.value += 1;
            let before = self.held(slot);
            self.timed(|judge| judge.near.store(2, judge.window + slot * SLOT, &judge.value.to_le_bytes()));
            stored.push((slot, self.value, before));
        }
        self.next_slot = first + count;
        let word = self.timed(|judge| judge.near.check(2, judge.window + first * SLOT));
        let code = Code::from_bits(word as u8).expect("a known code");
        self.counts.stores += count;
        match code.class() {
            Class::Ok => self.counts.ok += 1,
            Class::Retry | Class::Permanent => self.counts.not_executed += 1,
            Class::Unknown => self.counts.unknown += 1,
        }
        let executed =
            |judge: &Self, (slot, value, _): &(u64, u64, [u8; 8])| judge.held(*slot) == value.to_le_bytes();
        match code.class() {
            Class::Ok => {
                for store in &stored {
                    assert!(executed(self, store), "no false OK: slot {}", store.0);
                }
            }
            Class::Retry | Class::Permanent => {
                assert!(!stored.iter().all(|store| executed(self, store)), "{code}: but all were executed");
            }
            Class::Unknown => {}
        }
        if !code.is_ok() {
            for (slot, value, before) in stored {
                let held = self.held(slot);
                assert!(held == value.to_le_bytes() || held == before, "a store is whole or not there");
                self.failed.push(Reported { slot, held });
            }
        }
    }

    fn held(&self, slot: u64) -> [u8; 8] {
        self.far.memory(BUFFER + slot * SLOT)
    }

    fn timed<T>(&mut self, access: impl FnOnce(&mut Self) -> T) -> T {
        let begin = Instant::now();
        let result = access(self);
        let took = begin.elapsed();
        assert!(took < QEMU_PATIENCE, "bounded: an access took {took:?}");
        self.counts.longest = self.counts.longest.max(took);
        result
    }

    /// Nothing of what was reported may have been executed after its report.
    fn verdict(&mut self) {
        for Reported { slot, held } in std::mem::take(&mut self.failed) {
            assert_eq!(self.held(slot), held, "no ghost writes: slot {slot}");
        }
    }
}

fn seconds() -> Duration {
    Duration::from_secs(
        std::env::var("CHAOS_SECONDS").map_or(8, |n| n.parse().expect("CHAOS_SECONDS is a number")),
    )
}

/// Node 1 dials node 2 by a proxy.
struct Stage {
    place: Place,
    proxy: Proxy,
    one: Node,
    two: Option<Node>,
}

impl Stage {
    fn new() -> (Self, Judge) {
        let place = Place::new();
        let proxy = Proxy::new(place.address(9), place.address(2));
        let two = place.start(2, &[], &["--peer", "1"]);
        let mut one = place.start(1, &[], &["--peer", &format!("2={}", proxy.address())]);
        let mut near = Guest::attach(&place.socket(1));
        let (far, window) = Self::far(&place, &mut one, &mut near);
        let judge = Judge {
            near,
            far,
            window,
            next_slot: 0,
            value: 0,
            failed: Vec::new(),
            random: Random::new(7),
            counts: Counts::default(),
        };
        (Self { place, proxy, one, two: Some(two) }, judge)
    }

    /// Sends a signal to node 2.
    fn signal(&self, signal: i32) {
        self.two.as_ref().expect("node 2 runs").signal(signal);
    }

    fn far(place: &Place, one: &mut Node, near: &mut Guest) -> (Guest, u64) {
        let mut far = Guest::attach(&place.socket(2));
        one.wait_for(&format!("node 2: up, incarnation {:016x}", far.incarnation()));
        near.wait_for_node(2, true);
        let window = far.export(BUFFER, WINDOW, READ | WRITE);
        (far, window)
    }

    /// When all is well again, stores arrive.
    fn heal(&mut self, judge: &mut Judge) {
        self.proxy.set(Mode::Pass);
        judge.near.wait_for_node(2, true);
        let before = judge.counts.ok;
        let begin = Instant::now();
        while judge.counts.ok == before {
            assert!(begin.elapsed() < super::node::PATIENCE, "stores arrive again");
            judge.round();
        }
        judge.verdict();
        println!("{:?}", judge.counts);
    }
}

#[test]
fn a_link_that_is_cut_stalled_swallowed_and_corrupted() {
    let (mut stage, mut judge) = Stage::new();
    let mut random = Random::new(1);
    let end = Instant::now() + seconds();
    let mut cuts = 0;
    while Instant::now() < end {
        let change = Instant::now() + Duration::from_millis(random.next() % 300);
        match random.next() % 8 {
            0..3 => {
                stage.proxy.cut();
                cuts += 1;
            }
            3 => stage.proxy.set(Mode::Stall),
            4 => stage.proxy.set(Mode::SwallowForward),
            5 => stage.proxy.set(Mode::SwallowBack),
            _ => stage.proxy.set(Mode::Flip),
        }
        while Instant::now() < change {
            judge.round();
        }
        stage.proxy.set(Mode::Pass);
        for _ in 0..20 {
            judge.round();
        }
    }
    println!("{cuts} cuts, {} bits flipped", stage.proxy.flipped());
    stage.heal(&mut judge);
    assert!(judge.counts.ok > 0 && judge.counts.unknown > 0, "{:?}", judge.counts);
}

#[test]
fn a_node_that_is_stopped_for_a_while_again_and_again() {
    let (mut stage, mut judge) = Stage::new();
    let mut random = Random::new(2);
    let end = Instant::now() + seconds();
    while Instant::now() < end {
        stage.signal(libc::SIGSTOP);
        let wake = Instant::now() + Duration::from_millis(100 + random.next() % 900);
        while Instant::now() < wake {
            judge.round();
        }
        stage.signal(libc::SIGCONT);
        for _ in 0..50 {
            judge.round();
        }
    }
    stage.heal(&mut judge);
    assert!(judge.counts.ok > 0 && judge.counts.unknown > 0, "{:?}", judge.counts);
}

#[test]
fn a_node_that_is_killed_and_started_again_and_again() {
    let (mut stage, mut judge) = Stage::new();
    let end = Instant::now() + seconds();
    let mut kills = 0;
    while Instant::now() < end {
        for _ in 0..30 {
            judge.round();
        }
        stage.signal(libc::SIGKILL);
        judge.round();
        stage.two = None;
        for _ in 0..5 {
            judge.round();
        }
        judge.verdict();
        stage.two = Some(stage.place.start(2, &[], &["--peer", "1"]));
        (judge.far, judge.window) = Stage::far(&stage.place, &mut stage.one, &mut judge.near);
        judge.next_slot = 0;
        kills += 1;
    }
    println!("{kills} kills");
    stage.heal(&mut judge);
    assert!(judge.counts.ok > 0 && judge.counts.not_executed > 0, "{:?}", judge.counts);
}
