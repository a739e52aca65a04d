/* quantize/methods/methods.h - the list of methods. */
#ifndef LLMQ_QUANTIZE_METHODS_METHODS_H
#define LLMQ_QUANTIZE_METHODS_METHODS_H

#include "quantize/methods/method.h"

#define QZ_DEFAULT_METHOD "auto"

/* NULL from the end on. */
const qz_method *qz_method_at(size_t i);
/* Errors: LQ_EUSAGE (names what there is). */
lq_status qz_method_find(const qz_method **m, const char *name, lq_err *err);

/* The method whose own layout this is; NULL: none. */
const qz_method *qz_method_of_layout(const char *layout);

/* The name of an option, without dashes; i < QZ_N_OPTIONS. */
const char *qz_option_name(int i);
/* QZ_OPT_... of that name; 0: none, or one that all methods take. */
unsigned qz_option_of(const char *name);
/* "rtn, hqq, gptq": the methods that take all of `options`. Returns buf. */
const char *qz_methods_with(char *buf, size_t n, unsigned options);

#endif
