//! The client's one connection at a time: rounds over the endpoints, roles, silence.

use super::deadlines::{Alarm, Owner};
use super::effects::Effect;
use super::requests::{OutItem, NS_PER_MS, NS_PER_S};
use super::rounds::{Backoff, Rounds};
use super::urls::Endpoint;
use super::{Broken, Core};
use crate::errors::{Error, Kind};
use crate::wire::constants_gen::{
    CLIENT_BACKOFF_RESET_MS, CLIENT_CONNECT_TIMEOUT_MS, CLIENT_CONNECT_TIMEOUT_SEVERAL_MS, CLIENT_HANDSHAKE_TIMEOUT_MS,
    CLIENT_NO_LEADER_WAIT_MS, GREETING_BYTES, SILENCE_KEEPALIVES,
};
use crate::wire::requests as frames;

/// Where the link is. Requests are sent in `Ready` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    /// No round is under way. Not opened yet, or the last one failed with an auth error.
    Idle,
    /// Waiting to begin the next round.
    BackingOff,
    /// The shell is opening a connection, or the greeting has not come whole.
    Connecting,
    /// Waiting for the welcome.
    HelloSent,
    /// Welcomed by a node that knows no leader; waiting a moment for L.
    Leaderless,
    /// Welcomed by a server that serves requests.
    Ready,
    /// Closed for good.
    Ended,
}

pub(super) const KEEPALIVE_ECHO: u64 = 0;
const SILENCE: i64 = SILENCE_KEEPALIVES as i64;

pub(crate) struct Link {
    pub(super) alarm: Alarm,
    pub(super) outgoing: Vec<OutItem>,
    pub(super) rounds: Rounds,
    pub(super) backoff: Backoff,
    pub(super) state: LinkState,
    pub(super) serial: u64,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) hellos: u32,
    /// What was read of a frame that is not yet whole.
    pub(super) rest: Vec<u8>,
    pub(super) greeting: Vec<u8>,
    pub(super) nonce: [u8; 16],
    pub(super) keepalive_ns: i64,
    pub(super) ready_ns: i64,
    pub(super) received_ns: i64,
    pub(super) sent_ns: i64,
    pub(super) ping_unanswered: bool,
    /// A request was answered on this connection, so the next back-off starts afresh.
    pub(super) answered: bool,
    /// The connection that this round may bring is the first since start.
    pub(super) first_connection: bool,
}

impl Link {
    pub(super) fn new(endpoints: Vec<Endpoint>, seed: [u8; 16]) -> Self {
        Self {
            alarm: Alarm::default(),
            outgoing: Vec::new(),
            rounds: Rounds::new(endpoints),
            backoff: Backoff::new(seed),
            state: LinkState::Idle,
            serial: 0,
            endpoint: None,
            hellos: 0,
            rest: Vec::new(),
            greeting: Vec::with_capacity(GREETING_BYTES),
            nonce: [0; 16],
            keepalive_ns: 0,
            ready_ns: 0,
            received_ns: 0,
            sent_ns: 0,
            ping_unanswered: false,
            answered: false,
            first_connection: false,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == LinkState::Ready
    }

    /// Whether there is a connection, or an attempt at one.
    pub(super) fn exists(&self) -> bool {
        use LinkState::{Connecting, HelloSent, Leaderless, Ready};
        matches!(self.state, Connecting | HelloSent | Leaderless | Ready)
    }

    pub(super) fn address(&self) -> String {
        self.endpoint.as_ref().map_or_else(|| "no server".into(), Endpoint::to_string)
    }

    /// Whether the round that is waited for would begin only after a time.
    pub(super) fn next_round_is_late(&self, deadline_ns: i64) -> bool {
        self.state == LinkState::BackingOff && self.alarm.due_ns() > deadline_ns
    }

    fn connect_ms(&self) -> u32 {
        if self.rounds.several() {
            CLIENT_CONNECT_TIMEOUT_SEVERAL_MS
        } else {
            CLIENT_CONNECT_TIMEOUT_MS
        }
    }
}

impl Core {
    // What the rest of the core asks for.

    /// Begins a round, unless one is under way or a connection stands.
    pub(super) fn start_link(&mut self, now_ns: i64) {
        if self.link.state == LinkState::Idle {
            self.link.backoff.reset();
            self.link.first_connection = true;
            self.schedule_round(now_ns);
        }
    }

    /// Leaves this connection for another, as after a loss.
    pub(super) fn reconnect(&mut self, reason: &str, now_ns: i64) {
        self.drop_link(Error::new(Kind::Connection, reason), now_ns);
    }

    /// Leaves a server that does not serve requests for another endpoint.
    pub(super) fn not_serving(&mut self, reason: &str, now_ns: i64) {
        self.link.rounds.does_not_lead(self.link.endpoint.as_ref());
        self.reconnect(reason, now_ns);
    }

    /// Ends for good.
    pub(super) fn close_link(&mut self) {
        if self.link.exists() {
            self.effects.push(Effect::Disconnect { serial: self.link.serial });
        }
        self.link.state = LinkState::Ended;
        self.link.outgoing.clear();
        self.deadlines.clear(&mut self.link.alarm);
    }

    // What the shell reports.

    /// The transport stands. The greeting is still to come, within the same bound.
    pub(crate) fn connected(&mut self, serial: u64, now_ns: i64) {
        if serial == self.link.serial && self.link.state == LinkState::Connecting {
            self.link.received_ns = now_ns;
            self.link.sent_ns = now_ns;
        }
    }

    /// The transport failed or ended.
    pub(crate) fn disconnected(&mut self, serial: u64, reason: &str, now_ns: i64) {
        if serial == self.link.serial && self.link.exists() {
            self.leave_link(Error::new(Kind::Connection, reason), now_ns);
        }
    }

    /// Bytes from the transport; those of an earlier connection don't count any more.
    pub(super) fn link_receive(&mut self, serial: u64, data: &[u8], now_ns: i64) {
        if serial != self.link.serial || !self.link.exists() {
            return;
        }
        self.link.received_ns = now_ns;
        let read = if self.link.state == LinkState::Connecting {
            self.read_greeting(data, now_ns).and_then(|taken| self.read_replies(serial, &data[taken..], now_ns))
        } else {
            self.read_replies(serial, data, now_ns)
        };
        if let Err(Broken::Protocol(why)) = read {
            self.drop_link(Error::new(Kind::Connection, format!("the server broke the protocol: {why}")), now_ns);
        }
    }

    /// The deadline that was set is reached.
    pub(super) fn link_due(&mut self, now_ns: i64) {
        self.deadlines.clear(&mut self.link.alarm);
        let why = match self.link.state {
            LinkState::BackingOff => {
                self.link.rounds.begin();
                self.try_next(now_ns);
                return;
            }
            LinkState::Ready => {
                self.watch_silence(now_ns);
                return;
            }
            LinkState::Connecting => format!(
                "no greeting within {} ms (check the port, and whether it speaks TLS: ticketings://, or not: \
                 ticketing://)",
                self.link.connect_ms()
            ),
            LinkState::HelloSent => format!("no welcome within {CLIENT_HANDSHAKE_TIMEOUT_MS} ms"),
            LinkState::Leaderless => "the node knows no leader".into(),
            LinkState::Idle | LinkState::Ended => return,
        };
        self.drop_link(Error::new(Kind::Connection, why), now_ns);
    }

    pub(super) fn set_link_due(&mut self, due_ns: i64) {
        self.deadlines.set(&mut self.link.alarm, Owner::Link, due_ns);
    }

    // Rounds.

    fn schedule_round(&mut self, now_ns: i64) {
        let delay_ns = self.link.backoff.next_ns();
        self.link.state = LinkState::BackingOff;
        if delay_ns > 0 {
            self.set_link_due(now_ns + delay_ns);
            return;
        }
        self.link.rounds.begin();
        self.try_next(now_ns);
    }

    fn try_next(&mut self, now_ns: i64) {
        let Some(next) = self.link.rounds.next() else {
            self.link.state = LinkState::Idle;
            self.deadlines.clear(&mut self.link.alarm);
            self.end_round(now_ns);
            return;
        };
        let link = &mut self.link;
        link.serial += 1;
        link.endpoint = Some(next.clone());
        link.state = LinkState::Connecting;
        link.outgoing.clear();
        link.rest = Vec::new();
        link.greeting.clear();
        link.answered = false;
        link.ping_unanswered = false;
        let (serial, due_ns) = (link.serial, now_ns + i64::from(link.connect_ms()) * NS_PER_MS);
        self.set_link_due(due_ns);
        self.effects.push(Effect::Connect { serial, endpoint: next });
    }

    fn end_round(&mut self, now_ns: i64) {
        let error = self.link.rounds.result();
        if error.kind() == Kind::Auth {
            self.round_failed(&error, now_ns);
            return; // Whether to try again is for the next call to say.
        }
        self.schedule_round(now_ns);
        if !self.round_failed(&error, now_ns) && self.link.state == LinkState::BackingOff {
            self.link.state = LinkState::Idle;
            self.deadlines.clear(&mut self.link.alarm);
        }
    }

    /// Ends this connection from our side.
    pub(super) fn drop_link(&mut self, error: Error, now_ns: i64) {
        self.effects.push(Effect::Disconnect { serial: self.link.serial });
        self.leave_link(error, now_ns);
    }

    /// Rules the endpoint out for this round, or begins a new one.
    fn leave_link(&mut self, error: Error, now_ns: i64) {
        self.deadlines.clear(&mut self.link.alarm);
        if self.link.state != LinkState::Ready {
            if let Some(endpoint) = self.link.endpoint.clone() {
                self.link.rounds.failed(endpoint, error);
            }
            self.try_next(now_ns);
            return;
        }
        let link = &mut self.link;
        link.state = LinkState::BackingOff;
        link.outgoing.clear();
        link.rounds.lost.clone_from(&link.endpoint);
        if link.answered || now_ns - link.ready_ns >= i64::from(CLIENT_BACKOFF_RESET_MS) * NS_PER_MS {
            link.backoff.reset();
        }
        self.link_is_down(error.text(), now_ns);
        if self.link.state == LinkState::BackingOff {
            self.schedule_round(now_ns);
        }
    }

    pub(super) fn become_ready(&mut self, now_ns: i64) {
        let link = &mut self.link;
        link.state = LinkState::Ready;
        if link.first_connection {
            link.first_connection = false;
            link.backoff.reset();
        }
        link.ready_ns = now_ns;
        link.received_ns = now_ns;
        self.set_silence_deadline();
        self.link_is_ready(now_ns);
    }

    pub(super) fn wait_for_leader(&mut self, now_ns: i64) {
        self.link.state = LinkState::Leaderless;
        self.set_link_due(now_ns + i64::from(CLIENT_NO_LEADER_WAIT_MS) * NS_PER_MS);
    }

    // Silence.

    pub(super) fn set_keepalive(&mut self, keepalive_s: u16) {
        self.link.keepalive_ns = i64::from(keepalive_s) * NS_PER_S;
    }

    pub(super) fn set_silence_deadline(&mut self) {
        let link = &self.link;
        let mut due_ns = link.received_ns + SILENCE * link.keepalive_ns;
        if !link.ping_unanswered {
            due_ns = due_ns.min(link.received_ns.min(link.sent_ns) + link.keepalive_ns);
        }
        self.set_link_due(due_ns);
    }

    fn watch_silence(&mut self, now_ns: i64) {
        let link = &mut self.link;
        let silent_ns = now_ns - link.received_ns;
        if silent_ns >= SILENCE * link.keepalive_ns {
            let silent = super::giving_up::duration(silent_ns);
            self.drop_link(Error::new(Kind::Connection, format!("nothing received for {silent:?}")), now_ns);
            return;
        }
        if !link.ping_unanswered && now_ns - link.received_ns.min(link.sent_ns) >= link.keepalive_ns {
            link.ping_unanswered = true;
            link.sent_ns = now_ns;
            link.outgoing.push(OutItem::Frame(frames::ping(KEEPALIVE_ECHO)));
        }
        self.set_silence_deadline();
    }
}
