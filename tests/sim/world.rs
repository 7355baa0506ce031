//! Nodes, the processes that they are in, and their memories in virtual time; the network between them is in [`crate::network`].
//!
//! Everything random comes from one seed, so that a run can be repeated.

use std::collections::BTreeMap;
use std::time::Duration;

use assured_rdma::adaptor::address::{Geometry, Location, NodeId, NodeSet, Place, Space};
use assured_rdma::adaptor::buses::Buses;
use assured_rdma::adaptor::inventory::Name;
use assured_rdma::adaptor::master::{HostedWindow, Rights};
use assured_rdma::adaptor::memory::{
    AtomicAction, DeviceId, Home, Lent, MemoryFault, MemoryOperation, OperationId, Segment,
};
use assured_rdma::adaptor::mesh::packet::Incarnation;
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};
use assured_rdma::adaptor::mesh::{self, Timing};
use assured_rdma::adaptor::random::Random;
use assured_rdma::adaptor::transaction::{Finished, Payload, Request, RequestKind, TransactionId};
use assured_rdma::adaptor::{Adaptor, Busy, Event, Instant, LoadTag, Region, Settings, backplane, target};
use assured_rdma::router::Paths;
use bytes::Bytes;

use crate::clock::Clock;
use crate::network::{Faults, Network, Station};

pub const DEADLINE: Duration = Duration::from_millis(500);
pub const LEASE: Duration = Duration::from_millis(150);
pub const KEEPALIVE: Duration = Duration::from_secs(2);
pub const TIMING: Timing = Timing { deadline: DEADLINE, lease: LEASE, keepalive: KEEPALIVE };
/// The longest time by the world's clock that an access may take: a node's own clock may be slow.
pub const PATIENCE: Duration = Duration::from_micros(500_500);
pub const WINDOW: u64 = 4 << 20;
/// Guest memory: commands in the first pages, the exported window behind.
/// What is behind that is for the DMA engine.
pub const MEMORY: usize = 0x60_000;
pub const EXPORTED: u64 = 0x10_000;
pub const EXPORT_LEN: u64 = 0x10_000;

/// A write that a node executed in its window's memory.
#[derive(Clone, Debug)]
pub struct Execution {
    pub node: NodeId,
    pub offset: u64,
    pub data: Bytes,
}

/// The number that each driver gives its session.
pub const SESSION: u32 = 0x5e55;

pub struct Node {
    /// The place of its process.
    pub host: NodeId,
    pub adaptor: Adaptor,
    memory: Vec<u8>,
    /// What is in each device that the node hosts.
    devices: Vec<Vec<u8>>,
    pub paused_until: Instant,
    next_tag: u64,
    cookie: u32,
    /// Page faults of operations that are served elsewhere, and when they will have been.
    faults: Vec<(Instant, OperationId)>,
    /// The same of bytes to send, by where they go.
    source_faults: Vec<(Instant, NodeId)>,
    /// An operation in the midst of which its process stands still, since a page of it is not there.
    stuck: Option<MemoryOperation>,
}

/// How slow memory is.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// How many of 1000 operations have a page fault.
    pub faults: u64,
    /// The longest time, in microseconds, that it takes to serve one elsewhere.
    pub longest: u64,
    /// How many of 1000 page faults are not seen before, so that the process stands still, for half of that time at most.
    pub unseen: u64,
}

impl Slow {
    pub const NONE: Self = Self { faults: 0, longest: 0, unseen: 0 };
}

impl Node {
    /// What a guest's kernel and driver do after each reset: memory space, bus master, and a session.
    pub fn begin_session(&mut self, now: Instant) {
        self.adaptor.handle_store(now, Region::Config, 4, &[6, 0]).unwrap();
        self.adaptor.handle_store(now, Region::Registers, 0x1d0, &SESSION.to_le_bytes()).unwrap();
    }
}

/// An adaptor process. What it is linked with reaches all of its buses.
pub struct Process {
    pub buses: Buses,
    /// Where its nodes are, in the order of bus numbers.
    pub places: Vec<NodeId>,
    pub paths: Paths,
    pub life: Incarnation,
}

pub struct World {
    pub now: Instant,
    pub faults: Faults,
    pub slow: Slow,
    /// A node that waits for something, so that its process is not to stand still.
    pub spared: Option<NodeId>,
    /// Page faults so far.
    pub page_faults: u64,
    pub random: Random,
    pub nodes: BTreeMap<NodeId, Node>,
    /// By the place of their first node; one that claims to be somebody else has another place than its id.
    pub processes: BTreeMap<NodeId, Process>,
    pub network: Network,
    /// By the place of a process's first node; those without one have the world's time.
    clocks: BTreeMap<NodeId, Clock>,
    /// Processes that will notice that their clocks stood still or jumped, and when.
    awakening: BTreeMap<NodeId, Instant>,
    /// The nodes that each is configured to know; none where routers join them.
    peers: NodeSet,
    timing: fn(NodeId) -> Timing,
    /// Where the numbers of all flows begin.
    window: mesh::limits::Window,
    pub packets: u64,
    /// Steps in a row that took no time.
    steps_now: u32,
    /// How much longer than other packets those take that write.
    pub write_delay: Duration,
    pub executions: Vec<Execution>,
    /// Bulk transactions that have ended, and whose they were.
    pub ends: Vec<(NodeId, Finished)>,
    pub events: Vec<(NodeId, Event)>,
    answers: BTreeMap<(NodeId, LoadTag), Bytes>,
    pub interrupts: Vec<(NodeId, u16)>,
}

impl World {
    /// Nodes 1 to `count`, linked with each other, each with a window at offset 0 for all others, once their links are up.
    pub fn new(seed: u64, count: u8) -> Self {
        Self::with_timing(seed, count, |_| TIMING)
    }

    /// As [`World::new`], each node with times of its own.
    pub fn with_timing(seed: u64, count: u8, timing: fn(NodeId) -> Timing) -> Self {
        let ids: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let pairs = ids.iter().flat_map(|&a| ids.iter().filter(move |&&b| a < b).map(move |&b| (a, b)));
        let pairs: Vec<(Station, Station)> = pairs.map(|(a, b)| (a.into(), b.into())).collect();
        Self::with_routers(seed, count, 0, &pairs, timing)
    }

    /// Nodes joined by `routers`, and these links only.
    pub fn with_routers(
        seed: u64,
        count: u8,
        routers: u8,
        pairs: &[(Station, Station)],
        timing: fn(NodeId) -> Timing,
    ) -> Self {
        let processes: Vec<_> = (1..=count).map(|id| Buses::single(NodeId(id))).collect();
        Self::with_processes(seed, &processes, routers, pairs, timing)
    }

    /// Processes with these buses, in which node ids are places; a process has the place of its first.
    pub fn with_processes(
        seed: u64,
        processes: &[Buses],
        routers: u8,
        pairs: &[(Station, Station)],
        timing: fn(NodeId) -> Timing,
    ) -> Self {
        let ids: Vec<NodeId> = processes.iter().flat_map(|buses| buses.nodes()).collect();
        let mut world = Self {
            timing,
            window: numbers(seed),
            now: Instant::from_nanos(1_000_000),
            faults: Faults::NONE,
            slow: Slow::NONE,
            spared: None,
            page_faults: 0,
            random: Random::new(seed),
            nodes: BTreeMap::new(),
            processes: BTreeMap::new(),
            network: Network::default(),
            clocks: BTreeMap::new(),
            awakening: BTreeMap::new(),
            peers: if routers == 0 { ids.iter().copied().collect() } else { NodeSet::EMPTY },
            packets: 0,
            steps_now: 0,
            write_delay: Duration::ZERO,
            executions: Vec::new(),
            ends: Vec::new(),
            events: Vec::new(),
            answers: BTreeMap::new(),
            interrupts: Vec::new(),
        };
        for &buses in processes {
            world.start_process(buses.span().first(), buses);
        }
        for router in 0..routers {
            world.start_router(router);
        }
        for &(a, b) in pairs {
            world.link(a, b);
        }
        world.run_for(Duration::from_millis(5));
        for id in ids {
            world.export(id, 0b11, u64::MAX);
        }
        world
    }

    /// Starts what says it is node `id` at a place.
    pub fn start(&mut self, place: NodeId, id: NodeId) {
        self.start_process(place, Buses::single(id));
    }

    /// Starts an adaptor with these buses: bus 0 at `host`, the others at the places behind it.
    pub fn start_process(&mut self, host: NodeId, buses: Buses) {
        let places: Vec<_> = buses.nodes().zip(host.0..).map(|(_, place)| NodeId(place)).collect();
        for (id, &place) in buses.nodes().zip(&places) {
            self.start_node(host, place, id, buses.span().bits());
        }
        let now = self.clock_of(host).at(self.now);
        let others = |place: &NodeId| places.contains(place);
        let adaptors = self.nodes.iter_mut().filter(|(place, _)| others(place));
        backplane::join(now, &mut adaptors.map(|(_, node)| &mut node.adaptor).collect::<Vec<_>>());
        let life = Incarnation(self.random.next_nonzero());
        self.processes.insert(host, Process { buses, places, paths: Paths::new(buses), life });
    }

    fn start_node(&mut self, host: NodeId, place: NodeId, id: NodeId, bus_bits: u32) {
        let settings = Settings {
            node: id,
            geometry: Geometry::new(16, WINDOW).unwrap().with_bus_bits(bus_bits),
            peers: self.peers,
            timing: (self.timing)(id),
            gather: Duration::from_micros(50),
            seed: self.random.next(),
        };
        let mut node = Node {
            host,
            adaptor: Adaptor::with_limits(settings, target::Limits::default(), self.window),
            memory: vec![0; MEMORY],
            devices: Vec::new(),
            paused_until: Instant::ZERO,
            next_tag: self.nodes.get(&place).map_or(1, |n| n.next_tag),
            cookie: 0,
            faults: Vec::new(),
            source_faults: Vec::new(),
            stuck: None,
        };
        node.begin_session(self.clock_of(host).at(self.now));
        self.nodes.insert(place, node);
    }

    /// The nodes in the process of a node.
    pub fn process_of(&self, place: NodeId) -> &Process {
        &self.processes[&self.nodes[&place].host]
    }

    /// The process of a node is killed and started again, with all of its links; its memory is a new guest's.
    pub fn restart(&mut self, id: NodeId) {
        let host = self.nodes[&id].host;
        let others = self.neighbours(host);
        let ends = self.ends.len();
        for &other in &others {
            self.cut(host, other);
        }
        // Who is killed says nothing more.
        self.ends.truncate(ends);
        self.start_process(host, self.processes[&host].buses);
        for &other in &others {
            self.link(host, other);
        }
        self.take_outputs();
    }

    /// The guest of a node is reset; its process lives on.
    pub fn reset(&mut self, id: NodeId) {
        let now = self.local(id);
        let node = self.nodes.get_mut(&id).unwrap();
        node.adaptor.handle_reset(now);
        node.begin_session(now);
        self.take_outputs();
    }

    /// What the driver of a node does after it has reset the function.
    pub fn begin_session(&mut self, id: NodeId) {
        let now = self.local(id);
        self.nodes.get_mut(&id).unwrap().begin_session(now);
    }

    /// A node or router stands still, as under SIGSTOP: nothing reaches it and it does nothing. A
    /// second pause does not end the first one: what waits for its end would be overtaken.
    pub fn pause(&mut self, station: impl Into<Station>, time: Duration) {
        let until = self.now.after(time);
        match station.into() {
            Station::Node(place) => {
                for place in self.process_of(place).places.clone() {
                    let paused = self.paused_until(place.into());
                    *paused = until.max(*paused);
                }
            }
            router => {
                let paused = self.paused_until(router);
                *paused = until.max(*paused);
            }
        }
    }

    /// The clock of the process of a node.
    pub fn clock(&mut self, place: NodeId) -> &mut Clock {
        let host = self.nodes[&place].host;
        self.clocks.entry(host).or_insert(Clock::TRUE)
    }

    /// What the clock of a node's process shows.
    pub fn local(&self, place: NodeId) -> Instant {
        self.clock_of(self.nodes[&place].host).at(self.now)
    }

    fn clock_of(&self, host: NodeId) -> Clock {
        self.clocks.get(&host).copied().unwrap_or(Clock::TRUE)
    }

    /// A node's process stands still, and its clock with it, as in a virtual machine that is stopped. It notices.
    pub fn freeze(&mut self, place: NodeId, time: Duration) {
        self.freeze_unnoticed(place, time);
        let (host, at) = (self.nodes[&place].host, self.now.after(time));
        self.awakening.insert(host, at);
    }

    /// As [`World::freeze`], but nothing tells the process of it.
    pub fn freeze_unnoticed(&mut self, place: NodeId, time: Duration) {
        let now = self.now;
        self.clock(place).stops(now, time);
        self.pause(place, time);
    }

    /// The clock of a node's process jumps ahead, which it notices.
    pub fn jump(&mut self, place: NodeId, by: Duration) {
        let (now, host) = (self.now, self.nodes[&place].host);
        self.clock(place).jumps(now, by);
        self.awakening.insert(host, now);
        self.awake();
    }

    /// Tells processes that their clocks stood still.
    fn awake(&mut self) {
        while let Some((&host, _)) = self.awakening.iter().find(|(_, at)| **at <= self.now) {
            self.awakening.remove(&host);
            for place in self.processes[&host].places.clone() {
                let now = self.local(place);
                self.adaptor(place).handle_clock_jump(now);
            }
        }
    }

    pub fn adaptor(&mut self, id: NodeId) -> &mut Adaptor {
        &mut self.nodes.get_mut(&id).unwrap().adaptor
    }

    pub fn memory(&mut self, id: NodeId) -> &mut [u8] {
        &mut self.nodes.get_mut(&id).unwrap().memory
    }

    /// A node hosts one more device, in the first gap of the space, with these rights for all nodes.
    pub fn host(&mut self, at: NodeId, space: Space, len: u64, rights: Rights) -> Location {
        let node = self.nodes.get_mut(&at).unwrap();
        let device = DeviceId(node.devices.len() as u16);
        node.devices.push(vec![0; len as usize]);
        let (nodes, name) = (NodeSet::ALL, Name::new("device").unwrap());
        let window = HostedWindow { device, space, offset: None, len, rights, nodes, name };
        node.adaptor.host(&window).unwrap()
    }

    /// What is in a node's first hosted device.
    pub fn device(&mut self, at: NodeId) -> &mut [u8] {
        &mut self.nodes.get_mut(&at).unwrap().devices[0]
    }

    pub fn is_up(&mut self, at: NodeId, peer: NodeId) -> bool {
        self.register(at, 0x1000 + 16 * u64::from(peer.0)) & 2 != 0
    }

    /// Whether `at` can reach `peer`, and knows it as what it is now.
    pub fn knows(&mut self, at: NodeId, peer: NodeId) -> bool {
        let seen = self.register(at, 0x1008 + 16 * u64::from(peer.0));
        self.is_up(at, peer) && seen == self.register(peer, 0x18)
    }

    /// Offset in the access space of an offset in a node's window.
    pub fn space(node: NodeId, offset: u64) -> u64 {
        u64::from(node.0) * WINDOW + offset
    }

    pub fn store(&mut self, at: NodeId, node: NodeId, offset: u64, data: &[u8]) -> Result<(), Busy> {
        let now = self.local(at);
        let result = self.adaptor(at).handle_store(now, Region::Access, Self::space(node, offset), data);
        self.take_outputs();
        result
    }

    /// Hands in a bulk transaction. How it ends comes to [`Self::ends`].
    pub fn bulk(
        &mut self,
        at: NodeId,
        node: NodeId,
        offset: u64,
        id: TransactionId,
        kind: RequestKind<Payload>,
    ) {
        let now = self.local(at);
        let request = Request { id, place: Place { node, at: Location::memory(offset) }, kind, posted: now };
        self.adaptor(at).handle_bulk(now, request);
        self.take_outputs();
    }

    pub fn idle(&mut self, at: NodeId) {
        let now = self.local(at);
        self.adaptor(at).handle_idle(now);
        self.take_outputs();
    }

    /// Begins a load; its answer comes from [`Self::answer`].
    pub fn begin_load(&mut self, at: NodeId, region: Region, offset: u64, len: usize) -> LoadTag {
        let now = self.local(at);
        let node = self.nodes.get_mut(&at).unwrap();
        let tag = LoadTag(node.next_tag);
        node.next_tag += 1;
        node.adaptor.handle_load(now, tag, region, offset, len);
        self.take_outputs();
        tag
    }

    pub fn is_answered(&self, at: NodeId, tag: LoadTag) -> bool {
        self.answers.contains_key(&(at, tag))
    }

    pub fn answer(&mut self, at: NodeId, tag: LoadTag) -> Option<Bytes> {
        self.answers.remove(&(at, tag))
    }

    /// Loads, and lets time pass until the answer is there. Panics where that takes longer than the deadline allows.
    pub fn load(&mut self, at: NodeId, region: Region, offset: u64, len: usize) -> Bytes {
        let tag = self.begin_load(at, region, offset, len);
        let start = self.now;
        loop {
            if let Some(data) = self.answer(at, tag) {
                return data;
            }
            assert!(self.now.since(start) <= PATIENCE, "bounded: a load takes longer than the deadline");
            self.step();
        }
    }

    pub fn read(&mut self, at: NodeId, node: NodeId, offset: u64, len: usize) -> Bytes {
        self.load(at, Region::Access, Self::space(node, offset), len)
    }

    /// The status word for a block.
    pub fn check(&mut self, at: NodeId, node: NodeId, offset: u64) -> u32 {
        let data = self.load(at, Region::Assurance, Self::space(node, offset), 4);
        u32::from_le_bytes(data[..].try_into().unwrap())
    }

    pub fn register(&mut self, at: NodeId, offset: u64) -> u64 {
        let data = self.load(at, Region::Registers, offset, 8);
        u64::from_le_bytes(data[..].try_into().unwrap())
    }

    pub fn set_register(&mut self, at: NodeId, offset: u64, value: u32) {
        let now = self.local(at);
        self.adaptor(at).handle_store(now, Region::Registers, offset, &value.to_le_bytes()).unwrap();
        self.take_outputs();
    }

    /// As [`Self::set_register`], of 64 bits.
    pub fn set_wide_register(&mut self, at: NodeId, offset: u64, value: u64) {
        let now = self.local(at);
        self.adaptor(at).handle_store(now, Region::Registers, offset, &value.to_le_bytes()).unwrap();
        self.take_outputs();
    }

    /// Exports the window at offset 0 by the command mailbox, as a driver does.
    pub fn export(&mut self, at: NodeId, rights: u32, nodes: u64) {
        let mut descriptor = [0u8; 128];
        let mut put = |at: usize, bytes: &[u8]| descriptor[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x10, &0u64.to_le_bytes());
        put(0x18, &EXPORT_LEN.to_le_bytes());
        put(0x20, &rights.to_le_bytes());
        put(0x24, &1u32.to_le_bytes());
        put(0x28, &0x1000u64.to_le_bytes());
        put(0x40, &nodes.to_le_bytes());
        let memory = self.memory(at);
        memory[0x1000..0x2000].fill(0);
        memory[0x1000..0x1008].copy_from_slice(&EXPORTED.to_le_bytes());
        memory[0x1008..0x1010].copy_from_slice(&EXPORT_LEN.to_le_bytes());
        assert_eq!(self.command(at, 1, descriptor), 0, "the window is exported");
    }

    /// Closes the window at offset 0.
    pub fn unexport(&mut self, at: NodeId) {
        assert_eq!(self.command(at, 2, [0; 128]), 0, "the window is closed");
    }

    /// Gives a command and returns COMMAND_STATUS.
    pub fn command(&mut self, at: NodeId, opcode: u32, mut descriptor: [u8; 128]) -> u64 {
        let node = self.nodes.get_mut(&at).unwrap();
        node.cookie += 1;
        let cookie = node.cookie;
        descriptor[..4].copy_from_slice(b"ARDC");
        descriptor[4..8].copy_from_slice(&cookie.to_le_bytes());
        descriptor[8..12].copy_from_slice(&opcode.to_le_bytes());
        node.memory[..128].copy_from_slice(&descriptor);
        self.set_register(at, 0x40, 0);
        self.set_register(at, 0x44, 0);
        let slow = std::mem::replace(&mut self.slow, Slow::NONE);
        self.set_register(at, 0x48, cookie);
        self.set_register(at, 0x4c, opcode);
        // Its process may stand still.
        let until = self.nodes[&at].paused_until;
        if until > self.now {
            self.run_for(until.since(self.now));
        }
        let status = self.register(at, 0x50) & 0xffff_ffff;
        self.slow = slow;
        status
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.next_moment() <= end {
            self.step();
        }
        self.now = self.now.max(end);
        self.take_outputs();
    }

    /// Lets time pass until `done`, at most `limit`.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now.after(limit);
        loop {
            if done(self) {
                return true;
            }
            if self.next_moment() > end {
                return false;
            }
            self.step();
        }
    }

    fn next_moment(&self) -> Instant {
        let timers = self.nodes.values().filter_map(|node| {
            let faults = node.faults.iter().map(|(at, _)| *at);
            let faults = faults.chain(node.source_faults.iter().map(|(at, _)| *at));
            let stuck = node.stuck.as_ref().map(|_| node.paused_until);
            let due = node.adaptor.poll_timeout().map(|at| self.clock_of(node.host).when(at));
            faults.chain(due).chain(stuck).min().map(|at| at.max(node.paused_until))
        });
        let awakening = self.awakening.values().copied();
        timers
            .chain(awakening)
            .chain(self.network.next_moment())
            .min()
            .unwrap_or(Instant::from_nanos(u64::MAX))
            .max(self.now)
    }

    /// Goes to the next moment at which something happens, and lets it happen.
    pub fn step(&mut self) {
        let next = self.next_moment();
        self.steps_now = if next > self.now { 0 } else { self.steps_now + 1 };
        assert!(self.steps_now < 10_000, "time stands still: something is always due and never done");
        self.now = next;
        self.awake();
        self.deliver_parcels();
        let today = self.now;
        for node in self.nodes.values_mut().filter(|node| node.paused_until <= today) {
            let now = self.clocks.get(&node.host).map_or(today, |clock| clock.at(today));
            if node.adaptor.poll_timeout().is_some_and(|at| at <= now) {
                node.adaptor.handle_timeout(now);
            }
            for (_, id) in node.faults.extract_if(.., |(at, _)| *at <= today) {
                node.adaptor.handle_pages(now, id, Ok(()));
            }
            for (_, to) in node.source_faults.extract_if(.., |(at, _)| *at <= today) {
                node.adaptor.handle_source_pages(to, Ok(()));
            }
        }
        self.network.handle_timeout(today);
        self.take_outputs();
    }

    pub fn take_outputs(&mut self) {
        let mut silent = Vec::new();
        for host in self.processes.keys().copied().collect::<Vec<_>>() {
            if self.nodes[&host].paused_until <= self.now {
                self.take_outputs_of(host, &mut silent);
            }
        }
        for (place, peer) in silent {
            self.handle_silence(place, peer);
        }
        self.take_router_outputs();
    }

    /// As the daemon does: memory, the other buses, links, and what is for the guests and the operator.
    fn take_outputs_of(&mut self, host: NodeId, silent: &mut Vec<(NodeId, NodeId)>) {
        let now = self.clock_of(host).at(self.now);
        let places = self.processes[&host].places.clone();
        loop {
            places.iter().for_each(|&place| self.execute_memory_operations(place));
            let nodes = self.nodes.iter_mut().filter(|(place, _)| places.contains(place));
            let mut adaptors: Vec<_> = nodes.map(|(_, node)| &mut node.adaptor).collect();
            if !backplane::exchange(now, &mut adaptors) {
                break;
            }
        }
        for (link, other) in self.links_of(host) {
            while !self.network.is_full(self.now, host.into(), other) {
                let (nodes, process) = (&mut self.nodes, self.processes.get_mut(&host).unwrap());
                let (buses, slow, random, today) = (process.buses, self.slow, &mut self.random, self.now);
                let packet = process.paths.serve(link, |from, to| {
                    let place = places[buses.number(from).unwrap()];
                    let Node { adaptor, memory, source_faults, .. } = nodes.get_mut(&place).unwrap();
                    adaptor.poll_packet(now, to, &mut |source| {
                        if random.next() % 1000 < slow.faults {
                            let time = Duration::from_micros(random.next() % slow.longest);
                            source_faults.push((today.after(time), to));
                            return Err(MemoryFault::Absent);
                        }
                        collect(memory, &source.segments)
                    })
                });
                let Some(packet) = packet else { break };
                let mut wire = Vec::new();
                packet.emit(&mut wire);
                self.packets += 1;
                self.send(link, host.into(), other, wire);
            }
        }
        for place in places {
            let node = self.nodes.get_mut(&place).unwrap();
            while let Some(completion) = node.adaptor.poll_completion() {
                self.answers.insert((place, completion.tag), completion.data);
            }
            while let Some(end) = node.adaptor.poll_bulk() {
                self.ends.push((place, end));
            }
            while let Some(vector) = node.adaptor.poll_interrupt() {
                self.interrupts.push((place, vector));
            }
            while let Some(event) = node.adaptor.poll_event() {
                self.events.push((place, event));
                if let Event::CutLink(peer) = event {
                    silent.push((place, peer));
                }
            }
        }
    }

    /// The node looks at the rings of its DMA engine that need no doorbell.
    pub fn probe(&mut self, id: NodeId) {
        self.execute_operations(id, Adaptor::poll_probe);
    }

    /// What another bus of the process of `at` has lent.
    fn borrow(&self, at: NodeId, lent: &Lent) -> Result<Bytes, MemoryFault> {
        let process = self.process_of(at);
        let lender = &self.nodes[&process.places[process.buses.number(lent.lender).unwrap()]];
        let is_lent = lender.adaptor.lends(lent);
        let data = if is_lent { collect(&lender.memory, &lent.source.segments).ok() } else { None };
        data.ok_or(MemoryFault::Lender)
    }

    fn execute_memory_operations(&mut self, id: NodeId) {
        self.execute_operations(id, Adaptor::poll_memory);
    }

    fn execute_operations(&mut self, id: NodeId, poll: fn(&mut Adaptor, Instant) -> Option<MemoryOperation>) {
        let now = self.local(id);
        if let Some(operation) = self.nodes.get_mut(&id).unwrap().stuck.take() {
            let adaptor = self.adaptor(id);
            let name = operation.id();
            // As the daemon does after everything that takes time.
            if adaptor.may_begin(now, name) {
                self.perform(id, operation);
            } else {
                adaptor.handle_page_fault(now, operation);
                adaptor.handle_pages(now, name, Ok(()));
            }
        }
        while self.nodes[&id].paused_until <= self.now
            && let Some(operation) = poll(&mut self.nodes.get_mut(&id).unwrap().adaptor, now)
        {
            if self.random.next() % 1000 < self.slow.faults {
                self.fault(id, operation);
            } else {
                self.perform(id, operation);
            }
        }
    }

    /// A page of the operation is not there.
    fn fault(&mut self, id: NodeId, operation: MemoryOperation) {
        let now = self.local(id);
        self.page_faults += 1;
        let is_unseen = self.random.next() % 1000 < self.slow.unseen;
        let time = Duration::from_micros(self.random.next() % self.slow.longest);
        let served_at = self.now.after(time);
        let process = &self.process_of(id).places;
        if is_unseen && self.spared.is_none_or(|spared| !process.contains(&spared)) {
            self.nodes.get_mut(&id).unwrap().stuck = Some(operation);
            self.pause(id, time / 2);
        } else {
            let node = self.nodes.get_mut(&id).unwrap();
            node.faults.push((served_at, operation.id()));
            node.adaptor.handle_page_fault(now, operation);
        }
    }

    fn perform(&mut self, id: NodeId, operation: MemoryOperation) {
        let now = self.local(id);
        let operation = match operation {
            MemoryOperation::Transfer { id: operation, home, segments, from } => {
                match self.borrow(id, &from) {
                    Ok(data) => MemoryOperation::Write { id: operation, home, segments, data },
                    Err(fault) => {
                        return self.adaptor(id).handle_memory_done(now, operation, Err(fault));
                    }
                }
            }
            operation => operation,
        };
        let node = self.nodes.get_mut(&id).unwrap();
        let home = operation.home();
        let memory = match home {
            Home::Hosted(device) => &mut node.devices[usize::from(device.0)],
            Home::Guest | Home::Bus => &mut node.memory,
        };
        let (id_of, result) = match operation {
            MemoryOperation::Read { id, segments, .. } => (id, collect(memory, &segments)),
            MemoryOperation::Descriptor { id, segment, .. } => (id, collect(memory, &[segment])),
            MemoryOperation::Touch { id, segments, .. } => {
                (id, collect(memory, &segments).map(|_| Bytes::new()))
            }
            MemoryOperation::Write { id: operation, segments, data, .. } => {
                for segment in segments.iter().filter(|_| home == Home::Guest) {
                    let offset = segment.address.checked_sub(EXPORTED);
                    if let Some(offset) = offset.filter(|&offset| offset < EXPORT_LEN) {
                        self.executions.push(Execution { node: id, offset, data: data.clone() });
                    }
                }
                (operation, spread(memory, &segments, &data))
            }
            MemoryOperation::Transfer { .. } => unreachable!("it is a write by now"),
            MemoryOperation::Atomic { id, segment, action, .. } => (id, change(memory, segment, action)),
        };
        node.adaptor.handle_memory_done(now, id_of, result);
    }
}

/// In every other world the numbers of all flows wrap soon.
fn numbers(seed: u64) -> mesh::limits::Window {
    let (first, epoch) = if seed & 1 == 1 { (u32::MAX - 3, u32::MAX - 1) } else { (0, 0) };
    mesh::limits::Window { first: Sequence(first), epoch: Epoch(epoch), ..mesh::limits::Window::default() }
}

fn collect(memory: &[u8], segments: &[Segment]) -> Result<Bytes, MemoryFault> {
    let mut data = Vec::new();
    for segment in segments {
        let start = usize::try_from(segment.address).map_err(|_| MemoryFault::Unmapped)?;
        let bytes = memory.get(start..start + segment.len).ok_or(MemoryFault::Unmapped)?;
        data.extend_from_slice(bytes);
    }
    Ok(data.into())
}

fn change(memory: &mut [u8], segment: Segment, action: AtomicAction) -> Result<Bytes, MemoryFault> {
    let former = collect(memory, &[segment])?;
    let new = action.apply(u64::from_le_bytes(former[..].try_into().unwrap()));
    spread(memory, &[segment], &new.to_le_bytes())?;
    Ok(former)
}

fn spread(memory: &mut [u8], segments: &[Segment], data: &[u8]) -> Result<Bytes, MemoryFault> {
    let mut rest = data;
    for segment in segments {
        let start = usize::try_from(segment.address).map_err(|_| MemoryFault::Unmapped)?;
        let (part, behind) = rest.split_at(segment.len);
        let target = memory.get_mut(start..start + segment.len).ok_or(MemoryFault::Unmapped)?;
        target.copy_from_slice(part);
        rest = behind;
    }
    Ok(Bytes::new())
}
