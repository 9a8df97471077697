/* What each slot sends, and what it accepts as an answer. */
#include "failure.h"
#include "run.h"

#include <string.h>

typedef unsigned long long llu;

/* Spreads the lengths of consecutive keys evenly and without a pattern. */
static unsigned key_length(const struct options *options, uint64_t number)
{
    unsigned lengths = options->key_bytes_max - options->key_bytes_min + 1;
    if (lengths == 1)
        return options->key_bytes_min;
    return options->key_bytes_min + (unsigned)((number * 0x9E3779B97F4A7C15u >> 32) % lengths);
}

/* The last eight bytes are the number, so two numbers below 2^40 never share a key. */
static void write_key(const struct options *options, struct slot *slot, uint64_t number)
{
    static const char filler[] = "tenant:orders:invoice:europe:warehouse:customer:basket:"
                                 "payment:shipment:returns:ledger:archive:audit:replica:job:";
    static const char digits[] = "0123456789abcdefghijklmnopqrstuv";
    _Static_assert(sizeof filler - 1 >= 113, "the widest key was checked against this");
    unsigned bytes = key_length(options, number), filled = bytes - KEY_BYTES_UNIQUE;
    for (unsigned at = 0; at < filled;) {
        unsigned part = filled - at < sizeof filler - 1 ? filled - at : sizeof filler - 1;
        memcpy(slot->key + at, filler, part);
        at += part;
    }
    for (unsigned i = 0; i < KEY_BYTES_UNIQUE; i++)
        slot->key[filled + i] = (uint8_t)digits[number >> (35 - 5 * i) & 31];
    slot->key_bytes = (uint8_t)bytes;
    slot->key_number = number;
}

static void send_request(struct run *run, struct connection *connection, struct slot *slot,
                         enum slot_state state, uint64_t now_ns)
{
    const struct options *options = run->options;
    uint64_t id = ++connection->last_request_id;
    uint32_t *place = &connection->slot_of_request[id & connection->request_mask];
    const struct slot *earlier = &connection->slots[*place];
    if (earlier->state != SLOT_IDLE && earlier != slot &&
        ((earlier->request_id ^ id) & connection->request_mask) == 0)
        fail_reply("request %llu of connection %u is unanswered after %u later ones",
                   (llu)earlier->request_id, connection->number, connection->request_mask);
    *place = (uint32_t)(slot - connection->slots);
    slot->request_id = id;
    slot->sent_ns = now_ns;
    slot->state = state;
    uint8_t *out = connection_room(connection, run->protocol->request_bytes_max);
    if (state == SLOT_ACQUIRING) {
        unsigned extra = run->next_lease++;
        if (run->next_lease == options->lease_spread)
            run->next_lease = 0;
        connection->out_end += run->protocol->put_acquire(
            connection, slot, options->wait_ms + extra, options->lease_ms + extra, out);
        run->acquires++;
    } else {
        connection->out_end += run->protocol->put_release(connection, slot, out);
        run->releases++;
    }
    connection->outstanding++;
    run->outstanding++;
}

static void next_pair(struct run *run, struct connection *connection, struct slot *slot,
                      uint64_t now_ns)
{
    if (run->stop || (run->options->requests && run->pairs_started == run->options->requests / 2))
        return;
    run->pairs_started++;
    if (run->options->distinct_keys)
        write_key(run->options, slot, run->next_key_number++);
    send_request(run, connection, slot, SLOT_ACQUIRING, now_ns);
}

/* Connection c of n takes tickets c, c + n, c + 2n … and gives back the same: a ticket that
   another client releases is news to its own, which would be told. */
static void next_held(struct run *run, struct connection *connection, struct slot *slot,
                      uint64_t now_ns)
{
    uint64_t index = connection->next_held;
    if (index >= run->options->hold)
        return;
    connection->next_held += run->options->connections;
    write_key(run->options, slot, run->hold_first_key + index);
    if (run->stage == STAGE_FILL) {
        send_request(run, connection, slot, SLOT_ACQUIRING, now_ns);
    } else {
        slot->token = run->held_tokens[index];
        send_request(run, connection, slot, SLOT_RELEASING, now_ns);
    }
}

static void first_pair(struct run *run, struct connection *connection, struct slot *slot,
                       uint64_t now_ns)
{
    uint64_t number = (uint64_t)(connection->number - 1) * run->options->in_flight +
                      (uint64_t)(slot - connection->slots);
    if (run->options->job == JOB_CONTENDED)
        number %= run->options->keys;
    write_key(run->options, slot, number);
    next_pair(run, connection, slot, now_ns);
}

void slot_advance(struct run *run, struct connection *connection, struct slot *slot,
                  uint64_t now_ns)
{
    if (run->stage == STAGE_PAIRS)
        first_pair(run, connection, slot, now_ns);
    else
        next_held(run, connection, slot, now_ns);
}

static void check_token(struct run *run, struct connection *connection, const struct slot *slot,
                        uint64_t token)
{
    if (token <= connection->last_token)
        fail_reply("request %llu of connection %u got token %llu after token %llu; tokens rise",
                   (llu)slot->request_id, connection->number, (llu)token,
                   (llu)connection->last_token);
    connection->last_token = token;
    if (run->stage != STAGE_PAIRS || run->shared_keys == NULL)
        return;
    const struct shared_key *shared = &run->shared_keys[slot->key_number];
    if (shared->release_batch == run->batch)
        fail_reply("key %llu was granted with token %llu before token %llu was released",
                   (llu)slot->key_number, (llu)token, (llu)shared->last_token);
    if (token <= shared->last_token)
        fail_reply("key %llu got token %llu after token %llu; tokens rise",
                   (llu)slot->key_number, (llu)token, (llu)shared->last_token);
}

static void take_granted(struct run *run, struct connection *connection, struct slot *slot,
                         uint64_t token, uint64_t now_ns)
{
    if (slot->state != SLOT_ACQUIRING)
        fail_reply("request %llu of connection %u is a release and got granted",
                   (llu)slot->request_id, connection->number);
    if (run->protocol->has_tokens) {
        check_token(run, connection, slot, token);
        slot->token = token;
    }
    run->grants++;
    slot->state = SLOT_IDLE;
    if (run->stage == STAGE_FILL) {
        run->held_tokens[slot->key_number - run->hold_first_key] = slot->token;
        next_held(run, connection, slot, now_ns);
        return;
    }
    if (run->shared_keys != NULL) {
        struct shared_key *shared = &run->shared_keys[slot->key_number];
        if (run->in_window && shared->released_ns != 0)
            latency_add(&run->hand_off, now_ns - shared->released_ns);
        shared->last_token = token;
        shared->released_ns = now_ns; /* its release is sent below, in this same moment */
        shared->release_batch = run->batch;
    } else if (run->in_window) {
        latency_add(&run->latency, now_ns - slot->sent_ns);
    }
    send_request(run, connection, slot, SLOT_RELEASING, now_ns);
}

static void take_released(struct run *run, struct connection *connection, struct slot *slot,
                          uint64_t now_ns)
{
    if (slot->state != SLOT_RELEASING)
        fail_reply("request %llu of connection %u is an acquire and got released",
                   (llu)slot->request_id, connection->number);
    run->released++;
    slot->state = SLOT_IDLE;
    if (run->in_window)
        latency_add(&run->latency, now_ns - slot->sent_ns);
    if (run->stage == STAGE_PAIRS)
        next_pair(run, connection, slot, now_ns);
    else
        next_held(run, connection, slot, now_ns);
}

void slot_take_reply(struct run *run, struct connection *connection, const struct reply *reply,
                     uint64_t now_ns)
{
    if (reply->kind == REPLY_PONG) {
        if (connection->pings_outstanding == 0 || reply->request_id != 0)
            fail_reply("a ping was answered that was not sent, echo %llu",
                       (llu)reply->request_id);
        connection->pings_outstanding--;
        return;
    }
    uint32_t index = connection->slot_of_request[reply->request_id & connection->request_mask];
    struct slot *slot = &connection->slots[index];
    if (slot->state == SLOT_IDLE || slot->request_id != reply->request_id)
        fail_reply("a reply came to request %llu of connection %u, which is not in flight",
                   (llu)reply->request_id, connection->number);
    connection->outstanding--;
    run->outstanding--;
    run->last_reply_ns = now_ns;
    if (reply->kind == REPLY_GRANTED)
        take_granted(run, connection, slot, reply->token, now_ns);
    else
        take_released(run, connection, slot, now_ns);
}
