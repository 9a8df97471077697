/* SHA-256 and HMAC-SHA-256, for the handshake only: one call per connection. */
#ifndef SHA256_H
#define SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK_BYTES = 64 };

struct sha256 {
    uint32_t state[8];
    uint64_t total_bytes;
    uint8_t block[SHA256_BLOCK_BYTES];
};

void sha256_begin(struct sha256 *sha);
void sha256_add(struct sha256 *sha, const void *data, size_t bytes);
void sha256_end(struct sha256 *sha, uint8_t digest[SHA256_BYTES]);

struct hmac {
    struct sha256 inner;
    uint8_t outer_pad[SHA256_BLOCK_BYTES];
};

void hmac_begin(struct hmac *hmac, const void *key, size_t key_bytes);
void hmac_add(struct hmac *hmac, const void *data, size_t bytes);
void hmac_end(struct hmac *hmac, uint8_t digest[SHA256_BYTES]);

#endif
