/* tests/unit/test_arch.c - config.json to numbers, names of tensors, rotary tables; refusals: test_arch_refused.c. */
#include "formats/arch/arch.h"

#include "base/json.h"
#include "tests/support/arch_parse.h"
#include "tests/support/arch_texts.h"
#include "tests/support/archs.h"
#include "tests/support/check.h"

#include <stdlib.h>

#define STEP "{\"model_type\":\"step3p5\"," BASE
#define M3                                                                                  \
    "{\"model_type\":\"minimax_m3_vl\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_" \
    "layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16"

TEST(defaults_are_those_of_transformers)
{
    arch_config c;
    lq_err err = { "" };
    CHECK(!arch_parse(&c, LLAMA "}", NULL, &err), "%s", err.msg);
    CHECK(c.kv_heads == 4 && c.head_dim == 16 && c.max_pos == 2048 && near_to(c.norm_eps, 1e-6),
          "llama");
    CHECK(!c.tied && c.attn_bias == -1 && c.mlp_bias == -1 && c.act == ARCH_SILU, "llama");
    CHECK(c.rope[0].kind == ROPE_PLAIN && near_to(c.rope[0].theta, 10000) && c.rope_dims == 16,
          "llama");
    CHECK(c.bos == -1 && c.n_eos == 0 && c.dtype == LQ_F32 && near_to(c.attn_scale, 0.25), "llama");
    CHECK(!c.window && !c.layer[0].window, "llama has no window");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, MISTRAL "}", NULL, &err), "%s", err.msg);
    CHECK(c.window == 4096 && c.layer[0].window && c.layer[3].window, "mistral has one by default");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, QWEN3 "}", NULL, &err), "%s", err.msg);
    CHECK(c.head_dim == 128 && c.w.qk_norm && !c.window, "qwen3's heads are 128 by default");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, "{\"architectures\":[\"Gemma3TextModel\"]," BASE2 "}", NULL, &err), "%s",
          err.msg);
    CHECK(c.head == HEAD_NONE && c.tied && !strcmp(c.row->arch, "Gemma3ForCausalLM"), "no words");
    arch_config_free(&c);
    CHECK(!arch_parse(&c,
                      "{\"model_type\":\"codegen\",\"vocab_size\":320,\"n_embd\":512,"
                      "\"n_layer\":1,\"n_head\":8}",
                      NULL, &err),
          "%s", err.msg);
    CHECK(c.rope_dims == 64 && near_to(c.norm_eps, 1e-5) && c.act == ARCH_GELU_TANH, "codegen");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, "{\"model_type\":\"biogpt\",\"layer_norm_eps\":1e-12," BASE "}", NULL,
                      &err),
          "%s", err.msg);
    CHECK(near_to(c.norm_eps, 1e-5) && near_to(c.embed_scale, 8),
          "biogpt's norms have torch's eps");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, "{\"architectures\":[\"TeleChat3ForCausalLM\"]," BASE2 "}", NULL, &err),
          "%s", err.msg);
    CHECK(c.kv_heads == 2 && c.head_dim == 16 && c.act == ARCH_SILU && !c.window && !c.tied,
          "telechat3");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, "{\"architectures\":[\"BailingMoeForCausalLM\"]," BASE2 "}", NULL, &err),
          "%s", err.msg);
    CHECK(c.experts == 16 && c.experts_used == 2 && c.expert_ffn == 160 && !c.shared_ffn &&
              c.w.norm_topk && near_to(c.norm_eps, 1e-5) && c.max_pos == 16384,
          "ling");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, "{\"model_type\":\"openai-gpt\"," BASE "}", NULL, &err), "%s", err.msg);
    CHECK(c.max_pos == 512 && c.act == ARCH_GELU_TANH && c.tied && c.w.norm_after_add,
          "openai-gpt");
    arch_config_free(&c);
    CHECK(!arch_parse(&c, "{\"model_type\":\"ministral3\"," BASE2 "}", NULL, &err), "%s", err.msg);
    CHECK(c.rope[0].kind == ROPE_YARN && c.q_grow_every == 16384 && c.head_dim == 128 &&
              arch_q_factor(&c, 0, 16383) == 1 &&
              fabs((double)arch_q_factor(&c, 0, 16384) - 1.0693147) < 1e-6,
          "ministral3's queries grow beyond 16,384 positions");
    arch_config_free(&c);
}

TEST(stepfuns_words_are_those_of_transformers)
{
    static const char *const texts[] = {
        STEP ",\"num_nextn_predict_layers\":1,\"num_attention_groups\":2,\"moe_top_k\":3,"
             "\"moe_num_experts\":6,\"moe_layers_enum\":\"2,3,4\",\"sliding_window\":8,"
             "\"attention_other_setting\":{\"num_attention_heads\":8,\"num_attention_groups\":2},"
             "\"rope_theta\":[5e6,1e4,1e4,5e6,5e6],\"partial_rotary_factors\":[0.5,1,1,0.5,0.5],"
             "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1,"
             "\"high_freq_factor\":32,\"original_max_position_embeddings\":16},"
             "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\","
             "\"full_attention\",\"full_attention\"],\"swiglu_limits\":[0,0,0,7,7]}",
        STEP ",\"num_key_value_heads\":2,\"num_experts_per_tok\":3,\"n_routed_experts\":6,"
             "\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"sparse\"],\"sliding_window\":8,"
             "\"num_sliding_attention_heads\":8,\"per_layer_config\":{\"1\":{"
             "\"num_attention_heads\":8},\"2\":{\"num_attention_heads\":8}},\"rope_parameters\":{"
             "\"full_attention\":{\"rope_theta\":5e6,\"partial_rotary_factor\":0.5,\"rope_type\":"
             "\"llama3\",\"factor\":2,\"low_freq_factor\":1,\"high_freq_factor\":32,"
             "\"original_max_position_embeddings\":16},\"sliding_attention\":{\"rope_theta\":1e4,"
             "\"partial_rotary_factor\":1,\"rope_type\":\"default\"}},\"layer_types\":["
             "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"],"
             "\"swiglu_limits\":[null,null,null,7]}"
    };
    char *own[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        arch_config c;
        lq_err err = { "" };
        CHECK(!arch_parse(&c, texts[i], NULL, &err), "%d: %s", i, err.msg);
        CHECK(c.n_sizes == 1 && c.layer[3].expert_limit > 6 && !c.layer[1].moe && c.layer[2].moe,
              "%d: layers", i);
        cJSON *j = arch_config_json(&c);
        own[i] = cJSON_PrintUnformatted(j);
        cJSON_Delete(j);
        arch_config_free(&c);
    }
    CHECK(own[0] && own[1] && strcmp(own[0], own[1]) == 0, "%s, and %s", own[0], own[1]);
    free(own[0]);
    free(own[1]);
}

TEST(the_head_of_baichuan_2_has_rows_of_length_1)
{
    static const struct {
        const char *config;
        bool rows_1;
    } t[] = { { "{\"model_type\":\"baichuan\"," BASE "}", false },
              { "{\"model_type\":\"baichuan\"," BASE ",\"z_loss_weight\":0}", true },
              { "{\"model_type\":\"baichuan\",\"vocab_size\":125696,\"hidden_size\":64,"
                "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"intermediate_size\":64}",
                true } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        CHECK(!arch_parse(&c, t[i].config, NULL, &err), "%s: %s", t[i].config, err.msg);
        CHECK(c.w.head_rows_1 == t[i].rows_1, "%s", t[i].config);
        arch_config_free(&c);
    }
}

/* The text part at the top, or beside others; what layers with a window have for their own as swa_..., or layer by
 * layer where it is not the model's. */
TEST(dots_words_are_those_of_transformers)
{
    static const char *const texts[] = {
        "{\"architectures\":[\"Dots3NoteForConditionalGeneration\"],\"model_type\":\"dots3_"
        "note\"," BASE
        ",\"n_routed_experts\":8,\"sliding_window_size\":8,\"swa_num_attention_heads\":2,"
        "\"swa_num_key_value_heads\":2,\"swa_kv_lora_rank\":48,\"swa_head_dim\":24,"
        "\"swa_qk_nope_head_dim\":16,\"swa_v_head_dim\":20,\"q_lora_rank\":1024,"
        "\"moe_shared_expert_intermediate_size\":24,\"n_shared_experts\":2,"
        "\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\","
        "\"sliding_attention\"],\"use_dsa\":true,\"apply_mla_qkv_lora_rescale\":true,"
        "\"rope_theta\":7e7,\"swa_rope_theta\":6e4,\"rope_scaling\":{},\"moe_layer_freq\":[1,0,1,1]"
        ","
        "\"attention_gate_type\":\"headwise\",\"vision_config\":{}}",
        "{\"architectures\":[\"Dots3NoteForConditionalGeneration\"],\"model_type\":\"dots3_note\","
        "\"text_config\":{\"model_type\":\"dots3_note_text\"," BASE
        ",\"n_routed_experts\":8,\"sliding_window\":8,\"head_dim\":24,"
        "\"shared_experts_intermediate_size\":48,\"per_layer_config\":{\"2\":{"
        "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"kv_lora_rank\":48,"
        "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":20},\"3\":{"
        "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"kv_lora_rank\":48,"
        "\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":20}},"
        "\"q_lora_rank\":1024,\"layer_types\":[\"indexed_attention\",\"indexed_attention\","
        "\"sliding_attention\",\"sliding_attention\"],\"rope_parameters\":{"
        "\"indexed_attention\":{\"rope_type\":\"default\",\"rope_theta\":7e7,"
        "\"partial_rotary_factor\":2.7},\"sliding_attention\":{\"rope_theta\":6e4,"
        "\"rope_type\":\"default\",\"partial_rotary_factor\":0.3}},"
        "\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"sparse\"],\"use_dsa\":null},"
        "\"vision_config\":{}}"
    };
    char *own[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        arch_config c;
        lq_err err = { "" };
        CHECK(!arch_parse(&c, texts[i], NULL, &err), "%d: %s", i, err.msg);
        const arch_config *near = arch_at(&c, 2), *far = arch_at(&c, 1);
        CHECK(near->kv_lora == 48 && near->rope_dims == 8 && near->v_dim == 20 &&
                  far->kv_lora == 512 && far->rope_dims == 64 && far->head_dim == 192 &&
                  c.layer[2].index_off && c.layer[2].window && !c.layer[1].window &&
                  !c.layer[1].index_off && !c.layer[0].moe && !c.layer[1].moe && c.layer[2].moe,
              "%d: layers", i);
        CHECK(near_to(near->attn_scale, sqrt(64 / 1024.0 / 24)) &&
                  near_to(far->attn_scale, sqrt(64 / 1024.0 / 192)) &&
                  near_to(near->latent_scale, sqrt(64 / 48.0)) &&
                  near_to(far->latent_scale, sqrt(64 / 512.0)) && c.shared_ffn == 48,
              "%d: scales", i);
        cJSON *j = arch_config_json(&c);
        own[i] = cJSON_PrintUnformatted(j);
        cJSON_Delete(j);
        arch_config_free(&c);
    }
    CHECK(own[0] && own[1] && strcmp(own[0], own[1]) == 0, "%s, and %s", own[0], own[1]);
    free(own[0]);
    free(own[1]);
}

TEST(minimaxs_words_are_those_of_transformers)
{
    static const char *const texts[] = {
        M3 ",\"intermediate_size\":24,\"dense_intermediate_size\":96,\"moe_layer_freq\":[0,1,1,1],"
           "\"sparse_attention_config\":{\"use_sparse_attention\":true,\"sparse_attention_freq\":["
           "0,0,1,1],\"sparse_disable_index_value\":[0,0,1,1],\"sparse_num_index_heads\":2,"
           "\"sparse_index_dim\":16,\"sparse_block_size\":32,\"sparse_topk_blocks\":3,"
           "\"sparse_local_block\":2,\"sparse_init_block\":0,\"sparse_score_type\":\"max\"}}",
        M3
        ",\"intermediate_size\":24,\"dense_intermediate_size\":96,\"mlp_layer_types\":[\"dense\","
        "\"sparse\",\"sparse\",\"sparse\"],\"index_n_heads\":2,\"index_head_dim\":16,"
        "\"index_block_size\":32,\"index_topk_blocks\":3,\"index_local_blocks\":2,"
        "\"layer_types\":[\"full_attention\",\"full_attention\",\"minimax_m3_sparse\","
        "\"minimax_m3_sparse\"]}"
    };
    char *own[2] = { NULL, NULL };
    for (int i = 0; i < 2; i++) {
        arch_config c;
        lq_err err = { "" };
        CHECK(!arch_parse(&c, texts[i], NULL, &err), "%d: %s", i, err.msg);
        CHECK(c.ffn == 96 && c.expert_ffn == 24 && c.index_topk == 96 && c.index_local == 2 &&
                  !arch_has_indexer(&c, 1) && arch_has(&c, R_INDEX_Q_NORM, 2) && !c.layer[0].moe,
              "%d: sizes and layers", i);
        cJSON *j = arch_config_json(&c);
        arch_config back;
        CHECK(!arch_config_from_json(&back, j, &err) && back.layer[1].index_off &&
                  !back.layer[2].index_off && back.index_block == 32,
              "%d: %s", i, err.msg);
        arch_config_free(&back);
        own[i] = cJSON_PrintUnformatted(j);
        cJSON_Delete(j);
        arch_config_free(&c);
    }
    CHECK(own[0] && own[1] && strcmp(own[0], own[1]) == 0, "%s, and %s", own[0], own[1]);
    free(own[0]);
    free(own[1]);
}

/* Of a null transformers makes a factor of 1. */
TEST(scales_of_minicpm_are_relative_to_its_sizes)
{
    static const struct {
        const char *more;
        double residual, logit;
    } t[] = {
        { "", 0.7, 4 },
        { ",\"scale_depth\":2,\"dim_model_base\":16", 1, 0.25 },
        { ",\"scale_depth\":null,\"dim_model_base\":null", 1, 1 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char text[400];
        arch_config c;
        lq_err err = { "" };
        snprintf(text, sizeof text, "{\"model_type\":\"minicpm3\"," BASE "%s}", t[i].more);
        CHECK(!arch_parse(&c, text, NULL, &err), "%s: %s", t[i].more, err.msg);
        CHECK(near_to(c.residual_scale, t[i].residual) && near_to(c.logit_scale, t[i].logit),
              "%s: %g, %g", t[i].more, c.residual_scale, c.logit_scale);
        arch_config_free(&c);
    }
}

TEST(sliding_windows_follow_every_spelling)
{
    static const struct {
        const char *why, *config;
        int64_t window;
        const char *layers; /* w: has the window */
    } t[] = {
        { "mistral", MISTRAL ",\"sliding_window\":16}", 16, "wwww" },
        { "mistral null", MISTRAL ",\"sliding_window\":null}", 0, "...." },
        { "mistral with layer types",
          MISTRAL
          ",\"sliding_window\":16,\"layer_types\":[\"full_attention\",\"sliding_attention\","
          "\"full_attention\",\"sliding_attention\"]}",
          16, ".w.w" },
        { "llama ignores it", LLAMA ",\"sliding_window\":16}", 0, "...." },
        { "qwen2 not used", QWEN2 ",\"sliding_window\":16,\"max_window_layers\":0}", 0, "...." },
        { "qwen2 used from a layer on",
          QWEN2 ",\"sliding_window\":16,\"use_sliding_window\":true,\"max_window_layers\":3}", 16,
          "...w" },
        { "qwen2 used from 28 on", QWEN2 ",\"sliding_window\":16,\"use_sliding_window\":true}", 0,
          "...." },
        { "qwen2-vl used from 80 on",
          "{\"model_type\":\"qwen2_vl\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_"
          "layers\":40,"
          "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":160,"
          "\"sliding_window\":16,\"use_sliding_window\":true}",
          0, "...." },
        { "qwen3 by layer types",
          QWEN3
          ",\"sliding_window\":8,\"use_sliding_window\":true,\"layer_types\":["
          "\"sliding_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
          8, "w..w" },
        { "qwen3 layer types but not used",
          QWEN3
          ",\"sliding_window\":8,\"use_sliding_window\":false,\"layer_types\":["
          "\"sliding_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
          0, "...." },
        { "qwen3-moe used: all, as transformers does",
          QWEN3_MOE ",\"sliding_window\":8,\"use_sliding_window\":true,\"max_window_layers\":2}", 8,
          "wwww" },
        { "qwen3-moe not used", QWEN3_MOE ",\"sliding_window\":8}", 0, "...." },
        { "smollm3: those that do not rotate",
          SMOLLM3 ",\"sliding_window\":8,\"use_sliding_window\":true}", 8, ".w.w" },
        { "smollm3 not used", SMOLLM3 ",\"sliding_window\":8}", 0, "...." },
        { "dots1 from a layer on",
          "{\"model_type\":\"dots1\"," BASE ",\"num_key_value_heads\":2,\"n_routed_experts\":4,"
          "\"num_experts_per_tok\":2,\"sliding_window\":8,\"max_window_layers\":2}",
          8, "..ww" },
        { "dots1 from 62 on",
          "{\"model_type\":\"dots1\"," BASE ",\"num_key_value_heads\":2,\"n_routed_experts\":4,"
          "\"num_experts_per_tok\":2}",
          0, "...." },
        { "flint: not the first two, every fourth and the last",
          "{\"model_type\":\"flint\"," BASE2 "}", 513, "..w." },
        { "kolibri: four of five", "{\"model_type\":\"kolibri1\"," BASE2 "}", 513, "wwww" },
        { "cohere-compass: none unasked", "{\"model_type\":\"cohere_compass\"," BASE2 "}", 0,
          "...." },
        { "muse: of four the last sees all", "{\"model_type\":\"muse_glimmer\"," BASE2 "}", 2048,
          "www." },
        { "muse spark: likewise", "{\"model_type\":\"muse_spark\"," BASE2 "}", 2048, "www." },
        { "lfm3: beside convolutions",
          "{\"model_type\":\"lfm3\"," BASE2 ",\"layer_types\":[\"conv\",\"sliding_attention\","
          "\"full_attention\",\"conv\"]}",
          256, ".w.." },
        { "ettin: half of ModernBERT's", "{\"model_type\":\"modernbert-decoder\"," BASE "}", 64,
          ".ww." },
        { "ettin: half of what is said",
          "{\"model_type\":\"modernbert-decoder\"," BASE
          ",\"local_attention\":10,\"global_attn_every_n_layers\":2}",
          5, ".w.w" },
        { "ettin: what is seen counts",
          "{\"model_type\":\"modernbert-decoder\"," BASE
          ",\"local_attention\":10,\"sliding_window\":3}",
          3, ".ww." },
        { "recurrent-gemma: all that attend", "{\"model_type\":\"recurrent_gemma\"," BASE "}", 2048,
          "..w." },
        { "recurrent-gemma: by both names",
          "{\"model_type\":\"recurrent_gemma\"," BASE
          ",\"attention_window_size\":6,\"sliding_window\":3,\"block_types\":[\"attention\","
          "\"recurrent\"]}",
          3, "w.w." },
        { "embeddinggemma: the whole width",
          "{\"architectures\":[\"Gemma3TextModel\"]," BASE2
          ",\"use_bidirectional_attention\":true,\"sliding_window\":8,\"sliding_window_pattern\":"
          "2}",
          5, "w.w." },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        CHECK(!arch_parse(&c, t[i].config, NULL, &err), "%s: %s", t[i].why, err.msg);
        CHECK(c.window == t[i].window, "%s: window %d", t[i].why, (int)c.window);
        for (int k = 0; k < 4 && c.layer; k++)
            CHECK(c.layer[k].window == (t[i].layers[k] == 'w'), "%s: layer %d", t[i].why, k);
        arch_config_free(&c);
    }
}

TEST(end_tokens_of_both_files_are_joined)
{
    arch_config c;
    lq_err err = { "" };
    CHECK(!arch_parse(&c, LLAMA ",\"bos_token_id\":1,\"eos_token_id\":[2,5,2]}",
                      "{\"eos_token_id\":[5,7]}", &err),
          "%s", err.msg);
    CHECK(c.bos == 1 && c.n_eos == 3 && c.eos[0] == 2 && c.eos[1] == 5 && c.eos[2] == 7 &&
              c.eos[3] == -1,
          "%d ids", c.n_eos);
    arch_config_free(&c);
    CHECK(!arch_parse(&c, LLAMA ",\"eos_token_id\":null}", "{\"eos_token_id\":9}", &err), "%s",
          err.msg);
    CHECK(c.n_eos == 1 && c.eos[0] == 9, "generation_config alone");
    arch_config_free(&c);
}

/* As published files have it. */
TEST(what_is_said_twice_alike_is_taken)
{
    static const struct {
        const char *why, *config;
    } t[] = {
        { "an interval", QWEN35 ",\"full_attention_interval\":2," KINDS "}" },
        { "a pattern", GEMMA("3") ",\"sliding_window_pattern\":4," WINDOWS "}" },
        { "letters", "{\"model_type\":\"exaone4\"," BASE2
                     ",\"sliding_window_pattern\":\"LLLG\"," WINDOWS "}" },
        { "what transformers writes of its own",
          GEMMA("3") ",\"_sliding_window_pattern\":6," WINDOWS "}" },
        { "a list of MiMo's", MIMO ",\"hybrid_layer_pattern\":[1,1,1,0]," WINDOWS "}" },
        { "a rotation",
          LLAMA ",\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":500,\"factor\":2},"
                "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        CHECK(!arch_parse(&c, t[i].config, NULL, &err), "%s: %s", t[i].why, err.msg);
        arch_config_free(&c);
    }
}

static bool same_layer(const arch_config *a, const arch_config *b, int64_t i)
{
    arch_layer x = a->layer[i], y = b->layer[i];
    const arch_config *p = arch_at(a, i), *q = arch_at(b, i);
    const bool both = !x.own == !y.own;
    x.own = y.own = NULL;
    return both && !memcmp(&x, &y, sizeof x) && p->kv_heads == q->kv_heads &&
           p->head_dim == q->head_dim && p->rope_dims == q->rope_dims && p->ffn == q->ffn;
}

TEST(our_own_spelling_gives_the_same_config_back)
{
    arch_list archs;
    archs_find(&archs, "config.json");
    for (int i = 0; i < archs.n; i++) {
        char path[128];
        cJSON *j = NULL;
        arch_config a, b;
        lq_err err = { "" };
        snprintf(path, sizeof path, "tests/golden/arch/%s/config.json", archs.name[i]);
        lq_status s = js_parse_file(&j, path, 1 << 20, JS_UNIQUE, &err);
        if (!s) s = arch_config_parse(&a, j, NULL, &err);
        CHECK(!s, "%s: %s", archs.name[i], err.msg);
        cJSON_Delete(j);
        if (s) continue;
        cJSON *own = arch_config_json(&a);
        s = arch_config_from_json(&b, own, &err);
        CHECK(!s, "%s: %s", archs.name[i], err.msg);
        if (!s) {
            for (int64_t l = 0; l < a.layers; l++)
                CHECK(same_layer(&a, &b, l), "%s: layer %d", archs.name[i], (int)l);
            cJSON *again = arch_config_json(&b);
            lq_buf x = { 0 }, y = { 0 };
            CHECK(!js_canonical(&x, own, NULL) && !js_canonical(&y, again, NULL) && x.n == y.n &&
                      !memcmp(x.p, y.p, x.n),
                  "%s: texts differ", archs.name[i]);
            free(x.p);
            free(y.p);
            cJSON_Delete(again);
            arch_config_free(&b);
        }
        for (const cJSON *m = own->child; m; m = m->next) { /* every key of the first version */
            if (strcmp(m->string, "window_layers") == 0) break;
            cJSON *less = cJSON_Duplicate(own, true);
            cJSON_DeleteItemFromObjectCaseSensitive(less, m->string);
            s = arch_config_from_json(&b, less, &err);
            CHECK(s, "%s without %s", archs.name[i], m->string);
            if (!s) arch_config_free(&b);
            cJSON_Delete(less);
        }
        cJSON_Delete(own);
        arch_config_free(&a);
    }
}

TEST(names_and_roles_are_inverse)
{
    static const struct {
        const char *name;
        int role; /* -1: none */
        int64_t layer;
        bool bias;
    } t[] = {
        { "model.embed_tokens.weight", R_EMBED, -1, false },
        { "lm_head.weight", R_HEAD, -1, false },
        { "model.norm.weight", R_FINAL_NORM, -1, false },
        { "model.layers.0.self_attn.q_proj.weight", R_Q, 0, false },
        { "model.layers.3.self_attn.q_proj.bias", R_Q, 3, true },
        { "model.layers.3.mlp.down_proj.weight", R_DOWN, 3, false },
        { "model.layers.4.mlp.down_proj.weight", -1, 0, false },
        { "model.layers.03.mlp.down_proj.weight", -1, 0, false },
        { "model.layers.-1.mlp.down_proj.weight", -1, 0, false },
        { "model.layers..mlp.down_proj.weight", -1, 0, false },
        { "model.layers.99999999999999999999.mlp.down_proj.weight", -1, 0, false },
        { "model.layers.0.self_attn.q_proj.weight.x", -1, 0, false },
        { "model.layers.0.self_attn.q_proj", -1, 0, false },
        { "model.layers.0.self_attn.q_norm.weight", -1, 0, false },
        { "model.embed_tokens", -1, 0, false },
        { "", -1, 0, false },
    };
    arch_config c;
    lq_err err = { "" };
    CHECK(!arch_parse(&c, LLAMA "}", NULL, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_slot slot;
        bool found = arch_slot_of(&c, t[i].name, &slot);
        CHECK(found == (t[i].role >= 0), "%s", t[i].name);
        if (!found) continue;
        CHECK((int)slot.role == t[i].role && slot.layer == t[i].layer && slot.bias == t[i].bias,
              "%s", t[i].name);
        char back[128];
        CHECK(arch_tensor_name(&c, slot.role, slot.layer, -1, slot.bias, back, sizeof back) &&
                  !strcmp(back, t[i].name),
              "%s", back);
        CHECK(!arch_tensor_name(&c, slot.role, slot.layer, -1, false, back, 5), "a short buffer");
    }
    arch_config_free(&c);
}

/* Golden tables: numpy float32 (tests/golden/arch/make_rope.py). The last place of pow may differ
 * (2 ulp of the frequency, 2^-22), which the position multiplies; cos and sin are then within one
 * rounding of each factor. */
TEST(rotary_tables_equal_the_reference)
{
    cJSON *all = NULL;
    lq_err err = { "" };
    lq_status s = js_parse_file(&all, "tests/golden/arch/rope.json", 1 << 24, 0, &err);
    CHECK(!s, "%s", err.msg);
    for (const cJSON *g = all ? all->child : NULL; g; g = g->next) {
        const char *why = js_get(g, "why")->valuestring;
        arch_config c;
        int64_t seq_len = 0, pos0 = 0, T = 0;
        js_i64(g, "seq_len", true, 0, 1 << 20, &seq_len, NULL);
        js_i64(g, "pos0", true, 0, 1 << 20, &pos0, NULL);
        js_i64(g, "T", true, 0, 1 << 20, &T, NULL);
        s = arch_config_parse(&c, js_get(g, "config"), NULL, &err);
        CHECK(!s, "%s: %s", why, err.msg);
        if (s) continue;
        float cos_t[4 * 64], sin_t[4 * 64];
        const int64_t pairs = c.rope_dims / 2;
        CHECK(cJSON_GetArraySize(js_get(g, "cos")) == T * pairs, "%s: size", why);
        arch_rope_table(&c, ROPE_MAIN, pos0, T, seq_len, cos_t, sin_t);
        const cJSON *wc = js_get(g, "cos")->child, *ws = js_get(g, "sin")->child, *wf = NULL;
        const double scale = c.rope[0].attention_factor;
        for (int64_t i = 0; wc && ws; i++, wc = wc->next, ws = ws->next) {
            wf = i % pairs ? wf->next : js_get(g, "inv_freq")->child;
            double angle = (double)(pos0 + i / pairs) * wf->valuedouble;
            double tol = scale * (angle * 0x1p-22 + 0x1p-22);
            CHECK(fabs((double)cos_t[i] - wc->valuedouble) <= tol,
                  "%s: cos[%d] %.9g, expected %.9g", why, (int)i, (double)cos_t[i],
                  wc->valuedouble);
            CHECK(fabs((double)sin_t[i] - ws->valuedouble) <= tol,
                  "%s: sin[%d] %.9g, expected %.9g", why, (int)i, (double)sin_t[i],
                  ws->valuedouble);
        }
        arch_config_free(&c);
    }
    cJSON_Delete(all);
}

TEST(experts_are_as_many_as_the_class_assumes)
{
    static const struct {
        const char *config;
        int64_t experts, used, ffn;
    } t[] = {
        { MIXTRAL "}", 8, 2, 160 },
        { MIXTRAL ",\"num_experts\":4}", 4, 2, 160 },
        { "{\"model_type\":\"qwen3_moe\"," BASE "}", 128, 8, 768 },
        { "{\"model_type\":\"kolibri1\"," BASE "}", 384, 6, 512 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        lq_status s = arch_parse(&c, t[i].config, NULL, &err);
        CHECK(!s, "%s: %s", t[i].config, err.msg);
        if (s) continue;
        CHECK(c.experts == t[i].experts && c.experts_used == t[i].used && c.expert_ffn == t[i].ffn,
              "%s: %d experts, %d used, of %d", t[i].config, (int)c.experts, (int)c.experts_used,
              (int)c.expert_ffn);
        arch_config_free(&c);
    }
}

/* Keys as published files spell them, against those of transformers. */
TEST(layers_with_experts_follow_every_spelling)
{
#define SPELLED(type, rest) "{\"model_type\":\"" type "\"," BASE rest "}"
    static const struct {
        const char *config, *layers; /* x: has experts */
    } t[] = {
        { SPELLED("glm4_moe_lite", ",\"first_k_dense_replace\":2"), "..xx" },
        { SPELLED("glm4_moe_lite",
                  ",\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"dense\"]"),
          "x.x." },
        { SPELLED("flint", ""), "..xx" },
        { SPELLED("flint", ",\"mlp_only_layers\":[3]"), "xxx." },
        { SPELLED("exaone_moe", ",\"num_key_value_heads\":4,\"first_last_k_dense_replace\":1,"
                                "\"is_moe_layer\":[false,true,true,false]"),
          ".xx." },
        { SPELLED("ernie4_5_moe", ",\"moe_layer_start_index\":1,\"moe_layer_end_index\":2,"
                                  "\"moe_layer_interval\":1"),
          ".xx." },
        { SPELLED("ernie4_5_moe", ",\"moe_layer_start_index\":0,\"moe_layer_end_index\":-1,"
                                  "\"moe_layer_interval\":2"),
          ".x.x" },
        { SPELLED("hunyuan_v1_moe", ",\"num_experts\":8,\"moe_topk\":[2,2,2,2],"
                                    "\"num_shared_expert\":[1,1,1,1]"),
          "xxxx" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        const lq_status s = arch_parse(&c, t[i].config, NULL, &err);
        CHECK(!s, "%s: %s", t[i].config, err.msg);
        if (s) continue;
        for (int l = 0; l < 4; l++)
            CHECK(c.layer[l].moe == (t[i].layers[l] == 'x'), "%s: layer %d", t[i].config, l);
        arch_config_free(&c);
    }
}

/* Which layers have an indexer: GLM-5's four spellings, against those of transformers. */
TEST(layers_share_an_indexer_in_every_spelling)
{
    static const struct {
        const char *config, *layers; /* s: shared; NULL: refused */
    } t[] = {
        { SPELLED("deepseek_v32", ""), "ffff" },
        { SPELLED("glm_moe_dsa", ""), "ffff" },
        { SPELLED("glm_moe_dsa", ",\"index_topk_freq\":2"), "ffsf" },
        { SPELLED("glm_moe_dsa", ",\"index_topk_freq\":3,\"index_skip_topk_offset\":1"), "fssf" },
        { SPELLED("glm_moe_dsa", ",\"index_topk_pattern\":\"FSFS\",\"index_topk_freq\":4"),
          "fsfs" },
        { SPELLED("glm_moe_dsa", ",\"index_topk_freq\":4,\"index_topk_pattern\":null,"
                                 "\"indexer_types\":[\"full\",\"full\",\"shared\",\"shared\"]"),
          "ffss" },
        { SPELLED("glm_moe_dsa", ",\"index_topk_pattern\":\"SFFF\""), NULL },
        { SPELLED("glm_moe_dsa", ",\"index_topk_pattern\":\"FFF\""), NULL },
        { SPELLED("glm_moe_dsa", ",\"indexer_types\":[\"full\",\"half\",\"full\",\"full\"]"),
          NULL },
        { SPELLED("glm_moe_dsa", ",\"q_lora_rank\":null"), NULL },
        { SPELLED("deepseek_v32", ",\"index_head_dim\":32"), NULL }, /* less than what rotates */
        { SPELLED("deepseek_v32", ",\"index_topk\":0"), NULL },
        { SPELLED("deepseek_v32", ",\"index_topk_freq\":2"), NULL }, /* not this one's */
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c, back;
        lq_err err = { "" };
        const lq_status s = arch_parse(&c, t[i].config, NULL, &err);
        CHECK(!s == (t[i].layers != NULL), "%s: %s", t[i].config, err.msg);
        if (s) continue;
        cJSON *j = arch_config_json(&c);
        CHECK(!arch_config_from_json(&back, j, &err), "%s: %s", t[i].config, err.msg);
        for (int l = 0; l < 4 && t[i].layers; l++)
            CHECK(c.layer[l].index_shared == (t[i].layers[l] == 's') &&
                      arch_has(&c, R_INDEX_K, l) == (t[i].layers[l] == 'f') &&
                      back.layer[l].index_shared == c.layer[l].index_shared,
                  "%s: layer %d", t[i].config, l);
        CHECK(c.index_topk == 2048 && c.index_dim == 128 && back.index_heads == c.index_heads &&
                  c.w.index_half == (c.index_heads == 64) && back.w.index_half == c.w.index_half,
              "%s: %d of %d heads", t[i].config, (int)c.index_topk, (int)c.index_heads);
        cJSON_Delete(j);
        arch_config_free(&back);
        arch_config_free(&c);
    }
}

/* What published files hold beside the numbers, and what transformers passes over. */
TEST(keys_that_change_nothing_are_passed_over)
{
    static const char *const t[] = {
        LLAMA ",\"pretraining_tp\":2,\"attention_bias\":false,\"mlp_bias\":false,\"head_dim\":null,"
              "\"attention_dropout\":0.1,\"initializer_range\":0.02,\"use_cache\":true,"
              "\"rope_scaling\":null,\"_name_or_path\":\"x\",\"transformers_version\":\"4.57.6\"}",
        LLAMA ",\"sliding_window\":4096,\"use_sliding_window\":false,\"max_window_layers\":28,"
              "\"id2label\":{\"0\":\"a\"},\"auto_map\":{\"AutoModel\":\"x.Y\"}}",
        LLAMA ",\"torch_dtype\":\"bfloat16\",\"_attn_implementation\":\"eager\",\"use_flash_attn\":"
              "true,\"_flash_attn_2_enabled\":true,\"num_nextn_predict_layers\":1}",
        LLAMA ",\"rope_scaling\":{},\"rope_parameters\":{}}",
        LLAMA ",\"rope_parameters\":{},\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}}",
        LLAMA ",\"logit_scale\":1.0,\"residual_multiplier\":1,\"attn_logit_softcapping\":null,"
              "\"qk_layernorm\":false,\"position_embedding_type\":\"absolute\"}",
        LLAMA ",\"norm_type\":\"rms_norm\",\"is_causal\":true,\"rope_scaling\":{\"type\":\"yarn\","
              "\"factor\":4,\"original_max_position_embeddings\":32,\"finetuned\":true}}",
        MIXTRAL ",\"num_local_experts\":4,\"num_experts_per_tok\":2,\"router_aux_loss_coef\":0.02,"
                "\"router_jitter_noise\":0.1,\"output_router_logits\":false}",
        DEEPSEEK ",\"aux_loss_alpha\":0.001,\"seq_aux\":true,\"ep_size\":1,\"scoring_func\":"
                 "\"softmax\",\"topk_method\":\"greedy\",\"moe_layer_freq\":1}",
        GPT2 ",\"summary_activation\":null,\"summary_use_proj\":true,\"reorder_and_upcast_attn\":"
             "true,\"scale_attn_weights\":true,\"attn_pdrop\":0.1,\"embd_pdrop\":0.1,"
             "\"task_specific_params\":{\"text-generation\":{\"do_sample\":true}}}",
        MPT "{\"alibi\":true,\"attn_impl\":\"triton\",\"attn_type\":\"multihead_attention\","
            "\"attn_pdrop\":0,\"alibi_bias_max\":8,\"softmax_scale\":null,\"clip_qkv\":null},"
            "\"init_config\":{\"init_std\":0.02},\"no_bias\":true,\"norm_type\":"
            "\"low_precision_layernorm\"}",
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        lq_err err = { "" };
        lq_status s = arch_parse(&c, t[i], NULL, &err);
        CHECK(!s, "%s: %s", t[i], err.msg);
        if (!s) arch_config_free(&c);
    }
}

TEST(both_spellings_of_a_config_are_one)
{
    static const struct {
        const char *why, *a, *b;
    } t[] = {
        { "rope_parameters",
          LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\","
                "\"factor\":2}}",
          LLAMA
          ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"linear\",\"factor\":2}}" },
        { "as Hunyuan published it",
          "{\"model_type\":\"hunyuan_vl\"," BASE
          ",\"rope_scaling\":{\"type\":\"xdrope\",\"factor\":1,"
          "\"alpha\":1000,\"beta_fast\":32,\"xdrope_section\":[2,2,2,2]}}",
          "{\"model_type\":\"hunyuan_vl\"," BASE ",\"rope_parameters\":{\"rope_type\":\"dynamic\","
          "\"factor\":1,\"alpha\":1000,\"mrope_section\":[2,2,2,2]}}" },
        { "torch_dtype", LLAMA ",\"torch_dtype\":\"float16\"}", LLAMA ",\"dtype\":\"float16\"}" },
        { "by type", LLAMA "}", "{\"model_type\":\"llama\"," BASE "}" },
        { "the sizes of GPT-2", GPT2 "}",
          "{\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":320,\"hidden_size\":64,"
          "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"intermediate_size\":256,"
          "\"max_position_embeddings\":1024}" },
        { "two tables of rotations",
          "{\"model_type\":\"gemma3_text\"," BASE
          ",\"rope_theta\":1e6,\"rope_local_base_freq\":2e4,"
          "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}",
          "{\"model_type\":\"gemma3_text\"," BASE
          ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6,\"rope_type\":\"linear\","
          "\"factor\":8},\"sliding_attention\":{\"rope_theta\":2e4,\"rope_type\":\"default\"}}}" },
        { "the text part of a wrapper", MISTRAL ",\"eos_token_id\":2,\"dtype\":\"bfloat16\"}",
          "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"dtype\":\"bfloat16\","
          "\"eos_token_id\":2,\"text_config\":{\"model_type\":\"mistral\"," BASE
          ",\"num_key_value_heads\":2},\"vision_config\":{}}" },
        { "the text part of Qwen2-VL, apart and beside the rest",
          "{\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"],\"dtype\":\"bfloat16\","
          "\"text_config\":{\"model_type\":\"qwen2_5_vl_text\"," BASE2
          ",\"layer_types\":[\"full_attention\","
          "\"full_attention\",\"full_attention\",\"full_attention\"],\"rope_parameters\":{\"rope_"
          "theta\":1e6,"
          "\"rope_type\":\"default\",\"mrope_section\":[2,3,3]}},\"vision_config\":{\"act\":1}}",
          "{\"architectures\":[\"Qwen2_5_VLForConditionalGeneration\"],\"torch_dtype\":"
          "\"bfloat16\"," BASE2
          ",\"rope_theta\":1000000.0,\"use_sliding_window\":false,\"max_window_layers\":28,"
          "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,3,3]},\"vision_config\":{}}" },
        { "sizes that a text_config leaves to its class",
          "{\"architectures\":[\"LlavaForConditionalGeneration\"],\"text_config\":{\"model_type\":"
          "\"llama\","
          "\"architectures\":[\"VLlama3ForCausalLM\"],\"vocab_size\":32064}}",
          "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":32064,\"hidden_size\":4096,"
          "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"intermediate_size\":11008}" },
        { "labels, named and counted",
          "{\"architectures\":[\"Qwen3ForSequenceClassification\"]," BASE2
          ",\"id2label\":{\"0\":\"a\",\"1\":\"b\",\"2\":\"c\"}}",
          "{\"architectures\":[\"Qwen3ForSequenceClassification\"]," BASE2 ",\"num_labels\":3}" },
        { "a window that is not used, as transformers 5 writes it",
          QWEN2 ",\"use_sliding_window\":false,\"sliding_window\":0}", QWEN2 "}" },
        { "a text_config of one type alone",
          "{\"architectures\":[\"Glm4vForConditionalGeneration\"],\"text_config\":{" BASE2 "}}",
          "{\"architectures\":[\"Glm46VForConditionalGeneration\"],\"text_config\":{\"model_type\":"
          "\"glm4v_text\"," BASE2 "}}" },
        { "rotations that the class assumes", "{\"architectures\":[\"CwmForCausalLM\"]," BASE2 "}",
          "{\"architectures\":[\"CwmForCausalLM\"]," BASE2 ",\"rope_theta\":1e6,\"layer_types\":["
          "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"],"
          "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":16,\"low_freq_factor\":1,"
          "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}" },
        { "Inkling as published",
          "{\"model_type\":\"inkling\"," BASE2 ",\"sconv_kernel_size\":3,\"model_max_length\":96,"
          "\"sliding_window_size\":7,\"embedding_multiplier\":3,\"dense_intermediate_size\":48,"
          "\"local_layer_ids\":[0,2,3],\"dense_mlp_idx\":1,\"unpadded_vocab_size\":310}",
          "{\"model_type\":\"inkling\",\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":"
          "4,"
          "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":48,\"conv_"
          "kernel_size\":3,"
          "\"max_position_embeddings\":96,\"sliding_window\":7,\"logits_mup_width_multiplier\":3,"
          "\"moe_intermediate_size\":160,\"layer_types\":[\"hybrid_sliding\",\"hybrid\","
          "\"hybrid_sliding\",\"hybrid_sliding\"],\"mlp_layer_types\":[\"dense\",\"sparse\","
          "\"sparse\",\"sparse\"],\"unpadded_vocab_size\":310}" },
        { "Zamba's layers, counted and listed",
          "{\"model_type\":\"zamba\"," BASE2 ",\"attn_layer_period\":1,\"attn_layer_offset\":0}",
          "{\"model_type\":\"zamba\"," BASE2
          ",\"layers_block_type\":[\"mamba\",\"mamba\",\"hybrid\","
          "\"hybrid\"],\"mamba_dt_rank\":4}" },
        { "layers of GPT-Neo", NEO ",\"attention_types\":[[[\"global\",\"local\"],2]]}",
          NEO ",\"attention_layers\":[\"global\",\"local\",\"global\",\"local\"]}" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config a, b;
        lq_err err = { "" };
        lq_status sa = arch_parse(&a, t[i].a, NULL, &err), sb = arch_parse(&b, t[i].b, NULL, &err);
        CHECK(!sa && !sb, "%s: %s", t[i].why, err.msg);
        if (sa || sb) continue;
        cJSON *ja = arch_config_json(&a), *jb = arch_config_json(&b);
        char *x = cJSON_PrintUnformatted(ja), *y = cJSON_PrintUnformatted(jb);
        CHECK(x && y && !strcmp(x, y), "%s:\n%s\n%s", t[i].why, x, y);
        free(x);
        free(y);
        cJSON_Delete(ja);
        cJSON_Delete(jb);
        arch_config_free(&a);
        arch_config_free(&b);
    }
}

/* arXiv:2108.12409: 2^(-8 i / n), and between powers of two the odd ones of twice as many. */
TEST(slopes_of_alibi_are_those_of_the_paper)
{
    static const struct {
        int heads;
        double max;
        double at[6]; /* log2, negated */
    } t[] = {
        { 1, 8, { 8 } },
        { 2, 8, { 4, 8 } },
        { 4, 8, { 2, 4, 6, 8 } },
        { 5, 8, { 2, 4, 6, 8, 1 } },
        { 6, 8, { 2, 4, 6, 8, 1, 3 } },
        { 4, 16, { 4, 8, 12, 16 } },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const arch_config c = { .heads = t[i].heads, .alibi_max = t[i].max };
        float got[6];
        arch_alibi_slopes(&c, got);
        for (int h = 0; h < t[i].heads; h++)
            CHECK(near_to((double)got[h], exp2(-t[i].at[h])), "%d heads: head %d: %g", t[i].heads,
                  h, (double)got[h]);
    }
}

static bool is_this(void *user, const char *name) { return strcmp(user, name) == 0; }

TEST(a_prefix_is_found_where_the_embedding_is)
{
    static const struct {
        const char *embedding, *prefix, *head;
    } t[] = {
        { "model.embed_tokens.weight", "model.", "lm_head.weight" },
        { "embed_tokens.weight", "", "lm_head.weight" },
        { "transformer.embed_tokens.weight", "transformer.", "lm_head.weight" },
        { "language_model.model.embed_tokens.weight", "language_model.model.",
          "language_model.lm_head.weight" },
        { "model.language_model.embed_tokens.weight", "model.language_model.", "lm_head.weight" },
        { "model.text_model.embed_tokens.weight", "model.text_model.", "lm_head.weight" },
        { "elsewhere", "model.", "lm_head.weight" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        arch_config c;
        char name[128];
        lq_err err = { "" };
        CHECK(!arch_parse(&c, LLAMA "}", NULL, &err), "%s", err.msg);
        arch_fit_prefix(&c, is_this, (void *)(uintptr_t)t[i].embedding);
        CHECK(!strcmp(c.prefix, t[i].prefix), "%s: '%s'", t[i].embedding, c.prefix);
        CHECK(arch_tensor_name(&c, R_HEAD, -1, -1, false, name, sizeof name) &&
                  !strcmp(name, t[i].head),
              "%s", name);
        arch_slot slot;
        CHECK(arch_slot_of(&c, t[i].head, &slot) && slot.role == R_HEAD, "%s", t[i].head);
        arch_config_free(&c);
    }
}

int main(int argc, char **argv)
{
    RUN(defaults_are_those_of_transformers);
    RUN(stepfuns_words_are_those_of_transformers);
    RUN(dots_words_are_those_of_transformers);
    RUN(minimaxs_words_are_those_of_transformers);
    RUN(the_head_of_baichuan_2_has_rows_of_length_1);
    RUN(scales_of_minicpm_are_relative_to_its_sizes);
    RUN(sliding_windows_follow_every_spelling);
    RUN(end_tokens_of_both_files_are_joined);
    RUN(what_is_said_twice_alike_is_taken);
    RUN(our_own_spelling_gives_the_same_config_back);
    RUN(experts_are_as_many_as_the_class_assumes);
    RUN(layers_with_experts_follow_every_spelling);
    RUN(layers_share_an_indexer_in_every_spelling);
    RUN(keys_that_change_nothing_are_passed_over);
    RUN(both_spellings_of_a_config_are_one);
    RUN(slopes_of_alibi_are_those_of_the_paper);
    RUN(a_prefix_is_found_where_the_embedding_is);
    RUN(names_and_roles_are_inverse);
    RUN(rotary_tables_equal_the_reference);
    return check_end();
}
