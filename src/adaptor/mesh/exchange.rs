//! How two nodes tell each other what they export: each names the version of its inventory in its Hellos, and the other asks
//! for it when it has another one.
//!
//! Nothing here is repeated by a timer of its own: a question or an answer that was lost is made good after the next Hello.
//! Invariant: at most one question and one answer wait to be sent, so that a peer that asks without end costs one packet a turn; and an
//! answer is taken once for each question, so that one that answers without end brings no news.

use bytes::Bytes;

use super::packet::Body;

/// What a peer's packet says about inventories.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InventoryNews {
    /// It asks for this node's; answer with `Mesh::send_inventory`.
    Asked,
    /// This is its own.
    Arrived {
        /// Its version.
        version: u32,
        /// Its entries, not looked at.
        entries: Bytes,
    },
    /// It is another life of the peer now, of which nothing is known yet.
    Forgotten,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Exchange {
    own_version: u32,
    /// The version of the peer's inventory that arrived last.
    known: Option<u32>,
    asks: bool,
    /// The question was sent, and no answer has come yet.
    asked: bool,
    /// The answer, and the version that it is of.
    answer: Option<(u32, Bytes)>,
}

impl Exchange {
    pub(super) const fn own_version(&self) -> u32 {
        self.own_version
    }

    pub(super) const fn set_own_version(&mut self, version: u32) {
        self.own_version = version;
    }

    /// The peer has named the version of its inventory.
    pub(super) fn handle_version(&mut self, version: u32) {
        self.asks = self.known != Some(version);
    }

    /// The peer's inventory has arrived. Returns whether it was asked for.
    pub(super) const fn handle_arrival(&mut self, version: u32) -> bool {
        let asked = core::mem::replace(&mut self.asked, false);
        if asked {
            self.known = Some(version);
            self.asks = false;
        }
        asked
    }

    /// The peer begins another life, or this node does.
    pub(super) fn forget(&mut self) {
        *self = Self { own_version: self.own_version, ..Self::default() };
    }

    /// Whether an answer waits already.
    pub(super) const fn is_answering(&self) -> bool {
        self.answer.is_some()
    }

    /// The peer shall get these entries, which are of this node's present version.
    pub(super) fn send(&mut self, entries: Bytes) {
        self.answer = Some((self.own_version, entries));
    }

    /// The next packet about inventories.
    pub(super) fn poll(&mut self) -> Option<Body> {
        if let Some((version, entries)) = self.answer.take() {
            return Some(Body::Inventory { version, entries });
        }
        let asks = core::mem::take(&mut self.asks);
        self.asked |= asks;
        asks.then_some(Body::Inquire)
    }
}
