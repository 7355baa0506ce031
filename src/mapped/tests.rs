use super::huge_pages::{HUGE, Pool, huge_file};
use super::pager::{Group, Pager, Place, Served, Waiter};
use super::*;
use crate::adaptor::address::NodeId;
use crate::adaptor::memory::Segment;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_memory::FileOffset;

const LEN: usize = 0x4000;

fn file_of(len: u64) -> Arc<File> {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    Arc::new(file)
}

fn mapped(file: &Arc<File>) -> Mapping {
    Mapping::of_file(FileOffset::from_arc(Arc::clone(file), 0), LEN, true).unwrap()
}

#[test]
fn a_piece_lies_in_its_mapping_or_is_none() {
    let memory = Mapping::anonymous(LEN).unwrap();
    let len = LEN as u64;
    assert_eq!(memory.piece(0, len).unwrap().len(), LEN);
    for (start, count) in [(0, len + 1), (len, 1), (1, len), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(memory.piece(start, count).is_none(), "{count} from {start}");
    }
    let piece = memory.piece(0x1ffc, 8).unwrap();
    assert!(matches!(piece.presence(true, false), Ok(Presence::Here)));
    piece.store(b"assured!").unwrap();
    let mut data = [0; 4];
    memory.piece(0x2000, 4).unwrap().load(&mut data).unwrap();
    assert_eq!(&data, b"red!");
}

#[test]
fn a_file_that_is_cut_before_a_copy_is_found_and_works_again_when_it_is_mended() {
    let file = file_of(LEN as u64);
    let memory = mapped(&file);
    let piece = memory.piece(0x2ff8, 16).unwrap();
    file.set_len(0x3000).unwrap();
    for write in [true, false] {
        assert!(matches!(piece.presence(write, true), Err(MemoryFault::Unmapped)));
    }
    file.set_len(LEN as u64).unwrap();
    piece.presence(true, true).unwrap();
    piece.store(&[7; 16]).unwrap();
}

#[test]
fn a_file_that_is_cut_in_the_midst_of_a_copy_is_found_and_the_mapping_lost() {
    for write in [true, false] {
        let file = file_of(LEN as u64);
        let memory = mapped(&file);
        let piece = memory.piece(0x1800, 0x2000).unwrap();
        piece.presence(write, true).unwrap();
        file.set_len(0x2000).unwrap();
        let copied = if write { piece.store(&[7; 0x2000]) } else { piece.load(&mut [0; 0x2000]) };
        let fault = if write { MemoryFault::Partial } else { MemoryFault::Unmapped };
        assert_eq!(copied, Err(fault));
        // Pages that are not the file's lie in it now, and nobody may take them for it.
        file.set_len(LEN as u64).unwrap();
        assert!(matches!(piece.presence(write, true), Err(MemoryFault::Unmapped)));
        assert!(matches!(memory.piece(0, 8).unwrap().presence(write, true), Err(MemoryFault::Unmapped)));
        // Another mapping of it is not concerned, in the same thread or not.
        let other = mapped(&file);
        other.piece(0, 8).unwrap().store(&[1; 8]).unwrap();
    }
}

#[test]
fn huge_pages_that_go_in_the_midst_of_a_copy_are_found_and_the_mapping_lost() {
    let _pool = Pool::with(2);
    for write in [true, false] {
        let file = Arc::new(huge_file(c"cut-test", 2 * HUGE, libc::MFD_HUGE_2MB));
        let place = FileOffset::from_arc(Arc::clone(&file), 0);
        let memory = Mapping::of_file(place, 2 * HUGE as usize, true).unwrap();
        let piece = memory.piece(HUGE - 0x800, 0x3000).unwrap();
        piece.presence(write, true).unwrap();
        file.set_len(HUGE).unwrap();
        let copied = if write { piece.store(&[7; 0x3000]) } else { piece.load(&mut [0; 0x3000]) };
        assert_eq!(copied, Err(if write { MemoryFault::Partial } else { MemoryFault::Unmapped }));
        assert!(memory.is_lost());
        drop(memory);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("cut-test"), "{maps}");
    }
    let file = Arc::new(huge_file(c"part-test", HUGE, libc::MFD_HUGE_2MB));
    for (start, len) in [(0, 0x1000), (0x1000, HUGE as usize - 0x1000)] {
        let place = FileOffset::from_arc(Arc::clone(&file), start);
        assert!(Mapping::of_file(place, len, true).is_err(), "it could never be unmapped");
    }
}

/// The pieces of a mapping that these ranges are, from `start` on with a byte between each two.
fn pieces<'a>(memory: &'a Mapping, start: usize, lens: &[usize]) -> Vec<Piece<'a>> {
    let mut at = start;
    let pieces = lens.iter().map(|&len| {
        let piece = memory.piece(at as u64, len as u64).unwrap();
        at += len + 1;
        piece
    });
    pieces.collect()
}

fn sealed(len: usize) -> Arc<File> {
    let file = File::from(rustix::fs::memfd_create("direct", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap());
    file.set_len(len as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
    Arc::new(file)
}

#[test]
fn however_both_are_cut_the_bytes_arrive_in_their_order_and_beside_them_nothing() {
    let (from, to) = (mapped(&sealed(LEN)), mapped(&sealed(LEN)));
    let data: Vec<u8> = (0..=255).cycle().skip(1).take(LEN).collect();
    from.piece(0, LEN as u64).unwrap().store(&data).unwrap();
    for sources in [&[13_000][..], &[1, 12_999], &[12_995, 5], &[4096, 4096, 4808], &[6, 8000, 0, 4990, 4]] {
        for targets in [&[13_000][..], &[4097, 8903], &[8, 64, 12_928], &[4095, 1, 0, 4096, 4808]] {
            for (start, place) in [(0, 0), (1, 0), (0, 3), (5, 8)] {
                to.piece(0, LEN as u64).unwrap().store(&[0xa5; LEN]).unwrap();
                assert!(copy(&pieces(&to, place, targets), &pieces(&from, start, sources)));
                let mut found = Vec::new();
                for piece in pieces(&to, place, targets) {
                    let mut part = vec![0; piece.len()];
                    piece.load(&mut part).unwrap();
                    found.extend(part);
                }
                let mut wanted: Vec<u8> = Vec::new();
                let mut at = start;
                for len in sources {
                    wanted.extend_from_slice(&data[at..at + len]);
                    at += len + 1;
                }
                assert!(found == wanted, "{sources:?} from {start} to {targets:?} at {place}");
                let mut all = vec![0; LEN];
                to.piece(0, LEN as u64).unwrap().load(&mut all).unwrap();
                let mut at = place;
                for len in targets {
                    all[at..at + len].fill(0xa5);
                    at += len + 1;
                }
                assert!(all.iter().all(|&byte| byte == 0xa5), "{sources:?} to {targets:?} at {place}");
            }
        }
    }
}

#[test]
fn what_may_be_gone_or_the_same_bytes_is_not_copied_without_a_buffer() {
    let (file, other) = (sealed(LEN), sealed(LEN));
    let whole = |memory: &Mapping, to: &Mapping| {
        let (to, from) = (to.piece(0, 8192).unwrap(), memory.piece(0, 8192).unwrap());
        copy(&[to], &[from])
    };
    let (one, two, third) = (mapped(&file), mapped(&file), mapped(&other));
    assert!(whole(&one, &third) && whole(&third, &one));
    assert!(!whole(&one, &two), "two mappings of one file");
    let unsteady = mapped(&file_of(LEN as u64));
    assert!(!whole(&unsteady, &one) && !whole(&one, &unsteady));
}

#[test]
fn pages_of_a_file_are_brought_in_by_a_thread_and_those_that_can_not_be_slow_are_here() {
    let memory = mapped(&sealed(LEN));
    for write in [true, false] {
        assert!(matches!(memory.piece(0, LEN as u64).unwrap().presence(write, false), Ok(Presence::Here)));
    }
    // Where the temporary directory is memory, nothing is slow there.
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let file = Arc::new(tempfile::tempfile_in(directory).unwrap());
    file.set_len(LEN as u64).unwrap();
    let memory = mapped(&file);
    let piece = memory.piece(0x1ff8, 16).unwrap();
    let Ok(Presence::Absent(pages)) = piece.presence(true, false) else { panic!("it may have to be read") };
    let mut pager = Pager::new().unwrap();
    let waiting = |len| Waiter::Packet(0, NodeId(1), Place::of(&[&[Segment { address: 0x1ff8, len }]]));
    let (group, waiter) = (Group::Guest(0), waiting(16));
    assert!(!pager.has_served(waiter, group));
    pager.bring_in(group, waiter, vec![pages.clone()]).unwrap();
    // They stay mapped for the thread, whatever becomes of who asked.
    let other = mapped(&file);
    drop(memory);
    let begin = Instant::now();
    let served = loop {
        assert!(begin.elapsed() < Duration::from_secs(20), "they do not come");
        if let Some(served) = pager.poll() {
            break served;
        }
    };
    assert_eq!(served, Served { waiter, group, result: Ok(()) });
    assert!(pager.serves() && pager.has_served(waiter, group));
    assert!(!pager.has_served(waiter, Group::Guest(1)));
    assert!(!pager.has_served(waiting(8), group), "the next packet may be of other memory");
    pager.forget(waiter);
    assert!(!pager.has_served(waiter, group));
    // Now they are in memory, so that a read does not wait; a write may be begun where it was told that they are there.
    let piece = other.piece(0x1ff8, 16).unwrap();
    assert!(matches!(piece.presence(false, false), Ok(Presence::Now)));
    assert!(matches!(piece.presence(true, true), Ok(Presence::Now)));
    // What is cut meanwhile is found.
    file.set_len(0).unwrap();
    assert_eq!(pages.bring_in(), Err(MemoryFault::Unmapped));
    assert!(matches!(piece.presence(true, true), Err(MemoryFault::Unmapped)));
    assert!(matches!(piece.presence(false, false), Ok(Presence::Absent(_)) | Err(MemoryFault::Unmapped)));
}
