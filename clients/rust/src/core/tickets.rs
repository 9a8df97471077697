//! Tickets: how they begin, how long they last, and how they are lost.

use super::arguments::quoted;
use super::deadlines::{Alarm, Owner, NEVER};
use super::effects::{Call, Effect, End, EndCell, Grant, Value};
use super::giving_up::duration;
use super::requests::{Purpose, RequestKey, NS_PER_MS, NS_PER_S};
use super::slab::Key;
use super::Core;
use crate::errors::{Error, Kind, LostReason};
use crate::events::{Event, Level};
use crate::wire::constants_gen::{
    CLIENT_EXPIRY_MARGIN_PER_MILLE, CLIENT_EXTEND_DIVISOR, CLIENT_LONG_WAIT_DIVISOR, LEASE_MS_MIN,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Where a ticket is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Granted after so long a wait that an extend must first say what is left.
    Confirming,
    Held,
    Releasing,
    Released,
    Lost,
    HandedOver,
    /// The client ended.
    ClientClosed,
}

impl State {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Confirming => "not confirmed",
            Self::Held => "held",
            Self::Releasing => "being released",
            Self::Released => "released",
            Self::Lost => "lost",
            Self::HandedOver => "handed over",
            Self::ClientClosed => "closed",
        }
    }
}

/// How far the release of a ticket has come.
pub(crate) enum Release {
    NotAsked,
    Unanswered(Vec<Call>),
    Ended,
}

pub(crate) type TicketKey = Key<Held>;

/// A granted acquisition as the core sees it; a `Ticket` stands in front of it.
pub(crate) struct Held {
    /// How many refer to it: its caller, the table of held tickets, that of expired ones, requests.
    pub(super) uses: u32,
    pub(super) alarm: Alarm,
    pub(super) token: u64,
    pub(super) keys: Arc<[Vec<u8>]>,
    pub(super) shown_keys: Arc<[Vec<u8>]>,
    pub(super) lease_ms: u32,
    pub(super) auto_extend: bool,
    pub(super) acquire_id: u64,
    /// The acquire whose caller still waits for this ticket.
    pub(super) acquire: Option<RequestKey>,
    pub(super) granted_ns: i64,
    pub(super) expires_ns: i64,
    pub(super) state: State,
    pub(super) lost_reason: Option<LostReason>,
    /// When the client extends by itself next.
    pub(super) extend_ns: i64,
    /// The one extend that is unanswered; the deferred ones wait for it.
    pub(super) extending: Option<RequestKey>,
    pub(super) deferred: VecDeque<RequestKey>,
    pub(super) hand_over: Option<Call>,
    /// The server has said that the ticket ended, so nothing more is sent about it.
    pub(super) gone: bool,
    pub(super) release: Release,
    pub(super) release_error: Option<Error>,
    pub(super) end: Arc<EndCell>,
    /// A ticket without a server, for the tests of programs; what it would send has its answer at once.
    pub(super) fake: bool,
}

/// What two clocks may differ by over this time: 0.2 %, rounded up.
fn margin_ns(sum_ns: i64) -> i64 {
    (sum_ns * i64::from(CLIENT_EXPIRY_MARGIN_PER_MILLE) + 999) / 1000
}

impl Core {
    pub(super) fn lost_error(&self, key: TicketKey) -> Error {
        let ticket = &self.tickets[key];
        let reason = ticket.lost_reason.unwrap_or(LostReason::Expired);
        let keys = quoted(&ticket.shown_keys);
        Error::lost(reason, format!("the ticket for {keys} with token {} is lost ({reason})", ticket.token))
    }

    pub(super) fn ticket_closed(&self, key: TicketKey) -> Error {
        let keys = quoted(&self.tickets[key].shown_keys);
        Error::new(Kind::Closed, format!("the client of the ticket for {keys} is closed"))
    }

    // Beginning.

    /// An acquire was answered with A and its caller still wants it.
    pub(super) fn granted(&mut self, request: RequestKey, token: u64, waited_ms: u32, now_ns: i64) {
        let key = self.enter_ticket(token, request, now_ns);
        let ticket = &mut self.tickets[key];
        let lease_ns = i64::from(ticket.lease_ms) * NS_PER_MS;
        let waited_ns = i64::from(waited_ms) * NS_PER_MS;
        let margin = margin_ns(waited_ns + lease_ns);
        if margin * i64::from(CLIENT_LONG_WAIT_DIVISOR) > lease_ns {
            let lease_ms = ticket.lease_ms;
            self.send_extend(key, lease_ms, Purpose::Confirming, now_ns);
            self.set_overrun(request, 0); // The caller still waits.
            return;
        }
        let queued_ns = self.requests[request].queued_ns;
        ticket.expires_ns = queued_ns + waited_ns + lease_ns - margin;
        if ticket.auto_extend {
            ticket.extend_ns = queued_ns + waited_ns + lease_ns / i64::from(CLIENT_EXTEND_DIVISOR);
        }
        self.hand_out(key, now_ns);
    }

    /// The extend of an adoption was answered with X.
    pub(super) fn adopted(&mut self, request: RequestKey, lease_ms: u32, now_ns: i64) {
        let token = self.requests[request].token;
        if self.held.contains_key(&token) {
            self.fail(request, Error::new(Kind::NotHeld, format!("this client holds token {token} already")));
            return;
        }
        let key = self.enter_ticket(token, request, now_ns);
        let queued_ns = self.requests[request].queued_ns;
        self.prolong(key, queued_ns, lease_ms);
        self.hand_out(key, now_ns);
    }

    fn enter_ticket(&mut self, token: u64, request: RequestKey, now_ns: i64) -> TicketKey {
        let acquire = &self.requests[request];
        let key = self.tickets.insert(Held {
            uses: 1, // The request.
            alarm: Alarm::default(),
            token,
            keys: acquire.keys.clone(),
            shown_keys: acquire.shown_keys.clone(),
            lease_ms: acquire.lease_ms,
            auto_extend: acquire.auto_extend,
            acquire_id: acquire.id,
            acquire: Some(request),
            granted_ns: now_ns,
            expires_ns: 0,
            state: State::Confirming,
            lost_reason: None,
            extend_ns: NEVER,
            extending: None,
            deferred: VecDeque::new(),
            hand_over: None,
            gone: false,
            release: Release::NotAsked,
            release_error: None,
            end: Arc::default(),
            fake: false,
        });
        self.requests[request].ticket = Some(key);
        self.take_in(key);
        key
    }

    pub(super) fn take_in(&mut self, key: TicketKey) {
        let ticket = &mut self.tickets[key];
        ticket.uses += 1;
        self.held.insert(ticket.token, key);
        for wire_key in ticket.keys.iter() {
            self.held_keys.insert(wire_key.clone(), ticket.token);
        }
    }

    /// One refers to it less.
    pub(crate) fn let_go(&mut self, key: TicketKey) {
        let ticket = &mut self.tickets[key];
        ticket.uses -= 1;
        if ticket.uses == 0 {
            self.deadlines.clear(&mut ticket.alarm);
            self.tickets.remove(key);
        }
    }

    fn grant(&self, key: TicketKey) -> Grant {
        let ticket = &self.tickets[key];
        Grant {
            ticket: key,
            token: ticket.token,
            shown_keys: ticket.shown_keys.clone(),
            lease_ms: ticket.lease_ms,
            end: ticket.end.clone(),
        }
    }

    pub(super) fn hand_out(&mut self, key: TicketKey, now_ns: i64) {
        let ticket = &mut self.tickets[key];
        let Some(request) = ticket.acquire.take() else { return };
        if now_ns >= ticket.expires_ns {
            ticket.lost_reason = Some(LostReason::Expired);
            self.leave(key, State::Lost);
            let error = self.lost_error(key);
            self.fail(request, error);
            return;
        }
        ticket.state = State::Held;
        ticket.granted_ns = now_ns;
        self.set_ticket_due(key);
        let (ticket, waited) = (&self.tickets[key], duration(now_ns - self.requests[request].called_ns));
        let (keys, token) = (ticket.shown_keys.clone(), ticket.token);
        self.notify(|| Event::Granted { keys: keys.to_vec(), token, waited });
        let grant = self.grant(key);
        self.settle(request, Ok(Value::Ticket(grant)));
    }

    /// A ticket without a client or a server.
    pub(crate) fn fake_ticket(&mut self, token: u64, keys: Vec<Vec<u8>>, lease_ms: u32, now_ns: i64) -> Grant {
        let mut request = super::requests::Request::new(b'A', None, now_ns);
        request.keys = keys.into();
        request.shown_keys = request.keys.clone();
        request.lease_ms = lease_ms;
        let request = self.requests.insert(request);
        let key = self.enter_ticket(token, request, now_ns);
        self.tickets[key].fake = true;
        self.prolong(key, now_ns, lease_ms);
        self.hand_out(key, now_ns);
        self.tickets[key].uses += 1; // The caller's own handle.
        self.grant(key)
    }

    // Time.

    pub(super) fn set_ticket_due(&mut self, key: TicketKey) {
        let ticket = &mut self.tickets[key];
        let mut due_ns = if ticket.state == State::Held { ticket.expires_ns } else { NEVER };
        if ticket.extending.is_none() {
            due_ns = due_ns.min(ticket.extend_ns);
        }
        self.deadlines.set(&mut ticket.alarm, Owner::Ticket(key), due_ns);
    }

    /// Time for the next extend, or the end.
    pub(super) fn ticket_due(&mut self, key: TicketKey, now_ns: i64) {
        if self.tickets.get(key).is_none() || self.lose_if_over(key, now_ns) {
            return;
        }
        let ticket = &self.tickets[key];
        if now_ns >= ticket.extend_ns && ticket.extending.is_none() {
            self.extend_by_itself(key, now_ns);
        }
        self.set_ticket_due(key);
    }

    /// Whether the ticket is lost; one whose time has come is lost now.
    pub(crate) fn lose_if_over(&mut self, key: TicketKey, now_ns: i64) -> bool {
        let ticket = &self.tickets[key];
        if ticket.state == State::Held && now_ns >= ticket.expires_ns {
            self.remember_expired(key);
            self.lose(key, LostReason::Expired);
        }
        self.tickets[key].state == State::Lost
    }

    pub(super) fn prolong(&mut self, key: TicketKey, queued_ns: i64, lease_ms: u32) {
        let ticket = &mut self.tickets[key];
        let left_ns = i64::from(lease_ms) * NS_PER_MS;
        ticket.expires_ns = ticket.expires_ns.max(queued_ns + left_ns - margin_ns(left_ns));
        ticket.extend_ns = NEVER;
        if ticket.auto_extend {
            let third_ns = i64::from(ticket.lease_ms) * NS_PER_MS / i64::from(CLIENT_EXTEND_DIVISOR);
            ticket.extend_ns = queued_ns + third_ns;
        }
    }

    /// What is left of the lease; 0 once the ticket is not held any more.
    pub(crate) fn remaining_ns(&self, key: TicketKey, now_ns: i64) -> i64 {
        let ticket = &self.tickets[key];
        if ticket.state == State::Held {
            (ticket.expires_ns - now_ns).max(0)
        } else {
            0
        }
    }

    /// Until when the ticket was held at the longest, on the client's clock.
    pub(crate) fn expires_ns(&self, key: TicketKey) -> i64 {
        self.tickets[key].expires_ns
    }

    /// Why the ticket does not hold any more, unless it was released or handed over.
    pub(crate) fn ticket_error(&self, key: TicketKey, now_ns: i64) -> Option<Error> {
        let ticket = &self.tickets[key];
        match ticket.state {
            State::Lost => Some(self.lost_error(key)),
            State::Held if now_ns >= ticket.expires_ns => Some(self.lost_error(key)),
            State::ClientClosed => Some(self.ticket_closed(key)),
            _ => None,
        }
    }

    /// Sends, in token order, an extend for each held ticket that has none unanswered.
    pub(super) fn ask_about_tickets(&mut self, now_ns: i64) {
        for key in self.held.values().copied().collect::<Vec<_>>() {
            if !self.lose_if_over(key, now_ns) && self.tickets[key].extending.is_none() {
                self.extend_by_itself(key, now_ns);
                self.set_ticket_due(key);
            }
        }
    }

    fn extend_by_itself(&mut self, key: TicketKey, now_ns: i64) {
        let ticket = &mut self.tickets[key];
        ticket.extend_ns = NEVER;
        let (lease_ms, purpose) = match ticket.state {
            State::Confirming => (ticket.lease_ms, Purpose::Confirming),
            _ if ticket.auto_extend => (ticket.lease_ms, Purpose::Renewal),
            _ => (LEASE_MS_MIN, Purpose::Renewal),
        };
        self.send_extend(key, lease_ms, purpose, now_ns);
    }

    // Losing.

    /// D: the ticket ended without its client. An unknown token means nothing.
    pub(crate) fn ticket_dropped(&mut self, token: u64, reason: LostReason) {
        if let Some(&key) = self.held.get(&token) {
            self.tickets[key].gone = true;
            self.lose(key, reason);
        } else if let Some(key) = self.expired.take(token) {
            self.tickets[key].gone = true;
            self.let_go(key);
        }
    }

    /// The ticket is lost. Say so once, to everybody who waits for it or on it.
    pub(super) fn lose(&mut self, key: TicketKey, reason: LostReason) {
        self.tickets[key].lost_reason = Some(reason);
        let error = self.lost_error(key);
        if let Some(acquire) = self.tickets[key].acquire.take() {
            self.leave(key, State::Lost);
            self.fail(acquire, error);
            return;
        }
        self.log(Level::Warn, error.text());
        let ticket = &self.tickets[key];
        let (keys, token) = (ticket.shown_keys.clone(), ticket.token);
        self.notify(|| Event::Lost { keys: keys.to_vec(), token, reason });
        self.leave(key, State::Lost);
        self.fail_waiting(key, &error);
    }

    /// Ends the calls that wait for something of a ticket that is no longer held.
    pub(super) fn fail_waiting(&mut self, key: TicketKey, error: &Error) {
        if let Some(extending) = self.tickets[key].extending.take() {
            self.fail(extending, error.clone());
            self.withdraw(extending);
        }
        self.fail_deferred(key, error);
    }

    pub(super) fn fail_deferred(&mut self, key: TicketKey, error: &Error) {
        for deferred in std::mem::take(&mut self.tickets[key].deferred) {
            self.fail(deferred, error.clone());
        }
        if let Some(call) = self.tickets[key].hand_over.take() {
            self.settle_call(Some(call), Err(error.clone()));
        }
    }

    /// The ticket is no longer held.
    pub(super) fn leave(&mut self, key: TicketKey, state: State) {
        let ticket = &mut self.tickets[key];
        ticket.state = state;
        ticket.extend_ns = NEVER;
        self.deadlines.clear(&mut ticket.alarm);
        let (token, end) = (ticket.token, ticket.end.clone());
        for wire_key in ticket.keys.iter() {
            if self.held_keys.get(wire_key) == Some(&token) {
                self.held_keys.remove(wire_key);
            }
        }
        match state {
            State::Lost => self.effects.push(Effect::Ended(end, End::Lost(self.lost_error(key)))),
            State::ClientClosed => self.effects.push(Effect::Ended(end, End::Closed(self.ticket_closed(key)))),
            _ => {} // Only a loss and a close are news to those who wait for an end.
        }
        if self.held.remove(&token).is_some() {
            self.to_let_go.push(key);
        }
    }

    fn remember_expired(&mut self, key: TicketKey) {
        let ticket = &mut self.tickets[key];
        ticket.uses += 1;
        for forgotten in self.expired.add(ticket.token, key, ticket.expires_ns) {
            self.let_go(forgotten);
        }
    }
}

/// Tickets that were lost by the clock alone: a D about one still means something. As it comes at the
/// end of the lease if at all, an entry is forgotten after a while.
#[derive(Default)]
pub(crate) struct Expired {
    by_token: HashMap<u64, TicketKey>,
    oldest: VecDeque<(i64, u64)>,
}

const EXPIRED_KEPT_NS: i64 = 60 * NS_PER_S;

impl Expired {
    /// Adds a ticket; gives those that are forgotten for it.
    fn add(&mut self, token: u64, key: TicketKey, expires_ns: i64) -> Vec<TicketKey> {
        self.by_token.insert(token, key);
        self.oldest.push_back((expires_ns, token));
        let mut forgotten = Vec::new();
        while let Some(&(oldest_ns, token)) = self.oldest.front() {
            if expires_ns - oldest_ns <= EXPIRED_KEPT_NS {
                break;
            }
            self.oldest.pop_front();
            forgotten.extend(self.by_token.remove(&token));
        }
        forgotten
    }

    /// Takes a ticket out, if it is there.
    pub(super) fn take(&mut self, token: u64) -> Option<TicketKey> {
        self.by_token.remove(&token)
    }

    pub(super) fn all(&self) -> Vec<TicketKey> {
        self.by_token.values().copied().collect()
    }
}
