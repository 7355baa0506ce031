//! The network adaptor as a state machine without input or output.
//!
//! Nothing in here knows a clock, a thread, a socket or a file: time is an
//! argument ([`Instant`]), guest accesses and packets are handed in by `handle_*`,
//! and what has to be done outside is taken out by `poll_*`. The same code runs in
//! the daemon, in the simulated network and in the tests.

pub mod address;
pub mod event;
pub mod memory;
pub mod mesh;
pub mod random;
pub mod status;
mod time;
pub mod transaction;

pub use time::Instant;
