//! How long leases last between two nodes, and whether a write can be executed within one at all.
//!
//! The lease of a request is that of the initiating node, which reports an unanswered write only
//! when its own lease has run out; the responding node knows it from Hellos. Invariant: within a
//! life of a node its lease towards a peer never gets shorter, and it changes only where no request
//! is under way, so that a lease in a peer's memory is never longer than the one waited for.

use core::time::Duration;

use super::{Outputs, Reach, Session};
use crate::adaptor::Instant;
use crate::adaptor::channel::Channel;
use crate::adaptor::event::Event;
use crate::adaptor::mesh::Timing;
use crate::adaptor::mesh::limits::{guarded, longest_lease};
use crate::adaptor::mesh::responder::Responder;
use crate::adaptor::mesh::sequence::Epoch;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leases {
    /// Of this node's requests.
    own: Duration,
    /// What the round trip asks for, to be taken where nothing is under way.
    wanted: Duration,
    /// What this node's last Hello said.
    announced: Duration,
    /// Of the peer's requests.
    peer: Duration,
    /// Since when the clock is known to run.
    awake_since: Instant,
    /// The last round trip was too long.
    was_too_long: bool,
    /// The last two were.
    is_too_long: bool,
    /// The peer's lease is one that no node with this one's configuration has.
    differs: bool,
}

impl Leases {
    pub(super) const fn new(timing: Timing) -> Self {
        Self {
            own: timing.lease,
            wanted: timing.lease,
            announced: timing.lease,
            peer: timing.lease,
            awake_since: Instant::ZERO,
            was_too_long: false,
            is_too_long: false,
            differs: false,
        }
    }

    /// The node itself begins another life.
    pub(super) fn begin_life(&mut self, timing: Timing) {
        let Self { peer, awake_since, differs, .. } = *self;
        *self = Self { peer, awake_since, differs, ..Self::new(timing) };
    }

    /// The peer's requests have leases of this length.
    pub(super) const fn of_peer(&self) -> Duration {
        self.peer
    }

    /// The part of the deadline in which this node's requests are tried.
    pub(super) const fn time_to_try(&self, timing: Timing) -> Duration {
        timing.deadline.saturating_sub(self.own)
    }

    /// The lease for a Hello, in microseconds, rounded down: the peer may take it for shorter.
    pub(super) fn announce(&mut self) -> u32 {
        self.announced = self.own;
        u32::try_from(self.own.as_micros()).unwrap_or(u32::MAX)
    }
}

impl Session {
    /// Writes can't be executed in time, because the round trip is too long for the leases.
    pub(in crate::adaptor::mesh) const fn is_too_far(&self) -> bool {
        self.leases.is_too_long
    }

    /// The peer is configured with another deadline or lease.
    pub(in crate::adaptor::mesh) const fn differs(&self) -> bool {
        self.leases.differs
    }

    /// The longest lease that this node's requests may have.
    fn lease_limit(&self) -> Duration {
        longest_lease(self.timing.deadline).max(self.timing.lease)
    }

    /// A new life of the peer says how long its leases are.
    pub(super) fn meet_lease(&mut self, lease: Duration, out: &mut Outputs) {
        let micros = |duration: Duration| duration.as_micros();
        let differs = micros(lease) < micros(self.timing.lease) || micros(lease) > micros(self.lease_limit());
        if differs && !self.leases.differs {
            out.events.push_back(Event::LeaseDiffers { peer: self.peer, lease, own: self.timing.lease });
        }
        self.leases.differs = differs;
        self.leases.peer = lease;
    }

    /// The peer's leases may have grown.
    pub(super) fn note_peer_lease(&mut self, lease: Duration) {
        self.leases.peer = self.leases.peer.max(lease);
        for flows in self.flows.values_mut() {
            flows.responder.set_lease(self.leases.peer);
        }
    }

    /// The responder of a channel for another life of the peer, of which this epoch is remembered,
    /// if it was there before.
    pub(super) fn responder_after(&self, channel: Channel, known: Option<Option<Epoch>>) -> Responder {
        let (lease, window) = (self.leases.peer, self.window.of(channel));
        let mut responder = match known {
            Some(epoch) => Responder::after(lease, window, epoch),
            None => Responder::new(lease, window),
        };
        responder.drop_leases(self.leases.awake_since);
        responder
    }

    /// A Hello of this node that was sent at `sent` has made the round trip.
    pub(super) fn handle_round_trip(&mut self, now: Instant, sent: Instant, out: &mut Outputs) {
        let round_trip = now.since(sent);
        if !self.has_news && sent >= self.hello_sent {
            self.refresh_at = now.after(self.timing.keepalive);
            self.hello_at = now.after(self.hello_interval());
        }
        if self.reach == Reach::Up {
            self.trials = 0;
        } else if self.trials_left > 0 {
            self.trials_left = self.trials_left.saturating_sub(1);
            self.speak_soon(now);
        }
        for flows in self.flows.values_mut() {
            flows.initiator.set_round_trip(round_trip);
        }
        let limit = self.lease_limit();
        self.leases.wanted = round_trip.saturating_mul(2).clamp(self.leases.own, limit.max(self.leases.own));
        if self.reach == Reach::Up {
            self.fit_leases(now);
        }
        let tries = self.timing.deadline.saturating_sub(limit);
        let is_too_long = round_trip >= guarded(limit)
            || round_trip >= guarded(self.leases.peer)
            || round_trip.saturating_mul(2) > tries;
        let both = is_too_long && core::mem::replace(&mut self.leases.was_too_long, is_too_long);
        if both && !self.leases.is_too_long {
            let lease = limit.min(self.leases.peer);
            out.events.push_back(Event::RoundTripTooLong { peer: self.peer, round_trip, lease });
        }
        self.leases.is_too_long = both;
    }

    /// Takes the lease that the round trip asks for, where nothing is under way.
    pub(super) fn fit_leases(&mut self, now: Instant) {
        let grows = self.leases.wanted > self.leases.own;
        if grows && self.flows.values().all(|flows| flows.initiator.is_idle()) {
            self.leases.own = self.leases.wanted;
            let time_to_try = self.leases.time_to_try(self.timing);
            for flows in self.flows.values_mut() {
                flows.initiator.set_lease(time_to_try, self.leases.own);
            }
        }
        if self.leases.announced != self.leases.own {
            self.speak_soon(now);
        }
    }

    /// This node's clock may have stood still, or have jumped, before `now`.
    pub(in crate::adaptor::mesh) fn handle_clock_jump(&mut self, now: Instant) {
        self.leases.awake_since = now;
        self.nonces.clear();
        for flows in self.flows.values_mut() {
            flows.responder.drop_leases(now);
            flows.initiator.renew_leases(now);
        }
    }
}
