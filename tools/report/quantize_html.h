/* tools/report/quantize_html.h - `llmq quantize --report FILE.html`: one page that needs nothing else.
 *
 * The page is tools/report/report.html with the run's JSON (qrep_json, and the file's recipe, provenance
 * and checksum); tools/cli/html_page.h. */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_HTML_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_HTML_H

#include "tools/report/quantize_report.h"

/* Whole or not at all. run->out is finished. Errors: LQ_EIO, LQ_ENOMEM, those of reading run->out.
 */
lq_status qhtml_write(const char *path, const qz_result *r, const qrep_run *run, lq_err *err);

#endif
