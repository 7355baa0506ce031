//! How often something may happen that costs others something.

use core::time::Duration;

use crate::adaptor::Instant;

/// How often it may happen at once.
const BURST: u32 = 32;
/// After this time it may happen once more.
const PAUSE: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    left: u32,
    /// `left` was right at this time.
    since: Instant,
}

impl Allowance {
    /// The whole of it.
    pub const fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    /// Nothing of it.
    pub const fn used_up(now: Instant) -> Self {
        Self { left: 0, since: now }
    }

    /// Whether it may happen now, which it then does.
    pub fn take(&mut self, now: Instant) -> bool {
        while self.left < BURST && self.next() <= now {
            self.left = self.left.saturating_add(1);
            self.since = self.next();
        }
        if self.left == BURST {
            self.since = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// Whether nothing of it is left, at the time of the last [`Self::take`].
    pub const fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// When it may happen once more, where it may not now.
    pub fn next(&self) -> Instant {
        self.since.after(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_twenty_in_a_second() {
        let mut now = Instant::ZERO.after(Duration::from_secs(1));
        let mut allowance = Allowance::new(now);
        let mut count = |now| core::iter::repeat_with(|| allowance.take(now)).take_while(|&may| may).count();
        assert_eq!(count(now), 32);
        for (wait, more) in [(49, 0), (1, 1), (1000, 20), (120, 2), (30, 1), (100_000, 32), (49, 0), (1, 1)] {
            now = now.after(Duration::from_millis(wait));
            assert_eq!(count(now), more, "after {wait} ms more");
        }
        assert_eq!(allowance.next(), now.after(PAUSE));
    }
}
