//! Random schedules: accesses of several nodes while the network and the nodes fail, with every answer held against the oracle.

use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::random::Random;

use crate::oracle::Oracle;
use crate::world::{DEADLINE, EXPORTED, Faults, TIMING, World};

const NODES: u8 = 3;
const STEPS: usize = 120;

struct Schedule {
    world: World,
    oracle: Oracle,
    random: Random,
    resets: u64,
}

/// Runs the schedule of a seed; every broken promise panics. Returns how many checks were made, and how many of these told of errors.
fn run(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let timings: [fn(NodeId) -> Timing; 3] = [
        |_| TIMING,
        // Every node has a lease of its own.
        |node| Timing { lease: Duration::from_millis([150, 20, 400][usize::from(node.0 - 1)]), ..TIMING },
        |node| Timing { lease: Duration::from_millis([5, 300, 60][usize::from(node.0 - 1)]), ..TIMING },
    ];
    let timing = timings[(random.next() % 3) as usize];
    let mut world = World::with_timing(random.next(), NODES, timing);
    world.faults = faults(&mut random);
    let mut schedule = Schedule { world, oracle: Oracle::default(), random, resets: 0 };
    for _ in 0..STEPS {
        schedule.act();
    }
    schedule.settle();
    (schedule.oracle.checks, schedule.oracle.failed_checks)
}

fn faults(random: &mut Random) -> Faults {
    let mut some = |most: u64| if random.next() & 1 == 0 { 0 } else { random.next() % most };
    Faults {
        loss: some(100),
        double: some(100),
        flip: some(50),
        jitter: some(2_000),
        survive_cut: some(2) == 1,
    }
}

impl Schedule {
    fn below(&mut self, limit: u64) -> u64 {
        self.random.next() % limit
    }

    fn node(&mut self) -> NodeId {
        NodeId(1 + self.below(u64::from(NODES)) as u8)
    }

    /// Two different nodes, and an offset in a part of the second's window that only the first uses.
    fn route(&mut self) -> (NodeId, NodeId, u64) {
        let from = self.node();
        let others = [1, 2, 3].map(NodeId).into_iter().filter(|&n| n != from).collect::<Vec<_>>();
        let to = others[self.below(2) as usize];
        let block = self.below(4);
        let slot = self.below(512);
        (from, to, u64::from(from.0) * 0x4000 + block * 4096 + slot * 8)
    }

    fn act(&mut self) {
        match self.below(100) {
            0..40 => self.store_some(),
            40..65 => self.check_one(),
            65..85 => self.read_one(),
            85..90 => {
                let time = Duration::from_micros(self.random.next() % 20_000);
                self.world.run_for(time);
            }
            _ => self.fail(),
        }
        self.oracle.observe(&self.world);
    }

    fn store_some(&mut self) {
        let (from, to, first) = self.route();
        let count = 1 + self.below(64);
        for offset in (first..).step_by(8).take(count as usize) {
            // Stay in the source's part.
            if offset / 0x4000 != first / 0x4000 {
                break;
            }
            let value = self.oracle.new_value();
            self.oracle.stored(from, to, offset, value);
            let start = self.world.now;
            while self.world.store(from, to, offset, &value.to_le_bytes()).is_err() {
                assert!(
                    self.world.now.since(start) <= DEADLINE,
                    "bounded: a store waits longer than the deadline"
                );
                self.world.step();
                self.oracle.observe(&self.world);
            }
        }
        if self.below(2) == 0 {
            self.world.idle(from);
        }
    }

    fn check_one(&mut self) {
        let (from, to, offset) = self.route();
        let word = self.wait(from, Region::Assurance, World::space(to, offset), 4);
        let word = u32::from_le_bytes(word[..].try_into().unwrap());
        self.oracle.checked(&self.world, from, to, offset / 4096, word as u8);
    }

    fn read_one(&mut self) {
        let (from, to, offset) = self.route();
        let resets = self.resets;
        let data = self.wait(from, Region::Access, World::space(to, offset), 8);
        let at = (EXPORTED + offset) as usize;
        let held = self.world.memory(to)[at..at + 8].to_vec();
        let word = self.wait(from, Region::Assurance, World::space(to, offset), 4);
        let word = u32::from_le_bytes(word[..].try_into().unwrap());
        let read_code = (word >> 8) as u8;
        // A node that was started again meanwhile has another memory.
        if read_code == 0 && self.resets == resets {
            assert_eq!(data[..], held[..], "no false OK: exactly the remote data");
        }
        self.oracle.checked(&self.world, from, to, offset / 4096, word as u8);
    }

    /// Loads, while things may fail meanwhile.
    fn wait(&mut self, at: NodeId, region: Region, offset: u64, len: usize) -> bytes::Bytes {
        let tag = self.world.begin_load(at, region, offset, len);
        let start = self.world.now;
        loop {
            self.oracle.observe(&self.world);
            if let Some(data) = self.world.answer(at, tag) {
                return data;
            }
            let waited = self.world.now.since(start);
            assert!(waited <= DEADLINE, "bounded: node {at} waits {waited:?} for {region:?} {offset:#x}");
            self.world.step();
            if self.below(400) == 0 {
                self.fail_but_not(at);
            }
        }
    }

    fn fail(&mut self) {
        self.fail_but_not(NodeId(0));
    }

    /// Something fails, but `spared` is not stopped or started again.
    fn fail_but_not(&mut self, spared: NodeId) {
        let (a, b, _) = self.route();
        match self.below(10) {
            0..3 if self.world.is_linked(a, b) => self.world.cut(a, b),
            0..7 if !self.world.is_linked(a, b) => self.world.link(a, b),
            7 if a != spared => {
                let time = Duration::from_micros(self.random.next() % 700_000);
                self.world.pause(a, time);
                // Whoever stands still makes no accesses.
                self.world.run_for(time);
            }
            8 if a != spared => {
                self.resets += 1;
                self.oracle.observe(&self.world);
                self.oracle.forget(a);
                self.world.restart(a, NODES);
                self.world.export(a, 0b11, u64::MAX);
            }
            9 if a != spared => {
                self.resets += 1;
                self.oracle.observe(&self.world);
                self.oracle.forget(a);
                self.world.reset(a);
                self.world.export(a, 0b11, u64::MAX);
            }
            _ => {}
        }
    }

    /// When all is well again, every node can reach every other, and stores arrive.
    fn settle(&mut self) {
        self.world.faults = Faults::NONE;
        let pairs = [(1, 2), (1, 3), (2, 3)].map(|(a, b)| (NodeId(a), NodeId(b)));
        for (a, b) in pairs {
            if !self.world.is_linked(a, b) {
                self.world.link(a, b);
            }
        }
        let healed = self.world.run_until(Duration::from_secs(5), |world| {
            pairs.iter().all(|&(a, b)| world.knows(a, b) && world.knows(b, a))
        });
        assert!(healed, "links come up again");
        for (from, to) in pairs.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
            let offset = u64::from(from.0) * 0x4000;
            for block in 0..4 {
                let word = self.world.check(from, to, offset + block * 4096);
                self.oracle.checked(&self.world, from, to, offset / 4096 + block, word as u8);
            }
            let value = self.oracle.new_value();
            self.oracle.stored(from, to, offset, value);
            self.world.store(from, to, offset, &value.to_le_bytes()).expect("buffers are free");
            let word = self.world.check(from, to, offset);
            assert_eq!(word, 0, "after healing, a store from {from} to {to} is done");
            self.oracle.checked(&self.world, from, to, offset / 4096, 0);
        }
    }
}

#[test]
fn random_schedules_break_no_line_of_the_contract() {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        let digits = seed.trim_start_matches("0x");
        run(u64::from_str_radix(digits, 16).expect("SIM_SEED is a hexadecimal number"));
        return;
    }
    let schedules =
        std::env::var("SIM_SCHEDULES").map_or(400, |n| n.parse().expect("SIM_SCHEDULES is a number"));
    let mut seeds = Random::new(0x5eed);
    let (mut checks, mut failed) = (0, 0);
    for _ in 0..schedules {
        let seed = seeds.next();
        let result = std::panic::catch_unwind(|| run(seed));
        let (made, told) = result.unwrap_or_else(|_| {
            panic!("replay with: SIM_SEED={seed:#x} cargo test --test sim random_schedules -- --nocapture")
        });
        checks += made;
        failed += told;
    }
    println!("{schedules} schedules, {checks} checks, {failed} of them told of errors");
    assert!(failed > 0, "the faults were felt");
}
