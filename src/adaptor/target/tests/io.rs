//! The I/O space: nothing is joined or put off, and its checks are its own.

use super::*;
use crate::adaptor::address::{IO_WINDOW_SIZE, Location};

fn port(node: u8, offset: u64) -> u64 {
    u64::from(node) * IO_WINDOW_SIZE + offset
}

impl Rig {
    fn output(&mut self, node: u8, offset: u64, data: &[u8]) {
        self.target.store(self.now, Space::Io, port(node, offset), data).unwrap();
    }

    /// The answer to a check of the I/O space that has to come at once.
    fn io_status(&mut self, look: Look, node: u8, offset: u64) -> u32 {
        self.target.check(self.now, LoadTag(9), look, Space::Io, port(node, offset), 4);
        let (_, data) = self.answer().expect("the check was not answered");
        u32::from_le_bytes(data.try_into().unwrap())
    }
}

#[test]
fn neighbouring_stores_go_one_by_one_and_at_once() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 4]);
    for n in 0..3 {
        rig.output(1, 8 + 4 * n, &[2; 4]);
    }
    rig.store(1, 20, &[3; 4]);
    let found: Vec<_> = rig.requests().iter().map(|request| (request.place.at, request.kind.len())).collect();
    let io = |offset| (Location::io(offset), 4);
    assert_eq!(found, [(Location::memory(0), 4), io(8), io(12), io(16)]);
}

#[test]
fn an_error_shows_in_the_check_of_its_space_only() {
    let mut rig = Rig::new();
    rig.output(1, 8, &[1]);
    let request = rig.request().unwrap();
    rig.complete(&request, Code::TargetFault);
    assert_eq!(rig.status(1, 8), 0);
    assert_eq!(rig.io_status(Look::Peek, 1, 8), word(Code::Ok, Code::TargetFault));
    assert_eq!(rig.io_status(Look::Clear, 1, 0), word(Code::Ok, Code::TargetFault));
    assert_eq!(rig.io_status(Look::Clear, 1, 0), 0);
}

#[test]
fn a_load_is_exact_and_its_window_ends() {
    let mut rig = Rig::new();
    rig.target.load(rig.now, LoadTag(1), Space::Io, port(2, IO_WINDOW_SIZE - 2), 2);
    let request = rig.request().unwrap();
    assert_eq!((request.place.node, request.place.at), (NodeId(2), Location::io(IO_WINDOW_SIZE - 2)));
    rig.complete(&request, Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [0x5a; 2]);
    rig.target.load(rig.now, LoadTag(1), Space::Io, port(2, IO_WINDOW_SIZE - 2), 4);
    assert_eq!(rig.answer().unwrap().1, [0xff; 4]);
    assert_eq!(rig.io_status(Look::Clear, 2, IO_WINDOW_SIZE - 4), word(Code::BadSize, Code::Ok));
}
