//! Every golden vector of the spec, through both codecs of this crate.

use std::collections::BTreeMap;
use std::path::Path;
use ticketing::wire::codec::{decode, encode, Fields, Sender, Value};
use ticketing::wire::constants_gen::FINGERPRINT_BYTES;
use ticketing::wire::handshake::{client_nonce, Greeting, Hello, Welcome};
use ticketing::wire::replies::{check_drop_reason, check_error_code, check_welcome, frame_size, Reply};
use ticketing::wire::sha256::sha256;

/// The lines of a stanza, in order.
type Stanza = Vec<(String, String)>;

const OWN_KEYS: [&str; 9] = ["id", "frame", "dir", "flags", "why", "wire", "error", "layer", "answer"];

fn stanzas(file: &str) -> Vec<Stanza> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (comment, rest) = text.split_once('\n').expect("a first line");
    assert!(comment.starts_with('#'));
    let parts = rest.split("\n\n").map(str::trim).filter(|part| !part.is_empty());
    let line = |line: &str| {
        let (key, value) = line.split_once(':').expect("key: value");
        (key.to_owned(), value.strip_prefix(' ').unwrap_or(value).to_owned())
    };
    let found: Vec<Stanza> = parts.map(|part| part.lines().map(line).collect()).collect();
    assert!(!found.is_empty(), "{file} has no vectors");
    found
}

fn value<'a>(stanza: &'a Stanza, key: &str) -> &'a str {
    stanza.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
}

fn from_hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    from_hex(text.strip_prefix("x:").expect("bytes begin with x:"))
}

fn field(name: &str, text: &str) -> Value {
    if name == "keys" {
        Value::Keys(text.split(',').map(bytes).collect())
    } else if text.starts_with("x:") {
        Value::Bytes(bytes(text))
    } else {
        Value::Number(text.parse().expect("a number"))
    }
}

fn fields(stanza: &Stanza) -> Vec<(&str, Value)> {
    let own = stanza.iter().filter(|(name, _)| !OWN_KEYS.contains(&name.as_str()));
    own.map(|(name, text)| (name.as_str(), field(name, text))).collect()
}

fn sender(stanza: &Stanza) -> Sender {
    if value(stanza, "dir") == "client" {
        Sender::Client
    } else {
        Sender::Server
    }
}

#[test]
fn frames_are_encoded_and_decoded() {
    for file in ["v4-client.vec", "v4-server.vec"] {
        for stanza in stanzas(file) {
            let (id, wire) = (value(&stanza, "id"), from_hex(value(&stanza, "wire")));
            let wanted = fields(&stanza);
            let (name, got) = decode(sender(&stanza), &wire).unwrap_or_else(|error| panic!("{id}: {error}"));
            assert_eq!(name, value(&stanza, "frame"), "{id}");
            assert_eq!(got, wanted, "{id}");
            if !value(&stanza, "flags").contains("tolerated") {
                let encoded = encode(sender(&stanza), name, &wanted).unwrap_or_else(|error| panic!("{id}: {error}"));
                assert_eq!(encoded, wire, "{id}");
            }
            if sender(&stanza) == Sender::Server {
                assert_eq!(frame_size(&wire), Ok(Some(wire.len())), "{id}");
                check_reply(id, &Reply::parse(&wire), &got);
            }
        }
    }
}

/// The client's own reader sees what the codec sees.
fn check_reply(id: &str, reply: &Reply<'_>, fields: &Fields) {
    for (name, value) in fields {
        let same = match (*name, value) {
            ("request_id" | "echo", Value::Number(number)) => reply.id == *number,
            ("token", Value::Number(number)) => reply.token == *number,
            ("waited_ms" | "lease_ms", Value::Number(number)) => u64::from(reply.ms) == *number,
            ("code" | "reason" | "role", Value::Number(number)) => u64::from(reply.code) == *number,
            ("keepalive_s", Value::Number(number)) => u64::from(reply.keepalive_s) == *number,
            ("fingerprint", Value::Bytes(bytes)) => reply.fingerprint == bytes,
            ("proof", Value::Bytes(bytes)) => reply.proof == bytes,
            ("leader" | "text", Value::Bytes(bytes)) => reply.tail == bytes,
            _ => panic!("{id}: {name} is not known here"),
        };
        assert!(same, "{id}: {name} is {value:?}, read as {reply:?}");
    }
}

#[test]
fn malformed_frames_are_refused() {
    for file in ["v4-client-malformed.vec", "v4-server-malformed.vec"] {
        for stanza in stanzas(file) {
            let (id, wire, layer) = (value(&stanza, "id"), from_hex(value(&stanza, "wire")), value(&stanza, "layer"));
            let error = decode(sender(&stanza), &wire).err();
            assert_eq!(error.as_ref().map(|error| error.layer), Some(layer), "{id}: {error:?}");
            if sender(&stanza) == Sender::Server && layer != "stream" {
                assert!(!reader_takes(&wire), "{id}: the client's reader takes it");
            }
        }
    }
}

/// Whether the client's own reader finds nothing wrong with a frame.
fn reader_takes(wire: &[u8]) -> bool {
    match frame_size(wire) {
        Err(_) => false,
        Ok(size) => {
            let size = size.expect("a whole header");
            let reply = Reply::parse(&wire[..size]);
            match reply.op {
                b'W' => check_welcome(reply.code, reply.keepalive_s).is_ok(),
                b'D' => check_drop_reason(reply.code).is_ok(),
                b'E' => check_error_code(reply.code).is_ok(),
                _ => true,
            }
        }
    }
}

#[test]
fn greetings_are_read_or_refused() {
    for stanza in stanzas("v4-preambles.vec") {
        let (id, wire) = (value(&stanza, "id"), from_hex(value(&stanza, "wire")));
        let read = Greeting::parse(&wire);
        if !value(&stanza, "error").is_empty() {
            assert!(read.is_err(), "{id}");
            continue;
        }
        let greeting = read.unwrap_or_else(|error| panic!("{id}: {error}"));
        let number = |name: &str| value(&stanza, name).parse::<u8>().expect("a number");
        assert_eq!(greeting.min_version(), number("min_version"), "{id}");
        assert_eq!(greeting.max_version(), number("max_version"), "{id}");
        assert_eq!(greeting.mode(), number("mode"), "{id}");
        assert_eq!(greeting.slot(), number("slot"), "{id}");
        assert_eq!(greeting.nonce(), bytes(value(&stanza, "nonce")), "{id}");
    }
}

#[test]
fn hashes_have_their_results() {
    let mut seen = BTreeMap::new();
    for stanza in stanzas("v4-hashes.vec") {
        let data = |name: &str| bytes(value(&stanza, name));
        let number = |name: &str| value(&stanza, name).parse::<u64>().expect("a number");
        let hash = value(&stanza, "hash");
        let result: Vec<u8> = match hash {
            "client_mac" => Hello {
                version: number("version") as u8,
                client_id: number("client_id"),
                connection: number("connection") as u32,
                client_nonce: &data("client_nonce"),
                label: &data("label"),
            }
            .mac(&data("secret"), &data("greeting"))
            .into(),
            "proof" => Welcome {
                role: number("role") as u8,
                keepalive_s: number("keepalive_s") as u16,
                fingerprint: &data("fingerprint"),
                leader: &data("leader"),
            }
            .proof(&data("secret"), &data("greeting"), &data("client_nonce"))
            .into(),
            "client_nonce" => client_nonce(&data("seed"), number("connection")).into(),
            "fingerprint" => sha256(&[b"ticketing/cluster", &data("cluster_id")]).into(),
            "fingerprint_standalone" => vec![0; FINGERPRINT_BYTES],
            other => panic!("the hash {other} is not known here"),
        };
        assert_eq!(result, bytes(value(&stanza, "result")), "{}", value(&stanza, "id"));
        *seen.entry(hash.to_owned()).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}
