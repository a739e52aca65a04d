/* quantize/layer/plan.c - scheme of every tensor: options, overrides, shapes. */
#include "quantize/layer/plan.h"

#include "calib/sites.h"
#include "formats/tensor/blocks.h"
#include "quantize/layer/mix.h"

#include <stdio.h>
#include <stdlib.h>

static bool power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

/* ---- one tensor ---- */

/* What a tensor got instead of what was asked for; said once for all of one kind. */
typedef struct {
    arch_role role;
    int64_t K, group; /* group 0: no outlier columns */
    int64_t got, n;   /* tensors */
} change;

typedef struct {
    const qz_opts *o;
    const src_source *src;
    const arch_config *cfg;
    arch_config mtp; /* of the MTP head; row NULL: none is known */
    const plan_voice *v;
    qz_patterns overrides, skips;
    qt_scheme linear, head, embed, outer, mtp_linear;
    const mix_row *mix; /* or NULL */
    bool by_mix;        /* this entry's scheme is the mix's */
    change changes[2 * ARCH_N_ROLES];
    size_t n_changes;
} maker;

static void plan_say(const maker *m, const char *line)
{
    if (m->v && m->v->say) m->v->say(m->v->user, line);
}

static void note_change(maker *m, const plan_entry *e, int64_t group, int64_t got)
{
    size_t i = 0;
    for (; i < m->n_changes; i++) {
        change *c = &m->changes[i];
        if (c->role != e->role || c->K != e->K || c->group != group) continue;
        c->n++;
        return;
    }
    if (i < LQ_COUNT(m->changes))
        m->changes[m->n_changes++] = (change){ e->role, e->K, group, got, 1 };
}

/* "32, 64, 128": sizes that divide K, those nearest to the one that was asked for. */
static const char *sizes_text(char out[96], int64_t K, int64_t group)
{
    enum { BELOW = 2, ABOVE = 2 };
    int64_t sizes[BELOW + ABOVE];
    int n = 0;
    size_t at = 0;
    for (int64_t g = group; g >= QZ_SMALLEST_GROUP && n < BELOW; g--)
        if (K % g == 0) sizes[n++] = g;
    for (int i = 0; i < n / 2; i++) {
        const int64_t swap = sizes[i];
        sizes[i] = sizes[n - 1 - i];
        sizes[n - 1 - i] = swap;
    }
    for (int64_t g = group + 1, above = 0; g <= K && above < ABOVE; g++)
        if (K % g == 0) sizes[n++] = g, above++;
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(out + at, 96 - at, "%s%lld", i ? ", " : "", (long long)sizes[i]);
    return out;
}

static void say_changes(const maker *m)
{
    char line[320], sizes[96];
    for (size_t i = 0; i < m->n_changes; i++) {
        const change *c = &m->changes[i];
        const char *role = arch_role_text(c->role), *s = c->n == 1 ? "" : "s";
        if (c->group)
            snprintf(line, sizeof line,
                     "%s (%lld tensor%s): groups of %lld do not divide %lld inputs (these do: %s); "
                     "taking %lld%s",
                     role, (long long)c->n, s, (long long)c->group, (long long)c->K,
                     sizes_text(sizes, c->K, c->group), (long long)c->got,
                     power_of_two(c->group) && power_of_two(c->got)
                         ? ", the largest power of two that does"
                         : "");
        else
            snprintf(line, sizeof line,
                     "%s (%lld tensor%s): no outlier columns are looked for here; taking i8-row",
                     role, (long long)c->n, s);
        plan_say(m, line);
    }
}

/* A router decides where rows go, and what is lost of a decay stays in the state: their own bits are few,
 * and the loss is no rounding error. */
static bool may_quantize(const plan_entry *e)
{
    return (e->known || e->mtp) && !e->is_bias && arch_role_kind(e->role) != ARCH_VECTOR &&
           !arch_role_exact(e->role);
}

/* Embedding or head: does --bpw choose its scheme? A tied model's one matrix is both. */
static bool is_auto(const maker *m, arch_role r)
{
    const qz_opts *o = m->o;
    if (m->cfg->tied && r == R_EMBED && qz_is_auto(o->lm_head) && !o->embed) return true;
    return qz_is_auto(r == R_EMBED ? o->embed : o->lm_head);
}

/* What embedding or head takes without a mix and without --bpw. Of a tied model's one matrix the
 * head's "keep" holds too. */
static bool outer_scheme(const maker *m, const plan_entry *e, qt_scheme *s)
{
    const qz_opts *o = m->o;
    const bool embed = e->role == R_EMBED;
    const char *asked = embed ? o->embed : o->lm_head;
    if (!asked && m->cfg->tied && qz_is_keep(o->lm_head)) asked = o->lm_head;
    if (qz_is_keep(asked)) return false;
    *s = !asked ? m->outer : embed ? m->embed : m->head;
    return asked || (o->outer && e->src->plain && e->src->t.scheme.kind == QT_DENSE);
}

/* A pattern has the last word: who also gave --embed or --lm-head is told. */
static void say_beaten(const maker *m, const plan_entry *e, const char *pattern)
{
    char line[320];
    const bool embed = e->role == R_EMBED;
    if (!(embed ? m->o->embed : e->role == R_HEAD ? m->o->lm_head : NULL)) return;
    snprintf(line, sizeof line, "'%.160s': %s counts, not %s", e->name, pattern,
             embed ? "--embed" : "--lm-head");
    plan_say(m, line);
}

bool qz_makes(const qt_scheme *s)
{
    if (s->kind == QT_BLOCKS) return blk_made_of(blk_find(s->blocks)) != NULL;
    if (s->kind == QT_E2M1) return s->scale_dtype == LQ_F8_E8M0;
    return s->kind == QT_UINT || s->kind == QT_DENSE;
}

/* The scheme that the tensor (of stacked experts the first) has in another file. */
static bool like_scheme(const maker *m, const plan_entry *e, qt_scheme *s)
{
    const src_tensor *t = NULL;
    const int64_t layer = arch_role_per_layer(e->role) ? e->layer : -1;
    const int64_t expert = arch_role_per_expert(e->role) && e->part < 0 ? 0 : e->part;
    lq_err none;
    if (src_role(m->o->like, e->role, layer, expert, &t, NULL, &none) || !t || !t->plain ||
        !qz_makes(&t->t.scheme))
        return false;
    *s = t->t.scheme;
    return true;
}

/* A matrix of the MTP head: unasked it stays, for a guess that is wrong costs a step. */
static bool mtp_scheme(const maker *m, const plan_entry *e, qt_scheme *s)
{
    const src_tensor *t = m->o->like ? src_find(m->o->like, e->name) : NULL;
    if (t && t->plain && qz_makes(&t->t.scheme)) return *s = t->t.scheme, true;
    *s = m->mtp_linear;
    return m->o->mtp && !qz_is_keep(m->o->mtp) && arch_role_linear(e->role);
}

/* The scheme that options ask for; false: leave the tensor as it is. */
static bool wanted(maker *m, plan_entry *e, qt_scheme *s)
{
    if (!may_quantize(e)) return false;
    const bool skipped = qz_patterns_match(&m->skips, e->name, NULL);
    if (skipped || qz_patterns_match(&m->overrides, e->name, s)) {
        say_beaten(m, e, skipped ? "--skip" : "--override");
        return !skipped;
    }
    const bool outer = e->role == R_EMBED || e->role == R_HEAD;
    if (e->mtp) return mtp_scheme(m, e, s);
    if (m->o->like) return like_scheme(m, e, s);
    m->by_mix = m->mix && !(outer && (e->role == R_EMBED ? m->o->embed : m->o->lm_head));
    if (m->by_mix) return mix_scheme(s, m->mix, m->cfg, e->role, e->layer, BLK_ELEMENTS);
    e->open = outer ? is_auto(m, e->role) : m->o->bpw > 0 && arch_role_linear(e->role);
    if (e->open) return *s = m->linear, true;
    if (outer) return outer_scheme(m, e, s);
    *s = m->linear;
    return arch_role_linear(e->role);
}

/* Shape of the result: codes are [outputs, inputs] of each matrix. */
static void shape_of(const maker *m, plan_entry *e)
{
    const src_tensor *t = e->src;
    const arch_name *a = arch_name_of(m->cfg, e->role);
    const int d = t->n_dims;
    memcpy(e->shape, t->shape, sizeof e->shape);
    e->turned = a && (a->flags & NAME_TRANSPOSED) && e->scheme.kind != QT_DENSE && d >= 2;
    e->count = a && (a->flags & NAME_STACKED) && d == 3 ? t->shape[0] : 1;
    e->N = t->t.N / e->count;
    e->K = t->t.K;
    if (!e->turned) return;
    const int64_t in = e->N;
    e->N = e->K;
    e->K = in;
    e->shape[d - 2] = t->shape[d - 1];
    e->shape[d - 1] = t->shape[d - 2];
}

static void fit_groups(qt_scheme *s, const plan_entry *e, const qz_opts *o, int64_t layers)
{
    s->group = qz_fit_group(e->K, s->group);
    /* Act-order without static groups (g_idx): the order is a tensor's, not one expert's. */
    s->act_order = qz_keeps_order(o) && e->layer < layers && s->group < e->K && e->count == 1;
}

static lq_status fit(maker *m, plan_entry *e, lq_err *err)
{
    qt_scheme *s = &e->scheme;
    if (m->by_mix && !mix_scheme(s, m->mix, m->cfg, e->role, e->layer, e->K)) {
        e->quantize = false;
        return LQ_OK;
    }
    if (s->kind == QT_UINT) {
        const int64_t G = s->group;
        fit_groups(s, e, m->o, m->cfg->layers);
        if (G > 0 && G < e->K && G != s->group && !e->open) note_change(m, e, G, s->group);
    }
    /* Outlier columns are found by calibration, which sees the inputs of a layer's linears only. */
    cal_site site;
    if (s->kind == QT_I8_OUTLIER &&
        (e->mtp || !(qz_needs(m->o) & QZ_NEEDS_OUTLIERS) || !cal_site_of(&site, m->cfg, e->role))) {
        note_change(m, e, 0, 0);
        s->kind = QT_I8;
    }
    lq_status st = qt_check(s, e->count * e->N, e->K, err);
    return st ? lq_wrap(err, st, "%s", e->name) : LQ_OK;
}

static lq_status decide(maker *m, plan_entry *e, lq_err *err)
{
    const src_tensor *t = e->src;
    arch_slot slot;
    e->known = arch_slot_of(m->cfg, e->name, &slot);
    e->mtp = !e->known && m->mtp.row && arch_slot_of(&m->mtp, e->name, &slot);
    e->role = slot.role;
    e->part = slot.expert;
    e->expert = arch_role_per_expert(slot.role) ? slot.expert : -1;
    e->is_bias = slot.bias;
    e->layer = e->known && slot.layer >= 0 ? slot.layer : m->cfg->layers;
    m->by_mix = false;
    e->quantize = wanted(m, e, &e->scheme);
    if (!e->quantize) return LQ_OK;
    if (!t->plain || t->t.scheme.kind != QT_DENSE) {
        char have[40] = "not a float tensor";
        if (t->plain) qt_scheme_text(have, &t->t.scheme);
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s: expected unquantized weights, found %s (llmq convert --to safetensors "
                       "--dtype bf16 "
                       "makes floats of them)",
                       e->name, have);
    }
    if (t->t.layout != QT_PORTABLE)
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected layout portable, found %s", e->name,
                       qt_layout_text(t->t.layout));
    shape_of(m, e);
    qz_plan_take(e, &e->scheme);
    return e->quantize ? fit(m, e, err) : LQ_OK;
}

lq_status qz_plan_scheme(qt_scheme *s, const plan_entry *e, const qz_plan *p, const qz_opts *o,
                         const plan_candidate *c, lq_err *err)
{
    if (c->type && mix_type_scheme(s, c->type, e->K)) return LQ_OK;
    if (!c->bits) return *s = e->src->t.scheme, LQ_OK;
    qz_opts v = *o;
    v.bits = c->bits;
    v.group = c->group;
    lq_status st = v.method->scheme(s, &v, err);
    if (st) return st;
    fit_groups(s, e, o, p->cfg.layers);
    return qt_check(s, e->count * e->N, e->K, err);
}

void qz_plan_take(plan_entry *e, const qt_scheme *s)
{
    e->scheme = *s;
    e->quantize = s->kind != QT_DENSE || s->dtype != e->src->t.scheme.dtype;
}

size_t qz_planned_bytes(const plan_entry *e)
{
    return e->quantize ? qt_bytes(&e->scheme, e->count * e->N, e->K) : src_bytes(e->src);
}

/* ---- the whole ---- */
static int group_of(const plan_entry *e)
{
    if (e->known && e->role == R_EMBED) return 0;
    return e->known && arch_role_per_layer(e->role) ? 1 : 2;
}

static int by_place(const void *a, const void *b)
{
    const plan_entry *x = a, *y = b;
    if (group_of(x) != group_of(y)) return group_of(x) < group_of(y) ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Does a tied model's head get the scheme that the embedding has anyway? */
static bool one_scheme(const qz_opts *o)
{
    if (!o->lm_head || (!o->embed && qz_is_keep(o->lm_head))) return true;
    const char *embed = o->embed ? o->embed : o->outer ? o->outer : "keep";
    return strcmp(embed, o->lm_head) == 0;
}

/* A tied model has one matrix for embedding and head: giving the head its own scheme splits it. */
static lq_status split_head(qz_plan *p, maker *m, lq_err *err)
{
    char name[160], line[320];
    const src_tensor *embed = NULL;
    if (m->cfg->head == HEAD_NONE && m->o->lm_head)
        return lq_fail(err, LQ_EUSAGE, "--lm-head: this model has no output head");
    if (!m->cfg->tied) return LQ_OK;
    if (is_auto(m, R_EMBED) && (!m->o->lm_head || qz_is_auto(m->o->lm_head))) {
        plan_say(m, "tied model: embedding and head stay one matrix, which takes one scheme");
        return LQ_OK;
    }
    if (m->o->embed && !m->o->lm_head && !qz_is_keep(m->o->embed))
        plan_say(m, "tied model: the output head takes the embedding's scheme");
    if (one_scheme(m->o)) return LQ_OK;
    if (!arch_tensor_name(m->cfg, R_HEAD, -1, -1, false, name, sizeof name))
        return lq_fail(err, LQ_EUNSUPPORTED, "--lm-head: this architecture has no output head");
    lq_status s = src_role(m->src, R_EMBED, -1, -1, &embed, NULL, err);
    if (s) return s;
    snprintf(line, sizeof line,
             "tied model: --lm-head splits the head from the embedding; %s is added", name);
    plan_say(m, line);
    p->cfg.tied = false;
    if (src_find(m->src, name)) return LQ_OK; /* stored twice: the source's copy is used */
    plan_entry *e = &p->e[p->n++];
    memset(e, 0, sizeof *e);
    e->src = embed;
    e->name = lq_push_str(&p->arena, name, strlen(name));
    if (!e->name) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    return decide(m, e, err);
}

/* What becomes of the MTP head, where the model has one. */
static void say_mtp(const maker *m)
{
    const char *asked = m->o->mtp;
    char line[160];
    if (m->o->rotate)
        plan_say(m, "MTP head: kept, but of no use beside rotated hidden states");
    else if (asked && !qz_is_keep(asked)) {
        snprintf(line, sizeof line, "MTP head: its linears become %.60s", asked);
        plan_say(m, line);
    } else if (!m->o->like)
        plan_say(m, "MTP head: kept as it is in the source (--mtp)");
}

static lq_status plan_mtp(maker *m, lq_err *err)
{
    src_source *head = NULL;
    const char *asked = m->o->mtp;
    lq_err none;
    lq_status s = LQ_OK;
    if (asked && !qz_is_keep(asked))
        s = qz_scheme_asked(&m->mtp_linear, asked, "--mtp", m->o->method, err);
    if (s) return s;
    s = src_mtp(&head, m->src, asked ? err : &none);
    if (s) return asked ? lq_wrap(err, s, "--mtp") : LQ_OK;
    src_close(head);
    say_mtp(m);
    return arch_config_mtp(&m->mtp, m->cfg, err);
}

lq_status qz_plan_make(qz_plan *p, const src_source *src, const qz_opts *o, const plan_voice *v,
                       lq_err *err)
{
    memset(p, 0, sizeof *p);
    maker m = { .o = o, .src = src, .cfg = src_config(src), .v = v };
    p->src = src;
    p->cfg = *m.cfg;
    int64_t n = src_n_tensors(src);
    lq_status s = qz_patterns_make(&m.overrides, "--override", o->overrides, o->n_overrides, true,
                                   o->method, err);
    if (!s) s = qz_patterns_make(&m.skips, "--skip", o->skips, o->n_skips, false, o->method, err);
    if (!s) s = src_check_roles(src, err);
    if (!s && o->mix) s = mix_find(&m.mix, o->mix, err);
    if (!s)
        s = o->scheme ? qz_scheme_asked(&m.linear, o->scheme, "--to", o->method, err)
                      : o->method->scheme(&m.linear, o, err);
    if (!s && o->scheme && m.linear.kind == QT_E4M3 && !o->method->floats)
        s = lq_fail(err, LQ_EUSAGE, "--to: '%s' is made by fp8, rtn, gptq and auto", o->scheme);
    if (!s && o->outer) s = qz_scheme_of(&m.outer, o->outer, err);
    if (!s && o->lm_head && !qz_is_auto(o->lm_head) && !qz_is_keep(o->lm_head))
        s = qz_scheme_asked(&m.head, o->lm_head, "--lm-head", o->method, err);
    if (!s && o->embed && !qz_is_auto(o->embed) && !qz_is_keep(o->embed))
        s = qz_scheme_asked(&m.embed, o->embed, "--embed", o->method, err);
    if (!s) s = plan_mtp(&m, err);
    if (!s) {
        p->e = lq_push(&p->arena, ((size_t)n + 1) * sizeof *p->e);
        if (!p->e) s = lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    }
    for (int64_t i = 0; i < n && !s; i++) {
        plan_entry *e = &p->e[p->n++];
        e->src = src_tensor_at(src, i);
        e->name = e->src->name;
        s = decide(&m, e, err);
    }
    if (!s) s = split_head(p, &m, err);
    if (!s) say_changes(&m);
    if (!s) qz_patterns_say_unused(&m.overrides, v);
    if (!s) qz_patterns_say_unused(&m.skips, v);
    if (!s) qsort(p->e, p->n, sizeof *p->e, by_place);
    qz_patterns_free(&m.overrides);
    qz_patterns_free(&m.skips);
    arch_config_free(&m.mtp);
    if (s) qz_plan_free(p);
    return s;
}

lq_status qz_plan_check_finite(const qz_plan *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < p->n && !s; i++)
        if (p->e[i].known && p->e[i].src->plain) s = src_check_finite(p->e[i].src, err);
    return s;
}

void qz_plan_free(qz_plan *p)
{
    lq_arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}

const plan_entry *qz_plan_find(const qz_plan *p, arch_role r, int64_t layer, int64_t expert,
                               bool bias)
{
    for (size_t i = 0; i < p->n; i++) {
        const plan_entry *e = &p->e[i];
        if (e->known && e->role == r && e->layer == layer && e->expert == expert &&
            e->is_bias == bias)
            return e;
    }
    return NULL;
}
