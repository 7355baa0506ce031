//! How long to wait before the next attempt to connect.

use core::time::Duration;

use crate::adaptor::random::Random;

/// The longest first wait.
const FIRST: Duration = Duration::from_millis(50);
/// The longest wait.
const LAST: Duration = Duration::from_secs(2);

/// Waits that double with each failure up to a cap. Each is drawn from the upper half of its range, so
/// that nodes which lost each other at one moment do not come back at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure.
    pub fn after_failure(&mut self, random: &mut Random) -> Duration {
        let doubled = FIRST.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        Self::jittered(doubled.min(LAST), random)
    }

    /// How long to wait after the other side said that it does not want us: nothing that a hurry makes better.
    pub fn after_refusal(random: &mut Random) -> Duration {
        Self::jittered(LAST, random)
    }

    fn jittered(longest: Duration, random: &mut Random) -> Duration {
        let longest = longest.as_nanos();
        let drawn = longest.saturating_mul(u128::from(random.next())) >> 65;
        Duration::from_nanos(u64::try_from(longest / 2).unwrap_or(u64::MAX))
            .saturating_add(Duration::from_nanos(u64::try_from(drawn).unwrap_or(u64::MAX)))
    }

    /// Forgets all failures.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_differ() {
        let mut random = Random::new(1);
        let mut backoff = Backoff::default();
        let mut longest = FIRST;
        for _ in 0..100 {
            let wait = backoff.after_failure(&mut random);
            assert!(wait >= longest / 2 && wait <= longest, "{wait:?} for {longest:?}");
            longest = LAST.min(longest * 2);
        }
        let waits: Vec<_> = (0..10).map(|_| backoff.after_failure(&mut random)).collect();
        assert!(waits.windows(2).all(|pair| pair[0] != pair[1]));
        backoff.reset();
        assert!(backoff.after_failure(&mut random) <= FIRST);
    }
}
