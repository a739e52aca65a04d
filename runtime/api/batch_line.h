/* runtime/api/batch_line.h - lines of a batch, as OpenAI has them: requests in, answers out. */
#ifndef LLMQ_RUNTIME_API_BATCH_LINE_H
#define LLMQ_RUNTIME_API_BATCH_LINE_H

#include "base/json.h"
#include "base/json_write.h"

/* The next line of a file that is not empty; NULL: there is none. */
const char *batch_line_next(const char **at, const char *end, size_t *n);

/* {"custom_id", "method": "POST", "url", "body": {...}} */
typedef struct {
    cJSON *doc;
    const char *id, *url;  /* in doc; NULL: not read */
    const cJSON *body;     /* likewise */
    const char *body_text; /* in the line, as it is spelled */
    size_t n_body;
} batch_line;

/* Duplicate names are refused. After an error id is there if it could be read. batch_line_free it either
 * way. */
lq_status batch_line_read(batch_line *l, const char *text, size_t n, size_t max_bytes, lq_err *err);
void batch_line_free(batch_line *l);

/* An answer: a response, or (error_code) why there is none. */
typedef struct {
    const char *name;      /* its own id, and that of the response's request */
    const char *custom_id; /* NULL: the line has none */
    int status;
    const char *body; /* JSON */
    size_t n_body;
    const char *error_code, *error;
} batch_answer;
/* One line of JSON, with its newline. */
void batch_line_write(jw *w, const batch_answer *a);

#endif
