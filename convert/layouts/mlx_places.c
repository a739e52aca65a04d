/* convert/layouts/mlx_places.c - what mlx-lm has under other names than a checkpoint, or otherwise: experts, of each layer one
 * stack [experts, outputs, inputs] for each projection, and what its `sanitize` leaves alone beside such stacks. Source:
 * mlx_lm/models/NAME.py of mlx-lm 0.32; an architecture is listed whose other tensors `sanitize` takes as they are. */
#include "convert/layouts/layout.h"

#include <stdio.h>

static const char *const GATED[] = { "gate_proj", "up_proj", "down_proj" };
static const char *const PLAIN[] = { "", "fc1", "fc2" };

static const struct {
    const char *arch, *module; /* after "layers.N." */
    const char *const *names;  /* of gate, up, down */
} stacks[] = {
    { "MixtralForCausalLM", "block_sparse_moe.switch_mlp", GATED },
    { "MiniMaxM2ForCausalLM", "block_sparse_moe.switch_mlp", GATED },
    { "PhimoeForCausalLM", "block_sparse_moe.switch_mlp", GATED },
    { "GraniteMoeForCausalLM", "block_sparse_moe.switch_mlp", GATED },
    { "GraniteMoeHybridForCausalLM", "block_sparse_moe.switch_mlp", GATED },
    { "Qwen2MoeForCausalLM", "mlp.switch_mlp", GATED },
    { "Qwen3MoeForCausalLM", "mlp.switch_mlp", GATED },
    { "Qwen3_5MoeForCausalLM", "mlp.switch_mlp", GATED },
    { "OlmoeForCausalLM", "mlp.switch_mlp", GATED },
    { "DeepseekV2ForCausalLM", "mlp.switch_mlp", GATED },
    { "DeepseekV3ForCausalLM", "mlp.switch_mlp", GATED },
    { "DeepseekV32ForCausalLM", "mlp.switch_mlp", GATED },
    { "Glm4MoeForCausalLM", "mlp.switch_mlp", GATED },
    { "Glm4MoeLiteForCausalLM", "mlp.switch_mlp", GATED },
    { "ExaoneMoeForCausalLM", "mlp.switch_mlp", GATED },
    { "MellumForCausalLM", "mlp.switch_mlp", GATED },
    { "SolarOpenForCausalLM", "mlp.switch_mlp", GATED },
    { "BailingMoeForCausalLM", "mlp.switch_mlp", GATED },
    { "BailingMoeV2ForCausalLM", "mlp.switch_mlp", GATED },
    { "LagunaForCausalLM", "mlp.switch_mlp", GATED },
    { "Dots1ForCausalLM", "mlp.experts", GATED },
    { "AfmoeForCausalLM", "mlp.experts", GATED },
    { "GptOssForCausalLM", "mlp.experts", GATED },
    { "Llama4ForCausalLM", "feed_forward.experts", GATED },
    { "Gemma4ForCausalLM", "experts.switch_glu", GATED },
    { "JambaForCausalLM", "feed_forward.switch_mlp", GATED },
    { "Qwen3NextForCausalLM", "mlp.switch_mlp", GATED },
    { "Lfm2MoeForCausalLM", "feed_forward.switch_mlp", GATED },
    { "NemotronHForCausalLM", "mixer.switch_mlp", PLAIN },
};

/* Linears whose codes are looked for under another last name. */
static const struct {
    const char *arch;
    arch_role role;
    const char *name;
} renamed[] = {
    { "Lfm2MoeForCausalLM", R_GATE, "gate_proj" },
    { "Lfm2MoeForCausalLM", R_UP, "up_proj" },
    { "Lfm2MoeForCausalLM", R_DOWN, "down_proj" },
};

static bool is_arch(const conv_plan *p, const char *arch)
{
    return strcmp(p->config->row->arch, arch) == 0;
}

/* "model.layers.3." and what follows there; NULL: no memory. */
static const char *module_of(const conv_weight *w, const char *module, const char *name,
                             lq_arena *a)
{
    char out[600];
    const char *at = strstr(w->t->name, "layers.") + strlen("layers.");
    const int n = snprintf(out, sizeof out, "%.*s.%s.%s", (int)(strchr(at, '.') - w->t->name),
                           w->t->name, module, name);
    return lq_push_str(a, out, (size_t)n);
}

static lq_status place_expert(conv_weight *w, const conv_plan *p, lq_arena *a, lq_err *err)
{
    const arch_config *c = p->config;
    const arch_role r = w->slot.role;
    size_t i = 0;
    while (i < LQ_COUNT(stacks) && !is_arch(p, stacks[i].arch))
        i++;
    if (i == LQ_COUNT(stacks))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "'%s': mlx holds experts as stacks, which are not written of %s", w->t->name,
                       c->row->arch);
    const bool both = r == R_EXPERT_GATE_UP;
    const char *name = stacks[i].names[r == R_EXPERT_DOWN ? 2 : r == R_EXPERT_UP ? 1 : 0];
    w->stack = c->experts;
    w->expert = arch_name_of(c, r)->flags & NAME_STACKED ? -1 : w->slot.expert;
    w->mixed = both && c->w.gate_up_mixed;
    w->module = module_of(w, stacks[i].module, name, a);
    if (both) w->up = module_of(w, stacks[i].module, stacks[i].names[1], a);
    return w->module && (w->up || !both) ? LQ_OK
                                         : lq_fail(err, LQ_ENOMEM, "no memory for the plan");
}

/* Its loader looks at experts that are apart, and changes nothing beside stacks. */
static void place_as_loaded(conv_weight *w, const conv_plan *p)
{
    const src_tensor *t = w->t;
    if (!w->model || w->slot.bias) {
        w->left_out = strncmp(t->name, "mtp.", 4) == 0;
        return;
    }
    w->add = t->n_dims == 1 ? arch_slot_offset(p->config, &w->slot) : 0;
    w->taps_first = t->n_dims == 3 && arch_name_of(p->config, w->slot.role)->flags & NAME_TAPS;
}

lq_status mlx_place(conv_weight *w, const conv_plan *p, lq_arena *a, lq_err *err)
{
    if (is_arch(p, "Qwen3NextForCausalLM")) place_as_loaded(w, p);
    if (w->model && arch_role_per_expert(w->slot.role)) return place_expert(w, p, a, err);
    for (size_t i = 0; w->model && w->module && i < LQ_COUNT(renamed); i++) {
        if (renamed[i].role != w->slot.role || !is_arch(p, renamed[i].arch)) continue;
        char out[600];
        const int n = (int)(strrchr(w->module, '.') + 1 - w->module);
        snprintf(out, sizeof out, "%.*s%s", n, w->module, renamed[i].name);
        w->module = lq_push_str(a, out, strlen(out));
        if (!w->module) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    }
    return LQ_OK;
}
