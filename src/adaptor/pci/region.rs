//! The regions of the function, and what an offset in each means.
//!
//! BAR1 holds the I/O space and BAR4 the assurance space of memory, each with its aliases side by side:
//!
//! | region | parts, of equal size |
//! |---|---|
//! | BAR1 | remote I/O, assurance, peek, doorbell pages of queues |
//! | BAR2 | access, nothing |
//! | BAR4 | assurance, peek |
//!
//! BAR2 is as large as BAR4 because SeaBIOS adds up the sizes of all 64-bit BARs, begins so far below the end of what can be
//! addressed, and then aligns upwards: of a large BAR and one half of its size on the root bus, the second would lie beyond that end.

use super::config_space::{BAR0_SIZE, CONFIG_SIZE};
use crate::adaptor::address::{Geometry, Space};
use crate::adaptor::target::Look;

/// The parts of BAR1.
const IO_PARTS: u64 = 4;
/// The size of a queue's doorbell page in bytes.
pub const QUEUE_PAGE_SIZE: u64 = 4096;
/// The parts of BAR2, and of BAR4.
const MEMORY_PARTS: u64 = 2;

/// A region of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    /// Configuration space.
    Config,
    /// BAR0.
    Registers,
    /// BAR1.
    Io,
    /// BAR2.
    Access,
    /// BAR4.
    Assurance,
}

/// What an access to a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Configuration space at this byte.
    Config(u64),
    /// The registers of BAR0 at this byte.
    Registers(u64),
    /// A remote access: a space, and the byte in it.
    Access(Space, u64),
    /// A check of accesses to a space, from this byte of it.
    Check(Look, Space, u64),
    /// The doorbell page of a queue, and the byte in it.
    Queue(u32, u64),
    /// Nothing is there.
    Nothing,
}

impl Region {
    /// The region's size in bytes, in an adaptor whose memory space is cut like this.
    pub const fn size(self, geometry: Geometry) -> u64 {
        match self {
            Self::Config => CONFIG_SIZE as u64,
            Self::Registers => BAR0_SIZE,
            Self::Io => geometry.io().space_size().saturating_mul(IO_PARTS),
            Self::Access | Self::Assurance => geometry.space_size().saturating_mul(MEMORY_PARTS),
        }
    }

    /// What the byte at `offset` means.
    pub fn decode(self, geometry: Geometry, offset: u64) -> Meaning {
        let space = match self {
            Self::Config => return Meaning::Config(offset),
            Self::Registers => return Meaning::Registers(offset),
            Self::Io => Space::Io,
            Self::Access | Self::Assurance => Space::Memory,
        };
        let size = geometry.of(space).space_size();
        let part = offset.checked_div(size).unwrap_or(u64::MAX);
        let within = offset.checked_rem(size).unwrap_or(0);
        match (self, part) {
            (Self::Io | Self::Access, 0) => Meaning::Access(space, within),
            (Self::Io, 1) | (Self::Assurance, 0) => Meaning::Check(Look::Clear, space, within),
            (Self::Io, 2) | (Self::Assurance, 1) => Meaning::Check(Look::Peek, space, within),
            (Self::Io, 3) => {
                let number = u32::try_from(within / QUEUE_PAGE_SIZE).unwrap_or(u32::MAX);
                Meaning::Queue(number, within % QUEUE_PAGE_SIZE)
            }
            _ => Meaning::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_region_follow_each_other_and_end() {
        let geometry = Geometry::new(16, 256 << 20).unwrap();
        let io = 1 << 20;
        let found = [5, io + 5, 2 * io + 5, 3 * io + 5, u64::MAX].map(|at| Region::Io.decode(geometry, at));
        let check = |look, space| Meaning::Check(look, space, 5);
        let none = Meaning::Nothing;
        let queue = Meaning::Queue(0, 5);
        let of_io = [check(Look::Clear, Space::Io), check(Look::Peek, Space::Io), queue, none];
        assert_eq!(found[0], Meaning::Access(Space::Io, 5));
        assert_eq!(found[1..], of_io);
        assert_eq!(Region::Io.decode(geometry, 4 * io - 1), Meaning::Queue(255, 4095));
        let memory = 4 << 30;
        let found = [5, memory + 5, 2 * memory + 5].map(|at| Region::Assurance.decode(geometry, at));
        assert_eq!(found, [check(Look::Clear, Space::Memory), check(Look::Peek, Space::Memory), none]);
        assert_eq!(Region::Access.decode(geometry, memory), Meaning::Nothing);
    }

    #[test]
    fn regions_are_powers_of_two_as_bars_have_to_be() {
        for geometry in [Geometry::new(2, 4096).unwrap(), Geometry::new(256, 1 << 30).unwrap()] {
            for region in [Region::Registers, Region::Io, Region::Access, Region::Assurance] {
                assert!(region.size(geometry).is_power_of_two(), "{region:?}");
            }
            assert_eq!(Region::Access.size(geometry), Region::Assurance.size(geometry));
        }
    }
}
