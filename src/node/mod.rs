//! A node as a process: one thread and one event loop around the [`Adaptor`].
//!
//! In each turn everything that has arrived is handed to the core and everything that the core has to say is carried
//! out, by bounded portions from each source, until there is nothing more to do. After activity the loop polls for a while
//! before it sleeps, since a wake-up costs more than the way of a packet.

mod bus;
mod guest;
mod outputs;
mod signals;

use core::time::Duration;
use std::io;
use std::num::NonZeroU64;
use std::rc::Rc;

use rustix::time::{ClockId, clock_gettime};
use thiserror::Error;

use self::bus::Bus;
use self::signals::{Signal, Signals};
use crate::adaptor::address::NodeSet;
use crate::adaptor::mesh::Timing;
use crate::adaptor::{self, Adaptor, Instant};
use crate::config::Config;
use crate::net::{self, Credentials, Links};
use crate::poller::{Poller, Reports, Token};
use crate::vfio::ListenError;

/// Whose report it is shows in the token: the links' go from here, the bus's from there on.
const SIGNALS: Token = Token(0);
const LINKS: Token = Token(1);
const BUS: Token = Token(1 << 62);
/// How exactly the kernel keeps the loop's timeouts; its default of 50 us is longer than the gather time.
const TIMER_SLACK_NANOS: u64 = 1000;

/// Why a node could not be started. Nothing is left behind.
#[derive(Debug, Error)]
pub enum StartError {
    /// The TCP side.
    #[error(transparent)]
    Links(#[from] net::StartError),
    /// The vfio-user socket.
    #[error("socket-path: {0}")]
    Socket(#[from] ListenError),
    /// The system refused something without which nothing goes.
    #[error("can't start: {0}")]
    System(#[from] io::Error),
}

/// Time since the machine started. It goes on while the machine is suspended: a lease must not outlive that.
#[derive(Clone, Copy, Debug)]
struct Clock;

impl Clock {
    fn now(self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        Instant::ZERO.after(Duration::try_from(time).unwrap_or_default())
    }
}

/// A running node.
pub struct Node {
    clock: Clock,
    poller: Rc<Poller>,
    signals: Signals,
    adaptor: Adaptor,
    links: Links,
    bus: Bus,
    /// How long to poll after activity.
    poll: Duration,
}

impl Node {
    /// Takes both sockets and the signals. With `credentials`, the links use TLS.
    ///
    /// # Errors
    /// Where one of them is not to be had; the others are given back.
    pub fn start(config: &Config, credentials: Option<Credentials>) -> Result<Self, StartError> {
        let clock = Clock;
        let now = clock.now();
        let poller = Rc::new(Poller::new()?);
        let seed = getrandom::u64().map_err(io::Error::from)?;
        for warning in credentials.iter().flat_map(Credentials::warnings) {
            log::warn!("{warning}");
        }
        let settings = net::Settings {
            node: config.node,
            listen: config.listen,
            peers: config.peers.clone(),
            congestion: config.congestion.clone(),
            credentials,
            // Jitter needs other numbers than the core, not better ones.
            seed: !seed,
        };
        let links = Links::new(now, &poller, settings, LINKS)?;
        // Last of those that can fail because of somebody else, since it leaves something in the file system.
        let bus = Bus::new(&config.socket_path, config.geometry, &poller, BUS)?;
        let signals = Signals::new(&poller, SIGNALS)?;
        let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NANOS));
        if let Err(error) = slack {
            log::debug!("timeouts are kept less exactly: {error}");
        }
        let adaptor = Adaptor::new(core_settings(config, seed));
        log_start(config);
        Ok(Self { clock, poller, signals, adaptor, links, bus, poll: config.poll })
    }

    /// Runs until the process is told to stop.
    ///
    /// # Errors
    /// Where the kernel does not let it wait any more.
    pub fn run(mut self) -> io::Result<()> {
        let mut reports = Reports::default();
        let mut poll_until = self.clock.now();
        let mut busy = true;
        loop {
            let now = self.clock.now();
            let polling = busy || now < poll_until;
            if polling && !busy {
                // Whoever is to answer may need this processor.
                std::thread::yield_now();
            }
            let timeout = if polling { Some(Duration::ZERO) } else { self.time_to_sleep(now) };
            self.poller.wait(&mut reports, timeout)?;

            let now = self.clock.now();
            for report in reports.iter() {
                if report.token == SIGNALS {
                    if self.signals.take().is_some_and(stops) {
                        return Ok(());
                    }
                } else if report.token >= BUS {
                    self.bus.handle_report(now, &mut self.adaptor, report);
                } else {
                    self.links.handle_report(now, report);
                }
            }
            busy = self.turn(now);
            if busy || !reports.is_empty() {
                poll_until = self.clock.now().after(self.poll);
            }
        }
    }

    /// Hands what has arrived to the core and carries out what it says. Returns whether there was anything.
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
        self.bus.flush(now, &mut self.adaptor);
        progress
    }

    /// How long nothing will have to be done unless something arrives; `None` for ever.
    fn time_to_sleep(&self, now: Instant) -> Option<Duration> {
        let timeouts = [self.adaptor.poll_timeout(), self.links.poll_timeout(), self.bus.poll_timeout()];
        timeouts.into_iter().flatten().min().map(|timeout| timeout.since(now))
    }
}

/// What a signal means to a node: whether it is to stop.
fn stops(signal: Signal) -> bool {
    match signal {
        Signal::Stop => {
            log::info!("told to stop");
            true
        }
        Signal::Hangup => {
            log::info!("SIGHUP has no meaning: the configuration is read at the start only");
            false
        }
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
    let peers = if peers.is_empty() { "none".to_owned() } else { peers.join(", ") };
    let links = if config.tls.is_some() { "TLS" } else { "plain TCP" };
    log::info!(
        "node {}: guest socket {}, {listen}, peers: {peers}; links are {links}",
        config.node,
        config.socket_path.display()
    );
}
