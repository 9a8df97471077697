//! What the core asks its shell to do, and how it tells callers.

use super::tickets::TicketKey;
use super::urls::Endpoint;
use crate::errors::Error;
use crate::events::{Event, Level};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Nothing is left half done where a lock is held, so a panic of another thread does not matter here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the caller of an acquire or an adoption gets.
#[derive(Clone)]
pub(crate) struct Grant {
    pub(crate) ticket: TicketKey,
    pub(crate) token: u64,
    pub(crate) shown_keys: Arc<[Vec<u8>]>,
    pub(crate) lease_ms: u32,
    pub(crate) end: Arc<EndCell>,
}

/// How a call went well.
pub(crate) enum Value {
    Nothing,
    Ticket(Grant),
    Reference(String),
}

pub(crate) type Outcome = Result<Value, Error>;

/// A caller that waits. It gets exactly one outcome, unless it is abandoned.
#[derive(Default)]
pub(crate) struct CallCell(Mutex<CallState>);

pub(crate) type Call = Arc<CallCell>;

#[derive(Default)]
struct CallState {
    outcome: Option<Outcome>,
    /// Whether the caller may see the outcome: it comes behind the events that went before it.
    ready: bool,
    waker: Option<Waker>,
}

impl CallCell {
    /// Keeps the outcome, under the core's lock.
    pub(crate) fn keep(&self, outcome: Outcome) {
        lock(&self.0).outcome = Some(outcome);
    }

    /// Lets the caller see the outcome.
    pub(crate) fn deliver(&self) {
        let waker = {
            let mut state = lock(&self.0);
            state.ready = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.0);
        if state.ready {
            if let Some(outcome) = state.outcome.take() {
                return Poll::Ready(outcome);
            }
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The outcome that nobody will ask for any more, under the core's lock.
    pub(crate) fn take(&self) -> Option<Outcome> {
        let mut state = lock(&self.0);
        state.waker = None;
        state.outcome.take()
    }
}

/// How a ticket ended.
#[derive(Clone)]
pub(crate) enum End {
    Lost(Error),
    /// The client was closed before.
    Closed(Error),
}

/// What waits for the end of a ticket.
#[derive(Default)]
pub(crate) struct EndCell(Mutex<EndState>);

#[derive(Default)]
struct EndState {
    end: Option<End>,
    wakers: Vec<Waker>,
}

impl EndCell {
    pub(crate) fn deliver(&self, end: End) {
        let wakers = {
            let mut state = lock(&self.0);
            state.end = Some(end);
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<End> {
        let mut state = lock(&self.0);
        if let Some(end) = &state.end {
            return Poll::Ready(end.clone());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// In the order of the list.
pub(crate) enum Effect {
    /// A call has its outcome.
    Settled(Call, Outcome),
    /// Open a connection; report with `connected` or `disconnected` under this serial.
    Connect { serial: u64, endpoint: Endpoint },
    /// Drop the connection or attempt of this serial, without sending what is unsent.
    Disconnect { serial: u64 },
    /// A ticket is no longer held.
    Ended(Arc<EndCell>, End),
    /// Call the program's event hook.
    Notify(Event),
    /// Write a line to the log.
    Log(Level, String),
    /// The client has ended; let go of timers, tasks and sockets.
    Closed,
}
