//! Addresses that lead to one and the same router.
//!
//! A router keeps one link with a node, the last, so that a node which used two of its addresses would lose one link to the other again and
//! again. Invariant: while there is a link with a router, no other address at which it was met is dialed.

use core::time::Duration;

use super::super::peer::PeerKey;
use super::Links;
use crate::adaptor::Instant;
use crate::adaptor::mesh::neighbour::{Identity, Neighbour};

/// How long the address that was in use has the others wait when its link is lost.
const HEAD_START: Duration = Duration::from_millis(100);

impl Links {
    /// This router has joined on a link that we made: of all addresses that led to it only this one stays in use. That the router has given up an
    /// earlier link by now is why it is not the first.
    pub(super) fn note_router(&mut self, key: Option<PeerKey>, neighbour: Neighbour) {
        // Routers have links enough for each other.
        if self.own.identity == Identity::Router || neighbour.identity != Identity::Router {
            return;
        }
        let Some(key) = key else { return };
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.met = Some(neighbour.incarnation);
        let mut is_told = peer.told_same;
        let mut dropped = Vec::new();
        for twin in self.peers.values_mut() {
            if twin.key == key || twin.met != Some(neighbour.incarnation) {
                continue;
            }
            twin.same_as = Some(key);
            twin.next_dial = None;
            // What the router says of this node, it says on the other link.
            twin.calls_us_duplicate = None;
            dropped.extend([twin.attempt.take(), twin.link.take()].into_iter().flatten());
            if !(core::mem::replace(&mut twin.told_same, true) && is_told) {
                log::warn!("{}: it is the same router as {key}; one link with it is kept", twin.key);
                is_told = true;
            }
        }
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.told_same = is_told;
        }
        self.note_duplicate();
        for token in dropped {
            self.drop_silently(token);
        }
    }

    /// There is no link at this address any more: the router may be reached at another one.
    pub(super) fn release_twins(&mut self, now: Instant, key: PeerKey) {
        let later = now.after(HEAD_START);
        for twin in self.peers.values_mut().filter(|twin| twin.same_as == Some(key)) {
            twin.same_as = None;
            twin.schedule_dial(later, Duration::ZERO, None, &mut self.random);
        }
    }
}
