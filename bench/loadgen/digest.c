/* Reads lines "key-hex data-hex" ("-" is empty) and prints each one's SHA-256 and HMAC. */
#include "sha256.h"

#include <stdio.h>
#include <string.h>

static size_t from_hex(const char *hex, uint8_t *bytes)
{
    size_t count = 0;
    unsigned value;
    for (; hex[0] != '-' && sscanf(hex, "%2x", &value) == 1; hex += 2)
        bytes[count++] = (uint8_t)value;
    return count;
}

static void print_hex(const uint8_t digest[SHA256_BYTES], char end)
{
    for (int i = 0; i < SHA256_BYTES; i++)
        printf("%02x", digest[i]);
    putchar(end);
}

int main(void)
{
    static char key_hex[8192], data_hex[8192];
    static uint8_t key[4096], data[4096];
    uint8_t digest[SHA256_BYTES];
    while (scanf("%8191s %8191s", key_hex, data_hex) == 2) {
        size_t key_bytes = from_hex(key_hex, key), data_bytes = from_hex(data_hex, data);
        struct sha256 sha;
        struct hmac hmac;
        sha256_begin(&sha);
        sha256_add(&sha, data, data_bytes);
        sha256_end(&sha, digest);
        print_hex(digest, ' ');
        hmac_begin(&hmac, key, key_bytes);
        hmac_add(&hmac, data, data_bytes);
        hmac_end(&hmac, digest);
        print_hex(digest, '\n');
    }
    return 0;
}
