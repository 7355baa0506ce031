//! What the environment variable RUST_LOG says, and what in there says nothing.

use log::LevelFilter;

/// What targets of this program begin with.
const PROGRAM: &str = "assured_rdma";

/// The modules at the top of this program, and what lines on nodes are called; sorted.
const MODULES: [&str; 17] = [
    "adaptor",
    "allowance",
    "certs",
    "config",
    "descriptors",
    "event_loop",
    "hosted",
    "logging",
    "mapped",
    "net",
    "node",
    "nodes",
    "poller",
    "reaper",
    "router",
    "router_process",
    "vfio",
];

/// A checked RUST_LOG.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filter {
    usable: String,
    problems: Vec<String>,
}

impl Filter {
    /// From the environment; empty where there is none.
    pub fn from_env() -> Self {
        match std::env::var("RUST_LOG") {
            Ok(text) => Self::new(&text),
            Err(std::env::VarError::NotPresent) => Self::default(),
            Err(std::env::VarError::NotUnicode(_)) => {
                Self { problems: vec!["RUST_LOG is ignored: it is not UTF-8".into()], ..Self::default() }
            }
        }
    }

    /// Checks `LEVEL`, `MODULE` and `MODULE=LEVEL`, with commas between them, and perhaps `/TEXT` that a line has to contain at the end.
    pub fn new(text: &str) -> Self {
        let (directives, pattern) =
            text.split_once('/').map_or((text, None), |(list, rest)| (list, Some(rest)));
        let mut filter = Self::default();
        let mut usable = Vec::new();
        for directive in directives.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
            match problem(directive) {
                None => usable.push(directive),
                Some(problem) => {
                    filter.problems.push(format!("RUST_LOG: '{directive}' is ignored: {problem}"))
                }
            }
        }
        filter.usable = usable.join(",");
        if let Some(pattern) = pattern {
            filter.usable.push('/');
            filter.usable.push_str(pattern);
        }
        filter
    }

    /// What of it can be used, written in the same way.
    pub fn usable(&self) -> &str {
        &self.usable
    }

    /// What can't, a line each.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

fn problem(directive: &str) -> Option<String> {
    const LEVELS: &str = "off, error, warn, info, debug and trace";
    let is_level = |text: &str| text.trim().parse::<LevelFilter>().is_ok();
    // A directive is for all modules that begin like this. What is below those at the top is not looked at.
    let is_module = |text: &str| {
        let text = text.trim();
        match text.strip_prefix(PROGRAM).and_then(|rest| rest.strip_prefix("::")) {
            Some(path) => {
                let top = path.split("::").next().unwrap_or(path);
                let is_whole = path.len() > top.len();
                MODULES.iter().any(|module| if is_whole { *module == top } else { module.starts_with(top) })
            }
            None => {
                !text.is_empty() && (PROGRAM.starts_with(text) || text.strip_prefix(PROGRAM) == Some(":"))
            }
        }
    };
    match directive.split_once('=') {
        None if is_level(directive) || is_module(directive) => None,
        None => Some(format!("it is no level ({LEVELS}) and no module of this program ({PROGRAM}::...)")),
        Some((module, _)) if !is_module(module) => {
            Some(format!("there is no module '{module}' in this program ({PROGRAM}::...)"))
        }
        Some((_, level)) if !is_level(level) => Some(format!("'{level}' is no level ({LEVELS})")),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_something_is_used_and_all_else_is_named() {
        for (text, usable, named) in [
            ("", "", &[][..]),
            ("debug", "debug", &[]),
            ("off,assured_rdma::net=info", "off,assured_rdma::net=info", &[]),
            ("assured=trace , ", "assured=trace", &[]),
            ("assured_rdma::vfio", "assured_rdma::vfio", &[]),
            ("info/guest", "info/guest", &[]),
            ("nonsense", "", &["'nonsense' is ignored"]),
            ("hyper=debug,warn", "warn", &["no module 'hyper'"]),
            ("assured_rdma::n=debug", "assured_rdma::n=debug", &[]),
            ("assured_rdma::net::links=debug", "assured_rdma::net::links=debug", &[]),
            ("assured_rdma::nodes", "assured_rdma::nodes", &[]),
            ("assured_rdma::nett=debug,warn", "warn", &["no module 'assured_rdma::nett'"]),
            ("assured_rdmas", "", &["'assured_rdmas' is ignored"]),
            ("assured_rdma::::net", "", &["'assured_rdma::::net' is ignored"]),
            ("assured_rdma=loud,7", "", &["'loud' is no level", "'7' is ignored"]),
            ("=debug", "", &["no module ''"]),
            ("assured_rdma=debug=info", "", &["'debug=info' is no level"]),
        ] {
            let filter = Filter::new(text);
            assert_eq!(filter.usable(), usable, "{text}");
            assert_eq!(filter.problems().len(), named.len(), "{filter:?}");
            assert!(
                filter.problems().iter().zip(named).all(|(found, name)| found.contains(name)),
                "{filter:?}"
            );
        }
    }

    #[test]
    fn every_module_is_known() {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let mut found: Vec<_> = std::fs::read_dir(source)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .filter(|name| !["lib", "main"].contains(&name.as_str()))
            .chain(["nodes".to_owned()])
            .collect();
        found.sort();
        found.dedup();
        assert_eq!(found, MODULES);
    }
}
