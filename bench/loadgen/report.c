/* The figures of a run, as text for people or as one JSON object. */
#include "run.h"

#include <stdio.h>

typedef unsigned long long llu;

static const char *const job_names[] = {"pairs", "contended", "hold"};

struct figures {
    double seconds, requests_per_s, server_cpu_us, own_cpu_us, fill_per_s;
    uint64_t requests;
};

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static struct figures figures_of(const struct run *run)
{
    const struct mark *start = &run->window_start, *end = &run->window_end;
    struct figures figures = {
        .seconds = (double)(end->ns - start->ns) / 1e9,
        .requests = end->replies - start->replies,
    };
    double requests = (double)figures.requests;
    double server_us = (double)(end->server_cpu_ns - start->server_cpu_ns) / 1e3;
    double own_us = (double)(end->own_cpu_ns - start->own_cpu_ns) / 1e3;
    double fill_s = (double)(run->filled.ns - run->opened.ns) / 1e9;
    figures.requests_per_s = ratio(requests, figures.seconds);
    figures.server_cpu_us = ratio(server_us, requests);
    figures.own_cpu_us = ratio(own_us, requests);
    figures.fill_per_s = ratio((double)run->options->hold, fill_s);
    return figures;
}

static void print_latency_json(const char *name, const struct latency *latency)
{
    printf("\"%s\": {\"samples\": %llu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p99_9_us\": %.1f, "
           "\"max_us\": %.1f}, ",
           name, (llu)latency->samples, (double)latency_ns_at(latency, 500) / 1e3,
           (double)latency_ns_at(latency, 990) / 1e3, (double)latency_ns_at(latency, 999) / 1e3,
           (double)latency->longest_ns / 1e3);
}

static void print_json(const struct run *run, const struct figures *figures)
{
    const struct options *options = run->options;
    printf("{\"protocol\": \"%s\", \"job\": \"%s\", \"connections\": %u, \"in_flight\": %u, "
           "\"key_bytes_min\": %u, \"key_bytes_max\": %u, \"keys\": %u, \"distinct_keys\": %s, "
           "\"hold\": %llu, \"lease_spread\": %u, ",
           run->protocol->name, job_names[options->job], options->connections,
           options->in_flight, options->key_bytes_min, options->key_bytes_max,
           run->shared_keys ? options->keys : 0, options->distinct_keys ? "true" : "false",
           (llu)options->hold, options->lease_spread);
    printf("\"seconds\": %.6f, \"requests\": %llu, \"requests_per_s\": %.1f, ", figures->seconds,
           (llu)figures->requests, figures->requests_per_s);
    print_latency_json("latency", &run->latency);
    if (run->shared_keys)
        print_latency_json("hand_off", &run->hand_off);
    if (options->servers > 0)
        printf("\"server_cpu_us_per_request\": %.4f, \"server_rss_kib\": {\"opened\": %llu, "
               "\"filled\": %llu, \"window_start\": %llu, \"window_end\": %llu, "
               "\"emptied\": %llu}, ",
               figures->server_cpu_us, (llu)run->opened.server_rss_kib,
               (llu)run->filled.server_rss_kib, (llu)run->window_start.server_rss_kib,
               (llu)run->window_end.server_rss_kib, (llu)run->emptied.server_rss_kib);
    if (options->cluster.count > 0)
        printf("\"leader\": \"%s:%s\", ", run->endpoints.now.host, run->endpoints.now.port);
    printf("\"generator_cpu_us_per_request\": %.4f, \"held_per_s\": %.1f, "
           "\"verified\": {\"acquires\": %llu, \"granted\": %llu, \"releases\": %llu, "
           "\"released\": %llu}}\n",
           figures->own_cpu_us, figures->fill_per_s, (llu)run->acquires, (llu)run->grants,
           (llu)run->releases, (llu)run->released);
}

static void print_latency(const char *name, const struct latency *latency)
{
    printf("%s  p50 %.3f ms  p99 %.3f ms  p99.9 %.3f ms  max %.3f ms\n", name,
           (double)latency_ns_at(latency, 500) / 1e6, (double)latency_ns_at(latency, 990) / 1e6,
           (double)latency_ns_at(latency, 999) / 1e6, (double)latency->longest_ns / 1e6);
}

static void print_text(const struct run *run, const struct figures *figures)
{
    const struct options *options = run->options;
    printf("%s %s, %u connections x %u in flight, keys of %u to %u bytes\n", run->protocol->name,
           job_names[options->job], options->connections, options->in_flight,
           options->key_bytes_min, options->key_bytes_max);
    if (options->hold > 0)
        printf("held       %llu tickets, taken at %.0f/s\n", (llu)options->hold,
               figures->fill_per_s);
    if (options->job != JOB_HOLD) {
        printf("requests   %.0f/s (%llu in %.3f s)\n", figures->requests_per_s,
               (llu)figures->requests, figures->seconds);
        print_latency(run->shared_keys ? "release  " : "latency  ", &run->latency);
        if (run->shared_keys)
            print_latency("hand-off ", &run->hand_off);
        printf("generator  %.3f us CPU per request\n", figures->own_cpu_us);
    }
    if (options->servers > 0 && options->job != JOB_HOLD)
        printf("server     %.3f us CPU per request\n", figures->server_cpu_us);
    if (options->servers > 0)
        printf("server RSS %.1f MiB opened, %.1f filled, %.1f at the end, %.1f emptied\n",
               (double)run->opened.server_rss_kib / 1024,
               (double)run->filled.server_rss_kib / 1024,
               (double)run->window_end.server_rss_kib / 1024,
               (double)run->emptied.server_rss_kib / 1024);
    printf("verified   %llu acquires = %llu granted, %llu releases = %llu released\n",
           (llu)run->acquires, (llu)run->grants, (llu)run->releases, (llu)run->released);
}

void report_print(const struct run *run)
{
    struct figures figures = figures_of(run);
    if (run->options->json)
        print_json(run, &figures);
    else
        print_text(run, &figures);
}
