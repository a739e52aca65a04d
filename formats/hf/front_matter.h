/* formats/hf/front_matter.h - the YAML between two "---" at the beginning of a model's card. */
#ifndef LLMQ_FORMATS_HF_FRONT_MATTER_H
#define LLMQ_FORMATS_HF_FRONT_MATTER_H

#include "base/base.h"

/* A key with its lines (a list's too), as written; *out NULL: it is not there. free() it. Lines
 * of more than a word, a quoted text or a list of such are left out. LQ_ENOMEM. */
lq_status fm_lines(char **out, const char *card, size_t n, const char *key, lq_err *err);
/* What follows "key:" on its line, if that is one word of letters, digits and "._-/+:" (at
 * most 200); else *out is NULL. free() it. LQ_ENOMEM. */
lq_status fm_word(char **out, const char *card, size_t n, const char *key, lq_err *err);
bool fm_is_word(const char *s);

#endif
