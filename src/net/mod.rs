//! The TCP side: at most one connection to each other node, and how it comes about.
//!
//! The first packet in each direction is a Join: it names who is there and whom it looks for. Who dialed sends it as soon as
//! the connection is made, who accepted answers with its own, or with a Refuse that says why not, and closes.
//!
//! Where both nodes dial at once, the connection that the node with the lower id dialed wins: the higher one takes it
//! whatever it has, and the lower one does not give it up for one of the higher's. The lower node keeps the other's
//! connection aside only until its own has shown a sign of life, and uses it if it does not. So neither closes the connection
//! on which the other relies, and a connection that leads nowhere does not keep a good one out.
//!
//! In the same way a connection on which somebody claims the id of a node that is here already is kept aside, and that node asked for a
//! sign of life: the claim gets in only if there is none.

mod admission;
mod backoff;
mod credentials;
mod identity;
mod link;
mod links;
mod listener;
mod outgoing;
mod peer;
mod socket;
mod transport;

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;

pub use admission::Company;
pub use credentials::{CredentialError, Credentials, TlsFiles};
pub use identity::{DOMAIN, Identity, IdentityError, Owner};
pub use links::{LinkEvent, Links, Settings, StartError};
pub use outgoing::Outgoing;
