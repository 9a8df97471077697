//! Tickets as a program sees them.

use crate::call::{nothing, reference, Calling, Keeper};
use crate::core::arguments::positive_ms;
use crate::core::effects::{End, EndCell, Grant};
use crate::core::Command;
use crate::errors::{Error, Kind, Result};
use crate::events::Level;
use std::future::{poll_fn, Future};
use std::ops::Deref;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A granted acquisition. What can be asked of it stands at [`TicketRef`].
///
/// Dropping a ticket queues its release and never blocks, inside a runtime and outside of one;
/// [`release`](Self::release) also says how it went.
///
/// A ticket is lost when its lease ends before it was extended (the program stood still, or no server was in
/// reach), or when an operator or another client released it. A process that was stopped can't notice in time; for
/// that there is the [token](TicketRef::token).
#[must_use = "a ticket that is dropped is released"]
#[derive(Debug)]
pub struct Ticket {
    handle: TicketRef,
}

/// A second handle on a ticket, for other tasks. It can do all that the ticket can, but dropping it does nothing.
///
/// ```no_run
/// # async fn example(client: ticketing::Client) -> ticketing::Result<()> {
/// let ticket = client.acquire("report").await?;
/// let handle = ticket.handle();
/// tokio::spawn(async move { println!("{}", handle.lost().await) });
/// ticket.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct TicketRef {
    shared: Arc<Shared>,
}

struct Shared {
    keeper: Arc<Keeper>,
    grant: Grant,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.keeper.driver.enter(|inner, _| inner.core.let_go(self.grant.ticket));
    }
}

impl Ticket {
    pub(crate) fn new(keeper: Arc<Keeper>, grant: Grant) -> Self {
        Self { handle: TicketRef { shared: Arc::new(Shared { keeper, grant }) } }
    }

    /// A handle on this ticket for other tasks.
    #[must_use]
    pub fn handle(&self) -> TicketRef {
        self.handle.clone()
    }

    /// Gives the key to the next waiter.
    ///
    /// Fails with [`Kind::Lost`] if the ticket was lost, or if there is no answer until it expires, and with
    /// [`Kind::Closed`] if its client was closed before. Dropped, the release goes on; only the waiting ends.
    pub async fn release(self) -> Result<()> {
        self.handle.release().await
    }

    /// Ends this client's part in the ticket and gives a reference that [`Client::adopt`](crate::Client::adopt)
    /// takes. The lease goes on and is not extended any more, so adopt before it ends. A reference is for one
    /// adopter; the server does not check this. It waits for an extend that is under way.
    ///
    /// Fails with [`Kind::Lost`] and [`Kind::NotHeld`]. Dropped before it ends, the ticket is released.
    pub async fn hand_over(self) -> Result<String> {
        self.handle.hand_over().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let shared = &self.handle.shared;
        shared.keeper.driver.enter(|inner, now_ns| inner.core.release_ticket(shared.grant.ticket, None, now_ns));
    }
}

impl Deref for Ticket {
    type Target = TicketRef;

    fn deref(&self) -> &TicketRef {
        &self.handle
    }
}

impl TicketRef {
    /// The key as the program gave it, without the client's prefix; of a set the first key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.shared.grant.shown_keys[0]
    }

    /// All keys, sorted by their bytes.
    #[must_use]
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.shared.grant.shown_keys
    }

    /// The fencing token: strictly rising over all grants of all keys. Send it along to what the lock
    /// protects, and let that refuse any token lower than the highest it has seen.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.shared.grant.token
    }

    /// The lease as it was asked for.
    #[must_use]
    pub fn lease(&self) -> Duration {
        Duration::from_millis(u64::from(self.shared.grant.lease_ms))
    }

    /// When the ticket is lost unless it is extended: a little earlier than the server's own time. It never goes
    /// back, but for the sleep of the machine, which an `Instant` may not count; [`remaining`](Self::remaining) does.
    #[must_use]
    pub fn expires_at(&self) -> Instant {
        let left_ns = self.enter(|inner, now_ns| inner.core.expires_ns(self.shared.grant.ticket) - now_ns);
        let left = Duration::from_nanos(left_ns.unsigned_abs());
        let now = Instant::now();
        if left_ns < 0 {
            now.checked_sub(left).unwrap_or(now)
        } else {
            now + left
        }
    }

    /// The time until [`expires_at`](Self::expires_at); 0 once the ticket is not held any more.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let left_ns = self.enter(|inner, now_ns| inner.core.remaining_ns(self.shared.grant.ticket, now_ns));
        Duration::from_nanos(u64::try_from(left_ns).unwrap_or(0))
    }

    /// None while the ticket is held, and after it was released or handed over. A [`Kind::Lost`] that says why
    /// once it is lost, as far as this client knows, and [`Kind::Closed`] if the client was closed meanwhile.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.enter(|inner, now_ns| inner.core.ticket_error(self.shared.grant.ticket, now_ns))
    }

    /// Whether the ticket is lost, as far as this client knows.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.error().is_some_and(|error| error.kind() == Kind::Lost)
    }

    /// Ends when the ticket is lost, with the [`Kind::Lost`] that says why. It does not end at a release, a
    /// hand-over or a close. It owns what it needs, so it may outlive the ticket and move to another task.
    #[must_use = "futures do nothing unless they are awaited"]
    pub fn lost(&self) -> Lost {
        self.enter(|inner, now_ns| inner.core.lose_if_over(self.shared.grant.ticket, now_ns));
        Lost { end: self.shared.grant.end.clone() }
    }

    /// Releases, as [`Ticket::release`] does. It may be called again, and then gives the same.
    pub async fn release(&self) -> Result<()> {
        nothing(self.calling(Ok(Command::Release { ticket: self.shared.grant.ticket }))).await
    }

    /// Makes the lease end that long from now, never earlier than it would; none is the ticket's own lease. A
    /// lease of a millisecond changes nothing and only asks whether the ticket is held.
    ///
    /// Fails with `Lost` (also when the ticket was lost before: then nothing is sent), `NotHeld` after a release or
    /// a hand-over, `Connection` after the reply timeout, `InvalidArgument`. One extend of a ticket is under way at a
    /// time, further ones wait. Dropped, it has happened or not.
    pub async fn extend(&self, lease: impl Into<Option<Duration>>) -> Result<()> {
        let lease_ms = lease.into().map(|lease| positive_ms("the lease", lease)).transpose();
        let ticket = self.shared.grant.ticket;
        nothing(self.calling(lease_ms.map(|lease_ms| Command::Extend { ticket, lease_ms }))).await
    }

    /// Hands the ticket over, as [`Ticket::hand_over`] does. Dropped before it ends, the ticket stays here.
    pub async fn hand_over(&self) -> Result<String> {
        reference(self.calling(Ok(Command::HandOver { ticket: self.shared.grant.ticket }))).await
    }

    fn calling(&self, command: Result<Command>) -> Calling {
        Calling::new(self.shared.keeper.clone(), command)
    }

    fn enter<T>(&self, call: impl FnOnce(&mut crate::driver::Inner, i64) -> T) -> T {
        self.shared.keeper.driver.enter(call)
    }

    /// The loss of the ticket, or the close of its client.
    async fn ended(&self) -> Error {
        match poll_fn(|cx| self.shared.grant.end.poll(cx)).await {
            End::Lost(error) | End::Closed(error) => error,
        }
    }
}

impl std::fmt::Debug for TicketRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<String> = self.keys().iter().map(|key| key.escape_ascii().to_string()).collect();
        f.debug_struct("Ticket").field("keys", &keys).field("token", &self.token()).finish_non_exhaustive()
    }
}

/// What [`TicketRef::lost`] gives.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Lost {
    end: Arc<EndCell>,
}

impl Future for Lost {
    type Output = Error;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        match self.end.poll(cx) {
            Poll::Ready(End::Lost(error)) => Poll::Ready(error),
            Poll::Ready(End::Closed(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Runs a body that holds a ticket, and releases.
pub(crate) async fn scope<T, E, F>(ticket: Ticket, body: impl FnOnce(TicketRef) -> F) -> std::result::Result<T, E>
where
    E: From<Error>,
    F: Future<Output = std::result::Result<T, E>>,
{
    let done = {
        let mut body = pin!(body(ticket.handle()));
        let mut ended = pin!(ticket.ended());
        poll_fn(|cx| {
            if let Poll::Ready(result) = body.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            ended.as_mut().poll(cx).map(Err)
        })
        .await
    };
    match done {
        Ok(result) => {
            let handle = ticket.handle();
            after_body(&handle, result, ticket.release().await)
        }
        Err(error) => Err(error.into()), // The ticket's drop sees to the release, if there is one to send.
    }
}

/// What a scope gives: an error of the body goes before one of the release.
pub(crate) fn after_body<T, E: From<Error>>(
    ticket: &TicketRef,
    result: std::result::Result<T, E>,
    released: Result<()>,
) -> std::result::Result<T, E> {
    match (result, released) {
        (Ok(value), Ok(())) => Ok(value),
        (Ok(_), Err(error)) => Err(error.into()),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(release)) => {
            let text = format!("{release}; the error of the body goes on");
            ticket.shared.keeper.driver.hooks().log(Level::Warn, &text);
            Err(error)
        }
    }
}
