//! The two channels between a pair of nodes: single accesses of the bus, and bulk traffic.
//!
//! Each has a flow of its own, with its own numbers, window, epoch and lease, so that neither waits for the other. Order is kept
//! within a channel only.

use super::address::NodeId;

/// A channel between two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Loads and stores of the bus.
    #[default]
    Small,
    /// Transfers that may take long.
    Bulk,
}

impl Channel {
    /// Both, the one that goes first before the other.
    pub const ALL: [Self; 2] = [Self::Small, Self::Bulk];

    /// Its number on the wire.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Small => 0,
            Self::Bulk => 1,
        }
    }

    /// The channel with this number; `None` where there is none.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Small),
            1 => Some(Self::Bulk),
            _ => None,
        }
    }
}

/// Where a request of another node comes from: its order is that of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The node whose bus started it.
    pub node: NodeId,
    /// How it came.
    pub channel: Channel,
}

/// One of something for each channel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PerChannel<T> {
    small: T,
    bulk: T,
}

impl<T> PerChannel<T> {
    /// Makes both.
    pub(crate) fn new(mut make: impl FnMut() -> T) -> Self {
        Self { small: make(), bulk: make() }
    }

    pub(crate) const fn get(&self, channel: Channel) -> &T {
        match channel {
            Channel::Small => &self.small,
            Channel::Bulk => &self.bulk,
        }
    }

    pub(crate) const fn get_mut(&mut self, channel: Channel) -> &mut T {
        match channel {
            Channel::Small => &mut self.small,
            Channel::Bulk => &mut self.bulk,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.small, &self.bulk].into_iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Channel, &mut T)> {
        [(Channel::Small, &mut self.small), (Channel::Bulk, &mut self.bulk)].into_iter()
    }
}
