/* formats/front_matter.h - the lines of YAML between two "---" with which a model's card begins. */
#ifndef LLMQ_FORMATS_FRONT_MATTER_H
#define LLMQ_FORMATS_FRONT_MATTER_H

#include "formats/base.h"

/* A key with its lines (a list's too), as they stand; NULL: it is not there. free() it. Lines of
 * more than a word, a quoted text or a list of such are left out. */
char *fm_lines(const char *card, size_t n, const char *key);
/* What stands behind "key:" on its line, if that is one word of letters, digits and "._-/+:" (at
 * most 200); else NULL. free() it. */
char *fm_word(const char *card, size_t n, const char *key);
bool fm_is_word(const char *s);

#endif
