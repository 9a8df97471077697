#include "endpoints.h"

#include <string.h>

bool endpoint_read(struct endpoint *endpoint, const char *text, unsigned bytes)
{
    unsigned colon = bytes;
    while (colon > 0 && text[colon - 1] != ':')
        colon--;
    if (colon < 2)
        return false;
    const char *host = text, *port = text + colon;
    unsigned host_bytes = colon - 1, port_bytes = bytes - colon;
    if (host[0] == '[' && host[host_bytes - 1] == ']') {
        host++;
        host_bytes -= 2;
    }
    if (host_bytes == 0 || host_bytes > HOST_BYTES_MAX || port_bytes == 0 ||
        port_bytes > PORT_BYTES_MAX || strspn(port, "0123456789") < port_bytes)
        return false;
    memset(endpoint, 0, sizeof *endpoint);
    memcpy(endpoint->host, host, host_bytes);
    memcpy(endpoint->port, port, port_bytes);
    return true;
}

bool endpoints_read(struct endpoints *endpoints, const char *text)
{
    endpoints->count = endpoints->next = 0;
    for (const char *at = text;; at++) {
        unsigned bytes = (unsigned)strcspn(at, ",");
        if (endpoints->count == ENDPOINTS_MAX ||
            !endpoint_read(&endpoints->nodes[endpoints->count++], at, bytes))
            return false;
        at += bytes;
        if (*at == '\0')
            break;
    }
    endpoints_advance(endpoints);
    return true;
}

void endpoints_advance(struct endpoints *endpoints)
{
    endpoints->now = endpoints->nodes[endpoints->next];
    endpoints->next = (endpoints->next + 1) % endpoints->count;
}
