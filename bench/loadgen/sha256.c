#include "sha256.h"

#include <string.h>

/* FIPS 180-4, section 4.2.2: the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate_right(uint32_t word, unsigned bits)
{
    return word >> bits | word << (32 - bits);
}

static void expand(const uint8_t *block, uint32_t words[64])
{
    for (int i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t early = words[i - 15], late = words[i - 2];
        uint32_t s0 = rotate_right(early, 7) ^ rotate_right(early, 18) ^ early >> 3;
        uint32_t s1 = rotate_right(late, 17) ^ rotate_right(late, 19) ^ late >> 10;
        words[i] = words[i - 16] + s0 + words[i - 7] + s1;
    }
}

static void compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t words[64], v[8];
    expand(block, words);
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + round_constants[i] + words[i];
        uint32_t s0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++)
        state[i] += v[i];
}

void sha256_begin(struct sha256 *sha)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, first, sizeof first);
    sha->total_bytes = 0;
}

void sha256_add(struct sha256 *sha, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    for (size_t i = 0; i < bytes; i++) {
        sha->block[sha->total_bytes++ % SHA256_BLOCK_BYTES] = from[i];
        if (sha->total_bytes % SHA256_BLOCK_BYTES == 0)
            compress(sha->state, sha->block);
    }
}

void sha256_end(struct sha256 *sha, uint8_t digest[SHA256_BYTES])
{
    uint64_t bits = sha->total_bytes * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(sha, "\x80", 1);
    while (sha->total_bytes % SHA256_BLOCK_BYTES != SHA256_BLOCK_BYTES - sizeof length)
        sha256_add(sha, "", 1);
    sha256_add(sha, length, sizeof length);
    for (int i = 0; i < SHA256_BYTES; i++)
        digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_begin(struct hmac *hmac, const void *key, size_t key_bytes)
{
    uint8_t block[SHA256_BLOCK_BYTES] = {0}, inner_pad[SHA256_BLOCK_BYTES];
    if (key_bytes > sizeof block) {
        struct sha256 sha;
        sha256_begin(&sha);
        sha256_add(&sha, key, key_bytes);
        sha256_end(&sha, block);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        inner_pad[i] = block[i] ^ 0x36;
        hmac->outer_pad[i] = block[i] ^ 0x5c;
    }
    sha256_begin(&hmac->inner);
    sha256_add(&hmac->inner, inner_pad, sizeof inner_pad);
}

void hmac_add(struct hmac *hmac, const void *data, size_t bytes)
{
    sha256_add(&hmac->inner, data, bytes);
}

void hmac_end(struct hmac *hmac, uint8_t digest[SHA256_BYTES])
{
    struct sha256 outer;
    sha256_end(&hmac->inner, digest);
    sha256_begin(&outer);
    sha256_add(&outer, hmac->outer_pad, sizeof hmac->outer_pad);
    sha256_add(&outer, digest, SHA256_BYTES);
    sha256_end(&outer, digest);
}
