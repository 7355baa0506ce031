//! Assurance beyond the check of a block: ranges, the blocks that failed, where the spaces lie.

use crate::abi::{self, ADDRESS_IO, ADDRESS_NODE_SHIFT};
use crate::adaptor::Adaptor;
use crate::error::{CallKind, Error};
use crate::place::{Place, Space};
use crate::status::Status;

pub use crate::abi::Spaces;

/// A block with errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedBlock {
    /// Where it begins.
    pub place: Place,
    /// What a check of it would answer.
    pub status: Status,
}

impl FailedBlock {
    fn new(failed: &abi::Failed) -> Self {
        let offset = failed.address & (1_u64 << ADDRESS_NODE_SHIFT).wrapping_sub(1);
        let node = failed.address.to_le_bytes()[6];
        let space = if failed.address & ADDRESS_IO == 0 { Space::Memory } else { Space::Io };
        Self { place: Place { node, space, offset }, status: Status::from_bits(failed.status) }
    }
}

fn address(place: Place) -> u64 {
    let space = match place.space {
        Space::Memory => 0,
        Space::Io => ADDRESS_IO,
    };
    space | u64::from(place.node) << ADDRESS_NODE_SHIFT | place.offset
}

impl Adaptor {
    /// Whether any access of this guest from `first` up to, and including, the byte at `last` failed since the
    /// last check of its block. It waits until that is known, and clears nothing; it takes no longer for a long range.
    /// The places may be in different nodes, but not in different spaces.
    ///
    /// # Errors
    /// [`Error::Call`] where `last` is before `first` or in the other space, or neither is in a window of any node.
    pub fn check_range(&self, first: Place, last: Place) -> Result<Status, Error> {
        let mut range = abi::Range { first: address(first), last: address(last), ..abi::Range::default() };
        self.device().ask(&mut range).map_err(|source| {
            Error::call(CallKind::Range, format!("asking about the range from {first} to {last}"), source)
        })?;
        Ok(Status::from_bits(range.status))
    }

    /// The next block with errors that this open file was not told of; `None` where there is none now. It does not wait for
    /// one: the event `abi::EVENT_FAILED` says when to ask again.
    ///
    /// Each open file is told of each failed block once, whichever program made the accesses, and again when it fails after
    /// a check. Where errors of a node were lost ([`crate::Node::is_overflowed`]) blocks are missing.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn next_failed(&self) -> Result<Option<FailedBlock>, Error> {
        let mut failed = abi::Failed::default();
        match self.device().ask(&mut failed) {
            Ok(()) => Ok(Some(FailedBlock::new(&failed))),
            Err(source) if source.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(Error::call(CallKind::Failed, "asking for failed blocks", source)),
        }
    }

    /// Where the adaptor's spaces lie on its bus, and how large they are; a base that the adaptor does not know is 0.
    ///
    /// # Errors
    /// [`Error::Call`] where the adaptor is gone.
    pub fn spaces(&self) -> Result<Spaces, Error> {
        let mut spaces = Spaces::default();
        self.device()
            .ask(&mut spaces)
            .map_err(|source| Error::call(CallKind::Spaces, "asking where the spaces lie", source))?;
        Ok(spaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn a_failed_block_is_taken_apart() {
        let failed = abi::Failed { address: ADDRESS_IO | 7 << 48 | 0x3000, status: 0x82, reserved: 0 };
        let block = FailedBlock::new(&failed);
        assert_eq!(block.place, Place::io(7, 0x3000));
        assert_eq!(block.status.write(), Code::NoWindow);
        let last = Place::memory(255, (1 << 48) - 4096);
        assert_eq!(FailedBlock::new(&abi::Failed { address: address(last), ..failed }).place, last);
        assert_eq!(address(Place::io(7, 0x3000)), failed.address);
    }
}
