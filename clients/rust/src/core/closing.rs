//! Opening, closing, and what the link tells of servers that can't be reached.

use super::deadlines::Owner;
use super::effects::{Call, Effect};
use super::requests::{RequestKey, NS_PER_MS};
use super::tickets::{State, TicketKey};
use super::Core;
use crate::errors::{Error, Kind, LostReason};
use crate::events::{Event, Level};
use crate::wire::constants_gen::{CLIENT_CLOSE_TIMEOUT_MS, ERROR_BAD_FRAME, ERROR_TAKEN_OVER, OP_EXTEND, OP_RELEASE};

/// An acquire that waits or a ticket that is held when the client closes.
enum OpenEnd {
    Acquire(RequestKey),
    Ticket(TicketKey),
}

impl Core {
    /// Connects; it settles once a server serves this client, or a round came to nothing.
    pub(crate) fn open(&mut self, call: Call, now_ns: i64) {
        self.opening = Some(call);
        self.opening_until_ns = now_ns + i64::from(self.settings.connect_for_ms) * NS_PER_MS;
        self.start_link(now_ns);
    }

    /// Cancels what waits, releases what is held, and ends. Closing again waits for the same.
    pub(crate) fn close(&mut self, call: Option<Call>, now_ns: i64) {
        if self.is_closed() && !self.is_closing {
            self.settle_call(call, Ok(()));
            return;
        }
        self.closing.extend(call);
        if self.is_closing {
            return;
        }
        self.closed_because = Some("the client is closed".into());
        self.is_closing = true;
        let opening = self.opening.take();
        self.settle_call(opening, Err(Error::new(Kind::Closed, "the client is closed")));
        self.write_off(now_ns);
        let due_ns = now_ns + i64::from(CLIENT_CLOSE_TIMEOUT_MS) * NS_PER_MS;
        self.deadlines.set(&mut self.close_alarm, Owner::Close, due_ns);
        self.finish_close_if_answered(now_ns);
    }

    /// Queues in one go, by acquire id, C for each acquire that waits and R for each ticket held.
    fn write_off(&mut self, now_ns: i64) {
        let error = Error::new(Kind::Closed, "the client was closed meanwhile");
        let mut ends = Vec::new();
        for key in self.in_order() {
            let request = &self.requests[key];
            if request.is_acquire() && !request.settled && request.sendings > 0 {
                ends.push((request.id, OpenEnd::Acquire(key)));
            }
            if !request.is_always_resent() {
                self.fail(key, error.clone());
                self.withdraw(key);
            }
        }
        for key in self.held.values().copied().collect::<Vec<_>>() {
            if let Some(acquire) = self.tickets[key].acquire.take() {
                self.fail(acquire, error.clone());
            }
            ends.push((self.tickets[key].acquire_id, OpenEnd::Ticket(key)));
        }
        if !self.settings.release_on_close || !self.link.is_ready() {
            self.end_tickets(None);
            return;
        }
        ends.sort_unstable_by_key(|(id, _)| *id);
        for (_, end) in ends {
            match end {
                OpenEnd::Acquire(key) => self.send_cancel(key, now_ns),
                OpenEnd::Ticket(key) => self.release_ticket(key, None, now_ns),
            }
        }
    }

    pub(super) fn finish_close_if_answered(&mut self, now_ns: i64) {
        let resent = |key: &RequestKey| self.requests[*key].is_always_resent();
        if self.is_closing && !(self.link.is_ready() && self.unanswered.values().any(resent)) {
            self.finish_close(now_ns);
        }
    }

    pub(super) fn finish_close(&mut self, now_ns: i64) {
        self.is_closing = false;
        self.deadlines.clear(&mut self.close_alarm);
        self.end("the client is closed", None, now_ns);
        for call in std::mem::take(&mut self.closing) {
            self.settle_call(Some(call), Ok(()));
        }
    }

    /// Nothing works from here on; every call that still waits fails with `closed`.
    pub(crate) fn end(&mut self, because: &str, reason: Option<LostReason>, now_ns: i64) {
        self.closed_because = Some(because.to_owned());
        let error = Error::new(Kind::Closed, because);
        for key in self.held.values().copied().collect::<Vec<_>>() {
            if let Some(acquire) = self.tickets[key].acquire {
                self.fail(acquire, error.clone());
            }
        }
        self.end_tickets(reason);
        self.settle_unanswered(&error, now_ns);
        self.close_link();
        self.effects.push(Effect::Closed);
    }

    /// The runtime that moves this client is gone: whoever still waits learns of it.
    pub(crate) fn abort(&mut self, now_ns: i64) {
        if self.is_closed() && !self.is_closing {
            return;
        }
        let opening = self.opening.take();
        self.settle_call(opening, Err(Error::new(Kind::Closed, "the runtime of the client has ended")));
        self.is_closing = false;
        self.end("the runtime of the client has ended", None, now_ns);
        for call in std::mem::take(&mut self.closing) {
            self.settle_call(Some(call), Ok(()));
        }
    }

    /// Every unanswered request has this error, and none is sent again.
    fn settle_unanswered(&mut self, error: &Error, now_ns: i64) {
        for key in self.in_order() {
            let id = self.requests[key].id;
            self.forget(id);
            self.deadlines.clear(&mut self.requests[key].alarm);
            let request = &self.requests[key];
            match request.op {
                OP_RELEASE if !request.settled => self.release_ended(key, Some(error.clone()), now_ns),
                OP_EXTEND if request.ticket.is_some() => self.extend_failed(key, error.clone(), now_ns),
                _ => self.fail(key, error.clone()),
            }
        }
    }

    /// The client ends. Its tickets are lost with it where there is a reason, else just closed.
    fn end_tickets(&mut self, reason: Option<LostReason>) {
        for key in self.expired.all() {
            self.tickets[key].gone = true;
        }
        for key in self.held.values().copied().collect::<Vec<_>>() {
            if let Some(reason) = reason {
                self.tickets[key].gone = true;
                self.lose(key, reason);
            } else {
                self.leave(key, State::ClientClosed);
                let error = self.ticket_closed(key);
                self.fail_waiting(key, &error);
            }
        }
    }

    // What the link tells.

    /// Sends what is unanswered again, then asks about the tickets that are held.
    pub(super) fn link_is_ready(&mut self, now_ns: i64) {
        let address = self.link.address();
        self.round_failure.clear();
        self.log(Level::Debug, format!("connected to {address}"));
        self.notify(|| Event::Connected { address });
        let opening = self.opening.take();
        self.settle_call(opening, Ok(()));
        self.queue_again(now_ns);
        self.ask_about_tickets(now_ns);
    }

    /// The connection is gone. What was given up is forgotten, waits that are over end.
    pub(super) fn link_is_down(&mut self, reason: &str, now_ns: i64) {
        let address = self.link.address();
        self.log(Level::Info, format!("disconnected from {address}: {reason}"));
        self.notify(|| Event::Disconnected { address, reason: reason.to_owned() });
        self.forget_given_up();
        if self.is_closing {
            self.finish_close(now_ns);
            return;
        }
        let confirming = self.held.values().filter_map(|key| self.tickets[*key].acquire);
        let waiting: Vec<RequestKey> = self.unanswered.values().copied().chain(confirming).collect();
        for key in waiting {
            if self.requests[key].is_acquire() && !self.requests[key].settled {
                self.end_wait_if_over(key, now_ns);
            }
        }
    }

    /// Whether to go on with the next round.
    pub(super) fn round_failed(&mut self, error: &Error, now_ns: i64) -> bool {
        if self.opening.is_some() {
            if error.kind() != Kind::Auth && !self.link.next_round_is_late(self.opening_until_ns) {
                return true;
            }
            let opening = self.opening.take();
            self.settle_call(opening, Err(error.clone()));
            self.end(&format!("the client could not be opened: {error}"), None, now_ns);
            return false;
        }
        let level = if self.round_failure.is_empty() { Level::Warn } else { Level::Debug };
        self.round_failure = error.to_string();
        self.log(level, error.text());
        if error.kind() == Kind::Auth {
            self.settle_unanswered(error, now_ns);
            return false;
        }
        true
    }

    /// The server ends this connection and says why.
    pub(super) fn link_is_refused(&mut self, code: u8, text: &str, now_ns: i64) {
        if code == ERROR_TAKEN_OVER {
            self.log(Level::Warn, text);
            self.end(&format!("a newer client took over: {text}"), Some(LostReason::TakenOver), now_ns);
            return;
        }
        if code == ERROR_BAD_FRAME {
            self.settle_unanswered(&Error::new(Kind::Protocol, text), now_ns);
        }
        self.reconnect(text, now_ns);
    }
}
