/* runtime/api/metrics.h - counters and histograms in Prometheus' text format (version 0.0.4), or as
 * OpenMetrics.
 *
 * Names are vLLM's, so that its dashboards and scalers work; what only llmq has begins with
 * "llmq:". A new one is a row here. Threads: counters are atomic, histograms take a lock for a few
 * instructions. */
#ifndef LLMQ_RUNTIME_API_METRICS_H
#define LLMQ_RUNTIME_API_METRICS_H

#include "base/buf.h"

/* X(enum, name without _total, labels or "", help); rows with one name are adjacent */
#define MET_COUNTERS(X)                                                                           \
    X(MET_PROMPT_TOKENS, "vllm:prompt_tokens", "", "Prompt tokens of finished requests.")         \
    X(MET_CACHED_TOKENS, "vllm:prompt_tokens_cached", "", "Prompt tokens from the prefix cache.") \
    X(MET_GENERATION_TOKENS, "vllm:generation_tokens", "", "Generated tokens.")                   \
    X(MET_STOP, "vllm:request_success", "finished_reason=\"stop\"", "Finished sequences.")        \
    X(MET_LENGTH, "vllm:request_success", "finished_reason=\"length\"", "")                       \
    X(MET_ABORT, "vllm:request_success", "finished_reason=\"abort\"", "")                         \
    X(MET_ERROR, "vllm:request_success", "finished_reason=\"error\"", "")                         \
    X(MET_CORRUPTED, "vllm:corrupted_requests", "", "Requests that met NaN or Inf logits.")       \
    X(MET_REJECT_QUEUE, "vllm:admission_rejections", "reason=\"queue_full\"",                     \
      "Requests that were turned away.")                                                          \
    X(MET_REJECT_LOADING, "vllm:admission_rejections", "reason=\"loading\"", "")                  \
    X(MET_REJECT_DRAINING, "vllm:admission_rejections", "reason=\"draining\"", "")                \
    X(MET_INVALID, "llmq:invalid_requests", "", "Requests answered with 400 or 404.")             \
    X(MET_TIMEOUTS, "llmq:request_timeouts", "", "Requests ended by --request-timeout.")          \
    X(MET_LOG_LOST, "llmq:access_log_lines_lost", "", "Lines that could not be written.")         \
    X(MET_TWO_BOS, "llmq:prompts_with_two_bos", "",                                               \
      "Texts that spell the special token which the tokenizer puts before them.")                 \
    X(MET_IGNORED_PARAMS, "llmq:ignored_params", "", "Request parameters of unknown names.")

/* X(enum, name, buckets, help) */
#define MET_HISTOGRAMS(X)                                                                          \
    X(MET_TTFT, "vllm:time_to_first_token_seconds", MET_B_LATENCY, "From request to first token.") \
    X(MET_ITL, "vllm:inter_token_latency_seconds", MET_B_TOKEN, "Between tokens.")                 \
    X(MET_TPOT, "vllm:request_time_per_output_token_seconds", MET_B_TOKEN,                         \
      "Mean time per token after the first.")                                                      \
    X(MET_E2E, "vllm:e2e_request_latency_seconds", MET_B_LATENCY, "From request to last token.")   \
    X(MET_DECODE, "vllm:request_decode_time_seconds", MET_B_LATENCY, "First to last token.")       \
    X(MET_REQ_PROMPT, "vllm:request_prompt_tokens", MET_B_COUNT, "Prompt tokens of a sequence.")   \
    X(MET_REQ_GENERATION, "vllm:request_generation_tokens", MET_B_COUNT,                           \
      "Generated tokens of a sequence.")                                                           \
    X(MET_REQ_N, "vllm:request_params_n", MET_B_SMALL, "The parameter n.")                         \
    X(MET_REQ_MAX_TOKENS, "vllm:request_params_max_tokens", MET_B_COUNT,                           \
      "The parameter max_tokens.")

typedef enum {
#define X(name, text, labels, help) name,
    MET_COUNTERS(X)
#undef X
        MET_N_COUNTERS
} met_counter;

typedef enum {
#define X(name, text, buckets, help) name,
    MET_HISTOGRAMS(X)
#undef X
        MET_N_HISTOGRAMS
} met_histogram;

typedef struct metrics metrics;
metrics *met_new(void); /* NULL: out of memory */
void met_free(metrics *m);
void met_add(metrics *m, met_counter c, uint64_t n);
void met_observe(metrics *m, met_histogram h, double v);

/* All of the above. `labels` go on every line: met_labels makes them. */
void met_write(metrics *m, lq_buf *w, const char *labels);
/* One gauge (type "gauge") or counter (type "counter"; name ends in _total) with its head. */
void met_write_one(lq_buf *w, const char *type, const char *name, const char *help,
                   const char *labels, double v);
/* That text in OpenMetrics' format (version 1.0.0) instead. */
void met_open(lq_buf *w, const char *text);
/* key="value", the value escaped. */
void met_label(lq_buf *w, const char *key, const char *value);
/* model_name="...",engine="0". */
void met_labels(lq_buf *w, const char *model_name);

#endif
