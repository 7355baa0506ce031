//! Many nodes behind one router: what all of them move together, and the memory that each takes.
//!
//! Every guest fills a block of the next one's memory and checks it, again and again. Two nodes do the same in each round, behind a router of their own.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::guest::{ACCESS, ASSURANCE, Guest, READ, WINDOW, WRITE};
use super::node::{Node, Place};
use super::pair::{BLOCK, attach};
use super::plot::{Chart, Line};
use super::report::{Figure, Report, Samples, Target};
use super::wire::{Wait, Wire, load, store};

const COUNTS: [u8; 4] = [2, 8, 32, 64];
/// A number that no node has.
const ROUTER: u8 = 100;
const MEMORY: u64 = 1 << 20;
const BUFFER: u64 = 0x4_0000;
/// All of them share this machine's processors, and nothing shall fail because it is late.
const OPTIONS: [&str; 4] = ["--nodes", "128", "--deadline", "4s"];
/// How long a round lasts.
const TIME: Duration = Duration::from_millis(400);

/// Nodes behind a router.
struct World {
    guests: Vec<Guest<Wire>>,
    /// Each guest's stores into the next one's block, with a check.
    batches: Vec<Vec<u8>>,
    nodes: Vec<Node>,
    router: Node,
    /// Goes last, when nobody is left in it.
    _place: Place,
}

impl World {
    fn start(count: u8) -> Self {
        let place = Place::new();
        let router = place.start_router(ROUTER, &[], &[]);
        let ids = || 1..=count;
        let nodes: Vec<Node> = ids().map(|id| place.start_behind(id, &[ROUTER], &OPTIONS)).collect();
        let mut guests: Vec<_> = ids().map(|id| attach(&place.socket(id), MEMORY, Wait::Block)).collect();
        let windows: Vec<u64> =
            guests.iter_mut().map(|guest| guest.export(BUFFER, BLOCK, READ | WRITE)).collect();
        let lives: Vec<u64> = guests.iter_mut().map(Guest::incarnation).collect();
        let next = |at: usize| (at + 1) % usize::from(count);
        for (at, guest) in guests.iter_mut().enumerate() {
            // All of them, so that what is measured is not their arrival.
            for (id, life) in ids().zip(&lives).filter(|(id, _)| usize::from(*id) != at + 1) {
                guest.wait_for_life(id, *life);
            }
        }
        let batch = |at: usize| {
            let to = WINDOW * (next(at) as u64 + 1) + windows[next(at)];
            let stores = (0..BLOCK).step_by(8).flat_map(|offset| store(ACCESS, to + offset, &[7; 8]));
            stores.chain(load(ASSURANCE, to, 4)).collect()
        };
        let batches = (0..usize::from(count)).map(batch).collect();
        Self { guests, batches, nodes, router, _place: place }
    }

    /// Blocks written by all guests at once. `meanwhile` is called once in the midst of it.
    fn run(&mut self, meanwhile: impl FnOnce(&[Node], &Node)) -> Done {
        let (nodes, router) = (&self.nodes, &self.router);
        let together = Barrier::new(self.guests.len() + 1);
        thread::scope(|scope| {
            let workers: Vec<_> = self
                .guests
                .iter_mut()
                .zip(&self.batches)
                .map(|(guest, batch)| {
                    let together = &together;
                    scope.spawn(move || {
                        together.wait();
                        let begin = Instant::now();
                        let (mut blocks, mut failed) = (0u64, 0u64);
                        while begin.elapsed() < TIME {
                            let status: [u8; 4] = guest.client.ask(batch);
                            *if status == [0; 4] { &mut blocks } else { &mut failed } += 1;
                        }
                        (blocks as f64 / begin.elapsed().as_secs_f64(), failed as f64)
                    })
                })
                .collect();
            together.wait();
            thread::sleep(TIME / 2);
            meanwhile(nodes, router);
            workers.into_iter().map(|worker| worker.join().unwrap()).fold(
                Done::default(),
                |sum, (rate, failed)| Done { rate: sum.rate + rate, failed: sum.failed + failed },
            )
        })
    }
}

/// What all guests did.
#[derive(Default)]
struct Done {
    /// Blocks a second whose check was OK.
    rate: f64,
    /// Blocks whose check was not.
    failed: f64,
}

/// What was found with so many nodes.
#[derive(Default)]
struct Found {
    rates: Samples,
    failed: Samples,
    /// Of two nodes, in the same rounds.
    pair_rates: Samples,
    idle: Samples,
    loaded: Samples,
    router_loaded: Samples,
}

/// See the module.
pub fn run(report: &mut Report, rounds: usize) {
    let mut pair = World::start(2);
    let mut lines: [Vec<(f64, f64)>; 2] = Default::default();
    for count in COUNTS {
        let found = measure(count, rounds, &mut pair);
        let stores = |samples: &Samples| samples.map(|blocks| blocks * (BLOCK / 8) as f64 / 1e6);
        let name = |what: &str| format!("scale/{count}-nodes-{what}");
        report.add(Figure::new(name("rate"), &stores(&found.rates), "M/s").against(
            &found.rates,
            &found.pair_rates,
            "two nodes",
        ));
        report.add(Figure::new(name("failed"), &found.failed, "blocks").target(Target::AtMost(0.0)));
        report.add(Figure::new(name("memory-idle"), &found.idle, "MiB/node"));
        report.add(Figure::new(name("memory-loaded"), &found.loaded, "MiB/node"));
        report.add(Figure::new(name("router-memory-loaded"), &found.router_loaded, "MiB"));
        lines[0].push((count.into(), stores(&found.rates).median()));
        lines[1].push((count.into(), found.loaded.median()));
    }
    let [rates, memory] = lines;
    let draw = |file, title, y, points| {
        let chart = Chart { title, x: "nodes", y, lines: vec![Line { name: y, points }] };
        chart.draw(&report.plot_path(file));
    };
    draw("scale-rate", "All nodes behind one router together", "million checked stores a second", rates);
    draw("scale-memory", "Memory of one adaptor under load", "MiB", memory);
}

fn measure(count: u8, rounds: usize, pair: &mut World) -> Found {
    let mut world = World::start(count);
    let mut found = Found::default();
    world.nodes.iter().for_each(|node| found.idle.push(mebibytes(node)));
    for _ in 0..rounds {
        found.pair_rates.push(pair.run(|_, _| {}).rate);
        let (loaded, router_loaded) = (&mut found.loaded, &mut found.router_loaded);
        let done = world.run(|nodes, router| {
            nodes.iter().for_each(|node| loaded.push(mebibytes(node)));
            router_loaded.push(mebibytes(router));
        });
        found.rates.push(done.rate);
        found.failed.push(done.failed);
    }
    found
}

/// Memory that the process holds for itself.
fn mebibytes(node: &Node) -> f64 {
    node.memory() as f64 / f64::from(1 << 20)
}
