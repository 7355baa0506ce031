//! Accesses, checks and transfers on a file in memory that has the spaces where the device file has them. A status
//! word is what the test puts there; a check does not clear it.

#![allow(clippy::arithmetic_side_effects)]

use crate::abi::{ADDRESS_ASSURANCE, ADDRESS_IO, ADDRESS_NODE_SHIFT, ADDRESS_PEEK};
use crate::{Adaptor, Code, Direction, Error, Info, Place, Retries, Status, Transfer};
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const NODE: u8 = 2;

fn address(offset: u64) -> u64 {
    u64::from(NODE) << ADDRESS_NODE_SHIFT | offset
}

/// A file in memory.
pub fn file(length: u64) -> File {
    // SAFETY: the name is a C string; the result is checked, and is this test's own.
    let file = unsafe {
        let fd = libc::memfd_create(c"ardma".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(length).unwrap();
    file
}

/// An adaptor of 16 windows of 1 MiB, and the file behind it.
pub fn fake() -> (Adaptor, File) {
    let file = file(1 << 59);
    let info = Info {
        node: 1,
        node_count: 16,
        window_bits: 20,
        window_size: 1 << 20,
        io_window_size: 1 << 16,
        block_bits: 12,
        ..Info::default()
    };
    (Adaptor::on_file(file.try_clone().unwrap(), info), file)
}

fn bytes_at<const N: usize>(file: &File, offset: u64) -> [u8; N] {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, address(offset)).unwrap();
    bytes
}

fn set_status(file: &File, offset: u64, bits: u32) {
    file.write_all_at(&bits.to_ne_bytes(), address(offset) | ADDRESS_ASSURANCE).unwrap();
}

#[test]
fn accesses_go_to_node_and_offset_at_any_alignment() {
    let (adaptor, file) = fake();
    // The window begins inside a page and a block.
    let window = adaptor.map(Place::memory(NODE, 0x1ff3), 0x100).unwrap();
    window.store(0, 0x1122_3344_5566_7788_u64).unwrap();
    assert_eq!(bytes_at(&file, 0x1ff3), 0x1122_3344_5566_7788_u64.to_ne_bytes());
    window.write_bytes(0x0d, b"across a page").unwrap();
    assert_eq!(&bytes_at::<13>(&file, 0x2000), b"across a page");
    assert_eq!(window.load::<u16>(0x0d).unwrap(), u16::from_ne_bytes(*b"ac"));
    let mut back = [0; 13];
    window.read_bytes(0x0d, &mut back).unwrap();
    assert_eq!(&back, b"across a page");
}

#[test]
fn what_is_outside_the_mapped_part_is_refused_and_not_touched() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::memory(NODE, 0x10), 0x10).unwrap();
    assert!(matches!(window.store(0x09, u64::MAX), Err(Error::Outside { .. })));
    assert!(matches!(window.store(u64::MAX, 1_u8), Err(Error::Outside { .. })));
    assert!(matches!(window.write_bytes(0, &[1; 17]), Err(Error::Outside { .. })));
    assert!(matches!(window.check(0x10), Err(Error::Outside { .. })));
    assert_eq!(bytes_at(&file, 0), [0_u8; 64]);
    for (offset, length) in [(0, 0), (0, (1 << 20) + 1), (1 << 20, 1), (u64::MAX, 2)] {
        let result = adaptor.map(Place::memory(NODE, offset), length);
        assert!(matches!(result, Err(Error::Outside { .. })), "{offset:#x} {length:#x}");
    }
    adaptor.map(Place::memory(NODE, (1 << 20) - 1), 1).unwrap();
}

#[test]
fn a_check_loads_the_aligned_word_around_the_same_offset() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::memory(NODE, 0x3001), 0x1000).unwrap();
    set_status(&file, 0x3008, 0x82);
    assert_eq!(window.check(0).unwrap(), Status::OK);
    for offset in 7..15 {
        assert_eq!(window.check(offset).unwrap().write(), Code::NoWindow);
    }
    set_status(&file, 0x4000, 0x8100);
    assert_eq!(window.check(0xfff).unwrap().read(), Code::NoRoute);
}

#[test]
fn what_another_than_this_adaptor_answers_is_no_status() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::memory(NODE, 0), 0x1000).unwrap();
    // As if the adaptor had another session than the one that answers.
    file.write_all_at(&1_u32.to_ne_bytes(), address(4) | ADDRESS_ASSURANCE).unwrap();
    for status in [0, 0x82] {
        set_status(&file, 0, status);
        assert_eq!(window.check(0).unwrap(), Status::from_bits(u32::MAX));
    }
}

#[test]
fn the_io_space_and_the_peek_aliases_are_mapped_where_they_are() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::io(NODE, 0xe010), 0x1ff0).unwrap();
    window.store(0x1fec, 0x1122_3344_u32).unwrap();
    assert_eq!(bytes_at(&file, ADDRESS_IO | 0xfffc), 0x1122_3344_u32.to_ne_bytes());
    set_status(&file, ADDRESS_IO | 0xe010, 0x82);
    set_status(&file, ADDRESS_IO | ADDRESS_PEEK | 0xe010, 0x83);
    assert_eq!(window.check(4).unwrap().write(), Code::NoWindow);
    assert_eq!(window.peek(4).unwrap().write(), Code::AccessDenied);
    let memory = adaptor.map(Place::memory(NODE, 0xe010), 8).unwrap();
    assert_eq!(memory.check(4).unwrap(), Status::OK);
    set_status(&file, ADDRESS_PEEK | 0xe010, 0x81);
    assert_eq!(memory.peek(4).unwrap().write(), Code::NoRoute);
    for (offset, length) in [(0xfffc, 8), (0x10000, 1), (0, 0x10001)] {
        let result = adaptor.map(Place::io(NODE, offset), length);
        assert!(matches!(result, Err(Error::Outside { .. })), "{offset:#x} {length:#x}");
    }
}

#[test]
fn a_transfer_checks_every_block_once() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::memory(NODE, 0x800), 0x3000).unwrap();
    let bytes: Vec<u8> = (0..0x3000_u32).map(|at| (at % 251) as u8).collect();
    let mut transfer = Transfer::new(&adaptor, &window, Retries::default());
    transfer.write(0, &bytes).unwrap();
    assert_eq!(bytes_at::<0x3000>(&file, 0x800).as_slice(), bytes);
    let mut back = vec![0; bytes.len()];
    transfer.read(0, &mut back).unwrap();
    assert_eq!(back, bytes);
    let counts = transfer.counts();
    assert_eq!((counts.bytes, counts.checks, counts.failed, counts.other), (0x6000, 8, 0, None));
}

#[test]
fn a_transfer_stops_at_the_block_that_fails_for_good() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::memory(NODE, 0), 0x4000).unwrap();
    let mut transfer = Transfer::new(&adaptor, &window, Retries::default());
    set_status(&file, 0x2000, 0x82);
    let error = transfer.write(0, &[7; 0x4000]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "write of 4096 bytes at 2:0x2000 failed after 1 attempt(s): not executed, permanent: no such window (0x82)"
    );
    assert_eq!(bytes_at(&file, 0x3000), [0_u8; 8]);
    // The other direction's error is no reason to stop, but is told.
    let mut back = vec![0; 0x4000];
    transfer.read(0, &mut back).unwrap();
    let counts = transfer.counts();
    assert_eq!((counts.checks, counts.failed), (7, 1));
    assert_eq!(counts.other, Some((Place::memory(NODE, 0x2000), Status::from_bits(0x82))));
}

#[test]
fn only_what_makes_sense_is_tried_again_and_not_for_ever() {
    let (adaptor, file) = fake();
    let window = adaptor.map(Place::memory(NODE, 0), 0x1000).unwrap();
    let attempts = |bits, count| {
        set_status(&file, 0, bits);
        let retries = Retries { count, pause: Duration::ZERO };
        match Transfer::new(&adaptor, &window, retries).write(0, &[1; 8]) {
            Err(Error::Access { attempts, direction: Direction::Write, .. }) => attempts,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(attempts(0x41, 0), 1);
    assert_eq!(attempts(0x41, 3), 4);
    assert_eq!(attempts(0x83, 3), 1);
    assert_eq!(attempts(0xc1, 3), 1);
    assert_eq!(attempts(u32::MAX, 3), 1);
}
