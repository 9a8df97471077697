//! Extending and handing over.

use super::arguments::{format_reference, quoted};
use super::effects::{Call, Effect, Value};
use super::giving_up::duration;
use super::requests::{Purpose, Request, RequestKey, NS_PER_MS};
use super::tickets::{State, TicketKey};
use super::Core;
use crate::errors::{Error, Kind, LostReason};
use crate::events::Event;
use crate::wire::constants_gen::{CLIENT_EXTEND_RETRY_MS, OP_EXTEND};
use crate::wire::requests as frames;

impl Core {
    /// A caller's extend; it waits for one that is under way. Without a lease: the ticket's own.
    pub(super) fn extend(&mut self, ticket: TicketKey, lease_ms: Option<u32>, call: Call, now_ns: i64) -> RequestKey {
        let lease_ms = lease_ms.unwrap_or(self.tickets[ticket].lease_ms);
        let key = self.new_extend(ticket, lease_ms, Purpose::Caller, Some(call), now_ns);
        if let Some(error) = self.not_usable(ticket, now_ns) {
            self.fail(key, error);
        } else if self.tickets[ticket].extending.is_some() {
            self.tickets[ticket].deferred.push_back(key);
        } else {
            self.issue_extend(ticket, key, now_ns);
        }
        key
    }

    fn new_extend(
        &mut self,
        ticket: TicketKey,
        lease_ms: u32,
        purpose: Purpose,
        call: Option<Call>,
        now_ns: i64,
    ) -> RequestKey {
        let mut request = Request::new(OP_EXTEND, call, now_ns);
        request.ticket = Some(ticket);
        request.lease_ms = lease_ms;
        request.purpose = purpose;
        self.tickets[ticket].uses += 1;
        self.requests.insert(request)
    }

    fn not_usable(&mut self, key: TicketKey, now_ns: i64) -> Option<Error> {
        if self.lose_if_over(key, now_ns) {
            return Some(self.lost_error(key));
        }
        let ticket = &self.tickets[key];
        let keys = || quoted(&ticket.shown_keys);
        match ticket.state {
            State::ClientClosed => Some(self.ticket_closed(key)),
            State::Held if ticket.hand_over.is_none() => None,
            State::Held => Some(Error::new(Kind::NotHeld, format!("the ticket for {} is handed over", keys()))),
            state => Some(Error::new(Kind::NotHeld, format!("the ticket for {} is {}", keys(), state.in_words()))),
        }
    }

    pub(super) fn send_extend(&mut self, ticket: TicketKey, lease_ms: u32, purpose: Purpose, now_ns: i64) {
        let key = self.new_extend(ticket, lease_ms, purpose, None, now_ns);
        self.issue_extend(ticket, key, now_ns);
    }

    fn issue_extend(&mut self, ticket: TicketKey, key: RequestKey, now_ns: i64) {
        if self.tickets[ticket].fake {
            let lease_ms = self.requests[key].lease_ms;
            self.requests[key].queued_ns = now_ns;
            self.extend_answered(key, lease_ms, now_ns);
            return;
        }
        let id = self.take_id();
        let bound_ns = self.requests[key].called_ns + self.reply_timeout_ns();
        let held = &mut self.tickets[ticket];
        held.extending = Some(key);
        let request = &mut self.requests[key];
        request.id = id;
        request.frame = frames::extend(id, held.token, request.lease_ms, &held.keys[0]);
        self.set_bound(key, bound_ns);
        self.issue(key, now_ns);
    }

    /// The ticket that an extend is about, now that the extend has ended.
    fn extend_ended(&mut self, key: RequestKey) -> Option<TicketKey> {
        let ticket = self.requests[key].ticket?;
        let held = &mut self.tickets[ticket];
        if held.extending == Some(key) {
            held.extending = None;
        }
        Some(ticket)
    }

    /// X: the lease goes on.
    pub(super) fn extend_answered(&mut self, key: RequestKey, lease_ms: u32, now_ns: i64) {
        let Some(ticket) = self.extend_ended(key) else { return };
        let queued_ns = self.requests[key].queued_ns;
        if self.requests[key].settled {
            self.extend_settled(ticket, now_ns);
            return;
        }
        if self.tickets[ticket].state == State::Confirming {
            self.prolong(ticket, queued_ns, lease_ms);
            self.settle(key, Ok(Value::Nothing));
            self.hand_out(ticket, now_ns);
            return;
        }
        if self.lose_if_over(ticket, now_ns) {
            let error = self.lost_error(ticket);
            self.fail(key, error);
            return;
        }
        if self.tickets[ticket].state == State::Held {
            self.prolong(ticket, queued_ns, lease_ms);
            let remaining = duration(self.remaining_ns(ticket, now_ns));
            let held = &self.tickets[ticket];
            let (keys, token) = (held.shown_keys.clone(), held.token);
            self.notify(|| Event::Extended { keys: keys.to_vec(), token, remaining });
        }
        self.settle(key, Ok(Value::Nothing));
        self.extend_settled(ticket, now_ns);
    }

    /// N to an extend: the ticket is gone.
    pub(super) fn extend_refused(&mut self, key: RequestKey, now_ns: i64) {
        let Some(ticket) = self.extend_ended(key) else { return };
        if self.requests[key].settled {
            self.extend_settled(ticket, now_ns);
            return;
        }
        if matches!(self.tickets[ticket].state, State::Held | State::Confirming) {
            self.tickets[ticket].gone = true;
            self.lose(ticket, LostReason::NotHeld);
        }
        let error = if self.tickets[ticket].state == State::Lost {
            self.lost_error(ticket)
        } else {
            let keys = quoted(&self.tickets[ticket].shown_keys);
            Error::new(Kind::NotHeld, format!("the ticket for {keys} was released"))
        };
        self.fail(key, error);
    }

    /// An extend ended without X or N; where the client needs it, a new one follows.
    pub(super) fn extend_failed(&mut self, key: RequestKey, error: Error, now_ns: i64) {
        self.fail(key, error);
        let purpose = self.requests[key].purpose;
        let was_extending = self.requests[key].ticket.is_some_and(|ticket| self.tickets[ticket].extending == Some(key));
        let Some(ticket) = self.extend_ended(key) else { return };
        let held = &mut self.tickets[ticket];
        let needed = held.auto_extend || purpose != Purpose::Caller;
        if was_extending && needed && matches!(held.state, State::Held | State::Confirming) {
            held.extend_ns = now_ns + i64::from(CLIENT_EXTEND_RETRY_MS) * NS_PER_MS;
        }
        self.extend_settled(ticket, now_ns);
    }

    /// Nothing is unanswered now, so go on with what had to wait for that.
    fn extend_settled(&mut self, key: TicketKey, now_ns: i64) {
        let ticket = &mut self.tickets[key];
        if ticket.extending.is_none() && ticket.state == State::Held {
            if let Some(call) = ticket.hand_over.take() {
                self.finish_hand_over(key, call);
            }
        }
        while self.tickets[key].extending.is_none() {
            let Some(deferred) = self.tickets[key].deferred.pop_front() else { break };
            if self.requests.get(deferred).is_none_or(|request| request.settled) {
                continue;
            }
            let late = now_ns >= self.requests[deferred].called_ns + self.reply_timeout_ns();
            let error = self
                .not_usable(key, now_ns)
                .or_else(|| late.then(|| Error::no_answer("an extend before this one had no answer in time")));
            match error {
                Some(error) => self.fail(deferred, error),
                None => self.issue_extend(key, deferred, now_ns),
            }
        }
        self.set_ticket_due(key);
    }

    // Handing over.

    /// Ends this client's part in the ticket, once nothing about it is unanswered.
    pub(super) fn hand_over(&mut self, key: TicketKey, call: Call, now_ns: i64) {
        if let Some(error) = self.not_usable(key, now_ns) {
            self.settle_call(Some(call), Err(error));
        } else if self.tickets[key].extending.is_some() {
            self.tickets[key].hand_over = Some(call);
        } else {
            self.finish_hand_over(key, call);
        }
    }

    /// The caller never saw the reference. The ticket stays here, or comes back.
    pub(super) fn stop_hand_over(&mut self, key: TicketKey, call: &Call, now_ns: i64) {
        let ticket = &mut self.tickets[key];
        if ticket.hand_over.as_ref().is_some_and(|waiting| std::sync::Arc::ptr_eq(waiting, call)) {
            ticket.hand_over = None;
        } else if ticket.state == State::HandedOver && !self.held.contains_key(&ticket.token) {
            ticket.state = State::Held;
            if ticket.auto_extend {
                ticket.extend_ns = now_ns;
            }
            self.take_in(key);
            self.set_ticket_due(key);
        }
    }

    fn finish_hand_over(&mut self, key: TicketKey, call: Call) {
        self.leave(key, State::HandedOver);
        let ticket = &self.tickets[key];
        let reference = format_reference(ticket.token, &ticket.keys[0]);
        self.effects.push(Effect::Settled(call, Ok(Value::Reference(reference))));
    }
}
