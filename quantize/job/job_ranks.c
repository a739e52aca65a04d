/* quantize/job/job_ranks.c - a run that several ranks share: they begin alike, and rank 0 has the files. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "quantize/job/job_impl.h"

enum { TAG_MADE = 2 };

lq_status job_agree(const job_run *r, lq_status s, lq_err *err)
{
    int who;
    lq_err own = { "" };
    const lq_status all = comm_agree(r->j->ranks, s, &who, &own);
    if (s || !all) return s ? s : all;
    if (!own.msg[0]) return lq_fail(err, all, "rank %d has failed", who);
    if (err) *err = own; /* the exchange has */
    return all;
}

lq_status job_agree_sizes(const job_run *r, lq_err *err)
{
    static const char *const parts[] = { "tensors", "windows for the check", "tokens in each" };
    const cal_samples *check = r->j->check;
    const int64_t own[] = { (int64_t)src_n_tensors(r->src), check ? check->n : 0,
                            check && check->n ? check->len : 0 };
    int64_t theirs[LQ_COUNT(own)];
    if (!r->j->ranks) return LQ_OK;
    memcpy(theirs, own, sizeof own);
    lq_status s = comm_broadcast(r->j->ranks, 0, theirs, sizeof theirs, err);
    for (size_t i = 0; i < LQ_COUNT(own) && !s; i++)
        if (own[i] != theirs[i])
            s = lq_fail(err, LQ_EVALUE, "ranks: expected %lld %s as rank 0 has, found %lld",
                        (long long)theirs[i], parts[i], (long long)own[i]);
    return job_agree(r, s, err);
}

lq_status job_agree_experts(job_run *r, lq_err *err)
{
    comm *ranks = r->j->ranks;
    uint64_t least = r->memory.experts, *all = NULL;
    if (!ranks) return LQ_OK;
    if (job_writes(r) && !(all = calloc((size_t)comm_size(ranks), sizeof *all)))
        return lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", comm_size(ranks));
    lq_status s = comm_gather(ranks, 0, &least, sizeof least, all, err);
    for (int i = 0; all && i < comm_size(ranks) && !s; i++)
        least = all[i] < least ? all[i] : least;
    free(all);
    if (!s) s = comm_broadcast(ranks, 0, &least, sizeof least, err);
    r->memory.experts = (size_t)least;
    return s;
}

/* ---- the source ---- */
lq_status job_share_scan(const job_run *r, lq_err *err)
{
    comm *ranks = r->j->ranks;
    const int64_t n = src_n_tensors(r->src), size = comm_size(ranks);
    lq_status s = LQ_OK;
    if (!ranks) return LQ_OK;
    src_scanned *box = calloc((size_t)lq_ceil_div(n, size) + 1, sizeof *box);
    if (!box) return lq_fail(err, LQ_ENOMEM, "no memory for %lld tensors", (long long)n);
    for (int from = 0; from < size && !s; from++) {
        const bool ours = from == comm_rank(ranks);
        size_t k = 0;
        for (int64_t i = from; i < n; i += size, k++)
            if (ours) src_scan_get(&box[k], r->src, i);
        s = comm_broadcast(ranks, from, box, k * sizeof *box, err);
        k = 0;
        for (int64_t i = from; i < n && !ours && !s; i += size)
            src_scan_put(r->src, i, &box[k++]);
    }
    free(box);
    return s;
}

lq_status job_all_alike(const job_run *r, const cJSON *what, lq_err *err)
{
    comm *ranks = r->j->ranks;
    static const char *const parts[] = { "config", "recipe", "provenance" };
    lq_hash own[LQ_COUNT(parts)], theirs[LQ_COUNT(parts)];
    lq_status s = LQ_OK;
    if (!ranks) return LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(parts) && !s; i++) {
        lq_buf text = { 0 };
        s = js_canonical(&text, js_get(what, parts[i]), err);
        own[i] = lq_hash_bytes(text.p, text.n);
        free(text.p);
    }
    s = job_agree(r, s, err);
    if (s) return s;
    memcpy(theirs, own, sizeof own);
    s = comm_broadcast(ranks, 0, theirs, sizeof theirs, err);
    for (size_t i = 0; i < LQ_COUNT(parts) && !s; i++)
        if (memcmp(&own[i], &theirs[i], sizeof own[i]) != 0)
            s = lq_fail(err, LQ_EVALUE,
                        "ranks: expected the source, text and kernels of rank 0, found another %s",
                        parts[i]);
    return job_agree(r, s, err);
}

lq_status job_share_answer(const job_run *r, bool *yes, lq_err *err)
{
    uint8_t x = *yes;
    const lq_status s = comm_broadcast(r->j->ranks, 0, &x, 1, err);
    *yes = x != 0;
    return s;
}

lq_status job_open_state(job_run *r, const cJSON *what, lq_err *err)
{
    comm *ranks = r->j->ranks;
    const int64_t n = r->plan.cfg.layers + 1;
    lq_status s = job_writes(r) ? qz_state_open(&r->state, job_state_at(r), what, n, r->j->restart,
                                                r->j->n_shards > 0, err)
                                : qz_state_apart(&r->state, n, err);
    const bool opened = !s;
    s = job_agree(r, s, err);
    if (!s && ranks) s = qz_state_share(&r->state, ranks, err);
    if (!s && ranks) s = qz_state_share_file(&r->state, ranks, "choice.json", err);
    if (!s && ranks) s = qz_state_share_file(&r->state, ranks, "own.ids", err);
    if (s && opened) qz_state_close(&r->state, false);
    return s;
}

/* ---- tensors that need no statistics ---- */
typedef struct {
    qz_report report; /* its name is the plan's */
    qt_tensor t;      /* planes by their sizes */
} made_head;

lq_status job_send_made(const job_run *r, const qz_layer *made, lq_err *err)
{
    comm *ranks = r->j->ranks;
    made_head h;
    memset(&h, 0, sizeof h);
    h.report = made->reports[0];
    h.t = made->items[0].t;
    lq_status s = comm_send(ranks, 0, TAG_MADE, &h, sizeof h, err);
    for (int p = 0; p < QT_N_PLANES && !s; p++)
        s = comm_send(ranks, 0, TAG_MADE, h.t.plane[p].data, h.t.plane[p].bytes, err);
    return s;
}

lq_status job_get_made(const job_run *r, qz_layer *made, const plan_entry *e, int from, lq_err *err)
{
    comm *ranks = r->j->ranks;
    made_head h;
    lq_status s = comm_recv(ranks, from, TAG_MADE, &h, sizeof h, err);
    memset(made, 0, sizeof *made);
    if (s) return s;
    made->items = lq_push(&made->arena, sizeof *made->items);
    made->reports = lq_push(&made->arena, sizeof *made->reports);
    if (!made->items || !made->reports) return lq_fail(err, LQ_ENOMEM, "%s: no memory", e->name);
    for (int p = 0; p < QT_N_PLANES && !s; p++) {
        qt_span *plane = &h.t.plane[p];
        void *data = plane->bytes ? lq_push(&made->arena, plane->bytes) : NULL;
        if (plane->bytes && !data) return lq_fail(err, LQ_ENOMEM, "%s: no memory", e->name);
        s = comm_recv(ranks, from, TAG_MADE, data, plane->bytes, err);
        plane->data = data;
    }
    h.report.name = e->name;
    made->items[made->n_items++] = (qz_item){ .e = e, .t = h.t };
    made->reports[made->n_reports++] = h.report;
    return s;
}
