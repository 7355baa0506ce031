use std::time::Duration;
use assured_rdma::adaptor::mesh::Timing;
use crate::bounds::{Bounds, Budget, TIMING};
use crate::explore;
const MS: fn(u64) -> Duration = Duration::from_millis;

#[test]
fn small() {
    let n = |name: &str, default: u8| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let f = |name: &str| n(name, 0) == 1;
    explore("small", Bounds {
        budget: Budget { writes: n("W", 1), reads: n("R", 0), checks: n("C", 1), losses: n("LOSS", 255), delays: n("DELAY", 255), kept: n("KEEP", 0), copies: n("COPY", 0), flips: n("COR", 0), cuts: n("CUT", 0), steps: n("STEP", 0),
          crashes: [n("CA",0), n("CB",0)], resets: [n("RA",0), n("RB",0)] },
        blocks: n("BLK", 1).into(),
        exported: n("EXP", 2).into(),
        timing: Timing { deadline: MS(n("D", 60).into()), lease: MS(n("L", 20).into()), keepalive: if n("KA", 0) == 0 { TIMING.keepalive } else { MS(10 * u64::from(n("KA", 0))) } },
        horizon: MS(n("H", 80).into()),
        capacity: n("CAP", 2).into(),
        introduction: f("INTRO"),
        slow_memory: f("SLOW"),
        races: f("RACE"),
        repairs: f("REP"),
        recovers: f("REC"),
    });
}
