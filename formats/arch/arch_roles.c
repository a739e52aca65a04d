/* formats/arch/arch_roles.c - the kinds of the roles and mixers, and a role's entry in an architecture's names. */
#include "formats/arch/arch.h"

static const struct {
    const char *text;
    arch_kind kind;
} roles[] = {
#define X(name, text, kind) { text, kind },
    ARCH_ROLES(X)
#undef X
};

const char *arch_role_text(arch_role r) { return (unsigned)r < ARCH_N_ROLES ? roles[r].text : "?"; }
arch_kind arch_role_kind(arch_role r) { return roles[r].kind; }

bool arch_role_linear(arch_role r)
{
    return (unsigned)r < ARCH_N_ROLES && roles[r].kind == ARCH_LINEAR;
}

bool arch_role_per_layer(arch_role r) { return r >= R_ATTN_NORM && r < ARCH_N_ROLES; }
bool arch_role_per_expert(arch_role r) { return r >= R_EXPERT_GATE && r <= R_EXPERT_DOWN; }

/* Of every architecture without an arch_scorer. */
static const arch_name score_names[] = { { R_SCORE, "^score", 0, BIAS_NO },
                                         { ARCH_N_ROLES, NULL, 0, BIAS_NO } };

const arch_name *arch_label_names(const arch_config *c)
{
    if (c->head != HEAD_LABELS) return NULL;
    return c->row->scorer ? c->row->scorer->names : score_names;
}

const arch_name *arch_name_of(const arch_config *c, arch_role r)
{
    for (const arch_name *n = arch_label_names(c); n && n->role != ARCH_N_ROLES; n++)
        if (n->role == r) return n;
    for (const arch_name *n = c->mtp ? c->mtp->names : NULL; n && n->role != ARCH_N_ROLES; n++)
        if (n->role == r) return n;
    for (const arch_name *n = c->row->names; n->role != ARCH_N_ROLES; n++)
        if (n->role == r) return n;
    return NULL;
}

bool arch_role_exact(arch_role r)
{
    return (r >= R_ATTN_NORM_DOWN && r <= R_MLP_NORM_UP) || r == R_ROUTER || r == R_ROUTER_IN ||
           (r >= R_HYPER_ATTN_DOWN && r <= R_HYPER_MLP_POST) || r == R_KEY_STEP ||
           r == R_ROUTER_1 || r == R_ROUTER_2 || r == R_SHARED_ROUTER || r == R_INDEX_W ||
           r == R_HYPER_ATTN_FN || r == R_HYPER_MLP_FN || r == R_HYPER_END_FN ||
           r == R_HYPER_END_DOWN || r == R_REL_BANK || r == R_HYPER_END_UP ||
           (r >= R_MIX_BA && r <= R_MIX_STEP);
}

static const struct {
    const char *text;
    bool attends, state;
} mixers[] = {
#define X(name, text, attends, state) { text, attends, state },
    ARCH_MIXERS(X)
#undef X
};

const char *arch_mixer_text(arch_mixer m) { return mixers[m].text; }
bool arch_mixer_attends(arch_mixer m) { return mixers[m].attends; }
bool arch_mixer_has_state(arch_mixer m) { return mixers[m].state; }

bool arch_mixer_from_text(arch_mixer *m, const char *text)
{
    for (size_t i = 0; i < LQ_COUNT(mixers); i++)
        if (strcmp(mixers[i].text, text) == 0) return *m = (arch_mixer)i, true;
    return false;
}

int64_t arch_count_attending(const arch_config *c, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t i = from; i < to; i++)
        n += arch_mixer_attends(c->layer[i].mixer);
    return n;
}

bool arch_has_indexer(const arch_config *c, int64_t layer)
{
    const arch_layer *l = &c->layer[layer];
    if (!arch_indexed(c) || l->index_shared || l->index_off) return false;
    return c->row->mixer != MIX_SPARSE || l->mixer == MIX_SPARSE;
}

bool arch_index_mean(const arch_config *c)
{
    return arch_name_of(c, R_INDEX_Q) && !arch_name_of(c, R_INDEX_K);
}

bool arch_shares_index(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].index_shared) return true;
    return false;
}

int64_t arch_compresses(const arch_config *c, int64_t layer)
{
    const arch_mixer m = c->layer[layer].mixer;
    return m == MIX_SPARSE ? c->sparse_every : m == MIX_HEAVY ? c->heavy_every : 0;
}

bool arch_has_state(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (arch_mixer_has_state(c->layer[i].mixer)) return true;
    return false;
}

int64_t arch_mix_width(const arch_config *c, arch_mixer m)
{
    return m == MIX_CONV ? c->hidden : arch_mixer_scans(m) ? c->mix_heads * c->mix_value : 0;
}

int64_t arch_mix_decays(const arch_config *c)
{
    const arch_mixer m = c->row->mixer;
    const bool each = m == MIX_SELECT || m == MIX_LRU; /* value's own */
    return c->mix_heads * (m == MIX_KDA ? c->mix_key : each ? c->mix_value : 1);
}

/* As transformers has it, in float but for what depends on the layer alone. */
float arch_lightning_decay(const arch_config *c, int64_t layer, int64_t head)
{
    const double base = pow(2, -8.0 / (double)c->mix_heads),
                 part = 1 - (double)layer / ((double)(c->layers - 1) + 1e-5) + 1e-5;
    return expf(-(powf((float)base, (float)(head + 1)) * (float)part));
}

int64_t arch_conv_channels(const arch_config *c, arch_mixer m)
{
    const bool alone = m == MIX_CONV || m == MIX_SELECT || m == MIX_LRU; /* no keys */
    const int64_t keys = alone ? 0 : 2 * c->mix_groups * c->mix_key;
    return arch_mixer_scans(m) ? keys + arch_mix_width(c, m) : 0;
}
