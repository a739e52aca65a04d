/* quantize/methods/methods.c - the table of methods: a row is at the end of its method's file. */
#include "quantize/methods/methods.h"

#include <stdio.h>

/* In the order in which they are listed: without text first. */
#define METHODS(X) X(rtn) X(hqq) X(absmax) X(int8) X(fp8) X(nf4) X(fp4) X(gptq) X(awq) X(auto)

#define X(name) extern const qz_method qz_method_##name;
METHODS(X)
#undef X

static const qz_method *const methods[] = {
#define X(name) &qz_method_##name,
    METHODS(X)
#undef X
};

static const char *const option_names[] = {
#define X(id, name) [QZ_AT_##id] = (name),
    QZ_OPTIONS(X)
#undef X
};

const qz_method *qz_method_at(size_t i) { return i < LQ_COUNT(methods) ? methods[i] : NULL; }

lq_status qz_method_find(const qz_method **m, const char *name, lq_err *err)
{
    char list[512];
    for (size_t i = 0; i < LQ_COUNT(methods); i++)
        if (strcmp(methods[i]->name, name) == 0) return *m = methods[i], LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "--method: expected one of %s; found '%s'",
                   qz_methods_with(list, sizeof list, 0), name);
}

const qz_method *qz_method_of_layout(const char *layout)
{
    for (size_t i = 0; i < LQ_COUNT(methods); i++)
        if (methods[i]->layout && strcmp(methods[i]->layout, layout) == 0) return methods[i];
    return NULL;
}

const char *qz_option_name(int i) { return option_names[i]; }

unsigned qz_option_of(const char *name)
{
    for (int i = 0; i < QZ_N_OPTIONS; i++)
        if (strcmp(option_names[i], name) == 0) return 1U << i;
    return 0;
}

const char *qz_methods_with(char *buf, size_t n, unsigned options)
{
    size_t at = 0;
    *buf = 0;
    for (size_t i = 0; i < LQ_COUNT(methods); i++)
        if ((methods[i]->options & options) == options && at < n)
            at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? ", " : "", methods[i]->name);
    return buf;
}
