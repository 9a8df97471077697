//! The frames that a client sends, each made in one piece.

use super::constants_gen::{HEADER_BYTES, OP_ACQUIRE, OP_ACQUIRE_SET, OP_CANCEL, OP_EXTEND, OP_PING, OP_RELEASE};

/// A frame that has its header; the body is to be of this length.
pub(crate) fn begin(op: u8, body: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + body);
    frame.push(op);
    frame.extend_from_slice(&u16::try_from(body).unwrap_or(u16::MAX).to_be_bytes());
    frame
}

/// A: asks for one key.
#[must_use]
pub fn acquire(request_id: u64, wait_ms: u32, lease_ms: u32, key: &[u8]) -> Vec<u8> {
    let mut frame = begin(OP_ACQUIRE, 16 + key.len());
    frame.extend_from_slice(&request_id.to_be_bytes());
    frame.extend_from_slice(&wait_ms.to_be_bytes());
    frame.extend_from_slice(&lease_ms.to_be_bytes());
    frame.extend_from_slice(key);
    frame
}

/// S: asks for several keys, which must be sorted and different, of at most 255 bytes each.
#[must_use]
pub fn acquire_set(request_id: u64, wait_ms: u32, lease_ms: u32, keys: &[Vec<u8>]) -> Vec<u8> {
    let tail: usize = keys.iter().map(|key| 1 + key.len()).sum();
    let mut frame = begin(OP_ACQUIRE_SET, 17 + tail);
    frame.extend_from_slice(&request_id.to_be_bytes());
    frame.extend_from_slice(&wait_ms.to_be_bytes());
    frame.extend_from_slice(&lease_ms.to_be_bytes());
    frame.push(keys.len() as u8);
    for key in keys {
        frame.push(key.len() as u8);
        frame.extend_from_slice(key);
    }
    frame
}

/// R: ends a ticket.
#[must_use]
pub fn release(request_id: u64, token: u64, key: &[u8]) -> Vec<u8> {
    two_ids(OP_RELEASE, request_id, token, key)
}

/// C: undoes an acquire.
#[must_use]
pub fn cancel(request_id: u64, acquire_id: u64, key: &[u8]) -> Vec<u8> {
    two_ids(OP_CANCEL, request_id, acquire_id, key)
}

fn two_ids(op: u8, first: u64, second: u64, key: &[u8]) -> Vec<u8> {
    let mut frame = begin(op, 16 + key.len());
    frame.extend_from_slice(&first.to_be_bytes());
    frame.extend_from_slice(&second.to_be_bytes());
    frame.extend_from_slice(key);
    frame
}

/// X: makes a lease end later.
#[must_use]
pub fn extend(request_id: u64, token: u64, lease_ms: u32, key: &[u8]) -> Vec<u8> {
    let mut frame = begin(OP_EXTEND, 20 + key.len());
    frame.extend_from_slice(&request_id.to_be_bytes());
    frame.extend_from_slice(&token.to_be_bytes());
    frame.extend_from_slice(&lease_ms.to_be_bytes());
    frame.extend_from_slice(key);
    frame
}

/// P: asks for a sign of life.
#[must_use]
pub fn ping(echo: u64) -> Vec<u8> {
    let mut frame = begin(OP_PING, 8);
    frame.extend_from_slice(&echo.to_be_bytes());
    frame
}
