//! Adaptor processes, driven over their real sockets.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic, clippy::expect_used)]

mod bus;
mod buses;
mod chaos;
mod descriptors;
mod engine;
mod fairness;
mod fuse;
mod giving_back;
mod guest;
mod hosted;
mod hostile;
mod judge;
mod links;
mod logging;
mod machine;
mod messages;
mod node;
mod proxy;
mod router;
mod sharing;
mod slow_memory;
mod strangers;
mod versions;

use std::path::Path;
use std::time::{Duration, Instant};

use guest::{Guest, READ, WRITE};
use node::{Node, Place};

const BUFFER: u64 = 0x4_0000;
/// After this time QEMU gives up on the device.
const QEMU_PATIENCE: Duration = Duration::from_secs(5);

/// Waits until `other` knows of the reset that `node` logs next, and has found it again.
fn wait_for_reset(node: &mut Node, id: u8, other: &mut Node) {
    let line = node.wait_for("reset, now incarnation");
    let incarnation = line.rsplit(' ').next().unwrap();
    other.wait_for(&format!("node {id}: up, incarnation {incarnation}"));
}

/// Attaches a guest to node `id`, and waits until `other` knows of it, and it of the `other` one.
fn attach(place: &Place, id: u8, other: &mut Node, other_id: u8) -> Guest {
    attach_at(&place.socket(id), id, other, other_id)
}

/// As [`attach`], at a socket that leads to node `id`.
fn attach_at(socket: &Path, id: u8, other: &mut Node, other_id: u8) -> Guest {
    let mut guest = Guest::attach(socket);
    other.wait_for(&format!("node {id}: up, incarnation {:016x}", guest.incarnation()));
    guest.wait_for_node(other_id, true);
    guest
}

#[test]
fn a_store_lands_in_the_other_guests_memory_and_is_checked() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x2000, READ | WRITE);
    for n in 0..100u64 {
        near.store(2, window + 8 * n, &n.to_le_bytes());
    }
    assert_eq!(near.check(2, window), 0);
    for n in 0..100 {
        assert_eq!(far.memory(BUFFER + 8 * n), n.to_le_bytes());
    }
    assert_eq!(near.load(2, window + 8), 1u64.to_le_bytes());
    assert_eq!(near.check(2, window), 0);
    // Nothing is exported there.
    near.store(2, window + 0x2000, &[1]);
    assert_eq!(near.check(2, window + 0x2000), 0x82);
    assert_eq!(near.check(2, window + 0x2000), 0);
}

#[test]
fn guests_come_and_go_while_the_adaptors_stay() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    for round in 1..4u8 {
        let mut far = attach(&place, 2, &mut one, 1);
        let window = far.export(BUFFER, 0x1000, WRITE);
        near.store(2, window, &[round; 8]);
        assert_eq!(near.check(2, window), 0, "round {round}");
        assert_eq!(far.memory(BUFFER), [round; 8]);
        // What was exported goes with its guest.
        drop(far);
        two.wait_for("guest detached");
        wait_for_reset(&mut two, 2, &mut one);
        near.store(2, window, &[round; 8]);
        assert_eq!(near.check(2, window), 0x82, "round {round}");
    }
    // The same the other way round.
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x1000, WRITE);
    drop(near);
    let mut near = attach(&place, 1, &mut two, 2);
    near.store(2, window, &[9; 8]);
    assert_eq!(near.check(2, window), 0);
    assert_eq!(far.memory(BUFFER), [9; 8]);
}

#[test]
fn a_killed_adaptor_is_down_and_works_again_when_it_is_back() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    two.signal(libc::SIGKILL);
    drop(two.wait());
    near.wait_for_node(2, false);
    near.store(2, 0, &[1; 8]);
    assert_eq!(near.check(2, 0), 0x41);
    // Its socket was left behind, and is replaced.
    let two = place.start(2, &[1], &[]);
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x1000, WRITE);
    near.store(2, window, &[1; 8]);
    assert_eq!(near.check(2, window), 0);
    assert_eq!(far.memory(BUFFER), [1; 8]);
    // And both end when they are told to.
    for node in [one, two] {
        node.signal(libc::SIGTERM);
        let (status, log) = node.wait();
        assert!(status.success(), "{log:?}");
    }
    assert!(!place.socket(1).exists() && !place.socket(2).exists());
}

#[test]
fn bounded_and_no_ghost_writes_while_a_peer_is_stopped() {
    let place = Place::new();
    let mut one = place.start(1, &[2], &[]);
    let mut two = place.start(2, &[1], &[]);
    let mut near = attach(&place, 1, &mut two, 2);
    let mut far = attach(&place, 2, &mut one, 1);
    let window = far.export(BUFFER, 0x4_0000, WRITE);
    near.store(2, window, &[1; 8]);
    assert_eq!(near.check(2, window), 0);

    two.signal(libc::SIGSTOP);
    // More than the 256 write buffers that one node may hold, so that the last stores have to wait.
    let places = (8..288).map(|n| 512 * n);
    for at in places.clone() {
        let begin = Instant::now();
        near.store(2, window + at, &[2; 8]);
        assert!(begin.elapsed() < QEMU_PATIENCE, "the store at {at:#x} took {:?}", begin.elapsed());
    }
    for block in 1..36 {
        let begin = Instant::now();
        let word = near.check(2, window + 4096 * block);
        assert_ne!(word, 0, "block {block}");
        assert!(begin.elapsed() < QEMU_PATIENCE, "the check of block {block} took {:?}", begin.elapsed());
    }
    two.signal(libc::SIGCONT);
    // What was reported as failed or unknown does not happen any more, although much of it waited in the socket.
    one.wait_for("node 2: up");
    near.store(2, window, &[3; 8]);
    assert_eq!(near.check(2, window), 0);
    assert_eq!(far.memory(BUFFER), [3; 8]);
    for at in places {
        assert_eq!(far.memory(BUFFER + at), [0; 8], "at {at:#x}");
    }
}
