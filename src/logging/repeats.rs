//! Keeps the log readable, and the disk free, where guests, peers or strangers cause lines without end.
//!
//! Each place in the code that logs has an allowance of its own. What it withholds is counted, and told with its next line. Lines for those
//! who look for a fault (debug and trace) are not limited.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use log::{Level, Record};

use super::NODES;
use crate::adaptor::Instant;
use crate::allowance::Allowance;

/// Lines of one place at once, and the time after which it may say one more.
const USUAL: (u32, Duration) = (30, Duration::from_secs(1));
/// The same for [`NODES`].
const OF_NODES: (u32, Duration) = (1024, Duration::from_secs(1));

/// A place in the code: its file and line.
type Place = (Option<&'static str>, Option<u32>);

/// See the module.
#[derive(Debug, Default)]
pub struct Repeats {
    /// What each place may still say, and how many lines of it were withheld. Bounded by the code.
    places: Mutex<HashMap<Place, (Allowance, u64)>>,
}

impl Repeats {
    /// How many lines of the record's place were withheld since its last one, or `None` where this one is to be withheld too.
    pub fn admit(&self, now: Instant, record: &Record<'_>) -> Option<u64> {
        if record.level() > Level::Info {
            return Some(0);
        }
        let (at_once, pause) = if record.target() == NODES { OF_NODES } else { USUAL };
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (record.file_static(), record.line());
        let (allowance, withheld) =
            places.entry(place).or_insert_with(|| (Allowance::new(at_once, pause), 0));
        if allowance.take(now) {
            return Some(core::mem::take(withheld));
        }
        *withheld = withheld.saturating_add(1);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(repeats: &Repeats, millis: u64, level: Level, target: &str, line: u32) -> Option<u64> {
        let now = Instant::ZERO.after(Duration::from_millis(millis));
        let mut record = Record::builder();
        repeats.admit(
            now,
            &record.level(level).target(target).file_static(Some("a.rs")).line(Some(line)).build(),
        )
    }

    #[test]
    fn some_lines_come_at_once_and_a_later_one_tells_how_many_were_withheld() {
        let repeats = Repeats::default();
        let ask = |millis: u64, line| {
            admitted(&repeats, 1_000_000 + millis, Level::Warn, "assured_rdma::vfio", line)
        };
        assert_eq!((0..1020).filter(|_| ask(0, 1) == Some(0)).count(), 30);
        assert_eq!(ask(999, 1), None);
        assert_eq!(ask(999, 2), Some(0), "another place");
        assert_eq!(ask(1000, 1), Some(991));
        assert_eq!(ask(1001, 1), None);
    }

    #[test]
    fn a_whole_network_may_come_and_go_at_once() {
        let repeats = Repeats::default();
        assert!((0..4 * 256).all(|_| admitted(&repeats, 0, Level::Warn, NODES, 1) == Some(0)));
        assert_eq!(admitted(&repeats, 0, Level::Warn, NODES, 1), None);
    }

    #[test]
    fn who_looks_for_a_fault_sees_all() {
        let repeats = Repeats::default();
        assert!((0..1000).all(|_| admitted(&repeats, 0, Level::Debug, "assured_rdma", 1) == Some(0)));
    }
}
