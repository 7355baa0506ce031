//! A router as a process: one thread and one event loop around the [`Router`].

use std::io;

use thiserror::Error;

use crate::adaptor::Instant;
use crate::adaptor::mesh::limits::KEEPALIVE_PARTS;
use crate::adaptor::mesh::neighbour::{End, Neighbour};
use crate::adaptor::mesh::packet::{Incarnation, Sink as _};
use crate::adaptor::random::Random;
use crate::config::RouterConfig;
use crate::descriptors;
use crate::event_loop::{EventLoop, Service, Turn};
use crate::logging::NODES;
use crate::net::{self, Company, Credentials, LinkEvent, Links};
use crate::poller::{Report, Token};
use crate::router::{Counters, Router, RouterEvent, Settings};

/// Tokens of the links go from here.
const LINKS: Token = Token(1);

/// Why a router could not be started, or go on.
#[derive(Debug, Error)]
pub enum RunError {
    /// The TCP side.
    #[error(transparent)]
    Links(#[from] net::StartError),
    /// The system refused something without which nothing goes.
    #[error("can't run: {0}")]
    System(#[from] io::Error),
}

struct RouterProcess {
    router: Router,
    links: Links,
}

/// Runs a router until the process is told to stop. With `credentials`, the links use TLS.
///
/// # Errors
/// Where its port is not to be had, or the system refuses.
pub fn run(config: &RouterConfig, credentials: Option<Credentials>) -> Result<(), RunError> {
    let event_loop = EventLoop::new(config.poll)?;
    let mut process = RouterProcess::start(config, credentials, &event_loop)?;
    event_loop.run(&mut process)?;
    let router = &process.router;
    let Counters { forwarded, unroutable, overflowed, strange, looping } = router.counters();
    log::info!(
        "packets passed on: {forwarded}; dropped: {unroutable} to nodes not reached, {overflowed} with the buffer full, \
        {strange} from nodes not behind their link, {looping} after too many routers; bytes that still wait: {}",
        router.buffered()
    );
    Ok(())
}

impl RouterProcess {
    fn start(
        config: &RouterConfig,
        credentials: Option<Credentials>,
        event_loop: &EventLoop,
    ) -> Result<Self, RunError> {
        descriptors::prepare(0);
        let seed = getrandom::u64().map_err(io::Error::from)?;
        let incarnation = Incarnation(Random::new(seed).next_nonzero());
        for warning in credentials.iter().flat_map(Credentials::warnings) {
            log::warn!("{warning}");
        }
        let settings = net::Settings {
            own: Neighbour { end: End::Router, incarnation },
            listen: Some(config.listen),
            company: Company::Everyone,
            routers: config.routers.clone(),
            keepalive: config.keepalive,
            congestion: config.congestion.clone(),
            credentials,
            seed: !seed,
        };
        let links = Links::new(event_loop.clock().now(), event_loop.poller(), settings, LINKS)?;
        let patience = config.keepalive.checked_div(KEEPALIVE_PARTS).unwrap_or_default();
        let router = Router::new(Settings { incarnation, buffer: config.buffer, patience });
        let routers: Vec<_> = config.routers.iter().map(ToString::to_string).collect();
        let routers = if routers.is_empty() { "none".to_owned() } else { routers.join(", ") };
        let transport = if config.tls.is_some() { "TLS" } else { "plain TCP" };
        log::info!("router: listening on {}, routers: {routers}; links are {transport}", config.listen);
        Ok(Self { router, links })
    }

    /// Hands everything that came over the links to the core. Returns whether there was anything.
    fn receive(&mut self, now: Instant) -> bool {
        let mut progress = false;
        while let Some(event) = self.links.poll_event(now) {
            progress = true;
            match event {
                LinkEvent::Up(link, neighbour) => self.router.handle_link_up(now, link, neighbour),
                LinkEvent::Down(link) => self.router.handle_link_down(now, link),
                LinkEvent::Packet(link, frame) => self.router.handle_packet(now, link, &frame),
                // The flows send it again. And a router has no node id.
                LinkEvent::Corrupt(_) | LinkEvent::Duplicate(_) => {}
            }
        }
        progress
    }

    /// Does what the core says. Returns whether there was anything; the links may have news by that.
    fn carry_out(&mut self, now: Instant) -> bool {
        let mut progress = false;
        while let Some(event) = self.router.poll_event() {
            progress = true;
            match event {
                RouterEvent::Refuse(link, refusal, rival) => {
                    let why = format!(
                        "its node id is in use: the adaptor of life {rival} is reached over other routers"
                    );
                    self.links.refuse(now, link, refusal, &why);
                }
                RouterEvent::Reached(node, distance, life) => {
                    let plural = if distance == 1 { "" } else { "s" };
                    log::info!(
                        target: NODES,
                        "node {node}: reached over {distance} router{plural}, life {life} of its adaptor"
                    );
                }
                RouterEvent::Lost(node) => {
                    log::info!(target: NODES, "node {node}: not reached any more");
                }
            }
        }
        progress
    }
}

impl Service for RouterProcess {
    fn handle_report(&mut self, now: Instant, report: Report) {
        self.links.handle_report(now, report);
    }

    fn turn(&mut self, now: Instant) -> Turn {
        self.links.handle_timeout(now);
        let mut progress = self.receive(now);
        if self.router.poll_timeout().is_some_and(|timeout| timeout <= now) {
            self.router.handle_timeout(now);
        }
        progress |= self.carry_out(now);
        let router = &mut self.router;
        progress |= self.links.transmit(|link, out| {
            let packet = router.poll_packet(link);
            packet.map(|packet| out.put_payload(&packet)).is_some()
        });
        Turn::of(progress)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.router.poll_timeout(), self.links.poll_timeout()].into_iter().flatten().min()
    }
}
