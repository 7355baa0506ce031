//! What a process shows to its peers and how it judges theirs: its certificate, its key, and the authorities it trusts.
//!
//! TLS 1.3 only, both sides show a certificate, and each connection begins anew: without resumption nobody gets in on an
//! earlier check, and nothing has to be kept for those who left. Chains, validity, purposes and the name of who was dialed are
//! left to the stock verifiers; only [`identity`](super::identity) is ours.

use core::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, InconsistentKeys, RootCertStore, ServerConfig,
    ServerConnection,
};
use thiserror::Error;

use super::identity::{Identity, Owner};

/// Names the protocol inside TLS, so that a certificate's other uses can't be played off against this one.
const ALPN: &[u8] = b"assured-rdma/1";
/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;
/// So long before it expires a certificate is worth a warning at the start.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the PEM files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of the authorities that are trusted.
    pub ca: PathBuf,
}

/// What is wrong with one of the files; its text begins with the option that named it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {}: {problem}", path.display())]
pub struct CredentialError {
    /// The option.
    pub key: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// What it takes to make TLS connections. Cheap to clone.
#[derive(Clone)]
pub struct Credentials {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    warnings: Vec<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads the files, and checks that they are for `own` and fit together. A certificate that is not valid at this time is a
    /// warning only: the clock may still be wrong, the guest is better served by a node that is told *link down*, and no
    /// peer lets it in anyway.
    ///
    /// # Errors
    /// The first thing that is wrong, naming the file.
    pub fn load(files: &TlsFiles, own: Owner) -> Result<Self, CredentialError> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(load_roots(&files.ca)?);
        let chain = load_certificates("tls-cert", &files.cert)?;
        let key = load_key(&files.key)?;
        let error = |key, path: &Path, problem| CredentialError { key, path: path.to_owned(), problem };
        let wrong_cert = |problem| error("tls-cert", &files.cert, problem);
        let wrong_ca = |problem: &dyn ToString| error("tls-ca", &files.ca, problem.to_string());

        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let servers = servers.build().map_err(|error| wrong_ca(&error))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let clients = clients.clear_root_hint_subjects().build().map_err(|error| wrong_ca(&error))?;
        let mut warnings = check_own(&chain, own, &*servers, &*clients).map_err(|problem| match problem {
            rustls::Error::General(problem) => wrong_cert(problem),
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => wrong_cert(format!(
                "not issued by an authority in {} (tls-ca), which no peer would accept",
                files.ca.display()
            )),
            other => wrong_cert(format!("no peer would accept it: {other}")),
        })?;
        for warning in &mut warnings {
            *warning = format!("tls-cert: {}: {warning}", files.cert.display());
        }
        warnings.extend(warn_of_readers(&files.key));

        let wrong_key = |problem| match problem {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => error(
                "tls-key",
                &files.key,
                format!("not the key of the certificate in {} (tls-cert)", files.cert.display()),
            ),
            other => error("tls-key", &files.key, format!("can't be used: {other}")),
        };
        let mut client = client_builder(&provider)
            .map_err(|error| wrong_cert(error.to_string()))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(wrong_key)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        client.alpn_protocols = vec![ALPN.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| wrong_cert(error.to_string()))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(wrong_key)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { client: Arc::new(client), server: Arc::new(server), warnings })
    }

    /// What the operator should know, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The dialing side of a connection to `peer`, and to nobody else.
    ///
    /// # Errors
    /// Where the system gives no random numbers.
    pub fn connect(&self, peer: Identity) -> Result<rustls::Connection, rustls::Error> {
        let name = peer.server_name().map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(ClientConnection::new(Arc::clone(&self.client), name)?.into())
    }

    /// The accepting side of a connection.
    ///
    /// # Errors
    /// As [`Credentials::connect`].
    pub fn accept(&self) -> Result<rustls::Connection, rustls::Error> {
        Ok(ServerConnection::new(Arc::clone(&self.server))?.into())
    }
}

/// Whose the connection is, once its handshake is done.
///
/// # Errors
/// Why its certificate, or its protocol, is not one of a mesh.
pub fn identify(connection: &rustls::Connection) -> Result<Owner, String> {
    if connection.alpn_protocol() != Some(ALPN) {
        return Err("it speaks another protocol inside TLS".to_owned());
    }
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let certificate = certificate.ok_or_else(|| "it showed no certificate".to_owned())?;
    Owner::of_certificate(certificate).map_err(|error| error.to_string())
}

type ClientBuilder = rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>;

fn client_builder(provider: &Arc<CryptoProvider>) -> Result<ClientBuilder, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(&[&TLS13])
}

/// Judges this process's own certificate as its peers will, so that the mistake shows here and not at each of them.
/// [`rustls::Error::General`] holds a text that needs no more words.
fn check_own(
    chain: &[CertificateDer<'_>],
    own: Owner,
    servers: &dyn ServerCertVerifier,
    clients: &dyn ClientCertVerifier,
) -> Result<Vec<String>, rustls::Error> {
    let general = |error: &dyn ToString| rustls::Error::General(error.to_string());
    let (certificate, between) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
    let found = Owner::of_certificate(certificate).map_err(|error| general(&error))?;
    if !found.includes(own) {
        let hint =
            if found.identity() == own.identity() { ", so that it has to name all of these" } else { "" };
        return Err(general(&format!("the certificate is that of {found}, and this is {own}{hint}")));
    }
    let name = own.identity().server_name().map_err(|error| general(&error))?;
    let judge = |time| {
        servers.verify_server_cert(certificate, between, &name, &[], time)?;
        clients.verify_client_cert(certificate, between, time).map(drop)
    };
    let now = UnixTime::now();
    let soon = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()).saturating_add(EXPIRES_SOON));
    use CertificateError as Wrong;
    match judge(now) {
        Ok(()) => {}
        Err(rustls::Error::InvalidCertificate(
            Wrong::ExpiredContext { not_after: limit, .. }
            | Wrong::NotValidYetContext { not_before: limit, .. },
        )) => {
            let relation = if limit < now { "expired at" } else { "not valid before" };
            return Ok(vec![format!("{relation} {}: no peer lets this node in", date(limit))]);
        }
        Err(error) => return Err(error),
    }
    match judge(soon) {
        Err(rustls::Error::InvalidCertificate(Wrong::ExpiredContext { not_after, .. })) => {
            Ok(vec![format!("expires at {}", date(not_after))])
        }
        _ => Ok(Vec::new()),
    }
}

fn date(time: UnixTime) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(time.as_secs()));
    time.map_or_else(|| "some time".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
}

fn warn_of_readers(path: &Path) -> Option<String> {
    let mode = path.metadata().ok()?.permissions().mode();
    let open = mode & 0o077 != 0;
    open.then(|| {
        format!("tls-key: {}: others may read it (mode {:03o}); chmod 600", path.display(), mode & 0o777)
    })
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, CredentialError> {
    let problem = |problem| CredentialError { key, path: path.to_owned(), problem };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes))
        .map_err(|error| problem(error.to_string()))?;
    Ok(bytes)
}

fn load_certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let problem = |problem| CredentialError { key, path: path.to_owned(), problem };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(key, path)?).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(problem("there is no certificate in PEM form in it".to_owned()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(problem(damage(&error).to_owned())),
    }
}

fn damage(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "not a whole PEM file: a section in it has no end",
        pem::Error::Base64Decode(_) => "not a PEM file: what is in a section is not base64",
        _ => "not a PEM file",
    }
}

fn load_key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialError> {
    PrivateKeyDer::from_pem_slice(&read("tls-key", path)?).map_err(|error| {
        let problem = match error {
            pem::Error::NoItemsFound => {
                "there is no private key in PEM form in it, or it is encrypted".to_owned()
            }
            error => damage(&error).to_owned(),
        };
        CredentialError { key: "tls-key", path: path.to_owned(), problem }
    })
}

fn load_roots(path: &Path) -> Result<RootCertStore, CredentialError> {
    let mut roots = RootCertStore::empty();
    for certificate in load_certificates("tls-ca", path)? {
        roots.add(certificate).map_err(|error| CredentialError {
            key: "tls-ca",
            path: path.to_owned(),
            problem: format!("a certificate in it can't be used: {error}"),
        })?;
    }
    Ok(roots)
}
