//! Where the function's regions lie on the bus, as far as that can be known.
//!
//! Whoever holds the function (QEMU) keeps the base address registers and decodes them itself. It lets us see what is
//! written to them, and never what it makes of that.
//!
//! Invariant: a base is what was written last, or 0 where nothing was, or where the last write was a probe for the size.

use super::region::Region;
use crate::adaptor::address::Geometry;
use crate::adaptor::memory::Segment;

/// Offset of the first base address register in configuration space.
const FIRST: u64 = 0x10;
/// Their size in bytes, all six.
const SIZE: usize = 24;
/// What is written to find out a register's size.
const PROBE: u32 = u32::MAX;

/// What was written to the base address registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bars {
    written: [u8; SIZE],
}

impl Bars {
    /// Takes a write to configuration space, of any length at any offset.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (byte, at) in self.written.iter_mut().zip(FIRST..) {
            let index = at.checked_sub(offset).and_then(|index| usize::try_from(index).ok());
            if let Some(&new) = index.and_then(|index| data.get(index)) {
                *byte = new;
            }
        }
    }

    /// The bus address at which the `size` bytes of a region begin; 0 where it is not known.
    pub fn base(&self, region: Region, size: u64) -> u64 {
        let (index, is_wide) = match region {
            Region::Registers => (0, false),
            Region::Io => (1, false),
            Region::Access => (2, true),
            Region::Assurance => (4, true),
            Region::Config => return 0,
        };
        let low = self.register(index);
        let high = if is_wide { self.register(index.saturating_add(1)) } else { 0 };
        if low == PROBE || high == PROBE {
            return 0;
        }
        (u64::from(high) << 32 | u64::from(low)) & !size.saturating_sub(1)
    }

    /// Whether a segment of the bus touches a region of this function, as far as it is known where that is.
    pub fn overlap(&self, geometry: Geometry, segment: &Segment) -> bool {
        let end = u128::from(segment.address).saturating_add(segment.len as u128);
        [Region::Registers, Region::Io, Region::Access, Region::Assurance].into_iter().any(|region| {
            let size = region.size(geometry);
            let begin = u128::from(self.base(region, size));
            begin != 0 && begin < end && u128::from(segment.address) < begin.saturating_add(size.into())
        })
    }

    fn register(&self, index: usize) -> u32 {
        let bytes = self.written.as_chunks().0.get(index).copied().unwrap_or_default();
        u32::from_le_bytes(bytes)
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn write(bars: &mut Bars, offset: u64, value: u32) {
        bars.write(offset, &value.to_le_bytes());
    }

    #[test]
    fn nothing_is_known_until_it_is_written() {
        let bars = Bars::default();
        for region in [Region::Registers, Region::Io, Region::Access, Region::Assurance, Region::Config] {
            assert_eq!(bars.base(region, 1 << 16), 0);
        }
    }

    #[test]
    fn a_base_is_what_was_written_but_for_the_type() {
        let mut bars = Bars::default();
        write(&mut bars, 0x10, 0xfe00_0000);
        write(&mut bars, 0x14, 0xfd40_0000);
        write(&mut bars, 0x18, 0x4000_000c);
        write(&mut bars, 0x1c, 0x38);
        write(&mut bars, 0x20, 0x0000_000c);
        write(&mut bars, 0x24, 0x3a);
        assert_eq!(bars.base(Region::Registers, 1 << 16), 0xfe00_0000);
        assert_eq!(bars.base(Region::Io, 4 << 20), 0xfd40_0000);
        assert_eq!(bars.base(Region::Access, 1 << 30), 0x38_4000_0000);
        assert_eq!(bars.base(Region::Assurance, 8 << 30), 0x3a_0000_0000);
    }

    #[test]
    fn while_a_size_is_probed_the_base_is_not_known() {
        let mut bars = Bars::default();
        write(&mut bars, 0x18, 0x4000_000c);
        write(&mut bars, 0x1c, 0x38);
        for (offset, before) in [(0x18, 0x4000_000c), (0x1c, 0x38)] {
            write(&mut bars, offset, PROBE);
            assert_eq!(bars.base(Region::Access, 1 << 30), 0);
            write(&mut bars, offset, before);
            assert_eq!(bars.base(Region::Access, 1 << 30), 0x38_4000_0000);
        }
    }

    #[test]
    fn writes_count_by_byte_lanes_and_others_not_at_all() {
        let mut bars = Bars::default();
        bars.write(0x0e, &[1, 2, 3, 4, 5, 0xfe]);
        assert_eq!(bars.base(Region::Registers, 1), 0xfe05_0403);
        bars.write(0x12, &[0x66]);
        assert_eq!(bars.base(Region::Registers, 1), 0xfe66_0403);
        bars.write(0x28, &[0xff; 8]);
        bars.write(u64::MAX, &[0xff; 8]);
        bars.write(0, &[0xff; 0x10]);
        assert_eq!(bars.base(Region::Registers, 1), 0xfe66_0403);
        assert_eq!(bars.base(Region::Assurance, 1), 0);
    }

    #[test]
    fn what_touches_a_region_is_told_from_its_neighbours() {
        let geometry = Geometry::new(16, 256 << 20).unwrap();
        let mut bars = Bars::default();
        let touched =
            |bars: &Bars, address: u64, len: usize| bars.overlap(geometry, &Segment { address, len });
        assert!(!touched(&bars, 0, 1 << 16), "nothing is placed yet");
        write(&mut bars, 0x10, 0xfebf_0000);
        write(&mut bars, 0x14, 0xfe00_0000);
        write(&mut bars, 0x18, 0xc);
        write(&mut bars, 0x1c, 0x24);
        write(&mut bars, 0x20, 0xc);
        write(&mut bars, 0x24, 0x30);
        for (begin, size) in [
            (0xfebf_0000, 64 << 10),
            (0xfe00_0000, 4 << 20),
            (0x24_0000_0000, (32 * 256_u64) << 20),
            (0x30_0000_0000, (32 * 256_u64) << 20),
        ] {
            assert!([begin, begin + size - 1].iter().all(|&at| touched(&bars, at, 1)), "{begin:#x}");
            assert!(touched(&bars, begin - 4, 5) && !touched(&bars, begin - 4, 4));
            assert!(!touched(&bars, begin + size, 4));
        }
        assert!(!touched(&bars, u64::MAX, 1));
    }
}
