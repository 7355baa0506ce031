//! Keeps the log readable, and the disk free, where guests or other nodes cause lines without end.

use core::fmt::Display;
use core::time::Duration;

use crate::adaptor::Instant;

/// Lines that are let through in each [`PERIOD`].
const LINES: u32 = 50;
const PERIOD: Duration = Duration::from_secs(1);

/// Counts lines, and those withheld.
#[derive(Debug, Default)]
pub struct Chatter {
    since: Instant,
    lines: u32,
    withheld: u64,
}

impl Chatter {
    /// Logs the line, unless it is to be withheld. Returns whether it was logged.
    pub fn log(&mut self, now: Instant, level: log::Level, line: impl Display) -> bool {
        let Some(withheld) = self.admit(now) else { return false };
        if withheld > 0 {
            log::warn!("{withheld} lines about nodes, routers and resets were left out");
        }
        log::log!(level, "{line}");
        true
    }

    /// How many lines were withheld since the last that was let through, or `None` where this one is to be withheld too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.since(self.since) >= PERIOD {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= LINES {
            self.withheld = self.withheld.saturating_add(1);
            return None;
        }
        self.lines = self.lines.saturating_add(1);
        Some(core::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_fifty_lines_and_the_next_tells_how_many_were_withheld() {
        let mut chatter = Chatter::default();
        let start = Instant::ZERO.after(PERIOD);
        let admitted = (0..170).filter(|_| chatter.admit(start) == Some(0)).count();
        assert_eq!(admitted, 50);
        assert_eq!(chatter.admit(start.after(PERIOD / 2)), None);
        assert_eq!(chatter.admit(start.after(PERIOD)), Some(121));
        assert_eq!(chatter.admit(start.after(PERIOD)), Some(0));
    }
}
