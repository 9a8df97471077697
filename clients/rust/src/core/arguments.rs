//! Checks of what callers give, before anything is sent. Each refusal says what was wrong, what was
//! given and what is taken.

use super::urls::unescape;
use crate::errors::Error;
use crate::wire::codec::is_label;
use crate::wire::constants_gen::{
    CLIENT_LEASE_MS_DEFAULT, KEY_BYTES_MAX, LABEL_BYTES_MAX, LABEL_BYTES_MIN, SECRET_BYTES_MAX, SET_KEYS_MAX,
    WAIT_MS_FOREVER, WAIT_MS_MAX,
};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// How a key or set is asked for; none where it was not said.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AcquireOptions {
    pub(crate) lease_ms: Option<u32>,
    pub(crate) wait_ms: Option<u32>,
    pub(crate) auto_extend: Option<bool>,
}

impl AcquireOptions {
    /// Lease, wait and whether to extend. No lease: the default, extended while held. A lease: fixed
    /// unless told otherwise.
    pub(crate) fn over(self, defaults: Self) -> (u32, u32, bool) {
        let lease_ms = self.lease_ms.or(defaults.lease_ms);
        let auto_extend = self.auto_extend.or(defaults.auto_extend).unwrap_or(lease_ms.is_none());
        let wait_ms = self.wait_ms.or(defaults.wait_ms).unwrap_or(WAIT_MS_FOREVER);
        (lease_ms.unwrap_or(CLIENT_LEASE_MS_DEFAULT), wait_ms, auto_extend)
    }
}

/// Keys as sent, and as given.
pub(crate) type SentAndShown = (Arc<[Vec<u8>]>, Arc<[Vec<u8>]>);

/// The different keys of a set as sent, and as given, both sorted by unsigned bytes.
pub(crate) fn wire_set(mut keys: Vec<Vec<u8>>, prefix: &[u8]) -> Result<SentAndShown, Error> {
    keys.sort_unstable();
    keys.dedup();
    if keys.is_empty() || keys.len() > SET_KEYS_MAX {
        return Err(Error::invalid(format!("the set has {} different keys: it takes 1 to {SET_KEYS_MAX}", keys.len())));
    }
    for key in &keys {
        check_key(key, prefix)?;
    }
    let shown: Arc<[Vec<u8>]> = keys.into();
    if prefix.is_empty() {
        return Ok((shown.clone(), shown));
    }
    let sent = shown.iter().map(|key| [prefix, key].concat()).collect();
    Ok((sent, shown))
}

fn check_key(key: &[u8], prefix: &[u8]) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::invalid(format!("the key is empty: it takes 1 to {KEY_BYTES_MAX} bytes")));
    }
    let length = prefix.len() + key.len();
    if length > KEY_BYTES_MAX {
        let counted = if prefix.is_empty() { "" } else { " with its prefix" };
        return Err(Error::invalid(format!("the key has {length} bytes{counted}: it takes 1 to {KEY_BYTES_MAX}")));
    }
    Ok(())
}

pub(crate) fn check_prefix(prefix: &[u8]) -> Result<(), Error> {
    if prefix.len() >= KEY_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the key prefix has {} bytes: it takes up to {}, so that a key fits behind it",
            prefix.len(),
            KEY_BYTES_MAX - 1
        )));
    }
    Ok(())
}

/// A duration in milliseconds, rounded up.
pub(crate) fn whole_ms(name: &str, value: Duration) -> Result<u32, Error> {
    match u32::try_from(value.as_nanos().div_ceil(1_000_000)) {
        Ok(ms) if ms <= WAIT_MS_MAX => Ok(ms),
        _ => {
            let most = Duration::from_millis(u64::from(WAIT_MS_MAX));
            Err(Error::invalid(format!("{name} is {value:?}: it takes up to {most:?}")))
        }
    }
}

/// A duration that can't be 0, in milliseconds.
pub(crate) fn positive_ms(name: &str, value: Duration) -> Result<u32, Error> {
    match whole_ms(name, value)? {
        0 => Err(Error::invalid(format!("{name} is 0: it takes more"))),
        ms => Ok(ms),
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// What `hand_over` returns: the token, then the first key as sent.
pub(crate) fn format_reference(token: u64, key: &[u8]) -> String {
    let mut text = format!("{token}:");
    for &byte in key {
        if is_unreserved(byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}"); // Writing to a string can't fail.
        }
    }
    text
}

/// Token and key of a reference.
pub(crate) fn parse_reference(reference: &str) -> Result<(u64, Vec<u8>), Error> {
    let parse = || {
        let (digits, escaped) = reference.split_once(':')?;
        let token: u64 = digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())??;
        let key = unescape(escaped, is_unreserved)?;
        (token != 0 && !key.is_empty() && key.len() <= KEY_BYTES_MAX).then_some((token, key))
    };
    parse().ok_or_else(|| {
        Error::invalid(format!("the reference {reference:?} is not one that hand_over returned: <token>:<key>"))
    })
}

/// The label of a client: its name, cleaned and cut to fit, then language and version.
pub(crate) fn make_label(name: &str) -> Vec<u8> {
    let tail = concat!(";rust/", env!("CARGO_PKG_VERSION"));
    let mut label: Vec<u8> = name.chars().map(|c| if c.is_ascii_graphic() { c as u8 } else { b'_' }).collect();
    label.truncate(LABEL_BYTES_MAX - tail.len());
    label.extend_from_slice(tail.as_bytes());
    label
}

/// Checks a label that is given whole, for tests.
pub(crate) fn check_label(label: &str) -> Result<(), Error> {
    if !(LABEL_BYTES_MIN..=LABEL_BYTES_MAX).contains(&label.len()) || !is_label(label.as_bytes()) {
        return Err(Error::invalid(format!(
            "the label is {label:?}: it takes {LABEL_BYTES_MIN} to {LABEL_BYTES_MAX} bytes of printable ASCII \
             without space"
        )));
    }
    Ok(())
}

/// Checks a secret. The text of its error never shows it.
pub(crate) fn check_secret(secret: &[u8]) -> Result<(), Error> {
    if secret.len() > SECRET_BYTES_MAX {
        return Err(Error::invalid(format!(
            "the secret has {} bytes: it takes up to {SECRET_BYTES_MAX}",
            secret.len()
        )));
    }
    if secret.iter().any(|byte| b"\0\r\n".contains(byte)) {
        return Err(Error::invalid("the secret has a NUL or a line end in it"));
    }
    Ok(())
}

/// Text from elsewhere, with anything but printable ASCII as `?`.
pub(crate) fn sanitised(text: &[u8]) -> String {
    text.iter().map(|&byte| if (0x20..=0x7e).contains(&byte) { char::from(byte) } else { '?' }).collect()
}

/// Shows keys in a message.
pub(crate) fn quoted(keys: &[Vec<u8>]) -> String {
    let parts: Vec<String> = keys.iter().map(|key| format!("\"{}\"", key.escape_ascii())).collect();
    parts.join(", ")
}
