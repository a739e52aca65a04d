/* tools/report/inspect_html.h - `llmq inspect --html FILE`: what a model's tensors look like, drawn.
 *
 * The page (tools/report/inspect.html) has the JSON of `inspect` and, of the first tensors and of one of
 * each scheme, a sample: the planes with their sizes and first bytes, and the first elements of
 * row 0: which bits of which bytes hold the code, its level (what the code stands for), scale and
 * bias, and the value, which is that of qt_dequant. */
#ifndef LLMQ_TOOLS_REPORT_INSPECT_HTML_H
#define LLMQ_TOOLS_REPORT_INSPECT_HTML_H

#include "base/json.h"
#include "formats/source/source.h"

/* Adds "sample" to the tensors of doc ("tensors": one object for each of s, in order), then writes
 * the page, whole or not at all. Errors: LQ_EIO, LQ_ENOMEM, LQ_EFORMAT (planes that do not fit). */
lq_status ihtml_write(const char *path, cJSON *doc, const src_source *s, lq_err *err);

#endif
