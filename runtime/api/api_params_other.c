/* runtime/api/api_params_other.c - see api_params_other.h. */
#include "runtime/api/api_params_other.h"

#include <assert.h>

/* Values that change nothing; null always is one. */
enum {
    N_FALSE = 1,
    N_TRUE = 2,
    N_ZERO = 4,
    N_ONE = 8,
    N_MINUS_ONE = 16,
    N_EMPTY_STR = 32,
    N_EMPTY_LIST = 64,
    N_EMPTY_OBJECT = 128,
    N_TEXT_LIST = 256, /* ["text"] */
    N_AUTO = 512,      /* "auto" */
    N_EMPTY = N_EMPTY_STR | N_EMPTY_LIST
};

typedef struct {
    const char *name;
    int kinds, neutral;
} other;

enum { BOTH = API_COMPLETIONS | API_CHAT, ALL = BOTH | API_READS, EVERY = ALL | API_JUDGES };

/* They would change the answer. */
static const other refused[] = {
    { "tools", API_COMPLETIONS, N_EMPTY_LIST },
    { "tool_choice", API_COMPLETIONS, 0 },
    { "parallel_tool_calls", API_COMPLETIONS, N_TRUE | N_FALSE },
    { "echo", API_CHAT, N_FALSE },
    { "functions", API_COMPLETIONS, N_EMPTY_LIST },
    { "function_call", API_COMPLETIONS, 0 },
    { "spaces_between_special_tokens", BOTH, N_TRUE },
    { "prompt_embeds", BOTH, 0 },
    { "logits_processors", BOTH, N_EMPTY_LIST },
    { "kv_transfer_params", BOTH, 0 },
    { "chat_template", API_CHAT | API_JUDGES, 0 },
    { "add_special_tokens", API_CHAT, N_FALSE }, /* the template says which there are */
    { "documents", API_CHAT, N_EMPTY_LIST },
    { "audio", API_CHAT, 0 },
    { "modalities", API_CHAT, N_TEXT_LIST },
    { "web_search_options", API_CHAT, 0 },
    { "mm_processor_kwargs", API_CHAT | API_JUDGES, N_EMPTY_OBJECT },
    { "media_io_kwargs", API_CHAT, N_EMPTY_OBJECT },

    /* embeddings: prompt_name says which text goes before an input */
    { "normalize", API_EMBEDDINGS, N_TRUE },
    { "embd_normalize", API_EMBEDDINGS, 0 },
    { "pooling_type", API_EMBEDDINGS, 0 },
    { "prompt", API_EMBEDDINGS, N_EMPTY_STR },
    { "input_type", API_EMBEDDINGS, 0 },

    /* reranking */
    { "truncation", API_JUDGES, N_FALSE },
    { "max_chunks_per_doc", API_RERANK, N_ONE },
    { "rank_fields", API_RERANK, N_EMPTY_LIST },
    { "return_embeddings", API_RERANK, N_FALSE },
    { "activation", API_JUDGES | API_CLASSIFY, N_TRUE },
    { "raw_scores", API_JUDGES | API_CLASSIFY, N_FALSE }, /* TEI's use_activation */

    /* reasoning */
    { "thinking_budget_tokens", API_COMPLETIONS, N_MINUS_ONE },
    { "thinking_token_budget", API_COMPLETIONS, N_MINUS_ONE },
    { "reasoning_budget", BOTH, N_MINUS_ONE },
    { "reasoning_format", API_CHAT, N_AUTO },
    { "separate_reasoning", API_CHAT, N_TRUE },

    /* samplers */
    { "sampler_priority", BOTH, N_EMPTY },
    { "sampler_order", BOTH, N_EMPTY_LIST },
    { "rep_pen_range", BOTH, N_ZERO },
    { "rep_pen_slope", BOTH, N_ZERO | N_ONE },
    { "repetition_decay", BOTH, N_ZERO },
    { "encoder_repetition_penalty", BOTH, N_ONE },
    { "no_repeat_ngram_size", BOTH, N_ZERO },
    { "penalty_alpha", BOTH, N_ZERO },
    { "penalize_nl", BOTH, N_FALSE },
    { "guidance_scale", BOTH, N_ONE },
    { "negative_prompt", BOTH, N_EMPTY_STR },
    { "top_a", BOTH, N_ZERO },
    { "tfs", BOTH, N_ONE },
    { "tfs_z", BOTH, N_ONE },
    { "epsilon_cutoff", BOTH, N_ZERO },
    { "eta_cutoff", BOTH, N_ZERO },
    { "smoothing_factor", BOTH, N_ZERO },
    { "skew", BOTH, N_ZERO },
    { "adaptive_target", BOTH, N_ZERO | N_MINUS_ONE },
    { "do_sample", BOTH, N_TRUE },
    { "num_beams", BOTH, N_ONE },
    { "min_keep", BOTH, N_ZERO | N_ONE },
    { "watermark", BOTH, N_FALSE },
    { "custom_logit_processor", BOTH, N_EMPTY_STR },
    { "vllm_xargs", BOTH, N_EMPTY_OBJECT },
    { "repetition_detection", BOTH, 0 },

    /* what ends or bans */
    { "ban_eos_token", BOTH, N_FALSE },
    { "custom_token_bans", BOTH, N_EMPTY_STR },
    { "banned_tokens", BOTH, N_EMPTY },
    { "banned_strings", BOTH, N_EMPTY_LIST },
    { "stop_regex", BOTH, N_EMPTY },
    { "no_stop_trim", BOTH, N_FALSE },
    { "t_max_predict_ms", BOTH, N_ZERO | N_MINUS_ONE },
    { "n_indent", BOTH, N_ZERO },
    { "max_tokens_second", BOTH, N_ZERO },

    /* other weights, other inputs, other shapes of the answer */
    { "lora", BOTH, N_EMPTY_LIST },
    { "lora_path", BOTH, 0 },
    { "lora_request", BOTH, 0 },
    { "adapter_id", BOTH, N_EMPTY_STR },
    { "image_data", BOTH, N_EMPTY_LIST },
    { "input_prefix", BOTH, N_EMPTY_STR },
    { "input_suffix", BOTH, N_EMPTY_STR },
    { "input_extra", API_CHAT, N_EMPTY_LIST },
    { "input_ids", BOTH, 0 },
    { "session_params", BOTH, N_EMPTY_OBJECT },
    { "n_probs", BOTH, N_ZERO },
    { "post_sampling_probs", BOTH, N_FALSE },
    { "response_fields", BOTH, N_EMPTY_LIST },
    { "return_hidden_states", BOTH, N_FALSE },
    { "detokenize", BOTH, N_TRUE },
    { "add_bos_token", API_COMPLETIONS, N_TRUE },
    { "grammar_string", BOTH, N_EMPTY_STR },
    { "grammar_lazy", BOTH, N_FALSE },
    { "parse_tool_calls", API_CHAT, N_TRUE },
};

/* They have no influence on an answer. At most 64. */
static const other taken[] = {
    { "user", EVERY, 0 },
    { "metadata", BOTH, 0 },
    { "store", BOTH, 0 },
    { "service_tier", BOTH, 0 },
    { "safety_identifier", BOTH, 0 },
    { "prompt_cache_key", BOTH, 0 },
    { "prompt_cache_retention", BOTH, 0 },
    { "prompt_cache_options", BOTH, 0 },
    { "request_id", EVERY, 0 },
    { "rid", EVERY, 0 },
    { "verbosity", API_CHAT, 0 },  /* a wish of style that no template knows */
    { "prediction", API_CHAT, 0 }, /* a draft: answers do not depend on it */
    { "guided_decoding_backend", BOTH, 0 },
    { "cache_prompt", BOTH, 0 },
    { "id_slot", BOTH, 0 },
    { "slot_id", BOTH, 0 },
    { "n_keep", BOTH, 0 }, /* of a context that is shifted: none is */
    { "n_discard", BOTH, 0 },
    { "t_max_prompt_ms", BOTH, 0 }, /* nor does llama.cpp's server look at it */
    { "timings_per_token", BOTH, 0 },
    { "return_tokens", BOTH, 0 },
    { "stream_reasoning", API_CHAT, 0 },
    { "speculative.n_max", BOTH, 0 },
    { "speculative.n_min", BOTH, 0 },
    { "speculative.p_min", BOTH, 0 },
    { "keep_alive", ALL, 0 },
    { "truncation_length", BOTH, 0 }, /* what does not fit is refused */
    /* of templates that do not read them (api_thinking.c) */
    { "reasoning_effort", 0, 0 },
    { "enable_thinking", 0, 0 },
};
static_assert(LQ_COUNT(taken) <= 64, "bits of api_params.noted");

const char *api_noted_name(int i) { return taken[i].name; }

uint64_t api_noted_bit(const char *name)
{
    size_t i = 0;
    while (strcmp(taken[i].name, name) != 0)
        i++;
    return (uint64_t)1 << i;
}

/* The number of the row; -1: there is none. */
static int find(const other *rows, size_t n, const char *name, api_kind kind)
{
    for (size_t i = 0; i < n; i++)
        if ((rows[i].kinds & (int)kind) && strcmp(rows[i].name, name) == 0) return (int)i;
    return -1;
}

static bool is_number(const cJSON *v, double x)
{
    return cJSON_IsNumber(v) && !(fabs(v->valuedouble - x) > 0);
}

static bool is_string(const cJSON *v, const char *s)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, s) == 0;
}

static bool is_neutral(int what, const cJSON *v)
{
    return cJSON_IsNull(v) || ((what & N_FALSE) && cJSON_IsFalse(v)) ||
           ((what & N_TRUE) && cJSON_IsTrue(v)) || ((what & N_ZERO) && is_number(v, 0)) ||
           ((what & N_ONE) && is_number(v, 1)) || ((what & N_MINUS_ONE) && is_number(v, -1)) ||
           ((what & N_EMPTY_STR) && is_string(v, "")) ||
           ((what & N_EMPTY_LIST) && cJSON_IsArray(v) && !v->child) ||
           ((what & N_EMPTY_OBJECT) && cJSON_IsObject(v) && !v->child) ||
           ((what & N_TEXT_LIST) && cJSON_IsArray(v) && is_string(v->child, "text") &&
            !v->child->next) ||
           ((what & N_AUTO) && is_string(v, "auto"));
}

lq_status api_read_other(const cJSON *v, api_kind kind, bool *known, uint64_t *noted, api_error *e)
{
    int i = find(taken, LQ_COUNT(taken), v->string, kind);
    *known = true;
    if (i >= 0) {
        if (!cJSON_IsNull(v)) *noted |= (uint64_t)1 << i;
        return LQ_OK;
    }
    i = find(refused, LQ_COUNT(refused), v->string, kind);
    *known = i >= 0;
    if (i < 0 || is_neutral(refused[i].neutral, v)) return LQ_OK;
    return api_fail(e, v->string, "unsupported_parameter", "%s is not supported", v->string);
}

static void write_neutral(jw *w, int what)
{
    static const struct {
        int bit;
        const char *json;
    } values[] = { { N_FALSE, "false" },   { N_TRUE, "true" },       { N_ZERO, "0" },
                   { N_ONE, "1" },         { N_MINUS_ONE, "-1" },    { N_EMPTY_STR, "\"\"" },
                   { N_EMPTY_LIST, "[]" }, { N_EMPTY_OBJECT, "{}" }, { N_TEXT_LIST, "[\"text\"]" },
                   { N_AUTO, "\"auto\"" } };
    jw_key(w, "description");
    jw_cstr(w, "not supported: only what changes nothing");
    jw_key(w, "enum");
    jw_open(w, '[');
    jw_null(w);
    for (size_t i = 0; i < LQ_COUNT(values); i++)
        if (what & values[i].bit) jw_json(w, values[i].json, strlen(values[i].json));
    jw_close(w, ']');
}

void api_other_schema(jw *w, api_kind kind)
{
    for (size_t i = 0; i < LQ_COUNT(refused); i++) {
        if (!(refused[i].kinds & (int)kind)) continue;
        jw_key(w, refused[i].name);
        jw_open(w, '{');
        write_neutral(w, refused[i].neutral);
        jw_close(w, '}');
    }
    for (size_t i = 0; i < LQ_COUNT(taken); i++) {
        if (!(taken[i].kinds & (int)kind)) continue;
        jw_key(w, taken[i].name);
        jw_open(w, '{');
        jw_key(w, "$ref");
        jw_cstr(w, "#/components/schemas/Taken");
        jw_close(w, '}');
    }
}
