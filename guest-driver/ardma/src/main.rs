//! `ardma`, the command-line tool of an assured-rdma guest.
//!
//! Results go to standard output, a line each, in forms that scripts can rely on; progress and errors go
//! to standard error. Exit status: 0 all well, 1 an access failed or a test did, 2 bad usage, 3 something
//! else went wrong (no adaptor, a file, an export that was refused).

mod cli;
mod suite;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match cli::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return cli::explain_usage(&error),
    };
    cli::signals::explain_bus_error();
    let mut out = std::io::stdout().lock();
    let result = cli::run(&arguments, &mut out).and_then(|()| out.flush().map_err(cli::Failure::Output));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, cli::Failure::Told) {
                eprintln!("ardma: {failure}");
            }
            ExitCode::from(failure.exit_status())
        }
    }
}
