//! A model checker over the real adaptors: every order in which packets, losses, time, failures and accesses can follow each
//! other, within the bounds that each test names, with the contract's lines as properties.
//!
//! A state holds two whole adaptors, the packets between them, and a ledger of what was started, executed and reported. Times are
//! short (a deadline of 60 ms with a lease of 20 ms), so that few steps lead past them. Stories with failures of links and
//! nodes are explored to a depth; `MODEL_LONG=1` goes deeper. A broken line prints the steps that lead to it.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod bounds;
mod ledger;
mod node;
mod state;

use std::time::{Duration, Instant};

use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::status::Class;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

use crate::bounds::{Bounds, Budget};
use crate::ledger::{Kind, Line, Standing, Transaction};
use crate::state::{Action, State, millis};

const MS: fn(u64) -> Duration = Duration::from_millis;

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(self, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        state.after(self, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn some(state: &State, is_it: impl Fn(&Transaction) -> bool) -> bool {
            state.ledger.transactions.iter().any(is_it)
        }
        vec![
            Property::<Self>::always("no false OK", |_, s| s.ledger.broken != Some(Line::NoFalseOk)),
            Property::<Self>::always("no lost error", |_, s| s.ledger.broken != Some(Line::NoLostError)),
            Property::<Self>::always("order", |_, s| s.ledger.broken != Some(Line::Order)),
            Property::<Self>::always("exactly once", |_, s| s.ledger.broken != Some(Line::ExactlyOnce)),
            Property::<Self>::always("no ghost writes", |_, s| s.ledger.broken != Some(Line::NoGhostWrites)),
            Property::<Self>::always("bounded", |_, s| s.ledger.broken != Some(Line::Bounded)),
            Property::<Self>::always("isolation", |_, s| s.ledger.broken != Some(Line::Isolation)),
            Property::<Self>::always("truth", |_, s| s.ledger.broken != Some(Line::Truth)),
            // So that the model does not pass by doing nothing.
            Property::<Self>::sometimes("a write is done", |_, s| {
                some(s, |t| t.kind == Kind::Write && t.standing == Standing::Reported(Class::Ok))
            }),
            Property::<Self>::sometimes("a write is executed and of unknown outcome", |_, s| {
                some(s, |t| {
                    t.kind == Kind::Write && t.executed && t.standing == Standing::Reported(Class::Unknown)
                })
            }),
        ]
    }
}

/// One check and nothing else, for others to add to.
fn bounds(name: &'static str, budget: Budget) -> Bounds {
    Bounds {
        name,
        budget: Budget { checks: 1, ..budget },
        blocks: 1,
        exported: 2,
        slow_memory: false,
        introduction: false,
        timing: Timing { deadline: MS(60), lease: MS(20), keepalive: Duration::MAX },
        capacity: 2,
        horizon: MS(120),
        step: MS(10),
        races: false,
    }
}

fn is_long() -> bool {
    std::env::var("MODEL_LONG").is_ok()
}

/// Explores every state, or all that are at most `depth` steps away; deeper where it may take long.
fn explore(bounds: &Bounds, depth: Option<(usize, usize)>) {
    let begun = Instant::now();
    let mut builder = bounds.clone().checker().finish_when(HasDiscoveries::AnyFailures);
    if let Some((short, long)) = depth {
        builder = builder.target_max_depth(if is_long() { long } else { short });
    }
    let checker = builder.spawn_bfs().join();
    println!(
        "model: {}: {} states, {} steps between them, {} deep, {:.1} s",
        bounds.name,
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        begun.elapsed().as_secs_f64()
    );
    let found = checker.discoveries();
    for property in checker.model().properties() {
        match (&property.expectation, found.get(property.name)) {
            (Expectation::Always, Some(path)) => {
                println!("broken: {}", property.name);
                for (state, action) in path.clone().into_vec() {
                    let Some(action) = action else { continue };
                    let packet = state.flight(action).map_or(String::new(), |flight| format!("{flight:?}"));
                    println!("  {:>9} {action:?} {packet}", millis(state.now));
                }
                panic!("{}", property.name);
            }
            (Expectation::Sometimes, None) if depth.is_none() => {
                panic!("nowhere it comes to pass that {}", property.name);
            }
            _ => {}
        }
    }
}

#[test]
fn a_write_that_is_lost() {
    let budget = Budget { writes: 1, losses: 1, ..Budget::NONE };
    explore(&bounds("a write, any delays, a loss", budget), None);
}

#[test]
fn two_writes() {
    let budget = Budget { writes: 2, losses: 0, ..Budget::NONE };
    explore(&bounds("two writes, any delays", budget), None);
}

#[test]
fn a_write_and_a_read() {
    let budget = Budget { writes: 1, reads: 1, losses: 0, ..Budget::NONE };
    explore(&bounds("a write and a read, any delays", budget), None);
}

#[test]
fn a_write_that_is_lost_or_doubled() {
    let budget = Budget { writes: 1, losses: 1, copies: 1, ..Budget::NONE };
    explore(&bounds("a write, any delays, a loss, a copy", budget), Some((16, usize::MAX)));
}

#[test]
fn a_link_that_is_cut() {
    let budget = Budget { writes: 1, losses: 0, cuts: 1, ..Budget::NONE };
    explore(&bounds("a write, any delays, a cut", budget), Some((12, 18)));
}

#[test]
fn a_target_that_is_reset() {
    let budget = Budget { writes: 1, losses: 0, resets: [0, 1], ..Budget::NONE };
    explore(&bounds("a write, any delays, a reset of the target", budget), Some((12, 18)));
}

#[test]
fn a_target_that_crashes() {
    let budget = Budget { writes: 1, losses: 0, crashes: [0, 1], ..Budget::NONE };
    explore(&bounds("a write, any delays, a crash of the target", budget), Some((12, 18)));
}

#[test]
fn an_initiator_that_is_reset() {
    let budget = Budget { writes: 2, losses: 0, resets: [1, 0], ..Budget::NONE };
    explore(&bounds("two writes, any delays, a reset of the initiator", budget), Some((11, 16)));
}
