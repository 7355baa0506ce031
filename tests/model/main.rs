//! A model checker over the real adaptors: every state that can be reached within small bounds is visited, and the contract is
//! checked in each.
//!
//! A state is two whole adaptors, the packets in the network between them, B's memory, and what A's bus asked for; virtual time
//! moves from one moment at which something is due to the next. `docs/protocol.md` says what is explored, and what is not.
//! `MODEL_LONG=1` explores further. A line that is broken is printed with the way that leads there; with `MODEL_SHORTEST=1`
//! that is the shortest. `tests/model/mutants` shows which faults are found.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod bounds;
mod choices;
mod explorations;
mod guest;
mod ledger;
mod network;
mod node;
mod state;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use assured_rdma::adaptor::status::Class;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Path, Property};

use crate::bounds::{Bounds, TIMING};
use crate::choices::Action;
use crate::ledger::{Kind, Line, Standing, Transaction};
use crate::state::State;

macro_rules! lines {
    ($($name:literal: $line:ident),*) => {
        vec![$(Property::always($name, |_, state: &State| state.ledger.broken() != Some(Line::$line))),*]
    };
}

fn any(state: &State, is_it: impl FnMut(&Transaction) -> bool) -> bool {
    state.ledger.transactions().iter().any(is_it)
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.choices(self, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        state.after(self, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = lines![
            "no false OK": NoFalseOk,
            "no lost error": NoLostError,
            "order": Order,
            "exactly once": ExactlyOnce,
            "no ghost writes": NoGhostWrites,
            "bounded": Bounded,
            "isolation": Isolation,
            "what is executed was asked for": Integrity,
            "'not executed' is true": Truth,
            "the window is kept": Window,
            "no busy loop": NoBusyLoop
        ];
        if self.repairs {
            properties.push(Property::always("what little fails is repaired", |_, state| {
                let is_bad = |standing| matches!(standing, Standing::Reported(class) if class != Class::Ok);
                !any(state, |transaction| is_bad(transaction.standing))
            }));
        }
        if self.recovers {
            // What is under way arrives first in a recovery, and that leads from each of the other
            // states at the end to one of these.
            properties.push(Property::always("every state recovers", |bounds: &Self, state| {
                let is_to_be_tried =
                    state.now >= state.end && state.is_settled() && state.ledger.broken().is_none();
                !is_to_be_tried || state.recovers(bounds)
            }));
        }
        // A model in which nothing happens breaks no line either.
        if self.budget.checks > 0 {
            properties.push(Property::sometimes("a write is done", |_, state| {
                any(state, |t| t.kind == Kind::Write && t.is_assured())
            }));
        }
        if self.budget.checks > 0 && !self.repairs {
            properties.push(Property::sometimes(
                "a write that was done is reported as unknown",
                |_, state| {
                    let unknown = Standing::Reported(Class::Unknown);
                    any(state, |t| t.kind == Kind::Write && t.executed && t.standing == unknown)
                },
            ));
        }
        if self.budget.bursts > 0 {
            properties.push(Property::sometimes("requests travel together", |_, state: &State| {
                state.ledger.travelled_together
            }));
        }
        // Only good answers go together, and of three the middle one is refused where its block is not exported.
        if self.budget.bursts > 0 && self.exported >= self.blocks {
            properties.push(Property::sometimes("one answer is of several", |_, state: &State| {
                state.ledger.answered_together
            }));
        }
        if self.timing.keepalive != TIMING.keepalive {
            properties.push(Property::sometimes("a silent link is cut", |_, state: &State| {
                state.ledger.link_was_cut
            }));
        }
        if self.budget.crashes != [0; 2] || self.budget.resets != [0; 2] {
            properties.push(Property::sometimes("a write of a later life is executed", |_, state| {
                any(state, |t| t.kind == Kind::Write && t.executed && !t.is_of_first_lives())
            }));
        }
        properties
    }
}

/// The states that all explorations have visited up to now.
static VISITED: AtomicUsize = AtomicUsize::new(0);

/// Visits every state within the bounds. Panics where a line is broken, or where something never happens that should.
fn explore(name: &str, bounds: Bounds) {
    let begun = Instant::now();
    let checker = bounds.checker().finish_when(HasDiscoveries::AnyFailures);
    if std::env::var_os("MODEL_SHORTEST").is_some() {
        judge(name, &bounds, begun, &checker.spawn_bfs().join());
    } else {
        judge(name, &bounds, begun, &checker.spawn_dfs().join());
    }
}

fn judge(name: &str, bounds: &Bounds, begun: Instant, checker: &impl Checker<Bounds>) {
    let states = checker.unique_state_count();
    let sum = VISITED.fetch_add(states, Ordering::Relaxed) + states;
    println!(
        "model: {name}: {}: {} states, {} steps deep, {:.0} s; {} states in sum",
        bounds.budget,
        with_commas(states),
        checker.max_depth(),
        begun.elapsed().as_secs_f64(),
        with_commas(sum)
    );
    let mut discoveries = checker.discoveries();
    for property in bounds.properties() {
        match (property.expectation, discoveries.remove(property.name)) {
            (Expectation::Always, Some(path)) => {
                println!("{}", story(path));
                panic!("{name}: broken: {}", property.name);
            }
            (Expectation::Sometimes, None) => panic!("{name}: it never happens that {}", property.name),
            _ => {}
        }
    }
}

/// What happened, line by line.
fn story(path: Path<State, Action>) -> String {
    let mut lines = Vec::new();
    for (state, action) in path.into_vec() {
        let Some(action) = action else { break };
        let millis = state.now.as_nanos() / 1_000_000;
        let packet = state.flight(action).map(|flight| format!(" {flight:?}")).unwrap_or_default();
        lines.push(format!("{millis:5} ms: {action}{packet}"));
    }
    lines.join("\n")
}

fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
