/* Where a cluster's nodes are, and which of them connections go to now. */
#ifndef ENDPOINTS_H
#define ENDPOINTS_H

#include <stdbool.h>

enum { HOST_BYTES_MAX = 255, PORT_BYTES_MAX = 5, ENDPOINTS_MAX = 5 };

struct endpoint {
    char host[HOST_BYTES_MAX + 1];
    char port[PORT_BYTES_MAX + 1];
};

struct endpoints {
    struct endpoint nodes[ENDPOINTS_MAX];
    unsigned count; /* 0: no cluster */
    unsigned next;  /* the node that is asked next */
    struct endpoint now;
};

/* False where the text is not HOST:PORT, or [HOST]:PORT. */
bool endpoint_read(struct endpoint *endpoint, const char *text, unsigned bytes);
/* False where the text is not 1 to 5 of them, with commas between. */
bool endpoints_read(struct endpoints *endpoints, const char *text);
/* Goes on to the next node in turn. */
void endpoints_advance(struct endpoints *endpoints);

#endif
