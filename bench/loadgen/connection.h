/* One connection: its slots, its buffers, and the two protocols that it can speak. */
#ifndef CONNECTION_H
#define CONNECTION_H

#include "options.h"

#include <stddef.h>
#include <stdint.h>

enum { ADDRESS_BYTES_MAX = 260 };

/* A slot has one request in flight at most, so W slots make W in flight. */
struct slot {
    uint64_t request_id; /* of its latest request */
    uint64_t sent_ns;
    uint64_t token;      /* of its latest ticket; Redis: the value that it chose */
    uint64_t key_number;
    uint8_t *key;
    uint8_t key_bytes;
    enum slot_state { SLOT_IDLE, SLOT_ACQUIRING, SLOT_RELEASING } state;
};

struct connection {
    int fd;
    unsigned number;
    uint64_t last_request_id;
    uint64_t last_reply_id;   /* Redis, whose replies come in order and carry no id */
    uint64_t last_token;      /* tokens rise on a connection */
    uint64_t next_held;       /* index of the next background ticket to take or give back */
    unsigned outstanding;
    unsigned pings_outstanding;
    uint64_t last_sent_ns;
    struct slot *slots;
    uint32_t *slot_of_request; /* by request id, modulo its size */
    uint32_t request_mask;
    uint8_t *in, *out;
    size_t in_bytes, in_capacity;
    size_t out_start, out_end, out_capacity; /* unsent: from out_start to out_end */
    bool awaits_writable;
};

struct reply {
    enum reply_kind { REPLY_GRANTED, REPLY_RELEASED, REPLY_PONG } kind;
    uint64_t request_id;
    uint64_t token;
};

struct protocol {
    const char *name;
    bool has_tokens;         /* the server numbers its grants */
    size_t request_bytes_max;
    /* On a blocking socket: everything that precedes the first request. False where requests
       belong elsewhere; elsewhere is then the leader, or empty where none is known. */
    bool (*open)(struct connection *connection, const struct options *options,
                 char elsewhere[ADDRESS_BYTES_MAX + 1]);
    /* Each writes one request to out and returns its length. */
    size_t (*put_acquire)(const struct connection *connection, struct slot *slot,
                          uint32_t wait_ms, uint32_t lease_ms, uint8_t *out);
    size_t (*put_release)(const struct connection *connection, const struct slot *slot,
                          uint8_t *out);
    size_t (*put_ping)(uint8_t *out);
    /* Reads one reply; returns its length, or 0 if it is not whole yet. Ends the process on a
       reply that the protocol or the job does not allow. */
    size_t (*take_reply)(struct connection *connection, const uint8_t *data, size_t bytes,
                         struct reply *reply);
};

extern const struct protocol protocol_ticketing, protocol_redis;

/* Connects, makes the handshake, and leaves the socket non-blocking. Where endpoints has any, it
   goes to their leader, which endpoints then remembers. */
void connection_open(struct connection *connection, unsigned number,
                     const struct options *options, struct endpoints *endpoints,
                     const struct protocol *protocol);

/* For handshakes, on the blocking socket. */
void connection_read_exactly(struct connection *connection, void *into, size_t bytes,
                             const char *what);
void connection_write_all(struct connection *connection, const void *from, size_t bytes);

/* Returns the bytes read, 0 if there are none now. */
size_t connection_receive(struct connection *connection);
/* Writes what the socket takes. */
void connection_flush(struct connection *connection);
/* Room for one more request; it always is there, as a slot has one request at most. */
uint8_t *connection_room(struct connection *connection, size_t bytes);

#endif
