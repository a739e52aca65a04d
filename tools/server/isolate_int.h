/* tools/server/isolate_int.h - the three means of isolate.h, of one system each: isolate_linux.c, isolate_bsd.c.
 * NULL: it holds from now on; else why not. */
#ifndef LLMQ_TOOLS_SERVER_ISOLATE_INT_H
#define LLMQ_TOOLS_SERVER_ISOLATE_INT_H

#include "tools/server/isolate.h"

const char *iso_keep_rights(void);
/* *all: it holds for threads too that were there before. */
const char *iso_restrict_files(bool *all, const iso_want *w);
const char *iso_restrict_calls(const iso_want *w);

#endif
