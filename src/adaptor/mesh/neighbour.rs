//! What the two ends of a link tell each other, before and beside the traffic of nodes: who they are, why one is not
//! let in, and which nodes a router reaches.
//!
//! Invariant: a list of routes has one form only, in rising order of node ids.

use bytes::{BufMut, Bytes, BytesMut};
use core::fmt;

use super::packet::Incarnation;
use crate::adaptor::address::NodeId;

/// The most routers that a packet passes, and so the greatest distance of a node from a router.
pub const MAX_HOPS: u8 = 15;
/// Bytes of a route in a list: node, distance, incarnation.
const ROUTE_LEN: usize = 10;

/// What an end of a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// The adaptor of a node.
    Node(NodeId),
    /// A router, which has no node id.
    Router,
}

impl Identity {
    /// The id that stands in packets' source and destination; 0 for a router.
    pub const fn id(self) -> NodeId {
        match self {
            Self::Node(node) => node,
            Self::Router => NodeId(0),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Router => f.write_str("a router"),
        }
    }
}

/// Why the other end of a link is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is nobody that this end is configured to talk to.
    NotConfigured,
    /// Its node id is held by another incarnation that is alive.
    Duplicate,
    /// It is not who it claims to be, or looked for somebody else.
    WrongIdentity,
    /// It speaks another version of the protocol.
    Version,
    /// The two are joined by another connection already.
    Superseded,
    /// It comes or changes too often, or too many others are linked.
    Busy,
}

impl Refusal {
    /// All of them, in the order of their numbers, which begin with 1.
    pub const ALL: [Self; 6] = [
        Self::NotConfigured,
        Self::Duplicate,
        Self::WrongIdentity,
        Self::Version,
        Self::Superseded,
        Self::Busy,
    ];

    /// Its number on the wire.
    pub const fn bits(self) -> u8 {
        match self {
            Self::NotConfigured => 1,
            Self::Duplicate => 2,
            Self::WrongIdentity => 3,
            Self::Version => 4,
            Self::Superseded => 5,
            Self::Busy => 6,
        }
    }

    /// The reason with this number.
    pub fn from_bits(bits: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.bits() == bits)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConfigured => "it is not configured to talk to this one",
            Self::Duplicate => "this node id is in use by another adaptor",
            Self::WrongIdentity => "it is another than was looked for, or doubts who this is",
            Self::Version => "it speaks another version of the protocol",
            Self::Superseded => "there is another connection with it",
            Self::Busy => "it has too many links, or this one came too often",
        })
    }
}

/// A node that a router reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The node.
    pub node: NodeId,
    /// Routers on the way, the one that tells included: 1 where the node is linked with it, at most [`MAX_HOPS`].
    pub distance: u8,
    /// Which life of the node it is, never 0.
    pub incarnation: Incarnation,
}

/// Every node that a router reaches, as it stands on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Routes(Bytes);

impl Routes {
    /// The list of `routes`, of which each must be for a greater node id than the one before.
    pub fn new(routes: impl IntoIterator<Item = Route>) -> Self {
        let mut list = BytesMut::new();
        for route in routes {
            list.put_u8(route.node.0);
            list.put_u8(route.distance);
            list.put_u64_le(route.incarnation.0);
        }
        Self(list.freeze())
    }

    /// A list from the wire; `None` where it is not in its one form.
    pub fn parse(list: Bytes) -> Option<Self> {
        let whole = list.len().checked_rem(ROUTE_LEN) == Some(0);
        let routes = Self(list);
        let mut last = None;
        let in_form = |route: Route| {
            let rising = last.replace(route.node).is_none_or(|last| last < route.node);
            rising && (1..=MAX_HOPS).contains(&route.distance) && route.incarnation.0 != 0
        };
        (whole && routes.iter().all(in_form)).then_some(routes)
    }

    /// Its wire form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The routes, in rising order of node ids.
    pub fn iter(&self) -> impl Iterator<Item = Route> {
        self.0.chunks_exact(ROUTE_LEN).filter_map(|route| {
            let (&[node, distance], incarnation) = route.split_first_chunk()?;
            let incarnation = Incarnation(u64::from_le_bytes(*incarnation.first_chunk()?));
            Some(Route { node: NodeId(node), distance, incarnation })
        })
    }
}

/// Names a link; not used again after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// What it is.
    pub identity: Identity,
    /// Which life of it.
    pub incarnation: Incarnation,
}
