/* runtime/engine/stop.c - see stop.h. Positions count bytes from the first one pushed. */
#include "runtime/engine/stop.h"

#include <stdlib.h>

typedef struct {
    char *text;
    size_t len;
    size_t *fail; /* [len + 1] longest proper border of text[0..i) */
    size_t state; /* bytes of text that the input ends with; < len */
} pattern;

struct stop_matcher {
    pattern *pat;
    int n;
    bool keep, ended;
    int found;              /* decided: which string, or -1 */
    int best;               /* complete but not yet decided, or -1 */
    uint64_t best_start;    /* where it starts */
    uint64_t pos;           /* end of the input so far */
    char *buf;              /* input bytes not yet taken: positions base.. */
    size_t len, cap, taken; /* taken: bytes at the front that stop_take gave out */
    uint64_t base;
};

static lq_status pattern_init(pattern *p, const char *s, lq_err *err)
{
    p->len = strlen(s);
    if (!p->len) return lq_fail(err, LQ_EVALUE, "stop: expected a string that is not empty");
    p->text = strdup(s);
    p->fail = calloc(p->len + 1, sizeof *p->fail);
    if (!p->text || !p->fail) return lq_fail(err, LQ_ENOMEM, "stop strings: out of memory");
    for (size_t i = 1, k = 0; i < p->len; i++) {
        while (k && s[i] != s[k])
            k = p->fail[k];
        if (s[i] == s[k]) k++;
        p->fail[i + 1] = k;
    }
    return LQ_OK;
}

lq_status stop_open(stop_matcher **out, const char *const *strings, int n, bool keep, size_t room,
                    lq_err *err)
{
    *out = NULL;
    stop_matcher *m = calloc(1, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "stop strings: out of memory");
    m->keep = keep;
    m->found = m->best = -1;
    m->pat = calloc((size_t)(n > 0 ? n : 1), sizeof *m->pat);
    lq_status s = m->pat ? LQ_OK : lq_fail(err, LQ_ENOMEM, "stop strings: out of memory");
    size_t longest = 0;
    for (; !s && m->n < n; m->n++) {
        s = pattern_init(&m->pat[m->n], strings[m->n], err);
        if (m->pat[m->n].len > longest) longest = m->pat[m->n].len;
    }
    if (!s && (!lq_add(room, 2 * longest + 64, &m->cap) || !(m->buf = malloc(m->cap))))
        s = lq_fail(err, LQ_ENOMEM, "stop strings: out of memory");
    if (s)
        stop_close(m);
    else
        *out = m;
    return s;
}

void stop_reset(stop_matcher *m)
{
    for (int i = 0; i < m->n; i++)
        m->pat[i].state = 0;
    m->ended = false;
    m->found = m->best = -1;
    m->best_start = m->pos = m->base = 0;
    m->len = m->taken = 0;
}

void stop_close(stop_matcher *m)
{
    if (!m) return;
    for (int i = 0; m->pat && i < m->n; i++) {
        free(m->pat[i].text);
        free(m->pat[i].fail);
    }
    free(m->pat);
    free(m->buf);
    free(m);
}

static lq_status buf_append(stop_matcher *m, const char *text, size_t n, lq_err *err)
{
    if (m->taken) {
        m->len -= m->taken;
        m->base += m->taken;
        memmove(m->buf, m->buf + m->taken, m->len);
        m->taken = 0;
    }
    size_t need;
    if (!lq_add(m->len, n, &need)) return lq_fail(err, LQ_ENOMEM, "stop strings: out of memory");
    if (need > m->cap) {
        char *b = realloc(m->buf, need);
        if (!b) return lq_fail(err, LQ_ENOMEM, "stop strings: out of memory");
        m->buf = b;
        m->cap = need;
    }
    if (n) memcpy(m->buf + m->len, text, n);
    m->len = need;
    return LQ_OK;
}

static size_t longest_open(const stop_matcher *m)
{
    size_t longest = 0;
    for (int i = 0; i < m->n; i++)
        if (m->pat[i].state > longest) longest = m->pat[i].state;
    return longest;
}

/* One byte through every automaton; a completed string that starts before the best so far
 * replaces it (of equal starts the shorter was complete first). */
static void stop_step(stop_matcher *m, char c)
{
    m->pos++;
    for (int i = 0; i < m->n; i++) {
        pattern *p = &m->pat[i];
        while (p->state && p->text[p->state] != c)
            p->state = p->fail[p->state];
        if (p->text[p->state] == c) p->state++;
        if (p->state < p->len) continue;
        p->state = p->fail[p->len];
        uint64_t start = m->pos - p->len;
        if (m->best < 0 || start < m->best_start) {
            m->best = i;
            m->best_start = start;
        }
    }
}

lq_status stop_push(stop_matcher *m, const char *text, size_t n, bool watch, lq_err *err)
{
    if (m->found >= 0) return LQ_OK;
    lq_status s = buf_append(m, text, n, err);
    if (s) return s;
    if (!watch || !m->n) {
        m->pos += n;
        for (int i = 0; i < m->n; i++)
            m->pat[i].state = 0;
        return LQ_OK;
    }
    for (size_t i = 0; i < n && m->found < 0; i++) {
        stop_step(m, text[i]);
        if (m->best >= 0 && m->best_start <= m->pos - longest_open(m)) m->found = m->best;
    }
    return LQ_OK;
}

void stop_end(stop_matcher *m)
{
    m->ended = true;
    if (m->found < 0) m->found = m->best;
}

void stop_take(stop_matcher *m, const char **text, size_t *n)
{
    uint64_t end = m->pos; /* text before it may go out */
    if (m->found >= 0)
        end = m->best_start + (m->keep ? m->pat[m->found].len : 0);
    else if (!m->ended)
        end -= longest_open(m);
    uint64_t from = m->base + m->taken;
    *n = end > from ? (size_t)(end - from) : 0;
    *text = m->buf + m->taken;
    m->taken += *n;
}

int stop_matched(const stop_matcher *m) { return m->found; }
