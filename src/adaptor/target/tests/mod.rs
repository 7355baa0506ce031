//! The target unit's contract, sentence by sentence, and a model that random traffic is held against.
#![allow(clippy::arithmetic_side_effects)]

mod assurance;
mod bounded;
mod failed;
mod golden;
mod io;
mod posting;
mod property;
mod range;

use super::*;
use crate::adaptor::address::Space;
use crate::adaptor::bus::{Busy, LoadTag};
use crate::adaptor::transaction::{Payload, RequestKind};

const GATHER: Duration = Duration::from_micros(20);
const DEADLINE: Duration = Duration::from_millis(500);
const WINDOW: u64 = 16 * 4096;
const NODES: u16 = 4;

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn space(node: u8, offset: u64) -> u64 {
    u64::from(node) * WINDOW + offset
}

fn block(node: u8, offset: u64) -> Block {
    Block { space: Space::Memory, node: NodeId(node), index: offset / 4096 }
}

/// A target unit, the time, and short ways to say what happens to them.
struct Rig {
    target: Target,
    now: Instant,
    tags: u64,
}

impl Rig {
    fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    fn with_limits(limits: Limits) -> Self {
        let geometry = Geometry::new(NODES, WINDOW).unwrap();
        let target = Target::with_limits(geometry, GATHER, DEADLINE, limits);
        Self { target, now: at(0), tags: 0 }
    }

    fn store(&mut self, node: u8, offset: u64, data: &[u8]) {
        self.target.store(self.now, Space::Memory, space(node, offset), data).unwrap();
    }

    fn load(&mut self, node: u8, offset: u64, len: usize) -> LoadTag {
        self.tags += 1;
        self.target.load(self.now, LoadTag(self.tags), Space::Memory, space(node, offset), len);
        LoadTag(self.tags)
    }

    fn peek(&mut self, node: u8, offset: u64, len: usize) -> LoadTag {
        self.tags += 1;
        self.target.check(self.now, LoadTag(self.tags), Look::Peek, Space::Memory, space(node, offset), len);
        LoadTag(self.tags)
    }

    fn check(&mut self, node: u8, offset: u64, len: usize) -> LoadTag {
        self.tags += 1;
        self.target.check(self.now, LoadTag(self.tags), Look::Clear, Space::Memory, space(node, offset), len);
        LoadTag(self.tags)
    }

    fn idle(&mut self) {
        self.target.idle(self.now);
    }

    fn request(&mut self) -> Option<Request> {
        self.target.poll_request(self.now)
    }

    fn requests(&mut self) -> Vec<Request> {
        core::iter::from_fn(|| self.request()).collect()
    }

    fn complete(&mut self, request: &Request, code: Code) {
        let data = match request.kind {
            RequestKind::Read { len } if code.is_ok() => vec![0x5a; len as usize],
            _ => Vec::new(),
        };
        self.target.complete(self.now, request.id, code, data.into());
    }

    fn answer(&mut self) -> Option<(LoadTag, Vec<u8>)> {
        self.target.poll_completion().map(|done| (done.tag, done.data.to_vec()))
    }

    /// The answer to a check of four bytes that has to come at once.
    fn status(&mut self, node: u8, offset: u64) -> u32 {
        let tag = self.check(node, offset, 4);
        let (answered, data) = self.answer().expect("the check was not answered");
        assert_eq!(answered, tag);
        u32::from_le_bytes(data.try_into().unwrap())
    }

    /// A store, sent and ended.
    fn write(&mut self, node: u8, offset: u64, code: Code) {
        self.store(node, offset, &[1]);
        self.idle();
        for request in self.requests() {
            self.complete(&request, code);
        }
    }

    /// A load, sent and ended; what the bus was answered.
    fn read(&mut self, node: u8, offset: u64, len: usize, code: Code) -> Vec<u8> {
        let tag = self.load(node, offset, len);
        for request in self.requests() {
            self.complete(&request, code);
        }
        let (answered, data) = self.answer().expect("the load was not answered");
        assert_eq!(answered, tag);
        data
    }
}

fn word(read: Code, write: Code) -> u32 {
    u32::from(read.bits()) << 8 | u32::from(write.bits())
}

/// What a write request carries, and where.
fn written(request: &Request) -> (u8, u64, Vec<u8>) {
    match &request.kind {
        RequestKind::Write(Payload::Bytes(data)) => {
            (request.place.node.0, request.place.at.offset, data.to_vec())
        }
        _ => panic!("{request:?} is no write"),
    }
}
