//! The numbers of the mesh interface, in one place.

use core::time::Duration;

use super::sequence::{Epoch, Sequence};
use crate::adaptor::channel::Channel;

/// Requests of one flow that may be without an acknowledged answer. Bounds the peer's access
/// buffer.
pub const WINDOW_REQUESTS: usize = 256;
/// Bytes that these requests may move, written and read together.
pub const WINDOW_BYTES: usize = 1 << 20;

/// The same in the bulk channel.
pub const BULK_REQUESTS: usize = 1024;
/// Bytes that these may move.
pub const BULK_BYTES: usize = 4 << 20;

/// The most bytes of one transaction that brings memory of another bus of the same process. (No
/// packet has them.)
pub const LENT_BYTES: u64 = 512 << 10;

/// How much of a flow may be unanswered: [`WINDOW_REQUESTS`] and [`WINDOW_BYTES`], except in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Requests.
    pub requests: usize,
    /// Bytes that these move.
    pub bytes: usize,
    /// The number of an epoch's first request: 0, except in tests of the wrap.
    pub first: Sequence,
    /// The first epoch of a node's life; any will do.
    pub epoch: Epoch,
}

impl Window {
    /// How much of the flow in a channel may be unanswered, where this much may be in the channel
    /// of accesses. One that is not the default is that of both.
    pub fn of(self, channel: Channel) -> Self {
        if channel == Channel::Bulk && (self.requests, self.bytes) == (WINDOW_REQUESTS, WINDOW_BYTES) {
            return Self { requests: BULK_REQUESTS, bytes: BULK_BYTES, ..self };
        }
        self
    }
}

impl Default for Window {
    fn default() -> Self {
        let (requests, bytes) = (WINDOW_REQUESTS, WINDOW_BYTES);
        Self { requests, bytes, first: Sequence(0), epoch: Epoch(0) }
    }
}

/// After this time without an answer the initiating side tells how far it has sent, and so learns
/// what was lost; after one and a half round trips where these take longer.
pub const PROBE_AFTER: Duration = Duration::from_millis(30);
/// But so often within the time to try at least, where that is long enough.
pub const PROBES: u32 = 4;
/// A lease that was asked for and not given is asked for again after this time, and then after
/// twice the time before, as long as the initiating side is silent.
pub const ASK_AGAIN: Duration = Duration::from_millis(20);
/// The longest time between two such questions.
pub const ASK_SELDOM: Duration = Duration::from_millis(320);
/// The responding side stops executing under a lease when all but one of so many parts of its time
/// have passed. The part that is left covers clocks that run at different rates, and the time
/// between the look at the clock and the first byte.
const GUARD_PARTS: u32 = 16;
/// The part of the deadline that a lease may grow to where the round trip asks for it: a write
/// takes two round trips and has to be executed within a lease, which has to outlast one.
const LEASE_PARTS: u32 = 3;
/// Hellos of which the answer is awaited at most; a later one displaces the oldest.
pub const HELLOS_AWAITED: usize = 64;
/// After a link on which nothing came any more, at most so many more round trips have to work
/// before the peer is up again.
pub const MOST_TRIALS: u8 = 7;
/// Earlier incarnations of a peer that are remembered, in case that one which was thought to be
/// over comes back.
pub const FORMER_LIVES: usize = 4;
/// A Hello on a link on which the peer has not been proven yet is sent again after this time.
pub const HELLO_AGAIN: Duration = Duration::from_millis(100);
/// Packets of the small channel after which one of the bulk channel goes first, so that each gets
/// on.
pub const SMALL_RUN: u32 = 16;
/// The least time between two Hellos, so that strange packets do not cause a flood of them.
pub const HELLO_GAP: Duration = Duration::from_millis(5);
/// The keepalive time is cut into this many parts: a silent link gets a Hello after each but the
/// last, then it is cut.
pub const KEEPALIVE_PARTS: u32 = 4;

/// The time from a stamp on in which the responding side executes under it.
pub fn guarded(lease: Duration) -> Duration {
    lease.saturating_sub(lease.checked_div(GUARD_PARTS).unwrap_or_default())
}

/// The longest lease that round trips may ask for, within a deadline.
pub fn longest_lease(deadline: Duration) -> Duration {
    deadline.checked_div(LEASE_PARTS).unwrap_or_default()
}
