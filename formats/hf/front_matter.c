/* formats/hf/front_matter.c */
#include "formats/hf/front_matter.h"
#include "base/json.h"

#include <ctype.h>
#include <stdlib.h>

/* Nothing that YAML would read as more than text. */
static bool plain_line(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !(s[i] && strchr(" ._-+/:,'\"[]()", s[i])))
            return false;
    return true;
}

lq_status fm_lines(char **out, const char *card, size_t n, const char *key, lq_err *err)
{
    lq_buf b = { 0 };
    const size_t k = strlen(key);
    bool in_key = false;
    *out = NULL;
    if (n < 4 || memcmp(card, "---\n", 4) != 0) return LQ_OK;
    for (size_t at = 4, len; at < n; at += len + 1) {
        const char *line = card + at, *end = memchr(line, '\n', n - at);
        len = end ? (size_t)(end - line) : n - at;
        if (len >= 3 && memcmp(line, "---", 3) == 0) break;
        const bool more = len && (*line == ' ' || *line == '-');
        if (!more) in_key = len > k && memcmp(line, key, k) == 0 && line[k] == ':';
        if (!in_key || len > 300 || !plain_line(line, len)) continue;
        lq_buf_add(&b, line, len);
        lq_buf_puts(&b, "\n");
    }
    lq_buf_add(&b, "", 1);
    if (!b.oom && b.n > 1)
        *out = b.p;
    else
        free(b.p);
    return b.oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}

bool fm_is_word(const char *s)
{
    for (const char *c = s; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("._-/+:", *c)) return false;
    return *s && strlen(s) <= 200;
}

lq_status fm_word(char **out, const char *card, size_t n, const char *key, lq_err *err)
{
    char *lines;
    *out = NULL;
    const lq_status s = fm_lines(&lines, card, n, key, err);
    if (!lines) return s;
    char *v = lines + strlen(key) + 1;
    while (*v == ' ')
        v++;
    v[strcspn(v, "\r\n")] = 0;
    memmove(lines, v, strlen(v) + 1);
    if (fm_is_word(lines))
        *out = lines;
    else
        free(lines);
    return LQ_OK;
}
