//! `ardma copy`: a file to another node's memory, back, or compared with it; by the DMA engine, or store by store with one
//! check a block.

use super::bulk::{self, Extent, Way};
use super::progress::Progress;
use super::{Failure, file_failure, human};
use ardma::{Adaptor, BlockPart, Place, Queue, Registered, Retries, Space, Transfer, parse_size};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Offsets in a node's memory are below this.
const END: u64 = 1 << 48;

/// Arguments of `ardma copy`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ardma copy vmlinuz 2:0\n  ardma copy 2:0 back --length 9M\n  ardma copy 2:0 --compare vmlinuz"
)]
pub struct Arguments {
    /// A file, or NODE:OFFSET.
    #[arg(value_name = "FROM")]
    from: String,
    /// NODE:OFFSET where FROM is a file, else a file.
    #[arg(value_name = "TO", required_unless_present = "compare")]
    to: Option<String>,
    /// Bytes to copy or to compare; the file's length where it is not given.
    #[arg(long, value_parser = parse_size)]
    length: Option<u64>,
    /// Read the memory back and compare it with this file.
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    compare: Option<PathBuf>,
    /// With --compare: read only each N-th block.
    #[arg(long, value_name = "N", conflicts_with = "to", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Copy by stores and loads, not by the DMA engine.
    #[arg(long)]
    pio: bool,
    /// How often a block whose code says that a retry makes sense is tried again.
    #[arg(long, value_name = "N", default_value_t = Retries::default().count)]
    retries: u32,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Job {
    Send(PathBuf, Place),
    Fetch(Place, PathBuf),
    Compare(Place, PathBuf),
}

/// Digits before a colon mean a place; `./2:0` is a file.
fn place(text: &str) -> Option<Result<Place, Failure>> {
    let (node, _) = text.split_once(':')?;
    if node.is_empty() || !node.chars().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().map_err(|error| Failure::Usage(format!("{error} (a file of this name is ./{text})"))))
}

fn job(arguments: &Arguments) -> Result<Job, Failure> {
    let from = place(&arguments.from).transpose()?;
    let to = arguments.to.as_deref().and_then(place).transpose()?;
    if let Some(place) = from.iter().chain(&to).find(|place| place.space == Space::Io) {
        return Err(Failure::Usage(format!(
            "{place} is in the I/O space, whose accesses have sizes of their own: use ardma write and read"
        )));
    }
    match (from, to, &arguments.to, &arguments.compare) {
        (Some(from), _, _, Some(file)) => Ok(Job::Compare(from, file.clone())),
        (Some(from), None, Some(file), None) => Ok(Job::Fetch(from, file.into())),
        (None, Some(to), _, None) => Ok(Job::Send((&arguments.from).into(), to)),
        (None, None, to, file) => {
            let other = to.as_ref().map(|to| format!(" or '{to}'")).unwrap_or_default();
            let compared = if file.is_some() { " (with --compare the first)" } else { "" };
            Err(Failure::Usage(format!(
                "'{}'{other}: one side has to be NODE:OFFSET, such as 2:0x1000{compared}",
                arguments.from
            )))
        }
        _ => Err(Failure::Usage("one side has to be a file of this guest".to_owned())),
    }
}

/// Copies or compares.
pub fn run(adaptor: &Adaptor, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    let retries = Retries { count: arguments.retries, ..Retries::default() };
    let job = job(arguments)?;
    if !arguments.pio {
        match bulk::prepare(adaptor)? {
            Some(engine) => return by_engine(adaptor, engine, &job, arguments, out),
            None => eprintln!(
                "ardma: there is no DMA engine here, or it does not reach this memory: copying by stores"
            ),
        }
    }
    match job {
        Job::Send(path, place) => {
            let (file, length) = open(&path, arguments.length)?;
            each_block(adaptor, "copied", (place, length, 1), retries, out, |transfer, part, buffer| {
                file.read_exact_at(buffer, part.offset).map_err(file_failure(&path))?;
                Ok(transfer.write(part.offset, buffer)?)
            })
        }
        Job::Fetch(place, path) => {
            let length = length_to_fetch(place, arguments)?;
            // A place that makes no sense must not cost the user what the file has now.
            adaptor.map(place, length)?;
            let file = File::create(&path).map_err(file_failure(&path))?;
            each_block(adaptor, "copied", (place, length, 1), retries, out, |transfer, part, buffer| {
                transfer.read(part.offset, buffer)?;
                file.write_all_at(buffer, part.offset).map_err(file_failure(&path))
            })
        }
        Job::Compare(place, path) => {
            let (file, length) = open(&path, arguments.length)?;
            let mut expected = Vec::new();
            each_block(
                adaptor,
                "compared",
                (place, length, arguments.every),
                retries,
                out,
                |transfer, part, buffer| {
                    transfer.read(part.offset, buffer)?;
                    expected.resize(buffer.len(), 0);
                    file.read_exact_at(&mut expected, part.offset).map_err(file_failure(&path))?;
                    compare(place, part.offset, &expected, buffer)
                },
            )?;
            writeln!(out, "equal")?;
            Ok(())
        }
    }
}

/// How many bytes are to be copied into a file: at least one, and none of them behind the last place that has a name.
fn length_to_fetch(place: Place, arguments: &Arguments) -> Result<u64, Failure> {
    let missing = "how many bytes are to be copied has to be said with --length";
    let length = arguments.length.ok_or_else(|| Failure::Usage(missing.to_owned()))?;
    if length == 0 {
        return Err(Failure::Usage("--length 0: there is nothing to copy".to_owned()));
    }
    if place.offset.checked_add(length).is_none_or(|end| end > END) {
        return Err(Failure::Usage(format!("{length} bytes at {place} do not end below 2^48")));
    }
    Ok(length)
}

fn by_engine(
    adaptor: &Adaptor,
    engine: (Registered, Queue),
    job: &Job,
    arguments: &Arguments,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let retries = Retries { count: arguments.retries, ..Retries::default() };
    match job {
        Job::Send(path, place) => {
            let (file, length) = open(path, arguments.length)?;
            let extent = Extent { place: *place, length, every: 1 };
            bulk::run(adaptor, engine, (Way::Send(&file), path), extent, retries, out)
        }
        Job::Fetch(place, path) => {
            // The engine reaches memory beyond the window, too, so that only the first answer shows that there is some.
            let length = length_to_fetch(*place, arguments)?;
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(file_failure(path))?;
            let extent = Extent { place: *place, length, every: 1 };
            bulk::run(adaptor, engine, (Way::Fetch(&file), path), extent, retries, out)
        }
        Job::Compare(place, path) => {
            let (file, length) = open(path, arguments.length)?;
            let extent = Extent { place: *place, length, every: arguments.every };
            bulk::run(adaptor, engine, (Way::Compare(&file), path), extent, retries, out)?;
            writeln!(out, "equal")?;
            Ok(())
        }
    }
}

/// Names the first byte that differs.
pub fn compare(place: Place, offset: u64, file: &[u8], memory: &[u8]) -> Result<(), Failure> {
    // The usual case at the speed of a whole comparison.
    if file == memory {
        return Ok(());
    }
    let mut bytes = file.iter().zip(memory).zip(offset..);
    match bytes.find(|((file, memory), _)| file != memory) {
        Some(((&file, &memory), at)) => Err(Failure::Different { at, place: place.plus(at), file, memory }),
        None => Ok(()),
    }
}

/// Opens a file to read, and says how many of its bytes are meant.
fn open(path: &Path, length: Option<u64>) -> Result<(File, u64), Failure> {
    let file = File::open(path).map_err(file_failure(path))?;
    let metadata = file.metadata().map_err(file_failure(path))?;
    let available = metadata.len();
    let name = path.display();
    if length == Some(0) {
        return Err(Failure::Usage("--length 0: there is nothing to copy or to compare".to_owned()));
    }
    if !metadata.is_file() && !metadata.is_dir() {
        return Err(Failure::Usage(format!(
            "{name} is not a regular file, which has a length: copy it to one first"
        )));
    }
    let length = length.unwrap_or(available);
    if length > available {
        return Err(Failure::Usage(format!(
            "{name} has only {available} bytes, fewer than --length {length}"
        )));
    }
    if length == 0 {
        return Err(Failure::Usage(format!("{name} has no bytes to copy or to compare")));
    }
    Ok((file, length))
}

/// Walks over the blocks of a place, and tells how it went.
fn each_block(
    adaptor: &Adaptor,
    what: &'static str,
    (place, length, every): (Place, u64, u32),
    retries: Retries,
    out: &mut dyn Write,
    mut step: impl FnMut(&mut Transfer<'_>, BlockPart, &mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let window = adaptor.map(place, length)?;
    let mut transfer = Transfer::new(adaptor, &window, retries);
    let mut progress = Progress::new(what, length);
    let mut buffer = Vec::new();
    let every = usize::try_from(every).unwrap_or(1).max(1);
    let result: Result<(), Failure> = window.blocks(0, length).step_by(every).try_for_each(|part| {
        buffer.resize(usize::try_from(part.length).unwrap_or(0), 0);
        step(&mut transfer, part, &mut buffer)?;
        progress.set(part.offset.saturating_add(part.length), transfer.counts().bytes);
        Ok(())
    });
    progress.finish();
    let counts = transfer.counts();
    if let Some((place, status)) = counts.other {
        eprintln!("ardma: a check at {place} also returned errors of other accesses: {status}");
    }
    result?;
    writeln!(
        out,
        "{what} {} in {:.1} s ({}), {} blocks checked, {} failed",
        human(counts.bytes),
        progress.seconds(),
        progress.rate(counts.bytes),
        counts.checks,
        counts.failed
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(from: &str, to: Option<&str>, compare: Option<&str>) -> Arguments {
        Arguments {
            from: from.to_owned(),
            to: to.map(str::to_owned),
            length: None,
            compare: compare.map(PathBuf::from),
            every: 1,
            retries: 0,
            pio: false,
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn is_taken(line: &str) -> bool {
        use clap::Parser;
        Line::try_parse_from(["copy"].into_iter().chain(line.split(' '))).is_ok()
    }

    #[test]
    fn blocks_are_left_out_of_comparisons_only() {
        assert!(is_taken("2:0 --compare vmlinuz --every 16"));
        assert!(is_taken("vmlinuz 2:0"));
        assert!(!is_taken("vmlinuz 2:0 --every 16"));
        assert!(!is_taken("2:0 --every 16"));
    }

    #[test]
    fn what_is_fetched_has_a_length() {
        let fetch = |offset, length| {
            let arguments = Arguments { length, ..arguments("2:0", Some("back"), None) };
            length_to_fetch(Place::memory(2, offset), &arguments).map_err(|failure| failure.to_string())
        };
        assert_eq!(fetch(0, Some(5)), Ok(5));
        assert_eq!(fetch(END - 5, Some(5)), Ok(5), "beyond every window");
        for (offset, length, told) in [
            (0, None, "has to be said with --length"),
            (0, Some(0), "--length 0"),
            (END - 5, Some(6), "6 bytes at 2:0xfffffffffffb do not end below"),
        ] {
            let failure = fetch(offset, length).unwrap_err();
            assert!(failure.contains(told), "{failure}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_named() {
        let directory = std::env::temp_dir();
        let empty = directory.join(format!("ardma-copy-{}", std::process::id()));
        File::create(&empty).unwrap();
        for (path, length, told) in [
            (Path::new("/dev/zero"), Some(4096), "/dev/zero is not a regular file"),
            (Path::new("/dev/zero"), None, "/dev/zero is not a regular file"),
            (&empty, None, "has no bytes"),
            (&empty, Some(0), "--length 0"),
            (&empty, Some(7), "has only 0 bytes, fewer than --length 7"),
        ] {
            let failure = open(path, length).unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
        }
        std::fs::remove_file(&empty).unwrap();
    }

    #[test]
    fn both_sides_that_are_no_place_are_named() {
        let told = |from, to, compare| job(&arguments(from, to, compare)).unwrap_err().to_string();
        assert!(told("vmlinuz", Some("2"), None).starts_with("'vmlinuz' or '2': one side has to be"));
        assert!(told("2", None, Some("vmlinuz")).starts_with("'2': one side has to be"));
    }

    #[test]
    fn one_side_is_a_file_and_the_other_a_place() {
        let place = Place::memory(2, 0x1000);
        let found = |from, to, compare| job(&arguments(from, to, compare)).ok();
        assert_eq!(found("vmlinuz", Some("2:0x1000"), None), Some(Job::Send("vmlinuz".into(), place)));
        assert_eq!(found("2:4K", Some("./2:0"), None), Some(Job::Fetch(place, "./2:0".into())));
        assert_eq!(found("2:4K", None, Some("vmlinuz")), Some(Job::Compare(place, "vmlinuz".into())));
        for (from, to, compare) in [
            ("a", Some("b"), None),
            ("2:0", Some("3:0"), None),
            ("a", None, Some("b")),
            ("2:x", Some("a"), None),
            ("a", Some("300:0"), None),
            ("a", Some("2:io:0x1000"), None),
        ] {
            assert!(
                matches!(job(&arguments(from, to, compare)), Err(Failure::Usage(_))),
                "{from} {to:?} {compare:?}"
            );
        }
    }
}
