/* convert/imatrix_write.c - see imatrix_write.h. */
#include "convert/imatrix_write.h"

#include "base/out_file.h"
#include "convert/gguf_meta.h"

#include <stdlib.h>

enum { ALIGN = 32 };

/* A tensor's line in the header; what it takes up to the next. */
static size_t put_info(lq_buf *head, const imatrix_sums *e, const char *suffix, int64_t inner,
                       size_t at)
{
    const size_t n = strlen(e->name), more = strlen(suffix);
    gguf_put_le(head, n + more, 8);
    lq_buf_add(head, e->name, n);
    lq_buf_add(head, suffix, more);
    gguf_put_le(head, 2, 4);
    gguf_put_le(head, (uint64_t)inner, 8);
    gguf_put_le(head, (uint64_t)e->experts, 8);
    gguf_put_le(head, GGML_F32, 4);
    gguf_put_le(head, at, 8);
    return lq_round_up((size_t)(inner * e->experts) * sizeof(float), ALIGN);
}

static void put_header(lq_buf *head, const imatrix_sums *e, size_t n, const gguf_pairs *p)
{
    size_t at = 0;
    lq_buf_puts(head, "GGUF");
    gguf_put_le(head, 3, 4);
    gguf_put_le(head, 2 * n, 8);
    gguf_put_le(head, p->n, 8);
    lq_buf_add(head, p->b.p, p->b.n);
    for (size_t i = 0; i < n; i++) {
        at += put_info(head, &e[i], ".in_sum2", e[i].K, at);
        at += put_info(head, &e[i], ".counts", 1, at);
    }
}

static lq_status write_floats(lq_out *out, const float *v, int64_t n, lq_err *err)
{
    lq_status s = lq_out_pad(out, ALIGN, err);
    return s ? s : lq_out_write(out, v, (size_t)n * sizeof *v, err);
}

lq_status imatrix_write(const char *path, const imatrix_sums *e, size_t n, const char *text,
                        int64_t windows, int64_t len, lq_err *err)
{
    gguf_pairs p = { .n = 0 };
    lq_buf head = { 0 };
    lq_out *out = NULL;
    gguf_pair_str(&p, "general.type", "imatrix");
    gguf_pair_array(&p, "imatrix.datasets", GGUF_STRING, 1);
    gguf_put_str(&p.b, text, strlen(text));
    gguf_pair_int(&p, "imatrix.chunk_count", windows);
    gguf_pair_int(&p, "imatrix.chunk_size", len);
    put_header(&head, e, n, &p);
    lq_status s = head.oom || p.b.oom ? lq_fail(err, LQ_ENOMEM, "no memory for the header")
                                      : lq_out_open(&out, path, err);
    if (!s) s = lq_out_write(out, head.p, head.n, err);
    for (size_t i = 0; i < n && !s; i++) {
        s = write_floats(out, e[i].sums, e[i].experts * e[i].K, err);
        if (!s) s = write_floats(out, e[i].tokens, e[i].experts, err);
    }
    if (!s) s = lq_out_pad(out, ALIGN, err);
    if (s)
        lq_out_abort(out);
    else
        s = lq_out_commit(out, err);
    free(head.p);
    free(p.b.p);
    return s;
}
