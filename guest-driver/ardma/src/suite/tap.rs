//! Test Anything Protocol, version 14: what a test found, and how it is written.

use std::fmt;
use std::io::{self, Write};

/// Why a test did not pass.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// Something that it needs is not there; nothing was found out.
    Skip(String),
    /// What it tests is wrong.
    Fail(String),
}

impl From<ardma::Error> for Problem {
    fn from(error: ardma::Error) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Fail(error.to_string())
    }
}

/// The problem of a test that lacks this.
pub fn skip(reason: &str) -> Problem {
    Problem::Skip(reason.to_owned())
}

/// What a test found.
pub type Verdict = Result<(), Problem>;

/// Fails the test unless the two are equal.
pub fn equal<T: PartialEq + fmt::Debug>(what: impl fmt::Display, found: T, expected: T) -> Verdict {
    holds(found == expected, || format!("{what}: found {found:x?}, expected {expected:x?}"))
}

/// Fails the test with this text unless the condition holds.
pub fn holds(condition: bool, text: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { Err(Problem::Fail(text())) }
}

/// Fails the test unless the call failed with this errno.
pub fn refused(what: &str, result: io::Result<()>, errno: i32) -> Verdict {
    let expected = io::Error::from_raw_os_error(errno);
    match result {
        Ok(()) => Err(Problem::Fail(format!("{what}: was accepted, expected: {expected}"))),
        Err(error) if error.raw_os_error() == Some(errno) => Ok(()),
        Err(error) => Err(Problem::Fail(format!("{what}: found: {error}, expected: {expected}"))),
    }
}

/// Writes results and counts them.
pub struct Tap<'a> {
    out: &'a mut dyn Write,
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl<'a> Tap<'a> {
    /// Begins a stream of `count` results.
    pub fn begin(out: &'a mut dyn Write, count: usize) -> io::Result<Self> {
        writeln!(out, "TAP version 14\n1..{count}")?;
        Ok(Self { out, passed: 0, failed: 0, skipped: 0 })
    }

    /// Writes one result.
    pub fn result(&mut self, name: &str, verdict: &Verdict) -> io::Result<()> {
        let number = self.passed.saturating_add(self.failed).saturating_add(self.skipped).saturating_add(1);
        let name = escape(name);
        match verdict {
            Ok(()) => {
                self.passed = self.passed.saturating_add(1);
                writeln!(self.out, "ok {number} - {name}")?;
            }
            Err(Problem::Skip(reason)) => {
                self.skipped = self.skipped.saturating_add(1);
                writeln!(self.out, "ok {number} - {name} # SKIP {}", reason.replace('\n', " "))?;
            }
            Err(Problem::Fail(message)) => {
                self.failed = self.failed.saturating_add(1);
                writeln!(self.out, "not ok {number} - {name}\n  ---\n  message: |")?;
                for line in message.lines() {
                    writeln!(self.out, "    {line}")?;
                }
                writeln!(self.out, "  ...")?;
            }
        }
        self.out.flush()
    }

    /// Writes the numbers; returns whether nothing failed.
    pub fn end(self) -> io::Result<bool> {
        writeln!(self.out, "# {} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)?;
        self.out.flush()?;
        Ok(self.failed == 0)
    }
}

/// A `#` in a name would begin a directive.
fn escape(name: &str) -> String {
    name.replace('\\', "\\\\").replace('#', "\\#").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_tells_pass_skip_and_failure_apart() {
        let mut out = Vec::new();
        let mut tap = Tap::begin(&mut out, 3).unwrap();
        tap.result("one # is fine", &Ok(())).unwrap();
        tap.result("two", &Err(Problem::Skip("no --peer".into()))).unwrap();
        tap.result("three", &Err(Problem::Fail("first line\nsecond: line".into()))).unwrap();
        assert!(!tap.end().unwrap());
        let expected = "\
TAP version 14
1..3
ok 1 - one \\# is fine
ok 2 - two # SKIP no --peer
not ok 3 - three
  ---
  message: |
    first line
    second: line
  ...
# 1 passed, 1 failed, 1 skipped
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn skipped_tests_are_no_failure() {
        let mut out = Vec::new();
        let mut tap = Tap::begin(&mut out, 1).unwrap();
        tap.result("one", &Err(Problem::Skip(String::new()))).unwrap();
        assert!(tap.end().unwrap());
    }

    #[test]
    fn a_refusal_has_to_be_the_right_one() {
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        assert!(refused("call", failed(libc::EINVAL), libc::EINVAL).is_ok());
        assert!(refused("call", failed(libc::EIO), libc::EINVAL).is_err());
        assert!(refused("call", Ok(()), libc::EINVAL).is_err());
    }
}
