//! Hostile neighbours of a router and of an adaptor; `junction` says what has to hold.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::mesh::neighbour::{Identity, MAX_HOPS, Route, Routes};
use assured_rdma::adaptor::mesh::packet::{Incarnation, Packet};
use assured_rdma_fuzz::junction::{Junction, NODES};
use assured_rdma_fuzz::packets::{Fields, write};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Up {
        slot: u8,
        /// A router from [`NODES`] on.
        who: u8,
        life: u8,
    },
    Down {
        slot: u8,
    },
    Reborn {
        slot: u8,
        life: u8,
    },
    Routes {
        slot: u8,
        /// Those that are named, by bits.
        nodes: u8,
        distance: u8,
        life: u8,
    },
    Packet {
        slot: u8,
        fields: Fields,
        hops: u8,
    },
    /// Writes of one flow.
    Writes {
        slot: u8,
        nodes: [u8; 2],
        bulk: bool,
        count: u8,
        len: u16,
    },
    Take {
        slot: u8,
        count: u8,
    },
    Silence {
        node: u8,
    },
    Wait {
        millis: u16,
    },
}

/// Steps of one input.
const STEPS: usize = 200;
/// The longest wait, longer than a router's patience.
const LONGEST: u16 = 800;

fn life(chosen: u8) -> u8 {
    1 + chosen % 4
}

/// Mostly a node that somebody may lead to, the honest ones included.
fn node(chosen: u8) -> NodeId {
    NodeId(if chosen < 0xf0 { chosen % (NODES + 2) } else { chosen })
}

fuzz_target!(|steps: Vec<Step>| {
    let mut junction = Junction::default();
    for step in steps.into_iter().take(STEPS) {
        match step {
            Step::Up { slot, who, life: chosen } => {
                let who = who % (NODES + 4);
                let identity = if who < NODES { Identity::Node(NodeId(who)) } else { Identity::Router };
                junction.up(slot, identity, life(chosen));
            }
            Step::Down { slot } => junction.down(slot),
            Step::Reborn { slot, life: chosen } => junction.reborn(slot, life(chosen)),
            Step::Routes { slot, nodes, distance, life: chosen } => {
                let named = (0..NODES).filter(|node| nodes >> node & 1 == 1);
                let routes = named.map(|node| Route {
                    node: NodeId(node),
                    distance: 1 + distance.wrapping_add(node) % MAX_HOPS,
                    incarnation: Incarnation(life(chosen.wrapping_add(node / 4)).into()),
                });
                junction.tell_routes(slot, Routes::new(routes));
            }
            Step::Packet { slot, fields, hops } => {
                let mut packet = Packet::from(fields);
                (packet.source, packet.destination) = (node(packet.source.0), node(packet.destination.0));
                junction.send(slot, packet, hops % (MAX_HOPS + 1));
            }
            Step::Writes { slot, nodes: [source, destination], bulk, count, len } => {
                let channel = if bulk { Channel::Bulk } else { Channel::Small };
                for _ in 0..count {
                    let packet = write(node(source), node(destination), channel, len.into());
                    junction.send(slot, packet, 0);
                }
            }
            Step::Take { slot, count } => junction.take(slot, count.into()),
            Step::Silence { node } => junction.silence(NodeId(node % NODES)),
            Step::Wait { millis } => junction.wait(Duration::from_millis((millis % LONGEST).into())),
        }
        junction.follow_events();
        junction.check();
    }
    junction.end();
});
