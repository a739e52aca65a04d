/* tools/report/quantize_html.h - `llmq quantize --report FILE.html`: one page that needs nothing else.
 *
 * The page is tools/report/report.html with the run's JSON (qrep_json, and the file's recipe, provenance
 * and checksum); tools/cli/html_page.h. */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_HTML_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_HTML_H

#include "tools/report/quantize_report.h"

/* What the .llmq file `made` says of itself: recipe, provenance and, where it is the run's output and is not
 * converted, its checksum. cJSON_Delete it. Errors: LQ_ENOMEM, those of lqf_open. */
lq_status qhtml_about(cJSON **about, const char *made, bool is_out, lq_err *err);
/* Whole or not at all. Takes what is in `about`. Errors: LQ_EIO, LQ_ENOMEM. */
lq_status qhtml_write(const char *path, const qz_result *r, const qrep_run *run, cJSON *about,
                      lq_err *err);

#endif
