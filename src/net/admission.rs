//! Who is let in on a link: the one place where a claim to be somebody is accepted or refused.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::identity::{Identity, Owner};
use crate::adaptor::address::NodeId;
use crate::adaptor::mesh::neighbour::{Neighbour, Refusal};
use crate::adaptor::mesh::packet::{Body, Packet};
use crate::adaptor::mesh::versions::Versions;

/// Whom this end talks to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Company {
    /// The adaptors that are called by these nodes, and where to dial them; and the routers that it dials.
    Nodes(BTreeMap<NodeId, Option<SocketAddr>>),
    /// Every node and every router: this end is a router itself.
    Everyone,
}

/// What an end of a link says of itself, and what is known of it besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who it says it is.
    pub neighbour: Neighbour,
    /// What it speaks.
    pub versions: Versions,
    /// The node id that it looks for; 0 where it looks for a router.
    pub looks_for: NodeId,
    /// Whom we dialed, where we did.
    pub dialed: Option<Identity>,
    /// Whose certificate it has shown, where there is one.
    pub certified: Option<Owner>,
}

impl Claim {
    /// The claim that `packet` makes; `None` where it is no Join, or one without meaning.
    pub fn from_join(packet: &Packet, dialed: Option<Identity>, certified: Option<Owner>) -> Option<Self> {
        let Body::Join { versions, .. } = packet.body else { return None };
        let neighbour = Neighbour { end: packet.joiner()?, incarnation: packet.source_incarnation };
        Some(Self { neighbour, versions, looks_for: packet.destination, dialed, certified })
    }

    /// Whether `own`, which talks to `company`, lets the claimant in.
    ///
    /// # Errors
    /// Why not, and the same in words for the operator.
    pub fn examine(&self, own: Neighbour, company: &Company) -> Result<(), (Refusal, String)> {
        let Self { neighbour: Neighbour { end, incarnation }, versions, looks_for, dialed, certified } =
            *self;
        let identity = end.identity();
        if versions.common(Versions::OWN).is_none() {
            return Err((Refusal::Version, versions.difference()));
        }
        if let Some(certified) = certified
            && !certified.includes(Owner::of(end))
        {
            let why = format!("it claims to be {end}, but its certificate is that of {certified}");
            return Err((Refusal::WrongIdentity, why));
        }
        if let Some(dialed) = dialed
            && dialed != identity
        {
            let why = format!("it is {end}, {dialed} was looked for");
            return Err((Refusal::WrongIdentity, why));
        }
        if looks_for != own.identity().id() {
            let wanted = match looks_for {
                NodeId(0) => "a router, or node 0".to_owned(),
                node => format!("node {node}"),
            };
            let why = format!("{end} looks for {wanted}, this is {}", own.end);
            return Err((Refusal::WrongIdentity, why));
        }
        if incarnation == own.incarnation {
            return Err((Refusal::WrongIdentity, "it is this very process".to_owned()));
        }
        if end.overlaps(own.end) {
            let why = match own.end.span() {
                Some(span) if own.end.span() == end.span() => {
                    format!("it claims to be {span}, which is this one")
                }
                _ => format!("it claims to be {end}, and this is {}", own.end),
            };
            return Err((Refusal::Duplicate, why));
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
    use crate::adaptor::buses::{Buses, Span};
    use crate::adaptor::mesh::neighbour::End;
    use crate::adaptor::mesh::packet::Incarnation;

    fn span(first: u8, bits: u32) -> Span {
        Span::new(NodeId(first), bits).unwrap()
    }

    /// An adaptor with the node ids that `bits` bits of bus number make.
    fn adaptor(first: u8, bits: u32) -> End {
        End::Adaptor(Buses::new(span(first, bits), 1).unwrap())
    }

    #[test]
    fn each_false_claim_is_refused() {
        use End::Router;
        let company = Company::Nodes(BTreeMap::from([(NodeId(2), None), (NodeId(8), None)]));
        let own = Neighbour { end: adaptor(1, 0), incarnation: Incarnation(1) };
        let several = Neighbour { end: adaptor(4, 1), ..own };
        let router = Neighbour { end: Router, ..own };
        let cert = |first, bits| Some(Owner::Nodes(span(first, bits)));
        let dialed = |end: End| Some(end.identity());
        let (wrong, duplicate) = (Some(Refusal::WrongIdentity), Some(Refusal::Duplicate));
        let strange = Some(Refusal::NotConfigured);
        for (own, company, end, life, looks_for, dialed, certified, expected) in [
            (own, &company, adaptor(2, 0), 5, 1, None, None, None),
            (own, &company, adaptor(2, 0), 5, 1, dialed(adaptor(2, 0)), cert(2, 0), None),
            (own, &company, Router, 5, 1, dialed(Router), Some(Owner::Router), None),
            (own, &company, adaptor(2, 0), 5, 1, None, cert(3, 0), wrong),
            (own, &company, adaptor(2, 0), 5, 1, None, Some(Owner::Router), wrong),
            (own, &company, adaptor(2, 0), 5, 1, dialed(adaptor(3, 0)), None, wrong),
            (own, &company, adaptor(2, 0), 5, 1, dialed(Router), None, wrong),
            (own, &company, adaptor(2, 0), 5, 3, None, None, wrong),
            (own, &company, adaptor(2, 0), 1, 1, None, None, wrong),
            (own, &company, adaptor(1, 0), 5, 1, None, None, duplicate),
            (own, &company, adaptor(3, 0), 5, 1, None, None, strange),
            (own, &company, Router, 5, 1, None, None, strange),
            // An adaptor with several buses is called by the first, and claims all ids of its span.
            (own, &company, adaptor(8, 2), 5, 1, dialed(adaptor(8, 0)), cert(8, 2), None),
            (own, &company, adaptor(8, 1), 5, 1, None, cert(8, 2), None),
            (own, &company, adaptor(8, 2), 5, 1, None, cert(8, 1), wrong),
            (own, &company, adaptor(8, 2), 5, 1, None, cert(8, 0), wrong),
            (own, &company, adaptor(8, 2), 5, 1, dialed(adaptor(9, 0)), None, wrong),
            (own, &company, adaptor(0, 1), 5, 1, None, None, duplicate),
            (own, &company, adaptor(10, 1), 5, 1, None, None, strange),
            (several, &company, adaptor(2, 0), 5, 4, None, None, None),
            (several, &company, adaptor(2, 0), 5, 5, None, None, wrong),
            (several, &company, adaptor(5, 0), 5, 4, None, None, duplicate),
            (several, &company, adaptor(0, 8), 5, 4, None, None, duplicate),
            (router, &Company::Everyone, adaptor(3, 0), 5, 0, None, None, None),
            (router, &Company::Everyone, adaptor(0, 0), 5, 0, None, None, None),
            (router, &Company::Everyone, adaptor(0, 8), 5, 0, None, None, None),
            (router, &Company::Everyone, Router, 5, 0, None, None, None),
            (router, &Company::Everyone, Router, 1, 0, None, None, wrong),
            (router, &Company::Everyone, adaptor(3, 0), 5, 4, None, None, wrong),
            (router, &Company::Everyone, adaptor(3, 0), 5, 0, dialed(Router), None, wrong),
        ] {
            let neighbour = Neighbour { end, incarnation: Incarnation(life) };
            let versions = Versions::OWN;
            let claim = Claim { neighbour, versions, looks_for: NodeId(looks_for), dialed, certified };
            let refusal = claim.examine(own, company).err().map(|(refusal, _)| refusal);
            assert_eq!(refusal, expected, "{claim:?} at {}", own.end);
        }
    }
}
