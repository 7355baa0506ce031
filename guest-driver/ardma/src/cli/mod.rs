//! The command line: what there is, and what each failure means to the shell.

pub mod access;
pub mod assurance;
pub mod atomic;
pub mod bulk;
pub mod commands;
pub mod copy;
pub mod export;
pub mod info;
pub mod list;
pub mod message;
pub mod perf;
pub mod progress;
pub mod signals;

use ardma::{Adaptor, Code, Place, parse_node};
use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Remote memory access that tells the truth: the guest's tool.
///
/// Sizes and offsets are decimal or 0x hex, with K, M, G or T for powers of 1024. A place in another node's memory
/// is NODE:OFFSET, such as 2:0x1000, and one in its I/O space NODE:io:OFFSET. Exit status: 0 all well, 1 an access or a test failed, 2 bad usage, 3
/// something else went wrong.
#[derive(Debug, Parser)]
#[command(name = "ardma", version)]
pub struct Arguments {
    /// The adaptor's device file.
    #[arg(long, global = true, default_value = ardma::DEFAULT_DEVICE)]
    pub device: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show this node, its peers, and what it exports.
    Info,
    /// Show all nodes, and what each exports to this one.
    List(list::Arguments),
    /// Export zeroed memory to other nodes and hold it.
    Export(export::Arguments),
    /// Store values or bytes into another node's memory or I/O space, and check.
    Write(access::WriteArguments),
    /// Load bytes from another node's memory or I/O space, and check.
    Read(access::ReadArguments),
    /// Ask whether the accesses to blocks were executed since their last check, and clear their errors.
    Check(access::CheckArguments),
    /// Show the blocks that have errors now, whichever program made the accesses; their errors stay.
    Failed(assurance::FailedArguments),
    /// Copy a file to another node's memory or back by the DMA engine, with a check of each operation.
    Copy(copy::Arguments),
    /// Add to 8 bytes of another node's memory, as one step for everybody.
    Add(atomic::AddArguments),
    /// Replace 8 bytes of another node's memory if they have an expected value; status 1 if not.
    Swap(atomic::SwapArguments),
    /// Measure bandwidth and latency to another node.
    Perf(perf::Arguments),
    /// Send messages to a doorbell of another node, and check.
    Ring(message::RingArguments),
    /// Open doorbells of this node, and show the messages that come.
    Listen(message::ListenArguments),
    /// Wait for a link to another node.
    Wait(info::WaitArguments),
    /// Take note of a log overflow: any earlier access to the node may have failed.
    Ack {
        /// The node.
        #[arg(value_parser = parse_node)]
        node: u8,
    },
    /// Reset the adaptor: all windows of this guest and all logged errors are lost.
    Reset,
    /// Test adaptor and driver; the result is in TAP version 14.
    Test(crate::suite::Arguments),
}

/// Why the tool does not exit with 0.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The library says why.
    #[error(transparent)]
    Library(#[from] ardma::Error),
    /// A file of the user's.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Standard output or a signal could not be used.
    #[error("standard input or output: {0}")]
    Output(#[from] io::Error),
    /// The command makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A comparison did not hold.
    #[error("byte {at} differs: the file has {file:#04x}, the memory at {place} {memory:#04x}")]
    Different {
        /// Offset in the file.
        at: u64,
        /// The same byte in the other node's memory.
        place: Place,
        /// The file's byte.
        file: u8,
        /// The memory's byte.
        memory: u8,
    },
    /// What was looked for or waited for is not there.
    #[error("{0}")]
    Nothing(String),
    /// There was no way to a node.
    #[error("{error}; {}", advice(*node, *own))]
    NoRoute {
        /// What failed.
        error: ardma::Error,
        /// The node.
        node: u8,
        /// This node.
        own: u32,
    },
    /// An access failed, and the output said so.
    #[error("failed")]
    Told,
}

impl Failure {
    /// What the shell gets.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Told
            | Self::Nothing(_)
            | Self::Different { .. }
            | Self::NoRoute { .. }
            | Self::Library(
                ardma::Error::Access { .. }
                | ardma::Error::Reset { .. }
                | ardma::Error::Operation { .. }
                | ardma::Error::QueueLost { .. }
                | ardma::Error::QueueSlow { .. },
            ) => 1,
            Self::Usage(_)
            | Self::Library(
                ardma::Error::Parse(_)
                | ardma::Error::Outside { .. }
                | ardma::Error::Misaligned { .. }
                | ardma::Error::NotMemory { .. },
            ) => 2,
            Self::Library(_) | Self::File { .. } | Self::Output(_) => 3,
        }
    }
}

/// What to do where there is no way to a node.
fn advice(node: u8, own: u32) -> String {
    if u32::from(node) == own {
        format!("node {node} is this node itself, and only other nodes' memory is reached")
    } else {
        format!("the adaptor knows no node {node}, or no way to it (see ardma list)")
    }
}

/// Says more of a failure for which there was no way to the node.
fn with_advice(adaptor: &Adaptor, failure: Failure) -> Failure {
    let Failure::Library(error) = failure else { return failure };
    let (place, status) = match &error {
        ardma::Error::Access { place, status, .. } | ardma::Error::Operation { place, status, .. } => {
            (place, status)
        }
        _ => return error.into(),
    };
    if status.write() != Code::NoRoute && status.read() != Code::NoRoute {
        return error.into();
    }
    match adaptor.info() {
        Ok(info) => Failure::NoRoute { node: place.node, own: info.node, error },
        Err(_) => error.into(),
    }
}

/// What clap has to say: help as it is, and what is wrong with the command line in one line.
pub fn explain_usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{
        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion, InvalidSubcommand,
    };
    match error.kind() {
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nobody can be told where this fails.
            let _ = error.print();
        }
        InvalidSubcommand => eprintln!("ardma: {} (see ardma --help)", problem(&error.render().to_string())),
        _ => eprintln!("ardma: {}", problem(&error.render().to_string())),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The problem in clap's text, behind which follow the usage and hints.
fn problem(text: &str) -> String {
    let ends = ["\n\nUsage:", "\n\nFor more information", "\n\n  tip:"];
    let problem = ends.iter().fold(text, |text, end| text.split(end).next().unwrap_or(text));
    problem.strip_prefix("error: ").unwrap_or(problem).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A file's failure, with its name.
pub fn file_failure(path: &std::path::Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_owned();
    move |source| Failure::File { path, source }
}

/// A number of bytes as people read it: `512 B`, `256 MiB`, `9.1 MiB`.
pub fn human(bytes: u64) -> String {
    let units = [("TiB", 40_u32), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let scale = |bits| 1_u64 << bits;
    match units.into_iter().find(|&(_, bits)| bytes >= scale(bits)) {
        None => format!("{bytes} B"),
        Some((unit, bits)) if bytes.is_multiple_of(scale(bits)) => format!("{} {unit}", bytes >> bits),
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / scale(bits) as f64),
    }
}

/// Parses `NODE:OFFSET` for the command line.
pub fn parse_place(text: &str) -> Result<Place, ardma::ParseError> {
    text.parse()
}

/// Carries out a command.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    if let Command::Test(test) = &arguments.command {
        return crate::suite::run(&arguments.device, test, out);
    }
    if matches!(arguments.command, Command::Reset) {
        return Ok(Adaptor::reset_device(&arguments.device)?);
    }
    let adaptor = Adaptor::open(&arguments.device)?;
    carry_out(&adaptor, arguments, out).map_err(|failure| with_advice(&adaptor, failure))
}

fn carry_out(adaptor: &Adaptor, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    match &arguments.command {
        Command::Info => info::run(&arguments.device, adaptor, out),
        Command::List(list) => list::run(adaptor, list, out),
        Command::Export(export) => export::run(adaptor, export, out),
        Command::Write(write) => access::write(adaptor, write, out),
        Command::Read(read) => access::read(adaptor, read, out),
        Command::Check(check) => access::check(adaptor, check, out),
        Command::Failed(failed) => assurance::failed(adaptor, failed, out),
        Command::Copy(copy) => copy::run(adaptor, copy, out),
        Command::Add(add) => atomic::add(adaptor, add, out),
        Command::Swap(swap) => atomic::swap(adaptor, swap, out),
        Command::Perf(perf) => perf::run(adaptor, perf, out),
        Command::Ring(ring) => message::ring(adaptor, ring, out),
        Command::Listen(listen) => message::listen(adaptor, listen, out),
        Command::Wait(wait) => info::wait(adaptor, wait, out),
        Command::Ack { node } => info::acknowledge(adaptor, *node),
        Command::Reset | Command::Test(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_wrong_with_the_command_line_is_one_line() {
        let told =
            |arguments: &[&str]| problem(&Arguments::try_parse_from(arguments).unwrap_err().to_string());
        for (arguments, line) in [
            (
                &["ardma", "write", "2:0"][..],
                "the following required arguments were not provided: <VALUE>...",
            ),
            (&["ardma", "write", "2:0", "-5"], "unexpected argument '-5' found"),
            (
                &["ardma", "list", "300"],
                "invalid value '300' for '[NODE]': '300' is not a node id: they go from 0 to 255",
            ),
            (
                &["ardma", "read", "2:0", "--size", "3"],
                "invalid value '3' for '--size <SIZE>' [possible values: 1, 2, 4, 8]",
            ),
        ] {
            assert_eq!(told(arguments), line);
        }
    }

    #[test]
    fn where_there_is_no_way_the_node_is_explained() {
        let told = |node| {
            let status = ardma::Status::from_bits(0x81);
            let (place, opcode) = (Place::memory(node, 0), ardma::Opcode::Write);
            let cause = ardma::Code::NoRoute;
            let error = ardma::Error::Operation { opcode, place, length: 8, done: 0, status, cause };
            Failure::NoRoute { error, node, own: 1 }.to_string()
        };
        assert!(told(1).ends_with(
            "no route (0x81); node 1 is this node itself, and only other nodes' memory is reached"
        ));
        assert!(told(9).ends_with("the adaptor knows no node 9, or no way to it (see ardma list)"));
    }

    #[test]
    fn bytes_are_told_as_people_read_them() {
        let told = [0, 1023, 1024, 9_542_042, 5 << 30, 3 << 50].map(human);
        assert_eq!(told, ["0 B", "1023 B", "1 KiB", "9.1 MiB", "5 GiB", "3072 TiB"]);
    }
}
