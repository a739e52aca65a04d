/* runtime/api/multipart.h - the parts of a form (multipart/form-data). Source: RFC 7578, RFC 2046 section 5.1. */
#ifndef LLMQ_RUNTIME_API_MULTIPART_H
#define LLMQ_RUNTIME_API_MULTIPART_H

#include "base/base.h"

typedef struct {
    const char *at, *end; /* what was not read yet */
    char mark[80];        /* what begins a part, with its newline */
    size_t n_mark;
} multipart;

enum { MULTIPART_NAME = 256 };
typedef struct {
    char name[MULTIPART_NAME], file[MULTIPART_NAME]; /* cut where they are longer; "": none */
    const char *data;                                /* in the body */
    size_t n;
} form_part;

/* type: the body's Content-Type. LQ_EFORMAT: it has no boundary, or the body does not begin with it. */
lq_status multipart_open(multipart *m, const char *type, const char *body, size_t n, lq_err *err);
/* The next part; *more false: there is none. LQ_EFORMAT: the body ends inside a part, or a part has no
 * name. */
lq_status multipart_next(multipart *m, form_part *p, bool *more, lq_err *err);

#endif
