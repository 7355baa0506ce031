//! The target write buffers (TWB): posted stores on their way out, neighbours joined.
//!
//! PCI allows a bridge to combine posted stores into one longer transaction as long as their order is
//! kept, but not to collapse them: two stores to the same byte have to arrive as two. So a store joins a
//! buffer only where it begins exactly at the buffer's end.
//!
//! Invariant: each buffer number is either free, or open, or closed, and a node has at most one that is
//! open.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::adaptor::Instant;
use crate::adaptor::address::{BLOCK_SIZE, Location, NodeId, Place, Space};
use crate::adaptor::transaction::{Request, RequestKind, TransactionId};

/// A buffer to which stores may still be added.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Open {
    number: u16,
    id: TransactionId,
    place: Place,
    data: Vec<u8>,
    opened: Instant,
}

impl Open {
    /// Bytes that can still be added: up to the end of the block. None where it reached into the next.
    fn room(&self) -> usize {
        let to_end = BLOCK_SIZE.saturating_sub(self.place.at.offset % BLOCK_SIZE);
        usize::try_from(to_end).unwrap_or(usize::MAX).saturating_sub(self.data.len())
    }

    fn end(&self) -> u64 {
        self.place.at.offset.saturating_add(u64::try_from(self.data.len()).unwrap_or(u64::MAX))
    }
}

/// A buffer whose transaction is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Closed {
    number: u16,
    /// Where the write begins.
    pub place: Place,
    /// Its length in bytes.
    pub len: usize,
}

/// The write buffers of a bus.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WriteBuffers {
    /// Numbers not in use.
    free: VecDeque<u16>,
    limit_per_node: usize,
    held: BTreeMap<NodeId, usize>,
    open: BTreeMap<NodeId, Open>,
    closed: BTreeMap<TransactionId, Closed>,
    count: u16,
}

impl WriteBuffers {
    /// `count` buffers, of which one node can have at most `limit_per_node`.
    pub fn new(count: u16, limit_per_node: usize) -> Self {
        Self {
            free: (0..count).collect(),
            limit_per_node,
            held: BTreeMap::new(),
            open: BTreeMap::new(),
            closed: BTreeMap::new(),
            count,
        }
    }

    /// Adds a store to the node's open buffer; false where it does not begin at that buffer's end or
    /// does not fit in its block. A store to the I/O space is never added.
    pub fn join(&mut self, place: Place, data: &[u8]) -> bool {
        let Location { space, offset } = place.at;
        match self.open.get_mut(&place.node) {
            Some(open)
                if (space, open.place.at.space) == (Space::Memory, Space::Memory)
                    && open.end() == offset
                    && data.len() <= open.room() =>
            {
                open.data.extend_from_slice(data);
                true
            }
            _ => false,
        }
    }

    /// Whether [`WriteBuffers::open`] would find a buffer for `node`.
    pub fn is_free(&self, node: NodeId) -> bool {
        !self.free.is_empty() && self.held(node) < self.limit_per_node
    }

    /// Opens a buffer with its first store and returns the buffer's number; `None` where none is free. The
    /// node's last buffer has to be closed already.
    pub fn open(&mut self, now: Instant, id: TransactionId, place: Place, data: &[u8]) -> Option<u16> {
        if !self.is_free(place.node) {
            return None;
        }
        let number = self.free.pop_front()?;
        let held = self.held.entry(place.node).or_default();
        *held = held.saturating_add(1);
        self.open.insert(place.node, Open { number, id, place, data: data.to_vec(), opened: now });
        Some(number)
    }

    /// Closes the node's open buffer, if there is one: nothing is added to it any more.
    pub fn close(&mut self, node: NodeId) -> Option<Request> {
        let Open { number, id, place, data, opened } = self.open.remove(&node)?;
        self.closed.insert(id, Closed { number, place, len: data.len() });
        Some(Request { id, place, kind: RequestKind::Write(Bytes::from(data).into()), posted: opened })
    }

    /// Closes the node's open buffer if nothing can join it: it reaches to the end of its block, or is for the I/O space.
    pub fn close_full(&mut self, node: NodeId) -> Option<Request> {
        self.open.get(&node).filter(|open| open.room() == 0 || open.place.at.space == Space::Io)?;
        self.close(node)
    }

    /// The nodes with an open buffer and when it was opened, in the order of the openings.
    pub fn open_nodes(&self) -> Vec<(NodeId, Instant)> {
        let mut open: Vec<_> = self.open.values().collect();
        open.sort_unstable_by_key(|open| open.id);
        open.into_iter().map(|open| (open.place.node, open.opened)).collect()
    }

    /// When the oldest of the open buffers was opened.
    pub fn oldest_open(&self) -> Option<Instant> {
        self.open.values().map(|open| open.opened).min()
    }

    /// Whether a write to `node` is under way.
    pub fn any_closed(&self, node: NodeId) -> bool {
        self.held(node) > usize::from(self.open.contains_key(&node))
    }

    fn held(&self, node: NodeId) -> usize {
        self.held.get(&node).copied().unwrap_or(0)
    }

    /// The write `id` ended: its buffer becomes free. `None` where no closed buffer holds it.
    pub fn finish(&mut self, id: TransactionId) -> Option<Closed> {
        let closed = self.closed.remove(&id)?;
        let node = closed.place.node;
        self.free.push_back(closed.number);
        match self.held(node).saturating_sub(1) {
            0 => self.held.remove(&node),
            held => self.held.insert(node, held),
        };
        Some(closed)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new(self.count, self.limit_per_node);
    }
}
