//! Requests of the adaptor to what stands behind its windows: memory of its bus, other devices there, and devices that the
//! adaptor's process hosts itself.

use bytes::Bytes;

use super::address::NodeId;
use super::mesh::packet::Incarnation;

/// Names one memory operation until it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

/// Names a device that the adaptor's process hosts. Names are the shell's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// Where the addresses of an operation mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// The guest's memory, which is shared with the adaptor.
    Guest,
    /// The guest's bus, where any device may answer, or none. An operation has one segment, and ends when there is an answer.
    Bus,
    /// A device that is hosted here; addresses are bytes from its beginning.
    Hosted(DeviceId),
}

/// A run of bytes in the address space of a [`Home`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Where it begins (in the guest's memory a guest-physical address, where there is no IOMMU).
    pub address: u64,
    /// Its length in bytes.
    pub len: usize,
}

/// Bytes of this node's memory that a transaction carries to another node. They are looked up when the transaction is sent, or, on another bus
/// of this process, executed, as they are then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Whose addresses the segments are.
    pub home: Home,
    /// From where, one after the other.
    pub segments: Vec<Segment>,
    /// The sum of their lengths in bytes.
    pub len: usize,
}

/// Gives the bytes of a [`Source`], or says why there are none: the shell's way into its guest's memory. After
/// [`MemoryFault::Absent`] nothing is sent that has to come later, until [`super::Adaptor::handle_source_pages`].
pub type Load<'a> = dyn FnMut(&Source) -> MemoryResult + 'a;

/// Memory of another bus of this process that a transaction brings bytes from. It is read when the transaction is executed, if
/// the bus still [lends](super::Adaptor::lends) it then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lent {
    /// Whose it is.
    pub lender: NodeId,
    /// The life in which it was lent.
    pub life: Incarnation,
    /// Where the bytes are on the lender's bus.
    pub source: Source,
}

/// What is to be done. In memory an operation is executed whole or not at all: every
/// segment is checked before the first byte is copied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MemoryOperation {
    /// Copy the segments, one after the other, out of memory.
    Read {
        /// Its name.
        id: OperationId,
        /// Whose addresses the segments are.
        home: Home,
        /// From where.
        segments: Vec<Segment>,
    },
    /// Copy a command's descriptor out of the guest's memory. The guest has just stored `proof` at its beginning: where it is found there, that memory
    /// is the one that the guest sees.
    Descriptor {
        /// Its name.
        id: OperationId,
        /// From where.
        segment: Segment,
        /// Its first 8 bytes, a little-endian number.
        proof: u64,
    },
    /// Find out whether the segments can be read, or with `write` written. Nothing is copied or changed.
    Touch {
        /// Its name.
        id: OperationId,
        /// Whose addresses the segments are.
        home: Home,
        /// What is looked at.
        segments: Vec<Segment>,
        /// Whether they are to be written later.
        write: bool,
    },
    /// Copy `data` into the segments, one after the other; their lengths add up to its length.
    Write {
        /// Its name.
        id: OperationId,
        /// Whose addresses the segments are.
        home: Home,
        /// To where.
        segments: Vec<Segment>,
        /// The bytes.
        data: Bytes,
    },
    /// Copy another bus's memory into the segments, one after the other; their lengths add up to its length. What is lent and can't
    /// be read is a [`MemoryFault::Lender`].
    Transfer {
        /// Its name.
        id: OperationId,
        /// Whose addresses the segments are.
        home: Home,
        /// To where.
        segments: Vec<Segment>,
        /// From where.
        from: Lent,
    },
    /// Change a number of 8 bytes, little-endian, at once: nobody sees it, or changes it, in between. Its former value is the
    /// result. What is done before and after is so for everybody who looks at the number, too.
    Atomic {
        /// Its name.
        id: OperationId,
        /// Whose address it is.
        home: Home,
        /// Where, aligned to its 8 bytes.
        segment: Segment,
        /// How.
        action: AtomicAction,
    },
}

/// How a number is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicAction {
    /// By adding this, wrapping.
    Add(u64),
    /// To `swap`, if it is `compare`.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is to be there then.
        swap: u64,
    },
    /// To this.
    Swap(u64),
}

impl AtomicAction {
    /// What is to be where `former` was.
    pub const fn apply(self, former: u64) -> u64 {
        match self {
            Self::Add(value) => former.wrapping_add(value),
            Self::CompareSwap { compare, swap } if compare == former => swap,
            Self::CompareSwap { .. } => former,
            Self::Swap(value) => value,
        }
    }
}

impl MemoryOperation {
    /// Its name.
    pub const fn id(&self) -> OperationId {
        match self {
            Self::Read { id, .. }
            | Self::Descriptor { id, .. }
            | Self::Touch { id, .. }
            | Self::Write { id, .. }
            | Self::Transfer { id, .. }
            | Self::Atomic { id, .. } => *id,
        }
    }

    /// Where it goes, in order.
    pub fn segments(&self) -> &[Segment] {
        match self {
            Self::Read { segments, .. }
            | Self::Touch { segments, .. }
            | Self::Write { segments, .. }
            | Self::Transfer { segments, .. } => segments,
            Self::Descriptor { segment, .. } | Self::Atomic { segment, .. } => core::slice::from_ref(segment),
        }
    }

    /// Whose addresses its segments are.
    pub const fn home(&self) -> Home {
        match self {
            Self::Descriptor { .. } => Home::Guest,
            Self::Read { home, .. }
            | Self::Touch { home, .. }
            | Self::Write { home, .. }
            | Self::Transfer { home, .. }
            | Self::Atomic { home, .. } => *home,
        }
    }
}

/// Why a memory operation was not executed, or, where it says so, not known to be executed whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryFault {
    /// No memory that the adaptor can reach is mapped there.
    Unmapped,
    /// More ranges were to be mapped than the adaptor holds, and what is there was left out.
    TooManyRanges,
    /// The memory there may not be written.
    ReadOnly,
    /// The memory there is not the guest's, or not known to be: QEMU does not share it.
    NotShared,
    /// What answers there refused it.
    Refused,
    /// The bus that lent memory for it has that no more.
    Lender,
    /// Too many page faults wait to be served already.
    Busy,
    /// Its pages are being brought in. Only a [`Load`] says so.
    Absent,
    /// It failed in the midst: a part of it was done, or may have been.
    Partial,
}

/// How a memory operation ended: the bytes read (empty for a write; of an atomic operation the former value), or why it was not executed.
pub type MemoryResult = Result<Bytes, MemoryFault>;
