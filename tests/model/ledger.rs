//! What the bus of A asked for, and what became of it. The contract's lines are checked here, as things happen.
//!
//! Invariant: the first line that was broken stays in `broken`.

use std::time::Duration;

use assured_rdma::adaptor::Instant;
use assured_rdma::adaptor::channel::Channel;
use assured_rdma::adaptor::status::{Class, Code, Direction};
use assured_rdma::adaptor::transaction::Finished;

use crate::node::Execution;

/// What has to hold in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    /// A check answers 0 only where all that it is about was done; and data that was delivered is the remote data.
    NoFalseOk,
    /// The adaptor counted an error, and no check told of one.
    NoLostError,
    Order,
    ExactlyOnce,
    NoGhostWrites,
    Bounded,
    /// What was begun for an earlier life of the target is not executed.
    Isolation,
    /// What is executed is what was asked for.
    Integrity,
    /// Of what a code calls "not executed", something was not.
    Truth,
    /// No more requests are under way than the other node has room for.
    Window,
    /// A node that was woken has nothing due any more.
    NoBusyLoop,
}

/// What the bus knows of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Nobody has told yet.
    Open,
    /// A check told how the transactions ended that this one was among; in the bulk channel each is told of alone.
    Reported(Class),
    /// Nobody will be told, because its node began a new life. The leases that it had given are over then.
    Forgotten { over: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Write,
    Read {
        /// By its length a read is known at the target.
        len: usize,
        /// What was in memory when it was executed.
        found: Option<u8>,
        /// Whether data was delivered, or all-ones.
        delivered: Option<bool>,
    },
}

impl Kind {
    const fn direction(&self) -> Direction {
        match self {
            Self::Write => Direction::Write,
            Self::Read { .. } => Direction::Read,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    pub kind: Kind,
    channel: Channel,
    block: usize,
    /// When it has to have ended at latest; means nothing any more once it is not open.
    due: Instant,
    /// The lives of the bus's own node, and of the target, in which it was begun.
    lives: [u8; 2],
    pub executed: bool,
    pub standing: Standing,
}

impl Transaction {
    /// Whether it was done well, as seen from outside.
    fn is_done(&self) -> bool {
        match self.kind {
            Kind::Write => self.executed,
            Kind::Read { delivered, .. } => self.executed && delivered == Some(true),
        }
    }

    /// Whether a check told that it was done well.
    pub fn is_assured(&self) -> bool {
        self.standing == Standing::Reported(Class::Ok)
    }

    pub const fn is_of_first_lives(&self) -> bool {
        matches!(self.lives, [0, 0])
    }
}

/// What the bus waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Load {
    /// The data of the transaction with this index.
    Read(usize),
    /// The check of this block.
    Check(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger {
    transactions: Vec<Transaction>,
    /// In each channel.
    last_executed: [Option<usize>; 2],
    /// The load under way, and when it has to be answered at latest.
    load: Option<(Load, Instant)>,
    /// The adaptor's count of errors when no transaction was open last.
    errors: u64,
    /// Whether a check told of an error since.
    told: bool,
    /// A node had the link cut, because it was silent.
    pub link_was_cut: bool,
    /// Several requests went in one packet; one answer was of several.
    pub travelled_together: bool,
    pub answered_together: bool,
    broken: Option<Line>,
}

impl Ledger {
    pub fn transactions(&self) -> &[Transaction] {
        &self.transactions
    }

    pub const fn broken(&self) -> Option<Line> {
        self.broken
    }

    pub fn breaks(&mut self, line: Line) {
        self.broken.get_or_insert(line);
    }

    /// When the load under way has to be answered at latest.
    pub fn due(&self) -> Option<Instant> {
        self.load.map(|(_, due)| due)
    }

    /// When something has to have happened at latest.
    pub fn next_due(&self) -> Option<Instant> {
        let transfers = self.open_in(Channel::Bulk).map(|t| t.due).min();
        [self.due(), transfers].into_iter().flatten().min()
    }

    fn open_in(&self, channel: Channel) -> impl Iterator<Item = &Transaction> {
        self.transactions.iter().filter(move |t| t.channel == channel && t.standing == Standing::Open)
    }

    /// What a check of the block is about.
    fn open(&self, block: usize) -> impl Iterator<Item = &Transaction> {
        self.open_in(Channel::Small).filter(move |t| t.block == block)
    }

    pub fn has_open(&self, block: usize) -> bool {
        self.open(block).next().is_some()
    }

    fn begin(&mut self, kind: Kind, channel: Channel, block: usize, due: Instant, lives: [u8; 2]) {
        let standing = Standing::Open;
        self.transactions.push(Transaction { kind, channel, block, due, lives, executed: false, standing });
    }

    /// The value is written that is returned, by which the target knows the transaction.
    pub fn store(&mut self, channel: Channel, block: usize, due: Instant, lives: [u8; 2]) -> u8 {
        self.begin(Kind::Write, channel, block, due, lives);
        self.transactions.len() as u8
    }

    /// The bus loads as many bytes as are returned.
    pub fn read(&mut self, block: usize, due: Instant, lives: [u8; 2]) -> usize {
        let len = self.next_read_len();
        self.load = Some((Load::Read(self.transactions.len()), due));
        let kind = Kind::Read { len, found: None, delivered: None };
        self.begin(kind, Channel::Small, block, due, lives);
        len
    }

    /// A read in the bulk channel: its name, and how many bytes it reads.
    pub fn fetch(&mut self, block: usize, due: Instant, lives: [u8; 2]) -> (u8, usize) {
        let len = self.next_read_len();
        let kind = Kind::Read { len, found: None, delivered: None };
        self.begin(kind, Channel::Bulk, block, due, lives);
        (self.transactions.len() as u8, len)
    }

    /// No two reads are of the same length.
    fn next_read_len(&self) -> usize {
        8 >> self.transactions.iter().filter(|t| t.kind.direction() == Direction::Read).count()
    }

    /// The bus checks a block. The answer is due when the last of its transactions is.
    pub fn check(&mut self, block: usize, now: Instant) {
        let last = self.open(block).map(|t| t.due).max();
        self.load = Some((Load::Check(block), last.unwrap_or(now).max(now)));
    }

    /// Of one channel only one request is executed at a time, since nobody knows in which order two of them reach the memory.
    pub fn begins_beside(&mut self, execution: &Execution, running: &[Execution]) {
        let channel = |execution| self.find(execution).map(|index| self.transactions[index].channel);
        let this = channel(execution);
        if running.iter().any(|other| channel(other) == this) {
            self.breaks(Line::Order);
        }
    }

    /// Something is executed at the target, in this life of it. `errors` asks for the adaptor's count of errors.
    pub fn executed(
        &mut self,
        execution: &Execution,
        now: Instant,
        target_life: u8,
        errors: impl FnOnce() -> u64,
    ) {
        let Some(index) = self.find(execution) else { return self.breaks(Line::Integrity) };
        let transaction = &mut self.transactions[index];
        let was_executed = std::mem::replace(&mut transaction.executed, true);
        if let (Kind::Read { found, .. }, Execution::Read { value, .. }) = (&mut transaction.kind, execution)
        {
            *found = Some(*value);
        }
        let Transaction { kind, channel, standing, lives, .. } = *transaction;
        let is_over = match standing {
            Standing::Open => false,
            Standing::Reported(_) => true,
            Standing::Forgotten { over } => over <= now,
        };
        if was_executed {
            self.breaks(Line::ExactlyOnce);
        }
        if self.last_executed[channel as usize] > Some(index) || self.overtakes(index, errors) {
            self.breaks(Line::Order);
        }
        // To read memory late harms nobody.
        if kind == Kind::Write && is_over {
            self.breaks(Line::NoGhostWrites);
        }
        if lives[1] != target_life {
            self.breaks(Line::Isolation);
        }
        self.last_executed[channel as usize] = Some(index);
    }

    /// Whether a transaction overtakes others on the same block that have not failed before, although a bus that stores a flag
    /// behind its data trusts that the data is there. `errors` asks for the adaptor's count of errors.
    fn overtakes(&self, index: usize, errors: impl FnOnce() -> u64) -> bool {
        let this = &self.transactions[index];
        // The errors of an earlier life are not counted any more.
        if matches!(this.standing, Standing::Forgotten { .. }) {
            return false;
        }
        let is_overtaken = |t: &&Transaction| {
            !t.executed && (t.channel, t.block, t.lives[0]) == (this.channel, this.block, this.lives[0])
        };
        let mut overtaken = self.transactions[..index].iter().filter(is_overtaken);
        match this.channel {
            Channel::Small => match overtaken.count() {
                0 => false,
                count => count as u64 > errors(),
            },
            Channel::Bulk => overtaken.any(|t| t.standing == Standing::Open),
        }
    }

    /// The transaction that is executed; `None` where nothing like it was asked for.
    fn find(&self, execution: &Execution) -> Option<usize> {
        match *execution {
            Execution::Write { block, ref data } => {
                let index = usize::from(data[0]).checked_sub(1)?;
                let transaction = self.transactions.get(index)?;
                let is_it = transaction.kind == Kind::Write && transaction.block == block;
                (is_it && data[..] == [data[0]; 8]).then_some(index)
            }
            Execution::Read { block, len, .. } => self.transactions.iter().position(|transaction| {
                let is_it = matches!(transaction.kind, Kind::Read { len: asked, .. } if asked == len);
                is_it && transaction.block == block
            }),
        }
    }

    /// The load is answered. `errors` asks for the adaptor's count of errors.
    pub fn answered(&mut self, data: &[u8], errors: impl FnOnce() -> u64) {
        match self.load.take().expect("a load is under way").0 {
            Load::Read(index) => self.delivered(index, data),
            Load::Check(block) => {
                let word = data.try_into().expect("a check is of 4 bytes");
                self.checked(block, word);
                self.compare_errors(errors);
            }
        }
    }

    fn delivered(&mut self, index: usize, data: &[u8]) {
        let Kind::Read { len, found, delivered } = &mut self.transactions[index].kind else {
            panic!("a load reads")
        };
        let is_data = data != vec![0xff; *len];
        let is_right = found.is_some_and(|value| data == vec![value; *len]);
        *delivered = Some(is_data);
        if is_data && !is_right {
            self.breaks(Line::NoFalseOk);
        }
    }

    /// A transaction of the bulk channel ended.
    pub fn ended(&mut self, end: &Finished) {
        let transaction = &mut self.transactions[end.id.0 as usize - 1];
        let was = std::mem::replace(&mut transaction.standing, Standing::Reported(end.code.class()));
        transaction.due = Instant::ZERO;
        let is_done = match &mut transaction.kind {
            Kind::Write => transaction.executed,
            Kind::Read { len, found, delivered } => {
                *delivered = Some(end.code.is_ok());
                let is_right = found.is_some_and(|value| end.data[..] == vec![value; *len][..]);
                transaction.executed && (is_right || !end.code.is_ok())
            }
        };
        match end.code.class() {
            _ if was != Standing::Open => self.breaks(Line::ExactlyOnce),
            Class::Ok if !is_done => self.breaks(Line::NoFalseOk),
            Class::Retry | Class::Permanent if is_done => self.breaks(Line::Truth),
            _ => {}
        }
    }

    fn checked(&mut self, block: usize, word: [u8; 4]) {
        let [write, read, zero, also_zero] = word;
        assert_eq!([zero, also_zero], [0, 0], "the reserved bits are 0");
        for (direction, bits) in [(Direction::Write, write), (Direction::Read, read)] {
            let code = Code::from_bits(bits).expect("a code of the table");
            let mut all_are_done = true;
            let is_meant = |t: &&mut Transaction| {
                let is_open = t.channel == Channel::Small && t.standing == Standing::Open;
                is_open && t.block == block && t.kind.direction() == direction
            };
            for transaction in self.transactions.iter_mut().filter(is_meant) {
                all_are_done &= transaction.is_done();
                transaction.standing = Standing::Reported(code.class());
                transaction.due = Instant::ZERO;
            }
            self.told |= !code.is_ok();
            match code.class() {
                Class::Ok if !all_are_done => self.breaks(Line::NoFalseOk),
                Class::Retry | Class::Permanent if all_are_done => self.breaks(Line::Truth),
                _ => {}
            }
        }
    }

    /// When no transaction is open, some check told of an error if there was one.
    fn compare_errors(&mut self, errors: impl FnOnce() -> u64) {
        if self.open_in(Channel::Small).next().is_some() {
            return;
        }
        let errors = errors();
        if errors != self.errors && !self.told {
            self.breaks(Line::NoLostError);
        }
        (self.errors, self.told) = (errors, false);
    }

    /// The bus's own node begins a new life.
    pub fn forget(&mut self, now: Instant, lease: Duration) {
        for transaction in self.transactions.iter_mut().filter(|t| t.standing == Standing::Open) {
            transaction.standing = Standing::Forgotten { over: now.after(lease) };
            transaction.due = Instant::ZERO;
        }
        (self.load, self.errors, self.told) = (None, 0, false);
    }

    /// All that A had to do at this time was done.
    pub fn woken(&mut self, now: Instant) {
        if self.next_due().is_some_and(|due| due <= now) {
            self.breaks(Line::Bounded);
        }
    }
}
