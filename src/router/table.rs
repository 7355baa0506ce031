//! Which way each node is reached: distance vectors with split horizon.
//!
//! Each router tells its neighbours how far it is from each node, but not about nodes that it reaches over the very neighbour.
//! Distances beyond [`MAX_HOPS`] count as unreachable, so that what is gone is forgotten everywhere. Invariant: `best` follows from
//! `links`.

use std::collections::BTreeMap;

use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::neighbour::{Identity, LinkId, MAX_HOPS, Neighbour, Route, Routes};
use crate::adaptor::mesh::packet::Incarnation;

/// A way to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Routers on it, this one included.
    pub distance: u8,
    /// The first link.
    pub link: LinkId,
    /// Which life of the node it leads to.
    pub incarnation: Incarnation,
}

#[derive(Debug)]
struct Entry {
    neighbour: Neighbour,
    /// What the neighbour reaches, as distances from here.
    ways: BTreeMap<NodeId, (u8, Incarnation)>,
}

/// The table of a router.
#[derive(Debug, Default)]
pub struct Table {
    links: BTreeMap<LinkId, Entry>,
    best: BTreeMap<NodeId, Way>,
}

impl Table {
    /// A link with this neighbour is to be used; or the neighbour on it goes on as another incarnation. Returns whether any way changed.
    pub fn insert(&mut self, link: LinkId, neighbour: Neighbour) -> bool {
        let ways = match neighbour.identity {
            Identity::Node(node) => BTreeMap::from([(node, (1, neighbour.incarnation))]),
            Identity::Router => self.links.remove(&link).map(|entry| entry.ways).unwrap_or_default(),
        };
        self.links.insert(link, Entry { neighbour, ways });
        self.choose()
    }

    /// The link is not to be used any more. Returns whether any way changed, the best or another.
    pub fn remove(&mut self, link: LinkId) -> bool {
        let changed = self.links.remove(&link).is_some_and(|entry| !entry.ways.is_empty());
        self.choose();
        changed
    }

    /// The router at the other end reaches these nodes. Returns whether any way changed, the best or another.
    pub fn set_routes(&mut self, link: LinkId, routes: &Routes) -> bool {
        let Some(entry) = self.links.get_mut(&link) else { return false };
        if entry.neighbour.identity != Identity::Router {
            return false;
        }
        let farther = |route: Route| {
            let distance = route.distance.saturating_add(1);
            (distance <= MAX_HOPS).then_some((route.node, (distance, route.incarnation)))
        };
        let ways = routes.iter().filter_map(farther).collect();
        let changed = ways != entry.ways;
        entry.ways = ways;
        self.choose();
        changed
    }

    /// The best way to a node.
    pub fn way(&self, node: NodeId) -> Option<Way> {
        self.best.get(&node).copied()
    }

    /// Every node that can be reached.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Way)> {
        self.best.iter().map(|(&node, &way)| (node, way))
    }

    /// Whether the neighbour on this link said that it reaches the node.
    pub fn names(&self, link: LinkId, node: NodeId) -> bool {
        self.links.get(&link).is_some_and(|entry| entry.ways.contains_key(&node))
    }

    /// Another life of the node than `incarnation`, if a router says that it reaches one; the lowest, so that all routers compare
    /// with the same.
    pub fn rival(&self, node: NodeId, incarnation: Incarnation) -> Option<Incarnation> {
        let routers = self.links.values().filter(|entry| entry.neighbour.identity == Identity::Router);
        let lives = routers.filter_map(|entry| entry.ways.get(&node)).map(|&(_, life)| life);
        lives.filter(|&life| life != incarnation).min_by_key(|life| life.0)
    }

    /// What the neighbour on this link is to know.
    pub fn routes_for(&self, link: LinkId) -> Routes {
        let neighbour = self.links.get(&link).map(|entry| entry.neighbour);
        // Two routers may be joined twice; neither leads anywhere but to the other.
        let leads_back = |way: Way| {
            way.link == link || self.links.get(&way.link).map(|entry| entry.neighbour) == neighbour
        };
        let routes = self.best.iter().filter_map(|(&node, &best)| {
            let way = if leads_back(best) {
                // It has to hear of another life of the node, of which it knows one.
                self.ways(node).find(|&way| !leads_back(way) && way.incarnation != best.incarnation)?
            } else {
                best
            };
            Some(Route { node, distance: way.distance, incarnation: way.incarnation })
        });
        Routes::new(routes)
    }

    fn ways(&self, node: NodeId) -> impl Iterator<Item = Way> {
        self.links.iter().filter_map(move |(&link, entry)| {
            let &(distance, incarnation) = entry.ways.get(&node)?;
            Some(Way { distance, link, incarnation })
        })
    }

    fn choose(&mut self) -> bool {
        let mut best = BTreeMap::new();
        for (&link, entry) in &self.links {
            for (&node, &(distance, incarnation)) in &entry.ways {
                let way = Way { distance, link, incarnation };
                let chosen = best.entry(node).or_insert(way);
                // Of equal ways the newest link: an older one may be what a router that was restarted left.
                if way.distance <= chosen.distance {
                    *chosen = way;
                }
            }
        }
        let changed = best != self.best;
        self.best = best;
        changed
    }
}
