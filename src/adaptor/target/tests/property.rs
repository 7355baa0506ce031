//! Random traffic against a model that knows each store, load and check, and keeps every error.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::failed::QueueModel;
use super::*;

#[derive(Clone, Debug)]
enum Op {
    Store {
        node: u8,
        offset: u64,
        len: usize,
    },
    /// A store right behind the last one.
    StoreNext {
        len: usize,
    },
    Load {
        node: u8,
        offset: u64,
        len: usize,
    },
    Check {
        node: u8,
        offset: u64,
        len: usize,
    },
    /// From this block of the space on, so many.
    Range {
        first: u64,
        count: u64,
    },
    TakeFailed,
    PopFailed,
    Idle,
    Wait {
        micros: u64,
    },
    /// The mesh takes what there is.
    Take,
    /// The oldest transaction of a node ends, or the newest: the target unit does not rely on the order.
    Complete {
        node: u8,
        code: Code,
        newest: bool,
    },
    Acknowledge {
        node: u8,
    },
    Reset,
}

/// A node and an offset near the borders of blocks and of the window.
fn place() -> impl Strategy<Value = (u8, u64)> {
    let offset =
        prop_oneof![0..32_u64, 4086..4100_u64, 8180..8200_u64, 12288..12300_u64, WINDOW - 10..WINDOW];
    (0..3_u8, offset)
}

/// Mostly a length that is executed.
fn len() -> impl Strategy<Value = usize> {
    let good = prop::sample::select(vec![1, 2, 4, 8]);
    let bad = prop::sample::select(vec![0, 3, 9, 5000]);
    prop_oneof![8 => good, 1 => bad]
}

fn completion() -> impl Strategy<Value = Op> {
    let code = prop_oneof![3 => Just(Code::Ok), 2 => prop::sample::select(Code::ALL)];
    (0..3_u8, code, prop::bool::weighted(0.1)).prop_map(|(node, code, newest)| Op::Complete {
        node,
        code,
        newest,
    })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        40 => (place(), len()).prop_map(|((node, offset), len)| Op::Store { node, offset, len }),
        30 => len().prop_map(|len| Op::StoreNext { len }),
        20 => (place(), len()).prop_map(|((node, offset), len)| Op::Load { node, offset, len }),
        40 => (place(), len()).prop_map(|((node, offset), len)| Op::Check { node, offset, len }),
        15 => (0..64_u64, 1..64_u64).prop_map(|(first, count)| Op::Range { first, count }),
        15 => Just(Op::TakeFailed),
        10 => Just(Op::PopFailed),
        15 => Just(Op::Idle),
        10 => prop_oneof![1..30_u64, Just(600_000)].prop_map(|micros| Op::Wait { micros }),
        40 => Just(Op::Take),
        70 => completion(),
        5 => (0..3_u8).prop_map(|node| Op::Acknowledge { node }),
        // A reset ends all that is interesting, so there are few.
        2 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..200)
}

/// Blocks counted through the space; windows are 16 blocks.
fn blocks(node: u8, offset: u64, len: usize) -> Vec<u64> {
    let first = space(node, offset);
    (first / 4096..=(first + (len as u64).saturating_sub(1)) / 4096).collect()
}

fn node_of(block: u64) -> u8 {
    (block / 16) as u8
}

/// One store, load or check. Its place in the bus's order is its key in the model.
#[derive(Clone, Debug)]
struct Item {
    node: u8,
    offset: u64,
    data: Vec<u8>,
    direction: Direction,
    tag: LoadTag,
}

#[derive(Clone, Debug)]
struct Sent {
    request: Request,
    items: Vec<u64>,
}

/// A check, or a question about a range, which clears nothing.
struct Asked {
    tag: LoadTag,
    blocks: Vec<u64>,
    len: usize,
    look: Look,
}

#[derive(Default)]
struct Model {
    items: BTreeMap<u64, Item>,
    /// Items of each node that the mesh has not been given, in order.
    posted: BTreeMap<u8, VecDeque<u64>>,
    sent: BTreeMap<u8, VecDeque<Sent>>,
    checks: BTreeMap<u64, Asked>,
    queue: QueueModel,
    /// Blocks that software popped and has not checked since with an error for an answer.
    known: BTreeSet<u64>,
    log: BTreeMap<u64, [Option<(u64, Code)>; 2]>,
    overflowed: BTreeSet<u8>,
    /// Every error that no check returned and no acknowledgement covered: block, direction, order.
    due: BTreeSet<(u64, Direction, u64)>,
    /// Answers that have to come, in order; for checks in the lenient runs only the tag and length.
    answers: VecDeque<(LoadTag, Vec<u8>)>,
}

struct Run {
    rig: Rig,
    model: Model,
    capacity: usize,
    /// The bus keeps to one load at a time, so that every answer is known exactly.
    strict: bool,
    order: u64,
    next: (u8, u64),
}

fn slot(direction: Direction) -> usize {
    usize::from(direction == Direction::Read)
}

impl Run {
    fn new(strict: bool, limits: Limits) -> Self {
        let capacity = limits.logged_blocks;
        Self {
            rig: Rig::with_limits(limits),
            model: Model::default(),
            capacity,
            strict,
            order: 0,
            next: (0, 0),
        }
    }

    fn errors(&self) -> u64 {
        self.rig.target.counters().errors
    }

    fn log(&mut self, blocks: &[u64], direction: Direction, order: u64, code: Code) {
        for &block in blocks {
            self.model.due.insert((block, direction, order));
            let room = self.model.log.len() < self.capacity;
            if !room && !self.model.log.contains_key(&block) {
                self.model.overflowed.insert(node_of(block));
                continue;
            }
            if !self.model.log.contains_key(&block) {
                self.model.queue.push(block);
            }
            let first = &mut self.model.log.entry(block).or_default()[slot(direction)];
            if first.is_none_or(|(other, _)| order < other) {
                *first = Some((order, code));
            }
        }
    }

    fn store(&mut self, node: u8, offset: u64, len: usize) {
        self.order += 1;
        let data: Vec<u8> = (0..len).map(|i| (self.order as usize * 8 + i) as u8).collect();
        let errors = self.errors();
        if self.rig.target.store(self.rig.now, Space::Memory, space(node, offset), &data).is_err() {
            return;
        }
        self.next = (node, (offset + len as u64).min(WINDOW - 1));
        self.started(Item { node, offset, data, direction: Direction::Write, tag: LoadTag(0) }, errors);
    }

    fn load(&mut self, node: u8, offset: u64, len: usize) {
        self.order += 1;
        let errors = self.errors();
        let tag = self.rig.load(node, offset, len);
        let data = vec![0xff; len];
        self.started(Item { node, offset, data, direction: Direction::Read, tag }, errors);
    }

    fn started(&mut self, item: Item, errors_before: u64) {
        let Item { node, offset, direction, .. } = item;
        let len = item.data.len();
        let valid = [1, 2, 4, 8].contains(&len) && offset + len as u64 <= WINDOW;
        if self.errors() == errors_before {
            assert!(valid, "{item:?} must not be executed");
            self.model.posted.entry(node).or_default().push_back(self.order);
            self.model.items.insert(self.order, item);
            return;
        }
        let code = if valid { Code::NoResources } else { Code::BadSize };
        let blocks: Vec<_> =
            blocks(node, offset, len).into_iter().filter(|&block| node_of(block) == node).collect();
        self.log(&blocks, direction, self.order, code);
        if direction == Direction::Read {
            self.model.answers.push_back((item.tag, item.data));
        }
    }

    fn check(&mut self, node: u8, offset: u64, len: usize) {
        self.order += 1;
        // Where errors are merged with those of before, the lenient model does not know which block was
        // meant.
        let (offset, len) = if self.strict { (offset, len) } else { (offset / 4096 * 4096, len.min(4096)) };
        let tag = self.rig.check(node, offset, len);
        let beyond = space(node, offset) + len as u64 > WINDOW * u64::from(NODES);
        if len == 0 || beyond {
            self.model.answers.push_back((tag, vec![0xff; len]));
        } else {
            let asked = Asked { tag, blocks: blocks(node, offset, len), len, look: Look::Clear };
            self.model.checks.insert(self.order, asked);
        }
    }

    fn range(&mut self, first: u64, count: u64) {
        self.order += 1;
        let address = |block: u64| ((block / 16) << 48) | ((block % 16) * 4096);
        let blocks: Vec<u64> = (first..(first + count).min(64)).collect();
        let tag = self.rig.range(address(first), address(first + count));
        self.model.checks.insert(self.order, Asked { tag, blocks, len: 4, look: Look::Peek });
    }

    fn take_failed(&mut self) {
        let block = self.rig.take_failed().map(|(node, index)| u64::from(node) * 16 + index);
        if self.strict {
            self.model.queue.took(block);
        }
    }

    fn pop_failed(&mut self) {
        let before = self.rig.target.failed_blocks();
        let taken = self.rig.target.taken_failed();
        self.rig.target.pop_failed();
        self.model.queue.popped();
        if self.rig.target.failed_blocks() < before {
            self.model.known.extend(taken.map(|block| u64::from(block.node.0) * 16 + block.index));
        }
    }

    /// Software that takes everything out of the queue knows every block with errors, and no other.
    fn all_failed_blocks_are_known(&mut self) {
        for (node, index) in self.rig.drain_failed() {
            let tag = self.rig.peek(node, index * 4096, 4);
            let (answered, data) = self.rig.answer().expect("nothing is under way");
            assert!(answered == tag && data != [0; 4], "block {index} of node {node} has no errors");
            self.model.known.insert(u64::from(node) * 16 + index);
        }
        let unknown = self.model.due.iter().find(|&&(block, ..)| {
            !self.model.known.contains(&block) && !self.model.overflowed.contains(&node_of(block))
        });
        assert_eq!(unknown, None, "a failed block that software was not told of");
    }

    fn take(&mut self) {
        for request in self.rig.requests() {
            let node = request.place.node.0;
            let posted = self.model.posted.entry(node).or_default();
            let mut sent = Sent { request: request.clone(), items: Vec::new() };
            let len = request.kind.len();
            let mut end = 0;
            while end < len {
                let order = posted.pop_front().expect("something that the bus never did");
                let item = &self.model.items[&order];
                assert_eq!(item.offset, request.place.at.offset + end as u64, "out of order: {request:?}");
                match &request.kind {
                    RequestKind::Write(Payload::Bytes(data)) => {
                        assert_eq!(data[end..][..item.data.len()], item.data);
                    }
                    RequestKind::Read { .. } => assert_eq!(item.direction, Direction::Read),
                    RequestKind::Atomic(_) | RequestKind::Write(Payload::Memory(_)) => {
                        panic!("the bus's stores bring their bytes along")
                    }
                }
                end += item.data.len();
                sent.items.push(order);
            }
            assert_eq!(end, len);
            let joined_in_block = blocks(node, request.place.at.offset, len).len() == 1;
            assert!(joined_in_block || sent.items.len() == 1, "joined across blocks: {request:?}");
            self.model.sent.entry(node).or_default().push_back(sent);
        }
    }

    fn complete(&mut self, node: u8, code: Code, newest: bool) {
        let sent = self.model.sent.entry(node).or_default();
        let Some(sent) = (if newest { sent.pop_back() } else { sent.pop_front() }) else { return };
        self.rig.complete(&sent.request, code);
        let first = self.model.items[&sent.items[0]].clone();
        let len: usize = sent.items.iter().map(|order| self.model.items[order].data.len()).sum();
        for order in &sent.items {
            self.model.items.remove(order);
        }
        if !code.is_ok() {
            let blocks = blocks(node, first.offset, len);
            self.log(&blocks, first.direction, sent.items[0], code);
        }
        if first.direction == Direction::Read {
            let byte = if code.is_ok() { 0x5a } else { 0xff };
            self.model.answers.push_back((first.tag, vec![byte; len]));
        }
    }

    /// What a check finds in one direction, and on which block.
    fn find(&self, blocks: &[u64], direction: Direction) -> (Code, Option<u64>) {
        let on = |block: &u64| self.model.log.get(block).and_then(|entry| entry[slot(direction)]);
        if let Some((block, (_, code))) = blocks.iter().find_map(|block| Some((*block, on(block)?))) {
            return (code, Some(block));
        }
        if blocks.iter().any(|&block| self.model.overflowed.contains(&node_of(block))) {
            return (Code::LogOverflow, None);
        }
        let lost = self.model.due.iter().find(|&&(b, d, _)| blocks.contains(&b) && d == direction);
        assert_eq!(lost, None, "the model itself lost an error");
        (Code::Ok, None)
    }

    fn clear(&mut self, block: u64, direction: Direction) {
        self.model.log.get_mut(&block).unwrap()[slot(direction)] = None;
        self.model.due.retain(|&(b, d, _)| (b, d) != (block, direction));
        self.model.known.remove(&block);
    }

    fn expected(&mut self, asked: &Asked) -> Vec<u8> {
        let (write, write_block) = self.find(&asked.blocks, Direction::Write);
        let one_only = asked.len == 1 && !write.is_ok();
        let (read, read_block) =
            if one_only { (Code::Ok, None) } else { self.find(&asked.blocks, Direction::Read) };
        if asked.look == Look::Clear {
            for (block, direction) in [(write_block, Direction::Write), (read_block, Direction::Read)] {
                if let Some(block) = block {
                    self.clear(block, direction);
                }
            }
            for block in [write_block, read_block].into_iter().flatten() {
                let rest = self.model.log.get(&block).is_some_and(|entry| *entry != [None, None]);
                if !rest {
                    self.model.log.remove(&block);
                }
                self.model.queue.checked(block, rest);
            }
        }
        let code = if write.is_ok() { read } else { write };
        let mut bytes =
            if asked.len == 1 { vec![code.bits()] } else { word(read, write).to_le_bytes().to_vec() };
        bytes.resize(asked.len, 0);
        bytes
    }

    /// Takes the answer of a check at its word: what it does not report must not be due.
    fn believe(&mut self, order: u64, asked: &Asked, data: &[u8]) {
        let mut due = self.model.due.clone();
        due.retain(|&(b, _, o)| asked.blocks.contains(&b) && o < order);
        let is_due = |direction| due.iter().any(|&(_, d, _)| d == direction);
        if data == [0] || data.len() > 1 && data[0] == 0 {
            assert!(!is_due(Direction::Write), "false OK for writes");
        }
        if data == [0] || data.len() > 1 && data[1] == 0 {
            assert!(!is_due(Direction::Read), "false OK for reads");
        }
        if asked.look == Look::Peek {
            return;
        }
        let block = asked.blocks[0];
        for (index, direction) in [Direction::Write, Direction::Read].into_iter().enumerate() {
            let code = data.get(index).copied().unwrap_or(0);
            let overflowed = self.model.overflowed.contains(&node_of(block));
            if code != 0 && !(overflowed && code == Code::LogOverflow.bits()) {
                // One byte does not say which direction it is about, unless one of them is due.
                let direction =
                    if data.len() == 1 && !is_due(direction) { Direction::Read } else { direction };
                self.model.due.retain(|&(b, d, o)| (b, d) != (block, direction) || o >= order);
                self.model.known.remove(&block);
            }
        }
    }

    fn answers(&mut self) {
        let ready: Vec<u64> =
            self.model.checks.keys().copied().filter(|&check| self.is_ready(check)).collect();
        for order in ready {
            let asked = self.model.checks.remove(&order).unwrap();
            if self.strict {
                let data = self.expected(&asked);
                self.model.answers.push_back((asked.tag, data));
            } else {
                self.lenient_answers();
                let (answered, data) = self.rig.answer().expect("a check was not answered in time");
                assert_eq!((answered, data.len()), (asked.tag, asked.len));
                self.believe(order, &asked, &data);
            }
        }
        self.lenient_answers();
        assert_eq!(self.rig.answer(), None, "an answer before its time");
    }

    fn lenient_answers(&mut self) {
        while let Some(expected) = self.model.answers.pop_front() {
            assert_eq!(self.rig.answer(), Some(expected));
        }
    }

    /// Whether everything that a check asks about has ended.
    fn is_ready(&self, check: u64) -> bool {
        let asked = &self.model.checks[&check].blocks;
        !self.model.items.range(..check).any(|(_, item)| {
            blocks(item.node, item.offset, item.data.len()).iter().any(|block| asked.contains(block))
        })
    }

    fn reset(&mut self) {
        self.rig.target.reset();
        let model = core::mem::take(&mut self.model);
        for item in model.items.values().filter(|item| item.direction == Direction::Read) {
            self.model.answers.push_back((item.tag, item.data.clone()));
        }
        let dropped = Code::LogOverflow;
        for asked in model.checks.values() {
            let mut data = word(dropped, dropped).to_le_bytes().to_vec();
            data.resize(asked.len, 0);
            self.model.answers.push_back((asked.tag, data));
        }
        self.answers();
        for sent in model.sent.values().flatten() {
            self.rig.complete(&sent.request, Code::Timeout);
        }
        assert_eq!((self.rig.requests(), self.rig.target.counters()), (vec![], Counters::default()));
    }

    fn step(&mut self, op: &Op) {
        let waits = !self.model.checks.is_empty()
            || self.model.items.values().any(|item| item.direction == Direction::Read);
        let from_bus = matches!(
            op,
            Op::Store { .. } | Op::StoreNext { .. } | Op::Load { .. } | Op::Check { .. } | Op::Range { .. }
        );
        if self.strict && waits && from_bus {
            return;
        }
        match *op {
            Op::Store { node, offset, len } => self.store(node, offset, len),
            Op::StoreNext { len } => self.store(self.next.0, self.next.1, len),
            Op::Load { node, offset, len } => self.load(node, offset, len),
            Op::Check { node, offset, len } => self.check(node, offset, len),
            Op::Range { first, count } => self.range(first, count),
            Op::TakeFailed => self.take_failed(),
            Op::PopFailed => self.pop_failed(),
            Op::Idle => self.rig.idle(),
            Op::Wait { micros } => {
                self.rig.now = self.rig.now.after(Duration::from_micros(micros));
                self.rig.target.handle_timeout(self.rig.now);
            }
            Op::Take => self.take(),
            Op::Complete { node, code, newest } => self.complete(node, code, newest),
            Op::Acknowledge { node } => {
                self.rig.target.acknowledge_overflow(NodeId(node));
                self.model.overflowed.remove(&node);
                // What found no room on this node's blocks is forgiven; what is logged is not.
                let log = &self.model.log;
                self.model.due.retain(|&(block, direction, _)| {
                    node_of(block) != node
                        || log.get(&block).is_some_and(|entry| entry[slot(direction)].is_some())
                });
            }
            Op::Reset => self.reset(),
        }
        self.answers();
        if self.strict {
            assert_eq!(self.rig.target.logged_blocks(), self.model.log.len());
            assert_eq!(self.rig.target.failed_blocks(), self.model.queue.len());
            for node in 0..4 {
                assert_eq!(self.rig.target.overflowed(NodeId(node)), self.model.overflowed.contains(&node));
            }
        }
    }

    /// In the end everything is sent and answered, and each block tells what is due.
    fn finish(&mut self) {
        self.rig.now = self.rig.now.after(GATHER);
        self.take();
        for node in 0..4 {
            while self.model.sent.get(&node).is_some_and(|sent| !sent.is_empty()) {
                self.complete(node, Code::Ok, false);
                self.answers();
            }
        }
        assert_eq!(self.model.items.len(), 0, "posted and never sent");
        self.all_failed_blocks_are_known();
        for block in 0..48 {
            self.check(node_of(block), block % 16 * 4096, 4);
            self.answers();
        }
        for block in 0..48 {
            assert_eq!(
                self.rig.target.tag(Block {
                    space: Space::Memory,
                    node: NodeId(node_of(block)),
                    index: block % 16
                }),
                Tag::default()
            );
        }
    }
}

fn run(strict: bool, limits: Limits, ops: &[Op]) {
    let mut run = Run::new(strict, limits);
    for op in ops {
        run.step(op);
    }
    run.finish();
}

proptest! {
    #[test]
    fn no_false_ok_no_lost_error_random_traffic_matches_the_model(ops in ops()) {
        run(true, Limits::default(), &ops);
    }

    #[test]
    fn no_lost_error_bounded_random_traffic_matches_the_model_with_hardly_any_room(ops in ops()) {
        let limits = Limits {
            write_buffers: 5,
            write_buffers_per_node: 2,
            fetch_buffers: 1,
            checks: 1,
            logged_blocks: 3,
        };
        run(true, limits, &ops);
    }

    #[test]
    fn no_false_ok_holds_where_a_bus_does_not_wait_for_its_loads(ops in ops()) {
        run(false, Limits { checks: 1000, fetch_buffers: 3, ..Limits::default() }, &ops);
    }
}
