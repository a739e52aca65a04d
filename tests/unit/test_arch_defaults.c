/* tests/unit/test_arch_defaults.c - what a silent config.json means: what transformers 5.23 assumes. */
#include "formats/arch/ngrams.h"

#include "tests/support/arch_parse.h"
#include "tests/support/check.h"

#include <stdlib.h>

/* What transformers 5.23 assumes of dense models of 32 heads and hidden 2048 whose config.json is
 * silent. */
TEST(defaults_of_dense_models_are_those_of_transformers)
{
    static const struct {
        const char *type;
        int64_t kv, head, max_pos;
        double eps, theta;
    } t[] = {
        { "llama", 32, 64, 2048, 1e-6, 10000 },
        { "mistral", 8, 64, 131072, 1e-6, 10000 },
        { "qwen2", 32, 64, 32768, 1e-6, 10000 },
        { "qwen3", 32, 128, 32768, 1e-6, 10000 },
        { "phi3", 32, 64, 4096, 1e-5, 10000 },
        { "olmo2", 32, 64, 2048, 1e-5, 10000 },
        { "granite", 32, 64, 2048, 1e-6, 10000 },
        { "olmo3", 32, 64, 2048, 1e-5, 500000 },
        { "exaone4", 32, 64, 2048, 1e-5, 10000 },
        { "glm", 2, 128, 131072, 1.5625e-7, 10000 },
        { "glm4", 2, 128, 131072, 1.5625e-7, 10000 },
        { "ernie4_5", 2, 128, 131072, 1e-5, 500000 },
        { "seed_oss", 8, 128, 524288, 1e-6, 10000 },
        { "ministral", 8, 64, 131072, 1e-6, 10000 },
        { "cohere2", 32, 64, 8192, 1e-5, 10000 },
        { "cohere", 32, 64, 8192, 1e-5, 500000 },
        { "stablelm", 32, 64, 4096, 1e-5, 10000 },
        { "starcoder2", 2, 64, 4096, 1e-5, 10000 },
        { "phi", 32, 64, 2048, 1e-5, 10000 },
        { "nemotron", 32, 64, 4096, 1e-5, 10000 },
        { "arcee", 32, 64, 4096, 1e-5, 10000 },
        { "olmo", 32, 64, 2048, 1e-5, 10000 },
        { "hunyuan_v1_dense", 32, 64, 2048, 1e-5, 10000 },
        { "hyperclovax", 32, 64, 2048, 1e-6, 10000 },
        { "jais2", 32, 64, 8192, 1e-5, 10000 },
        { "cwm", 8, 128, 131072, 1e-5, 1000000 },
        { "iquestcoder", 8, 128, 131072, 1e-5, 10000 },
        { "apertus", 32, 64, 65536, 1e-5, 12000000 },
        { "internlm3", 2, 128, 32768, 1e-5, 10000 },
        { "mllama_text_model", 8, 64, 131072, 1e-5, 500000 },
        { "granite_swa", 4, 64, 8192, 1e-5, 10000 },
        { "glm_ocr_text", 8, 64, 131072, 1e-5, 10000 },
        { "paddleocr_vl_text", 2, 128, 131072, 1e-5, 500000 },
        { "hunyuan_vl_text", 32, 64, 2048, 1e-5, 10000 },
        { "granite_docling_text", 4, 64, 32768, 1e-5, 10000 },
        { "granite4_vision_text", 32, 64, 2048, 1e-6, 10000 },
        { "nanochat", 32, 64, 2048, 1e-6, 10000 },
        { "phi4_multimodal", 8, 64, 131072, 1e-5, 10000 },
        { "emu3_text_model", 8, 64, 9216, 1e-5, 1000000 },
        { "smollm3", 4, 64, 32768, 1e-6, 2000000 },
        { "diffllama", 32, 64, 2048, 1e-5, 10000 },
        { "modernbert-decoder", 32, 64, 8192, 1e-5, 160000 },
        { "gemma", 16, 256, 8192, 1e-6, 10000 },
        { "doge", 32, 64 + 16, 2048, 1e-6, 10000 },
        { "gemma2", 4, 256, 8192, 1e-6, 10000 },
        { "vaultgemma", 4, 256, 8192, 1e-6, 10000 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[256];
        arch_config c;
        lq_err err = { "" };
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"vocab_size\":320,\"hidden_size\":2048,"
                 "\"num_hidden_layers\":4,\"num_attention_heads\":32,\"intermediate_size\":160}",
                 t[i].type);
        const lq_status s = arch_parse(&c, text, NULL, &err);
        CHECK(!s, "%s: %s", t[i].type, err.msg);
        if (s) continue;
        CHECK(c.kv_heads == t[i].kv && c.head_dim == t[i].head && c.max_pos == t[i].max_pos &&
                  near_to(c.norm_eps, t[i].eps) && near_to(c.rope[0].theta, t[i].theta),
              "%s: %d heads of %d, %d positions, %g, %g", t[i].type, (int)c.kv_heads,
              (int)c.head_dim, (int)c.max_pos, c.norm_eps, c.rope[0].theta);
        arch_config_free(&c);
    }
}

/* What transformers 5.23 assumes of mixtures whose config.json is silent. */
TEST(defaults_of_mixtures_are_those_of_transformers)
{
    static const struct {
        const char *type;
        int64_t experts, used, ffn, shared, dense, heads, max_pos;
        double eps, theta, scale;
        bool tied;
    } t[] = {
        { "glm4_moe_lite", 64, 4, 1536, 1536, 1, 4, 202752, 1e-5, 10000, 1.8, false },
        { "solar_open", 128, 8, 1280, 1280, 0, 8, 131072, 1e-5, 1e6, 1, false },
        { "minimax_m2", 256, 8, 160, 0, 0, 8, 196608, 1e-6, 5e6, 1, false },
        { "exaone_moe", 64, 8, 1024, 1024, 1, 32, 2048, 1e-5, 10000, 2.5, false },
        { "axk1", 192, 8, 2048, 2048, 1, 4, 32768, 1e-6, 10000, 2.5, false },
        { "ernie4_5_moe", 64, 6, 1536, 3072, 1, 4, 131072, 1e-5, 5e5, 1, true },
        { "bailing_moe", 256, 8, 512, 512, 1, 4, 32768, 1e-6, 6e5, 1, false },
        { "aria_text", 8, 2, 160, 320, 0, 4, 2048, 1e-6, 10000, 1, false },
        { "hunyuan_v1_moe", 1, 1, 160, 160, 0, 4, 2048, 1e-5, 10000, 1, false },
        { "hy_v3", 192, 8, 1536, 1536, 1, 8, 131072, 1e-5, 11158840, 2.826, false },
        { "granitemoeshared", 8, 2, 160, 0, 0, 4, 2048, 1e-6, 10000, 1, false },
        { "flex_olmo", 7, 5, 160, 0, 0, 4, 4096, 1e-6, 5e5, 1, false },
        { "phimoe", 16, 2, 160, 0, 0, 8, 131072, 1e-5, 1e6, 1, false },
        { "llama4_text", 16, 1, 160, 160, 0, 8, 131072, 1e-5, 5e5, 1, false },
        { "mistral4", 128, 4, 2048, 2048, 0, 4, 1048576, 1e-6, 10000, 1, false },
        { "youtu", 0, 0, 0, 0, 4, 4, 131072, 1e-6, 10000, 1, true },
        { "olmoe", 64, 8, 160, 0, 0, 4, 4096, 1e-5, 10000, 1, false },
        { "afmoe", 64, 6, 1408, 2816, 1, 4, 16384, 1e-5, 10000, 1, false },
        { "laguna", 256, 8, 512, 512, 1, 8, 131072, 1e-6, 5e5, 1, false },
        { "mellum", 64, 8, 896, 0, 0, 4, 131072, 1e-6, 5e5, 1, false },
        { "granitemoe_swa", 8, 2, 160, 0, 0, 4, 2048, 1e-6, 10000, 1, false },
        { "qwen3_omni_moe_text", 128, 8, 768, 0, 0, 4, 32768, 1e-6, 1e6, 1, false },
        { "qwen3_vl_moe_text", 60, 4, 1408, 0, 0, 16, 128000, 1e-6, 5e5, 1, true },
        { "glm4v_moe_text", 128, 8, 1408, 1408, 1, 8, 65536, 1e-5, 10000, 1, false },
        { "deepseek_ocr2_text", 64, 6, 1407, 2814, 0, 4, 2048, 1e-6, 10000, 1, false },
        { "deepseek_v32", 256, 8, 2048, 2048, 3, 4, 163840, 1e-6, 10000, 2.5, false },
        { "hy_v4", 256, 8, 768, 768, 1, 4, 262144, 1e-5, 10000, 2.827, false },
        { "mistral_large4_text", 128, 4, 6144, 6144, 1, 4, 1048576, 1e-5, 10000, 1, false },
        { "step3p5", 288, 8, 1280, 1280, 3, 8, 128000, 1e-5, 10000, 1, false },
        { "glm_moe_dsa", 256, 8, 2048, 2048, 3, 4, 202752, 1e-5, 10000, 2.5, false },
        { "axk2", 128, 8, 512, 512, 1, 4, 131072, 1e-6, 10000, 2.5, false },
        { "longcat_flash", 512, 12, 2048, 0, 0, 4, 131072, 1e-5, 1e7, 6, false },
        { "ernie4_5_vl_moe_text", 64, 6, 1536, 3072, 1, 4, 131072, 1e-5, 5e5, 1, true },
        { "dots3_note", 256, 8, 1536, 1536, 1, 64, 524288, 1e-5, 8e7, 1, false },
        { "dots3_note_text", 256, 8, 1536, 1536, 1, 64, 524288, 1e-5, 8e7, 1, false },
        { "beam", 256, 8, 2560, 0, 3, 8, 8192, 1e-6, 10000, 2.5, false },
        { "glm5_next_text", 288, 8, 2048, 2048, 3, 4, 1048576, 1e-5, 0, 2.5, false },
        { "muse_spark", 256, 8, 4096, 0, 0, 16, 1048576, 1e-5, 5e5, 1, false },
        { "minimax_m3_vl", 128, 4, 160, 3072, 0, 4, 524288, 1e-6, 5e6, 2, false },
        { "minimax_m3_vl_text", 128, 4, 160, 3072, 0, 4, 524288, 1e-6, 5e6, 2, false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[256];
        arch_config c;
        lq_err err = { "" };
        int64_t dense = 0;
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"vocab_size\":320,\"hidden_size\":512,"
                 "\"num_hidden_layers\":4,\"num_attention_heads\":%d,\"intermediate_size\":160}",
                 t[i].type, (int)t[i].heads);
        const lq_status s = arch_parse(&c, text, NULL, &err);
        CHECK(!s, "%s: %s", t[i].type, err.msg);
        if (s) continue;
        while (dense < 4 && !c.layer[dense].moe)
            dense++;
        CHECK(c.experts == t[i].experts && c.experts_used == t[i].used &&
                  c.expert_ffn == t[i].ffn && c.shared_ffn == t[i].shared && dense == t[i].dense,
              "%s: %d experts, %d used, of %d, %d shared, %d dense", t[i].type, (int)c.experts,
              (int)c.experts_used, (int)c.expert_ffn, (int)c.shared_ffn, (int)dense);
        CHECK(c.kv_heads == t[i].heads && c.max_pos == t[i].max_pos &&
                  near_to(c.norm_eps, t[i].eps) && near_to(c.rope[0].theta, t[i].theta) &&
                  near_to(c.expert_scale, t[i].scale) && c.tied == t[i].tied,
              "%s: other defaults", t[i].type);
        arch_config_free(&c);
    }
}

/* What transformers 5.23 assumes of models with a state. A layer's letter: what its mixer is called begins
 * so, large where it has experts, with - where it has no MLP; . is an MLP alone. */
TEST(defaults_of_models_with_a_state_are_those_of_transformers)
{
#define NEMOTRON ",\"layers_block_type\":[\"linear_attention\",\"moe\",\"full_attention\",\"mlp\"]"
    static const struct {
        const char *type, *more, *layers;
        int64_t kv_heads, head_dim, mix_heads, groups, key, value, taps, max_pos;
        int64_t experts, used, ffn, shared;
        double eps, theta;
        bool tied;
    } t[] = {
        { "qwen3_next", "", "DDDADDDA", 2, 256, 32, 16, 128, 128, 4, 32768, 512, 10, 512, 512, 1e-6,
          10000, false },
        { "qwen3_5_text", "", "dddaddda", 4, 256, 32, 16, 128, 128, 4, 32768, 0, 0, 0, 0, 1e-6,
          10000, false },
        { "qwen3_5_moe_text", "", "DDDADDDA", 2, 256, 32, 16, 128, 128, 4, 32768, 256, 8, 512, 512,
          1e-6, 10000, false },
        { "qwen4_exp_text",
          ",\"indexer_n_heads\":4,\"indexer_head_dim\":256,\"indexer_budget\":64,"
          "\"indexer_compress_ratio\":4",
          "DDDADDDA", 2, 256, 32, 16, 128, 128, 4, 32768, 512, 10, 512, 512, 1e-6, 10000, false },
        { "lfm2", "", "aaaaaaaa", 8, 64, 0, 0, 0, 0, 3, 128000, 0, 0, 0, 0, 1e-5, 1e6, true },
        { "lfm2_moe", "", "aaAAAAAA", 8, 64, 0, 0, 0, 0, 3, 128000, 32, 4, 1792, 0, 1e-5, 1e6,
          true },
        { "mamba2", "", "m-m-m-m-m-m-m-m-", 8, 64, 128, 8, 128, 64, 4, 262144, 0, 0, 0, 0, 1e-5, 0,
          false },
        { "mamba", ",\"intermediate_size\":1024", "s-s-s-s-s-s-s-s-", 8, 64, 1, 1, 16, 1024, 4,
          262144, 0, 0, 0, 0, 1e-5, 0, true },
        { "falcon_mamba", ",\"expand\":16,\"intermediate_size\":1024", "s-s-s-s-s-s-s-s-", 8, 64, 1,
          1, 16, 1024, 4, 262144, 0, 0, 0, 0, 1e-5, 0, true },
        { "bamba", ",\"mamba_n_heads\":16,\"attn_layer_indices\":[2,5]", "mmammamm", 8, 64, 16, 1,
          256, 64, 4, 262144, 0, 0, 0, 0, 1e-5, 10000, false },
        { "jamba", "", "sSsSaSsS", 8, 64, 1, 1, 16, 1024, 4, 262144, 16, 2, 160, 0, 1e-6, 0,
          false },
        { "nemotron_h", NEMOTRON, "m-.Ea-.", 8, 128, 128, 8, 128, 64, 4, 4096, 8, 2, 7688, 7688,
          1e-5, 0, false },
        { "granitemoehybrid", ",\"mamba_n_heads\":16", "MMMMMMMM", 8, 64, 16, 1, 256, 64, 4, 2048,
          8, 2, 160, 1024, 1e-6, 0, false },
        { "olmo_hybrid", "", "dddaddda", 8, 64, 8, 8, 48, 96, 4, 65536, 0, 0, 0, 0, 1e-6, 0,
          false },
        { "falcon_h1", "", "bbbbbbbb", 8, 64, 128, 1, 256, 8, 4, 8192, 0, 0, 0, 0, 1e-5, 10000,
          false },
        { "minimax", "", "ALALALAL", 8, 64, 8, 8, 64, 64, 1, 131072, 8, 2, 160, 0, 1e-5, 1e6,
          false },
        { "minimax_m1", ",\"postnorm\":true,\"attn_type_list\":[0,0,0,1,0,0,0,1],\"rotary_dim\":32",
          "LLLALLLA", 8, 64, 8, 8, 64, 64, 1, 131072, 8, 2, 160, 0, 1e-5, 1e6, false },
        { "kimi_linear", "", "kKKKAKKK", 8, 192, 32, 32, 128, 128, 4, 1048576, 256, 8, 1024, 1024,
          1e-5, 0, false },
        { "zaya", ",\"num_key_value_heads\":8", "CCCCCCCC", 8, 128, 0, 0, 0, 0, 2, 131072, 16, 1,
          2048, 0, 1e-5, 5e6, true },
        { "inkling", "", "TTTTTTTT", 16, 128, 0, 0, 0, 0, 4, 131072, 256, 6, 3072, 6144, 1e-6, 0,
          false },
        { "zamba", ",\"layers_block_type\":[\"mamba\",\"hybrid\"],\"num_key_value_heads\":8",
          "s-as-", 8, 128, 2, 1, 16, 512, 4, 4096, 0, 0, 0, 0, 1e-5, 0, true },
        { "zamba2", ",\"layers_block_type\":[\"mamba\",\"hybrid\"]", "m-am-", 8, 128, 8, 1, 64, 128,
          4, 4096, 0, 0, 0, 0, 1e-5, 0, true },
        { "recurrent_gemma", "", "llallall", 8, 64, 1, 1, 1, 512, 4, 8192, 0, 0, 0, 0, 1e-6, 10000,
          true },
        { "bailing_hybrid", "", "kkKKKAKK", 8, 192, 8, 8, 128, 128, 4, 262144, 512, 8, 768, 768,
          1e-6, 6e6, false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[512], layers[32] = "";
        arch_config c;
        lq_err err = { "" };
        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"vocab_size\":320,\"hidden_size\":512,%s"
                 "\"num_attention_heads\":8%s%s}",
                 t[i].type,
                 *t[i].more == ',' && t[i].more[2] == 'l' ? "" : "\"num_hidden_layers\":8,",
                 strstr(t[i].more, "intermediate") ? "" : ",\"intermediate_size\":160", t[i].more);
        const lq_status s = arch_parse(&c, text, NULL, &err);
        CHECK(!s, "%s: %s", t[i].type, err.msg);
        if (s) continue;
        for (int64_t k = 0; k < c.layers; k++) {
            const arch_layer *l = &c.layer[k];
            const char first = l->mixer == MIX_NONE ? '.' : arch_mixer_text(l->mixer)[0];
            char *at = layers + strlen(layers);
            *at++ = (char)(l->moe && first != '.' ? first - 'a' + 'A' : first);
            if (l->moe && first == '.') *at++ = 'E';
            if (l->no_mlp) *at++ = '-';
        }
        CHECK(!strcmp(layers, t[i].layers), "%s: layers %s, expected %s", t[i].type, layers,
              t[i].layers);
        CHECK(c.kv_heads == t[i].kv_heads && c.head_dim == t[i].head_dim &&
                  c.max_pos == t[i].max_pos && near_to(c.norm_eps, t[i].eps) &&
                  near_to(c.rope[0].theta, t[i].theta) && c.tied == t[i].tied,
              "%s: %d heads of keys of %d, %d positions, epsilon %g, theta %g", t[i].type,
              (int)c.kv_heads, (int)c.head_dim, (int)c.max_pos, c.norm_eps, c.rope[0].theta);
        CHECK(c.mix_heads == t[i].mix_heads && c.mix_groups == t[i].groups &&
                  c.mix_key == t[i].key && c.mix_value == t[i].value && c.conv_taps == t[i].taps,
              "%s: a state of %d heads in %d groups, %d by %d, %d taps", t[i].type,
              (int)c.mix_heads, (int)c.mix_groups, (int)c.mix_key, (int)c.mix_value,
              (int)c.conv_taps);
        CHECK(c.experts == t[i].experts && c.experts_used == t[i].used &&
                  c.expert_ffn == t[i].ffn && c.shared_ffn == t[i].shared,
              "%s: %d experts, %d used, of %d, %d shared", t[i].type, (int)c.experts,
              (int)c.experts_used, (int)c.expert_ffn, (int)c.shared_ffn);
        arch_config_free(&c);
    }
}

/* gpt-oss is scaled where config.json says no rotation; a part of Laguna's heads rotates only where no table says another;
 * tables of LFM3 without a base have one base, that of its class. */
TEST(rotations_that_are_not_said_are_those_of_transformers)
{
    static const struct {
        const char *model;
        arch_rope_kind kind;
        double factor;
        int64_t dims;
        double theta, local;
    } t[] = {
        { "\"gpt_oss\"", ROPE_YARN, 32, 64, 150000, 150000 },
        { "\"gpt_oss\",\"rope_scaling\":null", ROPE_YARN, 32, 64, 150000, 150000 },
        { "\"laguna\"", ROPE_PLAIN, 1, 64, 500000, 10000 },
        { "\"laguna\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":500000},"
          "\"sliding_attention\":{\"rope_theta\":10000}}",
          ROPE_PLAIN, 1, 128, 500000, 10000 },
        { "\"lfm3\"", ROPE_PROPORTIONAL, 1, 128, 1000000, 10000 },
        { "\"lfm3\",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\"},"
          "\"sliding_attention\":{\"rope_type\":\"default\"}}",
          ROPE_PROPORTIONAL, 1, 128, 1000000, 1000000 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[400];
        arch_config c;
        lq_err err = { "" };
        snprintf(text, sizeof text,
                 "{\"vocab_size\":320,\"hidden_size\":512,\"num_hidden_layers\":4,"
                 "\"num_attention_heads\":8,\"intermediate_size\":160,\"model_type\":%s}",
                 t[i].model);
        const lq_status s = arch_parse(&c, text, NULL, &err);
        CHECK(!s, "%s: %s", t[i].model, err.msg);
        if (s) continue;
        const arch_rope *r = &c.rope[ROPE_MAIN];
        CHECK(near_to(r->theta, t[i].theta) && near_to(c.rope[ROPE_LOCAL].theta, t[i].local),
              "%s: theta %g and %g", t[i].model, r->theta, c.rope[ROPE_LOCAL].theta);
        CHECK(r->kind == t[i].kind && near_to(r->factor, t[i].factor) && c.rope_dims == t[i].dims,
              "%s: %s, %g times, %d dims", t[i].model, arch_rope_text(r->kind), r->factor,
              (int)c.rope_dims);
        arch_config_free(&c);
    }
}

/* google/gemma-2b and 7b say "gelu", with or without a hidden_activation of null. */
TEST(gelu_of_the_first_gemma_is_its_approximation)
{
    static const struct {
        const char *more;
        arch_act act;
    } t[] = {
        { "", ARCH_GELU_TANH },
        { ",\"hidden_act\":\"gelu\"", ARCH_GELU_TANH },
        { ",\"hidden_act\":\"gelu\",\"hidden_activation\":null", ARCH_GELU_TANH },
        { ",\"hidden_act\":\"gelu\",\"hidden_activation\":\"gelu_pytorch_tanh\"", ARCH_GELU_TANH },
        { ",\"hidden_act\":\"silu\",\"hidden_activation\":\"gelu_pytorch_tanh\"", ARCH_SILU },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[300];
        arch_config c;
        lq_err err = { "" };
        snprintf(text, sizeof text,
                 "{\"model_type\":\"gemma\",\"vocab_size\":320,\"hidden_size\":512,"
                 "\"num_hidden_layers\":4,\"num_attention_heads\":16,\"intermediate_size\":160%s}",
                 t[i].more);
        const lq_status s = arch_parse(&c, text, NULL, &err);
        CHECK(!s, "%s: %s", t[i].more, err.msg);
        if (s) continue;
        CHECK(c.act == t[i].act, "%s: %d", t[i].more, (int)c.act);
        arch_config_free(&c);
    }
}

/* The published model's sizes: what Qwen4ExpTextNGramEmbedding of transformers 5.23 makes of them. */
TEST(rows_of_ngrams_are_those_of_transformers)
{
    static const struct {
        int64_t layer, rows, first, last;
        uint64_t by[3];
    } t[] = {
        { 1, 320001536, 20000003, 20000171, { 23703573157769, 20109073645365, 8052911324071 } },
        { 2, 320005120, 20000213, 20000429, { 3352040966061, 19752442147475, 10742103100073 } },
    };
    arch_config c;
    arch_ngrams z;
    lq_err err = { "" };
    CHECK(
        !arch_parse(&c,
                    "{\"model_type\":\"qwen4_exp_text\",\"vocab_size\":248320,\"hidden_size\":2048,"
                    "\"num_hidden_layers\":4,\"num_attention_heads\":16,\"eos_token_id\":[5,6],"
                    "\"indexer_n_heads\":4,\"indexer_head_dim\":256,\"indexer_budget\":64,"
                    "\"indexer_compress_ratio\":4,\"ple_layer_ids\":[3,2,3]}",
                    NULL, &err),
        "%s", err.msg);
    CHECK(c.ngram_pad == 5 && c.ngram_dim == 2048 && arch_ngram_width(&c) == 128 &&
              arch_ngram_back(&c) == 9 && c.ngram_rows == t[1].rows && !c.layer[0].ngrams,
          "%lld rows", (long long)c.ngram_rows);
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_ngrams_of(&z, &c, t[i].layer);
        CHECK(z.heads == 16 && z.rows == t[i].rows && z.size[0] == t[i].first &&
                  z.size[15] == t[i].last && z.at[1] == z.size[0] &&
                  !memcmp(z.by, t[i].by, sizeof t[i].by),
              "layer %lld: %lld rows", (long long)t[i].layer, (long long)z.rows);
    }
    arch_config_free(&c);
}

int main(int argc, char **argv)
{
    RUN(defaults_of_dense_models_are_those_of_transformers);
    RUN(defaults_of_mixtures_are_those_of_transformers);
    RUN(defaults_of_models_with_a_state_are_those_of_transformers);
    RUN(rotations_that_are_not_said_are_those_of_transformers);
    RUN(gelu_of_the_first_gemma_is_its_approximation);
    RUN(rows_of_ngrams_are_those_of_transformers);
    return check_end();
}
