//! Bytes of a server, through the client's own reader and the codec: what the one takes the other takes too.
//! `cargo +nightly fuzz run server_stream`; the same idea, bounded, is `hostile_bytes_…` in the tests of the core.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ticketing::wire::codec::{decode, encode, Sender, Value};
use ticketing::wire::replies::{frame_size, Reply};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some(size)) = frame_size(rest) {
        if size > rest.len() {
            break;
        }
        let (frame, after) = rest.split_at(size);
        let reply = Reply::parse(frame);
        assert_eq!(reply.op, frame[0]);
        if let Ok((name, fields)) = decode(Sender::Server, frame) {
            let fields: Vec<(&str, Value)> = fields;
            assert_eq!(encode(Sender::Server, name, &fields).as_deref(), Ok(frame));
        }
        rest = after;
    }
    let _ = decode(Sender::Client, data);
});
