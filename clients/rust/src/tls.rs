//! TLS, with rustls.

use crate::dial::{why, Stream};
use crate::errors::{Error, Result};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// How TLS is spoken. Versions before 1.2 never are, and certificates are always checked. Files are read once, when
/// the client connects first.
///
/// ```no_run
/// # async fn example() -> ticketing::Result<()> {
/// let tls = ticketing::Tls::new().ca_file("ca.pem").client_cert("client.pem", "client.key");
/// let client = ticketing::Client::builder().url("ticketings://locks.example:5225").tls(tls).connect().await?;
/// # client.close().await; Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "give it to Builder::tls"]
pub struct Tls {
    ca_file: Option<PathBuf>,
    client_cert: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
    config: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Trusts the system's authorities and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities of this PEM file instead of the system's.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Shows this certificate chain (PEM), with its private key (PEM, not encrypted).
    pub fn client_cert(mut self, cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        self.client_cert = Some((cert_file.into(), key_file.into()));
        self
    }

    /// Expects this name in the server's certificate instead of the URL's host.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Uses a whole configuration of rustls; files that were given are not read then.
    pub fn config(mut self, config: Arc<ClientConfig>) -> Self {
        self.config = Some(config);
        self
    }

    fn connector(self) -> Result<Connector> {
        let config = match self.config {
            Some(config) => config,
            None => Arc::new(make_config(self.ca_file, self.client_cert)?),
        };
        let server_name = self.server_name.map(|name| parse_name(&name)).transpose()?;
        Ok(Connector { connector: TlsConnector::from(config), server_name })
    }
}

fn parse_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned())
        .map_err(|_| Error::invalid(format!("the server name {name:?} is neither a host name nor an address")))
}

fn read(what: &str, path: &PathBuf) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| Error::invalid(format!("{what} {} can't be read: {error}", path.display())))
}

fn certificates(what: &str, path: &PathBuf) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(what, path)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    found
        .ok()
        .filter(|found| !found.is_empty())
        .ok_or_else(|| Error::invalid(format!("{what} {} has no certificate in PEM", path.display())))
}

fn authorities(ca_file: Option<PathBuf>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca_file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in certificates("the authorities", &path)? {
        roots
            .add(certificate)
            .map_err(|error| Error::invalid(format!("the authorities {}: {error}", path.display())))?;
    }
    Ok(roots)
}

fn make_config(ca_file: Option<PathBuf>, client_cert: Option<(PathBuf, PathBuf)>) -> Result<ClientConfig> {
    let wrong = |error: rustls::Error| Error::invalid(format!("TLS can't be set up: {error}"));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(wrong)?
        .with_root_certificates(authorities(ca_file)?);
    let Some((cert_file, key_file)) = client_cert else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("the certificate", &cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(&read("the key", &key_file)?)
        .map_err(|_| Error::invalid(format!("the key {} has no private key in PEM", key_file.display())))?;
    builder.with_client_auth_cert(chain, key).map_err(wrong)
}

/// Makes TLS connections.
pub(crate) struct Connector {
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

impl Connector {
    /// None where the URL does not speak TLS.
    pub(crate) fn new(wanted: bool, tls: Option<Tls>) -> Result<Option<Self>> {
        match (wanted, tls) {
            (false, None) => Ok(None),
            (false, Some(_)) => Err(Error::invalid("tls was given, but the URL does not say ticketings://")),
            (true, tls) => tls.unwrap_or_default().connector().map(Some),
        }
    }

    pub(crate) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::result::Result<Box<dyn Stream>, String> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => parse_name(host).map_err(|error| error.to_string())?,
        };
        match self.connector.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(why_not(&error)),
        }
    }
}

fn why_not(error: &std::io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(wrong)) => {
            format!("the server's certificate is not trusted: {wrong} (name its authority in option tls)")
        }
        Some(rustls::Error::InvalidMessage(_)) => format!("TLS failed: {error} (is the port one for TLS?)"),
        Some(rustls::Error::AlertReceived(_)) => {
            format!("TLS failed: {error} (if the server asks for a certificate, give one in option tls)")
        }
        _ => why(error),
    }
}
