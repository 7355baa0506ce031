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

/// A block of a node's offset space: `index` counts blocks of [`BLOCK_SIZE`] from offset 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// The node that the block belongs to.
    pub node: NodeId,
    /// Which of the node's blocks.
    pub index: u64,
}

impl Block {
    /// The block in which `offset` lies.
    pub const fn containing(node: NodeId, offset: u64) -> Self {
        Self { node, index: offset / BLOCK_SIZE }
    }
}

/// A place in the access or assurance space: a node and an offset in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The destination node.
    pub node: NodeId,
    /// Bytes from the start of the node's window; below 2^48.
    pub offset: u64,
}

impl Place {
    /// Indices of the blocks that `len` bytes from here lie in (at least one).
    pub fn block_indices(self, len: usize) -> RangeInclusive<u64> {
        let last = u64::try_from(len).unwrap_or(u64::MAX).saturating_sub(1);
        self.offset / BLOCK_SIZE..=self.offset.saturating_add(last) / BLOCK_SIZE
    }
}

/// How the access space is cut: a window of equal size for each node, node 0 first; and how many low bits of this adaptor's node ids are
/// a bus number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    nodes: u16,
    window_bits: u32,
    bus_bits: u32,
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
    /// A space of `nodes` windows of `window_size` bytes each.
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
        Ok(Self { nodes, window_bits: window_size.trailing_zeros(), bus_bits: 0 })
    }

    /// The same, with this many bits of bus number.
    #[must_use]
    pub const fn with_bus_bits(self, bus_bits: u32) -> Self {
        Self { bus_bits, ..self }
    }

    /// Low bits of this adaptor's node ids that are a bus number.
    pub const fn bus_bits(self) -> u32 {
        self.bus_bits
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

    /// The size of the whole access space (and of the assurance space) in bytes.
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
        Some(Place { node: NodeId(node), offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_cut_by_window() {
        let geometry = Geometry::new(16, 256 << 20).unwrap();
        assert_eq!(geometry.space_size(), 4 << 30);
        assert_eq!(geometry.place((3 << 28) + 5), Some(Place { node: NodeId(3), offset: 5 }));
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
        let place = Place { node: NodeId(1), offset: 4094 };
        assert_eq!(place.block_indices(2), 0..=0);
        assert_eq!(place.block_indices(4), 0..=1);
        assert_eq!(Place { node: NodeId(1), offset: u64::MAX }.block_indices(8).count(), 1);
    }

    #[test]
    fn node_sets_hold_all_256() {
        let set: NodeSet = [0, 63, 64, 255].map(NodeId).into_iter().collect();
        assert!([0, 63, 64, 255].iter().all(|&n| set.contains(NodeId(n))));
        assert!(![1, 62, 65, 254].iter().any(|&n| set.contains(NodeId(n))));
    }
}
