//! What the adaptor tells its operator and its shell.

use super::address::NodeId;
use super::mesh::packet::Incarnation;

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
    /// The guest's memory is not shared with the adaptor; exports are refused.
    MemoryNotShared,
    /// The function was reset and the node is now this incarnation.
    Reset(Incarnation),
}
