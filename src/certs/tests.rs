//! What the command makes, and what it never does to what is there.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::net::{Credentials, TlsFiles};

fn nodes(text: &str) -> Nodes {
    text.parse().unwrap()
}

fn node(id: u8) -> Owner {
    Owner::Nodes(Span::single(NodeId(id)))
}

fn files(directory: &Path, stem: &str) -> TlsFiles {
    TlsFiles {
        cert: directory.join(format!("{stem}.pem")),
        key: directory.join(format!("{stem}.key")),
        ca: directory.join("ca.pem"),
    }
}

fn contents(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut contents: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect();
    contents.sort();
    contents
}

#[test]
fn lists_of_nodes() {
    let ids = |text| nodes(text).0.into_iter().map(|node| node.0).collect::<Vec<_>>();
    assert_eq!(ids("1-3"), [1, 2, 3]);
    assert_eq!(ids("7,1,3-4,4"), [1, 3, 4, 7]);
    assert_eq!(ids("0-255").len(), 256);
    for (text, part) in
        [("", ""), ("1-", "1-"), ("3-1", "3-1"), ("1,,2", ""), ("+1", "+1"), ("5,256", "256"), ("a", "a")]
    {
        assert_eq!(text.parse::<Nodes>(), Err(NodesError(part.to_owned())), "{text}");
    }
}

#[test]
fn what_is_made_can_be_used_and_keys_are_private() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("new/certs");
    let made = make(&directory, &nodes("0,3"), BusCount::ONE, false).unwrap();
    for (stem, owner) in [("node-0", node(0)), ("node-3", node(3)), ("router", Owner::Router)] {
        let credentials = Credentials::load(&files(&directory, stem), owner).unwrap();
        assert!(credentials.warnings().is_empty(), "{credentials:?}");
    }
    assert!(Credentials::load(&files(&directory, "node-0"), Owner::Router).is_err());
    assert_eq!(contents(&directory).len(), 8);
    for (path, _) in contents(&directory) {
        let private = path.extension().unwrap() == "key";
        assert_eq!(
            path.metadata().unwrap().permissions().mode() & 0o777,
            if private { 0o600 } else { 0o644 }
        );
    }
    let text = made.to_string();
    assert!(text.contains("node-3.pem, node-3.key: node 3, valid until 20"), "{text}");
    assert!(text.contains(&format!("--tls-ca {}/ca.pem", directory.display())), "{text}");
}

#[test]
fn an_adaptor_with_several_buses_has_a_certificate_for_all_its_ids() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let span = |first, bits| Owner::Nodes(Span::new(NodeId(first), bits).unwrap());
    let made = make(directory, &nodes("4,8"), "3".parse().unwrap(), false).unwrap().to_string();
    assert!(made.contains("node-8.pem, node-8.key: nodes 8 to 11, valid"), "{made}");
    for (own, good) in [(span(8, 2), true), (span(8, 1), true), (span(4, 2), false), (span(8, 3), false)] {
        assert_eq!(Credentials::load(&files(directory, "node-8"), own).is_ok(), good, "{own}");
    }
    drop(make(directory, &nodes("12"), BusCount::ONE, false).unwrap());
    let line = Credentials::load(&files(directory, "node-12"), span(12, 1)).unwrap_err().to_string();
    assert!(
        line.ends_with("is that of node 12, and this is nodes 12 to 13, so that it has to name all of these"),
        "{line}"
    );
    // Nothing is made where one of them can't be.
    let before = contents(directory);
    let line = make(directory, &nodes("16,18"), "4".parse().unwrap(), false).unwrap_err().to_string();
    assert_eq!(line, "nodes: 18 can't be the node id of an adaptor with 4 buses, which is a multiple of 4");
    assert_eq!(contents(directory), before);
    drop(make(&directory.join("all"), &nodes("0"), "256".parse().unwrap(), false).unwrap());
    assert!(Credentials::load(&files(&directory.join("all"), "node-0"), span(0, 8)).is_ok());
    for text in ["0", "257", "two", "-1", ""] {
        assert_eq!(text.parse::<BusCount>(), Err(BusCountError(text.to_owned())));
    }
}

#[test]
fn nothing_is_written_over_and_the_authority_never() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    drop(make(directory, &nodes("1-2"), BusCount::ONE, false).unwrap());
    let before = contents(directory);
    let error = make(directory, &nodes("2-3"), BusCount::ONE, false).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}/node-2.pem: is there already; ", directory.display())), "{error}");
    assert_eq!(contents(directory), before);
    // More nodes of the same authority.
    drop(make(directory, &nodes("3"), BusCount::ONE, false).unwrap());
    drop(Credentials::load(&files(directory, "node-3"), node(3)).unwrap());
    assert_eq!(contents(directory).iter().filter(|file| before.contains(file)).count(), before.len());
    // Anew, and still of that authority.
    drop(make(directory, &nodes("1"), BusCount::ONE, true).unwrap());
    drop(Credentials::load(&files(directory, "node-1"), node(1)).unwrap());
    let changed: Vec<_> = before.iter().filter(|file| !contents(directory).contains(file)).collect();
    let names: Vec<_> = changed.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["node-1.key", "node-1.pem", "router.key", "router.pem"]);
    let file = directory.join("ca.pem");
    let error = make(&file, &nodes("1"), BusCount::ONE, false).unwrap_err().to_string();
    assert_eq!(error, format!("{}: not a directory", file.display()));
}

#[test]
fn an_authority_that_does_not_fit_is_not_used() {
    let (place, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directory = place.path();
    drop(make(directory, &nodes("1"), BusCount::ONE, false).unwrap());
    drop(make(other.path(), &nodes("1"), BusCount::ONE, false).unwrap());
    let fails = |part: &str| {
        let before = contents(directory);
        let error = make(directory, &nodes("2"), BusCount::ONE, false).unwrap_err().to_string();
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
        assert_eq!(contents(directory), before);
    };
    fs::copy(other.path().join("ca.key"), directory.join("ca.key")).unwrap();
    fails("ca.pem: not an authority that this program made: ");
    fs::write(directory.join("ca.key"), "no key").unwrap();
    fails("ca.key: not an authority that this program made: ");
    fs::remove_file(directory.join("ca.key")).unwrap();
    fails("ca.key: missing, and without it");
}

#[test]
fn what_cannot_be_written_leaves_no_half_authority_and_no_parts() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    // Stands in the way of the authority's certificate, whose key is written first.
    let obstacle = directory.join("ca.pem.part");
    fs::create_dir(&obstacle).unwrap();
    let text = make(directory, &nodes("1"), BusCount::ONE, false).unwrap_err().to_string();
    assert!(text.starts_with(&format!("{}/ca.pem: ", directory.display())), "{text}");
    assert!(!directory.join("ca.key").exists());

    fs::remove_dir(&obstacle).unwrap();
    drop(make(directory, &nodes("1"), BusCount::ONE, false).unwrap());
    fs::create_dir(directory.join("node-2.pem")).unwrap();
    let text = make(directory, &nodes("2"), BusCount::ONE, true).unwrap_err().to_string();
    assert!(text.starts_with(&format!("{}/node-2.pem: ", directory.display())), "{text}");
    assert!(!directory.join("node-2.pem.part").exists());
}
