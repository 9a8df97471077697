#include "latency.h"

static uint64_t upper_edge_ns(unsigned bucket)
{
    if (bucket < 2u << LATENCY_STEP_BITS)
        return bucket;
    unsigned shift = (bucket >> LATENCY_STEP_BITS) - 1;
    uint64_t step = bucket - (shift << LATENCY_STEP_BITS);
    return ((step + 1) << shift) - 1;
}

uint64_t latency_ns_at(const struct latency *latency, unsigned per_mille)
{
    uint64_t rank = (latency->samples * per_mille + 999) / 1000, seen = 0;
    for (unsigned bucket = 0; bucket < LATENCY_BUCKETS; bucket++) {
        seen += latency->counts[bucket];
        if (seen >= rank && seen > 0) {
            uint64_t edge = upper_edge_ns(bucket);
            return edge < latency->longest_ns ? edge : latency->longest_ns;
        }
    }
    return 0;
}
