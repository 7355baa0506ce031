//! Tests of the DMA engine: what its operations do.

mod errors;
mod interface;
mod processes;

use super::remote::pattern;
use super::tap::{Problem, Verdict, equal, holds, skip};
use super::{Case, Context, SCRATCH};
use ardma::{
    Adaptor, Code, Completion, LocalRights, Memory, Operation, Place, Queue, QueueOptions, Registered,
};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    case("writes and reads of many sizes at odd offsets bring the same bytes", "No false OK", sizes),
    case("what a write brought is what loads find", "No false OK", loads_find),
    case("bytes in the entry itself arrive", "No false OK", inline),
    case("scatter lists are written and read in their order", "No false OK", scattered),
    case("a read or write of no bytes is refused", "No false OK", empty),
    case("completions come in the order of posting, each with its cookie", "Order, exactly once", order),
    case("of writes to the same bytes the last one counts", "Order, exactly once", last_write_counts),
    case("a read brings what was written just before it", "Order, exactly once", read_after_write),
    case("fence and fenced operations come after all before them", "Order, exactly once", fences),
    case("fetch-and-add and compare-and-swap return what was there", "Order, exactly once", atomics),
    case("fetch-and-adds of many queues are all there, once", "Order, exactly once", atomics_add_up),
    case("many queues are full at a time, and each gets its completions", "Isolation", many_queues),
    case("who sleeps is woken by an interrupt", "Bounded", interrupts),
    case("a write with a message to a doorbell that listens", "No false OK", message),
];

/// The other files' tests.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    [CASES, errors::CASES, interface::CASES, processes::CASES].into_iter().flatten()
}

const fn case(name: &'static str, contract: &'static str, run: fn(&Context) -> Verdict) -> Case {
    Case { group: "engine", name, contract, run }
}

/// No operation takes so long.
const LONG: Duration = Duration::from_secs(20);

/// Registered memory, a queue, and the scratch memory of the peer.
struct Bench {
    queue: Queue,
    memory: Registered,
    place: Place,
}

/// Registers memory, or skips the test where there is no engine.
fn register(adaptor: &Adaptor, length: u64, rights: LocalRights) -> Result<Registered, Problem> {
    match adaptor.register(Memory::new(length)?, rights) {
        Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Err(skip("there is no DMA engine here")),
        other => Ok(other?),
    }
}

fn bench(context: &Context) -> Result<Bench, Problem> {
    let offset = context.arguments.offset.ok_or_else(|| skip("no --peer and --offset given"))?;
    let place = Place::memory(context.peer()?, offset);
    context.scratch()?;
    let memory = register(&context.adaptor, SCRATCH.saturating_mul(2), LocalRights::ALL)?;
    Ok(Bench { queue: context.adaptor.connect(&QueueOptions::default())?, memory, place })
}

/// The next completion, whatever it says.
fn next(queue: &mut Queue) -> Result<Completion, Problem> {
    queue.wait(LONG)?.ok_or_else(|| Problem::Fail(format!("no completion in {LONG:?}")))
}

/// Posts one operation and waits for its end.
fn end_of(queue: &mut Queue, operation: Operation) -> Result<Completion, Problem> {
    queue.post(operation)?;
    next(queue)
}

impl Bench {
    /// An operation that has to be executed.
    fn done(&mut self, operation: Operation) -> Result<Completion, Problem> {
        Ok(end_of(&mut self.queue, operation)?.check()?)
    }

    /// The code of an operation that fails; the queue goes on after it.
    fn code(&mut self, operation: Operation) -> Result<Code, Problem> {
        let completion = end_of(&mut self.queue, operation)?;
        if !completion.status.is_ok() {
            self.queue.resume()?;
        }
        Ok(completion.code())
    }

    fn bytes(&self, offset: u64, length: usize) -> Result<Vec<u8>, Problem> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes)?;
        Ok(bytes)
    }
}

fn sizes(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    for (seed, size) in
        [1_u64, 7, 8, 9, 63, 64, 65, 511, 4095, 4096, 4097, 16_384, 65_000].into_iter().enumerate()
    {
        for (from, to) in [(0_u64, 0_u64), (3, 0), (0, 5), (4090, 13)] {
            let bytes = pattern(seed as u64, size as usize);
            bench.memory.write(from, &bytes)?;
            let place = bench.place.plus(to);
            let write = Operation::write(bench.memory.part(from, size)?, place);
            equal("bytes written", bench.done(write)?.bytes, size)?;
            let back = SCRATCH.saturating_add(from & 0xf);
            let read = Operation::read(place, bench.memory.part(back, size)?);
            equal("bytes read", bench.done(read)?.bytes, size)?;
            holds(bench.bytes(back, size as usize)? == bytes, || {
                format!("{size} bytes from {from:#x} to {to:#x} are not what was written")
            })?;
        }
    }
    Ok(())
}

fn loads_find(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let window = context.scratch()?;
    let bytes = pattern(77, 600);
    bench.memory.write(0, &bytes)?;
    bench.done(Operation::write(bench.memory.part(0, 600)?, bench.place.plus(4000)))?;
    let mut found = vec![0; 600];
    window.read_bytes(4000, &mut found)?;
    holds(found == bytes, || "loads find other bytes".to_owned())?;
    window.store(0x100, 0x1122_3344_5566_7788_u64)?;
    holds(window.check(0x100)?.is_ok(), || "the check of the store".to_owned())?;
    bench.done(Operation::read(bench.place.plus(0x100), bench.memory.part(0, 8)?))?;
    equal("what was stored", bench.bytes(0, 8)?, 0x1122_3344_5566_7788_u64.to_le_bytes().to_vec())
}

fn inline(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    for size in [1, 8, 15, 16, 17, 31, 32] {
        let bytes = pattern(size as u64, size);
        bench.done(Operation::write_bytes(&bytes, bench.place.plus(9))?)?;
        bench.done(Operation::read(bench.place.plus(9), bench.memory.part(0, size as u64)?))?;
        equal("bytes", bench.bytes(0, size)?, bytes)?;
    }
    Ok(())
}

fn scattered(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let bytes = pattern(5, 3000);
    let cuts = [(9000_u64, 1000_usize), (1, 1), (50_000, 1499), (4096, 500)];
    let mut parts = Vec::new();
    let mut rest = bytes.as_slice();
    for (at, length) in cuts {
        let (part, after) = rest.split_at(length.min(rest.len()));
        bench.memory.write(at, part)?;
        parts.push(bench.memory.part(at, length as u64)?);
        rest = after;
    }
    equal("bytes written", bench.done(Operation::write_scattered(parts, bench.place))?.bytes, 3000)?;
    bench.done(Operation::read(bench.place, bench.memory.part(SCRATCH, 3000)?))?;
    holds(bench.bytes(SCRATCH, 3000)? == bytes, || "the parts are not in their order".to_owned())?;
    let halves = vec![bench.memory.part(70_001, 1500)?, bench.memory.part(100_000, 1500)?];
    bench.done(Operation::read_scattered(bench.place, halves))?;
    let both = [bench.bytes(70_001, 1500)?, bench.bytes(100_000, 1500)?].concat();
    holds(both == bytes, || "what was read into two parts is not what was written".to_owned())
}

fn empty(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let none = bench.memory.part(0, 0)?;
    equal("a write's code", bench.code(Operation::write(none.clone(), bench.place))?, Code::BadRequest)?;
    equal("a read's code", bench.code(Operation::read(bench.place, none))?, Code::BadRequest)
}

fn order(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let (mut posted, mut seen) = (0_u64, 0_u64);
    while seen < 2000 {
        while posted < 2000 && bench.queue.room() > 0 {
            // Of many sizes, and reads among them: later ones could end first.
            let size = [8, 40_000, 1, 4096].get(posted as usize & 3).copied().unwrap_or(8);
            let part = bench.memory.part(posted & 0xff, size)?;
            let operation = if posted.is_multiple_of(3) {
                Operation::read(bench.place, part)
            } else {
                Operation::write(part, bench.place)
            };
            bench.queue.post(operation.cookie(posted))?;
            posted = posted.saturating_add(1);
        }
        equal("cookie", next(&mut bench.queue)?.check()?.cookie, seen)?;
        seen = seen.saturating_add(1);
    }
    Ok(())
}

fn last_write_counts(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    for round in 0..20_u64 {
        for value in 0..100_u64 {
            let value = round.wrapping_mul(1000).wrapping_add(value);
            bench.queue.post(Operation::write_bytes(&value.to_le_bytes(), bench.place)?)?;
        }
        bench.queue.finish(LONG, |completion| Ok::<_, Problem>(completion.check().map(drop)?))?;
        bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
        let last = round.wrapping_mul(1000).wrapping_add(99);
        equal("the last value", bench.bytes(0, 8)?, last.to_le_bytes().to_vec())?;
    }
    Ok(())
}

fn read_after_write(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    for value in 0..200_u64 {
        bench.queue.post(Operation::write_bytes(&value.to_le_bytes(), bench.place.plus(64))?)?;
        bench.queue.post(Operation::read(bench.place.plus(64), bench.memory.part(0, 8)?))?;
        next(&mut bench.queue)?.check()?;
        next(&mut bench.queue)?.check()?;
        equal("what was read", bench.bytes(0, 8)?, value.to_le_bytes().to_vec())?;
    }
    Ok(())
}

fn fences(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    for round in 0..20_u64 {
        // What is read into local memory has to be there when the fenced write takes it from there.
        let value = pattern(round, 5000);
        bench.memory.write(0, &value)?;
        bench.memory.write(SCRATCH, &[0; 5000])?;
        let (here, back) = (bench.memory.part(0, 5000)?, bench.memory.part(SCRATCH, 5000)?);
        let operations = [
            Operation::write(here, bench.place),
            Operation::read(bench.place, back.clone()),
            Operation::write(back, bench.place.plus(8192)).fenced(),
            Operation::fence().cookie(round),
        ];
        equal("posted", bench.queue.post_all(operations)?, 4)?;
        for _ in 0..3 {
            next(&mut bench.queue)?.check()?;
        }
        equal("the fence's cookie", next(&mut bench.queue)?.check()?.cookie, round)?;
        bench.done(Operation::read(bench.place.plus(8192), bench.memory.part(0, 5000)?))?;
        holds(bench.bytes(0, 5000)? == value, || format!("round {round}: the fenced write came too early"))?;
    }
    Ok(())
}

/// The scratch memory has to be exported with the right to do atomics.
fn atomic_bench(context: &Context) -> Result<Bench, Problem> {
    let mut bench = bench(context)?;
    let place = bench.place;
    bench.done(Operation::write_bytes(&[0; 8], place)?)?;
    match bench.code(Operation::fetch_add(place, 0))? {
        Code::Ok => Ok(bench),
        Code::AccessDenied => Err(skip("the peer does not export with --atomic")),
        code => Err(Problem::Fail(format!("fetch-and-add: {code}"))),
    }
}

fn atomics(context: &Context) -> Verdict {
    let mut bench = atomic_bench(context)?;
    let place = bench.place;
    equal("former", bench.done(Operation::fetch_add(place, 5))?.former, 0)?;
    equal("former", bench.done(Operation::fetch_add(place, u64::MAX))?.former, 5)?;
    equal("former", bench.done(Operation::compare_swap(place, 9, 1))?.former, 4)?;
    equal("former", bench.done(Operation::compare_swap(place, 4, 1 << 40))?.former, 4)?;
    equal("former", bench.done(Operation::fetch_add(place, 0))?.former, 1 << 40)?;
    bench.done(Operation::read(place, bench.memory.part(0, 8)?))?;
    equal("what is there", bench.bytes(0, 8)?, (1_u64 << 40).to_le_bytes().to_vec())
}

fn atomics_add_up(context: &Context) -> Verdict {
    let mut bench = atomic_bench(context)?;
    let place = bench.place;
    let mut queues =
        (0..4).map(|_| context.adaptor.connect(&QueueOptions::default())).collect::<Result<Vec<_>, _>>()?;
    let mut formers = vec![false; 4 * 200];
    for queue in &mut queues {
        equal("posted", queue.post_all((0..200).map(|_| Operation::fetch_add(place, 1)))?, 200)?;
    }
    for queue in &mut queues {
        queue.finish(LONG, |completion| {
            let former = completion.check()?.former;
            let seen = usize::try_from(former).ok().and_then(|at| formers.get_mut(at));
            let seen = seen.ok_or_else(|| Problem::Fail(format!("former value {former}")))?;
            holds(!std::mem::replace(seen, true), || format!("former value {former} twice"))
        })?;
    }
    equal("sum", bench.done(Operation::fetch_add(place, 0))?.former, 800)
}

fn many_queues(context: &Context) -> Verdict {
    let bench = bench(context)?;
    let options = QueueOptions { entries: 64, ..QueueOptions::default() };
    let mut queues = (0..24).map(|_| context.adaptor.connect(&options)).collect::<Result<Vec<_>, _>>()?;
    for (number, queue) in queues.iter_mut().enumerate() {
        let part = bench.memory.part(0, 4096)?;
        let base = (number as u64).saturating_mul(1000);
        let writes =
            (0..64).map(|at| Operation::write(part.clone(), bench.place).cookie(base.saturating_add(at)));
        equal("posted", queue.post_all(writes)?, 64)?;
    }
    for (number, queue) in queues.iter_mut().enumerate() {
        let mut expected = (number as u64).saturating_mul(1000);
        queue.finish(LONG, |completion| {
            equal(format!("queue {number}: cookie"), completion.check()?.cookie, expected)?;
            expected = expected.saturating_add(1);
            Ok::<_, Problem>(())
        })?;
    }
    Ok(())
}

fn interrupts(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let options = QueueOptions { poll: Duration::ZERO, ..QueueOptions::default() };
    let mut queue = context.adaptor.connect(&options)?;
    let start = Instant::now();
    for _ in 0..30 {
        end_of(&mut queue, Operation::write(bench.memory.part(0, 60_000)?, bench.place))?.check()?;
    }
    // Who is not woken looks again after a second.
    holds(start.elapsed() < Duration::from_secs(15), || format!("30 waits took {:?}", start.elapsed()))?;
    bench.done(Operation::fence()).map(drop)
}

fn message(context: &Context) -> Verdict {
    let doorbell = context.arguments.doorbell.ok_or_else(|| skip("no --doorbell given"))?;
    let mut bench = bench(context)?;
    let bytes = pattern(3, 5000);
    bench.memory.write(0, &bytes)?;
    let write = Operation::write(bench.memory.part(0, 5000)?, bench.place);
    bench.done(write.with_message(doorbell, 0x1234_5678_9abc_def0))?;
    bench.done(Operation::write_bytes(b"short", bench.place)?.with_message(doorbell, 2))?;
    bench.done(Operation::read(bench.place, bench.memory.part(SCRATCH, 5000)?))?;
    equal("the first bytes", bench.bytes(SCRATCH, 5)?, b"short".to_vec())?;
    let rest = bench.bytes(SCRATCH.saturating_add(5), 4995)?;
    holds(bytes.get(5..) == Some(rest.as_slice()), || "the data is not there".to_owned())
}
