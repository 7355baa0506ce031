//! The adaptor's view of routing: over which of its links each other node is reached.
//!
//! A direct link goes before any router, a nearer router before a farther one, and a path stays as it is while none is
//! better. All buses of the adaptor have the same ways. Invariant: `Up` and `Down` alternate for each node.

use std::collections::{BTreeMap, VecDeque};

use crate::adaptor::address::NodeId;
use crate::adaptor::buses::Buses;
use crate::adaptor::mesh::neighbour::{End, LinkId, Neighbour, Routes};

/// What changed for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// There is a way to it.
    Up(NodeId),
    /// There is none any more.
    Down(NodeId),
}

/// What is to be done about a node that gives no sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Cut the link: nothing else is on it.
    Cut(LinkId),
    /// Have the bus that noticed prove its session again. Whether the link works, its two ends find out.
    Doubt,
}

#[derive(Debug)]
enum Reach {
    Adaptor(Buses),
    Router(BTreeMap<NodeId, u8>),
}

impl Reach {
    fn distance(&self, node: NodeId) -> Option<u8> {
        match self {
            Self::Adaptor(buses) => buses.contains(node).then_some(0),
            Self::Router(distances) => distances.get(&node).copied(),
        }
    }
}

#[derive(Debug)]
struct Link {
    reach: Reach,
    /// For which node a packet was sent last, and of which bus, so that the others are next.
    served: (NodeId, NodeId),
}

/// The ways from one adaptor to all other nodes.
#[derive(Debug)]
pub struct Paths {
    own: Buses,
    links: BTreeMap<LinkId, Link>,
    paths: BTreeMap<NodeId, LinkId>,
    events: VecDeque<PathEvent>,
}

impl Paths {
    /// No ways from `own` to anywhere.
    pub const fn new(own: Buses) -> Self {
        Self { own, links: BTreeMap::new(), paths: BTreeMap::new(), events: VecDeque::new() }
    }

    /// The adaptor whose ways these are.
    pub const fn own(&self) -> Buses {
        self.own
    }

    /// There is a link with this neighbour.
    pub fn handle_link_up(&mut self, link: LinkId, neighbour: Neighbour) {
        let reach = match neighbour.end {
            End::Adaptor(buses) => Reach::Adaptor(buses),
            End::Router => Reach::Router(BTreeMap::new()),
        };
        let first = self.own.span().first();
        self.links.insert(link, Link { reach, served: (first, first) });
        self.choose();
    }

    /// The link is gone.
    pub fn handle_link_down(&mut self, link: LinkId) {
        self.links.remove(&link);
        self.choose();
    }

    /// The router at the other end of the link says which nodes it reaches. From anyone else that means nothing.
    pub fn handle_routes(&mut self, link: LinkId, routes: &Routes) {
        if let Some(Link { reach: Reach::Router(distances), .. }) = self.links.get_mut(&link) {
            *distances = routes.iter().map(|route| (route.node, route.distance)).collect();
            self.choose();
        }
    }

    /// What helps where the node gives a bus no sign of life; `None` where there is no way to it anyway.
    pub fn handle_silence(&self, node: NodeId) -> Option<Remedy> {
        if self.own.contains(node) {
            return Some(Remedy::Doubt);
        }
        let &link = self.paths.get(&node)?;
        let alone = match &self.links.get(&link)?.reach {
            Reach::Adaptor(buses) => buses.count() == 1 && self.own.count() == 1,
            Reach::Router(_) => false,
        };
        Some(if alone { Remedy::Cut(link) } else { Remedy::Doubt })
    }

    /// What changed.
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// Whether packets of the node may arrive over the link: of one with a direct link over no other, so that no router speaks
    /// for it. What a router still holds when that link comes is sent again.
    pub fn may_come_from(&self, link: LinkId, node: NodeId) -> bool {
        match self.links.get(&link).map(|link| &link.reach) {
            Some(Reach::Adaptor(buses)) => buses.contains(node),
            Some(Reach::Router(_)) => !self.own.span().contains(node) && !self.is_neighbour(node),
            None => false,
        }
    }

    fn is_neighbour(&self, node: NodeId) -> bool {
        self.links
            .values()
            .any(|link| matches!(link.reach, Reach::Adaptor(buses) if buses.span().contains(node)))
    }

    /// The nodes whose packets go over the link.
    pub fn nodes(&self, link: LinkId) -> impl Iterator<Item = NodeId> + Clone {
        // Neither looks at all ways for a link that leads to few nodes, nor at all nodes for a router that reaches few.
        let (few, all) = match self.links.get(&link).map(|link| &link.reach) {
            Some(Reach::Adaptor(buses)) => (Some(buses.nodes()), None),
            Some(Reach::Router(_)) => (None, Some(self.paths.keys().copied())),
            None => (None, None),
        };
        let nodes = few.into_iter().flatten().chain(all.into_iter().flatten());
        nodes.filter(move |node| self.paths.get(node) == Some(&link))
    }

    /// The first thing that `next` gives for one of the adaptor's buses and one of the link's nodes. All these pairs take turns.
    pub fn serve<T>(&mut self, link: LinkId, mut next: impl FnMut(NodeId, NodeId) -> Option<T>) -> Option<T> {
        let served = self.links.get(&link)?.served;
        let pairs = self.nodes(link).flat_map(|to| self.own.nodes().map(move |from| (to, from)));
        let later = pairs.clone().filter(|&pair| pair > served);
        let earlier = pairs.filter(|&pair| pair <= served);
        let (pair, given) =
            later.chain(earlier).find_map(|(to, from)| Some(((to, from), next(from, to)?)))?;
        if let Some(link) = self.links.get_mut(&link) {
            link.served = pair;
        }
        Some(given)
    }

    /// Finds the best way to each node.
    fn choose(&mut self) {
        let own = self.own.span();
        for node in (0..=u8::MAX).map(NodeId).filter(|&node| !own.contains(node)) {
            let before = self.paths.get(&node).copied();
            // An id without a bus, in the span of a neighbour, is nobody's, whatever routers say.
            let has_it = |link: &Link| matches!(link.reach, Reach::Adaptor(buses) if buses.contains(node));
            let is_nobody = self.is_neighbour(node) && !self.links.values().any(has_it);
            let distance = |link: &Link| if is_nobody { None } else { link.reach.distance(node) };
            let still = before.and_then(|link| distance(self.links.get(&link)?));
            let best = self
                .links
                .iter()
                .filter_map(|(&id, link)| Some((distance(link)?, Some(id) != before, id)))
                .min()
                .map(|(_, _, id)| id);
            if best == before {
                continue;
            }
            // Where the old way is still good, nothing on it gets lost.
            if before.is_some() && (still.is_none() || best.is_none()) {
                self.events.push_back(PathEvent::Down(node));
            }
            match best {
                Some(link) => {
                    self.paths.insert(node, link);
                    if still.is_none() {
                        self.events.push_back(PathEvent::Up(node));
                    }
                }
                None => {
                    self.paths.remove(&node);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor::buses::Span;
    use crate::adaptor::mesh::neighbour::Route;
    use crate::adaptor::mesh::packet::Incarnation;

    const OWN: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);
    const THREE: NodeId = NodeId(3);

    fn routes(list: &[(u8, u8)]) -> Routes {
        let incarnation = Incarnation(1);
        Routes::new(list.iter().map(|&(node, distance)| Route { node: NodeId(node), distance, incarnation }))
    }

    fn events(paths: &mut Paths) -> Vec<PathEvent> {
        std::iter::from_fn(|| paths.poll_event()).collect()
    }

    fn neighbour(end: End) -> Neighbour {
        Neighbour { end, incarnation: Incarnation(7) }
    }

    fn own() -> Buses {
        Buses::single(OWN)
    }

    /// The first `count` nodes of the span with `bits` bits from `first` on.
    fn buses(first: u8, bits: u32, count: u16) -> Buses {
        Buses::new(Span::new(NodeId(first), bits).unwrap(), count).unwrap()
    }

    #[test]
    fn an_id_without_a_bus_in_a_neighbours_span_has_no_way_over_a_router() {
        let mut paths = Paths::new(own());
        paths.handle_link_up(LinkId(1), neighbour(End::Router));
        paths.handle_routes(LinkId(1), &routes(&[(7, 1)]));
        assert_eq!(events(&mut paths), [PathEvent::Up(NodeId(7))]);
        paths.handle_link_up(LinkId(2), neighbour(End::Adaptor(buses(4, 2, 3))));
        let ups = [4, 5, 6].map(|node| PathEvent::Up(NodeId(node)));
        assert_eq!(events(&mut paths), [&ups[..], &[PathEvent::Down(NodeId(7))]].concat());
        assert!(!paths.may_come_from(LinkId(1), NodeId(7)));
        paths.handle_link_down(LinkId(2));
        assert!(events(&mut paths).contains(&PathEvent::Up(NodeId(7))));
    }

    #[test]
    fn a_direct_link_goes_first_and_the_nearest_router_next() {
        let mut paths = Paths::new(own());
        paths.handle_link_up(LinkId(1), neighbour(End::Router));
        assert!(events(&mut paths).is_empty());
        paths.handle_routes(LinkId(1), &routes(&[(1, 1), (2, 3), (3, 1)]));
        assert_eq!(events(&mut paths), [PathEvent::Up(TWO), PathEvent::Up(THREE)]);
        paths.handle_link_up(LinkId(2), neighbour(End::Router));
        paths.handle_routes(LinkId(2), &routes(&[(2, 2), (3, 1)]));
        paths.handle_link_up(LinkId(3), neighbour(End::node(THREE)));
        assert!(events(&mut paths).is_empty(), "a better way costs nothing");
        assert_eq!(paths.nodes(LinkId(2)).collect::<Vec<_>>(), [TWO]);
        assert_eq!(paths.nodes(LinkId(3)).collect::<Vec<_>>(), [THREE]);
        // What was on a way that is lost is lost with it.
        paths.handle_link_down(LinkId(3));
        assert_eq!(events(&mut paths), [PathEvent::Down(THREE), PathEvent::Up(THREE)]);
        assert_eq!(paths.nodes(LinkId(1)).collect::<Vec<_>>(), [THREE]);
        paths.handle_routes(LinkId(2), &routes(&[]));
        assert_eq!(events(&mut paths), [PathEvent::Down(TWO), PathEvent::Up(TWO)]);
        paths.handle_link_down(LinkId(1));
        assert_eq!(events(&mut paths), [PathEvent::Down(TWO), PathEvent::Down(THREE)]);
        assert_eq!(paths.handle_silence(TWO), None);
        assert!(events(&mut paths).is_empty());
    }

    #[test]
    fn nodes_behind_a_router_take_turns() {
        let mut paths = Paths::new(own());
        paths.handle_link_up(LinkId(1), neighbour(End::Router));
        paths.handle_routes(LinkId(1), &routes(&[(2, 1), (3, 1), (4, 1)]));
        let mut served = Vec::new();
        for _ in 0..6 {
            served.extend(paths.serve(LinkId(1), |_, node| (node != THREE).then_some(node.0)));
        }
        assert_eq!(served, [2, 4, 2, 4, 2, 4]);
        assert_eq!(paths.serve(LinkId(1), |_, _| None::<u8>), None);
    }

    #[test]
    fn a_link_brings_packets_only_of_who_is_there() {
        let mut paths = Paths::new(own());
        paths.handle_link_up(LinkId(1), neighbour(End::Router));
        paths.handle_link_up(LinkId(2), neighbour(End::node(TWO)));
        assert!(paths.may_come_from(LinkId(1), THREE) && !paths.may_come_from(LinkId(1), OWN));
        assert!(paths.may_come_from(LinkId(2), TWO) && !paths.may_come_from(LinkId(2), THREE));
        assert!(!paths.may_come_from(LinkId(1), TWO), "no router speaks for a neighbour");
        paths.handle_routes(LinkId(2), &routes(&[(3, 1)]));
        assert_eq!(paths.nodes(LinkId(2)).collect::<Vec<_>>(), [TWO], "only routers have routes");
        assert_eq!(paths.handle_silence(TWO), Some(Remedy::Cut(LinkId(2))));
        paths.handle_link_down(LinkId(2));
        assert!(paths.may_come_from(LinkId(1), TWO));
    }

    #[test]
    fn a_link_reaches_every_bus_of_the_adaptor_there_and_no_other_id_of_it() {
        let mut paths = Paths::new(buses(0, 1, 2));
        paths.handle_link_up(LinkId(1), neighbour(End::Adaptor(buses(4, 2, 3))));
        let reached = [4, 5, 6].map(NodeId);
        assert_eq!(events(&mut paths), reached.map(PathEvent::Up));
        assert_eq!(paths.nodes(LinkId(1)).collect::<Vec<_>>(), reached);
        assert!(paths.may_come_from(LinkId(1), NodeId(6)) && !paths.may_come_from(LinkId(1), NodeId(7)));
        // One bus that is not heard of is no reason to cut the link of the others.
        assert_eq!(paths.handle_silence(NodeId(5)), Some(Remedy::Doubt));
        // From a router nothing comes that is of this adaptor itself, and nothing goes there.
        paths.handle_link_up(LinkId(2), neighbour(End::Router));
        paths.handle_routes(LinkId(2), &routes(&[(0, 1), (1, 1), (4, 1), (9, 1)]));
        assert_eq!(events(&mut paths), [PathEvent::Up(NodeId(9))]);
        assert!(!paths.may_come_from(LinkId(2), NodeId(1)) && paths.may_come_from(LinkId(2), NodeId(9)));
        assert!(
            [4, 6, 7].iter().all(|&node| !paths.may_come_from(LinkId(2), NodeId(node))),
            "no router speaks for a neighbour"
        );
        paths.handle_link_down(LinkId(1));
        let lost = [
            PathEvent::Down(NodeId(4)),
            PathEvent::Up(NodeId(4)),
            PathEvent::Down(NodeId(5)),
            PathEvent::Down(NodeId(6)),
        ];
        assert_eq!(events(&mut paths), lost);
    }

    #[test]
    fn every_pair_of_buses_has_its_turn() {
        let mut paths = Paths::new(buses(0, 1, 2));
        paths.handle_link_up(LinkId(1), neighbour(End::Adaptor(buses(4, 1, 2))));
        let mut serve = |silent: Option<(u8, u8)>| {
            paths.serve(LinkId(1), |from, to| {
                let pair = (from.0, to.0);
                (Some(pair) != silent).then_some(pair)
            })
        };
        let all: Vec<_> = (0..8).filter_map(|_| serve(None)).collect();
        let round = [(0, 4), (1, 4), (0, 5), (1, 5)];
        assert_eq!(all, [round, round].concat());
        let others: Vec<_> = (0..3).filter_map(|_| serve(Some((1, 4)))).collect();
        assert_eq!(others, [(0, 4), (0, 5), (1, 5)]);
    }
}
