//! Commands on standard input, for subcommands that go on until they are told to end.

use std::io::{self, BufRead, StdinLock};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// How long a job in the background waits before it looks whether it has the terminal.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Standard input as lines, which are taken as they come.
#[derive(Debug)]
pub struct Commands {
    input: StdinLock<'static>,
    /// A line of which the end has not come yet.
    line: Vec<u8>,
}

impl Commands {
    /// Nobody else may read standard input from now on.
    pub fn new() -> Self {
        Self { input: io::stdin().lock(), line: Vec::new() }
    }

    /// The file to wait for. None while another job has the terminal: it would stop this one for reading; so look again
    /// after [`LOOK_AGAIN`].
    pub fn file(&self) -> Option<RawFd> {
        let file = self.input.as_raw_fd();
        // SAFETY: these calls take nothing but a number.
        let (foreground, own) = unsafe { (libc::tcgetpgrp(file), libc::getpgrp()) };
        // It fails where the input is no terminal, or not the one of this session.
        (foreground < 0 || foreground == own).then_some(file)
    }

    /// The lines that are there, without those that are empty; `None` at the end. One read at most, so that a signal is seen while
    /// a line is incomplete.
    pub fn take(&mut self) -> io::Result<Option<Vec<String>>> {
        let bytes = self.input.fill_buf()?.to_vec();
        self.input.consume(bytes.len());
        Ok((!bytes.is_empty()).then(|| split(&mut self.line, &bytes)))
    }
}

/// Adds bytes to an incomplete line, and takes out those that are complete.
fn split(line: &mut Vec<u8>, bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    for &byte in bytes {
        if byte == b'\n' {
            lines.push(String::from_utf8_lossy(&std::mem::take(line)).trim().to_owned());
        } else {
            line.push(byte);
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Waits until one of the files is readable or ended, at most for `limit`. Returns which are.
pub fn wait<const N: usize>(files: [Option<RawFd>; N], limit: Option<Duration>) -> io::Result<[bool; N]> {
    // A negative file is not looked at.
    let mut entries = files.map(|fd| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 });
    let time = limit.map_or(-1, |limit| i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
    loop {
        // SAFETY: pointer and number are the array's.
        if unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, time) } >= 0 {
            return Ok(entries.map(|entry| entry.revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_taken_apart() {
        let mut line = Vec::new();
        assert!(split(&mut line, b"ma").is_empty());
        assert_eq!(split(&mut line, b"sk\n\n  \n unmask \npau"), ["mask", "unmask"]);
        assert_eq!(split(&mut line, b"se\n"), ["pause"]);
    }
}
