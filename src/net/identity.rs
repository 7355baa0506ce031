//! Who may be at the other end of a link, and how a certificate says so.
//!
//! An identity is a DNS name in the certificate's subjectAltName, so that the dialing side's check that it reached whom
//! it dialed is the ordinary one of a TLS client, every authority can issue it, and an authority's certificate can be
//! restricted to such names. Nothing looks these names up. A certificate has to hold those of one end, which is one, or one for each
//! node id of an adaptor: with others, or with a wildcard, its owner could be somebody else on each link.

use rustls::pki_types::{CertificateDer, ServerName};
use thiserror::Error;

use std::collections::BTreeSet;

use crate::adaptor::address::NodeId;
use crate::adaptor::buses::Span;
use crate::adaptor::mesh::neighbour::End;
pub use crate::adaptor::mesh::neighbour::Identity;

/// The domain below which identities are named. `internal` is set aside for private use.
pub const DOMAIN: &str = "assured-rdma.internal";
/// The label of a router.
const ROUTER: &str = "router";
/// What comes before the number in the label of a node.
const NODE: &str = "node-";

impl Identity {
    /// The name that stands for it in a certificate, such as `node-3.assured-rdma.internal`.
    pub fn name(self) -> String {
        match self {
            Self::Node(node) => format!("{NODE}{node}.{DOMAIN}"),
            Self::Router => format!("{ROUTER}.{DOMAIN}"),
        }
    }

    /// The same as the name of a TLS server.
    ///
    /// # Errors
    /// None in practice: all these names are well-formed.
    pub fn server_name(self) -> Result<ServerName<'static>, rustls::pki_types::InvalidDnsNameError> {
        ServerName::try_from(self.name())
    }

    fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let label = name.strip_suffix(DOMAIN)?.strip_suffix('.')?;
        let identity = match label.strip_prefix(NODE) {
            Some(number) => Self::Node(NodeId(number.parse().ok()?)),
            None => Self::Router,
        };
        // A number has one form only; and this is where any other label fails.
        (identity.name() == name).then_some(identity)
    }
}

/// Whom a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The adaptor that has these node ids, or some of them.
    Nodes(Span),
    /// A router.
    Router,
}

impl Owner {
    /// Whom a certificate for this end has to be for.
    pub fn of(end: End) -> Self {
        end.span().map_or(Self::Router, Self::Nodes)
    }

    /// The name by which the end is dialed.
    pub const fn identity(self) -> Identity {
        match self {
            Self::Nodes(span) => Identity::Node(span.first()),
            Self::Router => Identity::Router,
        }
    }

    /// All names that the certificate holds.
    pub fn names(self) -> Vec<String> {
        match self {
            Self::Nodes(span) => span.nodes().map(|node| Identity::Node(node).name()).collect(),
            Self::Router => vec![Identity::Router.name()],
        }
    }

    /// Whether who owns this certificate needs none that is for `other`: it names every node id of that.
    pub fn includes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Nodes(own), Self::Nodes(other)) => own.covers(other),
            (Self::Router, Self::Router) => true,
            (Self::Nodes(_), Self::Router) | (Self::Router, Self::Nodes(_)) => false,
        }
    }

    /// Whose certificate this is. Whether it is to be believed has to be known from elsewhere.
    ///
    /// # Errors
    /// Where it can't be read, or does not name exactly one end.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate =
            webpki::EndEntityCert::try_from(certificate).map_err(|_| IdentityError::Unreadable)?;
        let named: BTreeSet<_> = certificate.valid_dns_names().filter_map(Identity::from_name).collect();
        let (Some(&first), Some(&last)) = (named.first(), named.last()) else {
            return Err(IdentityError::Nobody);
        };
        let nodes: Vec<_> =
            named.iter().filter(|&&end| end != Identity::Router).map(|end| end.id()).collect();
        if nodes.is_empty() {
            return Ok(Self::Router);
        }
        let span = if nodes.len() == named.len() { Span::of(&nodes) } else { None };
        span.map(Self::Nodes).ok_or(IdentityError::Several(first, last))
    }
}

impl core::fmt::Display for Owner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nodes(span) => span.fmt(f),
            Self::Router => Identity::Router.fmt(f),
        }
    }
}

/// Why a certificate has no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// It is not a certificate of a kind known here.
    #[error("the certificate can't be read as an X.509 certificate of version 3")]
    Unreadable,
    /// There is no identity in it.
    #[error("the certificate names neither a node nor a router: it has no DNS name such as node-3.{DOMAIN}")]
    Nobody,
    /// There are several, and they are not one end.
    #[error("the certificate names both {0} and {1}, and has to name one, or all node ids of one adaptor")]
    Several(Identity, Identity),
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn owner_of(names: &[&str]) -> Result<Owner, IdentityError> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&KeyPair::generate().unwrap());
        Owner::of_certificate(certificate.unwrap().der())
    }

    #[test]
    fn a_certificate_names_one_end_in_one_form() {
        let of = |node: Identity| Owner::Nodes(Span::single(node.id()));
        for node in [0, 3, 10, 255] {
            let node = Identity::Node(NodeId(node));
            assert_eq!(owner_of(&[&node.name()]), Ok(of(node)));
            assert!(node.server_name().is_ok());
        }
        let (three, router) = (Identity::Node(NodeId(3)), Identity::Router);
        assert_eq!(three.name(), "node-3.assured-rdma.internal");
        assert_eq!(owner_of(&["router.assured-rdma.internal"]), Ok(Owner::Router));
        assert_eq!(owner_of(&["NODE-3.Assured-RDMA.internal"]), Ok(of(three)));
        assert_eq!(owner_of(&["host.example.org", &three.name(), &three.name(), "10.0.0.1"]), Ok(of(three)));
        assert_eq!(owner_of(&[&three.name(), &router.name()]), Err(IdentityError::Several(three, router)));
        for names in [
            &[][..],
            &["host.example.org"],
            &["*.assured-rdma.internal"],
            &["assured-rdma.internal"],
            &["node-3.assured-rdma.internal.example.org"],
            &["x.node-3.assured-rdma.internal"],
            &["node-3.not-assured-rdma.internal"],
            &["node-03.assured-rdma.internal"],
            &["node-256.assured-rdma.internal"],
            &["node-.assured-rdma.internal"],
            &["node--1.assured-rdma.internal"],
            &["node3.assured-rdma.internal"],
            &["node-3"],
            &["127.0.0.1"],
        ] {
            assert_eq!(owner_of(names), Err(IdentityError::Nobody), "{names:?}");
        }
        for number in ["+3", "3 ", "0x3", ""] {
            assert_eq!(Identity::from_name(&format!("node-{number}.{DOMAIN}")), None);
        }
        for bytes in [&[][..], &[0; 100], b"-----BEGIN CERTIFICATE-----"] {
            assert_eq!(Owner::of_certificate(&bytes.into()), Err(IdentityError::Unreadable));
        }
    }

    #[test]
    fn a_certificate_of_several_nodes_names_all_ids_of_one_adaptor() {
        let owner = |nodes: &[u8], more: &[&str]| {
            let names: Vec<_> = nodes.iter().map(|&node| Identity::Node(NodeId(node)).name()).collect();
            owner_of(&names.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
        };
        let span = |first, bits| Span::new(NodeId(first), bits).unwrap();
        let four = Owner::Nodes(span(4, 2));
        assert_eq!(owner(&[6, 4, 5, 7, 4], &["host.example.org"]), Ok(four));
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(owner(&all, &[]), Ok(Owner::Nodes(span(0, 8))));
        let several =
            |a, b| Err(IdentityError::Several(Identity::Node(NodeId(a)), Identity::Node(NodeId(b))));
        assert_eq!(owner(&[4, 5, 6], &[]), several(4, 6));
        assert_eq!(owner(&[3, 4], &[]), several(3, 4));
        assert!(owner(&[4, 5], &["router.assured-rdma.internal"]).is_err());
        assert_eq!(owner_of(&four.names().iter().map(String::as_str).collect::<Vec<_>>()), Ok(four));
        // Some of the ids are claimed, or all, but none besides.
        for (first, bits, included) in [(4, 2, true), (6, 1, true), (5, 0, true), (0, 3, false)] {
            assert_eq!(four.includes(Owner::Nodes(span(first, bits))), included, "{first}, {bits}");
        }
        assert!(!four.includes(Owner::Router) && Owner::Router.includes(Owner::Router));
        assert!(!Owner::Router.includes(four));
    }
}
