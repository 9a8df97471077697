/* One run: its connections, what it has checked and counted, and what it measured. */
#ifndef RUN_H
#define RUN_H

#include "connection.h"
#include "latency.h"

/* Fill and empty take and give back the held tickets; pairs and idle lie between them. */
enum stage { STAGE_FILL, STAGE_PAIRS, STAGE_IDLE, STAGE_EMPTY };

/* Job contended: a key that many slots queue for. */
struct shared_key {
    uint64_t last_token;
    uint64_t released_ns;   /* when its latest release was sent; 0 before the first */
    uint64_t release_batch; /* in which batch: it leaves with the end of that batch */
};

struct mark {
    uint64_t ns;
    uint64_t replies;
    uint64_t own_cpu_ns;
    uint64_t server_cpu_ns;
    uint64_t server_rss_kib;
};

struct run {
    const struct options *options;
    const struct protocol *protocol;
    struct connection *connections;
    struct endpoints endpoints; /* of the cluster; its leader is the one of now */
    int epoll;
    enum stage stage;
    uint64_t outstanding; /* requests, over all connections */
    uint64_t last_reply_ns;
    uint64_t batch;       /* counts what was read from one connection at a time, from 1 */
    bool stop;            /* no new acquire; what is held is still released */

    uint64_t acquires, grants, releases, released; /* sent, answered, of the whole run */
    uint64_t pairs_started;
    uint64_t next_key_number;
    unsigned next_lease;  /* which of the lease_spread leases comes next */

    uint64_t *held_tokens;
    uint64_t hold_first_key;
    struct shared_key *shared_keys;

    bool in_window;
    struct latency latency;  /* request sent to reply read; contended: releases only */
    struct latency hand_off; /* contended: release sent to the next holder's grant read */
    struct mark opened, filled, window_start, window_end, emptied;
};

void run_start(struct run *run, const struct options *options, const struct protocol *protocol);
void run_stages(struct run *run);

/* requests.c: sends what the slot does next; leaves it idle if that is nothing. */
void slot_advance(struct run *run, struct connection *connection, struct slot *slot,
                  uint64_t now_ns);
/* requests.c: checks one reply against its request, and sends what follows from it. */
void slot_take_reply(struct run *run, struct connection *connection, const struct reply *reply,
                     uint64_t now_ns);

/* report.c */
void report_print(const struct run *run);

#endif
