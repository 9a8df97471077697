//! TLS with an authority of one's own, and with certificates of both sides. Needs the feature `tls` and openssl.
#![cfg(feature = "tls")]

mod support;

use std::process::Command;
use support::{Folder, Server};
use ticketing::{Client, Kind, Tls};

fn openssl(arguments: &[&str]) {
    let run = Command::new("openssl").args(arguments).output().expect("openssl makes the certificates of this test");
    assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
}

/// An authority, and what it signs: for a host, or for a client.
struct Authority {
    folder: Folder,
}

impl Authority {
    fn new() -> Self {
        let folder = Folder::new();
        let (cert, key) = (folder.file("ca.pem"), folder.file("ca.key"));
        #[rustfmt::skip]
        openssl(&[
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign", "-keyout", &key, "-out", &cert,
        ]);
        Self { folder }
    }

    fn cert(&self) -> String {
        self.folder.file("ca.pem")
    }

    /// Paths of a certificate and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let (cert, key, request, extensions) = (
            self.folder.file(&format!("{name}.pem")),
            self.folder.file(&format!("{name}.key")),
            self.folder.file(&format!("{name}.csr")),
            self.folder.file(&format!("{name}.ext")),
        );
        std::fs::write(&extensions, "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("a file");
        #[rustfmt::skip]
        openssl(&[
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", &format!("/CN={name}"),
            "-keyout", &key, "-out", &request,
        ]);
        #[rustfmt::skip]
        openssl(&[
            "x509", "-req", "-in", &request, "-CA", &self.cert(), "-CAkey", &self.folder.file("ca.key"),
            "-CAcreateserial", "-days", "2", "-extfile", &extensions, "-out", &cert,
        ]);
        (cert, key)
    }
}

async fn use_it(url: &str, tls: Tls) -> ticketing::Result<()> {
    let client = Client::builder().url(url).tls(tls).connect().await?;
    client.acquire("k").await?.release().await?;
    client.close().await;
    Ok(())
}

async fn refused(url: &str, tls: Tls, because: &str) {
    let error = use_it(url, tls).await.expect_err("a refusal");
    assert_eq!(error.kind(), Kind::Connection, "{error}");
    assert!(error.to_string().contains(because), "{error}");
}

#[tokio::test]
async fn a_private_authority_is_trusted_and_no_other() {
    let (ours, another) = (Authority::new(), Authority::new());
    let (cert, key) = ours.sign("server");
    let server = Server::with(&["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key], &[]);
    use_it(&server.url, Tls::new().ca_file(ours.cert())).await.expect("a ticket");
    refused(&server.url, Tls::new().ca_file(another.cert()), "not trusted").await;
    refused(&server.url, Tls::new().ca_file(ours.cert()).server_name("elsewhere.example"), "not trusted").await;
    let plain = server.url.replace("ticketings://", "ticketing://");
    let error = Client::connect(plain).await.expect_err("a server that waits for TLS");
    assert_eq!(error.kind(), Kind::Connection);
}

#[tokio::test]
async fn a_server_may_ask_for_a_certificate() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("server");
    let (client_cert, client_key) = authority.sign("client");
    let ca = authority.cert();
    let arguments = ["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
    let server = Server::with(&arguments, &[]);
    let tls = Tls::new().ca_file(&ca);
    use_it(&server.url, tls.clone().client_cert(client_cert, client_key)).await.expect("a ticket");
    refused(&server.url, tls, "certificate").await;
}

#[tokio::test]
async fn files_that_are_not_there_or_hold_nothing_are_named() {
    let folder = Folder::new();
    let empty = folder.file("empty.pem");
    std::fs::write(&empty, "").expect("a file");
    for path in [empty, folder.file("missing.pem")] {
        let made = Client::builder().url("ticketings://127.0.0.1:1").tls(Tls::new().ca_file(&path)).connect().await;
        let error = made.expect_err("a refusal");
        assert!(error.kind() == Kind::InvalidArgument && error.to_string().contains(&path), "{error}");
    }
}
