//! Windows of bus addresses: what other nodes reach on a guest's bus, besides its memory.

use std::time::{Duration, Instant};

use super::guest::queue::{self, Entry, HEAD_SIZE, Queue, RESUME, SUBMISSION_SIZE, SUBMITTED};
use super::guest::{self, Guest, READ, WRITE};
use super::machine::{DEVICE, Machine, NESTED};
use super::node::{Node, Place};
use super::{BUFFER, attach, attach_at, wait_for_reset};

const ALL: u32 = READ | WRITE | guest::DEVICE;
const TARGET_FAULT: u32 = 0x85;
const PARTIAL: u32 = 0xc7;
/// The longest that an access may take, with room for a loaded machine.
const BOUND: Duration = Duration::from_secs(2);

/// Two nodes, of which the second one's guest is in a machine with a device, and what it exports of it.
struct Stage {
    one: Node,
    two: Node,
    near: Guest,
    far: Guest,
    machine: Machine,
    window: u64,
    place: Place,
}

impl Stage {
    fn new() -> Self {
        let place = Place::new();
        let mut one = place.start(1, &[2], &[]);
        let mut two = place.start(2, &[1], &[]);
        let near = attach(&place, 1, &mut two, 2);
        let machine = Machine::start(&place.socket(2));
        let mut far = attach_at(machine.socket(), 2, &mut one, 1);
        let window = far.export(DEVICE, 0x2000, ALL);
        Self { one, two, near, far, machine, window, place }
    }

    /// What a check of the window's block says, which must come soon.
    fn check(&mut self, block: u64) -> u32 {
        let begin = Instant::now();
        let word = self.near.check(2, self.window + 4096 * block);
        assert!(begin.elapsed() < BOUND, "the check took {:?}", begin.elapsed());
        word
    }
}

#[test]
fn a_device_of_the_other_guests_bus_is_read_and_written_and_a_fault_is_told() {
    let mut stage = Stage::new();
    let window = stage.window;
    stage.near.store(2, window + 8, &[1, 2, 3, 4]);
    assert_eq!(stage.near.load(2, window + 8), [1, 2, 3, 4]);
    stage.near.store(2, window + 0xff8, &[9; 8]);
    assert_eq!(stage.check(0), 0);
    assert_eq!(stage.machine.byte(DEVICE + 0xfff), Some(9));
    assert_eq!(stage.machine.take_seen(), [(DEVICE + 8, 4), (DEVICE + 8, 4), (DEVICE + 0xff8, 8)]);
    // Behind the device nothing answers. Of an access that the machine may have cut nobody knows whether a part was done.
    stage.near.store(2, window + 0x1000, &[1; 4]);
    assert_eq!(stage.near.load(2, window + 0x1004), [0xff; 4]);
    assert_eq!(stage.check(1), PARTIAL << 8 | PARTIAL);
    stage.near.store(2, window + 0x1000, &[1]);
    assert_eq!(stage.check(1), TARGET_FAULT);
    assert_eq!(stage.check(1), 0);
    // Memory with a file is reached in that, and the machine is not asked.
    stage.machine.take_seen();
    let memory = stage.far.export(BUFFER, 0x1000, ALL);
    stage.near.store(2, memory, &[1; 8]);
    assert_eq!(stage.near.check(2, memory), 0);
    assert_eq!(stage.near.load(2, memory + 4), [1; 4]);
    // What is behind the guest's own function is not asked for by the way around the bus.
    stage.far.place_registers(u32::try_from(DEVICE).unwrap());
    assert_eq!(stage.near.load(2, window + 8), [0xff; 4]);
    assert_eq!(stage.check(0), TARGET_FAULT << 8);
    assert_eq!(stage.machine.take_seen(), []);
}

#[test]
fn a_long_write_that_fails_in_the_midst_is_of_unknown_outcome() {
    const BASE: u64 = 1 << 20;
    let mut stage = Stage::new();
    let key = stage.near.register_memory(BASE, 1 << 20, 5);
    let completions = 64 * SUBMISSION_SIZE + HEAD_SIZE;
    let number = stage.near.create_queue(key, 5, (0, completions), 64);
    let mut queue = Queue::new(BASE, BASE + completions, 64);
    let mut run = |stage: &mut Stage, offset, len| {
        let remote = stage.window + offset;
        let entry =
            Entry { opcode: queue::WRITE, node: 2, remote, len, key, local: 0x8000, ..Entry::default() };
        queue.post(&stage.near, &entry);
        if queue.must_ring(&stage.near) {
            stage.near.ring_queue(number, SUBMITTED, queue.posted);
        }
        let begin = Instant::now();
        loop {
            if let Some(done) = queue.poll(&stage.near) {
                stage.near.ring_queue(number, RESUME, queue.posted);
                return (done.status, done.done, done.former);
            }
            assert!(begin.elapsed() < BOUND, "no completion");
            std::thread::yield_now();
        }
    };
    assert_eq!(run(&mut stage, 0xf00, 0x100), (0, 0x100, 0));
    // Over the end of the device, and where there is none.
    stage.near.set_memory(BASE + 0x8000, &[7; 0x200]);
    assert_eq!(run(&mut stage, 0xf00, 0x200), (PARTIAL, 0, PARTIAL.into()));
    assert_eq!(stage.machine.byte(DEVICE + 0xfff), Some(7), "a part was done");
    assert_eq!(run(&mut stage, 0x1000, 8), (PARTIAL, 0, PARTIAL.into()));
    assert_eq!(run(&mut stage, 0x1000, 1), (TARGET_FAULT, 0, 0));
}

#[test]
fn a_machine_that_asks_the_adaptor_before_it_answers_is_answered() {
    let mut stage = Stage::new();
    assert_eq!(&stage.near.load(2, stage.window + NESTED - DEVICE), b"ARDM");
    assert_eq!(stage.check(0), 0);
}

#[test]
fn bounded_and_in_order_while_a_machine_does_not_answer() {
    let mut stage = Stage::new();
    let memory = stage.far.export(BUFFER, 0x1000, ALL - guest::DEVICE);
    stage.machine.stop();
    // A read that is given up holds up nothing.
    let begin = Instant::now();
    assert_eq!(stage.near.load(2, stage.window), [0xff; 4]);
    assert!(begin.elapsed() < BOUND, "the load took {:?}", begin.elapsed());
    assert_eq!(stage.check(0), 0xc1 << 8);
    stage.one.wait_for("node 2: up");
    stage.near.store(2, memory, &[1; 8]);
    assert_eq!(stage.near.check(2, memory), 0);
    // A write holds up what follows of the same bus, as it may still be carried out.
    stage.machine.take_seen();
    stage.near.store(2, stage.window, &[5; 4]);
    stage.machine.wait_for_access();
    stage.near.store(2, memory, &[2; 8]);
    assert_eq!(stage.check(0), 0xc1);
    assert_ne!(stage.near.check(2, memory), 0);
    assert_eq!(stage.far.memory(BUFFER), [1; 8]);
    // The guest itself is served meanwhile.
    assert_eq!(stage.far.register(0), u32::from_le_bytes(*b"ARDM"));
    stage.one.wait_for("node 2: up");
    stage.near.store(2, memory, &[3; 8]);
    assert_ne!(stage.near.check(2, memory), 0, "not before the write to the device has ended");
    stage.machine.go_on();
    stage.one.wait_for("node 2: up");
    stage.near.store(2, memory, &[4; 8]);
    assert_eq!(stage.near.check(2, memory), 0);
    assert_eq!(stage.far.memory(BUFFER), [4; 8]);
    assert_eq!(stage.near.load(2, stage.window), [5; 4]);
}

#[test]
fn what_is_under_way_when_the_guest_goes_is_of_unknown_outcome() {
    let mut stage = Stage::new();
    stage.machine.stop();
    stage.near.store(2, stage.window, &[5; 4]);
    stage.machine.wait_for_access();
    let Stage { mut one, mut two, mut near, far, machine, window, place } = stage;
    drop((far, machine));
    two.wait_for("guest detached");
    wait_for_reset(&mut two, 2, &mut one);
    assert_eq!(near.check(2, window), 0xc2);
    // And holds up nothing of the next guest.
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x1000, READ | WRITE);
    near.store(2, window, &[7; 8]);
    assert_eq!(near.check(2, window), 0);
    assert_eq!(far.memory(BUFFER), [7; 8]);
}
