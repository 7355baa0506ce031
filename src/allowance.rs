//! How often something may happen that costs others something: so often at once, and then once more in each pause.

use core::time::Duration;

use crate::adaptor::Instant;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    at_once: u32,
    pause: Duration,
    left: u32,
    /// `left` was right at this time.
    since: Instant,
}

impl Allowance {
    /// The whole of it.
    pub const fn new(at_once: u32, pause: Duration) -> Self {
        Self { at_once, pause, left: at_once, since: Instant::ZERO }
    }

    /// Nothing of it, for now.
    pub const fn used_up(now: Instant, pause: Duration) -> Self {
        Self { at_once: 0, pause, left: 0, since: now }
    }

    /// Whether it may happen now, which it then does.
    pub fn take(&mut self, now: Instant) -> bool {
        let more = now.since(self.since).as_nanos().checked_div(self.pause.as_nanos()).unwrap_or(0);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(more).min(self.at_once);
        // What is whole grows no further.
        self.since =
            if self.left == self.at_once { now } else { self.since.after(self.pause.saturating_mul(more)) };
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }

    /// Whether nothing of it was left after the last [`Self::take`].
    pub const fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// When it may happen once more, where it may not now.
    pub fn next(&self) -> Instant {
        self.since.after(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_one_in_each_pause() {
        let mut now = Instant::ZERO.after(Duration::from_secs(1));
        let mut allowance = Allowance::new(32, Duration::from_millis(50));
        let mut count = |now| (0..1000).take_while(|_| allowance.take(now)).count();
        assert_eq!(count(now), 32);
        for (wait, more) in [(49, 0), (1, 1), (1000, 20), (120, 2), (30, 1), (100_000, 32), (49, 0), (1, 1)] {
            now = now.after(Duration::from_millis(wait));
            assert_eq!(count(now), more, "after {wait} ms more");
        }
        now = now.after(Duration::from_secs(u64::from(u32::MAX)));
        assert_eq!(count(now), 32);
        assert!(allowance.is_used_up());
        assert_eq!(allowance.next(), now.after(Duration::from_millis(50)));
    }
}
