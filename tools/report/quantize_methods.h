/* tools/report/quantize_methods.h - what `llmq quantize` says of its methods, from their rows
 * (quantize/methods/methods.h). */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_METHODS_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_METHODS_H

#include "tools/cli/opt.h"

/* For cmd_row.note: which methods take an option, and what they do without it. */
void qmethods_note(char *text, size_t n, const opt_row *row);
/* Errors: LQ_EUSAGE (an option that the method does not take; names those that do). */
lq_status qmethods_check(const cmd_ctx *c, const char *method, lq_err *err);
/* --list-methods. Errors: LQ_ENOMEM. */
lq_status qmethods_list(bool json, lq_err *err);

#endif
