//! Bytes of the protocol, without a client around them. Not part of the API: it may change in any version.

pub mod codec;
#[rustfmt::skip]
#[allow(missing_docs)]
pub mod constants_gen;
pub mod handshake;
pub mod replies;
pub mod requests;
pub mod sha256;

use std::fmt;

/// Bytes or values that no correct peer sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// stream, frame, body or state.
    pub layer: &'static str,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Malformed {}

pub(crate) fn malformed(layer: &'static str, why: impl Into<String>) -> Malformed {
    Malformed { layer, why: why.into() }
}
