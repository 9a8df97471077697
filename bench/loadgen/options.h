/* The command line, read once. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "endpoints.h"

#include <stdbool.h>
#include <stdint.h>

enum job { JOB_PAIRS, JOB_CONTENDED, JOB_HOLD };

enum { KEY_BYTES_MAX = 128, KEY_BYTES_UNIQUE = 8, SERVERS_MAX = 8 };

struct options {
    const char *protocol;   /* "ticketing" or "redis" */
    const char *host;
    const char *port;
    const char *unix_path;  /* NULL: TCP */
    struct endpoints cluster; /* its count is 0: one server, at host and port */
    const char *secret;
    enum job job;
    unsigned connections;
    unsigned in_flight;     /* per connection */
    unsigned key_bytes_min, key_bytes_max;
    unsigned keys;          /* contended: how many keys all slots share */
    bool distinct_keys;     /* a key never used before for each acquire */
    uint64_t hold;          /* tickets held in the background */
    double seconds, warmup_seconds;
    uint64_t requests;      /* 0: until the seconds are over */
    uint32_t lease_ms, wait_ms;
    unsigned lease_spread;  /* how many different leases and waits are in use */
    int cpu;                /* -1: not pinned */
    long server_pids[SERVERS_MAX];
    unsigned servers;       /* how many processes are known */
    bool json;
};

/* Ends the process with exit code 2 where an argument is wrong. */
void options_read(struct options *options, int argc, char **argv);

#endif
