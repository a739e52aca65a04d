/* runtime/chat/tmpl_go.h - a template as Ollama's models have it (Go's text/template) as one of ours.
 *
 *     {{ if .System }}<|im_start|>system
 *     {{ .System }}<|im_end|>
 *     {{ end }}<|im_start|>user
 *     {{ .Prompt }}<|im_end|>
 *     <|im_start|>assistant
 *     {{ .Response }}<|im_end|>
 *
 * Known: fields of what is at hand (.Prompt, .Role, $.System), texts, numbers, if, else if, else, range
 * (also $i, $m := .Messages), with, end, comments, and, or, not, eq, ne, lt, le, gt, ge, len, json, blanks cut
 * by "{{- " and " -}}". The answer is where .Response is: what follows is left out. Variables of the result are
 * System, Prompt, Messages, ...: tmpl_parse it. */
#ifndef LLMQ_RUNTIME_CHAT_TMPL_GO_H
#define LLMQ_RUNTIME_CHAT_TMPL_GO_H

#include "base/buf.h"

/* Appends the Jinja of it. LQ_EVALUE: what is not known, by its words; LQ_ENOMEM. */
lq_status tmpl_from_go(lq_buf *out, const char *text, lq_err *err);

#endif
