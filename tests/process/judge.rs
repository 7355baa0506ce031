//! Holds every status against what the target's memory holds.

use std::time::{Duration, Instant};

use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::status::{Class, Code};

use super::guest::Guest;
use super::node::PATIENCE;
use super::{BUFFER, QEMU_PATIENCE};

pub const WINDOW: u64 = 0x8_0000;
const SLOT: u64 = 8;

/// A store whose outcome was reported, and what its place held at that moment.
struct Reported {
    slot: u64,
    held: [u8; 8],
}

/// Stores from one guest into node 2's, checks, and judges.
pub struct Judge {
    pub near: Guest,
    pub far: Guest,
    window: u64,
    next_slot: u64,
    value: u64,
    failed: Vec<Reported>,
    random: Random,
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub struct Counts {
    pub stores: u64,
    pub ok: u64,
    pub not_executed: u64,
    pub unknown: u64,
    pub longest: Duration,
}

impl Counts {
    /// How many checks there were.
    #[allow(dead_code, reason = "not every layer asks for it")]
    pub fn rounds(&self) -> u64 {
        self.ok + self.not_executed + self.unknown
    }
}

impl Judge {
    /// `far` exported [`WINDOW`] bytes at [`BUFFER`] to `near`, and they begin at offset `window`.
    pub fn new(near: Guest, far: Guest, window: u64) -> Self {
        Self {
            near,
            far,
            window,
            next_slot: 0,
            value: 0,
            failed: Vec::new(),
            random: Random::new(7),
            counts: Counts::default(),
        }
    }

    /// The far guest is another one now.
    pub fn replace_far(&mut self, far: Guest, window: u64) {
        (self.far, self.window) = (far, window);
        self.next_slot = 0;
    }

    fn slots(&self) -> u64 {
        WINDOW / SLOT
    }

    /// One to sixteen stores into one block, and one check of it.
    pub fn round(&mut self) {
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
    pub fn verdict(&mut self) {
        for Reported { slot, held } in std::mem::take(&mut self.failed) {
            assert_eq!(self.held(slot), held, "no ghost writes: slot {slot}");
        }
    }

    /// When all is well again, stores arrive.
    pub fn recover(&mut self) {
        self.near.wait_for_node(2, true);
        let before = self.counts.ok;
        let begin = Instant::now();
        while self.counts.ok == before {
            assert!(begin.elapsed() < PATIENCE, "stores arrive again");
            self.round();
        }
        self.verdict();
        println!("{:?}", self.counts);
    }
}

/// How long a story is: `CHAOS_SECONDS`, or 8.
pub fn seconds() -> Duration {
    Duration::from_secs(
        std::env::var("CHAOS_SECONDS").map_or(8, |n| n.parse().expect("CHAOS_SECONDS is a number")),
    )
}
