#include "run.h"

#include "failure.h"
#include "server_process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

enum { EVENTS_PER_TURN = 256, TICK_MS = 100 };

static const uint64_t second_ns = 1000000000;
static const uint64_t stalled_after_ns = 10000000000;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

static void set_mark(struct run *run, struct mark *mark, uint64_t now_ns)
{
    const struct options *options = run->options;
    mark->ns = now_ns;
    mark->replies = run->grants + run->released;
    mark->own_cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    mark->server_cpu_ns = mark->server_rss_kib = 0;
    for (unsigned i = 0; i < options->servers; i++) {
        mark->server_cpu_ns += server_cpu_ns(options->server_pids[i]);
        mark->server_rss_kib += server_rss_kib(options->server_pids[i]);
    }
}

static void watch(struct run *run, struct connection *connection, int operation)
{
    struct epoll_event event = {
        .events = EPOLLIN | (connection->awaits_writable ? EPOLLOUT : 0u),
        .data.ptr = connection,
    };
    if (epoll_ctl(run->epoll, operation, connection->fd, &event) != 0)
        fail_connection("epoll: %s", strerror(errno));
}

static void flush(struct run *run, struct connection *connection, uint64_t now_ns)
{
    if (connection->out_end == 0)
        return;
    connection_flush(connection);
    connection->last_sent_ns = now_ns;
    bool unsent = connection->out_end != 0;
    if (unsent != connection->awaits_writable) {
        connection->awaits_writable = unsent;
        watch(run, connection, EPOLL_CTL_MOD);
    }
}

static void take_replies(struct run *run, struct connection *connection, uint64_t now_ns)
{
    const uint8_t *data = connection->in;
    size_t at = 0, used;
    struct reply reply = {0};
    run->batch++;
    while ((used = run->protocol->take_reply(connection, data + at, connection->in_bytes - at,
                                             &reply)) != 0) {
        slot_take_reply(run, connection, &reply, now_ns);
        at += used;
    }
    connection->in_bytes -= at;
    if (connection->in_bytes != 0 && at != 0)
        memmove(connection->in, connection->in + at, connection->in_bytes);
}

/* A server may close a connection that is silent for 3 s. */
static void ping_silent(struct run *run, uint64_t now_ns)
{
    for (unsigned i = 0; i < run->options->connections; i++) {
        struct connection *connection = &run->connections[i];
        if (now_ns - connection->last_sent_ns < second_ns || connection->pings_outstanding > 0)
            continue;
        uint8_t *out = connection_room(connection, run->protocol->request_bytes_max);
        connection->out_end += run->protocol->put_ping(out);
        connection->pings_outstanding++;
        flush(run, connection, now_ns);
    }
}

static void turn(struct run *run)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int count = epoll_wait(run->epoll, events, EVENTS_PER_TURN, TICK_MS);
    if (count < 0 && errno != EINTR)
        fail_connection("epoll: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        struct connection *connection = events[i].data.ptr;
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        if (events[i].events & ~(uint32_t)EPOLLOUT && connection_receive(connection) > 0)
            take_replies(run, connection, clock_ns(CLOCK_MONOTONIC));
        flush(run, connection, now_ns);
    }
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (run->outstanding > 0 && now_ns > run->last_reply_ns + stalled_after_ns)
        fail_connection("no reply for 10 s with %llu requests unanswered",
                        (unsigned long long)run->outstanding);
    static uint64_t last_ping_ns;
    if (now_ns - last_ping_ns > second_ns / 4) {
        last_ping_ns = now_ns;
        ping_silent(run, now_ns);
    }
}

static void begin(struct run *run, enum stage stage)
{
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    run->stage = stage;
    run->last_reply_ns = now_ns;
    for (unsigned i = 0; i < run->options->connections; i++) {
        struct connection *connection = &run->connections[i];
        for (unsigned j = 0; j < run->options->in_flight; j++)
            slot_advance(run, connection, &connection->slots[j], now_ns);
        flush(run, connection, now_ns);
    }
}

static void fill_or_empty(struct run *run, enum stage stage)
{
    for (unsigned i = 0; i < run->options->connections; i++)
        run->connections[i].next_held = i;
    begin(run, stage);
    while (run->outstanding > 0)
        turn(run);
}

static void open_window(struct run *run)
{
    memset(&run->latency, 0, sizeof run->latency);
    memset(&run->hand_off, 0, sizeof run->hand_off);
    run->in_window = true;
    set_mark(run, &run->window_start, clock_ns(CLOCK_MONOTONIC));
}

static void close_window(struct run *run)
{
    run->in_window = false;
    set_mark(run, &run->window_end, clock_ns(CLOCK_MONOTONIC));
}

/* The window is measured; what leads into it and the release of everything after it is not. */
static void pairs(struct run *run)
{
    const struct options *options = run->options;
    uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
    uint64_t from_ns = start_ns + (uint64_t)(options->warmup_seconds * 1e9);
    uint64_t until_ns = from_ns + (uint64_t)(options->seconds * 1e9);
    if (options->requests)
        open_window(run);
    begin(run, STAGE_PAIRS);
    while (run->outstanding > 0) {
        turn(run);
        if (options->requests || run->stop)
            continue;
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        if (!run->in_window && now_ns >= from_ns)
            open_window(run);
        if (run->in_window && now_ns >= until_ns) {
            close_window(run);
            run->stop = true;
        }
    }
    if (options->requests)
        close_window(run);
}

static void idle(struct run *run)
{
    uint64_t until_ns = clock_ns(CLOCK_MONOTONIC) + (uint64_t)(run->options->seconds * 1e9);
    run->stage = STAGE_IDLE;
    open_window(run);
    while (clock_ns(CLOCK_MONOTONIC) < until_ns)
        turn(run);
    close_window(run);
}

static void check_sums(const struct run *run)
{
    if (run->acquires != run->grants || run->releases != run->released ||
        run->grants != run->released)
        fail_reply("%llu acquires got %llu grants, %llu releases got %llu answers",
                   (unsigned long long)run->acquires, (unsigned long long)run->grants,
                   (unsigned long long)run->releases, (unsigned long long)run->released);
}

void run_start(struct run *run, const struct options *options, const struct protocol *protocol)
{
    uint64_t slots = (uint64_t)options->connections * options->in_flight;
    memset(run, 0, sizeof *run);
    run->options = options;
    run->protocol = protocol;
    run->endpoints = options->cluster;
    run->hold_first_key = slots;
    run->next_key_number = slots + options->hold;
    run->connections = calloc(options->connections, sizeof *run->connections);
    run->held_tokens = calloc(options->hold + 1, sizeof *run->held_tokens);
    if (options->job == JOB_CONTENDED)
        run->shared_keys = calloc(options->keys, sizeof *run->shared_keys);
    run->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (run->connections == NULL || run->held_tokens == NULL || run->epoll < 0 ||
        (options->job == JOB_CONTENDED && run->shared_keys == NULL))
        fail_connection("no memory or no descriptor for %u connections", options->connections);
    for (unsigned i = 0; i < options->connections; i++) {
        connection_open(&run->connections[i], i + 1, options, &run->endpoints, protocol);
        run->connections[i].last_sent_ns = clock_ns(CLOCK_MONOTONIC);
        watch(run, &run->connections[i], EPOLL_CTL_ADD);
    }
    set_mark(run, &run->opened, clock_ns(CLOCK_MONOTONIC));
}

void run_stages(struct run *run)
{
    if (run->options->hold > 0)
        fill_or_empty(run, STAGE_FILL);
    set_mark(run, &run->filled, clock_ns(CLOCK_MONOTONIC));
    if (run->options->job == JOB_HOLD)
        idle(run);
    else
        pairs(run);
    if (run->options->hold > 0)
        fill_or_empty(run, STAGE_EMPTY);
    set_mark(run, &run->emptied, clock_ns(CLOCK_MONOTONIC));
    check_sums(run);
}
