//! The blocking client against a real server.

mod support;

use std::time::Duration;
use support::Server;
use ticketing::{blocking, Kind};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_key_goes_from_thread_to_thread() {
    let server = Server::start();
    let client = blocking::Client::connect(&server.url).unwrap();
    let first = client.acquire("k").lease(MINUTE).wait().unwrap();
    assert!(client.try_acquire("k").call().unwrap().is_none());
    let timed_out = client.acquire("k").wait_timeout(Duration::from_millis(20)).wait().unwrap_err();
    assert_eq!(timed_out.kind(), Kind::Timeout);
    assert!(first.wait_lost(Duration::from_millis(5)).is_none());
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.acquire("k").wait()
    });
    first.release().unwrap();
    let second = waiting.join().unwrap().unwrap();
    second.extend(MINUTE).unwrap();
    let reference = second.hand_over().unwrap();
    client.adopt(reference).lease(MINUTE).call().unwrap().release().unwrap();
    let short = client.acquire("k").lease(Duration::from_millis(30)).wait().unwrap();
    assert_eq!(short.wait_lost(MINUTE).expect("a loss").kind(), Kind::Lost);
    assert!(short.is_lost());
    let value: ticketing::Result<u32> = client.with_ticket("scope", |ticket| Ok(ticket.key().len() as u32));
    assert_eq!(value.unwrap(), 5);
    drop(client.acquire("dropped").wait().unwrap());
    server.expect_empty();
    client.ping().unwrap();
    client.close();
    assert_eq!(client.ping().unwrap_err().kind(), Kind::Closed);
}
