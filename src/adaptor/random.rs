//! Numbers that are hard to guess by accident: incarnations, nonces and jitter.

/// A SplitMix64 generator. Its seed comes from outside, so that a simulated run can be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Random(u64);

impl Random {
    /// A generator that gives the same numbers for the same seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number, not 0, that others may see. From a single output the generator's state could be computed, and with it every number
    /// that it gives and those from which it was seeded, so also the nonces for other peers; from the sum of two it cannot.
    pub const fn next_public(&mut self) -> u64 {
        loop {
            let number = self.next().wrapping_add(self.next());
            if number != 0 {
                return number;
            }
        }
    }

    /// The next number that is not 0.
    pub const fn next_nonzero(&mut self) -> u64 {
        loop {
            let number = self.next();
            if number != 0 {
                return number;
            }
        }
    }
}
