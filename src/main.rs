//! The command line.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use assured_rdma::certs;
use assured_rdma::config::{Config, RawConfig, RawRouterConfig, RouterConfig, read_file};
use assured_rdma::net::{Credentials, Owner, TlsFiles};
use assured_rdma::{logging, node, router_process};

/// Exit status where what the user asked for makes no sense; 1 is for what went wrong in doing it.
const BAD_USAGE: u8 = 2;

/// A virtual PCI RDMA network adaptor for QEMU guests that tells the truth about every remote access.
#[derive(Parser)]
#[command(name = "assured-rdma", version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an adaptor: a PCI device for each of one or more guests, joined with those of other nodes
    Adaptor(Box<AdaptorArgs>),
    /// Run a router: joins adaptors and other routers, which then need no list of each other
    Router(Box<RouterArgs>),
    /// Make a private authority, and certificates for the nodes and routers of a mesh
    Certs(CertsArgs),
}

#[derive(Args)]
struct CertsArgs {
    /// Directory for the files; one with an authority in it gets certificates of that authority
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// The nodes, such as 1-8 or 1,3,5-7
    #[arg(long, value_name = "IDS")]
    nodes: certs::Nodes,

    /// How many buses each of these adaptors has; its certificate is for as many node ids, from its own on
    #[arg(long, value_name = "N", default_value = "1")]
    buses: certs::BusCount,

    /// Make certificates anew that are there already; the authority stays
    #[arg(long)]
    force: bool,
}

/// Where the configuration comes from, and whether it is all that is wanted.
#[derive(Args)]
struct Source {
    /// TOML file with the same keys as these options, which go over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print the configuration as a TOML file, defaults filled in, and exit
    #[arg(long)]
    print_config: bool,
}

#[derive(Args)]
struct AdaptorArgs {
    #[command(flatten)]
    source: Source,

    #[command(flatten)]
    settings: RawConfig,
}

#[derive(Args)]
struct RouterArgs {
    #[command(flatten)]
    source: Source,

    #[command(flatten)]
    settings: RawRouterConfig,
}

/// What ends the process: a line for the user, and the status.
struct Failure {
    line: String,
    status: u8,
}

impl Failure {
    fn usage(error: &impl ToString) -> Self {
        Self { line: error.to_string(), status: BAD_USAGE }
    }

    fn running(error: &impl ToString) -> Self {
        Self { line: error.to_string(), status: 1 }
    }

    fn tell(&self) -> ExitCode {
        logging::complain(&self.line);
        ExitCode::from(self.status)
    }
}

fn main() -> ExitCode {
    let command = match parse(std::env::args_os()) {
        Ok(command) => command,
        Err(status) => return status,
    };
    let result = match command {
        Command::Adaptor(args) => adaptor(*args),
        Command::Router(args) => router(*args),
        Command::Certs(args) => make_certs(&args),
    };
    let status = match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    };
    logging::finish();
    status
}

fn adaptor(args: AdaptorArgs) -> Result<(), Failure> {
    let mut raw = args.settings;
    if let Some(path) = args.source.config {
        raw = raw.or(read_file(&path).map_err(|error| Failure::usage(&error))?);
    }
    let config = Config::new(&raw).map_err(|error| Failure::usage(&error))?;
    let credentials = load_credentials(config.tls.as_ref(), Owner::Nodes(config.buses.span()))?;
    if args.source.print_config {
        return show(&config.to_toml());
    }
    logging::begin(config.log_level);
    node::run(&config, credentials).map_err(|error| Failure::running(&error))
}

fn router(args: RouterArgs) -> Result<(), Failure> {
    let mut raw = args.settings;
    if let Some(path) = args.source.config {
        raw = raw.or(read_file(&path).map_err(|error| Failure::usage(&error))?);
    }
    let config = RouterConfig::new(&raw).map_err(|error| Failure::usage(&error))?;
    let credentials = load_credentials(config.tls.as_ref(), Owner::Router)?;
    if args.source.print_config {
        return show(&config.to_toml());
    }
    logging::begin(config.log_level);
    router_process::run(&config, credentials).map_err(|error| Failure::running(&error))
}

fn load_credentials(files: Option<&TlsFiles>, own: Owner) -> Result<Option<Credentials>, Failure> {
    let credentials = files.map(|files| Credentials::load(files, own)).transpose();
    credentials.map_err(|error| Failure::usage(&error))
}

fn make_certs(args: &CertsArgs) -> Result<(), Failure> {
    let made = certs::make(&args.directory, &args.nodes, args.buses, args.force);
    let made = made.map_err(|error| match error {
        certs::CertsError::Exists { .. } | certs::CertsError::NotFirst { .. } => Failure::usage(&error),
        _ => Failure::running(&error),
    })?;
    show(&made)
}

/// Prints what was asked for. Where nobody reads on, as behind `| head`, that is no failure.
fn show(text: &impl ToString) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.to_string().as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::running(&format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Takes the command line apart. Asked for help or the version, it prints that; what makes no sense gets one line.
fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, ExitCode> {
    let error = match CommandLine::try_parse_from(args) {
        Ok(line) => return Ok(line.command),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Err(match show(&error.render()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.tell(),
        }),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = write!(std::io::stderr(), "{}", error.render());
            Err(ExitCode::from(BAD_USAGE))
        }
        _ => {
            let text = error.render().to_string();
            // What follows is the usage, which --help gives in full.
            let problem = text.split("\n\nUsage:").next().unwrap_or_default();
            let problem = problem.split("\n\nFor more information").next().unwrap_or_default();
            let problem = problem.strip_prefix("error: ").unwrap_or(problem);
            logging::complain(&problem.replace("\n\n", "; "));
            Err(ExitCode::from(BAD_USAGE))
        }
    }
}
