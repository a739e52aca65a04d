/* base/json_write.h - JSON text into a growing buffer: single values, and a writer that puts commas.
 *
 * Strings may hold any bytes: what is not valid UTF-8 becomes U+FFFD, so that the output is always
 * valid JSON. They escape only ", \ and control characters below U+0020. Out of memory is
 * remembered in the buffer (base/buf.h): check once, at the end. */
#ifndef LLMQ_BASE_JSON_WRITE_H
#define LLMQ_BASE_JSON_WRITE_H

#include "base/buf.h"

/* One value, without a comma; what files and hashes have. A U+FFFD for each byte that is no UTF-8. */
void js_put_str(lq_buf *b, const char *s); /* quoted and escaped */
void js_put_i64(lq_buf *b, int64_t v);

/* The writer puts commas where they belong: a value or a closing bracket wants one before what
 * follows. Bytes that go to `b` directly are outside of its rules. Zeroed is empty and ready. */
typedef struct {
    lq_buf b;
    bool comma; /* the next value or key needs a comma before it */
} jw;

void jw_free(jw *w);
void jw_clear(jw *w); /* empties it and keeps the memory */

void jw_open(jw *w, char bracket);  /* '{' or '[' */
void jw_close(jw *w, char bracket); /* '}' or ']' */
void jw_key(jw *w, const char *key);
/* A U+FFFD for each maximal subpart that is no UTF-8 (Unicode 15, table 3-8). */
void jw_str(jw *w, const char *s, size_t n);
void jw_cstr(jw *w, const char *s); /* NULL: null */
void jw_i64(jw *w, int64_t v);
void jw_f64(jw *w, double v); /* 9 significant digits; NaN and infinities: null */
void jw_bool(jw *w, bool v);
void jw_null(jw *w);
/* A member: the key and its value. */
void jw_put_cstr(jw *w, const char *key, const char *v); /* NULL: null */
void jw_put_i64(jw *w, const char *key, int64_t v);
void jw_put_f64(jw *w, const char *key, double v);
void jw_put_bool(jw *w, const char *key, bool v);
void jw_put_time(jw *w, const char *key, int64_t unix_seconds); /* RFC 3339, in UTC */
/* A value (or values) already written as JSON. Nothing when n is 0. */
void jw_json(jw *w, const char *p, size_t n);

#endif
