/* runtime/api/api_error.c - see api_error.h. */
#include "runtime/api/api_error.h"

#include <stdarg.h>
#include <stdio.h>

lq_status api_fail(api_error *e, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->err.msg, sizeof e->err.msg, fmt, ap);
    va_end(ap);
    e->status = 400;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    return LQ_EVALUE;
}

lq_status api_wrong(api_error *e, const char *param, const char *expected, const cJSON *v)
{
    char found[64];
    return api_fail(e, param, "invalid_value", "%s: expected %s, found %s", param, expected,
                    js_describe(found, v));
}

lq_status api_no_memory(api_error *e)
{
    api_fail(e, NULL, NULL, "out of memory");
    e->status = 503;
    return LQ_ENOMEM;
}
