//! Memory that other nodes reach, for as long as a guard lives.

use crate::abi;
use crate::error::{CallKind, Error};
use crate::mapping::Memory;
use crate::place::{Nodes, Place, Space};
use std::fs::File;
use std::os::fd::AsFd;
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
    /// Which nodes may.
    pub nodes: Nodes,
}

impl Default for ExportOptions {
    /// All nodes may read and write; it is in the memory space, and the adaptor chooses the offset.
    fn default() -> Self {
        Self { space: Space::Memory, offset: None, read: true, write: true, nodes: Nodes::ALL }
    }
}

/// Exported memory. Dropping it ends the export, after which nothing lands there any more.
#[derive(Debug)]
pub struct Export {
    file: Arc<File>,
    place: Place,
    memory: Memory,
    active: bool,
}

impl Export {
    pub(crate) fn new(
        file: Arc<File>,
        node: u32,
        memory: Memory,
        options: &ExportOptions,
    ) -> Result<Self, Error> {
        let right = |granted, bit| if granted { bit } else { 0 };
        let mut argument = abi::Export {
            address: memory.address(),
            length: memory.length(),
            offset: options.offset.unwrap_or(abi::OFFSET_ANY),
            rights: right(options.read, abi::RIGHT_READ) | right(options.write, abi::RIGHT_WRITE),
            space: options.space.number(),
            nodes: options.nodes.words(),
        };
        // SAFETY: the memory is reached by volatile accesses only, and stays mapped at least as long as
        // the window: `drop` ends the window first. (Where that fails the module keeps the pages pinned.)
        unsafe { abi::call(file.as_fd(), &mut argument) }.map_err(|source| {
            Error::call(
                CallKind::Export(options.space),
                format!("export of {} bytes", memory.length()),
                source,
            )
        })?;
        let node = u8::try_from(node).unwrap_or(u8::MAX);
        let place = Place { node, space: options.space, offset: argument.offset };
        Ok(Self { file, place, memory, active: true })
    }

    /// Where other nodes find it.
    pub const fn place(&self) -> Place {
        self.place
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
        if !std::mem::take(&mut self.active) {
            return Ok(());
        }
        let Place { space, offset, .. } = self.place;
        let mut argument = abi::Unexport { offset, space: space.number(), reserved: 0 };
        // SAFETY: UNEXPORT touches no memory of this process.
        unsafe { abi::call(self.file.as_fd(), &mut argument) }.map_err(|source| {
            Error::call(CallKind::Unexport, format!("end of the export at {}", self.place), source)
        })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A failure leaves nothing to do: the adaptor is gone, or a reset has ended the export.
        drop(self.end());
    }
}
