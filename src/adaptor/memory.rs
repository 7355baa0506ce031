//! Requests of the adaptor to the memory of its bus.

use bytes::Bytes;

/// Names one memory operation until it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

/// A run of bytes in the bus's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Where it begins (a guest-physical address where there is no IOMMU).
    pub address: u64,
    /// Its length in bytes.
    pub len: usize,
}

/// What is to be done to guest memory. An operation is executed whole or not at all: every
/// segment is checked before the first byte is copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemoryOperation {
    /// Copy the segments, one after the other, out of memory.
    Read {
        /// Its name.
        id: OperationId,
        /// From where.
        segments: Vec<Segment>,
    },
    /// Copy `data` into the segments, one after the other; their lengths add up to its length.
    Write {
        /// Its name.
        id: OperationId,
        /// To where.
        segments: Vec<Segment>,
        /// The bytes.
        data: Bytes,
    },
}

impl MemoryOperation {
    /// Its name.
    pub const fn id(&self) -> OperationId {
        match self {
            Self::Read { id, .. } | Self::Write { id, .. } => *id,
        }
    }
}

/// Why a memory operation was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryFault {
    /// No memory that the adaptor can reach is mapped there.
    Unmapped,
    /// The memory there may not be written.
    ReadOnly,
    /// The memory there is not the guest's: QEMU runs without shared memory.
    NotShared,
}

/// How a memory operation ended: the bytes read (empty for a write), or why it was not executed.
pub type MemoryResult = Result<Bytes, MemoryFault>;
