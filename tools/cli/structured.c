/* tools/cli/structured.c - see structured.h. */
#include "tools/cli/structured.h"

#include "base/file.h"
#include "base/json.h"
#include "base/json_write.h"

#include <stdlib.h>

#define F(field) offsetof(opt_structured, field)
const opt_row opt_structured_rows[OPT_STRUCTURED_N] = {
    { "grammar", 0, OPT_STR, F(grammar), .arg = "FILE",
      .help = "the answer is a sentence of this grammar (GBNF or Lark)" },
    { "json-schema", 0, OPT_STR, F(schema), .arg = "FILE",
      .help = "the answer is JSON of this schema" },
    { "regex", 0, OPT_STR, F(regex), .arg = "R",
      .help = "the whole answer matches this regular expression" },
    { "choice", 0, OPT_STR, F(choice), .arg = "A,B", .help = "the answer is one of these" },
    { "strict-schema", 0, OPT_FLAG, F(strict),
      .help = "refuse a schema with unknown keywords; else they are annotations" },
};
#undef F

/* "a,b" as ["a","b"]. */
static lq_status choices(char **out, const char *list, lq_err *err)
{
    lq_buf b = { 0 };
    char *copy = strdup(list), *rest = copy;
    lq_buf_puts(&b, "[");
    for (char *one; copy && (one = strsep(&rest, ","));) {
        if (b.n > 1) lq_buf_puts(&b, ",");
        js_put_str(&b, one);
    }
    lq_buf_add(&b, "]", 2);
    free(copy);
    if (copy && !b.oom) {
        *out = b.p;
        return LQ_OK;
    }
    free(b.p);
    return lq_fail(err, LQ_ENOMEM, "no memory for --choice");
}

lq_status structured_open(structured *s, const opt_structured *o, const tok_tokenizer *tok,
                          int64_t V, lq_err *err)
{
    *s = (structured){ 0 };
    int n = !!o->grammar + !!o->schema + !!o->regex + !!o->choice;
    if (n == 0) return LQ_OK;
    if (n > 1)
        return lq_fail(err, LQ_EUSAGE,
                       "expected one of --grammar, --json-schema, --regex and --choice");
    if (!tok) return lq_fail(err, LQ_EUSAGE, "a grammar needs a model with a tokenizer");
    const char *file = o->grammar ? o->grammar : o->schema;
    char *text = NULL;
    size_t bytes = 0;
    lq_status st = LQ_OK;
    if (file) st = lq_read_file(&text, &bytes, file, GR_MAX_TEXT, err);
    if (o->choice) st = choices(&text, o->choice, err);
    gr_spec spec = { .kind = o->grammar  ? GR_GRAMMAR
                             : o->schema ? GR_SCHEMA
                             : o->regex  ? GR_REGEX
                                         : GR_CHOICE,
                     .text = text ? text : o->regex,
                     .strict = o->strict };
    if (!st) spec.n = file ? bytes : strlen(spec.text);
    if (!st) st = gr_vocab_open(&s->v, tok, V, err);
    if (!st) st = gr_compile(&s->g, &spec, s->v, err);
    if (st && file && !s->g) lq_wrap(err, st, "%s", file);
    free(text);
    return st;
}

void structured_close(structured *s)
{
    gr_unref(s->g);
    gr_vocab_close(s->v);
    *s = (structured){ 0 };
}
