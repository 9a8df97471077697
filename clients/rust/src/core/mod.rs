//! The client without input and output: calls, time and bytes go in; effects, bytes and the next
//! deadline come out. Clocks, sockets and tasks stay out of here.

pub(crate) mod arguments;
mod calls;
mod closing;
pub(crate) mod deadlines;
pub(crate) mod effects;
mod extending;
mod giving_up;
mod handshake;
mod link;
mod releasing;
mod replies;
pub(crate) mod requests;
mod rounds;
mod slab;
pub(crate) mod tickets;
pub(crate) mod urls;

#[cfg(test)]
mod tests;

use crate::errors::Error;
use crate::events::{Event, Level};
use arguments::AcquireOptions;
use deadlines::{Alarm, Deadlines, Owner};
use effects::{Call, Effect, Value};
use link::Link;
use requests::{Request, RequestKey};
use slab::Slab;
use std::collections::{BTreeMap, HashMap};
use tickets::{Expired, Held, TicketKey};
use urls::Endpoint;

pub(crate) use calls::Command;

/// All that the core needs to know; every value is checked before it comes here.
pub(crate) struct Settings {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) client_id: u64,
    pub(crate) seed: [u8; 16],
    pub(crate) label: Vec<u8>,
    pub(crate) secret: Vec<u8>,
    pub(crate) fingerprint: Option<[u8; 32]>,
    pub(crate) key_prefix: Vec<u8>,
    pub(crate) defaults: AcquireOptions,
    pub(crate) connect_for_ms: u32,
    pub(crate) reply_timeout_ms: u32,
    pub(crate) release_on_close: bool,
    /// Whether events are made at all; nobody listens otherwise.
    pub(crate) observed: bool,
}

/// What makes the link leave a server.
pub(crate) enum Broken {
    /// The server breaks the protocol.
    Protocol(String),
    /// The connection was left while its bytes were read.
    Left,
}

impl Broken {
    fn new(why: impl Into<String>) -> Self {
        Self::Protocol(why.into())
    }
}

impl From<crate::wire::Malformed> for Broken {
    fn from(malformed: crate::wire::Malformed) -> Self {
        Self::Protocol(malformed.why)
    }
}

/// One client. Whoever enters it carries out the effects in order afterwards, writes what
/// `append_output` gives, and sees to it that `on_time` is called in time.
pub(crate) struct Core {
    settings: Settings,
    pub(crate) effects: Vec<Effect>,
    pub(crate) deadlines: Deadlines,
    requests: Slab<Request>,
    unanswered: BTreeMap<u64, RequestKey>,
    to_reap: Vec<RequestKey>,
    /// Tickets that left the table of held ones.
    to_let_go: Vec<TicketKey>,
    last_id: u64,
    tickets: Slab<Held>,
    /// Held tickets by token, those that are being confirmed included.
    held: BTreeMap<u64, TicketKey>,
    /// Tokens of held tickets by key.
    held_keys: HashMap<Vec<u8>, u64>,
    expired: Expired,
    link: Link,
    opening: Option<Call>,
    opening_until_ns: i64,
    closing: Vec<Call>,
    is_closing: bool,
    close_alarm: Alarm,
    closed_because: Option<String>,
    /// What the last round since the last connection came to; the log says so once.
    round_failure: String,
}

impl Core {
    pub(crate) fn new(settings: Settings) -> Self {
        let link = Link::new(settings.endpoints.clone(), settings.seed);
        Self {
            settings,
            effects: Vec::new(),
            deadlines: Deadlines::default(),
            requests: Slab::new(),
            unanswered: BTreeMap::new(),
            to_reap: Vec::new(),
            to_let_go: Vec::new(),
            last_id: 0,
            tickets: Slab::new(),
            held: BTreeMap::new(),
            held_keys: HashMap::new(),
            expired: Expired::default(),
            link,
            opening: None,
            opening_until_ns: 0,
            closing: Vec::new(),
            is_closing: false,
            close_alarm: Alarm::default(),
            closed_because: None,
            round_failure: String::new(),
        }
    }

    /// Whether something waits to be written.
    pub(crate) fn has_output(&self) -> bool {
        !self.link.outgoing.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed_because.is_some()
    }

    fn settle_call(&mut self, call: Option<Call>, outcome: Result<(), Error>) {
        if let Some(call) = call {
            self.effects.push(Effect::Settled(call, outcome.map(|()| Value::Nothing)));
        }
    }

    fn log(&mut self, level: Level, text: impl Into<String>) {
        self.effects.push(Effect::Log(level, text.into()));
    }

    fn notify(&mut self, event: impl FnOnce() -> Event) {
        if self.settings.observed {
            self.effects.push(Effect::Notify(event()));
        }
    }

    /// Bytes came in on a connection.
    pub(crate) fn receive(&mut self, serial: u64, data: &[u8], now_ns: i64) {
        self.link_receive(serial, data, now_ns);
        self.finish_close_if_answered(now_ns);
    }

    /// Does whatever is due, in the order of the deadlines.
    pub(crate) fn on_time(&mut self, now_ns: i64) {
        while let Some(owner) = self.deadlines.pop_due(now_ns) {
            match owner {
                Owner::Request(key) => self.request_due(key, now_ns),
                Owner::Ticket(key) => self.ticket_due(key, now_ns),
                Owner::Link => self.link_due(now_ns),
                Owner::Close => self.finish_close(now_ns),
            }
        }
    }
}
