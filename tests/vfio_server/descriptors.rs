//! Which message file descriptors belong to, and how many may come.

use super::*;
use std::time::{Duration, Instant};

/// Takes what the client sends as requests, replying to each.
fn requests(connection: &mut Connection) -> VecDeque<Request> {
    let mut requests = VecDeque::new();
    while matches!(connection.receive().unwrap(), Intake::Some | Intake::Full) {
        while let Some(mut request) = connection.next_request().unwrap() {
            if let Request::DmaMap { token, .. } | Request::SetIrqs { token, .. } = &mut request {
                let token = token.take();
                connection.reply(token, Ok(()));
            }
            requests.push_back(request);
        }
    }
    requests
}

fn pair() -> (UnixStream, Connection) {
    let (mut client, server) = UnixStream::pair().unwrap();
    let connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    client.write_all(&version()).unwrap();
    (client, connection)
}

fn set_irqs(id: u16, start: u32, count: u32) -> Vec<u8> {
    let flags = vfio::VFIO_IRQ_SET_DATA_EVENTFD | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    let mut body = Vec::new();
    SetIrqs { argsz: 20, flags, index: vfio::VFIO_PCI_MSIX_IRQ_INDEX, start, count }.emit(&mut body);
    command(id, Command::SetIrqs, 0, &body)
}

#[test]
fn descriptors_belong_to_the_message_they_came_with() {
    let (client, mut connection) = pair();
    let files: Vec<File> = (1..=3).map(memfd).collect();
    // Everything is in the socket before the first receive.
    let plain = |message: Vec<u8>| (&client).write_all(&message).unwrap();
    let with = |message: Vec<u8>, file: usize| {
        client.send_with_fds(&[&message[..]], &[files[file].as_raw_fd()]).unwrap();
    };
    plain(store(1, NO_REPLY, BAR0, 0, &[1]));
    plain(dma_map(2, 0));
    with(dma_map(3, 1), 0);
    with(dma_map(4, 2), 1);
    plain(dma_map(5, 3));
    plain(store(6, NO_REPLY, BAR0, 0, &[1]));
    with(dma_map(7, 4), 2);
    plain(dma_map(8, 5));
    // Sent at once with others behind it, among them none that takes descriptors.
    with([set_irqs(9, 0, 1), store(10, NO_REPLY, BAR0, 0, &[1; 64])].concat(), 0);
    let found: Vec<_> = requests(&mut connection)
        .into_iter()
        .filter_map(|request| match request {
            Request::DmaMap { map, file, .. } => {
                Some((map.address / 4096, file.map(|file| File::from(file).metadata().unwrap().len())))
            }
            Request::SetIrqs { events, .. } => Some((100, Some(u64::try_from(events.len()).unwrap()))),
            _ => None,
        })
        .collect();
    let expected =
        [(0, None), (1, Some(1)), (2, Some(2)), (3, None), (4, Some(3)), (5, None), (100, Some(1))];
    assert_eq!(found, expected);
}

#[test]
fn descriptors_find_their_message_however_it_is_cut() {
    let message = dma_map(1, 7);
    let file = memfd(5);
    for cut in 1..message.len() {
        let (mut client, mut connection) = pair();
        client.write_all(&store(1, NO_REPLY, BAR0, 0, &[1; 16])).unwrap();
        client.send_with_fds(&[&message[..cut]], &[file.as_raw_fd()]).unwrap();
        assert!(requests(&mut connection).iter().all(|request| matches!(request, Request::Store { .. })));
        client.write_all(&message[cut..]).unwrap();
        client.write_all(&dma_map(2, 8)).unwrap();
        let found = requests(&mut connection);
        assert!(matches!(found[0], Request::DmaMap { file: Some(_), .. }), "cut at {cut}");
        assert!(matches!(found[1], Request::DmaMap { file: None, .. }), "cut at {cut}");
    }
}

#[test]
fn sixteen_vectors_connect_with_one_message_and_more_are_refused() {
    let events: Vec<EventFd> = (0..20).map(|_| EventFd::new(libc::EFD_NONBLOCK).unwrap()).collect();
    let fds: Vec<RawFd> = events.iter().map(AsRawFd::as_raw_fd).collect();
    let (mut client, mut connection) = pair();
    client.send_with_fds(&[&set_irqs(1, 0, 16)[..]], &fds[..16]).unwrap();
    client.send_with_fds(&[&set_irqs(2, 0, 17)[..]], &fds[..17]).unwrap();
    let found = requests(&mut connection);
    assert_eq!(found.len(), 1);
    assert!(matches!(&found[0], Request::SetIrqs { events, .. } if events.len() == 16));
    connection.flush().unwrap();
    assert_eq!((reply(&mut client).0.id, reply(&mut client).0.error), (0, 0));
    let (header, _) = reply(&mut client);
    assert_eq!((header.id, header.error), (2, libc::EINVAL.unsigned_abs()));
}

fn open_events() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|link| link.to_string_lossy().contains("flood-test"))
        .count()
}

#[test]
fn a_flood_of_descriptors_is_bounded_and_closed() {
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(c"flood-test".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: just opened, owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    let (mut client, mut connection) = pair();
    client.write_all(&load(1, BAR0, 0, 4)).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut messages = 0;
    while messages < 50
        && client.send_with_fds(&[&store(2, NO_REPLY, BAR0, 0, &[1])[..]], &[file.as_raw_fd(); 16]).is_ok()
    {
        messages += 1;
    }
    assert!(messages > 10);
    // The load is not answered, so that all of it has to wait.
    while connection.wants_read() && connection.receive().unwrap() == Intake::Some {}
    assert!(open_events() <= 1 + 5 * 16, "{}", open_events());
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[0; 4]);
    assert_eq!(requests(&mut connection).len(), messages);
    // A thread of its own closes them.
    let end = Instant::now() + Duration::from_secs(30);
    while open_events() > 1 {
        assert!(Instant::now() < end, "{} are left", open_events());
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_takes_no_replies_is_not_served_without_end() {
    let (client, mut connection) = pair();
    client.set_nonblocking(true).unwrap();
    let question = command(1, Command::DeviceGetInfo, 0, &[0; 16]);
    let mut asked = 0;
    for _ in 0..200_000 {
        if (&client).write_all(&question).is_err() {
            let before = connection.receive().unwrap();
            assert!(connection.next_request().unwrap().is_none());
            connection.flush().unwrap();
            if before == Intake::Full {
                break;
            }
        }
        asked += 1;
    }
    assert!(connection.wants_write() && !connection.wants_read(), "{asked}");
}
