//! The DMA engine of adaptor processes: a poster shares memory with one, and what it asks for happens in another's guest.

use std::time::Instant;

use super::guest::queue::{
    self, ARM, Completion, Entry, FETCH_ADD, FLAG_LIST, HEAD_SIZE, Queue, RESUME, SUBMISSION_SIZE, SUBMITTED,
    list,
};
use super::guest::{Guest, READ, WRITE};
use super::node::{Node, PATIENCE, Place};
use super::{attach, wait_for_reset};

const ATOMIC: u32 = 1 << 4;
const DOMAIN: u32 = 5;
/// Registered memory: rings first, then data.
const BASE: u64 = 1 << 20;
const LEN: u64 = 15 << 20;
const DATA: u64 = 1 << 20;
const ENTRIES: u64 = 64;

const EVENT: u64 = 0x30;
const EVENT_ENABLE: u64 = 0x34;
const QUEUE_READY: u64 = 0x1b8;
const QUEUE: u32 = 1 << 8;

/// A guest with a queue.
struct Poster {
    guest: Guest,
    key: u32,
    number: u32,
    queue: Queue,
}

impl Poster {
    fn new(mut guest: Guest) -> Self {
        let key = guest.register_memory(BASE, LEN, DOMAIN);
        let completions = ENTRIES * SUBMISSION_SIZE + HEAD_SIZE;
        let number = guest.create_queue(key, DOMAIN, (0, completions), ENTRIES as u32);
        Self { guest, key, number, queue: Queue::new(BASE, BASE + completions, ENTRIES as u32) }
    }

    fn post(&mut self, entries: &[Entry]) {
        entries.iter().for_each(|entry| self.queue.post(&self.guest, entry));
        if self.queue.must_ring(&self.guest) {
            self.guest.ring_queue(self.number, SUBMITTED, self.queue.posted);
        }
    }

    fn wait(&mut self) -> Completion {
        let begin = Instant::now();
        loop {
            if let Some(completion) = self.queue.poll(&self.guest) {
                return completion;
            }
            assert!(begin.elapsed() < PATIENCE, "no completion");
            std::thread::yield_now();
        }
    }

    fn run(&mut self, entry: Entry) -> Completion {
        self.post(&[entry]);
        self.wait()
    }

    fn write(&self, cookie: u64, local: u64, remote: u64, len: u64) -> Entry {
        let (key, local) = (self.key, DATA + local);
        Entry { opcode: queue::WRITE, node: 2, cookie, remote, len, key, local, ..Entry::default() }
    }

    fn read(&self, cookie: u64, local: u64, remote: u64, len: u64) -> Entry {
        Entry { opcode: queue::READ, ..self.write(cookie, local, remote, len) }
    }
}

/// Two nodes; the second exports all of its data.
struct Stage {
    one: Node,
    two: Node,
    near: Poster,
    far: Guest,
    window: u64,
    place: Place,
}

impl Stage {
    fn new(options: &[&str]) -> Self {
        let place = Place::new();
        let mut one = place.start(1, &[2], options);
        let mut two = place.start(2, &[1], options);
        let near = Poster::new(attach(&place, 1, &mut two, 2));
        let mut far = attach(&place, 2, &mut one, 1);
        let window = far.export(BASE, LEN, READ | WRITE | ATOMIC);
        Self { one, two, near, far, window, place }
    }
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(step).collect()
}

/// Writes and reads of many lengths, to and from what the far guest has exported.
fn transfer(near: &mut Poster, far: &Guest, window: u64) {
    for (turn, len) in [1, 8, 4096, 65_536, 65_537, 5_000_003].into_iter().enumerate() {
        let data = bytes(turn as u64, len);
        near.guest.set_memory(BASE + DATA + 3, &data);
        let done = near.run(near.write(turn as u64, 3, window + 0x1001, len));
        assert_eq!(done, Completion { status: 0, cookie: turn as u64, done: len, former: 0 });
        assert!(far.memory_of(BASE + 0x1001, len as usize) == data, "{len} bytes are written");
        let done = near.run(near.read(7, 6_000_001, window + 0x1001, len));
        assert_eq!((done.status, done.done), (0, len));
        let found = near.guest.memory_of(BASE + DATA + 6_000_001, len as usize);
        assert!(found == data, "{len} bytes are read");
    }
}

#[test]
fn what_is_written_and_read_arrives_whole() {
    for options in [&[][..], &["--queue-poll", "0s"]] {
        let Stage { near, far, window, .. } = &mut Stage::new(options);
        transfer(near, far, *window);
    }
}

#[test]
fn so_it_does_between_guests_of_one_adaptor() {
    let place = Place::new();
    let socket = place.socket(3).display().to_string();
    let _node = place.start(2, &[], &["--socket-path", &socket]);
    let [mut far, mut near] = [2, 3].map(|id| Guest::attach(&place.socket(id)));
    let lives = [far.incarnation(), near.incarnation()];
    near.wait_for_life(2, lives[0]);
    far.wait_for_life(3, lives[1]);
    let window = far.export(BASE, LEN, READ | WRITE | ATOMIC);
    transfer(&mut Poster::new(near), &far, window);
}

#[test]
fn thousands_of_small_ones_complete_in_order() {
    let mut stage = Stage::new(&[]);
    let near = &mut stage.near;
    let (mut posted, mut reaped) = (0u64, 0u64);
    while reaped < 20_000 {
        let count = u64::from(near.queue.room()).min(20_000 - posted);
        let entries: Vec<_> = (posted..posted + count)
            .map(|n| {
                near.guest.set_memory(BASE + DATA + 8 * (n % 1024), &n.to_le_bytes());
                near.write(n, 8 * (n % 1024), stage.window + 8 * (n % 1024), 8)
            })
            .collect();
        near.post(&entries);
        posted += count;
        let done = near.wait();
        assert_eq!((done.cookie, done.status), (reaped, 0));
        reaped += 1;
    }
    for at in 0..1024 {
        let last = 20_000 - 1 - (20_000 - 1 - at) % 1024;
        assert_eq!(stage.far.memory(BASE + 8 * at), last.to_le_bytes());
    }
}

#[test]
fn additions_of_another_node_and_of_the_guests_own_processor_are_all_there() {
    let mut stage = Stage::new(&[]);
    let near = &mut stage.near;
    let mut own = 0u64;
    let add = Entry { opcode: FETCH_ADD, node: 2, remote: stage.window + 64, operand: 3, ..Entry::default() };
    for _ in 0..20 {
        near.post(&[add; 32]);
        let mut done = 0;
        while done < 32 {
            stage.far.add(BASE + 64, 1);
            own += 1;
            while let Some(completion) = near.queue.poll(&near.guest) {
                assert_eq!(completion.status, 0);
                done += 1;
            }
        }
    }
    assert_eq!(stage.far.memory(BASE + 64), (20 * 32 * 3 + own).to_le_bytes());
}

#[test]
fn an_interrupt_tells_of_an_armed_completion() {
    let mut stage = Stage::new(&[]);
    let near = &mut stage.near;
    let vector = near.guest.connect(0);
    near.guest.write_register(EVENT_ENABLE, QUEUE);
    near.guest.ring_queue(near.number, ARM, 1);
    let write = near.write(1, 0, stage.window, 8);
    near.run(write);
    assert_eq!(near.guest.register(QUEUE_READY), u32::MAX);
    near.run(write);
    let begin = Instant::now();
    while vector.read().is_err() {
        assert!(begin.elapsed() < PATIENCE, "no interrupt");
    }
    near.guest.write_register(EVENT, QUEUE);
    assert_eq!([near.guest.register(QUEUE_READY), near.guest.register(QUEUE_READY)], [near.number, u32::MAX]);
}

#[test]
fn a_scatter_list_is_gathered() {
    let mut stage = Stage::new(&[]);
    let near = &mut stage.near;
    let data = bytes(1, 200_000);
    near.guest.set_memory(BASE + DATA, &data);
    let parts =
        [(near.key, DATA + 100_000, 70_001), (near.key, DATA, 100_000), (near.key, DATA + 170_001, 29_999)];
    near.guest.set_memory(BASE + DATA + 0x10_0000, &list(&parts));
    let write = near.write(1, 0x10_0000, stage.window, 200_000);
    assert_eq!(near.run(Entry { flags: FLAG_LIST, list_entries: 3, ..write }).status, 0);
    let expected = [&data[100_000..170_001], &data[..100_000], &data[170_001..]].concat();
    assert!(stage.far.memory_of(BASE, 200_000) == expected);
}

#[test]
fn no_false_ok_while_the_other_adaptor_is_killed() {
    let mut stage = Stage::new(&[]);
    let near = &mut stage.near;
    let data = bytes(3, 1 << 20);
    near.guest.set_memory(BASE + DATA, &data);
    let write = near.write(1, 0, stage.window, 1 << 20);
    near.post(&[write; 32]);
    assert_eq!(near.wait().status, 0);
    stage.two.signal(libc::SIGKILL);
    let codes: Vec<u32> = (1..32).map(|_| near.wait().status).collect();
    let failed = codes.iter().position(|&code| code != 0).expect("not all of it can have been done");
    assert!(codes[failed..].iter().all(|&code| code != 0), "{codes:x?}");
    drop(stage.far);
    let mut two = stage.place.start(2, &[1], &[]);
    let mut far = attach(&stage.place, 2, &mut stage.one, 1);
    let window = far.export(BASE, LEN, READ | WRITE);
    near.guest.wait_for_node(2, true);
    near.guest.ring_queue(near.number, RESUME, near.queue.posted);
    let write = near.write(2, 0, window, 1 << 20);
    assert_eq!(near.run(write).status, 0);
    assert!(far.memory_of(BASE, 1 << 20) == data);
    // A poster that goes leaves a queue behind, which goes with it.
    let Poster { guest, .. } = stage.near;
    drop(guest);
    stage.one.wait_for("guest detached");
    wait_for_reset(&mut stage.one, 1, &mut two);
    let mut near = Poster::new(attach(&stage.place, 1, &mut two, 2));
    assert_eq!(near.number, 0);
    let write = near.write(3, 0, window, 8);
    assert_eq!(near.run(write).status, 0);
}
