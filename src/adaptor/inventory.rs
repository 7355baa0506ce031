//! What nodes export, as they tell each other and their guests: a list of entries, of which the first is the bus itself.
//!
//! Each node tells a peer only what it grants to that one. Invariant: a list from a peer is kept as it came, whole entries
//! only and no longer than a packet; nobody here believes what is in it.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use super::address::{NodeId, Space};
use super::master::{Master, Rights, Window};
use super::memory::Home;

/// Bytes in an entry of a list.
pub const ENTRY_SIZE: usize = 64;
/// Bytes in a name.
pub const NAME_SIZE: usize = 24;

/// The name of a bus, window or device: UTF-8 by convention, filled up with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name(pub [u8; NAME_SIZE]);

impl Name {
    /// The name with this text; `None` where it is longer than [`NAME_SIZE`] bytes.
    pub fn new(text: &str) -> Option<Self> {
        let mut name = [0; NAME_SIZE];
        name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self(name))
    }

    /// Bytes `8 * index` and up as a number, little-endian; 0 beyond the name's end.
    pub fn word(&self, index: usize) -> u64 {
        let (words, _) = self.0.as_chunks();
        words.get(index).map_or(0, |word| u64::from_le_bytes(*word))
    }
}

impl fmt::Display for Name {
    /// As text, without the zeros behind it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        String::from_utf8_lossy(&self.0).trim_end_matches('\0').fmt(f)
    }
}

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// The bus itself: its length is the size of its window of the access space.
    Bus = 1,
    /// A window of guest memory.
    Memory = 2,
    /// A window of the guest's bus.
    BusWindow = 3,
    /// A memory device that the adaptor hosts.
    MemoryDevice = 4,
    /// An I/O device that the adaptor hosts.
    IoDevice = 5,
}

/// An entry, taken apart. A peer's may have any numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// A [`Kind`], or one that is not known here.
    pub kind: u32,
    /// Bit 0 it may be read, bit 1 written, bit 3 it is in the I/O space, bit 4 atomic operations may be done on it.
    pub rights: u32,
    /// Where it begins in the node's space, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its name.
    pub name: Name,
}

impl Entry {
    fn of_window(space: Space, offset: u64, window: &Window) -> Self {
        let kind = match (window.home(), space) {
            (Home::Guest, _) => Kind::Memory,
            (Home::Bus, _) => Kind::BusWindow,
            (Home::Hosted(_), Space::Memory) => Kind::MemoryDevice,
            (Home::Hosted(_), Space::Io) => Kind::IoDevice,
        };
        // Atomic operations are about memory.
        let atomic = window.rights().atomic && space == Space::Memory && window.home() != Home::Bus;
        let rights = Rights { atomic, ..window.rights() }.bits() | u32::from(space == Space::Io) << 3;
        Self { kind: kind as u32, rights, offset, len: window.len(), name: window.name() }
    }

    fn emit(&self, out: &mut BytesMut) {
        let end = out.len().saturating_add(ENTRY_SIZE);
        out.put_u32_le(self.kind);
        out.put_u32_le(self.rights);
        out.put_u64_le(self.offset);
        out.put_u64_le(self.len);
        out.put_slice(&self.name.0);
        out.resize(end, 0);
    }

    fn parse(entry: &[u8]) -> Option<Self> {
        let (kind, entry) = entry.split_first_chunk()?;
        let (rights, entry) = entry.split_first_chunk()?;
        let (offset, entry) = entry.split_first_chunk()?;
        let (len, entry) = entry.split_first_chunk()?;
        Some(Self {
            kind: u32::from_le_bytes(*kind),
            rights: u32::from_le_bytes(*rights),
            offset: u64::from_le_bytes(*offset),
            len: u64::from_le_bytes(*len),
            name: Name(*entry.first_chunk()?),
        })
    }
}

/// The list of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct List {
    version: u32,
    entries: Bytes,
}

/// The lists of all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Inventory {
    name: Name,
    /// Of this node's own list.
    version: u32,
    peers: BTreeMap<NodeId, List>,
}

impl Inventory {
    /// Names this node's bus.
    pub(super) const fn set_name(&mut self, name: Name) {
        self.name = name;
    }

    /// Takes over the version of this node's own list; whether it is another one.
    pub(super) const fn set_version(&mut self, version: u32) -> bool {
        core::mem::replace(&mut self.version, version) != version
    }

    /// A peer has sent its list; whether it is news. One that is not of whole entries is left out.
    pub(super) fn put(&mut self, peer: NodeId, version: u32, entries: &Bytes) -> bool {
        if !entries.len().is_multiple_of(ENTRY_SIZE) {
            return false;
        }
        // A copy, so that a list does not hold all of what was received with it.
        let list = List { version, entries: Bytes::copy_from_slice(entries) };
        self.peers.insert(peer, list.clone()).is_none_or(|known| known.entries != list.entries)
    }

    /// Forgets a peer's list; whether there was one.
    pub(super) fn forget(&mut self, peer: NodeId) -> bool {
        self.peers.remove(&peer).is_some()
    }

    /// What `reader` may know of this node, or this node's guest where it is `None`.
    fn own<'a>(
        &'a self,
        master: &'a Master,
        window_size: u64,
        reader: Option<NodeId>,
    ) -> impl Iterator<Item = Entry> + 'a {
        let bus = Entry { kind: Kind::Bus as u32, len: window_size, name: self.name, ..Entry::default() };
        let windows = Space::ALL.into_iter().flat_map(move |space| {
            master
                .windows(space)
                .iter()
                .filter(move |(_, window)| reader.is_none_or(|reader| window.nodes().contains(reader)))
                .map(move |(offset, window)| Entry::of_window(space, offset, window))
        });
        core::iter::once(bus).chain(windows)
    }

    /// This node's list as it goes to `reader`.
    pub(super) fn list_for(&self, master: &Master, window_size: u64, reader: NodeId) -> Bytes {
        let mut list = BytesMut::new();
        self.own(master, window_size, Some(reader)).for_each(|entry| entry.emit(&mut list));
        list.freeze()
    }

    /// Number of entries and version of this node's own list.
    pub(super) fn own_summary(&self, master: &Master, window_size: u64) -> (usize, u32) {
        (self.own(master, window_size, None).count(), self.version)
    }

    /// An entry of this node's own list.
    pub(super) fn own_entry(&self, master: &Master, window_size: u64, index: usize) -> Option<Entry> {
        self.own(master, window_size, None).nth(index)
    }

    /// Number of entries and version of a peer's list; zeros where there is none.
    pub(super) fn summary(&self, peer: NodeId) -> (usize, u32) {
        self.peers.get(&peer).map_or((0, 0), |list| (list.entries.len() / ENTRY_SIZE, list.version))
    }

    /// An entry of a peer's list.
    pub(super) fn entry(&self, peer: NodeId, index: usize) -> Option<Entry> {
        self.peers.get(&peer)?.entries.chunks_exact(ENTRY_SIZE).nth(index).and_then(Entry::parse)
    }
}
