//! Figures: how they come out of rounds, and how they are shown.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

/// What was measured, round by round.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Of what is counted and does not differ from round to round.
    pub fn one(value: f64) -> Self {
        Self(vec![value])
    }

    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn median(&self) -> f64 {
        median(self.0.iter().copied())
    }

    /// The median of the rounds' ratios.
    pub fn ratio(&self, limit: &Self) -> f64 {
        assert_eq!(self.0.len(), limit.0.len(), "both are measured in each round");
        median(self.0.iter().zip(&limit.0).map(|(value, limit)| value / limit))
    }

    /// Each sample, changed.
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().copied().map(change).collect())
    }

    /// The sums of two measurements' rounds.
    pub fn plus(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, two)| one + two).collect())
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    // One in the middle, or two.
    let middle = values.len() / 2;
    let lower = values.len().saturating_sub(1) / 2;
    values.get(lower..=middle).map_or(f64::NAN, |middle| middle.iter().sum::<f64>() / middle.len() as f64)
}

/// What a figure is to reach.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Nothing; it is there to be known.
    None,
    RatioAtMost(f64),
    RatioAtLeast(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// One line of the results.
#[derive(Debug)]
pub struct Figure {
    /// GROUP/FIGURE.
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    /// The value by its limit, and what that is.
    pub ratio: Option<(f64, String)>,
    pub target: Target,
}

impl Figure {
    /// A figure with nothing to compare it with.
    pub fn new(name: impl Into<String>, samples: &Samples, unit: &'static str) -> Self {
        Self { name: name.into(), value: samples.median(), unit, ratio: None, target: Target::None }
    }

    /// As a ratio to `limit`, which was measured in the same rounds.
    pub fn against(mut self, samples: &Samples, limit: &Samples, what: &str) -> Self {
        self.ratio = Some((samples.ratio(limit), what.to_owned()));
        self
    }

    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    pub fn heading() -> String {
        format!("{:<44} {:>10} {:<9} {:>8}  {:<14} met", "name", "value", "unit", "ratio", "target")
    }

    fn ratio(&self) -> f64 {
        self.ratio.as_ref().map_or(f64::NAN, |(ratio, _)| *ratio)
    }

    /// `None` where there is no target.
    fn met(&self) -> Option<bool> {
        match self.target {
            Target::None => None,
            Target::RatioAtMost(most) => Some(self.ratio() <= most),
            Target::RatioAtLeast(least) => Some(self.ratio() >= least),
            Target::AtMost(most) => Some(self.value <= most),
            Target::AtLeast(least) => Some(self.value >= least),
        }
    }

    fn target_text(&self) -> String {
        match self.target {
            Target::None => "-".to_owned(),
            Target::RatioAtMost(most) => format!("ratio<={}", short(most)),
            Target::RatioAtLeast(least) => format!("ratio>={}", short(least)),
            Target::AtMost(most) => format!("value<={}", short(most)),
            Target::AtLeast(least) => format!("value>={}", short(least)),
        }
    }

    fn line(&self) -> String {
        let ratio = self.ratio.as_ref().map_or_else(|| "-".to_owned(), |(ratio, _)| significant(*ratio));
        let met = match self.met() {
            None => "-",
            Some(true) => "met",
            Some(false) => "missed",
        };
        let (value, target) = (significant(self.value), self.target_text());
        format!("{:<44} {value:>10} {:<9} {ratio:>8}  {target:<14} {met}", self.name, self.unit)
    }

    fn to_json(&self) -> Value {
        let (ratio, against) = self.ratio.as_ref().map(|(ratio, what)| (*ratio, what)).unzip();
        json!({
            "name": self.name, "value": self.value, "unit": self.unit, "ratio": ratio, "against": against,
            "target": self.target_text(), "met": self.met(),
        })
    }
}

/// A target's number, without a long tail of digits.
fn short(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Four digits, or all of those before the point.
fn significant(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (3.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize };
    format!("{value:.digits$}")
}

/// Whether what is asked for by this name may be in the group.
pub fn is_of(name: &str, group: &str) -> bool {
    group.contains(name.split('/').next().unwrap_or_default())
}

/// Where a run's figures go: printed at once, and written at the end.
pub struct Report {
    directory: PathBuf,
    names: Vec<String>,
    figures: Vec<Figure>,
    /// What could not be measured, and why.
    missing: Vec<(String, String)>,
}

impl Report {
    /// Files go to `directory`. Where `names` is not empty, only figures are reported whose name has one of them in it.
    pub fn new(directory: &Path, names: Vec<String>) -> Self {
        fs::create_dir_all(directory).unwrap();
        Self { directory: directory.to_owned(), names, figures: Vec::new(), missing: Vec::new() }
    }

    /// Whether the group has to be measured.
    pub fn wants_group(&self, group: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| is_of(name, group))
    }

    /// Whether a figure is asked for whose name begins like this.
    pub fn wants_any(&self, beginning: &str) -> bool {
        self.wants(beginning) || self.names.iter().any(|part| part.starts_with(beginning))
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|part| name.contains(part.as_str()))
    }

    pub fn add(&mut self, figure: Figure) {
        if self.wants(&figure.name) {
            println!("{}", figure.line());
            self.figures.push(figure);
        }
    }

    /// A figure that can't be had here.
    pub fn skip(&mut self, name: &str, why: &str) {
        if self.wants(name) {
            println!("{name:<44} {why}");
            self.missing.push((name.to_owned(), why.to_owned()));
        }
    }

    /// Where a plot goes.
    pub fn plot_path(&self, name: &str) -> PathBuf {
        self.directory.join(name).with_extension("svg")
    }

    pub fn is_empty(&self) -> bool {
        self.figures.is_empty() && self.missing.is_empty()
    }

    /// Writes summary.json.
    pub fn finish(&self) {
        let missing = self.missing.iter().map(|(name, why)| json!({ "name": name, "missing": why }));
        let figures: Vec<Value> = self.figures.iter().map(Figure::to_json).chain(missing).collect();
        let summary = json!({ "machine": Machine::here(), "figures": figures });
        let path = self.directory.join("summary.json");
        fs::write(&path, serde_json::to_string_pretty(&summary).unwrap() + "\n").unwrap();
        println!("written to {}", path.display());
    }
}

/// What a reader of the figures asks first.
#[derive(Serialize)]
struct Machine {
    processor: String,
    processors: usize,
    kernel: String,
}

impl Machine {
    fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: model.map_or("unknown", |(_, name)| name).to_owned(),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}
