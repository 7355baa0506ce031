//! A TCP proxy that counts what goes over a link: packets of transactions and their answers, and the bytes of those. What keeps the link alive is not counted.

use std::io::Read;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use assured_rdma::adaptor::mesh::framing::Framer;
use assured_rdma::adaptor::mesh::packet::Body;

use super::wire::send;

/// How much has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
    /// How many of the packets are answers to requests.
    pub answers: u64,
}

#[derive(Default)]
struct Totals {
    packets: AtomicU64,
    bytes: AtomicU64,
    answers: AtomicU64,
}

/// See the module.
pub struct Counter {
    totals: Arc<Totals>,
    address: SocketAddr,
}

impl Counter {
    /// Takes one connection, which it joins with one to `target`. Its threads end with that.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let totals = Arc::new(Totals::default());
        let shared = Arc::clone(&totals);
        thread::spawn(move || {
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(target).unwrap();
            for (from, to) in [(&near, &far), (&far, &near)] {
                from.set_nodelay(true).unwrap();
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let totals = Arc::clone(&shared);
                thread::spawn(move || pass_on(from, to, &totals));
            }
        });
        Self { totals, address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has passed so far.
    pub fn traffic(&self) -> Traffic {
        let value = |total: &AtomicU64| total.load(Ordering::SeqCst);
        let Totals { packets, bytes, answers } = &*self.totals;
        Traffic { packets: value(packets), bytes: value(bytes), answers: value(answers) }
    }
}

impl Traffic {
    /// What has passed since.
    pub fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            answers: self.answers - before.answers,
        }
    }
}

/// Counts before it passes on, so that who has received something finds it counted.
fn pass_on(mut from: TcpStream, mut to: TcpStream, totals: &Totals) {
    let mut framer = Framer::default();
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        framer.push(&bytes[..len]);
        while let Some(frame) = framer.next_frame() {
            let frame = frame.expect("loopback damages nothing");
            if matches!(frame.packet.body, Body::Done { .. }) {
                totals.answers.fetch_add(1, Ordering::SeqCst);
            }
            if is_of_a_transaction(&frame.packet.body) {
                totals.packets.fetch_add(1, Ordering::SeqCst);
                totals.bytes.fetch_add(frame.wire.len() as u64, Ordering::SeqCst);
            }
        }
        send(&mut to, &bytes[..len]);
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn is_of_a_transaction(body: &Body) -> bool {
    matches!(
        body,
        Body::Write { .. }
            | Body::Read { .. }
            | Body::Confirm { .. }
            | Body::Done { .. }
            | Body::Nak { .. }
            | Body::Ask { .. }
    )
}
