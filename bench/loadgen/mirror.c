/* Grants and releases everything at once, so that what is measured is the generator itself.
   No lock server: it keeps no keys. Listens on a free loopback port and prints it. */
#include "failure.h"
#include "sha256.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    GREETING_BYTES = 26,
    BUFFER_BYTES = 1 << 17,
    EVENTS_PER_TURN = 64,
    HEADER_BYTES = 3,
    GRANTED_BYTES = HEADER_BYTES + 20,
    RELEASED_BYTES = HEADER_BYTES + 8,
};

static const uint8_t greeting[GREETING_BYTES] = "TICKET\4\4\0\377mirror of loads";

struct client {
    int fd;
    size_t in_bytes;
    uint8_t in[BUFFER_BYTES];
};

static void write_all(int fd, const uint8_t *from, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        ssize_t put = send(fd, from + sent, bytes - sent, MSG_NOSIGNAL);
        if (put < 0 && errno != EINTR)
            return; /* its next read ends this client */
        if (put > 0)
            sent += (size_t)put;
    }
}

/* Knows the empty secret alone. */
static void welcome(int fd, const uint8_t *hello)
{
    uint8_t frame[HEADER_BYTES + 35 + SHA256_BYTES] = {'W', 0, 35 + SHA256_BYTES, 0, 0, 5};
    struct hmac hmac;
    hmac_begin(&hmac, "", 0);
    hmac_add(&hmac, "TICKETING/SERVER", 16);
    hmac_add(&hmac, greeting, sizeof greeting);
    hmac_add(&hmac, hello + 13, 16);
    hmac_add(&hmac, frame + HEADER_BYTES, 35);
    hmac_end(&hmac, frame + HEADER_BYTES + 35);
    write_all(fd, frame, sizeof frame);
}

static size_t answer(const uint8_t *request, uint8_t *out)
{
    static uint64_t token;
    size_t bytes = request[0] == 'A' ? GRANTED_BYTES : RELEASED_BYTES;
    memset(out, 0, bytes);
    out[0] = request[0];
    out[2] = (uint8_t)(bytes - HEADER_BYTES);
    memcpy(out + HEADER_BYTES, request + HEADER_BYTES, 8);
    if (request[0] == 'A') {
        uint64_t next = htobe64(++token);
        memcpy(out + HEADER_BYTES + 8, &next, sizeof next);
    }
    return bytes;
}

static bool serve(struct client *client)
{
    static uint8_t out[BUFFER_BYTES * 2];
    size_t at = 0, out_bytes = 0;
    ssize_t got = recv(client->fd, client->in + client->in_bytes,
                       BUFFER_BYTES - client->in_bytes, 0);
    if (got <= 0)
        return false;
    client->in_bytes += (size_t)got;
    while (client->in_bytes - at >= HEADER_BYTES) {
        const uint8_t *frame = client->in + at;
        size_t bytes = HEADER_BYTES + ((size_t)frame[1] << 8 | frame[2]);
        if (client->in_bytes - at < bytes)
            break;
        if (frame[0] == 'H')
            welcome(client->fd, frame + HEADER_BYTES);
        else
            out_bytes += answer(frame, out + out_bytes);
        at += bytes;
    }
    memmove(client->in, client->in + at, client->in_bytes - at);
    client->in_bytes -= at;
    write_all(client->fd, out, out_bytes);
    return true;
}

static void take_client(int epoll, int listener)
{
    int one = 1, fd = accept(listener, NULL, NULL);
    struct client *client = calloc(1, sizeof *client);
    if (fd < 0 || client == NULL)
        fail_connection("no descriptor or no memory for one more client");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    client->fd = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    write_all(fd, greeting, sizeof greeting);
}

static int listen_on_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 1024) != 0 || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        fail_connection("can't listen: %s", strerror(errno));
    printf("%u\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

int main(void)
{
    struct epoll_event events[EVENTS_PER_TURN], listening = {.events = EPOLLIN};
    int listener = listen_on_free_port(), epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &listening);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS_PER_TURN, -1);
        for (int i = 0; i < count; i++) {
            struct client *client = events[i].data.ptr;
            if (client == NULL) {
                take_client(epoll, listener);
            } else if (!serve(client)) {
                close(client->fd);
                free(client);
            }
        }
    }
}
