//! The states of the model, and how one leads to another.
//!
//! Invariant: whatever happened at a node, what it has to say about it is in the network and in the ledger already.

use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::mesh::limits::HELLO_GAP;

use crate::bounds::{ANY, Bounds, Budget};
use crate::choices::Action;
use crate::ledger::{Ledger, Line};
use crate::network::{Flight, Network};
use crate::node::{Execution, Node, Outputs, Shared, Side};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub now: Instant,
    nodes: [Shared; 3],
    pub network: Network,
    pub ledger: Ledger,
    pub left: Budget,
    /// The end of time.
    pub end: Instant,
    capacity: usize,
    /// Nodes that are due are woken by an action of its own.
    races: bool,
}

impl State {
    /// Two linked nodes with nothing under way but, with [`Bounds::introduction`], their introduction.
    pub fn new(bounds: &Bounds) -> Self {
        let mut state = Self {
            now: Instant::ZERO,
            nodes: Side::ALL.map(|side| Shared::new(Node::new(side, bounds, Instant::ZERO))),
            network: Network::default(),
            ledger: Ledger::default(),
            left: bounds.budget,
            end: Instant::ZERO.after(bounds.horizon),
            capacity: bounds.capacity,
            races: bounds.races,
        };
        for side in Side::ENDS {
            state.act(side, |node, now| node.link_up(now));
        }
        if !bounds.introduction {
            state.introduce();
            state.end = state.now.after(bounds.horizon);
        }
        state
    }

    /// The nodes get to know each other, and say what they have to say 5 ms later: else that would be
    /// lost, delayed and overtaken in every exploration, which multiplies the states by ten.
    fn introduce(&mut self) {
        self.deliver_all();
        self.now = self.now.after(HELLO_GAP);
        for side in Side::ENDS {
            self.wake(side);
        }
        self.deliver_all();
    }

    pub fn node(&self, side: Side) -> &Shared {
        &self.nodes[side as usize]
    }

    /// The node that is at an end of the link now.
    pub fn at(&self, end: Side) -> Side {
        if end == Side::A && self.node(Side::C).is_linked { Side::C } else { end }
    }

    /// Whether an end of the link is up.
    pub fn is_linked(&self, end: Side) -> bool {
        self.node(self.at(end)).is_linked
    }

    pub fn is_cut(&self) -> bool {
        Side::ENDS.into_iter().any(|end| !self.is_linked(end))
    }

    /// Whether both ends are linked, and only time or the bus can do more.
    pub fn is_settled(&self) -> bool {
        !self.is_cut() && !self.is_busy(self.node(Side::B).can_execute(self.now))
    }

    /// The packet that an action is about.
    pub fn flight(&self, action: Action) -> Option<&Flight> {
        match action {
            Action::Deliver(to)
            | Action::Lose(to)
            | Action::Flip(to)
            | Action::Keep(to)
            | Action::Copy(to) => self.network.first(to),
            Action::Release(place) => self.network.kept().get(place),
            _ => None,
        }
    }

    /// The state after an action; `None` where it does nothing.
    pub fn after(&self, bounds: &Bounds, action: Action) -> Option<Self> {
        let mut next = self.clone();
        match action {
            Action::Store(_)
            | Action::Load(_)
            | Action::Check(_)
            | Action::Transfer(_)
            | Action::Burst(_) => next.access(bounds, action),
            Action::Deliver(to) => next.deliver(to),
            Action::Lose(to) => {
                if !next.is_cut() {
                    pay(&mut next.left.losses);
                }
                next.take(to);
            }
            Action::Flip(to) => {
                pay(&mut next.left.flips);
                next.take(to);
                next.act(next.at(to), |node, _| node.receive_corrupt());
            }
            Action::Keep(to) => {
                pay(&mut next.left.kept);
                let flight = next.take(to);
                next.network.keep(flight);
            }
            Action::Copy(to) => {
                pay(&mut next.left.copies);
                let copy = next.network.first(to)?.clone();
                next.network.keep(copy);
            }
            Action::Release(place) => {
                let flight = next.network.release(place);
                next.receive(&flight);
            }
            Action::Execute => next.execute(1, bounds.slow_memory)?,
            Action::ExecuteAll => next.execute(usize::MAX, false)?,
            Action::Finish(place) => next.act(Side::B, |node, now| node.finish(now, place)),
            Action::Wait => next.wait(next.end)?,
            Action::Step => next.step()?,
            Action::Wake(side) => next.wake(side),
            Action::Cut(end) => {
                pay(&mut next.left.cuts);
                next.act(next.at(end), |node, now| node.link_down(now));
            }
            Action::Join(end) => next.act(end, |node, now| node.link_up(now)),
            Action::Turn => {
                pay(&mut next.left.turns);
                next.turn();
            }
            Action::Crash(side) => {
                pay(&mut next.left.crashes[side as usize]);
                next.begin_new_life(side, bounds, |node, now| node.crash(now, bounds));
            }
            Action::Reset(side) => {
                pay(&mut next.left.resets[side as usize]);
                next.begin_new_life(side, bounds, |node, now| node.reset(now));
            }
        }
        Some(next)
    }

    /// Something happens at a node; then what it has to say is taken out, as far as the network takes it.
    fn act<R>(&mut self, side: Side, act: impl FnOnce(&mut Node, Instant) -> R) -> R {
        let now = self.now;
        let room = self.capacity.saturating_sub(self.network.load(side.other()));
        let ledger = &mut self.ledger;
        let (result, outputs) = self.nodes[side as usize].change(|node| {
            let result = act(node, now);
            let outputs = node.take_outputs(now, room);
            if let Some(answer) = &outputs.answer {
                ledger.answered(answer, || node.errors(now));
            }
            for end in &outputs.ends {
                ledger.ended(end);
            }
            ledger.travelled_together |= outputs.batch;
            ledger.answered_together |= outputs.joint_answer;
            if outputs.exceeds_window {
                ledger.breaks(Line::Window);
            }
            (result, outputs)
        });
        self.spread(side, outputs);
        result
    }

    fn spread(&mut self, side: Side, outputs: Outputs) {
        for wire in outputs.packets {
            self.network.send(side.other(), wire);
        }
        if outputs.cut {
            self.ledger.link_was_cut = true;
            let ends = Side::ENDS.map(|end| self.at(end));
            for side in ends {
                self.act(side, |node, now| node.link_down(now));
            }
            for side in ends {
                self.act(side, |node, now| node.link_up(now));
            }
        }
    }

    fn access(&mut self, bounds: &Bounds, access: Action) {
        let now = self.now;
        let lives = Side::ENDS.map(|side| self.node(side).life);
        let due = now.after(bounds.timing.deadline);
        match access {
            Action::Store(block) => {
                pay(&mut self.left.writes);
                let value = self.ledger.store(Channel::Small, block, due, lives);
                self.act(Side::A, |node, now| node.store(now, block, value));
            }
            Action::Load(block) => {
                pay(&mut self.left.reads);
                let len = self.ledger.read(block, due, lives);
                self.act(Side::A, |node, now| node.load(now, block, len));
            }
            Action::Check(block) => {
                pay(&mut self.left.checks);
                self.ledger.check(block, now);
                self.act(Side::A, |node, now| node.check(now, block));
                // What is overdue already is answered at once.
                if !self.is_due(Side::A) {
                    self.ledger.woken(now);
                }
            }
            Action::Transfer(block) => {
                pay(&mut self.left.transfers);
                let value = self.ledger.store(Channel::Bulk, block, due, lives);
                self.act(Side::A, |node, now| node.transfer(now, block, value));
            }
            Action::Burst(block) => {
                pay(&mut self.left.bursts);
                let first = self.ledger.fetch(0, due, lives);
                let value = self.ledger.store(Channel::Bulk, block, due, lives);
                let second = self.ledger.fetch(0, due, lives);
                self.act(Side::A, |node, now| {
                    node.fetch(now, 0, first);
                    node.transfer(now, block, value);
                    node.fetch(now, 0, second);
                });
            }
            other => unreachable!("{other} is not an access"),
        }
    }

    /// Takes out the next packet to a node; its sender is asked for another, if there was no room
    /// for one.
    fn take(&mut self, to: Side) -> Flight {
        let was_full = self.network.load(to) >= self.capacity;
        let flight = self.network.take_first(to);
        if was_full {
            self.act(self.at(to.other()), |_, _| ());
        }
        flight
    }

    fn receive(&mut self, flight: &Flight) {
        self.act(self.at(flight.to), |node, now| node.receive(now, &flight.wire));
    }

    fn deliver(&mut self, to: Side) {
        let flight = self.take(to);
        self.receive(&flight);
    }

    /// Everything under way arrives and is executed.
    fn deliver_all(&mut self) {
        self.act(Side::B, |node, now| node.finish_all(now));
        while let Some(to) = Side::ENDS.into_iter().find(|&to| self.network.load(to) > 0) {
            self.deliver(to);
            self.execute(usize::MAX, false);
        }
    }

    /// B executes at most so many requests, and learns of their end at once, unless its memory is slow.
    fn execute(&mut self, limit: usize, slow_memory: bool) -> Option<()> {
        let running: Vec<Execution> = self.node(Side::B).running().cloned().collect();
        let executions: Vec<Execution> = self.act(Side::B, |node, now| {
            let next = || {
                let execution = node.execute(now);
                if !slow_memory {
                    node.finish_all(now);
                }
                execution
            };
            std::iter::from_fn(next).take(limit).collect()
        });
        let life = self.node(Side::B).life;
        let (now, a) = (self.now, &self.nodes[Side::A as usize]);
        for execution in &executions {
            self.ledger.begins_beside(execution, &running);
            self.ledger.executed(execution, now, life, || Node::clone(a).errors(now));
        }
        (!executions.is_empty()).then_some(())
    }

    fn is_due(&self, side: Side) -> bool {
        self.node(side).timeout().is_some_and(|at| at <= self.now)
    }

    /// Whether a node has to be woken before time can pass.
    pub fn must_wake(&self, side: Side) -> bool {
        self.races && self.is_due(side)
    }

    fn next_moment(&self) -> Option<Instant> {
        let moments = self.nodes.iter().filter_map(|node| node.timeout());
        moments.chain(self.ledger.next_due()).filter(|&at| at > self.now).min()
    }

    /// Time goes on to the next moment at which something is due, but not beyond the end.
    fn wait(&mut self, end: Instant) -> Option<()> {
        let moment = self.next_moment()?.min(end);
        self.pass(moment);
        if !self.races {
            for side in Side::ALL.into_iter().filter(|&side| self.is_due(side)).collect::<Vec<_>>() {
                self.wake(side);
            }
        }
        if !self.is_due(Side::A) {
            self.ledger.woken(self.now);
        }
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        let end = self.now.after(Duration::from_millis(10));
        if self.next_moment().is_some_and(|at| at <= end) {
            return None;
        }
        pay(&mut self.left.steps);
        self.pass(end);
        Some(())
    }

    fn pass(&mut self, until: Instant) {
        if self.left.delays != ANY && self.is_busy(self.node(Side::B).can_execute(self.now)) {
            pay(&mut self.left.delays);
        }
        self.now = until;
    }

    /// A node is woken. Where it has the link cut, it is woken once more to introduce itself on the new one.
    fn wake(&mut self, side: Side) {
        self.act(side, |node, now| node.wake(now));
        if self.is_due(side) {
            self.act(side, |node, now| node.wake(now));
        }
        if self.is_due(side) {
            self.ledger.breaks(Line::NoBusyLoop);
        }
        if side == Side::A {
            self.ledger.woken(self.now);
        }
    }

    /// C takes the place of A, or A takes it back. Nobody tells B.
    fn turn(&mut self) {
        let (from, to) = if self.at(Side::A) == Side::C { (Side::C, Side::A) } else { (Side::A, Side::C) };
        self.act(from, |node, now| node.link_down(now));
        self.act(to, |node, now| node.link_up(now));
    }

    fn begin_new_life(&mut self, side: Side, bounds: &Bounds, begin: impl FnOnce(&mut Node, Instant)) {
        if side == Side::A {
            self.ledger.forget(self.now, bounds.timing.lease);
        }
        self.act(side, begin);
    }

    /// Whether all is well again soon when nothing fails any more: the nodes find each other, and a write is done.
    pub fn recovers(&self, bounds: &Bounds) -> bool {
        let left = Budget { delays: ANY, ..Budget::NONE };
        let mut state = Self { races: false, left, ..self.clone() };
        if self.at(Side::A) == Side::C {
            state.turn();
        }
        for side in Side::ENDS.into_iter().filter(|&side| !self.is_linked(side)) {
            state.act(side, |node, now| node.link_up(now));
        }
        let end = self.now.after(bounds.timing.deadline * 2 + Duration::from_millis(500));
        let earlier = self.ledger.transactions().len();
        while state.now < end && state.ledger.broken().is_none() {
            state.deliver_all();
            if state.ledger.due().is_some() {
                if state.wait(end).is_none() {
                    return false;
                }
                continue;
            }
            let tried = &state.ledger.transactions()[earlier..];
            if tried.last().is_some_and(|transaction| transaction.is_assured()) {
                return true;
            }
            // The first check may tell of what happened before; then it takes time until the nodes know each other.
            if tried.len() > 1 {
                if state.wait(end).is_none() {
                    return false;
                }
                state.deliver_all();
            }
            state.left = Budget { writes: 1, checks: 1, ..left };
            state.access(bounds, Action::Store(0));
            state.access(bounds, Action::Check(0));
        }
        false
    }
}

/// Takes one from what is left, unless there is any number of it.
fn pay(left: &mut u8) {
    if *left != ANY {
        *left -= 1;
    }
}
