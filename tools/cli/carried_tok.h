/* tools/cli/carried_tok.h - the tokenizer that a quantized file carries: compiled, as the source has it or
 * compiled now. Calibration reads its text by the same one. */
#ifndef LLMQ_TOOLS_CLI_CARRIED_TOK_H
#define LLMQ_TOOLS_CLI_CARRIED_TOK_H

#include "formats/source/source.h"
#include "runtime/tokenizer/tok.h"

typedef struct {
    const uint8_t *data; /* tokenizer.blob; NULL: there is none, or it cannot be compiled */
    size_t bytes;
    tok_tokenizer *tok; /* where `needed` */
    uint8_t *blob;      /* owned unless borrowed from the source */
} carried_tok;

/* Not needed: one that cannot be compiled is left out, with a warning. Errors: those of tok_compile_source
 * and tok_open. carried_tok_close it, also after an error. */
lq_status carried_tok_open(carried_tok *t, const src_source *src, bool needed, lq_err *err);
/* The text is read: what only that needed goes, `tok` too. */
void carried_tok_read(carried_tok *t);
void carried_tok_close(carried_tok *t);

#endif
