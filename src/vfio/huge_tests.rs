//! Guest memory in huge pages, mapped as QEMU does it: its pieces begin and end where the machine's memory map has them.
#![allow(clippy::arithmetic_side_effects)]

use super::*;
use crate::adaptor::memory::{Home, OperationId};
use crate::mapped::huge_pages::{HUGE, Pool, huge_file, number};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Below and above the hole for video memory and firmware: address and length in bytes; the file has the same offsets.
const LOW: (u64, u64) = (0, 0xa_0000);
const HIGH: (u64, u64) = (0x10_0000, 2 * HUGE - 0x10_0000);

fn attach(file: &File) -> GuestMemory {
    let mut memory = GuestMemory::new();
    for (address, size) in [LOW, HIGH] {
        let map = DmaMap { argsz: 32, flags: 3, offset: address, address, size };
        memory.map(&map, Some(file.try_clone().unwrap().into()), |_| Sharing::Shared).unwrap();
    }
    memory
}

fn write(memory: &GuestMemory, address: u64, data: &[u8]) -> MemoryResult {
    let segments = vec![Segment { address, len: data.len() }];
    let data = Bytes::copy_from_slice(data);
    let operation = MemoryOperation::Write { id: OperationId(0), home: Home::Guest, segments, data };
    memory.execute(&operation, &Begin::WAITS).done().unwrap()
}

fn lines_with(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

/// A thread of its own closes files and takes large mappings apart.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "it is not so that {what}");
        std::thread::yield_now();
    }
}

/// As QEMU seals it.
fn seal(file: &File) {
    // SAFETY: F_ADD_SEALS takes a number.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
}

#[test]
fn a_guest_in_huge_pages_is_reached_and_leaves_nothing_behind_however_often_it_attaches() {
    let _pool = Pool::with(2);
    let before = number("free_hugepages");
    let file = huge_file(c"attach-test", 2 * HUGE, libc::MFD_HUGE_2MB);
    seal(&file);
    for turn in 0..50_u8 {
        let mut memory = attach(&file);
        write(&memory, 0x9_fff8, &[turn; 8]).unwrap();
        write(&memory, HUGE - 4, &[turn; 8]).unwrap();
        assert_eq!(write(&memory, 0x9_fffc, &[turn; 8]), Err(MemoryFault::Unmapped));
        for at in [0x9_fff8, HUGE - 4] {
            let mut found = [0; 8];
            file.read_exact_at(&mut found, at).unwrap();
            assert_eq!(found, [turn; 8]);
        }
        assert_eq!(lines_with("attach-test"), 1);
        // Half of them go by commands, and half with their guest.
        if turn % 2 == 0 {
            for (address, size) in [LOW, HIGH] {
                memory.unmap(&DmaUnmap { argsz: 24, flags: 0, address, size }).unwrap();
            }
            assert_eq!(lines_with("attach-test"), 0);
        }
        drop(memory);
        assert_eq!(lines_with("attach-test"), 0);
    }
    drop(file);
    wait_for("the pages are given back", || number("free_hugepages") == before);
}

#[test]
fn huge_pages_that_are_not_there_are_a_fault_until_they_are() {
    let pool = Pool::with(1);
    let file = huge_file(c"empty-test", 2 * HUGE, libc::MFD_HUGE_2MB);
    seal(&file);
    let memory = attach(&file);
    write(&memory, HUGE, &[1; 8]).unwrap();
    // One page is in use, and there is no other.
    assert_eq!(write(&memory, 0, &[1; 8]), Err(MemoryFault::Unmapped));
    let across = Segment { address: HUGE - 4, len: 8 };
    assert_eq!(memory.load(&[across], &Begin::WAITS).done().unwrap(), Err(MemoryFault::Unmapped));
    assert_eq!(write(&memory, HUGE, &[2; 8]), Ok(Bytes::new()));
    pool.resize(2);
    assert_eq!(write(&memory, 0, &[3; 8]), Ok(Bytes::new()));
    assert_eq!(
        memory.load(&[across], &Begin::WAITS).done().unwrap(),
        Ok(Bytes::from_static(&[0, 0, 0, 0, 2, 2, 2, 2]))
    );
}

/// The pages themselves are not needed for this; few machines have any to give once they are up.
#[test]
fn a_file_in_pages_of_a_gigabyte_is_mapped_and_unmapped_at_any_offset() {
    let file = huge_file(c"giga-test", 2 << 30, libc::MFD_HUGE_1GB);
    for _ in 0..50 {
        let mut memory = attach(&file);
        let map = DmaMap { argsz: 32, flags: 3, offset: 0x5000_1000, address: 1 << 32, size: 0x2fff_f000 };
        memory.map(&map, Some(file.try_clone().unwrap().into()), |_| Sharing::Shared).unwrap();
    }
    wait_for("the mappings are gone", || lines_with("giga-test") == 0);
}
