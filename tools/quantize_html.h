/* tools/quantize_html.h - `llmq quantize --report FILE.html`: one page that needs nothing else.
 *
 * The page is tools/report.html with the run's JSON (qrep_json, and the file's recipe, provenance
 * and checksum) in its script element of type application/json; its script draws from there with
 * textContent alone. In the JSON < > & are written as \u escapes, so that no name or path can end
 * the element. */
#ifndef LLMQ_TOOLS_QUANTIZE_HTML_H
#define LLMQ_TOOLS_QUANTIZE_HTML_H

#include "tools/quantize_report.h"

/* Is `path` a place to write to? Before hours of work. */
lq_status qhtml_check(const char *path, lq_err *err);
/* Whole or not at all. run->out is finished. Errors: LQ_EIO, LQ_ENOMEM, those of reading run->out.
 */
lq_status qhtml_write(const char *path, const qz_result *r, const qrep_run *run, lq_err *err);

#endif
