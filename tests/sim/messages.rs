//! Messages: stores to doorbells are in the destination's queue exactly once or never, whatever fails, and the guest is told.

use std::collections::BTreeMap;
use std::time::Duration;

use assured_rdma::adaptor::Region;
use assured_rdma::adaptor::address::{IO_WINDOW_SIZE, NodeId};
use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::status::{Class, Code};

use crate::network::Faults;
use crate::world::{DEADLINE, EXPORTED, World};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const NODES: u8 = 3;
const LIMIT: u64 = 1024;

/// Where the I/O space's assurance space begins, and how a doorbell lies in each.
const CHECKS: u64 = 16 * IO_WINDOW_SIZE;

fn place(node: NodeId, doorbell: u64) -> u64 {
    u64::from(node.0) * IO_WINDOW_SIZE + doorbell * 8
}

const INFO: u64 = 0x180;
const COUNT: u64 = 0x184;
const DATA: u64 = 0x188;
const POP: u64 = 0x190;
const NUMBER: u64 = 0x194;
const OVERFLOWS: u64 = 0x19c;
const RECEIVED: u64 = 0x1a8;
const MASKED: u32 = 1 << 31;

fn control(doorbell: u64) -> u64 {
    0x3000 + doorbell * 64
}

/// Opens a doorbell to every node.
fn open(world: &mut World, node: NodeId, doorbell: u64, control_bits: u32) {
    for word in 0..8 {
        world.set_register(node, control(doorbell) + 0x20 + 4 * word, u32::MAX);
    }
    world.set_register(node, control(doorbell), control_bits);
}

fn connect(world: &mut World, node: NodeId, vector: u16) {
    world.adaptor(node).handle_vector(vector, true);
    world.take_outputs();
}

/// Stores a message, as soon as there is a buffer for it; its check is yet to come.
fn ring(world: &mut World, from: NodeId, to: NodeId, doorbell: u64, value: u64) {
    let start = world.now;
    loop {
        let now = world.now;
        let data = value.to_le_bytes();
        let stored = world.adaptor(from).handle_store(now, Region::Io, place(to, doorbell), &data);
        world.take_outputs();
        if stored.is_ok() {
            return;
        }
        assert!(world.now.since(start) <= DEADLINE, "bounded: a store waits longer than the deadline");
        world.step();
    }
}

fn status(world: &mut World, from: NodeId, to: NodeId) -> Code {
    let data = world.load(from, Region::Io, CHECKS + place(to, 0), 4);
    Code::from_bits(data[0]).unwrap()
}

fn register(world: &mut World, node: NodeId, offset: u64) -> u64 {
    let data = world.load(node, Region::Registers, offset, 4);
    u32::from_le_bytes(data[..].try_into().unwrap()).into()
}

/// Takes the oldest message: its source, doorbell and data.
fn take(world: &mut World, node: NodeId) -> Option<(NodeId, u64, u64)> {
    let info = register(world, node, INFO);
    if info >> 31 == 0 {
        return None;
    }
    let data = world.register(node, DATA);
    let number = register(world, node, NUMBER);
    world.set_register(node, POP, number as u32);
    Some((NodeId(info as u8), info >> 8 & 0xff, data))
}

#[test]
fn messages_come_in_order_behind_the_data_and_with_an_interrupt() {
    let mut world = World::new(1, 2);
    connect(&mut world, B, 3);
    open(&mut world, B, 5, 3);
    world.interrupts.clear();
    for value in 0..1000 {
        ring(&mut world, A, B, 5, value);
        if value % 100 == 99 {
            assert_eq!(status(&mut world, A, B), Code::Ok);
        }
    }
    assert!(world.interrupts.contains(&(B, 3)));
    assert_eq!(register(&mut world, B, COUNT), 1000);
    for value in 0..1000 {
        assert_eq!(take(&mut world, B), Some((A, 5, value)));
    }
    assert_eq!((take(&mut world, B), world.register(B, RECEIVED)), (None, 1000));
    // What was stored before a message is in memory before it is in the queue.
    world.store(A, B, 0x100, &7u64.to_le_bytes()).unwrap();
    ring(&mut world, A, B, 5, 7);
    while take(&mut world, B).is_none() {
        world.step();
    }
    assert_eq!(world.memory(B)[EXPORTED as usize + 0x100], 7);
}

#[test]
fn a_full_queue_is_a_status_at_the_sender_and_loses_nothing() {
    let mut world = World::new(2, 2);
    open(&mut world, B, 0, MASKED);
    let mut accepted = 0;
    for value in 0..LIMIT + 10 {
        ring(&mut world, A, B, 0, value);
        match status(&mut world, A, B) {
            Code::Ok => accepted += 1,
            code => assert_eq!((code, value >= LIMIT), (Code::NoResources, true), "{value}"),
        }
    }
    assert_eq!((accepted, register(&mut world, B, OVERFLOWS)), (LIMIT, 10));
    let data = world.load(A, Region::Io, place(B, 0), 8);
    assert_eq!(data[..], (LIMIT << 32).to_le_bytes(), "no room, and as many accepted");
    for value in 0..LIMIT {
        assert_eq!(take(&mut world, B), Some((A, 0, value)));
    }
    assert_eq!(take(&mut world, B), None);
    ring(&mut world, A, B, 0, 1);
    assert_eq!(status(&mut world, A, B), Code::Ok);
}

#[test]
fn a_doorbell_is_closed_until_it_is_opened_and_again_after_a_reset() {
    let mut world = World::new(3, 2);
    let before = world.register(A, 0x1008 + 16 * 2);
    ring(&mut world, A, B, 0, 1);
    assert_eq!(status(&mut world, A, B), Code::AccessDenied);
    open(&mut world, B, 0, MASKED);
    ring(&mut world, A, B, 0, 2);
    assert_eq!(status(&mut world, A, B), Code::Ok);
    world.reset(B);
    assert_eq!(take(&mut world, B), None, "the reset has emptied the queue");
    ring(&mut world, A, B, 0, 3);
    let code = status(&mut world, A, B);
    assert!(matches!(code, Code::AccessDenied | Code::PeerRestarted | Code::Flushed), "{code}");
    assert!(world.run_until(Duration::from_secs(3), |world| world.knows(A, B)));
    ring(&mut world, A, B, 0, 3);
    assert_eq!(status(&mut world, A, B), Code::AccessDenied);
    assert_ne!(world.register(A, 0x1008 + 16 * 2), before, "the sender sees another incarnation");
    assert_eq!((take(&mut world, B), world.register(B, RECEIVED)), (None, 0));
}

#[test]
fn a_masked_doorbell_tells_when_it_is_unmasked_and_coalescing_ends_with_its_time() {
    let mut world = World::new(4, 2);
    connect(&mut world, B, 1);
    open(&mut world, B, 0, MASKED | 1);
    world.interrupts.clear();
    ring(&mut world, A, B, 0, 1);
    assert_eq!((status(&mut world, A, B), world.interrupts.len()), (Code::Ok, 0));
    world.set_register(B, control(0), 1);
    assert_eq!(world.interrupts, [(B, 1)]);
    world.set_register(B, 0x1a0, 10);
    world.set_register(B, 0x1a4, 2000);
    ring(&mut world, A, B, 0, 2);
    assert_eq!((status(&mut world, A, B), world.interrupts.len()), (Code::Ok, 1));
    world.run_for(Duration::from_micros(1500));
    assert_eq!(world.interrupts.len(), 1);
    world.run_for(Duration::from_micros(1000));
    assert_eq!(world.interrupts.len(), 2);
    for value in 0..10 {
        ring(&mut world, A, B, 0, value);
    }
    assert_eq!((status(&mut world, A, B), world.interrupts.len()), (Code::Ok, 3), "ten at once");
}

/// What became of a message, as far as its sender was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Ok,
    NotExecuted,
    Unknown,
}

struct Sent {
    from: NodeId,
    to: NodeId,
    told: Told,
    /// It was found in the queue.
    found: bool,
}

/// Random messages while the network and the nodes fail, each held against its check.
struct Schedule {
    world: World,
    random: Random,
    sent: BTreeMap<u64, Sent>,
    /// Not covered by a check yet, by source and destination.
    unchecked: BTreeMap<(NodeId, NodeId), Vec<u64>>,
    /// The newest value found of each source, by destination.
    newest: BTreeMap<(NodeId, NodeId), u64>,
    next: u64,
    /// How often each class was told: executed, not executed, unknown.
    sum: [u64; 3],
    /// Interrupts already looked at.
    seen: usize,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut world = World::new(random.next(), NODES);
        world.faults = Faults {
            loss: random.next() % 20,
            double: random.next() % 20,
            flip: random.next() % 10,
            jitter: random.next() % 3000,
            survive_cut: true,
        };
        let mut schedule = Self {
            world,
            random,
            sent: BTreeMap::new(),
            unchecked: BTreeMap::new(),
            newest: BTreeMap::new(),
            next: 0,
            sum: [0; 3],
            seen: 0,
        };
        for node in (1..=NODES).map(NodeId) {
            schedule.boot(node);
        }
        schedule
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next() % limit
    }

    /// What a driver does first.
    fn boot(&mut self, node: NodeId) {
        connect(&mut self.world, node, 1);
        for doorbell in 0..2 {
            open(&mut self.world, node, doorbell, 1);
        }
        let (count, time) = (self.below(4), self.below(3000));
        self.world.set_register(node, 0x1a0, count as u32);
        self.world.set_register(node, 0x1a4, time as u32);
    }

    fn route(&mut self) -> (NodeId, NodeId) {
        let from = 1 + self.below(NODES.into());
        let to = 1 + (from + self.below(u64::from(NODES) - 1)) % u64::from(NODES);
        (NodeId(from as u8), NodeId(to as u8))
    }

    /// Takes out what is in a node's queue, all of it.
    fn drain(&mut self, node: NodeId) {
        while let Some((source, _, value)) = take(&mut self.world, node) {
            let sent = self.sent.get_mut(&value).expect("what is in a queue was sent");
            assert_eq!((sent.from, sent.to), (source, node), "source and destination");
            assert!(!sent.found, "exactly once: {value} again");
            assert!(
                !matches!(sent.told, Told::NotExecuted | Told::Unknown),
                "no ghosts: {value} after it was reported as {:?}",
                sent.told
            );
            sent.found = true;
            let newest = self.newest.entry((source, node)).or_default();
            assert!(*newest < value, "order: {value} after {newest}");
            *newest = value;
        }
    }

    /// A message that was reported may be in a queue already, so each is looked at before.
    fn drain_all(&mut self) {
        for node in (1..=NODES).map(NodeId) {
            self.drain(node);
        }
    }

    fn send_some(&mut self) {
        let (from, to) = self.route();
        for _ in 0..1 + self.below(6) {
            self.next += 1;
            let (value, doorbell) = (self.next, self.below(2));
            self.sent.insert(value, Sent { from, to, told: Told::Nothing, found: false });
            self.unchecked.entry((from, to)).or_default().push(value);
            ring(&mut self.world, from, to, doorbell, value);
        }
    }

    /// Checks what was sent, while things may fail or not.
    fn check(&mut self, (from, to): (NodeId, NodeId), fail: bool) {
        let tag = self.world.begin_load(from, Region::Io, CHECKS + place(to, 0), 4);
        let data = loop {
            if let Some(data) = self.world.answer(from, tag) {
                break data;
            }
            self.world.step();
            if fail && self.below(300) == 0 {
                self.fail(from);
            }
        };
        self.drain_all();
        let code = Code::from_bits(data[0]).expect("a code of the table");
        let covered = self.unchecked.remove(&(from, to)).unwrap_or_default();
        let told = match code.class() {
            Class::Ok => Told::Ok,
            Class::Retry | Class::Permanent if covered.len() == 1 => Told::NotExecuted,
            // Which of several it was is not told.
            _ => Told::Unknown,
        };
        self.sum[match told {
            Told::Ok | Told::Nothing => 0,
            Told::NotExecuted => 1,
            Told::Unknown => 2,
        }] += covered.len() as u64;
        for value in covered {
            let sent = self.sent.get_mut(&value).expect("it was sent");
            sent.told = told;
            match told {
                Told::Ok => assert!(sent.found, "no false OK: {value} is in no queue"),
                Told::NotExecuted => assert!(!sent.found, "{code}: but {value} was in the queue"),
                Told::Nothing | Told::Unknown => {}
            }
        }
    }

    fn fail(&mut self, spared: NodeId) {
        let (from, to) = self.route();
        match self.below(8) {
            0..2 if self.world.is_linked(from, to) => self.world.cut(from, to),
            0..5 if !self.world.is_linked(from, to) => self.world.link(from, to),
            5 if from != spared => {
                let time = Duration::from_micros(self.random.next() % 700_000);
                self.world.pause(from, time);
                self.world.run_for(time);
            }
            6 if from != spared => {
                self.begin_life(from);
                self.world.restart(from);
                self.boot(from);
            }
            7 if from != spared => {
                self.begin_life(from);
                self.world.reset(from);
                self.boot(from);
            }
            _ => {}
        }
    }

    /// What the node's queue holds goes with it, and what it has not checked is not told of any more.
    fn begin_life(&mut self, node: NodeId) {
        self.drain(node);
        self.unchecked.retain(|&(from, _), _| from != node);
    }

    /// All is well again: each message arrives, and with it an interrupt.
    fn settle(&mut self) {
        self.world.faults = Faults::NONE;
        let pairs = [(1, 2), (1, 3), (2, 3)].map(|(a, b)| (NodeId(a), NodeId(b)));
        for (a, b) in pairs {
            if !self.world.is_linked(a, b) {
                self.world.link(a, b);
            }
        }
        let healed = self.world.run_until(Duration::from_secs(10), |world| {
            pairs.iter().all(|&(a, b)| world.knows(a, b) && world.knows(b, a))
        });
        assert!(healed, "links come up again");
        let routes = pairs.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]);
        routes.clone().for_each(|route| self.check(route, false));
        for (from, to) in routes {
            self.seen = self.world.interrupts.len();
            ring(&mut self.world, from, to, 0, u64::MAX);
            assert_eq!(status(&mut self.world, from, to), Code::Ok, "after healing, from {from} to {to}");
            self.world.run_for(Duration::from_millis(4));
            assert!(self.world.interrupts[self.seen..].contains(&(to, 1)), "the guest of {to} is told");
            assert_eq!(take(&mut self.world, to), Some((from, 0, u64::MAX)));
        }
    }
}

#[test]
fn a_message_is_in_the_queue_exactly_once_or_never_whatever_fails() {
    let schedules: u64 =
        std::env::var("SIM_SCHEDULES").map_or(300, |n| n.parse().expect("SIM_SCHEDULES is a number"));
    let mut seeds = Random::new(0xbe11);
    let mut sum = [0; 3];
    for _ in 0..schedules {
        let seed = std::env::var("SIM_SEED").map_or_else(
            |_| seeds.next(),
            |text| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal"),
        );
        let result = std::panic::catch_unwind(|| {
            let mut schedule = Schedule::new(seed);
            for _ in 0..80 {
                match schedule.below(100) {
                    0..45 => schedule.send_some(),
                    45..85 => {
                        let route = schedule.route();
                        schedule.check(route, true);
                    }
                    85..92 => {
                        let time = Duration::from_micros(schedule.below(20_000));
                        schedule.world.run_for(time);
                    }
                    _ => schedule.fail(NodeId(0)),
                }
                // Often the driver is slow.
                if schedule.below(3) == 0 {
                    schedule.drain_all();
                }
            }
            schedule.settle();
            schedule.sum
        });
        let told = result
            .unwrap_or_else(|_| panic!("replay with: SIM_SEED={seed:#x} cargo test --test sim messages"));
        sum = [sum[0] + told[0], sum[1] + told[1], sum[2] + told[2]];
    }
    println!(
        "{schedules} schedules: {} messages executed, {} not, {} of unknown outcome",
        sum[0], sum[1], sum[2]
    );
    assert!(sum.iter().all(|&count| count > 0), "everything happened: {sum:?}");
}
