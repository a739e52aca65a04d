/* tools/cli/lines.c - see lines.h. */
#include "tools/cli/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static lq_status answer_line(lines_answer answer, void *user, const char *line, size_t n, jw *out,
                             lq_err *err)
{
    cJSON *o = NULL;
    lq_status s = jt_parse(&o, line, n, JT_NUMBERS, err);
    if (!s && !cJSON_IsObject(o)) s = lq_fail(err, LQ_EFORMAT, "expected a JSON object");
    if (!s) s = answer(user, o, out, err);
    cJSON_Delete(o);
    if (!s && out->b.oom) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    return s;
}

lq_status lines_run(lines_answer answer, void *user, lq_err *err)
{
    char *line = NULL;
    size_t cap = 0, number = 0;
    jw out = { 0 };
    lq_status s = LQ_OK;
    errno = 0;
    for (ssize_t n; !s && (n = getline(&line, &cap, stdin)) >= 0;) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) continue;
        jw_clear(&out);
        s = answer_line(answer, user, line, (size_t)n, &out, err);
        if (s) {
            lq_wrap(err, s, "line %zu", number);
            break;
        }
        lq_buf_add(&out.b, "\n", 1);
        if (out.b.oom)
            s = lq_fail(err, LQ_ENOMEM, "out of memory");
        else if (fwrite(out.b.p, 1, out.b.n, stdout) != out.b.n || fflush(stdout) != 0)
            s = lq_fail(err, LQ_EIO, "standard output: %s", strerror(errno));
    }
    if (!s && ferror(stdin)) s = lq_fail(err, LQ_EIO, "standard input: %s", strerror(errno));
    free(line);
    jw_free(&out);
    return s;
}

lq_status lines_text(const cJSON *line, const char *key, char **text, size_t *n, lq_err *err)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, key));
    *text = NULL;
    *n = 0;
    if (!s) return lq_fail(err, LQ_EVALUE, "expected a text \"%s\"", key);
    *text = malloc(strlen(s) + 1);
    if (!*text) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *n = jt_copy(*text, s);
    return LQ_OK;
}
