/* tools/cli/html_page.h - pages that need nothing but themselves: a template of this repository with
 * JSON in the place of its @DATA@, inside a script element of type application/json.
 *
 * The template's script draws from there with textContent alone. In the JSON < > & are written as
 * \u escapes, so that no name or path can end the element. */
#ifndef LLMQ_TOOLS_CLI_HTML_PAGE_H
#define LLMQ_TOOLS_CLI_HTML_PAGE_H

#include "base/json.h"

/* Is `path` a place to write to? */
lq_status html_check(const char *path, const char *option, lq_err *err);
/* Whole or not at all. Errors: LQ_EIO, LQ_ENOMEM. */
lq_status html_write(const char *path, const char *page, const char *end, const cJSON *doc,
                     lq_err *err);

#endif
