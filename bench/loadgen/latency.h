/* A histogram of durations: exact to 1/64, constant memory, a few instructions per sample. */
#ifndef LATENCY_H
#define LATENCY_H

#include <stdint.h>

enum { LATENCY_STEP_BITS = 6, LATENCY_BUCKETS = (64 - LATENCY_STEP_BITS + 1) << LATENCY_STEP_BITS };

struct latency {
    uint64_t samples;
    uint64_t longest_ns;
    uint64_t counts[LATENCY_BUCKETS];
};

static inline void latency_add(struct latency *latency, uint64_t ns)
{
    unsigned bucket = (unsigned)ns;
    if (ns >= 1u << LATENCY_STEP_BITS) {
        unsigned shift = 63u - (unsigned)__builtin_clzll(ns) - LATENCY_STEP_BITS;
        bucket = (shift << LATENCY_STEP_BITS) + (unsigned)(ns >> shift);
    }
    latency->counts[bucket]++;
    latency->samples++;
    if (ns > latency->longest_ns)
        latency->longest_ns = ns;
}

/* The upper edge of the bucket that holds the sample of this rank (per mille of all samples). */
uint64_t latency_ns_at(const struct latency *latency, unsigned per_mille);

#endif
