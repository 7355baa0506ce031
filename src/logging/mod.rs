//! The process's log, on standard error.
//!
//! Writing a line never waits for whoever reads it: lines go into a bounded queue, and a thread of
//! its own writes them out (`queue`). What comes again and again is limited for the whole program
//! here, by the place in the code that says it (`repeats`).

pub mod filter;
mod queue;
mod repeats;

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use env_logger::WriteStyle;
use log::{LevelFilter, Log, Metadata, Record};

use self::filter::Filter;
use self::queue::{Queue, QueueWriter};
use self::repeats::Repeats;
use crate::event_loop::Clock;

/// Target of the lines that are said of each node or router: as many as there can be may come or go at once.
pub const NODES: &str = "assured_rdma::nodes";

/// How long the end of the process may wait for what is still queued.
const FLUSH_TIME: Duration = Duration::from_millis(500);

/// The queue of the process's log, once there is one.
static QUEUE: OnceLock<Queue> = OnceLock::new();

struct Logger {
    lines: env_logger::Logger,
    repeats: Repeats,
}

/// Begins to log from `level` on; what the environment variable RUST_LOG says goes over it. Has no effect where the process logs already.
pub fn begin(level: LevelFilter) {
    let Ok(queue) = Queue::to_stderr() else {
        // Without a thread the process would not get far.
        return complain("there is no log: no thread could be started");
    };
    let filter = Filter::from_env();
    let mut builder = env_logger::Builder::new();
    builder.filter_level(level).parse_filters(filter.usable()).format_target(false);
    builder.write_style(style()).target(env_logger::Target::Pipe(Box::new(QueueWriter(queue.clone()))));
    let lines = builder.build();
    let most = lines.filter();
    if QUEUE.set(queue).is_err()
        || log::set_boxed_logger(Box::new(Logger { lines, repeats: Repeats::default() })).is_err()
    {
        return;
    }
    log::set_max_level(most);
    for problem in filter.problems() {
        log::warn!("{problem}");
    }
}

/// Colours where a person looks, unless RUST_LOG_STYLE says otherwise.
fn style() -> WriteStyle {
    let is = |name, value: &str| std::env::var_os(name).is_some_and(|found| found == value);
    let set = |name| std::env::var_os(name).is_some_and(|found| !found.is_empty());
    if is("RUST_LOG_STYLE", "always") {
        WriteStyle::Always
    } else if is("RUST_LOG_STYLE", "never") || set("NO_COLOR") || is("TERM", "dumb") {
        WriteStyle::Never
    } else if std::io::stderr().is_terminal() {
        WriteStyle::Always
    } else {
        WriteStyle::Never
    }
}

/// Gives what is queued some time to be written, before the process ends.
pub fn finish() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIME);
    }
}

/// One line on standard error, whatever is in `text`. Where the process logs, it waits no longer than a line of the log does.
pub fn complain(text: &str) {
    let words: Vec<_> = text.split_whitespace().collect();
    let line = format!("assured-rdma: {}\n", words.join(" "));
    match QUEUE.get() {
        Some(queue) => queue.push(line.as_bytes()),
        // There is nobody else to tell where this fails.
        None => drop(std::io::stderr().write_all(line.as_bytes())),
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.lines.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.lines.matches(record) {
            return;
        }
        match self.repeats.admit(Clock.now(), record) {
            None => {}
            Some(0) => self.lines.log(record),
            Some(left_out) => {
                let (args, level, target) = (record.args(), record.level(), record.target());
                let mut full = Record::builder();
                full.level(level).target(target).module_path(record.module_path());
                self.lines.log(
                    &full.args(format_args!("{args} ({left_out} more such lines were left out)")).build(),
                );
            }
        }
    }

    fn flush(&self) {
        finish();
    }
}
