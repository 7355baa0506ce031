//! Lines on their way to a writer that may stand still: whoever has one to write puts it here and goes on.
//!
//! Invariant: at most [`LIMIT`] bytes wait. While lines are lost none is queued, so that the line which tells how many were lost
//! stands where they are missing.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that may wait to be written.
const LIMIT: usize = 256 << 10;
/// The time between two attempts at a writer that does not block.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<u8>,
    /// Lines that found no room since the last batch was taken.
    lost: u64,
    /// A batch was taken and is not written yet.
    is_writing: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// Nothing waits and nothing is being written.
    drained: Condvar,
}

/// See the module. Clones are the same queue.
#[derive(Clone, Debug)]
pub struct Queue(Arc<Shared>);

impl Queue {
    /// A queue with a thread that writes it to standard error.
    ///
    /// # Errors
    /// Where there can be no thread.
    pub fn to_stderr() -> io::Result<Self> {
        Self::to(io::stderr())
    }

    fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let queue = Self(Arc::default());
        let shared = Arc::clone(&queue.0);
        std::thread::Builder::new().name("log".into()).spawn(move || shared.write_to(out))?;
        Ok(queue)
    }

    /// Queues a line, with its end, or counts it where there is no room.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.0.lock();
        if state.lost > 0 || state.waiting.len().saturating_add(line.len()) > LIMIT {
            state.lost = state.lost.saturating_add(1);
        } else {
            state.waiting.extend(line);
        }
        drop(state);
        self.0.filled.notify_one();
    }

    /// Waits until everything is written, at most so long.
    pub fn flush(&self, patience: Duration) {
        let state = self.0.lock();
        let busy = |state: &mut State| state.is_writing || !state.waiting.is_empty() || state.lost > 0;
        drop(self.0.drained.wait_timeout_while(state, patience, busy));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it; and if, the bytes are still bytes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes batch after batch, for as long as the process lives.
    fn write_to(&self, mut out: impl Write) {
        loop {
            let (batch, lost) = self.take();
            // What can't be written has nowhere else to go.
            let (first, second) = batch.as_slices();
            let _ = write_all(&mut out, first).and_then(|()| write_all(&mut out, second));
            if lost > 0 {
                let line = format!(
                    "assured-rdma: {lost} lines of the log were lost here: nobody read standard error\n"
                );
                let _ = write_all(&mut out, line.as_bytes());
            }
            let _ = out.flush();
            self.lock().is_writing = false;
        }
    }

    fn take(&self) -> (VecDeque<u8>, u64) {
        let mut state = self.lock();
        while state.waiting.is_empty() && state.lost == 0 {
            self.drained.notify_all();
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_writing = true;
        (core::mem::take(&mut state.waiting), core::mem::take(&mut state.lost))
    }
}

/// As [`Write::write_all`], also where somebody else has made the file non-blocking: then it is tried again after a while.
fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A queue as env_logger takes it: each write is a line.
#[derive(Debug)]
pub struct QueueWriter(pub Queue);

impl Write for QueueWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::time::Instant;

    #[test]
    fn a_reader_that_stands_still_holds_nobody_up_and_learns_how_much_it_missed() {
        let (reader, writer) = io::pipe().unwrap();
        write_to_a_slow_reader(reader, writer);
    }

    /// Standard error may be shared with a program that has made it so.
    #[test]
    fn nor_are_lines_lost_uncounted_where_the_writer_does_not_block() {
        let (reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        write_to_a_slow_reader(reader, writer);
    }

    fn write_to_a_slow_reader(reader: io::PipeReader, writer: io::PipeWriter) {
        let queue = Queue::to(writer).unwrap();
        let line = |number: u32| format!("{number:0>99}\n");
        // Far more than pipe and queue hold.
        let count = 20_000;
        let begin = Instant::now();
        for number in 0..count {
            queue.push(line(number).as_bytes());
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "it waited for the reader");
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        let (mut next, mut lost) = (0, 0);
        while next < count {
            let found = lines.next().unwrap();
            if let Some(rest) = found.strip_prefix("assured-rdma: ") {
                let missing: u32 = rest.split(' ').next().unwrap().parse().unwrap();
                (next, lost) = (next + missing, lost + missing);
            } else {
                assert_eq!(format!("{found}\n"), line(next));
                next += 1;
            }
        }
        assert!(lost > count / 2, "{lost} of {count} were lost");
        queue.push(b"and on it goes\n");
        assert_eq!(lines.next().unwrap(), "and on it goes");
    }

    #[test]
    fn what_is_queued_is_written_before_the_end() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = Queue::to(writer).unwrap();
        queue.push(b"last words\n");
        queue.flush(Duration::from_secs(60));
        let mut found = [0; 11];
        reader.read_exact(&mut found).unwrap();
        assert_eq!(&found, b"last words\n");
    }

    #[test]
    fn an_end_does_not_wait_for_a_reader_that_stands_still() {
        let (_reader, writer) = io::pipe().unwrap();
        let queue = Queue::to(writer).unwrap();
        queue.push(&[b'x'; 200 << 10]);
        let begin = Instant::now();
        queue.flush(Duration::from_millis(20));
        assert!(begin.elapsed() >= Duration::from_millis(20));
    }
}
