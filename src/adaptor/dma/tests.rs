//! The engine by itself: what it does to memory, in which order and how often.

use super::entry::{COMPLETION_SIZE, HEAD_SIZE, SUBMISSION_SIZE};
use super::*;
use crate::adaptor::memory::{MemoryFault, Segment};
use crate::adaptor::messages::Coalescing;
use crate::adaptor::random::Random;
use crate::adaptor::runs::{Run, Runs};
use crate::adaptor::transaction::RequestKind;

const DOMAIN: u32 = 3;
const ENTRIES: u32 = 256;
const COMPLETIONS: u64 = ENTRIES as u64 * SUBMISSION_SIZE + HEAD_SIZE;
const DATA: u64 = 0x1_0000;
const LEN: u64 = 0x2_0000;

struct Rig {
    engine: Engine,
    memory: Vec<u8>,
    now: Instant,
    key: Key,
    number: Number,
    posted: u32,
    operations: usize,
    fault: bool,
}

impl Rig {
    fn new(poll: Duration) -> Self {
        let mut engine = Engine::new(16);
        engine.set_poll(poll);
        let now = Instant::from_nanos(1000);
        let runs = Runs::new(&[Run { address: 0, len: LEN }], LEN).unwrap();
        engine.handle_order(now, Order::Register { domain: DOMAIN, rights: LocalRights::BOTH, runs });
        let key = Key(u32::try_from(engine.poll_order_done().unwrap().unwrap()).unwrap());
        let shape = QueueShape {
            domain: DOMAIN,
            key,
            submissions: 0,
            completions: COMPLETIONS,
            entries: ENTRIES,
            coalescing: Coalescing::default(),
        };
        engine.handle_order(now, Order::Create(shape));
        let number = u32::try_from(engine.poll_order_done().unwrap().unwrap()).unwrap();
        let memory = vec![0; LEN as usize];
        Self { engine, memory, now, key, number, posted: 0, operations: 0, fault: false }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Where the next entry stands, and its body.
    fn next_entry(&self, opcode: u8, len: u64) -> (u64, [u8; 60]) {
        let mut entry = [0; 64];
        (entry[4], entry[6]) = (opcode, 2);
        let fields = [(0x08, u64::from(self.posted)), (0x18, len), (0x20, self.key.0.into()), (0x28, DATA)];
        for (at, value) in fields {
            entry[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        (u64::from(self.posted % ENTRIES) * SUBMISSION_SIZE, entry[4..].try_into().unwrap())
    }

    fn post(&mut self, opcode: u8, len: u64) {
        let (at, body) = self.next_entry(opcode, len);
        self.put(at + 4, &body);
        self.posted = self.posted.wrapping_add(1);
        let index = self.posted;
        self.put(at, &index.to_le_bytes());
    }

    fn ring(&mut self) {
        self.engine.ring(self.now, self.number, 0, &self.posted.to_le_bytes());
    }

    fn execute(&mut self, operation: &MemoryOperation) {
        self.operations += 1;
        let range = |segment: &Segment| segment.address as usize..segment.address as usize + segment.len;
        let result = match operation {
            _ if self.fault => Err(MemoryFault::Unmapped),
            MemoryOperation::Read { segments, .. } => {
                Ok(segments.iter().flat_map(|segment| self.memory[range(segment)].to_vec()).collect())
            }
            MemoryOperation::Write { segments, data, .. } => {
                let mut rest = &data[..];
                for segment in segments {
                    let (part, behind) = rest.split_at(segment.len);
                    self.memory[range(segment)].copy_from_slice(part);
                    rest = behind;
                }
                assert!(rest.is_empty());
                Ok(Bytes::new())
            }
            MemoryOperation::Descriptor { .. }
            | MemoryOperation::Touch { .. }
            | MemoryOperation::Transfer { .. } => {
                panic!("the engine does not ask for {operation:?}")
            }
            MemoryOperation::Atomic { segment, action, .. } => {
                let former: [u8; 8] = self.memory[range(segment)].try_into().unwrap();
                let new = action.apply(u64::from_le_bytes(former));
                self.memory[range(segment)].copy_from_slice(&new.to_le_bytes());
                Ok(Bytes::copy_from_slice(&former))
            }
        };
        self.engine.handle_done(self.now, operation.id(), result);
    }

    fn settle(&mut self) {
        while let Some(operation) = self.engine.poll_operation(self.now) {
            self.execute(&operation);
        }
    }

    fn requests(&mut self) -> Vec<Request> {
        core::iter::from_fn(|| self.engine.poll_request()).collect()
    }

    fn finish(&mut self, request: &Request, code: Code) {
        let data = match request.kind {
            RequestKind::Read { len } if code.is_ok() => vec![0x77; len as usize].into(),
            _ => Bytes::new(),
        };
        self.engine.complete(self.now, Finished { id: request.id, code, data });
    }

    /// Index, status and cookie of the completion at this place.
    fn completion(&self, index: u32) -> (u32, u32, u64) {
        let at = (COMPLETIONS + u64::from(index % ENTRIES) * COMPLETION_SIZE) as usize;
        let word = |at: usize| u32::from_le_bytes(self.memory[at..at + 4].try_into().unwrap());
        (word(at), word(at + 4), u64::from(word(at + 8)))
    }

    /// STATE.
    fn state(&self) -> u32 {
        u32::from_le_bytes(self.engine.peek(self.number, 0x18, 4)[..].try_into().unwrap())
    }

    fn awake(&self) -> u32 {
        let at = (COMPLETIONS - HEAD_SIZE) as usize;
        u32::from_le_bytes(self.memory[at..at + 4].try_into().unwrap())
    }
}

#[test]
fn a_body_is_believed_only_if_it_was_read_after_its_index() {
    let mut rig = Rig::new(Duration::ZERO);
    let (at, body) = rig.next_entry(1, 8);
    // The index is there in the first read, with a body that is not: as if that had been copied before.
    rig.put(at, &1u32.to_le_bytes());
    rig.ring();
    let look = rig.engine.poll_operation(rig.now).unwrap();
    rig.execute(&look);
    assert!(rig.requests().is_empty(), "nothing is done by one look");
    rig.put(at + 4, &body);
    rig.settle();
    assert_eq!(rig.requests().len(), 1);
}

#[test]
fn many_entries_and_completions_take_few_memory_operations() {
    let mut rig = Rig::new(Duration::ZERO);
    for _ in 0..2 {
        for _ in 0..ENTRIES {
            rig.post(1, 8);
        }
        rig.ring();
        rig.settle();
        let requests = rig.requests();
        assert_eq!(requests.len(), ENTRIES as usize);
        requests.iter().for_each(|request| rig.finish(request, Code::Ok));
        rig.settle();
        let last = rig.posted - 1;
        assert_eq!(rig.completion(last), (rig.posted, 0, u64::from(last)));
    }
    assert!(rig.operations < 40, "{} for 512 writes", rig.operations);
}

#[test]
fn a_completions_index_is_written_after_all_of_the_batch() {
    let mut rig = Rig::new(Duration::ZERO);
    // So that the batch goes over the end of the ring.
    for count in [ENTRIES - 2, 5] {
        (0..count).for_each(|_| rig.post(6, 0));
        rig.ring();
        let mut batches = 0;
        while let Some(operation) = rig.engine.poll_operation(rig.now) {
            if let MemoryOperation::Write { segments, data, .. } = &operation {
                let index = u32::from_le_bytes(data[data.len() - 8..data.len() - 4].try_into().unwrap());
                let first = COMPLETIONS + u64::from((index - 1) % ENTRIES) * COMPLETION_SIZE;
                assert_eq!(segments.last(), Some(&Segment { address: first, len: 8 }));
                assert_eq!(segments[0].address, first + 8);
                batches += 1;
            }
            rig.execute(&operation);
        }
        assert!(batches > 0);
    }
    assert!((0..ENTRIES + 3).skip(3).all(|index| rig.completion(index) == (index + 1, 0, index.into())));
}

#[test]
fn a_queue_wakes_and_sleeps_and_looks_once_more_in_between() {
    let mut rig = Rig::new(Duration::from_micros(50));
    rig.post(6, 0);
    rig.ring();
    rig.settle();
    assert_eq!((rig.awake(), rig.engine.is_awake()), (1, true));
    rig.now = rig.engine.poll_timeout().unwrap();
    rig.engine.handle_timeout(rig.now);
    // AWAKE is 1 until the exchange, so that the poster does not ring.
    let exchange = rig.engine.poll_operation(rig.now).unwrap();
    assert!(matches!(exchange, MemoryOperation::Atomic { .. }), "{exchange:?}");
    rig.post(6, 0);
    rig.execute(&exchange);
    assert_eq!(rig.awake(), 0);
    rig.settle();
    assert_eq!(rig.completion(1), (2, 0, 1));
    assert_eq!(rig.awake(), 1, "it had work");
    rig.now = rig.engine.poll_timeout().unwrap();
    rig.engine.handle_timeout(rig.now);
    rig.settle();
    assert_eq!((rig.awake(), rig.engine.is_awake(), rig.engine.poll_timeout()), (0, false, None));
    assert_eq!(rig.engine.poll_probe(rig.now), None);
}

#[test]
fn what_can_not_be_put_into_local_memory_is_no_ok() {
    let mut rig = Rig::new(Duration::ZERO);
    rig.post(2, 8);
    rig.ring();
    rig.settle();
    let requests = rig.requests();
    rig.finish(&requests[0], Code::Ok);
    let landing = rig.engine.poll_operation(rig.now).unwrap();
    rig.fault = true;
    rig.execute(&landing);
    rig.fault = false;
    rig.settle();
    assert_eq!(rig.completion(0), (1, 0x8800, 0));
}

#[test]
fn an_answer_of_another_length_is_corrupt() {
    let mut rig = Rig::new(Duration::ZERO);
    rig.post(2, 8);
    rig.ring();
    rig.settle();
    let requests = rig.requests();
    let data = Bytes::from_static(&[1; 9]);
    rig.engine.complete(rig.now, Finished { id: requests[0].id, code: Code::Ok, data });
    rig.settle();
    assert_eq!(rig.completion(0), (1, 0xc400, 0));
    assert!(rig.memory[DATA as usize..].iter().all(|&byte| byte == 0));
    assert_eq!(rig.engine.failed(), 1);
}

/// Time passes until there is something to do, or nothing ever will be; false then.
fn pass_time(rig: &mut Rig) -> bool {
    let Some(at) = rig.engine.poll_timeout() else { return false };
    rig.now = rig.now.max(at);
    rig.engine.handle_timeout(rig.now);
    rig.settle();
    true
}

#[test]
fn a_ring_that_can_not_be_reached_is_tried_again_by_itself_and_software_sees_it() {
    let mut rig = Rig::new(Duration::from_micros(50));
    rig.post(6, 0);
    rig.engine.ring(rig.now, rig.number, 8, &0u32.to_le_bytes());
    rig.fault = true;
    rig.ring();
    rig.settle();
    assert_eq!((rig.state(), rig.engine.next_ready()), (2, Some(rig.number)), "whoever waits is told");
    for _ in 0..100 {
        assert!(pass_time(&mut rig));
    }
    assert!(rig.operations < 250, "{} operations in 100 trials", rig.operations);
    rig.fault = false;
    while rig.engine.is_awake() || rig.completion(0).0 == 0 {
        assert!(pass_time(&mut rig));
    }
    assert_eq!((rig.completion(0), rig.state(), rig.awake()), ((1, 0, 0), 0, 0));
}

#[test]
fn completions_that_can_not_be_written_are_kept() {
    let mut rig = Rig::new(Duration::ZERO);
    (0..3).for_each(|_| rig.post(1, 8));
    rig.ring();
    rig.settle();
    rig.fault = true;
    for request in rig.requests() {
        rig.finish(&request, Code::Ok);
        rig.settle();
    }
    assert_eq!((rig.completion(0).0, rig.state()), (0, 2));
    rig.fault = false;
    rig.engine.retry();
    rig.settle();
    assert_eq!(
        (0..3).map(|index| rig.completion(index)).collect::<Vec<_>>(),
        [(1, 0, 0), (2, 0, 1), (3, 0, 2)]
    );
    assert_eq!((rig.state(), rig.engine.poll_timeout()), (0, None));
}

#[test]
fn a_queue_with_completions_that_can_not_be_written_is_destroyed_all_the_same() {
    let mut rig = Rig::new(Duration::ZERO);
    rig.post(6, 0);
    rig.ring();
    let look = rig.engine.poll_operation(rig.now).unwrap();
    rig.execute(&look);
    rig.fault = true;
    rig.settle();
    rig.engine.handle_order(rig.now, Order::Destroy(rig.number.into()));
    assert_eq!(rig.engine.poll_order_done(), Some(Ok(0)));
    assert_eq!((rig.engine.taken, pass_time(&mut rig), rig.engine.poll_timeout()), (0, true, None));
}

/// Memory comes and goes at any moment, and whoever posts rings only where the queue says that it sleeps.
#[test]
fn nothing_is_lost_while_memory_comes_and_goes() {
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let mut below = |limit: u64| random.next() % limit;
        let mut rig = Rig::new(Duration::from_micros(50));
        let mut reaped = 0;
        for step in 0..200 {
            rig.fault = step < 150 && below(3) == 0;
            match below(5) {
                0 if rig.posted - reaped < ENTRIES => {
                    rig.post(if below(2) == 0 { 1 } else { 2 }, 8);
                    if rig.awake() == 0 {
                        rig.ring();
                    }
                }
                1 => {
                    rig.now = rig.now.after(Duration::from_micros(below(40)));
                    rig.engine.handle_timeout(rig.now);
                }
                2 => {
                    if let Some(operation) = rig.engine.poll_probe(rig.now) {
                        rig.execute(&operation);
                    }
                }
                _ => {
                    if let Some(operation) = rig.engine.poll_operation(rig.now) {
                        rig.execute(&operation);
                    }
                }
            }
            while let Some(request) = rig.engine.poll_request() {
                rig.finish(&request, Code::Ok);
            }
            while rig.completion(reaped).0 == reaped + 1 {
                reaped += 1;
            }
        }
        rig.fault = false;
        rig.settle();
        for _ in 0..1000 {
            while let Some(request) = rig.engine.poll_request() {
                rig.finish(&request, Code::Ok);
                rig.settle();
            }
            if !pass_time(&mut rig) {
                break;
            }
        }
        assert!((reaped..rig.posted).all(|index| rig.completion(index).0 == index + 1), "seed {seed}");
        assert_eq!((rig.awake(), rig.state() & 2, rig.engine.is_awake()), (0, 0, false), "seed {seed}");
    }
}

#[test]
fn a_ring_that_was_overrun_says_so_and_the_others_go_on() {
    let mut rig = Rig::new(Duration::ZERO);
    (0..=ENTRIES).for_each(|_| rig.post(6, 0));
    rig.ring();
    rig.settle();
    assert_eq!((rig.completion(0).0, rig.state()), (0, 4));
    rig.ring();
    assert_eq!(rig.engine.poll_operation(rig.now), None, "it is not looked at again");
    assert_eq!(&rig.engine.peek(rig.number, 0x16, 8)[..], [0, 0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(&rig.engine.peek(rig.number + 1, 0x18, 4)[..], [0; 4]);
    rig.engine.handle_order(rig.now, Order::Destroy(rig.number.into()));
    assert_eq!(rig.engine.poll_order_done(), Some(Ok(0)));
}

#[test]
fn resume_behind_the_last_flushed_entry_that_was_seen() {
    let mut rig = Rig::new(Duration::ZERO);
    let resume = |rig: &mut Rig, at: u32| {
        rig.engine.ring(rig.now, rig.number, 0x10, &at.to_le_bytes());
        rig.settle();
    };
    let go = |rig: &mut Rig, count: u32| {
        (0..count).for_each(|_| rig.post(6, 0));
        rig.ring();
        rig.settle();
        rig.completion(rig.posted - 1).1
    };
    resume(&mut rig, 1);
    rig.post(0, 0);
    assert_eq!(go(&mut rig, 3), 0x4444, "resuming before the error has no effect");
    assert_eq!((rig.completion(0).1, rig.state()), (0x8787, 1));
    // 2 and 3 were flushed, which was not seen when this was written: 4 must not be executed, since 2 was not.
    resume(&mut rig, 2);
    assert_eq!(go(&mut rig, 1), 0x4444);
    resume(&mut rig, 6);
    assert_eq!(go(&mut rig, 1), 0x4444, "number 5 comes before it");
    assert_eq!((go(&mut rig, 1), rig.state()), (0, 0));
}

#[test]
fn no_queue_has_more_than_its_share_of_one_call() {
    let mut rig = Rig::new(Duration::ZERO);
    let (first, mut numbers) = (rig.number, vec![rig.number]);
    for _ in 0..99 {
        let shape = rig.engine.queue(first).unwrap().shape;
        rig.engine.handle_order(rig.now, Order::Create(shape));
        numbers.push(u32::try_from(rig.engine.poll_order_done().unwrap().unwrap()).unwrap());
    }
    // All of them have the same rings. One call may have pieces of all to cut, and operations to flush.
    (0..ENTRIES).for_each(|_| rig.post(1, 8));
    for &number in &numbers {
        rig.engine.ring(rig.now, number, 0, &[0; 4]);
    }
    let mut most = 0;
    let mut calls = 0;
    loop {
        let operation = rig.engine.poll_operation(rig.now);
        most = most.max(rig.requests().len());
        calls += 1;
        match operation {
            Some(operation) => rig.execute(&operation),
            None if rig.engine.poll_timeout() == Some(Instant::ZERO) => {}
            None => break,
        }
    }
    assert!(most <= WORK_AT_ONCE + 128, "{most} pieces in one call of {calls}");
}

#[test]
fn what_is_under_way_is_bounded_whatever_is_posted() {
    let mut rig = Rig::new(Duration::ZERO);
    (0..ENTRIES).for_each(|_| rig.post(1, LEN - DATA));
    rig.ring();
    rig.settle();
    let requests = rig.requests();
    let bytes: usize = requests.iter().map(|request| request.kind.len()).sum();
    assert!(bytes <= 4 << 20, "{bytes}");
    // As some end, more go on, until all are done.
    let mut waiting: VecDeque<_> = requests.into();
    let mut done = 0;
    while let Some(request) = waiting.pop_front() {
        rig.finish(&request, Code::Ok);
        rig.settle();
        waiting.extend(rig.requests());
        assert!(waiting.iter().map(|request| request.kind.len()).sum::<usize>() <= 4 << 20);
        done += request.kind.len() as u64;
    }
    assert_eq!(done, u64::from(ENTRIES) * (LEN - DATA));
    assert_eq!(rig.completion(ENTRIES - 1), (ENTRIES, 0, u64::from(ENTRIES) - 1));
}

#[test]
fn nothing_is_left_of_a_reset() {
    let mut rig = Rig::new(Duration::from_micros(50));
    (0..8).for_each(|_| rig.post(2, 8));
    rig.ring();
    rig.settle();
    let requests = rig.requests();
    rig.finish(&requests[0], Code::Ok);
    let landing = rig.engine.poll_operation(rig.now).unwrap();
    rig.engine.reset();
    rig.execute(&landing);
    requests.iter().for_each(|request| rig.finish(request, Code::Ok));
    rig.ring();
    assert_eq!(rig.engine.poll_operation(rig.now), None);
    assert_eq!((rig.engine.poll_timeout(), rig.engine.is_awake()), (None, false));
    rig.engine.handle_order(rig.now, Order::Deregister(rig.key));
    assert_eq!(rig.engine.poll_order_done(), Some(Err(CommandStatus::NotFound)));
}

#[test]
fn doorbells_without_end_cost_nothing_that_stays() {
    let mut rig = Rig::new(Duration::from_micros(50));
    rig.engine.queue(rig.number).unwrap().shape.coalescing =
        Coalescing { count: 100, time: Duration::from_secs(1000) };
    (0..ENTRIES).for_each(|_| rig.post(1, LEN - DATA));
    rig.ring();
    rig.settle();
    // The way is full, and one completion is there.
    let requests = rig.requests();
    rig.finish(&requests[0], Code::Ok);
    rig.settle();
    let sizes = |engine: &Engine| {
        let waiting = format!("{:?}", engine.ways).len();
        (waiting, engine.alarms.len(), engine.active.len(), engine.awake.len(), engine.running.len())
    };
    let before = sizes(&rig.engine);
    for turn in 0..100u32 {
        rig.now = rig.now.after(Duration::from_micros(1));
        for offset in [0x00, 0x08, 0x10] {
            rig.engine.ring(rig.now, rig.number, offset, &0u32.to_le_bytes());
        }
        rig.settle();
        if turn == 0 {
            assert_eq!(sizes(&rig.engine).1, 1);
        }
    }
    let after = sizes(&rig.engine);
    assert_eq!((after.0, after.2, after.3, after.4), (before.0, before.2, before.3, before.4));
    assert_eq!(after.1, 1);
}

#[test]
fn reads_into_memory_whose_pages_are_missing_wait_in_the_queue_and_all_of_them_land() {
    let mut rig = Rig::new(Duration::ZERO);
    (0..100).for_each(|_| rig.post(2, 8));
    rig.ring();
    rig.settle();
    let requests = rig.requests();
    assert_eq!(requests.len(), 100);
    requests.iter().for_each(|request| rig.finish(request, Code::Ok));
    let (mut absent, mut most, mut faults) = (VecDeque::new(), 0, 0);
    loop {
        while let Some(operation) = rig.engine.poll_operation(rig.now) {
            let is_landing = operation.segments().iter().any(|segment| segment.address == DATA);
            if is_landing && !absent.contains(&operation.id()) {
                absent.push_back(operation.id());
                faults += 1;
                rig.engine.put_back(rig.now, operation);
            } else {
                absent.retain(|&id| id != operation.id());
                rig.execute(&operation);
            }
        }
        most = most.max(absent.len());
        let Some(&id) = absent.front() else { break };
        rig.engine.handle_pages(rig.now, id, Ok(()));
    }
    assert_eq!(faults, 100);
    assert!(most <= 8, "{most} at a time");
    for index in 0..100 {
        assert_eq!(rig.completion(index), (index + 1, 0, index.into()));
    }
}
