/* quantize/mixed/bpw.c - open entries into items, items into choices, choices into the plan. */
#include "quantize/mixed/bpw.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/out_file.h"
#include "formats/gguf/gguf.h"
#include "quantize/mixed/knapsack.h"
#include "quantize/mixed/measure.h"

static const plan_candidate uniform[] = { { 2, 128, 0 }, { 2, 64, 0 }, { 2, 32, 0 },
                                          { 3, 128, 0 }, { 3, 64, 0 }, { 3, 32, 0 },
                                          { 4, 128, 0 }, { 4, 64, 0 }, { 4, 32, 0 },
                                          { 8, 128, 0 }, { 8, 64, 0 }, { 8, 32, 0 },
                                          { 0, 0, 0 } /* as it is */ };
#define TYPE(t)        \
    {                  \
        0, 0, GGML_##t \
    }
static const plan_candidate blocks[] = { TYPE(IQ2_XXS), TYPE(IQ2_XS), TYPE(IQ2_S), TYPE(Q2_K),
                                         TYPE(IQ3_XXS), TYPE(IQ3_S),  TYPE(Q3_K),  TYPE(IQ4_XS),
                                         TYPE(Q4_K),    TYPE(Q5_K),   TYPE(Q6_K),  TYPE(Q8_0),
                                         { 0, 0, 0 } };
#undef TYPE
enum { MOST = MEASURE_SCHEMES };
static_assert((int)LQ_COUNT(uniform) <= (int)MOST && (int)LQ_COUNT(blocks) <= (int)MOST &&
                  (int)MOST <= (int)KNAPSACK_MAX,
              "room for every candidate");

static bool for_gguf(const qz_opts *o) { return o->bpw_for && strcmp(o->bpw_for, "gguf") == 0; }

const plan_candidate *bpw_candidate(const qz_opts *o, int c)
{
    const bool gguf = for_gguf(o);
    if (c >= (int)(gguf ? LQ_COUNT(blocks) : LQ_COUNT(uniform))) return NULL;
    return gguf ? &blocks[c] : &uniform[c];
}

typedef struct {
    measure_entry *m; /* of the open entries */
    size_t *at;       /* their places in the plan */
    int64_t *item;    /* and items */
    size_t n;
    int64_t n_items;
    const plan_candidate *choice[MOST];
    int n_choices;
    lq_arena arena;
} table;

static lq_status bpw_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for the choice of bits");
}

/* ---- items: tensors that share a choice ---- */
static arch_role lead_of(arch_role r, bool untied)
{
    static const arch_role fused[][2] = {
        { R_K, R_Q },
        { R_V, R_Q },
        { R_KV_A, R_Q_A },
        { R_UP, R_GATE },
        { R_SHARED_UP, R_SHARED_GATE },
        { R_EXPERT_UP, R_EXPERT_GATE },
        { R_EXPERT_GATE_UP, R_EXPERT_GATE },
        { R_EXPERT_DOWN, R_EXPERT_GATE },
    };
    for (size_t i = 0; i < LQ_COUNT(fused) && !untied; i++)
        if (fused[i][0] == r) return fused[i][1];
    return r;
}

static lq_status open_table(table *t, const qz_plan *plan, const qz_opts *o, lq_err *err)
{
    memset(t, 0, sizeof *t);
    const plan_candidate *x;
    for (int c = 0; (x = bpw_candidate(o, c)); c++)
        if (!(o->bpw_without >> c & 1)) t->choice[t->n_choices++] = x;
    for (size_t i = 0; i < plan->n; i++)
        t->n += plan->e[i].open;
    t->m = lq_push(&t->arena, (t->n + 1) * sizeof *t->m);
    t->at = lq_push(&t->arena, (t->n + 1) * sizeof *t->at);
    t->item = lq_push(&t->arena, (t->n + 1) * sizeof *t->item);
    if (!t->m || !t->at || !t->item) return bpw_no_memory(err);
    lq_status s = LQ_OK;
    size_t n = 0;
    for (size_t i = 0; i < plan->n && !s; i++) {
        const plan_entry *e = &plan->e[i];
        if (!e->open) continue;
        measure_entry *m = &t->m[n];
        *m = (measure_entry){ .e = e, .n = t->n_choices };
        for (int c = 0; c < t->n_choices && !s; c++)
            s = qz_plan_scheme(&m->scheme[c], e, plan, o, t->choice[c], err);
        if (s) return lq_wrap(err, s, "%s", e->name);
        t->at[n] = i;
        t->item[n] = -1;
        for (size_t k = n; k-- > 0 && t->m[k].e->layer == e->layer && t->item[n] < 0;)
            if (lead_of(t->m[k].e->role, o->untied) == lead_of(e->role, o->untied))
                t->item[n] = t->item[k];
        if (t->item[n] < 0) t->item[n] = t->n_items++;
        n++;
    }
    return s;
}

static size_t bytes_of(const measure_entry *m, int c)
{
    const plan_entry *e = m->e;
    return m->scheme[c].kind != QT_DENSE ? qt_bytes(&m->scheme[c], e->count * e->N, e->K)
                                         : src_bytes(e->src);
}

/* Sums over the tensors of each item. */
static knapsack_item *items_of(const table *t, lq_err *err)
{
    knapsack_item *it = calloc((size_t)t->n_items + 1, sizeof *it);
    if (!it) bpw_no_memory(err);
    for (size_t i = 0; i < t->n && it; i++) {
        knapsack_item *x = &it[t->item[i]];
        x->n = t->n_choices;
        for (int c = 0; c < t->n_choices; c++) {
            x->c[c].bytes += bytes_of(&t->m[i], c);
            x->c[c].cost += t->m[i].effect[c];
        }
    }
    return it;
}

/* ---- the budget ---- */
/* Of a tensor that is settled, at most: folding and tuning write norms, biases and routers as f32, and so
 * does GGUF. */
static double settled_bytes(const plan_entry *e, const qz_opts *o)
{
    const bool grows = !e->quantize && e->known && e->src->plain &&
                       (qz_folds(o) || qz_tune_steps(o) || for_gguf(o)) &&
                       (e->src->n_dims == 1 || e->is_bias || arch_role_exact(e->role));
    const double most = 4 * (double)src_elements(e->src), planned = (double)qz_planned_bytes(e);
    return grows && most > planned ? most : planned;
}

static lq_status range_of(bpw_range *r, const table *t, const qz_plan *plan, const qz_opts *o,
                          lq_err *err)
{
    size_t least, most;
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < plan->n; i++) {
        const plan_entry *e = &plan->e[i];
        const bool linear =
            e->known && !e->is_bias && arch_role_linear(e->role) && arch_role_per_layer(e->role);
        if (!linear && !qz_bpw_whole(o)) continue;
        r->weights += (double)src_elements(e->src);
        r->n_open += e->open;
        if (!e->open) r->fixed += settled_bytes(e, o);
    }
    if (!r->n_open)
        return lq_fail(err, LQ_EUSAGE,
                       "--bpw: expected tensors to choose for, found none that "
                       "--skip and --override leave");
    knapsack_item *it = items_of(t, err);
    if (!it) return LQ_ENOMEM;
    knapsack_range(&least, &most, it, t->n_items);
    free(it);
    r->bpw_least = 8 * (r->fixed + (double)least) / r->weights;
    r->bpw_most = 8 * (r->fixed + (double)most) / r->weights;
    if (o->bpw >= r->bpw_least && o->bpw <= r->bpw_most) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "--bpw: expected %.3f to %.3f bits per weight of %s, found %g",
                   ceil(r->bpw_least * 1000) / 1000, floor(r->bpw_most * 1000) / 1000,
                   qz_bpw_whole(o) ? "the whole model" : "the linear layers", o->bpw);
}

lq_status bpw_check(bpw_range *r, const qz_plan *plan, const qz_opts *o, lq_err *err)
{
    table t;
    lq_status s = open_table(&t, plan, o, err);
    if (!s) s = range_of(r, &t, plan, o, err);
    lq_arena_free(&t.arena);
    return s;
}

/* ---- the file ---- */
static lq_status keep_choice(const table *t, const int *pick, const char *file, lq_err *err)
{
    lq_buf text = { 0 };
    cJSON *o = cJSON_CreateObject(), *a = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < t->n; i++) {
        const int c = pick[t->item[i]];
        const plan_candidate *x = t->choice[c];
        cJSON *j = cJSON_CreateObject();
        cJSON_AddStringToObject(j, "name", t->m[i].e->name);
        cJSON_AddNumberToObject(j, "bits", x->bits);
        cJSON_AddNumberToObject(j, "group", (double)x->group);
        if (x->type) cJSON_AddNumberToObject(j, "type", x->type);
        cJSON_AddNumberToObject(j, "effect", t->m[i].effect[c]);
        cJSON_AddItemToArray(a, j);
    }
    lq_status s = a ? js_canonical(&text, o, err) : bpw_no_memory(err);
    if (!s && text.oom) s = bpw_no_memory(err);
    if (!s) s = lq_write_file(file, text.p, text.n, err);
    free(text.p);
    cJSON_Delete(o);
    return s;
}

/* The choice of an earlier run of the same key; false: none that fits the plan. */
static bool recall(table *t, int *pick, const char *file)
{
    cJSON *o = NULL;
    size_t i = 0;
    if (js_parse_file(&o, file, (size_t)1 << 28, 0, NULL)) return false;
    const cJSON *j;
    cJSON_ArrayForEach(j, js_get(o, "tensors"))
    {
        const char *name;
        int64_t bits, group, type = 0;
        double effect;
        int c = 0;
        if (i == t->n || js_str(j, "name", true, &name, NULL) ||
            js_i64(j, "bits", true, 0, 8, &bits, NULL) ||
            js_i64(j, "group", true, 0, 128, &group, NULL) ||
            js_i64(j, "type", false, 0, 255, &type, NULL) ||
            js_f64(j, "effect", true, 0, (double)INFINITY, &effect, NULL) ||
            strcmp(name, t->m[i].e->name) != 0)
            break;
        while (c < t->n_choices && (t->choice[c]->bits != bits || t->choice[c]->group != group ||
                                    t->choice[c]->type != type))
            c++;
        if (c == t->n_choices) break;
        t->m[i].effect[c] = effect;
        pick[t->item[i++]] = c;
    }
    const bool whole = i == t->n && !j;
    cJSON_Delete(o);
    return whole;
}

/* ---- the whole ---- */
static lq_status bpw_choose(int *pick, const table *t, const bpw_range *r, const qz_opts *o,
                            lq_err *err)
{
    knapsack_item *it = items_of(t, err);
    if (!it) return LQ_ENOMEM;
    const double room = floor(o->bpw * r->weights / 8 - r->fixed);
    lq_status s = knapsack_choose(pick, it, t->n_items, (size_t)room, 0, err);
    free(it);
    return s;
}

lq_status bpw_run(bpw_choice *m, qz_plan *plan, src_source *src, const qz_opts *o,
                  const cal_samples *samples, const fisher *curvature, const char *file,
                  comm *ranks, pool *p, const lq_job *job, lq_err *err)
{
    table t;
    bpw_range r;
    memset(m, 0, sizeof *m);
    lq_status s = open_table(&t, plan, o, err);
    if (!s) s = range_of(&r, &t, plan, o, err);
    int *pick = s ? NULL : lq_push(&t.arena, ((size_t)t.n_items + 1) * sizeof *pick);
    m->effect = s ? NULL : lq_push(&m->arena, plan->n * sizeof *m->effect);
    if (!s && (!pick || !m->effect)) s = bpw_no_memory(err);
    if (!s && !recall(&t, pick, file)) {
        m->measured = true;
        s = measure_run(t.m, t.n, src, plan, o, samples, curvature, ranks, p, job, err);
        if (!s) s = bpw_choose(pick, &t, &r, o, err);
        if (!s) s = keep_choice(&t, pick, file, err);
    }
    for (size_t i = 0; i < plan->n && !s; i++)
        m->effect[i] = (double)NAN;
    for (size_t i = 0; i < t.n && !s; i++) {
        const int c = pick[t.item[i]];
        qz_plan_take(&plan->e[t.at[i]], &t.m[i].scheme[c]);
        m->effect[t.at[i]] = t.m[i].effect[c];
        m->predicted += t.m[i].effect[c];
    }
    lq_arena_free(&t.arena);
    if (s) bpw_free(m);
    return s;
}

void bpw_free(bpw_choice *m)
{
    lq_arena_free(&m->arena);
    memset(m, 0, sizeof *m);
}
