//! Finds out whether a file that QEMU hands over really is the guest's memory.
//!
//! With `share=off` QEMU maps the memory's file privately: its descriptor still comes, but what is written through it
//! never reaches the guest. `/proc/PID/maps` of the client tells which it is.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;

/// Which file a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    major: u32,
    minor: u32,
    inode: u64,
    /// Opened for writing too: a descriptor that is not must not be taken for one that is.
    writable: bool,
}

impl FileId {
    /// The id of an open file.
    ///
    /// # Errors
    /// Where the descriptor's flags can't be read.
    pub fn of(file: &File, metadata: &Metadata) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: F_GETFL takes no argument and touches no memory of ours.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            major: libc::major(metadata.dev()),
            minor: libc::minor(metadata.dev()),
            inode: metadata.ino(),
            writable: flags & libc::O_ACCMODE == libc::O_RDWR,
        })
    }

    /// Whether it was opened for writing too.
    pub const fn is_writable(&self) -> bool {
        self.writable
    }
}

/// Whether the bytes of a file are those that the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They are.
    Shared,
    /// They are not: the client has a private copy.
    Private,
    /// The client's process, or the file in it, was not found.
    Unknown,
}

/// How the process `pid` has mapped the file. One that it has mapped both ways is taken for private: which bytes the guest
/// sees at which address can't be told then.
pub fn sharing_in(pid: Option<libc::pid_t>, file: &FileId) -> Sharing {
    let Some(pid) = pid else { return Sharing::Unknown };
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else { return Sharing::Unknown };
    let mut found = Sharing::Unknown;
    for line in BufReader::new(maps).split(b'\n') {
        let Ok(line) = line else { break };
        match core::str::from_utf8(&line).ok().and_then(|line| mapping_of(line, file)) {
            Some(true) => found = Sharing::Shared,
            Some(false) => return Sharing::Private,
            None => {}
        }
    }
    found
}

/// Whether a line of `maps` is a shared mapping of the file; `None` where it is of another.
fn mapping_of(line: &str, file: &FileId) -> Option<bool> {
    // 7f0000000000-7f0010000000 rw-s 00000000 00:01 1031     /memfd:m (deleted)
    let mut fields = line.split_ascii_whitespace();
    let permissions = fields.nth(1)?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let inode = fields.next()?.parse::<u64>().ok()?;
    let same = u32::from_str_radix(major, 16).ok()? == file.major
        && u32::from_str_radix(minor, 16).ok()? == file.minor
        && inode == file.inode;
    same.then(|| permissions.as_bytes().get(3) == Some(&b's'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use vm_memory::{FileOffset, MmapRegion};

    fn memfd(len: u64) -> File {
        // SAFETY: the name is a valid C string.
        let fd = unsafe { libc::memfd_create(c"sharing-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just opened and is owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len).unwrap();
        file
    }

    fn map(file: &File, flags: i32) -> MmapRegion {
        let place = FileOffset::new(file.try_clone().unwrap(), 0);
        MmapRegion::build(Some(place), 4096, libc::PROT_READ | libc::PROT_WRITE, flags).unwrap()
    }

    fn own_pid() -> Option<libc::pid_t> {
        libc::pid_t::try_from(std::process::id()).ok()
    }

    #[test]
    fn mappings_of_this_process_are_told_apart() {
        let file = memfd(8192);
        let id = FileId::of(&file, &file.metadata().unwrap()).unwrap();
        assert_eq!(sharing_in(own_pid(), &id), Sharing::Unknown);
        let private = map(&file, libc::MAP_PRIVATE);
        assert_eq!(sharing_in(own_pid(), &id), Sharing::Private);
        let shared = map(&file, libc::MAP_SHARED);
        assert_eq!(sharing_in(own_pid(), &id), Sharing::Private, "both ways");
        drop(private);
        assert_eq!(sharing_in(own_pid(), &id), Sharing::Shared);
        drop(shared);
        assert_eq!(sharing_in(own_pid(), &id), Sharing::Unknown);
    }

    #[test]
    fn a_process_that_is_not_there_is_unknown() {
        let file = memfd(4096);
        let id = FileId::of(&file, &file.metadata().unwrap()).unwrap();
        assert_eq!(sharing_in(None, &id), Sharing::Unknown);
        assert_eq!(sharing_in(Some(libc::pid_t::MAX), &id), Sharing::Unknown);
    }

    #[test]
    fn lines_that_are_not_mappings_are_skipped() {
        let id = FileId { major: 0, minor: 1, inode: 1031, writable: true };
        let line = |text| mapping_of(text, &id);
        assert_eq!(line("7f00-7f10 rw-s 00000000 00:01 1031 /memfd:m (deleted)"), Some(true));
        assert_eq!(line("7f00-7f10 rw-p 00000000 00:01 1031 /memfd:m (deleted)"), Some(false));
        assert_eq!(line("7f00-7f10 rw-p 00000000 00:01 1032"), None);
        assert_eq!(line("7f00-7f10 rw-p 00000000 fe:01 1031"), None);
        assert_eq!(line(""), None);
        assert_eq!(line("7f00-7f10 rw-p 0 0001 x"), None);
    }
}
