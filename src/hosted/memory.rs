//! Memory: of this process, or a file that is mapped shared, a *data vault*.
//!
//! What was written is in the page cache: everybody who reads or maps the file sees it, and it outlives this process however that
//! ends. The system writes it to the disk by itself, some time later. Nothing here waits for that, not even a process that is told to
//! stop.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vm_memory::FileOffset;

use super::{HostedDevice, Problem};
use crate::adaptor::memory::{AtomicAction, MemoryFault};
use crate::mapped::{Mapping, Piece, Presence};

/// See the module.
pub(super) struct Memory {
    mapping: Mapping,
}

/// A file that this process made, or filled, for a device.
pub(super) enum MadeFile {
    /// There was none at this path.
    New(PathBuf),
    /// It was empty.
    Empty(Arc<File>),
}

impl MadeFile {
    /// Makes it as it was. Nothing can be done where that fails.
    pub(super) fn undo(self) {
        let _ = match self {
            Self::New(path) => std::fs::remove_file(path),
            Self::Empty(file) => file.set_len(0),
        };
    }
}

impl Memory {
    /// `size` bytes, all 0, that end with this process.
    pub(super) fn anonymous(size: u64) -> Result<Self, Problem> {
        let no_memory = |error| Problem::NoMemory { size, error };
        let len = usize::try_from(size).map_err(|_| no_memory(ErrorKind::OutOfMemory.into()))?;
        Ok(Self { mapping: Mapping::anonymous(len).map_err(no_memory)? })
    }

    /// The `size` bytes of the file at `path`. If it may be written, one that is not there, or is empty, is made, of zeros
    /// that take no room yet, and goes to `made`.
    pub(super) fn of_file(
        path: &Path,
        size: u64,
        writable: bool,
        made: &mut Vec<MadeFile>,
    ) -> Result<Self, Problem> {
        let failed = |error| Problem::File { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        // Else it would wait here for ever for who writes into a named pipe.
        options.read(true).write(writable).custom_flags(libc::O_NONBLOCK);
        let file = match options.open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && !writable => {
                return Err(Problem::Nothing { path: path.to_owned() });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let file = options.create_new(true).mode(0o600).open(path).map_err(failed)?;
                made.push(MadeFile::New(path.to_owned()));
                file
            }
            other => other.map_err(failed)?,
        };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(Problem::NotAFile { path: path.to_owned() });
        }
        let file = Arc::new(file);
        match metadata.len() {
            found if found == size => {}
            0 if writable => {
                made.push(MadeFile::Empty(Arc::clone(&file)));
                file.set_len(size).map_err(failed)?;
            }
            found => return Err(Problem::OtherSize { path: path.to_owned(), found, wanted: size }),
        }
        let len = usize::try_from(size).map_err(|_| failed(ErrorKind::FileTooLarge.into()))?;
        let mapping = Mapping::of_file(FileOffset::from_arc(file, 0), len, writable).map_err(failed)?;
        Ok(Self { mapping })
    }

    fn piece(&self, offset: u64, len: usize) -> Result<Piece<'_>, MemoryFault> {
        self.mapping.piece(offset, len as u64).ok_or(MemoryFault::Refused)
    }
}

impl HostedDevice for Memory {
    fn presence(&self, offset: u64, len: usize, write: bool, served: bool) -> Result<Presence, MemoryFault> {
        self.piece(offset, len)?.presence(write, served)
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), MemoryFault> {
        self.piece(offset, data.len())?.load(data)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.piece(offset, data.len())?.store(data)
    }

    fn atomic(&mut self, offset: u64, action: AtomicAction) -> Result<u64, MemoryFault> {
        self.piece(offset, size_of::<u64>())?.atomic(action)
    }
}
