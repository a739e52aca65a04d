/* runtime/model/rank.c - see rank.h. */
#include "runtime/model/rank.h"

/* Outputs of gate and up of any layer that has no experts; 0: all have. */
static int64_t dense_width(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (!c->layer[i].moe) return c->ffn;
    return 0;
}

lq_status rank_check(const arch_config *c, int ranks, lq_err *err)
{
    if (c->w.qk_norm == QK_NORM_ALL && c->w.norm == NORM_LAYER)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "not over several devices yet: a layer norm of all heads together (%s)",
                       c->row->arch);
    const bool gated = c->w.q_gated || arch_name_of(c, R_ATTN_GATE) || arch_name_of(c, R_HEAD_GATE);
    if (arch_has_state(c) || gated)
        return lq_fail(err, LQ_EUNSUPPORTED, "not over several devices yet: %s (%s)",
                       gated ? "gated attention" : "layers that carry a state", c->row->arch);
    if (arch_name_of(c, R_O_NORM) || arch_name_of(c, R_DOWN_NORM))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "not over several devices yet: norms of what the last products read (%s)",
                       c->row->arch);
    if (c->n_sizes)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "not over several devices yet: layers of different sizes (%s)",
                       c->row->arch);
    const struct {
        const char *name;
        int64_t n;
    } parts[] = { { "heads", c->heads },
                  { "KV heads", c->kv_heads },
                  { "outputs of gate and up", dense_width(c) },
                  { "outputs of an expert's gate and up", c->expert_ffn },
                  { "outputs of the shared gate and up", c->shared_ffn } };
    for (size_t i = 0; i < LQ_COUNT(parts); i++)
        if (parts[i].n % ranks)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected a multiple of %d devices, found %lld", parts[i].name,
                           ranks, (long long)parts[i].n);
    if (c->vocab < ranks)
        return lq_fail(err, LQ_EUNSUPPORTED, "vocabulary: expected one for each of %d devices",
                       ranks);
    return LQ_OK;
}

arch_config rank_config(const arch_config *c, int ranks)
{
    arch_config own = *c;
    own.heads /= ranks;
    own.kv_heads /= ranks;
    own.ffn /= ranks;
    own.expert_ffn /= ranks;
    own.shared_ffn /= ranks;
    return own;
}

/* Rows of q, k and v; fused in one matrix one behind the other, or KV head by KV head. */
static void part_of_qkv(rank_part *p, const arch_config *c, int rank, int ranks)
{
    const int64_t H = c->heads / ranks, Hkv = c->kv_heads / ranks, D = c->head_dim, Dv = c->v_dim;
    if (c->w.qkv_grouped) {
        const int64_t each = H * D + Hkv * (D + Dv);
        p->rows[0] = (tile_rows){ rank * each, (rank + 1) * each };
        return;
    }
    const int64_t width[] = { H * D, Hkv * D, Hkv * Dv };
    int64_t before = 0;
    for (p->n = 0; p->n < 3; p->n++) {
        const int64_t n = width[p->n];
        p->rows[p->n] = (tile_rows){ before + rank * n, before + (rank + 1) * n };
        before += ranks * n;
    }
}

static tile_rows part_of(int64_t N, int rank, int ranks)
{
    return (tile_rows){ rank_begin(N, rank, ranks), rank_begin(N, rank + 1, ranks) };
}

/* Rows of gate, then of up, each of n. */
static void part_of_pair(rank_part *p, int64_t n, int rank, int ranks)
{
    p->rows[0] = part_of(n, rank, ranks);
    p->rows[1] = (tile_rows){ n + p->rows[0].n0, n + p->rows[0].n1 };
    p->n = 2;
}

bool rank_part_of(rank_part *p, const arch_config *c, arch_role r, int rank, int ranks)
{
    int64_t N, K;
    arch_role_shape(c, r, &N, &K);
    *p = (rank_part){ .rows = { { 0, N } }, .n = 1, .k1 = K, .bias = true };
    switch (r) {
    case R_QKV:
        part_of_qkv(p, c, rank, ranks);
        return true;
    case R_GATE_UP:
        part_of_pair(p, c->ffn, rank, ranks);
        return true;
    case R_SHARED_GATE_UP:
        part_of_pair(p, c->shared_ffn, rank, ranks);
        return true;
    case R_EXPERT_GATE_UP:
        if (c->w.gate_up_mixed)
            p->rows[0] = part_of(N, rank, ranks);
        else
            part_of_pair(p, c->expert_ffn, rank, ranks);
        return true;
    case R_Q:
    case R_K:
    case R_V:
    case R_Q_B:
    case R_KV_B:
    case R_GATE:
    case R_UP:
    case R_EXPERT_GATE:
    case R_EXPERT_UP:
    case R_SHARED_GATE:
    case R_SHARED_UP:
    case R_HEAD:
        p->rows[0] = part_of(N, rank, ranks);
        return true;
    case R_O:
    case R_DOWN:
    case R_EXPERT_DOWN:
    case R_SHARED_DOWN:
        p->k0 = rank_begin(K, rank, ranks);
        p->k1 = rank_begin(K, rank + 1, ranks);
        p->bias = rank == 0;
        return true;
    default:
        return false;
    }
}
