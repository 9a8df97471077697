//! What a failing call returns.

use std::fmt;
use std::sync::Arc;

/// What sort of failure an [`Error`] is: one word, the same in every language's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The wait for a key ended before it was granted; nothing is held.
    Timeout,
    /// An acquire that does not wait found the key held. See [`Error::is_timeout`].
    Held,
    /// Client and server do not have the same secret, or the secret may not do this.
    Auth,
    /// An argument that the client, or the server (a lease over its limit), does not take.
    InvalidArgument,
    /// A limit of the server is reached; nothing was queued. Try again later.
    Overloaded,
    /// The ticket is not this client's to use: released already, handed over, or not there to adopt.
    NotHeld,
    /// A ticket ended without its holder's release; somebody else may hold the key.
    Lost,
    /// The client is closed, or was closed meanwhile.
    Closed,
    /// The server says that the client broke the protocol. A bug in one of the two.
    Protocol,
    /// No server could be reached, or none answered in time; the text names each endpoint with its error.
    Connection,
}

impl Kind {
    /// The word for it, as in every language's client.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Held => "held",
            Self::Auth => "auth",
            Self::InvalidArgument => "invalid_argument",
            Self::Overloaded => "overloaded",
            Self::NotHeld => "not_held",
            Self::Lost => "lost",
            Self::Closed => "closed",
            Self::Protocol => "protocol",
            Self::Connection => "connection",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the client learned that a ticket ended without its holder's release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The server says that the lease ended.
    LeaseOver,
    /// An operator released it.
    Operator,
    /// Another client released it with its token.
    OtherClient,
    /// The server, asked about the ticket, does not know it any more.
    NotHeld,
    /// Its time passed without a word from the server.
    Expired,
    /// A newer client with the same client id took over.
    TakenOver,
}

impl LostReason {
    /// The word for it, as in every language's client.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeaseOver => "lease_over",
            Self::Operator => "operator",
            Self::OtherClient => "other_client",
            Self::NotHeld => "not_held",
            Self::Expired => "expired",
            Self::TakenOver => "taken_over",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What every failing call returns. Recognise it by [`kind`](Error::kind), never by its text. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: Kind,
    reason: Option<LostReason>,
    late: bool,
    text: String,
}

/// What a call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self::from_inner(Inner { kind, reason: None, late: false, text: text.into() })
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(Kind::InvalidArgument, text)
    }

    pub(crate) fn lost(reason: LostReason, text: impl Into<String>) -> Self {
        Self::from_inner(Inner { kind: Kind::Lost, reason: Some(reason), late: false, text: text.into() })
    }

    /// A call that failed with `connection` because no answer came in time.
    pub(crate) fn no_answer(text: impl Into<String>) -> Self {
        Self::from_inner(Inner { kind: Kind::Connection, reason: None, late: true, text: text.into() })
    }

    fn from_inner(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn text(&self) -> &str {
        &self.inner.text
    }

    /// The sort of failure.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// How the loss was learned of, where the kind is [`Kind::Lost`].
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.inner.reason
    }

    /// Whether something did not happen in time: a wait, a try, or a reply.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.inner.late || matches!(self.inner.kind, Kind::Timeout | Kind::Held)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.text)
    }
}

impl std::error::Error for Error {}
