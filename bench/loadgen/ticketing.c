/* Version 4 of the protocol: handshake, frames out, replies in. */
#include "connection.h"
#include "failure.h"
#include "sha256.h"

#include <endian.h>
#include <string.h>
#include <sys/random.h>

enum {
    VERSION = 4,
    GREETING_BYTES = 26,
    NONCE_BYTES = 16,
    HEADER_BYTES = 3,
    HELLO_FIXED_BYTES = 1 + 8 + 4 + NONCE_BYTES + SHA256_BYTES,
    WELCOME_FIXED_BYTES = 1 + 2 + SHA256_BYTES + SHA256_BYTES,
    LEADER_BYTES_MAX = ADDRESS_BYTES_MAX,
    ERROR_BYTES_MAX = 9 + 128,
    REQUEST_BYTES_MAX = HEADER_BYTES + 20 + KEY_BYTES_MAX,
};

static const char label[] = "loadgen;loadgen/1";
enum { LABEL_BYTES = sizeof label - 1 };

static inline uint8_t *put_u16(uint8_t *out, uint16_t value)
{
    value = htobe16(value);
    memcpy(out, &value, sizeof value);
    return out + sizeof value;
}

static inline uint8_t *put_u32(uint8_t *out, uint32_t value)
{
    value = htobe32(value);
    memcpy(out, &value, sizeof value);
    return out + sizeof value;
}

static inline uint8_t *put_u64(uint8_t *out, uint64_t value)
{
    value = htobe64(value);
    memcpy(out, &value, sizeof value);
    return out + sizeof value;
}

static inline uint8_t *put_bytes(uint8_t *out, const void *from, size_t bytes)
{
    memcpy(out, from, bytes);
    return out + bytes;
}

static inline unsigned get_u16(const uint8_t *from)
{
    return (unsigned)from[0] << 8 | from[1];
}

static inline uint64_t get_u64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return be64toh(value);
}

/* A text from the server with other bytes than printable ASCII shown as '?'. */
static const char *printable(const uint8_t *text, size_t bytes)
{
    static char shown[ADDRESS_BYTES_MAX + 1];
    for (size_t i = 0; i < bytes; i++)
        shown[i] = text[i] >= 0x20 && text[i] <= 0x7E ? (char)text[i] : '?';
    shown[bytes] = '\0';
    return shown;
}

static void read_greeting(struct connection *connection, uint8_t greeting[GREETING_BYTES])
{
    connection_read_exactly(connection, greeting, GREETING_BYTES, "greeting");
    if (memcmp(greeting, "TICKET", 6) != 0)
        fail_connection("this is no ticketing server: its first bytes are not 'TICKET'");
    if (greeting[6] > VERSION || greeting[7] < VERSION)
        fail_connection("the server speaks versions %u to %u, not %d", greeting[6], greeting[7],
                        VERSION);
}

static void write_hello(struct connection *connection, const struct options *options,
                        const uint8_t greeting[GREETING_BYTES], uint8_t nonce[NONCE_BYTES])
{
    uint8_t hello[HEADER_BYTES + HELLO_FIXED_BYTES + LABEL_BYTES], mac[SHA256_BYTES];
    uint64_t client_id;
    struct hmac hmac;
    if (getrandom(&client_id, sizeof client_id, 0) != sizeof client_id ||
        getrandom(nonce, NONCE_BYTES, 0) != NONCE_BYTES)
        fail_connection("the system gives no random bytes");
    hello[0] = 'H';
    uint8_t *body = put_u16(hello + 1, HELLO_FIXED_BYTES + LABEL_BYTES), *out = body;
    *out++ = VERSION;
    out = put_u64(out, client_id);
    out = put_u32(out, 1);
    out = put_bytes(out, nonce, NONCE_BYTES);
    hmac_begin(&hmac, options->secret, strlen(options->secret));
    hmac_add(&hmac, "TICKETING/CLIENT", 16);
    hmac_add(&hmac, greeting, GREETING_BYTES);
    hmac_add(&hmac, body, (size_t)(out - body));
    hmac_add(&hmac, label, LABEL_BYTES);
    hmac_end(&hmac, mac);
    out = put_bytes(out, mac, SHA256_BYTES);
    put_bytes(out, label, LABEL_BYTES);
    connection_write_all(connection, hello, sizeof hello);
}

static size_t read_welcome(struct connection *connection,
                           uint8_t body[WELCOME_FIXED_BYTES + LEADER_BYTES_MAX])
{
    uint8_t header[HEADER_BYTES];
    connection_read_exactly(connection, header, sizeof header, "welcome");
    size_t bytes = get_u16(header + 1);
    if (header[0] == 'E' && bytes >= 9 && bytes <= ERROR_BYTES_MAX) {
        connection_read_exactly(connection, body, bytes, "error");
        fail_connection("the server refuses the handshake with code %u: %s", body[8],
                        printable(body + 9, bytes - 9));
    }
    if (header[0] != 'W' || bytes < WELCOME_FIXED_BYTES ||
        bytes > WELCOME_FIXED_BYTES + LEADER_BYTES_MAX)
        fail_reply("op 0x%02x with %zu bytes came instead of a welcome", header[0], bytes);
    connection_read_exactly(connection, body, bytes, "welcome");
    return bytes;
}

static bool open_connection(struct connection *connection, const struct options *options,
                            char elsewhere[ADDRESS_BYTES_MAX + 1])
{
    uint8_t greeting[GREETING_BYTES], nonce[NONCE_BYTES], proof[SHA256_BYTES];
    uint8_t welcome[WELCOME_FIXED_BYTES + LEADER_BYTES_MAX];
    struct hmac hmac;
    read_greeting(connection, greeting);
    write_hello(connection, options, greeting, nonce);
    size_t bytes = read_welcome(connection, welcome);
    const size_t proof_at = WELCOME_FIXED_BYTES - SHA256_BYTES;
    hmac_begin(&hmac, options->secret, strlen(options->secret));
    hmac_add(&hmac, "TICKETING/SERVER", 16);
    hmac_add(&hmac, greeting, GREETING_BYTES);
    hmac_add(&hmac, nonce, NONCE_BYTES);
    hmac_add(&hmac, welcome, proof_at);
    hmac_add(&hmac, welcome + WELCOME_FIXED_BYTES, bytes - WELCOME_FIXED_BYTES);
    hmac_end(&hmac, proof);
    if (memcmp(proof, welcome + proof_at, SHA256_BYTES) != 0)
        fail_reply("the server's proof is wrong: it does not know the secret");
    size_t leader_bytes = welcome[0] > 1 ? bytes - WELCOME_FIXED_BYTES : 0;
    memcpy(elsewhere, welcome + WELCOME_FIXED_BYTES, leader_bytes);
    elsewhere[leader_bytes] = '\0';
    return welcome[0] <= 1;
}

static size_t put_acquire(const struct connection *connection, struct slot *slot,
                          uint32_t wait_ms, uint32_t lease_ms, uint8_t *out)
{
    uint8_t *start = out;
    (void)connection;
    *out++ = 'A';
    out = put_u16(out, (uint16_t)(16 + slot->key_bytes));
    out = put_u64(out, slot->request_id);
    out = put_u32(out, wait_ms);
    out = put_u32(out, lease_ms);
    return (size_t)(put_bytes(out, slot->key, slot->key_bytes) - start);
}

static size_t put_release(const struct connection *connection, const struct slot *slot,
                          uint8_t *out)
{
    uint8_t *start = out;
    (void)connection;
    *out++ = 'R';
    out = put_u16(out, (uint16_t)(16 + slot->key_bytes));
    out = put_u64(out, slot->request_id);
    out = put_u64(out, slot->token);
    return (size_t)(put_bytes(out, slot->key, slot->key_bytes) - start);
}

static size_t put_ping(uint8_t *out)
{
    *out = 'P';
    return (size_t)(put_u64(put_u16(out + 1, 8), 0) - out);
}

/* A frame that ends the run: what it is, whole or not, goes into the message. */
__attribute__((cold)) static size_t refuse(const uint8_t *data, size_t bytes)
{
    size_t body_bytes = get_u16(data + 1);
    const uint8_t *body = data + HEADER_BYTES;
    bool whole = bytes >= HEADER_BYTES + body_bytes;
    if (strchr("ETBNDL", data[0]) == NULL || data[0] == '\0' || body_bytes > LEADER_BYTES_MAX)
        fail_reply("op 0x%02x with %zu bytes of body", data[0], body_bytes);
    if (!whole)
        return 0;
    if (data[0] == 'E' && body_bytes >= 9 && body_bytes <= ERROR_BYTES_MAX)
        fail_reply("error %u to request %llu: %s", body[8], (unsigned long long)get_u64(body),
                   printable(body + 9, body_bytes - 9));
    if (data[0] == 'D' && body_bytes == 9)
        fail_reply("ticket %llu was dropped for reason %u", (unsigned long long)get_u64(body),
                   body[8]);
    if (data[0] == 'L')
        fail_connection("the server stopped leading; '%s' is said to lead now",
                        printable(body, body_bytes));
    if (strchr("TBN", data[0]) != NULL && body_bytes == 8)
        fail_reply("request %llu got '%c'; this job allows only granted and released",
                   (unsigned long long)get_u64(body), data[0]);
    fail_reply("op '%c' with %zu bytes of body", data[0], body_bytes);
}

static size_t take_reply(struct connection *connection, const uint8_t *data, size_t bytes,
                         struct reply *reply)
{
    (void)connection;
    if (bytes < HEADER_BYTES)
        return 0;
    size_t body_bytes = data[0] == 'A' ? 20 : 8;
    if ((data[0] != 'A' && data[0] != 'R' && data[0] != 'P') || get_u16(data + 1) != body_bytes)
        return refuse(data, bytes);
    if (bytes < HEADER_BYTES + body_bytes)
        return 0;
    reply->request_id = get_u64(data + HEADER_BYTES);
    reply->kind = data[0] == 'A' ? REPLY_GRANTED : data[0] == 'R' ? REPLY_RELEASED : REPLY_PONG;
    if (data[0] == 'A')
        reply->token = get_u64(data + HEADER_BYTES + 8);
    return HEADER_BYTES + body_bytes;
}

const struct protocol protocol_ticketing = {
    .name = "ticketing",
    .has_tokens = true,
    .request_bytes_max = REQUEST_BYTES_MAX,
    .open = open_connection,
    .put_acquire = put_acquire,
    .put_release = put_release,
    .put_ping = put_ping,
    .take_reply = take_reply,
};
