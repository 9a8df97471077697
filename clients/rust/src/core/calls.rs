//! What callers ask for.

use super::arguments::{parse_reference, quoted, wire_set, AcquireOptions};
use super::deadlines::{Owner, NEVER};
use super::effects::Call;
use super::requests::{Purpose, Request, RequestKey, NS_PER_MS};
use super::tickets::TicketKey;
use super::Core;
use crate::errors::{Error, Kind};
use crate::events::Level;
use crate::wire::constants_gen::{
    CLIENT_WAIT_WARNING_MS, OP_ACQUIRE, OP_ACQUIRE_SET, OP_EXTEND, OP_PING, WAIT_MS_FOREVER, WAIT_MS_TRY,
};
use crate::wire::requests as frames;
use std::sync::Arc;

/// A call that has an outcome.
pub(crate) enum Command {
    Open,
    Close,
    Acquire { keys: Vec<Vec<u8>>, options: AcquireOptions },
    Adopt { reference: String, options: AcquireOptions },
    Ping,
    Extend { ticket: TicketKey, lease_ms: Option<u32> },
    Release { ticket: TicketKey },
    HandOver { ticket: TicketKey },
}

impl Core {
    /// Starts a call. Where it fails at once no id was taken. What it gives is what `abandon` takes.
    pub(crate) fn start(&mut self, command: Command, call: &Call, now_ns: i64) -> Result<Option<RequestKey>, Error> {
        let call = call.clone();
        match command {
            Command::Open => self.open(call, now_ns),
            Command::Close => self.close(Some(call), now_ns),
            Command::Release { ticket } => self.release_ticket(ticket, Some(call), now_ns),
            Command::HandOver { ticket } => self.hand_over(ticket, call, now_ns),
            Command::Acquire { keys, options } => return self.acquire(keys, options, call, now_ns).map(Some),
            Command::Adopt { reference, options } => return self.adopt(&reference, options, call, now_ns).map(Some),
            Command::Ping => return self.ping(call, now_ns).map(Some),
            Command::Extend { ticket, lease_ms } => return Ok(Some(self.extend(ticket, lease_ms, call, now_ns))),
        }
        Ok(None)
    }

    fn acquire(
        &mut self,
        keys: Vec<Vec<u8>>,
        options: AcquireOptions,
        call: Call,
        now_ns: i64,
    ) -> Result<RequestKey, Error> {
        let mut request = Request::new(OP_ACQUIRE, Some(call), now_ns);
        (request.keys, request.shown_keys) = wire_set(keys, &self.settings.key_prefix)?;
        (request.lease_ms, request.wait_ms, request.auto_extend) = options.over(self.settings.defaults);
        self.check_open()?;
        request.id = self.take_id();
        let (id, wait_ms, lease_ms) = (request.id, request.wait_ms, request.lease_ms);
        if let [key] = &*request.keys {
            request.frame = frames::acquire(id, wait_ms, lease_ms, key);
        } else {
            request.op = OP_ACQUIRE_SET;
            request.frame = frames::acquire_set(id, wait_ms, lease_ms, &request.keys);
        }
        let key = self.requests.insert(request);
        self.set_wait_bounds(key);
        self.issue(key, now_ns);
        Ok(key)
    }

    fn set_wait_bounds(&mut self, key: RequestKey) {
        let request = &self.requests[key];
        if request.wait_ms == WAIT_MS_TRY {
            self.set_reply_bound(key);
            return;
        }
        if request.keys.iter().any(|key| self.held_keys.contains_key(key)) {
            let text = format!("this client waits for {}, which it holds itself", quoted(&request.shown_keys));
            self.log(Level::Warn, text);
        }
        let request = &mut self.requests[key];
        if request.wait_ms != WAIT_MS_FOREVER {
            request.bound_ns = request.called_ns + i64::from(request.wait_ms) * NS_PER_MS;
        }
        request.warn_ns = request.called_ns + i64::from(CLIENT_WAIT_WARNING_MS) * NS_PER_MS;
        let due_ns = request.bound_ns.min(request.warn_ns);
        self.deadlines.set(&mut request.alarm, Owner::Request(key), due_ns);
    }

    pub(super) fn reply_timeout_ns(&self) -> i64 {
        i64::from(self.settings.reply_timeout_ms) * NS_PER_MS
    }

    fn set_reply_bound(&mut self, key: RequestKey) {
        let bound_ns = self.requests[key].called_ns + self.reply_timeout_ns();
        self.set_bound(key, bound_ns);
    }

    pub(super) fn set_bound(&mut self, key: RequestKey, bound_ns: i64) {
        let request = &mut self.requests[key];
        request.bound_ns = bound_ns;
        self.deadlines.set(&mut request.alarm, Owner::Request(key), bound_ns);
    }

    /// Makes a ticket out of a reference.
    fn adopt(
        &mut self,
        reference: &str,
        options: AcquireOptions,
        call: Call,
        now_ns: i64,
    ) -> Result<RequestKey, Error> {
        let (token, wire_key) = parse_reference(reference)?;
        let mut request = Request::new(OP_EXTEND, Some(call), now_ns);
        request.purpose = Purpose::Adopting;
        request.token = token;
        (request.lease_ms, _, request.auto_extend) = options.over(self.settings.defaults);
        self.check_open()?;
        request.id = self.take_id();
        request.frame = frames::extend(request.id, token, request.lease_ms, &wire_key);
        request.keys = Arc::new([wire_key]);
        request.shown_keys = request.keys.clone();
        let key = self.requests.insert(request);
        self.set_reply_bound(key);
        self.issue(key, now_ns);
        Ok(key)
    }

    /// Asks the server for a sign of life.
    fn ping(&mut self, call: Call, now_ns: i64) -> Result<RequestKey, Error> {
        self.check_open()?;
        let mut request = Request::new(OP_PING, Some(call), now_ns);
        request.id = self.take_id();
        request.frame = frames::ping(request.id);
        let key = self.requests.insert(request);
        self.set_reply_bound(key);
        self.issue(key, now_ns);
        Ok(key)
    }

    fn check_open(&self) -> Result<(), Error> {
        match &self.closed_because {
            Some(because) => Err(Error::new(Kind::Closed, because.as_str())),
            None => Ok(()),
        }
    }

    /// What the caller of a wait is told when the time of the wait is over.
    pub(super) fn set_overrun(&mut self, key: RequestKey, overrun_ns: i64) {
        let request = &mut self.requests[key];
        let due_ns = if request.bound_ns == NEVER { NEVER } else { request.bound_ns + overrun_ns };
        self.deadlines.set(&mut request.alarm, Owner::Request(key), due_ns);
    }
}
