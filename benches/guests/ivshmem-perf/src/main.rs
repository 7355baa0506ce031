//! What two guests reach by memory that they share (QEMU's ivshmem-plain), for comparison: `memcpy` into it, and a counter that
//! hands over what was copied. One guest serves while the other one measures. Nothing is checked, and nobody is told of an error:
//! there is no place for one.

mod shared;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use shared::Shared;

/// Bandwidth and latency of memory that two guests share.
#[derive(Parser)]
enum Command {
    /// Takes what the other guest hands over, until that one has measured
    Serve,
    /// Copies blocks into the shared memory, and prints megabytes a second
    Write {
        /// Bytes of a block
        size: usize,
        /// Number of blocks
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
    /// Hands over 8 bytes at a time, and prints the microseconds of one way: half of the median to and fro
    Latency {
        /// How many times
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: u64,
    },
}

fn main() -> ExitCode {
    let command = Command::parse();
    let result = Shared::open().and_then(|shared| match command {
        Command::Serve => shared.serve(),
        Command::Write { size, count } => write(&shared, size, count),
        Command::Latency { count } => latency(&shared, count),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("ivshmem-perf: {text}");
            ExitCode::FAILURE
        }
    }
}

fn write(shared: &Shared, size: usize, count: u64) -> Result<(), String> {
    let block = vec![0x5a; size];
    let mut sender = shared.sender(size)?;
    pour(&mut sender, &block, (count / 10).max(1))?;
    let begin = Instant::now();
    pour(&mut sender, &block, count)?;
    let seconds = begin.elapsed().as_secs_f64().max(1e-9);
    sender.end();
    println!("{:.3}", count as f64 * size as f64 / seconds / 1e6);
    Ok(())
}

/// Until the other guest has seen all of them.
fn pour(sender: &mut shared::Sender<'_>, block: &[u8], count: u64) -> Result<(), String> {
    for _ in 0..count {
        sender.send(block)?;
    }
    sender.wait()
}

fn latency(shared: &Shared, count: u64) -> Result<(), String> {
    let block = 0x5a5a_5a5a_5a5a_5a5a_u64.to_ne_bytes();
    let mut sender = shared.sender(block.len())?;
    pour(&mut sender, &block, count / 10)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let begin = Instant::now();
        pour(&mut sender, &block, 1)?;
        times.push(begin.elapsed());
    }
    sender.end();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(Duration::ZERO);
    println!("{:.3}", median.as_secs_f64() * 1e6 / 2.0);
    Ok(())
}
