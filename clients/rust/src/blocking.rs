//! The client for threads that block: the same calls, each of which waits where it is called.
//!
//! Each client has one thread of its own, which ends when the client is closed or dropped. Not for use inside of an
//! asynchronous runtime, whose threads must not block.
//!
//! ```no_run
//! # fn main() -> ticketing::Result<()> {
//! use std::time::Duration;
//! let client = ticketing::blocking::Client::connect("ticketing://127.0.0.1:5225")?;
//! let ticket = client.acquire("report").wait_timeout(Duration::from_secs(5)).wait()?;
//! println!("token {}", ticket.token());
//! ticket.release()?;
//! client.close();
//! # Ok(())
//! # }
//! ```

use crate::client;
use crate::errors::{Error, Kind, Result};
use crate::options::Builder;
use crate::ticket::{self, after_body};
use std::future::{Future, IntoFuture};
use std::pin::{pin, Pin};
use std::sync::{mpsc, Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future here; none when the time is over first.
fn wait_until<F: Future>(mut future: Pin<&mut F>, deadline: Option<Instant>) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => thread::park(),
            Some(Duration::ZERO) => return None,
            Some(left) => thread::park_timeout(left),
        }
    }
}

fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Some(output) = wait_until(future.as_mut(), None) {
            return output;
        }
    }
}

/// As [`crate::Client`], for threads that block. Clones are handles of the same client; any thread may use one.
#[derive(Clone, Debug)]
pub struct Client {
    client: client::Client,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Client {
    /// Options for a client: see [`Builder::connect_blocking`].
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Makes a client without options but the URL, and connects it.
    pub fn connect(url: impl Into<String>) -> Result<Self> {
        Self::open(Builder::new().url(url))
    }

    pub(crate) fn open(builder: Builder) -> Result<Self> {
        let (tell, told) = mpsc::channel();
        let started = thread::Builder::new().name("ticketing".into()).spawn(move || run(builder, &tell));
        let thread = started.map_err(|error| cannot("start a thread", &error))?;
        match told.recv() {
            Ok(Ok(client)) => Ok(Self { client, thread: Arc::new(Mutex::new(Some(thread))) }),
            Ok(Err(error)) => {
                let _ = thread.join(); // It has nothing more to say.
                Err(error)
            }
            Err(_) => Err(Error::new(Kind::Connection, "the client's thread ended early")),
        }
    }

    /// As [`crate::Client::acquire`]; [`Acquire::wait`] asks for the key.
    pub fn acquire(&self, key: impl Into<Vec<u8>>) -> Acquire {
        Acquire { acquire: self.client.acquire(key) }
    }

    /// As [`crate::Client::acquire_set`].
    pub fn acquire_set<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) -> Acquire {
        Acquire { acquire: self.client.acquire_set(keys) }
    }

    /// As [`crate::Client::try_acquire`]; [`TryAcquire::call`] asks for the key.
    pub fn try_acquire(&self, key: impl Into<Vec<u8>>) -> TryAcquire {
        TryAcquire { acquire: self.client.try_acquire(key) }
    }

    /// Acquires a key, runs a body that holds it, and releases: see [`Acquire::with_ticket`].
    pub fn with_ticket<T, E: From<Error>>(
        &self,
        key: impl Into<Vec<u8>>,
        body: impl FnOnce(&Ticket) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        self.acquire(key).with_ticket(body)
    }

    /// As [`crate::Client::adopt`]; [`Adopt::call`] asks for the ticket.
    pub fn adopt(&self, reference: impl Into<String>) -> Adopt {
        Adopt { adopt: self.client.adopt(reference) }
    }

    /// As [`crate::Client::ping`].
    pub fn ping(&self) -> Result<()> {
        wait(self.client.ping())
    }

    /// As [`crate::Client::close`]. The client's thread has ended when this returns.
    pub fn close(&self) {
        wait(self.client.close());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join(); // A panic there was a hook's, and is logged.
        }
    }
}

/// What the client's thread does: it moves the client until the client has ended.
fn run(builder: Builder, tell: &mpsc::Sender<Result<client::Client>>) {
    let runtime =
        match tokio::runtime::Builder::new_current_thread().enable_all().thread_keep_alive(Duration::ZERO).build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = tell.send(Err(cannot("make a runtime", &error)));
                return;
            }
        };
    runtime.block_on(async {
        match builder.connect().await {
            Err(error) => {
                let _ = tell.send(Err(error));
            }
            Ok(client) => {
                let driver = client.keeper().driver.clone();
                let _ = tell.send(Ok(client));
                driver.tasks_ended().await;
            }
        }
    });
}

fn cannot(what: &str, error: &std::io::Error) -> Error {
    Error::new(Kind::Connection, format!("the client could not {what}: {error}"))
}

/// As [`crate::Acquire`], for threads that block.
#[must_use = "an acquire does nothing until it is waited for"]
pub struct Acquire {
    acquire: client::Acquire,
}

impl Acquire {
    /// As [`crate::Acquire::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        Self { acquire: self.acquire.lease(lease) }
    }

    /// As [`crate::Acquire::wait_timeout`].
    pub fn wait_timeout(self, wait: Duration) -> Self {
        Self { acquire: self.acquire.wait_timeout(wait) }
    }

    /// As [`crate::Acquire::wait_forever`].
    pub fn wait_forever(self) -> Self {
        Self { acquire: self.acquire.wait_forever() }
    }

    /// As [`crate::Acquire::auto_extend`].
    pub fn auto_extend(self, extend: bool) -> Self {
        Self { acquire: self.acquire.auto_extend(extend) }
    }

    /// Asks for the key and waits for it.
    pub fn wait(self) -> Result<Ticket> {
        wait(self.acquire.into_future()).map(|ticket| Ticket { ticket })
    }

    /// Acquires, runs a body that holds the ticket, and releases.
    ///
    /// A thread can't be stopped from outside: the body asks [`Ticket::is_lost`] where that matters, and a loss is
    /// reported at the end. An error of the body goes before one of the release, which is logged then. A panic of the
    /// body queues the release.
    pub fn with_ticket<T, E: From<Error>>(
        self,
        body: impl FnOnce(&Ticket) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let ticket = self.wait()?;
        let result = body(&ticket);
        let handle = ticket.ticket.handle();
        after_body(&handle, result, ticket.release())
    }
}

/// As [`crate::TryAcquire`], for threads that block.
#[must_use = "a try does nothing until it is called"]
pub struct TryAcquire {
    acquire: client::TryAcquire,
}

impl TryAcquire {
    /// As [`crate::Acquire::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        Self { acquire: self.acquire.lease(lease) }
    }

    /// As [`crate::Acquire::auto_extend`].
    pub fn auto_extend(self, extend: bool) -> Self {
        Self { acquire: self.acquire.auto_extend(extend) }
    }

    /// Asks for the key; gives none where it is held.
    pub fn call(self) -> Result<Option<Ticket>> {
        wait(self.acquire.into_future()).map(|ticket| ticket.map(|ticket| Ticket { ticket }))
    }
}

/// As [`crate::Adopt`], for threads that block.
#[must_use = "an adoption does nothing until it is called"]
pub struct Adopt {
    adopt: client::Adopt,
}

impl Adopt {
    /// As [`crate::Acquire::lease`].
    pub fn lease(self, lease: Duration) -> Self {
        Self { adopt: self.adopt.lease(lease) }
    }

    /// As [`crate::Acquire::auto_extend`].
    pub fn auto_extend(self, extend: bool) -> Self {
        Self { adopt: self.adopt.auto_extend(extend) }
    }

    /// Asks for the ticket.
    pub fn call(self) -> Result<Ticket> {
        wait(self.adopt.into_future()).map(|ticket| Ticket { ticket })
    }
}

/// As [`crate::Ticket`], for threads that block. Dropping it queues its release and does not block.
#[must_use = "a ticket that is dropped is released"]
#[derive(Debug)]
pub struct Ticket {
    ticket: ticket::Ticket,
}

impl Ticket {
    /// A handle on this ticket for other threads.
    #[must_use]
    pub fn handle(&self) -> TicketRef {
        TicketRef { handle: self.ticket.handle() }
    }

    /// As [`crate::Ticket::release`].
    pub fn release(self) -> Result<()> {
        wait(self.ticket.release())
    }

    /// As [`crate::Ticket::hand_over`].
    pub fn hand_over(self) -> Result<String> {
        wait(self.ticket.hand_over())
    }

    /// As [`crate::TicketRef::key`].
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.ticket.key()
    }

    /// As [`crate::TicketRef::keys`].
    #[must_use]
    pub fn keys(&self) -> &[Vec<u8>] {
        self.ticket.keys()
    }

    /// As [`crate::TicketRef::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.ticket.token()
    }

    /// As [`crate::TicketRef::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.ticket.remaining()
    }

    /// As [`crate::TicketRef::error`].
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.ticket.error()
    }

    /// As [`crate::TicketRef::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.ticket.is_lost()
    }

    /// As [`TicketRef::wait_lost`].
    #[must_use]
    pub fn wait_lost(&self, timeout: Duration) -> Option<Error> {
        self.handle().wait_lost(timeout)
    }

    /// As [`crate::TicketRef::extend`].
    pub fn extend(&self, lease: impl Into<Option<Duration>>) -> Result<()> {
        wait(self.ticket.extend(lease))
    }
}

/// As [`crate::TicketRef`], for threads that block.
#[derive(Clone, Debug)]
pub struct TicketRef {
    handle: ticket::TicketRef,
}

impl TicketRef {
    /// Waits until the ticket is lost; none where that does not happen in this time.
    #[must_use]
    pub fn wait_lost(&self, timeout: Duration) -> Option<Error> {
        wait_until(pin!(self.handle.lost()), Instant::now().checked_add(timeout))
    }

    /// As [`crate::TicketRef::release`]; it may be called again, and then gives the same.
    pub fn release(&self) -> Result<()> {
        wait(self.handle.release())
    }

    /// As [`crate::TicketRef::extend`].
    pub fn extend(&self, lease: impl Into<Option<Duration>>) -> Result<()> {
        wait(self.handle.extend(lease))
    }

    /// As [`crate::TicketRef::hand_over`].
    pub fn hand_over(&self) -> Result<String> {
        wait(self.handle.hand_over())
    }
}

impl std::ops::Deref for TicketRef {
    type Target = ticket::TicketRef;

    fn deref(&self) -> &ticket::TicketRef {
        &self.handle
    }
}
