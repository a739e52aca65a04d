/* tools/load.h - MODEL on the command line, ready to run: kernels chosen, threads started, weights
 * loaded, tokenizer opened. For every command that runs a model. */
#ifndef LLMQ_TOOLS_LOAD_H
#define LLMQ_TOOLS_LOAD_H

#include "formats/gen.h"
#include "runtime/model.h"
#include "runtime/tok.h"
#include "tools/cmds.h"

/* Kernels and device as the options say, and the pool with --threads threads; pool_close it. */
lq_status load_start(pool **p, const cmd_ctx *c, const opt_model *o, lq_err *err);

/* A source and its model. The model keeps the address: do not copy. */
typedef struct {
    src_source *src;
    model m;
    arch_config cfg; /* the source's, with all ids that end an answer (load_stops) */
} load_model;
lq_status load_model_open(load_model *l, const char *path, pool *p, const cmd_ctx *c, lq_err *err);
void load_model_close(load_model *l);

/* The tokenizer that travels with a source: compiled already (.llmq) or compiled now. */
typedef struct {
    tok_tokenizer *t;
    uint8_t *blob; /* owned when compiled here */
} load_tok;
/* LQ_ENOENT when the source has none. */
lq_status load_tok_open(load_tok *l, const src_source *src, const char *path, lq_err *err);
void load_tok_close(load_tok *l);

/* Let the tokenizer's own end token (eos_token of tokenizer_config.json: a chat model's end of
 * turn) end answers as well, beside those of config.json and generation_config.json. Before the
 * engine. */
lq_status load_stops(load_model *l, const tok_tokenizer *t, lq_err *err);

/* The source's generation_config.json, if it has one. */
lq_status load_gen(gen_defaults *g, const src_source *src, const char *path, lq_err *err);

#endif
