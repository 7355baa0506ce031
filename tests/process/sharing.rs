//! A guest with memory that it shares with the adaptor, and memory that it does not.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use vm_memory::{FileOffset, MmapRegion};

use super::guest::{Bus, Guest, MEMORY, READ, WRITE};
use super::node::Place;

const NODE: u8 = 6;
const PROBE: u32 = 3;
/// COMMAND_STATUS: in memory that is not shared.
const NOT_SHARED: u32 = 4;
/// The event: what is known of memory has changed.
const MEMORY_EVENT: u32 = 1 << 3;
const PRIVATE_LEN: u64 = 1 << 20;

/// Memory that this process, which the adaptor takes for QEMU, has mapped so that the file does not see its stores.
fn private() -> (File, MmapRegion) {
    let file = File::from(memfd_create("private", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(PRIVATE_LEN).unwrap();
    let place = FileOffset::new(file.try_clone().unwrap(), 0);
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    let region = MmapRegion::build(Some(place), 4096, access, flags).unwrap();
    (file, region)
}

#[test]
fn memory_that_is_not_shared_is_told_and_refused_by_itself_and_what_is_gone_has_no_say() {
    let place = Place::new();
    let _node = place.start(NODE, &[], &[]);
    let mut guest = Guest::attach(&place.socket(NODE));
    let both = READ | WRITE;
    assert_eq!(guest.memory_status(), (false, false, false), "nothing is known");
    assert_eq!(guest.command(PROBE, &[]).0, 0);
    assert_eq!(guest.memory_status(), (true, false, false), "shared");
    guest.take_events();

    let (file, region) = private();
    guest.client.map(MEMORY, PRIVATE_LEN, &file);
    assert_eq!(guest.memory_status(), (true, false, true), "shared in part");
    assert_eq!(guest.take_events() & MEMORY_EVENT, MEMORY_EVENT);
    assert_eq!(guest.try_export(MEMORY, 4096, both), (NOT_SHARED, 0));
    assert_eq!(guest.try_export(MEMORY - 4096, 8192, both), (NOT_SHARED, 0), "into it");
    guest.export(0x4_0000, 4096, both);
    assert_eq!(
        guest.memory_status(),
        (true, false, true),
        "a run says nothing about the descriptor's memory"
    );

    guest.client.dma_unmap(MEMORY, PRIVATE_LEN).unwrap();
    drop(region);
    assert_eq!(guest.memory_status(), (true, false, false), "all that is left is shared");
    assert_eq!(guest.take_events() & MEMORY_EVENT, MEMORY_EVENT);
    guest.export(0x8_0000, 4096, both);
    guest.reset();
    assert_eq!(guest.memory_status(), (false, false, false), "a reset forgets");
    guest.export(0x8_0000, 4096, both);
}
