/* runtime/engine/beam_set.h - the lines and answers of a beam search (runtime/engine/beam.h), as a sequence
 * holds them. */
#ifndef LLMQ_RUNTIME_ENGINE_BEAM_SET_H
#define LLMQ_RUNTIME_ENGINE_BEAM_SET_H

#include "runtime/engine/request.h"
#include "runtime/model/kv.h"

/* One id of a line or an answer; the ids before it are its parent's. */
typedef struct {
    int32_t id, parent; /* parent: a node; -1: the prompt's end */
    float logprob;
    int32_t row; /* of b->tops */
} beam_node;

/* The last node of a line, and the blocks of all that is before it. */
typedef struct {
    double sum;
    int32_t node, from; /* from: the line of the step before */
    kv_seq kv;
} beam_line;

typedef struct {
    double score;
    int32_t node;
    int64_t n; /* ids */
} beam_answer;

typedef struct {
    double sum;
    int32_t line;
    smp_cand c;
} beam_proposal;

typedef struct {
    eng_beam o;
    int64_t max_new;
    int64_t
        keep;    /* proposals looked at in a step: `width` for lines, as many for each way to end */
    int64_t per; /* of a line */
    beam_line *lines, *next; /* [width] */
    int64_t n_lines;         /* 0: the prompt is not done */
    beam_answer *answers;    /* [width], the best first */
    int64_t n_answers;
    beam_node *nodes; /* [2 * width * max_new] */
    int64_t n_nodes;
    smp_result *tops;      /* [width * max_new] alternatives by step and line; NULL: not wanted */
    smp_result *results;   /* [max_new] of one answer */
    smp_cand *cands;       /* [width, per] of this step */
    int64_t *n_cands, *at; /* [width] how many; and how many are merged */
    beam_proposal *proposals; /* [keep] */
    bool over;
} beam_set;

/* What is wrong with the request; LQ_EVALUE. */
lq_status beam_check(const eng_request *r, int64_t max_new, lq_err *err);
/* In a, for r->beam; n_ends: ids that end an answer. */
lq_status beam_set_new(beam_set **b, lq_arena *a, const eng_request *r, int64_t max_new,
                       int64_t vocab, int n_ends, lq_err *err);

#endif
