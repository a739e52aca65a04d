/* convert/report.h - what a conversion says besides its result: notes, and the history that goes
 * along (formats/source/history.h). For convert/ only. */
#ifndef LLMQ_CONVERT_REPORT_H
#define LLMQ_CONVERT_REPORT_H

#include "convert/convert.h"

#include <cjson/cJSON.h>

/* One more note; beyond the last there is room for, none. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void conv_note(conv_report *r, const char *fmt, ...);

/* Notes what floats of its weights cannot say: that layers round their inputs. */
void conv_note_inputs(conv_report *r, const src_source *src);

/* Has the result of this source a history? anew: values may be chosen again. */
bool conv_has_history(const src_source *src, bool anew);
/* Which weights `src` has, for conv_converted: { "format", "xxh3" }. The hash is left out where it
 * would take reading every byte and `anew` is false. NULL: no memory. */
cJSON *conv_from(const src_source *src, bool anew);
/* The object "converted" of a result, or what the source had where nothing changed since; `from` is
 * borrowed. NULL: no memory. */
cJSON *conv_converted(const src_source *src, const conv_report *r, const cJSON *from);

#endif
