//! The stage of the target `flow`: a whole adaptor (node 1) between an honest peer (node 2, another adaptor, linked without
//! delay) and a hostile one (node 3), of which the fuzzer chooses every packet.
//!
//! What has to hold, whatever node 3 does, and however long the memory that it uses takes: nothing panics or runs for ever; no
//! memory is touched but what was exported to the node that asks, and no message is there but what it sent to a doorbell that is
//! open to it; bytes of others are not sent to node 3; the bytes held stay bounded; every access of the adaptor's own guest is
//! answered within the deadline; the honest node's accesses end well.

use std::time::Duration;

use assured_rdma::adaptor::address::{Geometry, NodeId};
use assured_rdma::adaptor::memory::{MemoryFault, MemoryOperation, OperationId, Segment};
use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::framing::Framer;
use assured_rdma::adaptor::mesh::packet::{Body, Packet};
use assured_rdma::adaptor::messages;
use assured_rdma::adaptor::{Adaptor, Event, Instant, LoadTag, Region, Settings};
use bytes::Bytes;

use crate::held::held;
use crate::hostile::Hostile;
use crate::packets::wire;

/// The adaptor that is tested, and its peers.
pub const TESTED: NodeId = NodeId(1);
pub const HONEST: NodeId = NodeId(2);
pub const HOSTILE: NodeId = NodeId(3);

pub const DEADLINE: Duration = Duration::from_millis(500);
pub const WINDOW: u64 = 1 << 20;

/// The doorbell that the hostile node may ring; no other is open.
const OPEN_DOORBELL: u8 = 1;

/// What the tested adaptor exports: where in its window, where in memory, to whom, and what fills it.
#[derive(Clone, Copy)]
struct Export {
    offset: u64,
    address: u64,
    node: NodeId,
    rights: u32,
    fill: u8,
}

const EXPORT_LEN: u64 = 0x2000;
const READ: u32 = 1;
const WRITE: u32 = 2;
const EXPORTS: [Export; 3] = [
    Export { offset: 0, address: 0x10_000, node: HONEST, rights: READ | WRITE, fill: HONEST_BYTE },
    Export { offset: 0x4000, address: 0x14_000, node: HOSTILE, rights: READ | WRITE, fill: HOSTILE_BYTE },
    Export { offset: 0x8000, address: 0x18_000, node: HOSTILE, rights: READ, fill: PUBLIC_BYTE },
];

const MEMORY: usize = 0x20_000;
/// Whatever the honest node writes, and what is exported to it.
const HONEST_BYTE: u8 = 0xa5;
/// Whatever the hostile node writes.
pub const HOSTILE_BYTE: u8 = 0x5a;
/// What the hostile node may read only.
const PUBLIC_BYTE: u8 = 0x3c;
/// All other memory of the tested node's guest.
const PRIVATE_BYTE: u8 = 0x77;

/// More than this may not be held above what an adaptor at rest holds: the window of a flow is 1 MiB, and a packet keeps the
/// portion of the stream that it came in.
const HELD_LIMIT: usize = 4 << 20;
/// Rounds of packets and memory operations at one moment, and timers that fire in it, before it counts as running for ever.
const ROUNDS: usize = 4000;

/// A thing that a guest waits for.
struct Waiting<T> {
    what: T,
    since: Instant,
}

/// See the module.
pub struct Stage {
    pub now: Instant,
    tested: Adaptor,
    memory: Vec<u8>,
    /// How many of the hostile node's operations, from the next one on, find their pages absent.
    absent: u8,
    /// Page faults that are being served.
    faults: Vec<OperationId>,
    honest: Adaptor,
    pub hostile: Hostile,
    /// Cuts what the hostile node sends into packets, as a link does.
    framer: Framer,
    link: bool,
    /// Whether the hostile node reads what is sent to it.
    reads: bool,
    load: Option<Waiting<LoadTag>>,
    store: Option<Waiting<(u64, Vec<u8>)>>,
    answers: Vec<(LoadTag, Bytes)>,
    next_tag: u64,
    at_rest: usize,
}

fn adaptor(node: NodeId) -> Adaptor {
    let settings = Settings {
        node,
        geometry: Geometry::new(16, WINDOW).expect("both are powers of two"),
        peers: [TESTED, HONEST, HOSTILE].into_iter().collect(),
        timing: Timing {
            deadline: DEADLINE,
            lease: Duration::from_millis(150),
            keepalive: Duration::from_secs(2),
        },
        gather: Duration::from_micros(50),
        seed: node.0.into(),
    };
    Adaptor::new(settings)
}

/// As each driver begins: memory space and bus master, and a session.
fn begin(now: Instant, adaptor: &mut Adaptor) {
    let enabled = adaptor.handle_store(now, Region::Config, 4, &[6, 0]);
    let begun = adaptor.handle_store(now, Region::Registers, 0x1d0, &1u32.to_le_bytes());
    assert!(enabled.is_ok() && begun.is_ok());
}

impl Default for Stage {
    fn default() -> Self {
        let mut stage = Self {
            now: Instant::from_nanos(1_000_000),
            tested: adaptor(TESTED),
            memory: Vec::new(),
            absent: 0,
            faults: Vec::new(),
            honest: adaptor(HONEST),
            hostile: Hostile::default(),
            framer: Framer::default(),
            link: false,
            reads: true,
            load: None,
            store: None,
            answers: Vec::new(),
            next_tag: 1,
            at_rest: 0,
        };
        begin(stage.now, &mut stage.honest);
        stage.tested.handle_link_up(stage.now, HONEST);
        stage.honest.handle_link_up(stage.now, TESTED);
        stage.enable();
        stage.at_rest = held();
        stage
    }
}

impl Stage {
    /// What the tested node's guest does after a reset.
    fn enable(&mut self) {
        self.memory = vec![PRIVATE_BYTE; MEMORY];
        begin(self.now, &mut self.tested);
        for (cookie, export) in (1..).zip(EXPORTS) {
            let address = usize::try_from(export.address).expect("is in memory");
            self.memory[address..][..EXPORT_LEN as usize].fill(export.fill);
            self.memory[0x1000..0x2000].fill(0);
            self.memory[0x1000..0x1008].copy_from_slice(&export.address.to_le_bytes());
            self.memory[0x1008..0x1010].copy_from_slice(&EXPORT_LEN.to_le_bytes());
            let descriptor = &mut self.memory[..128];
            descriptor.fill(0);
            descriptor[..4].copy_from_slice(b"ARDC");
            descriptor[0x04..0x08].copy_from_slice(&u32::to_le_bytes(cookie));
            descriptor[0x08] = 1;
            descriptor[0x10..0x18].copy_from_slice(&export.offset.to_le_bytes());
            descriptor[0x18..0x20].copy_from_slice(&EXPORT_LEN.to_le_bytes());
            descriptor[0x20..0x24].copy_from_slice(&export.rights.to_le_bytes());
            descriptor[0x24] = 1;
            descriptor[0x28..0x30].copy_from_slice(&0x1000_u64.to_le_bytes());
            descriptor[0x40..0x48].copy_from_slice(&(1_u64 << export.node.0).to_le_bytes());
            for (register, value) in [(0x40, 0), (0x44, 0), (0x48, cookie), (0x4c, 1)] {
                let taken =
                    self.tested.handle_store(self.now, Region::Registers, register, &value.to_le_bytes());
                assert!(taken.is_ok());
            }
            // The command's own accesses to memory.
            while let Some(operation) = self.tested.poll_memory(self.now) {
                let result = execute(&mut self.memory, &operation);
                self.tested.handle_memory_done(self.now, operation.id(), result);
            }
            let status = self.load_now(Region::Registers, 0x50, 4);
            assert_eq!(status[..], [0; 4], "the window is exported");
        }
        let doorbell = 0x3000 + 64 * u64::from(OPEN_DOORBELL) + 0x20;
        let opened = self.tested.handle_store(
            self.now,
            Region::Registers,
            doorbell,
            &(1_u64 << HOSTILE.0).to_le_bytes(),
        );
        assert!(opened.is_ok());
        self.memory[..0x2000].fill(PRIVATE_BYTE);
        // Long enough for everything from before to be over.
        self.wait(Duration::from_secs(1));
    }

    /// A load that is answered at once.
    fn load_now(&mut self, region: Region, offset: u64, len: usize) -> Bytes {
        let tag = self.tag();
        self.tested.handle_load(self.now, tag, region, offset, len);
        while let Some(completion) = self.tested.poll_completion() {
            if completion.tag == tag {
                return completion.data;
            }
            self.complete(completion.tag, completion.data);
        }
        panic!("a load that needs nobody else was not answered");
    }

    fn tag(&mut self) -> LoadTag {
        self.next_tag += 1;
        LoadTag(self.next_tag)
    }

    fn complete(&mut self, tag: LoadTag, data: Bytes) {
        if self.load.take_if(|load| load.what == tag).is_none() {
            self.answers.push((tag, data));
        }
    }

    /// The hostile node's link opens or closes.
    pub fn set_link(&mut self, up: bool) {
        if self.link == up {
            return;
        }
        self.link = up;
        self.framer = Framer::default();
        if up {
            self.tested.handle_link_up(self.now, HOSTILE);
        } else {
            self.tested.handle_link_down(self.now, HOSTILE);
        }
        self.settle();
    }

    /// Whether the hostile node reads from now on.
    pub fn set_reads(&mut self, reads: bool) {
        self.reads = reads;
        self.settle();
    }

    /// The hostile node sends a packet.
    pub fn receive(&mut self, packet: &Packet) {
        if !self.link {
            return;
        }
        self.framer.push(&wire(packet));
        while let Some(Ok(packet)) = self.framer.next_packet() {
            self.tested.handle_packet(self.now, HOSTILE, packet);
        }
        self.settle();
    }

    /// A packet of the hostile node arrives with a bad CRC.
    pub fn receive_corrupt(&mut self) {
        if self.link {
            self.tested.handle_corrupt(HOSTILE);
            self.settle();
        }
    }

    /// The function of the tested adaptor is reset, and set up again.
    pub fn reset(&mut self) {
        self.store = None;
        self.tested.handle_reset(self.now);
        self.settle();
        assert!(self.load.is_none(), "a reset answers what waits");
        self.enable();
    }

    /// The next operations of the hostile node, that many, have page faults.
    pub fn slow_down(&mut self, operations: u8) {
        self.absent = operations;
    }

    /// The page faults up to now are served, well or not.
    pub fn serve_faults(&mut self, result: Result<(), MemoryFault>) {
        for id in core::mem::take(&mut self.faults) {
            self.tested.handle_pages(self.now, id, result);
        }
        self.settle();
    }

    /// The operation, unless it has a page fault or is not to be begun any more.
    fn begin(&mut self, operation: MemoryOperation) -> Option<MemoryOperation> {
        let id = operation.id();
        let is_absent = self.absent > 0 && is_of_hostile(&operation);
        if !is_absent && self.tested.may_begin(self.now, id) {
            return Some(operation);
        }
        self.tested.handle_page_fault(self.now, operation);
        if is_absent {
            self.absent -= 1;
            self.faults.push(id);
        } else {
            self.tested.handle_pages(self.now, id, Ok(()));
        }
        None
    }

    /// The tested adaptor's guest loads, or checks; one at a time, as a bus does.
    pub fn load(&mut self, region: Region, offset: u64, len: usize) {
        if self.load.is_none() && self.store.is_none() {
            let tag = self.tag();
            self.load = Some(Waiting { what: tag, since: self.now });
            self.tested.handle_load(self.now, tag, region, offset, len);
            self.settle();
        }
    }

    /// The tested adaptor's guest stores.
    pub fn store(&mut self, offset: u64, data: Vec<u8>) {
        if self.load.is_none() && self.store.is_none() {
            self.store = Some(Waiting { what: (offset, data), since: self.now });
            self.settle();
        }
    }

    /// The tested adaptor's guest looks at a register, or sets one that neither resets the function, nor gives a command, nor
    /// opens a doorbell.
    pub fn register(&mut self, offset: u64, value: u32, write: bool) {
        if write && !(0x38..0x50).contains(&(offset & !3)) && !(0x3000..0x4000).contains(&offset) {
            let _ = self.tested.handle_store(self.now, Region::Registers, offset & !3, &value.to_le_bytes());
            self.settle();
        } else {
            self.load_now(Region::Registers, offset & !3, 4);
        }
    }

    /// Nothing more is at hand from the tested adaptor's guest.
    pub fn idle(&mut self) {
        self.tested.handle_idle(self.now);
        self.settle();
        self.take_messages();
    }

    /// The tested adaptor's guest takes some messages. Only the hostile node's can be there, from the doorbell that is open to it.
    fn take_messages(&mut self) {
        for _ in 0..8 {
            let info = self.load_now(Region::Registers, 0x180, 4);
            let [source, doorbell, size, valid] = info[..] else { panic!("four bytes") };
            if valid >> 7 == 0 {
                return;
            }
            assert_eq!(
                (NodeId(source), doorbell),
                (HOSTILE, OPEN_DOORBELL),
                "isolation: a message of others"
            );
            assert!(matches!(size, 4 | 8));
            let number = self.load_now(Region::Registers, 0x194, 4);
            let popped = self.tested.handle_store(self.now, Region::Registers, 0x190, &number);
            assert!(popped.is_ok());
        }
    }

    /// The honest node stores into what is exported to it, checks, and loads.
    pub fn use_honestly(&mut self, offset: u64) {
        let offset = u64::from(TESTED.0) * WINDOW + offset % (EXPORT_LEN - 8);
        let stored = self.honest.handle_store(self.now, Region::Access, offset, &[HONEST_BYTE; 8]);
        assert!(stored.is_ok(), "the honest node has a free write buffer");
        for at in [offset, offset + 7] {
            let status = self.honest_load(Region::Assurance, at & !3, 4);
            assert_eq!(status[..], [0; 4], "the honest node's store failed");
        }
        assert_eq!(self.honest_load(Region::Access, offset, 8)[..], [HONEST_BYTE; 8]);
    }

    fn honest_load(&mut self, region: Region, offset: u64, len: usize) -> Bytes {
        let tag = LoadTag(0);
        self.honest.handle_load(self.now, tag, region, offset, len);
        let end = self.now.after(DEADLINE);
        loop {
            self.settle();
            if let Some(at) = self.answers.iter().position(|&(answered, _)| answered == tag) {
                return self.answers.swap_remove(at).1;
            }
            let next = self.next_timeout().expect("a load that waits has a timeout");
            assert!(next <= end, "the honest node's load is not answered");
            self.wait(next.since(self.now));
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        [self.tested.poll_timeout(), self.honest.poll_timeout()].into_iter().flatten().min()
    }

    /// Lets time pass, from timer to timer.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        let mut rounds = 0;
        self.settle();
        while let Some(next) = self.next_timeout().filter(|&next| next <= end) {
            rounds = if next > self.now { 0 } else { rounds + 1 };
            assert!(rounds < 8, "timers fire again and again at the same moment");
            self.now = self.now.max(next);
            for adaptor in [&mut self.tested, &mut self.honest] {
                if adaptor.poll_timeout().is_some_and(|at| at <= self.now) {
                    adaptor.handle_timeout(self.now);
                }
            }
            self.settle();
        }
        self.now = self.now.max(end);
        self.check_patience();
    }

    fn check_patience(&self) {
        let since = [self.load.as_ref().map(|load| load.since), self.store.as_ref().map(|store| store.since)];
        for since in since.into_iter().flatten() {
            assert!(self.now.since(since) <= DEADLINE, "bounded: a guest waits longer than the deadline");
        }
    }

    /// Carries out everything that the adaptors say at this moment.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < ROUNDS, "no end of packets at one moment");
            if !self.turn() {
                break;
            }
        }
        assert!(held() < self.at_rest + HELD_LIMIT, "bounded: {} bytes are held", held() - self.at_rest);
        self.check_patience();
    }

    fn turn(&mut self) -> bool {
        let now = self.now;
        let mut progress = false;
        while let Some(operation) = self.tested.poll_memory(now) {
            progress = true;
            judge(&operation);
            let Some(operation) = self.begin(operation) else { continue };
            let result = execute(&mut self.memory, &operation);
            self.tested.handle_memory_done(now, operation.id(), result);
        }
        assert!(self.honest.poll_memory(now).is_none(), "the honest node exports nothing");
        while let Some(packet) = self.tested.poll_packet(now, HONEST, &mut |_| Err(MemoryFault::Unmapped)) {
            progress = true;
            self.honest.handle_packet(now, TESTED, packet);
        }
        while let Some(packet) = self.honest.poll_packet(now, TESTED, &mut |_| Err(MemoryFault::Unmapped)) {
            progress = true;
            self.tested.handle_packet(now, HONEST, packet);
        }
        while self.link && self.reads {
            let Some(packet) = self.tested.poll_packet(now, HOSTILE, &mut |_| Err(MemoryFault::Unmapped))
            else {
                break;
            };
            progress = true;
            assert_discreet(&packet);
            self.hostile.observe(&packet);
        }
        while let Some(completion) = self.tested.poll_completion() {
            progress = true;
            self.complete(completion.tag, completion.data);
        }
        while let Some(completion) = self.honest.poll_completion() {
            progress = true;
            self.answers.push((completion.tag, completion.data));
        }
        while self.tested.poll_interrupt().is_some() || self.honest.poll_event().is_some() {}
        while let Some(event) = self.tested.poll_event() {
            progress = true;
            if let Event::CutLink(node) = event {
                assert_eq!(node, HOSTILE, "the honest node's link is cut");
                if core::mem::replace(&mut self.link, false) {
                    self.tested.handle_link_down(now, HOSTILE);
                }
            }
        }
        if let Some(Waiting { what: (offset, data), .. }) = &self.store
            && self.tested.handle_store(now, Region::Access, *offset, data).is_ok()
        {
            progress = true;
            self.store = None;
        }
        progress
    }
}

/// Holds an operation on the tested node's memory against what was exported to whom.
fn judge(operation: &MemoryOperation) {
    let (segments, right, byte) = match operation {
        MemoryOperation::Read { segments, .. } => (&segments[..], READ, None),
        MemoryOperation::Write { segments, data, .. } => (&segments[..], WRITE, data.first().copied()),
        MemoryOperation::Touch { .. }
        | MemoryOperation::Descriptor { .. }
        | MemoryOperation::Transfer { .. }
        | MemoryOperation::Atomic { .. } => {
            panic!("isolation: {operation:?}, and nobody granted that")
        }
    };
    let may = |export: &Export| {
        let writer = if export.node == HONEST { HONEST_BYTE } else { HOSTILE_BYTE };
        export.rights & right != 0 && byte.is_none_or(|byte| byte == writer)
    };
    for &Segment { address, len } in segments {
        let end = address.checked_add(len as u64).expect("a segment does not wrap");
        let inside = |export: &Export| export.address <= address && end <= export.address + EXPORT_LEN;
        assert!(
            EXPORTS.iter().any(|export| may(export) && inside(export)),
            "isolation: {operation:?} is outside of what was exported"
        );
    }
}

/// Whether all that it reaches was exported to the hostile node.
fn is_of_hostile(operation: &MemoryOperation) -> bool {
    let is_hostile = |segment: &Segment| {
        EXPORTS.iter().any(|export| {
            export.node == HOSTILE && (export.address..export.address + EXPORT_LEN).contains(&segment.address)
        })
    };
    operation.segments().iter().all(is_hostile)
}

/// Nothing but what the hostile node may read, or has written itself, is sent to it.
fn assert_discreet(packet: &Packet) {
    if let Body::Done { count, data, .. } = &packet.body {
        // A doorbell says how much room there is.
        let room = data.first_chunk().map(|&room| u32::from_le_bytes(room));
        if matches!(data.len(), 4 | 8) && room.is_some_and(|room| room <= messages::LIMIT) {
            return;
        }
        // Among several answers a doorbell's may be anywhere; two of these bytes together are none.
        let is_foreign = |pair: &[u8]| pair == [HONEST_BYTE; 2] || pair == [PRIVATE_BYTE; 2];
        assert!(
            data.iter().all(|&byte| byte == HOSTILE_BYTE || byte == PUBLIC_BYTE)
                || *count > 1 && !data.windows(2).any(is_foreign),
            "isolation: bytes of others are sent to the hostile node"
        );
    }
}

fn execute(memory: &mut [u8], operation: &MemoryOperation) -> Result<Bytes, MemoryFault> {
    let range = |&Segment { address, len }: &Segment| {
        let begin = usize::try_from(address).map_err(|_| MemoryFault::Unmapped)?;
        begin.checked_add(len).filter(|&end| end <= MEMORY).map(|end| begin..end).ok_or(MemoryFault::Unmapped)
    };
    match operation {
        MemoryOperation::Read { .. } | MemoryOperation::Descriptor { .. } => {
            let mut data = Vec::new();
            for segment in operation.segments() {
                data.extend_from_slice(&memory[range(segment)?]);
            }
            Ok(data.into())
        }
        MemoryOperation::Touch { segments, .. } => {
            segments.iter().try_for_each(|segment| range(segment).map(drop)).map(|()| Bytes::new())
        }
        MemoryOperation::Write { segments, data, .. } => {
            let ranges = segments.iter().map(range).collect::<Result<Vec<_>, _>>()?;
            let mut rest = &data[..];
            for range in ranges {
                let (part, after) = rest.split_at(range.len());
                memory[range].copy_from_slice(part);
                rest = after;
            }
            assert!(rest.is_empty(), "segments add up to the data");
            Ok(Bytes::new())
        }
        MemoryOperation::Transfer { .. } | MemoryOperation::Atomic { .. } => Err(MemoryFault::Refused),
    }
}
