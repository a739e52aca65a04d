/* runtime/api/multipart.c - see multipart.h. */
#include "runtime/api/multipart.h"

#include "runtime/limits.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The value of a parameter of a header, which may be quoted; false: it has none of this name. */
static bool parameter(char *out, size_t room, const char *header, size_t n, const char *name)
{
    const size_t n_name = strlen(name);
    size_t len = 0;
    for (size_t i = 0; i + n_name + 1 < n; i++) {
        const bool begins = i > 0 && (header[i - 1] == ';' || header[i - 1] == ' ');
        if (!begins || strncasecmp(header + i, name, n_name) != 0 || header[i + n_name] != '=')
            continue;
        size_t at = i + n_name + 1;
        const bool quoted = header[at] == '"';
        for (at += quoted; at < n && header[at] != (quoted ? '"' : ';'); at++) {
            if (quoted && header[at] == '\\' && at + 1 < n) at++;
            if (len + 1 < room) out[len++] = header[at];
        }
        out[len] = 0;
        return true;
    }
    return false;
}

lq_status multipart_open(multipart *m, const char *type, const char *body, size_t n, lq_err *err)
{
    char boundary[API_BOUNDARY_MAX + 2];
    *m = (multipart){ .at = body, .end = body + n };
    if (!type || !parameter(boundary, sizeof boundary, type, strlen(type), "boundary") ||
        !boundary[0] || strlen(boundary) > API_BOUNDARY_MAX)
        return lq_fail(err, LQ_EFORMAT, "Content-Type: expected a boundary of 1..%d bytes",
                       API_BOUNDARY_MAX);
    m->n_mark = (size_t)snprintf(m->mark, sizeof m->mark, "\r\n--%s", boundary);
    const size_t first = m->n_mark - 2;
    if (n < first || memcmp(body, m->mark + 2, first) != 0)
        return lq_fail(err, LQ_EFORMAT, "the body does not begin with the boundary of its type");
    m->at += first;
    return LQ_OK;
}

static lq_status cut_short(lq_err *err)
{
    return lq_fail(err, LQ_EFORMAT, "the body ends inside a part");
}

/* One line of a part's head, without its end; NULL: the body ends before. */
static const char *next_line(multipart *m, size_t *n)
{
    const char *from = m->at, *end = memmem(from, (size_t)(m->end - from), "\r\n", 2);
    if (!end) return NULL;
    *n = (size_t)(end - from);
    m->at = end + 2;
    return from;
}

lq_status multipart_next(multipart *m, form_part *p, bool *more, lq_err *err)
{
    static const char disposition[] = "Content-Disposition:";
    const char *line;
    size_t n;
    *p = (form_part){ .n = 0 };
    *more = m->end - m->at < 2 || memcmp(m->at, "--", 2) != 0;
    if (!*more) return LQ_OK;
    if (!next_line(m, &n) || n) return cut_short(err);
    while ((line = next_line(m, &n)) && n > 0) {
        if (n < sizeof disposition || strncasecmp(line, disposition, sizeof disposition - 1) != 0)
            continue;
        parameter(p->name, sizeof p->name, line, n, "name");
        parameter(p->file, sizeof p->file, line, n, "filename");
    }
    if (!line) return cut_short(err);
    if (!p->name[0]) return lq_fail(err, LQ_EFORMAT, "a part of the form has no name");
    const char *end = m->at == m->end ? NULL
                                      : memmem(m->at - 2, (size_t)(m->end - m->at) + 2, m->mark,
                                               m->n_mark); /* an empty part has one newline */
    if (!end) return cut_short(err);
    p->data = m->at;
    p->n = end > m->at ? (size_t)(end - m->at) : 0;
    m->at = end + m->n_mark;
    return LQ_OK;
}
