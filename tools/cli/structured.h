/* tools/cli/structured.h - the options of structured output: an answer that is a sentence of a grammar.
 */
#ifndef LLMQ_TOOLS_CLI_STRUCTURED_H
#define LLMQ_TOOLS_CLI_STRUCTURED_H

#include "runtime/grammar/grammar.h"
#include "tools/cli/opt.h"

typedef struct {
    const char *grammar, *schema, *regex, *choice;
    bool strict;
} opt_structured;

enum { OPT_STRUCTURED_N = 5 };
extern const opt_row opt_structured_rows[OPT_STRUCTURED_N];

typedef struct {
    grammar *g; /* NULL: none was asked for */
    gr_vocab *v;
} structured;
/* Reads and compiles what the options name, for masks of V ids. LQ_EUSAGE: more than one, or no
 * tokenizer. Close it after the engine. */
lq_status structured_open(structured *s, const opt_structured *o, const tok_tokenizer *tok,
                          int64_t V, lq_err *err);
void structured_close(structured *s);

#endif
