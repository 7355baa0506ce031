//! When Hellos go, and how many may be without an answer.
//!
//! Invariant: where nothing comes from the peer, Hellos go at regular intervals, and its link is cut after the keepalive time; whatever comes
//! starts the count again.

use core::time::Duration;

use super::Session;
use crate::adaptor::Instant;
use crate::adaptor::channel::Channel;
use crate::adaptor::mesh::limits::{HELLO_AGAIN, KEEPALIVE_PARTS};
use crate::adaptor::mesh::packet::Body;

impl Session {
    /// The peer gave a sign of life.
    pub(super) fn heard(&mut self, now: Instant) {
        self.unanswered = 0;
        self.count_from = Instant::ZERO;
        if self.proven {
            self.hello_at = now.after(self.hello_interval());
            self.hello_waits = false;
        }
    }

    /// A Hello asks for a sign of life. Those that follow faster than the interval count as one.
    pub(super) fn count_hello(&mut self, now: Instant) {
        if self.count_from <= now {
            self.unanswered = self.unanswered.saturating_add(1);
            self.count_from = now.after(self.hello_interval());
        }
    }

    /// The time between two Hellos.
    pub(super) fn hello_interval(&self) -> Duration {
        let part = self.timing.keepalive.checked_div(KEEPALIVE_PARTS).unwrap_or_default();
        if self.proven { part } else { part.min(HELLO_AGAIN) }
    }

    /// Hellos without an answer after which the link is cut.
    pub(super) fn hello_limit(&self) -> u32 {
        let interval = self.hello_interval().as_nanos().max(1);
        let parts = self.timing.keepalive.as_nanos().checked_div(interval).unwrap_or(1);
        u32::try_from(parts).unwrap_or(u32::MAX).saturating_sub(1)
    }

    /// The Hello that is to go now, if one is.
    pub(super) fn poll_hello(&mut self, now: Instant) -> Option<Body> {
        let wants_reply = self.hello_waits || self.hello_at <= now;
        if !wants_reply && self.owed_echo.is_none() {
            return None;
        }
        let mut nonce = 0;
        if wants_reply {
            nonce = *self.nonce.get_or_insert_with(|| self.random.next_public());
            if !core::mem::take(&mut self.hello_waits) {
                self.count_hello(now);
                self.hello_at = now.after(self.hello_interval());
            }
            self.hello_sent = now;
        }
        let echo = self.owed_echo.take().unwrap_or(0);
        let lease = u32::try_from(self.timing.lease.as_micros()).unwrap_or(u32::MAX);
        let epoch = self.flows.get(Channel::Small).initiator.epoch();
        let inventory = self.inventory.own_version();
        Some(Body::Hello { wants_reply, epoch, nonce, echo, lease, inventory })
    }
}
