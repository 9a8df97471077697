/* Redis's protocol: the lock as its users write it, SET NX PX and a compare-and-delete script. */
#include "connection.h"
#include "failure.h"

#include <stdio.h>
#include <string.h>

enum { VALUE_BYTES = 16, SHA_BYTES = 40, FIXED_BYTES_MAX = 160, ERROR_BYTES_MAX = 512 };

static const char script[] = "if redis.call('get', KEYS[1]) == ARGV[1] then "
                             "return redis.call('del', KEYS[1]) else return 0 end";

/* The script's SHA-1 as the server computed it; the same on every connection. */
static char script_sha[SHA_BYTES + 1];

static uint8_t *put_text(uint8_t *out, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(out, text, bytes);
    return out + bytes;
}

static uint8_t *put_decimal(uint8_t *out, uint32_t value)
{
    uint8_t digits[10];
    unsigned count = 0;
    do {
        digits[count++] = (uint8_t)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    while (count > 0)
        *out++ = digits[--count];
    return out;
}

static uint8_t *put_bulk(uint8_t *out, const void *data, uint32_t bytes)
{
    *out++ = '$';
    out = put_text(put_decimal(out, bytes), "\r\n");
    memcpy(out, data, bytes);
    return put_text(out + bytes, "\r\n");
}

/* Different for every acquire of every connection, so only the holder's release matches. */
static uint8_t *put_value(uint8_t *out, uint64_t token)
{
    static const char hex[] = "0123456789abcdef";
    uint8_t value[VALUE_BYTES];
    for (unsigned i = 0; i < VALUE_BYTES; i++)
        value[i] = (uint8_t)hex[token >> (60 - 4 * i) & 15];
    return put_bulk(out, value, VALUE_BYTES);
}

static size_t put_acquire(const struct connection *connection, struct slot *slot,
                          uint32_t wait_ms, uint32_t lease_ms, uint8_t *out)
{
    uint8_t lease[10], *start = out;
    (void)wait_ms;
    slot->token = (uint64_t)connection->number << 48 | slot->request_id;
    out = put_text(out, "*6\r\n$3\r\nSET\r\n");
    out = put_bulk(out, slot->key, slot->key_bytes);
    out = put_value(out, slot->token);
    out = put_text(out, "$2\r\nNX\r\n$2\r\nPX\r\n");
    out = put_bulk(out, lease, (uint32_t)(put_decimal(lease, lease_ms) - lease));
    return (size_t)(out - start);
}

static size_t put_release(const struct connection *connection, const struct slot *slot,
                          uint8_t *out)
{
    uint8_t *start = out;
    (void)connection;
    out = put_text(out, "*5\r\n$7\r\nEVALSHA\r\n$40\r\n");
    memcpy(out, script_sha, SHA_BYTES);
    out = put_text(out + SHA_BYTES, "\r\n$1\r\n1\r\n");
    out = put_bulk(out, slot->key, slot->key_bytes);
    out = put_value(out, slot->token);
    return (size_t)(out - start);
}

static size_t put_ping(uint8_t *out)
{
    return (size_t)(put_text(out, "*1\r\n$4\r\nPING\r\n") - out);
}

static bool open_connection(struct connection *connection, const struct options *options,
                            char elsewhere[ADDRESS_BYTES_MAX + 1])
{
    char load[256], reply[5 + SHA_BYTES + 2];
    (void)options, (void)elsewhere;
    int bytes = snprintf(load, sizeof load, "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%zu\r\n%s\r\n",
                         strlen(script), script);
    connection_write_all(connection, load, (size_t)bytes);
    connection_read_exactly(connection, reply, sizeof reply, "reply to SCRIPT LOAD");
    if (memcmp(reply, "$40\r\n", 5) != 0 ||
        strspn(reply + 5, "0123456789abcdef") != SHA_BYTES ||
        memcmp(reply + 5 + SHA_BYTES, "\r\n", 2) != 0)
        fail_reply("SCRIPT LOAD was answered with '%.40s'", reply);
    memcpy(script_sha, reply + 5, SHA_BYTES);
    return true;
}

__attribute__((cold)) static size_t refuse(const struct connection *connection,
                                           const uint8_t *data, size_t bytes)
{
    const uint8_t *end = memchr(data, '\n', bytes);
    if (end == NULL && bytes < ERROR_BYTES_MAX)
        return 0;
    int shown = (int)(end ? (size_t)(end - data) : bytes);
    fail_reply("request %llu of connection %u got '%.*s'",
               (unsigned long long)connection->last_reply_id + 1, connection->number,
               shown > 0 ? shown - 1 : 0, (const char *)data);
}

static size_t take_reply(struct connection *connection, const uint8_t *data, size_t bytes,
                         struct reply *reply)
{
    if (bytes < 4)
        return 0;
    if (memcmp(data, ":1\r\n", 4) == 0) {
        reply->kind = REPLY_RELEASED;
        reply->request_id = ++connection->last_reply_id;
        return 4;
    }
    if (bytes < 5)
        return data[0] == '+' ? 0 : refuse(connection, data, bytes);
    if (memcmp(data, "+OK\r\n", 5) == 0) {
        reply->kind = REPLY_GRANTED;
        reply->request_id = ++connection->last_reply_id;
        return 5;
    }
    if (bytes < 7 && memcmp(data, "+PONG\r\n", bytes) == 0)
        return 0;
    if (bytes >= 7 && memcmp(data, "+PONG\r\n", 7) == 0) {
        reply->kind = REPLY_PONG;
        reply->request_id = 0;
        return 7;
    }
    return refuse(connection, data, bytes);
}

const struct protocol protocol_redis = {
    .name = "redis",
    .has_tokens = false,
    .request_bytes_max = FIXED_BYTES_MAX + KEY_BYTES_MAX,
    .open = open_connection,
    .put_acquire = put_acquire,
    .put_release = put_release,
    .put_ping = put_ping,
    .take_reply = take_reply,
};
