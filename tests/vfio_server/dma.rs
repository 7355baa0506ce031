//! Commands of the server to its client, and what the client makes of them.

use super::*;
use assured_rdma::vfio::message::DmaAccess;
use assured_rdma::vfio::{DmaError, DmaKind, DmaRefused, MAX_DMA, MAX_DMA_TRANSFER, MAX_DMA_WRITE};
use bytes::Bytes;

const REPLY: u32 = 1;

/// A client that has negotiated and taken the answer, and its server.
fn pair() -> (UnixStream, Connection) {
    pair_with(&version())
}

fn pair_with(version: &[u8]) -> (UnixStream, Connection) {
    let (mut client, server) = UnixStream::pair().unwrap();
    let mut connection = Connection::new(server, ConnectionId(1), shape()).unwrap();
    assert!(!connection.can_send_dma(), "not before VERSION");
    let refused = connection.send_dma(OperationId(0), 0, &DmaKind::Read(1));
    assert_eq!(refused, Err(DmaRefused::NotNow));
    client.write_all(version).unwrap();
    assert_eq!(connection.receive().unwrap(), Intake::Some);
    assert!(connection.next_request().unwrap().is_none());
    connection.flush().unwrap();
    assert_eq!(reply(&mut client).0.id, 0);
    (client, connection)
}

fn send(connection: &mut Connection, operation: u64, address: u64, kind: &DmaKind) {
    connection.send_dma(OperationId(operation), address, kind).unwrap();
    connection.flush().unwrap();
}

/// A command as the client sees it.
fn asked(client: &mut UnixStream) -> (Header, DmaAccess, Vec<u8>) {
    let (header, mut body) = reply(client);
    assert_eq!(header.flags, 0, "a command that wants a reply");
    let data = body.split_off(DmaAccess::SIZE);
    (header, DmaAccess::parse(&body).unwrap(), data)
}

/// A reply to a command: the access and the data, or only the header.
fn answer(id: u16, to: Command, access: Option<DmaAccess>, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(access) = access {
        access.emit(&mut body);
    }
    body.extend_from_slice(data);
    command(id, to, REPLY, &body)
}

/// Takes in what the client has sent, and tells how commands ended.
fn ended(connection: &mut Connection) -> Vec<(u64, Result<Bytes, DmaError>)> {
    while connection.receive().unwrap() == Intake::Some {}
    std::iter::from_fn(|| connection.poll_dma()).map(|done| (done.operation.0, done.result)).collect()
}

/// The connection still hands out what is sent to it.
fn in_step(client: &mut UnixStream, connection: &mut Connection) {
    client.write_all(&load(0x7777, BAR0, 0, 4)).unwrap();
    connection.receive().unwrap();
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[1, 2, 3, 4]);
    connection.flush().unwrap();
    assert_eq!(reply(client).0.id, 0x7777);
}

#[test]
fn a_read_and_a_write_go_to_the_client_and_their_answers_come_back() {
    let (mut client, mut connection) = pair();
    send(&mut connection, 10, 0xfe00_0020, &DmaKind::Read(4));
    send(&mut connection, 11, 0xfe00_0088, &DmaKind::Write(Bytes::from_static(b"abcdefgh")));
    let (read, access, data) = asked(&mut client);
    assert_eq!((read.command, access.address, access.count), (11, 0xfe00_0020, 4));
    assert_eq!((read.size, data.len()), (32, 0));
    let (write, to, data) = asked(&mut client);
    assert_eq!((write.command, to.address, to.count, &data[..]), (12, 0xfe00_0088, 8, &b"abcdefgh"[..]));
    assert_ne!(read.id, write.id);
    assert!(ended(&mut connection).is_empty());
    // As QEMU does it: a write is answered with the header alone.
    client.write_all(&answer(write.id, Command::DmaWrite, None, &[])).unwrap();
    assert_eq!(ended(&mut connection), [(11, Ok(Bytes::new()))]);
    client.write_all(&answer(read.id, Command::DmaRead, Some(access), &[1, 2, 3, 4])).unwrap();
    assert_eq!(ended(&mut connection), [(10, Ok(Bytes::from_static(&[1, 2, 3, 4])))]);
    // As the specification has it.
    send(&mut connection, 12, 8, &DmaKind::Write(Bytes::from_static(b"x")));
    let (write, to, _) = asked(&mut client);
    client.write_all(&answer(write.id, Command::DmaWrite, Some(to), &[])).unwrap();
    assert_eq!(ended(&mut connection), [(12, Ok(Bytes::new()))]);
    in_step(&mut client, &mut connection);
}

#[test]
fn an_answer_is_found_behind_requests_that_wait() {
    let (mut client, mut connection) = pair();
    send(&mut connection, 1, 0x1000, &DmaKind::Read(2));
    send(&mut connection, 2, 0x2000, &DmaKind::Write(Bytes::from_static(b"x")));
    let (read, access, _) = asked(&mut client);
    let (write, ..) = asked(&mut client);
    let stores: Vec<u8> = (0..20_000).flat_map(|_| store(3, NO_REPLY, BAR0, 0, &[7; 8])).collect();
    let messages = [
        load(2, BAR0, 0, 4),
        answer(read.id, Command::DmaRead, Some(access), &[5, 6]),
        stores,
        answer(write.id, Command::DmaWrite, None, &[]),
        load(4, BAR0, 0, 4),
    ];
    let sender = thread::spawn({
        let mut client = client.try_clone().unwrap();
        move || client.write_all(&messages.concat()).unwrap()
    });
    let token = loop {
        wait(&connection);
        connection.receive().unwrap();
        match connection.next_request().unwrap() {
            Some(Request::Load { token, .. }) => break token,
            other => assert!(other.is_none()),
        }
    };
    assert!(!connection.can_send_dma(), "the client may do nothing before it has its answer");
    let mut found = Vec::new();
    while found.len() < 2 {
        assert!(connection.wants_read(), "whatever waits, answers are received");
        wait(&connection);
        found.extend(ended(&mut connection));
    }
    assert_eq!(found, [(1, Ok(Bytes::from_static(&[5, 6]))), (2, Ok(Bytes::new()))]);
    assert!(connection.next_request().unwrap().is_none(), "the load still waits");
    connection.reply_load(token, &[0; 4]);
    connection.flush().unwrap();
    assert_eq!(reply(&mut client).0.id, 2);
    // Neither answer is taken for anything else when its turn comes.
    let mut stores = 0;
    loop {
        match connection.next_request().unwrap() {
            Some(Request::Store { token: None, .. }) => stores += 1,
            Some(Request::Load { token, .. }) => break connection.reply_load(token, &[0; 4]),
            None => assert_eq!(connection.receive().unwrap(), Intake::Some),
            Some(other) => panic!("{other:?}"),
        }
    }
    sender.join().unwrap();
    assert_eq!(stores, 20_000);
    assert!(connection.can_send_dma());
    assert!(ended(&mut connection).is_empty());
}

#[test]
fn answers_that_are_none_are_told_from_those_that_are() {
    let (mut client, mut connection) = pair();
    let fail = |errno: u32| {
        move |header: &Header, _| {
            let mut out = Vec::new();
            let command = header.command;
            Header { id: header.id, command, size: 16, flags: ERROR_REPLY, error: errno }.emit(&mut out);
            out
        }
    };
    type Reply = Box<dyn Fn(&Header, DmaAccess) -> Vec<u8>>;
    let read = |access: fn(DmaAccess) -> Option<DmaAccess>, data: &'static [u8]| -> Reply {
        Box::new(move |header, asked| answer(header.id, Command::DmaRead, access(asked), data))
    };
    let malformed = Err(DmaError::Malformed);
    let cases: Vec<(Reply, Result<Bytes, DmaError>)> = vec![
        (Box::new(fail(19)), Err(DmaError::Errno(19))),
        (Box::new(fail(u32::MAX)), Err(DmaError::Errno(u32::MAX))),
        (Box::new(fail(0)), Err(DmaError::Errno(0))),
        (read(|_| None, &[]), malformed.clone()),
        (read(|_| None, &[1, 2, 3, 4]), malformed.clone()),
        (read(Some, &[1, 2, 3]), malformed.clone()),
        (read(Some, &[1, 2, 3, 4, 5]), malformed.clone()),
        (read(|asked| Some(DmaAccess { count: 3, ..asked }), &[1, 2, 3]), malformed.clone()),
        (read(|asked| Some(DmaAccess { count: u64::MAX, ..asked }), &[1, 2, 3, 4]), malformed.clone()),
        (read(|asked| Some(DmaAccess { address: 4, ..asked }), &[1, 2, 3, 4]), malformed.clone()),
        (read(Some, &[1, 2, 3, 4]), Ok(Bytes::from_static(&[1, 2, 3, 4]))),
    ];
    for (number, (reply, expected)) in (0..).zip(cases) {
        send(&mut connection, number, 0x1000, &DmaKind::Read(4));
        let (header, access, _) = asked(&mut client);
        // An id that nothing has, and another command's.
        client.write_all(&answer(header.id ^ 1, Command::DmaRead, Some(access), &[9; 4])).unwrap();
        client.write_all(&answer(header.id, Command::DmaWrite, None, &[])).unwrap();
        assert!(ended(&mut connection).is_empty());
        client.write_all(&reply(&header, access)).unwrap();
        assert_eq!(ended(&mut connection), [(number, expected)], "case {number}");
        // The same again is too late.
        client.write_all(&reply(&header, access)).unwrap();
        assert!(ended(&mut connection).is_empty());
        in_step(&mut client, &mut connection);
    }
    send(&mut connection, 100, 0x1000, &DmaKind::Write(Bytes::from_static(b"1234")));
    let (header, access, _) = asked(&mut client);
    client.write_all(&answer(header.id, Command::DmaWrite, Some(access), b"1234")).unwrap();
    assert_eq!(ended(&mut connection), [(100, malformed)]);
    in_step(&mut client, &mut connection);
}

#[test]
fn commands_without_answers_are_bounded_and_fail_with_their_client() {
    let (mut client, mut connection) = pair();
    let data = Bytes::from(vec![7; MAX_DMA_TRANSFER]);
    let mut ids = Vec::new();
    for number in 0..MAX_DMA as u64 {
        send(&mut connection, number, 0x1000, &DmaKind::Write(data.clone()));
        while connection.wants_write() {
            // More than the socket holds.
            let mut bytes = vec![0; 1 << 16];
            assert!(client.read(&mut bytes).unwrap() > 0);
            connection.flush().unwrap();
        }
        ids.push(number);
    }
    assert!(!connection.can_send_dma());
    assert_eq!(connection.send_dma(OperationId(999), 0, &DmaKind::Read(1)), Err(DmaRefused::NotNow));
    drop(client);
    connection.fail_dma();
    let failed: Vec<_> = ids.into_iter().map(|number| (number, Err(DmaError::Gone))).collect();
    let found: Vec<_> =
        std::iter::from_fn(|| connection.poll_dma()).map(|done| (done.operation.0, done.result)).collect();
    assert_eq!(found, failed);
}

/// `len` bytes, none like those before it.
fn long(len: usize) -> Bytes {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// The parts of a long write, put together, and the names of the commands that they came in.
fn parts(client: &UnixStream, connection: &mut Connection, len: usize) -> (Vec<u8>, Vec<u16>) {
    let mut client = client.try_clone().unwrap();
    let reader = thread::spawn(move || {
        let (mut written, mut ids) = (Vec::new(), Vec::new());
        while written.len() < len {
            let (header, access, data) = asked(&mut client);
            assert_eq!((header.command, access.address), (12, 0x1000 + written.len() as u64));
            assert!(data.len() <= MAX_DMA_TRANSFER);
            written.extend(data);
            ids.push(header.id);
        }
        (written, ids)
    });
    while connection.wants_write() {
        wait(connection);
        connection.flush().unwrap();
    }
    reader.join().unwrap()
}

#[test]
fn a_long_write_goes_in_parts_and_ends_once() {
    for failing in [None, Some(0), Some(3)] {
        let (mut client, mut connection) = pair();
        let data = long(7 * MAX_DMA_TRANSFER + 5);
        send(&mut connection, 1, 0x1000, &DmaKind::Write(data.clone()));
        assert!(!connection.can_send_dma(), "not all of it is sent");
        let (written, ids) = parts(&client, &mut connection, data.len());
        assert!(written == data && ids.len() == 8);
        assert!(connection.can_send_dma());
        for (at, &id) in ids.iter().enumerate() {
            assert_eq!(ended(&mut connection), []);
            let message = match failing {
                Some(failing) if failing == at => {
                    let mut message = Vec::new();
                    Header::error_reply(id, 12, 19).emit(&mut message);
                    message
                }
                _ => answer(id, Command::DmaWrite, None, &[]),
            };
            client.write_all(&message).unwrap();
        }
        let end = failing.map_or(Ok(Bytes::new()), |_| Err(DmaError::Errno(19)));
        assert_eq!(ended(&mut connection), [(1, end)]);
        in_step(&mut client, &mut connection);
    }
}

#[test]
fn a_long_write_whose_client_goes_has_failed_once() {
    let (client, mut connection) = pair();
    send(&mut connection, 1, 0x1000, &DmaKind::Write(long(8 * MAX_DMA_TRANSFER)));
    drop(client);
    connection.fail_dma();
    assert_eq!(connection.poll_dma().map(|done| done.result), Some(Err(DmaError::Gone)));
    assert_eq!(connection.poll_dma(), None);
}

#[test]
fn an_id_is_not_used_again_before_its_answer_was_there() {
    let (mut client, mut connection) = pair();
    send(&mut connection, 0, 0, &DmaKind::Read(1));
    let first = asked(&mut client).0.id;
    for number in 1..=70_000 {
        send(&mut connection, number, 0, &DmaKind::Read(1));
        let (header, access, _) = asked(&mut client);
        assert_ne!(header.id, first);
        client.write_all(&answer(header.id, Command::DmaRead, Some(access), &[0])).unwrap();
        assert_eq!(ended(&mut connection).len(), 1);
        assert!(connection.next_request().unwrap().is_none());
    }
    let access = DmaAccess { address: 0, count: 1 };
    client.write_all(&answer(first, Command::DmaRead, Some(access), &[3])).unwrap();
    assert_eq!(ended(&mut connection), [(0, Ok(Bytes::from_static(&[3])))]);
}

#[test]
fn ranges_that_can_not_be_are_refused() {
    let (_client, mut connection) = pair();
    for (address, len) in [(0, 0), (0, MAX_DMA_WRITE + 1), (u64::MAX - 8, MAX_DMA_WRITE)] {
        let kind = DmaKind::Write(vec![0; len].into());
        let refused = connection.send_dma(OperationId(1), address, &kind);
        assert_eq!(refused, Err(DmaRefused::Range), "{len} bytes at {address:#x}");
    }
    for (address, len) in [(0, 0), (0, MAX_DMA_TRANSFER + 1), (u64::MAX, 2), (u64::MAX - 6, 8)] {
        let refused = connection.send_dma(OperationId(1), address, &DmaKind::Read(len));
        assert_eq!(refused, Err(DmaRefused::Range), "{len} bytes at {address:#x}");
    }
    assert!(!connection.wants_write());
    connection.send_dma(OperationId(1), u64::MAX - 7, &DmaKind::Read(8)).unwrap();

    let small = b"\0\0\0\0{\"capabilities\":{\"max_data_xfer_size\":5000}}\0";
    let (_client, mut connection) = pair_with(&command(0, Command::Version, 0, small));
    let refused = connection.send_dma(OperationId(1), 0, &DmaKind::Read(5001));
    assert_eq!(refused, Err(DmaRefused::Range));
    connection.send_dma(OperationId(1), 0, &DmaKind::Read(5000)).unwrap();
}

#[test]
fn answers_to_the_client_go_before_commands_that_were_not_begun() {
    let (mut client, mut connection) = pair();
    client.write_all(&load(1, BAR0, 0, 4)).unwrap();
    connection.receive().unwrap();
    send(&mut connection, 1, 0, &DmaKind::Read(1));
    connection.send_dma(OperationId(2), 0, &DmaKind::Read(2)).unwrap();
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[0; 4]);
    connection.flush().unwrap();
    asked(&mut client);
    assert_eq!((reply(&mut client).0.id, asked(&mut client).1.count), (1, 2));

    // One that was begun is ended first, and the stream stays whole.
    let mut sent = 0;
    while !connection.wants_write() {
        sent += 1;
        send(&mut connection, 100 + sent, 0, &DmaKind::Write(Bytes::from(vec![7; MAX_DMA_TRANSFER])));
    }
    client.write_all(&load(3, BAR0, 0, 4)).unwrap();
    connection.receive().unwrap();
    let Ok(Some(Request::Load { token, .. })) = connection.next_request() else { panic!() };
    connection.reply_load(token, &[0; 4]);
    let reader = thread::spawn(move || {
        for _ in 0..sent {
            assert_eq!(asked(&mut client).2, [7; MAX_DMA_TRANSFER]);
        }
        assert_eq!(reply(&mut client).0.id, 3);
    });
    while connection.wants_write() {
        connection.flush().unwrap();
        wait(&connection);
    }
    reader.join().unwrap();
}

#[test]
fn answers_are_found_however_the_stream_is_cut() {
    for cut in 1..100 {
        let (mut client, mut connection) = pair();
        send(&mut connection, 1, 8, &DmaKind::Read(4));
        send(&mut connection, 2, 8, &DmaKind::Read(4));
        let ids = [asked(&mut client).0.id, asked(&mut client).0.id];
        let access = Some(DmaAccess { address: 8, count: 4 });
        let messages = [
            answer(ids[1], Command::DmaRead, access, b"abcd"),
            store(1, NO_REPLY, BAR0, 0, &[1; 4]),
            answer(ids[0], Command::DmaRead, access, b"efgh"),
        ]
        .concat();
        let mut found = Vec::new();
        let mut stores = 0;
        for part in [&messages[..cut.min(messages.len())], &messages[cut.min(messages.len())..]] {
            client.write_all(part).unwrap();
            found.extend(ended(&mut connection));
            while let Some(request) = connection.next_request().unwrap() {
                assert!(matches!(request, Request::Store { .. }));
                stores += 1;
            }
        }
        let expected = [(2, Ok(Bytes::from_static(b"abcd"))), (1, Ok(Bytes::from_static(b"efgh")))];
        assert_eq!((found, stores), (expected.to_vec(), 1), "cut at {cut}");
    }
}
