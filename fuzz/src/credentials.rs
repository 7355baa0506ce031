//! Certificates for the target `link`, of the mesh that is tested and of another one.

use std::path::PathBuf;

use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::neighbour::Identity;
use assured_rdma::certs::{self, Nodes};
use assured_rdma::net::{Credentials, TlsFiles};

/// The node whose links are tested, and its peers.
pub const OWN: NodeId = NodeId(1);
pub const HONEST: NodeId = NodeId(2);
pub const HOSTILE: NodeId = NodeId(3);

/// How a caller speaks.
#[derive(arbitrary::Arbitrary, Clone, Copy, Debug)]
pub enum Voice {
    Plain,
    Node,
    Router,
    /// With a certificate of somebody else's authority.
    Stranger,
}

/// What those on the stage of the target `link` have.
pub struct Mesh {
    pub own: Credentials,
    pub honest: Credentials,
    hostile: Credentials,
    router: Credentials,
    stranger: Credentials,
}

impl Mesh {
    /// Makes them, which takes a while.
    pub fn new() -> Self {
        // As Rust's own `main` does, which there is none of here.
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let [ours, theirs] = ["ours", "theirs"].map(|name| {
            let name = format!("assured-rdma-fuzz-{}-{name}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let nodes: Nodes = "1-3".parse().expect("a range");
            certs::make(&directory, &nodes, true).expect("certificates can be made");
            directory
        });
        let load = |directory: &PathBuf, name: &str, own| {
            let file = |name: String| directory.join(name);
            let (cert, key) = (file(format!("{name}.pem")), file(format!("{name}.key")));
            Credentials::load(&TlsFiles { cert, key, ca: file("ca.pem".to_owned()) }, own).expect("they fit")
        };
        let mesh = Self {
            own: load(&ours, "node-1", Identity::Node(OWN)),
            honest: load(&ours, "node-2", Identity::Node(HONEST)),
            hostile: load(&ours, "node-3", Identity::Node(HOSTILE)),
            router: load(&ours, "router", Identity::Router),
            stranger: load(&theirs, "node-3", Identity::Node(HOSTILE)),
        };
        for directory in [ours, theirs] {
            let _ = std::fs::remove_dir_all(directory);
        }
        mesh
    }

    /// What it takes to speak like this, and who one is by its certificate.
    pub fn of(&self, voice: Voice) -> Option<(&Credentials, Identity)> {
        match voice {
            Voice::Plain => None,
            Voice::Node => Some((&self.hostile, Identity::Node(HOSTILE))),
            Voice::Router => Some((&self.router, Identity::Router)),
            Voice::Stranger => Some((&self.stranger, Identity::Node(HOSTILE))),
        }
    }
}

/// The dialing side of a connection with the node that is tested, and whose it is.
pub fn connect(credentials: &Credentials, identity: Identity) -> (rustls::Connection, Identity) {
    (credentials.connect(Identity::Node(OWN)).expect("random numbers are to be had"), identity)
}
