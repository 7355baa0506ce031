//! Holds the adaptor's core and the router to what `docs/architecture.md` says of them: no clock, thread, lock, socket, file or process.
#![allow(clippy::panic, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Paths of the standard library and crates that stand for the outside world.
const OUTSIDE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::sync",
    "std::thread",
    "std::time",
    "SystemTime",
    "RandomState",
    "HashMap",
    "HashSet",
    "libc::",
    "rustls",
    "vmm_sys_util",
    "vm_memory",
    "vfio_user",
    "socket2",
    "crate::net",
    "crate::hosted",
    "crate::mapped",
    "crate::node",
    "crate::vfio",
    "crate::config",
    "println!",
    "unsafe",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_core_does_not_reach_outside() {
    let mut files = Vec::new();
    for folder in ["src/adaptor", "src/router"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        if folder.exists() {
            sources(&folder, &mut files);
        }
    }
    assert!(files.len() > 20, "the core was found");
    for file in files {
        let text = fs::read_to_string(&file).expect("the file can be read");
        for (number, line) in text.lines().enumerate() {
            // Prose may name what code may not use.
            let code = line.split("//").next().unwrap_or_default();
            for outside in OUTSIDE {
                assert!(
                    !code.contains(outside),
                    "{}:{}: {outside}",
                    file.display(),
                    number.saturating_add(1)
                );
            }
        }
    }
}
