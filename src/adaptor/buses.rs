//! The buses of one adaptor process, and the node ids that they have.
//!
//! Each bus is a node of its own; the low bits of its id are the bus number. Invariant: a span begins at a multiple of its
//! length, which is a power of two, so that two spans are apart or one is in the other.

use core::fmt;

use super::address::NodeId;

/// The most bits of a node id that can be a bus number: all.
pub const MAX_BUS_BITS: u32 = 8;

/// Node ids that differ in the bus number only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    first: NodeId,
    bits: u32,
}

impl Span {
    /// One node id.
    pub const fn single(node: NodeId) -> Self {
        Self { first: node, bits: 0 }
    }

    /// The ids with `bits` bits of bus number from `first` on; `None` where `first` has a bus number itself, or there are not that many bits.
    pub fn new(first: NodeId, bits: u32) -> Option<Self> {
        let aligned = bits <= MAX_BUS_BITS && u32::from(first.0) & Self::mask(bits) == 0;
        aligned.then_some(Self { first, bits })
    }

    /// The span of exactly these ids, which are in rising order; `None` where there is none.
    pub fn of(nodes: &[NodeId]) -> Option<Self> {
        let (first, last) = (*nodes.first()?, *nodes.last()?);
        let span = Self::new(first, nodes.len().checked_ilog2()?)?;
        let whole = nodes.len() == usize::from(span.size()) && span.last() == last;
        (whole && nodes.is_sorted_by(|a, b| a < b)).then_some(span)
    }

    const fn mask(bits: u32) -> u32 {
        (1u32 << bits).wrapping_sub(1)
    }

    /// The id of bus 0, which stands for the adaptor.
    pub const fn first(self) -> NodeId {
        self.first
    }

    /// The last id.
    pub fn last(self) -> NodeId {
        NodeId(self.first.0 | u8::try_from(Self::mask(self.bits)).unwrap_or(u8::MAX))
    }

    /// Bits of the bus number.
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// How many ids there are, 1 to 256.
    pub const fn size(self) -> u16 {
        1 << self.bits
    }

    /// Whether `node` is one of them.
    pub fn contains(self, node: NodeId) -> bool {
        (self.first..=self.last()).contains(&node)
    }

    /// Whether all ids of `other` are among these.
    pub fn covers(self, other: Self) -> bool {
        self.contains(other.first) && self.contains(other.last())
    }

    /// Whether some id is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The ids, in rising order.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> + Clone {
        (self.first.0..=self.last().0).map(NodeId)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            0 => write!(f, "node {}", self.first),
            _ => write!(f, "nodes {} to {}", self.first, self.last()),
        }
    }
}

/// The buses that an adaptor has: the first so many ids of its span. The others of the span are nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Buses {
    span: Span,
    count: u16,
}

impl Buses {
    /// An adaptor with one bus.
    pub const fn single(node: NodeId) -> Self {
        Self { span: Span::single(node), count: 1 }
    }

    /// An adaptor with `count` buses; `None` where these are none, or more than `span` has ids for.
    pub fn new(span: Span, count: u16) -> Option<Self> {
        (1..=span.size()).contains(&count).then_some(Self { span, count })
    }

    /// All ids that belong to the adaptor, those without a bus included.
    pub const fn span(self) -> Span {
        self.span
    }

    /// How many buses there are, at least 1.
    pub const fn count(self) -> u16 {
        self.count
    }

    /// The nodes that there are, in the order of bus numbers.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> + Clone {
        self.span.nodes().take(self.count.into())
    }

    /// The number of the bus that has this id; `None` where there is no such bus.
    pub fn number(self, node: NodeId) -> Option<usize> {
        let number = node.0.checked_sub(self.span.first.0)?;
        (u16::from(number) < self.count).then_some(number.into())
    }

    /// Whether there is a bus that has this id.
    pub fn contains(self, node: NodeId) -> bool {
        self.number(node).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: u8, bits: u32) -> Span {
        Span::new(NodeId(first), bits).unwrap()
    }

    #[test]
    fn spans_are_aligned_and_apart_or_within_each_other() {
        assert_eq!(
            (span(4, 1).last(), span(4, 2).last(), span(0, 8).last()),
            (NodeId(5), NodeId(7), NodeId(255))
        );
        for (first, bits) in [(5, 1), (6, 2), (128, 8), (0, 9), (1, 32)] {
            assert_eq!(Span::new(NodeId(first), bits), None, "{first}, {bits}");
        }
        for (a, b, covers, overlaps) in [
            (span(4, 1), span(5, 0), true, true),
            (span(5, 0), span(4, 1), false, true),
            (span(4, 1), span(6, 1), false, false),
            (span(0, 8), span(255, 0), true, true),
            (span(7, 0), span(7, 0), true, true),
        ] {
            assert_eq!((a.covers(b), a.overlaps(b)), (covers, overlaps), "{a}, {b}");
        }
        assert_eq!(span(3, 0).to_string(), "node 3");
        assert_eq!(span(4, 2).to_string(), "nodes 4 to 7");
    }

    #[test]
    fn only_all_ids_of_a_span_make_one() {
        let of = |nodes: &[u8]| Span::of(&nodes.iter().copied().map(NodeId).collect::<Vec<_>>());
        assert_eq!(of(&[3]), Some(span(3, 0)));
        assert_eq!(of(&[4, 5, 6, 7]), Some(span(4, 2)));
        assert_eq!(Span::of(&span(0, 8).nodes().collect::<Vec<_>>()), Some(span(0, 8)));
        for nodes in [&[][..], &[3, 4], &[4, 5, 6], &[4, 6], &[5, 4], &[4, 4], &[4, 5, 5, 7], &[4, 5, 6, 8]] {
            assert_eq!(of(nodes), None, "{nodes:?}");
        }
    }

    #[test]
    fn an_id_of_the_span_without_a_bus_is_no_node() {
        let buses = Buses::new(span(4, 2), 3).unwrap();
        assert_eq!(buses.nodes().map(|node| node.0).collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!([3, 4, 6, 7].map(|node| buses.number(NodeId(node))), [None, Some(0), Some(2), None]);
        assert_eq!(Buses::new(span(4, 1), 3), None);
        assert_eq!(Buses::new(span(4, 1), 0), None);
        assert_eq!(Buses::new(span(0, 8), 256).unwrap().nodes().count(), 256);
    }
}
