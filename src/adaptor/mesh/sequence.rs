//! Numbers that wrap: places in a flow and epochs.
//!
//! Two of them are compared by the shorter way around the circle, so a flow may run for ever as long as less than
//! half of the numbers are in use at once (the window is a few hundred).

use core::cmp::Ordering;

macro_rules! wrapping_number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The number `steps` further on.
            pub const fn plus(self, steps: u32) -> Self {
                Self(self.0.wrapping_add(steps))
            }

            /// How many steps lie from `earlier` to this; negative where this is the earlier one.
            pub const fn distance_from(self, earlier: Self) -> i32 {
                self.0.wrapping_sub(earlier.0).cast_signed()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.distance_from(*other).cmp(&0))
            }
        }
    };
}

wrapping_number! {
    /// The place of a request in its flow; the first of an epoch is 0.
    Sequence
}
wrapping_number! {
    /// A generation of a flow: what belongs to an older one is never executed any more.
    Epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_goes_the_shorter_way_around() {
        assert!(Sequence(0) > Sequence(u32::MAX));
        assert!(Sequence(u32::MAX).plus(2) == Sequence(1));
        assert_eq!(Sequence(3).distance_from(Sequence(u32::MAX)), 4);
        assert_eq!(Epoch(u32::MAX).distance_from(Epoch(1)), -2);
    }
}
