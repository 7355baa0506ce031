//! Pieces under way, found by the names of their transactions.
//!
//! Invariant: a name is given once; that of a piece which has ended finds nothing.

use super::keys::Key;
use super::queue::Number;
use crate::adaptor::Instant;
use crate::adaptor::address::Place;
use crate::adaptor::memory::Segment;
use crate::adaptor::transaction::TransactionId;

/// The bit that tells the engine's transactions from others of the bulk channel.
const OWN: u64 = 1 << 63;

/// What a piece is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Data, or a message, that goes there.
    Write,
    /// Data that comes from there, and where in local memory it is to be put.
    Read(Vec<Segment>),
    /// An atomic operation.
    Atomic,
}

/// The keys whose memory a piece uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Held {
    /// None.
    #[default]
    Nothing,
    /// One.
    One(Key),
    /// Those of a scatter list.
    Many(Vec<Key>),
}

impl Held {
    pub(super) fn add(&mut self, key: Key) {
        *self = match core::mem::take(self) {
            Self::Nothing => Self::One(key),
            Self::One(first) => Self::Many(vec![first, key]),
            Self::Many(mut keys) => {
                keys.push(key);
                Self::Many(keys)
            }
        };
    }

    pub(super) fn keys(&self) -> &[Key] {
        match self {
            Self::Nothing => &[],
            Self::One(key) => core::slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }
}

/// A piece under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Transfer {
    pub(super) queue: Number,
    /// The index of its operation in the queue.
    pub(super) operation: u32,
    /// From which byte of the operation on.
    pub(super) at: u64,
    pub(super) place: Place,
    /// Bytes that it moves.
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    pub(super) held: Held,
    /// When it was given to the mesh.
    pub(super) sent: Option<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    generation: u32,
    transfer: Option<Transfer>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Transfers {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Transfers {
    /// Whether a transaction of the bulk channel is the engine's.
    pub(super) const fn is_own(id: TransactionId) -> bool {
        id.0 & OWN != 0
    }

    pub(super) fn insert(&mut self, transfer: Transfer) -> TransactionId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len().saturating_sub(1)).unwrap_or(u32::MAX)
        });
        let Some(slot) = self.slots.get_mut(position(index)) else { return TransactionId(OWN) };
        slot.generation = slot.generation.wrapping_add(1) & (u32::MAX >> 1);
        slot.transfer = Some(transfer);
        TransactionId(OWN | u64::from(slot.generation) << 32 | u64::from(index))
    }

    pub(super) fn get_mut(&mut self, id: TransactionId) -> Option<&mut Transfer> {
        let (index, generation) = split(id)?;
        let slot = self.slots.get_mut(position(index)).filter(|slot| slot.generation == generation)?;
        slot.transfer.as_mut()
    }

    /// Whether a piece uses memory of the key.
    pub(super) fn holds(&self, id: TransactionId, key: Key) -> bool {
        let transfer = split(id).and_then(|(index, generation)| {
            let slot = self.slots.get(position(index)).filter(|slot| slot.generation == generation)?;
            slot.transfer.as_ref()
        });
        transfer.is_some_and(|transfer| transfer.held.keys().contains(&key))
    }

    pub(super) fn remove(&mut self, id: TransactionId) -> Option<Transfer> {
        let (index, generation) = split(id)?;
        let slot = self.slots.get_mut(position(index)).filter(|slot| slot.generation == generation)?;
        let transfer = slot.transfer.take()?;
        self.free.push(index);
        Some(transfer)
    }

    /// Forgets all of them. Their names find nothing afterwards.
    pub(super) fn clear(&mut self) {
        for (slot, index) in self.slots.iter_mut().zip(0u32..) {
            if slot.transfer.take().is_some() {
                self.free.push(index);
            }
        }
    }
}

fn position(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

fn split(id: TransactionId) -> Option<(u32, u32)> {
    let generation = u32::try_from((id.0 & !OWN) >> 32).ok()?;
    Some((u32::try_from(id.0 & u64::from(u32::MAX)).ok()?, generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor::address::{Location, NodeId};

    fn transfer(operation: u32) -> Transfer {
        let place = Place { node: NodeId(1), at: Location::memory(0) };
        let held = Held::Nothing;
        Transfer { queue: 0, operation, at: 0, place, bytes: 0, kind: Kind::Write, held, sent: None }
    }

    #[test]
    fn names_are_given_once() {
        let mut transfers = Transfers::default();
        let first = transfers.insert(transfer(1));
        assert!(Transfers::is_own(first) && !Transfers::is_own(TransactionId(1)));
        assert_eq!(transfers.remove(first), Some(transfer(1)));
        let second = transfers.insert(transfer(2));
        assert_ne!(first, second);
        assert_eq!((transfers.remove(first), transfers.get_mut(first)), (None, None));
        transfers.clear();
        assert_eq!(transfers.remove(second), None);
        let third = transfers.insert(transfer(3));
        assert!(third != first && third != second);
        assert_eq!(transfers.slots.len(), 1);
    }

    #[test]
    fn keys_are_held_as_often_as_they_are_named() {
        let mut held = Held::default();
        assert_eq!(held.keys(), []);
        [1, 2, 1].into_iter().for_each(|key| held.add(Key(key)));
        assert_eq!(held.keys(), [1, 2, 1].map(Key));
    }
}
