/* runtime/engine/stop.h - finds stop strings in text that arrives in pieces; no part of one gets
 * out.
 *
 * The text that comes out does not depend on how it was cut into pieces: it is the whole text up to
 * the earliest start of any stop string (the shortest of those that start there), or all of it. At
 * any time only the longest end of the text that is a proper beginning of a stop string is
 * withheld. When one stop string is complete but another, begun earlier, may still become so, the
 * answer waits: stop_push goes on until that is decided, stop_end decides it.
 *
 * One Knuth-Morris-Pratt automaton per stop string, so time is linear whatever the strings. */
#ifndef LLMQ_RUNTIME_ENGINE_STOP_H
#define LLMQ_RUNTIME_ENGINE_STOP_H

#include "base/base.h"

typedef struct stop_matcher stop_matcher;

/* Strings are copied, empty ones refused (LQ_EVALUE). keep: the stop string stays in the text.
 * room: longest piece expected; longer ones make stop_push allocate. */
lq_status stop_open(stop_matcher **m, const char *const *strings, int n, bool keep, size_t room,
                    lq_err *err);
void stop_reset(stop_matcher *m); /* as new, with its memory */
void stop_close(stop_matcher *m); /* NULL allowed */

/* More text. watch false: it passes, and no stop string is found in or across it (min_tokens).
 * Text after a match is ignored. */
lq_status stop_push(stop_matcher *m, const char *text, size_t n, bool watch, lq_err *err);
void stop_end(stop_matcher *m); /* no more text will come */
/* The text that may go out and has not yet; valid until the next push. */
void stop_take(stop_matcher *m, const char **text, size_t *n);
int stop_matched(const stop_matcher *m); /* which string, or -1 */

#endif
