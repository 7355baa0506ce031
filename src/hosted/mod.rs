//! Devices that the adaptor's process hosts, for other nodes to reach in windows of this one.
//!
//! A new kind of device takes an implementation of [`HostedDevice`], a variant of [`Kind`], and its keys in
//! [`crate::config`]. It is handed only what the window's rights and the sender's lease allow, one operation at a time, and
//! outlives every guest.

mod memory;
mod scratchpad;

use std::fmt;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use thiserror::Error;

use crate::adaptor::address::Space;
use crate::adaptor::master::{GRAIN, HostedWindow};
use crate::adaptor::memory::{AtomicAction, DeviceId, MemoryFault, MemoryOperation, MemoryResult, Segment};
use crate::config::format_size;
use crate::mapped::{Attempt, Begin, Presence};
use memory::{MadeFile, Memory};
use scratchpad::{ALIASES, Scratchpad};

/// What is behind a window.
///
/// All methods are called in the event loop, so that everything waits for them: links, guests, and other devices. They do all of
/// what is asked for, or nothing; a fault is a *target fault* at the node that asked. It need not have asked lately: a read may
/// be of a node that has given up on it, so that reading has no effect.
pub trait HostedDevice {
    /// Whether these bytes can be read, or written, without waiting for anything outside. `served` says that what was missing has just been
    /// brought in. A device that never waits says nothing else than this.
    ///
    /// # Errors
    /// Where the device has no such bytes.
    fn presence(
        &self,
        _offset: u64,
        _len: usize,
        _write: bool,
        _served: bool,
    ) -> Result<Presence, MemoryFault> {
        Ok(Presence::Here)
    }

    /// Reads from the byte `offset` of the device on; in the I/O space this is one access, else any number of bytes that a
    /// transaction can have.
    ///
    /// # Errors
    /// Where the device has no such bytes, or not in this size.
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), MemoryFault>;

    /// Writes from the byte `offset` of the device on, as [`Self::read`].
    ///
    /// # Errors
    /// Where the device has no such bytes, or not in this size.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Changes the number of 8 bytes at the byte `offset` of the device, and returns what it was.
    ///
    /// # Errors
    /// Where the device has no numbers that can be changed so, which is what a device does that says nothing else.
    fn atomic(&mut self, _offset: u64, _action: AtomicAction) -> Result<u64, MemoryFault> {
        Err(MemoryFault::Refused)
    }
}

/// What kinds there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory.
    Memory {
        /// The file that its bytes are in; without one they end with the process.
        file: Option<PathBuf>,
    },
    /// Registers that hold what was written.
    Scratchpad,
}

impl Kind {
    /// Its name in the configuration.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Memory { .. } => "memory",
            Self::Scratchpad => "scratchpad",
        }
    }

    /// The space in which its windows are.
    pub const fn space(&self) -> Space {
        match self {
            Self::Memory { .. } => Space::Memory,
            Self::Scratchpad => Space::Io,
        }
    }

    /// The length in bytes of the window for a device of `size` bytes; `None` beyond all numbers.
    pub fn window_len(&self, size: u64) -> Option<u64> {
        let len = match self {
            Self::Memory { .. } => size,
            Self::Scratchpad => size.checked_mul(ALIASES)?,
        };
        len.checked_next_multiple_of(GRAIN)
    }

    /// The most bytes that a device can have in a window of `len` bytes.
    pub const fn room(&self, len: u64) -> u64 {
        match self {
            Self::Memory { .. } => len,
            Self::Scratchpad => len / ALIASES,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { file: Some(path) } => write!(f, "memory in {}", path.display()),
            Self::Memory { file: None } | Self::Scratchpad => f.write_str(self.name()),
        }
    }
}

/// A device that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// How it is called in the configuration, in errors and in the log.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes; a scratchpad's without its aliases.
    pub size: u64,
    /// Its window. The device's own name there is its place in the list of devices.
    pub window: HostedWindow,
}

/// Why a device was not made.
#[derive(Debug, Error)]
#[error("device '{device}': {problem}")]
pub struct OpenError {
    device: String,
    problem: Problem,
}

/// What is wrong, after the key of the configuration that it is about.
#[derive(Debug, Error)]
enum Problem {
    #[error("size: no room for {}: {error}", format_size(*size))]
    NoMemory { size: u64, error: io::Error },
    #[error("file: {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("file: {} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("file: {} does not exist, and a device that nobody may write would only have zeros; make it, or give rights=rw", path.display())]
    Nothing { path: PathBuf },
    #[error("file: {} has {} bytes and not {}; give that size, or another file", path.display(), format_size(*found), format_size(*wanted))]
    OtherSize { path: PathBuf, found: u64, wanted: u64 },
}

/// The devices of a process, by [`DeviceId`].
#[derive(Default)]
pub struct Devices {
    devices: Vec<Device>,
}

struct Device {
    name: String,
    inner: Box<dyn HostedDevice>,
    /// The operator knows of a fault.
    failed: bool,
}

impl Devices {
    /// Makes the devices. A name in a window's [`DeviceId`] is the place in this list.
    ///
    /// # Errors
    /// Where one can't be made. Files that were made for it or those before it are as they were then.
    pub fn open(descriptions: &[Description]) -> Result<Self, OpenError> {
        let mut made = Vec::new();
        let devices = descriptions.iter().map(|description| {
            let inner = make(description, &mut made);
            let inner = inner.map_err(|problem| OpenError { device: description.name.clone(), problem })?;
            Ok(Device { name: description.name.clone(), inner, failed: false })
        });
        let devices: Result<_, _> = devices.collect();
        if devices.is_err() {
            made.into_iter().for_each(MadeFile::undo);
        }
        Ok(Self { devices: devices? })
    }

    /// Executes an operation of a device, whole or not at all.
    pub fn execute(&mut self, device: DeviceId, operation: &MemoryOperation, begin: &Begin<'_>) -> Attempt {
        let Some(found) = self.devices.get_mut(usize::from(device.0)) else {
            return MemoryFault::Unmapped.into();
        };
        let attempt = found.execute(operation, begin);
        // Refusals are other nodes' doing.
        if matches!(attempt, Attempt::Done(Err(MemoryFault::Unmapped | MemoryFault::Partial))) {
            self.note_failure(device);
        }
        attempt
    }

    /// The pages of a device can't be had: the operator is told once.
    pub fn note_failure(&mut self, device: DeviceId) {
        if let Some(device) = self.devices.get_mut(usize::from(device.0))
            && !core::mem::replace(&mut device.failed, true)
        {
            log::error!(
                "device '{}': its file was cut, or there is no room for its bytes; other nodes get target faults",
                device.name
            );
        }
    }
}

impl Device {
    fn execute(&mut self, operation: &MemoryOperation, begin: &Begin<'_>) -> Attempt {
        // A device has one window of one run.
        let [segment] = operation.segments() else { return MemoryFault::Refused.into() };
        let write = !matches!(operation, MemoryOperation::Read { .. });
        match self.inner.presence(segment.address, segment.len, write, begin.served) {
            Ok(Presence::Here) => {}
            Ok(Presence::Now) if (begin.allowed)() => {}
            Ok(Presence::Now) => return Attempt::Late,
            Ok(Presence::Absent(pages)) => return Attempt::Absent(vec![pages]),
            Err(fault) => return fault.into(),
        }
        Attempt::Done(self.perform(operation, segment))
    }

    fn perform(&mut self, operation: &MemoryOperation, segment: &Segment) -> MemoryResult {
        match operation {
            MemoryOperation::Read { .. } => {
                let mut data = vec![0; segment.len];
                self.inner.read(segment.address, &mut data)?;
                Ok(data.into())
            }
            MemoryOperation::Write { data, .. } => {
                self.inner.write(segment.address, data)?;
                Ok(Bytes::new())
            }
            MemoryOperation::Descriptor { .. }
            | MemoryOperation::Touch { .. }
            | MemoryOperation::Transfer { .. } => Err(MemoryFault::Refused),
            MemoryOperation::Atomic { action, .. } => {
                let former = self.inner.atomic(segment.address, *action)?;
                Ok(Bytes::copy_from_slice(&former.to_le_bytes()))
            }
        }
    }
}

fn make(description: &Description, made: &mut Vec<MadeFile>) -> Result<Box<dyn HostedDevice>, Problem> {
    let Description { kind, size, window, .. } = description;
    Ok(match kind {
        Kind::Memory { file: None } => Box::new(Memory::anonymous(*size)?),
        Kind::Memory { file: Some(path) } => {
            Box::new(Memory::of_file(path, *size, window.rights.write, made)?)
        }
        Kind::Scratchpad => Box::new(Scratchpad::new(*size)),
    })
}

#[cfg(test)]
mod tests;
