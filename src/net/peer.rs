//! What is known of another node or router: its connections, and when to dial it next.

use core::time::Duration;
use std::net::SocketAddr;

use super::backoff::Backoff;
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::neighbour::{Identity, Refusal};
use crate::adaptor::mesh::packet::Incarnation;
use crate::adaptor::random::Random;
use crate::allowance::Allowance;
use crate::logging::NODES;
use crate::poller::Token;

/// By how much the node with the higher id lets the other one dial first, where both can.
const HEAD_START: Duration = Duration::from_millis(100);
/// How long a peer's word holds that our node id is somebody else's: it is asked again, and answers, several times in this time.
const REFUSAL_HOLDS: Duration = Duration::from_secs(10);
/// How often a peer may come at once, and the time after which it may once more.
const ARRIVALS: u32 = 32;
pub const ARRIVAL_PAUSE: Duration = Duration::from_millis(50);
/// A link that lived this long makes earlier failures forgotten.
const STABLE: Duration = Duration::from_secs(1);

/// Names a peer: routers have no id, but those that matter here are dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerKey {
    /// A node, whoever dials.
    Node(NodeId),
    /// The router that listens there.
    Router(SocketAddr),
}

impl PeerKey {
    /// Who is expected there.
    pub const fn identity(self) -> Identity {
        match self {
            Self::Node(node) => Identity::Node(node),
            Self::Router(_) => Identity::Router,
        }
    }
}

impl core::fmt::Display for PeerKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Router(address) => write!(f, "router {address}"),
        }
    }
}

/// Another node, or a router that we dial.
#[derive(Debug)]
pub struct Peer {
    /// Who it is.
    pub key: PeerKey,
    /// Where it listens, if that was configured.
    pub address: Option<SocketAddr>,
    /// The connection in use.
    pub link: Option<Token>,
    /// The connection that we are making; never beside a link.
    pub attempt: Option<Token>,
    /// A connection that the other side made, kept aside until `link` is proven or fails.
    pub parked: Option<Token>,
    /// When to dial; only where there is neither link nor attempt, nor `same_as`.
    pub next_dial: Option<Instant>,
    /// Its last word on us was that our node id is somebody else's, which holds until then.
    pub calls_us_duplicate: Option<Instant>,
    /// The life of the router that was there last.
    pub met: Option<Incarnation>,
    /// The router that is there is the one that we are linked with at this other address, so this one is not dialed.
    pub same_as: Option<PeerKey>,
    /// The operator knows that this address and another one are the same router's.
    pub told_same: bool,
    /// How often it may come.
    pub arrivals: Allowance,
    head_start: Duration,
    backoff: Backoff,
    last_problem: Option<String>,
}

impl Peer {
    /// A peer that has not been tried. `waits` says that it can dial us too and goes first.
    pub fn new(now: Instant, key: PeerKey, address: Option<SocketAddr>, waits: bool) -> Self {
        let head_start = if waits { HEAD_START } else { Duration::ZERO };
        Self {
            key,
            address,
            link: None,
            attempt: None,
            parked: None,
            next_dial: address.map(|_| now.after(head_start)),
            calls_us_duplicate: None,
            met: None,
            same_as: None,
            told_same: false,
            arrivals: Allowance::new(ARRIVALS, ARRIVAL_PAUSE),
            head_start,
            backoff: Backoff::default(),
            last_problem: None,
        }
    }

    /// There is no connection any more: when to try the next one. `lived` is how long the last one was of use.
    pub fn schedule_dial(
        &mut self,
        now: Instant,
        lived: Duration,
        refusal: Option<Refusal>,
        random: &mut Random,
    ) {
        let busy = self.link.is_some() || self.attempt.is_some() || self.same_as.is_some();
        if self.address.is_none() || busy {
            return;
        }
        if lived >= STABLE {
            self.backoff.reset();
        }
        let wait = match refusal {
            None | Some(Refusal::Superseded) => self.backoff.after_failure(random),
            Some(_) => Backoff::after_refusal(random),
        };
        self.next_dial = Some(now.after(wait.saturating_add(self.head_start)));
    }

    /// It says that our node id is somebody else's.
    pub fn note_duplicate(&mut self, now: Instant) {
        self.calls_us_duplicate = Some(now.after(REFUSAL_HOLDS));
    }

    /// Tells the operator what is wrong, unless that was the last thing said.
    pub fn report(&mut self, level: log::Level, problem: &str) {
        if self.last_problem.as_deref() != Some(problem) {
            log::log!(target: NODES, level, "{}: {problem}", self.key);
            self.last_problem = Some(problem.to_owned());
        }
    }

    /// Everything is well: the next problem is news again.
    pub fn forget_problem(&mut self) {
        self.last_problem = None;
    }
}

/// The link that a node has when another connection of the same peer turns up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Existing {
    /// We dialed it.
    pub dialed: bool,
    /// The other side has joined on it.
    pub joined: bool,
    /// It was accepted before the new connection (where it was accepted).
    pub older: bool,
    /// Both belong to the same life of the peer.
    pub same_life: bool,
}

/// What becomes of a connection on which a peer has introduced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the link from now on; the existing one is closed.
    Take,
    /// It is kept aside until the existing link is proven or closed.
    Park,
    /// The same, and the existing link is asked for a sign of life now.
    Contest,
    /// It is closed.
    Refuse,
}

/// Decides between a connection that `peer` made and the existing link, at `own`.
///
/// The node with the higher id may have taken the lower one's connection at any time since the lower one sent its
/// Join on it, so the lower one must not close it before it fails. Another life of the peer gets in only where the one that
/// is here gives no sign of life any more: the first keeps the id.
pub fn judge(own: Identity, peer: Identity, existing: Option<Existing>) -> Verdict {
    match existing {
        None => Verdict::Take,
        Some(link) if !link.dialed && !link.older => Verdict::Refuse,
        Some(link) if !link.joined => {
            if own < peer {
                Verdict::Park
            } else {
                Verdict::Take
            }
        }
        Some(link) if link.same_life && !(link.dialed && own < peer) => Verdict::Take,
        Some(_) => Verdict::Contest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_node_keeps_what_it_dialed_and_higher_takes_it() {
        let dialed = |joined, same_life| Some(Existing { dialed: true, joined, older: true, same_life });
        let accepted = |older, same_life| Some(Existing { dialed: false, joined: true, older, same_life });
        let (low, high) = (Identity::Node(NodeId(1)), Identity::Node(NodeId(2)));
        for (own, peer, existing, verdict) in [
            (low, high, None, Verdict::Take),
            (low, high, dialed(false, false), Verdict::Park),
            (low, high, dialed(true, true), Verdict::Contest),
            (low, high, dialed(true, false), Verdict::Contest),
            (low, high, accepted(true, true), Verdict::Take),
            (low, high, accepted(true, false), Verdict::Contest),
            (low, high, accepted(false, true), Verdict::Refuse),
            (high, low, None, Verdict::Take),
            (high, low, dialed(false, false), Verdict::Take),
            (high, low, dialed(true, true), Verdict::Take),
            (high, low, dialed(true, false), Verdict::Contest),
            (high, low, accepted(true, true), Verdict::Take),
            (high, low, accepted(true, false), Verdict::Contest),
            (high, low, accepted(false, true), Verdict::Refuse),
        ] {
            assert_eq!(judge(own, peer, existing), verdict, "{own} from {peer} over {existing:?}");
        }
    }
}
