/* runtime/api/api_error.h - an error answer, filled where a request is found wrong. */
#ifndef LLMQ_RUNTIME_API_API_ERROR_H
#define LLMQ_RUNTIME_API_API_ERROR_H

#include "base/json.h"

/* What http_error takes. */
typedef struct {
    int status;
    char param[64]; /* "": null */
    const char *code;
    lq_err err; /* the message */
} api_error;

/* Fill e (with status 400) and return LQ_EVALUE. param and code may be NULL. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
lq_status
api_fail(api_error *e, const char *param, const char *code, const char *fmt, ...);

/* "PARAM: expected EXPECTED, found (what v is)". */
lq_status api_wrong(api_error *e, const char *param, const char *expected, const cJSON *v);

/* Status 503; returns LQ_ENOMEM. */
lq_status api_no_memory(api_error *e);

#endif
