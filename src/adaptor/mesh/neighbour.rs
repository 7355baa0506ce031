//! What the two ends of a link tell each other, before and beside the traffic of nodes: who they are, why one is not
//! let in, and which nodes a router reaches.
//!
//! Invariant: a list of routes has one form only, in rising order of node ids.

use bytes::{BufMut, Bytes, BytesMut};
use core::fmt;

use super::packet::Incarnation;
use crate::adaptor::address::NodeId;
use crate::adaptor::buses::{Buses, Span};

/// The most routers that a packet passes, and so the greatest distance of a node from a router.
pub const MAX_HOPS: u8 = 15;
/// Bytes of a route in a list: node, distance, incarnation.
const ROUTE_LEN: usize = 10;
const ROLE_ADAPTOR: u32 = 1;
const ROLE_ROUTER: u32 = 2;

/// How an end of a link is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// An adaptor, by its node, or by the first one where it has several.
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

/// What is at an end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// An adaptor: the nodes that it has.
    Adaptor(Buses),
    /// A router.
    Router,
}

impl End {
    /// An adaptor with one bus.
    pub const fn node(node: NodeId) -> Self {
        Self::Adaptor(Buses::single(node))
    }

    /// What it is called.
    pub const fn identity(self) -> Identity {
        match self {
            Self::Adaptor(buses) => Identity::Node(buses.span().first()),
            Self::Router => Identity::Router,
        }
    }

    /// The node ids that belong to it, if any do.
    pub const fn span(self) -> Option<Span> {
        match self {
            Self::Adaptor(buses) => Some(buses.span()),
            Self::Router => None,
        }
    }

    /// Whether a node id belongs to both.
    pub fn overlaps(self, other: Self) -> bool {
        matches!((self.span(), other.span()), (Some(own), Some(other)) if own.overlaps(other))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adaptor(buses) => buses.span().fmt(f),
            Self::Router => Identity::Router.fmt(f),
        }
    }
}

/// What an end of a link says that it is. The source of the packet is its first node id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// An adaptor.
    Adaptor {
        /// Low bits of its node ids that are a bus number.
        bus_bits: u8,
        /// How many buses it has besides bus 0.
        further: u8,
    },
    /// A router, which has no node id.
    Router,
}

impl Role {
    /// An adaptor with one bus.
    pub const NODE: Self = Self::Adaptor { bus_bits: 0, further: 0 };

    /// What this end says of itself.
    pub fn of(end: End) -> Self {
        let End::Adaptor(buses) = end else { return Self::Router };
        let byte = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
        let further = u32::from(buses.count()).saturating_sub(1);
        Self::Adaptor { bus_bits: byte(buses.span().bits()), further: byte(further) }
    }

    /// What is there, where the end's first node id is `first`; `None` where that makes no sense.
    pub(super) fn end(self, first: NodeId) -> Option<End> {
        match self {
            Self::Adaptor { bus_bits, further } => {
                let span = Span::new(first, bus_bits.into())?;
                Buses::new(span, u16::from(further).saturating_add(1)).map(End::Adaptor)
            }
            Self::Router => (first == Identity::Router.id()).then_some(End::Router),
        }
    }

    /// Its form on the wire: the fields count and address.
    pub(super) const fn fields(self) -> (u32, u64) {
        match self {
            Self::Adaptor { bus_bits, further } => (ROLE_ADAPTOR, bus_bits as u64 | (further as u64) << 8),
            Self::Router => (ROLE_ROUTER, 0),
        }
    }

    /// The role with these fields, where they are one's form.
    pub(super) const fn from_fields(count: u32, address: u64) -> Self {
        let [bus_bits, further, ..] = address.to_le_bytes();
        if count == ROLE_ROUTER { Self::Router } else { Self::Adaptor { bus_bits, further } }
    }
}

/// Why the other end of a link is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is nobody that this end is configured to talk to.
    NotConfigured,
    /// One of its node ids is held by another adaptor that is alive.
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
    /// Which life of the node's adaptor it is, never 0.
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
    pub fn as_bytes(&self) -> &Bytes {
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
    pub end: End,
    /// Which life of it: of the process, whatever resets its functions have.
    pub incarnation: Incarnation,
}

impl Neighbour {
    /// What it is called.
    pub const fn identity(&self) -> Identity {
        self.end.identity()
    }
}
