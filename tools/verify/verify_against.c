/* tools/verify/verify_against.c */
#include "tools/verify/verify_against.h"

#include "base/hash.h"
#include "base/json.h"
#include "formats/tensor/error_bound.h"
#include "formats/tensor/tiles.h"
#include "quantize/methods/methods.h"
#include "quantize/methods/rules.h"
#include "quantize/transform/rotate.h"
#include "tools/cli/progress.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Calibrated methods keep no bound per weight; a row of K inputs that is off by more than this many
 * steps (root mean square) is no rounding of its source: rounding to nearest gives 0.29, error
 * feedback below 1, and codes of another row of 4 bits 5 or so. Two weights may be 5 steps off, which a
 * short row shows: a small input makes up for the error of a large one that it goes along with
 * (2.9 steps in a row of 8 inputs). A row that was matched to the original makes up for what quantizing changed before it too
 * (3.8 steps in a row of 16). */
static double max_rms_steps(int64_t K, bool matched)
{
    return sqrt(4 + (matched ? 200 : 50) / (double)K);
}

typedef struct {
    const src_tensor *mine;
    qt_tensor q, w; /* both portable, [N,K] */
    int64_t N, K;
    float *wrow, *qrow, *lo, *hi, *tol; /* [K] */
    float *col, *row;                   /* [K], [N]: what folding multiplied; 1 without it */
} pair;

/* A tiled tensor's planes in the portable layout, in the arena. */
static lq_status portable(qt_tensor *out, const qt_tensor *t, lq_arena *a, lq_err *err)
{
    void *w[QT_N_PLANES];
    *out = *t;
    if (t->layout == QT_PORTABLE) return LQ_OK;
    lq_status s = qt_alloc(out, w, &t->scheme, t->N, t->K, a, err);
    return s ? s : tiles_unpack(w, t, err);
}

/* Floats stored [inputs, outputs], of which the other side has codes of [outputs, inputs]. */
static lq_status turn(qt_tensor *w, const src_tensor *codes, lq_arena *a, lq_err *err)
{
    const int64_t N = codes->shape[codes->n_dims - 2], K = codes->t.K;
    const size_t size = lq_dtype_bytes(w->scheme.dtype), one = (size_t)(N * K) * size;
    const size_t bytes = w->plane[QT_CODES].bytes;
    const uint8_t *from = w->plane[QT_CODES].data;
    uint8_t *to = lq_push(a, bytes);
    if (!to) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", bytes);
    for (size_t at = 0; at < bytes; at += one)
        src_transpose(to + at, from + at, N, K, size);
    w->plane[QT_CODES].data = to;
    w->N = codes->t.N;
    w->K = K;
    return LQ_OK;
}

/* q and w: the two as src_load gives them; codes: the one of them (mine, theirs) that stands as
 * both are compared. */
static lq_status pair_init(pair *p, const src_tensor *mine, const src_tensor *codes,
                           const qt_tensor *q, const qt_tensor *w, bool turned, lq_arena *a,
                           lq_err *err)
{
    *p = (pair){ .mine = mine, .N = codes->t.N, .K = codes->t.K };
    lq_status s = portable(&p->q, q, a, err);
    if (!s) s = portable(&p->w, w, a, err);
    if (!s && turned) s = turn(codes == mine ? &p->w : &p->q, codes, a, err);
    if (s) return s;
    float **const rows_of[] = { &p->wrow, &p->qrow, &p->lo, &p->hi, &p->tol, &p->col };
    for (size_t i = 0; i < LQ_COUNT(rows_of); i++)
        *rows_of[i] = lq_push(a, (size_t)p->K * sizeof(float));
    p->row = lq_push(a, (size_t)p->N * sizeof(float));
    if (!p->wrow || !p->qrow || !p->lo || !p->hi || !p->tol || !p->col || !p->row)
        return lq_fail(err, LQ_ENOMEM, "no memory for a row of %" PRId64, p->K);
    for (int64_t k = 0; k < p->K; k++)
        p->col[k] = 1;
    for (int64_t n = 0; n < p->N; n++)
        p->row[n] = 1;
    return LQ_OK;
}

static void read_row(const pair *p, int64_t n)
{
    qt_dequant(p->wrow, &p->w, n, n + 1);
    qt_dequant(p->qrow, &p->q, n, n + 1);
}

/* Folding multiplies columns (and the rows of the linear before) by positive numbers that the file
 * does not keep: fit them by least squares, columns given rows, then rows given columns, twice. */
static lq_status fit_fold(pair *p, lq_err *err)
{
    double *wq = calloc((size_t)p->K * 2, sizeof *wq);
    if (!wq) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " columns", p->K);
    double *ww = wq + p->K;
    for (int turn = 0; turn < 2; turn++) {
        memset(wq, 0, (size_t)p->K * 2 * sizeof *wq);
        for (int64_t n = 0; n < p->N; n++) {
            read_row(p, n);
            for (int64_t k = 0; k < p->K; k++) {
                const double w = (double)p->row[n] * (double)p->wrow[k];
                wq[k] += w * (double)p->qrow[k];
                ww[k] += w * w;
            }
        }
        for (int64_t k = 0; k < p->K; k++)
            p->col[k] = ww[k] > 0 ? (float)(wq[k] / ww[k]) : 1;
        for (int64_t n = 0; n < p->N; n++) {
            double a = 0, b = 0;
            read_row(p, n);
            for (int64_t k = 0; k < p->K; k++) {
                const double w = (double)p->col[k] * (double)p->wrow[k];
                a += w * (double)p->qrow[k];
                b += w * w;
            }
            p->row[n] = b > 0 ? (float)(a / b) : 1;
        }
    }
    free(wq);
    return LQ_OK;
}

static bound_report compare(pair *p)
{
    bound_state st = { .rows = 0 };
    for (int64_t n = 0; n < p->N; n++) {
        read_row(p, n);
        for (int64_t k = 0; k < p->K; k++)
            p->wrow[k] *= p->row[n] * p->col[k];
        bound_row(p->lo, p->hi, p->tol, &p->q, n,
                  p->w.scheme.kind == QT_DENSE ? p->w.scheme.dtype : LQ_F32);
        bound_add_row(&st, p->wrow, p->qrow, p->lo, p->hi, p->tol, n, p->K);
    }
    return bound_end(&st, p->K);
}

typedef struct {
    bool calibrated; /* no bound per weight: a method that looks at activations, or one of others */
    bool fold;       /* columns, rows, norms and biases carry factors */
    bool tuned;      /* norms were trained */
    bool matched;    /* weights make up for earlier linears */
    bool converted;  /* values were chosen anew since: neither bound holds */
    qt_scheme embed, head; /* that a conversion to floats ended; not of QT_UINT: none, or unknown */
} recipe;

/* Rounding to the nearest is all that a conversion does, and so is what both have in common no
 * matter of this comparison. */
static bool same_recipe(const src_source *mine, const src_source *theirs)
{
    return src_recipe(theirs) && cJSON_Compare(src_recipe(mine), src_recipe(theirs), true);
}

static double number_of(const cJSON *o, const char *key)
{
    double v = 0;
    js_f64(o, key, false, 0, 1e15, &v, NULL);
    return v;
}

/* Were weights of `mine` rounded anew, or stored as floats, from others than theirs? */
static lq_status converted_since(bool *yes, const src_source *mine, const src_source *theirs,
                                 lq_err *err)
{
    const cJSON *c = src_conversion(mine);
    const char *from = "";
    char hex[33];
    lq_hash h;
    *yes = number_of(c, "requantized") + number_of(c, "floats") > 0;
    if (!*yes) return LQ_OK;
    js_str(js_get(c, "from"), "xxh3", false, &from, NULL);
    lq_status s = src_fingerprint(&h, theirs, err);
    if (s) return s;
    lq_hash_hex(hex, &h);
    *yes = strcmp(hex, from) != 0;
    return LQ_OK;
}

/* The scheme that one of the recipe's overrides gives a tensor of this name. */
static bool overridden(qt_scheme *s, const cJSON *own, const char *name)
{
    const cJSON *list = js_get(own, "overrides");
    const char *method = cJSON_GetStringValue(js_get(own, "method"));
    const qz_method *m;
    const int n = cJSON_GetArraySize(list);
    const char **text = calloc((size_t)n + 1, sizeof *text);
    qz_patterns p = { .n = 0 };
    lq_err none;
    bool found = text && method && !qz_method_find(&m, method, &none);
    for (int i = 0; found && i < n; i++)
        found = (text[i] = cJSON_GetStringValue(cJSON_GetArrayItem(list, i))) != NULL;
    found = found && !qz_patterns_make(&p, "overrides", text, n, true, m, &none) &&
            qz_patterns_match(&p, name, s);
    qz_patterns_free(&p);
    free(text);
    return found;
}

/* The scheme of embedding or head by the recipe. */
static qt_scheme outer_scheme(const src_source *mine, const cJSON *own, arch_role role,
                              const char *key)
{
    qt_scheme s = { .kind = QT_DENSE };
    const char *text = NULL;
    char name[256];
    lq_err none;
    if (src_config(mine) &&
        arch_tensor_name(src_config(mine), role, -1, -1, false, name, sizeof name) &&
        overridden(&s, own, name))
        return s;
    if (js_str(own, key, false, &text, NULL) || !text) js_str(own, "outer", false, &text, NULL);
    if (!text || qt_scheme_parse(&s, text, &none)) s.kind = QT_DENSE;
    return s;
}

static lq_status read_recipe(recipe *r, const src_source *mine, const src_source *theirs,
                             lq_err *err)
{
    const cJSON *own = same_recipe(mine, theirs) ? NULL : src_recipe(mine);
    const char *method = NULL;
    *r = (recipe){ .calibrated = !src_recipe(mine) && !src_conversion(mine) };
    js_bool(own, "fold", false, &r->fold, NULL);
    js_bool(own, "match", false, &r->matched, NULL);
    r->tuned = js_get(own, "tune") != NULL;
    if (!js_str(own, "method", false, &method, NULL) && method) {
        const qz_method *m;
        r->calibrated = qz_method_find(&m, method, NULL) || !m->bounded;
    }
    r->embed = outer_scheme(mine, own, R_EMBED, "embed");
    r->head = outer_scheme(mine, own, R_HEAD, "lm_head");
    return converted_since(&r->converted, mine, theirs, err);
}

/* Floats that were codes of `was`: each within a step of the source's value, whose group of inputs
 * gives the step, and what 8 bits of a float lose. */
static bool within_former(pair *p, const qt_scheme *was)
{
    if (was->kind != QT_UINT) return false;
    const int64_t G = qz_fit_group(p->K, was->group);
    for (int64_t n = 0; n < p->N; n++) {
        read_row(p, n);
        for (int64_t k = 0; k < p->K; k += G) {
            float lo = 0, hi = 0;
            for (int64_t i = k; i < k + G; i++) {
                lo = fminf(lo, p->wrow[i]);
                hi = fmaxf(hi, p->wrow[i]);
            }
            const float range = was->zero == QT_ZERO_NONE ? 2 * fmaxf(-lo, hi) : hi - lo;
            const float step = range / (float)((1 << was->bits) - 2);
            for (int64_t i = k; i < k + G; i++)
                if (!(fabsf(p->qrow[i] - p->wrow[i]) <= step + fabsf(p->qrow[i]) / 256))
                    return false;
        }
    }
    return true;
}

/* A dense matrix that took factors by its columns (a router) is the source's but for f32's
 * rounding; row and column of the first weight that is not, or false. */
static bool other_than_folded(pair *p, int64_t *row, int64_t *col)
{
    for (*row = 0; *row < p->N; ++*row) {
        read_row(p, *row);
        for (*col = 0; *col < p->K; ++*col) {
            const float want = p->wrow[*col] * p->row[*row] * p->col[*col];
            if (!(fabsf(p->qrow[*col] - want) <= 1e-5f * fabsf(want) + FLT_MIN)) return true;
        }
    }
    return false;
}

static lq_status check_folded(verdict *v, pair *p, lq_err *err)
{
    char what[160];
    int64_t row, col;
    lq_status s = fit_fold(p, err);
    v->checked++;
    if (!s && other_than_folded(p, &row, &col)) {
        snprintf(what, sizeof what,
                 "row %" PRId64 ", column %" PRId64
                 ": expected the source's value times one factor for each column, found another",
                 row, col);
        verdict_add(v, p->mine->name, what);
    }
    return s;
}

static lq_status check_pair(verdict *v, pair *p, arch_role role, recipe r, lq_err *err)
{
    char what[160];
    const bool dense = p->q.scheme.kind == QT_DENSE;
    const double most = max_rms_steps(p->K, r.matched);
    if ((r.fold || r.tuned) && dense && p->mine->n_dims == 1)
        return LQ_OK; /* norms and biases: factors unknown */
    if (r.fold && arch_role_exact(role)) return check_folded(v, p, err);
    if (r.fold && !dense) {
        lq_status s = fit_fold(p, err);
        if (s) return s;
    }
    const bound_report b = compare(p);
    v->checked++;
    v->codes = v->codes || !dense;
    bool beyond = (dense || !r.calibrated) && b.max_excess > 0;
    if (beyond && dense && r.converted && (role == R_EMBED || role == R_HEAD))
        beyond = !within_former(p, role == R_EMBED ? &r.embed : &r.head);
    if (r.converted && (beyond || (!dense && !(b.worst_rms <= most)))) {
        if (!v->beyond++)
            snprintf(v->first_beyond, sizeof v->first_beyond, "%.180s", p->mine->name);
    } else if (beyond) {
        int at = snprintf(what, sizeof what, "row %" PRId64 ", column %" PRId64 ": ", b.row, b.col);
        if (dense)
            snprintf(what + at, sizeof what - (size_t)at,
                     "expected the source's value as %s holds it, found another",
                     lq_dtype_text(p->q.scheme.dtype));
        else if (isinf(b.max_excess))
            snprintf(what + at, sizeof what - (size_t)at,
                     "expected the source's value, found another");
        else
            snprintf(what + at, sizeof what - (size_t)at,
                     "expected at most half a step of its scheme from the source's weight, found "
                     "%.3g steps more",
                     b.max_excess);
        verdict_add(v, p->mine->name, what);
    } else if (!dense && !(b.worst_rms <= most)) {
        snprintf(what, sizeof what,
                 "expected rows within %.3g steps of the source (rms), found %.3g", most,
                 b.worst_rms);
        verdict_add(v, p->mine->name, what);
    }
    return LQ_OK;
}

/* What this file's tensor is for; false: unknown. */
static bool slot_of(const src_source *src, const src_tensor *t, arch_slot *slot)
{
    return src_config(src) && arch_slot_of(src_config(src), t->name, slot);
}

/* One side has floats of [inputs, outputs], the other codes: their last two dims change places. */
static bool is_turned(const src_source *mine, const src_tensor *t, const src_tensor *x)
{
    arch_slot slot;
    if (!slot_of(mine, t, &slot) || slot.bias || t->n_dims < 2) return false;
    return (arch_name_of(src_config(mine), slot.role)->flags & NAME_TRANSPOSED) && t->plain &&
           x->plain && (t->t.scheme.kind == QT_DENSE) != (x->t.scheme.kind == QT_DENSE);
}

static bool same_shape(const src_tensor *t, const src_tensor *x, bool turned)
{
    int64_t want[LQ_MAX_DIMS];
    memcpy(want, x->shape, sizeof want);
    if (t->n_dims != x->n_dims) return false;
    if (turned) {
        want[x->n_dims - 2] = x->shape[x->n_dims - 1];
        want[x->n_dims - 1] = x->shape[x->n_dims - 2];
    }
    return memcmp(t->shape, want, sizeof want) == 0;
}

static lq_status check_tensor(verdict *v, const src_source *mine, const src_source *theirs,
                              const src_tensor *t, recipe r, lq_err *err)
{
    const src_tensor *x = src_find(theirs, t->name);
    arch_slot slot;
    if (!x && slot_of(mine, t, &slot) && slot.role == R_HEAD && src_config(theirs) &&
        src_config(theirs)->tied)
        src_role(theirs, R_HEAD, -1, -1, &x, NULL,
                 NULL); /* a head of its own, made from the tied one */
    if (!x) {
        verdict_add(v, t->name, "not in the source");
        return LQ_OK;
    }
    const bool turned = is_turned(mine, t, x);
    if (!same_shape(t, x, turned)) {
        char want[96], have[96], line[240];
        snprintf(line, sizeof line, "shape: expected %s%s, found %s", src_shape_text(want, x),
                 turned ? " turned" : "", src_shape_text(have, t));
        verdict_add(v, t->name, line);
        return LQ_OK;
    }
    if (t->plain != x->plain) {
        verdict_add(v, t->name, "one is a weight, the other holds other numbers");
        return LQ_OK;
    }
    if (!t->plain) {
        v->checked++;
        if (t->raw.bytes != x->raw.bytes || memcmp(t->raw.data, x->raw.data, t->raw.bytes) != 0)
            verdict_add(v, t->name, "its bytes differ from the source's");
        return LQ_OK;
    }
    lq_arena a;
    pair p;
    qt_tensor q, w;
    src_load(&q, mine, t);
    src_load(&w, theirs, x);
    lq_status s = lq_arena_init(&a, 0, err);
    const src_tensor *codes = turned && t->t.scheme.kind == QT_DENSE ? x : t;
    if (!s) s = pair_init(&p, t, codes, &q, &w, turned, &a, err);
    if (!s) s = check_pair(v, &p, slot_of(mine, t, &slot) ? slot.role : ARCH_N_ROLES, r, err);
    lq_arena_free(&a);
    src_unload(theirs, x);
    src_unload(mine, t);
    return s;
}

/* Why weights do not fit, as far as the model itself knows, and what to compare it with. */
static void explain(verdict *v, const src_source *mine, recipe r)
{
    char what[400];
    const cJSON *c = src_conversion(mine), *source = js_get(src_provenance(mine), "source");
    const char *from = NULL, *first = NULL;
    js_str(js_get(c, "from"), "xxh3", false, &from, NULL);
    js_str(source, "xxh3", false, &first, NULL);
    if (v->beyond) {
        const bool floats = number_of(c, "floats") > 0;
        snprintf(what, sizeof what,
                 "the first of %" PRId64 " weights that differ by more than their scheme's step: "
                 "llmq convert %s: compare them with the model that it was "
                 "given%s%.32s",
                 v->beyond,
                 number_of(c, "requantized") <= 0 ? "stored them as floats"
                 : floats                         ? "rounded them again or stored them as floats"
                                                  : "rounded them again",
                 from ? ", of XXH3-128 " : "", from ? from : "");
        verdict_add(v, v->first_beyond, what);
    } else if (v->n_bad && v->codes && r.calibrated && !src_recipe(mine)) {
        prog_say(LOG_WARN, "no recipe travels with this model: where its makers folded factors "
                           "into other tensors (awq, smoothing), or trained norms, its weights are "
                           "not those of the source; compare it with what it was converted from");
    } else if (v->n_bad && first) {
        prog_say(LOG_WARN,
                 "it was made of weights with XXH3-128 %.32s (llmq inspect --json: provenance)",
                 first);
    }
}

static lq_status check_tensors(verdict *v, const src_source *mine, const src_source *theirs,
                               recipe r, lq_err *err)
{
    lq_status s = LQ_OK;
    const int64_t n = src_n_tensors(mine);
    for (int64_t i = 0; i < n && !s; i++) {
        s = lq_stopped(v->c->job) ? LQ_EINTR
                                  : check_tensor(v, mine, theirs, src_tensor_at(mine, i), r, err);
        lq_report(v->c->job, "compare", (double)(i + 1), (double)n);
    }
    for (int64_t i = 0; i < src_n_tensors(theirs) && !s; i++) {
        const src_tensor *x = src_tensor_at(theirs, i);
        arch_slot slot;
        if (src_find(mine, x->name)) continue;
        const bool tied_head =
            slot_of(mine, x, &slot) && slot.role == R_HEAD && src_config(mine)->tied;
        if (!tied_head) verdict_add(v, x->name, "in the source, but not here");
    }
    return s;
}

static void say_nothing(void *user, const char *text)
{
    (void)user;
    (void)text;
}

static bool rounds_outer(const cJSON *own)
{
    qz_opts o = { 0 };
    js_str(own, "embed", false, &o.embed, NULL);
    js_str(own, "lm_head", false, &o.lm_head, NULL);
    js_str(own, "outer", false, &o.outer, NULL);
    return qz_rounds_outer(&o);
}

/* A model quantized with --rotate is compared with its source turned the same way. */
static lq_status turned_as(rot_model **rot, const src_source *mine, const src_source *theirs,
                           const char *path, pool *p, lq_err *err)
{
    const cJSON *own = same_recipe(mine, theirs) ? NULL : src_recipe(mine);
    const plan_voice quiet = { .say = say_nothing };
    if (!js_get(own, "rotate_seed")) return LQ_OK;
    const rot_opts o = { (uint64_t)number_of(own, "rotate_seed"), rounds_outer(own) };
    const lq_status s = rot_open(rot, theirs, &o, p, &quiet, err);
    return s ? lq_wrap(err, s,
                       "--against %s: made with --rotate, which only the floats that it was made "
                       "of can be compared with (any model: llmq eval --ref --max-kl)",
                       path)
             : LQ_OK;
}

lq_status verify_against(verdict *v, const src_source *mine, const char *path, lq_err *err)
{
    src_source *theirs = NULL;
    rot_model *rot = NULL;
    pool *p = NULL;
    recipe r;
    lq_status s = src_open(&theirs, path, NULL, err);
    if (!s) s = pool_open(&p, v->c->threads, err);
    if (!s) s = turned_as(&rot, mine, theirs, path, p, err);
    if (!s) s = read_recipe(&r, mine, theirs, err);
    if (!s) s = check_tensors(v, mine, rot ? rot_source(rot) : theirs, r, err);
    if (!s) explain(v, mine, r);
    rot_close(rot);
    pool_close(p);
    src_close(theirs);
    return s;
}
