//! How far an exploration goes: what may happen, how often, and for how long.

use std::fmt;
use std::time::Duration;

use assured_rdma::adaptor::mesh::Timing;
use assured_rdma::adaptor::mesh::limits::{WINDOW_BYTES, WINDOW_REQUESTS, Window};
use assured_rdma::adaptor::mesh::sequence::{Epoch, Sequence};

/// Stands for any number of times.
pub const ANY: u8 = u8::MAX;

/// What may still happen, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Accesses of A's bus.
    pub writes: u8,
    pub reads: u8,
    pub checks: u8,
    /// Writes of A in the bulk channel.
    pub transfers: u8,
    /// A read, a write and a read in the bulk channel that are handed in at once, so that they travel together.
    pub bursts: u8,
    /// Packets lost; those of a link that is cut are not counted.
    pub losses: u8,
    /// How often time passes although a packet could arrive, or a request be executed.
    pub delays: u8,
    /// Packets that are overtaken.
    pub kept: u8,
    /// Packets that are doubled, the copy being kept as long as it likes.
    pub copies: u8,
    /// Packets that arrive corrupted.
    pub flips: u8,
    /// How often one end of the link goes down.
    pub cuts: u8,
    /// How often another adaptor with A's node id takes A's place, or gives it back.
    pub turns: u8,
    /// How often time passes without reaching the next moment at which something is due.
    pub steps: u8,
    /// How often the process of A, and of B, is killed and started again.
    pub crashes: [u8; 2],
    /// How often the function of A, and of B, is reset.
    pub resets: [u8; 2],
}

impl Budget {
    pub const NONE: Self = Self {
        writes: 0,
        reads: 0,
        checks: 0,
        transfers: 0,
        bursts: 0,
        losses: 0,
        delays: 0,
        kept: 0,
        copies: 0,
        flips: 0,
        cuts: 0,
        turns: 0,
        steps: 0,
        crashes: [0; 2],
        resets: [0; 2],
    };
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            ("writes", self.writes),
            ("reads", self.reads),
            ("checks", self.checks),
            ("transfers", self.transfers),
            ("bursts", self.bursts),
            ("loss", self.losses),
            ("delay", self.delays),
            ("kept", self.kept),
            ("dup", self.copies),
            ("flip", self.flips),
            ("cut", self.cuts),
            ("turn", self.turns),
            ("step", self.steps),
            ("crash-a", self.crashes[0]),
            ("crash-b", self.crashes[1]),
            ("reset-a", self.resets[0]),
            ("reset-b", self.resets[1]),
        ];
        let mut space = "";
        for (name, number) in fields.into_iter().filter(|field| field.1 > 0) {
            match number {
                ANY => write!(f, "{space}{name}=any")?,
                _ => write!(f, "{space}{name}={number}")?,
            }
            space = " ";
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub budget: Budget,
    /// Blocks that the bus uses.
    pub blocks: usize,
    /// Blocks that the target exports; accesses to the others are refused.
    pub exported: usize,
    pub timing: Timing,
    pub window: Window,
    /// The lease that B is configured with, if it is another one.
    pub lease_of_target: Option<Duration>,
    /// The clock of B runs slower than that of A, by half of what the guard band of a lease covers.
    pub slow_clock: bool,
    /// How long time goes on.
    pub horizon: Duration,
    /// Packets under way to each node at most; an adaptor is asked for more when there is room.
    pub capacity: usize,
    /// Whether the nodes still have to get to know each other. Then it is packets of the first life
    /// that are kept or doubled, and that life ends when one is.
    pub introduction: bool,
    /// Whether the target's adaptor may learn later than at once that a memory operation is done.
    pub slow_memory: bool,
    /// Whether packets may also arrive at the very moment at which a node is due to be woken, before it is.
    pub races: bool,
    /// So little fails that every transaction has to be done well.
    pub repairs: bool,
    /// Whether every state at the end of time in which nothing is under way is tried, whether it
    /// recovers.
    pub recovers: bool,
}

/// Times near the mesh's own (30 ms until a probe, 20 ms until a lease is asked for again), so that each of these happens, and few
/// times. A lease ends after 15 ms for the target: the fewer different moments there are, the fewer states.
pub const TIMING: Timing = Timing {
    deadline: Duration::from_millis(56),
    lease: Duration::from_millis(16),
    // Without keepalive, what was heard last makes no different states.
    keepalive: Duration::MAX,
};

impl Bounds {
    /// No faults, and time for a transaction to fail and another one to follow.
    pub const USUAL: Self = Self {
        budget: Budget::NONE,
        blocks: 1,
        exported: 2,
        timing: TIMING,
        window: Window {
            requests: WINDOW_REQUESTS,
            bytes: WINDOW_BYTES,
            first: Sequence(0),
            epoch: Epoch(0),
        },
        lease_of_target: None,
        slow_clock: false,
        horizon: Duration::from_millis(80),
        capacity: 2,
        introduction: false,
        slow_memory: false,
        races: false,
        repairs: false,
        recovers: false,
    };
}
