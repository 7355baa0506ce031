//! Transactions: what the target unit asks the mesh to have done at another node.

use bytes::Bytes;

use super::Instant;
use super::address::Place;
use super::channel::Channel;
use super::memory::Source;
use super::status::{Code, Direction};

/// The longest load or store of a bus in bytes.
pub const LONGEST_ACCESS: u32 = 8;

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

impl Extent for Payload {
    fn extent(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(source) => source.len,
        }
    }
}

/// What a transaction does; `P` is what it writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind<P = Bytes> {
    /// Writes these bytes.
    Write(P),
    /// Reads this many bytes.
    Read {
        /// How many.
        len: u32,
    },
}

impl<P: Extent> RequestKind<P> {
    /// Which way its data goes.
    pub fn direction(&self) -> Direction {
        match self {
            Self::Write(_) => Direction::Write,
            Self::Read { .. } => Direction::Read,
        }
    }

    /// Whether it reads ahead: in the channel of the bus's accesses, what reads more than an access can. Nobody has to be told
    /// how it ends.
    pub const fn is_read_ahead(&self, channel: Channel) -> bool {
        matches!((self, channel), (Self::Read { len }, Channel::Small) if *len > LONGEST_ACCESS)
    }

    /// The bytes that it moves, either way.
    pub fn len(&self) -> usize {
        match self {
            Self::Write(data) => data.extent(),
            Self::Read { len } => usize::try_from(*len).unwrap_or(usize::MAX),
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
    /// What a read brought; empty otherwise.
    pub data: Bytes,
}
