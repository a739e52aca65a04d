/* runtime/model/device_support.c - which architectures the devices have no kernels for. */
#include "kernels/device.h"
#include "runtime/model/model.h"

/* Of a layer or outside them. */
static const struct {
    arch_role role;
    const char *what;
} no_kernels[] = {
    { R_HYPER_ATTN_UP, "hyper-connections with a gate for each dim" },
    { R_KEY_STEP, "scores with an addend of each key" },
    { R_PAIR_NORM, "transformers beside the residual" },
    { R_DIFF_Q1, "differential attention" },
    { R_MIX_ADMIT, "linear recurrent units" },
    { R_CCA_CONV, "attention of convolved queries and keys" },
    { R_K_CONV, "convolutions of keys, values and branches" },
    { R_ROUTER_IN, "a router of several layers" },
    { R_EMBED_BY, "factors on what the first layer reads" },
    { R_ATTN_JOIN, "gates on the residual" },
    { R_LATENT_NORM, "norms of what experts read" },
    { R_EXPERT_OUT_NORM, "norms of what each expert gives" },
    { R_HEAD_NORM, "an output head of activations that are normed" },
};

static const char *no_kernel_for(const arch_config *c)
{
    for (size_t i = 0; i < LQ_COUNT(no_kernels); i++)
        for (int64_t l = -1; l < c->layers; l++)
            if (arch_has(c, no_kernels[i].role, l)) return no_kernels[i].what;
    return NULL;
}

static bool compresses(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (arch_compresses(c, i)) return true;
    return false;
}

int64_t model_least_layers(const arch_config *c)
{
    int64_t most = 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].kv_back && c->layers - (i - c->layer[i].kv_back) > most)
            most = c->layers - (i - c->layer[i].kv_back);
    return most;
}

/* Do layers i and k differ in attention? */
static bool other_heads(const arch_config *c, int64_t i, int64_t k)
{
    const arch_config *a = arch_at(c, i), *b = arch_at(c, k);
    return c->layer[i].index_off != c->layer[k].index_off || a->heads != b->heads ||
           a->kv_heads != b->kv_heads || a->kv_lora != b->kv_lora ||
           (c->w.mla && a->rope_dims != b->rope_dims) || a->head_dim != b->head_dim ||
           a->v_dim != b->v_dim || c->layer[i].window != c->layer[k].window;
}

/* Layers that are like none before them. */
static int64_t kinds(const arch_config *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        int64_t k = 0;
        while (k < i && other_heads(c, i, k))
            k++;
        n += k == i;
    }
    return n;
}

/* Has some layer latents that attention does not take? */
static bool bad_latents(const arch_config *c)
{
    bool bad = false;
    for (int64_t i = 0; i < c->layers; i++) {
        const arch_config *own = arch_at(c, i);
        const int64_t n = own->kv_lora + own->rope_dims;
        bad |= n > DEV_ATTN_LATENT_WIDTH || n % 4;
    }
    return bad;
}

lq_status model_check_device(const arch_config *c, lq_err *err)
{
    const int64_t most = c->w.pos == POS_ALIBI ? DEV_ATTN_WIDTH : DEV_ATTN_HEAD;
    const bool heads =
        c->w.mla ? bad_latents(c)
                 : c->head_dim > most || c->head_dim % 4 || c->v_dim % 4 || c->v_dim > most;
    const char *what = no_kernel_for(c);
    if (!what && c->index_every && (arch_index_mean(c) || arch_shares_index(c)))
        what = arch_index_mean(c) ? "groups of positions by the mean of their keys"
                                  : "groups of positions that several layers attend to";
    if (!what && (c->index_block > DEV_TOPK_BLOCK ||
                  (c->index_block && c->index_topk / c->index_block > DEV_TOPK_BLOCKS)))
        what = "attention to blocks of such a size";
    if (!what && !c->index_block && c->index_topk > DEV_TOPK_MOST)
        what = "attention to so many chosen positions";
    if (!what && compresses(c)) what = "attention to compressed positions";
    if (!what && c->mix_key > DEV_SCAN_KEYS) what = "states of heads of this size";
    if (!what && kinds(c) > MODEL_KINDS) what = "so many kinds of layers";
    if (!what && model_least_layers(c) && (arch_has_state(c) || c->q_grow > 0))
        what = "layers that read the K and V of another";
    if (!what && heads) what = "heads of this size";
    if (!what && arch_choices(c) > DEV_EXPERTS) what = "so many experts";
    if (!what && c->w.head_rows_1) what = "an output head of rows of length 1";
    if (!what && c->w.o_norm_heads) what = "norms of what each head gives";
    if (!what && c->router_scale != 1) what = "a factor on the router's logits";
    if (!what && c->router_softcap > 0) what = "a cap on the router's logits";
    if (!what && c->dist_far) what = "scores with an addend of each distance";
    if (!what && c->row->window == WINDOW_CHUNKS && c->window % 8) /* no whole blocks */
        what = "attention in chunks of such a size";
    if (!what && (c->w.router > ROUTER_SPARSEMIXER || (c->w.share_in && c->experts_used > 1)))
        what = "this kind of router";
    if (!what) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: %s (%s)", what, c->row->arch);
}
