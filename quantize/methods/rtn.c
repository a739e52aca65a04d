/* quantize/methods/rtn.c - rounding to nearest, row by row. */
#include "quantize/methods/rtn.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#include "quantize/methods/fp4.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rows.h"

grid_spec rtn_spec(const qt_scheme *s, grid_limits limits, bool search)
{
    const blk_type *t = s->kind == QT_BLOCKS ? blk_find(s->blocks) : NULL;
    if (t)
        return (grid_spec){ .bits = t->bits,
                            .search = search,
                            .blocks = t,
                            .table = t->table,
                            .points = lattice_of(t) };
    if (s->kind == QT_E2M1) return fp4_spec(s, search);
    if (s->kind == QT_E4M3) return (grid_spec){ .bits = 8 };
    grid_mode mode = s->zero != QT_ZERO_NONE ? GRID_ASYM : limits.narrow ? GRID_SYM : GRID_SYM_FULL;
    return (grid_spec){ .bits = s->bits,
                        .mode = mode,
                        .zero_from_one = limits.zero_from_one,
                        .scale_dtype = s->scale_dtype,
                        .search = search };
}

grid_spec rtn_spec_of(const qz_out *out, grid_limits limits, bool search)
{
    grid_spec s = rtn_spec(&out->t.scheme, limits, search);
    if (out->t.scheme.kind == QT_E4M3) {
        s.floats = out->w[QT_SCALES];
        s.float_rows = out->t.scheme.rows;
    }
    if (out->w[QT_SCALES2]) memcpy(&s.tensor_scale, out->w[QT_SCALES2], sizeof s.tensor_scale);
    return s;
}

typedef struct {
    qz_out *out;
    const void *W;
    lq_dtype d;
    const float *imp;
    const grid_spec *spec;
    uint8_t *scratch;
    size_t per_thread, o_params, o_heads, o_codes, o_zeros;
    int64_t G;
} work;

static void run_rows(void *ctx, int64_t item, int thread)
{
    const work *k = ctx;
    const int64_t N = k->out->t.N, K = k->out->t.K, G = k->G;
    uint8_t *mem = k->scratch + (size_t)thread * k->per_thread;
    grid_param *params = (grid_param *)(void *)(mem + k->o_params);
    row_head *heads = (row_head *)(void *)(mem + k->o_heads);
    uint8_t *codes = mem + k->o_codes;
    const qz_rows_ops *ops = qz_rows_get();
    const bool fitted = k->spec->search || k->spec->blocks || k->spec->table;
    for (int64_t n = item * QZ_ROWS; n < N && n < (item + 1) * QZ_ROWS; n++) {
        const float *w = qz_rows((float *)(void *)mem, k->W, k->d, K, n, 1);
        if (fitted) row_fit(params, heads, k->spec, w, k->imp, n, K, G);
        for (int64_t g = 0; g * G < K; g++) {
            const float *wg = w + g * G;
            if (!fitted) params[g] = grid_candidate(k->spec, ops->range(wg, G), 0);
            row_codes(codes + g * G, k->spec, wg, k->imp ? k->imp + g * G : NULL, G, params[g]);
        }
        row_store(k->out, n, params, heads, codes, mem + k->o_zeros);
    }
}

lq_status rtn_run(qz_out *out, const void *W, lq_dtype d, const float *imp, const grid_spec *spec,
                  pool *p, lq_err *err)
{
    work k = { .out = out, .W = W, .d = d, .imp = imp, .spec = spec };
    k.G = row_group(&out->t.scheme);
    const size_t K = (size_t)out->t.K, ng = K / (size_t)k.G;
    k.o_params = K * sizeof(float);
    k.o_heads = k.o_params + ng * sizeof(grid_param);
    k.o_codes = k.o_heads + (size_t)row_heads(spec, out->t.K) * sizeof(row_head);
    k.o_zeros = k.o_codes + K;
    k.per_thread = lq_round_up(k.o_zeros + ng, 64);
    k.scratch = calloc((size_t)pool_threads(p), k.per_thread);
    if (!k.scratch) return lq_fail(err, LQ_ENOMEM, "no memory to round rows of %zu weights", K);
    pool_run(p, lq_ceil_div(out->t.N, QZ_ROWS), run_rows, &k);
    free(k.scratch);
    return LQ_OK;
}

/* ---- the method ---- */
lq_status rtn_round(qz_out *out, qz_rounded *r, const qz_matrix *m, pool *p, lq_err *err)
{
    (void)r;
    grid_spec spec = rtn_spec_of(out, m->o->limits, m->o->clip);
    spec.search |= m->mean_sq && !m->o->no_clip;
    spec.refit = spec.search;
    return rtn_run(out, m->W, m->d, m->mean_sq, &spec, p, err);
}

static bool with_inputs(const qz_opts *o) { return o->importance || o->imatrix; }
static unsigned rtn_needs(const qz_opts *o) { return o->importance ? QZ_NEEDS_MEANS : 0; }

static void rtn_recipe(cJSON *r, const qz_opts *o)
{
    if (o->importance) cJSON_AddBoolToObject(r, "importance", true);
    if (o->imatrix) cJSON_AddStringToObject(r, "imatrix", o->imatrix_hash);
}

const qz_method qz_method_rtn = {
    .name = "rtn",
    .help = "rounds to nearest; with --calib by grids chosen for the inputs",
    .schemes = "u2 u3 u4 u8, GGUF blocks, nvfp4, mxfp4",
    .options = QZ_OPTS_GRID | QZ_OPT_IMATRIX,
    .on = QZ_OPT_CLIP,
    .on_when = "with --calib or --imatrix",
    .is_on = with_inputs,
    .bits = 4,
    .group = 128,
    .needs = QZ_NEEDS_MEANS,
    .needs_of = rtn_needs,
    .text_optional = true,
    .bounded = true,
    .alone = true,
    .plan = 1,
    .blocks = true,
    .floats = true,
    .scheme = qz_scheme_grid,
    .recipe = rtn_recipe,
    .round = rtn_round,
};
