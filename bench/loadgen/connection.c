#include "connection.h"

#include "failure.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { HANDSHAKE_TIMEOUT_S = 5, LEADER_TIMEOUT_S = 20, RETRY_US = 50000, IN_BYTES = 1 << 17, PINGS_MAX = 4 };

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL)
        fail_connection("no memory for %zu x %zu bytes", count, bytes);
    return memory;
}

static int connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        fail_usage("--unix path has %zu bytes; it takes at most %zu", strlen(path),
                   sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail_connection("can't connect to unix:%s: %s", path, strerror(errno));
    return fd;
}

/* -1 where nothing listens there. */
static int try_tcp(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found, *each;
    int one = 1, fd = -1, failed = getaddrinfo(host, port, &hints, &found);
    if (failed)
        fail_connection("can't resolve %s: %s", host, gai_strerror(failed));
    for (each = found; each != NULL; each = each->ai_next) {
        fd = socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, each->ai_addr, each->ai_addrlen) == 0)
            break;
        if (fd >= 0)
            close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int connect_tcp(const char *host, const char *port)
{
    int fd = try_tcp(host, port);
    if (fd < 0)
        fail_connection("can't connect to %s port %s: %s", host, port, strerror(errno));
    return fd;
}

static void lay_out(struct connection *connection, const struct options *options,
                    const struct protocol *protocol)
{
    uint32_t requests = 1024;
    while (requests < 16 * options->in_flight)
        requests *= 2;
    connection->request_mask = requests - 1;
    connection->slot_of_request = allocate(requests, sizeof *connection->slot_of_request);
    connection->slots = allocate(options->in_flight, sizeof *connection->slots);
    uint8_t *keys = allocate(options->in_flight, options->key_bytes_max);
    for (unsigned i = 0; i < options->in_flight; i++)
        connection->slots[i].key = keys + (size_t)i * options->key_bytes_max;
    connection->in_capacity = IN_BYTES;
    connection->in = allocate(1, IN_BYTES);
    connection->out_capacity = (options->in_flight + PINGS_MAX) * protocol->request_bytes_max;
    connection->out = allocate(1, connection->out_capacity);
}

/* True where requests may follow; else elsewhere is the leader, or empty. */
static bool shake_hands(struct connection *connection, const struct options *options,
                        const struct protocol *protocol, char elsewhere[ADDRESS_BYTES_MAX + 1])
{
    struct timeval timeout = {.tv_sec = HANDSHAKE_TIMEOUT_S};
    setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(connection->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    elsewhere[0] = '\0';
    return protocol->open(connection, options, elsewhere);
}

static void open_to_leader(struct connection *connection, const struct options *options,
                           struct endpoints *endpoints, const struct protocol *protocol)
{
    char elsewhere[ADDRESS_BYTES_MAX + 1];
    for (unsigned tries = 0; tries < LEADER_TIMEOUT_S * 1000000 / RETRY_US; tries++) {
        elsewhere[0] = '\0';
        connection->fd = try_tcp(endpoints->now.host, endpoints->now.port);
        if (connection->fd >= 0 && shake_hands(connection, options, protocol, elsewhere))
            return;
        if (connection->fd >= 0)
            close(connection->fd);
        if (elsewhere[0] == '\0')
            endpoints_advance(endpoints);
        else if (!endpoint_read(&endpoints->now, elsewhere, (unsigned)strlen(elsewhere)))
            fail_reply("a leader at '%s', which is not HOST:PORT", elsewhere);
        if (elsewhere[0] == '\0' || tries > 0)
            usleep(RETRY_US);
    }
    fail_connection("no node of the cluster led for %d s", LEADER_TIMEOUT_S);
}

static void open_to_server(struct connection *connection, const struct options *options,
                           const struct protocol *protocol)
{
    char elsewhere[ADDRESS_BYTES_MAX + 1];
    connection->fd = options->unix_path ? connect_unix(options->unix_path)
                                        : connect_tcp(options->host, options->port);
    if (!shake_hands(connection, options, protocol, elsewhere))
        fail_connection("the server does not lead, '%s' is said to; name all with --cluster",
                        elsewhere);
}

void connection_open(struct connection *connection, unsigned number,
                     const struct options *options, struct endpoints *endpoints,
                     const struct protocol *protocol)
{
    connection->number = number;
    lay_out(connection, options, protocol);
    if (endpoints->count > 0)
        open_to_leader(connection, options, endpoints, protocol);
    else
        open_to_server(connection, options, protocol);
    fcntl(connection->fd, F_SETFL, O_NONBLOCK);
}

void connection_read_exactly(struct connection *connection, void *into, size_t bytes,
                             const char *what)
{
    for (size_t have = 0; have < bytes;) {
        ssize_t got = recv(connection->fd, (char *)into + have, bytes - have, 0);
        if (got == 0)
            fail_connection("the server closed connection %u after %zu of %zu bytes of its %s",
                            connection->number, have, bytes, what);
        if (got < 0 && errno != EINTR)
            fail_connection("no %s on connection %u: %s", what, connection->number,
                            errno == EAGAIN ? "nothing came for 5 s" : strerror(errno));
        if (got > 0)
            have += (size_t)got;
    }
}

void connection_write_all(struct connection *connection, const void *from, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        ssize_t put = send(connection->fd, (const char *)from + sent, bytes - sent, MSG_NOSIGNAL);
        if (put < 0 && errno != EINTR)
            fail_connection("can't write on connection %u: %s", connection->number,
                            strerror(errno));
        if (put > 0)
            sent += (size_t)put;
    }
}

size_t connection_receive(struct connection *connection)
{
    ssize_t got = recv(connection->fd, connection->in + connection->in_bytes,
                       connection->in_capacity - connection->in_bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        fail_connection("connection %u ended with %u requests unanswered: %s", connection->number,
                        connection->outstanding, got == 0 ? "closed" : strerror(errno));
    connection->in_bytes += (size_t)got;
    return (size_t)got;
}

void connection_flush(struct connection *connection)
{
    size_t unsent = connection->out_end - connection->out_start;
    if (unsent == 0)
        return;
    ssize_t put = send(connection->fd, connection->out + connection->out_start, unsent,
                       MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR)
        fail_connection("can't write on connection %u: %s", connection->number, strerror(errno));
    if (put > 0)
        connection->out_start += (size_t)put;
    if (connection->out_start == connection->out_end)
        connection->out_start = connection->out_end = 0;
}

uint8_t *connection_room(struct connection *connection, size_t bytes)
{
    if (connection->out_end + bytes > connection->out_capacity) {
        size_t unsent = connection->out_end - connection->out_start;
        memmove(connection->out, connection->out + connection->out_start, unsent);
        connection->out_start = 0;
        connection->out_end = unsent;
    }
    return connection->out + connection->out_end;
}
