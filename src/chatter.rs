//! Keeps the log readable, and the disk free, where guests or other nodes cause lines without end.

use core::fmt::Display;
use core::time::Duration;

use crate::adaptor::Instant;
use crate::allowance::Allowance;

/// Lets some lines through, and counts those withheld.
#[derive(Debug)]
pub struct Chatter {
    lines: Allowance,
    withheld: u64,
}

impl Chatter {
    /// For what one guest, and the nodes that it talks to, bring about.
    pub const fn of_a_guest() -> Self {
        Self::new(50, Duration::from_millis(20))
    }

    /// For what is said of each node or router: as many as there can be may come or go at once.
    pub const fn of_a_network() -> Self {
        Self::new(1024, Duration::from_millis(50))
    }

    /// For what goes wrong in the same way many thousand times in a row.
    pub const fn of_a_series() -> Self {
        Self::new(2, Duration::from_secs(10))
    }

    const fn new(at_once: u32, pause: Duration) -> Self {
        Self { lines: Allowance::new(at_once, pause), withheld: 0 }
    }

    /// Logs the line, unless it is to be withheld. Returns whether it was logged.
    pub fn log(&mut self, now: Instant, level: log::Level, line: impl Display) -> bool {
        let Some(withheld) = self.admit(now) else { return false };
        if withheld > 0 {
            log::warn!("{withheld} lines like the next one were left out");
        }
        log::log!(level, "{line}");
        true
    }

    /// How many lines were withheld since the last that was let through, or `None` where this one is to be withheld too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if !self.lines.take(now) {
            self.withheld = self.withheld.saturating_add(1);
            return None;
        }
        Some(core::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_come_at_once_and_a_later_one_tells_how_many_were_withheld() {
        let mut chatter = Chatter::of_a_guest();
        let start = Instant::ZERO.after(Duration::from_secs(100));
        let admitted = (0..170).filter(|_| chatter.admit(start) == Some(0)).count();
        assert_eq!(admitted, 50);
        assert_eq!(chatter.admit(start.after(Duration::from_millis(19))), None);
        assert_eq!(chatter.admit(start.after(Duration::from_millis(20))), Some(121));
    }

    #[test]
    fn a_whole_network_may_come_and_go_at_once() {
        let mut chatter = Chatter::of_a_network();
        assert!((0..2 * 256).all(|_| chatter.admit(Instant::ZERO) == Some(0)));
    }
}
