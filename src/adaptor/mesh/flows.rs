//! The two flows of a channel between two nodes: what this node asks of the other, and what the other asks of it.

use core::time::Duration;

use super::initiator::Initiator;
use super::limits::Window;
use super::packet::Body;
use super::responder::Responder;
use super::{Find, Timing};
use crate::adaptor::Instant;
use crate::adaptor::channel::Channel;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flows {
    pub(super) initiator: Initiator,
    pub(super) responder: Responder,
}

impl Flows {
    /// The channel's flows at their beginning; `lease` is that of the other node's requests.
    pub(super) fn new(channel: Channel, timing: Timing, window: Window, lease: Duration) -> Self {
        let window = window.of(channel);
        Self {
            initiator: Initiator::new(channel, timing.time_to_try(), timing.lease, window),
            responder: Responder::new(lease, window),
        }
    }

    /// The next packet to send, answers first; requests only where the peer is `proven`.
    pub(super) fn poll(&mut self, now: Instant, proven: bool, find: &mut Find<'_>) -> Option<Body> {
        self.responder.poll(now).or_else(|| if proven { self.initiator.poll(now, find) } else { None })
    }

    /// Whether a packet waits for its turn on the link.
    pub(super) fn has_next(&self) -> bool {
        self.initiator.has_next() || self.responder.has_next()
    }
}
