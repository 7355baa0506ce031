//! Carries out what the core says: memory operations, answers, interrupts, packets, messages to the operator.

use std::rc::Rc;

use super::budget::Budget;
use super::memory::load;
use super::{Local, Node};
use crate::adaptor::event::Event;
use crate::adaptor::mesh::framing::Frame;
use crate::adaptor::mesh::neighbour::{LinkId, Refusal};
use crate::adaptor::mesh::packet::Body;
use crate::adaptor::{Instant, backplane};
use crate::event_loop::Turn;
use crate::logging::NODES;
use crate::net::LinkEvent;
use crate::router::{PathEvent, Remedy};

/// Rounds of outputs in one turn: what one brings about, the next carries out.
const ROUNDS_A_TURN: usize = 4;
/// Packets of all links that are taken in one turn.
const PACKETS_A_TURN: usize = 2048;

impl Local {
    /// Takes out what the core has for the guest. Returns whether there was anything.
    fn answer(&mut self) -> bool {
        let mut progress = false;
        while let Some(completion) = self.adaptor.poll_completion() {
            progress = true;
            self.bus.complete(&completion);
        }
        while let Some(vector) = self.adaptor.poll_interrupt() {
            progress = true;
            self.bus.signal(vector);
        }
        progress
    }
}

impl Node {
    /// Hands everything that came over the links, and from the other buses, to the core. Returns whether there was anything.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        let mut progress = self.exchange();
        for _ in 0..PACKETS_A_TURN {
            let Some(event) = self.links.poll_event(now) else { break };
            progress = true;
            match event {
                LinkEvent::Up(link, neighbour) => self.paths.handle_link_up(link, neighbour),
                LinkEvent::Down(link) => self.paths.handle_link_down(link),
                LinkEvent::Packet(link, frame) => self.handle_frame(now, link, frame),
                LinkEvent::Corrupt(link) => {
                    let nodes = self.paths.nodes(link);
                    let adaptors = self.locals.iter_mut().map(|local| &mut local.adaptor);
                    adaptors.for_each(|adaptor| nodes.clone().for_each(|node| adaptor.handle_corrupt(node)));
                }
                LinkEvent::Duplicate(duplicate) => {
                    for Local { adaptor, .. } in &mut self.locals {
                        if duplicate {
                            adaptor.handle_refused(Refusal::Duplicate);
                        } else {
                            adaptor.handle_admitted();
                        }
                    }
                }
            }
            self.follow_paths(now);
        }
        progress
    }

    fn handle_frame(&mut self, now: Instant, link: LinkId, Frame { packet, .. }: Frame) {
        if let Body::Routes(routes) = &packet.body {
            self.paths.handle_routes(link, routes);
        } else if self.paths.may_come_from(link, packet.source)
            && let Some(number) = self.paths.own().number(packet.destination)
            && let Some(local) = self.locals.get_mut(number)
        {
            local.adaptor.handle_packet(now, packet.source, packet);
            // The queue of requests to this guest's memory is short.
            self.execute(number);
        }
    }

    /// Tells the core which nodes there is a way to.
    fn follow_paths(&mut self, now: Instant) {
        while let Some(event) = self.paths.poll_event() {
            for Local { adaptor, .. } in &mut self.locals {
                match event {
                    PathEvent::Up(node) => adaptor.handle_link_up(now, node),
                    PathEvent::Down(node) => adaptor.handle_link_down(now, node),
                }
            }
        }
    }

    /// Takes out all outputs of the core.
    pub(super) fn carry_out(&mut self, now: Instant) -> Turn {
        for round in 0..ROUNDS_A_TURN {
            let mut progress = false;
            for number in 0..self.locals.len() {
                progress |= self.execute(number);
                progress |= self.locals.get_mut(number).is_some_and(Local::answer);
            }
            for number in 0..self.locals.len() {
                while let Some(event) =
                    self.locals.get_mut(number).and_then(|local| local.adaptor.poll_event())
                {
                    progress = true;
                    self.handle_event(now, number, event);
                }
            }
            progress |= self.send();
            if !progress {
                return Turn::of(round > 0);
            }
        }
        Turn::Cut
    }

    /// Takes to each bus what the others have for it. Returns whether there was anything.
    fn exchange(&mut self) -> bool {
        if self.locals.len() < 2 {
            return false;
        }
        let mut adaptors: Vec<_> = self.locals.iter_mut().map(|local| &mut local.adaptor).collect();
        // As for what is sent.
        backplane::exchange(self.clock.now(), &mut adaptors)
    }

    /// Sends what the buses have for each other and for other nodes. Returns whether there was anything.
    fn send(&mut self) -> bool {
        // Not the turn's time: where the process stood still since, a lease that these packets give would end after
        // the moment at which the core believes that it has.
        let now = self.clock.now();
        let mut progress = self.exchange();
        let (locals, paths, pager) = (&mut self.locals, &mut self.paths, &mut self.pager);
        let own = paths.own();
        let links = self.links.count();
        let share = || Budget::of(links).part(ROUNDS_A_TURN);
        // The links have their turn one after the other.
        let (mut current, mut budget) = (None, share());
        progress |= self.links.transmit(|link, out| {
            if current.replace(link) != Some(link) {
                budget = share();
            }
            if budget.is_spent() {
                return false;
            }
            budget.spend(&[]);
            let packet = paths.serve(link, |from, to| {
                let number = own.number(from)?;
                let Local { adaptor, bus, .. } = locals.get_mut(number)?;
                adaptor.poll_packet(now, to, &mut |source| {
                    budget.spend(&source.segments);
                    load(pager, bus, number, to, source)
                })
            });
            packet.map(|packet| packet.emit(out)).is_some()
        });
        progress
    }

    fn handle_event(&mut self, now: Instant, number: usize, event: Event) {
        let Some(Local { adaptor, label, .. }) = self.locals.get_mut(number) else { return };
        match event {
            Event::CutLink(node) => match self.paths.handle_silence(node) {
                Some(Remedy::Cut(link)) => self.links.cut(now, link, "no sign of life on the link"),
                Some(Remedy::Doubt) => {
                    adaptor.handle_link_down(now, node);
                    adaptor.handle_link_up(now, node);
                }
                None => {}
            },
            Event::MemoryNotShared => log::error!(
                "{label}the guest's memory is not shared with the adaptor, so that no other node can reach it; start QEMU with \
                 -object memory-backend-memfd,id=m,size=...,share=on -machine memory-backend=m"
            ),
            _ => {
                let label = Rc::clone(label);
                report(&label, event);
            }
        }
    }
}

/// Tells the operator what guests and other nodes bring about.
fn report(label: &str, event: Event) {
    match event {
        Event::LinkUp(node, incarnation) => {
            log::info!(target: NODES, "{label}node {node}: up, incarnation {incarnation}");
        }
        Event::LinkDown(node) => log::warn!(target: NODES, "{label}node {node}: down"),
        Event::PeerRestarted(node, incarnation) => {
            log::warn!(target: NODES, "{label}node {node}: restarted or reset, now incarnation {incarnation}");
        }
        Event::RoundTripTooLong { peer, round_trip, lease } => log::warn!(
            target: NODES,
            "{label}node {peer}: the round trip takes {round_trip:?}, too long for a lease of {lease:?}: writes are not \
             executed in time; raise --deadline at both nodes"
        ),
        Event::LeaseDiffers { peer, lease, own } => log::warn!(
            target: NODES,
            "{label}node {peer}: has a lease of {lease:?}, this node one of {own:?}: the two are configured with different \
             --deadline or --lease"
        ),
        Event::VersionDiffers { peer, versions } => {
            log::warn!(target: NODES, "{label}node {peer}: {}", versions.difference());
        }
        Event::Reset(incarnation) => log::info!("{label}reset, now incarnation {incarnation}"),
        Event::CutLink(_) | Event::MemoryNotShared => {}
    }
}
