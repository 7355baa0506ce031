//! What the bus of A has asked for, and what became of it: the contract's lines are checked here, as things happen.

use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::status::{Class, Code, Direction};

use crate::node::Execution;

/// The lines of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    NoFalseOk,
    NoLostError,
    Order,
    ExactlyOnce,
    NoGhostWrites,
    Bounded,
    Isolation,
    /// "Not executed" was said of something that was.
    Truth,
}

/// What the bus knows of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// No check has told yet.
    Open,
    /// A check told how the transactions ended that this one was among.
    Reported(Class),
    /// Nobody will be told: its node was started again, or reset. The leases that it gave last until then.
    Forgotten { until: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Write,
    /// A read is known at the target by its length.
    Read {
        len: usize,
        /// What was in memory when it was executed.
        found: Option<u8>,
        /// Whether data was delivered, or all-ones.
        delivered: Option<bool>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    pub kind: Kind,
    block: usize,
    begun: Instant,
    /// The life of the target for which it was begun.
    target_life: u8,
    pub executed: bool,
    pub standing: Standing,
}

impl Transaction {
    const fn direction(&self) -> Direction {
        match self.kind {
            Kind::Write => Direction::Write,
            Kind::Read { .. } => Direction::Read,
        }
    }

    /// Whether it was done properly, as seen from outside.
    fn is_done(&self) -> bool {
        match self.kind {
            Kind::Write => self.executed,
            Kind::Read { delivered, .. } => self.executed && delivered == Some(true),
        }
    }
}

/// What the bus waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// The transaction with this index.
    Read(usize),
    /// A check of this block.
    Check(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub transactions: Vec<Transaction>,
    last_executed: Option<usize>,
    /// The load under way, and when it has to be answered at latest.
    pub load: Option<(Load, Instant)>,
    /// The adaptor's count of errors when nothing was open last.
    errors: u64,
    /// Whether a check told of an error since.
    told: bool,
    pub broken: Option<Line>,
}

impl Ledger {
    fn open(&self, block: usize) -> impl Iterator<Item = &Transaction> {
        self.transactions.iter().filter(move |t| t.block == block && t.standing == Standing::Open)
    }

    pub fn has_open(&self, block: usize) -> bool {
        self.open(block).next().is_some()
    }

    fn begin(&mut self, kind: Kind, block: usize, now: Instant, target_life: u8) {
        let standing = Standing::Open;
        self.transactions.push(Transaction {
            kind,
            block,
            begun: now,
            target_life,
            executed: false,
            standing,
        });
    }

    /// The bus stores; the value names the transaction.
    pub fn store(&mut self, block: usize, now: Instant, target_life: u8) -> u8 {
        self.begin(Kind::Write, block, now, target_life);
        self.transactions.len() as u8
    }

    /// The bus loads; the length names the transaction.
    pub fn read(&mut self, block: usize, now: Instant, target_life: u8, deadline: Duration) -> usize {
        let earlier = self.transactions.iter().filter(|t| t.direction() == Direction::Read).count();
        let len = 8 >> earlier;
        self.load = Some((Load::Read(self.transactions.len()), now.after(deadline)));
        self.begin(Kind::Read { len, found: None, delivered: None }, block, now, target_life);
        len
    }

    /// The bus checks a block. The answer is due when the last of its transactions is.
    pub fn check(&mut self, block: usize, now: Instant, deadline: Duration) {
        let last = self.open(block).map(|t| t.begun.after(deadline)).max();
        self.load = Some((Load::Check(block), last.unwrap_or(now).max(now)));
    }

    fn broken(&mut self, line: Line) {
        self.broken.get_or_insert(line);
    }

    /// Something was executed at the target, in this life of it.
    pub fn executed(&mut self, execution: Execution, now: Instant, target_life: u8) {
        let index = match execution {
            Execution::Write { value, .. } => usize::from(value) - 1,
            Execution::Read { len, .. } => {
                let is_it = |t: &Transaction| matches!(t.kind, Kind::Read { len: l, .. } if l == len);
                self.transactions.iter().position(is_it).expect("what is executed was asked for")
            }
        };
        let transaction = &mut self.transactions[index];
        let was_executed = std::mem::replace(&mut transaction.executed, true);
        let (Execution::Write { block, .. } | Execution::Read { block, .. }) = execution;
        assert_eq!(transaction.block, block, "what is executed was asked for");
        if let (Kind::Read { found, .. }, Execution::Read { value, .. }) = (&mut transaction.kind, execution)
        {
            *found = Some(value);
        }
        let Transaction { kind, standing, target_life: meant, .. } = *transaction;
        if was_executed {
            self.broken(Line::ExactlyOnce);
        }
        if self.last_executed > Some(index) {
            self.broken(Line::Order);
        }
        self.last_executed = Some(index);
        let is_over = match standing {
            Standing::Open => false,
            Standing::Reported(_) => true,
            Standing::Forgotten { until } => until <= now,
        };
        if kind == Kind::Write && is_over {
            self.broken(Line::NoGhostWrites);
        }
        if meant != target_life {
            self.broken(Line::Isolation);
        }
    }

    /// The load was answered. `errors` is asked for the adaptor's count of errors.
    pub fn answered(&mut self, data: &[u8], errors: impl FnOnce() -> u64) {
        match self.load.take().expect("a load is under way").0 {
            Load::Read(index) => self.delivered(index, data),
            Load::Check(block) => {
                let word: [u8; 4] = data.try_into().expect("a check is of 4 bytes");
                self.checked(block, word, errors);
            }
        }
    }

    fn delivered(&mut self, index: usize, data: &[u8]) {
        let Kind::Read { len, found, delivered } = &mut self.transactions[index].kind else {
            panic!("a load is a read")
        };
        assert_eq!(data.len(), *len);
        *delivered = Some(data != vec![0xff; *len]);
        let is_right = found.is_some_and(|value| data == vec![value; *len]);
        if *delivered == Some(true) && !is_right {
            self.broken(Line::NoFalseOk);
        }
    }

    fn checked(&mut self, block: usize, word: [u8; 4], errors: impl FnOnce() -> u64) {
        assert_eq!(word[2..], [0, 0], "the reserved bits are 0");
        for (direction, bits) in [(Direction::Write, word[0]), (Direction::Read, word[1])] {
            let code = Code::from_bits(bits).expect("a code of the table");
            self.told |= !code.is_ok();
            let mut all = true;
            let is_meant = |t: &&mut Transaction| {
                t.block == block && t.standing == Standing::Open && t.direction() == direction
            };
            for transaction in self.transactions.iter_mut().filter(is_meant) {
                all &= transaction.is_done();
                transaction.standing = Standing::Reported(code.class());
                // It means nothing any more.
                transaction.begun = Instant::ZERO;
            }
            match code.class() {
                Class::Ok if !all => self.broken(Line::NoFalseOk),
                Class::Retry | Class::Permanent if all => self.broken(Line::Truth),
                _ => {}
            }
        }
        if self.transactions.iter().all(|t| t.standing != Standing::Open) {
            let errors = errors();
            if errors != self.errors && !self.told {
                self.broken(Line::NoLostError);
            }
            (self.errors, self.told) = (errors, false);
        }
    }

    /// The bus's own node begins a new life.
    pub fn forget(&mut self, now: Instant, lease: Duration) {
        for transaction in self.transactions.iter_mut().filter(|t| t.standing == Standing::Open) {
            transaction.standing = Standing::Forgotten { until: now.after(lease) };
            transaction.begun = Instant::ZERO;
        }
        self.load = None;
        (self.errors, self.told) = (0, false);
    }

    /// All that was due has been done at this time.
    pub fn woken(&mut self, now: Instant) {
        if self.load.is_some_and(|(_, due)| due <= now) {
            self.broken(Line::Bounded);
        }
    }
}
