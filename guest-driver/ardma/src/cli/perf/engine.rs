//! Measurements of the DMA engine.

use super::{FILL, Run, Test, Times};
use crate::cli::Failure;
use ardma::{Adaptor, Completion, INLINE, LocalRights, Memory, Operation, Queue, QueueOptions, Registered};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Nothing takes so long while the adaptor works.
const LONG: Duration = Duration::from_secs(60);

pub fn measure(adaptor: &Adaptor, run: &Run) -> Result<Times, Failure> {
    let memory = Memory::new(run.size)?;
    memory.fill(FILL);
    let memory = adaptor.register(memory, LocalRights::ALL)?;
    // A latency is measured without sleeping, as perftest does.
    let options = QueueOptions { entries: run.depth, scatter: 0, poll: LONG, ..QueueOptions::default() };
    let queues = (0..run.queues.max(1)).map(|_| Ok(Lane::new(adaptor.connect(&options)?)));
    let mut queues: Vec<Lane> = queues.collect::<Result<_, Failure>>()?;
    match run.test {
        Test::WriteLat | Test::ReadLat => {
            let mut turn = 0_usize;
            let count = queues.len();
            Times::of(run, || {
                turn = turn.wrapping_add(1);
                let Some(lane) = turn.checked_rem(count).and_then(|at| queues.get_mut(at)) else {
                    return Ok(());
                };
                lane.queue.post(operation(run, &memory)?)?;
                lane.queue.wait(LONG)?.map(Completion::check).transpose()?;
                Ok(())
            })
        }
        Test::WriteBw | Test::ReadBw => {
            let mut warm = Times::default();
            pour(run, &memory, &mut queues, run.warm_up(), &mut warm)?;
            let mut times = Times::default();
            let start = Instant::now();
            pour(run, &memory, &mut queues, run.iterations, &mut times)?;
            times.total = start.elapsed();
            Ok(times)
        }
    }
}

/// Small writes need no memory of their own.
fn operation(run: &Run, memory: &Registered) -> Result<Operation, Failure> {
    let size = usize::try_from(run.size).unwrap_or(usize::MAX);
    Ok(match [FILL; INLINE].get(..size) {
        Some(bytes) if run.test.writes() => Operation::write_bytes(bytes, run.place)?,
        _ if run.test.writes() => Operation::write(memory.part(0, run.size)?, run.place),
        _ => Operation::read(run.place, memory.part(0, run.size)?),
    })
}

/// A queue, and when its operations under way were posted.
struct Lane {
    queue: Queue,
    posted: VecDeque<Instant>,
}

impl Lane {
    const fn new(queue: Queue) -> Self {
        Self { queue, posted: VecDeque::new() }
    }
}

/// Keeps all queues full until so many operations have ended.
fn pour(
    run: &Run,
    memory: &Registered,
    lanes: &mut [Lane],
    count: u64,
    times: &mut Times,
) -> Result<(), Failure> {
    let mut left = count;
    let mut ended = 0_u64;
    let template = operation(run, memory)?;
    let batch = usize::try_from(run.depth / 4).unwrap_or(1).min(16);
    let mut last = Instant::now();
    while ended < count {
        let before = ended;
        for lane in lanes.iter_mut() {
            // Posted in batches, so that the adaptor is told of many at once.
            let room = lane.queue.room();
            if left > 0 && room >= batch {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(room);
                let now = Instant::now();
                lane.queue.post_all(std::iter::repeat_n(&template, count).cloned())?;
                lane.posted.extend(std::iter::repeat_n(now, count));
                left = left.saturating_sub(count as u64);
            }
            let now = Instant::now();
            while let Some(completion) = lane.queue.poll()? {
                completion.check()?;
                ended = ended.saturating_add(1);
                times
                    .each
                    .extend(lane.posted.pop_front().map(|posted| now.saturating_duration_since(posted)));
            }
        }
        if ended > before {
            last = Instant::now();
        } else if last.elapsed() > LONG {
            let under_way = lanes.iter().map(|lane| lane.queue.under_way()).sum();
            return Err(ardma::Error::QueueSlow { under_way, time: LONG }.into());
        }
    }
    Ok(())
}
