/* base/json_text.c - one scan over the text before cJSON sees it: depth, escapes. */
#include "base/json_text.h"

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"

#include <stdlib.h>

/* Copy text into dst (never longer) with \u0000 as C0 80. False: nested too deep, at *at. */
static bool rewrite(char *dst, size_t *n_dst, const char *s, size_t n, size_t *at)
{
    size_t w = 0;
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        *at = i;
        if (quoted && c == '\\' && i + 1 < n) {
            if (n - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0) {
                memcpy(dst + w, "\xC0\x80", 2);
                w += 2;
                i += 5;
                continue;
            }
            dst[w++] = c;
            c = s[++i];
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '[' || c == '{')) {
            if (++depth > JT_DEPTH) return false;
        } else if (!quoted && (c == ']' || c == '}')) {
            depth--;
        }
        dst[w++] = c;
    }
    *n_dst = w;
    return true;
}

lq_status jt_parse(cJSON **out, const char *text, size_t n, unsigned flags, lq_err *err)
{
    *out = NULL;
    size_t bad = 0, n_copy = 0;
    if (memchr(text, 0, n)) return lq_fail(err, LQ_EFORMAT, "JSON: a raw NUL byte in the text");
    if (!lq_utf8_valid(text, n, &bad))
        return lq_fail(err, LQ_EFORMAT, "JSON: invalid UTF-8 at byte %zu", bad);
    char *copy = malloc(n + 1);
    if (!copy) return lq_fail(err, LQ_ENOMEM, "JSON: out of memory");
    lq_status s = LQ_OK;
    if (!rewrite(copy, &n_copy, text, n, &bad)) {
        s = lq_fail(err, LQ_EFORMAT, "JSON: nested deeper than %d at byte %zu", JT_DEPTH, bad);
        goto done;
    }
    copy[n_copy] = 0;
    const char *end = NULL;
    *out = cJSON_ParseWithLengthOpts(copy, n_copy + 1, &end, 1);
    if (!*out && js_ran_out()) {
        s = lq_fail(err, LQ_ENOMEM, "JSON: out of memory");
        goto done;
    }
    if (!*out) {
        s = lq_refuse_stand_in(text, n, err);
        if (!s)
            s = lq_fail(err, LQ_EFORMAT, "JSON: expected a value near byte %zu of %zu",
                        end ? (size_t)(end - copy) : 0, n);
        goto done;
    }
    if ((flags & JT_NUMBERS) && !js_spell_numbers(*out, copy, n_copy)) {
        cJSON_Delete(*out);
        *out = NULL;
        s = lq_fail(err, LQ_ENOMEM, "JSON: out of memory");
    }
done:
    free(copy);
    return s;
}

size_t jt_copy(char *dst, const char *src)
{
    size_t w = 0;
    for (; *src; src++) {
        if ((uint8_t)src[0] == 0xC0 && (uint8_t)src[1] == 0x80) {
            dst[w++] = 0;
            src++;
        } else {
            dst[w++] = *src;
        }
    }
    return w;
}
