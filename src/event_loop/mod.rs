//! The loop that a process runs: wait, hand over what is there, carry out what follows, until told to stop.
//!
//! After activity it polls for a while before it sleeps, since a wake-up costs more than the way of a packet.

mod signals;
mod watch;

use core::time::Duration;
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};

use self::signals::{Signal, Signals};
use self::watch::Watch;
use crate::adaptor::Instant;
use crate::poller::{Poller, Report, Reports, Token};

/// The loop's own token; those of services come after it.
const SIGNALS: Token = Token(0);
/// How exactly the kernel keeps the loop's timeouts; its default of 50 us is longer than the gather time.
const TIMER_SLACK_NANOS: u64 = 1000;

/// Time since the machine started. It goes on while the machine is suspended: a lease must not outlive that.
#[derive(Clone, Copy, Debug)]
pub struct Clock;

impl Clock {
    /// The time.
    pub fn now(self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        Instant::ZERO.after(Duration::try_from(time).unwrap_or_default())
    }
}

/// What a service did in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// There was nothing to do.
    Idle,
    /// What it found. Others may have waited for that.
    Done,
    /// As much as others may be kept waiting for, and there is more.
    Cut,
}

impl Turn {
    /// A turn in which something was done, or not.
    pub const fn of(progress: bool) -> Self {
        if progress { Self::Done } else { Self::Idle }
    }
}

/// What runs in the loop.
pub trait Service {
    /// Something is ready.
    fn handle_report(&mut self, now: Instant, report: Report);
    /// Does everything that can be done now, by bounded portions from each source. It has another turn until it is idle.
    fn turn(&mut self, now: Instant) -> Turn;
    /// The clock may have stood still, or have jumped, before `now`.
    fn handle_clock_jump(&mut self, _now: Instant) {}
    /// Whether [`Self::turn`] has to look at what nothing reports.
    fn is_polling(&self) -> bool {
        false
    }
    /// The time at which [`Self::turn`] has something to do, even if nothing arrives.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// A loop before it runs.
pub struct EventLoop {
    clock: Clock,
    poller: Rc<Poller>,
    signals: Signals,
    /// How long to poll after activity.
    poll: Duration,
}

impl EventLoop {
    /// Takes the process's signals. `poll` is how long to poll after activity before sleeping.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn new(poll: Duration) -> io::Result<Self> {
        let poller = Rc::new(Poller::new()?);
        let signals = Signals::new(&poller, SIGNALS)?;
        let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NANOS));
        if let Err(error) = slack {
            log::debug!("timeouts are kept less exactly: {error}");
        }
        Ok(Self { clock: Clock, poller, signals, poll })
    }

    /// The clock that gives the service its time.
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// Where the service registers what it waits for, with tokens from 1 on.
    pub const fn poller(&self) -> &Rc<Poller> {
        &self.poller
    }

    /// Runs until the process is told to stop.
    ///
    /// # Errors
    /// Where the kernel does not let it wait any more.
    pub fn run(mut self, service: &mut impl Service) -> io::Result<()> {
        let mut reports = Reports::default();
        let mut now = self.clock.now();
        let mut poll_until = now;
        let mut turn = Turn::Cut;
        let mut watch = Watch::default();
        // Whether the service itself looks again and again.
        let mut looks = false;
        // When the service has something to do, even if nothing arrives.
        let mut due = None;
        loop {
            let polling = turn > Turn::Idle || looks || now < poll_until;
            if polling && turn < Turn::Cut {
                // Whoever is to answer, or has now something to do, may need this processor.
                std::thread::yield_now();
            }
            let to_sleep = || due.map(|due: Instant| due.since(now));
            let timeout = if polling { Some(Duration::ZERO) } else { to_sleep() };
            self.poller.wait(&mut reports, timeout)?;

            now = self.clock.now();
            if turn == Turn::Idle && !looks && reports.is_empty() && due.is_none_or(|due| now < due) {
                continue;
            }
            // Before anything that has arrived is looked at.
            if watch.has_jumped(now) {
                log::info!("the clock was set, or this machine stood still: leases are asked for again");
                service.handle_clock_jump(now);
            }
            for report in reports.iter() {
                if report.token != SIGNALS {
                    service.handle_report(now, report);
                } else if self.signals.take().is_some_and(stops) {
                    return Ok(());
                }
            }
            turn = service.turn(now);
            looks = service.is_polling();
            due = service.poll_timeout();
            now = self.clock.now();
            if turn > Turn::Idle || !reports.is_empty() {
                poll_until = now.after(self.poll);
            }
        }
    }
}

/// What a signal means: whether to stop.
fn stops(signal: Signal) -> bool {
    match signal {
        Signal::Stop => {
            log::info!("told to stop");
            true
        }
        Signal::Hangup => {
            log::info!("SIGHUP has no meaning: the configuration is read at the start only");
            false
        }
    }
}
