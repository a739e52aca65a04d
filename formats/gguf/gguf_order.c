/* formats/gguf/gguf_order.c - see gguf_names.h: how the file orders rows, and what else it changes of a tensor. */
#include "formats/gguf/gguf_names.h"

gguf_order gguf_order_of(const gguf_arch *a, const arch_config *model, const arch_slot *slot)
{
    const arch_config *c = model->mtp ? model : arch_at(model, slot->layer);
    const arch_role r = slot->role;
    gguf_order o = { .c = c, .ffn = c->expert_ffn };
    if (a->turned) o.heads = r == R_Q ? c->heads : r == R_K ? c->kv_heads : 0;
    if (a->turned && (r == R_Q_NORM || r == R_K_NORM) && c->w.qk_norm == QK_NORM_HEAD) o.heads = 1;
    if (o.heads) o.kind = GGUF_TURNED;
    if (o.heads && c->w.pos == POS_ROPE) o.dims = c->rope_dims;
    if (r == R_QKV && a->qkv == QKV_APART && c->w.qkv_grouped) o.kind = GGUF_APART;
    const bool dense =
        r == R_GATE_UP && (c->row->mixer == MIX_MAMBA || a->attends || a->gates_apart);
    if (((r == R_EXPERT_GATE_UP || r == R_SHARED_GATE_UP) && !a->gate_up_one) || dense)
        o.kind = GGUF_GATE_UP;
    if (r == R_INDEX_Q && arch_index_mean(c)) {
        o.kind = GGUF_ROWS;
        o.ffn = c->index_heads * c->index_dim;
    }
    if (r == R_SHARED_GATE_UP) o.ffn = c->shared_ffn;
    if (dense) o.ffn = c->ffn;
    return o;
}

static int64_t apart(int64_t n, const arch_config *c)
{
    const int64_t D = c->head_dim, q = c->heads / c->kv_heads; /* q heads of a group */
    const int64_t head = n / D, group = head / (q + 2), at = head % (q + 2);
    const int64_t from = at < q ? group * q + at : c->heads + (at - q) * c->kv_heads + group;
    return from * D + n % D;
}

static int64_t grouped(int64_t m, const arch_config *c)
{
    const int64_t D = c->head_dim, q = c->heads / c->kv_heads, head = m / D;
    const int64_t kv = head - c->heads;
    const int64_t group = kv < 0 ? head / q : kv % c->kv_heads;
    const int64_t at = kv < 0 ? head % q : q + kv / c->kv_heads;
    return (group * (q + 2) + at) * D + m % D;
}

int64_t gguf_stored_row(const gguf_order *o, int64_t n, int64_t N, bool *second)
{
    *second = false;
    if (o->kind == GGUF_TURNED) {
        const int64_t D = N / o->heads, r = n % D, R = o->dims ? o->dims : D;
        return r >= R ? n : n - r + 2 * (r % (R / 2)) + r / (R / 2);
    }
    if (o->kind == GGUF_APART) return apart(n, o->c);
    if (o->kind == GGUF_AS_STORED) return n;
    if (o->kind == GGUF_ROWS) {
        *second = n >= o->ffn;
        return *second ? n - o->ffn : n;
    }
    const int64_t expert = n / (2 * o->ffn), k = n % (2 * o->ffn);
    *second = o->c->w.gate_up_mixed ? k % 2 : k >= o->ffn;
    return expert * o->ffn + (o->c->w.gate_up_mixed ? k / 2 : k % o->ffn);
}

int64_t gguf_own_row(const gguf_order *o, int64_t m, int64_t M, bool second)
{
    if (o->kind == GGUF_TURNED) {
        const int64_t D = M / o->heads, r = m % D, R = o->dims ? o->dims : D;
        return r >= R ? m : m - r + r % 2 * (R / 2) + r / 2;
    }
    if (o->kind == GGUF_APART) return grouped(m, o->c);
    if (o->kind == GGUF_KEY_VALUE) { /* keys are turned already */
        const int64_t v = o->c->v_dim, nope = o->c->nope_dims;
        return second ? m / v * (nope + v) + nope + m % v : m;
    }
    if (o->kind == GGUF_AS_STORED) return m;
    if (o->kind == GGUF_ROWS) return second ? o->ffn + m : m;
    const int64_t expert = m / o->ffn, k = m % o->ffn;
    return expert * 2 * o->ffn + (o->c->w.gate_up_mixed ? 2 * k + second : second * o->ffn + k);
}

int gguf_decay(const arch_config *c, const arch_slot *slot)
{
    return slot->role != R_MIX_A_LOG ? 0 : c->decay_span > 0 ? 1 : -1;
}

int gguf_vector_dims(int64_t shape[3], const arch_config *c, const arch_slot *slot)
{
    const bool mamba = c->row->mixer == MIX_MAMBA || c->row->mixer == MIX_BOTH;
    const bool kda = c->row->mixer == MIX_KDA;
    const int64_t taps = arch_taps(c, slot->role);
    int64_t N, K, last = 1;
    if (slot->bias || (c->row->mixer == MIX_SELECT && slot->role != R_MIX_CONV)) return 0;
    if (kda && slot->role >= R_MIX_CONV && slot->role <= R_MIX_CONV_V) {
        arch_role_shape(c, slot->role, &N, &K);
        shape[0] = K / taps, shape[1] = 1, shape[2] = taps;
        return 3;
    }
    if (slot->role == R_MIX_CONV || slot->role == R_NGRAM_CONV)
        last = taps;
    else if (mamba && slot->role == R_MIX_NORM)
        last = arch_mix_width(c, c->row->mixer) / c->mix_groups;
    else if (slot->role == R_MIX_A_LOG ? !mamba && !kda : slot->role != R_MIX_SKIP)
        return 0;
    arch_role_shape(c, slot->role, &N, &K);
    shape[0] = K / last;
    shape[1] = last;
    return 2;
}
