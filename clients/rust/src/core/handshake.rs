//! Greeting, hello, welcome, and the frames that are about the connection itself.

use super::arguments::sanitised;
use super::link::{LinkState, KEEPALIVE_ECHO};
use super::replies::said;
use super::requests::{OutItem, NS_PER_MS};
use super::urls::{parse_address, Endpoint};
use super::{Broken, Core};
use crate::errors::{Error, Kind};
use crate::wire::constants_gen::{
    error, CLIENT_HANDSHAKE_TIMEOUT_MS, ERROR_AUTH_FAILED, ERROR_NOT_SERVING, GREETING_BYTES, PROTOCOL_VERSION,
    REPLY_ERROR, REPLY_LEADER, REPLY_PING, REPLY_WELCOME, ROLE_FOLLOWER, ROLE_UNKNOWN,
};
use crate::wire::handshake::{client_nonce, Greeting, Hello, Welcome};
use crate::wire::replies::{check_error_code, check_welcome, frame_size, Reply};
use crate::wire::sha256::same;

/// First bytes of a peer that speaks TLS.
const TLS_RECORDS: [u8; 2] = [0x15, 0x16];

impl Core {
    /// Collects the greeting and answers it with a hello; tells how many bytes were taken.
    pub(super) fn read_greeting(&mut self, data: &[u8], now_ns: i64) -> Result<usize, Broken> {
        let link = &mut self.link;
        let taken = data.len().min(GREETING_BYTES - link.greeting.len());
        link.greeting.extend_from_slice(&data[..taken]);
        if !Greeting::may_begin(&link.greeting) {
            let hint = if TLS_RECORDS.contains(&link.greeting[0]) { " (it speaks TLS: use ticketings://)" } else { "" };
            return Err(Broken::new(format!("no greeting of a ticketing server{hint}")));
        }
        if link.greeting.len() < GREETING_BYTES {
            return Ok(taken);
        }
        let greeting = Greeting::parse(&link.greeting)?;
        if !greeting.speaks_our_version() {
            let text = format!(
                "no common version: the server speaks {} to {}, this client {PROTOCOL_VERSION}",
                greeting.min_version(),
                greeting.max_version()
            );
            self.drop_link(Error::new(Kind::Protocol, text), now_ns);
            return Err(Broken::Left);
        }
        link.hellos += 1;
        link.nonce = client_nonce(&self.settings.seed, u64::from(link.hellos));
        let hello = Hello {
            version: PROTOCOL_VERSION,
            client_id: self.settings.client_id,
            connection: link.hellos,
            client_nonce: &link.nonce,
            label: &self.settings.label,
        };
        let frame = hello.frame(&self.settings.secret, &link.greeting);
        link.outgoing.push(OutItem::Frame(frame));
        link.state = LinkState::HelloSent;
        self.set_link_due(now_ns + i64::from(CLIENT_HANDSHAKE_TIMEOUT_MS) * NS_PER_MS);
        Ok(taken)
    }

    /// Carries out the frames that are whole; keeps at most one that is not.
    pub(super) fn read_replies(&mut self, serial: u64, data: &[u8], now_ns: i64) -> Result<(), Broken> {
        let mut joined = std::mem::take(&mut self.link.rest);
        let mut data = if joined.is_empty() {
            data
        } else {
            joined.extend_from_slice(data);
            &joined
        };
        while let Some(size) = frame_size(data)?.filter(|size| *size <= data.len()) {
            let (frame, after) = data.split_at(size);
            self.read_frame(&Reply::parse(frame), now_ns)?;
            if serial != self.link.serial || !self.link.exists() {
                return Err(Broken::Left);
            }
            data = after;
        }
        if !data.is_empty() {
            self.link.rest = data.to_vec();
        }
        Ok(())
    }

    fn read_frame(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        let state = self.link.state;
        match (reply.op, state) {
            (REPLY_ERROR, _) => self.read_refusal(reply, now_ns),
            (REPLY_WELCOME, LinkState::HelloSent) => self.read_welcome(reply, now_ns),
            (REPLY_LEADER, LinkState::Ready | LinkState::Leaderless) => self.leader_moved(reply.tail, now_ns),
            (REPLY_PING, LinkState::Ready) if reply.id == KEEPALIVE_ECHO => {
                if !self.link.ping_unanswered {
                    return Err(Broken::new("a reply to a ping that was not sent"));
                }
                self.link.ping_unanswered = false;
                self.set_silence_deadline(); // The next ping may be due before the death was.
                Ok(())
            }
            (_, LinkState::Ready) => self.link_reply(reply, now_ns),
            (op, state) => Err(Broken::new(format!("a frame {} in the state {state:?}", char::from(op)))),
        }
    }

    fn link_reply(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        if self.read_reply(reply, now_ns)? {
            self.not_serving(&said(reply.code, reply.tail), now_ns);
        }
        Ok(())
    }

    fn read_welcome(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        let welcome = Welcome {
            role: reply.code,
            keepalive_s: reply.keepalive_s,
            fingerprint: reply.fingerprint,
            leader: reply.tail,
        };
        let proof = welcome.proof(&self.settings.secret, &self.link.greeting, &self.link.nonce);
        if !same(&proof, reply.proof) {
            let text = "the server can't prove that it knows the secret of this client";
            self.drop_link(Error::new(Kind::Auth, text), now_ns);
            return Ok(());
        }
        if self.settings.fingerprint.is_some_and(|pinned| pinned != reply.fingerprint) {
            let hex: String = reply.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = format!("the server is of another cluster: its fingerprint is {hex}");
            self.drop_link(Error::new(Kind::Auth, text), now_ns);
            return Ok(());
        }
        check_welcome(reply.code, reply.keepalive_s)?;
        let named = leader_endpoint(reply.tail)?;
        self.link.rounds.welcomed = true;
        self.set_keepalive(reply.keepalive_s);
        match (reply.code, named) {
            (ROLE_FOLLOWER, None) => return Err(Broken::new("a follower names no leader")),
            (ROLE_FOLLOWER, Some(leader)) => {
                let text = format!("a follower; it names {leader} as leader");
                self.name_leader(Some(leader));
                self.drop_link(Error::new(Kind::Connection, text), now_ns);
            }
            (ROLE_UNKNOWN, _) => self.wait_for_leader(now_ns),
            (_, named) => {
                if named.is_some() {
                    self.name_leader(named);
                }
                self.become_ready(now_ns);
            }
        }
        Ok(())
    }

    fn name_leader(&mut self, leader: Option<Endpoint>) {
        if let Some(by) = self.link.endpoint.clone() {
            self.link.rounds.leader_named(leader, by);
        }
    }

    fn read_refusal(&mut self, reply: &Reply<'_>, now_ns: i64) -> Result<(), Broken> {
        check_error_code(reply.code)?;
        let (name, kind, closes, _) = error(reply.code).unwrap_or(("", "", false, ""));
        let mut text = said(reply.code, reply.tail);
        if self.link.is_ready() {
            if reply.id != 0 {
                return self.link_reply(reply, now_ns);
            }
            if reply.code == ERROR_NOT_SERVING {
                self.not_serving(&text, now_ns);
            } else if !closes {
                return Err(Broken::new(format!("{name} without a request")));
            } else {
                self.link_is_refused(reply.code, &text, now_ns);
            }
            return Ok(());
        }
        let kind = match kind {
            "auth" => Kind::Auth,
            "protocol" => Kind::Protocol,
            _ => Kind::Connection,
        };
        if reply.code == ERROR_AUTH_FAILED {
            text += " (set the server's secret as option secret or in TICKETING_SECRET)";
        }
        self.drop_link(Error::new(kind, text), now_ns);
        Ok(())
    }

    fn leader_moved(&mut self, leader: &[u8], now_ns: i64) -> Result<(), Broken> {
        let named = leader_endpoint(leader)?;
        let to = named.as_ref().map_or_else(|| "elsewhere".to_owned(), |leader| format!("to {leader}"));
        self.link.rounds.try_again(named.as_ref());
        self.name_leader(named);
        self.reconnect(&format!("the server sends its clients {to}"), now_ns);
        Ok(())
    }
}

/// The endpoint that a server names; none where it names none.
fn leader_endpoint(leader: &[u8]) -> Result<Option<Endpoint>, Broken> {
    if leader.is_empty() {
        return Ok(None);
    }
    let named = std::str::from_utf8(leader).ok().and_then(|text| parse_address(text, None));
    match named {
        Some(named) => Ok(Some(named)),
        None => Err(Broken::new(format!("the leader {:?} is no host:port", sanitised(leader)))),
    }
}
