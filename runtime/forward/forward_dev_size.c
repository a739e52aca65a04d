/* runtime/forward/forward_dev_size.c - what a pass on a device takes: the most that a step can need. */
#include "runtime/forward/forward_dev.h"

#include "kernels/hadamard.h"

#include <assert.h>

/* Splits of attention in one launch, unless one chunk has more: its scratch is a row of every head
 * for each, and these fill any device; of those of more rows less. Rows of latents are wide, and several blocks
 * have a slot. */
enum { LAUNCH_SLOTS = 1024, LATENT_SLOTS = 512 };

fwd_dev_heads fwd_dev_heads_of(const arch_config *c, kv_types t)
{
    if (!c->w.mla) return (fwd_dev_heads){ c->heads, c->kv_heads, c->head_dim, c->v_dim, false };
    const int64_t L = kv_latent_width(c), order = k_hadamard_order(L);
    const int64_t whole = lq_ceil_div(c->kv_lora, order) * order; /* of rows that were turned */
    return (fwd_dev_heads){ c->heads, 1, L, kv_turned(kv_of(t, true)) ? whole : c->kv_lora, true };
}

static size_t piece(int64_t n, size_t size) { return lq_round_up((size_t)n * size, FWD_DEV_ALIGN); }

static int64_t longest(const kv_opts *k, const fwd_opts *o)
{
    const int64_t held = k->n_blocks * k->block_size;
    return o->max_len && o->max_len < held ? o->max_len : held;
}

static bool same_heads(const fwd_dev_heads *a, const fwd_dev_heads *b)
{
    return a->H == b->H && a->Hkv == b->Hkv && a->D == b->D && a->Dv == b->Dv;
}

/* The kind of layers with these heads; NULL: there is none. */
static fwd_dev_kind *find_kind(fwd_dev_ctx *f, const fwd_dev_heads *h, bool window, int64_t chosen)
{
    for (int i = 0; i < f->n_kinds; i++)
        if (same_heads(&f->kind[i].heads, h) && f->kind[i].window == window &&
            f->kind[i].chosen == chosen)
            return &f->kind[i];
    return NULL;
}

fwd_dev_kind *fwd_dev_kind_at(const fwd_rows *r, int64_t layer)
{
    fwd_dev_ctx *f = r->self;
    const fwd_dev_heads h = fwd_dev_heads_of(r->c, f->types);
    return find_kind(f, &h, r->c->layer[layer].window, fwd_dev_chosen(r->c, layer));
}

/* The kinds of the layers from `first` on (model_check_device: they are not too many). */
static void find_kinds(fwd_dev_ctx *f, const arch_config *c, int64_t first, bool all_rows)
{
    const int64_t maker = all_rows ? c->layers : fwd_last_maker(c);
    for (int64_t i = first; i < c->layers; i++) {
        if (!arch_mixer_attends(c->layer[i].mixer)) continue;
        const fwd_dev_heads h = fwd_dev_heads_of(arch_at(c, i), f->types);
        const int64_t chosen = fwd_dev_chosen(c, i);
        fwd_dev_kind *k = find_kind(f, &h, c->layer[i].window, chosen);
        assert(k || f->n_kinds < MODEL_KINDS);
        if (!k) k = &f->kind[f->n_kinds++];
        k->heads = h;
        k->window = c->layer[i].window;
        k->chosen = chosen;
        k->has[i < maker ? FWD_DEV_ALL : i == maker ? FWD_DEV_LAST : FWD_DEV_PACKED] = true;
    }
}

/* What the plans of one kind take of the staging buffer, and of the step's slots. */
static size_t size_kind(fwd_dev_ctx *f, fwd_dev_kind *k, const arch_config *c, int64_t len,
                        const fwd_opts *o)
{
    const fwd_dev_heads h = k->heads;
    const int64_t rows = k->chosen ? 1 : dev_attn_rows(DEV_ATTN_EXACT, h.H, h.Hkv),
                  keys = k->chosen && k->chosen < len ? k->chosen : len,
                  most = h.latent ? LATENT_SLOTS : LAUNCH_SLOTS;
    int64_t splits[DEV_ATTN_N];
    for (dev_attn_how w = 0; w < DEV_ATTN_N; w++) /* a chunk of several rows may lie over an edge */
        splits[w] = keys / dev_attn_split(f->d, w, 0) + 2;
    const bool cut = k->window && c->row->window == WINDOW_CHUNKS; /* where a chunk ends */
    const int64_t whole = lq_ceil_div(o->max_rows, rows) + o->max_seqs +
                          (cut ? o->max_rows / c->window + o->max_seqs : 0),
                  chunks = whole < o->max_rows ? whole : o->max_rows,
                  slots = chunks * splits[DEV_ATTN_EXACT];
    for (dev_attn_how w = 0; w < DEV_ATTN_N; w++) {
        const int64_t n = most * rows / dev_attn_rows(w, h.H, h.Hkv);
        k->launch_slots[w] = splits[w] > n ? splits[w] : n;
        if (k->launch_slots[w] > slots) k->launch_slots[w] = slots;
    }
    if (chunks > f->max_chunks) f->max_chunks = chunks;
    if (slots > f->max_slots) f->max_slots = slots;
    /* each sequence is in the plans of one kind of attention */
    return (size_t)(k->has[FWD_DEV_ALL] + k->has[FWD_DEV_LAST] + k->has[FWD_DEV_PACKED]) *
           (piece(chunks, sizeof(dev_attn_chunk)) + piece(slots, sizeof(int32_t)) +
            2 * FWD_DEV_ALIGN);
}

void fwd_dev_size_stage(fwd_dev_ctx *f, const arch_config *c, int64_t first, const kv_opts *k,
                        const fwd_opts *o)
{
    f->types = k->dtype;
    f->block_size = k->block_size;
    const fwd_dev_heads h = f->heads = fwd_dev_heads_of(c, k->dtype);
    const int64_t len = f->longest = longest(k, o);
    find_kinds(f, c, first, o->all_hidden);
    f->stage_bytes = (c->index_every ? 5 : 4) * piece(o->max_rows, sizeof(int32_t)) +
                     /* ids, blocks, slots, picked, and groups */
                     (fwd_dev_packs(c) ? 3 : 2) * piece(h.latent ? h.H + 1 : 0, sizeof(int32_t)) +
                     (fwd_dev_packs(c) ? 2 : 1) * piece(o->max_rows * fwd_turns(c), sizeof(float)) +
                     piece(arch_has_state(c) ? o->max_seqs : 0, sizeof(dev_run)) +
                     piece(o->max_logits, sizeof(dev_draw)) +
                     (size_t)o->max_seqs * piece(fwd_mask_words(c->vocab), sizeof(uint32_t)) +
                     piece(fwd_draw_edits(o, c->vocab), sizeof(dev_edit)) +
                     (size_t)o->max_logits * FWD_DEV_ALIGN + /* a draw's edits are a piece */
                     (size_t)o->max_seqs * piece(lq_ceil_div(len, k->block_size), sizeof(int32_t));
    for (int i = 0; i < f->n_kinds; i++)
        f->stage_bytes += size_kind(f, &f->kind[i], c, len, o);
    f->stage_bytes += fwd_dev_widen_size(f, len, o) + fwd_dev_index_stage(f, o);
    for (arch_rope_use u = ROPE_MAIN; u <= ROPE_LOCAL; u++)
        f->stage_bytes +=
            (fwd_dev_packs(c) ? 4 : 2) * piece(o->max_rows * fwd_angles(c, u), sizeof(float));
    f->stage_bytes += 2 * piece(o->max_rows * fwd_grows(c), sizeof(float)) + fwd_dev_lora_stage(o);
    if (f->stage_bytes < fwd_dev_fixed_bytes(c)) f->stage_bytes = fwd_dev_fixed_bytes(c);
}

static void widen(size_t *most, const dev *d, const dev_weight *w, int64_t M)
{
    const size_t n = d->ops->mm_scratch(w, M);
    if (n > *most) *most = n;
}

static void widen_linear(size_t *most, const dev *d, const model_linear *l, int64_t M)
{
    if (!l->present) return;
    const dev_weight w = fwd_dev_weight(&l->w);
    widen(most, d, &w, M);
}

size_t fwd_dev_products_scratch(const dev *d, const model *w, const fwd_opts *o)
{
    size_t n = 0;
    widen_linear(&n, d, &w->head, o->max_logits);
    widen_linear(&n, d, &w->proj_out, o->max_logits);
    widen_linear(&n, d, &w->mtp_proj, o->max_rows);
    widen_linear(&n, d, &w->ple_proj, o->max_rows);
    for (int64_t i = 0; i + 1 < w->cfg->streams && w->stream_in; i++)
        widen_linear(&n, d, &w->stream_in[i], o->max_rows);
    for (int64_t i = 0; i < w->cfg->layers; i++) {
        const model_layer *l = &w->layers[i];
        for (int r = 0; r < ARCH_N_ROLES; r++)
            widen_linear(&n, d, &l->lin[r], o->max_rows);
        for (int64_t k = 0; k + 1 < w->cfg->streams && l->stream_out; k++)
            widen_linear(&n, d, &l->stream_out[k], o->max_rows);
        for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++)
            for (const model_experts *e = l->sets[r]; e; e = e->next)
                widen(&n, d, &e->w, o->max_rows * w->cfg->experts_used);
        for (int k = 0; k < 2 && l->absorbed->parts; k++)
            widen(&n, d, &l->absorbed[k].w, o->max_rows * w->cfg->heads);
    }
    return n;
}

int64_t fwd_dev_joined_width(const arch_config *c)
{
    return arch_name_of(c, R_QKV) || c->w.mla ? 0 : fwd_qkv_width(c);
}

size_t fwd_dev_done_bytes(const fwd_dev_ctx *f)
{
    int64_t most = 0;
    for (int i = 0; i < f->n_kinds; i++) {
        const int64_t n = dev_attn_done(f->max_chunks, f->kind[i].heads.H, f->kind[i].heads.Hkv);
        if (n > most) most = n;
    }
    return (size_t)most * sizeof(int32_t);
}

size_t fwd_dev_bytes(const arch_config *c, const kv_opts *k, const fwd_opts *o)
{
    const kv_opts any = { .n_blocks = lq_ceil_div(o->max_len, k->block_size),
                          .block_size = k->block_size,
                          .dtype = k->dtype };
    const int64_t spread = c->experts_used > 1 ? c->experts_used : 1;
    const int64_t rows =
        o->max_rows * spread > o->max_logits ? o->max_rows * spread : o->max_logits;
    const int64_t joined = 3; /* roles that are one product at most */
    fwd_dev_ctx f = { 0 };
    int64_t wide = 0,
            outs = c->vocab > fwd_dev_joined_width(c) ? c->vocab : fwd_dev_joined_width(c);
    size_t attn = 0, cut = 0;
    fwd_dev_size_stage(&f, c, 0, &any, o);
    for (int i = 0; i < f.n_kinds * DEV_ATTN_N; i++) {
        const fwd_dev_kind *of = &f.kind[i / DEV_ATTN_N];
        const dev_attn_how w = (dev_attn_how)(i % DEV_ATTN_N);
        const size_t n =
            dev_attn_scratch(w, of->launch_slots[w], of->heads.H, of->heads.Hkv, of->heads.Dv);
        if (n > attn) attn = n;
    }
    for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
        int64_t N, K;
        arch_role_shape(c, r, &N, &K);
        if (!arch_role_linear(r)) continue;
        if (K > wide) wide = K;
        if (dev_mm_few_parts(joined * N, K) > cut) cut = dev_mm_few_parts(joined * N, K);
        if (2 * N > outs) outs = 2 * N; /* gate and up may be one */
    }
    /* A product's inputs in three pieces at most: as tiles take them, rounded, of outliers. */
    const size_t parts = /* of logits, and all of them beside each other */
        o->ranks > 1 ? (size_t)((o->ranks + 1) * o->max_logits * fwd_ranks_width(c, o->ranks)) : 0;
    /* Sums of few rows, those of many and what is expanded for cuBLAS are in one place. */
    const size_t sums = dev_mm_parts(rows, outs, 2 * wide),
                 panel = dev_mm_wide_bytes(rows, outs, 2 * wide);
    size_t beside = cut > sums ? cut : sums;
    if (panel > beside) beside = panel;
    const int64_t nope = c->n_sizes ? c->head_dim : c->nope_dims, /* the most of any layer */
        head = c->w.mla ? c->kv_lora + nope : 0;                  /* inputs of a head's factors */
    const int64_t by_head = o->max_rows * c->heads * (head + TILE_K),
                  inputs = 3 * rows * (wide + TILE_K);
    const size_t products =
        (size_t)(head && by_head > inputs ? by_head : inputs) * sizeof(float) + beside;
    return f.stage_bytes + fwd_slopes_bytes(c) + fwd_dev_fixed_bytes(c) + fwd_dev_lora_bytes(c, o) +
           attn + fwd_dev_widen_bytes(&f) + fwd_dev_index_bytes(&f, c, o) + fwd_dev_done_bytes(&f) +
           products + parts * sizeof(float) +
           (size_t)(o->max_rows * (c->hidden + fwd_dev_joined_width(c) + fwd_kept_width(c, o)) +
                    o->max_logits * fwd_words(c) + 2 * (c->experts + 1)) *
               sizeof(float) +
           (size_t)o->max_logits * sizeof(dev_drawn) + dev_draw_scratch(o->max_logits) +
           fwd_rows_bytes(c, o->max_rows, FWD_HELD) + (size_t)FWD_DEV_MEM * FWD_DEV_ALIGN;
}
