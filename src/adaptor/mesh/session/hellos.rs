//! When Hellos go, and how many may be without an answer.
//!
//! Invariant: where nothing comes from the peer, Hellos go at regular intervals, and its link is
//! cut after the keepalive time; whatever comes starts the count again. Where other packets come, a
//! Hello of this node's makes the round trip once in each keepalive time all the same, since only
//! Hellos tell of inventories and leases, and none of them may be lost for good.

use core::time::Duration;

use super::{Outputs, Session};
use crate::adaptor::Instant;
use crate::adaptor::channel::Channel;
use crate::adaptor::event::Event;
use crate::adaptor::mesh::limits::{HELLO_AGAIN, HELLO_GAP, HELLOS_AWAITED, KEEPALIVE_PARTS};
use crate::adaptor::mesh::packet::Body;
use crate::adaptor::mesh::versions::Versions;

impl Session {
    /// Whether there is a version of the protocol that the peer, of which a Hello came, speaks too.
    pub(super) fn speaks_alike(&mut self, versions: Versions, out: &mut Outputs) -> bool {
        let is_strange = versions.common(Versions::OWN).is_none();
        if is_strange && !self.is_strange {
            out.events.push_back(Event::VersionDiffers { peer: self.peer, versions });
        }
        self.is_strange = is_strange;
        !is_strange
    }

    /// The peer gave a sign of life.
    pub(super) fn heard(&mut self, now: Instant) {
        self.unanswered = 0;
        self.is_silent = false;
        self.count_from = Instant::ZERO;
        if self.proven {
            self.hello_at = now.after(self.hello_interval()).min(self.refresh_at);
            self.hello_waits = false;
        }
    }

    /// There is something to tell that only a Hello tells, whatever comes meanwhile.
    pub(super) fn speak_soon(&mut self, now: Instant) {
        let soon = self.hello_sent.after(HELLO_GAP).max(now);
        self.hello_at = self.hello_at.min(soon);
        self.refresh_at = self.refresh_at.min(soon);
        self.has_news = true;
    }

    /// When the Hello was sent whose nonce came back, if it is one of those awaited. None of these
    /// is awaited any more.
    pub(super) fn take_nonce(&mut self, echo: u64) -> Option<Instant> {
        let &(_, sent) = self.nonces.iter().find(|&&(nonce, _)| nonce == echo && echo != 0)?;
        self.nonces.clear();
        Some(sent)
    }

    /// Whether nothing came over the link while several Hellos were without an answer.
    pub(super) fn fell_silent(&self) -> bool {
        self.is_silent || self.proven && self.unanswered > 1
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
            nonce = self.random.next_public();
            if self.nonces.len() >= HELLOS_AWAITED {
                self.nonces.pop_front();
            }
            self.nonces.push_back((nonce, now));
            if !core::mem::take(&mut self.hello_waits) {
                self.count_hello(now);
                self.hello_at = now.after(self.hello_interval());
            }
            self.hello_sent = now;
            self.has_news = false;
            self.refresh_at = now.after(self.hello_interval());
        }
        let echo = self.owed_echo.take().unwrap_or(0);
        let lease = self.leases.announce();
        let epoch = self.flows.get(Channel::Small).initiator.epoch();
        let inventory = self.inventory.own_version();
        Some(Body::Hello { versions: Versions::OWN, epoch, nonce, echo, lease, inventory })
    }
}
