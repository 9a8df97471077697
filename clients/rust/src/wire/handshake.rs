//! Greeting, hello and welcome: their bytes and their hashes.

use super::constants_gen::{
    CLIENT_MAC_BYTES, CLIENT_NONCE_BYTES, GREETING_BYTES, GREETING_MAGIC, MAC_CONTEXT_CLIENT, MAC_CONTEXT_SERVER,
    MODE_CLUSTER, MODE_STANDALONE, NONCE_CONTEXT, OP_HELLO, PROOF_BYTES, PROTOCOL_VERSION,
};
use super::requests::begin;
use super::sha256::{hmac, sha256};
use super::{malformed, Malformed};

/// What a server speaks first.
#[derive(Debug, Clone, Copy)]
pub struct Greeting {
    /// All of its bytes.
    pub raw: [u8; GREETING_BYTES],
}

impl Greeting {
    /// Reads a whole greeting. The mode matters only at a common version.
    pub fn parse(data: &[u8]) -> Result<Self, Malformed> {
        let raw: [u8; GREETING_BYTES] =
            data.try_into().map_err(|_| malformed("stream", format!("a greeting of {} bytes", data.len())))?;
        if !Self::may_begin(data) {
            return Err(malformed("body", "no greeting of a ticketing server"));
        }
        let greeting = Self { raw };
        if greeting.speaks_our_version() && ![MODE_STANDALONE, MODE_CLUSTER].contains(&greeting.mode()) {
            return Err(malformed("body", format!("mode {} is unknown", greeting.mode())));
        }
        Ok(greeting)
    }

    /// Whether these first bytes may still become a greeting.
    #[must_use]
    pub fn may_begin(data: &[u8]) -> bool {
        let length = data.len().min(GREETING_MAGIC.len());
        data[..length] == GREETING_MAGIC[..length]
    }

    #[must_use]
    pub fn min_version(&self) -> u8 {
        self.raw[6]
    }

    #[must_use]
    pub fn max_version(&self) -> u8 {
        self.raw[7]
    }

    #[must_use]
    pub fn mode(&self) -> u8 {
        self.raw[8]
    }

    #[must_use]
    pub fn slot(&self) -> u8 {
        self.raw[9]
    }

    #[must_use]
    pub fn nonce(&self) -> &[u8] {
        &self.raw[10..]
    }

    /// Whether client and server have a version in common.
    #[must_use]
    pub fn speaks_our_version(&self) -> bool {
        (self.min_version()..=self.max_version()).contains(&PROTOCOL_VERSION)
    }
}

/// The nonce of the client's n-th hello. It is derived, so that one seed gives one byte stream.
#[must_use]
pub fn client_nonce(seed: &[u8], connection: u64) -> [u8; CLIENT_NONCE_BYTES] {
    let digest = sha256(&[NONCE_CONTEXT, seed, &connection.to_be_bytes()]);
    let mut nonce = [0; CLIENT_NONCE_BYTES];
    nonce.copy_from_slice(&digest[..CLIENT_NONCE_BYTES]);
    nonce
}

/// What a client says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Hello<'a> {
    pub version: u8,
    pub client_id: u64,
    pub connection: u32,
    pub client_nonce: &'a [u8],
    pub label: &'a [u8],
}

impl Hello<'_> {
    fn identity(&self) -> Vec<u8> {
        let mut identity = vec![self.version];
        identity.extend_from_slice(&self.client_id.to_be_bytes());
        identity.extend_from_slice(&self.connection.to_be_bytes());
        identity.extend_from_slice(self.client_nonce);
        identity
    }

    /// What a hello proves itself with.
    #[must_use]
    pub fn mac(&self, secret: &[u8], greeting: &[u8]) -> [u8; CLIENT_MAC_BYTES] {
        hmac(secret, &[MAC_CONTEXT_CLIENT, greeting, &self.identity(), self.label])
    }

    /// H, the mac included.
    #[must_use]
    pub fn frame(&self, secret: &[u8], greeting: &[u8]) -> Vec<u8> {
        let identity = self.identity();
        let mut frame = begin(OP_HELLO, identity.len() + CLIENT_MAC_BYTES + self.label.len());
        frame.extend_from_slice(&identity);
        frame.extend_from_slice(&self.mac(secret, greeting));
        frame.extend_from_slice(self.label);
        frame
    }
}

/// What a server's proof covers beside greeting and nonce.
#[derive(Debug, Clone, Copy)]
pub struct Welcome<'a> {
    pub role: u8,
    pub keepalive_s: u16,
    pub fingerprint: &'a [u8],
    pub leader: &'a [u8],
}

impl Welcome<'_> {
    /// What a welcome proves itself with.
    #[must_use]
    pub fn proof(&self, secret: &[u8], greeting: &[u8], client_nonce: &[u8]) -> [u8; PROOF_BYTES] {
        let keepalive = self.keepalive_s.to_be_bytes();
        let parts: [&[u8]; 7] =
            [MAC_CONTEXT_SERVER, greeting, client_nonce, &[self.role], &keepalive, self.fingerprint, self.leader];
        hmac(secret, &parts)
    }
}
