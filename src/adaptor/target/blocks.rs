//! Which blocks an access touches.
//!
//! Invariant: `first <= last`, and both lie in the space.

use core::ops::RangeInclusive;

use crate::adaptor::address::{BLOCK_SIZE, Block, Geometry, NodeId, OFFSET_BITS, Place};

/// A run of neighbouring blocks of the space; it may reach from one node's window into the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    first: Block,
    last: Block,
    last_of_window: u64,
}

impl Blocks {
    /// The blocks of `len` bytes from `place`, as far as they are in the window of its node; the block
    /// of `place` itself where `len` is 0.
    pub fn in_window(geometry: Geometry, place: Place, len: usize) -> Self {
        let geometry = geometry.of(place.at.space);
        let last_of_window = geometry.window_size().saturating_sub(1) / BLOCK_SIZE;
        let first = Block::containing(place);
        let last = Block { index: (*place.block_indices(len).end()).min(last_of_window), ..first };
        Self { first, last, last_of_window }
    }

    /// The blocks of `len` bytes from `space_offset`; `None` where one of them is beyond the space.
    pub fn in_space(geometry: Geometry, space_offset: u64, len: usize) -> Option<Self> {
        let last_byte = space_offset.checked_add(u64::try_from(len).ok()?.saturating_sub(1))?;
        let first = geometry.place(space_offset)?;
        let last = geometry.place(last_byte)?;
        Some(Self {
            first: Block::containing(first),
            last: Block::containing(last),
            last_of_window: geometry.window_size().saturating_sub(1) / BLOCK_SIZE,
        })
    }

    /// The blocks in which bytes from the address `start` up to, and not including, `end` lie. An address is a node in
    /// bits 55 to 48 and an offset below; what lies between the end of a node's window and the next node is nowhere.
    /// `None` where no byte of the range is in the space.
    pub fn in_range(geometry: Geometry, start: u64, end: u64) -> Option<Self> {
        let last = end.checked_sub(1).filter(|&last| start <= last)?;
        let window = geometry.window_size();
        let nodes = u64::from(geometry.nodes());
        let parts = |address: u64| (address >> OFFSET_BITS, address & ((1 << OFFSET_BITS) - 1));
        let (node, offset) = parts(start);
        let first = if offset < window { (node, offset) } else { (node.saturating_add(1), 0) };
        let (node, offset) = parts(last);
        let window_end = window.saturating_sub(1);
        let last =
            if node < nodes { (node, offset.min(window_end)) } else { (nodes.saturating_sub(1), window_end) };
        if first > last || node >> 8 != 0 {
            return None;
        }
        let block = |(node, offset): (u64, u64)| {
            let node = NodeId(u8::try_from(node).ok()?);
            Some(Block { space: geometry.space(), node, index: offset / BLOCK_SIZE })
        };
        let last_of_window = window_end / BLOCK_SIZE;
        Some(Self { first: block(first)?, last: block(last)?, last_of_window })
    }

    /// First and last block as a range in the order of the space.
    pub const fn range(&self) -> RangeInclusive<Block> {
        self.first..=self.last
    }

    /// The nodes to which the blocks belong.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (self.first.node.0..=self.last.node.0).map(NodeId)
    }

    /// First and last of the nodes as a range.
    pub const fn node_range(&self) -> RangeInclusive<NodeId> {
        self.first.node..=self.last.node
    }

    /// Each block, in the order of the space.
    pub fn iter(&self) -> impl Iterator<Item = Block> + use<> {
        let Self { first, last, last_of_window } = *self;
        self.nodes().flat_map(move |node| {
            let from = if node == first.node { first.index } else { 0 };
            let to = if node == last.node { last.index } else { last_of_window };
            (from..=to).map(move |index| Block { space: first.space, node, index })
        })
    }

    /// How many blocks the two runs have in common.
    pub fn common(&self, other: &Self) -> usize {
        let range = self.range();
        other.iter().filter(|block| range.contains(block)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor::address::{Location, Space};

    fn block(node: u8, index: u64) -> Block {
        Block { space: Space::Memory, node: NodeId(node), index }
    }

    #[test]
    fn a_run_reaches_into_the_next_window_in_the_space_but_not_in_a_window() {
        let geometry = Geometry::new(4, 8192).unwrap();
        let run = Blocks::in_space(geometry, 4000, 8192).unwrap();
        assert_eq!(run.iter().collect::<Vec<_>>(), [block(0, 0), block(0, 1), block(1, 0)]);
        let place = Place { node: NodeId(0), at: Location::memory(4000) };
        let run = Blocks::in_window(geometry, place, 1 << 20);
        assert_eq!(run.iter().collect::<Vec<_>>(), [block(0, 0), block(0, 1)]);
    }

    #[test]
    fn nothing_is_beyond_the_space() {
        let geometry = Geometry::new(4, 8192).unwrap();
        assert!(Blocks::in_space(geometry, 32760, 8).is_some());
        assert_eq!(Blocks::in_space(geometry, 32761, 8), None);
        assert_eq!(Blocks::in_space(geometry, 32768, 0), None);
        assert_eq!(Blocks::in_space(geometry, u64::MAX, 8), None);
    }

    #[test]
    fn a_range_of_addresses_leaves_out_what_is_in_no_window() {
        let geometry = Geometry::new(4, 8192).unwrap();
        let at = |node: u64, offset: u64| node << 48 | offset;
        let found = |start, end| Blocks::in_range(geometry, start, end).map(|blocks| blocks.range());
        assert_eq!(found(at(1, 4095), at(1, 4096)), Some(block(1, 0)..=block(1, 0)));
        assert_eq!(found(at(1, 4095), at(1, 4097)), Some(block(1, 0)..=block(1, 1)));
        assert_eq!(found(at(1, 0), at(2, 0)), Some(block(1, 0)..=block(1, 1)));
        assert_eq!(found(at(0, 8192), at(2, 1)), Some(block(1, 0)..=block(2, 0)));
        assert_eq!(found(0, 1 << 56), Some(block(0, 0)..=block(3, 1)));
        assert_eq!(found(at(3, 8191), at(77, 5)), Some(block(3, 1)..=block(3, 1)));
        for (start, end) in
            [(0, 0), (5, 5), (at(1, 1), at(1, 0)), (at(1, 8192), at(2, 0)), (at(3, 8192), 1 << 56)]
        {
            assert_eq!(found(start, end), None, "{start:#x} to {end:#x}");
        }
        for end in [(1 << 56) + 1, u64::MAX] {
            assert_eq!(found(0, end), None, "{end:#x}");
        }
        assert_eq!(found(1 << 57, 1 << 58), None);
    }

    #[test]
    fn no_bytes_are_in_the_block_where_they_begin() {
        let geometry = Geometry::new(4, 8192).unwrap();
        let run = Blocks::in_window(geometry, Place { node: NodeId(2), at: Location::memory(4096) }, 0);
        assert_eq!(run.iter().collect::<Vec<_>>(), [block(2, 1)]);
    }
}
