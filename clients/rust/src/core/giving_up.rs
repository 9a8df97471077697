//! Requests that end without an answer: cancelled, out of time, or in the way of a close.

use super::arguments::quoted;
use super::deadlines::{Owner, NEVER};
use super::effects::{Call, Outcome, Value};
use super::requests::{Purpose, Request, RequestKey, NS_PER_MS};
use super::tickets::State;
use super::Core;
use crate::errors::{Error, Kind};
use crate::events::{Event, Level};
use crate::wire::constants_gen::{CLIENT_WAIT_OVERRUN_MS, OP_CANCEL, OP_EXTEND, OP_RELEASE, WAIT_MS_TRY};
use crate::wire::requests as frames;
use std::time::Duration;

const OVERRUN_NS: i64 = CLIENT_WAIT_OVERRUN_MS as i64 * NS_PER_MS;

pub(super) fn duration(ns: i64) -> Duration {
    Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
}

impl Core {
    /// The caller of an acquire, extend, adoption or ping is gone. It leaves neither waiter nor ticket
    /// behind, however far the request has come. `outcome` is one that the caller did not get to see.
    pub(crate) fn abandon(&mut self, key: Option<RequestKey>, outcome: Option<Outcome>, now_ns: i64) {
        if let Some(Ok(Value::Ticket(grant))) = outcome {
            self.release_ticket(grant.ticket, None, now_ns);
            self.let_go(grant.ticket);
            return;
        }
        let Some(key) = key.filter(|key| self.requests.get(*key).is_some()) else { return };
        let request = &mut self.requests[key];
        request.call = None;
        let makes_a_ticket = request.is_acquire() || request.purpose == Purpose::Adopting;
        if let Some(ticket) = request.ticket.filter(|_| makes_a_ticket) {
            if matches!(self.tickets[ticket].state, State::Held | State::Confirming) {
                self.tickets[ticket].acquire = None;
                self.settle(key, Ok(Value::Nothing));
                self.release_ticket(ticket, None, now_ns);
            }
        } else if !request.settled {
            self.give_up(key, Error::new(Kind::Closed, "the caller gave up"), now_ns);
        }
    }

    /// The caller of a hand-over is gone. It never saw the reference, so the ticket stays here, or comes back.
    pub(crate) fn abandon_hand_over(&mut self, ticket: super::tickets::TicketKey, call: &Call, now_ns: i64) {
        if !self.is_closed() {
            self.stop_hand_over(ticket, call, now_ns);
        }
    }

    /// Settles a request without its answer, and undoes what it may have done.
    pub(super) fn give_up(&mut self, key: RequestKey, error: Error, now_ns: i64) {
        let request = &self.requests[key];
        match (request.op, request.ticket) {
            (OP_RELEASE, _) => self.release_ended(key, Some(error), now_ns),
            (OP_EXTEND, Some(_)) if request.purpose != Purpose::Adopting => {
                self.withdraw(key);
                self.extend_failed(key, error, now_ns);
            }
            (_, ticket) => {
                self.fail(key, error);
                self.withdraw(key);
                if let Some(ticket) = ticket {
                    self.tickets[ticket].acquire = None;
                    self.release_ticket(ticket, None, now_ns);
                } else if self.requests[key].is_acquire() && self.requests[key].sendings > 0 {
                    self.send_cancel(key, now_ns);
                }
            }
        }
    }

    pub(super) fn send_cancel(&mut self, acquire: RequestKey, now_ns: i64) {
        let mut request = Request::new(OP_CANCEL, None, now_ns);
        request.id = self.take_id();
        request.acquire_id = self.requests[acquire].id;
        request.frame = frames::cancel(request.id, request.acquire_id, &self.requests[acquire].keys[0]);
        let key = self.requests.insert(request);
        self.issue(key, now_ns);
    }

    pub(super) fn request_due(&mut self, key: RequestKey, now_ns: i64) {
        let Some(request) = self.requests.get(key) else { return };
        if now_ns >= request.warn_ns {
            let waited = Duration::from_secs(duration(now_ns - request.called_ns).as_secs());
            let text = format!("waiting for {} since {waited:?}", quoted(&request.shown_keys));
            self.requests[key].warn_ns = NEVER;
            self.log(Level::Warn, text);
        }
        let request = &mut self.requests[key];
        if now_ns < request.bound_ns {
            let due_ns = request.bound_ns.min(request.warn_ns);
            self.deadlines.set(&mut request.alarm, Owner::Request(key), due_ns);
        } else if request.op == OP_RELEASE {
            if let Some(ticket) = request.ticket {
                let error = self.lost_error(ticket);
                self.give_up(key, error, now_ns);
            }
        } else if !request.is_acquire() || request.wait_ms == WAIT_MS_TRY {
            let place = if self.link.is_ready() {
                self.link.address()
            } else if self.round_failure.is_empty() {
                "no server in reach".into()
            } else {
                self.round_failure.clone()
            };
            let within = duration(self.reply_timeout_ns());
            self.give_up(key, Error::no_answer(format!("no answer within {within:?} ({place})")), now_ns);
        } else if !self.end_wait_if_over(key, now_ns) {
            self.set_overrun(key, OVERRUN_NS);
        }
    }

    /// Ends a wait at its deadline, or a little later where the server can still do it.
    pub(super) fn end_wait_if_over(&mut self, key: RequestKey, now_ns: i64) -> bool {
        let request = &self.requests[key];
        if request.bound_ns == NEVER || request.wait_ms == WAIT_MS_TRY {
            return false;
        }
        let overrun_ns = if self.link.is_ready() { OVERRUN_NS } else { 0 };
        if now_ns < request.bound_ns + overrun_ns {
            return false;
        }
        let error = self.tell_timed_out(key, now_ns);
        self.give_up(key, error, now_ns);
        true
    }

    /// A wait ends without a grant; the error is what its caller gets.
    pub(super) fn tell_timed_out(&mut self, key: RequestKey, now_ns: i64) -> Error {
        let request = &self.requests[key];
        let (keys, waited) = (request.shown_keys.clone(), duration(now_ns - request.called_ns));
        let text = format!("the wait for {} ended after {} ms", quoted(&keys), request.wait_ms);
        self.notify(|| Event::TimedOut { keys: keys.to_vec(), waited });
        Error::new(Kind::Timeout, text)
    }
}
