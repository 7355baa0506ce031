//! Registered memory: what of the guest's memory the engine may touch, and for whom.
//!
//! Invariant: a key names one registration for ever; once that is gone, nothing finds memory by it. What was resolved for a
//! transfer stays registered until the transfer has released it.

use std::collections::VecDeque;

use crate::adaptor::master::CommandStatus;
use crate::adaptor::memory::Segment;
use crate::adaptor::runs::Runs;

/// The most registrations at a time.
pub const MAX_KEYS: usize = 4096;
/// The most runs of memory in all registrations together; 16 bytes are held for each.
pub const MAX_RUNS: usize = 1 << 22;
/// The low bits of a key are the index of its slot, those above its generation.
const INDEX_BITS: u32 = MAX_KEYS.trailing_zeros();

/// Names a registration; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u32);

impl Key {
    fn index(self) -> usize {
        usize::try_from(self.0 & ((1 << INDEX_BITS) - 1)).unwrap_or(usize::MAX)
    }

    const fn generation(self) -> u32 {
        self.0 >> INDEX_BITS
    }
}

/// What the engine may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalRights {
    /// It may send what is in it.
    pub read: bool,
    /// It may put there what it has read elsewhere.
    pub write: bool,
}

impl LocalRights {
    /// Both.
    pub const BOTH: Self = Self { read: true, write: true };
    /// To send from it.
    pub const READ: Self = Self { read: true, write: false };
    /// To write into it.
    pub const WRITE: Self = Self { read: false, write: true };

    /// The rights with these bits (bit 0 read, bit 1 write); `None` where none or an unknown bit is set.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits == 0 || bits > 0b11 {
            return None;
        }
        Some(Self { read: bits & 1 != 0, write: bits & 2 != 0 })
    }

    const fn cover(self, needed: Self) -> bool {
        (self.read || !needed.read) && (self.write || !needed.write)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Registration {
    domain: u32,
    rights: LocalRights,
    runs: Runs,
    /// Transfers that may still touch it.
    uses: u32,
    /// Queues that have their rings in it.
    queues: u32,
    /// It is to go when nothing uses it any more.
    is_closed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slot {
    generation: u32,
    registration: Option<Registration>,
}

impl Slot {
    const fn next_generation(&self) -> u32 {
        let next = self.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        if next == 0 { 1 } else { next }
    }
}

/// The registrations of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Keys {
    slots: Vec<Slot>,
    /// Slots without a registration; the one that has been free for longest is used first.
    free: VecDeque<usize>,
    /// Runs in all registrations together.
    runs: usize,
}

impl Keys {
    /// Registers memory for the queues of a domain.
    pub(super) fn register(
        &mut self,
        domain: u32,
        rights: LocalRights,
        runs: Runs,
    ) -> Result<Key, CommandStatus> {
        let total = self.runs.saturating_add(runs.count());
        if total > MAX_RUNS {
            return Err(CommandStatus::TooMany);
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.slots.len() < MAX_KEYS => {
                self.slots.push(Slot { generation: 0, registration: None });
                self.slots.len().saturating_sub(1)
            }
            None => return Err(CommandStatus::TooMany),
        };
        let slot = self.slots.get_mut(index).ok_or(CommandStatus::TooMany)?;
        self.runs = total;
        slot.generation = slot.next_generation();
        slot.registration = Some(Registration { domain, rights, runs, uses: 0, queues: 0, is_closed: false });
        let low = u32::try_from(index).map_err(|_| CommandStatus::TooMany)?;
        Ok(Key(slot.generation << INDEX_BITS | low))
    }

    /// From now on nobody finds the memory. Whether it is gone already, or will be by [`Self::release`].
    pub(super) fn deregister(&mut self, key: Key) -> Result<bool, CommandStatus> {
        let registration = self.open(key).ok_or(CommandStatus::NotFound)?;
        if registration.queues > 0 {
            return Err(CommandStatus::InUse);
        }
        registration.is_closed = true;
        Ok(self.remove_unused(key))
    }

    /// Appends where `len` bytes of the memory are, from its byte `offset` on, and notes that a transfer uses it. `None` where the
    /// domain has no such key with these rights, or they do not lie in it.
    pub(super) fn hold(
        &mut self,
        domain: u32,
        key: Key,
        needed: LocalRights,
        (offset, len): (u64, u64),
        segments: &mut Vec<Segment>,
    ) -> Option<()> {
        let registration = self.open(key)?;
        if registration.domain != domain || !registration.rights.cover(needed) {
            return None;
        }
        registration.runs.translate(offset, len, segments)?;
        registration.uses = registration.uses.saturating_add(1);
        Some(())
    }

    /// A transfer does not touch the memory any more.
    pub(super) fn release(&mut self, key: Key) {
        if let Some(registration) = self.get_mut(key) {
            registration.uses = registration.uses.saturating_sub(1);
            self.remove_unused(key);
        }
    }

    /// Whether the memory of a key that was deregistered is still used.
    pub(super) fn is_closing(&self, key: Key) -> bool {
        let slot = self.slots.get(key.index()).filter(|slot| slot.generation == key.generation());
        slot.is_some_and(|slot| slot.registration.is_some())
    }

    /// The rings of a queue are to be in these bytes. Whether they can.
    pub(super) fn pin(&mut self, domain: u32, key: Key, ranges: &[(u64, u64)]) -> Result<(), CommandStatus> {
        let registration = self.open(key).ok_or(CommandStatus::NotFound)?;
        if registration.domain != domain {
            return Err(CommandStatus::NotFound);
        }
        let len = registration.runs.len();
        let is_inside = |&(offset, size): &(u64, u64)| offset.checked_add(size).is_some_and(|end| end <= len);
        if !registration.rights.cover(LocalRights::BOTH) || !ranges.iter().all(is_inside) {
            return Err(CommandStatus::BadArgument);
        }
        registration.queues = registration.queues.saturating_add(1);
        Ok(())
    }

    /// A queue is gone.
    pub(super) fn unpin(&mut self, key: Key) {
        if let Some(registration) = self.get_mut(key) {
            registration.queues = registration.queues.saturating_sub(1);
        }
    }

    /// Appends where bytes of a pinned registration are.
    pub(super) fn locate(&self, key: Key, offset: u64, len: u64, segments: &mut Vec<Segment>) -> Option<()> {
        let slot = self.slots.get(key.index()).filter(|slot| slot.generation == key.generation())?;
        slot.registration.as_ref()?.runs.translate(offset, len, segments)
    }

    /// Removes everything, whatever uses it. Keys from before name nothing afterwards.
    pub(super) fn clear(&mut self) {
        self.runs = 0;
        self.free.clear();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.registration = None;
            self.free.push_back(index);
        }
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Registration> {
        let slot = self.slots.get_mut(key.index()).filter(|slot| slot.generation == key.generation())?;
        slot.registration.as_mut()
    }

    fn open(&mut self, key: Key) -> Option<&mut Registration> {
        self.get_mut(key).filter(|registration| !registration.is_closed)
    }

    fn remove_unused(&mut self, key: Key) -> bool {
        let Some(slot) = self.slots.get_mut(key.index()) else { return true };
        let gone = slot.registration.take_if(|registration| registration.is_closed && registration.uses == 0);
        let Some(registration) = gone else { return false };
        self.runs = self.runs.saturating_sub(registration.runs.count());
        self.free.push_back(key.index());
        true
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use crate::adaptor::runs::Run;

    const DOMAIN: u32 = 7;

    fn runs(pages: &[u64]) -> Runs {
        let list: Vec<_> = pages.iter().map(|&page| Run { address: page << 12, len: 4096 }).collect();
        Runs::new(&list, list.len() as u64 * 4096).unwrap()
    }

    fn hold(keys: &mut Keys, key: Key, at: (u64, u64)) -> Option<Vec<Segment>> {
        let mut segments = Vec::new();
        keys.hold(DOMAIN, key, LocalRights::READ, at, &mut segments)?;
        Some(segments)
    }

    #[test]
    fn scattered_pages_are_found_and_nothing_beyond_them() {
        let mut keys = Keys::default();
        let key = keys.register(DOMAIN, LocalRights::READ, runs(&[5, 9])).unwrap();
        let segment = |address, len| Segment { address, len };
        assert_eq!(hold(&mut keys, key, (4090, 10)), Some(vec![segment(0x5ffa, 6), segment(0x9000, 4)]));
        assert_eq!(hold(&mut keys, key, (8190, 3)), None);
        assert_eq!(hold(&mut keys, key, (u64::MAX, 2)), None);
        assert_eq!(hold(&mut keys, key, (8192, 0)), Some(vec![]));
    }

    #[test]
    fn memory_of_more_than_4_gib_is_found_to_its_last_byte() {
        let (mut keys, large) = (Keys::default(), 3 << 30);
        let list = [(1 << 40, large), (1 << 33, large)].map(|(address, len)| Run { address, len });
        let runs = Runs::new(&list, 2 * large).unwrap();
        let key = keys.register(DOMAIN, LocalRights::READ, runs).unwrap();
        let segment = |address, len| Segment { address, len };
        let expected = vec![segment((1 << 40) + large - 8, 8), segment(1 << 33, 8)];
        assert_eq!(hold(&mut keys, key, (large - 8, 16)), Some(expected));
        let last = segment((1 << 33) + large - 1, 1);
        assert_eq!(hold(&mut keys, key, (2 * large - 1, 1)), Some(vec![last]));
        assert_eq!(hold(&mut keys, key, (2 * large - 1, 2)), None);
    }

    #[test]
    fn other_domains_and_missing_rights_find_nothing() {
        let mut keys = Keys::default();
        let key = keys.register(DOMAIN, LocalRights::READ, runs(&[5])).unwrap();
        let mut none = Vec::new();
        assert_eq!(keys.hold(DOMAIN + 1, key, LocalRights::READ, (0, 1), &mut none), None);
        assert_eq!(keys.hold(DOMAIN, key, LocalRights::WRITE, (0, 1), &mut none), None);
        assert_eq!(keys.pin(DOMAIN, key, &[(0, 64)]), Err(CommandStatus::BadArgument));
        assert!(none.is_empty());
    }

    #[test]
    fn a_key_that_is_gone_stays_so_when_its_slot_is_used_again() {
        let mut keys = Keys::default();
        let first = keys.register(DOMAIN, LocalRights::BOTH, runs(&[5])).unwrap();
        assert_eq!(keys.deregister(first), Ok(true));
        let second = keys.register(DOMAIN, LocalRights::BOTH, runs(&[6])).unwrap();
        assert_eq!(first.index(), second.index());
        assert!(first != second && first.0 != 0 && second.0 != 0);
        assert_eq!(hold(&mut keys, first, (0, 1)), None);
        assert_eq!(keys.deregister(first), Err(CommandStatus::NotFound));
        keys.clear();
        assert_eq!(hold(&mut keys, second, (0, 1)), None);
        let third = keys.register(DOMAIN, LocalRights::BOTH, runs(&[6])).unwrap();
        assert!(third != second && third != first);
    }

    #[test]
    fn deregistering_waits_for_what_is_under_way_and_lets_nothing_new_in() {
        let mut keys = Keys::default();
        let key = keys.register(DOMAIN, LocalRights::BOTH, runs(&[5])).unwrap();
        hold(&mut keys, key, (0, 1)).unwrap();
        assert_eq!(keys.deregister(key), Ok(false));
        assert_eq!(hold(&mut keys, key, (0, 1)), None);
        assert!(keys.is_closing(key));
        keys.release(key);
        assert!(!keys.is_closing(key));
        assert_eq!(keys.runs, 0);
    }

    #[test]
    fn memory_with_rings_is_not_deregistered() {
        let mut keys = Keys::default();
        let key = keys.register(DOMAIN, LocalRights::BOTH, runs(&[5])).unwrap();
        keys.pin(DOMAIN, key, &[(0, 4096)]).unwrap();
        assert_eq!(keys.pin(DOMAIN, key, &[(64, 4096)]), Err(CommandStatus::BadArgument));
        assert_eq!(keys.deregister(key), Err(CommandStatus::InUse));
        keys.unpin(key);
        assert_eq!(keys.deregister(key), Ok(true));
    }

    #[test]
    fn keys_and_runs_are_bounded() {
        let mut keys = Keys::default();
        for _ in 0..MAX_KEYS {
            keys.register(DOMAIN, LocalRights::BOTH, runs(&[5])).unwrap();
        }
        assert_eq!(keys.register(DOMAIN, LocalRights::BOTH, runs(&[5])), Err(CommandStatus::TooMany));
        keys.clear();
        keys.runs = MAX_RUNS - 1;
        assert_eq!(keys.register(DOMAIN, LocalRights::BOTH, runs(&[5, 9])), Err(CommandStatus::TooMany));
    }
}
