//! The C example is compiled, without warnings, and linked with both kinds of the library; it says what is missing.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the library that this test is linked with.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn compile(standard: &str, more: &[&str], program: &Path) {
    let mut command = Command::new("cc");
    command
        .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(folder().join("../include"))
        .arg(folder().join("examples/roundtrip.c"))
        .args(more)
        .arg("-o")
        .arg(program);
    let output = command.output().expect("a C compiler is needed: cc");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs it where there is no adaptor.
fn complains(program: &Path) {
    let output = Command::new(program).args(["/dev/ardma-none", "2", "0"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("roundtrip: /dev/ardma-none: no /dev/ardma-none: is the module loaded"),
        "{text}"
    );
}

#[test]
fn the_example_links_with_the_static_library() {
    let program = libraries().join("roundtrip-static");
    let library = libraries().join("libardma_c.a");
    compile("-std=c11", &[library.to_str().unwrap(), "-lpthread", "-ldl", "-lm"], &program);
    complains(&program);
}

#[test]
fn the_example_links_with_the_shared_library() {
    let program = libraries().join("roundtrip-shared");
    let folder = libraries();
    let folder = folder.to_str().unwrap();
    let path = format!("-Wl,-rpath,{folder}");
    compile("-std=c99", &["-L", folder, "-lardma_c", &path], &program);
    complains(&program);
}

fn without_comments(text: &str) -> String {
    text.split("/*").map(|part| part.split_once("*/").map_or(part, |(_, rest)| rest)).collect()
}

#[test]
fn every_function_of_the_header_is_in_the_library() {
    let header = std::fs::read_to_string(folder().join("../include/ardma.h")).unwrap();
    let code = ["lib", "handles", "operations"]
        .map(|name| std::fs::read_to_string(folder().join(format!("src/{name}.rs"))).unwrap())
        .concat();
    let mut declared: Vec<String> = without_comments(&header)
        .split(';')
        .filter_map(|part| part.split_once('('))
        .filter_map(|(before, _)| before.trim().rsplit([' ', '*']).next().map(str::to_owned))
        .filter(|name| name.starts_with("ardma_"))
        .collect();
    let mut defined: Vec<String> = code
        .split("extern \"C\" fn ")
        .skip(1)
        .filter_map(|part| part.split_once('(').map(|(name, _)| name.to_owned()))
        .collect();
    declared.sort();
    defined.sort();
    assert!(declared.len() > 15, "{declared:?}");
    assert_eq!(declared, defined);
}
