//! UCX's puts over TCP, in the same rounds, where its `ucx_perftest` is installed (Debian: ucx-utils). It sends without a CRC, and its puts are not checked.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::bare::each;
use super::guest::ACCESS;
use super::pair::{BLOCK, Pair};
use super::report::{Figure, Report, Samples, Target};
use super::wire::{Wait, load};

/// Bytes, how many operations UCX has for a round, and what to reach of its rate.
const SIZES: [(u64, &str, usize, f64); 4] = [
    (8, "8B", 20_000, 1.5),
    (4 << 10, "4KiB", 10_000, 1.5),
    (64 << 10, "64KiB", 2000, 1.5),
    (1 << 20, "1MiB", 500, 1.0),
];
const ROUND_TRIPS: usize = 2000;
/// How long one run of it may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    if Command::new("ucx_perftest").arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        return report.skip("peers/ucx", "not installed (Debian: ucx-utils)");
    }
}
