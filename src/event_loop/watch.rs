//! Tells when the clock of the loop may have stood still, or have jumped.
//!
//! In a virtual machine that is paused, saved or migrated all clocks stand still, and nothing in it
//! can tell that at once. But its wall-clock time is set right afterwards, by the hypervisor's
//! agent or by NTP, and then the two clocks differ in what has passed.

use core::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::adaptor::Instant;

/// How far the clocks may drift apart between two looks, whatever the time between: a look can be
/// interrupted.
const SLACK: Duration = Duration::from_millis(10);
/// The part of the time between two looks by which they may drift apart; NTP slews by half of it.
const SLEW_PARTS: u32 = 1000;

/// The last look at both clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    last: Option<(Instant, Duration)>,
}

impl Watch {
    /// Whether the loop's clock, which shows `now`, may have stood still or have jumped since the
    /// last call.
    pub fn has_jumped(&mut self, now: Instant) -> bool {
        let wall = Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default();
        self.compare(now, wall)
    }

    fn compare(&mut self, now: Instant, wall: Duration) -> bool {
        let Some((then, wall_then)) = self.last.replace((now, wall)) else { return false };
        let passed = now.since(then);
        let wall_passed = wall.saturating_sub(wall_then);
        let slack = SLACK.saturating_add(passed.checked_div(SLEW_PARTS).unwrap_or_default());
        wall_passed.abs_diff(passed) > slack || wall_then > wall.saturating_add(slack)
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_is_noticed_and_slewing_is_not() {
        let (mut watch, mut now, mut wall) = (Watch::default(), Instant::ZERO, Duration::from_secs(1 << 30));
        let mut passes = |time: Duration, wall_time: Duration| {
            now = now.after(time);
            wall += wall_time;
            watch.compare(now, wall)
        };
        let second = Duration::from_secs(1);
        assert!(!passes(second, second), "the first look");
        assert!(!passes(second, second + Duration::from_micros(500)));
        assert!(!passes(3600 * second, 3600 * second - Duration::from_millis(1800)));
        assert!(passes(second, second + Duration::from_millis(30)));
        assert!(passes(second, second - Duration::from_millis(30)));
        assert!(!passes(second, second), "it is told once");
    }

    #[test]
    fn a_wall_clock_that_is_set_back_is_noticed() {
        let mut watch = Watch::default();
        let at = Instant::ZERO.after(Duration::from_secs(1));
        assert!(!watch.compare(at, Duration::from_secs(5000)));
        assert!(watch.compare(at, Duration::from_secs(4000)));
        assert!(!watch.compare(at.after(Duration::from_secs(1)), Duration::from_secs(4001)));
    }

    #[test]
    fn the_clocks_of_this_machine_run_together() {
        let mut watch = Watch::default();
        let clock = crate::event_loop::Clock;
        assert!(!watch.has_jumped(clock.now()));
        assert!(!watch.has_jumped(clock.now()));
    }
}
