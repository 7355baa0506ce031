//! Who may be at the other end of a link, and how a certificate says so.
//!
//! An identity is a DNS name in the certificate's subjectAltName, so that the dialing side's check that it reached whom
//! it dialed is the ordinary one of a TLS client, every authority can issue it, and an authority's certificate can be
//! restricted to such names. Nothing looks these names up. A certificate has to hold exactly one: with two, or with a
//! wildcard, its owner could be somebody else on each link.

use rustls::pki_types::{CertificateDer, ServerName};
use thiserror::Error;

use crate::adaptor::address::NodeId;
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

    /// Whose certificate this is. Whether it is to be believed has to be known from elsewhere.
    ///
    /// # Errors
    /// Where it can't be read, or does not name exactly one identity.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate =
            webpki::EndEntityCert::try_from(certificate).map_err(|_| IdentityError::Unreadable)?;
        let mut identities = certificate.valid_dns_names().filter_map(Self::from_name);
        let identity = identities.next().ok_or(IdentityError::Nobody)?;
        match identities.find(|&other| other != identity) {
            Some(other) => Err(IdentityError::Several(identity, other)),
            None => Ok(identity),
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
    /// There are several.
    #[error("the certificate names both {0} and {1}, and has to name one")]
    Several(Identity, Identity),
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    fn identity_of(names: &[&str]) -> Result<Identity, IdentityError> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&KeyPair::generate().unwrap());
        Identity::of_certificate(certificate.unwrap().der())
    }

    #[test]
    fn a_certificate_names_one_identity_in_one_form() {
        for node in [0, 3, 10, 255] {
            let node = Identity::Node(NodeId(node));
            assert_eq!(identity_of(&[&node.name()]), Ok(node));
            assert!(node.server_name().is_ok());
        }
        let (three, router) = (Identity::Node(NodeId(3)), Identity::Router);
        assert_eq!(three.name(), "node-3.assured-rdma.internal");
        assert_eq!(identity_of(&["router.assured-rdma.internal"]), Ok(router));
        assert_eq!(identity_of(&["NODE-3.Assured-RDMA.internal"]), Ok(three));
        assert_eq!(identity_of(&["host.example.org", &three.name(), &three.name(), "10.0.0.1"]), Ok(three));
        assert_eq!(identity_of(&[&three.name(), &router.name()]), Err(IdentityError::Several(three, router)));
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
            assert_eq!(identity_of(names), Err(IdentityError::Nobody), "{names:?}");
        }
        for number in ["+3", "3 ", "0x3", ""] {
            assert_eq!(Identity::from_name(&format!("node-{number}.{DOMAIN}")), None);
        }
        for bytes in [&[][..], &[0; 100], b"-----BEGIN CERTIFICATE-----"] {
            assert_eq!(Identity::of_certificate(&bytes.into()), Err(IdentityError::Unreadable));
        }
    }
}
