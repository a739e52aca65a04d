/* formats/arch/rows/doge.c - Doge: scores with an addend of each key, made of its values; the residual is multiplied
 * dim by dim where a branch joins. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>

enum { PAD = 16 }; /* of a key for its addend: heads stay of whole registers */

/* Up to so many positions all keys are attended to; beyond, those of the largest addends would be. */
static lq_status keep_window(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t n = 2048;
    if (v && !js_whole(v, 1, INT32_MAX, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
    if (n < c->max_pos) c->max_pos = n;
    return LQ_OK;
}

static lq_status doge_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)j, (void)err;
    c->key_pad = PAD;
    c->head_dim += PAD;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name doge_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP),
    QK_NORMS,
    { R_KEY_STEP, LAYER "self_attn.dt_proj", 0, BIAS_ATTN },
    { R_KEY_RATE, LAYER "self_attn.A", NAME_BARE, BIAS_NO },
    { R_ATTN_JOIN_X_BY, LAYER "input_residual", NAME_BARE, BIAS_NO },
    { R_MLP_JOIN_X_BY, LAYER "post_attention_residual", NAME_BARE, BIAS_NO },
    END,
};
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
static const arch_key doge_keys[] = {
    { "keep_window_size", KEY_FN, 0, NONE, keep_window },
    MUST("is_moe", 0),
    KNOWN("num_experts"), KNOWN("num_experts_per_tok"), KNOWN("norm_topk_prob"), /* of is_moe */
    NO_KEY,
};

const arch_row arch_rows_doge[] = {
    { "DogeForCausalLM", "doge", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .v_apart = true }, MODEL,
      .names = doge_names, .keys = doge_keys, .layers = doge_layers, .window = WINDOW_ALL,
      .ends_at = "keep_window_size" },
    { .arch = NULL },
};
/* clang-format on */
