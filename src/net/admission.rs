//! Who is let in on a link: the one place where a claim to be somebody is accepted or refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::neighbour::{Identity, Neighbour, Refusal};
use crate::adaptor::mesh::packet::Packet;

/// Whom this end talks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Company {
    /// These nodes, and where to dial them; and the routers that it dials.
    Nodes(BTreeMap<NodeId, Option<SocketAddr>>),
    /// Every node and every router: this end is a router itself.
    Everyone,
}

/// What an end of a link says of itself, and what is known of it besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who it says it is.
    pub neighbour: Neighbour,
    /// The node id that it looks for; 0 where it looks for a router.
    pub looks_for: NodeId,
    /// Whom we dialed, where we did.
    pub dialed: Option<Identity>,
    /// Who it is by its certificate, where there is one.
    pub certified: Option<Identity>,
}

impl Claim {
    /// The claim that `packet` makes; `None` where it is no Join, or one without meaning.
    pub fn from_join(packet: &Packet, dialed: Option<Identity>, certified: Option<Identity>) -> Option<Self> {
        let neighbour = Neighbour { identity: packet.joiner()?, incarnation: packet.source_incarnation };
        Some(Self { neighbour, looks_for: packet.destination, dialed, certified })
    }

    /// Whether `own`, which talks to `company`, lets the claimant in.
    ///
    /// # Errors
    /// Why not, and the same in words for the operator.
    pub fn examine(&self, own: Neighbour, company: &Company) -> Result<(), (Refusal, String)> {
        let Self { neighbour: Neighbour { identity, incarnation }, looks_for, dialed, certified } = *self;
        if let Some(certified) = certified
            && certified != identity
        {
            let why = format!("it claims to be {identity}, but its certificate is that of {certified}");
            return Err((Refusal::WrongIdentity, why));
        }
        if let Some(dialed) = dialed
            && dialed != identity
        {
            let why = format!("it is {identity}, {dialed} was looked for");
            return Err((Refusal::WrongIdentity, why));
        }
        if looks_for != own.identity.id() {
            let why = format!("{identity} looks for node {looks_for}, this is {}", own.identity);
            return Err((Refusal::WrongIdentity, why));
        }
        if incarnation == own.incarnation {
            return Err((Refusal::WrongIdentity, "it is this very process".to_owned()));
        }
        if identity == own.identity && identity != Identity::Router {
            return Err((Refusal::Duplicate, format!("it claims to be {identity}, which is this one")));
        }
        let known = match (company, identity) {
            (Company::Everyone, _) => true,
            (Company::Nodes(nodes), Identity::Node(node)) => nodes.contains_key(&node),
            (Company::Nodes(_), Identity::Router) => dialed.is_some(),
        };
        if known { Ok(()) } else { Err((Refusal::NotConfigured, format!("{identity} is not configured"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptor::mesh::packet::Incarnation;

    #[test]
    fn each_false_claim_is_refused() {
        use Identity::{Node, Router};
        let node = |n| Node(NodeId(n));
        let company = Company::Nodes(BTreeMap::from([(NodeId(2), None)]));
        let own = Neighbour { identity: node(1), incarnation: Incarnation(1) };
        let router = Neighbour { identity: Router, incarnation: Incarnation(1) };
        for (own, company, identity, life, looks_for, dialed, certified, expected) in [
            (own, &company, node(2), 5, 1, None, None, None),
            (own, &company, node(2), 5, 1, Some(node(2)), Some(node(2)), None),
            (own, &company, Router, 5, 1, Some(Router), Some(Router), None),
            (own, &company, node(2), 5, 1, None, Some(node(3)), Some(Refusal::WrongIdentity)),
            (own, &company, node(2), 5, 1, None, Some(Router), Some(Refusal::WrongIdentity)),
            (own, &company, node(2), 5, 1, Some(node(3)), None, Some(Refusal::WrongIdentity)),
            (own, &company, node(2), 5, 1, Some(Router), None, Some(Refusal::WrongIdentity)),
            (own, &company, node(2), 5, 3, None, None, Some(Refusal::WrongIdentity)),
            (own, &company, node(2), 1, 1, None, None, Some(Refusal::WrongIdentity)),
            (own, &company, node(1), 5, 1, None, None, Some(Refusal::Duplicate)),
            (own, &company, node(3), 5, 1, None, None, Some(Refusal::NotConfigured)),
            (own, &company, Router, 5, 1, None, None, Some(Refusal::NotConfigured)),
            (router, &Company::Everyone, node(3), 5, 0, None, None, None),
            (router, &Company::Everyone, node(0), 5, 0, None, None, None),
            (router, &Company::Everyone, Router, 5, 0, None, None, None),
            (router, &Company::Everyone, Router, 1, 0, None, None, Some(Refusal::WrongIdentity)),
            (router, &Company::Everyone, node(3), 5, 4, None, None, Some(Refusal::WrongIdentity)),
            (router, &Company::Everyone, node(3), 5, 0, Some(Router), None, Some(Refusal::WrongIdentity)),
        ] {
            let neighbour = Neighbour { identity, incarnation: Incarnation(life) };
            let claim = Claim { neighbour, looks_for: NodeId(looks_for), dialed, certified };
            let refusal = claim.examine(own, company).err().map(|(refusal, _)| refusal);
            assert_eq!(refusal, expected, "{claim:?} at {}", own.identity);
        }
    }
}
