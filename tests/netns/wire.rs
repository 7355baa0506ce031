//! The wire between TAP devices: carries each frame to all others, and does to it what it was told to.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use assured_rdma::adaptor::random::Random;

/// How long the wire sleeps at most before it looks at its orders.
const GLANCE: Duration = Duration::from_millis(5);
/// Where the payload of a TCP segment is in any case: behind Ethernet's, IP's and TCP's longest headers without IP options.
const PAYLOAD: usize = 14 + 20 + 60;

/// Chances in 1/1000, and times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Treatment {
    pub lost: u64,
    pub doubled: u64,
    /// A bit is flipped, which a checksum of the kernel finds.
    pub flipped: u64,
    /// Bits of the payload are flipped so that the checksum of TCP does not see it.
    pub forged: u64,
    /// Every frame takes this long, and up to twice as long; so frames overtake each other.
    pub delay: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub carried: u64,
    pub cut: u64,
    pub lost: u64,
    pub doubled: u64,
    pub flipped: u64,
    pub forged: u64,
    pub late: u64,
}

#[derive(Default)]
pub struct Orders {
    pub treatment: Treatment,
    /// Directions, by hosts' numbers, in which nothing is carried.
    pub cuts: Vec<(u8, u8)>,
    pub counts: Counts,
    pub over: bool,
}

/// A frame that is under way.
struct Late {
    at: Instant,
    to: usize,
    frame: Vec<u8>,
}

pub struct Wire {
    taps: Vec<File>,
    orders: Arc<Mutex<Orders>>,
    late: Vec<Late>,
    random: Random,
}

impl Wire {
    pub fn new(taps: Vec<File>, orders: Arc<Mutex<Orders>>) -> Self {
        Self { taps, orders, late: Vec::new(), random: Random::new(3) }
    }

    /// Carries frames until it is told that it is over.
    pub fn run(&mut self) {
        while !self.orders.lock().unwrap().over {
            self.sleep();
            for from in 0..self.taps.len() {
                self.receive(from);
            }
            let now = Instant::now();
            for index in (0..self.late.len()).rev() {
                if self.late[index].at <= now {
                    let Late { to, frame, .. } = self.late.swap_remove(index);
                    send(&self.taps[to], &frame);
                }
            }
        }
    }

    fn sleep(&self) {
        let next = self.late.iter().map(|late| late.at.saturating_duration_since(Instant::now())).min();
        let time = next.unwrap_or(GLANCE).min(GLANCE);
        let wait = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        let mut polls: Vec<libc::pollfd> = self
            .taps
            .iter()
            .map(|tap| libc::pollfd { fd: tap.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: the array and the time live until the call returns; there is no signal mask.
        unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as u64, &wait, std::ptr::null()) };
    }

    fn receive(&mut self, from: usize) {
        let mut buffer = [0; 2048];
        loop {
            match (&self.taps[from]).read(&mut buffer) {
                Ok(len) => self.carry(from, &buffer[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nothing is there, or the host's end is down.
                Err(_) => return,
            }
        }
    }

    fn carry(&mut self, from: usize, frame: &[u8]) {
        let orders = Arc::clone(&self.orders);
        let mut orders = orders.lock().unwrap();
        let Treatment { lost, doubled, flipped, forged, delay } = orders.treatment;
        for to in (0..self.taps.len()).filter(|&to| to != from) {
            let pair = (u8::try_from(from + 1).unwrap(), u8::try_from(to + 1).unwrap());
            let cut = orders.cuts.contains(&pair);
            let counts = &mut orders.counts;
            if cut {
                counts.cut += 1;
                continue;
            }
            if self.chance(lost) {
                counts.lost += 1;
                continue;
            }
            let mut frame = frame.to_vec();
            if self.chance(flipped) {
                counts.flipped += 1;
                let bit = usize::try_from(self.random.next()).unwrap() % (frame.len() * 8);
                frame[bit / 8] ^= 1 << (bit % 8);
            }
            if self.chance(forged) && self.forge(&mut frame) {
                counts.forged += 1;
            }
            let copies = 1 + u64::from(self.chance(doubled));
            counts.doubled += copies - 1;
            counts.carried += copies;
            for _ in 0..copies {
                if delay.is_zero() {
                    send(&self.taps[to], &frame);
                } else {
                    counts.late += 1;
                    let more = delay.mul_f64((self.random.next() % 1000) as f64 / 1000.0);
                    self.late.push(Late { at: Instant::now() + delay + more, to, frame: frame.clone() });
                }
            }
        }
    }

    fn chance(&mut self, chance: u64) -> bool {
        chance > 0 && self.random.next() % 1000 < chance
    }

    /// Exchanges two bits that stand at the same place of two 16-bit words, and differ: the sum stays as it was.
    fn forge(&mut self, frame: &mut [u8]) -> bool {
        let words = frame.len().saturating_sub(PAYLOAD) / 2;
        for _ in 0..64 {
            if words < 2 {
                break;
            }
            let mut place = || PAYLOAD + 2 * (usize::try_from(self.random.next()).unwrap() % words);
            let (one, other) = (place(), place());
            let bit = 1 << (self.random.next() % 8);
            if (frame[one] ^ frame[other]) & bit != 0 {
                frame[one] ^= bit;
                frame[other] ^= bit;
                return true;
            }
        }
        false
    }
}

/// A host whose end is down, or which is too slow, loses the frame.
fn send(mut tap: &File, frame: &[u8]) {
    let _ = tap.write(frame);
}
