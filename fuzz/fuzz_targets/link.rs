//! Hostile connections with a process's links, from the first byte on, with TLS and without; `doorstep` says what has to hold.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use assured_rdma::adaptor::address::NodeId;
use assured_rdma::adaptor::mesh::neighbour::Identity;
use assured_rdma::adaptor::mesh::packet::Packet;
use assured_rdma_fuzz::caller::Damage;
use assured_rdma_fuzz::credentials::{HONEST, HOSTILE, OWN, Voice};
use assured_rdma_fuzz::doorstep::{Doorstep, join};
use assured_rdma_fuzz::packets::{Fields, wire};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Step {
    Call {
        slot: u8,
        voice: Voice,
        /// With an undamaged handshake.
        ready: bool,
    },
    /// Below TLS, where the caller has any.
    Raw {
        slot: u8,
        bytes: Vec<u8>,
    },
    Say {
        slot: u8,
        bytes: Vec<u8>,
    },
    Join {
        slot: u8,
        who: u8,
        life: u8,
        looks_for: u8,
        asks: bool,
        /// A bit that is flipped.
        flip: Option<u16>,
    },
    Packet {
        slot: u8,
        fields: Fields,
    },
    /// Goes on with TLS.
    GoOn {
        slot: u8,
        damage: Option<Damage>,
    },
    Hear {
        slot: u8,
    },
    HangUp {
        slot: u8,
        half: bool,
    },
    Drop {
        slot: u8,
    },
    Push {
        count: u8,
    },
    Cut {
        nth: u8,
        refuse: bool,
    },
    Reset,
    Wait {
        millis: u16,
    },
}

/// Steps of one input.
const STEPS: usize = 60;
/// The longest wait, in which every deadline of a connection passes.
const LONGEST: u16 = 2500;

fn identity(who: u8) -> Identity {
    match who % 6 {
        0 => Identity::Router,
        1 => Identity::Node(OWN),
        2 => Identity::Node(HONEST),
        3 => Identity::Node(NodeId(4)),
        _ => Identity::Node(HOSTILE),
    }
}

fuzz_target!(|input: (bool, Voice, Vec<Step>)| {
    let (tls, router, steps) = input;
    let mut doorstep = Doorstep::new(tls, router);
    for step in steps.into_iter().take(STEPS) {
        match step {
            Step::Call { slot, voice, ready } => {
                doorstep.call(slot, voice);
                if ready {
                    doorstep.shake_hands(slot);
                }
            }
            Step::Raw { slot, bytes } => doorstep.with(slot, |caller| caller.say_raw(&bytes)),
            Step::Say { slot, bytes } => doorstep.with(slot, |caller| caller.say(&bytes)),
            Step::Join { slot, who, life, looks_for, asks, flip } => {
                // Mostly for this node.
                let looks_for = NodeId(if looks_for < 0xe0 { OWN.0 } else { looks_for });
                let mut bytes = wire(&join(identity(who), looks_for, (life % 6).into(), asks));
                if let Some(at) = flip.map(usize::from) {
                    let at = at % (bytes.len() * 8);
                    bytes[at / 8] ^= 1 << (at % 8);
                }
                doorstep.with(slot, |caller| caller.say(&bytes));
            }
            Step::Packet { slot, fields } => {
                doorstep.with(slot, |caller| caller.say(&wire(&Packet::from(fields))));
            }
            Step::GoOn { slot, damage } => {
                doorstep.with(slot, |caller| caller.go_on(damage.unwrap_or_default()))
            }
            Step::Hear { slot } => doorstep.hear(slot),
            Step::HangUp { slot, half } => doorstep.with(slot, |caller| caller.hang_up(half)),
            Step::Drop { slot } => doorstep.drop_caller(slot),
            Step::Push { count } => doorstep.push(count),
            Step::Cut { nth, refuse } => doorstep.cut(nth, refuse),
            Step::Reset => doorstep.reset(),
            Step::Wait { millis } => doorstep.wait(Duration::from_millis((millis % LONGEST).into())),
        }
    }
    doorstep.end();
});
