//! A TCP proxy between two nodes that cuts, stalls, swallows and flips bits when it is told to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How long a direction of the proxy waits for bytes before it looks at its orders again.
const GLANCE: Duration = Duration::from_millis(5);

/// What the proxy does with what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Pass it on.
    Pass,
    /// Pass nothing on, and read nothing: both ends see a full socket.
    Stall,
    /// Drop what the dialer sends.
    SwallowForward,
    /// Drop what the other end sends.
    SwallowBack,
    /// Flip a bit in about every tenth portion.
    Flip,
}

const MODES: [Mode; 5] = [Mode::Pass, Mode::Stall, Mode::SwallowForward, Mode::SwallowBack, Mode::Flip];

#[derive(Default)]
struct Orders {
    mode: AtomicU8,
    flipped: AtomicU64,
    over: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Orders {
    fn mode(&self) -> Mode {
        MODES[usize::from(self.mode.load(Ordering::Relaxed))]
    }
}

/// See the module; ends with its connections when dropped.
pub struct Proxy {
    orders: Arc<Orders>,
    address: SocketAddr,
}

impl Proxy {
    /// Whoever connects to [`Proxy::address`] reaches `target`.
    pub fn new(listen: SocketAddr, target: SocketAddr) -> Self {
        let listener = TcpListener::bind(listen).unwrap();
        let orders = Arc::new(Orders::default());
        let shared = Arc::clone(&orders);
        thread::spawn(move || {
            for near in listener.incoming() {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(target)) else { continue };
                join(&shared, &near, &far);
            }
        });
        Self { orders, address: listen }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, mode: Mode) {
        self.orders.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Ends every connection.
    pub fn cut(&self) {
        for stream in self.orders.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many bits were flipped.
    pub fn flipped(&self) -> u64 {
        self.orders.flipped.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders.over.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the listener, so that it sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

fn join(orders: &Arc<Orders>, near: &TcpStream, far: &TcpStream) {
    for stream in [near, far] {
        stream.set_read_timeout(Some(GLANCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        orders.connections.lock().unwrap().push(stream.try_clone().unwrap());
    }
    for (from, to, swallow) in [(near, far, Mode::SwallowForward), (far, near, Mode::SwallowBack)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let orders = Arc::clone(orders);
        thread::spawn(move || {
            pump(&orders, &mut from, &mut to, swallow);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// Carries bytes one way until either end is gone.
fn pump(orders: &Orders, from: &mut TcpStream, to: &mut TcpStream, swallow: Mode) {
    let mut buffer = [0; 16 << 10];
    let mut portions = 0_u64;
    loop {
        if orders.mode() == Mode::Stall {
            thread::park_timeout(GLANCE);
            continue;
        }
        let len = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => len,
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                continue;
            }
            Err(_) => return,
        };
        portions += 1;
        match orders.mode() {
            mode if mode == swallow => continue,
            Mode::Flip if portions.is_multiple_of(10) => {
                let at = usize::try_from(portions.wrapping_mul(0x9e37_79b9)).unwrap() % len;
                buffer[at] ^= 1 << (portions / 10 % 8);
                orders.flipped.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        if to.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}
