#include "server_process.h"

#include "failure.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t thread_cpu_ns(long pid, const char *thread)
{
    char path[300];
    uint64_t ns = 0;
    snprintf(path, sizeof path, "/proc/%ld/task/%s/schedstat", pid, thread);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0; /* the thread ended between the two look-ups */
    if (fscanf(file, "%" SCNu64, &ns) != 1)
        fail_connection("%s is not readable: this kernel keeps no scheduler statistics", path);
    fclose(file);
    return ns;
}

uint64_t server_cpu_ns(long pid)
{
    char path[64];
    uint64_t ns = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *threads = opendir(path);
    if (threads == NULL)
        fail_connection("no process %ld: %s", pid, strerror(errno));
    while ((entry = readdir(threads)) != NULL)
        if (entry->d_name[0] != '.')
            ns += thread_cpu_ns(pid, entry->d_name);
    closedir(threads);
    return ns;
}

uint64_t server_rss_kib(long pid)
{
    char path[64], line[256];
    uint64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_connection("no process %ld: %s", pid, strerror(errno));
    while (kib == 0 && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1)
            break;
    fclose(file);
    return kib;
}
