/* formats/hf/front_matter.h - the lines of YAML between two "---" with which a model's card begins. */
#ifndef LLMQ_FORMATS_HF_FRONT_MATTER_H
#define LLMQ_FORMATS_HF_FRONT_MATTER_H

#include "base/base.h"

/* A key with its lines (a list's too), as they stand; *out NULL: it is not there. free() it. Lines
 * of more than a word, a quoted text or a list of such are left out. LQ_ENOMEM. */
lq_status fm_lines(char **out, const char *card, size_t n, const char *key, lq_err *err);
/* What stands behind "key:" on its line, if that is one word of letters, digits and "._-/+:" (at
 * most 200); else *out is NULL. free() it. LQ_ENOMEM. */
lq_status fm_word(char **out, const char *card, size_t n, const char *key, lq_err *err);
bool fm_is_word(const char *s);

#endif
