//! `ardma test`: tests of adaptor and driver from inside the guest.
//!
//! Each test names the line of the contract, or the paper, that it holds the system to.

mod assurance;
mod engine;
mod errors;
mod interface;
mod inventory;
mod io;
mod local;
mod remote;
mod tap;

use crate::cli::Failure;
use ardma::{Adaptor, Place, RemoteWindow, parse_node, parse_size};
use std::io::Write;
use std::path::{Path, PathBuf};
use tap::{Problem, Tap, Verdict};

/// Bytes of scratch memory that the remote tests need on the peer.
const SCRATCH: u64 = 64 << 10;
/// Bytes that the tests of the I/O space need there.
const IO_SCRATCH: u64 = 8 << 10;

/// The groups of tests.
const GROUPS: [&str; 7] = ["local", "remote", "errors", "io", "assurance", "inventory", "engine"];

/// Arguments of `ardma test`.
#[derive(Debug, Default, clap::Args)]
#[command(
    after_help = "On the peer run `ardma export 64K --atomic --at OFFSET`, and for --io `ardma export 8K --io --at 0xe000`. Tests that lack an argument are skipped."
)]
pub struct Arguments {
    /// The node that exports scratch memory for the tests.
    #[arg(long, value_parser = parse_node)]
    peer: Option<u8>,
    /// Where it does: at least 64K that this node may read and write.
    #[arg(long, value_parser = parse_size, requires = "peer")]
    offset: Option<u64>,
    /// A block where the peer exports nothing; the last 64K of its window where it is not given.
    #[arg(long, value_parser = parse_size, requires = "peer")]
    unexported: Option<u64>,
    /// A block that the peer exports, but not to this node.
    #[arg(long, value_parser = parse_size, requires = "peer")]
    denied: Option<u64>,
    /// A block that the peer exports to this node for reading only.
    #[arg(long, value_parser = parse_size, requires = "peer")]
    read_only: Option<u64>,
    /// Where in its I/O space it does: 8K that this node may read and write, and nothing in the 4K before them.
    #[arg(long, value_name = "OFFSET", value_parser = parse_size, requires = "peer")]
    io: Option<u64>,
    /// A doorbell to which the peer listens.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(0..64), requires = "peer")]
    doorbell: Option<u8>,
    /// Run only this group: local, remote, errors, io, assurance, inventory or engine. May be given more than once.
    #[arg(long, value_name = "NAME", value_parser = GROUPS)]
    group: Vec<String>,
    /// Show the tests and run none.
    #[arg(long)]
    list: bool,
}

/// One test.
struct Case {
    group: &'static str,
    name: &'static str,
    contract: &'static str,
    run: fn(&Context) -> Verdict,
}

impl Case {
    fn title(&self) -> String {
        format!("{}: {} [{}]", self.group, self.name, self.contract)
    }
}

/// What a test has to work with.
struct Context<'a> {
    device: PathBuf,
    adaptor: Adaptor,
    arguments: &'a Arguments,
}

impl Context<'_> {
    fn peer(&self) -> Result<u8, Problem> {
        self.arguments.peer.ok_or_else(|| Problem::Skip("no --peer given".to_owned()))
    }

    /// The scratch memory.
    fn scratch(&self) -> Result<RemoteWindow, Problem> {
        let offset =
            self.arguments.offset.ok_or_else(|| Problem::Skip("no --peer and --offset given".to_owned()))?;
        let window = self.adaptor.map(Place::memory(self.peer()?, offset), SCRATCH)?;
        clear(&window)?;
        Ok(window)
    }

    /// The block of the peer at an optional argument's offset, and the next.
    fn blocks(&self, offset: Option<u64>, argument: &str) -> Result<RemoteWindow, Problem> {
        let node = self.peer()?;
        let offset = offset.ok_or_else(|| Problem::Skip(format!("no {argument} given")))?;
        let block = self.adaptor.fixed().block_size();
        let offset = offset & !block.saturating_sub(1);
        let window = self.adaptor.map(Place::memory(node, offset), block.saturating_mul(2))?;
        clear(&window)?;
        Ok(window)
    }

    /// Two blocks where the peer exports nothing.
    fn unexported(&self) -> Result<RemoteWindow, Problem> {
        let default = self.adaptor.fixed().window_size.saturating_sub(SCRATCH);
        self.blocks(Some(self.arguments.unexported.unwrap_or(default)), "--unexported")
    }
}

/// Clears what earlier accesses left, so that a test finds its own errors only.
fn clear(window: &RemoteWindow) -> Verdict {
    for part in window.blocks(0, window.length()) {
        window.check(part.offset)?;
    }
    Ok(())
}

/// Every test, in the order in which they run.
fn cases() -> impl Iterator<Item = &'static Case> {
    let groups = [local::CASES, interface::CASES, remote::CASES, errors::CASES, io::CASES, assurance::CASES];
    groups.into_iter().chain([inventory::CASES]).flatten().chain(engine::cases())
}

/// Runs or lists the tests.
pub fn run(device: &Path, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let wanted =
        |case: &&Case| arguments.group.is_empty() || arguments.group.iter().any(|name| name == case.group);
    let cases: Vec<_> = cases().filter(wanted).collect();
    if arguments.list {
        for case in cases {
            writeln!(out, "{}", case.title())?;
        }
        return Ok(());
    }
    let adaptor = match Adaptor::open(device) {
        Ok(adaptor) => adaptor,
        Err(error) => {
            writeln!(out, "TAP version 14\nBail out! {error}")?;
            return Err(error.into());
        }
    };
    let context = Context { device: device.to_owned(), adaptor, arguments };
    let mut tap = Tap::begin(out, cases.len())?;
    for case in cases {
        tap.result(&case.title(), &(case.run)(&context))?;
    }
    if tap.end()? { Ok(()) } else { Err(Failure::Told) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_list_has_every_test_once_with_its_contract() {
        let mut out = Vec::new();
        run(Path::new("/nowhere"), &Arguments { list: true, ..Arguments::default() }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let titles: BTreeSet<_> = text.lines().collect();
        assert_eq!(titles.len(), cases().count());
        for group in GROUPS {
            assert!(titles.iter().any(|title| title.starts_with(&format!("{group}: "))), "{group}");
        }
        assert!(titles.iter().all(|title| title.ends_with(']')));
    }

    #[test]
    fn groups_are_kept_apart() {
        let mut out = Vec::new();
        let arguments = Arguments { list: true, group: vec!["errors".into()], ..Arguments::default() };
        run(Path::new("/nowhere"), &arguments, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().lines().all(|line| line.starts_with("errors: ")));
    }

    #[test]
    fn without_an_adaptor_the_stream_bails_out() {
        let mut out = Vec::new();
        assert!(run(Path::new("/dev/ardma-none"), &Arguments::default(), &mut out).is_err());
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("TAP version 14\nBail out! no /dev/ardma-none"), "{text}");
    }
}
