/* base/json_write.h - a growing byte buffer and a JSON writer on it.
 *
 * Commas are put where they belong: a value or a closing bracket wants one before what follows.
 * Strings may hold any bytes: what is not valid UTF-8 becomes U+FFFD, one per maximal subpart
 * (Unicode 15, table 3-8), so that the output is always valid JSON. Out of memory is remembered
 * in `oom` and later writes do nothing: check once, at the end. Zeroed is empty and ready. */
#ifndef LLMQ_BASE_JSON_WRITE_H
#define LLMQ_BASE_JSON_WRITE_H

#include "base/base.h"

typedef struct {
    char *p; /* n bytes; not NUL-terminated */
    size_t n, cap;
    bool comma; /* the next value or key needs a comma before it */
    bool oom;
} jw;

void jw_free(jw *w);
void jw_clear(jw *w); /* empties it and keeps the memory */

/* Plain bytes, outside of JSON's rules. */
void jw_bytes(jw *w, const void *p, size_t n);
void jw_text(jw *w, const char *s);
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void jw_printf(jw *w, const char *fmt, ...); /* at most 511 bytes a call */

void jw_open(jw *w, char bracket);  /* '{' or '[' */
void jw_close(jw *w, char bracket); /* '}' or ']' */
void jw_key(jw *w, const char *key);
void jw_str(jw *w, const char *s, size_t n);
void jw_cstr(jw *w, const char *s); /* NULL: null */
void jw_i64(jw *w, int64_t v);
void jw_f64(jw *w, double v); /* 9 significant digits; NaN and infinities: null */
void jw_bool(jw *w, bool v);
void jw_null(jw *w);
/* A value (or values) already written as JSON. Nothing when n is 0. */
void jw_json(jw *w, const char *p, size_t n);

#endif
