//! A data vault on a file system that is slow: what waits for a page, and what does not.

use std::time::{Duration, Instant};

use super::fuse::SlowFile;
use super::guest::Guest;
use super::node::{Node, Place};

const TIMEOUT: u32 = 0xc1;
const SIZE: u64 = 1 << 20;
/// Pages that the kernel does not bring in with each other.
const FAR: u64 = 256 << 10;
/// A device in the server's own memory, behind the vault.
const QUICK: u64 = SIZE;
/// The deadline of an access, and some time for a loaded machine.
const DEADLINE: Duration = Duration::from_millis(500);

/// Node 2, which hosts the vault and a device whose memory is its own, and two nodes with guests.
fn world(place: &Place, vault: &SlowFile) -> (Node, [(Node, Guest); 2]) {
    let file = format!("kind=memory,name=vault,size=1M,file={}", vault.path().display());
    let options =
        ["--peer", "1", "--peer", "3", "--device", &file, "--device", "kind=memory,name=quick,size=64K"];
    let server = place.start_without_guest(2, &[], &options);
    let clients = [1, 3].map(|id| {
        let node = place.start(id, &[2], &[]);
        let mut guest = Guest::attach(&place.socket(id));
        guest.wait_for_node(2, true);
        (node, guest)
    });
    (server, clients)
}

#[test]
fn no_ghost_writes_a_write_that_was_reported_while_its_page_was_brought_in_is_never_executed() {
    let place = Place::new();
    let vault = SlowFile::mount(&place.file("slow"), SIZE as usize);
    let (_server, [(_one, mut near), (_three, mut third)]) = world(&place, &vault);
    let _opens = vault.opens_at_end();
    for (round, channel) in ["small", "after others"].into_iter().enumerate() {
        let at = FAR * u64::try_from(round).unwrap();
        if channel == "after others" {
            near.store(2, QUICK, &[1; 8]);
        }
        vault.set_open(false);
        near.store(2, at, &7u64.to_le_bytes());
        assert_eq!(near.check(2, at), TIMEOUT, "{channel}");
        vault.wait_for_reader();
        // Nobody else waits for that disk: neither another guest nor, for another device, this one.
        for n in 0..100u64 {
            third.store(2, QUICK + 8, &n.to_le_bytes());
            assert_eq!(third.check(2, QUICK + 8), 0, "{channel}");
            assert_eq!(third.load(2, QUICK + 8), n.to_le_bytes());
        }
        near.wait_for_node(2, true);
        near.store(2, QUICK, &9u64.to_le_bytes());
        assert_eq!(near.check(2, QUICK), 0, "{channel}");
        vault.set_open(true);
        // The page is there, or comes; whatever was reported did not get into it.
        assert_eq!(near.load(2, at), 0u64.to_le_bytes(), "{channel}");
        assert_eq!(near.check(2, at), 0);
        assert_eq!(vault.word(at), 0, "{channel}");
        near.store(2, at, &8u64.to_le_bytes());
        assert_eq!(near.check(2, at), 0, "{channel}");
        assert_eq!(near.load(2, at), 8u64.to_le_bytes());
        assert_eq!(vault.word(at), 8, "{channel}");
    }
}

#[test]
fn what_comes_within_the_deadline_is_done_however_long_the_lease_is_over() {
    let place = Place::new();
    let vault = SlowFile::mount(&place.file("slow"), SIZE as usize);
    let (_server, [(_one, mut near), (_three, mut third)]) = world(&place, &vault);
    let _opens = vault.opens_at_end();
    for round in 0..4u64 {
        let at = FAR * round;
        vault.set_open(false);
        near.store(2, at, &(round + 1).to_le_bytes());
        vault.wait_for_reader();
        // Longer than the lease of 150 ms, of which nobody is to know here.
        let begin = Instant::now();
        while begin.elapsed() < DEADLINE / 2 {
            third.load::<8>(2, QUICK);
        }
        vault.set_open(true);
        let status = near.check(2, at);
        let expected = if status == 0 { round + 1 } else { 0 };
        assert!(status == 0 || status == TIMEOUT, "{status:#x}");
        assert_eq!(vault.word(at), expected, "round {round}, status {status:#x}");
    }
}

#[test]
fn bounded_a_load_of_a_page_that_does_not_come_and_the_end_of_the_service() {
    let place = Place::new();
    let vault = SlowFile::mount(&place.file("slow"), SIZE as usize);
    let (server, [(_one, mut near), (_three, mut third)]) = world(&place, &vault);
    let _opens = vault.opens_at_end();
    vault.set_open(false);
    assert_eq!(near.load(2, 0), [0xff; 8]);
    assert_eq!(near.check(2, 0), TIMEOUT << 8);
    vault.wait_for_reader();
    server.signal(libc::SIGTERM);
    third.wait_for_node(2, false);
    // The kernel lets the process go only when the page has come; all it had outside is free before.
    let quick = ["--peer", "1", "--peer", "3", "--device", "kind=memory,name=quick,size=64K"];
    let _next = place.start_without_guest(2, &[], &quick);
    third.wait_for_node(2, true);
    third.store(2, 0, &[5; 8]);
    assert_eq!(third.check(2, 0), 0);
    vault.set_open(true);
    assert!(server.wait().0.success());
}
