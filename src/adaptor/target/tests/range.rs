//! One question about a range of blocks: it waits as a check does, and clears nothing.

use super::*;

fn address(node: u8, offset: u64) -> u64 {
    u64::from(node) << 48 | offset
}

impl Rig {
    pub(super) fn range(&mut self, start: u64, end: u64) -> LoadTag {
        self.tags += 1;
        self.target.check_range(self.now, LoadTag(self.tags), Space::Memory, start, end);
        LoadTag(self.tags)
    }

    /// The answer to a range check that has to come at once.
    fn range_status(&mut self, start: u64, end: u64) -> u32 {
        let tag = self.range(start, end);
        let (answered, data) = self.answer().expect("the range check was not answered");
        assert_eq!(answered, tag);
        u32::from_le_bytes(data.try_into().unwrap())
    }
}

const ALL: (u64, u64) = (0, 1 << 56);

#[test]
fn no_false_ok_a_range_tells_of_every_block_in_it_and_of_no_other() {
    let mut rig = Rig::new();
    assert_eq!(rig.range_status(ALL.0, ALL.1), 0);
    rig.write(2, 3 * 4096 + 5, Code::NoWindow);
    let failed = word(Code::Ok, Code::NoWindow);
    for (start, end) in [
        ALL,
        (address(2, 0), address(3, 0)),
        (address(2, 3 * 4096), address(2, 4 * 4096)),
        (address(2, 4 * 4096 - 1), address(2, 4 * 4096)),
        (address(2, 3 * 4096), address(2, 3 * 4096 + 1)),
        (address(0, 5), address(2, 3 * 4096 + 1)),
    ] {
        assert_eq!(rig.range_status(start, end), failed, "{start:#x} to {end:#x}");
    }
    for (start, end) in [
        (0, address(2, 3 * 4096)),
        (address(2, 4 * 4096), 1 << 56),
        (address(2, 0), address(2, 4096)),
        (address(1, WINDOW), address(2, 1)),
    ] {
        assert_eq!(rig.range_status(start, end), 0, "{start:#x} to {end:#x}");
    }
    assert_eq!(rig.status(2, 3 * 4096), failed, "it was not cleared");
    assert_eq!(rig.range_status(ALL.0, ALL.1), 0);
}

#[test]
fn the_directions_are_told_apart_and_the_first_block_goes_first() {
    let mut rig = Rig::new();
    rig.write(2, 0, Code::Timeout);
    rig.write(1, 0, Code::NoWindow);
    rig.read(3, 0, 4, Code::AccessDenied);
    rig.read(2, 0, 4, Code::LinkLost);
    assert_eq!(rig.range_status(ALL.0, ALL.1), word(Code::LinkLost, Code::NoWindow));
    assert_eq!(rig.range_status(address(2, 0), ALL.1), word(Code::LinkLost, Code::Timeout));
    assert_eq!(rig.range_status(address(3, 0), ALL.1), word(Code::AccessDenied, Code::Ok));
}

#[test]
fn no_false_ok_what_is_no_range_of_the_space_is_all_ones() {
    let mut rig = Rig::new();
    for (start, end) in [(0, 0), (4096, 0), (address(4, 0), ALL.1), (0, u64::MAX), (1 << 57, 1 << 58)] {
        assert_eq!(rig.range_status(start, end), u32::MAX, "{start:#x} to {end:#x}");
    }
}

#[test]
fn flush_first_a_range_check_sends_what_is_posted_and_waits_for_what_lies_in_it() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.store(2, 0, &[1; 8]);
    rig.store(3, 0, &[1; 8]);
    rig.load(3, 8192, 8);
    let tag = rig.range(address(2, 0), address(3, 8192));
    rig.store(2, 8, &[2; 8]);
    rig.idle();
    let requests = rig.requests();
    let nodes: Vec<u8> = requests.iter().map(|request| request.place.node.0).collect();
    // Node 3 was pushed out by its load, node 1 by the idle bus, and the last store waits for node 2's first.
    assert_eq!(nodes, [3, 3, 2, 1]);
    rig.complete(&requests[0], Code::Ok);
    assert_eq!(rig.answer(), None);
    rig.complete(&requests[2], Code::TargetFault);
    assert_eq!(rig.answer(), Some((tag, vec![Code::TargetFault.bits(), 0, 0, 0])));
}

#[test]
fn a_range_check_does_not_report_what_was_started_after_it() {
    let mut rig = Rig::new();
    rig.store(1, 0, &[1; 8]);
    rig.range(ALL.0, ALL.1);
    rig.store(2, 0, &[1; 8]);
    rig.range(ALL.0, ALL.1);
    let requests = rig.requests();
    rig.complete(&requests[1], Code::AccessDenied);
    rig.complete(&requests[0], Code::Ok);
    assert_eq!(rig.answer().unwrap().1, [0; 4]);
    assert_eq!(rig.answer().unwrap().1, [Code::AccessDenied.bits(), 0, 0, 0]);
}

#[test]
fn no_lost_error_an_overflow_shows_in_ranges_of_its_node_behind_what_is_known() {
    let mut rig = Rig::with_limits(Limits { logged_blocks: 1, ..Limits::default() });
    rig.write(2, 0, Code::NoWindow);
    rig.write(1, 4096, Code::NoWindow);
    let lost = Code::LogOverflow;
    assert_eq!(rig.range_status(address(1, 0), address(1, 1)), word(lost, lost));
    assert_eq!(rig.range_status(address(1, 0), address(2, 1)), word(lost, Code::NoWindow));
    assert_eq!(rig.range_status(address(2, 0), address(3, 0)), word(Code::Ok, Code::NoWindow));
}

#[test]
fn bounded_what_waits_is_bounded_and_a_reset_answers_it() {
    let mut rig = Rig::with_limits(Limits { checks: 1, ..Limits::default() });
    rig.store(1, 0, &[1; 8]);
    let first = rig.range(ALL.0, ALL.1);
    rig.range(ALL.0, ALL.1);
    let refused = Code::NoResources.bits();
    assert_eq!(rig.answer().unwrap().1, [refused, refused, 0, 0]);
    rig.target.reset();
    let dropped = Code::LogOverflow.bits();
    assert_eq!(rig.answer(), Some((first, vec![dropped, dropped, 0, 0])));
}

#[test]
fn bounded_a_range_costs_time_for_what_is_logged_and_not_for_its_length() {
    // 256 windows of 2^48 bytes: 2^44 blocks, which nobody could look at one by one.
    let geometry = Geometry::new(256, 1 << 48).unwrap();
    let mut target = Target::new(geometry, GATHER, DEADLINE);
    for tag in 0..1000 {
        target.check_range(at(0), LoadTag(tag), Space::Memory, ALL.0, ALL.1);
        assert_eq!(target.poll_completion().unwrap().data[..], [0; 4]);
    }
}

#[test]
fn the_io_space_has_ranges_of_its_own() {
    let mut rig = Rig::new();
    rig.target.store(rig.now, Space::Io, 1 << 16, &[1]).unwrap();
    let request = rig.request().unwrap();
    rig.complete(&request, Code::TargetFault);
    assert_eq!(rig.range_status(ALL.0, ALL.1), 0);
    rig.target.check_range(rig.now, LoadTag(0), Space::Io, address(1, 0), address(1, 1));
    assert_eq!(rig.answer().unwrap().1, [Code::TargetFault.bits(), 0, 0, 0]);
}
