use super::*;
use std::sync::Arc;
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
    piece.prepare(true).unwrap();
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
        assert_eq!(piece.prepare(write), Err(MemoryFault::Unmapped));
    }
    file.set_len(LEN as u64).unwrap();
    piece.prepare(true).unwrap();
    piece.store(&[7; 16]).unwrap();
}

#[test]
fn a_file_that_is_cut_in_the_midst_of_a_copy_is_found_and_the_mapping_lost() {
    for write in [true, false] {
        let file = file_of(LEN as u64);
        let memory = mapped(&file);
        let piece = memory.piece(0x1800, 0x2000).unwrap();
        piece.prepare(write).unwrap();
        file.set_len(0x2000).unwrap();
        let copied = if write { piece.store(&[7; 0x2000]) } else { piece.load(&mut [0; 0x2000]) };
        assert_eq!(copied, Err(MemoryFault::Unmapped));
        // Pages that are not the file's lie in it now, and nobody may take them for it.
        file.set_len(LEN as u64).unwrap();
        assert_eq!(piece.prepare(write), Err(MemoryFault::Unmapped));
        assert_eq!(memory.piece(0, 8).unwrap().prepare(write), Err(MemoryFault::Unmapped));
        // Another mapping of it is not concerned, in the same thread or not.
        let other = mapped(&file);
        other.piece(0, 8).unwrap().store(&[1; 8]).unwrap();
    }
}
