//! The adaptor's view of routing: over which of its links each other node is reached.
//!
//! A direct link goes before any router, a nearer router before a farther one, and a path stays as it is while none is
//! better. Invariant: `Up` and `Down` alternate for each node.

use std::collections::{BTreeMap, VecDeque};

use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::neighbour::{Identity, LinkId, Neighbour, Routes};

/// What changed for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// There is a way to it.
    Up(NodeId),
    /// There is none any more.
    Down(NodeId),
}

#[derive(Debug)]
enum Reach {
    Node(NodeId),
    Router(BTreeMap<NodeId, u8>),
}

impl Reach {
    fn distance(&self, node: NodeId) -> Option<u8> {
        match self {
            Self::Node(there) => (*there == node).then_some(0),
            Self::Router(distances) => distances.get(&node).copied(),
        }
    }
}

#[derive(Debug)]
struct Link {
    reach: Reach,
    /// The node whose packet was sent last, so that the others are next.
    served: NodeId,
}

/// The ways from one node to all others.
#[derive(Debug)]
pub struct Paths {
    own: NodeId,
    links: BTreeMap<LinkId, Link>,
    paths: BTreeMap<NodeId, LinkId>,
    events: VecDeque<PathEvent>,
}

impl Paths {
    /// No ways from `own` to anywhere.
    pub const fn new(own: NodeId) -> Self {
        Self { own, links: BTreeMap::new(), paths: BTreeMap::new(), events: VecDeque::new() }
    }

    /// There is a link with this neighbour.
    pub fn handle_link_up(&mut self, link: LinkId, neighbour: Neighbour) {
        let reach = match neighbour.identity {
            Identity::Node(node) => Reach::Node(node),
            Identity::Router => Reach::Router(BTreeMap::new()),
        };
        self.links.insert(link, Link { reach, served: self.own });
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

    /// The node gives no sign of life. Gives the link with it, where it has one; behind a router it counts as lost for a moment, so
    /// that it has to prove itself again.
    pub fn handle_silence(&mut self, node: NodeId) -> Option<LinkId> {
        let &link = self.paths.get(&node)?;
        if matches!(self.links.get(&link)?.reach, Reach::Node(_)) {
            return Some(link);
        }
        self.events.extend([PathEvent::Down(node), PathEvent::Up(node)]);
        None
    }

    /// What changed.
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// Whether packets of the node may arrive over the link: of one with a direct link over no other, so that no router speaks
    /// for it. What a router still holds when that link comes is sent again.
    pub fn may_come_from(&self, link: LinkId, node: NodeId) -> bool {
        match self.links.get(&link).map(|link| &link.reach) {
            Some(Reach::Node(there)) => *there == node,
            Some(Reach::Router(_)) => node != self.own && !self.is_neighbour(node),
            None => false,
        }
    }

    fn is_neighbour(&self, node: NodeId) -> bool {
        self.links.values().any(|link| matches!(link.reach, Reach::Node(there) if there == node))
    }

    /// The nodes whose packets go over the link.
    pub fn nodes(&self, link: LinkId) -> impl Iterator<Item = NodeId> {
        self.paths.iter().filter(move |&(_, &path)| path == link).map(|(&node, _)| node)
    }

    /// The first thing that `next` gives for the nodes of a link, which take turns.
    pub fn serve<T>(&mut self, link: LinkId, mut next: impl FnMut(NodeId) -> Option<T>) -> Option<T> {
        let entry = self.links.get_mut(&link)?;
        if let Reach::Node(node) = entry.reach {
            return if self.paths.get(&node) == Some(&link) { next(node) } else { None };
        }
        let served = entry.served;
        let behind = |(&node, &path): (&NodeId, &LinkId)| (path == link).then_some(node);
        let later = self.paths.iter().filter_map(behind).filter(|&node| node > served);
        let earlier = self.paths.iter().filter_map(behind).filter(|&node| node <= served);
        let (node, given) = later.chain(earlier).find_map(|node| Some((node, next(node)?)))?;
        entry.served = node;
        Some(given)
    }

    /// Finds the best way to each node.
    fn choose(&mut self) {
        for node in (0..=u8::MAX).map(NodeId).filter(|&node| node != self.own) {
            let before = self.paths.get(&node).copied();
            let distance = |link: &Link| link.reach.distance(node);
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

    fn neighbour(identity: Identity) -> Neighbour {
        Neighbour { identity, incarnation: Incarnation(7) }
    }

    #[test]
    fn a_direct_link_goes_first_and_the_nearest_router_next() {
        let mut paths = Paths::new(OWN);
        paths.handle_link_up(LinkId(1), neighbour(Identity::Router));
        assert!(events(&mut paths).is_empty());
        paths.handle_routes(LinkId(1), &routes(&[(1, 1), (2, 3), (3, 1)]));
        assert_eq!(events(&mut paths), [PathEvent::Up(TWO), PathEvent::Up(THREE)]);
        paths.handle_link_up(LinkId(2), neighbour(Identity::Router));
        paths.handle_routes(LinkId(2), &routes(&[(2, 2), (3, 1)]));
        paths.handle_link_up(LinkId(3), neighbour(Identity::Node(THREE)));
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
        let mut paths = Paths::new(OWN);
        paths.handle_link_up(LinkId(1), neighbour(Identity::Router));
        paths.handle_routes(LinkId(1), &routes(&[(2, 1), (3, 1), (4, 1)]));
        let mut served = Vec::new();
        for _ in 0..6 {
            served.extend(paths.serve(LinkId(1), |node| (node != THREE).then_some(node.0)));
        }
        assert_eq!(served, [2, 4, 2, 4, 2, 4]);
        assert_eq!(paths.serve(LinkId(1), |_| None::<u8>), None);
    }

    #[test]
    fn a_link_brings_packets_only_of_who_is_there() {
        let mut paths = Paths::new(OWN);
        paths.handle_link_up(LinkId(1), neighbour(Identity::Router));
        paths.handle_link_up(LinkId(2), neighbour(Identity::Node(TWO)));
        assert!(paths.may_come_from(LinkId(1), THREE) && !paths.may_come_from(LinkId(1), OWN));
        assert!(paths.may_come_from(LinkId(2), TWO) && !paths.may_come_from(LinkId(2), THREE));
        assert!(!paths.may_come_from(LinkId(1), TWO), "no router speaks for a neighbour");
        paths.handle_routes(LinkId(2), &routes(&[(3, 1)]));
        assert_eq!(paths.nodes(LinkId(2)).collect::<Vec<_>>(), [TWO], "only routers have routes");
        assert_eq!(paths.handle_silence(TWO), Some(LinkId(2)));
        paths.handle_link_down(LinkId(2));
        assert!(paths.may_come_from(LinkId(1), TWO));
    }
}
