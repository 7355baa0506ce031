//! Two emulated guests that reach each other's memory in three ways. They are the business of a script, which prints its figures
//! itself and writes guests.json. It takes minutes, and so runs only where it is asked for by its name.

use std::path::Path;
use std::process::Command;

/// What it is asked for by.
pub const NAME: &str = "guests";
/// For the list of groups.
pub const ABOUT: &str = "only by this name: QEMU guests, against rdma_rxe and shared memory";

/// Whether the script came to a good end. It does not outlive this process.
pub fn run(fast: bool, rounds: Option<u16>) -> bool {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/guests/run");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(script);
    if fast {
        command.arg("--fast");
    }
    if let Some(rounds) = rounds {
        command.arg("--rounds").arg(rounds.to_string());
    }
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("benches/guests/run cannot be started by setpriv (Debian: util-linux): {error}");
            false
        }
    }
}
