/* quantize/layer/plan.c - scheme of every tensor: options, overrides, shapes. */
#include "quantize/layer/plan.h"

#include "calib/sites.h"

#include <stdio.h>
#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { SMALLEST_GROUP = 16 };

static bool power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

int64_t qz_fit_group(int64_t K, int64_t group)
{
    if (group <= 0 || group >= K) return K;
    for (int64_t g = group; g >= SMALLEST_GROUP && power_of_two(group); g /= 2)
        if (K % g == 0) return g; /* kernels of other engines know powers of two alone */
    for (int64_t g = group; g >= SMALLEST_GROUP; g--)
        if (K % g == 0) return g;
    return K % group == 0 ? group : K;
}

/* ---- patterns ---- */
typedef struct {
    pcre2_code *re;
    qt_scheme scheme;
    bool used; /* matched the name of some weight */
} rule;

typedef struct {
    rule *overrides, *skips;
    int n_overrides, n_skips;
    pcre2_match_data *match;
} rules;

static lq_status compile(pcre2_code **re, const char *pattern, size_t n, const char *option,
                         lq_err *err)
{
    int code;
    size_t at;
    *re = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF, &code, &at, NULL);
    if (*re) return LQ_OK;
    PCRE2_UCHAR text[128] = "";
    pcre2_get_error_message(code, text, sizeof text);
    return lq_fail(err, LQ_EUSAGE, "%s '%s': %s at character %zu", option, pattern,
                   (const char *)text, at + 1);
}

static bool matches(const rules *r, rule *one, const char *name)
{
    bool yes = pcre2_match(one->re, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, NULL) >= 0;
    one->used |= yes;
    return yes;
}

static void rules_free(rules *r)
{
    for (int i = 0; r->overrides && i < r->n_overrides; i++)
        pcre2_code_free(r->overrides[i].re);
    for (int i = 0; r->skips && i < r->n_skips; i++)
        pcre2_code_free(r->skips[i].re);
    free(r->overrides);
    free(r->skips);
    pcre2_match_data_free(r->match);
}

/* A scheme as the user wrote it. */
static lq_status parse_scheme(qt_scheme *s, const char *text, const char *option,
                              const qz_method *m, lq_err *err)
{
    lq_status st = qt_scheme_parse(s, text, err);
    if (!st && ((s->zero == QT_ZERO_F16 && !m->fractional) || s->zero == QT_ZERO_BIAS))
        st = lq_fail(err, LQ_EUSAGE, "'%s' needs a method that chooses fractional zero points",
                     text);
    if (!st && (s->kind == QT_E4M3 || s->kind == QT_E2M1 || s->act))
        st = lq_fail(err, LQ_EUSAGE, "'%s' is read and served, but no method here makes it", text);
    return st ? lq_wrap(err, LQ_EUSAGE, "%s", option) : LQ_OK;
}

static lq_status rules_make(rules *r, const qz_opts *o, lq_err *err)
{
    memset(r, 0, sizeof *r);
    r->overrides = calloc((size_t)o->n_overrides + 1, sizeof *r->overrides);
    r->skips = calloc((size_t)o->n_skips + 1, sizeof *r->skips);
    r->match = pcre2_match_data_create(1, NULL);
    r->n_overrides = o->n_overrides;
    r->n_skips = o->n_skips;
    if (!r->overrides || !r->skips || !r->match) return lq_fail(err, LQ_ENOMEM, "no memory");
    lq_status s = LQ_OK;
    for (int i = 0; i < o->n_overrides && !s; i++) {
        const char *text = o->overrides[i], *eq = strrchr(text, '=');
        if (!eq || eq == text)
            return lq_fail(err, LQ_EUSAGE, "--override '%s': expected REGEX=scheme", text);
        s = compile(&r->overrides[i].re, text, (size_t)(eq - text), "--override", err);
        if (!s) s = parse_scheme(&r->overrides[i].scheme, eq + 1, "--override", o->method, err);
    }
    for (int i = 0; i < o->n_skips && !s; i++)
        s = compile(&r->skips[i].re, o->skips[i], strlen(o->skips[i]), "--skip", err);
    return s;
}

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
    const plan_voice *v;
    rules r;
    qt_scheme linear, head, embed;
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
    for (int64_t g = group; g >= SMALLEST_GROUP && n < BELOW; g--)
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

/* A router decides where rows go: its own bits are few, and a wrong choice is no rounding error. */
static bool may_quantize(const plan_entry *e)
{
    return e->known && !e->is_bias && arch_role_kind(e->role) != ARCH_VECTOR &&
           e->role != R_ROUTER && e->role != R_SHARED_ROUTER;
}

/* Embedding or head: does --bpw choose its scheme? A tied model's one matrix is both. */
static bool is_auto(const maker *m, arch_role r)
{
    const qz_opts *o = m->o;
    if (m->cfg->tied && r == R_EMBED && qz_is_auto(o->lm_head) && !o->embed) return true;
    return qz_is_auto(r == R_EMBED ? o->embed : o->lm_head);
}

/* The scheme that options ask for; false: leave the tensor as it is. */
static bool wanted(const maker *m, plan_entry *e, qt_scheme *s)
{
    if (!may_quantize(e)) return false;
    for (int i = 0; i < m->r.n_skips; i++)
        if (matches(&m->r, &m->r.skips[i], e->name)) return false;
    for (int i = 0; i < m->r.n_overrides; i++)
        if (matches(&m->r, &m->r.overrides[i], e->name)) return *s = m->r.overrides[i].scheme, true;
    const bool outer = e->role == R_EMBED || e->role == R_HEAD;
    e->open = outer ? is_auto(m, e->role) : m->o->bpw > 0 && arch_role_linear(e->role);
    if (e->open) return *s = m->linear, true;
    if (e->role == R_EMBED) return m->o->embed ? (*s = m->embed, true) : false;
    if (e->role == R_HEAD) return m->o->lm_head ? (*s = m->head, true) : false;
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
    if (s->kind == QT_UINT) {
        const int64_t G = s->group;
        fit_groups(s, e, m->o, m->cfg->layers);
        if (G > 0 && G < e->K && G != s->group && !e->open) note_change(m, e, G, s->group);
    }
    /* Outlier columns are found by calibration, which sees the inputs of a layer's linears only. */
    cal_site site;
    if (s->kind == QT_I8_OUTLIER &&
        (!(qz_needs(m->o) & QZ_NEEDS_OUTLIERS) || !cal_site_of(&site, m->cfg, e->role))) {
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
    e->role = slot.role;
    e->expert = slot.expert;
    e->is_bias = slot.bias;
    e->layer = e->known && slot.layer >= 0 ? slot.layer : m->cfg->layers;
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
                         int bits, int64_t group, lq_err *err)
{
    if (!bits) return *s = e->src->t.scheme, LQ_OK;
    qz_opts v = *o;
    v.bits = bits;
    v.group = group;
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

/* A pattern with a slip in it would leave the model other than its owner believes. */
static void say_unused(const maker *m, const rule *list, const char *const *text, int n,
                       const char *option)
{
    char line[320];
    for (int i = 0; i < n; i++) {
        if (list[i].used) continue;
        snprintf(line, sizeof line, "%s '%.240s': takes no weight", option, text[i]);
        plan_say(m, line);
    }
}

/* A tied model has one matrix for embedding and head: giving the head its own scheme splits it. */
static lq_status split_head(qz_plan *p, maker *m, lq_err *err)
{
    char name[160], line[320];
    const src_tensor *embed = NULL;
    if (!m->cfg->tied) return LQ_OK;
    if (is_auto(m, R_EMBED) && (!m->o->lm_head || qz_is_auto(m->o->lm_head))) {
        plan_say(m, "tied model: embedding and head stay one matrix, which takes one scheme");
        return LQ_OK;
    }
    if (m->o->embed && !m->o->lm_head)
        plan_say(m, "tied model: the output head takes the embedding's scheme");
    if (!m->o->lm_head || (m->o->embed && strcmp(m->o->embed, m->o->lm_head) == 0)) return LQ_OK;
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

lq_status qz_plan_make(qz_plan *p, const src_source *src, const qz_opts *o, const plan_voice *v,
                       lq_err *err)
{
    memset(p, 0, sizeof *p);
    maker m = { .o = o, .src = src, .cfg = src_config(src), .v = v };
    p->src = src;
    p->cfg = *m.cfg;
    int64_t n = src_n_tensors(src);
    lq_status s = rules_make(&m.r, o, err);
    if (!s) s = src_check_roles(src, err);
    if (!s) s = o->method->scheme(&m.linear, o, err);
    if (!s && o->lm_head && !qz_is_auto(o->lm_head))
        s = parse_scheme(&m.head, o->lm_head, "--lm-head", o->method, err);
    if (!s && o->embed && !qz_is_auto(o->embed))
        s = parse_scheme(&m.embed, o->embed, "--embed", o->method, err);
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
    if (!s) say_unused(&m, m.r.overrides, o->overrides, o->n_overrides, "--override");
    if (!s) say_unused(&m, m.r.skips, o->skips, o->n_skips, "--skip");
    if (!s) qsort(p->e, p->n, sizeof *p->e, by_place);
    rules_free(&m.r);
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
