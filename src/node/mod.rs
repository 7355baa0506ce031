//! An adaptor as a process: one thread and one event loop around the [`Adaptor`] of each of its buses, with guests, hosted devices, or both.
//!
//! In each turn everything that has arrived is handed to the core and everything that the core has to say is carried
//! out, by bounded portions from each source, until there is nothing more to do.

mod budget;
mod bus;
mod guest;
mod memory;
mod outputs;

use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use thiserror::Error;

use self::budget::Budget;
use self::bus::Bus;
use crate::adaptor::address::{NodeId, NodeSet};
use crate::adaptor::mesh::Timing;
use crate::adaptor::mesh::neighbour::{End, Neighbour};
use crate::adaptor::mesh::packet::Incarnation;
use crate::adaptor::random::Random;
use crate::adaptor::{self, Adaptor, Instant, Region, backplane};
use crate::config::{Config, format_size};
use crate::descriptors;
use crate::event_loop::{Clock, EventLoop, Service, Turn};
use crate::hosted::{self, Devices};
use crate::mapped;
use crate::mapped::pager::Pager;
use crate::net::{self, Company, Credentials, Links};
use crate::poller::{Interest, Poller, Report, Token};
use crate::router::Paths;
use crate::vfio::ListenError;

/// Whose report it is shows in the token: the links' go from here, those of the buses from there on.
const LINKS: Token = Token(1);
const PAGER: Token = Token(1 << 61);
const BUSES: Token = Token(1 << 62);
/// How many tokens each bus has, as a shift: one for each guest that it will ever have.
const BUS_TOKENS: u32 = 48;

/// How often it is found out whether this host swaps.
const LOOK_FOR_SWAP: Duration = Duration::from_secs(1);

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

/// One of the process's buses, and its adaptor.
struct Local {
    adaptor: Adaptor,
    bus: Bus,
    devices: Devices,
    /// What may still be done of its memory operations in this turn.
    budget: Budget,
    /// How lines about it begin.
    label: Rc<str>,
}

/// An adaptor process.
pub struct Node {
    clock: Clock,
    /// In the order of bus numbers.
    locals: Vec<Local>,
    links: Links,
    paths: Paths,
    pager: Pager,
    /// When to find out again whether this host swaps.
    swap_at: Instant,
}

/// Runs an adaptor until the process is told to stop. With `credentials`, the links use TLS.
///
/// # Errors
/// Where one of its sockets or devices is not to be had; the others are given back.
pub fn run(config: &Config, credentials: Option<Credentials>) -> Result<(), StartError> {
    let event_loop = EventLoop::new(config.poll)?;
    let mut node = Node::start(config, credentials, &event_loop)?;
    Ok(event_loop.run(&mut node)?)
}

impl Local {
    /// Takes the guest's socket. Bus 0 has the windows of the devices that the process hosts; the devices themselves are still to be made.
    fn start(config: &Config, poller: &Rc<Poller>, number: u64, node: NodeId) -> Result<Self, StartError> {
        let mut adaptor = Adaptor::new(core_settings(config, node, random_seed()?));
        adaptor.set_queue_poll(config.queue_poll);
        let position = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(name) = config.names.get(position) {
            adaptor.set_name(*name);
        }
        let hosted = if number == 0 { &config.devices[..] } else { &[] };
        for device in hosted {
            // The configuration has found a place for each.
            adaptor.host(&device.window).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        }
        let label: Rc<str> = match config.buses.count() {
            1 => "".into(),
            _ => format!("bus {number} (node {node}): ").into(),
        };
        let token = Token(BUSES.0 | number << BUS_TOKENS);
        let path = config.socket_paths.get(position);
        let bus = Bus::new(path.map(PathBuf::as_path), config.geometry, poller, token, &label)?;
        Ok(Self { adaptor, bus, devices: Devices::default(), budget: Budget::of(1), label })
    }

    fn handle_report(&mut self, now: Instant, report: Report) {
        self.bus.handle_report(now, &mut self.adaptor, report);
    }

    /// Does what it is time for, and takes in what the guest wants.
    fn take_in(&mut self, now: Instant) -> Turn {
        let mut turn = Turn::Idle;
        // After what has arrived, so that an answer that is here already does not count as late.
        if self.adaptor.poll_timeout().is_some_and(|timeout| timeout <= now) {
            self.adaptor.handle_timeout(now);
            turn = Turn::Done;
        }
        self.bus.handle_timeout(now);
        turn.max(self.bus.feed(now, &mut self.adaptor))
    }

    /// Sends what there is for the guest.
    fn flush(&mut self, now: Instant) -> Turn {
        if self.bus.flush(now, &mut self.adaptor) { Turn::Cut } else { Turn::Idle }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.adaptor.poll_timeout(), self.bus.poll_timeout()].into_iter().flatten().min()
    }
}

impl Node {
    /// Takes the sockets and makes the devices.
    fn start(
        config: &Config,
        credentials: Option<Credentials>,
        event_loop: &EventLoop,
    ) -> Result<Self, StartError> {
        descriptors::prepare(config.socket_paths.len());
        let (clock, poller) = (event_loop.clock(), event_loop.poller());
        let now = clock.now();
        for warning in credentials.iter().flat_map(Credentials::warnings) {
            log::warn!("{warning}");
        }
        let seed = random_seed()?;
        // Of the process: its functions may be reset, and each of them is another incarnation then, without a word to the links.
        let incarnation = Incarnation(Random::new(random_seed()?).next_nonzero());
        let settings = net::Settings {
            own: Neighbour { end: End::Adaptor(config.buses), incarnation },
            listen: config.listen,
            company: Company::Nodes(config.peers.clone()),
            routers: config.routers.clone(),
            keepalive: config.keepalive,
            congestion: config.congestion.clone(),
            credentials,
            seed,
        };
        let links = Links::new(now, poller, settings, LINKS)?;
        let mut locals = Vec::new();
        for (number, node) in (0u64..).zip(config.buses.nodes()) {
            locals.push(Local::start(config, poller, number, node)?);
        }
        // Last of what can fail: files that were made are not undone after that.
        if let Some(first) = locals.first_mut() {
            first.devices = Devices::open(&config.devices)?;
        }
        backplane::join(now, &mut locals.iter_mut().map(|local| &mut local.adaptor).collect::<Vec<_>>());
        log_start(config, incarnation);
        let paths = Paths::new(config.buses);
        let pager = Pager::new()?;
        poller.add(&pager, PAGER, Interest::READ)?;
        let swap_at = Instant::ZERO;
        Ok(Self { clock, locals, links, paths, pager, swap_at })
    }
}

impl Service for Node {
    fn handle_report(&mut self, now: Instant, report: Report) {
        if report.token == PAGER {
            return self.pager.handle_report();
        }
        let Some(bus) = report.token.0.checked_sub(BUSES.0) else {
            return self.links.handle_report(now, report);
        };
        let number = usize::try_from(bus >> BUS_TOKENS).unwrap_or(usize::MAX);
        if let Some(local) = self.locals.get_mut(number) {
            local.handle_report(now, report);
        }
    }

    /// Hands what has arrived to the core and carries out what it says.
    fn turn(&mut self, now: Instant) -> Turn {
        if self.swap_at <= now {
            self.swap_at = now.after(LOOK_FOR_SWAP);
            mapped::look_for_swap();
        }
        self.links.handle_timeout(now);
        let buses = self.locals.len();
        for local in &mut self.locals {
            local.budget = Budget::of(buses);
        }
        let mut turn = Turn::of(self.serve_faults(now) | self.receive(now));
        for number in 0..buses {
            if let Some(local) = self.locals.get_mut(number) {
                turn = turn.max(local.take_in(now));
            }
            self.probe(now, number);
        }
        turn = turn.max(self.carry_out(now));
        for local in &mut self.locals {
            turn = turn.max(local.flush(now));
        }
        turn
    }

    fn handle_clock_jump(&mut self, now: Instant) {
        for local in &mut self.locals {
            local.adaptor.handle_clock_jump(now);
        }
    }

    fn is_polling(&self) -> bool {
        self.locals.iter().any(|local| local.adaptor.is_polling())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let locals = self.locals.iter().filter_map(Local::poll_timeout);
        locals.chain(self.links.poll_timeout()).min()
    }
}

fn random_seed() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::from)
}

/// What the adaptor of bus `node` has to know: its peers are those of the process, and the process's other buses.
fn core_settings(config: &Config, node: NodeId, seed: u64) -> adaptor::Settings {
    let others = config.buses.nodes().filter(|&other| other != node);
    adaptor::Settings {
        node,
        geometry: config.geometry,
        peers: config.peers.keys().copied().chain(others).collect::<NodeSet>(),
        timing: Timing { deadline: config.deadline, lease: config.lease, keepalive: config.keepalive },
        gather: config.gather,
        seed,
    }
}

/// The physical address bits of QEMU's emulated processors, unless it is told otherwise.
const TCG_ADDRESS_BITS: u32 = 40;

fn log_start(config: &Config, life: Incarnation) {
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
    let sockets: Vec<_> = config.socket_paths.iter().map(|path| path.display().to_string()).collect();
    let sockets = match &sockets[..] {
        [] => "no guest socket".to_owned(),
        [only] => format!("guest socket {only}"),
        several => format!("guest sockets {}", several.join(", ")),
    };
    log::info!(
        "{}: {sockets}, {listen}, peers: {}, routers: {routers}; links are {links}; life {life}",
        config.buses.span(),
        or_none(peers)
    );
    for device in &config.devices {
        log::info!("{device}");
    }
    if !config.socket_paths.is_empty() {
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
