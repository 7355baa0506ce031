//! The bounds of the target unit, in one place.

/// How many things the target unit holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Write buffers.
    pub write_buffers: u16,
    /// Write buffers that one node may hold, so that one that stalls leaves some to the others.
    pub write_buffers_per_node: usize,
    /// Fetch buffers.
    pub fetch_buffers: u16,
    /// Checks that wait. A bus has one load at a time; the rest is for a bus that does not keep to this.
    pub checks: usize,
    /// Blocks in the error log.
    pub logged_blocks: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            write_buffers: 1024,
            write_buffers_per_node: 256,
            fetch_buffers: 16,
            checks: 16,
            logged_blocks: 4096,
        }
    }
}
