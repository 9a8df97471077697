//! The tokio client against a real server.

mod support;

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Folder, Server, PATIENCE};
use ticketing::{Client, Kind, Ticket};

const MINUTE: Duration = Duration::from_secs(60);

fn unpack(kind: Kind, result: ticketing::Result<impl Sized>) {
    match result {
        Ok(_) => panic!("it should have failed with {kind}"),
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
    }
}

#[tokio::test]
async fn a_key_goes_from_hand_to_hand() {
    let server = Server::start();
    let client = Client::connect(&server.url).await.unwrap();
    let first = client.acquire("k").lease(MINUTE).await.unwrap();
    assert_eq!((first.key(), first.keys(), first.lease()), (&b"k"[..], &[b"k".to_vec()][..], MINUTE));
    assert!(first.remaining() > MINUTE / 2 && first.expires_at() > std::time::Instant::now());
    assert!(client.try_acquire("k").await.unwrap().is_none());
    unpack(Kind::Held, client.acquire("k").wait_timeout(Duration::ZERO).await);
    unpack(Kind::Timeout, client.acquire("k").wait_timeout(Duration::from_millis(20)).await);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("k").await }
    });
    client.ping().await.unwrap();
    let token = first.token();
    first.release().await.unwrap();
    let second = waiting.await.unwrap().unwrap();
    assert!(second.token() > token);
    second.extend(None).await.unwrap();
    let reference = second.hand_over().await.unwrap();
    let third = client.adopt(reference).lease(MINUTE).await.unwrap();
    third.release().await.unwrap();
    let set = client.acquire_set(["b", "a", "b"]).await.unwrap();
    assert_eq!(set.keys(), [b"a".to_vec(), b"b".to_vec()]);
    drop(set);
    server.expect_empty();
    client.close().await;
    unpack(Kind::Closed, client.acquire("k").await);
}

#[tokio::test]
async fn a_scope_releases_however_it_ends() {
    let server = Server::start();
    let client = Client::connect(&server.url).await.unwrap();
    let value = client.with_ticket("k", |ticket| async move { ticketing::Result::Ok(ticket.token()) }).await.unwrap();
    assert!(value > 0);
    server.expect_empty();
    let failed: Result<(), Box<dyn std::error::Error>> =
        client.with_ticket("k", |_| async { Err("the body's own".into()) }).await;
    assert_eq!(failed.unwrap_err().to_string(), "the body's own");
    server.expect_empty();
    let panicking = tokio::spawn({
        let client = client.clone();
        async move { client.with_ticket::<(), ticketing::Error, _>("k", |_| async { panic!("a panic of the body") }).await }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    server.expect_empty();
    // Released by another client with its token: the body is dropped where it waits.
    let other = Client::connect(&server.url).await.unwrap();
    let lost: ticketing::Result<()> = client
        .with_ticket("k", |ticket| async move {
            let taken = other.adopt(format!("{}:k", ticket.token())).lease(MINUTE).await?;
            taken.release().await?;
            std::future::pending().await
        })
        .await;
    unpack(Kind::Lost, lost);
    client.close().await;
}

/// Dropped inside of the runtime, and in a thread that has none.
#[tokio::test]
async fn dropping_a_ticket_queues_its_release_and_does_not_block() {
    let server = Server::start();
    let client = Client::connect(&server.url).await.unwrap();
    for with_runtime in [true, false] {
        let ticket = client.acquire("k").lease(MINUTE).await.unwrap();
        let handle = ticket.handle();
        // Nobody reads the reply here: a drop that waited for it would never come back.
        if with_runtime {
            drop(ticket);
        } else {
            std::thread::spawn(move || drop(ticket)).join().unwrap();
        }
        handle.release().await.unwrap();
        server.expect_empty();
    }
    // The last handle closes the client, which releases what is queued.
    let ticket = client.acquire("k").lease(MINUTE).await.unwrap();
    drop(client);
    std::thread::spawn(move || drop(ticket)).join().unwrap();
    tokio::task::spawn_blocking(move || server.expect_empty()).await.unwrap();
}

#[tokio::test]
async fn a_dropped_acquire_leaves_no_waiter() {
    let server = Server::start();
    let client = Client::connect(&server.url).await.unwrap();
    let holder = client.acquire("k").lease(MINUTE).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), client.acquire("k").into_future()).await;
    assert!(waited.is_err());
    server_counts(&server, 1.0, 0.0).await;
    drop(client.acquire("never polled").into_future());
    holder.release().await.unwrap();
    server_counts(&server, 0.0, 0.0).await;
    client.close().await;
}

/// Waits for the server's counts where other tasks have to go on meanwhile.
async fn server_counts(server: &Server, tickets: f64, waiters: f64) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while server.counts() != (tickets, waiters) {
        assert!(std::time::Instant::now() < deadline, "{:?}", server.counts());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_lost_ticket_says_so_and_why() {
    let server = Server::start();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = seen.clone();
    let client = Client::builder()
        .url(&server.url)
        .on_event(move |event| hook.lock().unwrap().push(event.kind()))
        .on_log(|_, _| {})
        .connect()
        .await
        .unwrap();
    let ticket = client.acquire("k").lease(Duration::from_millis(30)).await.unwrap();
    let lost = ticket.lost();
    let error = tokio::spawn(lost).await.unwrap();
    assert_eq!(error.kind(), Kind::Lost);
    assert!(error.lost_reason().is_some() && ticket.is_lost() && ticket.remaining().is_zero());
    unpack(Kind::Lost, ticket.extend(None).await);
    unpack(Kind::Lost, ticket.release().await);
    assert_eq!(*seen.lock().unwrap(), ["connected", "granted", "lost"]);
    client.close().await;
}

/// 10,000 pairs over one connection from 100 callers, of whom ten at a time share a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_a_connection() {
    let server = Server::start();
    let client = Client::connect(&server.url).await.unwrap();
    let inside: Arc<[AtomicU32; 10]> = Arc::default();
    let callers: Vec<_> = (0..100)
        .map(|at| {
            let (client, inside) = (client.clone(), inside.clone());
            tokio::spawn(async move {
                for _ in 0..100 {
                    let ticket = client.acquire(format!("k{}", at % 10)).lease(MINUTE).await.unwrap();
                    assert_eq!(inside[at % 10].fetch_add(1, Ordering::SeqCst), 0, "two holders of one key");
                    inside[at % 10].fetch_sub(1, Ordering::SeqCst);
                    ticket.release().await.unwrap();
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    server_counts(&server, 0.0, 0.0).await;
    client.close().await;
}

/// Cancelled in the very moment of the grant, 1,000 times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_at_the_grant_leaves_nothing() {
    let server = Server::start();
    let holder = Client::connect(&server.url).await.unwrap();
    let waiter = Client::connect(&server.url).await.unwrap();
    let mut granted = 0;
    for round in 0..1000 {
        let key = format!("k{}", round % 7);
        let ticket = holder.acquire(key.clone()).lease(MINUTE).await.unwrap();
        let waiting = tokio::spawn(waiter.acquire(key).lease(MINUTE).into_future());
        waiter.ping().await.unwrap();
        let releasing = tokio::spawn(ticket.release());
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        } else {
            releasing.await.unwrap().unwrap();
        }
        waiting.abort();
        granted += u32::from(waiting.await.is_ok_and(|ticket| ticket.is_ok()));
    }
    println!("{granted} of 1000 were granted first");
    server_counts(&server, 0.0, 0.0).await;
    holder.close().await;
    waiter.close().await;
}

/// The server is killed and started again under 100 waiting callers: each is settled exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_waiters_settles_each_once() {
    let mut server = Server::start();
    let holder = Client::builder().url(&server.url).on_log(|_, _| {}).connect().await.unwrap();
    let client = Client::builder().url(&server.url).on_log(|_, _| {}).connect().await.unwrap();
    let held = holder.acquire("k").lease(2 * MINUTE).await.unwrap();
    let tokens: Arc<Mutex<HashSet<u64>>> = Arc::default();
    let inside = Arc::new(AtomicU32::new(0));
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let (client, tokens, inside) = (client.clone(), tokens.clone(), inside.clone());
            tokio::spawn(async move {
                let ticket = client.acquire("k").lease(MINUTE).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders of one key");
                assert!(tokens.lock().unwrap().insert(ticket.token()));
                inside.fetch_sub(1, Ordering::SeqCst);
                ticket.release().await.unwrap();
            })
        })
        .collect();
    server_counts(&server, 1.0, 100.0).await;
    server.start_again(); // In memory mode a restart forgets the holder, so the first waiter has the key.
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(tokens.lock().unwrap().len(), 100);
    drop(held);
    server_counts(&server, 0.0, 0.0).await;
    holder.close().await;
    client.close().await;
}

#[tokio::test]
async fn the_secret_has_to_be_the_server_s() {
    let server = Server::with(&["--listen", "127.0.0.1:0"], &[("TICKETING_SECRET", "a secret of the tests")]);
    let with = |secret: &str| Client::builder().url(&server.url).secret(secret).connect();
    unpack(Kind::Auth, with("another").await);
    let client = with("a secret of the tests").await.unwrap();
    client.ping().await.unwrap();
    client.close().await;
}

#[tokio::test]
async fn it_speaks_over_ipv6_and_unix_sockets() {
    let folder = Folder::new();
    let server = Server::with(&["--listen", "[::1]:0"], &[]);
    assert!(server.url.contains("[::1]"), "{}", server.url);
    let socket = folder.file("socket");
    let over_unix = Server::with(&["--listen", &format!("unix:{socket}"), "--http-listen", "127.0.0.1:0"], &[]);
    for url in [server.url.clone(), format!("ticketing+unix://{socket}")] {
        let client = Client::connect(url).await.unwrap();
        client.acquire("k").await.unwrap().release().await.unwrap();
        client.close().await;
    }
    drop(over_unix);
}

/// Whoever still waits when the runtime of a client ends learns of it, in whatever thread.
#[test]
fn the_end_of_the_runtime_ends_its_clients() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (client, ticket): (Client, Ticket) = runtime.block_on(async {
        let client = Client::connect(&server.url).await.unwrap();
        let ticket = client.acquire("k").lease(MINUTE).await.unwrap();
        (client, ticket)
    });
    runtime.shutdown_background();
    let another = tokio::runtime::Runtime::new().unwrap();
    let released = another.block_on(async { tokio::time::timeout(PATIENCE, ticket.release()).await });
    unpack(Kind::Closed, released.expect("an end"));
    unpack(Kind::Closed, another.block_on(client.ping()));
}
