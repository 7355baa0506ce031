#![allow(clippy::arithmetic_side_effects)]

use super::*;
use crate::adaptor::memory::{Home, OperationId};
use proptest::prelude::*;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

fn memfd(len: u64, seals: i32) -> File {
    let file = named(c"memory-test", len, 0);
    // SAFETY: F_ADD_SEALS takes a number.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file
}

/// A file in memory under a name, made with these flags too.
fn named(name: &std::ffi::CStr, len: u64, flags: u32) -> File {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flags;
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor was just opened and is owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len).unwrap();
    file
}

fn sealed(len: u64) -> File {
    memfd(len, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
}

fn range(address: u64, size: u64, offset: u64, flags: u32) -> DmaMap {
    DmaMap { argsz: 32, flags, offset, address, size }
}

fn map(memory: &mut GuestMemory, range: DmaMap, file: Option<&File>) -> Result<(), MapError> {
    map_as(memory, range, file, Sharing::Shared)
}

fn map_as(
    memory: &mut GuestMemory,
    range: DmaMap,
    file: Option<&File>,
    sharing: Sharing,
) -> Result<(), MapError> {
    memory.map(&range, file.map(|f| f.try_clone().unwrap().into()), |_| sharing)
}

fn unmap(memory: &mut GuestMemory, address: u64, size: u64, flags: u32) -> Result<(), MapError> {
    memory.unmap(&DmaUnmap { argsz: 24, flags, address, size })
}

fn segments(list: &[(u64, usize)]) -> Vec<Segment> {
    list.iter().map(|&(address, len)| Segment { address, len }).collect()
}

fn read(memory: &GuestMemory, list: &[(u64, usize)]) -> MemoryResult {
    memory.load(&segments(list), &Begin::WAITS).done().unwrap()
}

fn write(memory: &GuestMemory, list: &[(u64, usize)], data: &[u8]) -> MemoryResult {
    let data = Bytes::copy_from_slice(data);
    let (id, home, segments) = (OperationId(1), Home::Guest, segments(list));
    let operation = MemoryOperation::Write { id, home, segments, data };
    memory.execute(&operation, &Begin::WAITS).done().unwrap()
}

fn file_bytes(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn bytes_land_at_the_offset_in_the_file() {
    let file = sealed(0x4000);
    let mut memory = GuestMemory::new();
    map(&mut memory, range(0x10_0000, 0x2000, 0x1000, 3), Some(&file)).unwrap();
    assert_eq!(write(&memory, &[(0x10_0004, 6)], b"abcdef"), Ok(Bytes::new()));
    assert_eq!(file_bytes(&file, 0x1004, 6), b"abcdef");
    assert_eq!(read(&memory, &[(0x10_0006, 2), (0x10_0004, 2)]), Ok(Bytes::from_static(b"cdab")));
    assert_eq!(memory.overview(), Overview::Shared);
}

#[test]
fn a_guest_has_no_more_files_and_bytes_than_its_share_and_what_it_gives_back_it_has_again() {
    let mut memory = GuestMemory::with_share(100, (3, 0x10_0000));
    let files: Vec<_> = (0..4).map(|_| sealed(0x1000)).collect();
    let add =
        |memory: &mut GuestMemory, at: u64, file: &File| map(memory, range(at, 0x1000, 0, 3), Some(file));
    for (at, file) in (0..3).zip(&files) {
        add(&mut memory, at << 12, file).unwrap();
        add(&mut memory, (at + 8) << 12, file).unwrap();
    }
    assert!(matches!(add(&mut memory, 3 << 12, &files[3]), Err(MapError::TooManyFiles(3))));
    unmap(&mut memory, 0, 0x1000, 0).unwrap();
    assert!(matches!(add(&mut memory, 3 << 12, &files[3]), Err(MapError::TooManyFiles(3))), "half of it");
    unmap(&mut memory, 8 << 12, 0x1000, 0).unwrap();
    add(&mut memory, 3 << 12, &files[3]).unwrap();
    // By its flag, all of it.
    unmap(&mut memory, 0, 0, DmaUnmapFlags::UNMAP_ALL.bits()).unwrap();
    // One that grows is mapped anew each time, for as long as ranges are in what it was.
    let grows = named(c"grows", 0x1000, 0);
    for at in 0..3u64 {
        grows.set_len((at + 1) << 12).unwrap();
        map(&mut memory, range(at << 12, 0x1000, at << 12, 3), Some(&grows)).unwrap();
    }
    grows.set_len(4 << 12).unwrap();
    let more = map(&mut memory, range(3 << 12, 0x1000, 3 << 12, 3), Some(&grows));
    assert!(matches!(more, Err(MapError::TooManyFiles(3))), "{more:?}");
    unmap(&mut memory, 0, 0, DmaUnmapFlags::UNMAP_ALL.bits()).unwrap();
    add(&mut memory, 0, &sealed(0xf_f000)).unwrap();
    assert!(matches!(add(&mut memory, 1 << 12, &sealed(0x2000)), Err(MapError::TooLarge(0x10_0000))));
    add(&mut memory, 1 << 12, &sealed(0x1000)).unwrap();
}

#[test]
fn a_segment_spans_adjacent_ranges_but_no_gap() {
    let file = sealed(0x4000);
    let mut memory = GuestMemory::new();
    map(&mut memory, range(0x1000, 0x1000, 0x3000, 3), Some(&file)).unwrap();
    map(&mut memory, range(0x2000, 0x1000, 0, 3), Some(&file)).unwrap();
    write(&memory, &[(0x1ffe, 4)], b"wxyz").unwrap();
    assert_eq!(file_bytes(&file, 0x3ffe, 2), b"wx");
    assert_eq!(file_bytes(&file, 0, 2), b"yz");
    assert_eq!(read(&memory, &[(0x2ffe, 4)]), Err(MemoryFault::Unmapped));
    assert_eq!(read(&memory, &[(0xffe, 4)]), Err(MemoryFault::Unmapped));
}

#[test]
fn nothing_is_written_where_a_later_segment_fails() {
    let file = sealed(0x1000);
    let mut memory = GuestMemory::new();
    map(&mut memory, range(0, 0x1000, 0, 3), Some(&file)).unwrap();
    assert_eq!(write(&memory, &[(0, 2), (0x1000, 2)], b"abcd"), Err(MemoryFault::Unmapped));
    assert_eq!(write(&memory, &[(0, 2), (u64::MAX, 2)], b"abcd"), Err(MemoryFault::Unmapped));
    assert_eq!(write(&memory, &[(0, 2), (u64::MAX, usize::MAX)], b"abcd"), Err(MemoryFault::Unmapped));
    assert_eq!(file_bytes(&file, 0, 4), [0; 4]);
}

#[test]
fn rights_and_unreachable_ranges() {
    let file = sealed(0x3000);
    let mut memory = GuestMemory::new();
    map(&mut memory, range(0, 0x1000, 0, 1), Some(&file)).unwrap();
    map(&mut memory, range(0x1000, 0x1000, 0, 3), None).unwrap();
    memory.map(&range(0x2000, 0x1000, 0, 3), Some(sealed(0x1000).into()), |_| Sharing::Private).unwrap();
    assert_eq!(write(&memory, &[(0, 1)], b"a"), Err(MemoryFault::ReadOnly));
    let touch = |write| {
        let (id, home, segments) = (OperationId(1), Home::Guest, segments(&[(0, 1), (0xfff, 1)]));
        let touch = MemoryOperation::Touch { id, home, segments, write };
        memory.execute(&touch, &Begin::WAITS).done().unwrap()
    };
    assert_eq!((touch(false), touch(true)), (Ok(Bytes::new()), Err(MemoryFault::ReadOnly)));
    assert!(read(&memory, &[(0, 1)]).is_ok());
    assert_eq!(read(&memory, &[(0x1000, 1)]), Err(MemoryFault::Unmapped));
    assert_eq!(read(&memory, &[(0x2000, 1)]), Err(MemoryFault::NotShared));
    assert_eq!(memory.overview(), Overview::Partly);
}

#[test]
fn sharing_is_judged_once_for_each_file() {
    let file = sealed(0x2000);
    let mut memory = GuestMemory::new();
    assert_eq!(memory.overview(), Overview::Unknown);
    let mut asked = 0;
    for page in 0..2 {
        let own = file.try_clone().unwrap().into();
        let judge = |_: &FileId| {
            asked += 1;
            Sharing::Unknown
        };
        memory.map(&range(page * 0x1000, 0x1000, page * 0x1000, 3), Some(own), judge).unwrap();
    }
    assert_eq!(asked, 1);
    assert_eq!(memory.overview(), Overview::Unknown);
    assert_eq!(memory.files.len(), 1);
}

#[test]
fn files_that_are_gone_are_forgotten_and_judged_anew() {
    let file = sealed(0x1000);
    let mut memory = GuestMemory::new();
    let map_page = |memory: &mut GuestMemory, at, file: &File, sharing| {
        map_as(memory, range(at, 0x1000, 0, 3), Some(file), sharing).unwrap();
    };
    map_page(&mut memory, 0x1000, &file, Sharing::Shared);
    for sharing in [Sharing::Unknown, Sharing::Private].into_iter().cycle().take(1000) {
        map_page(&mut memory, 0, &sealed(0x1000), sharing);
        assert_eq!(memory.overview(), Overview::Partly);
        unmap(&mut memory, 0, 0x1000, 0).unwrap();
        assert_eq!(memory.overview(), Overview::Shared, "what is gone has no say");
        assert!(memory.files.len() <= 32);
    }
    // The one that stayed is still known, and one that comes back may be another with the same number.
    map_page(&mut memory, 0, &file, Sharing::Private);
    assert_eq!(memory.overview(), Overview::Shared);
    unmap(&mut memory, 0, 0x2000, 0).unwrap();
    map_page(&mut memory, 0, &file, Sharing::Private);
    assert_eq!(memory.overview(), Overview::Private);
}

/// Reads a descriptor whose first 8 bytes the guest has just made these.
fn descriptor(memory: &GuestMemory, address: u64, proof: u64) -> MemoryResult {
    let segment = Segment { address, len: 128 };
    let operation = MemoryOperation::Descriptor { id: OperationId(1), segment, proof };
    memory.execute(&operation, &Begin::WAITS).done().unwrap()
}

#[test]
fn each_range_has_its_own_verdict_and_what_is_not_known_is_not_touched_before_it_is_proved() {
    let (main, second, plugged) = (sealed(0x2000), sealed(0x2000), sealed(0x2000));
    let mut memory = GuestMemory::new();
    map_as(&mut memory, range(0, 0x1000, 0, 3), Some(&main), Sharing::Unknown).unwrap();
    map_as(&mut memory, range(0x2000, 0x1000, 0, 3), Some(&second), Sharing::Unknown).unwrap();
    let not_shared = Err(MemoryFault::NotShared);
    for address in [0, 0x2000] {
        assert_eq!(read(&memory, &[(address, 8)]), not_shared);
        assert_eq!(write(&memory, &[(address, 8)], &[7; 8]), not_shared);
    }
    assert_eq!(memory.overview(), Overview::Unknown);
    // As the guest sees it, its descriptor begins with this number; in a private mapping's file stand older bytes.
    let proof = 0x1234_5678_4344_5241_u64;
    main.write_all_at(&proof.to_le_bytes(), 0x80).unwrap();
    second.write_all_at(&(proof ^ 1 << 40).to_le_bytes(), 0x80).unwrap();
    assert_eq!(descriptor(&memory, 0x2080, proof), not_shared);
    assert_eq!(descriptor(&memory, 0x80, proof).unwrap()[..8], proof.to_le_bytes());
    assert_eq!(memory.overview(), Overview::Partly);
    // Now that file is known, in all ranges, and no other.
    map_as(&mut memory, range(0x1000, 0x1000, 0x1000, 3), Some(&main), Sharing::Private).unwrap();
    assert!(write(&memory, &[(0xff8, 16)], &[7; 16]).is_ok());
    assert_eq!(write(&memory, &[(0x1ff8, 16)], &[7; 16]), not_shared, "whole or not at all");
    assert_eq!(file_bytes(&main, 0x1ff8, 8), [0; 8]);
    assert_eq!(file_bytes(&second, 0, 8), [0; 8]);
    // What is known to be private is not proved by bytes that happen to be right.
    map_as(&mut memory, range(0x8000, 0x1000, 0, 3), Some(&plugged), Sharing::Private).unwrap();
    plugged.write_all_at(&proof.to_le_bytes(), 0).unwrap();
    assert_eq!(descriptor(&memory, 0x8000, proof), not_shared);
    // Where nothing, or not all of it, is mapped, and where it goes on in other memory.
    assert_eq!(descriptor(&memory, 0x9000, proof), Err(MemoryFault::Unmapped));
    second.write_all_at(&proof.to_le_bytes(), 0xff8).unwrap();
    assert_eq!(descriptor(&memory, 0x2ff8, proof), Err(MemoryFault::Unmapped));
    assert!(read(&memory, &[(0x2ff8, 8)]).is_ok(), "but that was proof enough");
    unmap(&mut memory, 0x8000, 0x1000, 0).unwrap();
    assert_eq!(memory.overview(), Overview::Shared);
}

#[test]
fn a_file_that_grew_is_mapped_anew_and_stays_proved() {
    let file = memfd(0x1000, 0);
    let mut memory = GuestMemory::new();
    map_as(&mut memory, range(0, 0x1000, 0, 3), Some(&file), Sharing::Unknown).unwrap();
    file.write_all_at(&5_u64.to_le_bytes(), 0).unwrap();
    descriptor(&memory, 0, 5).unwrap();
    file.set_len(0x3000).unwrap();
    map_as(&mut memory, range(0x1000, 0x2000, 0x1000, 3), Some(&file), Sharing::Unknown).unwrap();
    assert!(write(&memory, &[(0xffe, 4)], b"abcd").is_ok());
    assert_eq!(file_bytes(&file, 0xffe, 4), b"abcd");
    assert_eq!(memory.files.len(), 1);
}

/// How many mappings this process has of a file with this name.
fn mappings_of(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn as_many_ranges_as_there_may_be_need_one_mapping_and_one_more_is_told_from_what_was_never_there() {
    let file = named(c"budget-test", 0x4000, 0);
    let mut memory = GuestMemory::new();
    for index in 0..MAX_RANGES as u64 {
        // Neighbours would be one range.
        map(&mut memory, range(index * 0x2000, 0x1000, index % 2 * 0x1000, 3), Some(&file)).unwrap();
    }
    let one_more = map(&mut memory, range(1 << 40, 0x1000, 0, 3), Some(&file));
    assert!(matches!(one_more, Err(MapError::TooMany)), "{one_more:?}");
    assert_eq!(mappings_of("budget-test"), 1);
    assert_eq!(read(&memory, &[(1 << 40, 1)]), Err(MemoryFault::TooManyRanges));
    assert_eq!(read(&memory, &[(1 << 41, 1)]), Err(MemoryFault::Unmapped));
    assert!(read(&memory, &[(0x2000 * (MAX_RANGES as u64 - 1), 1)]).is_ok());
    // A neighbour needs no room.
    map(&mut memory, range(0x1000, 0x1000, 0x1000, 3), Some(&file)).unwrap();
    unmap(&mut memory, 1 << 40, 0x1000, 0).unwrap();
    assert_eq!(read(&memory, &[(1 << 40, 1)]), Err(MemoryFault::Unmapped));
    unmap(&mut memory, 0, 0, DmaUnmapFlags::UNMAP_ALL.bits()).unwrap();
    assert_eq!(mappings_of("budget-test"), 0);
}

#[test]
fn unusable_ranges_are_refused_and_change_nothing() {
    let file = sealed(0x2000);
    let mut memory = GuestMemory::new();
    let errno = |result: Result<(), MapError>| result.unwrap_err().errno();
    assert_eq!(errno(map(&mut memory, range(0, 0, 0, 3), Some(&file))), libc::EINVAL);
    assert_eq!(errno(map(&mut memory, range(u64::MAX - 1, 0x1000, 0, 3), None)), libc::EINVAL);
    assert_eq!(errno(map(&mut memory, range(0, 0x1000, 0x1001, 3), Some(&file))), libc::EINVAL);
    assert_eq!(errno(map(&mut memory, range(0, 0x3000, 0, 3), Some(&file))), libc::EINVAL);
    assert_eq!(errno(map(&mut memory, range(0, 0x1000, u64::MAX, 3), Some(&file))), libc::EINVAL);
    let device = File::open("/dev/zero").unwrap();
    assert_eq!(errno(map(&mut memory, range(0, 0x1000, 0, 3), Some(&device))), libc::EINVAL);
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    assert_eq!(errno(map(&mut memory, range(0, 0x1000, 0, 3), Some(&read_only))), libc::EACCES);
    assert_eq!(memory.ranges.len(), 0);

    map(&mut memory, range(0x1000, 0x1000, 0, 3), Some(&file)).unwrap();
    for (address, size) in [(0x1000, 0x1000), (0, 0x1001), (0x1fff, 1), (0, 0x4000), (0x1800, 0x10)] {
        assert_eq!(errno(map(&mut memory, range(address, size, 0, 3), None)), libc::EEXIST);
    }
    map(&mut memory, range(0x2000, 0x1000, 0, 3), Some(&file)).unwrap();
    map(&mut memory, range(0, 0x1000, 0, 3), Some(&file)).unwrap();
}

#[test]
fn unmap_takes_what_is_inside() {
    let file = sealed(0x4000);
    let mut memory = GuestMemory::new();
    let mapped = |memory: &mut GuestMemory| {
        for page in 1..4 {
            map(memory, range(page * 0x1000, 0x1000, 0, 3), Some(&file)).unwrap();
        }
    };
    mapped(&mut memory);
    unmap(&mut memory, 0x2000, 0x1000, 0).unwrap();
    assert_eq!(read(&memory, &[(0x2000, 1)]), Err(MemoryFault::Unmapped));
    assert!(read(&memory, &[(0x1000, 1), (0x3000, 1)]).is_ok());
    // Never mapped, empty, and beyond everything.
    unmap(&mut memory, 0x9000, 0x1000, 0).unwrap();
    unmap(&mut memory, 0x9000, 0, 0).unwrap();
    unmap(&mut memory, 0x1800, 0x400, 0).unwrap();
    for (address, is_there) in [(0x17ff, true), (0x1800, false), (0x1bff, false), (0x1c00, true)] {
        assert_eq!(read(&memory, &[(address, 1)]).is_ok(), is_there, "{address:#x}");
    }
    assert!(matches!(unmap(&mut memory, 2, u64::MAX, 0), Err(MapError::Range)));
    unmap(&mut memory, 1, u64::MAX, 0).unwrap();
    assert_eq!(memory.ranges.len(), 0);
    mapped(&mut memory);
    unmap(&mut memory, 0, 0, DmaUnmapFlags::UNMAP_ALL.bits()).unwrap();
    assert_eq!(memory.ranges.len(), 0);
}

#[test]
fn a_file_that_became_shorter_is_a_fault_and_no_crash() {
    let file = memfd(0x2000, 0);
    let mut memory = GuestMemory::new();
    map(&mut memory, range(0, 0x2000, 0, 3), Some(&file)).unwrap();
    write(&memory, &[(0x1ff0, 4)], b"abcd").unwrap();
    assert_eq!(read(&memory, &[(0x1ff0, 4)]), Ok(Bytes::from_static(b"abcd")));
    file.set_len(0x1000).unwrap();
    assert_eq!(write(&memory, &[(0, 4), (0x1ff0, 4)], b"abcdefgh"), Err(MemoryFault::Unmapped));
    assert_eq!(read(&memory, &[(0x1ff0, 4)]), Err(MemoryFault::Unmapped));
    assert_eq!(read(&memory, &[(0, 4)]), Ok(Bytes::from_static(&[0; 4])));
}

proptest! {
    #[test]
    fn reads_and_writes_agree_with_flat_memory(
        operations in proptest::collection::vec((any::<bool>(), 0_u64..0x3000, 0_usize..0x900, any::<u8>()), 1..24)
    ) {
        let file = sealed(0x3000);
        let mut memory = GuestMemory::new();
        for page in 0..3 {
            map(&mut memory, range(page * 0x1000, 0x1000, (2 - page) * 0x1000, 3), Some(&file)).unwrap();
        }
        let mut oracle = vec![0_u8; 0x3000];
        for (store, address, len, fill) in operations {
            let begin = usize::try_from(address).unwrap();
            match oracle.get_mut(begin..begin + len) {
                Some(place) if store => {
                    for (index, byte) in place.iter_mut().enumerate() {
                        *byte = fill.wrapping_add(u8::try_from(index & 0xff).unwrap());
                    }
                    write(&memory, &[(address, len)], place).unwrap();
                }
                Some(place) => prop_assert_eq!(&read(&memory, &[(address, len)]).unwrap()[..], &place[..]),
                None => prop_assert_eq!(read(&memory, &[(address, len)]), Err(MemoryFault::Unmapped)),
            }
        }
    }
}

#[test]
fn memory_is_told_from_what_is_none() {
    let mut memory = GuestMemory::new();
    let file = sealed(0x3000);
    map(&mut memory, range(0x1000, 0x2000, 0, 3), Some(&file)).unwrap();
    map(&mut memory, range(0x8000, 0x1000, 0, 3), None).unwrap();
    let holds = |address, len| memory.holds(&Segment { address, len });
    for (address, len) in [(0x1000, 1), (0x2fff, 1), (0xfff, 2), (0, 0x10000), (0x2fff, 0x7000)] {
        assert!(holds(address, len), "{len:#x} bytes at {address:#x}");
    }
    for (address, len) in [(0, 0x1000), (0x3000, 0x5000), (0x8000, 0x1000), (u64::MAX, 8)] {
        assert!(!holds(address, len), "{len:#x} bytes at {address:#x}");
    }
}

fn copied(
    to: &GuestMemory,
    list: &[(u64, usize)],
    from: &GuestMemory,
    source: &[(u64, usize)],
) -> MemoryResult {
    to.copy_from(&segments(list), from, &segments(source), &Begin::WAITS).done().unwrap()
}

#[test]
fn memory_of_another_guest_is_copied_whole_or_not_at_all() {
    let (ours, theirs) = (sealed(0x4000), sealed(0x4000));
    let (mut to, mut from) = (GuestMemory::new(), GuestMemory::new());
    map(&mut to, range(0, 0x2000, 0, 3), Some(&ours)).unwrap();
    map(&mut to, range(0x2000, 0x1000, 0x2000, 1), Some(&ours)).unwrap();
    map(&mut from, range(0x8000, 0x4000, 0, 1), Some(&theirs)).unwrap();
    theirs.write_all_at(&[7; 0x4000], 0).unwrap();
    let lender = Err(MemoryFault::Lender);
    assert_eq!(copied(&to, &[(0x10, 0x1000)], &from, &[(0xb001, 0x1000)]), lender, "the end is not there");
    assert_eq!(
        copied(&to, &[(0, 8), (0x1800, 0x1000)], &from, &[(0x8000, 0x1008)]),
        Err(MemoryFault::ReadOnly)
    );
    assert_eq!(copied(&to, &[(0, 8), (0x3000, 8)], &from, &[(0x8000, 16)]), Err(MemoryFault::Unmapped));
    assert_eq!(file_bytes(&ours, 0, 0x4000), [0; 0x4000]);
    assert_eq!(copied(&to, &[(0, 8), (0x20, 0x1100)], &from, &[(0x8000, 0x1108)]), Ok(Bytes::new()));
    assert_eq!(file_bytes(&ours, 0x20, 0x1100), [7; 0x1100]);
    // What is unmapped is not lent any more.
    unmap(&mut from, 0x8000, 0x4000, 0).unwrap();
    theirs.write_all_at(&[8; 0x4000], 0).unwrap();
    assert_eq!(copied(&to, &[(0, 8)], &from, &[(0x8000, 8)]), lender);
    assert_eq!(file_bytes(&ours, 0, 8), [7; 8]);
}

#[test]
fn what_two_guests_share_is_copied_as_if_it_were_read_before_it_is_written() {
    // One that can't be cut, and one that can.
    for seals in [libc::F_SEAL_SHRINK, 0] {
        let shared = memfd(0x10_000, seals);
        let data: Vec<u8> = (0..=250).cycle().take(0x10_000).collect();
        let (mut to, mut from) = (GuestMemory::new(), GuestMemory::new());
        map(&mut to, range(0x40_0000, 0x10_000, 0, 3), Some(&shared)).unwrap();
        map(&mut from, range(0, 0x10_000, 0, 3), Some(&shared)).unwrap();
        for (target, source) in [(100, 0), (0, 100), (0x1000, 0x1008), (0x8001, 0x8000)] {
            shared.write_all_at(&data, 0).unwrap();
            let (target_at, len) = (0x40_0000 + target, 0x6000);
            assert_eq!(copied(&to, &[(target_at, len)], &from, &[(source, len)]), Ok(Bytes::new()));
            let source = source as usize;
            let arrived = file_bytes(&shared, target, len) == data[source..source + len];
            assert!(arrived, "from {source} to {target}, seals {seals}");
        }
    }
}
