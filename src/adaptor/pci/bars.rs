//! Where the function's own BARs lie on its bus, as far as it has seen.
//!
//! QEMU keeps the BAR registers and answers reads of them itself, but passes writes on. What they say is used for one thing: an access
//! of another node is not sent out to the bus only to come back to this function.

use super::Region;
use crate::adaptor::address::Geometry;
use crate::adaptor::memory::Segment;

/// The first BAR register in configuration space, in bytes.
const FIRST: u64 = 0x10;
/// Bits of a memory BAR's register that are no address.
const FLAGS: u32 = 0xf;
/// The BARs: the register, whether the next one is the upper half, and the region.
const BARS: [(usize, bool, Region); 4] = [
    (0, false, Region::Registers),
    (1, false, Region::Io),
    (2, true, Region::Access),
    (4, true, Region::Assurance),
];

/// What was written to the BAR registers last. A reset does not change where QEMU has the BARs, so that it leaves this too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OwnBars([u32; 6]);

impl OwnBars {
    /// Notes a write to configuration space, of any length at any offset (bytes).
    pub fn note(&mut self, offset: u64, data: &[u8]) {
        for (begin, register) in (FIRST..).step_by(4).zip(&mut self.0) {
            let mut bytes = register.to_le_bytes();
            for (at, byte) in (begin..).zip(&mut bytes) {
                let place = at.checked_sub(offset).and_then(|place| usize::try_from(place).ok());
                if let Some(&new) = place.and_then(|place| data.get(place)) {
                    *byte = new;
                }
            }
            *register = u32::from_le_bytes(bytes);
        }
    }

    /// Whether a segment of the bus touches a BAR of this function. One at address 0 was not placed yet.
    pub fn overlap(&self, geometry: Geometry, segment: &Segment) -> bool {
        let register = |number: usize| self.0.get(number).copied().unwrap_or(0);
        let end = u128::from(segment.address).saturating_add(segment.len as u128);
        BARS.iter().any(|&(number, is_wide, region)| {
            let upper = if is_wide { register(number.saturating_add(1)) } else { 0 };
            let begin = u128::from(u64::from(upper) << 32 | u64::from(register(number) & !FLAGS));
            let bar_end = begin.saturating_add(region.size(geometry).into());
            begin != 0 && begin < end && u128::from(segment.address) < bar_end
        })
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    fn touched(bars: &OwnBars, address: u64, len: usize) -> bool {
        let geometry = Geometry::new(16, 256 << 20).unwrap();
        bars.overlap(geometry, &Segment { address, len })
    }

    #[test]
    fn what_touches_a_bar_is_told_from_its_neighbours() {
        let mut bars = OwnBars::default();
        assert!(!touched(&bars, 0, 1 << 16), "nothing is placed yet");
        bars.note(0x10, &0xfebf_0000_u32.to_le_bytes());
        bars.note(0x14, &0xfe00_0000_u32.to_le_bytes());
        bars.note(0x18, &0xf000_000c_u32.to_le_bytes());
        bars.note(0x1c, &0x23_u32.to_le_bytes());
        bars.note(0x20, &[0x0c, 0, 0, 0, 0x30, 0, 0, 0]);
        for (begin, size) in [
            (0xfebf_0000, 64 << 10),
            (0xfe00_0000, 4 << 20),
            (0x23_f000_0000, 16 * 256_u64 << 20),
            (0x30_0000_0000, 32 * 256_u64 << 20),
        ] {
            for at in [begin, begin + size - 1] {
                assert!(touched(&bars, at, 1), "{at:#x}");
            }
            assert!(touched(&bars, begin - 4, 5));
            assert!(!touched(&bars, begin - 4, 4));
            assert!(!touched(&bars, begin + size, 4));
        }
        assert!(!touched(&bars, u64::MAX, 1));
    }

    #[test]
    fn writes_of_any_size_are_joined() {
        let mut bars = OwnBars::default();
        bars.note(0x10, &[0xff; 4]);
        bars.note(0x12, &[0xbf, 0xfe]);
        bars.note(0x0e, &[1, 2, 0, 0]);
        assert_eq!(bars.0, [0xfebf_0000, 0, 0, 0, 0, 0]);
        bars.note(0x27, &[0xaa, 0xbb]);
        bars.note(u64::MAX, &[1; 64]);
        bars.note(0, &[]);
        assert_eq!(bars.0, [0xfebf_0000, 0, 0, 0, 0, 0xaa00_0000]);
    }
}
