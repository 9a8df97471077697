//! SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), so that the client needs no library for them.

const BLOCK_BYTES: usize = 64;
pub const DIGEST_BYTES: usize = 32;

const ROUND_CONSTANTS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

const START: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

/// SHA-256 over parts that are hashed one after the other.
#[must_use]
pub fn sha256(parts: &[&[u8]]) -> [u8; DIGEST_BYTES] {
    let mut state = START;
    let mut block = [0u8; BLOCK_BYTES];
    let mut filled = 0;
    let mut total = 0u64;
    for part in parts {
        total += part.len() as u64;
        for &byte in *part {
            block[filled] = byte;
            filled += 1;
            if filled == BLOCK_BYTES {
                compress(&mut state, &block);
                filled = 0;
            }
        }
    }
    block[filled] = 0x80;
    block[filled + 1..].fill(0);
    if filled + 1 > BLOCK_BYTES - 8 {
        compress(&mut state, &block);
        block.fill(0);
    }
    block[BLOCK_BYTES - 8..].copy_from_slice(&(total * 8).to_be_bytes());
    compress(&mut state, &block);
    let mut digest = [0; DIGEST_BYTES];
    for (out, word) in digest.chunks_exact_mut(4).zip(state) {
        out.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn compress(state: &mut [u32; 8], block: &[u8; BLOCK_BYTES]) {
    let mut w = [0u32; 64];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for t in 16..64 {
        let s0 = w[t - 15].rotate_right(7) ^ w[t - 15].rotate_right(18) ^ (w[t - 15] >> 3);
        let s1 = w[t - 2].rotate_right(17) ^ w[t - 2].rotate_right(19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (constant, word) in ROUND_CONSTANTS.iter().zip(w) {
        let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let t1 = h.wrapping_add(s1).wrapping_add(choice).wrapping_add(*constant).wrapping_add(word);
        let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let majority = (a & b) ^ (a & c) ^ (b & c);
        let t2 = s0.wrapping_add(majority);
        (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(t1), c, b, a, t1.wrapping_add(t2));
    }
    for (sum, value) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *sum = sum.wrapping_add(value);
    }
}

/// HMAC-SHA-256 with a key of any length, also an empty one.
#[must_use]
pub fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; DIGEST_BYTES] {
    let mut padded = [0u8; BLOCK_BYTES];
    if key.len() > BLOCK_BYTES {
        padded[..DIGEST_BYTES].copy_from_slice(&sha256(&[key]));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let inner = padded.map(|byte| byte ^ 0x36);
    let outer = padded.map(|byte| byte ^ 0x5c);
    let mut all: Vec<&[u8]> = Vec::with_capacity(parts.len() + 1);
    all.push(&inner);
    all.extend_from_slice(parts);
    sha256(&[&outer, &sha256(&all)])
}

/// Compares in a time that does not depend on where the two differ.
#[must_use]
pub fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && std::hint::black_box(one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(data: &[u8]) -> String {
        data.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_examples_of_fips_180() {
        let million = vec![b'a'; 1_000_000];
        let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        for (input, digest) in [
            (&b""[..], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (two_blocks, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"),
            (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ] {
            assert_eq!(hex(&sha256(&[input])), digest);
        }
    }

    #[test]
    fn parts_are_one_message_however_they_are_cut() {
        let message: Vec<u8> = (0..200u8).collect();
        for length in 0..message.len() {
            let whole = sha256(&[&message[..length]]);
            for cut in [0, length / 3, length / 2, length] {
                assert_eq!(sha256(&[&message[..cut], &message[cut..length]]), whole);
            }
        }
    }

    #[test]
    fn the_examples_of_rfc_4231() {
        for (key, data, digest) in [
            (vec![0x0b; 20], &b"Hi There"[..], "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                b"Jefe".to_vec(),
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                vec![0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
        ] {
            assert_eq!(hex(&hmac(&key, &[data])), digest);
        }
    }

    #[test]
    fn an_empty_key_is_a_key_of_one_zero_byte() {
        assert_eq!(hmac(b"", &[b"x"]), hmac(b"\0", &[b"x"]));
    }

    #[test]
    fn same_sees_every_difference() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd"));
        assert!(!same(b"abc", b"ab"));
    }
}
