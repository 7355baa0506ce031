//! Transactions: what the target unit asks the mesh to have done at another node.

use bytes::Bytes;

use super::Instant;
use super::address::Place;
use super::memory::{AtomicAction, Lent, Source};
use super::status::{Code, Direction};

/// Names a transaction; rises with each that is started, and never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

/// A transaction on its way out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Its name.
    pub id: TransactionId,
    /// Where it goes.
    pub place: Place,
    /// What it does there.
    pub kind: RequestKind<Payload>,
    /// When the bus began it; its deadline counts from here.
    pub posted: Instant,
}

/// What a transaction that starts here carries to its destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// These bytes.
    Bytes(Bytes),
    /// Bytes of the guest's memory.
    Memory(Source),
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// What a transaction brings to its destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// These bytes.
    Bytes(Bytes),
    /// Bytes of the memory of another bus of the same process.
    Lent(Lent),
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// Something with a length in bytes.
pub trait Extent {
    /// The length.
    fn extent(&self) -> usize;
}

impl Extent for Bytes {
    fn extent(&self) -> usize {
        self.len()
    }
}

impl Extent for Content {
    fn extent(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.extent(),
            Self::Lent(lent) => lent.source.len,
        }
    }
}

impl Extent for Payload {
    fn extent(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.extent(),
            Self::Memory(source) => source.len,
        }
    }
}

/// What a transaction does; `P` is what it writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind<P = Content> {
    /// Writes these bytes.
    Write(P),
    /// Reads this many bytes.
    Read {
        /// How many.
        len: u32,
    },
    /// Changes a number of 8 bytes, and brings back what it was.
    Atomic(Atomic),
}

/// How a number at another node is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Atomic {
    /// By adding this, wrapping.
    Add(u64),
    /// To `swap`, if it is `compare`.
    CompareSwap {
        /// What has to be there.
        compare: u64,
        /// What is to be there then.
        swap: u64,
    },
}

impl Atomic {
    /// Bytes of the number.
    pub const SIZE: u32 = 8;

    /// The operands as they travel: one number to add, or two.
    pub fn operands(self) -> Bytes {
        match self {
            Self::Add(value) => Bytes::copy_from_slice(&value.to_le_bytes()),
            Self::CompareSwap { compare, swap } => {
                Bytes::copy_from_slice(&(u128::from(swap) << 64 | u128::from(compare)).to_le_bytes())
            }
        }
    }

    /// The inverse of [`Self::operands`]; `None` for any other bytes.
    pub fn from_operands(operands: &[u8]) -> Option<Self> {
        match operands.as_chunks() {
            ([value], []) => Some(Self::Add(u64::from_le_bytes(*value))),
            ([compare, swap], []) => {
                let (compare, swap) = (u64::from_le_bytes(*compare), u64::from_le_bytes(*swap));
                Some(Self::CompareSwap { compare, swap })
            }
            _ => None,
        }
    }

    /// What is done to memory.
    pub const fn action(self) -> AtomicAction {
        match self {
            Self::Add(value) => AtomicAction::Add(value),
            Self::CompareSwap { compare, swap } => AtomicAction::CompareSwap { compare, swap },
        }
    }
}

impl RequestKind {
    /// The same where it brings bytes itself; `None` where they are lent.
    pub fn carried(self) -> Option<RequestKind<Bytes>> {
        Some(match self {
            Self::Write(Content::Bytes(data)) => RequestKind::Write(data),
            Self::Write(Content::Lent(_)) => return None,
            Self::Read { len } => RequestKind::Read { len },
            Self::Atomic(atomic) => RequestKind::Atomic(atomic),
        })
    }
}

impl From<RequestKind<Bytes>> for RequestKind {
    fn from(kind: RequestKind<Bytes>) -> Self {
        match kind {
            RequestKind::Write(data) => Self::Write(data.into()),
            RequestKind::Read { len } => Self::Read { len },
            RequestKind::Atomic(atomic) => Self::Atomic(atomic),
        }
    }
}

impl<P: Extent> RequestKind<P> {
    /// Which way its data goes; that of an atomic operation counts as a write, because it changes what is there.
    pub fn direction(&self) -> Direction {
        match self {
            Self::Write(_) | Self::Atomic(_) => Direction::Write,
            Self::Read { .. } => Direction::Read,
        }
    }

    /// The bytes that it moves, either way.
    pub fn len(&self) -> usize {
        match self {
            Self::Write(data) => data.extent(),
            Self::Read { len } => usize::try_from(*len).unwrap_or(usize::MAX),
            Self::Atomic(_) => Atomic::SIZE as usize,
        }
    }

    /// Whether it moves nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finished {
    /// Its name.
    pub id: TransactionId,
    /// How it ended.
    pub code: Code,
    /// What a read, or an atomic operation, brought; empty otherwise.
    pub data: Bytes,
}
