//! Tests of the DMA engine: what fails says so, and nothing else fails with it.

use super::super::tap::{Problem, Verdict, equal, holds, skip};
use super::{Bench, Case, Context, LONG, SCRATCH, bench, case, end_of, next, register};
use ardma::{Adaptor, Code, LocalRights, Operation, Place, QueueOptions};

pub const CASES: &[Case] = &[
    case(
        "what the peer does not export, or not so, is refused with the code of a store",
        "Isolation",
        refusals,
    ),
    case("what is behind a failed operation is flushed until the queue is resumed", "No lost error", flushed),
    case("an error is told by its completion, and by no check", "No lost error", not_logged),
    case("what is called not executed was not, and the bytes moved are right", "No false OK", in_part),
    case("an error of one queue is no other's", "Isolation", others_go_on),
    case("memory that was taken back is no operation's any more", "Isolation", stale_key),
    case("another program's memory is out of reach", "Isolation", others_key),
    case("memory is used only as it was registered", "Isolation", local_rights),
    case("atomics that are not aligned are refused", "driver interface", misaligned_atomics),
    case("a doorbell to which nobody listens is an error of the write", "No false OK", closed_doorbell),
];

fn refusals(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let node = context.peer()?;
    let unexported = Place::memory(node, context.adaptor.fixed().window_size.saturating_sub(SCRATCH));
    let own = Place::memory(u8::try_from(context.adaptor.fixed().node).unwrap_or(u8::MAX), 0);
    let part = bench.memory.part(0, 100)?;
    let mut expect = |what: &str, operation: Operation, code: Code| {
        equal(format!("{what}: code"), bench.code(operation)?, code)
    };
    expect("nothing is exported, write", Operation::write(part.clone(), unexported), Code::NoWindow)?;
    expect("nothing is exported, read", Operation::read(unexported, part.clone()), Code::NoWindow)?;
    expect("nothing is exported, add", Operation::fetch_add(unexported, 1), Code::NoWindow)?;
    expect("this node itself", Operation::write(part.clone(), own), Code::NoRoute)?;
    let beyond = Place::memory(node, 1 << 47);
    expect("far beyond the window", Operation::write(part.clone(), beyond), Code::NoWindow)?;
    if let Some(offset) = context.arguments.denied {
        let denied = Place::memory(node, offset);
        expect("others' memory, write", Operation::write(part.clone(), denied), Code::AccessDenied)?;
        expect("others' memory, read", Operation::read(denied, part.clone()), Code::AccessDenied)?;
    }
    if let Some(offset) = context.arguments.read_only {
        let read_only = Place::memory(node, offset);
        expect("read-only, write", Operation::write(part.clone(), read_only), Code::AccessDenied)?;
        expect("read-only, add", Operation::fetch_add(read_only, 1), Code::AccessDenied)?;
        expect("read-only, read", Operation::read(read_only, part), Code::Ok)?;
    }
    Ok(())
}

/// Where the peer exports nothing.
fn nowhere(context: &Context) -> Result<Place, Problem> {
    let window = context.unexported()?;
    Ok(window.place())
}

fn flushed(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let nowhere = nowhere(context)?;
    bench.done(Operation::write_bytes(&[1; 8], bench.place)?)?;
    let write = |value: u8| Operation::write_bytes(&[value; 8], bench.place);
    let operations =
        [Operation::write_bytes(&[2; 8], nowhere)?.cookie(1), write(3)?.fenced(), write(4)?.fenced()];
    equal("posted", bench.queue.post_all(operations)?, 3)?;
    equal("the first one's code", next(&mut bench.queue)?.code(), Code::NoWindow)?;
    for _ in 0..2 {
        equal("the next one's code", next(&mut bench.queue)?.code(), Code::Flushed)?;
    }
    let later = end_of(&mut bench.queue, write(5)?)?;
    equal("the code of one that was posted later", later.code(), Code::Flushed)?;
    bench.queue.resume()?;
    bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
    equal("what is there", bench.bytes(0, 8)?, vec![1; 8])
}

fn not_logged(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let window = context.unexported()?;
    let before = window.check(0)?;
    holds(before.is_ok(), || format!("there is an error before: {before}"))?;
    let code = bench.code(Operation::write_bytes(&[2; 8], window.place())?)?;
    equal("code", code, Code::NoWindow)?;
    let status = window.check(0)?;
    holds(status.is_ok(), || format!("a check tells of an operation: {status}"))
}

/// A write of bytes of which all but two are another program's.
fn in_part(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    bench.done(Operation::write_bytes(&[1; 8], bench.place)?)?;
    let stranger = Adaptor::open(&context.device)?;
    let memory = register(&stranger, 4096, LocalRights::ALL)?;
    let mixed = vec![bench.memory.part(0, 2)?, memory.part(0, 6)?];
    let code = bench.code(Operation::write_scattered(mixed, bench.place))?;
    equal("code of a write of which nothing was sent", code, Code::BadKey)?;
    bench.done(Operation::read(bench.place, bench.memory.part(0, 8)?))?;
    equal("what is there", bench.bytes(0, 8)?, vec![1; 8])
}

fn others_go_on(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let nowhere = nowhere(context)?;
    let mut failing = context.adaptor.connect(&QueueOptions::default())?;
    for round in 0..50 {
        failing.post(Operation::write(bench.memory.part(0, 1000)?, nowhere))?;
        bench.done(Operation::write(bench.memory.part(0, 1000)?, bench.place))?;
        let code = next(&mut failing)?.code();
        equal("code", code, if round == 0 { Code::NoWindow } else { Code::Flushed })?;
    }
    Ok(())
}

fn stale_key(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let memory = register(&context.adaptor, 4096, LocalRights::ALL)?;
    bench.done(Operation::write(memory.all(), bench.place))?;
    memory.end()?;
    bad_key(&mut bench, "write", |bench| Ok(Operation::write(memory.all(), bench.place)))?;
    bad_key(&mut bench, "read", |bench| Ok(Operation::read(bench.place, memory.all())))?;
    let mut back = [1; 8];
    memory.read(0, &mut back)?;
    equal("memory that was taken back", back, [0; 8])?;
    // The key's place in the adaptor's table may be another's now.
    let other = register(&context.adaptor, 4096, LocalRights::ALL)?;
    bad_key(&mut bench, "write, the place taken", |bench| Ok(Operation::write(memory.all(), bench.place)))?;
    bench.done(Operation::write(other.all(), bench.place)).map(drop)
}

fn bad_key(bench: &mut Bench, what: &str, make: impl Fn(&Bench) -> Result<Operation, Problem>) -> Verdict {
    let operation = make(bench)?;
    equal(format!("{what}: code"), bench.code(operation)?, Code::BadKey)
}

fn others_key(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let other = Adaptor::open(&context.device)?;
    let memory = register(&other, 4096, LocalRights::ALL)?;
    memory.write(0, &[9; 8])?;
    bad_key(&mut bench, "write", |bench| Ok(Operation::write(memory.part(0, 8)?, bench.place)))?;
    bad_key(&mut bench, "read", |bench| Ok(Operation::read(bench.place, memory.part(0, 8)?)))?;
    let mixed = vec![bench.memory.part(0, 8)?, memory.part(0, 8)?];
    bad_key(&mut bench, "a scatter list", |bench| {
        Ok(Operation::write_scattered(mixed.clone(), bench.place))
    })?;
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes)?;
    equal("the other program's memory", bytes, [9; 8])?;
    let mut own = other.connect(&QueueOptions::default())?;
    end_of(&mut own, Operation::write(memory.part(0, 8)?, bench.place))?.check()?;
    Ok(())
}

fn local_rights(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let sent = register(&context.adaptor, 4096, LocalRights::READ)?;
    bench.done(Operation::write(sent.all(), bench.place))?;
    bad_key(&mut bench, "a read into memory that is only sent", |bench| {
        Ok(Operation::read(bench.place, sent.all()))
    })?;
    let fetched = register(&context.adaptor, 4096, LocalRights { read: false, write: true })?;
    bench.done(Operation::read(bench.place, fetched.all()))?;
    bad_key(&mut bench, "a write from memory that is only fetched into", |bench| {
        Ok(Operation::write(fetched.all(), bench.place))
    })
}

fn misaligned_atomics(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    let place = bench.place.plus(4);
    equal("fetch-and-add", bench.code(Operation::fetch_add(place, 1))?, Code::BadRequest)?;
    equal("compare-and-swap", bench.code(Operation::compare_swap(place, 0, 1))?, Code::BadRequest)
}

fn closed_doorbell(context: &Context) -> Verdict {
    let mut bench = bench(context)?;
    if context.arguments.doorbell.is_some() {
        return Err(skip("the peer listens to doorbells"));
    }
    let write = Operation::write_bytes(b"data", bench.place)?.with_message(17, 1);
    let completion = end_of(&mut bench.queue, write)?;
    equal("code", completion.code(), Code::Partial)?;
    equal("bytes of its data that were written", completion.bytes, 4)?;
    bench.queue.resume()?;
    bench.queue.finish(LONG, |_| Ok::<_, Problem>(()))
}
