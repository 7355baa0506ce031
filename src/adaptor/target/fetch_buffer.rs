//! The target fetch buffers (TFB): loads that wait for their data.
//!
//! Invariant: each buffer number is either free or held by exactly one load.

use std::collections::{BTreeMap, VecDeque};

use crate::adaptor::address::{NodeId, Place};
use crate::adaptor::bus::LoadTag;
use crate::adaptor::transaction::TransactionId;

/// A load under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fetch {
    number: u16,
    /// What the bus calls it.
    pub tag: LoadTag,
    /// Where the read begins.
    pub place: Place,
    /// Its length in bytes.
    pub len: usize,
}

/// The fetch buffers of a bus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FetchBuffers {
    free: VecDeque<u16>,
    held: BTreeMap<TransactionId, Fetch>,
    count: u16,
}

impl FetchBuffers {
    /// `count` buffers.
    pub fn new(count: u16) -> Self {
        Self { free: (0..count).collect(), held: BTreeMap::new(), count }
    }

    /// Takes a buffer for a load and returns its number; `None` where none is free.
    pub fn start(&mut self, id: TransactionId, tag: LoadTag, place: Place, len: usize) -> Option<u16> {
        let number = self.free.pop_front()?;
        self.held.insert(id, Fetch { number, tag, place, len });
        Some(number)
    }

    /// The length in bytes of the read `id`; `None` where no buffer holds it.
    pub fn len(&self, id: TransactionId) -> Option<usize> {
        self.held.get(&id).map(|fetch| fetch.len)
    }

    /// Whether a read from `node` is under way.
    pub fn any(&self, node: NodeId) -> bool {
        self.held.values().any(|fetch| fetch.place.node == node)
    }

    /// The read `id` ended: its buffer becomes free. `None` where no buffer holds it.
    pub fn finish(&mut self, id: TransactionId) -> Option<Fetch> {
        let fetch = self.held.remove(&id)?;
        self.free.push_back(fetch.number);
        Some(fetch)
    }

    /// Forgets everything and hands back the loads that waited, in the order of the bus.
    pub fn clear(&mut self) -> impl Iterator<Item = Fetch> + use<> {
        let held = core::mem::take(&mut self.held);
        *self = Self::new(self.count);
        held.into_values()
    }
}
