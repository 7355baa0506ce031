//! A remote load, which goes over two UNIX sockets' ends and a TCP connection and back, against round trips over bare sockets.

use assured_rdma::adaptor::mesh::packet::HEADER_LEN;

use super::bare::{self, Exchange, Way, round_trips, typical};
use super::guest::ACCESS;
use super::pair::Pair;
use super::report::{Figure, Report, Samples, Target};
use super::wire::{LOAD, Wait, load};

const COUNT: usize = 2000;
const UNIX: Exchange = Exchange { request: LOAD, reply: LOAD + 8 };
const TCP: Exchange = Exchange { request: HEADER_LEN, reply: HEADER_LEN + 8 };
const LIMIT: &str = "a round trip over a UNIX socket and one over TCP";

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    for (name, wait) in [("blocking", Wait::Block), ("polled", Wait::Poll)] {
        if !report.wants_any(&format!("remote-load/{name}")) {
            continue;
        }
        let mut pair = Pair::start(wait);
        let message = load(ACCESS, pair.at(0), 8);
        let (mut loads, mut unix, mut tcp) = (Samples::default(), Samples::default(), Samples::default());
        let mut relayed = Samples::default();
        for _ in 0..rounds {
            loads.push(typical(COUNT, || assert_eq!(pair.near.client.ask(&message), [0; 8])));
            unix.push(round_trips(Way::Unix, wait, UNIX, |exchange| typical(COUNT, exchange)));
            tcp.push(round_trips(Way::Tcp, wait, TCP, |exchange| typical(COUNT, exchange)));
            relayed.push(bare::relayed(wait, UNIX, TCP, |exchange| typical(COUNT, exchange)));
        }
        let limit = unix.plus(&tcp);
        let micros = |samples: &Samples| samples.map(|seconds| seconds * 1e6);
        report.add(
            Figure::new(format!("remote-load/{name}"), &micros(&loads), "us")
                .against(&loads, &limit, LIMIT)
                .target(Target::RatioAtMost(1.3)),
        );
        report.add(
            Figure::new(format!("remote-load/{name}-bare-relay"), &micros(&relayed), "us")
                .against(&relayed, &limit, LIMIT),
        );
        report.add(Figure::new(format!("remote-load/{name}-unix-socket"), &micros(&unix), "us"));
        report.add(Figure::new(format!("remote-load/{name}-tcp"), &micros(&tcp), "us"));
    }
}
