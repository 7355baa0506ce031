//! How far an exploration goes.

use std::time::Duration;

use assured_rdma::adaptor::mesh::Timing;

/// What may still happen, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub writes: u8,
    pub reads: u8,
    pub checks: u8,
    /// 255 stands for any number.
    pub losses: u8,
    /// How often time passes while something could happen; 255 stands for any number.
    pub delays: u8,
    pub keeps: u8,
    pub copies: u8,
    pub corruptions: u8,
    pub cuts: u8,
    pub steps: u8,
    pub crashes: [u8; 2],
    pub resets: [u8; 2],
}

impl Budget {
    pub const NONE: Self = Self {
        writes: 0,
        reads: 0,
        checks: 0,
        losses: u8::MAX,
        delays: u8::MAX,
        keeps: 0,
        copies: 0,
        corruptions: 0,
        cuts: 0,
        steps: 0,
        crashes: [0; 2],
        resets: [0; 2],
    };
}

#[derive(Clone, Debug)]
pub struct Bounds {
    pub name: &'static str,
    pub budget: Budget,
    /// Blocks that the bus uses.
    pub blocks: usize,
    /// Blocks that the target exports; writes to the others are refused.
    pub exported: usize,
    /// Whether the target's adaptor learns later than at once that a memory operation is done.
    pub slow_memory: bool,
    /// Whether the nodes still have to get to know each other.
    pub introduction: bool,
    pub timing: Timing,
    /// Packets that are under way to each node at most; an adaptor is asked for more when there is room.
    pub capacity: usize,
    /// The end of time.
    pub horizon: Duration,
    /// How far [`crate::state::Action::Step`] goes.
    pub step: Duration,
    /// Packets may also arrive at the very moment at which a node is woken, before it is.
    pub races: bool,
}
