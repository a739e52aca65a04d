/* tools/cli/model_opts.h - the options in common of the commands that run a model, and what `auto`
 * means. Two tables for one struct: `logits` and `eval` are exact unless told otherwise, the
 * others are fast. */
#ifndef LLMQ_TOOLS_CLI_MODEL_OPTS_H
#define LLMQ_TOOLS_CLI_MODEL_OPTS_H

#include "kernels/attn.h"
#include "kernels/mm.h"
#include "kernels/ops.h"
#include "tools/cli/opt.h"

typedef struct {
    const char *kernels;   /* --kernels, NULL: the best here */
    const char *device;    /* --device: opt_device() */
    int64_t gpu_layers;    /* --gpu-layers: opt_gpu_layers() */
    int64_t ranks;         /* --tensor-parallel-size */
    bool eager;            /* --enforce-eager */
    bool batch_invariant;  /* --batch-invariant */
    int activations;       /* opt_acts() */
    const char *kv;        /* --kv-cache-dtype, NULL: auto; opt_kv() */
    bool verify;           /* --verify: load_model_open asks for it by opt_given */
    bool pin;              /* --pin */
    int numa;              /* --numa: opt_numa */
    const char *rope;      /* --rope-scaling, NULL: as the model's config says */
    const char *tokenizer; /* --tokenizer, NULL: the model's own */
    const char *chat_template,
        *tool_format; /* --chat-template, --tool-format; NULL: the model's own */
    const char *rerank_template, *rerank_labels; /* --rerank-template, --rerank-labels, likewise */
} opt_model;

typedef enum { NUMA_OFF, NUMA_INTERLEAVE } opt_numa;

#define OPT_LORA_HELP                                                                          \
    "run the model with this LoRA or DoRA adapter: a folder of PEFT's, or a GGUF adapter; on " \
    "the CPU"
#define OPT_TOKENIZER_HELP                                                                       \
    "take the tokenizer of this folder (tokenizer.json, tokenizer.model, ...) or model instead " \
    "of "                                                                                        \
    "MODEL's own"
/* Of commands that answer conversations, with offset `off` of opt_model. */
#define OPT_CHAT_TEMPLATE(off)                                                                  \
    {                                                                                           \
        "chat-template", 0, OPT_STR, (off) + offsetof(opt_model, chat_template),                \
            .arg = "FILE",                                                                      \
            .help = "a chat template's file (Jinja), the name of another one of the model, or " \
                    "chatml, "                                                                  \
                    "in place of the model's own"                                               \
    }
#define OPT_TOOL_FORMAT(off)                                                                \
    {                                                                                       \
        "tool-format", 0, OPT_STR, (off) + offsetof(opt_model, tool_format),                \
            .arg = "NAME",                                                                  \
            .help = "how the model spells tool calls (hermes, llama3_json, mistral, ...), " \
                    "whatever its "                                                         \
                    "chat template shows"                                                   \
    }
#define OPT_RERANK_TEMPLATE(off)                                                                \
    {                                                                                           \
        "rerank-template", 0, OPT_STR, (off) + offsetof(opt_model, rerank_template),            \
            .arg = "FILE",                                                                      \
            .help = "how the model is asked whether a document answers a query: a file (Jinja " \
                    "with messages of the roles query and document, or text with {query} and "  \
                    "{document}) or qwen3-reranker"                                             \
    }
#define OPT_RERANK_LABELS(off)                                                   \
    {                                                                            \
        "rerank-labels", 0, OPT_STR, (off) + offsetof(opt_model, rerank_labels), \
            .arg = "YES,NO",                                                     \
            .help = "the two tokens that such a model answers, the one "         \
                    "for a match first (default: yes,no)"                        \
    }
enum { OPT_MODEL_N = 13 };
extern const opt_row opt_model_rows[OPT_MODEL_N];       /* activations, KV: auto */
extern const opt_row opt_model_exact_rows[OPT_MODEL_N]; /* f32, f32 */

mm_acts opt_acts(const opt_model *o); /* auto resolved */
bool opt_int8(const opt_model *o);    /* int8 in so many words: on a GPU auto is bf16 */
kv_types opt_kv(const opt_model *o);  /* auto resolved; opt_model_start has checked it */
const char *mm_acts_text(mm_acts a);  /* "int8" */
/* What --device says; layers on a GPU ask for one. */
const char *opt_device(const opt_model *o);
int64_t opt_gpu_layers(const opt_model *o);
/* LQ_EDEVICE where --device names a GPU and there is none; LQ_EUSAGE: no such word, or layers on a GPU and --device cpu. */
lq_status opt_check_device(const opt_model *o, lq_err *err);
/* Opens the GPUs that --device names or leaves to choose, and closes them again: what a driver does
 * once has been done, and libraries that are loaded when they are needed have been. *n: how many; 0: the CPU. Errors: those of opt_check_device; others are found
 * again when a model is loaded. */
lq_status opt_open_gpus(int *n, const opt_model *o, lq_err *err);
/* A GPU was named, or there is one to choose. */
bool opt_may_leave_cpu(const opt_model *o);
/* For what runs on the CPU alone: LQ_EUNSUPPORTED where --device names a GPU. */
lq_status opt_only_cpu(const opt_model *o, const char *what, lq_err *err);
/* One line with why, where `--device auto` was asked for and there is no choice, and where nothing
 * was asked for and a GPU is here. */
void opt_note_device(const opt_model *o);

/* LQ_EUSAGE: --kv-cache-dtype is no type, nor k=TYPE,v=TYPE. */
lq_status opt_check_kv(const opt_model *o, lq_err *err);

/* --kernels and --device take effect: call once, before the first kernel. */
static inline lq_status opt_model_start(const opt_model *o, lq_err *err)
{
    lq_status s = opt_check_kv(o, err);
    if (!s) s = opt_check_device(o, err);
    return s ? s : k_init(o->kernels, err);
}

#endif
