/* convert/gguf_meta.c */
#include "convert/gguf_meta.h"
#include "convert/report.h"
#include "formats/arch/generation_config.h"
#include "formats/gguf/gguf_compress.h"
#include "formats/gguf/gguf_config.h"
#include "formats/hf/front_matter.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static void pair_float(gguf_pairs *p, const char *name, double v)
{
    gguf_pair_key(p, name, GGUF_F32);
    gguf_put_f32(p, v);
}

/* ---- what a copy of a GGUF file keeps ---- */
/* Of these names the writer has values of its own. */
static const char *const written[] = { "general.architecture", "general.quantization_version",
                                       "general.file_type",    "general.alignment",
                                       "general.license",      "general.type",
                                       "general.sampling." };

static bool is_written(const char *key)
{
    for (size_t i = 0; i < LQ_COUNT(written); i++) {
        const size_t n = strlen(written[i]);
        if (strncmp(key, written[i], n) == 0 && (!key[n] || written[i][n - 1] == '.')) return true;
    }
    return false;
}

/* The pair that is stored first after `last`; NULL: none. */
static const gguf_kv *next_pair(const gguf_file *f, const uint8_t *last)
{
    const gguf_kv *next = NULL;
    for (size_t i = 0; i < f->n_kv; i++)
        if (f->kv[i].data > last && (!next || f->kv[i].data < next->data)) next = &f->kv[i];
    return next;
}

size_t gguf_carry(gguf_pairs *p, const src_source *src, const char *prefix)
{
    const gguf_file *f = src_gguf(src);
    const gguf_kv *kv = f ? next_pair(f, NULL) : NULL;
    size_t n = 0;
    for (; kv; kv = next_pair(f, kv->data)) {
        if (strncmp(kv->key, prefix, strlen(prefix)) != 0 || is_written(kv->key)) continue;
        if (kv->array)
            gguf_pair_array(p, kv->key, kv->type, kv->n);
        else
            gguf_pair_key(p, kv->key, kv->type);
        lq_buf_add(&p->b, kv->data, kv->bytes);
        n++;
    }
    return n;
}

/* ---- the model ---- */
/* Tensors that are lists there (gguf_lists). */
static lq_status put_lists(gguf_pairs *p, const src_source *src, lq_err *err)
{
    const arch_config *c = src_config(src);
    lq_arena a = { 0 };
    lq_status s = LQ_OK;
    for (const gguf_list *l = gguf_lists; l->key && !s; l++) {
        if (!arch_name_of(c, l->role)) continue;
        gguf_pair_array(p, l->key, GGUF_F32, (uint64_t)c->layers);
        for (int64_t i = 0; i < c->layers && !s; i++) {
            const float *v;
            s = src_vector(src, l->role, i, -1, false, &v, &a, err);
            if (!s) lq_buf_add(&p->b, v, sizeof *v);
        }
    }
    lq_arena_free(&a);
    return s;
}

static lq_status arch_of(const gguf_arch **a, const arch_config *c, lq_err *err)
{
    *a = gguf_arch_of(c);
    if (*a) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "architectures: GGUF has no name for %s", c->row->arch);
}

static void put_yarn(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    const arch_rope *r = &c->rope[a->compress ? ROPE_LOCAL : ROPE_MAIN];
    const struct {
        const char *key;
        double v, def;
    } betas[] = { { "beta_fast", r->beta_fast, 32 }, { "beta_slow", r->beta_slow, 1 } };
    char k[96];
    for (size_t i = 0; i < LQ_COUNT(betas); i++) {
        snprintf(k, sizeof k, "%s.rope.scaling.yarn_%s", a->gguf, betas[i].key);
        if (fabs(betas[i].v - betas[i].def) > 1e-6) pair_float(p, k, betas[i].v);
    }
    /* DeepSeek's attention is scaled by (mscale log(factor) / 10 + 1)^2. */
    const double m = sqrt(c->attn_scale * sqrt((double)c->head_dim));
    snprintf(k, sizeof k, "%s.rope.scaling.yarn_log_multiplier", a->gguf);
    if (c->w.mla && !c->w.kv_one && r->factor > 1 && m > 1)
        pair_float(p, k, (m - 1) / log(r->factor));
    /* ... of Ministral 3 it is mscale_all_dim itself, which its mscale equals. */
    if (strcmp(a->gguf, "mistral3") == 0 && r->factor > 1 && fabs(r->attention_factor - 1) < 1e-9)
        pair_float(p, k, 1);
}

static void put_scaling(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    const arch_rope *r = &c->rope[a->compress ? ROPE_LOCAL : ROPE_MAIN];
    char k[96];
    if (r->kind != ROPE_PLAIN && r->kind != ROPE_LINEAR) {
        /* llama3: for our own reader; the factors are a tensor */
        snprintf(k, sizeof k, "%s.rope.scaling.original_context_length", a->gguf);
        gguf_pair_int(p, k, r->original_max);
    }
    if (r->kind == ROPE_LONG) { /* so are these */
        snprintf(k, sizeof k, "%s.rope.scaling.attn_factor", a->gguf);
        pair_float(p, k, r->attention_factor);
    }
    if (r->kind != ROPE_LINEAR && r->kind != ROPE_YARN) return;
    snprintf(k, sizeof k, "%s.rope.scaling.type", a->gguf);
    gguf_pair_str(p, k, arch_rope_text(r->kind));
    snprintf(k, sizeof k, "%s.rope.scaling.factor", a->gguf);
    pair_float(p, k, r->factor);
    if (r->kind == ROPE_YARN) put_yarn(p, a, c);
}

/* Of so many layers the last, or the first, has no window. */
static int64_t pattern_of(const arch_config *c)
{
    const int64_t back = c->row->full_first ? 0 : 1;
    int64_t n = 1;
    while (n < c->layers && c->layer[n - back].window)
        n++;
    return n;
}

/* Layers before the first with experts. */
static int64_t dense_of(const arch_config *c)
{
    int64_t n = 0;
    while (n < c->layers && !c->layer[n].moe)
        n++;
    return n;
}

/* Of so many layers the last has experts. */
static int64_t step_of(const arch_config *c)
{
    int64_t n = 1;
    while (n < c->layers && !c->layer[n - 1].moe)
        n++;
    return n;
}

/* Of each layer: has it a window? */
static void put_windows(gguf_pairs *p, const char *key, const arch_config *c)
{
    gguf_pair_array(p, key, GGUF_BOOL, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_le(&p->b, c->layer[i].window, 1);
}

/* Of each layer: does it rotate? */
static void put_rotating(gguf_pairs *p, const char *key, const arch_config *c)
{
    bool all = true;
    for (int64_t i = 0; i < c->layers; i++)
        all = all && c->layer[i].rope != ROPE_OFF;
    if (all) return;
    gguf_pair_array(p, key, GGUF_BOOL, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_le(&p->b, c->layer[i].rope != ROPE_OFF, 1);
}

/* Of each layer: has it an indexer of its own? */
static void put_indexers(gguf_pairs *p, const char *key, const arch_config *c)
{
    gguf_pair_array(p, key, GGUF_BOOL, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_le(&p->b, !c->layer[i].index_shared, 1);
}

static double limit_at(const arch_config *c, int64_t i, const gguf_own *o)
{
    double v;
    memcpy(&v, (const char *)&c->layer[i] + o->at, sizeof v);
    return v;
}

static void put_limits(gguf_pairs *p, const char *key, const gguf_own *o, const arch_config *c)
{
    bool any = false;
    for (int64_t i = 0; i < c->layers; i++)
        any = any || limit_at(c, i, o) > 0;
    if (!any) return;
    gguf_pair_array(p, key, GGUF_F32, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_f32(p, limit_at(c, i, o));
}

/* Is it a number that the config has, if not in a field? */
static bool is_counted(gguf_own_kind k)
{
    return k == OWN_PATTERN || k == OWN_WINDOWS || k == OWN_DENSE || k == OWN_STEP ||
           k == OWN_ROTATES || k == OWN_INDEXERS;
}

static void put_one(gguf_pairs *p, const char *key, const gguf_own *o, const arch_config *c)
{
    const void *at = (const char *)c + o->at;
    int64_t n = 0;
    double v = 0;
    switch (o->kind) {
    case OWN_REAL:
    case OWN_INVERSE:
    case OWN_LIMIT:
        memcpy(&v, at, sizeof v);
        if (o->kind != OWN_LIMIT || v > 0) pair_float(p, key, o->kind == OWN_INVERSE ? 1 / v : v);
        return;
    case OWN_PATTERN:
        n = pattern_of(c);
        if (c->row->def_pattern == 1) /* config.json says it layer by layer */
            put_windows(p, key, c);
        else if (c->window && n != c->row->def_pattern)
            gguf_pair_int(p, key, n);
        return;
    case OWN_BOOL:
        gguf_pair_bool(p, key, *(const bool *)at);
        return;
    case OWN_GATING:
        gguf_pair_int(p, key,
                      c->w.router == ROUTER_SQRT_SOFTPLUS ? GGUF_SQRT_SOFTPLUS
                      : c->w.router == ROUTER_SIGMOID     ? 2
                                                          : 1);
        return;
    case OWN_DENSE:
        gguf_pair_int(p, key, dense_of(c));
        return;
    case OWN_STEP:
        gguf_pair_int(p, key, step_of(c));
        return;
    case OWN_BLOCKS:
        memcpy(&n, at, sizeof n);
        gguf_pair_int(p, key, n / c->index_block);
        return;
    case OWN_INT:
    case OWN_SHARED:
    case OWN_SHARED_FFN:
        memcpy(&n, at, sizeof n);
        if (o->kind != OWN_INT && c->expert_ffn) n /= c->expert_ffn;
        if (c->w.both_ways && o->at == offsetof(arch_config, window) && n) n = 2 * (n - 1);
        if (n || o->kind != OWN_INT) gguf_pair_int(p, key, n);
        return;
    case OWN_WINDOWS:
        put_windows(p, key, c);
        return;
    case OWN_ROTATES:
        put_rotating(p, key, c);
        return;
    case OWN_INDEXERS:
        put_indexers(p, key, c);
        return;
    case OWN_LIMITS:
        put_limits(p, key, o, c);
        return;
    case OWN_TYPES:
    case OWN_RATIO:
    case OWN_HAS:;
    }
}

static void put_own(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    char k[96];
    for (const gguf_own *o = gguf_owns; o->hf; o++) {
        if (strcmp(o->hf, a->hf) != 0 || (!o->at && !is_counted(o->kind))) continue;
        snprintf(k, sizeof k, "%s.%s", a->gguf, o->gguf);
        put_one(p, k, o, c);
    }
}

/* ---- sizes by layer (formats/gguf/gguf_layers.h) ---- */
static int64_t ffn_at(const arch_config *c, int64_t i) { return arch_at(c, i)->ffn; }
static int64_t kv_heads_at(const arch_config *c, int64_t i) { return arch_at(c, i)->kv_heads; }

/* A number, or where they differ one for each layer. */
static void put_each(gguf_pairs *p, const char *key, const arch_config *c,
                     int64_t of(const arch_config *c, int64_t layer))
{
    bool differ = false;
    for (int64_t i = 1; i < c->layers; i++)
        differ |= of(c, i) != of(c, 0);
    if (!differ) {
        gguf_pair_int(p, key, of(c, 0));
        return;
    }
    gguf_pair_array(p, key, GGUF_I32, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_le(&p->b, (uint64_t)of(c, i), 4);
}

/* The first layer with a window, or without; -1: none. */
static int64_t first_layer(const arch_config *c, bool window)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].window == window) return i;
    return -1;
}

/* Heads of the layers with a window, or of those without. */
static void put_head_sizes(gguf_pairs *p, const gguf_arch *a, const arch_config *c, bool window)
{
    static const char *const keys[] = { "attention.key_length", "attention.value_length",
                                        "rope.dimension_count" };
    const int64_t at = first_layer(c, window) < 0 ? 0 : first_layer(c, window);
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        char k[96];
        snprintf(k, sizeof k, "%s.%s%s", a->gguf, keys[i], window ? "_swa" : "");
        gguf_pair_int(p, k, i < 2 ? arch_at(c, at)->head_dim : arch_at(c, at)->rope_dims);
    }
}

/* What only Gemma 3n has: of each layer the z of a normal distribution below which gates are cut. */
static void put_streams(gguf_pairs *p, const arch_config *c)
{
    gguf_pair_int(p, "gemma3n.altup.active_idx", 0);
    gguf_pair_int(p, "gemma3n.altup.num_inputs", c->streams);
    gguf_pair_array(p, "gemma3n.activation_sparsity_scale", GGUF_F32, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        const double share = c->layer[i].sparse;
        const float z = share > 0 ? (float)arch_normal_quantile(share) : -INFINITY;
        uint32_t bits;
        memcpy(&bits, &z, 4);
        gguf_put_le(&p->b, bits, 4);
    }
}

static void put_layered(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    char k[96];
    int64_t shared = 0;
    while (shared < c->layers && c->layer[c->layers - 1 - shared].kv_back)
        shared++;
    snprintf(k, sizeof k, "%s.feed_forward_length", a->gguf);
    put_each(p, k, c, ffn_at);
    snprintf(k, sizeof k, "%s.attention.head_count_kv", a->gguf);
    put_each(p, k, c, kv_heads_at);
    put_head_sizes(p, a, c, false);
    if (!c->streams) put_head_sizes(p, a, c, true);
    snprintf(k, sizeof k, "%s.rope.freq_base_swa", a->gguf);
    pair_float(p, k, c->rope[ROPE_LOCAL].theta);
    snprintf(k, sizeof k, "%s.attention.shared_kv_layers", a->gguf);
    gguf_pair_int(p, k, shared);
    snprintf(k, sizeof k, "%s.embedding_length_per_layer_input", a->gguf);
    gguf_pair_int(p, k, c->ple_dim);
    snprintf(k, sizeof k, "%s.attention.sliding_window_pattern", a->gguf);
    put_windows(p, k, c);
    const struct {
        const char *key;
        int64_t v;
    } experts[] = { { "expert_count", c->experts },
                    { "expert_used_count", c->experts_used },
                    { "expert_feed_forward_length", c->expert_ffn } };
    for (size_t i = 0; i < LQ_COUNT(experts) && c->experts; i++) {
        snprintf(k, sizeof k, "%s.%s", a->gguf, experts[i].key);
        gguf_pair_int(p, k, experts[i].v);
    }
    if (c->streams) put_streams(p, c);
}

/* ---- heads and widths that are lists (formats/gguf/gguf_lists.h); 0: there is none ---- */
static int64_t list_heads_at(const arch_config *c, int64_t i)
{
    return c->layer[i].mixer == MIX_NONE ? 0 : arch_at(c, i)->heads;
}
static int64_t list_keys_at(const arch_config *c, int64_t i)
{
    return c->layer[i].mixer == MIX_NONE ? 0 : arch_at(c, i)->kv_heads;
}
static int64_t list_width_at(const arch_config *c, int64_t i)
{
    return c->layer[i].no_mlp ? 0 : arch_at(c, i)->ffn;
}

/* The first layer that rotates so; -1: none. */
static int64_t layer_of(const arch_config *c, arch_rope_use use)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].rope == use) return i;
    return -1;
}

static void put_by_layer(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    char k[96];
    snprintf(k, sizeof k, "%s.attention.head_count", a->gguf);
    put_each(p, k, c, list_heads_at);
    snprintf(k, sizeof k, "%s.attention.head_count_kv", a->gguf);
    put_each(p, k, c, list_keys_at);
    snprintf(k, sizeof k, "%s.feed_forward_length", a->gguf);
    put_each(p, k, c, list_width_at);
    const int64_t local = layer_of(c, ROPE_LOCAL), rest = layer_of(c, ROPE_MAIN);
    snprintf(k, sizeof k, "%s.rope.dimension_count", a->gguf);
    gguf_pair_int(p, k, a->half_turns ? c->head_dim : arch_at(c, rest)->rope_dims);
    if (local < 0) return;
    snprintf(k, sizeof k, "%s.rope.freq_base_swa", a->gguf);
    pair_float(p, k, c->rope[ROPE_LOCAL].theta);
    snprintf(k, sizeof k, "%s.rope.dimension_count_swa", a->gguf);
    gguf_pair_int(p, k, arch_at(c, local)->rope_dims);
}

/* llama.cpp leaves out the attention of a layer that has no MLP. */
static lq_status check_blocks(const gguf_arch *a, const arch_config *c, lq_err *err)
{
    if (a->blocks && a->blocks != c->layers)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "num_hidden_layers: llama.cpp tells a '%s' with ALiBi by its %lld layers, "
                       "found %lld",
                       a->gguf, (long long)a->blocks, (long long)c->layers);
    for (int64_t i = 0; i < c->layers && a->lists; i++)
        if (c->layer[i].no_mlp && c->layer[i].mixer != MIX_NONE)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "block_configs: llama.cpp's '%s' runs no attention in a layer without "
                           "an MLP, which layer %lld is",
                           a->gguf, (long long)i);
    return LQ_OK;
}

/* ---- layers with a state (formats/gguf/gguf_state.h) ---- */
static int64_t keys_at(const arch_config *c, int64_t i)
{
    return arch_mixer_attends(c->layer[i].mixer) ? c->kv_heads : 0;
}
static int64_t latent_keys_at(const arch_config *c, int64_t i) { return keys_at(c, i) > 0; }
static int64_t width_at(const arch_config *c, int64_t i)
{
    const arch_layer *l = &c->layer[i];
    return l->no_mlp ? 0 : l->moe && c->row->one_branch ? c->expert_ffn : c->ffn;
}

/* Of so many layers the last attends and no other; 0: it is no such pattern. */
static int64_t interval_of(const arch_config *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const bool attends = arch_mixer_attends(c->layer[i].mixer);
        if (attends && !n) n = i + 1;
        if (n && attends != ((i + 1) % n == 0)) return 0;
    }
    return n;
}

static void put_state(gguf_pairs *p, const gguf_arch *a, const arch_config *c, int further)
{
    const arch_mixer m = c->row->mixer;
    const bool attends = arch_count_attending(c, 0, c->layers) > 0;
    char k[96];
    snprintf(k, sizeof k, "%s.feed_forward_length", a->gguf);
    put_each(p, k, c, width_at);
    snprintf(k, sizeof k, "%s.attention.head_count", a->gguf);
    gguf_pair_int(p, k, attends ? c->heads : 0);
    snprintf(k, sizeof k, "%s.attention.head_count_kv", a->gguf);
    if (m == MIX_DELTA || m == MIX_LIGHTNING)
        gguf_pair_int(p, k, c->kv_heads);
    else if (attends)
        put_each(p, k, c, a->kv_apart ? latent_keys_at : keys_at);
    snprintf(k, sizeof k, "%s.attention.recurrent_layers", a->gguf);
    const int64_t blocks = m == MIX_DELTA || m == MIX_LIGHTNING ? c->layers + further : 0;
    if (blocks) gguf_pair_array(p, k, GGUF_BOOL, (uint64_t)blocks);
    for (int64_t i = 0; i < blocks; i++)
        gguf_put_le(&p->b, i < c->layers && c->layer[i].mixer == m, 1);
    snprintf(k, sizeof k, "%s.full_attention_interval", a->gguf);
    if (blocks && interval_of(c)) gguf_pair_int(p, k, interval_of(c));
    snprintf(k, sizeof k, "%s.attention.key_length_mla", a->gguf);
    if (c->w.mla && !a->kv_apart) gguf_pair_int(p, k, c->head_dim);
    snprintf(k, sizeof k, "%s.attention.value_length_mla", a->gguf);
    if (c->w.mla && !a->kv_apart) gguf_pair_int(p, k, c->v_dim);
    snprintf(k, sizeof k, "%s.kda.gate_lower_bound", a->gguf);
    if (c->decay_span > 0) pair_float(p, k, -c->decay_span);
    snprintf(k, sizeof k, "%s.kda.safe_gate", a->gguf);
    if (c->decay_span > 0) gguf_pair_bool(p, k, true);
    snprintf(k, sizeof k, "%s.ssm.dt_b_c_rms", a->gguf);
    if (m == MIX_SELECT && !attends) gguf_pair_bool(p, k, arch_name_of(c, R_MIX_B_NORM) != NULL);
    snprintf(k, sizeof k, "%s.ssm.inner_size", a->gguf);
    if (m != MIX_CONV && m != MIX_KDA && m != MIX_LIGHTNING)
        gguf_pair_int(p, k, arch_mix_width(c, m));
    snprintf(k, sizeof k, "%s.attention.layer_norm_epsilon", a->gguf);
    if (c->row->one_branch && attends) pair_float(p, k, c->norm_eps); /* Nemotron-H's name of it */
    snprintf(k, sizeof k, "%s.rope.scaling.finetuned", a->gguf);
    const bool rotates = c->w.pos == POS_ROPE;
    if (!attends || c->w.mla) return;
    if (!rotates || m == MIX_MAMBA) gguf_pair_bool(p, k, rotates);
    if (rotates) return;
    snprintf(k, sizeof k, "%s.rope.dimension_count", a->gguf);
    gguf_pair_int(p, k, c->head_dim);
}

bool gguf_has_head(const src_source *src, const gguf_arch *a)
{
    arch_config head;
    char name[256];
    if (!a->further || arch_config_mtp(&head, src_config(src), NULL)) return false;
    const bool has = arch_tensor_name(&head, R_MTP_PROJ, -1, -1, false, name, sizeof name) &&
                     src_find(src, name);
    arch_config_free(&head);
    return has;
}

/* As llama.cpp numbers them: how rows become one vector, and the one that a score is made of. */
enum { POOL_MEAN = 1, POOL_CLS = 2, POOL_RANK = 4 };

static void put_labels(gguf_pairs *p, const gguf_arch *a, const src_source *src)
{
    const arch_config *c = src_config(src);
    char k[96];
    src_label_kind kind;
    cJSON *names = src_labels(src, &kind);
    snprintf(k, sizeof k, "%s.pooling_type", a->gguf);
    gguf_pair_int(p, k, POOL_RANK);
    snprintf(k, sizeof k, "%s.classifier.pooling_type", a->gguf);
    gguf_pair_int(p, k, c->label_mean ? POOL_MEAN : POOL_CLS);
    snprintf(k, sizeof k, "%s.classifier.output_labels", a->gguf);
    gguf_pair_array(p, k, GGUF_STRING, (uint64_t)c->labels);
    for (const cJSON *e = names ? names->child : NULL; e; e = e->next)
        gguf_put_str(&p->b, e->valuestring, strlen(e->valuestring));
    p->b.oom |= !names;
    cJSON_Delete(names);
    snprintf(k, sizeof k, "%s.classifier.problem_type", a->gguf); /* our own, as the next */
    if (kind == SRC_LABELS_NUMBER) gguf_pair_str(p, k, "regression");
    if (kind == SRC_LABELS_EACH && c->labels > 1) gguf_pair_str(p, k, "multi_label_classification");
    snprintf(k, sizeof k, "%s.classifier.activation", a->gguf);
    if (c->label_raw) gguf_pair_str(p, k, "identity");
}

/* further: blocks after the model's. */
static void put_config(gguf_pairs *p, const gguf_arch *a, const arch_config *c, int further)
{
    const bool each = a->layered || a->state || a->lists; /* some numbers are a layer's */
    /* one head of keys and values for all, which is what both matrices read */
    const int64_t keys = a->kv_apart ? c->kv_lora + c->rope_dims : c->head_dim,
                  values = !a->kv_apart        ? c->v_dim
                           : c->decay_span > 0 ? c->mix_value /* of the other layers, as Ling 3's */
                                               : c->kv_lora;
    const bool head = !each || a->lists || (a->state && arch_count_attending(c, 0, c->layers));
    const struct {
        const char *key;
        int64_t v;
    } ints[] = { { "block_count", c->layers + further },
                 { "nextn_predict_layers", further },
                 { "context_length", c->max_pos },
                 { "embedding_length", c->hidden },
                 { "feed_forward_length", each || a->compress ? 0
                                          : a->ffn_of_experts ? c->expert_ffn
                                          : a->two_halves     ? 2 * c->ffn
                                                              : c->ffn },
                 { "attention.head_count", a->state || a->lists ? 0 : c->heads },
                 { "attention.head_count_kv", each          ? 0
                                              : a->kv_apart ? 1
                                                            : c->kv_heads },
                 { "attention.key_length", head ? keys : 0 },
                 { "attention.value_length", head ? values : 0 },
                 { "attention.key_length_mla", a->kv_apart ? c->head_dim : 0 },
                 { "attention.value_length_mla", a->kv_apart ? c->v_dim : 0 },
                 { "attention.q_lora_rank", c->q_lora },
                 { "attention.kv_lora_rank", c->w.kv_one ? 0 : c->kv_lora },
                 { "rope.dimension_count", a->layered || a->lists ? 0 : c->rope_dims },
                 { "vocab_size", c->vocab } };
    char k[96];
    gguf_pair_str(p, "general.architecture", a->gguf);
    gguf_pair_str(p, "general.type", "model");
    for (size_t i = 0; i < LQ_COUNT(ints); i++) {
        snprintf(k, sizeof k, "%s.%s", a->gguf, ints[i].key);
        if (ints[i].v) gguf_pair_int(p, k, ints[i].v);
    }
    snprintf(k, sizeof k, "%s.rope.freq_base", a->gguf);
    if (c->rope_dims && c->w.pos == POS_ROPE) pair_float(p, k, c->rope[ROPE_MAIN].theta);
    snprintf(k, sizeof k, "%s.attention.layer_norm_%s", a->gguf,
             c->w.norm == NORM_LAYER ? "epsilon" : "rms_epsilon");
    pair_float(p, k, c->norm_eps);
    snprintf(k, sizeof k, "%s.attention.causal", a->gguf);
    if (c->w.both_ways) gguf_pair_bool(p, k, false);
    if (c->types) gguf_pair_int(p, "tokenizer.ggml.token_type_count", c->types);
    put_own(p, a, c);
    if (a->layered)
        put_layered(p, a, c);
    else
        put_scaling(p, a, c);
    if (a->state) put_state(p, a, c, further);
    if (a->lists) put_by_layer(p, a, c);
    if (a->compress) gguf_put_compress(p, a, c);
    if (a->ngrams) gguf_put_ngrams(p, a, c);
}

/* ---- does it say all? ---- */
enum { SECTIONS = 4 };

/* mrope_section of config.json: how many numbers it has; 0: none, or too many. */
static int put_mrope(gguf_pairs *p, const char *key, const cJSON *config)
{
    const cJSON *thinker = js_get(config, "thinker_config");
    if (thinker) config = thinker; /* Qwen Omni's */
    const cJSON *text = js_get(config, "text_config");
    if (!text) text = config;
    const cJSON *rope = js_get(text, "rope_parameters");
    if (!rope) rope = js_get(text, "rope_scaling");
    const cJSON *list = js_get(rope, "mrope_section");
    const int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (n < 1 || n > SECTIONS) return 0;
    gguf_pair_array(p, key, GGUF_I32, SECTIONS);
    for (int i = 0; i < SECTIONS; i++) {
        int64_t v = 0;
        js_whole(i < n ? cJSON_GetArrayItem(list, i) : NULL, 0, INT32_MAX, &v);
        gguf_put_le(&p->b, (uint64_t)v, 4);
    }
    return n;
}

/* Which pairs of angles are of time, height and width, and how many of the tower's layers are added
 * to those of the text: of config.json, or of the GGUF file that is copied. */
static lq_status put_sections(gguf_pairs *p, const gguf_arch *a, const src_source *src, lq_err *err)
{
    char k[96], deep[96], twice[64];
    cJSON *config = NULL;
    if (!a->sections) return LQ_OK;
    snprintf(k, sizeof k, "%s.rope.dimension_sections", a->gguf);
    snprintf(deep, sizeof deep, "%s.n_deepstack_layers", a->gguf);
    if (gguf_carry(p, src, k)) return gguf_carry(p, src, deep), LQ_OK;
    const src_blob *b = src_find_blob(src, "config.json");
    if (b) js_parse_python(&config, twice, (const char *)b->data, b->bytes, b->bytes, NULL);
    const cJSON *layers = js_get(js_get(config, "vision_config"), "deepstack_visual_indexes");
    const int n = put_mrope(p, k, config);
    if (cJSON_IsArray(layers)) gguf_pair_int(p, deep, cJSON_GetArraySize(layers));
    cJSON_Delete(config);
    if (n) return LQ_OK;
    if (strncmp(a->gguf, "qwen35", 6) == 0 || a->ngrams) { /* what the converter puts there */
        static const int sections[SECTIONS] = { 11, 11, 10, 0 };
        gguf_pair_array(p, k, GGUF_I32, SECTIONS);
        for (int i = 0; i < SECTIONS; i++)
            gguf_put_le(&p->b, (uint64_t)sections[i], 4);
        return LQ_OK;
    }
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "mrope_section: expected 1 to %d numbers in config.json, which llama.cpp needs "
                   "of a %s, found none",
                   SECTIONS, a->gguf);
}

/* Fields that a file says by its tensors or that change no number. */
static bool is_silent(const char *key, const arch_config *c)
{
    static const char *const keys[] = { "arch", "dtype", "tied",   "attn_bias",  "mlp_bias",
                                        "bos",  "eos",   "prefix", "ngram_even", "ngram_parts" };
    for (size_t i = 0; i < LQ_COUNT(keys); i++)
        if (strcmp(keys[i], key) == 0) return true;
    /* two ways to say how wide an MLP is; the width of one that no layer has */
    bool dense = !c->row->one_branch;
    for (int64_t i = 0; i < c->layers; i++)
        dense |= !c->layer[i].no_mlp && !c->layer[i].moe;
    const char *variant = c->row->variant ? c->row->variant : "";
    if (strcmp(key, "variant") == 0 &&
        (c->row->mixer == MIX_CONV || strcmp(variant, ARCH_STACKED_ROWS) == 0))
        return true;
    if (strcmp(key, "ffn") == 0 && !dense) return true;
    if (strncmp(key, "rope_local", 10) == 0 && layer_of(c, ROPE_LOCAL) < 0) return true;
    /* a window that no text is longer than */
    return c->window >= c->max_pos && strncmp(key, "window", 6) == 0;
}

/* Numbers pass through f32. */
static bool same(const cJSON *a, const cJSON *b)
{
    if (cJSON_IsNumber(a) && cJSON_IsNumber(b))
        return fabs(a->valuedouble - b->valuedouble) <= 1e-6 * fabs(a->valuedouble);
    if (!cJSON_IsArray(a) || !cJSON_IsArray(b)) return cJSON_Compare(a, b, true);
    const cJSON *x = a->child, *y = b->child;
    while (x && y && same(x, y)) {
        x = x->next;
        y = y->next;
    }
    return !x && !y;
}

/* `way`: fields that only one of them has are found from that one's side. */
static lq_status compare(const cJSON *ours, const cJSON *back, bool texts, const gguf_arch *a,
                         const arch_config *c, lq_err *err)
{
    for (int way = 0; way < 2; way++)
        for (const cJSON *e = (way ? back : ours)->child; e; e = e->next) {
            const cJSON *x = js_get(ours, e->string), *y = js_get(back, e->string);
            if (is_silent(e->string, c) || (x && y && same(x, y))) continue;
            if (texts && !cJSON_IsString(e)) continue;
            char *f = js_print(x, false), *g = js_print(y, false);
            lq_fail(err, LQ_EUNSUPPORTED,
                    "%s: GGUF's '%s' has no place for %.60s, it would be read as %.60s", e->string,
                    a->gguf, f ? f : "what the model has", g ? g : "none");
            free(f);
            free(g);
            return LQ_EUNSUPPORTED;
        }
    return LQ_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

/* What a reader sees of the file's tensors before it knows the model: names, and few shapes. */
static lq_status name_tensors(gguf_file *f, const gguf_arch *a, const src_source *src,
                              const float *factors, lq_arena *arena, lq_err *err)
{
    const arch_config *c = src_config(src);
    const arch_rope_kind kind = c->rope[ROPE_MAIN].kind;
    const int64_t pairs = gguf_rope_pairs(c), n = src_n_tensors(src);
    const int lists = gguf_rope_lists(kind);
    const size_t most = 2 * (size_t)(n + (a->q_factor ? c->layers : 0)) + 2;
    char(*names)[64] = lq_push(arena, most * sizeof *names);
    gguf_tensor *t = lq_push(arena, most * sizeof *t);
    if (!names || !t) return lq_fail(err, LQ_ENOMEM, "no memory for the header");
    f->tensors = t;
    for (int i = 0; i < lists; i++)
        t[f->n++] = (gguf_tensor){ .name = gguf_rope_name(kind, i),
                                   .type = GGML_F32,
                                   .n_dims = 1,
                                   .shape = { pairs },
                                   .bytes = (size_t)pairs * 4,
                                   .data = (const uint8_t *)(factors + i * pairs) };
    for (int64_t i = 0; i < n; i++) {
        const gguf_name *g[2];
        arch_slot slot;
        if (!arch_slot_of(c, src_tensor_at(src, i)->name, &slot) || slot.expert > 0) continue;
        const int parts = gguf_names_of(g, a, c, slot.role);
        for (int k = 0; k < parts; k++, f->n++) {
            gguf_tensor_name(*names, g[k], &slot);
            t[f->n] = (gguf_tensor){ .name = *names++, .n_dims = 2 };
            arch_role_shape(arch_at(c, slot.layer), slot.role, &t[f->n].shape[0],
                            &t[f->n].shape[1]);
            if (g[k]->once) t[f->n].shape[0] = c->ngram_rows; /* all parts */
        }
    }
    for (int64_t i = 0; i < 2 * c->layers && a->q_factor; i++, f->n++) {
        float *one = lq_push(arena, sizeof *one);
        if (!one) return lq_fail(err, LQ_ENOMEM, "no memory for the header");
        *one = gguf_q_factor(*names, c, i);
        t[f->n] = (gguf_tensor){ .name = *names++, .type = GGML_F32, .n_dims = 1, .shape = { 1 } };
        t[f->n].bytes = sizeof *one;
        t[f->n].data = (const uint8_t *)one;
    }
    qsort(t, f->n, sizeof *t, by_name);
    return LQ_OK;
}

/* What the pairs mean to our reader, and so to llama.cpp, is what the model is. */
static lq_status check(const gguf_pairs *p, const gguf_arch *a, const src_source *src, lq_err *err)
{
    const arch_config *c = src_config(src);
    gguf_file f = { .n = 0 };
    arch_config back = { .row = NULL };
    cJSON *j = NULL, *x = NULL, *y = NULL;
    lq_arena arena = { 0 };
    float *factors;
    lq_buf b = { 0 };
    lq_buf_puts(&b, "GGUF");
    gguf_put_le(&b, 3, 4);
    gguf_put_le(&b, 0, 8);
    gguf_put_le(&b, p->n, 8);
    lq_buf_add(&b, p->b.p, p->b.n);
    lq_status s = b.oom || p->b.oom ? lq_fail(err, LQ_ENOMEM, "no memory for the header") : LQ_OK;
    if (!s) s = gguf_rope_factors(&factors, c, &arena, err);
    if (!s) s = gguf_open_bytes(&f, (const uint8_t *)b.p, b.n, err);
    if (!s) s = name_tensors(&f, a, src, factors, &arena, err);
    if (!s) s = gguf_config(&j, &f, gguf_arch_find(&f), err);
    if (!s) s = arch_config_parse(&back, j, NULL, err);
    if (!s) {
        x = arch_config_json(c);
        y = arch_config_json(&back);
        s = !x || !y ? lq_fail(err, LQ_ENOMEM, "no memory for a config")
                     : compare(x, y, true, a, c, err);
        if (!s) s = compare(x, y, false, a, c, err);
    }
    cJSON_Delete(x);
    cJSON_Delete(y);
    cJSON_Delete(j);
    arch_config_free(&back);
    gguf_close(&f);
    lq_arena_free(&arena);
    free(b.p);
    return s;
}

/* What its keys do not say, and llama.cpp runs in one way. */
static lq_status check_runs(const gguf_arch *a, const arch_config *c, lq_err *err)
{
    if (a->alone)
        return lq_fail(err, LQ_EUNSUPPORTED, "architectures: llama.cpp's '%s' runs %s", a->gguf,
                       a->alone);
    if (c->w.both_ways && c->experts)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "mlp.experts.bias: llama.cpp's 'nomic-bert-moe' and its converter leave it "
                       "out, and give other vectors than the model's");
    if (a->tied && !c->tied)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tie_word_embeddings: llama.cpp's '%s' has no output head of its own, found "
                       "one",
                       a->gguf);
    if (a->whole_heads && (c->heads * c->head_dim != c->hidden || c->tied || c->attn_bias > 0))
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "head_dim: llama.cpp's '%s' runs %lld / %lld dims a head, without biases, and an "
            "output head of its own",
            a->gguf, (long long)c->hidden, (long long)c->heads);
    if (c->router_softcap > 0)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "router_logit_softcapping: llama.cpp's '%s' caps no router's logits, found %g", a->gguf,
            c->router_softcap);
    if (strcmp(a->gguf, "grok") == 0 && c->shared_ffn)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "residual_moe: llama.cpp's '%s' weighs experts beside an MLP otherwise",
                       a->gguf);
    if (a->all_experts && (dense_of(c) || c->tied || c->rope_dims != c->head_dim || !c->shared_ffn))
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "first_k_dense_replace: llama.cpp's '%s' runs experts, some of them shared, in "
            "each layer, heads that turn whole, and an output head of its own",
            a->gguf);
    if ((a->values || a->q_factor) && (c->tied || c->attn_bias > 0))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "attention_bias: llama.cpp's '%s' runs no biases, and an output head of its "
                       "own",
                       a->gguf);
    if (a->half_turns && c->rope[ROPE_MAIN].kind == ROPE_LONG)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope_type: llama.cpp's '%s' runs Llama 3's scaling, found longrope",
                       a->gguf);
    for (int64_t i = 0; i < c->layers && a->compress; i++)
        if (c->tied || !c->shared_ffn || (i && c->layer[i].hashed && !c->layer[i - 1].hashed))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "mlp_layer_types: llama.cpp's '%s' runs experts by token in the first "
                           "layers alone, shared experts, and an output head of its own",
                           a->gguf);
    if (c->w.head_rows_1)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "lm_head: Baichuan 2 uses its rows with length 1, which llama.cpp does not");
    if (c->w.qkv_grouped && a->qkv == QKV_AS_STORED && c->kv_heads > 1)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "multi_query: llama.cpp's '%s' runs one head of keys, found %lld", a->gguf,
                       (long long)c->kv_heads);
    const double theta = c->rope[ROPE_MAIN].theta;
    if (a->all_heads && (c->kv_heads != c->heads || theta < 10000 || theta > 10000))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "num_key_value_heads: llama.cpp's '%s' runs %lld heads of keys, turned by "
                       "10000, found %lld by %g",
                       a->gguf, (long long)c->heads, (long long)c->kv_heads, theta);
    for (int64_t i = 0; i < c->layers && c->index_block; i++)
        if (c->layer[i].index_off == c->layer[i].moe)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: llama.cpp's '%s' runs an indexer in each layer with "
                           "experts and in no other, which layer %lld is not",
                           a->gguf, (long long)i);
    if (c->ple_dim && c->ple_vocab > c->vocab) /* of fewer rows the rest are zeros */
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "vocab_size_per_layer_input: llama.cpp's '%s' has a row for each of %lld "
                       "tokens, found %lld",
                       a->gguf, (long long)c->vocab, (long long)c->ple_vocab);
    return a->ngrams ? gguf_check_ngrams(a, c, err) : LQ_OK;
}

lq_status gguf_put_model(gguf_pairs *p, const gguf_arch **a, const src_source *src, lq_err *err)
{
    const arch_config *c = src_config(src);
    lq_status s = arch_of(a, c, err);
    if (!s) s = check_runs(*a, c, err);
    if (s) return s;
    put_config(p, *a, c, gguf_has_head(src, *a));
    if (c->w.both_ways && c->head == HEAD_LABELS) put_labels(p, *a, src);
    s = put_sections(p, *a, src, err);
    if (!s) s = check_blocks(*a, c, err);
    if (!s) s = put_lists(p, src, err);
    return s ? s : check(p, *a, src, err);
}

lq_status gguf_can_say(const src_source *src, lq_err *err)
{
    const gguf_arch *a;
    gguf_pairs p = { .n = 0 };
    src_source *form;
    lq_status s = src_gguf_form(&form, src, err);
    if (!s) s = gguf_put_model(&p, &a, form ? form : src, err);
    src_close(form);
    free(p.b.p);
    return s;
}

/* ---- what its makers say of it ---- */
static void put_sampling(gguf_pairs *p, const cJSON *gen)
{
    for (const gguf_sampling_key *k = gguf_sampling; k->hf; k++) {
        char key[64];
        double v = (double)NAN;
        js_f64(gen, k->hf, false, -1e300, 1e300, &v, NULL);
        snprintf(key, sizeof key, GGUF_SAMPLING "%s", k->gguf);
        if (isnan(v)) continue;
        if (!k->whole) {
            pair_float(p, key, v);
            continue;
        }
        gguf_pair_key(p, key, GGUF_I32);
        gguf_put_le(&p->b, (uint64_t)(int64_t)v, 4);
    }
}

/* Is it said by GGUF's own keys, or made by llmq? Cards and licences have no place. */
static bool has_place(const char *blob)
{
    static const char *const none[] = { "README", "LICEN", "NOTICE" };
    for (size_t i = 0; i < LQ_COUNT(none); i++)
        if (strncasecmp(blob, none[i], strlen(none[i])) == 0) return false;
    return true;
}

static void note_lost(const src_source *src, const gen_defaults *g, conv_report *r)
{
    char names[200] = "";
    for (size_t i = 0; i < src_n_blobs(src); i++) {
        const size_t at = strlen(names);
        const char *name = src_blob_at(src, i)->name;
        if (!has_place(name))
            snprintf(names + at, sizeof names - at, "%s%.60s", at ? ", " : "", name);
    }
    if (g->has_max_new_tokens) {
        const size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%smax_new_tokens of generation_config.json",
                 at ? ", " : "");
    }
    if (names[0]) conv_note(r, "GGUF has no place for: %s", names);
}

lq_status gguf_put_about(gguf_pairs *p, const src_source *src, conv_report *r, lq_err *err)
{
    const src_blob *card = src_find_blob(src, "README.md");
    const src_blob *b = src_find_blob(src, "generation_config.json");
    char *license = NULL;
    lq_status s =
        card ? fm_word(&license, (const char *)card->data, card->bytes, "license", err) : LQ_OK;
    if (s) return s;
    const char *name = license ? license : src_license(src);
    gen_defaults g;
    lq_err why;
    cJSON *gen = NULL;
    if (gen_read(&g, b ? b->data : NULL, b ? b->bytes : 0, &why)) {
        conv_note(r, "the sampling defaults are left out: generation_config.json: %.180s", why.msg);
        g = (gen_defaults){ 0 };
    }
    gen = gen_json(&g);
    if (name) gguf_pair_str(p, "general.license", name);
    put_sampling(p, gen);
    gguf_carry(p, src, "general.");
    note_lost(src, &g, r);
    s = gen ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the sampling");
    cJSON_Delete(gen);
    free(license);
    return s;
}
