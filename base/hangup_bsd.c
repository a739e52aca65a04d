/* base/hangup_bsd.c - macOS and FreeBSD; compiled, not run. */
#include "base/hangup.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/event.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>

enum { EVENTS = 64, STOP = 1 };

bool hup_open(hangup *h)
{
    struct kevent stop;
    h->stop_fd = -1;
    h->fd = kqueue();
    if (h->fd < 0) return false;
    (void)fcntl(h->fd, F_SETFD, FD_CLOEXEC);
    EV_SET(&stop, STOP, EVFILT_USER, EV_ADD, 0, 0, NULL);
    return kevent(h->fd, &stop, 1, NULL, 0, NULL) == 0;
}

void hup_close(hangup *h)
{
    if (h->fd >= 0) close(h->fd);
    h->fd = -1;
}

/* Of bytes that came there is an event when the socket holds all that it can, and hup_wait leaves it out. */
void hup_add(hangup *h, int fd, uint64_t id)
{
    struct kevent e;
    EV_SET(&e, (uintptr_t)fd, EVFILT_READ, EV_ADD | EV_CLEAR, NOTE_LOWAT, INT_MAX,
           (void *)(uintptr_t)id);
    (void)kevent(h->fd, &e, 1, NULL, 0, NULL);
}

void hup_again(hangup *h, int fd, uint64_t id) { hup_add(h, fd, id); }

int hup_wait(hangup *h, uint64_t *ids, int n, int ms)
{
    struct kevent e[EVENTS];
    const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };
    const int got = kevent(h->fd, NULL, 0, e, n < EVENTS ? n : EVENTS, &t);
    int closed = 0;
    for (int i = 0; i < got; i++) {
        if (e[i].filter == EVFILT_USER) return -1;
        if (e[i].flags & EV_EOF) ids[closed++] = (uintptr_t)e[i].udata;
    }
    return closed;
}

bool hup_stop(hangup *h)
{
    struct kevent e;
    EV_SET(&e, STOP, EVFILT_USER, 0, NOTE_TRIGGER, 0, NULL);
    return kevent(h->fd, &e, 1, NULL, 0, NULL) == 0;
}
