//! `ardma perf`: bandwidth and latency in the manner of perftest, for each way in which memory can be moved.

mod engine;
mod stores;

use super::{Failure, parse_place};
use ardma::{Adaptor, Place, Space, parse_size};
use std::io::Write;
use std::time::{Duration, Instant};

/// Sizes of `--all`, as powers of two: 8 bytes to 1 MiB.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 3..=20;
/// Without `--iterations` no more bytes than this are moved for each size, but at least so many operations.
const BYTES: u64 = 64 << 20;
const ITERATIONS: std::ops::RangeInclusive<u64> = 10..=1000;

/// What is written.
const FILL: u8 = 0x5a;

/// Arguments of `ardma perf`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
On the other node run `ardma export 1M`, or larger. One line for each size and way: how much was moved in a second, and the
median and the 99th percentile of the time from the start of an operation to the knowledge of its outcome. In bandwidth tests as
many operations as the queues hold are under way.
  engine     operations of the DMA engine, each with a completion
  checked    stores or loads, and one check a block
  stores     stores or loads, and one check at the end of all
  verified   stores, and loads that read all back and compare
Examples:
  ardma perf write_bw 2:0 -s 64K
  ardma perf write_lat 2:0 -a --by engine,checked,verified --csv")]
pub struct Arguments {
    /// What is measured.
    test: Test,
    /// Where, as NODE:OFFSET; other bytes there are lost.
    #[arg(value_parser = parse_place)]
    place: Place,
    /// Bytes of an operation: up to the size that is exported there.
    #[arg(short, long, value_name = "BYTES", value_parser = parse_size, default_value = "64K")]
    size: u64,
    /// Operations of each size; 1000, or fewer of large ones, if it is not given.
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// All sizes: powers of two from 8 bytes to 1 MiB.
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Queues of the engine, which are used in turn.
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: u32,
    /// Operations that are under way on each queue in bandwidth tests: a power of two from 4 to 4096.
    #[arg(short = 't', long, value_name = "NUMBER", default_value_t = 256, value_parser = parse_depth)]
    depth: u32,
    /// In which ways, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "engine")]
    by: Vec<By>,
    /// Comma-separated values, with a line of names.
    #[arg(long)]
    csv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Test {
    /// How many bytes a second can be written.
    WriteBw,
    /// The same, read.
    ReadBw,
    /// How long one write takes.
    WriteLat,
    /// The same, of a read.
    ReadLat,
}

impl Test {
    const fn writes(self) -> bool {
        matches!(self, Self::WriteBw | Self::WriteLat)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write_bw",
            Self::ReadBw => "read_bw",
            Self::WriteLat => "write_lat",
            Self::ReadLat => "read_lat",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Operations of the DMA engine.
    Engine,
    /// Stores or loads, checked at the end.
    Stores,
    /// Stores or loads, each block checked.
    Checked,
    /// Stores, read back and compared.
    Verified,
}

impl By {
    const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Stores => "stores",
            Self::Checked => "checked",
            Self::Verified => "verified",
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Run {
    test: Test,
    by: By,
    place: Place,
    size: u64,
    iterations: u64,
    queues: u32,
    depth: u32,
}

impl Run {
    /// Operations before those that are measured.
    const fn warm_up(&self) -> u64 {
        let tenth = self.iterations / 10;
        if tenth > 100 {
            100
        } else if tenth < 1 {
            1
        } else {
            tenth
        }
    }
}

fn parse_depth(text: &str) -> Result<u32, String> {
    let depth = text.parse().ok().filter(|depth: &u32| depth.is_power_of_two() && (4..=4096).contains(depth));
    depth.ok_or_else(|| format!("'{text}' is not a power of two from 4 to 4096"))
}

/// What was measured: how long all of it took, and each operation.
#[derive(Debug, Default)]
struct Times {
    total: Duration,
    each: Vec<Duration>,
}

impl Times {
    /// Measures operations that are done one after the other.
    fn of(run: &Run, mut operation: impl FnMut() -> Result<(), Failure>) -> Result<Self, Failure> {
        for _ in 0..run.warm_up() {
            operation()?;
        }
        let mut times = Self::default();
        let start = Instant::now();
        for _ in 0..run.iterations {
            let begin = Instant::now();
            operation()?;
            times.each.push(begin.elapsed());
        }
        times.total = start.elapsed();
        Ok(times)
    }

    /// So many thousandths of the operations took no longer than this.
    fn quantile(&mut self, thousandths: usize) -> Duration {
        self.each.sort_unstable();
        let rank = self.each.len().saturating_mul(thousandths).div_ceil(1000).saturating_sub(1);
        self.each.get(rank).copied().unwrap_or_default()
    }
}

/// Measures, and shows.
pub fn run(adaptor: &Adaptor, arguments: &Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    if arguments.place.space == Space::Io {
        return Err(ardma::Error::NotMemory { place: arguments.place }.into());
    }
    if arguments.size == 0 {
        return Err(Failure::Usage("--size 0: an operation has at least one byte".to_owned()));
    }
    if !arguments.test.writes() && arguments.by.contains(&By::Verified) {
        return Err(Failure::Usage("only writes can be verified by reading back".to_owned()));
    }
    let names = [
        "test",
        "by",
        "bytes",
        "iterations",
        "queues",
        "mb_per_s",
        "operations_per_s",
        "median_us",
        "p99_us",
    ];
    show(arguments.csv, &names.map(str::to_owned), out)?;
    let sizes: Vec<u64> = if arguments.all {
        ALL_SIZES.filter_map(|bits| 1_u64.checked_shl(bits)).collect()
    } else {
        vec![arguments.size]
    };
    for &by in &arguments.by {
        for &size in &sizes {
            let run = Run {
                test: arguments.test,
                by,
                place: arguments.place,
                size,
                iterations: arguments.iterations.unwrap_or_else(|| default_iterations(size)),
                queues: if by == By::Engine { arguments.queues } else { 0 },
                depth: arguments.depth,
            };
            let times = match by {
                By::Engine => engine::measure(adaptor, &run)?,
                By::Stores | By::Checked | By::Verified => stores::measure(adaptor, &run)?,
            };
            show(arguments.csv, &line(&run, times), out)?;
        }
    }
    Ok(())
}

fn default_iterations(size: u64) -> u64 {
    BYTES.checked_div(size).unwrap_or(0).clamp(*ITERATIONS.start(), *ITERATIONS.end())
}

fn line(run: &Run, mut times: Times) -> [String; 9] {
    let seconds = times.total.as_secs_f64().max(1e-9);
    let micros = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
    let count = run.iterations as f64;
    [
        run.test.name().to_owned(),
        run.by.name().to_owned(),
        run.size.to_string(),
        run.iterations.to_string(),
        run.queues.to_string(),
        format!("{:.3}", count * run.size as f64 / seconds / 1e6),
        format!("{:.0}", count / seconds),
        micros(times.quantile(500)),
        micros(times.quantile(990)),
    ]
}

fn show(csv: bool, fields: &[String; 9], out: &mut dyn Write) -> Result<(), Failure> {
    if csv {
        writeln!(out, "{}", fields.join(","))?;
    } else {
        let [test, by, rest @ ..] = fields;
        write!(out, "{test:<10}{by:<9}")?;
        for field in rest {
            write!(out, "{field:>17}")?;
        }
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_times() {
        let each = (1..=100).rev().map(Duration::from_micros).collect();
        let mut times = Times { total: Duration::ZERO, each };
        assert_eq!(times.quantile(500), Duration::from_micros(50));
        assert_eq!(times.quantile(990), Duration::from_micros(99));
        assert_eq!(times.quantile(1000), Duration::from_micros(100));
        let mut one = Times { total: Duration::ZERO, each: vec![Duration::from_micros(7)] };
        assert_eq!(
            (one.quantile(500), one.quantile(990)),
            (Duration::from_micros(7), Duration::from_micros(7))
        );
        assert_eq!(Times::default().quantile(500), Duration::ZERO);
    }

    #[test]
    fn large_operations_are_fewer() {
        assert_eq!(default_iterations(8), 1000);
        assert_eq!(default_iterations(1 << 20), 64);
        assert_eq!(default_iterations(1 << 30), 10);
    }

    #[test]
    fn a_line_has_rate_and_times() {
        let place = Place::memory(2, 0);
        let run = Run {
            test: Test::WriteBw,
            by: By::Engine,
            place,
            size: 1000,
            iterations: 4,
            queues: 1,
            depth: 4,
        };
        let each = [1, 2, 3, 4].map(Duration::from_millis).to_vec();
        let fields = line(&run, Times { total: Duration::from_millis(8), each });
        assert_eq!(fields.join(","), "write_bw,engine,1000,4,1,0.500,500,2000.0,4000.0");
    }
}
