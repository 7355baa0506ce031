//! A connection with a process's links that the fuzzer speaks on, with TLS or without; and an observer that reads what goes both ways.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::mesh::framing::{FrameError, Framer};
use assured_rdma::adaptor::mesh::neighbour::Identity;
use assured_rdma::adaptor::mesh::packet::{Body, Packet};

use crate::packets::crc;

/// See the module.
pub struct Caller {
    stream: TcpStream,
    tls: Option<rustls::Connection>,
    /// When it began.
    pub since: Instant,
    /// Who it is by its certificate.
    pub certified: Option<Identity>,
    /// What the links say is TLS, and the caller speaks none.
    pub is_deaf: bool,
    /// The links made the connection.
    pub dialed: bool,
    /// It rightly said who it is.
    pub has_claim: bool,
    /// Bytes of TLS that were held back.
    late: Vec<u8>,
    /// What it says is not as TLS has it any more.
    damaged: bool,
    said: Framer,
    heard: Framer,
    /// A Join of the links' came.
    pub greeted: bool,
    refused: bool,
    /// The links have closed the connection.
    pub is_over: bool,
}

/// What is done to bytes of TLS on their way.
#[derive(arbitrary::Arbitrary, Clone, Copy, Debug, Default)]
pub struct Damage {
    /// Where a bit is flipped.
    flip: Option<u16>,
    /// How many bytes are held back.
    hold: u16,
}

impl Caller {
    /// One that speaks on this connection; `tls` with who it is by its certificate.
    pub fn new(
        since: Instant,
        stream: TcpStream,
        dialed: bool,
        tls: Option<(rustls::Connection, Identity)>,
    ) -> Self {
        stream.set_nonblocking(true).expect("it can be made non-blocking");
        let (tls, certified) = tls.unzip();
        Self {
            stream,
            tls,
            since,
            certified,
            is_deaf: false,
            dialed,
            has_claim: false,
            late: Vec::new(),
            damaged: false,
            said: Framer::default(),
            heard: Framer::default(),
            greeted: false,
            refused: false,
            is_over: false,
        }
    }

    /// Speaks below TLS, where there is any.
    pub fn say_raw(&mut self, bytes: &[u8]) {
        self.damaged |= self.tls.is_some();
        self.write(bytes);
    }

    fn write(&mut self, bytes: &[u8]) {
        let written = self.stream.write(bytes).unwrap_or(0);
        if self.tls.is_some() {
            self.damaged |= written < bytes.len();
        } else {
            self.said.push(&bytes[..written]);
        }
    }

    /// Speaks as a mesh does.
    pub fn say(&mut self, bytes: &[u8]) {
        let Some(tls) = &mut self.tls else { return self.write(bytes) };
        if !self.damaged && tls.writer().write_all(bytes).is_ok() {
            self.said.push(bytes);
            self.go_on(Damage::default());
        }
    }

    /// Closes its end, or only its direction.
    pub fn hang_up(&mut self, half: bool) {
        let how = if half { std::net::Shutdown::Write } else { std::net::Shutdown::Both };
        let _ = self.stream.shutdown(how);
    }

    /// What was said since the last time, packet by packet.
    pub fn next_said(&mut self) -> Option<(Packet, u32)> {
        loop {
            match self.said.next_frame()? {
                Ok(frame) => return Some((frame.packet, crc(&frame.wire))),
                Err(FrameError::Corrupt) => {}
                Err(FrameError::Broken(_)) => return None,
            }
        }
    }

    /// Goes on with TLS: sends what waits, and takes what came.
    pub fn go_on(&mut self, damage: Damage) {
        let Some(tls) = &mut self.tls else { return };
        let mut bytes = core::mem::take(&mut self.late);
        while tls.wants_write() && tls.write_tls(&mut bytes).is_ok() {}
        if let Some(at) = damage.flip.map(usize::from)
            && !bytes.is_empty()
        {
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
            self.damaged = true;
        }
        let now = bytes.len().saturating_sub(damage.hold.into());
        self.late = bytes.split_off(now);
        self.write(&bytes);
    }

    /// Reads what has come. Gives the packets, of which all are whole and in their place.
    pub fn listen(&mut self) -> Vec<Packet> {
        let mut buffer = [0; 16 << 10];
        while !self.is_over {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.is_over = true,
                Ok(len) => self.hear(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.is_over = true,
            }
        }
        let mut packets = Vec::new();
        while let Some(packet) = self.heard.next_packet() {
            let packet = packet.expect("the links send whole packets");
            assert!(!self.refused, "nothing comes after a Refuse");
            match packet.body {
                Body::Join { .. } => self.greeted = true,
                Body::Refuse { .. } => self.refused = true,
                _ => assert!(self.greeted, "a Join comes first"),
            }
            packets.push(packet);
        }
        packets
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        if self.is_deaf {
            return;
        }
        let Some(tls) = &mut self.tls else { return self.heard.push(bytes) };
        while !bytes.is_empty() {
            // What came in answer to damage is no packet.
            if tls.read_tls(&mut bytes).is_err() || tls.process_new_packets().is_err() {
                return;
            }
            let mut plain = Vec::new();
            let _ = tls.reader().read_to_end(&mut plain);
            self.heard.push(&plain);
        }
    }
}
