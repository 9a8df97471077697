//! What is asked of the server and not yet answered.

use super::deadlines::{Alarm, NEVER};
use super::effects::{Call, Effect, Outcome, Value};
use super::slab::Key;
use super::tickets::TicketKey;
use super::{Broken, Core};
use crate::errors::Error;
use crate::wire::constants_gen::{
    OP_ACQUIRE, OP_ACQUIRE_SET, OP_CANCEL, OP_EXTEND, OP_PING, OP_RELEASE, WAIT_MS_FOREVER,
};
use std::sync::Arc;

pub(crate) const NS_PER_MS: i64 = 1_000_000;
pub(crate) const NS_PER_S: i64 = 1_000_000_000;

pub(crate) const ACQUIRES: &[u8] = &[OP_ACQUIRE, OP_ACQUIRE_SET];
pub(crate) const ANY: &[u8] = &[OP_ACQUIRE, OP_ACQUIRE_SET, OP_RELEASE, OP_EXTEND, OP_CANCEL, OP_PING];

/// What an extend is for; it decides what its reply does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The program asked for it.
    Caller,
    /// The client's own, at a third of the lease, or to learn what ended while it was away.
    Renewal,
    /// After a long wait, before the ticket is handed out.
    Confirming,
    /// Makes a ticket out of a reference.
    Adopting,
}

pub(crate) type RequestKey = Key<Request>;

/// One request over all its sendings. It keeps its id and its bytes.
pub(crate) struct Request {
    pub(crate) alarm: Alarm,
    pub(crate) op: u8,
    pub(crate) purpose: Purpose,
    pub(crate) settled: bool,
    pub(crate) unanswered: bool,
    pub(crate) id: u64,
    pub(crate) frame: Vec<u8>,
    pub(crate) call: Option<Call>,
    pub(crate) called_ns: i64,
    /// The moment before the newest sending was queued.
    pub(crate) queued_ns: i64,
    /// How often bytes of it were handed to a socket.
    pub(crate) sendings: u32,
    /// The connection of the newest sending; only there a reply can come.
    pub(crate) sent_serial: u64,
    /// When the client ends it by itself.
    pub(crate) bound_ns: i64,
    /// When a wait is warned about.
    pub(crate) warn_ns: i64,
    pub(crate) keys: Arc<[Vec<u8>]>,
    pub(crate) shown_keys: Arc<[Vec<u8>]>,
    pub(crate) wait_ms: u32,
    pub(crate) lease_ms: u32,
    pub(crate) auto_extend: bool,
    pub(crate) ticket: Option<TicketKey>,
    /// The ticket's token, of an adoption.
    pub(crate) token: u64,
    /// The acquire that a cancel undoes.
    pub(crate) acquire_id: u64,
}

impl Request {
    pub(crate) fn new(op: u8, call: Option<Call>, now_ns: i64) -> Self {
        let no_keys: Arc<[Vec<u8>]> = Arc::new([]);
        Self {
            alarm: Alarm::default(),
            op,
            purpose: Purpose::Caller,
            settled: false,
            unanswered: false,
            id: 0,
            frame: Vec::new(),
            call,
            called_ns: now_ns,
            queued_ns: now_ns,
            sendings: 0,
            sent_serial: 0,
            bound_ns: NEVER,
            warn_ns: NEVER,
            keys: no_keys.clone(),
            shown_keys: no_keys,
            wait_ms: WAIT_MS_FOREVER,
            lease_ms: 0,
            auto_extend: false,
            ticket: None,
            token: 0,
            acquire_id: 0,
        }
    }

    pub(crate) fn is_acquire(&self) -> bool {
        ACQUIRES.contains(&self.op)
    }

    /// Whether it is sent again until it is answered, even after it was given up.
    pub(crate) fn is_always_resent(&self) -> bool {
        matches!(self.op, OP_RELEASE | OP_CANCEL)
    }
}

/// A request that waits to be written, or a frame of the link's own.
pub(crate) enum OutItem {
    Request(RequestKey),
    Frame(Vec<u8>),
}

impl Core {
    /// The next id: a counter of the client's requests over all its connections.
    pub(crate) fn take_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// What is unanswered, by ascending id.
    pub(crate) fn in_order(&self) -> Vec<RequestKey> {
        self.unanswered.values().copied().collect()
    }

    /// Puts a request on its way: at once where that is possible, else once connected.
    pub(crate) fn issue(&mut self, key: RequestKey, now_ns: i64) {
        let request = &mut self.requests[key];
        request.unanswered = true;
        self.unanswered.insert(request.id, key);
        if self.link.is_ready() {
            request.queued_ns = now_ns;
            self.link.outgoing.push(OutItem::Request(key));
        } else {
            self.start_link(now_ns);
        }
    }

    /// For a new connection: everything unanswered that was not given up, in id order.
    pub(crate) fn queue_again(&mut self, now_ns: i64) {
        for key in self.in_order() {
            self.requests[key].queued_ns = now_ns;
            self.link.outgoing.push(OutItem::Request(key));
        }
    }

    /// The connection is gone on which a given-up request could still have had its reply.
    pub(crate) fn forget_given_up(&mut self) {
        for key in self.in_order() {
            let request = &self.requests[key];
            if request.settled && !request.is_always_resent() {
                self.forget(request.id);
            }
        }
    }

    /// It is not unanswered any more.
    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(key) = self.unanswered.remove(&id) {
            self.requests[key].unanswered = false;
            self.to_reap.push(key);
        }
    }

    /// Appends the bytes to write now; what they carry counts as handed to the socket.
    pub(crate) fn append_output(&mut self, output: &mut Vec<u8>, now_ns: i64) {
        let mut outgoing = std::mem::take(&mut self.link.outgoing);
        for item in outgoing.drain(..) {
            let key = match item {
                OutItem::Request(key) => key,
                OutItem::Frame(frame) => {
                    output.extend_from_slice(&frame);
                    continue;
                }
            };
            if self.requests.get(key).is_none_or(|request| request.settled && !request.is_always_resent()) {
                continue; // It was given up before a byte of it was written here.
            }
            let request = &mut self.requests[key];
            request.sendings += 1;
            request.sent_serial = self.link.serial;
            output.extend_from_slice(&request.frame);
        }
        self.link.outgoing = outgoing;
        if !output.is_empty() {
            self.link.sent_ns = now_ns;
        }
    }

    /// The request that a reply is for.
    pub(crate) fn match_reply(&self, id: u64, of: &[u8]) -> Result<RequestKey, Broken> {
        match self.unanswered.get(&id) {
            Some(&key) if self.requests[key].sent_serial == self.link.serial && of.contains(&self.requests[key].op) => {
                Ok(key)
            }
            _ => Err(Broken::new(format!("a reply to request {id}, which can't have one"))),
        }
    }

    /// Takes out the request that a reply is for.
    pub(crate) fn answered(&mut self, id: u64, of: &[u8]) -> Result<RequestKey, Broken> {
        let key = self.match_reply(id, of)?;
        self.forget(id);
        self.link.answered = true;
        self.deadlines.clear(&mut self.requests[key].alarm);
        Ok(key)
    }

    /// Gives the caller its outcome; a request that has one already keeps it.
    pub(crate) fn settle(&mut self, key: RequestKey, outcome: Outcome) {
        if self.requests.get(key).is_none_or(|request| request.settled) {
            return;
        }
        let request = &mut self.requests[key];
        request.settled = true;
        self.deadlines.clear(&mut request.alarm);
        let call = request.call.take();
        self.to_reap.push(key);
        if let Some(call) = call {
            if let Ok(Value::Ticket(grant)) = &outcome {
                self.tickets[grant.ticket].uses += 1; // The caller's own handle.
            }
            self.effects.push(Effect::Settled(call, outcome));
        }
    }

    pub(crate) fn fail(&mut self, key: RequestKey, error: Error) {
        self.settle(key, Err(error));
    }

    /// Drops a given-up request, unless its reply can still come on this connection.
    pub(crate) fn withdraw(&mut self, key: RequestKey) {
        let Some(request) = self.requests.get(key) else { return };
        if request.unanswered
            && (request.sendings == 0 || request.sent_serial != self.link.serial || !self.link.is_ready())
        {
            self.forget(request.id);
        }
    }

    /// Lets go of requests and tickets that nothing refers to any more. The end of every entry into the core.
    pub(crate) fn reap(&mut self) {
        while let Some(key) = self.to_reap.pop() {
            if self.requests.get(key).is_some_and(|request| request.settled && !request.unanswered) {
                if let Some(mut request) = self.requests.remove(key) {
                    self.deadlines.clear(&mut request.alarm);
                    if let Some(ticket) = request.ticket {
                        self.let_go(ticket);
                    }
                }
            }
        }
        while let Some(ticket) = self.to_let_go.pop() {
            self.let_go(ticket);
        }
    }
}
