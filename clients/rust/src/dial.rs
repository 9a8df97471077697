//! How connections are made.

use crate::core::urls::Endpoint;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What each address of a name but the last gets; the core bounds the whole attempt.
const ADDRESS_PART: Duration = Duration::from_millis(500);
/// When the kernel gives up a connection whose peer does not acknowledge.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection, whatever is below it.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Whether and how TLS is spoken.
pub(crate) struct Transport {
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<crate::tls::Connector>,
}

impl Transport {
    pub(crate) fn speaks_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    /// Connects to one endpoint. Names are resolved each time. The error says why, in words for people.
    pub(crate) async fn open(&self, to: &Endpoint) -> Result<Box<dyn Stream>, String> {
        let (host, port) = match to {
            Endpoint::Tcp { host, port } => (host, *port),
            Endpoint::Unix { path } => return open_unix(path).await,
        };
        let stream = open_tcp(host, port).await?;
        #[cfg(feature = "tls")]
        if let Some(connector) = &self.tls {
            return connector.handshake(host, stream).await;
        }
        Ok(Box::new(stream))
    }
}

#[cfg(unix)]
async fn open_unix(path: &str) -> Result<Box<dyn Stream>, String> {
    let stream = tokio::net::UnixStream::connect(path).await.map_err(|error| why(&error))?;
    Ok(Box::new(stream))
}

#[cfg(not(unix))]
async fn open_unix(_: &str) -> Result<Box<dyn Stream>, String> {
    Err("Unix sockets are not there on this system".into())
}

async fn open_tcp(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses = resolve(host, port).await?;
    let mut last = format!("the name {host:?} has no address");
    for (at, address) in addresses.iter().enumerate() {
        let connecting = TcpStream::connect(address);
        let connected = if at + 1 < addresses.len() {
            match tokio::time::timeout(ADDRESS_PART, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        } else {
            connecting.await
        };
        match connected.and_then(prepare) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = why(&error),
        }
    }
    Err(last)
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    match tokio::net::lookup_host((host, port)).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(format!("the name {host:?} does not resolve ({error}); check the URL")),
    }
}

fn prepare(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(stream)
}

/// What went wrong with a connection, and where it helps what to do.
pub(crate) fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused (is a server running there?)".into(),
        io::ErrorKind::NotFound => "no such socket (is a server running there?)".into(),
        io::ErrorKind::UnexpectedEof => "the server closed the connection".into(),
        io::ErrorKind::TimedOut => "no answer in time".into(),
        _ => error.to_string(),
    }
}
