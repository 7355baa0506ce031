//! The clock of an adaptor process: it drifts, jumps ahead and stands still, while the world's time
//! goes on.
//!
//! Invariant: it never goes back, and [`Clock::when`] names the first moment of the world at which
//! the clock shows a time.

use std::time::Duration;

use assured_rdma::adaptor::Instant;

/// What a clock shows, from a moment of the world's on.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The moment from which it runs.
    since: Instant,
    /// What it shows until then.
    shows: Instant,
    /// How much faster than the world's it runs, in parts per million.
    drift: i64,
}

impl Clock {
    /// The world's own time.
    pub const TRUE: Self = Self { since: Instant::ZERO, shows: Instant::ZERO, drift: 0 };

    /// What it shows at a moment.
    pub fn at(&self, moment: Instant) -> Instant {
        let passed = moment.since(self.since).as_nanos() as i128;
        let shown = passed + passed * i128::from(self.drift) / 1_000_000;
        self.shows.after(Duration::from_nanos(shown as u64))
    }

    /// The first moment at which it shows `time`.
    pub fn when(&self, time: Instant) -> Instant {
        let shown = time.since(self.shows).as_nanos();
        let passed = shown * 1_000_000 / (1_000_000 + i128::from(self.drift)) as u128;
        let mut moment = self.since.after(Duration::from_nanos(u64::try_from(passed).unwrap_or(u64::MAX)));
        while self.at(moment) < time && moment.as_nanos() < u64::MAX {
            moment = moment.after(Duration::from_nanos(1));
        }
        moment
    }

    /// The clock runs so much faster from now on, in parts per million.
    pub fn drifts(&mut self, now: Instant, drift: i64) {
        *self = Self { since: now, shows: self.at(now), drift };
    }

    /// The clock jumps ahead.
    pub fn jumps(&mut self, now: Instant, by: Duration) {
        *self = Self { since: now, shows: self.at(now).after(by), drift: self.drift };
    }

    /// The clock stands still for a time.
    pub fn stops(&mut self, now: Instant, time: Duration) {
        let shows = self.at(now).after(Duration::from_nanos(1));
        *self = Self { since: now.after(time), shows, drift: self.drift };
    }
}

#[test]
fn a_clock_shows_what_it_is_asked_for_at_the_moment_that_it_names() {
    let mut clock = Clock::TRUE;
    let mut now = Instant::from_nanos(1_000_000);
    for drift in [500, -500, 0, 333] {
        clock.drifts(now, drift);
        for nanos in [1u64, 999, 1_000_003, 150_000_000] {
            let time = clock.at(now).after(Duration::from_nanos(nanos));
            let moment = clock.when(time);
            assert!(clock.at(moment) >= time && clock.at(Instant::from_nanos(moment.as_nanos() - 1)) < time);
        }
        clock.stops(now, Duration::from_millis(7));
        now = now.after(Duration::from_millis(7));
        assert_eq!(clock.at(now), clock.at(Instant::ZERO));
        clock.jumps(now, Duration::from_millis(3));
    }
}
