//! The tables of registers and codes in the code are the source; the documentation and the driver's
//! header say the same, line by line.

use assured_rdma::adaptor::pci::registers::{AtReset, Description, TABLE};
use assured_rdma::adaptor::status::Code;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A register as the documentation's table has to show it: all columns but the meaning.
fn documented(line: &Description) -> Vec<String> {
    let at_reset = match line.at_reset {
        AtReset::Value(0) => "0".into(),
        AtReset::Value(value) => format!("{value:#010x}"),
        AtReset::Configured => "configured".into(),
        AtReset::New => "new".into(),
        AtReset::Assigned => "assigned".into(),
    };
    let (offset, bits) = (format!("{:#06x}", line.offset), line.size.saturating_mul(8).to_string());
    vec![offset, line.name.into(), bits, line.access.to_string(), at_reset]
}

#[test]
fn documentation_has_the_register_table() {
    let page = std::fs::read_to_string(repository().join("docs/device.md")).unwrap();
    let table = page.split("<!-- registers: begin").nth(1).expect("the begin marker is missing");
    let table = table.split("<!-- registers: end -->").next().unwrap();
    let rows: Vec<Vec<String>> = table
        .lines()
        .filter(|line| line.starts_with("| 0x"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 6, "not six columns: {line}");
            assert!(!cells[5].is_empty(), "no meaning: {line}");
            cells[..5].iter().map(|&cell| cell.to_owned()).collect()
        })
        .collect();
    assert_eq!(rows, TABLE.iter().map(documented).collect::<Vec<_>>());
}

/// The C headers of the guest driver that may define registers.
fn headers() -> Vec<PathBuf> {
    [
        "guest-driver/include",
        "guest-driver/include/uapi",
        "guest-driver/include/uapi/linux",
        "guest-driver/driver",
    ]
    .iter()
    .filter_map(|directory| std::fs::read_dir(repository().join(directory)).ok())
    .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
    .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
    .collect()
}

/// What the headers define under this prefix: names and hexadecimal numbers.
fn defined(prefix: &str) -> Result<BTreeMap<String, u64>, String> {
    let mut defined = BTreeMap::new();
    for path in headers() {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some("#define"), Some(name)) = (words.next(), words.next()) else { continue };
            let Some(name) = name.strip_prefix(prefix) else { continue };
            let number = words.next().and_then(|number| number.strip_prefix("0x"));
            let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
            let number = number.ok_or_else(|| format!("{}: not hexadecimal: {line}", path.display()))?;
            if defined.insert(name.to_owned(), number).is_some() {
                return Err(format!("{}: {prefix}{name} is defined twice", path.display()));
            }
        }
    }
    if defined.is_empty() {
        return Err(format!("no header under guest-driver/ defines a name that begins with {prefix}"));
    }
    Ok(defined)
}

/// The name of a code in the documentation: `LinkDown` is LINK_DOWN.
fn name_of(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[test]
fn driver_header_has_the_register_table() {
    let expected: BTreeMap<String, u64> = TABLE.iter().map(|line| (line.name.into(), line.offset)).collect();
    assert_eq!(defined("ARDMA_REG_").unwrap(), expected);
}

#[test]
fn driver_header_has_the_codes() {
    let expected = Code::ALL.iter().map(|&code| (name_of(code), u64::from(code.bits()))).collect();
    assert_eq!(defined("ARDMA_CODE_"), Ok(expected));
}

#[test]
fn documentation_has_the_codes() {
    let page = std::fs::read_to_string(repository().join("docs/device.md")).unwrap();
    let table = page.split("### Codes").nth(1).expect("the section on codes is missing");
    let rows = table.split("\n#").next().unwrap().lines().filter(|line| line.starts_with("| 0x"));
    let rows: Vec<Vec<&str>> =
        rows.map(|line| line.split('|').map(str::trim).skip(1).take(2).collect()).collect();
    let expected: Vec<Vec<String>> =
        Code::ALL.iter().map(|&code| vec![format!("{:#04x}", code.bits()), name_of(code)]).collect();
    assert_eq!(rows, expected);
}

/// What the code's table says of a code, as a line of text that people are told.
fn told(code: Code) -> (String, String) {
    (format!("{:#04x}", code.bits()), code.to_string())
}

#[test]
fn readme_has_the_codes() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let table = readme.split("| code | meaning | | code | meaning |").nth(1).expect("the table is missing");
    let cells: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let halves =
        [0, 3].into_iter().flat_map(|first| cells.iter().map(move |row| (row[first], row[first + 1])));
    let rows = halves.filter(|(code, _)| code.starts_with("0x"));
    // Some say in brackets what they are about.
    let rows: Vec<_> =
        rows.map(|(code, text)| (code.to_owned(), text.split(" (").next().unwrap().to_owned())).collect();
    let told = Code::ALL.iter().filter(|code| !code.is_ok()).map(|&code| told(code));
    assert_eq!(rows, told.collect::<Vec<_>>());
}

#[test]
fn library_has_the_codes() {
    let path = repository().join("guest-driver/ardma/src/status.rs");
    let text = std::fs::read_to_string(&path).unwrap();
    let table = text.split("\ncodes! {").nth(1).expect("the table is missing").split("\n}").next().unwrap();
    let rows: Vec<Vec<String>> = table
        .lines()
        .filter(|line| line.trim_end().ends_with(';'))
        .map(|line| {
            let (variant, rest) = line.trim().trim_end_matches(';').split_once(" = ").unwrap();
            let fields = rest.splitn(3, ", ").map(|field| field.trim_matches('"').to_owned());
            core::iter::once(variant.to_owned()).chain(fields).collect()
        })
        .collect();
    let expected = Code::ALL.iter().map(|&code| {
        let (bits, text) = told(code);
        vec![format!("{code:?}"), bits, name_of(code), text]
    });
    assert_eq!(rows, expected.collect::<Vec<_>>());
}
