//! Which versions of the protocol an end of a link, or a node, speaks.
//!
//! The header's layout and the forms of Join, Refuse and Hello are the same in every version, so that any two can find out
//! whether there is one that both speak. Whatever else is of a version, or a command, that is not known here is skipped.

use core::fmt;

use super::packet::VERSION;

/// The versions that somebody speaks, and what is possible besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    smallest: u8,
    largest: u8,
    features: u16,
}

impl Versions {
    /// What this program speaks.
    pub const OWN: Self = Self { smallest: VERSION, largest: VERSION, features: 0 };

    /// From the smallest to the largest, with these feature bits; `None` where that is no version.
    pub const fn new(smallest: u8, largest: u8, features: u16) -> Option<Self> {
        if smallest == 0 || smallest > largest { None } else { Some(Self { smallest, largest, features }) }
    }

    /// The version that the two use with each other: the largest that both speak.
    pub fn common(self, other: Self) -> Option<u8> {
        let largest = self.largest.min(other.largest);
        (largest >= self.smallest.max(other.smallest)).then_some(largest)
    }

    /// For the operator: why one who speaks these is not spoken with.
    pub fn difference(self) -> String {
        format!(
            "it speaks {self} of the protocol, and this program {}: upgrade the older of the two",
            Self::OWN
        )
    }

    /// Their form on the wire.
    pub(super) const fn to_field(self) -> u32 {
        let [low, high] = self.features.to_le_bytes();
        u32::from_le_bytes([self.smallest, self.largest, low, high])
    }

    /// The inverse of [`Self::to_field`].
    pub(super) const fn from_field(field: u32) -> Option<Self> {
        let [smallest, largest, low, high] = field.to_le_bytes();
        Self::new(smallest, largest, u16::from_le_bytes([low, high]))
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { smallest, largest, .. } = self;
        if smallest == largest {
            write!(f, "version {smallest}")
        } else {
            write!(f, "versions {smallest} to {largest}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_both_speak_is_used() {
        let versions = |smallest, largest| Versions::new(smallest, largest, 0).unwrap();
        assert_eq!(versions(1, 3).common(versions(2, 9)), Some(3));
        assert_eq!(versions(2, 9).common(versions(1, 3)), Some(3));
        assert_eq!(versions(1, 1).common(versions(1, 1)), Some(1));
        assert_eq!(versions(1, 1).common(versions(2, 255)), None);
        assert_eq!(versions(4, 255).common(versions(1, 3)), None);
    }

    #[test]
    fn what_is_no_version_has_no_form() {
        for (smallest, largest) in [(0, 1), (0, 0), (2, 1)] {
            assert_eq!(Versions::new(smallest, largest, 7), None);
        }
        let all = Versions::new(1, 9, 0x8001).unwrap();
        assert_eq!(Versions::from_field(all.to_field()), Some(all));
        assert_eq!(all.to_field(), 0x8001_0901);
    }
}
