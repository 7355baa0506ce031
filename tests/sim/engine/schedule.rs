//! Random schedules with failures of all kinds: what completions say, against what really happened.
//!
//! Each write and each addition is executed at most once, and exactly once where its completion says OK; a read that says OK
//! has brought what was there at some moment since it was posted; completions come in order, one for each entry.

use super::*;
use crate::network::Faults;
use crate::queue::{FETCH_ADD, FLAG_INLINE};
use assured_rdma::adaptor::random::Random;

const QUEUES: u64 = 3;
/// Where the number is that is added to, for each queue.
const SUMS: u64 = 0x8000;
/// Where each queue writes, a word for each write.
const WORDS: u64 = 0x1000;

struct Client {
    poster: Poster,
    next: u64,
    /// Cookies of what was posted, and what it was.
    posted: std::collections::VecDeque<(u64, Entry)>,
    added: u64,
    maybe_added: u64,
    /// For each word: values that it may have, the last one that is sure first.
    words: Vec<Vec<u64>>,
}

struct Run {
    world: World,
    random: Random,
    clients: Vec<Client>,
    ok: u64,
    failed: u64,
}

fn below(random: &mut Random, limit: u64) -> u64 {
    random.next() % limit
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let world = World::new(random.next(), 2);
        let mut run = Self { world, random, clients: Vec::new(), ok: 0, failed: 0 };
        run.start_b();
        let key = register(&mut run.world, A, DOMAIN, 3);
        for number in 0..QUEUES {
            let mut poster = create(&mut run.world, A, (DOMAIN, key), number * 0x2000, 4, 0).unwrap();
            poster.key = key;
            let client = Client {
                poster,
                next: 0,
                posted: Default::default(),
                added: 0,
                maybe_added: 0,
                words: vec![vec![0]; 16],
            };
            run.clients.push(client);
        }
        if below(&mut run.random, 2) == 0 {
            run.world.adaptor(A).set_queue_poll(Duration::from_micros(300));
        }
        run.world.faults = match below(&mut run.random, 4) {
            0 => Faults::NONE,
            1 => Faults { loss: 20, double: 20, flip: 0, jitter: 200, survive_cut: true },
            2 => Faults { loss: 5, double: 50, flip: 10, jitter: 2000, survive_cut: true },
            _ => Faults { loss: 100, double: 100, flip: 30, jitter: 30, survive_cut: false },
        };
        run
    }

    /// The window may be gone already.
    fn unexport(&mut self) {
        let status = self.world.command(B, 2, [0; 128]);
        assert!(matches!(status, 0 | 9), "{status}");
    }

    /// The other node's window is there, with atomic operations.
    fn start_b(&mut self) {
        self.unexport();
        self.world.export(B, 0b1_0011, u64::MAX);
    }

    fn post(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let count = below(&mut self.random, u64::from(client.poster.queue.room()) + 1);
        for _ in 0..count {
            client.next += 1;
            let cookie = client.next;
            let word = below(&mut self.random, 16);
            let at = number as u64 * WORDS + word * 8;
            let entry = match below(&mut self.random, 4) {
                0 => Entry {
                    opcode: FETCH_ADD,
                    node: B.0,
                    cookie,
                    remote: SUMS + 8 * number as u64,
                    operand: 1,
                    ..Entry::default()
                },
                1 => client.poster.read(cookie, at, at, 8),
                _ => {
                    let mut data = [0; 32];
                    data[..8].copy_from_slice(&cookie.to_le_bytes());
                    let write = client.poster.write(cookie, 0, at, 8);
                    client.words[word as usize].push(cookie);
                    Entry { flags: FLAG_INLINE, inline: Some(data), ..write }
                }
            };
            client.posted.push_back((cookie, entry));
            client.poster.post(&mut self.world, &entry);
        }
        client.poster.post_all(&mut self.world, &[]);
    }

    fn reap(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let mut has_failed = false;
        while let Some(done) = client.poster.poll(&mut self.world) {
            let (cookie, entry) = client.posted.pop_front().expect("a completion without an entry");
            assert_eq!(done.cookie, cookie, "completions come in order");
            let code = if entry.opcode == queue::READ { done.status >> 8 } else { done.status & 0xff };
            let (ok, is_unknown) = (code == 0, code >> 6 == 3);
            if ok {
                self.ok += 1;
            } else {
                self.failed += 1;
                has_failed = true;
            }
            let word = (entry.remote % WORDS / 8) as usize;
            match entry.opcode {
                FETCH_ADD => {
                    client.added += u64::from(ok);
                    client.maybe_added += u64::from(is_unknown);
                    if ok {
                        assert!(done.former < client.added + client.maybe_added, "added more than once");
                        assert!(done.former + 1 >= client.added, "an addition that was OK is missing");
                    }
                }
                queue::WRITE => {
                    let values = &mut client.words[word];
                    let place = values.iter().position(|&value| value == cookie).unwrap();
                    if ok {
                        values.drain(..place);
                    } else if !is_unknown {
                        values.remove(place);
                    }
                }
                _ if ok => {
                    let bytes = client.poster.data(&mut self.world, entry.local - DATA, 8);
                    let value = u64::from_le_bytes((&bytes[..]).try_into().unwrap());
                    assert!(value <= client.next, "a value that nobody wrote");
                }
                _ => {}
            }
        }
        if has_failed {
            client.poster.resume(&mut self.world);
        }
    }

    /// All that was posted has completed; what is at the other node is what completions say.
    fn settle(&mut self) {
        self.world.faults = Faults::NONE;
        let start = self.world.now;
        while self.clients.iter().any(|client| !client.posted.is_empty()) {
            (0..self.clients.len()).for_each(|number| self.reap(number));
            assert!(self.world.now.since(start) < 4 * DEADLINE, "bounded: something never completes");
            self.world.step();
        }
        self.world.run_for(2 * DEADLINE);
        for (number, client) in self.clients.iter().enumerate() {
            let at = (SUMS + 8 * number as u64, WORDS * number as u64);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let sum = word(exported(&mut self.world, B, at.0, 8));
            let sure = client.added;
            assert!(
                (sure..=sure + client.maybe_added).contains(&sum),
                "{sum} of {sure} and {}",
                client.maybe_added
            );
            for (index, values) in client.words.iter().enumerate() {
                let value = word(exported(&mut self.world, B, at.1 + 8 * index as u64, 8));
                assert!(values.contains(&value), "word {index} is {value}, and may be {values:?}");
            }
        }
    }

    fn disturb(&mut self) {
        match below(&mut self.random, 6) {
            0 => {
                self.world.cut(A, B);
                let pause = below(&mut self.random, 600);
                self.world.run_for(Duration::from_millis(pause));
                self.world.link(A, B);
            }
            1 => {
                let pause = below(&mut self.random, 700);
                self.world.pause(B, Duration::from_millis(pause));
            }
            2 => self.world.network.rate = [0, 1, 100][below(&mut self.random, 3) as usize],
            3 => {
                // A node that stands still takes no commands.
                self.world.run_until(2 * DEADLINE, |world| world.nodes[&B].paused_until <= world.now);
                self.unexport();
                let pause = below(&mut self.random, 2000);
                self.world.run_for(Duration::from_micros(pause));
                self.world.export(B, 0b1_0011, u64::MAX);
            }
            _ => {}
        }
    }
}

fn schedule(seed: u64) -> (u64, u64) {
    let mut run = Run::new(seed);
    for _ in 0..40 {
        let number = below(&mut run.random, QUEUES) as usize;
        run.post(number);
        let time = below(&mut run.random, 3000);
        run.world.run_for(Duration::from_micros(time));
        (0..run.clients.len()).for_each(|number| run.reap(number));
        if below(&mut run.random, 8) == 0 {
            run.disturb();
        }
    }
    run.settle();
    (run.ok, run.failed)
}

#[test]
fn completions_tell_the_truth_whatever_happens() {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        let digits = seed.trim_start_matches("0x");
        schedule(u64::from_str_radix(digits, 16).expect("SIM_SEED is a hexadecimal number"));
        return;
    }
    let schedules =
        std::env::var("SIM_SCHEDULES").map_or(1000, |n| n.parse().expect("SIM_SCHEDULES is a number"));
    let mut seeds = Random::new(0xe6e);
    let (mut ok, mut failed) = (0, 0);
    for _ in 0..schedules {
        let seed = seeds.next();
        let result = std::panic::catch_unwind(|| schedule(seed));
        let (done, errors) = result.unwrap_or_else(|_| {
            panic!("replay with: SIM_SEED={seed:#x} cargo test --test sim completions_tell -- --nocapture")
        });
        ok += done;
        failed += errors;
    }
    println!("{schedules} schedules, {ok} operations done, {failed} failed");
    assert!(ok > 10 * schedules && failed > schedules, "{ok} {failed}");
}
