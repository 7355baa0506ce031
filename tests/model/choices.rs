//! What may happen in a state.

use std::fmt;

use crate::bounds::{Bounds, Budget};
use crate::node::Side;
use crate::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The bus of A writes to a block.
    Store(usize),
    /// The bus of A reads from a block.
    Load(usize),
    /// The bus of A checks a block.
    Check(usize),
    /// A writes to a block in the bulk channel.
    Transfer(usize),
    /// A reads, writes and reads again in the bulk channel, without a packet between. The write goes to this block.
    Burst(usize),
    /// The next packet to a node arrives.
    Deliver(Side),
    /// The next packet to a node is lost.
    Lose(Side),
    /// The next packet to a node arrives with a bit flipped.
    Flip(Side),
    /// The next packet to a node is kept: those behind it overtake it.
    Keep(Side),
    /// A copy of the next packet to a node is kept.
    Copy(Side),
    /// The kept packet at this place arrives.
    Release(usize),
    /// B executes the next request.
    Execute,
    /// B executes all that it may execute, before it sends anything.
    ExecuteAll,
    /// B learns that its memory operation is done.
    Finish(usize),
    /// Time goes on to the next moment at which something is due.
    Wait,
    /// Time goes on a little, without reaching that moment.
    Step,
    /// A node that is due is woken.
    Wake(Side),
    /// An end of the link goes down, or comes back.
    Cut(Side),
    Join(Side),
    /// C takes the place of A, or gives it back.
    Turn,
    /// A node's process is killed, and started again at once.
    Crash(Side),
    /// A node's function is reset.
    Reset(Side),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(block) => write!(f, "A writes to block {block}"),
            Self::Load(block) => write!(f, "A reads block {block}"),
            Self::Check(block) => write!(f, "A checks block {block}"),
            Self::Transfer(block) => write!(f, "A transfers to block {block}"),
            Self::Burst(block) => write!(f, "A reads block 0, transfers to block {block} and reads again"),
            Self::Deliver(to) => write!(f, "{to} gets"),
            Self::Lose(_) => f.write_str("lost is"),
            Self::Flip(to) => write!(f, "{to} gets corrupted"),
            Self::Keep(_) => f.write_str("kept is"),
            Self::Copy(_) => f.write_str("kept is a copy of"),
            Self::Release(_) => f.write_str("released is"),
            Self::Execute => f.write_str("B executes a request"),
            Self::ExecuteAll => f.write_str("B executes all requests"),
            Self::Finish(place) => write!(f, "B finishes request {place} of those that it executed"),
            Self::Wait => f.write_str("time passes"),
            Self::Step => f.write_str("a little time passes"),
            Self::Wake(side) => write!(f, "{side} is woken"),
            Self::Cut(side) => write!(f, "{side} loses the link"),
            Self::Join(side) => write!(f, "{side} has a link"),
            Self::Turn => f.write_str("A and C change places"),
            Self::Crash(side) => write!(f, "{side} is started again"),
            Self::Reset(side) => write!(f, "{side} is reset"),
        }
    }
}

impl State {
    pub fn choices(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.ledger.broken().is_some() {
            return;
        }
        self.accesses(bounds, actions);
        self.deliveries(bounds, actions);
        let can_execute = self.node(Side::B).can_execute(self.now);
        self.executions(bounds, can_execute, actions);
        self.passing_of_time(bounds, can_execute, actions);
        self.failures(bounds, actions);
    }

    fn accesses(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let bulk = [
            (self.left.transfers > 0, Action::Transfer(0)),
            (self.left.bursts > 0, Action::Burst(bounds.blocks - 1)),
        ];
        offer(bulk, actions);
        // The bus is a FIFO: it does nothing while it waits for a load.
        if self.ledger.due().is_some() {
            return;
        }
        // Before the first is used, one block is as good as another.
        let is_same = self.ledger.transactions().is_empty() && bounds.exported >= bounds.blocks;
        for block in 0..if is_same { 1 } else { bounds.blocks } {
            let allowed = [
                (self.left.writes > 0, Action::Store(block)),
                (self.left.reads > 0, Action::Load(block)),
                (self.left.checks > 0 && self.ledger.has_open(block), Action::Check(block)),
            ];
            offer(allowed, actions);
        }
    }

    fn deliveries(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let Budget { losses, kept, copies, flips, .. } = self.left;
        let may_keep = !bounds.introduction || self.node(Side::A).life == 0;
        for to in Side::ENDS.into_iter().filter(|&to| self.network.load(to) > 0) {
            let arrives = self.is_linked(to);
            let allowed = [
                (arrives, Action::Deliver(to)),
                (self.is_cut() || losses > 0, Action::Lose(to)),
                (arrives && flips > 0, Action::Flip(to)),
                (may_keep && kept > 0, Action::Keep(to)),
                (may_keep && copies > 0, Action::Copy(to)),
            ];
            offer(allowed, actions);
        }
        let all = self.network.kept();
        for (place, flight) in all.iter().enumerate() {
            let is_same = place.checked_sub(1).and_then(|before| all.get(before)) == Some(flight);
            if !is_same && self.is_linked(flight.to) {
                actions.push(Action::Release(place));
            }
        }
    }

    fn executions(&self, bounds: &Bounds, can_execute: bool, actions: &mut Vec<Action>) {
        actions.extend((0..self.node(Side::B).running().len()).map(Action::Finish));
        if !can_execute {
            return;
        }
        actions.push(Action::Execute);
        if self.ledger.transactions().len() > 1 && !bounds.slow_memory {
            actions.push(Action::ExecuteAll);
        }
    }

    fn passing_of_time(&self, bounds: &Bounds, can_execute: bool, actions: &mut Vec<Action>) {
        let before = actions.len();
        actions.extend(Side::ALL.into_iter().filter(|&side| self.must_wake(side)).map(Action::Wake));
        // What is to be repaired was broken for no time.
        let stands_still = actions.len() > before || bounds.repairs && self.is_cut();
        let is_over = self.now >= self.end;
        if stands_still || is_over || self.left.delays == 0 && self.is_busy(can_execute) {
            return;
        }
        actions.push(Action::Wait);
        if self.left.steps > 0 {
            actions.push(Action::Step);
        }
    }

    /// Whether something could be done now; when time passes, it is late.
    pub fn is_busy(&self, can_execute: bool) -> bool {
        let arrives = |to: Side| self.network.load(to) > 0 && self.is_linked(to);
        can_execute || self.node(Side::B).is_running() || Side::ENDS.into_iter().any(arrives)
    }

    fn failures(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        let Budget { cuts, turns, crashes, resets, .. } = self.left;
        let may_crash = !bounds.introduction || !self.network.kept().is_empty();
        for side in Side::ENDS {
            let is_linked = self.is_linked(side);
            let is_in_place = self.at(side) == side;
            let allowed = [
                (is_linked && cuts > 0, Action::Cut(side)),
                (!is_linked, Action::Join(side)),
                (may_crash && is_in_place && crashes[side as usize] > 0, Action::Crash(side)),
                (is_in_place && resets[side as usize] > 0, Action::Reset(side)),
            ];
            offer(allowed, actions);
        }
        offer([(turns > 0 && self.is_linked(Side::A), Action::Turn)], actions);
    }
}

fn offer<const N: usize>(allowed: [(bool, Action); N], actions: &mut Vec<Action>) {
    actions.extend(allowed.into_iter().filter(|(allowed, _)| *allowed).map(|(_, action)| action));
}
