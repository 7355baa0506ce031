//! The mesh interface: packets, and the flows that make them arrive in order and exactly once.

pub mod framing;
pub mod packet;
pub mod sequence;

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod packet_tests;
