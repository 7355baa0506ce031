//! `ardma add` and `ardma swap`: atomics of the DMA engine on another node's memory.

use super::{Failure, parse_place};
use ardma::{Adaptor, Completion, Operation, Place, Queue, QueueOptions, parse_size};
use std::io::Write;
use std::time::Duration;

/// Nothing takes so long while the adaptor works.
const LONG: Duration = Duration::from_secs(60);

/// Arguments of `ardma add`.
#[derive(Debug, clap::Args)]
pub struct AddArguments {
    /// Where, as NODE:OFFSET; a multiple of 8, exported with --atomic.
    #[arg(value_parser = parse_place)]
    place: Place,
    /// What is added, wrapping.
    #[arg(value_parser = parse_size, default_value = "1")]
    value: u64,
    /// So many times.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
}

/// Arguments of `ardma swap`.
#[derive(Debug, clap::Args)]
pub struct SwapArguments {
    /// Where, as NODE:OFFSET; a multiple of 8, exported with --atomic.
    #[arg(value_parser = parse_place)]
    place: Place,
    /// What has to be there.
    #[arg(value_parser = parse_size)]
    expected: u64,
    /// What is to be there then.
    #[arg(value_parser = parse_size)]
    new: u64,
}

/// Fails where no atomic can be; the adaptor would say no more than that the request is bad.
fn aligned(place: Place) -> Result<(), Failure> {
    if place.offset.is_multiple_of(8) {
        return Ok(());
    }
    Err(Failure::Usage(format!("{place}: the offset of an atomic has to be a multiple of 8")))
}

/// Adds, and shows what was there before the last time.
pub fn add(adaptor: &Adaptor, arguments: &AddArguments, out: &mut dyn Write) -> Result<(), Failure> {
    aligned(arguments.place)?;
    let mut queue = adaptor.connect(&QueueOptions { scatter: 0, ..QueueOptions::default() })?;
    let mut left = arguments.count;
    let mut former = 0;
    loop {
        let operations = std::iter::repeat_with(|| Operation::fetch_add(arguments.place, arguments.value));
        let batch = queue.post_all(operations.take(usize::try_from(left).unwrap_or(usize::MAX)))?;
        left = left.saturating_sub(batch as u64);
        match next(&mut queue)? {
            Some(completion) => former = completion.former,
            None => break,
        }
    }
    writeln!(out, "former {former:#x}")?;
    Ok(())
}

/// Swaps, and shows what was there; a failure where that was not what was expected.
pub fn swap(adaptor: &Adaptor, arguments: &SwapArguments, out: &mut dyn Write) -> Result<(), Failure> {
    aligned(arguments.place)?;
    let mut queue = adaptor.connect(&QueueOptions { scatter: 0, ..QueueOptions::default() })?;
    let &SwapArguments { place, expected, new } = arguments;
    queue.post(Operation::compare_swap(place, expected, new))?;
    let former = next(&mut queue)?.map_or(0, |completion| completion.former);
    writeln!(out, "former {former:#x}")?;
    if former == expected { Ok(()) } else { Err(Failure::Told) }
}

/// The next completion, which has to be good; none where nothing is under way.
fn next(queue: &mut Queue) -> Result<Option<Completion>, Failure> {
    let under_way = queue.under_way();
    if under_way == 0 {
        return Ok(None);
    }
    match queue.wait(LONG)? {
        Some(completion) => Ok(Some(completion.check()?)),
        None => Err(ardma::Error::QueueSlow { under_way, time: LONG }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_is_aligned() {
        assert!(aligned(Place::memory(2, 0x18)).is_ok());
        let failure = aligned(Place::memory(2, 0x1c)).unwrap_err();
        assert_eq!(failure.exit_status(), 2);
        assert_eq!(failure.to_string(), "2:0x1c: the offset of an atomic has to be a multiple of 8");
    }
}
