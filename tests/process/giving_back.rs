//! Memory that the kernel takes long to take back.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vfio_user::Client;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

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

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const SET_IRQS: u16 = 8;
const UNKNOWN: u16 = 99;

/// A message of a vfio-user client.
fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap();
    let words = [u32::from(command) << 16, size, 0, 0];
    [&words.map(u32::to_le_bytes).concat()[..], body].concat()
}

/// Reads the answer to a message.
fn answer(client: &mut UnixStream) {
    let mut header = [0; 16];
    client.read_exact(&mut header).unwrap();
    let size = u32::from_le_bytes(header[4..8].try_into().unwrap());
    client.read_exact(&mut vec![0; size as usize - 16]).unwrap();
}

#[test]
fn memory_that_a_client_sends_for_nothing_does_not_stop_the_adaptor() {
    let place = Place::new();
    let second = place.socket(B).display().to_string();
    let mut node = place.start(A, &[], &["--socket-path", &second, "--bus-bits", "1"]);
    let mut other = Guest::attach(&place.socket(B));
    let mut client = UnixStream::connect(place.socket(A)).unwrap();
    client.write_all(&message(VERSION, b"\0\0\x01\0{\"capabilities\":{}}\0")).unwrap();
    answer(&mut client);
    // One vector's event descriptor, and a range of memory.
    let vectors: Vec<u8> = [20u32, 0x24, 2, 0, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let range = [32 | 3 << 32, 0, 0, 4096u64].map(u64::to_le_bytes).concat();
    let small = File::from(memfd_create("small", MemfdFlags::CLOEXEC).unwrap());
    for (what, command, body, others) in [
        ("a command that there is not", UNKNOWN, &[][..], 0),
        ("no event", SET_IRQS, &vectors, 0),
        ("one too many", DMA_MAP, &range, 1),
        ("far too many", UNKNOWN, &[], 40),
    ] {
        let file = filled(MUCH);
        let mut all: Vec<RawFd> = vec![small.as_raw_fd(); others];
        all.push(file.as_raw_fd());
        let before = node.main_thread_time();
        // The adaptor is not to read it before it has the last reference.
        node.signal(libc::SIGSTOP);
        client.send_with_fds(&[&message(command, body)[..]], &all).unwrap();
        drop(file);
        node.signal(libc::SIGCONT);
        answer(&mut client);
        // Both buses are served: what the descriptor took of the loop's time is behind it.
        other.incarnation();
        let spent = node.main_thread_time() - before;
        println!("{what}: {spent:?} of the event loop");
        assert!(spent < BOUND, "{what}: {spent:?} of the event loop");
    }
    // One who is turned away.
    let file = filled(MUCH);
    let before = node.main_thread_time();
    node.signal(libc::SIGSTOP);
    let late = UnixStream::connect(place.socket(A)).unwrap();
    late.send_with_fds(&[&[0u8][..]], &[file.as_raw_fd()]).unwrap();
    drop(file);
    node.signal(libc::SIGCONT);
    node.wait_for("turned away");
    other.incarnation();
    let spent = node.main_thread_time() - before;
    assert!(spent < BOUND, "one who is turned away: {spent:?} of the event loop");
}
