//! Memory that other nodes reach, for as long as a guard lives.

use crate::abi;
use crate::device::Device;
use crate::error::{CallKind, Error};
use crate::inventory::Name;
use crate::mapping::Memory;
use crate::place::{Nodes, Place, Space};
use std::sync::Arc;

/// Who may do what with exported memory, and where it appears.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// In which of this node's spaces it appears. Of its I/O space the first 4096 bytes are the adaptor's own.
    pub space: Space,
    /// Offset in this node's window, a multiple of 4096; the adaptor chooses where there is none.
    pub offset: Option<u64>,
    /// Whether other nodes may read it.
    pub read: bool,
    /// Whether other nodes may write it.
    pub write: bool,
    /// Whether other nodes may do atomics on it; not in the I/O space.
    pub atomic: bool,
    /// Whether it may lie beyond the window size, where only DMA engines reach it.
    pub beyond: bool,
    /// Which nodes may.
    pub nodes: Nodes,
    /// By which these find it in their lists.
    pub name: Name,
}

impl Default for ExportOptions {
    /// All nodes may read and write, but do no atomics; it is in the memory space, has no name, and the adaptor chooses the offset.
    fn default() -> Self {
        Self {
            space: Space::Memory,
            offset: None,
            read: true,
            write: true,
            atomic: false,
            beyond: false,
            nodes: Nodes::ALL,
            name: Name::NONE,
        }
    }
}

impl ExportOptions {
    /// What is granted, as the module takes it.
    pub(crate) fn rights(&self) -> u32 {
        let right = |granted, bit| if granted { bit } else { 0 };
        right(self.read, abi::RIGHT_READ)
            | right(self.write, abi::RIGHT_WRITE)
            | right(self.atomic, abi::RIGHT_ATOMIC)
            | right(self.beyond, abi::RIGHT_BEYOND)
    }
}

/// A window of this file.
#[derive(Debug)]
pub(crate) struct Exported {
    file: Arc<Device>,
    place: Place,
    /// What its end is.
    kind: CallKind,
    active: bool,
}

impl Exported {
    /// The window that the module has just made in `node` at `offset` of the space. `kind` is what its end is.
    pub(crate) fn new(file: Arc<Device>, node: u32, space: Space, offset: u64, kind: CallKind) -> Self {
        let node = u8::try_from(node).unwrap_or(u8::MAX);
        Self { file, place: Place { node, space, offset }, kind, active: true }
    }

    pub(crate) const fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn end(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.active) {
            return Ok(());
        }
        let Place { space, offset, .. } = self.place;
        let mut argument = abi::Unexport { offset, space: space.number(), reserved: 0 };
        // SAFETY: UNEXPORT touches no memory of this process.
        unsafe { self.file.call(&mut argument) }
            .map_err(|source| Error::call(self.kind, format!("end of the export at {}", self.place), source))
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        // A failure leaves nothing to do: the adaptor is gone, or a reset has ended the export.
        drop(self.end());
    }
}

/// Exported memory. Dropping it ends the export, after which nothing lands there any more.
#[derive(Debug)]
pub struct Export {
    /// Before the memory, which goes after it.
    window: Exported,
    memory: Memory,
}

impl Export {
    pub(crate) fn new(
        file: Arc<Device>,
        node: u32,
        memory: Memory,
        options: &ExportOptions,
    ) -> Result<Self, Error> {
        let mut argument = abi::Export {
            address: memory.address(),
            length: memory.length(),
            offset: options.offset.unwrap_or(abi::OFFSET_ANY),
            rights: options.rights(),
            space: options.space.number(),
            nodes: options.nodes.words(),
            name: options.name.bytes(),
        };
        // SAFETY: the memory is reached by volatile accesses only, and stays mapped at least as long as
        // the window, which is dropped before it. (Where that fails the module keeps the pages pinned.)
        unsafe { file.call(&mut argument) }.map_err(|source| {
            Error::call(
                CallKind::Export(options.space),
                format!("export of {} bytes", memory.length()),
                source,
            )
        })?;
        let window = Exported::new(file, node, options.space, argument.offset, CallKind::Unexport);
        Ok(Self { window, memory })
    }

    /// Where other nodes find it.
    pub const fn place(&self) -> Place {
        self.window.place()
    }

    /// The memory, which other nodes may change at any time.
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Ends the export now; when this returns nothing lands there any more, and the memory keeps what it
    /// has. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::Call`], where a reset had already ended it or the adaptor is gone.
    pub fn end(&mut self) -> Result<(), Error> {
        self.window.end()
    }
}
