//! Carries out what the core says: memory operations, answers, interrupts, packets, messages to the operator.

use super::Node;
use crate::adaptor::Instant;
use crate::adaptor::event::Event;
use crate::adaptor::memory::Home;
use crate::adaptor::mesh::framing::Frame;
use crate::adaptor::mesh::neighbour::{LinkId, Refusal};
use crate::adaptor::mesh::packet::Body;
use crate::net::LinkEvent;
use crate::router::PathEvent;

/// Rounds of outputs in one turn: what one brings about, the next carries out.
const ROUNDS_A_TURN: usize = 4;
/// Memory operations executed in a row. A command with a long list has thousands.
const OPERATIONS_AT_ONCE: usize = 16;

impl Node {
    /// Hands everything that came over the links to the core. Returns whether there was anything.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        let mut progress = false;
        while let Some(event) = self.links.poll_event(now) {
            progress = true;
            match event {
                LinkEvent::Up(link, neighbour) => self.paths.handle_link_up(link, neighbour),
                LinkEvent::Down(link) => self.paths.handle_link_down(link),
                // The sessions find that out by themselves.
                LinkEvent::Reborn(..) => {}
                LinkEvent::Packet(link, frame) => self.handle_frame(now, link, frame),
                LinkEvent::Corrupt(link) => {
                    self.paths.nodes(link).for_each(|node| self.adaptor.handle_corrupt(node));
                }
                LinkEvent::Duplicate(true) => self.adaptor.handle_refused(Refusal::Duplicate),
                LinkEvent::Duplicate(false) => self.adaptor.handle_admitted(),
            }
            self.follow_paths(now);
            // The queue of requests to this node is short.
            self.execute();
        }
        progress
    }

    fn handle_frame(&mut self, now: Instant, link: LinkId, Frame { packet, .. }: Frame) {
        if let Body::Routes(routes) = &packet.body {
            self.paths.handle_routes(link, routes);
        } else if self.paths.may_come_from(link, packet.source) {
            self.adaptor.handle_packet(now, packet.source, packet);
        }
    }

    /// Tells the core which nodes there is a way to.
    fn follow_paths(&mut self, now: Instant) {
        while let Some(event) = self.paths.poll_event() {
            match event {
                PathEvent::Up(node) => self.adaptor.handle_link_up(now, node),
                PathEvent::Down(node) => self.adaptor.handle_link_down(now, node),
            }
        }
    }

    /// Takes out all outputs of the core. Returns whether there were any.
    pub(super) fn carry_out(&mut self, now: Instant) -> bool {
        let mut any = false;
        for _ in 0..ROUNDS_A_TURN {
            let mut progress = self.execute();
            while let Some(completion) = self.adaptor.poll_completion() {
                progress = true;
                self.bus.complete(&completion);
            }
            while let Some(vector) = self.adaptor.poll_interrupt() {
                progress = true;
                self.bus.signal(vector);
            }
            while let Some(event) = self.adaptor.poll_event() {
                progress = true;
                self.handle_event(now, event);
            }
            // Not the turn's time: where the process stood still since, a lease that these packets give would end after
            // the moment at which the core believes that it has.
            let (adaptor, paths, now) = (&mut self.adaptor, &mut self.paths, self.clock.now());
            progress |= self.links.transmit(|link, out| {
                let packet = paths.serve(link, |node| adaptor.poll_packet(now, node));
                packet.map(|packet| packet.emit(out)).is_some()
            });
            if !progress {
                break;
            }
            any = true;
        }
        any
    }

    /// Executes the core's operations, each where it belongs, and as many as others may be kept waiting for; begins those on
    /// the guest's bus. Returns whether there were any, or any ended.
    fn execute(&mut self) -> bool {
        let mut progress = false;
        while let Some((id, result)) = self.bus.poll_done() {
            progress = true;
            self.adaptor.handle_memory_done(self.clock.now(), id, result);
        }
        for _ in 0..OPERATIONS_AT_ONCE {
            // An operation is executed under a lease that may run out while this turn lasts.
            let now = self.clock.now();
            self.adaptor.handle_bus_ready(self.bus.takes_bus_operations());
            let Some(operation) = self.adaptor.poll_memory(now) else { return progress };
            progress = true;
            let result = match operation.home() {
                Home::Hosted(device) => Some(self.devices.execute(device, &operation)),
                Home::Guest | Home::Bus => self.bus.execute(&operation),
            };
            if let Some(result) = result {
                self.adaptor.handle_memory_done(now, operation.id(), result);
            }
        }
        progress
    }

    fn handle_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::CutLink(node) => {
                if let Some(link) = self.paths.handle_silence(node) {
                    self.links.cut(now, link, "no sign of life on the link");
                }
                self.follow_paths(now);
            }
            Event::MemoryNotShared => log::error!(
                "the guest's memory is not shared with the adaptor, so that no other node can reach it; start QEMU with \
                 -object memory-backend-memfd,id=m,size=...,share=on -machine memory-backend=m"
            ),
            Event::Reset(incarnation) => {
                self.links.set_incarnation(incarnation);
                self.report(now, event);
            }
            _ => self.report(now, event),
        }
    }

    /// Tells the operator what guests and other nodes can bring about as often as they like.
    fn report(&mut self, now: Instant, event: Event) {
        use log::Level::{Info, Warn};
        let (level, line) = match event {
            Event::LinkUp(node, incarnation) => (Info, format!("node {node}: up, incarnation {incarnation}")),
            Event::LinkDown(node) => (Warn, format!("node {node}: down")),
            Event::PeerRestarted(node, incarnation) => {
                (Warn, format!("node {node}: restarted or reset, now incarnation {incarnation}"))
            }
            Event::Reset(incarnation) => (Info, format!("reset, now incarnation {incarnation}")),
            Event::CutLink(_) | Event::MemoryNotShared => return,
        };
        self.chatter.log(now, level, line);
    }
}
