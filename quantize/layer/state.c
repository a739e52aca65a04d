/* quantize/layer/state.c - the resume folder. */
#include "quantize/layer/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mapped.h"
#include "base/out_file.h"
#include "base/path.h"

static const resume_kind kind = { .command = "llmq quantize",
                                  .parts = "layers",
                                  .afresh = "start afresh with --no-resume",
                                  .others = { "choice.json", "own.ids", "tuning." },
                                  .aside = QZ_STATE_TO };

static lq_status layer_path(char *path, size_t n, const qz_state *s, int64_t layer, lq_err *err)
{
    char name[32];
    snprintf(name, sizeof name, "part-%05lld.llmq", (long long)layer);
    return lq_path_join(path, n, s->at.dir, name, err);
}

/* A layer that cannot be read, or whose bytes are not what they were, is made again. */
static void load_layer(qz_state *s, int64_t layer)
{
    char path[4200];
    if (layer_path(path, sizeof path, s, layer, NULL) || !lq_exists(path)) return;
    lqf_file f;
    if (lqf_open(&f, path, NULL)) return;
    if (lqf_verify(&f, NULL, NULL, NULL, NULL)) {
        lqf_close(&f);
        return;
    }
    s->layers[layer] = f;
    s->n_done++;
    qz_state_drop(s, layer);
}

lq_status qz_state_open(qz_state *s, const char *out_path, const cJSON *what, int64_t n_layers,
                        bool restart, bool shared, lq_err *err)
{
    bool same;
    memset(s, 0, sizeof *s);
    lq_status st = resume_open(&s->at, &same, out_path, &kind, what, restart, shared, err);
    if (st) return st;
    s->n_layers = n_layers;
    s->layers = calloc((size_t)n_layers, sizeof *s->layers);
    if (!s->layers) {
        qz_state_close(s, false);
        return lq_fail(err, LQ_ENOMEM, "no memory for %lld parts", (long long)n_layers);
    }
    for (int64_t i = 0; i < n_layers && same; i++)
        load_layer(s, i);
    return LQ_OK;
}

void qz_state_close(qz_state *s, bool remove)
{
    for (int64_t i = 0; s->layers && i < s->n_layers; i++)
        if (s->layers[i].header) lqf_close(&s->layers[i]);
    free(s->layers);
    resume_close(&s->at, remove || s->apart);
    memset(s, 0, sizeof *s);
}

void qz_state_clear(const char *out_path, const cJSON *what)
{
    qz_state s;
    lq_err err;
    char dir[sizeof s.at.dir];
    if (resume_path(dir, sizeof dir, out_path, NULL) || !lq_exists(dir)) return;
    if (!qz_state_open(&s, out_path, what, 1, false, false, &err)) qz_state_close(&s, true);
}

/* ---- other ranks ---- */
static lq_status open_layer(qz_state *s, int64_t layer, const char *path, lq_err *err)
{
    const lq_status st = lqf_open(&s->layers[layer], path, err);
    if (!st) s->n_done++;
    if (s->apart) unlink(path);
    return st;
}

lq_status qz_state_apart(qz_state *s, int64_t n_layers, lq_err *err)
{
    memset(s, 0, sizeof *s);
    s->n_layers = n_layers;
    s->apart = true;
    s->layers = calloc((size_t)n_layers, sizeof *s->layers);
    if (!s->layers) return lq_fail(err, LQ_ENOMEM, "no memory for %lld parts", (long long)n_layers);
    return resume_open_apart(&s->at, &kind, err);
}

/* size bytes that rank 0 has at `from`, to a file of the others. */
static lq_status share_bytes(comm *ranks, const uint8_t *from, size_t size, const char *path,
                             lq_err *err)
{
    enum { WINDOW = 4 << 20 };
    const bool gives = comm_rank(ranks) == 0;
    lq_out *f = NULL;
    uint8_t *box = malloc(WINDOW);
    lq_status st = box ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for a part");
    if (!st && !gives) st = lq_out_open(&f, path, err);
    for (size_t at = 0; at < size && !st; at += WINDOW) {
        const size_t n = size - at < WINDOW ? size - at : WINDOW;
        if (gives) memcpy(box, from + at, n);
        st = comm_broadcast(ranks, 0, box, n, err);
        if (!st && !gives) st = lq_out_write(f, box, n, err);
    }
    free(box);
    if (st || gives) {
        lq_out_abort(f);
        return st;
    }
    return lq_out_commit(f, err);
}

lq_status qz_state_share(qz_state *s, comm *ranks, lq_err *err)
{
    lq_status st = LQ_OK;
    for (int64_t i = 0; i < s->n_layers && !st; i++) {
        char path[4200];
        const lq_map *m = &s->layers[i].map;
        uint64_t size = qz_state_done(s, i) ? m->size : 0;
        st = comm_broadcast(ranks, 0, &size, sizeof size, err);
        if (!st && size) st = layer_path(path, sizeof path, s, i, err);
        if (!st && size) st = share_bytes(ranks, m->data, (size_t)size, path, err);
        if (!st && size && s->apart) st = open_layer(s, i, path, err);
        if (size && !s->apart) qz_state_drop(s, i);
    }
    return st;
}

lq_status qz_state_share_file(const qz_state *s, comm *ranks, const char *name, lq_err *err)
{
    enum { MOST = 1 << 30 };
    char path[4200];
    char *text = NULL;
    size_t n = 0;
    lq_status st = lq_path_join(path, sizeof path, s->at.dir, name, err);
    if (st) return st;
    if (!s->apart && lq_exists(path)) st = lq_read_file(&text, &n, path, MOST, err);
    uint64_t size = n;
    if (!st) st = comm_broadcast(ranks, 0, &size, sizeof size, err);
    if (!st && size) st = share_bytes(ranks, (const uint8_t *)text, (size_t)size, path, err);
    free(text);
    return st;
}

/* ---- layers ---- */
static cJSON *reports_json(const qz_layer *p)
{
    cJSON *o = cJSON_CreateObject(), *a = cJSON_AddArrayToObject(o, "reports");
    for (size_t i = 0; i < p->n_reports; i++)
        cJSON_AddItemToArray(a, qz_report_json(&p->reports[i]));
    return o;
}

/* What rounding left of item i lies beside the tensors. */
static const char *residual_name(char name[32], size_t i)
{
    snprintf(name, 32, "rest-%05zu", i);
    return name;
}

static const int8_t *rest_of(const lqf_file *f, size_t i, const qt_tensor *t)
{
    char name[32];
    residual_name(name, i);
    for (size_t k = 0; k < f->n_blobs; k++)
        if (strcmp(f->blobs[k].name, name) == 0 && f->blobs[k].span.bytes == (size_t)(t->N * t->K))
            return f->blobs[k].span.data;
    return NULL;
}

/* A file of the state is no model and has no recipe: that field of its header holds the reports. */
static lq_status set_reports(lqf_writer *w, const cJSON *reports, lq_err *err)
{
    return lqf_set_recipe(w, reports, err);
}

static const cJSON *reports_of(const lqf_file *f)
{
    return cJSON_GetObjectItemCaseSensitive(f->recipe, "reports");
}

lq_status qz_state_add(qz_state *s, int64_t layer, const qz_layer *p, lq_err *err)
{
    char path[4200];
    lqf_writer *w = NULL;
    cJSON *reports = reports_json(p);
    lq_status st = layer_path(path, sizeof path, s, layer, err);
    if (!st) st = lqf_create(&w, path, err);
    for (size_t i = 0; i < p->n_items && !st; i++) {
        const plan_entry *e = p->items[i].e;
        const qt_tensor *t = &p->items[i].t;
        char name[32];
        st = lqf_add_tensor(w, e->name, t, e->src->n_dims, qz_plan_shape(e), err);
        if (!st && p->items[i].residual)
            st = lqf_add_blob(w, residual_name(name, i), p->items[i].residual,
                              (size_t)(t->N * t->K), err);
    }
    if (!st) st = set_reports(w, reports, err);
    if (st)
        lqf_abort(w);
    else
        st = lqf_commit(w, err);
    cJSON_Delete(reports);
    return st ? st : open_layer(s, layer, path, err);
}

lq_status qz_state_items(const qz_state *s, const qz_plan *plan, int64_t layer, qz_item *items,
                         size_t *n, lq_err *err)
{
    const lqf_file *f = &s->layers[layer];
    size_t at = 0;
    *n = 0;
    for (size_t i = 0; i < plan->n && at < f->n_tensors; i++) {
        const plan_entry *e = &plan->e[i];
        if (e->layer != layer || strcmp(e->name, f->tensors[at].name) != 0) continue;
        const lqf_tensor *have = &f->tensors[at++];
        const qt_tensor *t = &have->t;
        if (have->n_dims != e->src->n_dims ||
            memcmp(have->shape, qz_plan_shape(e), (size_t)have->n_dims * sizeof *have->shape) != 0)
            break;
        items[*n] = (qz_item){ e, *t, rest_of(f, *n, t) };
        ++*n;
    }
    if (*n != f->n_tensors)
        return lq_fail(err, LQ_EFORMAT,
                       "%s: part %lld does not fit the model; start afresh with --no-resume",
                       s->at.dir, (long long)layer);
    return LQ_OK;
}

void qz_state_drop(const qz_state *s, int64_t layer)
{
    const lq_map *m = &s->layers[layer].map;
    if (m->data) lq_map_drop(m, m->data, m->size);
}

void qz_state_reports(const qz_state *s, int64_t layer, qz_report *reports, size_t *n)
{
    const cJSON *a = reports_of(&s->layers[layer]), *j;
    cJSON_ArrayForEach(j, a) *n += qz_report_read(&reports[*n], j);
}
