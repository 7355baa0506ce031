//! Read-ahead: what is served from it, when it is dropped, and that statuses stay true.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::adaptor::address::NodeSet;

const TIME: Duration = Duration::from_micros(1000);

fn only(nodes: &[u8]) -> NodeSet {
    nodes.iter().copied().map(NodeId).collect()
}

/// A unit that reads ahead from node 1.
fn ahead() -> Rig {
    let mut rig = Rig::new();
    rig.target.set_read_ahead(only(&[1]), TIME);
    rig
}

/// Where a request reads, and how much.
fn read(request: &Request) -> (u8, u64, usize) {
    assert_eq!(request.kind.direction(), Direction::Read);
    (request.place.node.0, request.place.at.offset, request.kind.len())
}

impl Rig {
    /// What is asked of the nodes now.
    fn reads(&mut self) -> Vec<(u8, u64, usize)> {
        self.requests().iter().map(read).collect()
    }

    fn answer_with(&mut self, request: &Request, data: impl Into<Bytes>) {
        self.target.complete(self.now, request.id, Code::Ok, data.into());
    }

    /// A load, whose requests are answered by the low byte of each offset, `plus` something. Returns how many there were.
    fn load_through(&mut self, node: u8, offset: u64, len: usize, plus: u8) -> (Vec<u8>, usize) {
        self.load(node, offset, len);
        let requests = self.requests();
        for request in &requests {
            let (_, offset, len) = read(request);
            let data: Vec<u8> = (offset..).take(len).map(|at| (at as u8).wrapping_add(plus)).collect();
            self.answer_with(request, data);
        }
        (self.answer().expect("the load was not answered").1, requests.len())
    }
}

#[test]
fn it_is_off_unless_it_is_wanted_and_only_for_the_nodes_for_which_it_is() {
    let mut rig = Rig::new();
    rig.load(1, 0, 8);
    assert_eq!(rig.reads(), [(1, 0, 8)]);
    rig.target.set_read_ahead(only(&[1]), TIME);
    rig.load(2, 0, 8);
    assert_eq!(rig.reads(), [(2, 0, 8)]);
    rig.load(1, 0, 8);
    assert_eq!(rig.reads(), [(1, 0, 8), (1, 8, 4088)]);
    rig.target.set_read_ahead(only(&[1]), Duration::ZERO);
    rig.load(1, 0, 8);
    assert_eq!(rig.reads(), [(1, 0, 8)]);
}

#[test]
fn it_goes_to_the_end_of_the_block_in_which_the_load_ends() {
    let mut rig = ahead();
    for (offset, len, expected) in [
        (4088, 8, vec![(1, 4088, 8)]),
        (4092, 8, vec![(1, 4092, 8), (1, 4100, 4092)]),
        (4096 + 4090, 2, vec![(1, 8186, 2), (1, 8188, 4)]),
        (WINDOW - 2, 1, vec![(1, WINDOW - 2, 1), (1, WINDOW - 1, 1)]),
        (WINDOW - 1, 1, vec![(1, WINDOW - 1, 1)]),
    ] {
        rig.load(1, offset, len);
        assert_eq!(rig.reads(), expected);
        rig.target.drop_read_ahead(NodeId(1));
    }
}

#[test]
fn a_block_is_read_in_two_requests_and_each_byte_comes_from_its_place() {
    let mut rig = ahead();
    let mut requests = 0;
    for offset in (0..4096).step_by(8) {
        let (data, count) = rig.load_through(1, offset, 8, 0);
        let expected: Vec<u8> = (offset..).take(8).map(|at| at as u8).collect();
        assert_eq!(data, expected, "at {offset}");
        requests += count;
    }
    assert_eq!(requests, 2);
    assert_eq!(rig.target.counters().loads, 512);
}

#[test]
fn what_was_served_and_what_lies_before_it_is_not_served_again() {
    let mut rig = ahead();
    assert_eq!(rig.load_through(1, 0, 8, 0), (vec![0, 1, 2, 3, 4, 5, 6, 7], 2));
    assert_eq!(rig.load_through(1, 16, 2, 1), (vec![16, 17], 0));
    assert_eq!(rig.load_through(1, 16, 2, 2), (vec![18, 19], 2), "served once");
    assert_eq!(rig.load_through(1, 24, 1, 3), (vec![26], 0));
    assert_eq!(rig.load_through(1, 20, 1, 4), (vec![24], 2), "before what was served last");
    assert_eq!(rig.load_through(1, 4092, 8, 5).1, 2, "over the end");
}

#[test]
fn a_load_waits_for_what_is_on_its_way_and_so_does_its_check() {
    let mut rig = ahead();
    rig.load(1, 0, 4);
    let requests = rig.requests();
    rig.answer_with(&requests[0], vec![1; 4]);
    assert_eq!(rig.answer().unwrap().1, [1; 4]);
    let tag = rig.load(1, 8, 4);
    assert_eq!(rig.reads(), []);
    assert_eq!(rig.target.tag(block(1, 0)).reads.outstanding, 1);
    assert_eq!(rig.answer(), None);
    let data: Vec<u8> = (4..4096u32).map(|at| at as u8).collect();
    rig.answer_with(&requests[1], data);
    assert_eq!(rig.answer(), Some((tag, vec![8, 9, 10, 11])));
    assert_eq!(rig.target.tag(block(1, 0)), Tag::default());
    assert_eq!(rig.load_through(1, 12, 2, 0), (vec![12, 13], 0));
    assert_eq!(rig.status(1, 0), 0);
}

#[test]
fn a_fetch_that_fails_or_is_cut_short_leaves_no_error_and_its_loads_are_sent() {
    for (code, len) in [(Code::TargetFault, 0), (Code::Timeout, 0), (Code::Ok, 4091), (Code::Ok, 4093)] {
        let mut rig = ahead();
        rig.load(1, 0, 4);
        let requests = rig.requests();
        rig.complete(&requests[0], Code::Ok);
        rig.answer();
        let tag = rig.load(1, 4, 8);
        rig.target.complete(rig.now, requests[1].id, code, vec![0; len].into());
        let again = rig.requests();
        assert_eq!(again.iter().map(read).collect::<Vec<_>>(), [(1, 4, 8)]);
        assert_eq!(again[0].posted, rig.now);
        rig.answer_with(&again[0], vec![7; 8]);
        assert_eq!(rig.answer(), Some((tag, vec![7; 8])));
        assert_eq!(rig.status(1, 0), 0);
        assert_eq!(rig.target.counters().errors, 0);
    }
}

#[test]
fn no_false_ok_a_load_that_is_sent_after_all_and_fails_is_logged() {
    let mut rig = ahead();
    rig.load(1, 4090, 4);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::Ok);
    rig.answer();
    rig.load(1, 4096, 4);
    rig.complete(&requests[1], Code::TargetFault);
    let again = rig.request().unwrap();
    rig.complete(&again, Code::AccessDenied);
    assert_eq!(rig.answer().unwrap().1, [0xff; 4]);
    assert_eq!(rig.status(1, 0), 0, "the block before is not concerned");
    assert_eq!(rig.status(1, 4096), word(Code::AccessDenied, Code::Ok));
}

#[test]
fn stores_checks_and_other_things_of_the_node_drop_it() {
    type Act = fn(&mut Rig);
    let acts: [(&str, bool, Act); 11] = [
        ("nothing", false, |_| ()),
        ("a store", true, |rig| rig.write(1, 8192, Code::Ok)),
        ("a store of a bad size", true, |rig| rig.store(1, 8192, &[0; 3])),
        ("a store to another node", false, |rig| rig.write(2, 0, Code::Ok)),
        ("a check", true, |rig| _ = rig.check(1, 8192, 4)),
        ("a peek", true, |rig| _ = rig.peek(1, 8192, 4)),
        ("a range with the node in it", true, |rig| _ = rig.range(0, 1 << 56)),
        ("a range without it", false, |rig| _ = rig.range(2 << 48, 1 << 56)),
        ("a load from its I/O space", true, |rig| {
            rig.target.load(rig.now, LoadTag(0), Space::Io, 1 << 16, 4);
            let request = rig.request().unwrap();
            rig.complete(&request, Code::Ok);
        }),
        ("that it is not wanted any more", true, |rig| rig.target.set_read_ahead(only(&[2]), TIME)),
        ("the loss of its link", true, |rig| rig.target.drop_read_ahead(NodeId(1))),
    ];
    for (name, drops, act) in acts {
        let mut rig = ahead();
        rig.load_through(1, 0, 8, 0);
        act(&mut rig);
        while rig.answer().is_some() {}
        let (data, requests) = rig.load_through(1, 8, 1, 1);
        assert_eq!((data[0] == 9, requests > 0), (drops, drops), "{name}");
    }
}

#[test]
fn it_is_dropped_when_its_time_is_over_even_on_its_way() {
    let mut rig = ahead();
    rig.load_through(1, 0, 8, 0);
    rig.now = at(1000);
    assert_eq!(rig.load_through(1, 8, 1, 1).1, 0);
    rig.now = at(1001);
    assert_eq!(rig.load_through(1, 9, 1, 1), (vec![10], 2));

    rig.load(1, 4096, 1);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::Ok);
    rig.answer();
    rig.now = at(2002);
    rig.load(1, 4097, 1);
    assert_eq!(rig.reads(), [(1, 4097, 1), (1, 4098, 4094)]);
    rig.complete(&requests[1], Code::Ok);
    assert_eq!(rig.answer(), None, "what was dropped is not believed");
}

#[test]
fn order_a_load_that_waits_is_sent_before_what_drops_the_fetch() {
    let mut rig = ahead();
    rig.load(1, 0, 4);
    let first = rig.requests();
    rig.load(1, 4, 4);
    rig.store(1, 8, &[9; 8]);
    rig.check(1, 4096, 4);
    let requests = rig.requests();
    assert_eq!(read(&requests[0]), (1, 4, 4));
    assert_eq!(written(&requests[1]), (1, 8, vec![9; 8]));
    // The fetch that was dropped, and a name that was never sent, end nothing.
    rig.complete(&first[1], Code::Ok);
    assert_eq!(rig.answer().map(|answer| answer.1), Some(vec![0; 4]), "the check of another block");
    assert_eq!(rig.answer(), None);
}

#[test]
fn no_false_ok_a_load_that_waits_can_not_end_before_it_was_sent() {
    let mut rig = ahead();
    rig.load(1, 0, 4);
    rig.requests();
    rig.load(1, 4, 4);
    for id in 0..6 {
        if id != 1 && id != 2 {
            rig.target.complete(rig.now, TransactionId(id), Code::Ok, vec![0; 4].into());
        }
    }
    assert_eq!(rig.answer(), None);
}

#[test]
fn a_reset_ends_it_and_answers_who_waits() {
    let mut rig = ahead();
    rig.load(1, 0, 4);
    let requests = rig.requests();
    rig.complete(&requests[0], Code::Ok);
    rig.answer();
    let tag = rig.load(1, 4, 4);
    rig.target.reset();
    assert_eq!(rig.answer(), Some((tag, vec![0xff; 4])));
    rig.complete(&requests[1], Code::Ok);
    assert_eq!(rig.answer(), None);
    rig.load(1, 4, 4);
    assert_eq!(rig.reads(), [(1, 4, 4)], "it is off");
}

#[test]
fn bounded_without_a_buffer_nothing_is_read_ahead() {
    let mut rig = Rig::with_limits(Limits { fetch_buffers: 1, ..Limits::default() });
    rig.target.set_read_ahead(only(&[1]), TIME);
    rig.load(1, 0, 4);
    assert_eq!(rig.reads().len(), 2);
    rig.load(1, 4, 4);
    rig.load(1, 1024, 4);
    assert_eq!((rig.reads(), rig.answer().unwrap().1), (vec![], vec![0xff; 4]));
}

#[derive(Clone, Debug)]
enum Op {
    Load {
        node: u8,
        offset: u64,
        len: usize,
    },
    LoadNext {
        len: usize,
    },
    Store {
        node: u8,
    },
    Check {
        node: u8,
    },
    /// Of the oldest request of a node.
    End {
        node: u8,
        code: Code,
    },
    Wait {
        micros: u64,
    },
    Drop {
        node: u8,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let len = || prop::sample::select(vec![1, 2, 4, 8]);
    let offset = prop_oneof![0..64_u64, 4080..4112_u64];
    let code = prop_oneof![4 => Just(Code::Ok), 1 => prop::sample::select(Code::ALL)];
    let op = prop_oneof![
        10 => (0..3_u8, offset, len()).prop_map(|(node, offset, len)| Op::Load { node, offset, len }),
        30 => len().prop_map(|len| Op::LoadNext { len }),
        3 => (0..3_u8).prop_map(|node| Op::Store { node }),
        3 => (0..3_u8).prop_map(|node| Op::Check { node }),
        50 => (0..3_u8, code).prop_map(|(node, code)| Op::End { node, code }),
        5 => (1..700_u64).prop_map(|micros| Op::Wait { micros }),
        1 => (0..3_u8).prop_map(|node| Op::Drop { node }),
    ];
    prop::collection::vec(op, 1..150)
}

/// Nodes whose every byte is the number of the request that reads it, so that each answer says when it was made.
#[derive(Default)]
struct Nodes {
    waiting: BTreeMap<u8, VecDeque<Request>>,
    /// How many requests were executed, and when each was sent.
    executed: u8,
    sent: BTreeMap<u8, Instant>,
    /// The first of them that may be served from, for each node.
    floor: BTreeMap<u8, u8>,
    /// Bytes that were handed out: request, node and offset.
    handed: BTreeSet<(u8, u8, u64)>,
    /// Blocks with a load that failed.
    failed: BTreeSet<(u8, u64)>,
}

struct Load {
    tag: LoadTag,
    begun: Instant,
    node: u8,
    offset: u64,
    len: usize,
    /// The request that is the load itself, once it is sent.
    own: Option<TransactionId>,
}

fn run(ops: &[Op]) {
    let mut rig = Rig::new();
    rig.target.set_read_ahead(only(&[1, 2]), TIME);
    let mut nodes = Nodes::default();
    let mut load: Option<Load> = None;
    let mut next = (0, 0);
    for op in ops {
        let wanted = match *op {
            Op::Load { node, offset, len } => Some((node, offset, len)),
            Op::LoadNext { len } => Some((next.0, next.1, len)),
            _ => None,
        };
        // One load at a time, as a bus has it; what else it does waits behind.
        match *op {
            _ if wanted.is_some() && load.is_none() => {
                let (node, offset, len) = wanted.unwrap();
                let tag = rig.load(node, offset, len);
                next = (node, (offset + len as u64) % 8192);
                load = Some(Load { tag, begun: rig.now, node, offset, len, own: None });
            }
            Op::Store { node } if load.is_none() => {
                rig.store(node, 12288, &[1]);
                rig.idle();
                nodes.floor.insert(node, nodes.executed);
            }
            Op::Check { node } if load.is_none() => {
                rig.peek(node, 16384, 4);
                assert_eq!(rig.answer().unwrap().1, [0; 4]);
                nodes.floor.insert(node, nodes.executed);
            }
            Op::Drop { node } => {
                rig.target.drop_read_ahead(NodeId(node));
                nodes.floor.insert(node, nodes.executed);
            }
            Op::Wait { micros } => rig.now = rig.now.after(Duration::from_micros(micros)),
            Op::End { node, code } => {
                if let Some(request) = nodes.waiting.entry(node).or_default().pop_front() {
                    end(&mut rig, &mut nodes, &load, &request, code);
                }
            }
            _ => {}
        }
        for request in rig.requests() {
            if let Some(load) = &mut load
                && load.own.is_none()
                && request.kind.direction() == Direction::Read
            {
                assert_eq!(read(&request), (load.node, load.offset, load.len), "the load itself goes first");
                load.own = Some(request.id);
            }
            nodes.waiting.entry(request.place.node.0).or_default().push_back(request);
        }
        if let Some((tag, data)) = rig.answer() {
            judge(&mut nodes, load.take().expect("nobody asked"), tag, &data);
        }
    }
    for node in 0..3 {
        for index in 0..2 {
            let waits = load.as_ref().is_some_and(|load| load.node == node);
            let tag = rig.peek(node, index * 4096, 4);
            if let Some((answered, data)) = rig.answer() {
                assert_eq!(answered, tag);
                let failed = nodes.failed.contains(&(node, index));
                assert_eq!(data[1] != 0, failed, "the reads' code of block {index} of node {node}");
            } else {
                assert!(waits, "a check that waits for nothing");
            }
        }
    }
}

fn end(rig: &mut Rig, nodes: &mut Nodes, load: &Option<Load>, request: &Request, code: Code) {
    if request.kind.direction() == Direction::Write {
        rig.target.complete(rig.now, request.id, Code::Ok, Bytes::new());
        return;
    }
    let (node, offset, len) = read(request);
    nodes.executed += 1;
    nodes.sent.insert(nodes.executed, request.posted);
    if !code.is_ok() && load.as_ref().is_some_and(|load| load.own == Some(request.id)) {
        nodes.failed.extend([(node, offset / 4096), (node, (offset + len as u64 - 1) / 4096)]);
    }
    let data = if code.is_ok() { vec![nodes.executed; len] } else { Vec::new() };
    rig.target.complete(rig.now, request.id, code, data.into());
}

/// What a load brought is new enough, and was not handed out before.
fn judge(nodes: &mut Nodes, load: Load, tag: LoadTag, data: &[u8]) {
    assert_eq!((tag, data.len()), (load.tag, load.len));
    if data.iter().all(|&byte| byte == 0xff) {
        return;
    }
    let request = data[0];
    assert!(data.iter().all(|&byte| byte == request), "parts of two answers");
    let floor = nodes.floor.get(&load.node).copied().unwrap_or(0);
    assert!(request > floor, "what was read before a store, a check or a loss");
    assert!(load.begun.since(nodes.sent[&request]) <= TIME, "older than the time");
    for offset in (load.offset..).take(load.len) {
        assert!(nodes.handed.insert((request, load.node, offset)), "handed out twice: {offset}");
    }
}

proptest! {
    #[test]
    fn no_false_ok_random_loads_bring_what_is_new_enough_and_only_their_own_errors(ops in ops()) {
        run(&ops);
    }
}
