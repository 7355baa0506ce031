//! Any stream, cut anywhere: the same packets come out, those that were whole come out as they were, and little is held.
#![no_main]

use arbitrary::Arbitrary;
use assured_rdma::adaptor::mesh::framing::{FrameError, Framer};
use assured_rdma::adaptor::mesh::packet::{HEADER_LEN, MAX_PAYLOAD, Packet};
use assured_rdma_fuzz::packets::{Fields, wire};
use libfuzzer_sys::fuzz_target;

/// A part of a stream.
#[derive(Arbitrary, Debug)]
enum Part {
    Packet(Fields),
    Damaged { packet: Fields, at: u16, bit: u8 },
    Raw(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Input {
    parts: Vec<Part>,
    cuts: Vec<u16>,
}

type Found = Vec<Result<Packet, FrameError>>;

/// Takes out all that is there; false where the stream is broken.
fn drain(framer: &mut Framer, found: &mut Found) -> bool {
    while let Some(next) = framer.next_packet() {
        let broken = matches!(next, Err(FrameError::Broken(_)));
        found.push(next);
        if broken {
            return false;
        }
    }
    assert!(framer.held() < HEADER_LEN + MAX_PAYLOAD, "a whole packet is held back");
    true
}

fuzz_target!(|input: Input| {
    let mut stream = Vec::new();
    let mut whole = Vec::new();
    let mut intact = true;
    for part in input.parts {
        match part {
            Part::Packet(fields) => {
                let packet = Packet::from(fields);
                stream.extend(wire(&packet));
                if intact {
                    whole.push(Ok(packet));
                }
            }
            Part::Damaged { packet, at, bit } => {
                intact = false;
                let mut wire = wire(&packet.into());
                let at = usize::from(at) % wire.len();
                wire[at] ^= 1 << (bit & 7);
                stream.extend(wire);
            }
            Part::Raw(bytes) => {
                intact = false;
                stream.extend(bytes);
            }
        }
    }

    let mut at_once = Found::new();
    let mut framer = Framer::default();
    framer.push(&stream);
    drain(&mut framer, &mut at_once);
    assert_eq!(at_once.get(..whole.len()), Some(&whole[..]));

    let mut in_pieces = Found::new();
    let mut framer = Framer::default();
    let mut rest = &stream[..];
    let mut cuts = input.cuts.iter();
    loop {
        let cut = cuts.next().map_or(rest.len(), |&cut| usize::from(cut).min(rest.len()));
        let (piece, after) = rest.split_at(cut);
        rest = after;
        framer.push(piece);
        if !drain(&mut framer, &mut in_pieces) || rest.is_empty() {
            break;
        }
    }
    assert_eq!(in_pieces, at_once);
});
