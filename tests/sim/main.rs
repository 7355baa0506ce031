//! The contract of the device, line by line, in a simulated network with virtual time and seeded faults.
//!
//! A failing schedule prints its seed; `SIM_SEED=0x... cargo test --test sim` replays it alone. `SIM_SCHEDULES=n` runs
//! that many random schedules of each kind (default 2000, and 1000 with routers or with several buses).
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod assurance;
mod buses;
mod channels;
mod clock;
mod clocks;
mod contract;
mod engine;
mod flat_memory;
mod holding;
mod hosted;
mod inventory;
mod messages;
mod network;
mod oracle;
mod packet_fuzz;
#[path = "../support/queue.rs"]
mod queue;
mod routed;
mod schedule;
mod sessions;
mod slow_memory;
mod world;
