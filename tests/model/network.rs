//! The network between the two nodes. A packet may take any time, also for ever.
//!
//! Invariant: `kept` is sorted, because what is in it may leave in any order, so that no two states differ only in its order.

use std::fmt;

use assured_rdma::adaptor::mesh::packet::Packet;
use bytes::Bytes;

use crate::node::Side;

/// A packet on its way.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flight {
    pub to: Side,
    pub wire: Bytes,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = Packet::parse(self.wire.clone()).map_err(|_| fmt::Error)?;
        let (from, to) = (self.to.other(), self.to);
        let (source, destination) = (packet.source_incarnation, packet.destination_incarnation);
        write!(f, "{from}({source}) to {to}({destination}): {:?}", packet.body)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network {
    /// What is under way to each node, in the order in which it was sent.
    lines: [Vec<Flight>; 2],
    /// What some router keeps back.
    kept: Vec<Flight>,
}

impl Network {
    /// How many packets are under way to a node, without those that are kept.
    pub fn load(&self, to: Side) -> usize {
        self.lines[to as usize].len()
    }

    pub fn send(&mut self, to: Side, wire: Bytes) {
        self.lines[to as usize].push(Flight { to, wire });
    }

    /// The next packet to a node.
    pub fn first(&self, to: Side) -> Option<&Flight> {
        self.lines[to as usize].first()
    }

    pub fn take_first(&mut self, to: Side) -> Flight {
        self.lines[to as usize].remove(0)
    }

    pub fn keep(&mut self, flight: Flight) {
        let at = self.kept.partition_point(|other| *other < flight);
        self.kept.insert(at, flight);
    }

    pub fn kept(&self) -> &[Flight] {
        &self.kept
    }

    pub fn release(&mut self, place: usize) -> Flight {
        self.kept.remove(place)
    }
}
