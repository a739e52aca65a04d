/* tools/cli/footprint.c - see footprint.h. */
#include "tools/cli/footprint.h"

#include "base/json.h"
#include "base/path.h"
#include "formats/arch/ngrams.h"
#include "formats/tensor/tiles.h"
#include "quantize/layer/plan.h"
#include "runtime/model/absorb.h"
#include "runtime/model/part.h"
#include "runtime/model/rank.h"

/* ---- where the config comes from ---- */
static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

lq_status foot_open(foot_model *p, const char *path, bool draft, bool verify, const char *rope,
                    lq_err *err)
{
    memset(p, 0, sizeof *p);
    if (ends_with(path, ".json")) {
        cJSON *j = NULL;
        lq_status s = js_parse_file(&j, path, 1 << 20, JS_UNIQUE, err);
        if (!s) s = arch_config_parse(&p->own, j, NULL, err);
        if (!s && p->own.mtp && !draft) {
            arch_config_free(&p->own);
            s = arch_refuse_draft(err);
        }
        if (s && j) lq_wrap(err, s, "%s", path);
        if (!s && rope) s = arch_rope_rescale(&p->own, rope, err);
        cJSON_Delete(j);
        return s;
    }
    src_opts o = { .need_config = true, .verify = verify, .draft = draft, .rope = rope };
    lq_status s = src_open(&p->src, path, &o, err);
    p->weights = !s;
    if (s == LQ_ENOENT && lq_is_dir(path)) { /* a folder whose weights are not here yet */
        o.no_tensors = true;
        s = src_open(&p->src, path, &o, err);
    }
    return s;
}

lq_status foot_head(foot_model *head, const foot_model *m, lq_err *err)
{
    memset(head, 0, sizeof *head);
    head->weights = m->weights;
    lq_status s = m->weights ? src_mtp(&head->src, m->src, err)
                             : arch_config_mtp(&head->own, foot_config(m), err);
    return s ? lq_wrap(err, s, "--speculative-mtp") : LQ_OK;
}

void foot_close(foot_model *p)
{
    if (p->src)
        src_close(p->src);
    else
        arch_config_free(&p->own);
}

const arch_config *foot_config(const foot_model *p)
{
    return p->src ? src_config(p->src) : &p->own;
}

const char *foot_format(const foot_model *p)
{
    return p->weights ? src_format(p->src) : "config alone";
}

/* ---- weights ---- */
/* Bytes of a linear's tiles, or of the first of so many devices' part, whose outputs and inputs take N's and K's
 * place. */
static lq_status tiled_bytes(size_t *bytes, const arch_config *cfg, arch_role r,
                             const qt_scheme *scheme, int64_t *N, int64_t *K, int ranks,
                             lq_err *err)
{
    qt_tensor t = { .scheme = tiles_scheme(scheme, *N, *K), .layout = QT_TILE16, .N = *N, .K = *K };
    rank_part p;
    *bytes = 0;
    if (ranks > 1 && rank_part_of(&p, cfg, r, 0, ranks)) {
        const qt_tensor whole = t;
        lq_status s = tiles_part(&t, &whole, p.rows, p.n, p.k0, p.k1, err);
        if (s) return lq_wrap(err, s, "%s over %d devices", arch_role_text(r), ranks);
    }
    for (int i = 0; i < QT_N_PLANES; i++)
        *bytes += qt_plane_bytes(&t.scheme, QT_TILE16, t.N, t.K, (qt_plane)i);
    *N = t.N;
    *K = t.K;
    return LQ_OK;
}

/* Of a vector that heads have a part of, the first device's. */
static lq_status vector_part(int64_t *N, int64_t *K, const arch_config *cfg, arch_role r,
                             int64_t layer, int ranks, lq_err *err)
{
    arch_config own;
    lq_arena a = { 0 };
    if (ranks == 1) return LQ_OK;
    lq_status s = rank_config(&own, cfg, ranks, &a, err);
    if (!s) arch_role_shape(arch_at(&own, layer), r, N, K);
    lq_arena_free(&a);
    return s;
}

/* AltUp's: a matrix for each stream but the first. */
static bool of_streams(arch_role r) { return r == R_STREAM_IN || r == R_STREAM_OUT; }

/* Is a role's matrix held in tiles? Those that schemes are for, a layer's small ones, as they are stored, and
 * what stands before and behind the layers but for rows that are added or looked up. */
static bool in_tiles(arch_role r)
{
    switch (r) {
    case R_PROJ_IN:
    case R_PROJ_OUT:
    case R_PLE_PROJ:
    case R_STREAM_IN:
    case R_STREAM_OUT:
    case R_HYPER_END_FN:
    case R_HYPER_END_DOWN:
    case R_HYPER_END_UP:
    case R_MTP_PROJ:
        return true;
    case R_NGRAM_TABLE:
        return false;
    default:
        return arch_role_linear(r) || (arch_role_kind(r) == ARCH_MATRIX && arch_role_per_layer(r));
    }
}

/* Those whose rows are read as they are stored. */
static bool as_needed(arch_role r) { return r == R_PLE_EMBED || r == R_NGRAM_TABLE; }
static bool in_rows(arch_role r) { return r == R_EMBED || as_needed(r); }

/* Of a table of n-grams, all its tensors together. */
static int64_t table_rows(const arch_config *c, int64_t layer)
{
    arch_ngrams z;
    arch_ngrams_of(&z, c, layer);
    return z.rows;
}

/* How the runtime holds a role's tensor of N and K; N 0: there is none. */
static lq_status role_as(qt_scheme *as, int64_t *N, int64_t *K, const foot_model *p,
                         const qt_scheme *scheme, arch_role r, int64_t layer, lq_err *err)
{
    const arch_config *cfg = foot_config(p);
    arch_role_shape(arch_at(cfg, layer), r, N, K);
    if (r == R_NGRAM_TABLE && arch_has(cfg, r, layer)) *N = table_rows(cfg, layer);
    if (*N <= 0 || *K <= 0) *N = 0; /* this architecture has no such role */
    if (!*N) return LQ_OK;
    const src_tensor *t = NULL;
    lq_status s = p->weights ? src_role(p->src, r, layer, 0, &t, NULL, err) : LQ_OK;
    if (s) return s;
    const bool has = r == R_HEAD ? cfg->head == HEAD_WORDS /* tied: a copy in tiles */
                                 : arch_has(cfg, r, layer);
    const bool made = has && r != R_HEAD && arch_name_of(cfg, r)->flags & NAME_ONES;
    if ((!t && ((p->weights && !made) || !has)) || (r == R_HEAD && !has)) *N = 0;
    if (!*N) return LQ_OK;
    *as = (qt_scheme){ .kind = QT_DENSE, .dtype = cfg->dtype };
    if (t && t->plain) *as = t->t.scheme;
    const bool linear = arch_role_linear(r);
    if (linear && r != R_HEAD && scheme) *as = *scheme;
    if (as->kind == QT_UINT) as->group = qz_fit_group(*K, as->group);
    if (!in_tiles(r) && !in_rows(r))
        *as = (qt_scheme){ .kind = QT_DENSE, .dtype = LQ_F32 }; /* norms */
    s = qt_check(as, *N, *K, err);
    return s ? lq_wrap(err, s, "%s of [%lld,%lld]", arch_role_text(r), (long long)*N, (long long)*K)
             : LQ_OK;
}

/* Its biases: 1 or 0. */
static lq_status has_bias(size_t *n, const foot_model *p, arch_role r, int64_t layer, lq_err *err)
{
    const src_tensor *t, *bias = NULL;
    *n = !p->weights && arch_wants_bias(foot_config(p), r) > 0;
    lq_status s = p->weights ? src_role(p->src, r, layer, 0, &t, &bias, err) : LQ_OK;
    *n += bias != NULL;
    return s;
}

/* Bytes of one role's tensor as the runtime holds it, with its biases: in tiles, in rows, or f32. Of the
 * experts a token reads those used. ranks: as foot_sizes. */
static lq_status add_role(foot_weights *w, const foot_model *p, const qt_scheme *scheme,
                          arch_role r, int64_t layer, int ranks, lq_err *err)
{
    const arch_config *cfg = foot_config(p);
    int64_t N, K;
    qt_scheme as;
    lq_status s = role_as(&as, &N, &K, p, scheme, r, layer, err);
    if (s || !N) return s;
    size_t bytes = 0, bias = 0;
    const bool expert = arch_role_per_expert(r);
    const bool apart = expert || of_streams(r); /* matrices of their own */
    const int64_t all = expert          ? cfg->experts
                        : of_streams(r) ? arch_n_tensors(cfg, r)
                                        : 1,
                  used = expert ? cfg->experts_used : 1,
                  parts = apart || r == R_NGRAM_TABLE ? 1 : arch_n_tensors(cfg, r);
    if (p->part && arch_role_linear(r)) N = part_outputs(part_at(p->part, layer), r, N);
    if (r != R_HEAD || !cfg->tied) w->params += (double)(all * parts) * (double)N * (double)K;
    s = has_bias(&bias, p, r, layer, err);
    if (s) return s;
    if (in_tiles(r)) {
        if (ranks > 1) as.n_out = 0; /* which columns those are stands in the file: left out */
        s = tiled_bytes(&bytes, arch_at(cfg, layer), r, &as, &N, &K, ranks, err);
        if (s) return s;
        if (arch_role_linear(r)) {
            w->step_bytes += (size_t)used * bytes;
            w->step_weights += (double)used * (double)N * (double)K;
        }
        bytes += bias * (size_t)N * sizeof(float);
    } else {
        s = vector_part(&N, &K, cfg, r, layer, ranks, err);
        if (s) return s;
        const bool conv = r >= R_MIX_CONV && r <= R_MIX_CONV_V;
        bias *= (size_t)(N * K / (conv ? cfg->conv_taps : 1)) * sizeof(float);
        bytes = (size_t)parts * (qt_bytes(&as, N, K) + bias);
    }
    *(as_needed(r) ? &w->rows_bytes : &w->weights_bytes) += (size_t)all * bytes;
    return LQ_OK;
}

lq_status foot_weigh(foot_weights *w, const foot_model *p, const qt_scheme *scheme, lq_err *err)
{
    *w = (foot_weights){ 0 };
    lq_status s = LQ_OK;
    for (int r = 0; r < ARCH_N_ROLES && !s; r++) {
        int64_t n = arch_role_per_layer((arch_role)r) ? foot_config(p)->layers : 1;
        for (int64_t l = 0; l < n && !s; l++)
            s = add_role(w, p, scheme, (arch_role)r, arch_role_per_layer((arch_role)r) ? l : -1, 1,
                         err);
    }
    return s;
}

/* Of those that belong to no layer: the rest stays on the host. */
static const arch_role behind[] = { R_FINAL_NORM,     R_PROJ_OUT,       R_HEAD_NORM,
                                    R_HEAD,           R_STREAM_OUT,     R_HYPER_END_FN,
                                    R_HYPER_END_BASE, R_HYPER_END_SCALE },
                       before[] = { R_EMBED, R_EMBED_NORM },
                       beside[] = { R_PLE_PROJ,       R_PLE_NORM,        R_STREAM_IN,
                                    R_MTP_EMBED_NORM, R_MTP_HIDDEN_NORM, R_MTP_EACH_NORM,
                                    R_MTP_ALL_NORM,   R_MTP_PROJ };

static lq_status add_layer(foot_weights *w, const foot_model *p, const qt_scheme *scheme,
                           int64_t layer, int ranks, lq_err *err)
{
    lq_status s = LQ_OK;
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++)
        if (arch_role_per_layer(r)) s = add_role(w, p, scheme, r, layer, ranks, err);
    return s;
}

static lq_status add_behind(foot_weights *w, const foot_model *p, const qt_scheme *scheme,
                            int ranks, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(behind) && !s; i++)
        s = add_role(w, p, scheme, behind[i], -1, ranks, err);
    return s;
}

lq_status foot_weigh_last(foot_weights *w, const foot_model *p, const qt_scheme *scheme, int64_t n,
                          int ranks, lq_err *err)
{
    const int64_t L = foot_config(p)->layers;
    *w = (foot_weights){ 0 };
    lq_status s = n ? add_behind(w, p, scheme, ranks, err) : LQ_OK;
    for (int64_t l = L - n; l < L && !s; l++)
        s = add_layer(w, p, scheme, l, ranks, err);
    return s;
}

/* In place of MLA's R_KV_B what it is on a device (runtime/model/absorb.h). */
static lq_status add_factors(foot_weights *w, const foot_model *p, const qt_scheme *scheme,
                             int64_t layer, int ranks, bool half, lq_err *err)
{
    const arch_config *cfg = arch_at(foot_config(p), layer);
    foot_weights kv_b = { 0 };
    int64_t N, K;
    qt_scheme as;
    size_t keys, values;
    lq_status s = add_role(&kv_b, p, scheme, R_KV_B, layer, ranks, err);
    if (!s) s = role_as(&as, &N, &K, p, scheme, R_KV_B, layer, err);
    if (s || !N) return s;
    model_absorb_head(&keys, &values, cfg, &as, half);
    w->weights_bytes +=
        (size_t)(cfg->heads / ranks) * (keys + values + 2 * DEV_GROUP_EACH) - kv_b.weights_bytes;
    return LQ_OK;
}

/* What a device keeps of a layer's experts beside their weights. */
static lq_status add_sets(foot_weights *w, const foot_model *p, int64_t layer, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < ARCH_N_EXPERT_ROLES && !s; i++) {
        int64_t N, K;
        qt_scheme as;
        s = role_as(&as, &N, &K, p, NULL, R_EXPERT_GATE + i, layer, err);
        if (!s && N) w->weights_bytes += (size_t)foot_config(p)->experts * DEV_GROUP_EACH;
    }
    return s;
}

lq_status foot_sizes(model_sizes *sizes, size_t *room, const foot_model *p, const qt_scheme *scheme,
                     int ranks, bool half, lq_err *err)
{
    const arch_config *cfg = foot_config(p);
    const src_tensor *embed = NULL;
    lq_status s = LQ_OK;
    for (int64_t l = 0; l < cfg->layers && !s; l++) {
        foot_weights one = { 0 };
        s = add_layer(&one, p, scheme, l, ranks, err);
        if (!s && cfg->w.mla) s = add_factors(&one, p, scheme, l, ranks, half, err);
        if (!s) s = add_sets(&one, p, l, err);
        room[l] = one.weights_bytes;
    }
    foot_weights rest = { 0 }, rows = { 0 };
    if (!s) s = add_behind(&rest, p, scheme, ranks, err);
    for (size_t i = 0; i < LQ_COUNT(before) && !s; i++)
        s = add_role(&rows, p, scheme, before[i], -1, ranks, err);
    if (!s && p->weights) s = src_role(p->src, R_EMBED, -1, -1, &embed, NULL, err);
    const bool plain = (!embed || embed->t.scheme.kind == QT_DENSE) &&
                       !arch_name_of(cfg, R_PROJ_IN) && !arch_name_of(cfg, R_POS_EMBED) &&
                       cfg->w.pos != POS_SINUSOIDAL && !cfg->types;
    foot_weights each = { 0 };
    for (size_t i = 0; i < LQ_COUNT(beside) && !s; i++)
        s = add_role(&each, p, scheme, beside[i], -1, ranks, err);
    room[cfg->layers] = rest.weights_bytes + model_distances_bytes(cfg, ranks);
    *sizes = (model_sizes){ .layer = room,
                            .L = cfg->layers,
                            .embed = (plain ? rows.weights_bytes : 0) + each.weights_bytes,
                            .least = model_least_layers(cfg) };
    return s;
}

static bool has_codes(const qt_tensor *t)
{
    const qt_scheme s = tiles_scheme(&t->scheme, t->N, t->K);
    const dev_weight w = { .t = { .scheme = s, .N = t->N, .K = t->K },
                           .s = tiles_shape(&s, t->N, t->K) };
    return dev_mm_codes(&w);
}

lq_status foot_in_rows(bool *any, const foot_model *p, lq_err *err)
{
    const int64_t L = p->weights ? foot_config(p)->layers : 0;
    lq_status s = LQ_OK;
    *any = false;
    for (int64_t l = 0; l < L && !*any && !s; l++)
        for (arch_role r = 0; r < ARCH_N_ROLES && !*any && !s; r++) {
            const src_tensor *t = NULL;
            if (!arch_role_per_layer(r) || !arch_role_linear(r)) continue;
            s = src_role(p->src, r, l, 0, &t, NULL, err);
            *any = !s && t && ((t->plain && dev_in_rows(&t->t)) || has_codes(&t->t));
        }
    return s;
}
