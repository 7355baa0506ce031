//! Memory devices and their files; scratchpads are tested where they are.

use super::*;
use crate::adaptor::address::NodeSet;
use crate::adaptor::inventory::Name;
use crate::adaptor::master::Rights;
use crate::adaptor::memory::{Home, OperationId, Segment};
use std::fs;
use std::path::Path;

const SIZE: u64 = 0x4000;

fn description(name: &str, file: Option<&Path>, size: u64, write: bool) -> Description {
    let rights = Rights { read: true, write, atomic: false };
    let window = HostedWindow {
        device: DeviceId(0),
        space: Space::Memory,
        offset: Some(0),
        len: size,
        rights,
        nodes: NodeSet::ALL,
        name: Name::default(),
    };
    let kind = Kind::Memory { file: file.map(Path::to_owned) };
    Description { name: name.to_owned(), kind, size, window }
}

fn vault(file: &Path) -> Description {
    description("vault", Some(file), SIZE, true)
}

fn refusal(descriptions: &[Description]) -> String {
    Devices::open(descriptions).err().unwrap().to_string()
}

fn write(devices: &mut Devices, device: u16, address: u64, data: &'static [u8]) -> MemoryResult {
    let home = Home::Hosted(DeviceId(device));
    let segments = vec![Segment { address, len: data.len() }];
    let data = Bytes::from_static(data);
    let operation = MemoryOperation::Write { id: OperationId(0), home, segments, data };
    devices.execute(DeviceId(device), &operation, &Begin::WAITS).done().unwrap()
}

fn read(devices: &mut Devices, device: u16, address: u64, len: usize) -> MemoryResult {
    let home = Home::Hosted(DeviceId(device));
    let segments = vec![Segment { address, len }];
    let operation = MemoryOperation::Read { id: OperationId(0), home, segments };
    devices.execute(DeviceId(device), &operation, &Begin::WAITS).done().unwrap()
}

#[test]
fn a_vault_is_made_and_holds_what_was_written_for_the_next_life() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vault");
    let mut devices = Devices::open(&[vault(&path)]).unwrap();
    assert_eq!(read(&mut devices, 0, SIZE - 4, 4), Ok(Bytes::from_static(&[0; 4])));
    write(&mut devices, 0, 0xffe, b"assured").unwrap();
    let mut expected = vec![0; SIZE as usize];
    expected[0xffe..0xffe + 7].copy_from_slice(b"assured");
    assert_eq!(fs::read(&path).unwrap(), expected, "whoever reads the file sees it at once");
    drop(devices);
    let mut devices = Devices::open(&[vault(&path)]).unwrap();
    assert_eq!(read(&mut devices, 0, 0xffe, 7), Ok(Bytes::from_static(b"assured")));
    for (address, data) in [(SIZE - 3, b"four"), (SIZE, b"four"), (u64::MAX, b"four")] {
        assert_eq!(write(&mut devices, 0, address, data), Err(MemoryFault::Refused));
        assert_eq!(read(&mut devices, 0, address, 4), Err(MemoryFault::Refused));
    }
}

#[test]
fn memory_without_a_file_begins_with_zeros_each_time() {
    for _ in 0..2 {
        let mut devices = Devices::open(&[description("scratch", None, SIZE, true)]).unwrap();
        assert_eq!(read(&mut devices, 0, 8, 4), Ok(Bytes::from_static(&[0; 4])));
        write(&mut devices, 0, 8, b"abcd").unwrap();
        assert_eq!(read(&mut devices, 0, 6, 8), Ok(Bytes::from_static(b"\0\0abcd\0\0")));
    }
    assert_eq!(read(&mut Devices::default(), 0, 0, 4), Err(MemoryFault::Unmapped), "no such device");
}

#[test]
fn a_file_of_another_size_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vault");
    for len in [1, 0x3000, 0x5000] {
        fs::write(&path, vec![7; len]).unwrap();
        let line = refusal(&[vault(&path)]);
        let found = format_size(len as u64);
        assert_eq!(
            line,
            format!(
                "device 'vault': file: {} has {found} bytes and not 16K; give that size, or another file",
                path.display()
            )
        );
        assert_eq!(fs::read(&path).unwrap(), vec![7; len]);
    }
    // One that was just made, and not yet filled when a process ended.
    fs::write(&path, b"").unwrap();
    assert!(Devices::open(&[vault(&path)]).is_ok());
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
}

#[test]
fn what_is_no_file_is_refused_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let in_no_folder = folder.join("none/vault");
    for (path, problem) in
        [(folder, "Is a directory (os error 21)"), (&in_no_folder, "No such file or directory (os error 2)")]
    {
        let line = refusal(&[vault(path)]);
        assert_eq!(line, format!("device 'vault': file: {}: {problem}", path.display()));
    }
    let line = refusal(&[vault(Path::new("/dev/null"))]);
    assert_eq!(line, "device 'vault': file: /dev/null is not a regular file");
}

#[test]
fn a_named_pipe_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the string lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for writable in [true, false] {
        let line = refusal(&[description("pipe", Some(&path), SIZE, writable)]);
        assert_eq!(line, format!("device 'pipe': file: {} is not a regular file", path.display()));
    }
}

#[test]
fn a_file_that_nobody_may_write_is_opened_for_reading_only_and_never_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let image = || description("image", Some(&path), SIZE, false);
    let line = refusal(&[image()]);
    assert!(line.starts_with(&format!("device 'image': file: {} does not exist", path.display())), "{line}");
    assert!(!path.exists());
    fs::write(&path, vec![7; SIZE as usize]).unwrap();
    let mut devices = Devices::open(&[image()]).unwrap();
    assert_eq!(read(&mut devices, 0, 0x2000, 3), Ok(Bytes::from_static(&[7; 3])));
    fs::write(&path, b"").unwrap();
    assert!(refusal(&[image()]).contains("has 0 bytes"));
}

#[test]
fn when_one_device_fails_files_are_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let (new, empty) = (directory.path().join("new"), directory.path().join("empty"));
    fs::write(&empty, b"").unwrap();
    let bad = description("bad", Some(Path::new("/dev/null")), SIZE, true);
    refusal(&[vault(&new), vault(&empty), bad]);
    assert!(!new.exists());
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);
    // No file system has files so large; the file itself is made before that shows.
    let huge = description("huge", Some(&new), 1 << 62, true);
    assert!(refusal(&[huge]).starts_with(&format!("device 'huge': file: {}: ", new.display())));
    assert!(!new.exists());
    let line = refusal(&[description("huge", None, 1 << 46, true)]);
    assert_eq!(line, "device 'huge': size: no room for 64T: Cannot allocate memory (os error 12)");
}

#[test]
fn a_vault_that_somebody_cuts_is_a_fault_until_it_is_mended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vault");
    let mut devices = Devices::open(&[vault(&path)]).unwrap();
    write(&mut devices, 0, 0, b"kept").unwrap();
    write(&mut devices, 0, 0x3000, b"lost").unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0x2000).unwrap();
    assert_eq!(write(&mut devices, 0, 0x1ffc, b"over the end"), Err(MemoryFault::Unmapped));
    assert_eq!(read(&mut devices, 0, 0x3000, 4), Err(MemoryFault::Unmapped));
    assert_eq!(read(&mut devices, 0, 0x1ffc, 4), Ok(Bytes::from_static(&[0; 4])), "nothing of it was done");
    file.set_len(SIZE).unwrap();
    assert_eq!(read(&mut devices, 0, 0x3000, 4), Ok(Bytes::from_static(&[0; 4])));
    assert_eq!(read(&mut devices, 0, 0, 4), Ok(Bytes::from_static(b"kept")));
}

#[test]
fn each_operation_goes_to_its_device() {
    let list = [description("a", None, SIZE, true), description("b", None, SIZE, true)];
    let mut devices = Devices::open(&list).unwrap();
    write(&mut devices, 1, 0, b"b").unwrap();
    assert_eq!(read(&mut devices, 0, 0, 1), Ok(Bytes::from_static(b"\0")));
    assert_eq!(read(&mut devices, 1, 0, 1), Ok(Bytes::from_static(b"b")));
    assert_eq!(read(&mut devices, 2, 0, 1), Err(MemoryFault::Unmapped));
}
