/* formats/arch/arch_names.c - names and shapes of an architecture's tensors. */
#include "formats/arch/ngrams.h"

#include <inttypes.h>
#include <stdio.h>

/* MoE layers have a router and experts where others have an MLP. */
static bool of_moe(arch_role r) { return r >= R_ROUTER && r <= R_SHARED_DOWN; }
static bool of_mlp(arch_role r) { return r >= R_GATE && r <= R_DOWN; }
static bool of_ple(arch_role r)
{
    return (r >= R_PLE_EMBED && r <= R_PLE_NORM) || (r >= R_PLE_GATE && r <= R_PLE_POST_NORM);
}

static bool of_indexer(arch_role r) { return r >= R_INDEX_Q && r <= R_INDEX_BIAS; }

/* Does the layer take what these would make from elsewhere? */
static bool elsewhere(const arch_config *c, arch_role r, int64_t layer)
{
    const arch_layer *l = &c->layer[layer];
    if (r == R_K || r == R_V || r == R_K_NORM || r == R_V_NORM)
        return l->kv_back || (r == R_V && l->v_is_k);
    if (r == R_KV_A || r == R_KV_A_NORM || r == R_K_ROPE_NORM) return l->kv_back;
    return of_indexer(r) && (l->index_shared || l->index_off);
}

static bool of_attention(arch_role r) { return r >= R_Q && r <= R_O_A; }
static bool of_state(arch_role r) { return r >= R_MIX_IN && r <= R_MIX_OUT; }

static bool of_ngrams(arch_role r) { return r >= R_NGRAM_TABLE && r <= R_NGRAM_CONV; }

/* What a layer with this mixer has no use for. */
static bool left_out(const arch_row *row, const arch_layer *l, arch_role r)
{
    if (row->mixer == MIX_SPARSE) {
        if (of_indexer(r) || (r >= R_SPARSE_KV && r <= R_SPARSE_NORM))
            return l->mixer != MIX_SPARSE;
        if (r >= R_HEAVY_KV && r <= R_HEAVY_NORM) return l->mixer != MIX_HEAVY;
        if (r == R_EXPERTS_OF || r == R_ROUTER_CORR) return l->hashed != (r == R_EXPERTS_OF);
    }
    if (l->mixer == MIX_NONE && (r == R_ATTN_NORM || r == R_ATTN_POST_NORM)) return true;
    if (of_attention(r)) return !arch_mixer_attends(l->mixer);
    if (of_state(r)) return !arch_mixer_has_state(l->mixer);
    return l->no_mlp && (of_mlp(r) || of_moe(r) || r == R_MLP_NORM || r == R_MLP_POST_NORM);
}

/* The row's entry for a layer (-1: none): of two names NAME_MOE says which. */
static const arch_name *name_at(const arch_config *c, arch_role r, int64_t layer)
{
    const arch_name *first = arch_name_of(c, r);
    if (!first || !(first->flags & NAME_MOE) || layer < 0 || c->layer[layer].moe) return first;
    for (const arch_name *a = c->row->names; a->role != ARCH_N_ROLES; a++)
        if (a->role == r && !(a->flags & NAME_MOE)) return a;
    return first;
}

bool arch_has(const arch_config *c, arch_role r, int64_t layer)
{
    const arch_name *a = name_at(c, r, layer);
    if (!a || (r == R_HEAD && c->tied)) return false;
    if (c->mtp && !c->mtp->eagle && (r == R_EMBED || r == R_HEAD)) return false; /* the model's */
    if (r == R_ROUTER_CORR && c->no_corr) return false;
    if (r == R_MTP_ALL_NORM && !c->norm_all) return false;
    if (r == R_MTP_EACH_NORM && !c->norm_each) return false;
    if (arch_role_per_layer(r) != (layer >= 0)) return false;
    if (arch_name_of(c, R_HEAD_NORM) && (r == R_PROJ_OUT || r == R_HEAD_NORM))
        return c->head == HEAD_WORDS;
    if ((r == R_PROJ_IN || r == R_PROJ_OUT) && c->embed_dim == c->hidden) return false;
    if (r == R_FINAL_NORM && c->w.norm_after_add) return false;
    if (r == R_TYPE_EMBED && !c->types) return false;
    if (r == R_POS_EMBED && c->w.pos != POS_LEARNED) return false;
    if (r == R_DIST_EMBED && !c->dist_far) return false;
    if (r == R_DIST_NORM && !c->dist_normed) return false;
    if (r == R_DIST_K && (c->dist_shared || !c->dist_keys)) return false;
    if (r == R_DIST_Q && (c->dist_shared || !c->dist_queries)) return false;
    if (of_ple(r) && !c->ple_dim) return false;
    if (layer < 0) return true;
    if (elsewhere(c, r, layer)) return false;
    if (left_out(c->row, &c->layer[layer], r)) return false;
    if (of_ngrams(r)) return c->layer[layer].ngrams;
    if (r == R_MLP_NORM && c->w.one_norm) return false;
    if (r == R_Q_NORM || r == R_K_NORM) {
        if (c->w.qk_norm == QK_NORM_NONE) return false;
        if (c->w.qk_norm_rotated && c->layer[layer].rope == ROPE_OFF) return false;
    }
    if (c->w.mla && r == R_Q && c->q_lora) return false;
    if (r >= R_Q_A && r <= R_Q_B && !c->q_lora) return false;
    if (r >= R_SHARED_ROUTER && r <= R_SHARED_DOWN && !c->shared_ffn) return false;
    if ((a->flags & NAME_MOE) && !c->layer[layer].moe) return false;
    if ((a->flags & NAME_STATE) && !arch_mixer_has_state(c->layer[layer].mixer)) return false;
    if ((a->flags & NAME_ATTENDS) && !arch_mixer_attends(c->layer[layer].mixer)) return false;
    if (r >= R_LATENT_IN && r <= R_LATENT_NORM && !c->latent) return false;
    if (r >= R_Q_LOW && r <= R_V_HIGH && !c->aside_heads) return false;
    if (r == R_ROUTER_CARRY && layer == 0) return false; /* there is no layer before */
    return c->layer[layer].moe ? c->w.dense_beside || !of_mlp(r) : !of_moe(r);
}

/* ---- names ---- */
static const char *suffix(const arch_name *a, bool bias)
{
    if (a->flags & NAME_BARE) return bias ? "_bias" : "";
    if (bias && (a->flags & NAME_BIAS_BARE)) return "_bias";
    return bias ? ".bias" : ".weight";
}

/* What stands before the head's name: the body's prefix less its own "model.". */
static size_t head_prefix(const arch_config *c)
{
    static const char *const bodies[] = { ".model.", ".backbone.", ".transformer." };
    const size_t n = strlen(c->prefix);
    for (size_t i = 0; i < LQ_COUNT(bodies); i++) {
        const size_t tail = strlen(bodies[i]);
        if (n > tail && strcmp(c->prefix + n - tail, bodies[i]) == 0) return n - tail + 1;
    }
    return 0;
}

/* Asides among the layers before this one. */
static int64_t asides_before(const arch_config *c, int64_t layer)
{
    int64_t n = 0;
    for (int64_t i = 0; i < layer && c->asides; i++)
        n += arch_is_aside(c, i);
    return n;
}

/* The aside with so many before it; -1: there are fewer. */
static int64_t nth_aside(const arch_config *c, int64_t n)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (arch_is_aside(c, i) && n-- == 0) return i;
    return -1;
}

/* The first aside with this one's tensors. */
static int64_t aside_of(const arch_config *c, int64_t layer)
{
    return nth_aside(c, asides_before(c, layer) % c->asides);
}

int64_t arch_numbered_layers(const arch_config *c)
{
    return c->layer_groups ? c->layer_groups
           : c->w.shortcut ? c->layers / 2
                           : c->layers - asides_before(c, c->layers);
}

/* The number of a layer in names, and the first layer with this number. */
static int64_t group_of(const arch_config *c, int64_t layer)
{
    if (c->mtp || layer < 0) return layer;
    if (c->asides) return layer - asides_before(c, layer);
    return layer * arch_numbered_layers(c) / c->layers;
}
/* The one that reads the residual, or the aside before it. */
static int64_t numbered_aside(const arch_config *c, int64_t number, bool aside)
{
    int64_t i = 0;
    while (group_of(c, i) < number || arch_is_aside(c, i))
        i++;
    if (!aside) return i;
    return i > 0 && arch_is_aside(c, i - 1) ? i - 1 : -1;
}
static int64_t first_of(const arch_config *c, const arch_name *a, int64_t group)
{
    if (c->asides) return numbered_aside(c, group, a->flags & NAME_ATTENDS);
    return c->mtp ? group : group * (c->layers / arch_numbered_layers(c));
}

int64_t arch_first_with(const arch_config *c, arch_role r, int64_t layer)
{
    const arch_name *a = name_at(c, r, layer);
    const bool shared = a && strstr(a->name, "%b") && !strstr(a->name, "%u");
    return shared ? aside_of(c, layer) : layer;
}

/* "%m" of a layer's names. */
static const char *behind_aside(const arch_config *c, int64_t layer)
{
    return arch_is_aside(c, layer - 1) ? "mamba_decoder." : "";
}

#define SHARD ".shard_" /* of "%s" */

/* A pattern's text to out[at ..]; returns where it ends. */
static size_t put_name(const arch_config *c, const char *pattern, int64_t layer, int64_t expert,
                       char *out, size_t at, size_t n)
{
    for (const char *p = pattern; *p && at < n; p++) {
        int w = 1;
        if (*p == '@')
            w = snprintf(out + at, n - at, "%s", c->prefix);
        else if (*p == '^')
            w = snprintf(out + at, n - at, "%.*s", (int)head_prefix(c), c->prefix);
        else if (*p == '%' && p[1] == 'm')
            w = snprintf(out + at, n - at, "%s", behind_aside(c, layer)), p++;
        else if (*p == '%' && p[1] == 's')
            w = !c->ngram_parts ? 0 : snprintf(out + at, n - at, SHARD "%" PRId64, expert), p++;
        else if (*p == '%')
            w = snprintf(out + at, n - at, "%" PRId64,
                         *++p == 'd' ? group_of(c, layer)
                         : *p == 'b' ? group_of(c, aside_of(c, layer))
                         : *p == 'u' ? asides_before(c, layer)
                         : *p == 'p' ? layer % 2
                                     : expert);
        else
            out[at] = *p;
        at += (size_t)w;
    }
    return at;
}

/* What stands for "@layers.%d." in the names of an MTP head's layer, or ""; *rest: of the pattern. */
static const char *begin_pattern(const arch_config *c, const arch_name *a, const char **rest)
{
    static const char of_layer[] = "@layers.%d.";
    const size_t n = sizeof of_layer - 1;
    const bool own = c->mtp && arch_role_per_layer(a->role) && strncmp(a->name, of_layer, n) == 0;
    *rest = own ? a->name + n : a->name;
    return own ? c->mtp->layer : "";
}

bool arch_tensor_name(const arch_config *c, arch_role r, int64_t layer, int64_t expert, bool bias,
                      char *out, size_t n)
{
    const arch_name *a = name_at(c, r, layer);
    const char *rest;
    if (!a) return false;
    if (c->mtp) layer = c->mtp_number;
    size_t at = put_name(c, begin_pattern(c, a, &rest), layer, expert, out, 0, n);
    at = put_name(c, rest, layer, expert, out, at, n);
    if (at >= n) return false;
    int w = snprintf(out + at, n - at, "%s", suffix(a, bias));
    return (size_t)w < n - at;
}

static int64_t n_heads(const arch_config *c, arch_role r)
{
    return r == R_K_NORM ? c->kv_heads : c->heads;
}

static int64_t n_tensors(const arch_config *c, const arch_name *a)
{
    if (a->role == R_STREAM_IN || a->role == R_STREAM_OUT) return c->streams - 1;
    if (a->role == R_MTP_EACH_NORM) return 3;
    if (a->flags & NAME_HEAD_EACH) return n_heads(c, a->role);
    if (a->role == R_NGRAM_TABLE && c->ngram_parts) return c->ngram_parts;
    return arch_role_per_expert(a->role) && !(a->flags & NAME_STACKED) ? c->experts : 1;
}

int64_t arch_n_tensors(const arch_config *c, arch_role r)
{
    const arch_name *a = arch_name_of(c, r);
    return a ? n_tensors(c, a) : 0;
}

/* A number without leading zeros below `limit`; NULL when there is none. */
static const char *number(const char *p, int64_t limit, int64_t *out)
{
    const char *digits = p;
    int64_t v = 0;
    while (*p >= '0' && *p <= '9' && v < INT32_MAX)
        v = v * 10 + (*p++ - '0');
    if (p == digits || (*digits == '0' && p - digits > 1) || v >= limit) return NULL;
    *out = v;
    return p;
}

/* A number that tells of an aside: its block's ("%b") or its own ("%u"). */
static const char *aside_number(const arch_config *c, char kind, const char *name, arch_slot *slot)
{
    int64_t n;
    name = number(name, kind == 'b' ? arch_numbered_layers(c) : c->layers, &n);
    const int64_t block = slot->layer;
    if (!name) return NULL;
    slot->layer = kind == 'b' ? numbered_aside(c, n, true) : nth_aside(c, n);
    if (slot->layer < 0) return NULL;
    const int64_t first = aside_of(c, slot->layer);
    return first == (kind == 'b' ? slot->layer : block) ? name : NULL;
}

/* What follows a part's number, or `name` where tables are whole; NULL: neither. */
static const char *part_number(const arch_config *c, const arch_name *a, const char *name,
                               arch_slot *slot)
{
    const size_t n = sizeof SHARD - 1;
    if (!c->ngram_parts) return name;
    return strncmp(name, SHARD, n) == 0 ? number(name + n, n_tensors(c, a), &slot->expert) : NULL;
}

/* Does `name` (NULL: no) begin with a pattern of the entry's? Returns what follows it, NULL when not. */
static const char *match(const arch_config *c, const arch_name *a, const char *pattern,
                         const char *name, arch_slot *slot)
{
    const int64_t layers = c->mtp ? c->mtp_number + 1 : arch_numbered_layers(c);
    int64_t of_pair = 0;
    for (; *pattern && name; pattern++) {
        if (*pattern == '@' || *pattern == '^') {
            size_t n = *pattern == '@' ? strlen(c->prefix) : head_prefix(c);
            name = strncmp(name, c->prefix, n) == 0 ? name + n : NULL;
        } else if (*pattern == '%') {
            const char kind = *++pattern;
            if (kind == 'b' || kind == 'u') {
                name = aside_number(c, kind, name, slot);
                continue;
            }
            if (kind == 'm') {
                const char *word = behind_aside(c, slot->layer);
                name = strncmp(name, word, strlen(word)) == 0 ? name + strlen(word) : NULL;
                continue;
            }
            if (kind == 's') {
                name = part_number(c, a, name, slot);
                continue;
            }
            name = kind == 'd'   ? number(name, layers, &slot->layer)
                   : kind == 'p' ? number(name, 2, &of_pair)
                                 : number(name, n_tensors(c, a), &slot->expert);
            if (kind == 'd' && name) slot->layer = first_of(c, a, slot->layer);
            if (slot->layer < 0 && kind == 'd') return NULL;
            if (kind == 'p' && name) slot->layer += of_pair;
        } else {
            name = *name == *pattern ? name + 1 : NULL;
        }
    }
    return name;
}

/* Is this the name of the entry's tensor, or of its bias? */
static bool is_slot(const arch_config *c, const arch_name *a, const char *name, arch_slot *slot)
{
    const char *pattern, *first = begin_pattern(c, a, &pattern);
    *slot = (arch_slot){ .role = a->role, .layer = -1, .expert = -1 };
    const char *rest = match(c, a, pattern, match(c, a, first, name, slot), slot);
    if (c->mtp) {
        if (slot->layer >= 0 && slot->layer != c->mtp_number) return false;
        slot->layer = arch_role_per_layer(a->role) ? 0 : -1;
    }
    if (slot->layer >= 0 &&
        (elsewhere(c, a->role, slot->layer) || left_out(c->row, &c->layer[slot->layer], a->role)))
        return false;
    if (slot->layer >= 0 && !c->mtp && name_at(c, a->role, slot->layer) != a) return false;
    slot->bias = rest && strcmp(rest, suffix(a, true)) == 0;
    return rest && (slot->bias || strcmp(rest, suffix(a, false)) == 0);
}

/* Is the entry one that the config goes by? Of an MTP head's row some are the model's, or others' place is taken. */
static bool in_use(const arch_config *c, const arch_name *a)
{
    if (!c->mtp) return true;
    return arch_name_of(c, a->role) == a &&
           (c->mtp->eagle || (a->role != R_EMBED && a->role != R_HEAD));
}

bool arch_slot_of(const arch_config *c, const char *name, arch_slot *slot)
{
    for (const arch_name *a = c->mtp ? c->mtp->names : NULL; a && a->role != ARCH_N_ROLES; a++)
        if (is_slot(c, a, name, slot)) return true;
    for (const arch_name *a = c->row->names; a->role != ARCH_N_ROLES; a++)
        if (in_use(c, a) && is_slot(c, a, name, slot)) return true;
    for (const arch_name *a = arch_label_names(c); a && a->role != ARCH_N_ROLES; a++)
        if (is_slot(c, a, name, slot)) return true;
    return false;
}

void arch_fit_prefix(arch_config *c, bool (*has)(void *user, const char *name), void *user)
{
    static const char *const others[] = { "model.",
                                          "transformer.",
                                          "gpt_neox.",
                                          "model.decoder.",
                                          "decoder.",
                                          "backbone.",
                                          "language_model.model.",
                                          "model.language_model.",
                                          "language_model.backbone.",
                                          "model.text_model.",
                                          "bert.",
                                          "roberta.",
                                          "deberta.",
                                          "" };
    const arch_role first =
        arch_is_eagle(c) ? R_MTP_PROJ : R_EMBED; /* a draft may do without one */
    char name[256], was[sizeof c->prefix];
    memcpy(was, c->prefix, sizeof was);
    if (arch_tensor_name(c, first, -1, -1, false, name, sizeof name) && has(user, name)) return;
    for (size_t i = 0; i < LQ_COUNT(others); i++) {
        snprintf(c->prefix, sizeof c->prefix, "%s", others[i]);
        if (arch_tensor_name(c, first, -1, -1, false, name, sizeof name) && has(user, name)) return;
    }
    memcpy(c->prefix, was, sizeof was);
}

/* ---- what they must be ---- */
static int64_t head_rows(const arch_config *c, arch_role r)
{
    const arch_name *a = arch_name_of(c, r);
    return a && (a->flags & NAME_HEAD_ROWS) ? n_heads(c, r) : 1;
}

float arch_norm_offset(const arch_config *c, arch_role r)
{
    const arch_name *a = arch_name_of(c, r);
    const bool attn = r == R_ATTN_POST_NORM, post = attn || r == R_MLP_POST_NORM;
    if (post && c->row->post_offset[!attn] > 0) return c->row->post_offset[!attn];
    return a && (a->flags & NAME_WHOLE) ? 0 : c->w.norm_offset;
}

float arch_slot_offset(const arch_config *c, const arch_slot *slot)
{
    const bool state = slot->role >= R_MIX_IN && slot->role <= R_MIX_OUT;
    return !slot->bias && !state && slot->role != R_ROUTER_CORR && slot->role != R_NGRAM_CONV &&
                   arch_role_kind(slot->role) == ARCH_VECTOR
               ? arch_norm_offset(c, slot->role)
               : 0;
}

double arch_norm_eps(const arch_config *c, arch_role r)
{
    const bool post = r == R_ATTN_POST_NORM || r == R_MLP_POST_NORM || r == R_EXPERT_OUT_NORM;
    if ((r == R_Q_NORM || r == R_K_NORM) && c->w.qk_unit) return 1e-16;
    if ((r == R_Q_A_NORM || r == R_KV_A_NORM) && !c->w.latent_eps) return ARCH_LATENT_EPS;
    return post && c->post_eps > 0 ? c->post_eps : c->norm_eps;
}

double arch_norm_eps_at(const arch_config *c, arch_role r, int64_t layer)
{
    const int64_t before = r == R_ATTN_NORM    ? 2 * layer
                           : r == R_MLP_NORM   ? 2 * layer + 1
                           : r == R_FINAL_NORM ? 2 * c->layers
                                               : 0; /* branches */
    return arch_norm_eps(c, r) * (c->w.depth_norms ? (double)(before + 1) : 1);
}

int arch_wants_bias(const arch_config *c, arch_role r)
{
    const int wants[] = { [BIAS_NO] = 0,
                          [BIAS_YES] = 1,
                          [BIAS_ATTN] = c->attn_bias,
                          [BIAS_MLP] = c->mlp_bias,
                          [BIAS_OWN] = c->own_bias,
                          [BIAS_CONV] = c->conv_bias,
                          [BIAS_ANY] = -1 };
    const arch_name *a = arch_name_of(c, r);
    return a ? wants[a->bias] : 0;
}

/* What the norm's output makes in one matrix: all, or what is not apart. */
static int64_t mix_in_rows(const arch_config *c)
{
    const arch_mixer m = c->row->mixer;
    const int64_t conv = arch_conv_channels(c, m), out = arch_mix_width(c, m);
    if (m == MIX_CONV) return 3 * out;
    if (m == MIX_SELECT) return 2 * out;
    if (m != MIX_MAMBA && m != MIX_BOTH) return arch_name_of(c, R_MIX_GATE) ? conv : conv + out;
    return conv + out + c->mix_heads;
}

void arch_role_shape(const arch_config *c, arch_role r, int64_t *N, int64_t *K)
{
    const int64_t D = c->head_dim - c->key_pad, q = c->heads * D, k = c->kv_heads * D,
                  v = c->kv_heads * (c->w.diff ? c->head_dim : c->v_dim), o = c->heads * c->v_dim,
                  m = arch_mix_width(c, c->row->mixer), keys = c->mix_groups * c->mix_key,
                  conv = arch_conv_channels(c, c->row->mixer), wide = arch_expert_width(c);
    const bool all = c->w.qk_norm == QK_NORM_ALL, apart = arch_name_of(c, R_MIX_CONV_K),
               cca = c->row->mixer == MIX_CCA,
               mamba = c->row->mixer == MIX_MAMBA || c->row->mixer == MIX_BOTH,
               at_once = mamba || c->row->mixer == MIX_LIGHTNING,
               select = c->row->mixer == MIX_SELECT;
    const int64_t apiece = select && c->mix_heads ? c->mix_heads : 1; /* heads with their own */
    const int64_t hyper = arch_hyper_width(c), streams = c->hyper * c->hidden,
                  scales = c->w.hyper_apart ? 2 : 3;
    const int64_t group = c->o_groups ? o / c->o_groups : 0,
                  index = c->sparse_every ? 2 * c->index_dim : c->index_dim;
    const int64_t first = c->w.proj_late ? c->embed_dim : c->hidden;
    const int64_t in =
        arch_is_eagle(c) || c->asides ? 2 * c->hidden : c->hidden; /* of q, k and v */
    const int64_t rank = c->aside_rank, n_shared = c->shared_experts ? c->shared_experts : 1;
    const int64_t parts = c->ngram_parts ? c->ngram_parts : 1;
    const struct {
        int64_t N, K;
    } shape[ARCH_N_ROLES] = {
        [R_EMBED] = { c->vocab + c->embed_more, c->embed_dim },
        [R_POS_EMBED] = { c->max_pos + c->pos_offset, first },
        [R_TYPE_EMBED] = { c->types, first },
        [R_DIST_BIAS] = { c->dist_buckets, c->heads },
        [R_DIST_EMBED] = { arch_dist_rows(c), c->hidden },
        [R_DIST_NORM] = { 1, c->hidden },
        [R_EMBED_BY] = { 1, c->hidden },
        [R_EMBED_ADD] = { 1, c->hidden },
        [R_EMBED_NORM] = { 1, first },
        [R_PROJ_IN] = { c->hidden, c->embed_dim },
        [R_PROJ_OUT] = { c->embed_dim, c->hidden },
        [R_PLE_EMBED] = { c->ple_vocab, c->layers * c->ple_dim },
        [R_PLE_PROJ] = { c->layers * c->ple_dim, c->hidden },
        [R_PLE_NORM] = { 1, c->ple_dim },
        [R_STREAM_IN] = { c->hidden, c->hidden },
        [R_STREAM_OUT] = { c->hidden, c->hidden },
        [R_HYPER_END_FN] = { c->hyper, streams },
        [R_HYPER_END_BASE] = { 1, c->hyper },
        [R_HYPER_END_SCALE] = { 1, 1 },
        [R_HYPER_END_NORM] = { 1, streams },
        [R_HYPER_END_DOWN] = { c->hyper_rank, streams },
        [R_HYPER_END_UP] = { streams, c->hyper_rank },
        [R_FINAL_NORM] = { 1, c->hidden },
        [R_ROPE_LOG] = { 1, c->rope_dims / 2 },
        [R_HEAD_NORM] = { 1, c->embed_dim },
        [R_HEAD] = { arch_words(c) + c->head_more, c->embed_dim },
        [R_POOLER] = { c->hidden, c->hidden },
        [R_POOL_NORM] = { 1, c->hidden },
        [R_SCORE] = { c->labels, c->hidden },
        [R_MTP_EMBED_NORM] = { 1, c->hidden },
        [R_MTP_HIDDEN_NORM] = { 1, c->hidden },
        [R_MTP_PROJ] = { c->hidden, arch_is_eagle(c) ? 3 * c->target_hidden : 2 * c->hidden },
        [R_MTP_ALL_NORM] = { 1, 3 * c->target_hidden },
        [R_MTP_EACH_NORM] = { 1, c->target_hidden },
        [R_ATTN_NORM] = { 1, c->hidden },
        [R_Q] = { c->w.q_gated ? 2 * q : q, in },
        [R_K] = { k, in },
        [R_V] = { cca ? v / 2 : v, in },
        [R_V_LATE] = { v / 2, in },
        [R_CCA_CONV] = { 1, arch_cca_channels(c) * c->conv_taps },
        [R_CCA_HEADS] = { arch_cca_channels(c), c->head_dim * c->head_taps },
        [R_K_SCALE] = { 1, c->kv_heads },
        [R_KEY_STEP] = { c->kv_heads, v },
        [R_KEY_RATE] = { 1, c->kv_heads },
        [R_QKV] = { q + k + v, c->hidden },
        [R_ATTN_GATE] = { c->w.gate_heads ? c->heads : o, c->hidden },
        [R_O] = { c->hidden, arch_o_width(c) },
        [R_DIST_K] = { k, c->hidden },
        [R_DIST_Q] = { q, c->hidden },
        [R_REL] = { c->heads * c->rel_dims, c->hidden },
        [R_REL_BANK] = { c->rel_extent, c->rel_dims },
        [R_K_CONV] = { 1, k * c->conv_taps },
        [R_V_CONV] = { 1, v * c->conv_taps },
        [R_ATTN_CONV] = { 1, c->hidden * c->conv_taps },
        [R_Q_NORM] = { head_rows(c, R_Q_NORM), all ? q : D },
        [R_K_NORM] = { head_rows(c, R_K_NORM), all ? k : D },
        [R_V_NORM] = { 1, c->v_dim },
        [R_O_NORM] = { 1, c->w.o_norm_heads ? c->v_dim : o },
        [R_SINKS] = { 1, c->heads },
        [R_Q_SLOPE] = { 1, c->heads },
        [R_Q_BASE] = { 1, c->heads },
        [R_HEAD_GATE] = { c->heads, c->hidden },
        [R_GATE_BIAS] = { 1, c->heads },
        [R_DIFF_Q1] = { 1, c->head_dim },
        [R_DIFF_K1] = { 1, c->head_dim },
        [R_DIFF_Q2] = { 1, c->head_dim },
        [R_DIFF_K2] = { 1, c->head_dim },
        [R_PAIR_NORM] = { 1, 2 * c->hidden },
        [R_Q_LOW] = { rank, in },
        [R_Q_HIGH] = { q, rank },
        [R_K_LOW] = { rank, in },
        [R_K_HIGH] = { k, rank },
        [R_V_LOW] = { rank, in },
        [R_V_HIGH] = { v, rank },
        [R_Q_A] = { c->q_lora, c->hidden },
        [R_Q_A_NORM] = { 1, c->q_lora },
        [R_Q_B] = { c->w.q_gated ? q + o : q, arch_q_width(c) },
        [R_KV_A] = { c->kv_lora + c->rope_dims, c->hidden },
        [R_KV_A_NORM] = { 1, c->w.kv_one ? c->head_dim : c->kv_lora },
        [R_K_ROPE_NORM] = { 1, c->rope_dims },
        [R_KV_B] = { c->heads * (c->nope_dims + c->v_dim), c->kv_lora },
        [R_INDEX_Q] = { (c->index_heads + arch_index_mean(c)) * c->index_dim,
                        c->q_lora ? c->q_lora : c->hidden },
        [R_INDEX_K] = { index, c->hidden },
        [R_INDEX_K_NORM] = { 1, c->index_dim },
        [R_INDEX_Q_NORM] = { 1, c->index_dim },
        [R_INDEX_W] = { c->index_heads, c->hidden },
        [R_INDEX_IN_NORM] = { 1, c->hidden },
        [R_INDEX_SLOPE] = { 1, c->index_heads },
        [R_INDEX_BASE] = { 1, c->index_heads },
        [R_INDEX_GATE] = { index, c->hidden },
        [R_INDEX_BIAS] = { c->index_every ? c->index_every : c->sparse_every, index },
        [R_SPARSE_KV] = { 2 * c->head_dim, c->hidden },
        [R_SPARSE_GATE] = { 2 * c->head_dim, c->hidden },
        [R_SPARSE_BIAS] = { c->sparse_every, 2 * c->head_dim },
        [R_SPARSE_NORM] = { 1, c->head_dim },
        [R_HEAVY_KV] = { c->head_dim, c->hidden },
        [R_HEAVY_GATE] = { c->head_dim, c->hidden },
        [R_HEAVY_BIAS] = { c->heavy_every, c->head_dim },
        [R_HEAVY_NORM] = { 1, c->head_dim },
        [R_O_A] = { c->o_groups * c->o_lora, group },
        [R_MIX_IN] = { mix_in_rows(c), c->hidden },
        [R_MIX_Q] = { keys, c->hidden },
        [R_MIX_K] = { keys, c->hidden },
        [R_MIX_V] = { m, c->hidden },
        [R_MIX_GATE] = { m, c->hidden },
        [R_MIX_GATE_DOWN] = { c->mix_value, c->hidden },
        [R_MIX_GATE_UP] = { m, c->mix_value },
        [R_MIX_BA] = { 2 * c->mix_heads, c->hidden },
        [R_MIX_B] = { c->mix_heads, c->hidden },
        [R_MIX_A] = { arch_mix_decays(c), c->hidden },
        [R_MIX_A_DOWN] = { c->mix_value, c->hidden },
        [R_MIX_A_UP] = { arch_mix_decays(c), c->mix_value },
        [R_MIX_X] = { apiece * (c->mix_rank + 2 * keys), m / apiece },
        [R_MIX_STEP] = { m, c->mix_rank },
        [R_MIX_STEP_NORM] = { 1, c->mix_rank },
        [R_MIX_B_NORM] = { 1, keys },
        [R_MIX_C_NORM] = { 1, keys },
        [R_MIX_CONV] = { 1, (apart ? keys : conv) * c->conv_taps },
        [R_MIX_CONV_K] = { 1, keys * c->conv_taps },
        [R_MIX_CONV_V] = { 1, m * c->conv_taps },
        [R_MIX_DT] = { apiece, arch_mix_decays(c) / apiece },
        [R_MIX_A_LOG] = { select ? m : 1, select ? keys : c->mix_heads },
        [R_MIX_SKIP] = { apiece, select ? m / apiece : c->mix_heads },
        [R_MIX_ADMIT] = { m, m / c->heads },
        [R_MIX_ADMIT_BIAS] = { c->heads, m / c->heads },
        [R_MIX_KEEP] = { m, m / c->heads },
        [R_MIX_KEEP_BIAS] = { c->heads, m / c->heads },
        [R_MIX_SPAN] = { 1, m },
        [R_MIX_NORM] = { 1, at_once ? m : c->mix_value },
        [R_MIX_OUT] = { c->hidden, m },
        [R_ATTN_POST_NORM] = { 1, c->hidden },
        [R_MLP_NORM] = { 1, c->hidden },
        [R_GATE] = { c->ffn, c->hidden },
        [R_UP] = { c->ffn, c->hidden },
        [R_GATE_UP] = { 2 * c->ffn, c->hidden },
        [R_GATE_UP_LOW] = { rank, c->hidden },
        [R_GATE_UP_HIGH] = { 2 * c->ffn, rank },
        [R_ASIDE_OUT] = { c->hidden, c->hidden },
        [R_XIELU_P] = { 1, 1 },
        [R_XIELU_N] = { 1, 1 },
        [R_XIELU_BETA] = { 1, 1 },
        [R_XIELU_EPS] = { 1, 1 },
        [R_DOWN_NORM] = { 1, c->ffn },
        [R_DOWN_SCALE] = { 1, 1 },
        [R_DOWN] = { c->hidden, c->ffn },
        [R_ROUTER] = { arch_router_rows(c), c->route ? c->route : c->hidden },
        [R_ROUTER_IN] = { c->route, c->hidden },
        [R_ROUTER_CARRY] = { 1, c->route },
        [R_ROUTER_IN_NORM] = { 1, c->route },
        [R_ROUTER_1] = { c->route, c->route },
        [R_ROUTER_2] = { c->route, c->route },
        [R_ROUTER_CORR] = { c->w.corr_more ? 2 : 1, arch_choices(c) },
        [R_SHARE_SCALE] = { 1, 1 },
        [R_EXPERTS_OF] = { c->vocab, c->experts_used },
        [R_LATENT_IN] = { c->latent, c->hidden },
        [R_LATENT_OUT] = { c->hidden, c->latent },
        [R_LATENT_NORM] = { 1, c->latent },
        [R_ROUTER_NORM] = { 1, c->hidden },
        [R_EXPERT_NORM] = { 1, c->hidden },
        [R_DENSE_POST_NORM] = { 1, c->hidden },
        [R_EXPERT_POST_NORM] = { 1, c->hidden },
        [R_EXPERT_SCALE] = { 1, c->experts },
        [R_EXPERTS_BIAS] = { 1, c->hidden },
        [R_EXPERT_OUT_NORM] = { 1, wide },
        [R_EXPERT_GATE] = { c->expert_ffn, wide },
        [R_EXPERT_UP] = { c->expert_ffn, wide },
        [R_EXPERT_GATE_UP] = { 2 * c->expert_ffn, wide },
        [R_EXPERT_DOWN] = { wide, c->expert_ffn },
        [R_SHARED_ROUTER] = { 1, c->hidden },
        [R_SHARED_GATE] = { c->shared_ffn, c->hidden },
        [R_SHARED_UP] = { c->shared_ffn, c->hidden },
        [R_SHARED_GATE_UP] = { 2 * c->shared_ffn, c->hidden },
        [R_SHARED_DOWN] = { n_shared * c->hidden, c->shared_ffn / n_shared },
        [R_MLP_CONV] = { 1, c->hidden * c->conv_taps },
        [R_MLP_POST_NORM] = { 1, c->hidden },
        [R_PLE_GATE] = { c->ple_dim, c->hidden },
        [R_PLE_OUT] = { c->hidden, c->ple_dim },
        [R_PLE_POST_NORM] = { 1, c->hidden },
        [R_LAYER_SCALE] = { 1, 1 },
        [R_STREAM_NORM] = { 1, c->hidden },
        [R_STREAM_ROUTER] = { c->streams, c->hidden },
        [R_STREAM_PREDICT] = { c->streams * c->streams, c->streams },
        [R_STREAM_CORRECT] = { c->streams, c->streams },
        [R_STREAM_SCALE] = { 1, c->hidden },
        [R_HYPER_ATTN_FN] = { hyper, streams },
        [R_HYPER_ATTN_BASE] = { 1, hyper },
        [R_HYPER_ATTN_SCALE] = { 1, scales },
        [R_HYPER_MLP_FN] = { hyper, streams },
        [R_HYPER_MLP_BASE] = { 1, hyper },
        [R_HYPER_MLP_SCALE] = { 1, scales },
        [R_HYPER_ATTN_NORM] = { 1, streams },
        [R_HYPER_ATTN_DOWN] = { c->hyper_rank, streams },
        [R_HYPER_ATTN_UP] = { streams, c->hyper_rank },
        [R_HYPER_ATTN_POST] = { c->hyper, streams },
        [R_HYPER_MLP_NORM] = { 1, streams },
        [R_HYPER_MLP_DOWN] = { c->hyper_rank, streams },
        [R_HYPER_MLP_UP] = { streams, c->hyper_rank },
        [R_HYPER_MLP_POST] = { c->hyper, streams },
        [R_LAUREL_LEFT] = { c->laurel, c->hidden },
        [R_LAUREL_RIGHT] = { c->hidden, c->laurel },
        [R_LAUREL_NORM] = { 1, c->hidden },
        [R_ATTN_NORM_DOWN] = { c->norm_rank, c->hidden },
        [R_ATTN_NORM_UP] = { c->hidden, c->norm_rank },
        [R_MLP_NORM_DOWN] = { c->norm_rank, c->hidden },
        [R_MLP_NORM_UP] = { c->hidden, c->norm_rank },
        [R_ATTN_JOIN] = { 1, c->hidden },
        [R_ATTN_JOIN_Y_ADD] = { 1, c->hidden },
        [R_ATTN_JOIN_X_BY] = { 1, c->hidden },
        [R_ATTN_JOIN_X_ADD] = { 1, c->hidden },
        [R_MLP_JOIN] = { 1, c->hidden },
        [R_MLP_JOIN_Y_ADD] = { 1, c->hidden },
        [R_MLP_JOIN_X_BY] = { 1, c->hidden },
        [R_MLP_JOIN_X_ADD] = { 1, c->hidden },
        [R_NGRAM_TABLE] = { lq_ceil_div(c->ngram_rows, parts), arch_ngram_width(c) },
        [R_NGRAM_KEY] = { streams, c->ngram_dim },
        [R_NGRAM_VALUE] = { c->hidden, c->ngram_dim },
        [R_NGRAM_KEY_NORM] = { 1, streams },
        [R_NGRAM_QUERY_NORM] = { 1, streams },
        [R_NGRAM_CONV_NORM] = { 1, streams },
        [R_NGRAM_CONV] = { 1, streams * c->ngram_taps },
    };
    *N = shape[r].N;
    *K = shape[r].K;
}

double arch_idle_params(const arch_config *c)
{
    double one = 0, layers = 0;
    for (arch_role r = R_EXPERT_GATE; r <= R_EXPERT_DOWN; r++) {
        int64_t N, K;
        arch_role_shape(c, r, &N, &K);
        if (arch_name_of(c, r)) one += (double)N * (double)K;
    }
    for (int64_t i = 0; i < c->layers; i++)
        layers += c->layer[i].moe;
    return one * layers * (double)(c->experts > c->experts_used ? c->experts - c->experts_used : 0);
}
