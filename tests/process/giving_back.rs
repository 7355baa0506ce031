//! Memory that the kernel takes long to take back.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vfio_user::Client;

use super::guest::{Bus, Guest};
use super::node::{PATIENCE, Place};

/// Taking it back needs some hundred milliseconds of processor time.
const MUCH: u64 = 1 << 30;
/// What one guest may cost the others of its adaptor at a time.
const BOUND: Duration = Duration::from_millis(50);
/// The two buses.
const A: u8 = 4;
const B: u8 = 5;

/// Memory whose pages are all there.
fn filled(len: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("much", flags).unwrap());
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

#[test]
fn a_guest_that_ends_with_much_memory_does_not_stop_its_adaptor() {
    let place = Place::new();
    let second = place.socket(B).display().to_string();
    let mut node = place.start(A, &[], &["--socket-path", &second, "--bus-bits", "1"]);
    let mut other = Guest::attach(&place.socket(B));
    for way in ["the guest ends", "it unmaps", "it unmaps the small part that was left"] {
        let mut client = Client::new(&place.socket(A)).unwrap();
        let file = filled(MUCH);
        client.map(0, MUCH, &file);
        node.wait_for("guest attached");
        if way == "it unmaps the small part that was left" {
            client.map(MUCH, 1 << 20, &file);
            client.dma_unmap(0, MUCH).unwrap();
        }
        // The adaptor has the last reference now.
        drop(file);
        let before = node.main_thread_time();
        match way {
            "it unmaps" => client.dma_unmap(0, MUCH).unwrap(),
            "it unmaps the small part that was left" => client.dma_unmap(MUCH, 1 << 20).unwrap(),
            _ => {}
        }
        drop(client);
        node.wait_for("guest detached");
        // Both buses are served: what the end of the guest took of the loop's time is behind it.
        assert_ne!(other.incarnation(), Guest::attach(&place.socket(A)).incarnation());
        node.wait_for("guest detached");
        let spent = node.main_thread_time() - before;
        println!("{way}: {spent:?} of the event loop");
        assert!(spent < BOUND, "{way}: {spent:?} of the event loop");
    }
    // The process ends while there may still be something to be given back.
    node.signal(libc::SIGTERM);
    let begin = Instant::now();
    while place.socket(A).exists() || place.socket(B).exists() {
        assert!(begin.elapsed() < PATIENCE, "it is not told to stop");
    }
    assert!(node.wait().0.success());
}
