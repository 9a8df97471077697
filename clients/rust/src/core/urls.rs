//! URLs and the addresses in them.

use crate::errors::Error;
use crate::wire::constants_gen::DEFAULT_PORT;
use std::fmt;
use std::net::Ipv6Addr;

const URL_FORMS: &str =
    "ticketing://host:port, ticketing://host:port,host:port, ticketings://host:port (TLS) or ticketing+unix:///path";

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix { path: String },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix { path } => write!(f, "unix:{path}"),
        }
    }
}

/// What a URL says: the endpoints in order, and whether TLS is spoken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) tls: bool,
}

impl Target {
    /// Where a server is when nothing says so.
    pub(crate) fn here() -> Self {
        Self { endpoints: vec![Endpoint::Tcp { host: "127.0.0.1".into(), port: DEFAULT_PORT as u16 }], tls: false }
    }

    /// Reads a URL. Its error never repeats what may be a password.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "ticketing+unix" {
            return parse_unix_path(text, rest);
        }
        if rest.contains('@') {
            return Err(Error::invalid(
                "the URL has a user or a password in it: give the secret as option secret or in TICKETING_SECRET",
            ));
        }
        if scheme != "ticketing" && scheme != "ticketings" {
            return Err(Error::invalid(format!("the URL {text:?} is none of {URL_FORMS}")));
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(Error::invalid(format!("the URL {text:?} has a path or a query: it takes {URL_FORMS}")));
        }
        let mut endpoints = Vec::new();
        for part in rest.split(',') {
            let Some(endpoint) = parse_address(part, Some(DEFAULT_PORT as u16)) else {
                return Err(Error::invalid(format!(
                    "the URL {text:?} has {part:?}, which is no host:port with a port of 1 to 65535 (IPv6 in brackets)"
                )));
            };
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        Ok(Self { endpoints, tls: scheme == "ticketings" })
    }
}

fn parse_unix_path(text: &str, rest: &str) -> Result<Target, Error> {
    match unescape(rest, |_| true).and_then(|path| String::from_utf8(path).ok()) {
        Some(path) if path.starts_with('/') && path.len() > 1 && !path.contains('\0') => {
            Ok(Target { endpoints: vec![Endpoint::Unix { path }], tls: false })
        }
        _ => Err(Error::invalid(format!("the URL {text:?} names no absolute path: ticketing+unix:///path"))),
    }
}

/// Text with %XX as bytes; none where an escape is cut off or a byte may not stand as it is.
pub(crate) fn unescape(text: &str, as_it_is: impl Fn(u8) -> bool) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
            plain.push((digit()? * 16 + digit()?) as u8);
        } else if as_it_is(byte) {
            plain.push(byte);
        } else {
            return None;
        }
    }
    Some(plain)
}

/// Reads `host:port` or `[v6]:port`. Without a default the port has to be there.
pub(crate) fn parse_address(text: &str, default_port: Option<u16>) -> Option<Endpoint> {
    let (host, port) = if let Some(inside) = text.strip_prefix('[') {
        let (host, after) = inside.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
        (host, port)
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if host.is_empty() || !host.bytes().all(fits) {
            return None;
        }
        (host, port)
    };
    let port = match port {
        None => default_port?,
        Some(digits) if digits.len() <= 5 && digits.bytes().all(|digit| digit.is_ascii_digit()) => {
            digits.parse().ok()?
        }
        Some(_) => return None,
    };
    (port != 0).then(|| Endpoint::Tcp { host: host.to_owned(), port })
}
