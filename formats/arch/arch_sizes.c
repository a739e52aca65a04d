/* formats/arch/arch_sizes.c - layers of different sizes: a config for each set of them; how much of their gates
 * is cut off. */
#include "formats/arch/arch_impl.h"

#include <stdlib.h>

arch_sizes arch_sizes_of(const arch_config *c, int64_t layer)
{
    const arch_config *own = arch_at(c, layer);
    return (arch_sizes){ own->kv_heads,   own->head_dim, own->rope_dims, own->ffn,  own->heads,
                         own->rel_extent, own->q_lora,   own->kv_lora,   own->v_dim };
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Ranks and widths of MLA; the scale on scores follows them. */
static void put_latents(arch_config *c, const arch_sizes *z)
{
    if (!c->w.mla) return;
    c->attn_scale *= sqrt((double)c->head_dim / (double)z->head_dim);
    if (c->w.latent_rescale) {
        c->attn_scale *= sqrt((double)c->q_lora / (double)z->q_lora);
        c->latent_scale = sqrt((double)c->hidden / (double)z->kv_lora);
    }
    c->nope_dims = z->head_dim - z->rope_dims;
    c->q_lora = z->q_lora;
    c->kv_lora = z->kv_lora;
    c->v_dim = z->v_dim;
}

static void put_sizes(arch_config *c, const arch_sizes *z)
{
    put_latents(c, z);
    c->kv_heads = z->kv_heads;
    if (!c->w.v_apart && !c->w.mla) c->v_dim = z->head_dim;
    c->head_dim = z->head_dim;
    c->rope_dims = z->rope_dims;
    c->ffn = z->ffn;
    c->heads = z->heads;
    c->rel_extent = z->rel_extent;
}

static bool same_sizes(const arch_config *c, const arch_sizes *z)
{
    return c->kv_heads == z->kv_heads && c->head_dim == z->head_dim &&
           c->rope_dims == z->rope_dims && c->ffn == z->ffn && c->heads == z->heads &&
           c->rel_extent == z->rel_extent &&
           (!c->w.mla ||
            (c->q_lora == z->q_lora && c->kv_lora == z->kv_lora && c->v_dim == z->v_dim));
}

/* The config with these sizes, made where there is none; NULL: no memory. */
static const arch_config *config_of(arch_config *c, const arch_sizes *z)
{
    for (int64_t i = 0; i < c->n_sizes; i++)
        if (same_sizes(c->sizes[i], z)) return c->sizes[i];
    arch_config **all = realloc(c->sizes, (size_t)(c->n_sizes + 1) * sizeof(arch_config *));
    if (!all) return NULL;
    c->sizes = all;
    arch_config *own = all[c->n_sizes] = malloc(sizeof *own);
    if (!own) return NULL;
    *own = *c;
    own->sizes = NULL;
    own->n_sizes = 0;
    put_sizes(own, z);
    c->n_sizes++;
    return own;
}

lq_status arch_set_sizes(arch_config *c, const arch_sizes *z, lq_err *err)
{
    arch_sizes most = z[0];
    for (int64_t i = 1; i < c->layers; i++)
        most = (arch_sizes){
            larger(most.kv_heads, z[i].kv_heads),   larger(most.head_dim, z[i].head_dim),
            larger(most.rope_dims, z[i].rope_dims), larger(most.ffn, z[i].ffn),
            larger(most.heads, z[i].heads),         larger(most.rel_extent, z[i].rel_extent),
            larger(most.q_lora, z[i].q_lora),       larger(most.kv_lora, z[i].kv_lora),
            larger(most.v_dim, z[i].v_dim)
        };
    put_sizes(c, &most);
    for (int64_t i = 0; i < c->layers; i++) {
        if (same_sizes(c, &z[i])) continue;
        c->layer[i].own = config_of(c, &z[i]);
        if (!c->layer[i].own) return lq_fail(err, LQ_ENOMEM, "no memory for the sizes of layers");
    }
    return LQ_OK;
}

void arch_free_sizes(arch_config *c)
{
    for (int64_t i = 0; i < c->n_sizes; i++)
        free(c->sizes[i]);
    free(c->sizes);
}

double arch_normal_quantile(double p)
{
    double low = -10, high = 10;
    for (int i = 0; i < 60; i++) {
        const double z = (low + high) / 2;
        *(erfc(-z / sqrt(2)) / 2 < p ? &low : &high) = z;
    }
    return high;
}
