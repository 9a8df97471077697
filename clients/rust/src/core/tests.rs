//! The core under a scripted transport and a clock that is turned by hand.

use super::arguments::AcquireOptions;
use super::effects::{Call, Effect, Grant, Outcome, Value};
use super::requests::{NS_PER_MS, NS_PER_S};
use super::urls::{Endpoint, Target};
use super::{Command, Core, Settings};
use crate::errors::{Error, Kind, LostReason};
use crate::wire::codec::{decode, encode, Sender, Value as Field};
use crate::wire::handshake::Welcome;
use std::collections::VecDeque;
use std::sync::Arc;

const SECRET: &[u8] = b"secret";

struct Rig {
    core: Core,
    now: i64,
    connects: Vec<(u64, Endpoint)>,
    disconnects: Vec<u64>,
    outcomes: VecDeque<(Call, Outcome)>,
    events: Vec<&'static str>,
    logs: Vec<String>,
    closed: bool,
}

fn host(name: &str) -> Endpoint {
    Endpoint::Tcp { host: name.into(), port: 5225 }
}

impl Rig {
    fn new(endpoints: Vec<Endpoint>) -> Self {
        let settings = Settings {
            endpoints,
            client_id: 42,
            seed: *b"0123456789abcdef",
            label: b"test;rust/0".to_vec(),
            secret: SECRET.to_vec(),
            fingerprint: None,
            key_prefix: Vec::new(),
            defaults: AcquireOptions::default(),
            connect_for_ms: 0,
            reply_timeout_ms: 10_000,
            release_on_close: true,
            observed: true,
        };
        let mut rig = Self {
            core: Core::new(settings),
            now: 1000 * NS_PER_S,
            connects: Vec::new(),
            disconnects: Vec::new(),
            outcomes: VecDeque::new(),
            events: Vec::new(),
            logs: Vec::new(),
            closed: false,
        };
        rig.enter(|core, now| core.open(Call::default(), now));
        rig
    }

    /// A rig whose client has been welcomed.
    fn ready() -> Self {
        let mut rig = Self::new(vec![host("a")]);
        rig.welcome(0, b"");
        assert!(matches!(rig.outcomes.pop_front(), Some((_, Ok(Value::Nothing)))));
        rig
    }

    fn enter<T>(&mut self, call: impl FnOnce(&mut Core, i64) -> T) -> T {
        let result = call(&mut self.core, self.now);
        self.core.reap();
        for effect in std::mem::take(&mut self.core.effects) {
            match effect {
                Effect::Settled(call, outcome) => {
                    let twice = self.outcomes.iter().any(|(other, _)| Arc::ptr_eq(other, &call));
                    assert!(!twice, "a call was settled twice");
                    self.outcomes.push_back((call, outcome));
                }
                Effect::Connect { serial, endpoint } => self.connects.push((serial, endpoint)),
                Effect::Disconnect { serial } => self.disconnects.push(serial),
                Effect::Ended(..) => {}
                Effect::Notify(event) => self.events.push(event.kind()),
                Effect::Log(_, text) => self.logs.push(text),
                Effect::Closed => self.closed = true,
            }
        }
        result
    }

    fn serial(&self) -> u64 {
        self.connects.last().expect("an attempt to connect").0
    }

    /// What was written since, frame by frame: the name, then the fields that are numbers or keys.
    fn written(&mut self) -> Vec<String> {
        let mut output = Vec::new();
        self.core.append_output(&mut output, self.now);
        let mut rest = &output[..];
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let size = 3 + usize::from(rest[1]) * 256 + usize::from(rest[2]);
            let (name, fields) = decode(Sender::Client, &rest[..size]).expect("a legal frame");
            let mut text = name.to_owned();
            for (name, value) in fields {
                match value {
                    Field::Number(number) => text += &format!(" {name}={number}"),
                    Field::Bytes(bytes) if name == "key" => text += &format!(" {}", bytes.escape_ascii()),
                    Field::Bytes(_) | Field::Keys(_) => {}
                }
            }
            frames.push(text);
            rest = &rest[size..];
        }
        frames
    }

    fn reply(&mut self, name: &str, fields: &[(&str, u64)]) {
        let fields: Vec<(&str, Field)> = fields.iter().map(|(name, value)| (*name, Field::Number(*value))).collect();
        let frame = encode(Sender::Server, name, &fields).expect("a legal frame");
        self.receive(&frame);
    }

    fn refuse(&mut self, request_id: u64, code: u64) {
        let fields = [
            ("request_id", Field::Number(request_id)),
            ("code", Field::Number(code)),
            ("text", Field::Bytes(b"why".to_vec())),
        ];
        let frame = encode(Sender::Server, "error", &fields).expect("a legal frame");
        self.receive(&frame);
    }

    fn receive(&mut self, data: &[u8]) {
        let serial = self.serial();
        self.enter(|core, now| core.receive(serial, data, now));
    }

    /// Lets the connection stand, and goes through the handshake.
    fn welcome(&mut self, role: u8, leader: &[u8]) {
        let serial = self.serial();
        self.enter(|core, now| core.connected(serial, now));
        let greeting = [&b"TICKET\x04\x04\x00\xff"[..], &[7; 16]].concat();
        self.receive(&greeting);
        let hello = self.written();
        assert!(hello[0].starts_with("hello version=4 client_id=42"), "{hello:?}");
        let welcome = Welcome { role, keepalive_s: 5, fingerprint: &[0; 32], leader };
        let proof = welcome.proof(SECRET, &greeting, &self.core.link.nonce);
        let fields = [
            ("role", Field::Number(u64::from(role))),
            ("keepalive_s", Field::Number(5)),
            ("fingerprint", Field::Bytes(vec![0; 32])),
            ("proof", Field::Bytes(proof.to_vec())),
            ("leader", Field::Bytes(leader.to_vec())),
        ];
        let frame = encode(Sender::Server, "welcome", &fields).expect("a legal frame");
        for byte in frame {
            self.receive(&[byte]); // However the stream is cut.
        }
    }

    fn lose_connection(&mut self) {
        let serial = self.serial();
        self.enter(|core, now| core.disconnected(serial, "cut", now));
    }

    fn pass(&mut self, ms: i64) {
        let until = self.now + ms * NS_PER_MS;
        while self.core.deadlines.next_ns() <= until {
            self.now = self.now.max(self.core.deadlines.next_ns());
            self.enter(Core::on_time);
        }
        self.now = until;
    }

    fn start(&mut self, command: Command) -> (Call, Option<super::requests::RequestKey>) {
        let call = Call::default();
        let request = self.enter(|core, now| core.start(command, &call, now)).expect("a call that can begin");
        (call, request)
    }

    fn acquire(&mut self, key: &str, lease_ms: Option<u32>, wait_ms: Option<u32>) -> Call {
        let options = AcquireOptions { lease_ms, wait_ms, auto_extend: None };
        self.start(Command::Acquire { keys: vec![key.into()], options }).0
    }

    fn outcome(&mut self, call: &Call) -> Option<Outcome> {
        let at = self.outcomes.iter().position(|(other, _)| Arc::ptr_eq(other, call))?;
        self.outcomes.remove(at).map(|(_, outcome)| outcome)
    }

    fn granted(&mut self, call: &Call) -> Grant {
        match self.outcome(call) {
            Some(Ok(Value::Ticket(grant))) => grant,
            Some(Err(error)) => panic!("{error}"),
            _ => panic!("no ticket"),
        }
    }

    fn failed(&mut self, call: &Call) -> Error {
        match self.outcome(call) {
            Some(Err(error)) => error,
            Some(Ok(_)) => panic!("it went well"),
            None => panic!("it is not settled"),
        }
    }

    /// A ticket for `k` with token 9 and request id 1.
    fn hold(lease_ms: Option<u32>) -> (Self, Grant) {
        let mut rig = Self::ready();
        let call = rig.acquire("k", lease_ms, None);
        rig.written();
        rig.reply("granted", &[("request_id", 1), ("token", 9), ("waited_ms", 0)]);
        let grant = rig.granted(&call);
        (rig, grant)
    }

    fn let_go(&mut self, grant: &Grant) {
        let ticket = grant.ticket;
        self.enter(|core, _| core.let_go(ticket));
    }

    /// Nothing is kept about what is over.
    fn expect_nothing_kept(&self) {
        assert_eq!(self.core.requests.len(), 0, "requests");
        assert_eq!(self.core.tickets.len(), 0, "tickets");
    }
}

#[test]
fn a_key_is_acquired_extended_and_released() {
    let (mut rig, grant) = Rig::hold(None);
    rig.pass(10_000);
    assert_eq!(rig.written(), ["ping echo=0", "extend request_id=2 token=9 lease_ms=30000 k"]);
    rig.reply("ping", &[("echo", 0)]);
    rig.reply("extended", &[("request_id", 2), ("lease_ms", 30_000)]);
    let release = rig.start(Command::Release { ticket: grant.ticket }).0;
    assert_eq!(rig.written(), ["release request_id=3 token=9 k"]);
    rig.reply("released", &[("request_id", 3)]);
    assert!(matches!(rig.outcome(&release), Some(Ok(_))));
    assert_eq!(rig.events, ["connected", "granted", "extended", "released"]);
    rig.let_go(&grant);
    rig.expect_nothing_kept();
}

#[test]
fn expiry_is_from_the_sending_less_what_clocks_may_differ_by() {
    let mut rig = Rig::ready();
    let call = rig.acquire("k", Some(10_000), None);
    rig.written();
    let sent = rig.now;
    rig.pass(300);
    rig.reply("granted", &[("request_id", 1), ("token", 9), ("waited_ms", 200)]);
    let grant = rig.granted(&call);
    let lasts = 10_200 * NS_PER_MS;
    assert_eq!(rig.core.expires_ns(grant.ticket), sent + lasts - lasts / 500);
}

#[test]
fn a_ticket_is_lost_once_and_for_its_reason() {
    for (dropped, reason) in [(Some(2), LostReason::Operator), (None, LostReason::Expired)] {
        let (mut rig, grant) = Rig::hold(Some(1000));
        match dropped {
            Some(code) => rig.reply("dropped", &[("token", 9), ("reason", code)]),
            None => rig.pass(1000),
        }
        let error = rig.core.ticket_error(grant.ticket, rig.now).expect("a loss");
        assert_eq!((error.kind(), error.lost_reason()), (Kind::Lost, Some(reason)));
        assert_eq!(rig.events.iter().filter(|kind| **kind == "lost").count(), 1);
        let extend = rig.start(Command::Extend { ticket: grant.ticket, lease_ms: None }).0;
        assert_eq!(rig.failed(&extend).kind(), Kind::Lost);
        let release = rig.start(Command::Release { ticket: grant.ticket }).0;
        if dropped.is_some() {
            assert!(rig.written().is_empty(), "nothing is sent after the server said that it ended");
        } else {
            assert_eq!(rig.written(), ["release request_id=2 token=9 k"]);
            rig.reply("not_held", &[("request_id", 2)]);
        }
        assert_eq!(rig.failed(&release).kind(), Kind::Lost);
    }
}

#[test]
fn after_a_reconnect_all_is_sent_again_and_tickets_are_asked_about() {
    let (mut rig, grant) = Rig::hold(Some(60_000));
    let waiting = rig.acquire("other", None, None);
    assert_eq!(rig.written().len(), 1);
    rig.lose_connection();
    rig.welcome(0, b"");
    let sent = rig.written();
    assert_eq!(
        sent,
        ["acquire request_id=2 wait_ms=4294967295 lease_ms=30000 other", "extend request_id=3 token=9 lease_ms=1 k"]
    );
    rig.reply("not_held", &[("request_id", 3)]);
    let error = rig.core.ticket_error(grant.ticket, rig.now).expect("a loss");
    assert_eq!(error.lost_reason(), Some(LostReason::NotHeld));
    rig.reply("granted", &[("request_id", 2), ("token", 10), ("waited_ms", 0)]);
    rig.granted(&waiting);
}

#[test]
fn a_release_that_was_sent_before_is_done_where_the_server_knows_no_ticket() {
    let (mut rig, grant) = Rig::hold(Some(60_000));
    let release = rig.start(Command::Release { ticket: grant.ticket }).0;
    rig.written();
    rig.lose_connection();
    rig.welcome(0, b"");
    assert_eq!(rig.written(), ["release request_id=2 token=9 k"]);
    rig.reply("not_held", &[("request_id", 2)]);
    assert!(matches!(rig.outcome(&release), Some(Ok(_))));
}

#[test]
fn an_abandoned_acquire_is_cancelled_if_it_was_sent() {
    let mut rig = Rig::ready();
    let options = AcquireOptions::default();
    for sent in [false, true] {
        let (_, request) = rig.start(Command::Acquire { keys: vec![b"k".to_vec()], options });
        if sent {
            rig.written();
        }
        rig.enter(|core, now| core.abandon(request, None, now));
        let wanted: &[&str] = if sent { &["cancel request_id=3 acquire_id=2 k"] } else { &[] };
        assert_eq!(rig.written(), wanted);
    }
    // The grant that crosses the cancel has no effect.
    rig.reply("granted", &[("request_id", 2), ("token", 9), ("waited_ms", 0)]);
    rig.reply("cancelled", &[("request_id", 3)]);
    assert!(rig.outcomes.is_empty());
    rig.expect_nothing_kept();
}

#[test]
fn a_grant_that_its_caller_does_not_see_is_released() {
    let mut rig = Rig::ready();
    let (call, request) = rig.start(Command::Acquire { keys: vec![b"k".to_vec()], options: AcquireOptions::default() });
    rig.written();
    rig.reply("granted", &[("request_id", 1), ("token", 9), ("waited_ms", 0)]);
    let outcome = rig.outcome(&call);
    rig.enter(|core, now| core.abandon(request, outcome, now));
    assert_eq!(rig.written(), ["release request_id=2 token=9 k"]);
    rig.reply("released", &[("request_id", 2)]);
    rig.expect_nothing_kept();
}

#[test]
fn a_wait_ends_by_itself_where_no_server_ends_it() {
    for connected in [true, false] {
        let mut rig = Rig::ready();
        let call = rig.acquire("k", None, Some(2000));
        rig.written();
        if !connected {
            rig.lose_connection();
        }
        rig.pass(1999);
        assert!(rig.outcome(&call).is_none());
        rig.pass(if connected { 1001 } else { 1 });
        assert_eq!(rig.failed(&call).kind(), Kind::Timeout);
        if connected {
            assert_eq!(rig.written(), ["cancel request_id=2 acquire_id=1 k"]);
        }
    }
}

#[test]
fn a_try_without_an_answer_fails() {
    let mut rig = Rig::ready();
    let call = rig.acquire("k", None, Some(0));
    rig.written();
    rig.pass(9_000);
    rig.reply("ping", &[("echo", 0)]);
    rig.written();
    rig.pass(1_000);
    let error = rig.failed(&call);
    assert!(error.kind() == Kind::Connection && error.is_timeout(), "{error}");
}

#[test]
fn a_long_wait_is_confirmed_before_the_ticket_is_handed_out() {
    let mut rig = Rig::ready();
    let call = rig.acquire("k", Some(1000), None);
    rig.written();
    rig.reply("granted", &[("request_id", 1), ("token", 9), ("waited_ms", 60_000)]);
    assert!(rig.outcome(&call).is_none());
    assert_eq!(rig.written(), ["extend request_id=2 token=9 lease_ms=1000 k"]);
    let sent = rig.now;
    rig.reply("extended", &[("request_id", 2), ("lease_ms", 1000)]);
    let grant = rig.granted(&call);
    assert_eq!(rig.core.expires_ns(grant.ticket), sent + 998 * NS_PER_MS);
}

#[test]
fn a_round_goes_over_the_endpoints_and_names_each_error() {
    let mut rig = Rig::new(vec![host("a"), host("b")]);
    rig.lose_connection();
    rig.lose_connection();
    let (_, outcome) = rig.outcomes.pop_front().expect("the end of open");
    let error = outcome.err().expect("a failure");
    assert_eq!(error.kind(), Kind::Connection);
    assert!(error.to_string().contains("a:5225: cut; b:5225: cut"), "{error}");
    assert!(rig.closed);
}

#[test]
fn a_follower_sends_the_client_to_its_leader() {
    let mut rig = Rig::new(vec![host("a"), host("b")]);
    rig.welcome(2, b"c:7");
    assert_eq!(rig.connects.last().expect("an attempt").1, Endpoint::Tcp { host: "c".into(), port: 7 });
    rig.welcome(1, b"c:7");
    assert!(matches!(rig.outcomes.pop_front(), Some((_, Ok(_)))));
}

#[test]
fn a_wrong_proof_or_garbage_rules_the_endpoint_out() {
    for garbage in [&b"HTTP/1.1 400"[..], &[0x15, 3, 3], b"TICKET\x04\x04\x02\xff0123456789abcdef"] {
        let mut rig = Rig::new(vec![host("a")]);
        let serial = rig.serial();
        rig.enter(|core, now| core.connected(serial, now));
        rig.receive(garbage);
        assert_eq!(rig.disconnects, [serial]);
        let (_, outcome) = rig.outcomes.pop_front().expect("the end of open");
        assert_eq!(outcome.err().expect("a failure").kind(), Kind::Connection);
    }
}

#[test]
fn replies_to_nothing_end_the_connection() {
    for (name, fields) in [
        ("granted", vec![("request_id", 7), ("token", 9), ("waited_ms", 0)]),
        ("released", vec![("request_id", 1)]),
        ("ping", vec![("echo", 0)]),
    ] {
        let mut rig = Rig::ready();
        rig.acquire("k", None, None);
        rig.written();
        let before = rig.serial();
        rig.reply(name, &fields);
        assert_eq!(rig.disconnects, [before], "{name}");
        rig.welcome(0, b"");
        assert_eq!(rig.written().len(), 1, "the acquire is sent again");
    }
}

#[test]
fn errors_about_a_request_settle_it() {
    for (code, kind) in [(1, Kind::Protocol), (2, Kind::InvalidArgument), (11, Kind::Auth)] {
        let mut rig = Rig::ready();
        let call = rig.acquire("k", None, None);
        rig.written();
        rig.refuse(1, code);
        assert_eq!(rig.failed(&call).kind(), kind);
    }
    let (mut rig, grant) = Rig::hold(None);
    rig.refuse(0, 7);
    assert!(rig.closed, "a newer client took over");
    let error = rig.core.ticket_error(grant.ticket, rig.now).expect("a loss");
    assert_eq!(error.lost_reason(), Some(LostReason::TakenOver));
}

#[test]
fn silence_is_asked_about_and_then_the_end() {
    let mut rig = Rig::ready();
    rig.pass(5_000);
    assert_eq!(rig.written(), ["ping echo=0"]);
    rig.pass(9_999);
    assert!(rig.written().is_empty() && rig.disconnects.is_empty());
    rig.pass(1);
    assert_eq!(rig.disconnects.len(), 1);
}

#[test]
fn closing_cancels_what_waits_and_releases_what_is_held_in_order() {
    let (mut rig, _) = Rig::hold(None);
    let waiting = rig.acquire("k2", None, None);
    rig.written();
    let close = rig.start(Command::Close).0;
    assert_eq!(rig.written(), ["release request_id=3 token=9 k", "cancel request_id=4 acquire_id=2 k2"]);
    assert_eq!(rig.failed(&waiting).kind(), Kind::Closed);
    rig.reply("released", &[("request_id", 3)]);
    assert!(!rig.closed);
    rig.reply("cancelled", &[("request_id", 4)]);
    assert!(rig.closed && matches!(rig.outcome(&close), Some(Ok(_))));
}

#[test]
fn a_close_that_has_no_answer_ends_after_a_second() {
    let (mut rig, _) = Rig::hold(None);
    let close = rig.start(Command::Close).0;
    rig.pass(999);
    assert!(!rig.closed);
    rig.pass(1);
    assert!(rig.closed && rig.outcome(&close).is_some());
}

#[test]
fn urls_are_read_or_refused() {
    let target = Target::parse("ticketings://a:1,[::1],b/").expect("a URL");
    assert!(target.tls);
    let names: Vec<String> = target.endpoints.iter().map(Endpoint::to_string).collect();
    assert_eq!(names, ["a:1", "[::1]:5225", "b:5225"]);
    let unix = Target::parse("ticketing+unix:///run/a%20b").expect("a URL");
    assert_eq!(unix.endpoints, [Endpoint::Unix { path: "/run/a b".into() }]);
    for wrong in [
        "",
        "http://a",
        "ticketing://",
        "ticketing://a:0",
        "ticketing://a:65536",
        "ticketing://a/b",
        "ticketing://[1.2.3.4]",
        "ticketing://a:+1",
        "ticketing+unix://a",
        "ticketing://a:1,,b:2",
    ] {
        assert!(Target::parse(wrong).is_err(), "{wrong}");
    }
    let error = Target::parse("ticketing://me:hush@a").expect_err("a password");
    assert!(!error.to_string().contains("hush"));
}

#[test]
fn arguments_are_checked_before_anything_is_sent() {
    let mut rig = Rig::ready();
    let long = vec![b'k'; 129];
    let many: Vec<Vec<u8>> = (0..17u8).map(|byte| vec![byte]).collect();
    for keys in [vec![], vec![Vec::new()], vec![long], many] {
        let call = Call::default();
        let command = Command::Acquire { keys, options: AcquireOptions::default() };
        let error = rig.enter(|core, now| core.start(command, &call, now)).err().expect("a refusal");
        assert_eq!(error.kind(), Kind::InvalidArgument);
    }
    rig.acquire("k", None, None);
    assert_eq!(rig.written(), ["acquire request_id=1 wait_ms=4294967295 lease_ms=30000 k"]);
}

/// Bytes that are drawn at random, half of them from legal frames, at every cut: no panic, and no memory.
#[test]
fn hostile_bytes_end_the_connection_and_nothing_else() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..3000 {
        let (mut rig, _) = Rig::hold(None);
        for _ in 0..8 {
            let mut data: Vec<u8> = match draw(3) {
                0 => encode(
                    Sender::Server,
                    "granted",
                    &[
                        ("request_id", Field::Number(draw(4) as u64)),
                        ("token", Field::Number(draw(12) as u64)),
                        ("waited_ms", Field::Number(draw(100_000) as u64)),
                    ],
                )
                .expect("a frame"),
                1 => encode(
                    Sender::Server,
                    "extended",
                    &[("request_id", Field::Number(draw(4) as u64)), ("lease_ms", Field::Number(draw(100_000) as u64))],
                )
                .expect("a frame"),
                _ => (0..draw(40)).map(|_| draw(256) as u8).collect(),
            };
            if let Some(at) = data.len().checked_sub(1).map(|last| draw(last + 1)) {
                data.truncate(at + draw(2));
            }
            rig.receive(&data);
            rig.written();
            assert!(rig.core.link.rest.len() <= 330, "one unfinished frame at most");
        }
    }
}
