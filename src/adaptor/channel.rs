//! The two channels between a pair of nodes: single accesses of the bus, and bulk traffic.
//!
//! Each has a flow of its own, with its own numbers, window, epoch and lease, so that neither waits for the other. Order is kept
//! within a channel only.

use super::address::NodeId;
use super::mesh::limits::SMALL_RUN;

/// A channel between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Channel {
    /// Loads and stores of the bus.
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
    pub(crate) fn new(mut make: impl FnMut(Channel) -> T) -> Self {
        Self { small: make(Channel::Small), bulk: make(Channel::Bulk) }
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

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        [&self.small, &self.bulk].into_iter()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        [&mut self.small, &mut self.bulk].into_iter()
    }
}

/// Whose turn it is where both channels share a link: accesses go first, but bulk traffic that waits is passed over
/// [`SMALL_RUN`] times at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Turns {
    passed_over: u32,
}

impl Turns {
    /// The channels, the one whose turn it is before the other.
    pub(crate) const fn order(&self) -> [Channel; 2] {
        if self.passed_over < SMALL_RUN { Channel::ALL } else { [Channel::Bulk, Channel::Small] }
    }

    /// A packet of `channel` went, and `bulk_waits` says whether one of the bulk channel still waits.
    pub(crate) const fn note(&mut self, channel: Channel, bulk_waits: bool) {
        self.passed_over = match channel {
            Channel::Small if bulk_waits => self.passed_over.saturating_add(1),
            Channel::Small | Channel::Bulk => 0,
        };
    }
}
