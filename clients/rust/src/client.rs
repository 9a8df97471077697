//! The client for tokio.

use crate::call::{nothing, Calling, Keeper};
use crate::core::arguments::{positive_ms, whole_ms, AcquireOptions};
use crate::core::effects::Value;
use crate::core::Command;
use crate::errors::{Error, Result};
use crate::options::{forever, held_is_none, Builder};
use crate::ticket::{scope, Ticket, TicketRef};
use crate::wire::constants_gen::WAIT_MS_TRY;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

/// One client of a server: one connection at a time, any number of calls in flight on it.
///
/// Clones are handles of the same client; it may be used from any task or thread, and its calls from any executor,
/// while the runtime that it was connected in lives. A lost connection is no error: waits, releases and tickets go on
/// over the next one, and a waiter keeps its place. When the last clone and the last ticket are dropped, the client
/// closes by itself, without anybody waiting for it.
///
/// A call is cancelled by dropping its future. It then leaves neither a waiter nor a ticket behind, whatever the
/// moment (REQ-BOUND-CANCEL). A call begins when its future is polled first.
#[derive(Clone)]
pub struct Client {
    keeper: Arc<Keeper>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(keeper: Arc<Keeper>) -> Self {
        Self { keeper }
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// Options for a client: see [`Builder`].
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Makes a client without options but the URL, and connects it: see [`Builder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self> {
        Builder::new().url(url).connect().await
    }

    /// Waits for a key of 1 to 128 bytes, the prefix included. Any bytes are a key; text is its UTF-8.
    ///
    /// Awaiting what this returns gives the [`Ticket`]. It fails with [`Kind::Timeout`](crate::Kind::Timeout)
    /// (see [`Acquire::wait_timeout`]; `Held` for a wait of 0), `Overloaded`, `Auth`, `Lost` (granted, but read too
    /// late), `InvalidArgument` and `Closed`; a wait of 0 with `Connection` too.
    pub fn acquire(&self, key: impl Into<Vec<u8>>) -> Acquire {
        Acquire::new(&self.keeper, vec![key.into()])
    }

    /// Waits for up to 16 different keys together, all or nothing, as one ticket. Otherwise as
    /// [`acquire`](Self::acquire). Sets that overlap never deadlock. A set waits for all its keys in strict
    /// turn, and keeps those that are free from later comers.
    pub fn acquire_set<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) -> Acquire {
        Acquire::new(&self.keeper, keys.into_iter().map(Into::into).collect())
    }

    /// Acquires a key if it is free now; awaiting gives none where it is held. Otherwise as
    /// [`acquire`](Self::acquire), and fails with `Connection` after the reply timeout.
    pub fn try_acquire(&self, key: impl Into<Vec<u8>>) -> TryAcquire {
        let mut acquire = self.acquire(key);
        acquire.options.wait_ms = Some(WAIT_MS_TRY);
        TryAcquire { acquire }
    }

    /// Acquires a key, runs a body that holds it, and releases: see [`Acquire::with_ticket`].
    ///
    /// ```no_run
    /// # async fn example(client: ticketing::Client) -> ticketing::Result<()> {
    /// let sum = client
    ///     .with_ticket("ledger", |ticket| async move {
    ///         println!("token {}", ticket.token());
    ///         ticketing::Result::Ok(1 + 1)
    ///     })
    ///     .await?;
    /// # assert_eq!(sum, 2); Ok(())
    /// # }
    /// ```
    pub async fn with_ticket<T, E, F>(
        &self,
        key: impl Into<Vec<u8>>,
        body: impl FnOnce(TicketRef) -> F,
    ) -> std::result::Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = std::result::Result<T, E>>,
    {
        self.acquire(key).with_ticket(body).await
    }

    /// Takes over a ticket that another client handed over. The reference is what
    /// [`Ticket::hand_over`] returned; the client's key prefix is not added to it. The ticket is
    /// extended by the lease.
    ///
    /// Awaiting what this returns gives the [`Ticket`]. It fails with `NotHeld` if the ticket has ended,
    /// `Connection` after the reply timeout, `Auth`, `InvalidArgument` and `Closed`. A reference is for one
    /// adopter; the server does not check this. Dropped, it leaves the ticket as it is, or releases it if it had arrived.
    pub fn adopt(&self, reference: impl Into<String>) -> Adopt {
        Adopt {
            keeper: self.keeper.clone(),
            reference: reference.into(),
            options: AcquireOptions::default(),
            error: None,
        }
    }

    /// Asks the server for a sign of life. Fails with `Connection` after the reply timeout, `Auth` and `Closed`.
    pub async fn ping(&self) -> Result<()> {
        nothing(Calling::new(self.keeper.clone(), Ok(Command::Ping))).await
    }

    /// Cancels what waits, releases what is held, and ends the connection and every task of the client.
    ///
    /// It takes at most about a second, also without a server; calls that still wait fail with `Closed`. With
    /// [`Builder::release_on_close`] off, tickets are left to their leases. It may be called again, and never fails.
    pub async fn close(&self) {
        // A close has no way to fail.
        let _ = Calling::new(self.keeper.clone(), Ok(Command::Close)).await;
        self.keeper.driver.tasks_ended().await;
    }
}

/// An acquire that is put together; awaiting it asks for the key.
#[must_use = "an acquire does nothing unless it is awaited"]
pub struct Acquire {
    keeper: Arc<Keeper>,
    keys: Vec<Vec<u8>>,
    options: AcquireOptions,
    error: Option<Error>,
}

impl Acquire {
    pub(crate) fn new(keeper: &Arc<Keeper>, keys: Vec<Vec<u8>>) -> Self {
        Self { keeper: keeper.clone(), keys, options: AcquireOptions::default(), error: None }
    }

    /// How long the ticket lasts unless it is extended: at least a nanosecond, rounded up to a millisecond.
    /// Such a lease is fixed unless [`auto_extend`](Self::auto_extend) is set. Without it the lease is 30 seconds
    /// and is extended at each third while the ticket is held.
    pub fn lease(mut self, lease: Duration) -> Self {
        set(&mut self.options.lease_ms, &mut self.error, positive_ms("the lease", lease));
        self
    }

    /// How long to wait for the key, rounded up to a millisecond; 0 does not wait. Without it: for ever.
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        set(&mut self.options.wait_ms, &mut self.error, whole_ms("the wait timeout", wait));
        self
    }

    /// Waits for ever, where the client's own default is shorter.
    pub fn wait_forever(mut self) -> Self {
        self.options.wait_ms = forever();
        self
    }

    /// Whether the lease is extended at each third of it while the ticket is held. Without it: yes without a
    /// lease, no with one.
    pub fn auto_extend(mut self, extend: bool) -> Self {
        self.options.auto_extend = Some(extend);
        self
    }

    /// Acquires, runs a body that holds the ticket, and releases.
    ///
    /// When the ticket is lost the body is dropped where it waits, and this fails with `Lost`. Otherwise it
    /// gives what the body gives; an error of the body goes before one of the release, which is logged then.
    /// Dropped, it drops the body and queues the release; so does a panic of the body.
    pub async fn with_ticket<T, E, F>(self, body: impl FnOnce(TicketRef) -> F) -> std::result::Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = std::result::Result<T, E>>,
    {
        scope(self.await?, body).await
    }

    fn into_calling(self) -> Calling {
        let command = match self.error {
            Some(error) => Err(error),
            None => Ok(Command::Acquire { keys: self.keys, options: self.options }),
        };
        Calling::new(self.keeper, command)
    }
}

pub(crate) fn set(option: &mut Option<u32>, error: &mut Option<Error>, checked: Result<u32>) {
    match checked {
        Ok(value) => *option = Some(value),
        Err(wrong) => {
            error.get_or_insert(wrong);
        }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Ticket>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        Acquiring(self.into_calling())
    }
}

/// What awaiting an [`Acquire`] or an [`Adopt`] awaits. Dropped, it cancels.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Acquiring(Calling);

impl Future for Acquiring {
    type Output = Result<Ticket>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(outcome.map(|value| match value {
            Value::Ticket(grant) => Ticket::new(self.0.keeper().clone(), grant),
            Value::Nothing | Value::Reference(_) => unreachable!("an acquire gives a ticket"),
        }))
    }
}

/// A try that is put together; awaiting it asks for the key.
#[must_use = "a try does nothing unless it is awaited"]
pub struct TryAcquire {
    acquire: Acquire,
}

impl TryAcquire {
    /// As [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.acquire = self.acquire.lease(lease);
        self
    }

    /// As [`Acquire::auto_extend`].
    pub fn auto_extend(mut self, extend: bool) -> Self {
        self.acquire = self.acquire.auto_extend(extend);
        self
    }
}

impl IntoFuture for TryAcquire {
    type Output = Result<Option<Ticket>>;
    type IntoFuture = Trying;

    fn into_future(self) -> Trying {
        Trying(self.acquire.into_future())
    }
}

/// What awaiting a [`TryAcquire`] awaits. Dropped, it cancels.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Trying(Acquiring);

impl Future for Trying {
    type Output = Result<Option<Ticket>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(held_is_none)
    }
}

/// An adoption that is put together; awaiting it asks for the ticket.
#[must_use = "an adoption does nothing unless it is awaited"]
pub struct Adopt {
    keeper: Arc<Keeper>,
    reference: String,
    options: AcquireOptions,
    error: Option<Error>,
}

impl Adopt {
    /// As [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration) -> Self {
        set(&mut self.options.lease_ms, &mut self.error, positive_ms("the lease", lease));
        self
    }

    /// As [`Acquire::auto_extend`].
    pub fn auto_extend(mut self, extend: bool) -> Self {
        self.options.auto_extend = Some(extend);
        self
    }
}

impl IntoFuture for Adopt {
    type Output = Result<Ticket>;
    type IntoFuture = Acquiring;

    fn into_future(self) -> Acquiring {
        let command = match self.error {
            Some(error) => Err(error),
            None => Ok(Command::Adopt { reference: self.reference, options: self.options }),
        };
        Acquiring(Calling::new(self.keeper, command))
    }
}
