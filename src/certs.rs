//! Makes a private authority and certificates for a mesh, as `assured-rdma certs` does.
//!
//! Everything is made, and checked as peers will check it, before the first file is written. An authority that is in the
//! directory already is used and never written over: all certificates of a mesh have to be of the same one.

use core::fmt;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use thiserror::Error;
use time::OffsetDateTime;

use crate::adaptor::address::NodeId;
use crate::adaptor::buses::{MAX_BUS_BITS, Span};
use crate::net::{DOMAIN, Owner};

/// How long certificates are valid: as long as a lab lasts, since there is no renewal.
const VALIDITY: time::Duration = time::Duration::days(3650);
/// So much earlier they are valid already, for hosts whose clocks are behind.
const CLOCK_SKEW: time::Duration = time::Duration::days(1);
const AUTHORITY: &str = "ca";
const ROUTER: &str = "router";

/// Ids of nodes, as written in `1-8` or `1,3,5-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes(BTreeSet<NodeId>);

/// What is written is no list of node ids.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not a node id from 0 to 255 or a range such as 1-8")]
pub struct NodesError(String);

impl FromStr for Nodes {
    type Err = NodesError;

    fn from_str(text: &str) -> Result<Self, NodesError> {
        let mut nodes = BTreeSet::new();
        for part in text.split(',') {
            let wrong = || NodesError(part.to_owned());
            let id = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                digits.then(|| text.parse::<u8>().ok()).flatten().ok_or_else(wrong)
            };
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (id(first)?, id(last)?);
            if first > last {
                return Err(wrong());
            }
            nodes.extend((first..=last).map(NodeId));
        }
        Ok(Self(nodes))
    }
}

/// How many buses each of the adaptors has, 1 to 256, and so how many node ids its certificate names: as many, rounded up to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusCount(u16);

impl BusCount {
    /// The usual number.
    pub const ONE: Self = Self(1);

    const fn bits(self) -> u32 {
        self.0.next_power_of_two().trailing_zeros()
    }
}

/// What is written is no number of buses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not a number of buses from 1 to 256")]
pub struct BusCountError(String);

impl FromStr for BusCount {
    type Err = BusCountError;

    fn from_str(text: &str) -> Result<Self, BusCountError> {
        let count = text.parse().ok().filter(|count| (1..=1 << MAX_BUS_BITS).contains(count));
        count.map(Self).ok_or_else(|| BusCountError(text.to_owned()))
    }
}

/// Why certificates could not be made.
#[derive(Debug, Error)]
pub enum CertsError {
    /// A node can't be the first of so many.
    #[error(
        "nodes: {node} can't be the node id of an adaptor with {buses} buses, which is a multiple of {step}"
    )]
    NotFirst {
        /// The node.
        node: NodeId,
        /// How many buses each adaptor is to have.
        buses: u16,
        /// What the id has to be a multiple of.
        step: u16,
    },
    /// A file is there already.
    #[error("{}: is there already; --force makes certificates and keys anew, and leaves the authority as it is", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Of the authority's two files only one is there.
    #[error("{}: missing, and without it the authority in that directory can't be used; use another directory", path.display())]
    HalfAuthority {
        /// The other file.
        path: PathBuf,
    },
    /// The authority's files are not those of an authority that this program made.
    #[error("{}: not an authority that this program made: {problem}; use another directory", path.display())]
    StrangeAuthority {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// A file can't be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Something in the making of certificates failed.
    #[error("can't make certificates: {0}")]
    Making(#[from] rcgen::Error),
}

/// What was made, with a text for the user.
#[derive(Debug)]
pub struct Made {
    directory: PathBuf,
    new_authority: bool,
    /// The names of files without their endings, and whose they are.
    made: Vec<(String, Owner)>,
    until: OffsetDateTime,
}

/// Makes certificates and keys for the adaptors of `nodes`, each with so many buses, and for routers in `directory`, of the authority there or
/// a new one. With `force` those that are there are made anew.
///
/// # Errors
/// As [`CertsError`] says. Nothing is written unless everything was made.
pub fn make(directory: &Path, nodes: &Nodes, buses: BusCount, force: bool) -> Result<Made, CertsError> {
    let file = |stem: &str, ending| directory.join(format!("{stem}.{ending}"));
    let now = OffsetDateTime::from(SystemTime::now());
    let times = Times {
        from: now.checked_sub(CLOCK_SKEW).unwrap_or(now),
        until: now.checked_add(VALIDITY).unwrap_or(now),
    };
    let owner = |&node: &NodeId| {
        let span = Span::new(node, buses.bits());
        let wrong = CertsError::NotFirst { node, buses: buses.0, step: buses.0.next_power_of_two() };
        Ok((format!("node-{node}"), Owner::Nodes(span.ok_or(wrong)?)))
    };
    let mut wanted = nodes.0.iter().map(owner).collect::<Result<Vec<_>, CertsError>>()?;
    if !force {
        let taken = wanted.iter().flat_map(|(stem, _)| [file(stem, "pem"), file(stem, "key")]);
        if let Some(taken) = taken.into_iter().find(|path| path.exists()) {
            return Err(CertsError::Exists { path: taken });
        }
    }
    if force || !file(ROUTER, "pem").exists() {
        wanted.push((ROUTER.to_owned(), Owner::Router));
    }

    let (cert_path, key_path) = (file(AUTHORITY, "pem"), file(AUTHORITY, "key"));
    let new_authority = match (cert_path.exists(), key_path.exists()) {
        (false, false) => true,
        (true, true) => false,
        (true, false) => return Err(CertsError::HalfAuthority { path: key_path }),
        (false, true) => return Err(CertsError::HalfAuthority { path: cert_path }),
    };
    let authority =
        if new_authority { Authority::new(&times)? } else { Authority::read(&cert_path, &key_path)? };
    let issued: Result<Vec<_>, _> = wanted.iter().map(|(_, owner)| authority.issue(*owner, &times)).collect();
    let issued = issued?;
    for ((_, owner), (certificate, _)) in wanted.iter().zip(&issued) {
        authority
            .check(*owner, certificate)
            .map_err(|problem| CertsError::StrangeAuthority { path: cert_path.clone(), problem })?;
    }

    fs::create_dir_all(directory).map_err(|error| {
        // That is what it says of a file there.
        let is_file = error.kind() == io::ErrorKind::AlreadyExists;
        let error = if is_file { io::ErrorKind::NotADirectory.into() } else { error };
        CertsError::File { path: directory.to_owned(), error }
    })?;
    if new_authority {
        write(&key_path, &authority.issuer.key().serialize_pem(), 0o600)?;
        if let Err(error) = write(&cert_path, &authority.pem, 0o644) {
            // With half an authority the directory could not be used any more.
            let _ = fs::remove_file(&key_path);
            return Err(error);
        }
    }
    for ((stem, _), (certificate, key)) in wanted.iter().zip(&issued) {
        write(&file(stem, "key"), &key.serialize_pem(), 0o600)?;
        write(&file(stem, "pem"), &certificate.pem(), 0o644)?;
    }
    Ok(Made { directory: directory.to_owned(), new_authority, made: wanted, until: times.until })
}

struct Times {
    from: OffsetDateTime,
    until: OffsetDateTime,
}

/// Signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// All that signing takes from the authority's certificate follows from its key. The name too: were it one name for all authorities,
    /// a certificate of another one would be told from a forged one by nobody.
    fn params(key: &KeyPair) -> CertificateParams {
        let mut params = CertificateParams::default();
        let id: String =
            params.key_identifier(key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name = name(&format!("assured-rdma private authority {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // Whoever gets hold of its key can make members of this mesh, and nothing else even where it is trusted for more.
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![GeneralSubtree::DnsName(DOMAIN.to_owned())],
            excluded_subtrees: Vec::new(),
        });
        params
    }

    fn new(times: &Times) -> Result<Self, CertsError> {
        let key = KeyPair::generate()?;
        let mut params = Self::params(&key);
        (params.not_before, params.not_after) = (times.from, times.until);
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    fn read(cert_path: &Path, key_path: &Path) -> Result<Self, CertsError> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| CertsError::File { path: path.to_owned(), error })
        };
        let pem = read(cert_path)?;
        let key = KeyPair::from_pem(&read(key_path)?).map_err(|error| CertsError::StrangeAuthority {
            path: key_path.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Self { issuer: Issuer::new(Self::params(&key), key), pem })
    }

    fn issue(&self, owner: Owner, times: &Times) -> Result<(Certificate, KeyPair), CertsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(owner.names())?;
        params.distinguished_name = name(&owner.identity().name());
        (params.not_before, params.not_after) = (times.from, times.until);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Each node dials and is dialed.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }

    /// Whether a peer that trusts this authority will accept the certificate.
    fn check(&self, owner: Owner, certificate: &Certificate) -> Result<(), String> {
        let root = CertificateDer::from_pem_slice(self.pem.as_bytes()).map_err(|error| error.to_string())?;
        let mut roots = RootCertStore::empty();
        roots.add(root).map_err(|error| error.to_string())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let name = owner.identity().server_name().map_err(|error| error.to_string())?;
        verifier
            .map_err(|error| error.to_string())?
            .verify_server_cert(certificate.der(), &[], &name, &[], UnixTime::now())
            .map(drop)
            .map_err(|error| error.to_string())
    }
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Writes a file so that at its name there is the old one or the new one, whole.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), CertsError> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let written = match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&part)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&part, path))
            .inspect_err(|_| {
                let _ = fs::remove_file(&part);
            }),
    };
    written.map_err(|error| CertsError::File { path: path.to_owned(), error })
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        let authority = if self.new_authority {
            "made; keep ca.key away from the nodes"
        } else {
            "was there, and is used"
        };
        writeln!(f, "{directory}/ca.pem, ca.key: the authority, {authority}")?;
        for (stem, owner) in &self.made {
            writeln!(f, "{directory}/{stem}.pem, {stem}.key: {owner}, valid until {}", self.until.date())?;
        }
        let Some((stem, _)) = self.made.first() else { return Ok(()) };
        writeln!(
            f,
            "Each takes its own two files and ca.pem, on the command line or in its configuration file:"
        )?;
        writeln!(
            f,
            "  --tls-cert {directory}/{stem}.pem --tls-key {directory}/{stem}.key --tls-ca {directory}/ca.pem"
        )?;
        writeln!(f, "  [tls]")?;
        writeln!(f, "  cert = '{directory}/{stem}.pem'")?;
        writeln!(f, "  key = '{directory}/{stem}.key'")?;
        writeln!(f, "  ca = '{directory}/ca.pem'")
    }
}

#[cfg(test)]
mod tests;
