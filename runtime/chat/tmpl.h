/* runtime/chat/tmpl.h - chat templates: the Jinja2 subset and sandbox that Hugging Face templates use.
 *
 * A template is parsed once into a tree (bounded depth and size) and rendered against JSON values.
 * Rendering is bounded in steps, output bytes and time; it reads no file and no environment.
 * Behaviour: Jinja2 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls,
 * `tojson` with ensure_ascii off, `raise_exception`, `strftime_now`, `generation` blocks).
 * Threads: a tmpl_template is read-only after tmpl_parse. */
#ifndef LLMQ_RUNTIME_CHAT_TMPL_H
#define LLMQ_RUNTIME_CHAT_TMPL_H

#include "base/base.h"

typedef struct cJSON cJSON;
typedef struct tmpl_template tmpl_template;

lq_status tmpl_parse(tmpl_template **t, const char *src, size_t n, lq_err *err); /* copies src */
void tmpl_free(tmpl_template *t);

/* Render with the members of the JSON object `vars` as variables (messages, tools,
 * add_generation_prompt, bos_token, eos_token, ...; null members are None, absent ones undefined).
 * *out is malloc'd and NUL-terminated. Errors: LQ_EVALUE - the template raised (err holds its own
 * message, without a prefix) or misused a value, or a limit was met. */
lq_status tmpl_render(const tmpl_template *t, const cJSON *vars, char **out, size_t *n,
                      lq_err *err);

/* The same, and which bytes the template wrote itself: own[i] != 0 for its constants and for
 * variables whose cJSON item is a string with valueint TMPL_OWN, through any cutting and joining;
 * 0 for other variables and for all that is computed. *own is malloc'd, n bytes. */
enum { TMPL_OWN = 1 };
lq_status tmpl_render_own(const tmpl_template *t, const cJSON *vars, char **out, uint8_t **own,
                          size_t *n, lq_err *err);

#endif
