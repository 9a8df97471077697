/* What the system knows of the server's process. Ends the generator if it is gone. */
#ifndef SERVER_PROCESS_H
#define SERVER_PROCESS_H

#include <stdint.h>

/* CPU time of all its threads, kernel and user, to the nanosecond. */
uint64_t server_cpu_ns(long pid);
uint64_t server_rss_kib(long pid);

#endif
