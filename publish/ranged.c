/* publish/ranged.c - see ranged.h. */
#include "publish/ranged.h"

#include <stdio.h>

typedef struct {
    const ranged_side *side;
    pub_part *part;
    uint64_t bytes;
    bool whole; /* no range was asked for */
    bool lied;  /* nor can one be had */
} download;

static lq_status begin_anew(download *d, lq_err *err)
{
    lq_status s = pub_part_at(d->part) ? retry_anew(d->side->retry, err) : LQ_OK;
    return s ? s : pub_part_restart(d->part, err);
}

/* The first byte is that of a range, or of the whole. */
static lq_status begin(void *user, lq_err *err)
{
    download *d = user;
    const hc_answer *a = hc_current(d->side->http);
    unsigned long long from, to, of;
    if (a->status == 200) return begin_anew(d, err);
    if (a->status == 206 && !d->whole &&
        sscanf(a->content_range, "bytes %llu-%llu/%llu", &from, &to, &of) == 3 &&
        from == pub_part_at(d->part) && to < of && of == d->bytes)
        return LQ_OK;
    d->lied = true;
    return lq_fail(err, LQ_EFORMAT,
                   "Content-Range: expected bytes %llu-%llu/%llu, found '%.80s' with status %d",
                   (unsigned long long)pub_part_at(d->part), (unsigned long long)d->bytes - 1,
                   (unsigned long long)d->bytes, a->content_range, a->status);
}

static lq_status piece(void *user, const void *data, size_t n, lq_err *err)
{
    download *d = user;
    return pub_part_write(d->part, data, n, err);
}

/* One request; *more: it did not bring everything, and another may. */
static lq_status one_get(download *d, const char *url, bool *more, lq_err *err)
{
    char range[60];
    hc_answer a;
    retry_state *t = d->side->retry;
    const uint64_t at = pub_part_at(d->part);
    d->whole = at == 0 || d->lied;
    snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)at);
    const hc_request r = { .method = "GET",
                           .url = url,
                           .headers = { d->whole ? NULL : range },
                           .begin = begin,
                           .sink = piece,
                           .user = d };
    const bool lied = d->lied;
    lq_status s = d->side->call(d->side->conn, &r, &a, err);
    *more = false;
    if (d->lied && !lied) { /* then all of it, without asking for a range */
        pub_say(t->o, "%s; from its beginning", err->msg);
        *more = true;
        return begin_anew(d, err);
    }
    if (!s && a.status == 416) {
        *more = ++t->tries < RETRY_TRIES;
        return *more ? begin_anew(d, err) : d->side->refused(d->side->conn, &a, err);
    }
    retry_reached(t, pub_part_at(d->part));
    if (!s && (a.status == 200 || a.status == 206)) {
        *more = pub_part_at(d->part) < d->bytes && ++t->tries < RETRY_TRIES;
        return LQ_OK;
    }
    *more = retry_again(t, &s, &a, err);
    if (*more) return LQ_OK;
    return s ? s : d->side->refused(d->side->conn, &a, err);
}

lq_status ranged_get(const ranged_side *side, const char *url, uint64_t bytes, pub_part *part,
                     lq_err *err)
{
    download d = { .side = side, .part = part, .bytes = bytes };
    bool more = true;
    lq_status s = LQ_OK;
    retry_file(side->retry, bytes);
    while (!s && more)
        s = one_get(&d, url, &more, err);
    return s;
}
