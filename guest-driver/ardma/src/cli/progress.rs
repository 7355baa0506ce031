//! How far a long copy is: a bar on a terminal, a line for every tenth elsewhere. Standard error only.

use super::human;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

/// The progress of one copy.
pub struct Progress {
    what: &'static str,
    total: u64,
    start: Instant,
    bar: Option<ProgressBar>,
    tenths: u64,
}

impl Progress {
    /// Starts at 0 of `total` bytes.
    pub fn new(what: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{msg} [{wide_bar}] {binary_bytes}/{binary_total_bytes} {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.with_message(what)
        });
        Self { what, total, start: Instant::now(), bar, tenths: 0 }
    }

    /// So many bytes are done, of which `moved` went over the network.
    pub fn set(&mut self, done: u64, moved: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            return;
        }
        let tenths = tenths(done, self.total);
        if tenths > self.tenths {
            self.tenths = tenths;
            eprintln!(
                "{}: {} % of {} ({})",
                self.what,
                tenths.saturating_mul(10),
                human(self.total),
                self.rate(moved)
            );
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Bytes a second since the start, for people.
    pub fn rate(&self, moved: u64) -> String {
        format!("{}/s", human((moved as f64 / self.seconds().max(1e-6)) as u64))
    }
}

/// How many tenths of `total` are done.
fn tenths(done: u64, total: u64) -> u64 {
    u64::try_from(u128::from(done).saturating_mul(10).checked_div(u128::from(total)).unwrap_or(10))
        .unwrap_or(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenths_do_not_overflow_and_end_at_ten() {
        assert_eq!([0, 9, 10, 99, 100].map(|done| tenths(done, 100)), [0, 0, 1, 9, 10]);
        assert_eq!(tenths(u64::MAX, u64::MAX), 10);
        assert_eq!(tenths(0, 0), 10);
    }
}
