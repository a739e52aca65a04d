/* kernels/cuda/mm.cu - a matrix product on the device: activations into the weight's order, then
 * the kernel for so many rows (mm_thin.cu, mm_mma.cu, mm_sm90.cu, mm_wide.cu, mm_lt.cu; of a weight in
 * rows blas.cu), in f32 (mm_gemv.cu), or for integers (mm_i8.cu).
 *
 *   round    inputs rounded as a checkpoint declares (round_acts of kernels/mm.c); one warp a group
 *   arrange  rows of x into the tile's places: groups padded, g_idx undone, rounded to bf16 where
 *            asked, outlier inputs gathered; one thread a place. Left out where x is so already,
 *            or was made so by the product before.
 *
 * The rows of a group (dev_group: experts) go through these at once, each finding its weight by a
 * search among where the weights' rows begin; so the host need not know how many each has:
 *
 *       first   0       3 4           9  9        panels of 4 rows of the i-th weight begin at
 *       rows    [a a a][b][c c c c c]             first / 4 + i: 0, 1, 3; panel 2 has no rows
 */
#include "kernels/cuda/arrange.cuh"
#include "kernels/cuda/mm.cuh"

#include <assert.h>

inline namespace CU_NAME(mm_cu)
{

    enum { THREADS = 256, WARPS = THREADS / CU_WARP };

    __global__ void __launch_bounds__(THREADS)
        round_kernel(G<float> dst, G<const float> x, int64_t ldx, mm_rows rows, int K, int group,
                     bool f8, float fixed)
    {
        const int lane = threadIdx.x % CU_WARP, per_row = (K + group - 1) / group;
        const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / CU_WARP, m = i / per_row;
        if (m >= rows.M) return;
        if (rows.parts) fixed = mm_part_of(rows, mm_panel_of(rows, m, 1).part).act_scale;
        const int k0 = (int)(i % per_row) * group, k1 = k0 + group < K ? k0 + group : K;
        float max = 0;
        for (int k = k0 + lane; k < k1; k += CU_WARP) {
            const float a = fabsf(x[m * ldx + k]);
            max = a < INFINITY ? (a > max ? a : max) : INFINITY; /* NaN too */
        }
        max = cu_warp_max(max);
        const float scale = fixed > 0 ? fixed : max / (f8 ? 448.0f : 127.5f);
        for (int k = k0 + lane; k < k1; k += CU_WARP) {
            float q = scale > 0 ? x[m * ldx + k] / scale : 0.0f;
            q = f8 ? cu_e4m3_f32(cu_f32_e4m3(q)) : fminf(fmaxf(rintf(q), -128.0f), 127.0f);
            dst[m * K + k] = max < INFINITY ? q * scale : NAN;
        }
    }

    struct places {
        int64_t K, Kp, G, Gp;
        int64_t rows; /* of columns of 64 inputs, as mm_sm90.cu has them; 0: rows of Kp */
    };

    /* One of f [M, Kp] and b [M, Kp]. */
    __global__ void __launch_bounds__(THREADS)
        arrange_kernel(G<float> f, G<uint16_t> b, G<const float> x, int64_t ldx, mm_rows rows,
                       const int32_t *perm_of_all, places s, bool bf16)
    {
        const int64_t p = (int64_t)blockIdx.x * THREADS + threadIdx.x, m = blockIdx.y;
        cu_follow();
        if (p >= s.Kp) return;
        const G<const int32_t> perm =
            rows.parts ? mm_part_of(rows, mm_panel_of(rows, m, 1).part).perm : perm_of_all;
        const int64_t in = p % s.Gp, k = p / s.Gp * s.G + in;
        float v = 0;
        if (in < s.G && k < s.K) v = x[m * ldx + (perm ? (int64_t)perm[k] : k)];
        if (b)
            b[arrange_place(s.rows ? mm_row8(rows, m) : m, p, s.Kp, s.rows)] =
                (uint16_t)cu_f32_bf16(v);
        else
            f[m * s.Kp + p] = bf16 ? cu_bf16_f32(cu_f32_bf16(v)) : v;
    }

    __global__ void __launch_bounds__(THREADS)
        gather_kernel(G<float> out, G<const float> x, int64_t ldx, mm_rows rows,
                      const int32_t *idx_of_all, int n_out, int ldo)
    {
        const int64_t m = blockIdx.x;
        G<const int32_t> idx = idx_of_all;
        if (rows.parts) {
            const mm_part part = mm_part_of(rows, mm_panel_of(rows, m, 1).part);
            idx = part.out_idx;
            n_out = part.n_out;
        }
        for (int i = threadIdx.x; i < ldo; i += THREADS)
            out[m * ldo + i] = i < n_out ? x[m * ldx + idx[i]] : 0.0f;
    }

    int64_t out_places(const qt_scheme *s)
    {
        return s->kind == QT_I8_OUTLIER ? (int64_t)lq_round_up((size_t)s->n_out, TILE_K) : 0;
    }

    size_t piece(int64_t M, int64_t per_row, size_t each)
    {
        return lq_round_up((size_t)(M * per_row) * each, 256);
    }

    /* What mm_sm90 takes of the scratch for up to so many rows: of one weight, whose K is cut where
 * rows are few, so that fewer may take more; and of as many weights as have enough each. */
    size_t sm90_bytes(const dev_weight *w, int64_t rows)
    {
        enum { PANEL = 64 }; /* within one the last takes the most */
        size_t most = 0;
        for (int64_t m = rows; m > MM_SM90_ROWS; m = (m - 1) / PANEL * PANEL) {
            const mm_sm90 how = mm_sm90_of(w, m, 0);
            const size_t bytes = lq_round_up(how.x_bytes, 256) + lq_round_up(how.part_bytes, 256);
            if (bytes > most) most = bytes;
        }
        for (int64_t parts = 1; parts <= rows / MM_SM90_ROWS; parts++) {
            const size_t bytes = lq_round_up(mm_sm90_of(w, rows, (int)parts).x_bytes, 256);
            if (bytes > most) most = bytes;
        }
        return most;
    }

    /* Which kernel multiplies; none: in f32, or integers. */
    struct choice {
        bool blas, units, wide, thin, sm90;
    };
    /* M rows in all, of `parts` weights, `most` of one of them; grouped: of a dev_group. */
    choice choose(const dev *d, const dev_weight *w, mm_acts acts, int64_t M, int64_t most,
                  int64_t parts, bool grouped)
    {
        const bool bf16 = acts != MM_F32 && !w->t.scheme.act;
        const mm_code code = CU_NAME(mm_code_of)(&w->t);
        choice c = {};
        c.blas = bf16 && code == C_ROWS && most > DEV_MM_SMALL && !d->batch_invariant;
        c.units =
            bf16 && (most > DEV_MM_SMALL || d->batch_invariant) && code != C_F32 && code != C_ROWS;
        c.wide = c.units && !grouped && dev_mm_wide(d, w, acts, most);
        c.thin = bf16 && !c.units && !c.blas && code != C_F32;
        /* of a group, by the rows of a weight on the average */
        c.sm90 = c.units && !c.wide && d->cc == 90 && !d->batch_invariant &&
                 (M < CU_ROWS ? M : CU_ROWS) > MM_SM90_ROWS * parts;
        return c;
    }

    /* a: rows of `all` from row0 on. */
    void run_panel(dev * d, const dev_mm_args *a, const dev_mm_args *all, int64_t row0)
    {
        const qt_scheme *sc = &a->w->t.scheme;
        const tile_shape *s = &a->w->s;
        const int64_t K = a->w->t.K, ldo = out_places(sc);
        const bool bf16 = a->acts != MM_F32 && !sc->act;
        const dev_group *g = a->group;
        const int64_t most = g ? g->most : all->M;
        const bool permuted = sc->kind == QT_UINT && sc->act_order;
        const int32_t *perm = permuted ? (const int32_t *)a->w->t.plane[QT_GIDX].data : NULL;
        mm_rows rows = { NULL, NULL, NULL, 1, row0, a->M };
        if (g) {
            rows.parts = (const mm_part *)g->parts;
            rows.first = g->first;
            rows.busy = g->busy;
            rows.n = (int)(g->n < all->M ? g->n : all->M);
        }
        const choice c = choose(d, a->w, a->acts, all->M, most, rows.n, g);
        const bool units = c.units, blas = c.blas, thin = c.thin, sm90 = c.sm90;
        const mm_sm90 how = mm_sm90_of(a->w, a->M, g ? rows.n : 0);
        const places pl = { K, s->Kp, s->G, s->Gp, sm90 ? how.rows : 0 };
        uint8_t *free_at = (uint8_t *)a->scratch;
        const float *x = a->x;
        int64_t ldx = a->ldx;
        bool arranged = a->arranged && all->M <= CU_ROWS; /* all of it is there */
        assert(!a->arranged || (!g && !ldo && !permuted));
        if (!g && dev_mm_lt(d, a->w, a->acts, most)) {
            if (CU_NAME(mm_lt)(d, a, most, arranged)) return;
            arranged = false; /* codes are there, if anything */
        }
        if (sc->act) {
            const int group = (int)(sc->act_group ? sc->act_group : K);
            float *r = (float *)free_at;
            free_at += piece(a->M, K, 4);
            if (!arranged)
                CU_LAUNCH(d, "round", round_kernel,
                          dim3((unsigned)lq_ceil_div(a->M * lq_ceil_div(K, group), WARPS)), THREADS,
                          0, r, x, ldx, rows, (int)K, group, sc->act == QT_ACT_F8, sc->act_scale);
            x = r;
            ldx = K;
        }
        mm_input in = { x, NULL, NULL, ldx, s->Kp, ldo, rows, most, NULL };
        if (ldo) {
            float *out = (float *)free_at;
            free_at += piece(a->M, ldo, 4);
            CU_LAUNCH(d, "gather", gather_kernel, dim3((unsigned)a->M), THREADS, 0, out, x, ldx,
                      rows, (const int32_t *)a->w->t.plane[QT_OUT_IDX].data, (int)sc->n_out,
                      (int)ldo);
            in.out = out;
        }
        if (dev_mm_ints(a->w, a->acts)) {
            CU_NAME(mm_i8)(d, a, &in, free_at, arranged);
            return;
        }
        const bool ready = (a->rounded || !bf16 || thin) && !units && !blas && !permuted &&
                           s->Kp == K && s->G == s->Gp && ldx % 4 == 0 && (uintptr_t)x % 16 == 0;
        assert(!a->norm || (thin && ready));
        if (!ready) {
            float *f = units || blas ? NULL : (float *)free_at;
            uint16_t *b = units || blas ? (uint16_t *)free_at : NULL;
            mm_rows perms = rows;
            if (!permuted && !sm90) perms.parts = NULL; /* nothing to search for */
            if (!arranged)
                CU_FOLLOW(d, "arrange", arrange_kernel,
                          dim3((unsigned)lq_ceil_div(s->Kp, THREADS), (unsigned)a->M), THREADS, 0,
                          f, b, x, ldx, perms, perm, pl, bf16);
            in.f = f;
            in.b = b;
            in.ldf = s->Kp;
        }
        in.parts =
            (float *)(free_at + (sm90 ? lq_round_up(how.x_bytes, 256) : piece(a->M, s->Kp, 4)));
        const mm_dense dense = { a->w->t.plane[QT_CODES].data, 0, a->w->t.N, K };
        if (blas)
            CU_NAME(mm_blas)(d, a, &in, &dense);
        else if (c.wide)
            CU_NAME(mm_wide)(d, a, &in);
        else if (sm90)
            CU_NAME(mm_sm90)(d, a, &in);
        else if (units)
            CU_NAME(mm_mma)(d, a, &in);
        else if (thin)
            CU_NAME(mm_thin)(d, a, &in);
        else
            CU_NAME(mm_gemv)(d, a, &in);
    }

}

mm_code CU_NAME(mm_code_of)(const qt_tensor *t)
{
    const qt_scheme *s = &t->scheme;
    if (t->layout == QT_PORTABLE && dev_in_rows(t)) return C_ROWS;
    switch (s->kind) {
    case QT_DENSE:
        return s->dtype == LQ_F16 ? C_F16 : s->dtype == LQ_BF16 ? C_BF16 : C_F32;
    case QT_UINT:
        return s->bits == 2 ? C_U2 : s->bits == 3 ? C_U3 : s->bits == 4 ? C_U4 : C_U8;
    case QT_LUT4:
        return C_MAP;
    case QT_E2M1:
        return C_E2M1;
    case QT_E4M3:
        return C_E4M3;
    default:
        return C_U8;
    }
}

mm_view CU_NAME(mm_view_of)(const dev_weight *w)
{
    const qt_scheme *s = &w->t.scheme;
    const qt_span *p = w->t.plane;
    const bool ints = s->kind == QT_UINT || s->kind == QT_I8 || s->kind == QT_I8_OUTLIER;
    mm_view v;
    memset(&v, 0, sizeof v);
    v.codes = (const uint8_t *)p[QT_CODES].data;
    v.scales = (const uint8_t *)p[QT_SCALES].data;
    v.zeros = (const uint8_t *)p[QT_ZEROS].data;
    v.scales2 = s->kind == QT_E2M1 ? (const uint8_t *)p[QT_SCALES2].data : NULL;
    v.map = s->kind == QT_LUT4 ? (const float *)p[QT_MAP].data : NULL;
    v.N = w->t.N;
    v.Kp = w->s.Kp;
    v.steps = (int)(w->s.Kp / TILE_K);
    v.group_steps = (int)(w->s.Gp / TILE_K);
    v.ng = (int)w->s.ng;
    v.subs = (int)w->s.subs;
    v.scale_dtype = s->kind == QT_DENSE                        ? LQ_BOOL
                    : s->kind == QT_UINT || s->kind == QT_E2M1 ? s->scale_dtype
                                                               : LQ_F32;
    v.zero = s->kind == QT_I8_OUTLIER || !ints ? QT_ZERO_NONE : s->zero;
    v.zero_dtype = s->zero == QT_ZERO_F16 ? LQ_F16 : s->scale_dtype;
    v.zero_const = ints ? (float)(1 << (tiles_bits(s) - 1)) : 0.0f;
    v.div127 = s->div127;
    v.recip = s->recip;
    v.step_bytes = (int)w->s.step_bytes;
    v.tile_bytes = (int64_t)w->s.tile_bytes;
    return v;
}

mm_view CU_NAME(mm_outliers_of)(const dev_weight *w)
{
    mm_view v;
    memset(&v, 0, sizeof v);
    v.scale_dtype = LQ_BOOL;
    v.steps = (int)(out_places(&w->t.scheme) / TILE_K);
    if (v.steps == 0) return v;
    v.codes = (const uint8_t *)w->t.plane[QT_OUT_VALS].data;
    v.group_steps = v.steps;
    v.step_bytes = TILE_N * TILE_K * 2;
    v.tile_bytes = (int64_t)v.steps * v.step_bytes;
    return v;
}

size_t CU_NAME(mm_scratch)(const dev_weight *w, int64_t M)
{
    const int64_t rows = M < CU_ROWS ? M : CU_ROWS;
    const size_t cut = mm_cut_bytes(w), some = dev_mm_parts(rows, w->t.N, w->s.Kp);
    const size_t wide = w->t.layout == QT_TILE16 ? dev_mm_wide_bytes(M, w->t.N, w->s.Kp) : 0,
                 parts = cut > some ? cut : some;
    const size_t x = piece(rows, w->s.Kp, 4) + (wide > parts ? wide : parts),
                 sm90 = sm90_bytes(w, rows);
    return (sm90 > x ? sm90 : x) + piece(rows, w->t.scheme.act ? w->t.K : 0, 4) +
           piece(rows, out_places(&w->t.scheme), 4);
}

int64_t CU_NAME(mm_order)(const dev *d, const dev_weight *w, mm_acts acts, int64_t M)
{
    const choice c = choose(d, w, acts, M, M, 1, false);
    if (!dev_rounds(w, acts) || dev_mm_lt(d, w, acts, M) || M > CU_ROWS || w->t.scheme.act_order ||
        w->s.Kp != w->t.K || w->s.G != w->s.Gp || !(c.units || c.blas))
        return -1;
    return c.sm90 ? mm_sm90_of(w, M, 0).rows : 0;
}

void CU_NAME(mm_group)(dev *d, void *parts, const dev_weight *w, const float *const *bias,
                       int64_t n)
{
    enum { ONCE = 32 }; /* weights that go up by one copy */
    mm_part part[ONCE];
    for (int64_t from = 0; from < n; from += ONCE) {
        const int64_t here = n - from < ONCE ? n - from : ONCE;
        memset(part, 0, sizeof part);
        for (int64_t i = 0; i < here; i++) {
            const dev_weight *of = &w[from + i];
            if (of->t.N == 0) continue;
            const mm_view v = CU_NAME(mm_view_of)(of), out = CU_NAME(mm_outliers_of)(of);
            const qt_scheme *s = &of->t.scheme;
            const qt_span *p = of->t.plane;
            part[i] = { v.codes,
                        v.scales,
                        v.zeros,
                        v.scales2,
                        out.codes,
                        v.map,
                        bias[from + i],
                        s->act_order ? (const int32_t *)p[QT_GIDX].data : NULL,
                        (const int32_t *)p[QT_OUT_IDX].data,
                        (int32_t)s->n_out,
                        out.steps,
                        s->act_scale };
        }
        d->ops->upload(d, (mm_part *)parts + from, part, (size_t)here * sizeof *part);
    }
}

void CU_NAME(matmul)(dev *d, const dev_mm_args *a)
{
    for (int64_t m = 0; m < a->M; m += CU_ROWS) {
        dev_mm_args part = *a;
        part.M = a->M - m < CU_ROWS ? a->M - m : CU_ROWS;
        part.x += m * a->ldx;
        part.y += m * a->ldy;
        run_panel(d, &part, a, m);
    }
}
