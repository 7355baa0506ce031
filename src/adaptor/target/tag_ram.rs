//! The tag RAM: which blocks have transactions under way, and in which buffer the last one is.
//!
//! Invariant: a block has an entry exactly while a transaction on it is outstanding, so the entries
//! are bounded by the buffers (a transaction lies in at most two blocks).

use std::collections::BTreeMap;

use super::blocks::Blocks;
use crate::adaptor::address::Block;
use crate::adaptor::status::Direction;

/// The transactions of one direction that are under way on a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tally {
    /// How many have been started and have not completed.
    pub outstanding: usize,
    /// The number of the buffer that holds, or held, the last one started.
    pub last_buffer: Option<u16>,
}

/// What is under way on a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Writes, by write buffer.
    pub writes: Tally,
    /// Reads, by fetch buffer.
    pub reads: Tally,
}

impl Tag {
    fn tally(&mut self, direction: Direction) -> &mut Tally {
        match direction {
            Direction::Write => &mut self.writes,
            Direction::Read => &mut self.reads,
        }
    }

    const fn outstanding(&self) -> usize {
        self.writes.outstanding.saturating_add(self.reads.outstanding)
    }
}

/// A tag for each block with transactions under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TagRam {
    tags: BTreeMap<Block, Tag>,
}

impl TagRam {
    /// A transaction on `blocks` was put into the buffer with this number.
    pub fn start(&mut self, blocks: Blocks, direction: Direction, buffer: u16) {
        for block in blocks.iter() {
            let tally = self.tags.entry(block).or_default().tally(direction);
            tally.outstanding = tally.outstanding.saturating_add(1);
            tally.last_buffer = Some(buffer);
        }
    }

    /// A transaction that was started on `blocks` completed.
    pub fn finish(&mut self, blocks: Blocks, direction: Direction) {
        for block in blocks.iter() {
            let Some(tag) = self.tags.get_mut(&block) else { continue };
            let tally = tag.tally(direction);
            tally.outstanding = tally.outstanding.saturating_sub(1);
            if tag.outstanding() == 0 {
                self.tags.remove(&block);
            }
        }
    }

    /// How many transactions are under way on `blocks`; one that lies in two of them counts twice.
    pub fn outstanding(&self, blocks: Blocks) -> usize {
        self.tags.range(blocks.range()).fold(0, |sum: usize, (_, tag)| sum.saturating_add(tag.outstanding()))
    }

    /// What is under way on one block.
    pub fn get(&self, block: Block) -> Tag {
        self.tags.get(&block).copied().unwrap_or_default()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tags.clear();
    }
}
