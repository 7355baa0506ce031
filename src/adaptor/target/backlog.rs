//! How long stores have waited for a write buffer.
//!
//! The bus is a FIFO: a load behind the stores waits as long as they do. When several nodes stall one after
//! the other, each store may wait for another node's deadline, so the sum has to be bounded too.
//!
//! Invariant: between two moments at which the bus was idle, stores wait for at most `limit` in all.

use core::time::Duration;

use crate::adaptor::Instant;

/// The waiting time of the present backlog.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backlog {
    limit: Duration,
    waited: Duration,
    since: Option<Instant>,
}

impl Backlog {
    /// Nothing waits; `limit` is how long stores may wait in all.
    pub const fn new(limit: Duration) -> Self {
        Self { limit, waited: Duration::ZERO, since: None }
    }

    /// A store finds no buffer: true where it may wait.
    pub fn wait(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        self.expire(now);
        self.since.is_some()
    }

    /// The store in front goes on: the waiting is over.
    pub fn go_on(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.waited = self.waited.saturating_add(now.since(since));
        }
    }

    /// Ends the waiting where its time is used up.
    pub fn expire(&mut self, now: Instant) {
        if self.until().is_some_and(|until| until <= now) {
            self.go_on(now);
        }
    }

    /// When the waiting has to end, if a store waits.
    pub fn until(&self) -> Option<Instant> {
        self.since.map(|since| since.after(self.limit.saturating_sub(self.waited)))
    }

    /// Nothing more is at hand from the bus, so the backlog is over, unless a store still waits.
    pub const fn idle(&mut self) {
        if self.since.is_none() {
            self.waited = Duration::ZERO;
        }
    }

    /// Forgets everything.
    pub const fn clear(&mut self) {
        *self = Self::new(self.limit);
    }
}
