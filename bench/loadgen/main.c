#define _GNU_SOURCE
#include "failure.h"
#include "run.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fail_usage("--cpu %d: %s", cpu, strerror(errno));
}

static void raise_descriptor_limit(unsigned connections)
{
    struct rlimit limit;
    rlim_t needed = connections + 32;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    if (limit.rlim_cur < needed || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail_usage("%u connections need %lu descriptors; the limit is %lu", connections,
                   (unsigned long)needed, (unsigned long)limit.rlim_max);
}

int main(int argc, char **argv)
{
    static struct run run;
    struct options options;
    options_read(&options, argc, argv);
    if (options.cpu >= 0)
        pin(options.cpu);
    raise_descriptor_limit(options.connections);
    bool redis = strcmp(options.protocol, "redis") == 0;
    run_start(&run, &options, redis ? &protocol_redis : &protocol_ticketing);
    run_stages(&run);
    report_print(&run);
    return 0;
}
