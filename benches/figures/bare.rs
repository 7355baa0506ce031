//! The limits: sockets and memory with nothing of this product in between.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::wire::{Wait, receive, send};

/// The kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Unix,
    /// Over loopback, as adaptors set it.
    Tcp,
}

/// Bytes of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub request: usize,
    pub reply: usize,
}

/// Seconds that an exchange takes between two threads, as `time` takes it of many: [`each`] or [`typical`].
pub fn round_trips(
    way: Way,
    wait: Wait,
    exchange: Exchange,
    time: impl FnOnce(&mut dyn FnMut()) -> f64,
) -> f64 {
    let (client, server) = pair(way, wait);
    thread::scope(|scope| {
        scope.spawn(move || answer(server, exchange, || {}));
        ask(client, exchange, time)
    })
}

/// The same of exchanges over a UNIX socket for each of which a thread in between makes one over TCP: a remote load's way, with nothing to
/// be done on it.
pub fn relayed(wait: Wait, unix: Exchange, tcp: Exchange, time: impl FnOnce(&mut dyn FnMut()) -> f64) -> f64 {
    let (client, near) = pair(Way::Unix, wait);
    let (mut relay, far) = pair(Way::Tcp, wait);
    let (request, mut reply) = (vec![0; tcp.request], vec![0; tcp.reply]);
    thread::scope(|scope| {
        scope.spawn(move || answer(far, tcp, || {}));
        scope.spawn(move || {
            answer(near, unix, || {
                send(&mut relay, &request);
                assert!(receive(&mut relay, &mut reply));
            });
        });
        ask(client, unix, time)
    })
}

fn ask(mut client: Socket, exchange: Exchange, time: impl FnOnce(&mut dyn FnMut()) -> f64) -> f64 {
    let (request, mut reply) = (vec![0; exchange.request], vec![0; exchange.reply]);
    let mut round_trip = || {
        send(&mut client, &request);
        assert!(receive(&mut client, &mut reply));
    };
    round_trip();
    time(&mut round_trip)
}

/// Answers until the other end is closed.
fn answer(mut server: Socket, exchange: Exchange, mut meanwhile: impl FnMut()) {
    let (mut request, reply) = (vec![0; exchange.request], vec![0; exchange.reply]);
    while receive(&mut server, &mut request) {
        meanwhile();
        send(&mut server, &reply);
    }
}

fn pair(way: Way, wait: Wait) -> (Socket, Socket) {
    let ends = match way {
        Way::Unix => Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap(),
        Way::Tcp => tcp_pair(),
    };
    for end in [&ends.0, &ends.1] {
        end.set_nonblocking(wait == Wait::Poll).unwrap();
    }
    ends
}

fn tcp_pair() -> (Socket, Socket) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into();
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&address).unwrap();
    listener.listen(1).unwrap();
    let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    client.connect(&listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_tcp_nodelay(true).unwrap();
        // Which is what adaptors take on loopback, where the kernel has it.
        let _ = end.set_tcp_congestion(b"cubic");
    }
    (client, server)
}

/// Seconds that it takes to copy `len` bytes of memory.
pub fn memcpy(len: usize, count: usize) -> f64 {
    let (from, mut to) = (vec![7u8; len], vec![0u8; len]);
    each(count, || std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from)))
}

/// Seconds that each of `count` calls takes, on average: for rates.
pub fn each(count: usize, mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..count {
        call();
    }
    begin.elapsed().as_secs_f64() / count as f64
}

/// Seconds that the middle one of `count` calls takes: for latencies. Those in whose midst the processor was somebody else's count for one, however long they take.
pub fn typical(count: usize, mut call: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = Vec::with_capacity(count);
    for _ in 0..count {
        let begin = Instant::now();
        call();
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    times[count / 2].as_secs_f64()
}

/// Bytes a second that one TCP stream carries, of writes and reads of so many bytes.
pub fn stream(len: usize, total: usize) -> f64 {
    let (mut client, mut server) = pair(Way::Tcp, Wait::Block);
    let count = total.div_ceil(len).max(1);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut buffer = vec![0; len];
            let mut left = count * len;
            while left > 0 {
                let read = server.read(&mut buffer).unwrap();
                assert_ne!(read, 0);
                left -= read;
            }
        });
        let bytes = vec![7; len];
        let begin = Instant::now();
        for _ in 0..count {
            client.write_all(&bytes).unwrap();
        }
        reader.join().unwrap();
        (count * len) as f64 / begin.elapsed().as_secs_f64()
    })
}
