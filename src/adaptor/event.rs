//! What the adaptor tells its operator and its shell.

use core::time::Duration;

use super::address::NodeId;
use super::mesh::packet::Incarnation;
use super::mesh::versions::Versions;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A round trip of protocol data with the node worked: it can be reached.
    LinkUp(NodeId, Incarnation),
    /// The node cannot be reached any more.
    LinkDown(NodeId),
    /// The node came back as another incarnation, or was reset.
    PeerRestarted(NodeId, Incarnation),
    /// The node is silent although the link is open: the shell shall cut the link.
    CutLink(NodeId),
    /// The round trip to a peer is too long for the leases: no write between the two nodes is executed in time.
    RoundTripTooLong {
        /// Which peer.
        peer: NodeId,
        /// The round trip.
        round_trip: Duration,
        /// The shorter of the two nodes' leases, as long as it may get.
        lease: Duration,
    },
    /// A peer is configured with another deadline or lease than this node.
    LeaseDiffers {
        /// Which peer.
        peer: NodeId,
        /// Its lease.
        lease: Duration,
        /// The lease that this node is configured with.
        own: Duration,
    },
    /// A peer speaks no version of the protocol that this node speaks.
    VersionDiffers {
        /// Which peer.
        peer: NodeId,
        /// What it speaks.
        versions: Versions,
    },
    /// The guest's memory is not shared with the adaptor; exports are refused.
    MemoryNotShared,
    /// The function was reset and the node is now this incarnation.
    Reset(Incarnation),
}
