//! Tests of the DMA engine with several processes: one that is killed takes nothing of the others with it.

use super::super::tap::{Problem, Verdict, equal, holds};
use super::{Case, Context, LONG, bench, case};
use ardma::{Operation, QueueOptions};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    case("a process that is killed in mid-transfer leaves the other queues alone", "Isolation", killed),
    case("a child of the process is refused, and ends nothing of its parent's", "Isolation", forked),
    case("what a killed process had registered can be registered again", "Isolation", all_given_back),
];

/// A process that writes to the scratch memory without end, until it is dropped.
struct Writer(Child);

impl Writer {
    fn start(context: &Context) -> Result<Self, Problem> {
        let place = format!("{}:{}", context.peer()?, context.arguments.offset.unwrap_or(0));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--device").arg(&context.device).args(["perf", "write_bw", &place]);
        command.args(["-s", "4K", "-n", "1000000000", "-q", "16", "-t", "16"]);
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }

    /// Kills it, and waits until it is gone, and with it all that the driver had for it.
    fn kill(mut self) -> Verdict {
        let early = self.0.try_wait()?;
        holds(early.is_none(), || format!("the process has ended by itself: {early:?}"))?;
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn killed(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    for round in 0..5 {
        let writer = Writer::start(context)?;
        // Its bytes arrive: it is in the midst of its work.
        bench.done(Operation::write_bytes(&[0; 8], bench.place)?)?;
        let start = Instant::now();
        while bench.bytes(0, 8)? != [0x5a; 8] {
            bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
            holds(start.elapsed() < LONG, || format!("round {round}: nothing of the process arrives"))?;
            std::thread::yield_now();
        }
        let read = Operation::read(bench.place, bench.memory.part(4096, 4096)?);
        let under_way = bench.queue.post_all(std::iter::repeat_n(read, 100))?;
        writer.kill()?;
        let mut ended = 0_usize;
        bench.queue.finish(LONG, |completion| {
            ended = ended.saturating_add(1);
            Ok::<_, Problem>(completion.check().map(drop)?)
        })?;
        equal("completions", ended, under_way)?;
        // Nothing of the dead process lands any more.
        bench.done(Operation::write_bytes(&[7; 8], bench.place)?)?;
        for _ in 0..100 {
            bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
            equal("what is there", bench.bytes(0, 8)?, vec![7; 8])?;
        }
    }
    Ok(())
}

fn forked(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
    let mut status = 0;
    // SAFETY: this process has one thread here; the child ends without the destructors of the parent.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = bench.queue.wait(Duration::ZERO).is_err()
            && bench.queue.post(Operation::fence()).is_err()
            && bench.memory.end().is_err()
            && context.adaptor.info().is_err();
        drop(bench);
        // SAFETY: the call takes no pointer.
        unsafe { libc::_exit(i32::from(!refused)) }
    }
    // SAFETY: the pointer is to one number.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    holds(child > 0 && ended == child, || format!("no child: {}", std::io::Error::last_os_error()))?;
    equal("the child's status", status, 0)?;
    for _ in 0..10 {
        bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
    }
    Ok(())
}

fn all_given_back(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    // More queues in all than an adaptor has at a time, each at another moment of its start.
    for reads in 0..20_u32 {
        let writer = Writer::start(context)?;
        for _ in 0..reads {
            bench.done(Operation::read(bench.place, bench.memory.part(0, 4096)?))?;
        }
        writer.kill()?;
    }
    let options = QueueOptions { entries: 4, scatter: 0, ..QueueOptions::default() };
    let queues = (0..100).map(|_| context.adaptor.connect(&options));
    drop(queues.collect::<Result<Vec<_>, _>>()?);
    Ok(())
}
