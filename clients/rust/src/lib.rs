#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod blocking;
mod call;
mod client;
mod clock;
mod core;
mod dial;
mod driver;
mod entropy;
mod errors;
mod events;
mod fake;
mod options;
mod ticket;
#[cfg(feature = "tls")]
mod tls;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod wire;

pub use client::{Acquire, Adopt, Client, TryAcquire};
pub use errors::{Error, Kind, LostReason, Result};
pub use events::{Event, Level};
pub use fake::fake_ticket;
pub use options::Builder;
pub use ticket::{Lost, Ticket, TicketRef};
#[cfg(feature = "tls")]
pub use tls::Tls;

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
