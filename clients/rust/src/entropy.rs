//! Random bytes for client ids and seeds, from the system's own source.

use crate::wire::sha256::sha256;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;

/// 32 random bytes.
///
/// From /dev/urandom where there is one. Elsewhere from the standard library's hash keys, which come from
/// the system; ids and nonces have to differ, they need not be secret (the secret is what proves).
pub(crate) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    let from_device = std::fs::File::open("/dev/urandom").and_then(|mut device| device.read_exact(&mut bytes));
    if from_device.is_ok() {
        return bytes;
    }
    let mut drawn = Vec::new();
    for _ in 0..4 {
        drawn.extend_from_slice(&RandomState::new().build_hasher().finish().to_be_bytes());
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    drawn.extend_from_slice(&now.as_nanos().to_be_bytes());
    drawn.extend_from_slice(&std::process::id().to_be_bytes());
    sha256(&[&drawn])
}
