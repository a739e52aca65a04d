/* tests/support/jsonl.h - golden data of one JSON object per line, with U+0000 in its strings. */
#ifndef LLMQ_TESTS_SUPPORT_JSONL_H
#define LLMQ_TESTS_SUPPORT_JSONL_H

#include "base/file.h"
#include "base/json_text.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    char *data;
    size_t n, at;
} jsonl;

static inline bool jsonl_open(jsonl *j, const char *path)
{
    lq_err err;
    memset(j, 0, sizeof *j);
    if (lq_read_file(&j->data, &j->n, path, 64 << 20, &err) == LQ_OK) return true;
    fprintf(stderr, "%s\n", err.msg);
    return false;
}

/* The next object (cJSON_Delete it), or NULL at the end. */
static inline cJSON *jsonl_next(jsonl *j, unsigned flags)
{
    cJSON *o = NULL;
    if (j->at >= j->n) return NULL;
    const char *line = j->data + j->at, *end = memchr(line, '\n', j->n - j->at);
    size_t n = end ? (size_t)(end - line) : j->n - j->at;
    j->at += n + 1;
    jt_parse(&o, line, n, flags, NULL);
    return o;
}

static inline void jsonl_close(jsonl *j) { free(j->data); }

/* A member's text with its length; free it. "" when absent. */
static inline char *jsonl_text(const cJSON *v, size_t *n)
{
    const char *s = cJSON_GetStringValue(v);
    char *out = calloc(1, (s ? strlen(s) : 0) + 1);
    *n = s && out ? jt_copy(out, s) : 0;
    return out;
}

#endif
