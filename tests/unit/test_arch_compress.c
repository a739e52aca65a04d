/* tests/unit/test_arch_compress.c - DeepSeek V4's config.json, as it is published and as transformers writes it. */
#include "tests/support/arch_parse.h"

#define SIZES                                                                              \
    "\"architectures\":[\"DeepseekV4ForCausalLM\"],\"vocab_size\":320,\"hidden_size\":64," \
    "\"num_hidden_layers\":5,\"num_attention_heads\":8,\"head_dim\":32,\"qk_rope_head_dim\":8"
#define V4 "{" SIZES

/* Each is read once more from our own spelling. */
static lq_status both_ways(arch_config *c, const char *text, lq_err *err)
{
    arch_config first;
    lq_status s = arch_parse(&first, text, NULL, err);
    if (s) return s;
    cJSON *j = arch_config_json(&first);
    s = arch_config_from_json(c, j, err);
    CHECK(!s, "%s: our own spelling: %s", text, err->msg);
    cJSON_Delete(j);
    arch_config_free(&first);
    return s;
}

/* w: a window alone, s: sparse, h: heavy; large where experts are chosen by token. */
TEST(kinds_of_layers_are_read_in_every_spelling)
{
    static const struct {
        const char *config, *layers;
    } t[] = {
        { V4 "}", "HHHsh" },
        { V4 ",\"compress_ratios\":[0,0,4,128,4,0],\"num_hash_layers\":2}", "WWshs" },
        { V4 ",\"compress_ratios\":[128,128,4,128,4],\"num_hash_layers\":0}", "hhshs" },
        { V4 ",\"layer_types\":[\"sliding_attention\",\"compressed_sparse_attention\","
             "\"heavily_compressed_attention\",\"sliding_attention\",\"sliding_attention\"],"
             "\"mlp_layer_types\":[\"moe\",\"hash_moe\",\"moe\",\"moe\",\"hash_moe\"],"
             "\"num_hash_layers\":3}",
          "wShwW" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        if (both_ways(&c, t[i].config, &err)) {
            CHECK(false, "%s: %s", t[i].config, err.msg);
            continue;
        }
        for (int l = 0; l < 5; l++) {
            static const char letters[] = "wsh";
            const arch_mixer m = c.layer[l].mixer;
            const char is = letters[m == MIX_SPARSE  ? 1
                                    : m == MIX_HEAVY ? 2
                                                     : 0],
                       want = t[i].layers[l];
            CHECK(is == (want | 32) && c.layer[l].hashed == !(want & 32) && c.layer[l].moe,
                  "%s: layer %d", t[i].config, l);
            CHECK(c.layer[l].rope == (is == 'w' ? ROPE_MAIN : ROPE_LOCAL) &&
                      arch_has(&c, R_INDEX_Q, l) == (is == 's') &&
                      arch_has(&c, R_HEAVY_KV, l) == (is == 'h') &&
                      arch_has(&c, R_EXPERTS_OF, l) == c.layer[l].hashed &&
                      arch_has(&c, R_ROUTER_CORR, l) == !c.layer[l].hashed,
                  "%s: tensors of layer %d", t[i].config, l);
        }
        arch_config_free(&c);
    }
}

TEST(what_the_file_is_silent_about_is_as_in_transformers)
{
    arch_config c;
    lq_err err = { "" };
    const lq_status s =
        both_ways(&c,
                  "{\"architectures\":[\"DeepseekV4ForCausalLM\"],\"vocab_size\":320,"
                  "\"hidden_size\":64,\"num_hidden_layers\":5,"
                  "\"num_attention_heads\":8}",
                  &err);
    CHECK(!s, "%s", err.msg);
    if (s) return;
    CHECK(c.head_dim == 512 && c.rope_dims == 64 && c.q_lora == 1024 && c.o_groups == 8 &&
              c.o_lora == 1024 && c.window == 128 && c.sparse_every == 4 && c.heavy_every == 128 &&
              c.index_heads == 64 && c.index_dim == 128 && c.index_topk == 512,
          "attention: heads of %d, %d of them rotated", (int)c.head_dim, (int)c.rope_dims);
    CHECK(c.experts == 256 && c.experts_used == 6 && c.expert_ffn == 2048 && c.shared_ffn == 2048 &&
              near_to(c.expert_scale, 1.5) && c.w.router == ROUTER_SQRT_SOFTPLUS && c.w.norm_topk &&
              c.act == ARCH_SILU_LIMITED && near_to(c.act_limit, 10),
          "experts: %d of %d", (int)c.experts_used, (int)c.experts);
    CHECK(c.hyper == 4 && c.hyper_steps == 20 && near_to(c.hyper_eps, 1e-6) &&
              c.max_pos == 1048576 && near_to(c.norm_eps, 1e-6) && !c.tied,
          "%d streams", (int)c.hyper);
    CHECK(near_to(c.rope[ROPE_MAIN].theta, 1e4) && near_to(c.rope[ROPE_LOCAL].theta, 16e4) &&
              near_to(c.attn_scale, 1 / sqrt(512)),
          "bases %g and %g", c.rope[ROPE_MAIN].theta, c.rope[ROPE_LOCAL].theta);
    arch_config_free(&c);
}

/* The scaling is of layers that compress alone, and has no length factor of its own. */
TEST(positions_are_scaled_where_a_layer_compresses)
{
#define YARN \
    "\"factor\":16,\"original_max_position_embeddings\":65536,\"beta_fast\":32,\"beta_slow\":1"
    static const struct {
        const char *config;
        double theta, local, factor;
    } t[] = {
        { V4 ",\"rope_theta\":10000,\"compress_rope_theta\":40000,\"rope_scaling\":{\"type\":"
             "\"yarn\"," YARN "}}",
          1e4, 4e4, 1 },
        { V4 ",\"compress_rope_theta\":40000,\"rope_parameters\":{\"rope_type\":\"yarn\","
             "\"rope_theta\":5," YARN "}}",
          1e4, 4e4, 1 },
        { V4
          ",\"rope_parameters\":{\"main\":{\"rope_type\":\"default\",\"rope_theta\":20000},"
          "\"compress\":{\"rope_type\":\"yarn\",\"rope_theta\":30000,\"attention_factor\":1.5," YARN
          "}}}",
          2e4, 3e4, 1.5 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        const lq_status s = both_ways(&c, t[i].config, &err);
        CHECK(!s, "%s: %s", t[i].config, err.msg);
        if (s) continue;
        const arch_rope *main = &c.rope[ROPE_MAIN], *local = &c.rope[ROPE_LOCAL];
        CHECK(main->kind == ROPE_PLAIN && near_to(main->theta, t[i].theta) &&
                  local->kind == ROPE_YARN && near_to(local->theta, t[i].local) &&
                  near_to(local->attention_factor, t[i].factor) && local->original_max == 65536 &&
                  near_to(local->factor, 16),
              "%s: bases %g and %g", t[i].config, main->theta, local->theta);
        arch_config_free(&c);
    }
}

TEST(what_is_not_computed_is_refused_by_key)
{
    static const struct {
        const char *more, *says;
    } t[] = {
        { ",\"compress_ratios\":[0,0,4,64,4]", "compress_ratios: expected 0, 4 or 128" },
        { ",\"compress_ratios\":[0,0]", "compress_ratios: expected" },
        { ",\"layer_types\":[\"full_attention\"]", "layer_types: expected sliding_attention" },
        { ",\"compress_rates\":{\"compressed_sparse_attention\":3}", "sparse_every: expected" },
        { ",\"compress_rates\":{\"compressed_sparse_attention\":16}", "sparse_every: expected" },
        { ",\"compress_rate_hca\":100", "sparse_every: expected" },
        { ",\"mlp_layer_types\":[\"moe\",\"dense\",\"moe\",\"moe\"]", "mlp_layer_types: expected" },
        { ",\"o_groups\":3", "o_groups: expected a divisor of 8 heads" },
        { ",\"o_lora_rank\":24", "o_groups: expected" },
        { ",\"partial_rotary_factor\":0.5", "qk_rope_head_dim: expected what" },
        { ",\"scoring_func\":\"relu\"", "scoring_func: expected sqrtsoftplus" },
        { ",\"norm_topk_prob\":false", "norm_topk_prob: expected true" },
        { ",\"num_key_value_heads\":2", "num_key_value_heads: expected 1" },
        { ",\"hidden_act\":\"gelu\"", "hidden_act: expected silu" },
        { ",\"hc_mult\":9", "hc_mult: expected 1 to 8" },
        { ",\"hc_sinkhorn_iters\":0", "hc_mult: expected 1 to 8" },
        { ",\"rope_parameters\":{\"main\":{\"rope_type\":\"default\"}}",
          "rope_parameters: expected main" },
        { ",\"index_topk\":0", "index_topk: expected" },
        { ",\"attn_gate\":\"sigmoid\"", "attn_gate: expected no such key" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[1024];
        arch_config c;
        lq_err err = { "" };
        snprintf(text, sizeof text, V4 "%s}", t[i].more);
        const lq_status s = arch_parse(&c, text, NULL, &err);
        CHECK(s && strstr(err.msg, t[i].says), "%s: %s", t[i].more, s ? err.msg : "taken");
        if (!s) arch_config_free(&c);
    }
}

int main(int argc, char **argv)
{
    RUN(kinds_of_layers_are_read_in_every_spelling);
    RUN(what_the_file_is_silent_about_is_as_in_transformers);
    RUN(positions_are_scaled_where_a_layer_compresses);
    RUN(what_is_not_computed_is_refused_by_key);
    return check_end();
}
