//! Node ids, offsets and blocks, and how an access space is cut into windows.

use core::fmt;
use core::ops::RangeInclusive;

/// The size in bytes of a block: the grain at which transactions are remembered and
/// errors kept (the tag RAM's page).
pub const BLOCK_SIZE: u64 = 4096;

/// The document's offset field is bits `[47:0]`.
pub const OFFSET_BITS: u32 = 48;

/// The document's node field, bits `[55:48]` of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of node ids: a bit for each of the 256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSet([u64; 4]);

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self([0; 4]);
    /// Every node.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// The set whose node `n` is bit `n % 64` of word `n / 64`.
    pub const fn from_words(words: [u64; 4]) -> Self {
        Self(words)
    }

    /// The set as words, the inverse of [`NodeSet::from_words`].
    pub const fn words(self) -> [u64; 4] {
        self.0
    }

    /// Whether `node` is in the set.
    pub fn contains(&self, node: NodeId) -> bool {
        let word = self.0.get(usize::from(node.0 >> 6)).copied().unwrap_or(0);
        word >> (node.0 & 63) & 1 == 1
    }

    /// Puts `node` into the set.
    pub fn insert(&mut self, node: NodeId) {
        if let Some(word) = self.0.get_mut(usize::from(node.0 >> 6)) {
            *word |= 1 << (node.0 & 63);
        }
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::EMPTY;
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

/// The spaces that every node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Remote memory: the access space.
    Memory,
    /// Remote I/O: accesses are exact, never joined, and one at a time.
    Io,
}

impl Space {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Io];

    /// Its number, as in packets and registers.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Memory => 0,
            Self::Io => 1,
        }
    }

    /// The space with this number; `None` where there is none.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match bits {
            0 => Some(Self::Memory),
            1 => Some(Self::Io),
            _ => None,
        }
    }
}

/// Where in a node: a space, and a distance from the start of the node's window of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Which of the node's spaces.
    pub space: Space,
    /// Bytes from the start of the node's window; below 2^48.
    pub offset: u64,
}

impl Location {
    /// This far from the start of the node's memory.
    pub const fn memory(offset: u64) -> Self {
        Self { space: Space::Memory, offset }
    }

    /// This far from the start of the node's I/O space.
    pub const fn io(offset: u64) -> Self {
        Self { space: Space::Io, offset }
    }
}

/// A block of a node's offset space: `index` counts blocks of [`BLOCK_SIZE`] from offset 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// Which space it is in.
    pub space: Space,
    /// The node that the block belongs to.
    pub node: NodeId,
    /// Which of the node's blocks.
    pub index: u64,
}

impl Block {
    /// The block in which a place lies.
    pub const fn containing(place: Place) -> Self {
        let Place { node, at: Location { space, offset } } = place;
        Self { space, node, index: offset / BLOCK_SIZE }
    }
}

/// What an access, or a check of it, is for: a node, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The destination node.
    pub node: NodeId,
    /// Where in it.
    pub at: Location,
}

impl Place {
    /// Indices of the blocks that `len` bytes from here lie in (at least one).
    pub fn block_indices(self, len: usize) -> RangeInclusive<u64> {
        let last = u64::try_from(len).unwrap_or(u64::MAX).saturating_sub(1);
        self.at.offset / BLOCK_SIZE..=self.at.offset.saturating_add(last) / BLOCK_SIZE
    }
}

/// The size of a node's window of the I/O space in bytes.
pub const IO_WINDOW_SIZE: u64 = 64 << 10;
/// The first bytes of a node's window of the I/O space, which are the adaptor's own and not for windows.
pub const IO_OWN_SIZE: u64 = 4 << 10;

/// How a space is cut: a window of equal size for each node, node 0 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    space: Space,
    nodes: u16,
    window_bits: u32,
}

/// Why a geometry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The number of nodes is not a power of two from 2 to 256.
    Nodes,
    /// The window size is not a power of two from 4 KiB to 256 TiB.
    Window,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "the number of nodes must be a power of two from 2 to 256",
            Self::Window => "the window size must be a power of two from 4 KiB to 256 TiB",
        })
    }
}

impl core::error::Error for GeometryError {}

impl Geometry {
    /// A memory space of `nodes` windows of `window_size` bytes each.
    ///
    /// # Errors
    /// Where a number is not a power of two in its range.
    pub fn new(nodes: u16, window_size: u64) -> Result<Self, GeometryError> {
        if !nodes.is_power_of_two() || !(2..=256).contains(&nodes) {
            return Err(GeometryError::Nodes);
        }
        if !window_size.is_power_of_two() || !(BLOCK_SIZE..=1 << OFFSET_BITS).contains(&window_size) {
            return Err(GeometryError::Window);
        }
        Ok(Self { space: Space::Memory, nodes, window_bits: window_size.trailing_zeros() })
    }

    /// The I/O space of as many nodes, in windows of [`IO_WINDOW_SIZE`].
    pub const fn io(self) -> Self {
        Self { space: Space::Io, nodes: self.nodes, window_bits: IO_WINDOW_SIZE.trailing_zeros() }
    }

    /// The space of this kind of as many nodes.
    pub const fn of(self, space: Space) -> Self {
        match space {
            Space::Memory => self,
            Space::Io => self.io(),
        }
    }

    /// Which of a node's spaces it cuts.
    pub const fn space(self) -> Space {
        self.space
    }

    /// The number of windows.
    pub const fn nodes(self) -> u16 {
        self.nodes
    }

    /// The size of a node's window in bytes.
    pub const fn window_size(self) -> u64 {
        1 << self.window_bits
    }

    /// Log2 of the window size.
    pub const fn window_bits(self) -> u32 {
        self.window_bits
    }

    /// The size of the whole space in bytes.
    pub const fn space_size(self) -> u64 {
        (self.nodes as u64) << self.window_bits
    }

    /// Decodes an offset into the space; `None` beyond its end.
    pub fn place(self, space_offset: u64) -> Option<Place> {
        let node = u8::try_from(space_offset >> self.window_bits).ok()?;
        if u16::from(node) >= self.nodes {
            return None;
        }
        let offset = space_offset & self.window_size().wrapping_sub(1);
        Some(Place { node: NodeId(node), at: Location { space: self.space, offset } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_cut_by_window() {
        let geometry = Geometry::new(16, 256 << 20).unwrap();
        assert_eq!(geometry.space_size(), 4 << 30);
        let place = Place { node: NodeId(3), at: Location::memory(5) };
        assert_eq!(geometry.place((3 << 28) + 5), Some(place));
        assert_eq!(geometry.io().space_size(), 1 << 20);
        assert_eq!(geometry.io().place((3 << 16) + 5), Some(Place { at: Location::io(5), ..place }));
        assert_eq!(geometry.place(4 << 30), None);
        assert_eq!(geometry.place(u64::MAX), None);
    }

    #[test]
    fn odd_geometries_are_refused() {
        assert_eq!(Geometry::new(3, 1 << 28), Err(GeometryError::Nodes));
        assert_eq!(Geometry::new(512, 1 << 28), Err(GeometryError::Nodes));
        assert_eq!(Geometry::new(16, 4095), Err(GeometryError::Window));
        assert_eq!(Geometry::new(16, 1 << 49), Err(GeometryError::Window));
    }

    #[test]
    fn a_straddling_access_lies_in_two_blocks() {
        let place = Place { node: NodeId(1), at: Location::memory(4094) };
        assert_eq!(place.block_indices(2), 0..=0);
        assert_eq!(place.block_indices(4), 0..=1);
        let last = Place { node: NodeId(1), at: Location::memory(u64::MAX) };
        assert_eq!(last.block_indices(8).count(), 1);
    }

    #[test]
    fn node_sets_hold_all_256() {
        let set: NodeSet = [0, 63, 64, 255].map(NodeId).into_iter().collect();
        assert!([0, 63, 64, 255].iter().all(|&n| set.contains(NodeId(n))));
        assert!(![1, 62, 65, 254].iter().any(|&n| set.contains(NodeId(n))));
    }
}
