//! Random schedules: accesses of several nodes while the network and the nodes fail, with every answer held against the oracle.

use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::buses::{Buses, Span};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::transaction::{RequestKind, TransactionId};
use bytes::Bytes;

use crate::network::{Faults, Station};
use crate::oracle::Oracle;
use crate::world::{EXPORTED, PATIENCE, Slow, TIMING, WINDOW, World};

const NODES: u8 = 3;
const STEPS: usize = 120;
/// Where one that claims to be another node has its place.
const IMPOSTOR: NodeId = NodeId(200);

/// How the nodes are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Each with each other.
    Direct,
    /// By routers, for the most part.
    Routed,
    /// Nodes 2 and 3 are buses of one adaptor, which is linked with node 1 or with routers.
    Buses,
}

struct Schedule {
    world: World,
    oracle: Oracle,
    random: Random,
    routers: u8,
    resets: u64,
    transfers: u64,
}

/// What a run, or many, came to.
#[derive(Clone, Copy, Default)]
struct Sum {
    checks: u64,
    failed: u64,
    refusals: u64,
    bulk_ok: u64,
    bulk_failed: u64,
    ranges: u64,
    failed_ranges: u64,
    page_faults: u64,
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.checks += other.checks;
        self.failed += other.failed;
        self.refusals += other.refusals;
        self.bulk_ok += other.bulk_ok;
        self.bulk_failed += other.bulk_failed;
        self.ranges += other.ranges;
        self.failed_ranges += other.failed_ranges;
        self.page_faults += other.page_faults;
    }
}

/// Runs the schedule of a seed; every broken promise panics.
fn run(seed: u64, kind: Kind) -> Sum {
    let mut random = Random::new(seed);
    let timings: [fn(NodeId) -> Timing; 3] = [
        |_| TIMING,
        // Every node has a lease of its own.
        |node| Timing { lease: Duration::from_millis([150, 20, 400][usize::from(node.0 - 1)]), ..TIMING },
        |node| Timing { lease: Duration::from_millis([5, 300, 60][usize::from(node.0 - 1)]), ..TIMING },
    ];
    let timing = timings[(random.next() % 3) as usize];
    let routers = match kind {
        Kind::Direct => 0,
        Kind::Routed => 1 + (random.next() % 3) as u8,
        Kind::Buses => (random.next() % 3) as u8,
    };
    let mut world = if kind == Kind::Buses {
        let adaptors = [Buses::single(NodeId(1)), Buses::new(Span::new(NodeId(2), 1).unwrap(), 2).unwrap()];
        let links = match routers {
            0 => vec![(NodeId(1).into(), NodeId(2).into())],
            _ => topology(&mut random, routers, 2),
        };
        World::with_processes(random.next(), &adaptors, routers, &links, timing)
    } else if routers > 0 {
        let links = topology(&mut random, routers, NODES);
        World::with_routers(random.next(), NODES, routers, &links, timing)
    } else {
        World::with_timing(random.next(), NODES, timing)
    };
    world.faults = faults(&mut random);
    world.slow = slow(&mut random);
    let mut schedule =
        Schedule { world, oracle: Oracle::default(), random, routers, resets: 0, transfers: 0 };
    for id in 1..=NODES {
        schedule.drift(NodeId(id));
    }
    for _ in 0..STEPS {
        schedule.act();
    }
    schedule.settle();
    let Schedule { oracle, world, .. } = schedule;
    let Oracle { checks, failed_checks: failed, bulk_ok, bulk_failed, ranges, failed_ranges, .. } = oracle;
    let (refusals, page_faults) = (world.network.refusals, world.page_faults);
    Sum { checks, failed, refusals, bulk_ok, bulk_failed, ranges, failed_ranges, page_faults }
}

/// Routers in a row or a ring, each of the first so many nodes at one of them; some at a second one, or with a direct link besides.
fn topology(random: &mut Random, routers: u8, nodes: u8) -> Vec<(Station, Station)> {
    let router = |n: u64| Station::Router((n % u64::from(routers)) as u8);
    let mut pairs: Vec<_> = (1..routers).map(|n| (Station::Router(n - 1), Station::Router(n))).collect();
    if routers == 3 && random.next() & 1 == 0 {
        pairs.push((Station::Router(0), Station::Router(2)));
    }
    for id in 1..=nodes {
        let home = random.next();
        pairs.push((NodeId(id).into(), router(home)));
        if routers > 1 && random.next().is_multiple_of(4) {
            pairs.push((NodeId(id).into(), router(home + 1)));
        }
    }
    if random.next().is_multiple_of(4) {
        pairs.push((NodeId(1).into(), NodeId(2).into()));
    }
    pairs
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

/// Memory that is slow, for half of the schedules: page faults take longer than any lease, and than the deadline.
fn slow(random: &mut Random) -> Slow {
    match random.next() % 2 {
        0 => Slow::NONE,
        _ => Slow { faults: random.next() % 100, longest: 1 + random.next() % 1_200_000, unseen: 300 },
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
            0..33 => self.store_some(),
            33..40 => self.transfer_some(),
            40..58 => self.check_one(),
            58..65 => self.ask_some(),
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
            self.go_on(from);
            self.oracle.stored(from, to, offset, value);
            let start = self.world.now;
            while self.world.store(from, to, offset, &value.to_le_bytes()).is_err() {
                assert!(
                    self.world.now.since(start) <= PATIENCE,
                    "bounded: a store waits longer than the deadline"
                );
                self.world.step();
                self.oracle.observe(&self.world);
            }
            self.world.spared = None;
        }
        if self.below(2) == 0 {
            self.world.idle(from);
        }
    }

    /// Bulk writes into the block that no accesses go to.
    fn transfer_some(&mut self) {
        let (from, to, _) = self.route();
        let count = 1 + self.below(8);
        for _ in 0..count {
            let first = self.below(512);
            let values: Vec<u64> =
                (first..512.min(first + 1 + self.below(64))).map(|_| self.oracle.new_value()).collect();
            let offset = u64::from(from.0) * 4096 + first * 8;
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.transfers += 1;
            let id = TransactionId(self.transfers);
            self.oracle.sent(from, to, offset, id, values);
            self.world.bulk(from, to, offset, id, RequestKind::Write(Bytes::from(data).into()));
            self.oracle.observe(&self.world);
        }
    }

    fn check_one(&mut self) {
        let (from, to, offset) = self.route();
        let word = self.wait(from, Region::Assurance, World::space(to, offset), 4);
        let word = u32::from_le_bytes(word[..].try_into().unwrap());
        self.oracle.checked(&self.world, from, to, offset / 4096, word as u8);
    }

    /// Asks about a range of blocks; about every node's at times.
    fn ask_some(&mut self) {
        let (from, to, offset) = self.route();
        let block = offset / 4096;
        let (nodes, blocks) = match self.below(4) {
            0 => (vec![to], block..block + 1),
            1 => (vec![to], block..u64::from(from.0) * 4 + 4),
            2 => (vec![to], 0..WINDOW / 4096),
            _ => ((1..=NODES).map(NodeId).filter(|&node| node != from).collect(), 0..WINDOW / 4096),
        };
        let (first, last) = (u64::from(nodes[0].0), u64::from(nodes[nodes.len() - 1].0));
        self.world.set_wide_register(from, 0x108, (first << 48) | (blocks.start * 4096));
        self.world.set_wide_register(from, 0x110, (last << 48) | (blocks.end * 4096));
        let word = self.wait(from, Region::Registers, 0x118, 4);
        if let [node] = nodes[..] {
            self.oracle.asked(&self.world, from, node, blocks, word[0]);
        } else if word[0] == 0 {
            for node in nodes {
                self.oracle.asked(&self.world, from, node, blocks.clone(), 0);
            }
        }
    }

    /// Loads, one or several in a row, and a check.
    fn read_one(&mut self) {
        let (from, to, first) = self.route();
        let resets = self.resets;
        let count = if self.below(2) == 0 { 1 } else { 1 + self.below(8) };
        let block = first / 4096;
        let mut read = Vec::new();
        for offset in (first..).step_by(8).take(count as usize).filter(|offset| offset / 4096 == block) {
            let data = self.wait(from, Region::Access, World::space(to, offset), 8);
            let at = (EXPORTED + offset) as usize;
            let held = self.world.memory(to)[at..at + 8].to_vec();
            read.push((data, held));
        }
        let word = self.wait(from, Region::Assurance, World::space(to, first), 4);
        let word = u32::from_le_bytes(word[..].try_into().unwrap());
        let read_code = (word >> 8) as u8;
        // A node that was started again meanwhile has another memory.
        if read_code == 0 && self.resets == resets {
            for (data, held) in read {
                assert_eq!(data[..], held[..], "no false OK: exactly the remote data");
            }
        }
        self.oracle.checked(&self.world, from, to, block, word as u8);
    }

    /// A node is to make accesses: whoever stands still makes none, so that it goes on before, and
    /// does not stand still again.
    fn go_on(&mut self, node: NodeId) {
        self.world.spared = Some(node);
        let until = *self.world.paused_until(node.into());
        while self.world.now < until {
            self.world.step();
            self.oracle.observe(&self.world);
        }
    }

    /// Loads, while things may fail meanwhile.
    fn wait(&mut self, at: NodeId, region: Region, offset: u64, len: usize) -> bytes::Bytes {
        self.go_on(at);
        let tag = self.world.begin_load(at, region, offset, len);
        let start = self.world.now;
        loop {
            self.oracle.observe(&self.world);
            if let Some(data) = self.world.answer(at, tag) {
                self.world.spared = None;
                return data;
            }
            let waited = self.world.now.since(start);
            assert!(waited <= PATIENCE, "bounded: node {at} waits {waited:?} for {region:?} {offset:#x}");
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
        if self.routers > 0 && self.below(2) == 0 {
            return self.fail_router();
        }
        let (a, ..) = self.route();
        let together = self.world.process_of(a).places.clone();
        let spares = |what: &[NodeId]| !what.contains(&spared);
        let pairs = self.world.pairs();
        let (from, to) = pairs[self.below(pairs.len() as u64) as usize];
        match self.below(10) {
            0..3 if self.world.is_linked(from, to) => self.world.cut(from, to),
            0..7 if !self.world.is_linked(from, to) => self.world.link(from, to),
            7 if spares(&together) => {
                let time = Duration::from_micros(self.random.next() % 700_000);
                match self.below(3) {
                    0 => self.world.freeze(a, time),
                    1 => self.world.jump(a, time),
                    _ => self.world.pause(a, time),
                }
                // Whoever stands still makes no accesses.
                self.world.run_for(time);
            }
            8 if spares(&together) => {
                together.iter().for_each(|&node| self.begin_life(node));
                self.world.restart(a);
                for node in together {
                    self.world.export(node, 0b11, u64::MAX);
                }
            }
            9 if spares(&[a]) => {
                self.begin_life(a);
                self.world.reset(a);
                self.world.export(a, 0b11, u64::MAX);
            }
            _ => {}
        }
    }

    /// The clock of the node's process is as inexact as clocks are.
    fn drift(&mut self, node: NodeId) {
        let drift = self.below(1001) as i64 - 500;
        let now = self.world.now;
        self.world.clock(node).drifts(now, drift);
    }

    fn begin_life(&mut self, node: NodeId) {
        self.resets += 1;
        self.oracle.observe(&self.world);
        self.oracle.forget(node);
    }

    /// Something happens to a router, or to what claims to be a node.
    fn fail_router(&mut self) {
        let id = self.below(u64::from(self.routers)) as u8;
        match self.below(8) {
            0..4 => {
                let neighbours = self.world.neighbours(Station::Router(id));
                let neighbour = neighbours[self.below(neighbours.len() as u64) as usize];
                let time = Duration::from_micros(self.random.next() % 700_000);
                self.world.stall(id, neighbour, time);
            }
            4 => {
                let time = Duration::from_micros(self.random.next() % 700_000);
                self.world.pause(Station::Router(id), time);
            }
            5 => self.world.restart_router(id),
            _ => {
                self.expel_impostor();
                let claimed = self.node();
                self.world.start(IMPOSTOR, claimed);
                self.world.link(IMPOSTOR, Station::Router(id));
            }
        }
    }

    fn expel_impostor(&mut self) {
        for router in 0..self.routers {
            self.world.separate(IMPOSTOR, Station::Router(router));
        }
    }

    /// When all is well again, every node can reach every other, and stores arrive.
    fn settle(&mut self) {
        self.world.faults = Faults::NONE;
        // What is waited for comes.
        if self.world.slow.longest > 0 {
            self.world.slow = Slow::NONE;
            self.world.run_for(Duration::from_millis(1_300));
            self.oracle.observe(&self.world);
        }
        let pairs = [(1, 2), (1, 3), (2, 3)].map(|(a, b)| (NodeId(a), NodeId(b)));
        self.expel_impostor();
        // Routers that stand still or hold packets back go on after a while.
        self.world.run_for(Duration::from_millis(if self.routers > 0 { 700 } else { 0 }));
        let mut healed = false;
        // A node that was refused for an impostor's sake comes again.
        for _ in 0..5 {
            for (a, b) in self.world.pairs() {
                if !self.world.is_linked(a, b) {
                    self.world.link(a, b);
                }
            }
            healed = self.world.run_until(Duration::from_secs(1), |world| {
                pairs.iter().all(|&(a, b)| world.knows(a, b) && world.knows(b, a))
            });
            if healed {
                break;
            }
        }
        assert!(healed, "links come up again");
        // A node that forgot another one for an impostor's sake says so.
        self.world.run_for(Duration::from_millis(10));
        let is_up = |world: &mut World| pairs.iter().all(|&(a, b)| world.knows(a, b) && world.knows(b, a));
        assert!(self.world.run_until(Duration::from_secs(1), is_up), "they stay up");
        let quiet = |schedule: &Self| (1..=NODES).all(|id| schedule.oracle.under_way(NodeId(id)) == 0);
        let limit = self.world.now.after(PATIENCE);
        while !quiet(self) {
            assert!(self.world.now <= limit, "bounded: bulk writes end");
            self.world.step();
            self.oracle.observe(&self.world);
        }
        let mut told = BTreeSet::new();
        for id in (1..=NODES).map(NodeId) {
            told.extend(self.failed_blocks(id).into_iter().map(|block| (id, block)));
        }
        for (from, to) in pairs.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
            let offset = u64::from(from.0) * 0x4000;
            for block in 0..4 {
                let word = self.world.check(from, to, offset + block * 4096);
                let address = (u64::from(to.0) << 48) | (offset + block * 4096);
                let was_told = told.remove(&(from, address));
                assert_eq!(was_told, word != 0, "{from} is told of failed blocks: {address:#x}");
                self.oracle.checked(&self.world, from, to, offset / 4096 + block, word as u8);
            }
            let value = self.oracle.new_value();
            self.oracle.stored(from, to, offset, value);
            self.world.store(from, to, offset, &value.to_le_bytes()).expect("buffers are free");
            let word = self.world.check(from, to, offset);
            assert_eq!(word, 0, "after healing, a store from {from} to {to} is done");
            self.oracle.checked(&self.world, from, to, offset / 4096, 0);
        }
        assert!(told.is_empty(), "blocks that did not fail: {told:x?}");
    }

    /// Every block of the node's queue of failed blocks when nothing is under way any more. It is empty then.
    fn failed_blocks(&mut self, node: NodeId) -> Vec<u64> {
        self.world.set_wide_register(node, 0x108, 0);
        self.world.set_wide_register(node, 0x110, 1 << 56);
        self.world.load(node, Region::Registers, 0x118, 4);
        let count = self.world.register(node, 0x130) as u32;
        let blocks: Vec<u64> = std::iter::from_fn(|| {
            let block = self.world.register(node, 0x120);
            self.world.set_register(node, 0x128, 1);
            (block != u64::MAX).then_some(block)
        })
        .collect();
        assert_eq!(blocks.len(), count as usize);
        blocks
    }
}

/// Runs many schedules, or that of `SIM_SEED` alone.
fn run_many(test: &str, kind: Kind, default: u64) -> Sum {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        let digits = seed.trim_start_matches("0x");
        return run(u64::from_str_radix(digits, 16).expect("SIM_SEED is a hexadecimal number"), kind);
    }
    let schedules =
        std::env::var("SIM_SCHEDULES").map_or(default, |n| n.parse().expect("SIM_SCHEDULES is a number"));
    let mut seeds = Random::new(0x5eed);
    let mut sum = Sum::default();
    for _ in 0..schedules {
        let seed = seeds.next();
        let result = std::panic::catch_unwind(|| run(seed, kind));
        sum += result.unwrap_or_else(|_| {
            panic!("replay with: SIM_SEED={seed:#x} cargo test --test sim {test} -- --nocapture")
        });
    }
    let Sum { checks, failed, refusals, bulk_ok, bulk_failed, ranges, failed_ranges, page_faults } = sum;
    println!(
        "{test}: {schedules} schedules, {checks} checks, {failed} of them told of errors, {ranges} ranges, {failed_ranges} of \
         them did, {bulk_ok} bulk writes done, {bulk_failed} not, {page_faults} page faults, {refusals} nodes refused"
    );
    assert!(failed > 0 && bulk_failed > 0 && failed_ranges > 0, "the faults were felt");
    assert!(page_faults > 0, "memory was slow");
    sum
}

#[test]
fn random_schedules_break_no_line_of_the_contract() {
    run_many("random_schedules", Kind::Direct, 2000);
}

#[test]
fn nor_do_they_with_routers_between_the_nodes() {
    let sum = run_many("with_routers", Kind::Routed, 1000);
    assert!(std::env::var("SIM_SEED").is_ok() || sum.refusals > 0, "impostors were refused");
}

#[test]
fn nor_where_two_of_the_nodes_are_buses_of_one_adaptor() {
    run_many("two_of_the_nodes", Kind::Buses, 1000);
}
