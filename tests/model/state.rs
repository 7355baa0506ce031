//! The states of the model, and what can happen in them.

use std::fmt;
use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::mesh::packet::Packet;
use bytes::Bytes;

use crate::bounds::{Bounds, Budget};
use crate::ledger::Ledger;
use crate::node::{A, B, Link, Node, Outputs, Shared};

/// A packet on its way.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flight {
    to: usize,
    wire: Bytes,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = Packet::parse(self.wire.clone()).expect("an intact packet");
        write!(f, "to {}: {:?}", ["A", "B"][self.to], packet.body)
    }
}

/// The way from one node to the other. A packet may take any time, also for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Network {
    /// What is under way to each node, in the order in which it was sent.
    pub lines: [Vec<Flight>; 2],
    /// What some router keeps, sorted, because it leaves in any order.
    kept: Vec<Flight>,
}

impl Network {
    fn keep(&mut self, flight: Flight) {
        let at = self.kept.partition_point(|other| *other < flight);
        self.kept.insert(at, flight);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The bus of A writes to a block.
    Store(usize),
    /// The bus of A reads from a block.
    Load(usize),
    /// The bus of A checks a block.
    Check(usize),
    /// The next packet to a node arrives.
    Deliver(usize),
    /// The next packet to a node is lost.
    Lose(usize),
    /// The next packet to a node arrives with a bit flipped.
    Corrupt(usize),
    /// The next packet to a node is kept back: those behind it pass.
    Keep(usize),
    /// A copy of the next packet to a node is kept.
    Copy(usize),
    /// A kept packet arrives.
    Release(usize),
    /// B executes one request, or all that it may.
    Execute {
        all: bool,
    },
    /// B learns that its memory operation is done; without [`Bounds::slow_memory`] that happens with the execution.
    Finish,
    /// Time goes on to the next moment at which a node wants to be woken.
    Wait,
    /// Time goes on a little, and nobody is woken.
    Step,
    /// A node is woken.
    Wake(usize),
    /// A node's link changes.
    Link(usize, Link),
    Crash(usize),
    Reset(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Instant,
    pub nodes: [Shared; 2],
    pub network: Network,
    pub ledger: Ledger,
    pub left: Budget,
    capacity: usize,
}

impl State {
    /// Two nodes that know each other, with nothing under way.
    pub fn new(bounds: &Bounds) -> Self {
        let now = Instant::ZERO;
        let nodes = [A, B].map(|index| Shared::new(Node::new(index, bounds, now)));
        let ledger = Ledger::default();
        let mut state = Self {
            now,
            nodes,
            network: Network::default(),
            ledger,
            left: bounds.budget,
            capacity: bounds.capacity,
        };
        for index in [A, B] {
            state.act(index, |node, now| node.link_up(now));
        }
        if !bounds.introduction {
            state.deliver_all();
        }
        state
    }

    /// Something happens at a node; then what it has to say is taken out, as far as the network takes it.
    fn act<R>(&mut self, index: usize, act: impl FnOnce(&mut Node, Instant) -> R) -> R {
        let now = self.now;
        let room = self.capacity.saturating_sub(self.network.lines[1 - index].len());
        let ledger = &mut self.ledger;
        let (result, outputs) = self.nodes[index].change(|node| {
            let result = act(node, now);
            let outputs = node.take_outputs(now, room);
            if let Some(answer) = &outputs.answer {
                ledger.answered(answer, || node.errors(now));
            }
            (result, outputs)
        });
        self.spread(index, outputs);
        result
    }

    /// What a node has to say goes its way.
    fn spread(&mut self, index: usize, outputs: Outputs) {
        for wire in outputs.packets {
            self.network.lines[1 - index].push(Flight { to: 1 - index, wire });
        }
        if outputs.cut {
            for index in [A, B] {
                self.act(index, |node, now| node.link_down(now));
            }
            for index in [A, B] {
                self.act(index, |node, now| node.link_up(now));
            }
        }
    }

    /// Takes out the next packet to a node; the sender is asked for another.
    fn take(&mut self, to: usize) -> Flight {
        let flight = self.network.lines[to].remove(0);
        self.act(1 - to, |_, _| ());
        flight
    }

    fn deliver(&mut self, to: usize) {
        let flight = self.take(to);
        self.receive(flight);
    }

    /// Everything under way arrives and is executed.
    fn deliver_all(&mut self) {
        self.act(B, |node, now| node.finish(now));
        while let Some(to) = [A, B].into_iter().find(|&to| !self.network.lines[to].is_empty()) {
            self.deliver(to);
            self.execute(true, false);
        }
    }

    fn receive(&mut self, flight: Flight) {
        self.act(flight.to, |node, now| node.receive(now, &flight.wire));
    }

    /// Whether something could be done now: when time passes, it is late.
    fn is_busy(&self) -> bool {
        let arrives = |to: usize| !self.network.lines[to].is_empty() && self.nodes[to].link == Link::Up;
        arrives(A)
            || arrives(B)
            || self.nodes[B].is_running()
            || Node::clone(&self.nodes[B]).execute(self.now).is_some()
    }

    /// Time is about to pass.
    fn pay_delay(&mut self) {
        if self.left.delays != u8::MAX && self.is_busy() {
            self.left.delays -= 1;
        }
    }

    fn is_due(&self, index: usize) -> bool {
        self.nodes[index].timeout().is_some_and(|at| at <= self.now)
    }

    /// The next moment at which a node wants to be woken.
    fn next_moment(&self) -> Option<Instant> {
        let moments = self.nodes.iter().filter_map(|node| node.timeout());
        let due = self.ledger.load.map(|(_, due)| due);
        moments.chain(due).filter(|&at| at > self.now).min()
    }

    pub fn actions(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.ledger.broken.is_some() {
            return;
        }
        self.bus_actions(bounds, actions);
        self.network_actions(actions);
        if self.nodes[B].is_running() {
            actions.push(Action::Finish);
        } else {
            actions.push(Action::Execute { all: false });
            if !bounds.slow_memory && self.ledger.transactions.len() > 1 {
                actions.push(Action::Execute { all: true });
            }
        }
        self.time_actions(bounds, actions);
        self.fault_actions(actions);
    }

    fn bus_actions(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.ledger.load.is_some() {
            return;
        }
        // One block is as good as another before the first is used.
        let is_same = self.ledger.transactions.is_empty() && bounds.exported >= bounds.blocks;
        let used = if is_same { 1 } else { bounds.blocks };
        for block in 0..used {
            if self.left.writes > 0 {
                actions.push(Action::Store(block));
            }
            if self.left.reads > 0 {
                actions.push(Action::Load(block));
            }
            if self.left.checks > 0 && self.ledger.has_open(block) {
                actions.push(Action::Check(block));
            }
        }
    }

    fn network_actions(&self, actions: &mut Vec<Action>) {
        let Budget { losses, keeps, copies, corruptions, .. } = self.left;
        let is_down = |index: usize| self.nodes[index].link == Link::Down;
        for to in [A, B] {
            if self.network.lines[to].is_empty() {
                continue;
            }
            let is_cut = is_down(A) || is_down(B);
            let allowed = [
                (!is_down(to), Action::Deliver(to)),
                (is_cut || losses > 0, Action::Lose(to)),
                (!is_down(to) && corruptions > 0, Action::Corrupt(to)),
                (keeps > 0, Action::Keep(to)),
                (copies > 0, Action::Copy(to)),
            ];
            actions.extend(allowed.into_iter().filter(|a| a.0).map(|a| a.1));
        }
        for (place, flight) in self.network.kept.iter().enumerate() {
            let is_new = place == 0 || self.network.kept[place - 1] != *flight;
            if is_new && self.nodes[flight.to].link != Link::Down {
                actions.push(Action::Release(place));
            }
        }
    }

    fn time_actions(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if bounds.races {
            let due = [A, B].into_iter().filter(|&index| self.is_due(index));
            let before = actions.len();
            actions.extend(due.map(Action::Wake));
            if actions.len() > before {
                return;
            }
        }
        if self.now < Instant::ZERO.after(bounds.horizon) && (self.left.delays > 0 || !self.is_busy()) {
            actions.push(Action::Wait);
            if self.left.steps > 0 {
                actions.push(Action::Step);
            }
        }
    }

    fn fault_actions(&self, actions: &mut Vec<Action>) {
        let Budget { cuts, crashes, resets, .. } = self.left;
        for index in [A, B] {
            match self.nodes[index].link {
                Link::Up => {
                    if cuts > 0 {
                        actions.push(Action::Link(index, Link::Down));
                    }
                }
                Link::Down => actions.push(Action::Link(index, Link::Up)),
            }
            if crashes[index] > 0 {
                actions.push(Action::Crash(index));
            }
            if resets[index] > 0 {
                actions.push(Action::Reset(index));
            }
        }
    }

    /// The state after an action; `None` where it does nothing.
    pub fn after(&self, bounds: &Bounds, action: Action) -> Option<Self> {
        let mut next = self.clone();
        match action {
            Action::Store(_) | Action::Load(_) | Action::Check(_) => next.access(bounds, action),
            Action::Deliver(to) => next.deliver(to),
            Action::Lose(to) => {
                let is_cut = next.nodes.iter().any(|node| node.link == Link::Down);
                if !is_cut && next.left.losses != u8::MAX {
                    next.left.losses -= 1;
                }
                next.take(to);
            }
            Action::Corrupt(to) => {
                next.left.corruptions -= 1;
                next.take(to);
                next.act(to, |node, _| node.receive_corrupt());
            }
            Action::Keep(to) => {
                next.left.keeps -= 1;
                let flight = next.take(to);
                next.network.keep(flight);
            }
            Action::Copy(to) => {
                next.left.copies -= 1;
                let flight = next.network.lines[to][0].clone();
                next.network.keep(flight);
            }
            Action::Release(place) => {
                let flight = next.network.kept.remove(place);
                next.receive(flight);
            }
            Action::Execute { all } => {
                if !next.execute(all, bounds.slow_memory) {
                    return None;
                }
            }
            Action::Finish => next.act(B, |node, now| node.finish(now)),
            Action::Wait => next.wait(bounds)?,
            Action::Step => {
                let end = next.now.after(bounds.step);
                if next.next_moment().is_some_and(|at| at <= end) {
                    return None;
                }
                next.left.steps -= 1;
                next.pay_delay();
                next.now = end;
            }
            Action::Wake(index) => next.wake(index),
            Action::Link(index, link) => next.change_link(index, link),
            Action::Crash(index) => {
                next.left.crashes[index] -= 1;
                next.begin_new_life(index, bounds.timing.lease, |node, now| {
                    node.crash(now, bounds);
                    node.link_up(now);
                });
            }
            Action::Reset(index) => {
                next.left.resets[index] -= 1;
                next.begin_new_life(index, bounds.timing.lease, |node, now| node.reset(now));
            }
        }
        Some(next)
    }

    fn access(&mut self, bounds: &Bounds, access: Action) {
        let now = self.now;
        let target_life = self.nodes[B].life;
        let deadline = bounds.timing.deadline;
        match access {
            Action::Store(block) => {
                self.left.writes -= 1;
                let value = self.ledger.store(block, now, target_life);
                self.act(A, |node, now| node.store(now, block, value));
            }
            Action::Load(block) => {
                self.left.reads -= 1;
                let len = self.ledger.read(block, now, target_life, deadline);
                self.act(A, |node, now| node.load(now, block, len));
            }
            Action::Check(block) => {
                self.left.checks -= 1;
                self.ledger.check(block, now, deadline);
                self.act(A, |node, now| node.check(now, block));
                if !self.is_due(A) {
                    self.ledger.woken(now);
                }
            }
            _ => unreachable!("not an access"),
        }
    }

    fn execute(&mut self, all: bool, slow: bool) -> bool {
        let life = self.nodes[B].life;
        let executions = self.act(B, |node, now| {
            let mut executions = Vec::new();
            while let Some(execution) = node.execute(now) {
                executions.push(execution);
                if !slow {
                    node.finish(now);
                }
                if !all {
                    break;
                }
            }
            executions
        });
        for &execution in &executions {
            self.ledger.executed(execution, self.now, life);
        }
        executions.len() > usize::from(all)
    }

    fn wait(&mut self, bounds: &Bounds) -> Option<()> {
        let moment = self.next_moment()?;
        self.pay_delay();
        self.now = moment.min(Instant::ZERO.after(bounds.horizon));
        if !bounds.races {
            for index in [A, B] {
                if self.is_due(index) {
                    self.wake(index);
                }
            }
        }
        if !self.is_due(A) {
            self.ledger.woken(self.now);
        }
        Some(())
    }

    fn wake(&mut self, index: usize) {
        self.act(index, |node, now| node.wake(now));
        assert!(
            !self.is_due(index) || self.network.lines[1 - index].len() >= self.capacity,
            "a woken node sleeps again"
        );
        if index == A {
            self.ledger.woken(self.now);
        }
    }

    fn change_link(&mut self, index: usize, link: Link) {
        match link {
            Link::Down => {
                self.left.cuts -= 1;
                self.act(index, |node, now| node.link_down(now));
            }
            Link::Up => self.act(index, |node, now| node.link_up(now)),
        }
    }

    fn begin_new_life(&mut self, index: usize, lease: Duration, begin: impl FnOnce(&mut Node, Instant)) {
        if index == A {
            // Loads that wait are answered by a reset, but not to be believed.
            let now = self.now;
            self.nodes[A].change(|node| begin(node, now));
            self.ledger.forget(now, lease);
            self.act(A, |_, _| ());
        } else {
            self.act(index, begin);
        }
    }
}

impl State {
    /// The packet that an action is about.
    pub fn flight(&self, action: Action) -> Option<&Flight> {
        match action {
            Action::Deliver(to)
            | Action::Lose(to)
            | Action::Corrupt(to)
            | Action::Keep(to)
            | Action::Copy(to) => self.network.lines[to].first(),
            Action::Release(place) => self.network.kept.get(place),
            _ => None,
        }
    }
}

/// The moment as it is told in traces.
pub fn millis(at: Instant) -> String {
    format!("{} ms", at.since(Instant::ZERO).div_duration_f64(Duration::from_millis(1)))
}
