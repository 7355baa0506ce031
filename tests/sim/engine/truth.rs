//! Random schedules with memory that is slow, clocks that are wrong, resets, and queues whose operations have many pieces: each
//! completion against every byte that was moved.
//!
//! What was executed is known word by word, as each word that is written is the only one of its kind. Nothing is executed, and
//! nothing lands, after the completion; and what that says of bytes moved is so.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::network::{Faults, Station};
use crate::queue::{FLAG_FENCE, FLAG_LIST, READ, WRITE, list};
use crate::world::{EXPORTED, Slow, TIMING};
use assured_rdma::adaptor::buses::{Buses, Span};
use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::status::{Class, Code};

const QUEUES: u64 = 2;
const ENTRIES_LOG2: u32 = 3;
/// Where each queue writes.
const PART: u64 = 0x4000;
/// Where nobody writes, so that what is read is known.
const STILL: u64 = 0xc000;
/// The most words of an operation.
const MOST: u64 = 160;
/// The memory of an operation: a list, and data.
const SLOT: u64 = 0x2000;
const SLOT_DATA: u64 = 0x1000;
const UNTOUCHED: u8 = 0xee;

struct Posted {
    cookie: u64,
    opcode: u8,
    words: u64,
    remote: u64,
    /// Where its memory is in the registered memory.
    slot: u64,
}

struct Client {
    poster: Poster,
    under_way: VecDeque<Posted>,
    next: u64,
}

/// The fate of a word that is written.
struct Word {
    offset: u64,
    executed: bool,
    /// Its completion is there.
    reported: bool,
}

struct Run {
    world: World,
    random: Random,
    a: NodeId,
    b: NodeId,
    clients: Vec<Client>,
    words: BTreeMap<u64, Word>,
    seen: usize,
    last: BTreeMap<u64, u64>,
    /// Landing places of reads that have ended, with what was in them then.
    landed: Vec<(u64, Vec<u8>)>,
    ends: [u64; 3],
    together: bool,
}

fn still(offset: u64) -> u64 {
    0x7000_0000_0000_0000 | offset
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let together = random.next().is_multiple_of(3);
        let world = if together {
            let processes = [Buses::new(Span::new(NodeId(2), 1).unwrap(), 2).unwrap()];
            let links: &[(Station, Station)] = &[];
            World::with_processes(random.next(), &processes, 0, links, |_| TIMING)
        } else {
            World::new(random.next(), 2)
        };
        let (a, b) = if together { (NodeId(2), NodeId(3)) } else { (A, B) };
        let mut run = Self {
            world,
            random,
            a,
            b,
            clients: Vec::new(),
            words: BTreeMap::new(),
            seen: 0,
            last: BTreeMap::new(),
            landed: Vec::new(),
            ends: [0; 3],
            together,
        };
        run.world.spared = Some(a);
        for offset in (STILL..STILL + PART).step_by(8) {
            let at = (EXPORTED + offset) as usize;
            run.world.memory(b)[at..at + 8].copy_from_slice(&still(offset).to_le_bytes());
        }
        let key = register(&mut run.world, a, DOMAIN, 3);
        for number in 0..QUEUES {
            let poster = create(&mut run.world, a, (DOMAIN, key), number * 0x2000, ENTRIES_LOG2, 0).unwrap();
            run.clients.push(Client { poster, under_way: VecDeque::new(), next: 0 });
        }
        if run.below(2) == 0 {
            run.world.adaptor(a).set_queue_poll(Duration::from_micros(300));
        }
        run.world.faults = match run.below(4) {
            0 => Faults::NONE,
            1 => Faults { loss: 20, double: 20, flip: 0, jitter: 200, survive_cut: true },
            2 => Faults { loss: 5, double: 50, flip: 10, jitter: 2000, survive_cut: true },
            _ => Faults { loss: 100, double: 100, flip: 30, jitter: 30, survive_cut: false },
        };
        if run.below(4) != 0 {
            let longest = [2_000, 200_000, 1_200_000][run.below(3) as usize];
            run.world.slow = Slow { faults: run.below(300), longest, unseen: 300 };
        }
        for node in [a, b] {
            let drift = run.below(1001) as i64 - 500;
            let now = run.world.now;
            run.world.clock(node).drifts(now, drift);
        }
        run
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.next() % limit
    }

    fn slot(number: usize, index: u64) -> u64 {
        DATA + (number as u64 * (1 << ENTRIES_LOG2) + index % (1 << ENTRIES_LOG2)) * SLOT
    }

    fn local(&mut self, at: u64, len: u64) -> &mut [u8] {
        let begin = (BASE + at) as usize;
        &mut self.world.memory(self.a)[begin..begin + len as usize]
    }

    fn post(&mut self, number: usize) {
        let count = {
            let room = u64::from(self.clients[number].poster.queue.room());
            self.below(room + 1)
        };
        for _ in 0..count {
            self.post_one(number);
        }
        let (world, client) = (&mut self.world, &mut self.clients[number]);
        client.poster.post_all(world, &[]);
    }

    fn post_one(&mut self, number: usize) {
        let index = self.clients[number].next;
        self.clients[number].next += 1;
        let cookie = (number as u64 + 1) << 32 | (index + 1);
        let slot = Self::slot(number, index);
        self.landed.retain(|(at, _)| *at != slot);
        let words = 1 + if self.below(2) == 0 { self.below(MOST) } else { self.below(4) };
        let opcode = if self.below(3) == 0 { READ } else { WRITE };
        let inside = self.below(PART / 8 - words) * 8;
        let part = if opcode == READ { STILL } else { number as u64 * PART };
        // Some reach over the end of the window.
        let over = self.below(20) == 0;
        let remote = if over { 0x1_0000 - 8 * self.below(words + 1) } else { part + inside };
        let remote = if opcode == WRITE && over { 0x1_0000 } else { remote };
        if opcode == WRITE {
            for word in 0..words {
                let value = cookie << 16 | word;
                let fate = Word { offset: remote + 8 * word, executed: false, reported: false };
                self.words.insert(value, fate);
                self.local(slot + SLOT_DATA + 8 * word, 8).copy_from_slice(&value.to_le_bytes());
            }
        } else {
            self.local(slot + SLOT_DATA, MOST * 8).fill(UNTOUCHED);
        }
        let key = self.clients[number].poster.key;
        let mut entry = Entry {
            opcode,
            flags: if self.below(8) == 0 { FLAG_FENCE } else { 0 },
            node: self.b.0,
            cookie,
            remote,
            len: 8 * words,
            key,
            local: slot + SLOT_DATA,
            ..Entry::default()
        };
        if self.below(2) == 0 {
            // One that names nothing, at times.
            let bad = if self.below(12) == 0 { self.below(words) } else { u64::MAX };
            let piece = |word| (if word == bad { 0 } else { key }, slot + SLOT_DATA + 8 * word, 8);
            let entries: Vec<_> = (0..words).map(piece).collect();
            let bytes = list(&entries);
            self.local(slot, bytes.len() as u64).copy_from_slice(&bytes);
            entry.flags |= FLAG_LIST;
            (entry.local, entry.list_entries) = (slot, words as u32);
        }
        let (world, client) = (&mut self.world, &mut self.clients[number]);
        client.poster.post(world, &entry);
        client.under_way.push_back(Posted { cookie, opcode, words, remote, slot });
    }

    /// Takes in what the other node executed since the last call.
    fn observe(&mut self) {
        let executions = &self.world.executions[self.seen..];
        for execution in executions.iter().filter(|execution| execution.node == self.b) {
            for (index, bytes) in (0u64..).zip(execution.data.chunks(8)) {
                let value = u64::from_le_bytes(bytes.try_into().unwrap());
                let word = self.words.get_mut(&value).expect("what is executed was posted");
                assert_eq!(word.offset, execution.offset + 8 * index, "where it belongs");
                assert!(!word.executed, "{value:#x} is executed twice");
                assert!(!word.reported, "{value:#x} is executed after its completion");
                word.executed = true;
                let last = self.last.entry(value >> 48).or_default();
                assert!(*last < value, "order: {value:#x} after {last:#x}");
                *last = value;
            }
        }
        self.seen = self.world.executions.len();
    }

    fn reap(&mut self, number: usize) {
        self.observe();
        let mut has_failed = false;
        while let Some(done) = {
            let (world, client) = (&mut self.world, &mut self.clients[number]);
            client.poster.poll(world)
        } {
            let posted = self.clients[number].under_way.pop_front().expect("a completion without an entry");
            assert_eq!(done.cookie, posted.cookie, "completions come in order");
            let shift = if posted.opcode == READ { 8 } else { 0 };
            assert_eq!(done.status & !(0xff << shift), 0, "{done:?}");
            let code = Code::from_bits((done.status >> shift) as u8).expect("a code of the table");
            has_failed |= !code.is_ok();
            let len = posted.words * 8;
            let class = code.class();
            match class {
                Class::Ok => assert_eq!(done.done, len, "{done:?}"),
                Class::Retry | Class::Permanent => assert_eq!(done.done, 0, "{done:?}"),
                Class::Unknown => assert!(done.done <= len, "{done:?}"),
            }
            self.ends[match class {
                Class::Ok => 0,
                Class::Unknown => 1,
                Class::Retry | Class::Permanent => 2,
            }] += 1;
            if posted.opcode == WRITE {
                for word in 0..posted.words {
                    let fate = self.words.get_mut(&(posted.cookie << 16 | word)).unwrap();
                    fate.reported = true;
                    assert!(fate.executed || 8 * word >= done.done, "not moved: word {word} {done:?}");
                    let nothing = matches!(class, Class::Retry | Class::Permanent);
                    assert!(!(nothing && fate.executed), "executed: word {word} {done:?}");
                }
            } else {
                let found = self.local(posted.slot + SLOT_DATA, MOST * 8).to_vec();
                for (word, bytes) in (0u64..).zip(found.chunks(8)) {
                    let is_there = bytes == still(posted.remote + 8 * word).to_le_bytes();
                    let is_untouched = bytes == [UNTOUCHED; 8];
                    let wanted = 8 * word < done.done;
                    assert!(!wanted || is_there, "not moved: word {word} {done:?} {bytes:x?}");
                    assert!(is_there || is_untouched, "neither: word {word} {done:?} {bytes:x?}");
                    let nothing = matches!(class, Class::Retry | Class::Permanent);
                    assert!(!(nothing || word >= posted.words) || is_untouched, "landed: {word} {done:?}");
                }
                self.landed.push((posted.slot, found));
            }
        }
        if has_failed {
            let (world, client) = (&mut self.world, &self.clients[number]);
            client.poster.resume(world);
        }
    }

    /// What has ended is as it was at its end.
    fn nothing_more_lands(&mut self) {
        for (slot, then) in self.landed.clone() {
            assert_eq!(self.local(slot + SLOT_DATA, MOST * 8), &then[..], "it lands after its completion");
        }
    }

    fn disturb(&mut self) {
        let (a, b) = (self.a, self.b);
        match self.below(9) {
            0 if !self.together => {
                self.world.cut(a, b);
                let pause = self.below(600);
                self.world.run_for(Duration::from_millis(pause));
                self.world.link(a, b);
            }
            1 if !self.together => {
                let pause = self.below(700);
                self.world.pause(b, Duration::from_millis(pause));
            }
            2 if !self.together => self.world.network.rate = [0, 1, 100][self.below(3) as usize],
            3 => {
                self.awake();
                assert!(matches!(self.world.command(b, 2, [0; 128]), 0 | 9));
                let pause = self.below(2000);
                self.world.run_for(Duration::from_micros(pause));
                self.awake();
                self.world.export(b, 0b11, u64::MAX);
            }
            4 => {
                self.awake();
                self.observe();
                self.world.reset(b);
                let pause = self.below(3) * self.below(100_000);
                self.world.run_for(Duration::from_micros(pause));
                self.awake();
                self.world.export(b, 0b11, u64::MAX);
            }
            5 => {
                let time = Duration::from_micros(self.below(700_000));
                let node = if self.below(2) == 0 { a } else { b };
                self.world.jump(node, time);
            }
            6 if !self.together => {
                let time = Duration::from_micros(self.below(700_000));
                self.world.freeze(b, time);
            }
            7 => {
                // Bus master is off for a while, at either side.
                let node = if self.below(2) == 0 { a } else { b };
                self.awake();
                for bits in [2, 6] {
                    let now = self.world.local(node);
                    let adaptor = self.world.adaptor(node);
                    adaptor.handle_store(now, Region::Config, 4, &[bits, 0]).unwrap();
                    self.world.take_outputs();
                    let pause = self.below(40_000);
                    self.world.run_for(Duration::from_micros(pause));
                    self.awake();
                }
            }
            _ => {}
        }
        self.observe();
    }

    /// A node that stands still takes no commands.
    fn awake(&mut self) {
        let b = self.b;
        self.world.run_until(4 * DEADLINE, |world| world.nodes[&b].paused_until <= world.now);
    }

    fn settle(&mut self) {
        self.world.faults = Faults::NONE;
        self.world.slow = Slow::NONE;
        self.world.network.rate = 0;
        let start = self.world.now;
        while self.clients.iter().any(|client| !client.under_way.is_empty()) {
            (0..self.clients.len()).for_each(|number| self.reap(number));
            let waited = self.world.now.since(start);
            assert!(waited < 8 * DEADLINE, "bounded: something never completes");
            self.world.step();
        }
        self.nothing_more_lands();
        self.world.run_for(4 * DEADLINE);
        self.observe();
        self.nothing_more_lands();
        // Each queue still works.
        for number in 0..self.clients.len() {
            self.post_one(number);
            let (world, client) = (&mut self.world, &mut self.clients[number]);
            client.poster.post_all(world, &[]);
            let start = self.world.now;
            while !self.clients[number].under_way.is_empty() {
                self.world.step();
                self.reap(number);
                assert!(self.world.now.since(start) < 2 * DEADLINE, "bounded: it never completes");
            }
        }
    }
}

fn schedule(seed: u64) -> [u64; 3] {
    let mut run = Run::new(seed);
    for _ in 0..40 {
        let number = run.below(QUEUES) as usize;
        run.post(number);
        let time = run.below(3000);
        run.world.run_for(Duration::from_micros(time));
        (0..run.clients.len()).for_each(|number| run.reap(number));
        if run.below(6) == 0 {
            run.disturb();
        }
        run.nothing_more_lands();
    }
    run.settle();
    run.ends
}

#[test]
fn every_byte_is_as_its_completion_says() {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        let digits = seed.trim_start_matches("0x");
        schedule(u64::from_str_radix(digits, 16).expect("SIM_SEED is a hexadecimal number"));
        return;
    }
    let schedules =
        std::env::var("SIM_SCHEDULES").map_or(500, |n| n.parse().expect("SIM_SCHEDULES is a number"));
    let mut seeds = Random::new(0x7201);
    let mut sum = [0; 3];
    for _ in 0..schedules {
        let seed = seeds.next();
        let result = std::panic::catch_unwind(|| schedule(seed));
        let ends = result.unwrap_or_else(|_| {
            panic!("replay with: SIM_SEED={seed:#x} cargo test --test sim every_byte -- --nocapture")
        });
        sum.iter_mut().zip(ends).for_each(|(sum, end)| *sum += end);
    }
    let [ok, unknown, nothing] = sum;
    println!("{schedules} schedules, {ok} operations done, {unknown} unknown, {nothing} not executed");
    assert!(ok > 10 * schedules && unknown > schedules && nothing > schedules, "{sum:?}");
}
