/* formats/arch/rows/diffllama.c - DiffLlama: Llama with differential attention (runtime/forward/forward_diff.c). */
#include "formats/arch/rows/rows.h"

#include <inttypes.h>

static lq_status diff_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)j;
    c->v_dim = 2 * c->head_dim;
    if (c->kv_heads % 2 == 0 && c->heads % 2 == 0) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "num_key_value_heads: expected an even number, found %" PRId64,
                   c->kv_heads);
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name diffllama_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_DIFF_Q1, LAYER "self_attn.lambda_q1", NAME_BARE, BIAS_NO },
    { R_DIFF_K1, LAYER "self_attn.lambda_k1", NAME_BARE, BIAS_NO },
    { R_DIFF_Q2, LAYER "self_attn.lambda_q2", NAME_BARE, BIAS_NO },
    { R_DIFF_K2, LAYER "self_attn.lambda_k2", NAME_BARE, BIAS_NO },
    END,
};
static const arch_key diffllama_keys[] = {
    { "attention_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "lambda_std_dev", KEY_KNOWN, 0, NONE, NULL }, /* of training */
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_diffllama[] = {
    { "DiffLlamaForCausalLM", "diffllama", .w = { RMS_ROPE, .diff = true, .v_apart = true }, MODEL,
      .names = diffllama_names, .keys = diffllama_keys, .layers = diff_layers, .def_eps = 1e-5 },
    { .arch = NULL },
};
