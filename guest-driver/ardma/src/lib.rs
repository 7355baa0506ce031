//! The guest's side of assured-rdma: other nodes' memory by plain stores and loads, each of which can be
//! checked.
//!
//! # Example
//!
//! One guest exports memory, and holds it for as long as others may reach it:
//!
//! ```no_run
//! use ardma::{Adaptor, ExportOptions, Memory};
//!
//! # fn main() -> Result<(), ardma::Error> {
//! let adaptor = Adaptor::open("/dev/ardma0")?;
//! let export = adaptor.export(Memory::new(1 << 20)?, &ExportOptions::default())?;
//! println!("other nodes find it at {}", export.place()); // such as 2:0x0
//! # Ok(())
//! # }
//! ```
//!
//! Another guest stores into it, and asks whether that happened:
//!
//! ```no_run
//! use ardma::{Adaptor, Class};
//!
//! # fn main() -> Result<(), ardma::Error> {
//! let adaptor = Adaptor::open("/dev/ardma0")?;
//! let window = adaptor.map("2:0".parse()?, 1 << 20)?;
//! window.store(0x10, 42_u64)?;
//! window.write_bytes(0x100, b"some more")?;
//!
//! let status = window.check(0x10)?; // answers for the 4 KiB block around 0x10
//! match status.write().class() {
//!     Class::Ok => println!("executed: node 2's processor sees it"),
//!     Class::Retry => println!("not executed, try again: {status}"),
//!     Class::Permanent => println!("not executed, and will not be: {status}"),
//!     Class::Unknown => println!("executed or not, but not later than now: {status}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Large amounts, and small ones in large numbers, are the DMA engine's: a program registers memory, and posts operations to a
//! queue without a call to the kernel. Each completion says what became of exactly that operation:
//!
//! ```no_run
//! use ardma::{Adaptor, LocalRights, Memory, Operation, QueueOptions};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), ardma::Error> {
//! let adaptor = Adaptor::open("/dev/ardma0")?;
//! let memory = adaptor.register(Memory::new(1 << 20)?, LocalRights::ALL)?;
//! let mut queue = adaptor.connect(&QueueOptions::default())?;
//!
//! memory.write(0, b"to be sent")?;
//! queue.post(Operation::write(memory.part(0, 10)?, "2:0x1000".parse()?))?;
//! queue.post(Operation::read("2:0x1000".parse()?, memory.part(4096, 10)?))?;
//! queue.post(Operation::fetch_add("2:0".parse()?, 1).cookie(7))?;
//! while queue.under_way() > 0 {
//!     if let Some(completion) = queue.wait(Duration::from_secs(1))? {
//!         let done = completion.check()?; // an error names operation, place and code
//!         println!("{:?} of {} bytes at {}", done.opcode, done.bytes, done.place);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Memory stays registered, and mapped, for as long as an operation that names it is under way, whatever the program drops.
//! With [`Registered::export`] it is also what other nodes reach.
//!
//! A node announces what it exports, so that it is found by its name:
//!
//! ```no_run
//! use ardma::{Adaptor, Name};
//!
//! # fn main() -> Result<(), ardma::Error> {
//! let adaptor = Adaptor::open("/dev/ardma0")?;
//! let name: Name = "vault".parse()?;
//! if let Some(vault) = adaptor.inventory(2)?.iter().find(|entry| entry.name == name) {
//!     let window = adaptor.map(vault.place, vault.length)?;
//!     window.store(0, 42_u64)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Messages go to the doorbells of a node that listens to them:
//!
//! ```no_run
//! use ardma::{Adaptor, ListenOptions};
//!
//! # fn main() -> Result<(), ardma::Error> {
//! let adaptor = Adaptor::open("/dev/ardma0")?;
//! let doorbells = adaptor.doorbells(2)?;
//! doorbells.ring(0, 42)?;
//! println!("{}", doorbells.check()?); // OK: it is in node 2's queue
//!
//! let listener = adaptor.listen(&ListenOptions::default())?;
//! for message in listener.read()? {
//!     println!("node {} says {}", message.node, message.data);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Transfer`] copies many blocks and checks each. The other types are [`Status`] with its codes, and how
//! people name sizes and places: [`parse_size`], [`Place`], [`Nodes`].

pub mod abi;
mod adaptor;
mod assurance;
mod bar;
mod device;
mod error;
mod export;
mod inventory;
mod mapping;
mod message;
mod place;
mod queue;
mod registered;
mod remote;
#[cfg(test)]
mod remote_tests;
mod status;
mod transfer;
mod word;

pub use adaptor::{Adaptor, DEFAULT_DEVICE, Info, Node, Window};
pub use assurance::{FailedBlock, Spaces};
pub use bar::{Bar, BarExport, Function};
pub use error::Error;
pub use export::{Export, ExportOptions};
pub use inventory::{Entry, EntryKind, Name};
pub use mapping::{Memory, PAGE};
pub use message::{DOORBELLS, Doorbells, ListenOptions, Listener, Message, Room, parse_doorbells};
pub use place::{Nodes, ParseError, Place, Space, parse_hex, parse_node, parse_size};
pub use queue::{Completion, INLINE, Opcode, Operation, Queue, QueueOptions};
pub use registered::{KeyExport, LocalRights, Part, Registered};
pub use remote::{BlockPart, RemoteWindow};
pub use status::{Class, Code, Direction, Status};
pub use transfer::{Counts, Retries, Transfer};
pub use word::{Word, pieces};
