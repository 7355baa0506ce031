//! Any interleaving of pushes, pops, masks, coalescing and resets, with MSI-X behind: no message and no interrupt is lost, and
//! none comes of nothing.

use proptest::prelude::*;

use super::*;
use crate::adaptor::pci::Msix;

/// Few, so that they meet.
const BELLS: u8 = 3;

#[derive(Clone, Debug)]
enum Op {
    Ring { node: u8, doorbell: u8, wide: bool },
    Ask { node: u8, doorbell: u8 },
    Pop { right: bool },
    Control { doorbell: u8, vector: u8, masked: bool, held: bool },
    Nodes { doorbell: u8, nodes: u64 },
    Coalesce { count: u32, micros: u64 },
    Wait { micros: u64 },
    Due,
    Connect { vector: u16, connected: bool },
    FunctionMask(bool),
    Fill,
    Reset,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bell = 0..BELLS;
    let vector = prop::sample::select(vec![0u8, 1, 2, 15, 16, 255]);
    let op = prop_oneof![
        60 => (2..4u8, bell.clone(), any::<bool>()).prop_map(|(node, doorbell, wide)| Op::Ring { node, doorbell, wide }),
        5 => (2..4u8, bell.clone()).prop_map(|(node, doorbell)| Op::Ask { node, doorbell }),
        30 => prop::bool::weighted(0.9).prop_map(|right| Op::Pop { right }),
        20 => (bell.clone(), vector, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(doorbell, vector, masked, held)| Op::Control { doorbell, vector, masked, held }),
        5 => (bell, prop_oneof![3 => Just(0b1100u64), 1 => 0..16u64])
            .prop_map(|(doorbell, nodes)| Op::Nodes { doorbell, nodes }),
        5 => (0..5u32, prop_oneof![Just(0u64), 1..50u64])
            .prop_map(|(count, micros)| Op::Coalesce { count, micros }),
        10 => (1..40u64).prop_map(|micros| Op::Wait { micros }),
        10 => Just(Op::Due),
        10 => (0..3u16, any::<bool>()).prop_map(|(vector, connected)| Op::Connect { vector, connected }),
        5 => any::<bool>().prop_map(Op::FunctionMask),
        1 => Just(Op::Fill),
        1 => Just(Op::Reset),
    ];
    prop::collection::vec(op, 1..150)
}

/// A message as the model keeps it.
#[derive(Clone, Debug)]
struct Queued {
    message: Message,
    /// It was in the queue when its vector was raised.
    told: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bell {
    vector: u8,
    masked: bool,
    held: bool,
    nodes: u64,
}

/// Everything in the plainest way: a list, and for each message whether it was told of.
#[derive(Default)]
struct Model {
    bells: [Bell; BELLS as usize],
    queue: Vec<Queued>,
    taken: u32,
    refused: u32,
    accepted: BTreeMap<(u8, u8), u32>,
    coalescing: Coalescing,
    /// For each vector since when without a break messages wait that were not told of.
    since: BTreeMap<u8, Instant>,
    /// Vectors that were raised and not signalled yet.
    raised: [bool; 16],
}

impl Model {
    /// The vector that has to tell of a message.
    fn vector(&self, message: &Message) -> Option<u8> {
        let bell = self.bells[usize::from(message.doorbell)];
        (!bell.masked && bell.vector < 16).then_some(bell.vector)
    }

    fn untold(&self, vector: u8) -> usize {
        self.queue
            .iter()
            .filter(|queued| !queued.told && self.vector(&queued.message) == Some(vector))
            .count()
    }

    fn ring(&mut self, node: u8, doorbell: u8, size: u8, data: u64) -> Result<(), Code> {
        let bell = self.bells[usize::from(doorbell)];
        if bell.nodes >> node & 1 == 0 {
            return Err(Code::AccessDenied);
        }
        if bell.held || self.queue.len() == LIMIT as usize {
            self.refused += 1;
            return Err(Code::NoResources);
        }
        *self.accepted.entry((node, doorbell)).or_default() += 1;
        let message = Message { source: NodeId(node), doorbell, size, data };
        self.queue.push(Queued { message, told: false });
        Ok(())
    }

    /// The vectors that have to be raised now, and no other.
    fn due(&mut self, now: Instant) -> Vec<u8> {
        let mut due = Vec::new();
        for vector in 0..16 {
            let untold = self.untold(vector);
            if untold == 0 {
                self.since.remove(&vector);
                continue;
            }
            let since = *self.since.entry(vector).or_insert(now);
            let Coalescing { count, time } = self.coalescing;
            if untold as u64 >= u64::from(count)
                || time.is_zero()
                || now.since(since) >= time
                || self.queue.len() == LIMIT as usize
            {
                due.push(vector);
                self.since.remove(&vector);
                let bells = self.bells;
                for queued in &mut self.queue {
                    let bell = bells[usize::from(queued.message.doorbell)];
                    queued.told |= !bell.masked && bell.vector == vector;
                }
            }
        }
        due
    }
}

struct Rig {
    messages: Messages,
    msix: Msix,
    connected: [bool; 16],
    function_masked: bool,
    model: Model,
    now: Instant,
    next_value: u64,
}

impl Rig {
    fn ring(&mut self, node: u8, doorbell: u8, wide: bool) {
        self.next_value += 1;
        let value = if wide { self.next_value << 32 | 7 } else { self.next_value };
        let size = if wide { 8 } else { 4 };
        let data = Bytes::copy_from_slice(&value.to_le_bytes()[..usize::from(size)]);
        let result =
            self.messages.serve(NodeId(node), u64::from(doorbell) * 8, &RequestKind::Write(data.into()));
        assert_eq!(result.map(drop), self.model.ring(node, doorbell, size, value));
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Ring { node, doorbell, wide } => self.ring(node, doorbell, wide),
            Op::Fill => {
                for _ in self.model.queue.len()..LIMIT as usize - 2 {
                    self.ring(2, 0, true);
                }
            }
            Op::Ask { node, doorbell } => {
                let bell = self.model.bells[usize::from(doorbell)];
                let room = if bell.held { 0 } else { LIMIT - self.model.queue.len() as u32 };
                let accepted = self.model.accepted.get(&(node, doorbell)).copied().unwrap_or(0);
                let expected =
                    if bell.nodes >> node & 1 == 1 { Ok((room, accepted)) } else { Err(Code::AccessDenied) };
                assert_eq!(ask(&mut self.messages, NodeId(node), doorbell), expected);
            }
            Op::Pop { right } => {
                let number = self.messages.number();
                self.messages.pop(if right { number } else { number.wrapping_add(1) });
                if right && !self.model.queue.is_empty() {
                    self.model.queue.remove(0);
                    self.model.taken += 1;
                }
            }
            Op::Control { doorbell, vector, masked, held } => {
                let flags = if masked { MASKED } else { 0 } | if held { HOLD } else { 0 };
                set_control(&mut self.messages, doorbell, u32::from(vector) | flags);
                let bell = &mut self.model.bells[usize::from(doorbell)];
                *bell = Bell { vector, masked, held, ..*bell };
            }
            Op::Nodes { doorbell, nodes } => {
                set_nodes(&mut self.messages, doorbell, NodeSet::from_words([nodes, 0, 0, 0]));
                self.model.bells[usize::from(doorbell)].nodes = nodes;
            }
            Op::Coalesce { count, micros } => {
                let coalescing = Coalescing { count, time: Duration::from_micros(micros) };
                self.messages.set_coalescing(coalescing);
                self.model.coalescing = coalescing;
            }
            Op::Wait { micros } => self.now = self.now.after(Duration::from_micros(micros)),
            Op::Due => self.now = self.messages.poll_timeout().map_or(self.now, |due| due.max(self.now)),
            Op::Connect { vector, connected } => {
                self.msix.connect(vector, connected);
                self.connected[usize::from(vector)] = connected;
            }
            Op::FunctionMask(masked) => {
                self.msix.set_function_mask(masked);
                self.function_masked = masked;
            }
            Op::Reset => {
                self.messages.reset();
                self.msix.reset();
                self.model = Model::default();
                self.function_masked = false;
                // The next driver opens them again.
                for doorbell in 0..BELLS {
                    self.apply(Op::Nodes { doorbell, nodes: 0b1100 });
                }
            }
        }
    }

    fn settle(&mut self) {
        let raised = self.messages.poll_vectors(self.now);
        let due = self.model.due(self.now);
        assert_eq!(raised, due.iter().copied().map(u16::from).collect::<Vec<_>>());
        for &vector in &raised {
            self.msix.raise(vector);
            self.model.raised[usize::from(vector)] = true;
        }
        while let Some(vector) = self.msix.poll() {
            let raised = core::mem::take(&mut self.model.raised[usize::from(vector)]);
            assert!(raised, "vector {vector} of nothing");
            assert!(self.connected[usize::from(vector)] && !self.function_masked);
        }
        for (vector, &raised) in self.model.raised.iter().enumerate() {
            assert!(!raised || self.function_masked || !self.connected[vector], "vector {vector} is lost");
        }
    }

    fn compare(&self) {
        let model = &self.model;
        let queue: Vec<Message> = model.queue.iter().map(|queued| queued.message).collect();
        assert!(self.messages.queue.iter().eq(&queue), "the queue");
        assert_eq!(self.messages.front(), queue.first().copied());
        let counts = (self.messages.number(), self.messages.overflows(), self.messages.received());
        assert_eq!(counts, (model.taken, model.refused, u64::from(model.taken) + queue.len() as u64));
        // What was not told of and is not masked will be, and the adaptor knows when.
        let waits = model.queue.iter().any(|queued| !queued.told && model.vector(&queued.message).is_some());
        let time = model.coalescing.time;
        let expected = model.since.values().min().map(|since| since.after(time));
        assert_eq!(waits, expected.is_some());
        assert_eq!(self.messages.poll_timeout(), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn no_message_and_no_interrupt_is_lost(ops in ops()) {
        let mut rig = Rig {
            messages: Messages::default(),
            msix: Msix::new(),
            connected: [false; 16],
            function_masked: false,
            model: Model::default(),
            now: Instant::ZERO,
            next_value: 0,
        };
        for doorbell in 0..BELLS {
            rig.apply(Op::Nodes { doorbell, nodes: 0b1100 });
        }
        for op in ops {
            rig.apply(op);
            rig.settle();
            rig.compare();
        }
    }
}
