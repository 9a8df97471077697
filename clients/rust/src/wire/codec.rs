//! Every frame of both sides by name, field by field. For tests and tools: the client itself makes its
//! frames in `requests` and reads those of a server in `replies`.

use super::constants_gen::{
    client_body_bytes, server_body_bytes, CLIENT_MAC_BYTES, CLIENT_NONCE_BYTES, FINGERPRINT_BYTES, HEADER_BYTES,
    KEY_BYTES_MAX, KEY_BYTES_MIN, LEASE_MS_MAX, LEASE_MS_MIN, OP_ACQUIRE, OP_ACQUIRE_SET, OP_CANCEL, OP_EXTEND,
    OP_HELLO, OP_PING, OP_RELEASE, PROOF_BYTES, REPLY_CANCELLED, REPLY_DROPPED, REPLY_ERROR, REPLY_EXTENDED,
    REPLY_GRANTED, REPLY_LEADER, REPLY_NOT_HELD, REPLY_OVERLOADED, REPLY_PING, REPLY_RELEASED, REPLY_TIMED_OUT,
    REPLY_WELCOME, SET_KEYS_MAX, SET_KEYS_MIN,
};
use super::replies::{check_drop_reason, check_error_code, check_welcome};
use super::{malformed, Malformed};

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    Keys(Vec<Vec<u8>>),
}

/// Fields by name, in the order of the bytes.
pub type Fields = Vec<(&'static str, Value)>;

/// Who sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

impl Sender {
    fn layouts(self) -> &'static [Layout] {
        match self {
            Self::Client => CLIENT_FRAMES,
            Self::Server => SERVER_FRAMES,
        }
    }

    fn check_length(self, layer: &'static str, op: u8, length: usize) -> Result<(), Malformed> {
        let bounds = match self {
            Self::Client => client_body_bytes(op),
            Self::Server => server_body_bytes(op),
        };
        match bounds {
            Some((low, high)) if (low..=high).contains(&length) => Ok(()),
            _ => Err(malformed(layer, format!("a body of {length} bytes, which {} does not take", char::from(op)))),
        }
    }
}

/// A fixed field: an integer of 1, 2, 4 or 8 bytes, or a run of raw bytes.
#[derive(Clone, Copy)]
enum Field {
    Integer(&'static str, usize),
    Raw(&'static str, usize),
}

struct Layout {
    name: &'static str,
    op: u8,
    fixed: &'static [Field],
    tail: &'static str,
}

const fn layout(name: &'static str, op: u8, fixed: &'static [Field], tail: &'static str) -> Layout {
    Layout { name, op, fixed, tail }
}

const REQUEST_ID: Field = Field::Integer("request_id", 8);
const WAIT_MS: Field = Field::Integer("wait_ms", 4);
const LEASE_MS: Field = Field::Integer("lease_ms", 4);
const TOKEN: Field = Field::Integer("token", 8);
const ECHO: Field = Field::Integer("echo", 8);

const HELLO_FIELDS: &[Field] = &[
    Field::Integer("version", 1),
    Field::Integer("client_id", 8),
    Field::Integer("connection", 4),
    Field::Raw("client_nonce", CLIENT_NONCE_BYTES),
    Field::Raw("mac", CLIENT_MAC_BYTES),
];
const WELCOME_FIELDS: &[Field] = &[
    Field::Integer("role", 1),
    Field::Integer("keepalive_s", 2),
    Field::Raw("fingerprint", FINGERPRINT_BYTES),
    Field::Raw("proof", PROOF_BYTES),
];

const CLIENT_FRAMES: &[Layout] = &[
    layout("hello", OP_HELLO, HELLO_FIELDS, "label"),
    layout("acquire", OP_ACQUIRE, &[REQUEST_ID, WAIT_MS, LEASE_MS], "key"),
    layout("acquire_set", OP_ACQUIRE_SET, &[REQUEST_ID, WAIT_MS, LEASE_MS], "keys"),
    layout("release", OP_RELEASE, &[REQUEST_ID, TOKEN], "key"),
    layout("extend", OP_EXTEND, &[REQUEST_ID, TOKEN, LEASE_MS], "key"),
    layout("cancel", OP_CANCEL, &[REQUEST_ID, Field::Integer("acquire_id", 8)], "key"),
    layout("ping", OP_PING, &[ECHO], ""),
];

const SERVER_FRAMES: &[Layout] = &[
    layout("welcome", REPLY_WELCOME, WELCOME_FIELDS, "leader"),
    layout("granted", REPLY_GRANTED, &[REQUEST_ID, TOKEN, Field::Integer("waited_ms", 4)], ""),
    layout("timed_out", REPLY_TIMED_OUT, &[REQUEST_ID], ""),
    layout("overloaded", REPLY_OVERLOADED, &[REQUEST_ID], ""),
    layout("released", REPLY_RELEASED, &[REQUEST_ID], ""),
    layout("not_held", REPLY_NOT_HELD, &[REQUEST_ID], ""),
    layout("extended", REPLY_EXTENDED, &[REQUEST_ID, LEASE_MS], ""),
    layout("cancelled", REPLY_CANCELLED, &[REQUEST_ID], ""),
    layout("dropped", REPLY_DROPPED, &[TOKEN, Field::Integer("reason", 1)], ""),
    layout("leader", REPLY_LEADER, &[], "leader"),
    layout("error", REPLY_ERROR, &[REQUEST_ID, Field::Integer("code", 1)], "text"),
    layout("ping", REPLY_PING, &[ECHO], ""),
];

/// A whole frame, header included. Each value has to be there, and no other.
pub fn encode(from: Sender, name: &str, values: &[(&str, Value)]) -> Result<Vec<u8>, Malformed> {
    let Some(layout) = from.layouts().iter().find(|layout| layout.name == name) else {
        return Err(malformed("frame", format!("{from:?} sends no frame {name:?}")));
    };
    let value = |wanted: &str| {
        let found = values.iter().find(|(name, _)| *name == wanted);
        found.map(|(_, value)| value).ok_or_else(|| malformed("body", format!("{name} lacks {wanted}")))
    };
    let mut frame = vec![layout.op, 0, 0];
    for field in layout.fixed {
        match *field {
            Field::Integer(name, size) => push_integer(&mut frame, name, size, value(name)?)?,
            Field::Raw(name, size) => match value(name)? {
                Value::Bytes(bytes) if bytes.len() == size => frame.extend_from_slice(bytes),
                other => return Err(malformed("body", format!("{name} is {other:?}, not {size} bytes"))),
            },
        }
    }
    if !layout.tail.is_empty() {
        match value(layout.tail)? {
            Value::Bytes(bytes) if layout.tail != "keys" => frame.extend_from_slice(bytes),
            Value::Keys(keys) if layout.tail == "keys" => push_keys(&mut frame, keys)?,
            other => return Err(malformed("body", format!("{} is {other:?}", layout.tail))),
        }
    }
    if values.len() != layout.fixed.len() + usize::from(!layout.tail.is_empty()) {
        return Err(malformed("body", format!("{name} does not take all of these {} fields", values.len())));
    }
    let length = frame.len() - HEADER_BYTES;
    from.check_length("body", layout.op, length)?;
    let length = u16::try_from(length).map_err(|_| malformed("body", "too long"))?;
    frame[1..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    decode(from, &frame)?;
    Ok(frame)
}

fn push_integer(frame: &mut Vec<u8>, name: &str, size: usize, value: &Value) -> Result<(), Malformed> {
    match value {
        Value::Number(number) if size == 8 || number >> (8 * size) == 0 => {
            frame.extend_from_slice(&number.to_be_bytes()[8 - size..]);
            Ok(())
        }
        other => Err(malformed("body", format!("{name} is {other:?}, which does not fit {size} bytes"))),
    }
}

fn push_keys(frame: &mut Vec<u8>, keys: &[Vec<u8>]) -> Result<(), Malformed> {
    let count = u8::try_from(keys.len()).map_err(|_| malformed("body", format!("{} keys", keys.len())))?;
    frame.push(count);
    for key in keys {
        frame.push(u8::try_from(key.len()).map_err(|_| malformed("body", format!("a key of {} bytes", key.len())))?);
        frame.extend_from_slice(key);
    }
    Ok(())
}

/// Name and fields of one whole frame.
pub fn decode(from: Sender, frame: &[u8]) -> Result<(&'static str, Fields), Malformed> {
    let op = *frame.first().ok_or_else(|| malformed("stream", "no bytes"))?;
    let Some(layout) = from.layouts().iter().find(|layout| layout.op == op) else {
        return Err(malformed("frame", format!("{from:?} sends no op 0x{op:02x}")));
    };
    if frame.len() < HEADER_BYTES {
        return Err(malformed("stream", "the header is cut off"));
    }
    let length = usize::from(frame[1]) << 8 | usize::from(frame[2]);
    from.check_length("frame", op, length)?;
    let mut body = &frame[HEADER_BYTES..];
    if body.len() != length {
        return Err(malformed("stream", format!("the body has {} bytes, not {length}", body.len())));
    }
    let mut fields = Fields::new();
    for field in layout.fixed {
        let (Field::Integer(name, size) | Field::Raw(name, size)) = *field;
        let (data, rest) = body.split_at(size);
        body = rest;
        let value = match field {
            Field::Integer(..) => Value::Number(data.iter().fold(0, |all, &byte| all << 8 | u64::from(byte))),
            Field::Raw(..) => Value::Bytes(data.to_vec()),
        };
        check_value(from, layout.name, name, &value, &fields)?;
        fields.push((name, value));
    }
    match layout.tail {
        "" => {}
        "keys" => fields.push(("keys", Value::Keys(parse_keys(body)?))),
        tail => {
            if tail == "label" && !is_label(body) {
                return Err(malformed("body", "label has bytes other than printable ASCII without space"));
            }
            fields.push((tail, Value::Bytes(body.to_vec())));
        }
    }
    Ok((layout.name, fields))
}

fn check_value(from: Sender, frame: &str, name: &str, value: &Value, before: &Fields) -> Result<(), Malformed> {
    let Value::Number(number) = *value else { return Ok(()) };
    let byte = u8::try_from(number).unwrap_or(u8::MAX);
    match (from, frame, name) {
        (Sender::Client, _, "lease_ms") => {
            if !(u64::from(LEASE_MS_MIN)..=u64::from(LEASE_MS_MAX)).contains(&number) {
                return Err(malformed("body", format!("lease_ms {number} is not {LEASE_MS_MIN} to {LEASE_MS_MAX}")));
            }
            Ok(())
        }
        (Sender::Server, "welcome", "keepalive_s") => match before.first() {
            Some((_, Value::Number(role))) => {
                check_welcome(u8::try_from(*role).unwrap_or(u8::MAX), u16::try_from(number).unwrap_or(u16::MAX))
            }
            _ => Ok(()),
        },
        (Sender::Server, "dropped", "reason") => check_drop_reason(byte),
        (Sender::Server, "error", "code") => check_error_code(byte),
        _ => Ok(()),
    }
}

/// Whether text is printable ASCII without space.
#[must_use]
pub fn is_label(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}

fn parse_keys(tail: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let wrong = |why: &str| malformed("body", format!("keys: {why}"));
    let (&count, mut rest) = tail.split_first().ok_or_else(|| wrong("no count"))?;
    if !(SET_KEYS_MIN..=SET_KEYS_MAX).contains(&usize::from(count)) {
        return Err(wrong("not 2 to 16 of them"));
    }
    let mut keys: Vec<Vec<u8>> = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let (&length, after) = rest.split_first().ok_or_else(|| wrong("they end early"))?;
        let length = usize::from(length);
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&length) || length > after.len() {
            return Err(wrong("a key is too short, too long or cut off"));
        }
        let (key, after) = after.split_at(length);
        if keys.last().is_some_and(|before| before.as_slice() >= key) {
            return Err(wrong("they are not strictly rising"));
        }
        keys.push(key.to_vec());
        rest = after;
    }
    if rest.is_empty() {
        Ok(keys)
    } else {
        Err(wrong("they do not fill the body"))
    }
}
