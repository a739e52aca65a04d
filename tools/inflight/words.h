/* tools/inflight/words.h - the words of --quantize: a scheme or a method, as `llmq quantize` makes it
 * without text. */
#ifndef LLMQ_TOOLS_INFLIGHT_WORDS_H
#define LLMQ_TOOLS_INFLIGHT_WORDS_H

#include "quantize/methods/method.h"

/* "nf4", "fp4-g32-double", "u4-g128-asym": the method that makes the scheme, with the options for it.
 * "int8": i8-row. "hqq": the method with its defaults. LQ_EUSAGE: a method that needs text; any other
 * word (names what there is). */
lq_status inflight_word(qz_opts *o, const char *word, lq_err *err);

#endif
