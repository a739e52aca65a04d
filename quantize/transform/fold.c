/* quantize/transform/fold.c - see fold.h. */
#include "quantize/transform/fold.h"

static const struct {
    cal_site site;
    arch_role norm;    /* or */
    arch_role from[3]; /* the linear, alone or fused with others */
} makers[] = {
    { CAL_ATTN, R_ATTN_NORM, { ARCH_N_ROLES } },
    { CAL_Q_B, R_Q_A_NORM, { ARCH_N_ROLES } },
    { CAL_KV_B, R_KV_A_NORM, { ARCH_N_ROLES } },
    { CAL_O, ARCH_N_ROLES, { R_V, R_QKV, R_KV_B } },
    { CAL_O, R_O_NORM, { ARCH_N_ROLES } },
    { CAL_MLP, R_MLP_NORM, { ARCH_N_ROLES } },
    { CAL_EXPERTS, R_EXPERT_NORM, { ARCH_N_ROLES } },
    { CAL_DOWN, ARCH_N_ROLES, { R_UP, R_GATE_UP, ARCH_N_ROLES } },
    { CAL_DOWN, R_DOWN_NORM, { ARCH_N_ROLES } },
    { CAL_SHARED_DOWN, ARCH_N_ROLES, { R_SHARED_UP, ARCH_N_ROLES, ARCH_N_ROLES } },
    { CAL_EXPERT_DOWN, ARCH_N_ROLES, { R_EXPERT_UP, R_EXPERT_GATE_UP, ARCH_N_ROLES } },
};

/* ---- where input k comes from ---- */

int64_t fold_v_row(const arch_config *c, arch_role from, int64_t g)
{
    const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
    if (from == R_V) return g * c->v_dim;
    if (from == R_KV_B) return g * (c->nope_dims + c->v_dim) + c->nope_dims;
    if (c->w.qkv_quarters) {
        const int64_t of = c->kv_heads / 4;
        return g / of * (q + k + c->kv_heads * c->v_dim) / 4 + q / 4 + g % of * c->v_dim;
    }
    if (!c->w.qkv_grouped) return q + k + g * c->v_dim;
    return g * ((q + k) / c->kv_heads + c->v_dim) + (q + k) / c->kv_heads;
}

static int64_t row_of(const arch_config *c, cal_site site, arch_role from, int64_t k)
{
    if (site == CAL_O) {
        const int64_t head = k / c->v_dim, g = head / (c->heads / c->kv_heads);
        return fold_v_row(c, from, g) + k % c->v_dim;
    }
    if (from == R_GATE_UP && c->w.mlp_mixed) return 2 * k + 1;
    if (from == R_GATE_UP) return c->w.up_first ? k : c->ffn + k;
    if (from == R_EXPERT_GATE_UP) return c->w.gate_up_mixed ? 2 * k + 1 : c->expert_ffn + k;
    return k;
}

/* Is the input linear in the rows that make it? */
static bool linear_in_rows(const arch_config *c, cal_site site)
{
    if (site == CAL_O)
        return !c->w.diff && c->row->mixer != MIX_CCA && c->qkv_clip == 0 && !c->key_pad &&
               !arch_name_of(c, R_V_NORM) && !arch_name_of(c, R_O_NORM);
    if (site == CAL_DOWN && arch_name_of(c, R_DOWN_NORM)) return false;
    if (c->w.mlp == MLP_GATED)
        return c->act != ARCH_SWIGLU_CLAMPED && c->act != ARCH_SILU_LIMITED &&
               c->act != ARCH_SILU_CAPPED && !c->w.limit_experts;
    return c->act == ARCH_RELU || c->act == ARCH_RELU2;
}

static bool find_rows(fold_site *f, const fold_layer *l, const arch_role from[3], lq_arena *a,
                      bool *no_memory)
{
    for (int i = 0; i < 3 && f->from == ARCH_N_ROLES; i++)
        if (from[i] != ARCH_N_ROLES && l->lin[from[i]].present) f->from = from[i];
    if (f->from == ARCH_N_ROLES || !l->lin[f->from].open || l->lin[f->from].rows_fixed ||
        !linear_in_rows(l->c, f->site))
        return false;
    const int64_t N = l->lin[f->from].N;
    f->row = lq_push(a, (size_t)f->K * sizeof *f->row);
    f->tie = lq_push(a, (size_t)f->K * sizeof *f->tie);
    int32_t *first = lq_push(a, (size_t)N * sizeof *first); /* the input that a row makes, + 1 */
    *no_memory = !f->row || !f->tie || !first;
    if (*no_memory) return false;
    f->root = f->site != CAL_O && l->c->w.mlp == MLP_PLAIN && l->c->act == ARCH_RELU2;
    bool tied = false;
    for (int64_t k = 0; k < f->K; k++) {
        const int64_t n = row_of(l->c, f->site, f->from, k);
        f->row[k] = (int32_t)n;
        if (!first[n]) first[n] = (int32_t)k + 1;
        f->tie[k] = first[n] - 1;
        tied |= f->tie[k] != k;
    }
    if (!tied) f->tie = NULL;
    return true;
}

/* Experts read what the router reads. */
static bool reads(const fold_layer *l, arch_role r, cal_site site)
{
    cal_site s;
    if (!l->lin[r].present || !cal_site_of(&s, l->c, r)) return false;
    if (s == CAL_EXPERTS && r == R_ROUTER) return false; /* it reads another norm */
    if (s == CAL_EXPERT_IN && l->expert < 0) cal_site_of(&s, l->c, R_ROUTER);
    return s == site;
}

/* All that read the site's input, every one of them open. */
static bool find_readers(fold_site *f, const fold_layer *l)
{
    if (f->site == CAL_ATTN && l->c->laurel) return false; /* Laurel adds that input to the sum */
    if (f->site == CAL_EXPERTS && l->c->row->early) return false; /* the router does, too */
    if (f->site == CAL_MLP && l->c->latent) return false; /* the latents' matrix is not open */
    if (f->site == CAL_MLP && l->c->zero_experts) return false; /* some experts put it out */
    if (l->c->w.norm_stays && (f->site == CAL_ATTN || f->site == CAL_MLP))
        return false; /* the sum goes on from it */
    if (l->c->asides && f->site != CAL_ATTN && f->site != CAL_MIX_OUT)
        return false; /* adapters read it, or add to what makes it */
    if (l->c->norm_rank && (f->site == CAL_ATTN || f->site == CAL_MLP))
        return false;                                           /* gates read it */
    if (l->c->w.o_norm_heads && f->site == CAL_O) return false; /* one norm for all heads */
    if (l->c->w.mla && l->c->w.q_gated && f->site == CAL_Q_B)
        return false; /* beside what is not normed */
    if (f->site == CAL_ATTN && arch_name_of(l->c, R_INDEX_IN_NORM))
        return false;                                            /* reads its sums */
    if (f->site == CAL_KV_B && l->c->w.mla_shared) return false; /* other layers read it too */
    for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
        if (!reads(l, r, f->site)) continue;
        if (!l->lin[r].open || f->n == AWQ_MAX_LINEARS) return false;
        f->readers[f->n++] = r;
        f->K = l->lin[r].K;
    }
    return f->n > 0;
}

int fold_find(fold_site out[FOLD_MAX_SITES], const fold_layer *l, lq_arena *a)
{
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(makers); i++) {
        bool no_memory = false;
        fold_site f = { .site = makers[i].site, .norm = makers[i].norm, .from = ARCH_N_ROLES };
        const bool of_expert = f.site >= CAL_N_SHARED;
        if (of_expert != (l->expert >= 0) || !find_readers(&f, l)) continue;
        if (f.norm != ARCH_N_ROLES) {
            const bool before = f.site == CAL_Q_B || f.site == CAL_KV_B || !l->c->w.norm_after_add;
            if (before && l->weight[f.norm].w) out[n++] = f;
        } else if (find_rows(&f, l, makers[i].from, a, &no_memory)) {
            out[n++] = f;
        }
        if (no_memory) return -1;
    }
    return n;
}

/* ---- factors ---- */
static void divide(fold_vector *v, const float *s, int64_t n, float off)
{
    if (!v->w) return;
    for (int64_t k = 0; k < n; k++)
        v->w[k] = (v->w[k] + off) / s[k] - off;
    v->changed = true;
}

lq_status fold_apply(fold_layer *l, const fold_site *f, const float *s, double alpha, lq_arena *a,
                     pool *p, lq_err *err)
{
    for (int i = 0; i < f->n; i++) {
        fold_linear *r = &l->lin[f->readers[i]];
        awq_scale_columns(r->W, s, r->N, r->K, p);
        r->cols = s;
        r->alpha = alpha;
    }
    if (f->norm != ARCH_N_ROLES) {
        divide(&l->weight[f->norm], s, f->K, arch_norm_offset(l->c, f->norm));
        divide(&l->bias[f->norm], s, f->K, 0);
        return LQ_OK;
    }
    fold_linear *from = &l->lin[f->from];
    float *rows = lq_push(a, (size_t)from->N * sizeof *rows);
    if (!rows) return lq_fail(err, LQ_ENOMEM, "no memory for %lld factors", (long long)from->N);
    for (int64_t n = 0; n < from->N; n++)
        rows[n] = 1;
    for (int64_t k = 0; k < f->K; k++)
        rows[f->row[k]] = f->root ? sqrtf(s[k]) : s[k];
    awq_divide_rows(from->W, rows, from->N, from->K, p);
    from->rows = rows;
    divide(&l->bias[f->from], rows, from->N, 0);
    return LQ_OK;
}

/* Would they make weights larger than they may be? */
static bool too_large(const fold_layer *l, const fold_site *f, const float *s)
{
    const bool by_rows = f->norm == ARCH_N_ROLES && l->lin[f->from].limited;
    bool by_columns = false;
    for (int i = 0; i < f->n; i++)
        by_columns |= l->lin[f->readers[i]].limited;
    for (int64_t k = 0; k < f->K; k++)
        if ((by_columns && s[k] > FOLD_LIMIT) || (by_rows && 1 / s[k] > FOLD_LIMIT)) return true;
    return false;
}

lq_status fold_choose(fold_layer *l, const fold_site *f, float *H, const float *mean_abs, dev *on,
                      lq_arena *a, pool *p, lq_err *err)
{
    awq_site site = {
        .K = f->K, .H = H, .mean_abs = mean_abs, .ranks = l->ranks, .on = on, .tie = f->tie
    };
    for (int i = 0; i < f->n; i++) {
        const fold_linear *r = &l->lin[f->readers[i]];
        if (r->kept) continue;
        const int k = site.n++;
        site.lin[k].W = r->W;
        site.lin[k].N = r->N;
        site.lin[k].stand_for = r->stand_for;
        site.lin[k].group = r->group;
        site.lin[k].spec = r->spec;
        site.lin[k].spec.scale_dtype = LQ_F32; /* ranks scales; the stored type matters little */
    }
    awq_report rep;
    float *s = lq_push(a, (size_t)f->K * sizeof *s);
    if (!s) return lq_fail(err, LQ_ENOMEM, "no memory for %lld factors", (long long)f->K);
    lq_status st = awq_search(s, &rep, &site, p, err);
    if (st || !(rep.after < rep.before) || too_large(l, f, s)) return st;
    st = fold_apply(l, f, s, rep.alpha, a, p, err);
    if (!st) awq_scale_h(H, s, f->K, p);
    return st;
}
