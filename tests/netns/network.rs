//! Hosts on one Ethernet: each is a network namespace with an address on a TAP device, and a thread of this process is the wire
//! between the devices.
//!
//! The wire loses, delays, doubles and corrupts frames as `tc netem` does, which many kernels are built without; it can
//! also corrupt a frame so that TCP's checksum stays right. Namespaces and devices have no names outside of this process and
//! end with it, however it ends.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::wire::{Orders, Treatment, Wire};

/// The first three parts of the hosts' addresses.
pub const NETWORK: [u8; 3] = [10, 77, 0];
const DEVICE: &str = "wire0";

/// A network namespace.
pub struct Host {
    namespace: File,
    address: String,
}

impl Host {
    /// Makes a host, with its end of the wire.
    fn new(number: u8) -> (Self, File) {
        let make = move || {
            // SAFETY: takes a number; only this thread moves into the new namespace.
            let moved = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            let error = std::io::Error::last_os_error();
            assert_eq!(moved, 0, "cannot make a network namespace, which takes root: {error}");
            let namespace = File::open("/proc/thread-self/ns/net").unwrap();
            let [a, b, c] = NETWORK;
            let host = Self { namespace, address: format!("{a}.{b}.{c}.{number}") };
            let tap = open_tap();
            ip(&["link", "set", "lo", "up"]);
            ip(&["link", "set", DEVICE, "up"]);
            host.add_address();
            (host, tap)
        };
        thread::spawn(make).join().unwrap()
    }

    /// Does something in the namespace; processes that it starts stay there.
    pub fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            // SAFETY: the descriptor is open; only this thread moves into the namespace.
            let moved = unsafe { libc::setns(self.namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(moved, 0, "{}", std::io::Error::last_os_error());
            action()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }

    pub fn set_link(&self, up: bool) {
        self.enter(|| ip(&["link", "set", DEVICE, if up { "up" } else { "down" }]));
    }

    pub fn add_address(&self) {
        self.enter(|| ip(&["address", "add", &format!("{}/24", self.address), "dev", DEVICE]));
    }

    pub fn remove_address(&self) {
        self.enter(|| ip(&["address", "del", &format!("{}/24", self.address), "dev", DEVICE]));
    }

    /// Whether this host sends nothing to the other one.
    pub fn set_blackhole(&self, other: &Self, on: bool) {
        let action = if on { "add" } else { "del" };
        self.enter(|| ip(&["route", action, "blackhole", &format!("{}/32", other.address)]));
    }

    /// How many TCP connections this host believes to have with the other one.
    pub fn connections(&self, other: &Self) -> usize {
        let table = self.enter(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
        let address: std::net::Ipv4Addr = other.address.parse().unwrap();
        let remote = format!("{:08X}:", u32::from_le_bytes(address.octets()));
        // Number, local address, remote address, state; 1 is established.
        let is_with = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.len() > 3 && fields[2].starts_with(&remote) && fields[3] == "01"
        };
        table.lines().filter(is_with).count()
    }
}

fn ip(arguments: &[&str]) {
    let output =
        Command::new("ip").args(arguments).output().expect("ip, of the package iproute2, can be run");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a TAP device in the namespace of this thread.
fn open_tap() -> File {
    let tap =
        File::options().read(true).write(true).open("/dev/net/tun").expect("/dev/net/tun can be opened");
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, &from) in request.ifr_name.iter_mut().zip(DEVICE.as_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI).unwrap();
    // SAFETY: the descriptor is open, and the request lives until the call returns.
    let made = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &request) };
    assert_eq!(made, 0, "cannot make a TAP device: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(tap.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    tap
}

/// Hosts 1 to n, and the wire.
pub struct Network {
    hosts: Vec<Host>,
    orders: Arc<Mutex<Orders>>,
    wire: Option<JoinHandle<()>>,
}

impl Network {
    pub fn new(count: u8) -> Self {
        let (hosts, taps): (Vec<Host>, Vec<File>) = (1..=count).map(Host::new).unzip();
        let orders = Arc::new(Mutex::new(Orders::default()));
        let mut wire = Wire::new(taps, Arc::clone(&orders));
        let wire = Some(thread::spawn(move || wire.run()));
        Self { hosts, orders, wire }
    }

    /// Host `number`, counted from 1.
    pub fn host(&self, number: u8) -> &Host {
        &self.hosts[usize::from(number) - 1]
    }

    /// What happens to frames from now on.
    pub fn treat(&self, treatment: Treatment) {
        self.orders.lock().unwrap().treatment = treatment;
    }

    /// Frames from one host to another are lost, all of them, or not any more.
    pub fn cut(&self, from: u8, to: u8, cut: bool) {
        let mut orders = self.orders.lock().unwrap();
        orders.cuts.retain(|&pair| pair != (from, to));
        if cut {
            orders.cuts.push((from, to));
        }
    }

    /// What happened to frames so far.
    pub fn report(&self) -> String {
        format!("{:?}", self.orders.lock().unwrap().counts)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Ok(mut orders) = self.orders.lock() {
            orders.over = true;
        }
        if let Some(wire) = self.wire.take() {
            let ended = wire.join();
            assert!(ended.is_ok() || thread::panicking(), "the wire broke");
        }
    }
}
