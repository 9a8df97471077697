//! What clients leave behind. One test alone in its program, since it counts the threads and sockets of the process.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{counts, Server, PATIENCE};
use ticketing::{blocking, Client, Kind};

#[test]
fn clients_leave_no_task_no_thread_and_no_socket() {
    let server = Arc::new(Server::start());
    ten_thousand_tokio_clients(&server);
    tokio_clients_that_can_t_connect();
    blocking_clients(&server);
    dropped_clients(&server);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn ten_thousand_tokio_clients(server: &Arc<Server>) {
    runtime().block_on(async {
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let (before, tasks_before) = (counts(), tasks());
        let open_and_close = |at: usize| {
            let server = server.clone();
            tokio::spawn(async move {
                for _ in 0..500 {
                    let client = Client::connect(&server.url).await.expect("a client");
                    let ticket = client.try_acquire(format!("k{}", at / 2)).await.expect("an answer");
                    client.close().await;
                    drop(ticket);
                }
            })
        };
        let openers: Vec<_> = (0..20).map(open_and_close).collect();
        for opener in openers {
            opener.await.expect("no panic");
        }
        // A task counts as alive for a moment after its last step.
        let deadline = Instant::now() + PATIENCE;
        while tasks() != tasks_before {
            assert!(Instant::now() < deadline, "{} tasks", tasks());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(counts(), before, "threads and sockets");
    });
    server.expect_empty();
}

fn tokio_clients_that_can_t_connect() {
    runtime().block_on(async {
        let before = counts();
        for _ in 0..100 {
            let failed = Client::connect("ticketing://127.0.0.1:1,127.0.0.1:2").await;
            let error = failed.expect_err("nothing listens there");
            assert_eq!(error.kind(), Kind::Connection);
            assert!(error.to_string().contains("127.0.0.1:1") && error.to_string().contains("127.0.0.1:2"), "{error}");
        }
        assert_eq!(counts(), before, "threads and sockets");
    });
}

fn blocking_clients(server: &Server) {
    let before = counts();
    for _ in 0..200 {
        let client = blocking::Client::connect(&server.url).expect("a client");
        client.acquire("k").wait().expect("a ticket").release().expect("a release");
        client.close();
    }
    assert_eq!(counts(), before, "threads and sockets");
    assert_eq!(blocking::Client::connect("ticketing://127.0.0.1:1").unwrap_err().kind(), Kind::Connection);
    assert_eq!(counts(), before, "threads and sockets");
}

/// Dropped without a close, a client releases what it holds and its thread ends by itself.
fn dropped_clients(server: &Server) {
    let before = counts();
    let client = blocking::Client::connect(&server.url).expect("a client");
    let ticket = client.acquire("k").lease(Duration::from_secs(60)).wait().expect("a ticket");
    drop(client);
    assert!(server.counts().0 == 1.0, "the ticket keeps its client");
    drop(ticket);
    server.expect_empty();
    let deadline = Instant::now() + PATIENCE;
    while counts() != before {
        assert!(Instant::now() < deadline, "threads and sockets: {:?}", counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}
