/* tools/cli/html_page.h - pages that need nothing but themselves: a template of this repository with
 * JSON in the place of its @DATA@, inside a script element of type application/json.
 *
 * The template's script draws from there with textContent alone. In the JSON < > & are written as
 * \u escapes, so that no name or path can end the element. */
#ifndef LLMQ_TOOLS_CLI_HTML_PAGE_H
#define LLMQ_TOOLS_CLI_HTML_PAGE_H

#include "base/json.h"

/* Embeds tools/FILE as NAME .. NAME_end. The compiler runs at the root of the repository, where
 * .incbin finds it. */
#define HTML_PAGE(name, file)                                     \
    __asm__(".section .rodata\n" #name ":\n"                      \
            ".incbin \"tools/report/" file "\"\n" #name "_end:\n" \
            ".byte 0\n"                                           \
            ".text\n");                                           \
    extern const char name[], name##_end[]

/* Is `path` a place to write to? */
lq_status html_check(const char *path, const char *option, lq_err *err);
/* Whole or not at all. Errors: LQ_EIO, LQ_ENOMEM. */
lq_status html_write(const char *path, const char *page, const char *end, const cJSON *doc,
                     lq_err *err);

#endif
