//! What the program can be told of.

use crate::errors::LostReason;
use std::time::Duration;

/// What the hook of [`Builder::on_event`](crate::Builder::on_event) is called with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An acquire was granted.
    Granted {
        /// The keys, without the client's prefix.
        keys: Vec<Vec<u8>>,
        /// The fencing token.
        token: u64,
        /// Since the call.
        waited: Duration,
    },
    /// A wait ended without a grant.
    TimedOut {
        /// The keys, without the client's prefix.
        keys: Vec<Vec<u8>>,
        /// Since the call.
        waited: Duration,
    },
    /// A ticket was released.
    Released {
        /// The keys, without the client's prefix.
        keys: Vec<Vec<u8>>,
        /// The fencing token.
        token: u64,
        /// How long it was held.
        held: Duration,
    },
    /// A ticket's lease goes on.
    Extended {
        /// The keys, without the client's prefix.
        keys: Vec<Vec<u8>>,
        /// The fencing token.
        token: u64,
        /// What is left of the lease.
        remaining: Duration,
    },
    /// A ticket ended without its holder's release.
    Lost {
        /// The keys, without the client's prefix.
        keys: Vec<Vec<u8>>,
        /// The fencing token.
        token: u64,
        /// How the client learned of it.
        reason: LostReason,
    },
    /// A server that serves requests was reached and has proved that it knows the secret.
    Connected {
        /// host:port, or unix:path.
        address: String,
    },
    /// The connection ended. The client reconnects by itself unless it was closed.
    Disconnected {
        /// host:port, or unix:path.
        address: String,
        /// Why, in words for people.
        reason: String,
    },
}

impl Event {
    /// The word for it, as in every language's client.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Granted { .. } => "granted",
            Self::TimedOut { .. } => "timed_out",
            Self::Released { .. } => "released",
            Self::Extended { .. } => "extended",
            Self::Lost { .. } => "lost",
            Self::Connected { .. } => "connected",
            Self::Disconnected { .. } => "disconnected",
        }
    }
}

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// For those who look for a fault.
    Debug,
    /// What happens now and then.
    Info,
    /// What somebody should look at.
    Warn,
    /// A bug in the program's own hook.
    Error,
}
