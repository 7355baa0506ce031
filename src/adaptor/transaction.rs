//! Transactions: what the target unit asks the mesh to have done at another node.

use bytes::Bytes;

use super::Instant;
use super::address::Place;
use super::channel::Channel;
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
    pub kind: RequestKind,
    /// When the bus began it; its deadline counts from here.
    pub posted: Instant,
}

/// What a transaction does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Writes these bytes.
    Write(Bytes),
    /// Reads this many bytes.
    Read {
        /// How many.
        len: u32,
    },
}

impl RequestKind {
    /// Which way its data goes.
    pub const fn direction(&self) -> Direction {
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
            Self::Write(data) => data.len(),
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
