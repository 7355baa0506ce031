//! The vfio-user server's loop against that of the crate `vfio_user`, and against the bare socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use assured_rdma::poller::{Interest, Poller, Reports, Token};
use assured_rdma::vfio::{Connection, ConnectionId, DeviceShape, Intake, Request};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, Server, ServerBackend, ServerRegion};

use super::bare::{Exchange, Way, round_trips, typical};
use super::report::{Figure, Report, Samples};
use super::wire::{LOAD, Wait, Wire, load, store};

/// Stores in one round, each from a system call of its own.
const SINGLE_STORES: usize = 20_000;
/// Stores in one round that come in batches.
const BATCHED_STORES: usize = 200_000;
/// Messages in a batch, which is about 64 KiB.
const BATCH: usize = 1638;
/// Round trips in one round.
const ROUND_TRIPS: usize = 2000;
/// How long this project's loop polls before it sleeps, as an adaptor does by default.
const POLL: Duration = Duration::from_micros(50);

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
/// then sleeps. Where `poll` is zero it blocks.
fn serve(stream: UnixStream, poll: Duration) -> JoinHandle<Duration> {
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
                    Intake::End => return processor_time(),
                }
            }
            poll_until = Instant::now() + poll;
        }
    })
}

/// The crate's loop around the device; it can only block.
fn serve_by_crate(directory: &TempDir) -> (UnixStream, JoinHandle<Duration>) {
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
        processor_time()
    });
    (stream, thread)
}

/// The time of a processor that this thread has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// A load of a register, and its reply.
const EXCHANGE: Exchange = Exchange { request: LOAD, reply: LOAD + 4 };

/// A client of either server.
struct Client {
    wire: Wire,
    load: Vec<u8>,
    store: Vec<u8>,
    batch: Vec<u8>,
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        let store = store(REGISTERS, 8, &[7; 8]);
        Self { wire: Wire::over(stream), load: load(REGISTERS, 8, 4), batch: store.repeat(BATCH), store }
    }

    fn load(&mut self) {
        self.wire.ask::<4>(&self.load);
    }

    /// Seconds that each store takes, the time until the server has carried out the last one included.
    fn single_stores(&mut self) -> f64 {
        let begin = Instant::now();
        for _ in 0..SINGLE_STORES {
            self.wire.send(&self.store);
        }
        self.load();
        begin.elapsed().as_secs_f64() / SINGLE_STORES as f64
    }

    /// The same of stores that come many at a time.
    fn batched_stores(&mut self) -> f64 {
        let batches = BATCHED_STORES.div_ceil(BATCH);
        let begin = Instant::now();
        for _ in 0..batches {
            self.wire.send(&self.batch);
        }
        self.load();
        begin.elapsed().as_secs_f64() / (batches * BATCH) as f64
    }

    /// Seconds that a load takes.
    fn round_trips(&mut self, wait: Wait) -> f64 {
        self.wire.set_wait(wait);
        self.load();
        let time = typical(ROUND_TRIPS, || self.load());
        self.wire.set_wait(Wait::Block);
        time
    }
}

/// What a measurement gives: seconds that passed, and seconds of a processor that the server's thread used meanwhile.
type Measured = (f64, f64);

/// Runs a measurement against this project's loop.
fn ours(poll: Duration, measure: impl FnOnce(&mut Client) -> f64) -> Measured {
    let (client, server) = UnixStream::pair().unwrap();
    measured(client, serve(server, poll), measure)
}

/// Runs a measurement against the crate's loop.
fn theirs(measure: impl FnOnce(&mut Client) -> f64) -> Measured {
    let directory = tempfile::tempdir().unwrap();
    let (client, server) = serve_by_crate(&directory);
    measured(client, server, measure)
}

fn measured(
    client: UnixStream,
    server: JoinHandle<Duration>,
    measure: impl FnOnce(&mut Client) -> f64,
) -> Measured {
    let mut client = Client::new(client);
    let time = measure(&mut client);
    drop(client);
    (time, server.join().unwrap().as_secs_f64())
}

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    let mut figures: [(Samples, Samples); 6] = Default::default();
    let blocking = Duration::ZERO;
    for _ in 0..rounds {
        let singles = (ours(blocking, Client::single_stores), theirs(Client::single_stores));
        let batches = (ours(blocking, Client::batched_stores), theirs(Client::batched_stores));
        let own_load = ours(blocking, |client| client.round_trips(Wait::Block)).0;
        let their_load = theirs(|client| client.round_trips(Wait::Block)).0;
        let each = |seconds: f64| seconds / SINGLE_STORES as f64;
        let own_bare = ours(blocking, |client| client.round_trips(Wait::Block)).0;
        let own_polled = ours(POLL, |client| client.round_trips(Wait::Poll)).0;
        let round = [
            (singles.0.0, singles.1.0),
            (each(singles.0.1), each(singles.1.1)),
            (batches.0.0, batches.1.0),
            (own_load, their_load),
            (
                own_bare,
                round_trips(Way::Unix, Wait::Block, EXCHANGE, |exchange| typical(ROUND_TRIPS, exchange)),
            ),
            (
                own_polled,
                round_trips(Way::Unix, Wait::Poll, EXCHANGE, |exchange| typical(ROUND_TRIPS, exchange)),
            ),
        ];
        for (figure, (own, other)) in figures.iter_mut().zip(round) {
            figure.0.push(own);
            figure.1.push(other);
        }
    }
    let (crates, bare) = ("the loop of the crate vfio_user", "a round trip over a bare UNIX socket");
    let names = [
        ("store-single", crates),
        ("store-single-processor", crates),
        ("store-batch", crates),
        ("load-blocking", crates),
        ("load-blocking-bare", bare),
        ("load-polled-bare", bare),
    ];
    for ((own, other), (name, against)) in figures.iter().zip(names) {
        let nanos = own.map(|seconds| seconds * 1e9);
        report.add(Figure::new(format!("vfio-server/{name}"), &nanos, "ns").against(own, other, against));
    }
}
