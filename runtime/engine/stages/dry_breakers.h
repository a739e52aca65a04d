/* runtime/engine/stages/dry_breakers.h - the texts that no run of DRY goes across, as ids of a
 * vocabulary: every token that has such a text in it, and where a text is spelled by several
 * tokens these in a row. */
#ifndef LLMQ_RUNTIME_ENGINE_STAGES_DRY_BREAKERS_H
#define LLMQ_RUNTIME_ENGINE_STAGES_DRY_BREAKERS_H

#include "runtime/engine/sample.h"
#include "runtime/tokenizer/tok.h"

typedef struct {
    uint32_t *breaks;
    int32_t *runs;
    int n_runs; /* as smp_dry's */
} dry_breakers;

/* The usual ones: newline, colon, quote, asterisk. */
enum { DRY_USUAL = 4 };
extern const char *const dry_usual[DRY_USUAL];

/* texts: at most DRY_MAX_BREAKERS; empty ones are none. A text of more than DRY_MAX_RUN tokens
 * counts by its last ones. LQ_ENOMEM. Free with dry_breakers_free, also after an error. */
lq_status dry_breakers_make(dry_breakers *b, const tok_tokenizer *t, int64_t vocab,
                            const char *const *texts, int n, lq_err *err);
void dry_breakers_free(dry_breakers *b);

#endif
