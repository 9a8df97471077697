#include "options.h"

#include "failure.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: loadgen [--protocol ticketing|redis] [--job pairs|contended|hold] [options]\n"
    "\n"
    "Drives a lock server over N connections with W requests in flight on each, checks every\n"
    "reply, and prints requests/s, latency and the server's CPU per request.\n"
    "\n"
    "  --host HOST --port PORT  where the server listens (127.0.0.1, 5225)\n"
    "  --unix PATH              a Unix stream socket instead\n"
    "  --cluster HOST:PORT,...  a cluster's nodes instead: the generator goes to their leader\n"
    "  --secret SECRET          shared secret (default: TICKETING_SECRET, else empty)\n"
    "  --connections N          1 to 10000 (50)\n"
    "  --in-flight W            requests in flight on each connection, 1 to 100000 (64)\n"
    "  --key-bytes N or A-B     length of the keys, 8 to 128 (10)\n"
    "  --keys N                 job contended: keys that all the slots queue for (320)\n"
    "  --distinct-keys          each acquire takes a key never used before\n"
    "  --hold N                 tickets held while the job runs; job hold: all it does (0, 100000)\n"
    "  --seconds S              how long to measure (5); with job hold: how long to hold (0)\n"
    "  --warmup S               before it measures (0.5)\n"
    "  --requests N             measure this many requests instead, without warm-up\n"
    "  --lease-ms MS            lease of each ticket (30000)\n"
    "  --wait-ms MS             wait of each acquire, 0 is a try (20000)\n"
    "  --lease-spread N         N different leases and waits in use, each 1 ms longer (1)\n"
    "  --cpu N                  pin the generator to this CPU\n"
    "  --server-pid PID,...     report the CPU and memory of these processes, at most 8\n"
    "  --json                   print one JSON object\n"
    "\n"
    "Exit codes: 0 done, 1 connection, 2 usage, 3 a reply was wrong.\n";

static uint64_t whole(const char *name, const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least || value > most)
        fail_usage("--%s is '%s'; it takes a whole number from %llu to %llu", name, text,
                   (unsigned long long)least, (unsigned long long)most);
    return value;
}

static double seconds(const char *name, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0 || value > 3600)
        fail_usage("--%s is '%s'; it takes 0 to 3600 seconds", name, text);
    return value;
}

static void key_bytes(struct options *options, const char *text)
{
    char first[16];
    const char *dash = strchr(text, '-');
    size_t first_bytes = dash ? (size_t)(dash - text) : strlen(text);
    if (first_bytes >= sizeof first)
        fail_usage("--key-bytes is '%s'; it takes N or A-B", text);
    memcpy(first, text, first_bytes);
    first[first_bytes] = '\0';
    options->key_bytes_min =
        (unsigned)whole("key-bytes", first, KEY_BYTES_UNIQUE, KEY_BYTES_MAX);
    options->key_bytes_max =
        dash ? (unsigned)whole("key-bytes", dash + 1, options->key_bytes_min, KEY_BYTES_MAX)
             : options->key_bytes_min;
}

static void cluster(struct options *options, const char *text)
{
    if (!endpoints_read(&options->cluster, text))
        fail_usage("--cluster is '%s'; it takes 1 to %d HOST:PORT with commas between", text,
                   ENDPOINTS_MAX);
}

static void server_pids(struct options *options, const char *text)
{
    char copy[128], *rest = copy, *word;
    if (strlen(text) >= sizeof copy)
        fail_usage("--server-pid is '%s'; it takes at most %d processes", text, SERVERS_MAX);
    memcpy(copy, text, strlen(text) + 1);
    options->servers = 0;
    while ((word = strsep(&rest, ",")) != NULL) {
        if (options->servers == SERVERS_MAX)
            fail_usage("--server-pid is '%s'; it takes at most %d processes", text, SERVERS_MAX);
        options->server_pids[options->servers++] = (long)whole("server-pid", word, 1, 1u << 30);
    }
}

static enum job job(const char *text)
{
    if (strcmp(text, "pairs") == 0)
        return JOB_PAIRS;
    if (strcmp(text, "contended") == 0)
        return JOB_CONTENDED;
    if (strcmp(text, "hold") == 0)
        return JOB_HOLD;
    fail_usage("--job is '%s'; it takes pairs, contended or hold", text);
}

static const char *protocol(const char *text)
{
    if (strcmp(text, "ticketing") != 0 && strcmp(text, "redis") != 0)
        fail_usage("--protocol is '%s'; it takes ticketing or redis", text);
    return text;
}

enum flag {
    HELP = 256, PROTOCOL, JOB, HOST, PORT, UNIX, CLUSTER, SECRET, CONNECTIONS, IN_FLIGHT,
    KEY_BYTES, KEYS, DISTINCT_KEYS, HOLD, SECONDS, WARMUP, REQUESTS, LEASE_MS, WAIT_MS, LEASE_SPREAD, CPU,
    SERVER_PID, JSON
};

static const struct option long_options[] = {
    {"help", no_argument, NULL, HELP},
    {"protocol", required_argument, NULL, PROTOCOL},
    {"job", required_argument, NULL, JOB},
    {"host", required_argument, NULL, HOST},
    {"port", required_argument, NULL, PORT},
    {"unix", required_argument, NULL, UNIX},
    {"cluster", required_argument, NULL, CLUSTER},
    {"secret", required_argument, NULL, SECRET},
    {"connections", required_argument, NULL, CONNECTIONS},
    {"in-flight", required_argument, NULL, IN_FLIGHT},
    {"key-bytes", required_argument, NULL, KEY_BYTES},
    {"keys", required_argument, NULL, KEYS},
    {"distinct-keys", no_argument, NULL, DISTINCT_KEYS},
    {"hold", required_argument, NULL, HOLD},
    {"seconds", required_argument, NULL, SECONDS},
    {"warmup", required_argument, NULL, WARMUP},
    {"requests", required_argument, NULL, REQUESTS},
    {"lease-ms", required_argument, NULL, LEASE_MS},
    {"wait-ms", required_argument, NULL, WAIT_MS},
    {"lease-spread", required_argument, NULL, LEASE_SPREAD},
    {"cpu", required_argument, NULL, CPU},
    {"server-pid", required_argument, NULL, SERVER_PID},
    {"json", no_argument, NULL, JSON},
    {NULL, 0, NULL, 0},
};

static void take(struct options *options, int option, const char *text)
{
    switch (option) {
    case PROTOCOL: options->protocol = protocol(text); break;
    case JOB: options->job = job(text); break;
    case HOST: options->host = text; break;
    case PORT: whole("port", text, 1, 65535); options->port = text; break;
    case UNIX: options->unix_path = text; break;
    case CLUSTER: cluster(options, text); break;
    case SECRET: options->secret = text; break;
    case CONNECTIONS: options->connections = (unsigned)whole("connections", text, 1, 10000); break;
    case IN_FLIGHT: options->in_flight = (unsigned)whole("in-flight", text, 1, 100000); break;
    case KEY_BYTES: key_bytes(options, text); break;
    case KEYS: options->keys = (unsigned)whole("keys", text, 1, 10000000); break;
    case DISTINCT_KEYS: options->distinct_keys = true; break;
    case HOLD: options->hold = whole("hold", text, 0, 100000000); break;
    case SECONDS: options->seconds = seconds("seconds", text); break;
    case WARMUP: options->warmup_seconds = seconds("warmup", text); break;
    case REQUESTS: options->requests = whole("requests", text, 2, UINT64_MAX / 2); break;
    case LEASE_MS: options->lease_ms = (uint32_t)whole("lease-ms", text, 1, 0xFFFFFFFEu); break;
    case WAIT_MS: options->wait_ms = (uint32_t)whole("wait-ms", text, 0, 0xFFFFFFFFu); break;
    case LEASE_SPREAD:
        options->lease_spread = (unsigned)whole("lease-spread", text, 1, 10000000);
        break;
    case CPU: options->cpu = (int)whole("cpu", text, 0, 1023); break;
    case SERVER_PID: server_pids(options, text); break;
    case JSON: options->json = true; break;
    case HELP: fputs(usage, stdout); exit(0);
    default: fputs("see loadgen --help\n", stderr); exit(EXIT_USAGE);
    }
}

static void check(struct options *options)
{
    bool redis = strcmp(options->protocol, "redis") == 0;
    if (redis && options->job == JOB_CONTENDED)
        fail_usage("--job contended needs a server with queues; --protocol redis has none");
    if (options->cluster.count > 0 && (redis || options->unix_path))
        fail_usage("--cluster goes with --protocol ticketing alone, and not with --unix");
    if (options->distinct_keys && options->job == JOB_CONTENDED)
        fail_usage("--distinct-keys and --job contended exclude each other");
    if (options->requests % 2 != 0)
        fail_usage("--requests is %llu; it takes an even number, a pair is two requests",
                   (unsigned long long)options->requests);
    if ((uint64_t)options->lease_ms + options->lease_spread > 0xFFFFFFFEu ||
        (uint64_t)options->wait_ms + options->lease_spread > 0xFFFFFFFFu)
        fail_usage("--lease-spread %u on top of --lease-ms and --wait-ms passes 32 bits",
                   options->lease_spread);
}

void options_read(struct options *options, int argc, char **argv)
{
    const char *secret = getenv("TICKETING_SECRET");
    *options = (struct options){
        .protocol = "ticketing", .host = "127.0.0.1", .port = "5225",
        .secret = secret ? secret : "", .job = JOB_PAIRS, .connections = 50, .in_flight = 64,
        .key_bytes_min = 10, .key_bytes_max = 10, .keys = 320, .seconds = -1,
        .warmup_seconds = 0.5, .lease_ms = 30000, .wait_ms = 20000, .lease_spread = 1, .cpu = -1,
    };
    int option;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
        take(options, option, optarg);
    if (optind < argc)
        fail_usage("'%s' is no option; see loadgen --help", argv[optind]);
    if (options->job == JOB_HOLD && options->hold == 0)
        options->hold = 100000;
    if (options->seconds < 0)
        options->seconds = options->job == JOB_HOLD ? 0 : 5;
    check(options);
}
