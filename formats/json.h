/* formats/json.h - cJSON behind a gate: size, depth and UTF-8 are checked before it sees a byte,
 * and typed getters that say what was expected.
 *
 * Source: RFC 8259; cJSON (MIT). Duplicate keys are refused when JS_UNIQUE is set (quadratic-free).
 */
#ifndef LLMQ_FORMATS_JSON_H
#define LLMQ_FORMATS_JSON_H

#include "formats/base.h"

#include <cjson/cJSON.h>

typedef enum { JS_UNIQUE = 1 } js_flags;
enum { JS_DEPTH = 64 };

/* Parse exactly n bytes (no trailing garbage but white space). max_bytes bounds n. Free with
 * cJSON_Delete. */
lq_status js_parse(cJSON **out, const char *text, size_t n, size_t max_bytes, unsigned flags,
                   lq_err *err);
lq_status js_parse_file(cJSON **out, const char *path, size_t max_bytes, unsigned flags,
                        lq_err *err);
bool js_valid_utf8(const char *s, size_t n);

/* Getters on an object: absent (or null) leaves *v and returns LQ_OK with `required` false; a wrong
 * type or an integer that is not whole or not within lo..hi is LQ_EVALUE: "hidden_size: expected an
 * integer 1..1048576, found 1.5". */
lq_status js_i64(const cJSON *o, const char *key, bool required, int64_t lo, int64_t hi, int64_t *v,
                 lq_err *err);
lq_status js_f64(const cJSON *o, const char *key, bool required, double lo, double hi, double *v,
                 lq_err *err);
lq_status js_bool(const cJSON *o, const char *key, bool required, bool *v, lq_err *err);
lq_status js_str(const cJSON *o, const char *key, bool required, const char **v, lq_err *err);

#endif
