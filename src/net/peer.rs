//! What is known of another node: its connections, and when to dial it next.

use core::time::Duration;
use std::net::SocketAddr;

use super::backoff::Backoff;
use crate::adaptor::Instant;
use crate::adaptor::address::NodeId;
use crate::adaptor::random::Random;
use crate::poller::Token;

/// By how much the node with the higher id lets the other one dial first, where both can.
const HEAD_START: Duration = Duration::from_millis(100);
/// A link that lived this long makes earlier failures forgotten.
const STABLE: Duration = Duration::from_secs(1);

/// Another node.
#[derive(Debug)]
pub struct Peer {
    /// Who it is.
    pub node: NodeId,
    /// Where it listens, if that was configured.
    pub address: Option<SocketAddr>,
    /// The connection in use.
    pub link: Option<Token>,
    /// The connection that we are making; never beside a link.
    pub attempt: Option<Token>,
    /// A connection that the other node made, kept aside while `link` is ours and not proven.
    pub parked: Option<Token>,
    /// When to dial; only where there is neither link nor attempt.
    pub next_dial: Option<Instant>,
    head_start: Duration,
    backoff: Backoff,
    last_problem: Option<String>,
}

impl Peer {
    /// A node that has not been tried. `waits` says that it can dial us too and goes first.
    pub fn new(now: Instant, node: NodeId, address: Option<SocketAddr>, waits: bool) -> Self {
        let head_start = if waits { HEAD_START } else { Duration::ZERO };
        Self {
            node,
            address,
            link: None,
            attempt: None,
            parked: None,
            next_dial: address.map(|_| now.after(head_start)),
            head_start,
            backoff: Backoff::default(),
            last_problem: None,
        }
    }

    /// There is no connection any more: when to try the next one. `lived` is how long the last one was of use.
    pub fn schedule_dial(&mut self, now: Instant, lived: Duration, random: &mut Random) {
        if self.address.is_none() || self.link.is_some() || self.attempt.is_some() {
            return;
        }
        if lived >= STABLE {
            self.backoff.reset();
        }
        let wait = self.backoff.after_failure(random).saturating_add(self.head_start);
        self.next_dial = Some(now.after(wait));
    }

    /// Tells the operator what is wrong, unless that was the last thing said.
    pub fn report(&mut self, problem: &str) {
        if self.last_problem.as_deref() != Some(problem) {
            log::info!("node {}: {problem}", self.node);
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
    /// A packet has arrived on it.
    pub proven: bool,
    /// It was accepted before the new connection (where it was accepted).
    pub older: bool,
}

/// What becomes of a connection on which a peer has introduced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the link from now on; the existing one is closed.
    Take,
    /// It is kept aside until the existing link is proven or closed.
    Park,
    /// It is closed.
    Refuse,
}

/// Decides between a connection that `peer` made and the existing link, at node `own`.
///
/// The node with the higher id may have taken the lower one's connection at any time since the lower one sent its
/// Hello on it, so the lower one must not close it before it fails.
pub fn judge(own: NodeId, peer: NodeId, existing: Option<Existing>) -> Verdict {
    match existing {
        None => Verdict::Take,
        Some(link) if link.dialed && own < peer => {
            if link.proven {
                Verdict::Refuse
            } else {
                Verdict::Park
            }
        }
        Some(link) if link.dialed || link.older => Verdict::Take,
        Some(_) => Verdict::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_node_keeps_what_it_dialed_and_higher_takes_it() {
        let dialed = |proven| Some(Existing { dialed: true, proven, older: true });
        let accepted = |older| Some(Existing { dialed: false, proven: true, older });
        let (low, high) = (NodeId(1), NodeId(2));
        for (own, peer, existing, verdict) in [
            (low, high, None, Verdict::Take),
            (low, high, dialed(false), Verdict::Park),
            (low, high, dialed(true), Verdict::Refuse),
            (low, high, accepted(true), Verdict::Take),
            (low, high, accepted(false), Verdict::Refuse),
            (high, low, None, Verdict::Take),
            (high, low, dialed(false), Verdict::Take),
            (high, low, dialed(true), Verdict::Take),
            (high, low, accepted(true), Verdict::Take),
            (high, low, accepted(false), Verdict::Refuse),
        ] {
            assert_eq!(judge(own, peer, existing), verdict, "{own} from {peer} over {existing:?}");
        }
    }
}
