/* tools/cli/carried_tok.c - see carried_tok.h. */
#include "tools/cli/carried_tok.h"

#include "base/machine.h"
#include "runtime/tokenizer/tok_files.h"
#include "tools/cli/progress.h"

#include <stdlib.h>

lq_status carried_tok_open(carried_tok *t, const src_source *src, bool needed, lq_err *err)
{
    const src_blob *blob = src_find_blob(src, "tokenizer.blob");
    memset(t, 0, sizeof *t);
    lq_status s = LQ_OK;
    if (blob && tok_blob_current(blob->data, blob->bytes)) {
        t->data = blob->data;
        t->bytes = blob->bytes;
    } else {
        s = tok_compile_source(&t->blob, &t->bytes, src, err);
        t->data = t->blob;
    }
    if (s == LQ_ENOENT) s = LQ_OK; /* a model without */
    if (!s && t->data && needed) s = tok_open(&t->tok, t->data, t->bytes, err);
    if (s && (needed || s != LQ_EUNSUPPORTED)) return lq_wrap(err, s, "%s", src_path(src));
    if (s) { /* the weights do not need it */
        prog_say(LOG_WARN, "%s; the result carries it uncompiled", err->msg);
        t->data = NULL;
    }
    return LQ_OK;
}

void carried_tok_read(carried_tok *t)
{
    tok_close(t->tok);
    t->tok = NULL;
    machine_give_back(t->bytes); /* to compile it took several times as much */
}

void carried_tok_close(carried_tok *t)
{
    carried_tok_read(t);
    free(t->blob);
}
