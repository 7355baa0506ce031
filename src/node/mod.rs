//! A node as a process: one thread and one event loop around the [`Adaptor`], with a guest, hosted devices, or both.
//!
//! In each turn everything that has arrived is handed to the core and everything that the core has to say is carried
//! out, by bounded portions from each source, until there is nothing more to do.

mod bus;
mod guest;
mod outputs;

use std::io;

use thiserror::Error;

use self::bus::Bus;
use crate::adaptor::address::NodeSet;
use crate::adaptor::mesh::Timing;
use crate::adaptor::mesh::neighbour::{Identity, Neighbour};
use crate::adaptor::{self, Adaptor, Instant, Region};
use crate::chatter::Chatter;
use crate::config::{Config, format_size};
use crate::event_loop::{Clock, EventLoop, Service};
use crate::hosted::{self, Devices};
use crate::net::{self, Company, Credentials, Links};
use crate::poller::{Report, Token};
use crate::router::Paths;
use crate::vfio::ListenError;

/// Whose report it is shows in the token: the links' go from here, the bus's from there on.
const LINKS: Token = Token(1);
const BUS: Token = Token(1 << 62);

/// Why a node could not be started, or go on. Nothing is left behind.
#[derive(Debug, Error)]
pub enum StartError {
    /// The TCP side.
    #[error(transparent)]
    Links(#[from] net::StartError),
    /// The vfio-user socket.
    #[error("socket-path: {0}")]
    Socket(#[from] ListenError),
    /// A device that this node was to host.
    #[error(transparent)]
    Device(#[from] hosted::OpenError),
    /// The system refused something without which nothing goes.
    #[error("can't run: {0}")]
    System(#[from] io::Error),
}

/// A node.
pub struct Node {
    clock: Clock,
    adaptor: Adaptor,
    links: Links,
    paths: Paths,
    bus: Bus,
    devices: Devices,
    chatter: Chatter,
}

/// Runs a node until the process is told to stop. With `credentials`, the links use TLS.
///
/// # Errors
/// Where one of its sockets or devices is not to be had; the others are given back.
pub fn run(config: &Config, credentials: Option<Credentials>) -> Result<(), StartError> {
    let event_loop = EventLoop::new(config.poll)?;
    let mut node = Node::start(config, credentials, &event_loop)?;
    Ok(event_loop.run(&mut node)?)
}

impl Node {
    /// Takes the sockets and makes the devices.
    fn start(
        config: &Config,
        credentials: Option<Credentials>,
        event_loop: &EventLoop,
    ) -> Result<Self, StartError> {
        let (clock, poller) = (event_loop.clock(), event_loop.poller());
        let seed = getrandom::u64().map_err(io::Error::from)?;
        let mut adaptor = Adaptor::new(core_settings(config, seed));
        for device in &config.devices {
            // The configuration has found a place for each.
            adaptor.host(&device.window).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        }
        let own = Neighbour { identity: Identity::Node(config.node), incarnation: adaptor.incarnation() };
        for warning in credentials.iter().flat_map(Credentials::warnings) {
            log::warn!("{warning}");
        }
        let settings = net::Settings {
            own,
            listen: config.listen,
            company: Company::Nodes(config.peers.clone()),
            routers: config.routers.clone(),
            keepalive: config.keepalive,
            congestion: config.congestion.clone(),
            credentials,
            // Jitter needs other numbers than the core, not better ones.
            seed: !seed,
        };
        let links = Links::new(clock.now(), poller, settings, LINKS)?;
        // Last of those that can fail because of somebody else, since these leave something in the file system.
        let bus = Bus::new(config.socket_path.as_deref(), config.geometry, poller, BUS)?;
        let devices = Devices::open(&config.devices)?;
        log_start(config);
        let paths = Paths::new(config.node);
        Ok(Self { clock, adaptor, links, paths, bus, devices, chatter: Chatter::of_a_guest() })
    }
}

impl Service for Node {
    fn handle_report(&mut self, now: Instant, report: Report) {
        if report.token >= BUS {
            self.bus.handle_report(now, &mut self.adaptor, report);
        } else {
            self.links.handle_report(now, report);
        }
    }

    /// Hands what has arrived to the core and carries out what it says.
    fn turn(&mut self, now: Instant) -> bool {
        self.links.handle_timeout(now);
        self.bus.handle_timeout(now);
        let mut progress = self.receive(now);
        // After what has arrived, so that an answer that is here already does not count as late.
        if self.adaptor.poll_timeout().is_some_and(|timeout| timeout <= now) {
            self.adaptor.handle_timeout(now);
            progress = true;
        }
        progress |= self.bus.feed(now, &mut self.adaptor);
        progress |= self.carry_out(now);
        progress |= self.bus.flush(now, &mut self.adaptor);
        progress
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.adaptor.poll_timeout(), self.links.poll_timeout(), self.bus.poll_timeout()];
        timeouts.into_iter().flatten().min()
    }
}

fn core_settings(config: &Config, seed: u64) -> adaptor::Settings {
    adaptor::Settings {
        node: config.node,
        geometry: config.geometry,
        peers: config.peers.keys().copied().collect::<NodeSet>(),
        timing: Timing { deadline: config.deadline, lease: config.lease, keepalive: config.keepalive },
        gather: config.gather,
        seed,
    }
}

/// The physical address bits of QEMU's emulated processors, unless it is told otherwise.
const TCG_ADDRESS_BITS: u32 = 40;

fn log_start(config: &Config) {
    let listen =
        config.listen.map_or_else(|| "not listening".to_owned(), |address| format!("listening on {address}"));
    let peers: Vec<_> = config
        .peers
        .iter()
        .map(|(node, address)| match address {
            Some(address) => format!("{node} at {address}"),
            None => format!("{node} (connects to us)"),
        })
        .collect();
    let or_none = |list: Vec<String>| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    let routers = or_none(config.routers.iter().map(ToString::to_string).collect());
    let links = if config.tls.is_some() { "TLS" } else { "plain TCP" };
    let socket = config.socket_path.as_ref();
    let socket = socket
        .map_or_else(|| "no guest socket".to_owned(), |path| format!("guest socket {}", path.display()));
    log::info!(
        "node {}: {socket}, {listen}, peers: {}, routers: {routers}; links are {links}",
        config.node,
        or_none(peers)
    );
    for device in &config.devices {
        log::info!("{device}");
    }
    if config.socket_path.is_some() {
        log_spaces(config);
    }
}

/// Only QEMU and the guest's firmware know whether the spaces have a place, so what they need is told.
fn log_spaces(config: &Config) {
    let level =
        if config.guest_address_bits() > TCG_ADDRESS_BITS { log::Level::Warn } else { log::Level::Info };
    log::log!(
        level,
        "BAR2 and BAR4 hold {} each: the guest has room for them with {} or more physical address bits (QEMU: -cpu ...,phys-bits=N)",
        format_size(Region::Access.size(config.geometry)),
        config.guest_address_bits()
    );
}
