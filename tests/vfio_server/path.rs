//! The socket's path, and who may connect.

use super::*;

#[test]
fn a_stale_path_is_replaced_and_a_live_one_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let mut listener = Listener::bind(&path).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenError::Alive(_)), "{error}");
    assert!(error.to_string().contains("in use"));
    // Nor does the live one take the second for a guest.
    assert!(listener.accept(false, &shape()).unwrap().is_none());
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_path_that_is_no_socket_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("file");
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&path), Err(ListenError::NotASocket(_))));
    assert!(matches!(Listener::bind(dir.as_path()), Err(ListenError::NotASocket(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let absent = dir.as_path().join("absent/socket");
    assert!(Listener::bind(&absent).unwrap_err().to_string().contains("absent/socket"));
    let long = Path::new("/tmp").join("x".repeat(200));
    assert!(Listener::bind(&long).unwrap_err().to_string().contains("at most 107"));
}

#[test]
fn only_our_own_socket_is_removed() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    // Another inode, which is not that of the removed one.
    let other = dir.as_path().join("other");
    let _other = UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, &path).unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn a_second_client_is_turned_away_and_the_next_one_served() {
    let dir = TempDir::new().unwrap();
    let path = dir.as_path().join("socket");
    let mut listener = Listener::bind(&path).unwrap();
    assert!(listener.accept(false, &shape()).unwrap().is_none());
    let first = UnixStream::connect(&path).unwrap();
    let connection = listener.accept(false, &shape()).unwrap().unwrap();
    assert_eq!(connection.peer_pid(), libc::pid_t::try_from(std::process::id()).ok());
    let mut second = UnixStream::connect(&path).unwrap();
    assert!(listener.accept(true, &shape()).unwrap().is_none());
    assert_eq!(second.read(&mut [0]).unwrap(), 0);
    drop(first);
    assert!(connection.peer_is_gone());
    let _third = UnixStream::connect(&path).unwrap();
    let next = listener.accept(!connection.peer_is_gone(), &shape()).unwrap().unwrap();
    assert_ne!(next.id(), connection.id());
}
