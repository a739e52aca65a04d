/* tests/support/http_client.h - the little of an HTTP client that the server's tests need: raw sockets, so
 * that a test says and sees every byte. */
#ifndef LLMQ_TESTS_SUPPORT_HTTP_CLIENT_H
#define LLMQ_TESTS_SUPPORT_HTTP_CLIENT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline int dial(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = { .tv_sec = 400 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (const struct sockaddr *)&a, sizeof a)) perror("connect");
    return fd;
}

static inline void say(int fd, const char *text)
{
    size_t n = strlen(text);
    if (send(fd, text, n, MSG_NOSIGNAL) != (ssize_t)n) fprintf(stderr, "short send\n");
}

/* Reads until `until` was seen (NULL: until the end) and returns all of it in a static buffer. */
static inline const char *hear(int fd, const char *until)
{
    static char buf[1 << 16];
    size_t n = 0;
    buf[0] = 0;
    while (n + 1 < sizeof buf && !(until && strstr(buf, until))) {
        ssize_t got = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        buf[n] = 0;
    }
    return buf;
}

/* One request on a connection of its own; the whole answer. */
static inline const char *ask_port(int port, const char *text)
{
    int fd = dial(port);
    say(fd, text);
    const char *answer = hear(fd, NULL);
    close(fd);
    return answer;
}

/* As long as no machine takes. */
static inline bool wait_for(atomic_int *v, int want)
{
    for (int i = 0; i < 400000 && atomic_load(v) != want; i++)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return atomic_load(v) == want;
}

#endif
