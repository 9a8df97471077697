//! A server's frames as the client reads them.

use super::constants_gen::{
    error, server_body_bytes, DROP_LEASE_OVER, DROP_OTHER_CLIENT, FINGERPRINT_BYTES, HEADER_BYTES, KEEPALIVE_S_MAX,
    KEEPALIVE_S_MIN, PROOF_BYTES, REPLY_DROPPED, REPLY_ERROR, REPLY_EXTENDED, REPLY_GRANTED, REPLY_LEADER,
    REPLY_WELCOME, ROLE_UNKNOWN,
};
use super::{malformed, Malformed};

/// A server's frame. Which fields count depends on `op`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reply<'a> {
    pub op: u8,
    /// The request id; of a ping the echo.
    pub id: u64,
    /// Of a granted or dropped ticket.
    pub token: u64,
    /// The time of a grant (waited) or an extend (lease).
    pub ms: u32,
    /// The code of an error, the reason of a drop, the role of a welcome.
    pub code: u8,
    pub keepalive_s: u16,
    pub fingerprint: &'a [u8],
    pub proof: &'a [u8],
    /// The leader's address, or an error's text.
    pub tail: &'a [u8],
}

/// The size of the frame that data begins with, header included; none while that can't be known.
pub fn frame_size(data: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(&op) = data.first() else { return Ok(None) };
    let Some((low, high)) = server_body_bytes(op) else {
        return Err(malformed("frame", format!("op 0x{op:02x} is unknown")));
    };
    if data.len() < HEADER_BYTES {
        return Ok(None);
    }
    let length = usize::from(u16_at(data, 1));
    if !(low..=high).contains(&length) {
        let why = format!("a body of {length} bytes, where {} takes {low} to {high}", char::from(op));
        return Err(malformed("frame", why));
    }
    Ok(Some(HEADER_BYTES + length))
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    data[at..at + 2].iter().fold(0, |all, &byte| all << 8 | u16::from(byte))
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    data[at..at + 4].iter().fold(0, |all, &byte| all << 8 | u32::from(byte))
}

fn u64_at(data: &[u8], at: usize) -> u64 {
    data[at..at + 8].iter().fold(0, |all, &byte| all << 8 | u64::from(byte))
}

impl<'a> Reply<'a> {
    /// Reads a whole frame whose size is the one that `frame_size` found.
    #[must_use]
    pub fn parse(frame: &'a [u8]) -> Self {
        let op = frame[0];
        let body = &frame[HEADER_BYTES..];
        let none = Self { op, ..Self::default() };
        match op {
            REPLY_WELCOME => {
                let (fingerprint, rest) = body[3..].split_at(FINGERPRINT_BYTES);
                let (proof, tail) = rest.split_at(PROOF_BYTES);
                Self { code: body[0], keepalive_s: u16_at(body, 1), fingerprint, proof, tail, ..none }
            }
            REPLY_LEADER => Self { tail: body, ..none },
            REPLY_DROPPED => Self { token: u64_at(body, 0), code: body[8], ..none },
            REPLY_ERROR => Self { id: u64_at(body, 0), code: body[8], tail: &body[9..], ..none },
            REPLY_GRANTED => Self { id: u64_at(body, 0), token: u64_at(body, 8), ms: u32_at(body, 16), ..none },
            REPLY_EXTENDED => Self { id: u64_at(body, 0), ms: u32_at(body, 8), ..none },
            _ => Self { id: u64_at(body, 0), ..none },
        }
    }
}

/// Refuses a role or a `keepalive_s` that no server has.
pub fn check_welcome(role: u8, keepalive_s: u16) -> Result<(), Malformed> {
    if role > ROLE_UNKNOWN {
        return Err(malformed("body", format!("role {role} is unknown")));
    }
    if !(KEEPALIVE_S_MIN..=KEEPALIVE_S_MAX).contains(&u32::from(keepalive_s)) {
        let why = format!("keepalive_s {keepalive_s} is not {KEEPALIVE_S_MIN} to {KEEPALIVE_S_MAX}");
        return Err(malformed("body", why));
    }
    Ok(())
}

/// Refuses a reason of a drop that version 4 does not have.
pub fn check_drop_reason(reason: u8) -> Result<(), Malformed> {
    if (DROP_LEASE_OVER..=DROP_OTHER_CLIENT).contains(&reason) {
        return Ok(());
    }
    Err(malformed("body", format!("reason {reason} is unknown")))
}

/// Refuses a code of an error that version 4 does not have.
pub fn check_error_code(code: u8) -> Result<(), Malformed> {
    match error(code) {
        Some(_) => Ok(()),
        None => Err(malformed("body", format!("code {code} is unknown"))),
    }
}
