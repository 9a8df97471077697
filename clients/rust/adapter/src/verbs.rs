//! The verbs, over both APIs of the client's public interface.

use crate::lines::{Answer, Fields, Item};
use crate::Verb;
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ticketing::wire::codec::{decode, encode, Sender, Value};
use ticketing::wire::constants_gen::SPEC_DIGEST;
use ticketing::wire::handshake::{client_nonce, Greeting, Hello, Welcome};
use ticketing::wire::Malformed;
use ticketing::{blocking, Client, Error, Kind, Ticket, TicketRef};

const FEATURES: &str =
    "async,sync,codec_both,detach,async:cancel,async:cancel_after,scope,async:scope_cancel,background,\
                        renewal,events,tls,mtls,unix,ipv6,fractional,contend";
const ACQUIRING: &str = "key keys lease_ms lease_ns wait_ms wait_ns auto_extend try text";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Async,
    Blocking,
}

#[derive(Clone)]
enum AnyClient {
    Async(Client),
    Blocking(blocking::Client),
}

#[derive(Clone)]
enum Handle {
    Async(TicketRef),
    Blocking(blocking::TicketRef),
}

/// A ticket that must live on, since dropping it would release it.
enum Kept {
    Async { _ticket: Ticket },
    Blocking { _ticket: blocking::Ticket },
}

type Seen = Arc<Mutex<Vec<&'static str>>>;

#[derive(Default)]
struct Names {
    clients: HashMap<String, (AnyClient, Seen)>,
    opened: Vec<AnyClient>,
    tickets: HashMap<String, Handle>,
    kept: Vec<Kept>,
}

/// The clients and tickets that the harness named, and what it can ask of them.
#[derive(Default)]
pub struct Verbs {
    names: Mutex<Names>,
}

/// Why a verb did not go well.
enum Ended {
    Client(Error),
    Codec(Malformed),
    /// The body of a scope raised its own error.
    Body,
    Answer(Answer),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

impl From<Malformed> for Ended {
    fn from(malformed: Malformed) -> Self {
        Self::Codec(malformed)
    }
}

impl Ended {
    fn answer(self) -> Answer {
        match self {
            Self::Client(error) => Answer::err(error.kind().as_str()).with("text", error.to_string().into_bytes()),
            Self::Codec(malformed) => Answer::err("malformed").with("text", malformed.to_string().into_bytes()),
            Self::Body => Answer::err("body"),
            Self::Answer(answer) => answer,
        }
    }
}

type Done = Result<Answer, Ended>;

fn wrong(text: &str) -> Ended {
    Ended::Answer(Answer::fail(text))
}

fn duration(fields: &Fields, name: &str) -> Option<Duration> {
    let ms = fields.number(&format!("{name}_ms")).map(Duration::from_millis);
    ms.or_else(|| fields.number(&format!("{name}_ns")).map(Duration::from_nanos))
}

/// Gives the options that a request names to a builder of either API.
macro_rules! with_options {
    ($builder:expr, $fields:expr, lease) => {{
        let mut builder = $builder;
        if let Some(lease) = duration($fields, "lease") {
            builder = builder.lease(lease);
        }
        if $fields.has("auto_extend") {
            builder = builder.auto_extend($fields.flag("auto_extend"));
        }
        builder
    }};
    ($builder:expr, $fields:expr) => {{
        let mut builder = with_options!($builder, $fields, lease);
        if let Some(wait) = duration($fields, "wait") {
            builder = builder.wait_timeout(wait);
        }
        builder
    }};
}

/// An acquire of a key or a set; a try of a set is one with a wait of 0.
macro_rules! acquire_of {
    ($client:expr, $fields:expr, $always:expr) => {{
        let many = $fields.has("keys");
        let builder = if many {
            $client.acquire_set($fields.list("keys"))
        } else {
            $client.acquire($fields.bytes("key").unwrap_or_default())
        };
        let builder = with_options!(builder, $fields);
        if (many || $always) && $fields.flag("try") {
            builder.wait_timeout(Duration::ZERO)
        } else {
            builder
        }
    }};
}

impl Verbs {
    /// What a verb takes beside the names that all take; none where there is no such verb.
    pub fn takes(verb: &str) -> Option<String> {
        Some(match verb {
            "hello" | "ping" | "close" | "events" => String::new(),
            "encode" => "dir frame version client_id connection client_nonce mac label request_id wait_ms lease_ms key \
                         keys token acquire_id echo role keepalive_s fingerprint proof leader waited_ms reason code text"
                .into(),
            "decode" => "dir frame wire".into(),
            "mac" => "secret greeting version client_id connection client_nonce label".into(),
            "proof" => "secret greeting client_nonce role keepalive_s fingerprint leader".into(),
            "nonce" => "seed connection".into(),
            "open" => "api url secret client_id seed label name key_prefix lease_ms wait_ms connect_for_ms \
                       reply_timeout_ms release_on_close fingerprint tls_ca tls_cert tls_key tls_server_name"
                .into(),
            "acquire" => ACQUIRING.into(),
            "scope" => format!("{ACQUIRING} hold_ms raise"),
            "contend" => format!("{ACQUIRING} times file"),
            "adopt" => "reference lease_ms lease_ns auto_extend".into(),
            "release" | "hand_over" | "ticket" => "ticket".into(),
            "extend" => "ticket lease_ms lease_ns".into(),
            "wait_lost" => "ticket timeout_ms".into(),
            _ => return None,
        })
    }

    pub async fn run(self: Arc<Self>, verb: String, fields: Fields) -> Answer {
        let below_zero = |item: &Item| matches!(item, Item::Number(number) if *number < 0);
        if fields.names().any(|name| name.ends_with("_ms") && fields.items(name).iter().any(below_zero)) {
            return Answer::unsupported(); // A std::time::Duration has no sign.
        }
        let done = match verb.as_str() {
            "hello" => Ok(Answer::ok()
                .with("protocol", 1)
                .with("language", "rust")
                .with("client", ticketing::VERSION)
                .with("runtime", concat!("edition2021-", env!("CARGO_PKG_VERSION")))
                .with("features", FEATURES)
                .with("digest", SPEC_DIGEST)),
            "encode" => do_encode(&fields),
            "decode" => do_decode(&fields),
            "mac" => do_mac(&fields),
            "proof" => do_proof(&fields),
            "nonce" => {
                let nonce = client_nonce(
                    &fields.bytes("seed").unwrap_or_default(),
                    fields.number("connection").unwrap_or_default(),
                );
                Ok(Answer::ok().with("nonce", nonce.to_vec()))
            }
            "open" => self.open(&fields).await,
            "acquire" => self.acquire(&fields).await.and_then(|handle| self.name(&fields, handle)),
            "scope" => self.scope(&fields).await,
            "contend" => self.contend(&fields).await,
            "adopt" => self.adopt(&fields).await,
            "release" => self.release(&fields).await,
            "extend" => self.extend(&fields).await,
            "hand_over" => self.hand_over(&fields).await,
            "ticket" => self.ticket(&fields).map(|handle| ticket_answer(&handle)),
            "wait_lost" => self.wait_lost(&fields).await,
            "ping" => self.ping(&fields).await,
            "close" => match self.client(&fields) {
                Ok((client, _)) => Ok(close(client).await),
                Err(ended) => Err(ended),
            },
            "events" => self.client(&fields).map(|(_, seen)| {
                let kinds = std::mem::take(&mut *seen.lock().expect("the events"));
                Answer::ok().with("events", kinds.join(","))
            }),
            _ => Ok(Answer::unsupported()),
        };
        done.unwrap_or_else(Ended::answer)
    }

    fn names(&self) -> std::sync::MutexGuard<'_, Names> {
        self.names.lock().expect("the names")
    }

    pub fn api_of(&self, fields: &Fields) -> Api {
        let names = self.names();
        if fields.has("api") {
            return if fields.word("api") == "sync" { Api::Blocking } else { Api::Async };
        }
        if let Some(handle) = names.tickets.get(&fields.word("ticket")) {
            return if matches!(handle, Handle::Blocking(_)) { Api::Blocking } else { Api::Async };
        }
        match names.clients.get(&or(fields.word("client"), "c")) {
            Some((AnyClient::Blocking(_), _)) => Api::Blocking,
            _ => Api::Async,
        }
    }

    fn client(&self, fields: &Fields) -> Result<(AnyClient, Seen), Ended> {
        let name = or(fields.word("client"), "c");
        self.names().clients.get(&name).cloned().ok_or_else(|| wrong(&format!("no client is named {name}")))
    }

    fn ticket(&self, fields: &Fields) -> Result<Handle, Ended> {
        let name = or(fields.word("ticket"), "t");
        self.names().tickets.get(&name).cloned().ok_or_else(|| wrong(&format!("no ticket is named {name}")))
    }

    fn keep(&self, kept: Kept) {
        self.names().kept.push(kept);
    }

    fn name(&self, fields: &Fields, handle: Handle) -> Done {
        let answer = ticket_answer(&handle);
        self.names().tickets.insert(or(fields.word("as"), "t"), handle);
        Ok(answer)
    }

    pub fn closing(&self) -> Vec<(Api, Verb)> {
        let opened = self.names().opened.clone();
        opened
            .into_iter()
            .map(|client| {
                let api = if matches!(client, AnyClient::Async(_)) { Api::Async } else { Api::Blocking };
                (api, Box::pin(close(client)) as Verb)
            })
            .collect()
    }

    pub fn forget(&self) {
        let forgotten = std::mem::take(&mut *self.names());
        drop(forgotten); // After the lock: dropping tickets enters their clients.
    }

    async fn open(&self, fields: &Fields) -> Done {
        let seen = Seen::default();
        let hook = seen.clone();
        let mut builder = with_options!(Client::builder(), fields)
            .on_event(move |event| hook.lock().expect("the events").push(event.kind()));
        for (name, set) in [
            ("url", ticketing::Builder::url as fn(_, String) -> _),
            ("label", ticketing::Builder::label),
            ("name", ticketing::Builder::name),
        ] {
            if let Some(text) = fields.text(name) {
                builder = set(builder, text);
            }
        }
        for (name, set) in [
            ("secret", ticketing::Builder::secret as fn(_, Vec<u8>) -> _),
            ("key_prefix", ticketing::Builder::key_prefix),
            ("fingerprint", ticketing::Builder::fingerprint),
        ] {
            if let Some(bytes) = fields.bytes(name) {
                builder = set(builder, bytes);
            }
        }
        if let Some(id) = fields.number("client_id") {
            builder = builder.client_id(id);
        }
        if let Some(seed) = fields.bytes("seed") {
            builder = builder.seed(seed.try_into().map_err(|_| wrong("a seed has 16 bytes"))?);
        }
        if let Some(time) = duration(fields, "connect_for") {
            builder = builder.connect_for(time);
        }
        if let Some(time) = duration(fields, "reply_timeout") {
            builder = builder.reply_timeout(time);
        }
        if fields.has("release_on_close") {
            builder = builder.release_on_close(fields.flag("release_on_close"));
        }
        if let Some(tls) = tls_of(fields) {
            builder = builder.tls(tls);
        }
        let client = match self.api_of(fields) {
            Api::Async => AnyClient::Async(builder.connect().await?),
            Api::Blocking => AnyClient::Blocking(builder.connect_blocking()?),
        };
        let mut names = self.names();
        names.opened.push(client.clone());
        names.clients.insert(or(fields.word("as"), "c"), (client, seen));
        Ok(Answer::ok())
    }

    async fn acquire(&self, fields: &Fields) -> Result<Handle, Ended> {
        let held = || Ended::Answer(Answer::err("held"));
        let tries = fields.flag("try") && !fields.has("keys");
        let key = fields.bytes("key").unwrap_or_default();
        match self.client(fields)?.0 {
            AnyClient::Async(client) if tries => {
                let ticket = with_options!(client.try_acquire(key), fields, lease).await?;
                Ok(self.hold(ticket.ok_or_else(held)?))
            }
            AnyClient::Async(client) => Ok(self.hold(acquire_of!(client, fields, false).await?)),
            AnyClient::Blocking(client) if tries => {
                let ticket = with_options!(client.try_acquire(key), fields, lease).call()?;
                Ok(self.hold_blocking(ticket.ok_or_else(held)?))
            }
            AnyClient::Blocking(client) => Ok(self.hold_blocking(acquire_of!(client, fields, false).wait()?)),
        }
    }

    fn hold(&self, ticket: Ticket) -> Handle {
        let handle = Handle::Async(ticket.handle());
        self.keep(Kept::Async { _ticket: ticket });
        handle
    }

    fn hold_blocking(&self, ticket: blocking::Ticket) -> Handle {
        let handle = Handle::Blocking(ticket.handle());
        self.keep(Kept::Blocking { _ticket: ticket });
        handle
    }

    async fn adopt(&self, fields: &Fields) -> Done {
        let reference = fields.word("reference");
        let handle = match self.client(fields)?.0 {
            AnyClient::Async(client) => self.hold(with_options!(client.adopt(reference), fields, lease).await?),
            AnyClient::Blocking(client) => {
                self.hold_blocking(with_options!(client.adopt(reference), fields, lease).call()?)
            }
        };
        self.name(fields, handle)
    }

    async fn release(&self, fields: &Fields) -> Done {
        match self.ticket(fields)? {
            Handle::Async(ticket) => ticket.release().await?,
            Handle::Blocking(ticket) => ticket.release()?,
        }
        Ok(Answer::ok())
    }

    async fn extend(&self, fields: &Fields) -> Done {
        let lease = duration(fields, "lease");
        let remaining = match self.ticket(fields)? {
            Handle::Async(ticket) => {
                ticket.extend(lease).await?;
                ticket.remaining()
            }
            Handle::Blocking(ticket) => {
                ticket.extend(lease)?;
                ticket.remaining()
            }
        };
        Ok(Answer::ok().with("remaining_ms", remaining.as_millis() as u64))
    }

    async fn hand_over(&self, fields: &Fields) -> Done {
        let reference = match self.ticket(fields)? {
            Handle::Async(ticket) => ticket.hand_over().await?,
            Handle::Blocking(ticket) => ticket.hand_over()?,
        };
        Ok(Answer::ok().with("reference", reference))
    }

    async fn wait_lost(&self, fields: &Fields) -> Done {
        let within = Duration::from_millis(fields.number("timeout_ms").unwrap_or(30_000));
        let lost = match self.ticket(fields)? {
            Handle::Async(ticket) => tokio::time::timeout(within, ticket.lost()).await.ok(),
            Handle::Blocking(ticket) => ticket.wait_lost(within),
        };
        lost.map(|_| Answer::ok()).ok_or_else(|| Ended::Answer(Answer::err("pending")))
    }

    async fn ping(&self, fields: &Fields) -> Done {
        match self.client(fields)?.0 {
            AnyClient::Async(client) => client.ping().await?,
            AnyClient::Blocking(client) => client.ping()?,
        }
        Ok(Answer::ok())
    }

    async fn scope(&self, fields: &Fields) -> Done {
        const NAMES: [&str; 3] = ["", "cancelled", "done"];
        let hold = Duration::from_millis(fields.number("hold_ms").unwrap_or_default());
        let ended = &AtomicU8::new(0);
        let finish = || {
            ended.store(2, Ordering::SeqCst);
            if fields.flag("raise") {
                Err(Ended::Body)
            } else {
                Ok(())
            }
        };
        let result = match self.client(fields)?.0 {
            AnyClient::Async(client) => {
                let scope = acquire_of!(client, fields, true).with_ticket(|ticket| async move {
                    ended.store(1, Ordering::SeqCst); // So it stays if the body is dropped while it waits.
                    self.name(fields, Handle::Async(ticket))?;
                    tokio::time::sleep(hold).await;
                    finish()
                });
                scope.await
            }
            AnyClient::Blocking(client) => acquire_of!(client, fields, true).with_ticket(|ticket| {
                self.name(fields, Handle::Blocking(ticket.handle()))?;
                std::thread::sleep(hold);
                finish()
            }),
        };
        let body = NAMES[usize::from(ended.load(Ordering::SeqCst))];
        match result {
            Ok(()) => Ok(Answer::ok().with("body", body)),
            Err(Ended::Client(error)) if error.kind() == Kind::Lost && !body.is_empty() => {
                Ok(Answer::err("lost").with("body", body))
            }
            Err(ended) => Err(ended),
        }
    }

    async fn contend(&self, fields: &Fields) -> Done {
        let path = fields.text("file").unwrap_or_default();
        for _ in 0..fields.number("times").unwrap_or_default() {
            match self.client(fields)?.0 {
                AnyClient::Async(client) => {
                    let ticket = acquire_of!(client, fields, true).await?;
                    count(&path, ticket.token()).map_err(|error| wrong(&error.to_string()))?;
                    ticket.release().await?;
                }
                AnyClient::Blocking(client) => {
                    let ticket = acquire_of!(client, fields, true).wait()?;
                    count(&path, ticket.token()).map_err(|error| wrong(&error.to_string()))?;
                    ticket.release()?;
                }
            }
        }
        Ok(Answer::ok())
    }
}

fn or(word: String, without: &str) -> String {
    if word.is_empty() {
        without.to_owned()
    } else {
        word
    }
}

async fn close(client: AnyClient) -> Answer {
    match client {
        AnyClient::Async(client) => client.close().await,
        AnyClient::Blocking(client) => client.close(),
    }
    Answer::ok()
}

fn ticket_answer(handle: &Handle) -> Answer {
    let ticket: &TicketRef = match handle {
        Handle::Async(ticket) => ticket,
        Handle::Blocking(ticket) => ticket,
    };
    Answer::ok()
        .with("key", ticket.key().to_vec())
        .with("keys", ticket.keys().to_vec())
        .with("token", ticket.token())
        .with("remaining_ms", ticket.remaining().as_millis() as u64)
        .with("lost", u64::from(ticket.is_lost()))
}

/// Adds one to the number in a file, and a token to the list beside it.
fn count(path: &str, token: u64) -> std::io::Result<()> {
    let number: u64 = std::fs::read_to_string(path)?.trim().parse().unwrap_or(0); // An empty file counts as 0.
    std::fs::write(path, (number + 1).to_string())?;
    let mut tokens = std::fs::OpenOptions::new().append(true).create(true).open(format!("{path}.tokens"))?;
    writeln!(tokens, "{token}")
}

fn tls_of(fields: &Fields) -> Option<ticketing::Tls> {
    let mut tls = ticketing::Tls::new();
    if let Some(path) = fields.text("tls_ca") {
        tls = tls.ca_file(path);
    }
    if let (Some(cert), Some(key)) = (fields.text("tls_cert"), fields.text("tls_key")) {
        tls = tls.client_cert(cert, key);
    }
    if let Some(name) = fields.text("tls_server_name") {
        tls = tls.server_name(name);
    }
    ["tls_ca", "tls_cert", "tls_server_name"].iter().any(|name| fields.has(name)).then_some(tls)
}

// Codec plane.

fn sender(fields: &Fields) -> Result<Sender, Ended> {
    match fields.word("dir").as_str() {
        "client" => Ok(Sender::Client),
        "server" => Ok(Sender::Server),
        other => Err(wrong(&format!("dir {other:?}"))),
    }
}

fn do_encode(fields: &Fields) -> Done {
    let mut values = Vec::new();
    for name in fields.names().filter(|name| !["dir", "frame"].contains(name)) {
        let value = match fields.items(name) {
            _ if name == "keys" => Value::Keys(fields.list(name)),
            [Item::Number(number)] => match u64::try_from(*number) {
                Ok(number) => Value::Number(number),
                Err(_) => return Ok(Answer::err("malformed")),
            },
            [Item::Bytes(bytes)] => Value::Bytes(bytes.clone()),
            _ => return Err(wrong(&format!("{name} is no field"))),
        };
        values.push((name, value));
    }
    Ok(Answer::ok().with("wire", encode(sender(fields)?, &fields.word("frame"), &values)?))
}

fn do_decode(fields: &Fields) -> Done {
    let wire = fields.bytes("wire").unwrap_or_default();
    if fields.word("frame") == "greeting" {
        let greeting = Greeting::parse(&wire)?;
        return Ok(Answer::ok()
            .with("frame", "greeting")
            .with("min_version", u64::from(greeting.min_version()))
            .with("max_version", u64::from(greeting.max_version()))
            .with("mode", u64::from(greeting.mode()))
            .with("slot", u64::from(greeting.slot()))
            .with("nonce", greeting.nonce().to_vec()));
    }
    let (frame, values) = decode(sender(fields)?, &wire)?;
    let answer = Answer::ok().with("frame", frame);
    Ok(values.into_iter().fold(answer, |answer, (name, value)| match value {
        Value::Number(number) => answer.with(name, number),
        Value::Bytes(bytes) => answer.with(name, bytes),
        Value::Keys(keys) => answer.with(name, keys),
    }))
}

fn do_mac(fields: &Fields) -> Done {
    let bytes = |name: &str| fields.bytes(name).unwrap_or_default();
    let number = |name: &str| fields.number(name).unwrap_or_default();
    let hello = Hello {
        version: number("version") as u8,
        client_id: number("client_id"),
        connection: number("connection") as u32,
        client_nonce: &bytes("client_nonce"),
        label: &bytes("label"),
    };
    Ok(Answer::ok().with("mac", hello.mac(&bytes("secret"), &bytes("greeting")).to_vec()))
}

fn do_proof(fields: &Fields) -> Done {
    let bytes = |name: &str| fields.bytes(name).unwrap_or_default();
    let welcome = Welcome {
        role: fields.number("role").unwrap_or_default() as u8,
        keepalive_s: fields.number("keepalive_s").unwrap_or_default() as u16,
        fingerprint: &bytes("fingerprint"),
        leader: &bytes("leader"),
    };
    let proof = welcome.proof(&bytes("secret"), &bytes("greeting"), &bytes("client_nonce"));
    Ok(Answer::ok().with("proof", proof.to_vec()))
}
