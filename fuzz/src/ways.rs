//! An adaptor's [`Paths`], held against what its neighbours said.

use std::collections::{BTreeMap, BTreeSet};

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::buses::Buses;
use assured_rdma::adaptor::mesh::neighbour::{End, LinkId, Neighbour, Routes};
use assured_rdma::router::{PathEvent, Paths, Remedy};

/// See the module.
pub struct Ways {
    own: NodeId,
    paths: Paths,
    /// How far each neighbour says that it is from each node; 0 for itself.
    distances: BTreeMap<LinkId, BTreeMap<NodeId, u8>>,
    routers: BTreeSet<LinkId>,
    /// What the adaptors at the other ends claim, buses or not.
    claims: BTreeMap<LinkId, Buses>,
    /// Nodes to which there is a way, by the events.
    up: BTreeSet<NodeId>,
}

impl Ways {
    /// Those of node `own`.
    pub fn new(own: NodeId) -> Self {
        Self {
            own,
            paths: Paths::new(Buses::single(own)),
            distances: BTreeMap::new(),
            routers: BTreeSet::new(),
            claims: BTreeMap::new(),
            up: BTreeSet::new(),
        }
    }

    /// There is a link with this neighbour.
    pub fn up(&mut self, link: LinkId, neighbour: Neighbour) {
        // Nobody else is let in under the node's own id.
        let distances = match neighbour.end {
            End::Adaptor(buses) if buses.span().contains(self.own) => return,
            End::Adaptor(buses) => buses.nodes().map(|node| (node, 0)).collect(),
            End::Router => BTreeMap::new(),
        };
        match neighbour.end {
            End::Adaptor(buses) => drop(self.claims.insert(link, buses)),
            End::Router => drop(self.routers.insert(link)),
        }
        self.distances.insert(link, distances);
        self.paths.handle_link_up(link, neighbour);
        self.follow();
    }

    /// The link is gone.
    pub fn down(&mut self, link: LinkId) {
        self.routers.remove(&link);
        self.claims.remove(&link);
        if self.distances.remove(&link).is_some() {
            self.paths.handle_link_down(link);
            self.follow();
        }
    }

    /// The neighbour says which nodes it reaches.
    pub fn routes(&mut self, link: LinkId, routes: &Routes) {
        if self.routers.contains(&link) {
            let distances = routes.iter().map(|route| (route.node, route.distance)).collect();
            self.distances.insert(link, distances);
        }
        if self.distances.contains_key(&link) {
            self.paths.handle_routes(link, routes);
            self.follow();
        }
    }

    /// The node gives no sign of life.
    pub fn silence(&mut self, node: NodeId) -> Option<LinkId> {
        let remedy = self.paths.handle_silence(node);
        assert_eq!(remedy.is_some(), self.up.contains(&node) || node == self.own);
        match remedy {
            Some(Remedy::Cut(link)) => {
                assert!(self.distances[&link].keys().eq([&node]), "nothing else is on a link that is cut");
                Some(link)
            }
            Some(Remedy::Doubt) | None => None,
        }
    }

    fn follow(&mut self) {
        while let Some(event) = self.paths.poll_event() {
            match event {
                PathEvent::Up(node) => assert!(self.up.insert(node), "node {node} was up"),
                PathEvent::Down(node) => assert!(self.up.remove(&node), "node {node} was down"),
            }
        }
    }

    /// Each node has one way, which is the shortest, and is told of.
    pub fn check(&self) {
        let mut reached = BTreeSet::new();
        for (&link, distances) in &self.distances {
            for node in self.paths.nodes(link) {
                assert!(reached.insert(node), "node {node} has two ways");
                let shortest = self.distances.values().filter_map(|all| all.get(&node)).min();
                assert_eq!(distances.get(&node), shortest, "the way to node {node}");
                assert!(self.paths.may_come_from(link, node));
            }
            assert!(!self.paths.may_come_from(link, self.own), "nobody speaks for this node");
        }
        assert_eq!(reached, self.up, "what has a way is up");
        // An id without a bus in what a neighbour claims is nobody's.
        let is_nobody = |node: NodeId| {
            let claimed = self.claims.values().any(|buses| buses.span().contains(node));
            claimed && !self.claims.values().any(|buses| buses.contains(node))
        };
        let told = self.distances.values().flat_map(BTreeMap::keys);
        let told = told.filter(|&&node| node != self.own && !is_nobody(node));
        assert_eq!(told.copied().collect::<BTreeSet<_>>(), reached, "what is told of has a way");
    }
}
