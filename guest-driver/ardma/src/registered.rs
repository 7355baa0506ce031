//! Memory that the DMA engine reaches, and parts of it.
//!
//! The invariant: memory stays mapped until the module has said that the engine is done with it. Whoever
//! may still need it (an operation under way, a queue, a window) holds a clone of the handle.

use crate::abi::{self, engine};
use crate::device::Device;
use crate::error::{CallKind, Error};
use crate::export::{ExportOptions, Exported};
use crate::mapping::{Memory, PAGE};
use crate::place::{Place, Space};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the engine of this node may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRights {
    /// It may read it: the memory can be sent.
    pub read: bool,
    /// It may write it: what is fetched can land there, and other nodes can be let write it.
    pub write: bool,
}

impl LocalRights {
    /// Both.
    pub const ALL: Self = Self { read: true, write: true };
    /// Memory that is only sent.
    pub const READ: Self = Self { read: true, write: false };

    fn bits(self) -> u32 {
        let right = |granted, bit| if granted { bit } else { 0 };
        right(self.read, engine::LOCAL_READ) | right(self.write, engine::LOCAL_WRITE)
    }
}

/// What a key stands for. Taken back when the last handle goes.
#[derive(Debug)]
struct Registration {
    file: Arc<Device>,
    node: u32,
    key: u32,
    /// Of the first byte behind the key.
    skew: u64,
    length: u64,
    active: AtomicBool,
    /// The memory, unless it is the caller's own. Last, so that it goes last.
    memory: Option<Memory>,
}

impl Registration {
    fn end(&self) -> Result<(), Error> {
        if !self.active.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let mut argument = engine::Deregister { key: self.key, reserved: 0 };
        // SAFETY: DEREGISTER touches no memory of this process.
        unsafe { self.file.call(&mut argument) }.map_err(|source| {
            // While something uses it, it can be tried again.
            self.active.store(source.raw_os_error() == Some(libc::EBUSY), Ordering::Release);
            Error::call(CallKind::Deregister, format!("end of key {:#x}", self.key), source)
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A failure leaves nothing to do: the module keeps the pages for as long as the adaptor may reach them.
        drop(self.end());
    }
}

/// Registered memory: the engine can send from it and fetch into it. Clones are handles of the same memory, which is
/// given back when the last one goes; operations under way hold one each.
#[derive(Clone, Debug)]
pub struct Registered(Arc<Registration>);

impl Registered {
    pub(crate) fn new(
        file: Arc<Device>,
        node: u32,
        memory: Memory,
        rights: LocalRights,
    ) -> Result<Self, Error> {
        let (address, length) = (memory.address(), memory.length());
        // SAFETY: the memory is reached by volatile accesses only, and stays mapped until the key is gone, or
        // its pages are kept by the module.
        unsafe { Self::raw(file, node, address, length, rights, Some(memory)) }
    }

    /// # Safety
    /// Until the key is gone no Rust reference reaches what is behind the address, and it stays mapped.
    pub(crate) unsafe fn raw(
        file: Arc<Device>,
        node: u32,
        address: u64,
        length: u64,
        rights: LocalRights,
        memory: Option<Memory>,
    ) -> Result<Self, Error> {
        let mut argument =
            engine::Register { address, length, rights: rights.bits(), ..engine::Register::default() };
        // SAFETY: the caller's contract.
        unsafe { file.call(&mut argument) }.map_err(|source| {
            Error::call(CallKind::Register, format!("registering {length} bytes"), source)
        })?;
        let (key, skew) = (argument.key, argument.offset);
        let active = AtomicBool::new(true);
        Ok(Self(Arc::new(Registration { file, node, key, skew, length, active, memory })))
    }

    /// Memory that nobody else knows of, under this key.
    #[cfg(test)]
    pub(crate) fn pretend(key: u32, memory: Memory) -> Self {
        let file = Arc::new(Device::new(std::fs::File::open("/dev/null").unwrap()).unwrap());
        let (length, active) = (memory.length(), AtomicBool::new(false));
        Self(Arc::new(Registration { file, node: 1, key, skew: 0, length, active, memory: Some(memory) }))
    }

    /// Tells whether there is a handle left.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.0)
    }

    /// The key, as the adaptor knows it; of use in raw entries only.
    pub fn key(&self) -> u32 {
        self.0.key
    }

    /// Bytes that are registered.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// The memory, which the engine and other nodes may change at any time. `None` where it is the caller's own.
    pub fn memory(&self) -> Option<&Memory> {
        self.0.memory.as_ref()
    }

    /// Copies bytes out, as they are now.
    ///
    /// # Errors
    /// [`Error::Outside`] where not all are inside, or the memory is the caller's own.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.own(offset, to.len())?.read(offset, to)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As [`Registered::read`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.own(offset, from.len())?.write(offset, from)
    }

    fn own(&self, offset: u64, length: usize) -> Result<&Memory, Error> {
        self.memory().ok_or(Error::Outside { offset, length: length as u64, available: 0 })
    }

    /// A part of it, for an operation.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn part(&self, offset: u64, length: u64) -> Result<Part, Error> {
        if offset.checked_add(length).is_none_or(|end| end > self.0.length) {
            return Err(Error::Outside { offset, length, available: self.0.length });
        }
        Ok(Part { registered: self.clone(), offset, length })
    }

    /// All of it, for an operation.
    pub fn all(&self) -> Part {
        Part { registered: self.clone(), offset: 0, length: self.0.length }
    }

    /// Exports whole pages of it to other nodes until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::Call`], which says what was wrong.
    pub fn export(&self, offset: u64, length: u64, options: &ExportOptions) -> Result<KeyExport, Error> {
        let mut argument = engine::ExportKey {
            key: self.0.key,
            rights: options.rights(),
            start: self.0.skew.saturating_add(offset),
            length: length.checked_next_multiple_of(PAGE).unwrap_or(length),
            offset: options.offset.unwrap_or(abi::OFFSET_ANY),
            nodes: options.nodes.words(),
            name: options.name.bytes(),
            ..engine::ExportKey::default()
        };
        // SAFETY: the memory is registered, so it is already of the kind that others may write.
        unsafe { self.0.file.call(&mut argument) }.map_err(|source| {
            Error::call(CallKind::ExportKey, format!("export of {length} bytes"), source)
        })?;
        let file = Arc::clone(&self.0.file);
        let window = Exported::new(file, self.0.node, Space::Memory, argument.offset, CallKind::Unexport);
        Ok(KeyExport { window, registered: self.clone() })
    }

    /// Takes the memory back now, whoever still has a handle: when this returns nothing of it is read or written any
    /// more, and operations that name it end with `BadKey`. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Call`] where a queue has its rings there or it is exported, a reset had already ended it, or the
    /// adaptor is gone.
    pub fn end(&self) -> Result<(), Error> {
        self.0.end()
    }
}

/// A part of registered memory: where an operation's data comes from, or goes to.
#[derive(Clone, Debug)]
pub struct Part {
    registered: Registered,
    offset: u64,
    length: u64,
}

impl Part {
    /// The memory that it is a part of.
    pub const fn registered(&self) -> &Registered {
        &self.registered
    }

    /// Bytes in it.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Where it begins in that memory.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Where it begins behind the key.
    pub(crate) fn key_offset(&self) -> u64 {
        self.registered.0.skew.saturating_add(self.offset)
    }
}

/// Exported registered memory. Dropping it ends the export; the memory stays registered.
#[derive(Debug)]
pub struct KeyExport {
    /// Before the memory, which goes after it.
    window: Exported,
    registered: Registered,
}

impl KeyExport {
    /// Where other nodes find it.
    pub const fn place(&self) -> Place {
        self.window.place()
    }

    /// The memory.
    pub const fn registered(&self) -> &Registered {
        &self.registered
    }

    /// Ends the export now; when this returns nothing lands there any more from other nodes. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Call`], where a reset had already ended it or the adaptor is gone.
    pub fn end(&mut self) -> Result<(), Error> {
        self.window.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_inside_the_memory() {
        let registered = Registered::pretend(7, Memory::new(PAGE).unwrap());
        let part = registered.part(16, 8).unwrap();
        assert_eq!((part.offset(), part.length(), part.key_offset()), (16, 8, 16));
        assert_eq!(registered.all().length(), PAGE);
        for (offset, length) in [(0, PAGE + 1), (PAGE, 1), (u64::MAX, 2)] {
            assert!(matches!(registered.part(offset, length), Err(Error::Outside { .. })));
        }
        registered.write(0, b"abc").unwrap();
        let mut back = [0; 3];
        registered.read(0, &mut back).unwrap();
        assert_eq!(&back, b"abc");
    }
}
