//! The benchmarks: what the product does, held against what this machine can do at the same time.
//!
//! `cargo bench` runs them all and prints one line for each figure; `cargo bench -- --help` has the options. Real adaptor
//! processes are driven over their sockets, as guests would. Each round measures a figure and its limit one after the other, so that whatever else the machine
//! does hits both alike; a value is the median of the rounds, and a ratio the median of the rounds' ratios. docs/performance.md
//! has results and says how to read them. No figure makes the run fail.

#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::panic, clippy::expect_used)]

mod assurance;
mod bare;
mod buses;
mod counter;
mod engine;
#[path = "../../tests/process/guest.rs"]
#[allow(dead_code)]
mod guest;
mod guests;
mod loads;
#[path = "../../tests/process/node.rs"]
#[allow(dead_code)]
mod node;
mod pair;
mod peers;
mod plot;
mod report;
mod scale;
mod stores;
mod vfio_server;
mod wire;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use report::{Figure, Report};

/// A group of figures that are measured together.
struct Group {
    name: &'static str,
    about: &'static str,
    /// In a full run, and in a fast one.
    rounds: (usize, usize),
    run: fn(&mut Report, usize),
}

const GROUPS: [Group; 8] = [
    Group {
        name: "remote-load",
        about: "a load from another node's memory against the bare sockets on its way",
        rounds: (15, 5),
        run: loads::run,
    },
    Group {
        name: "posted-stores",
        about: "stores with a check at the end of every 4 KiB",
        rounds: (15, 5),
        run: stores::run,
    },
    Group {
        name: "assurance",
        about: "store and check against store and read-back, in time, packets and bytes",
        rounds: (9, 3),
        run: assurance::run,
    },
    Group {
        name: "engine",
        about: "the DMA engine against a raw TCP stream",
        rounds: (9, 3),
        run: engine::run,
    },
    Group {
        name: "buses",
        about: "1 MiB between two guests of one adaptor against memcpy",
        rounds: (15, 5),
        run: buses::run,
    },
    Group {
        name: "peers",
        about: "UCX over TCP, where its ucx_perftest is installed",
        rounds: (5, 3),
        run: peers::run,
    },
    Group {
        name: "scale",
        about: "2, 8, 32 and 64 nodes behind one router: rate and memory",
        rounds: (7, 3),
        run: scale::run,
    },
    Group {
        name: "vfio-server",
        about: "the loop that serves a guest's socket against that of the crate vfio_user",
        rounds: (15, 5),
        run: vfio_server::run,
    },
];

/// The benchmarks. Results are printed, and written to target/bench with plots.
#[derive(Parser)]
#[command(after_help = groups_help())]
struct Options {
    /// Only the groups with this in their name, or with GROUP/FIGURE the figures
    names: Vec<String>,
    /// Fewer rounds: all of it takes less than 3 minutes
    #[arg(long)]
    fast: bool,
    /// So many rounds in each group
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Cargo says so; it changes nothing
    #[arg(long, hide = true)]
    bench: bool,
}

fn groups_help() -> String {
    let groups = GROUPS.iter().map(|group| (group.name, group.about)).chain([(guests::NAME, guests::ABOUT)]);
    let lines = groups.map(|(name, about)| format!("  {name:<14} {about}"));
    format!("Groups:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.names.iter().any(|name| name == guests::NAME) {
        options.names.retain(|name| name != guests::NAME);
        let is_well = guests::run(options.fast, options.rounds);
        if !is_well || options.names.is_empty() {
            return if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    }
    if let Some(name) =
        options.names.iter().find(|name| GROUPS.iter().all(|group| !report::is_of(name, group.name)))
    {
        eprintln!("no group or figure is called {name}; see cargo bench -- --help");
        return ExitCode::FAILURE;
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    let mut report = Report::new(&directory, options.names.clone());
    println!("{}", Figure::heading());
    for group in &GROUPS {
        if !report.wants_group(group.name) {
            continue;
        }
        let rounds = if options.fast { group.rounds.1 } else { group.rounds.0 };
        (group.run)(&mut report, options.rounds.map_or(rounds, usize::from));
    }
    if report.is_empty() {
        eprintln!("no figure is called {}; see cargo bench -- --help", options.names.join(" or "));
        return ExitCode::FAILURE;
    }
    report.finish();
    ExitCode::SUCCESS
}
