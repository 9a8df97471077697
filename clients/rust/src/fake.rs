//! Tickets for the tests of programs.

use crate::call::Keeper;
use crate::core::arguments::AcquireOptions;
use crate::core::{Core, Settings};
use crate::dial::Transport;
use crate::driver::{Driver, Hooks};
use crate::errors::LostReason;
use crate::ticket::Ticket;
use std::sync::Arc;

const LEASE_MS: u32 = 86_400_000;

/// A ticket without a client or a server, for the tests of programs that put something else in a client's place,
/// and a function that has it lost as by an operator. Its keys are sorted. It is held until it is released or handed
/// over, which always goes well, or until the function is called.
///
/// ```
/// let (ticket, lose) = ticketing::fake_ticket(7, ["k"]);
/// assert_eq!((ticket.key(), ticket.token()), (&b"k"[..], 7));
/// lose();
/// assert!(ticket.is_lost());
/// ```
pub fn fake_ticket<K: Into<Vec<u8>>>(token: u64, keys: impl IntoIterator<Item = K>) -> (Ticket, impl Fn()) {
    let mut keys: Vec<Vec<u8>> = keys.into_iter().map(Into::into).collect();
    keys.sort();
    assert!(!keys.is_empty(), "a ticket has a key");
    let settings = Settings {
        endpoints: Vec::new(),
        client_id: 0,
        seed: [0; 16],
        label: Vec::new(),
        secret: Vec::new(),
        fingerprint: None,
        key_prefix: Vec::new(),
        defaults: AcquireOptions::default(),
        connect_for_ms: 0,
        reply_timeout_ms: 1,
        release_on_close: true,
        observed: false,
    };
    let transport = Transport {
        #[cfg(feature = "tls")]
        tls: None,
    };
    let hooks = Hooks { on_event: None, on_log: Some(Box::new(|_, _| {})) };
    let driver = Driver::new(None, Core::new(settings), transport, hooks);
    let grant = driver.enter(|inner, now_ns| inner.core.fake_ticket(token, keys, LEASE_MS, now_ns));
    let losing = driver.clone();
    let ticket = Ticket::new(Arc::new(Keeper { driver }), grant);
    let lose = move || losing.enter(|inner, _| inner.core.ticket_dropped(token, LostReason::Operator));
    (ticket, lose)
}
