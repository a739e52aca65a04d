/* base/hangup_linux.c */
#include "base/hangup.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS = 64 };
static const uint64_t STOP = UINT64_MAX;

bool hup_open(hangup *h)
{
    struct epoll_event stop = { .events = EPOLLIN, .data = { .u64 = STOP } };
    h->fd = epoll_create1(EPOLL_CLOEXEC);
    h->stop_fd = eventfd(0, EFD_CLOEXEC);
    return h->fd >= 0 && h->stop_fd >= 0 && !epoll_ctl(h->fd, EPOLL_CTL_ADD, h->stop_fd, &stop);
}

void hup_close(hangup *h)
{
    if (h->fd >= 0) close(h->fd);
    if (h->stop_fd >= 0) close(h->stop_fd);
    h->fd = h->stop_fd = -1;
}

static void arm(const hangup *h, int how, int fd, uint64_t id)
{
    struct epoll_event e = { .events = EPOLLRDHUP | EPOLLONESHOT, .data = { .u64 = id } };
    epoll_ctl(h->fd, how, fd, &e);
}

void hup_add(hangup *h, int fd, uint64_t id) { arm(h, EPOLL_CTL_ADD, fd, id); }
void hup_again(hangup *h, int fd, uint64_t id) { arm(h, EPOLL_CTL_MOD, fd, id); }

int hup_wait(hangup *h, uint64_t *ids, int n, int ms)
{
    struct epoll_event e[EVENTS];
    const int got = epoll_wait(h->fd, e, n < EVENTS ? n : EVENTS, ms);
    for (int i = 0; i < got; i++) {
        if (e[i].data.u64 == STOP) return -1;
        ids[i] = e[i].data.u64;
    }
    return got > 0 ? got : 0;
}

bool hup_stop(hangup *h)
{
    const uint64_t one = 1;
    return write(h->stop_fd, &one, sizeof one) == sizeof one;
}
