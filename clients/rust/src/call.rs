//! Calls as futures.

use crate::core::effects::{Call, Outcome, Value};
use crate::core::requests::RequestKey;
use crate::core::tickets::TicketKey;
use crate::core::Command;
use crate::driver::Driver;
use crate::errors::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Keeps a client going. When the last one is gone the client closes by itself.
pub(crate) struct Keeper {
    pub(crate) driver: Arc<Driver>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.driver.enter(|inner, now_ns| inner.core.close(None, now_ns));
    }
}

/// One call. It begins when it is polled first; dropped after that and before its end, it is given up.
pub(crate) struct Calling {
    keeper: Arc<Keeper>,
    state: State,
}

enum State {
    New(Command),
    Waiting { call: Call, request: Option<RequestKey>, undo: Undo },
    Failed(Error),
    Ended,
}

/// What becomes of a call that is dropped.
#[derive(Clone, Copy)]
enum Undo {
    /// It goes on without anybody waiting.
    Nothing,
    Request,
    HandOver(TicketKey),
}

impl Calling {
    pub(crate) fn new(keeper: Arc<Keeper>, command: Result<Command, Error>) -> Self {
        let state = command.map_or_else(State::Failed, State::New);
        Self { keeper, state }
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    fn begin(&mut self, command: Command) -> Result<(), Error> {
        let undo = match &command {
            Command::HandOver { ticket } => Undo::HandOver(*ticket),
            Command::Open | Command::Close | Command::Release { .. } => Undo::Nothing,
            Command::Acquire { .. } | Command::Adopt { .. } | Command::Ping | Command::Extend { .. } => Undo::Request,
        };
        let call = Call::default();
        let request = self.keeper.driver.enter(|inner, now_ns| inner.core.start(command, &call, now_ns))?;
        self.state = State::Waiting { call, request, undo };
        Ok(())
    }
}

impl Future for Calling {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::New(command) => {
                if let Err(error) = self.begin(command) {
                    return Poll::Ready(Err(error));
                }
            }
            State::Failed(error) => return Poll::Ready(Err(error)),
            waiting => self.state = waiting,
        }
        let State::Waiting { call, .. } = &self.state else { panic!("a call was polled after its end") };
        let polled = call.poll(cx);
        if polled.is_ready() {
            self.state = State::Ended;
        }
        polled
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let State::Waiting { call, request, undo } = &self.state else { return };
        self.keeper.driver.enter(|inner, now_ns| match *undo {
            Undo::Nothing => {}
            Undo::Request => {
                let outcome = call.take();
                inner.core.abandon(*request, outcome, now_ns);
            }
            Undo::HandOver(ticket) => {
                if !matches!(call.take(), Some(Err(_))) {
                    inner.core.abandon_hand_over(ticket, call, now_ns);
                }
            }
        });
    }
}

/// For calls whose good outcome has nothing in it.
pub(crate) async fn nothing(calling: Calling) -> Result<(), Error> {
    calling.await.map(|_| ())
}

/// For calls whose good outcome is a reference.
pub(crate) async fn reference(calling: Calling) -> Result<String, Error> {
    match calling.await? {
        Value::Reference(reference) => Ok(reference),
        Value::Nothing | Value::Ticket(_) => unreachable!("a hand-over gives a reference"),
    }
}
