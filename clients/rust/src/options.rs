//! How a client is made.

use crate::blocking;
use crate::call::{nothing, Calling, Keeper};
use crate::client::Client;
use crate::core::arguments::{
    check_label, check_prefix, check_secret, make_label, positive_ms, whole_ms, AcquireOptions,
};
use crate::core::urls::Target;
use crate::core::{Command, Core, Settings};
use crate::dial::Transport;
use crate::driver::{Driver, EventHook, Hooks, LogHook};
use crate::entropy::random;
use crate::errors::{Error, Kind, Result};
use crate::events::{Event, Level};
#[cfg(feature = "tls")]
use crate::tls::{Connector, Tls};
use crate::wire::constants_gen::{CLIENT_REPLY_TIMEOUT_MS, FINGERPRINT_BYTES, WAIT_MS_FOREVER};
use std::sync::Arc;
use std::time::Duration;

/// Options of a client. What is wrong with one is said when the client connects.
///
/// ```no_run
/// # async fn example() -> ticketing::Result<()> {
/// use std::time::Duration;
/// let client = ticketing::Client::builder()
///     .url("ticketing://locks.example:5225")
///     .name("billing")
///     .key_prefix("billing/")
///     .reply_timeout(Duration::from_secs(3))
///     .connect()
///     .await?;
/// # client.close().await; Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: Option<String>,
    secret: Option<Vec<u8>>,
    name: Option<String>,
    label: Option<String>,
    key_prefix: Vec<u8>,
    defaults: AcquireOptions,
    fingerprint: Option<Vec<u8>>,
    connect_for: Duration,
    reply_timeout: Duration,
    release_on_close: bool,
    on_event: Option<EventHook>,
    on_log: Option<LogHook>,
    client_id: Option<u64>,
    seed: Option<[u8; 16]>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    error: Option<Error>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            url: None,
            secret: None,
            name: None,
            label: None,
            key_prefix: Vec::new(),
            defaults: AcquireOptions::default(),
            fingerprint: None,
            connect_for: Duration::ZERO,
            reply_timeout: Duration::from_millis(u64::from(CLIENT_REPLY_TIMEOUT_MS)),
            release_on_close: true,
            on_event: None,
            on_log: None,
            client_id: None,
            seed: None,
            #[cfg(feature = "tls")]
            tls: None,
            error: None,
        }
    }
}

impl Builder {
    /// No options: the URL from TICKETING_URL, the secret from TICKETING_SECRET.
    pub fn new() -> Self {
        Self::default()
    }

    fn keep<T>(&mut self, checked: Result<T>) -> Option<T> {
        match checked {
            Ok(value) => Some(value),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Where the server is: `ticketing://host:port,host:port`, `ticketings://…` (TLS) or
    /// `ticketing+unix:///path`. Without it TICKETING_URL, else `ticketing://127.0.0.1:5225`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// What clients and server share: up to 1,024 bytes. Without it TICKETING_SECRET, else empty.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// What the server's logs call this client. Without it TICKETING_NAME, else host:pid.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Goes before every key on the wire and counts towards its 128 bytes. Tickets show keys without it.
    pub fn key_prefix(mut self, prefix: impl Into<Vec<u8>>) -> Self {
        self.key_prefix = prefix.into();
        let checked = check_prefix(&self.key_prefix);
        self.keep(checked);
        self
    }

    /// The lease of acquires that name none: see [`Acquire::lease`](crate::Acquire::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.defaults.lease_ms = self.keep(positive_ms("the lease", lease));
        self
    }

    /// The wait of acquires that name none: see [`Acquire::wait_timeout`](crate::Acquire::wait_timeout).
    pub fn wait_timeout(mut self, wait: Duration) -> Self {
        self.defaults.wait_ms = self.keep(whole_ms("the wait timeout", wait));
        self
    }

    /// Whether tickets are extended while they are held, where an acquire does not say it.
    pub fn auto_extend(mut self, extend: bool) -> Self {
        self.defaults.auto_extend = Some(extend);
        self
    }

    /// Pins the cluster that this client must be talking to: 32 bytes.
    pub fn fingerprint(mut self, fingerprint: impl Into<Vec<u8>>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// How long connecting keeps trying. Without it each endpoint is tried once.
    pub fn connect_for(mut self, duration: Duration) -> Self {
        self.connect_for = duration;
        self
    }

    /// When a try, an extend, an adoption or a ping without an answer fails. Without it 10 seconds.
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// Whether [`Client::close`] cancels what waits and releases what is held. Without it: yes.
    pub fn release_on_close(mut self, release: bool) -> Self {
        self.release_on_close = release;
        self
    }

    /// Is called with each [`Event`], one at a time and in order, on whatever thread moves the client. It must
    /// not block; a panic of it is logged.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Box::new(hook));
        self
    }

    /// Gets the client's log lines, for the program's own logger. Without it warnings go to stderr.
    pub fn on_log(mut self, hook: impl Fn(Level, &str) + Send + Sync + 'static) -> Self {
        self.on_log = Some(Box::new(hook));
        self
    }

    /// How TLS is spoken, for a `ticketings://` URL. Without it the system's authorities are trusted.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Fixes the client id, for tests that need the same bytes in every run. Without it: random.
    pub fn client_id(mut self, id: u64) -> Self {
        self.client_id = Some(id);
        self
    }

    /// Fixes what nonces are derived from, for tests that need the same bytes in every run. Without it: random.
    pub fn seed(mut self, seed: [u8; 16]) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Fixes all of the client's label, for tests that need the same bytes in every run: 1 to 64 bytes of
    /// printable ASCII without space. Without it: the name, `;rust/` and the version.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Makes a client and connects it, on the tokio runtime that this is called in.
    ///
    /// Fails at once with [`Kind::InvalidArgument`], with [`Kind::Connection`] after each endpoint was tried
    /// (see [`connect_for`](Self::connect_for)), and with [`Kind::Auth`] where the secret is wrong, both within
    /// seconds. Outside of a runtime it fails with [`Kind::InvalidArgument`] too. Dropped, it leaves nothing behind.
    pub async fn connect(self) -> Result<Client> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|_| Error::invalid("there is no tokio runtime here: use blocking::Client, or enter one"))?;
        let keeper = Arc::new(self.start(runtime)?);
        let opened = nothing(Calling::new(keeper.clone(), Ok(Command::Open))).await;
        if let Err(error) = opened {
            keeper.driver.tasks_ended().await;
            return Err(error);
        }
        Ok(Client::new(keeper))
    }

    /// Makes a client for threads that block, with a thread of its own, and connects it.
    ///
    /// Fails as [`connect`](Self::connect) does.
    pub fn connect_blocking(self) -> Result<blocking::Client> {
        blocking::Client::open(self)
    }

    pub(crate) fn start(self, runtime: tokio::runtime::Handle) -> Result<Keeper> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let url = self.url.or_else(|| variable("TICKETING_URL")).filter(|url| !url.is_empty());
        let target = url.map_or_else(|| Ok(Target::here()), |url| Target::parse(&url))?;
        let secret = self.secret.or_else(|| variable("TICKETING_SECRET").map(String::into_bytes)).unwrap_or_default();
        check_secret(&secret)?;
        let fingerprint = self.fingerprint.map(|bytes| fingerprint_of(&bytes)).transpose()?;
        let label = label_of(self.label, self.name)?;
        let random = random();
        let (mut id, mut seed) = ([0; 8], [0; 16]);
        id.copy_from_slice(&random[..8]);
        seed.copy_from_slice(&random[8..24]);
        #[cfg(feature = "tls")]
        let transport = Transport { tls: Connector::new(target.tls, self.tls)? };
        #[cfg(not(feature = "tls"))]
        let transport = Transport {};
        if target.tls && !transport.speaks_tls() {
            return Err(Error::invalid("the URL says ticketings://, but this build lacks the feature `tls`"));
        }
        let settings = Settings {
            endpoints: target.endpoints,
            client_id: self.client_id.unwrap_or(u64::from_be_bytes(id)),
            seed: self.seed.unwrap_or(seed),
            label,
            secret,
            fingerprint,
            key_prefix: self.key_prefix,
            defaults: self.defaults,
            connect_for_ms: whole_ms("connect_for", self.connect_for)?,
            reply_timeout_ms: positive_ms("the reply timeout", self.reply_timeout)?,
            release_on_close: self.release_on_close,
            observed: self.on_event.is_some(),
        };
        let hooks = Hooks { on_event: self.on_event, on_log: self.on_log };
        Ok(Keeper { driver: Driver::start(runtime, Core::new(settings), transport, hooks) })
    }
}

fn fingerprint_of(bytes: &[u8]) -> Result<[u8; FINGERPRINT_BYTES]> {
    bytes
        .try_into()
        .map_err(|_| Error::invalid(format!("the fingerprint has {} bytes: it takes {FINGERPRINT_BYTES}", bytes.len())))
}

/// A variable of the environment; one that is no text counts as it looks.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn label_of(label: Option<String>, name: Option<String>) -> Result<Vec<u8>> {
    if let Some(label) = label {
        check_label(&label)?;
        return Ok(label.into_bytes());
    }
    let name = name.or_else(|| variable("TICKETING_NAME")).filter(|name| !name.is_empty());
    Ok(make_label(&name.unwrap_or_else(|| format!("{}:{}", host_name(), std::process::id()))))
}

/// The name of this machine, as far as it is to be had without unsafe code.
fn host_name() -> String {
    let from_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = from_kernel.ok().or_else(|| variable("HOSTNAME")).or_else(|| variable("COMPUTERNAME"));
    name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into())
}

/// The wait of an acquire that is given as an option.
pub(crate) fn forever() -> Option<u32> {
    Some(WAIT_MS_FOREVER)
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the secret.
        f.debug_struct("Builder").field("url", &self.url).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether an error is the answer "held" of a try.
pub(crate) fn held_is_none<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == Kind::Held => Ok(None),
        Err(error) => Err(error),
    }
}
