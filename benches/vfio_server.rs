//! The vfio-user server's loop against that of the crate `vfio_user`, and against the bare socket.
//!
//! `cargo bench --bench vfio_server` prints one line for each figure. Every round measures all of them one after the other, so that
//! whatever else the machine does hits all alike; a figure is the median of the rounds, and a ratio the median of the rounds' ratios.
//! `-- ROUNDS` is how many rounds (default 15). docs/performance.md has the figures and how to read them.

#![allow(clippy::panic)]
#![allow(missing_docs, clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::indexing_slicing)]

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use assured_rdma::poller::{Interest, Poller, Reports, Token};
use assured_rdma::vfio::message::{Command, HEADER_SIZE, Header, RegionAccess};
use assured_rdma::vfio::{Connection, ConnectionId, DeviceShape, Intake, Request};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend, ServerRegion};

/// Stores in one round, each from a system call of its own.
const SINGLE_STORES: usize = 20_000;
/// Stores in one round that come in batches.
const BATCHED_STORES: usize = 200_000;
/// Messages in a batch, which is about 64 KiB.
const BATCH: usize = 1638;
/// Round trips in one round.
const ROUND_TRIPS: usize = 2000;
/// How long a loop polls before it sleeps, where it polls: for ever, as far as this is concerned.
const POLL: Duration = Duration::from_secs(1);

const NO_REPLY: u32 = 1 << 4;
const REGISTERS: u32 = 0;
const REGISTERS_SIZE: usize = 4096;

/// A device that is memory, behind either server.
struct Device([u8; REGISTERS_SIZE]);

impl Device {
    fn part(&mut self, offset: u64, len: usize) -> &mut [u8] {
        let begin = usize::try_from(offset).unwrap();
        &mut self.0[begin..begin + len]
    }
}

impl ServerBackend for Device {
    fn region_read(&mut self, _region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.copy_from_slice(self.part(offset, data.len()));
        Ok(())
    }

    fn region_write(&mut self, _region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.part(offset, data.len()).copy_from_slice(data);
        Ok(())
    }

    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        _: u64,
        _: u64,
        _: u64,
        _: Option<std::fs::File>,
    ) -> io::Result<()> {
        Ok(())
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn set_irqs(&mut self, _: u32, _: u32, _: u32, _: u32, _: Vec<std::fs::File>) -> io::Result<()> {
        Ok(())
    }
}

/// The loop of this project around the device, as the adaptor runs it: after activity it polls for a while, yielding the processor, and
/// then sleeps.
fn serve(stream: UnixStream, poll: Duration) -> JoinHandle<()> {
    let shape = DeviceShape { regions: [4096, 0, 0, 0, 0, 0, 0, 4096, 0], vectors: 0 };
    let mut connection = Connection::new(stream, ConnectionId(1), shape).unwrap();
    thread::spawn(move || {
        let poller = Poller::new().unwrap();
        poller.add(&connection, Token(1), Interest::READ).unwrap();
        let mut reports = Reports::default();
        let mut device = Device([0; REGISTERS_SIZE]);
        let mut poll_until = Instant::now();
        loop {
            let polling = Instant::now() < poll_until;
            if polling {
                thread::yield_now();
            }
            poller.wait(&mut reports, polling.then_some(Duration::ZERO)).unwrap();
            if reports.is_empty() {
                continue;
            }
            loop {
                let intake = connection.receive().unwrap();
                while let Some(request) = connection.next_request().unwrap() {
                    match request {
                        Request::Load { token, offset, len, .. } => {
                            connection.reply_load(token, device.part(offset, len));
                        }
                        Request::Store { token, offset, data, .. } => {
                            device.part(offset, data.len()).copy_from_slice(&data);
                            connection.reply(token, Ok(()));
                        }
                        other => panic!("not asked for here: {other:?}"),
                    }
                }
                connection.flush().unwrap();
                match intake {
                    Intake::Some if connection.is_drained() => break,
                    Intake::Some | Intake::Full => {}
                    Intake::Nothing => break,
                    Intake::End => return,
                }
            }
            poll_until = Instant::now() + poll;
        }
    })
}

/// The crate's loop around the device; it can only block.
fn serve_by_crate(directory: &TempDir) -> (UnixStream, JoinHandle<()>) {
    let path = directory.path().join("crate");
    let region = |index, size| {
        let flags = vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE;
        let region_info = vfio::vfio_region_info { argsz: 32, flags, index, cap_offset: 0, size, offset: 0 };
        ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
    };
    let regions = (0..9).map(|index| region(index, if index == REGISTERS { 4096 } else { 0 })).collect();
    let server = Server::new(&path, true, Vec::new(), regions).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    let thread = thread::spawn(move || {
        // It ends with an error where its client closes.
        let _ = server.run(&mut Device([0; REGISTERS_SIZE]));
    });
    (stream, thread)
}

/// The bare socket: answers as many bytes as a load's reply has to as many as a load has.
fn echo(mut stream: UnixStream, poll: bool) -> JoinHandle<()> {
    stream.set_nonblocking(poll).unwrap();
    thread::spawn(move || {
        let reply = [0; REPLY];
        let mut request = [0; LOAD];
        while read_exact(&mut stream, &mut request) {
            stream.write_all(&reply).unwrap();
        }
    })
}

/// Bytes of a load of a register, and of its reply.
const LOAD: usize = HEADER_SIZE + RegionAccess::SIZE;
const REPLY: usize = LOAD + 4;

/// Reads, polling where the stream does not block. False at the end of the stream.
fn read_exact(stream: &mut UnixStream, buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return false,
            Ok(len) => filled += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
            Err(error) => panic!("{error}"),
        }
    }
    true
}

fn command(command: Command, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    let size = u32::try_from(HEADER_SIZE + body.len()).unwrap();
    Header { id: 1, command: command as u16, size, flags, error: 0 }.emit(&mut message);
    message.extend_from_slice(body);
    message
}

fn access(count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    RegionAccess { offset: 8, region: REGISTERS, count }.emit(&mut body);
    body.extend_from_slice(data);
    body
}

/// A client of either server.
struct Client {
    stream: UnixStream,
    load: Vec<u8>,
    store: Vec<u8>,
    batch: Vec<u8>,
}

impl Client {
    fn new(mut stream: UnixStream) -> Self {
        let version = command(
            Command::Version,
            0,
            b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":1048576}}\0",
        );
        stream.write_all(&version).unwrap();
        let mut header = [0; HEADER_SIZE];
        assert!(read_exact(&mut stream, &mut header));
        let size = usize::try_from(Header::parse(&header).unwrap().size).unwrap();
        assert!(read_exact(&mut stream, &mut vec![0; size - HEADER_SIZE]));
        let store = command(Command::RegionWrite, NO_REPLY, &access(8, &[7; 8]));
        Self {
            stream,
            load: command(Command::RegionRead, 0, &access(4, &[])),
            batch: store.repeat(BATCH),
            store,
        }
    }

    fn load(&mut self) {
        let mut reply = [0; REPLY];
        self.stream.write_all(&self.load).unwrap();
        assert!(read_exact(&mut self.stream, &mut reply));
    }

    /// Nanoseconds of each store, the time until the server has carried out the last one included.
    fn single_stores(&mut self) -> f64 {
        let begin = Instant::now();
        for _ in 0..SINGLE_STORES {
            self.stream.write_all(&self.store).unwrap();
        }
        self.load();
        nanos(begin, SINGLE_STORES)
    }

    /// The same of stores that come many at a time.
    fn batched_stores(&mut self) -> f64 {
        let batches = BATCHED_STORES.div_ceil(BATCH);
        let begin = Instant::now();
        for _ in 0..batches {
            self.stream.write_all(&self.batch).unwrap();
        }
        self.load();
        nanos(begin, batches * BATCH)
    }

    /// Nanoseconds of a load. The client polls or blocks.
    fn round_trips(&mut self, poll: bool) -> f64 {
        self.stream.set_nonblocking(poll).unwrap();
        self.load();
        let begin = Instant::now();
        for _ in 0..ROUND_TRIPS {
            self.load();
        }
        let time = nanos(begin, ROUND_TRIPS);
        self.stream.set_nonblocking(false).unwrap();
        time
    }
}

fn nanos(begin: Instant, count: usize) -> f64 {
    begin.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// Round trips over the bare socket, in nanoseconds.
fn bare_round_trips(poll: bool) -> f64 {
    let (mut client, server) = UnixStream::pair().unwrap();
    let thread = echo(server, poll);
    client.set_nonblocking(poll).unwrap();
    let mut reply = [0; REPLY];
    let mut round_trip = || {
        client.write_all(&[0; LOAD]).unwrap();
        assert!(read_exact(&mut client, &mut reply));
    };
    round_trip();
    let begin = Instant::now();
    for _ in 0..ROUND_TRIPS {
        round_trip();
    }
    let time = nanos(begin, ROUND_TRIPS);
    drop(client);
    thread.join().unwrap();
    time
}

/// Runs a measurement against this project's loop.
fn ours(poll: Duration, measure: impl FnOnce(&mut Client) -> f64) -> f64 {
    let (client, server) = UnixStream::pair().unwrap();
    let thread = serve(server, poll);
    let mut client = Client::new(client);
    let time = measure(&mut client);
    drop(client);
    thread.join().unwrap();
    time
}

/// Runs a measurement against the crate's loop.
fn theirs(measure: impl FnOnce(&mut Client) -> f64) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    let (stream, thread) = serve_by_crate(&directory);
    let mut client = Client::new(stream);
    let time = measure(&mut client);
    drop(client);
    thread.join().unwrap();
    time
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints a figure: what it is, this project's loop, and what it is compared with.
fn print(what: &str, times: &[(f64, f64)], with: &str) {
    let (own, other) = (median(times.iter().map(|time| time.0)), median(times.iter().map(|time| time.1)));
    let ratio = median(times.iter().map(|time| time.1 / time.0));
    let show = |time: f64| format!("{time:9.0} ns {:8.3} M/s", 1e3 / time);
    println!("{what:<36} {}   {with:<11} {}   {ratio:5.2} times as fast", show(own), show(other));
}

fn main() {
    // Cargo adds options of its own.
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(15);
    let mut figures: [Vec<(f64, f64)>; 5] = Default::default();
    for _ in 0..rounds {
        let blocking = Duration::ZERO;
        let round = [
            (ours(blocking, Client::single_stores), theirs(Client::single_stores)),
            (ours(blocking, Client::batched_stores), theirs(Client::batched_stores)),
            (ours(blocking, |client| client.round_trips(false)), theirs(|client| client.round_trips(false))),
            (ours(blocking, |client| client.round_trips(false)), bare_round_trips(false)),
            (ours(POLL, |client| client.round_trips(true)), bare_round_trips(true)),
        ];
        for (figure, times) in figures.iter_mut().zip(round) {
            figure.push(times);
        }
    }
    println!("medians of {rounds} rounds; each line: this project's loop, and what it is compared with");
    let [single, batched, blocking, bare, polled] = &figures;
    print("posted 8-byte store, single sends", single, "the crate's");
    print("posted 8-byte store, batches", batched, "the crate's");
    print("register load, blocking", blocking, "the crate's");
    print("register load, blocking", bare, "bare socket");
    print("register load, polled", polled, "bare socket");
}
