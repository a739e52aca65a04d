/* runtime/chat/chat_derive.c - a form out of a template (chat_form.h): three calls are rendered, and
 * what stands before, between and behind them is compared.
 *
 *     S0 name M args S1 name M args S2 name M args T
 *
 * S1 ends as S0 does: with what a call begins with. What is left of S0 opens the list; what is left
 * of S1 closes a call and separates it from the next, and T begins like it. */
#include "runtime/chat/chat_probe.h"

#include <ctype.h>
#include <stdlib.h>

typedef struct {
    const tmpl_template *t;
    const cJSON *tokens;
    bool no_tools; /* the template raises where there are some */
    char *prompt;  /* of a user's turn, with tools */
    char *content; /* with an answer of text */
    char *calls;   /* with calls, which `how` says */
    probe how;
    lq_err why;
} reader;

static char *render(reader *r, probe p) { return probe_render(r->t, r->tokens, &p, &r->why); }

static int count_calls(const char *text)
{
    int n = 0;
    while (n < PROBE_CALLS && span_find(probe_turn(text), probe_names[n]))
        n++;
    return n;
}

/* The first conversation with calls that the template takes and shows. */
static bool render_calls(reader *r, const char *content, bool results)
{
    for (int text = 0; text < 2; text++)
        for (int calls = PROBE_CALLS; calls > 0; calls -= PROBE_CALLS - 1) {
            probe p = { .content = content,
                        .calls = calls,
                        .results = results,
                        .text = text,
                        .no_tools = r->no_tools };
            char *got = render(r, p);
            const char *key = got ? span_find(probe_turn(got), PROBE_KEY_A) : NULL;
            /* a dict printed by Python: the template wants text */
            bool good = key && (text || memcmp(key - 2, "{'", 2) != 0);
            if (good && count_calls(got) == calls) {
                free(r->calls);
                r->calls = got;
                r->how = p;
                return true;
            }
            free(got);
        }
    return false;
}

/* ---- marks ---- */

static span whole(const char *s) { return span_of(s, s + strlen(s)); }

static bool blank_span(span s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] != ' ' && s.p[i] != '\n') return false;
    return true;
}

static span trim(span s)
{
    while (s.n && (s.p[0] == '\n' || s.p[0] == ' '))
        s = span_after(s, 1);
    while (s.n && (s.p[s.n - 1] == '\n' || s.p[s.n - 1] == ' '))
        s.n--;
    return s;
}

/* s from k on, with the word before that and the mark before the word: "<|open|>think<|sep|>". */
static span wider(span s, size_t k)
{
    size_t w = k;
    while (w > 0 && (isalnum((unsigned char)s.p[w - 1]) || s.p[w - 1] == '_'))
        w--;
    if (w == k || w == 0 || s.p[w - 1] != '>') return span_after(s, k);
    while (w > 0 && s.p[w - 1] != '<')
        w--;
    return span_after(s, w ? w - 1 : k);
}

/* The mark "<...>" or "[...]" that s ends with. */
static span last_mark(span s)
{
    static const char pairs[] = "<>[]";
    s = trim(s);
    for (int i = 0; i < 4 && s.n; i += 2) {
        if (s.p[s.n - 1] != pairs[i + 1]) continue;
        for (size_t k = s.n; k-- > 0;)
            if (s.p[k] == pairs[i]) return wider(s, k);
    }
    return (span){ s.p, 0 };
}

/* The mark that s begins with. */
static span first_mark(span s)
{
    s = trim(s);
    const char *end = s.n && s.p[0] == '<'   ? memchr(s.p, '>', s.n)
                      : s.n && s.p[0] == '[' ? memchr(s.p, ']', s.n)
                                             : NULL;
    return (span){ s.p, end ? (size_t)(end + 1 - s.p) : 0 };
}

/* b is a with one word turned around: "<x>" and "</x>", "<|START_X|>" and "<|END_X|>". */
static bool pair(span a, span b)
{
    static const char *const words[][2] = {
        { "<", "</" }, { "[", "[/" }, { "START", "END" }, { "begin", "end" }
    };
    for (size_t i = 0; i < LQ_COUNT(words); i++) {
        const char *at = span_find(a, words[i][0]);
        size_t from = strlen(words[i][0]), to = strlen(words[i][1]);
        size_t head = at ? (size_t)(at - a.p) : 0;
        if (at && b.n == a.n - from + to && memcmp(a.p, b.p, head) == 0 &&
            memcmp(b.p + head, words[i][1], to) == 0 &&
            memcmp(b.p + head + to, at + from, b.n - head - to) == 0)
            return true;
    }
    return false;
}

/* ---- one call ---- */

typedef struct {
    span before; /* from the call before, or the header, to the first name */
    span middle; /* from that name to the arguments */
    span args;   /* FORM_PARAMS: from the first key to the last value's end */
    const char *end;
} seen_call;

/* The end of the JSON object at p. */
static const char *object_end(const char *p)
{
    int depth = 0;
    bool string = false;
    for (; *p; p++) {
        if (string) {
            if (*p == '\\' && p[1])
                p++;
            else
                string = *p != '"';
            continue;
        }
        string = *p == '"';
        depth += (*p == '{') - (*p == '}');
        if (*p == '}' && depth == 0) return p + 1;
    }
    return p;
}

static const char *skip_back(const char *p, const char *from)
{
    while (p > from && (p[-1] == ' ' || p[-1] == '\n'))
        p--;
    return p;
}

/* Call i, which begins at or after `from`; false: not as expected. */
static bool see_call(seen_call *c, chat_form *f, const char *from, int i)
{
    span rest = span_of(from, from + strlen(from));
    const char *name = span_find(rest, probe_names[i]);
    if (!name) return false;
    const char *after = name + strlen(probe_names[i]);
    const char *key = strstr(after, PROBE_KEY_A), *value = strstr(after, PROBE_VALUE_B);
    c->before = span_of(from, name);
    if (!key || !value) return false;
    const char *brace = key[-1] == '"' ? skip_back(key - 1, after) - 1 : key;
    bool json = brace >= after && *brace == '{';
    f->args = json ? FORM_JSON : FORM_PARAMS;
    c->middle = span_of(after, json ? brace : key);
    c->end = json ? object_end(brace) : value + strlen(PROBE_VALUE_B);
    c->args = span_of(json ? brace : key, c->end);
    return true;
}

/* ---- arguments one by one ---- */

/* Quotes around values are the values' own. */
static void read_quotes(chat_form *f, span *mid, span *next, span *last)
{
    static const struct {
        const char *quote;
        form_values values;
    } kinds[] = { { "<|\"|>", FORM_GEMMA }, { "'", FORM_PY }, { "\"", FORM_PY } };
    f->values = FORM_RAW;
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        size_t n = strlen(kinds[i].quote);
        if (mid->n < n || next->n < n || last->n < n) continue;
        if (memcmp(mid->p + mid->n - n, kinds[i].quote, n) != 0 ||
            memcmp(next->p, kinds[i].quote, n) != 0)
            continue;
        f->values = kinds[i].values;
        mid->n -= n;
        *next = span_after(*next, n);
        *last = span_after(*last, n);
        return;
    }
}

/* How the values that are no strings are spelled, and what is before them. */
static bool read_types(reader *r, chat_form *f)
{
    static const struct {
        const char *key, *value, *python;
        form_type type;
    } kinds[] = { { "zka", "[1", "[1", FORM_ARR },
                  { "zkb", "true", "True", FORM_BOOL },
                  { "zkn", "7301", "7301", FORM_NUM },
                  { "zko", "{", "{'", FORM_OBJ } };
    probe p = r->how;
    p.args = PROBE_TYPES;
    p.calls = 1;
    char *text = render(r, p);
    if (!text) return false;
    bool ok = true, python = false, nested = false;
    const char *at = span_find(probe_turn(text), probe_names[0]);
    for (size_t i = 0; i < LQ_COUNT(kinds) && ok; i++) {
        const char *key = at ? strstr(at, kinds[i].key) : NULL;
        const char *after = key ? key + strlen(kinds[i].key) : NULL;
        const char *value = after ? strstr(after, kinds[i].value) : NULL;
        const char *other = after ? strstr(after, kinds[i].python) : NULL;
        const char *next =
            i + 1 < LQ_COUNT(kinds) && after ? strstr(after, kinds[i + 1].key) : NULL;
        if (other && (!value || other <= value) && strcmp(kinds[i].value, kinds[i].python) != 0) {
            python = true;
            value = other;
        }
        if (value && next && value > next) value = NULL;
        memcpy(f->p_mid[kinds[i].type], f->p_mid[FORM_STR], FORM_MARK);
        if (value)
            ok = span_mark(f->p_mid[kinds[i].type], span_of(after, value));
        else if (after && (kinds[i].type == FORM_ARR || kinds[i].type == FORM_OBJ))
            nested = true;
        else
            ok = false;
        at = after;
    }
    if (f->values == FORM_RAW && nested) f->values = FORM_NESTED;
    if (f->values == FORM_RAW && python) f->values = FORM_RAW_PY;
    free(text);
    return ok;
}

/* Marks of the arguments of c; *middle: what of c->middle belongs to the call; *end: its end. */
static bool read_params(reader *r, chat_form *f, const seen_call *c, span *middle, const char **end)
{
    const char *key_b = span_find(c->args, PROBE_KEY_B),
               *value_a = span_find(c->args, PROBE_VALUE_A);
    if (!key_b || !value_a || key_b < value_a) return false;
    /* the second key, if the first one's end names the first key again, is still the first found */
    const char *mid_from = c->args.p + strlen(PROBE_KEY_A);
    span mid = span_of(mid_from, value_a);
    span next = span_of(value_a + strlen(PROBE_VALUE_A), key_b);
    span last = span_of(c->end, c->end + strlen(c->end));
    read_quotes(f, &mid, &next, &last);
    size_t n_open = span_suffix(c->middle, next);
    span left = { next.p, next.n - n_open };
    form_mark closes, ends;
    if (!span_mark(f->p_open, span_after(next, next.n - n_open)) ||
        !span_mark(f->p_mid[FORM_STR], mid) || !span_mark(closes, left))
        return false;
    /* the last value's end, with its own key as a hole, as far as it is the same */
    span cut = { last.p, last.n < FORM_MARK / 2 ? last.n : FORM_MARK / 2 };
    while (cut.n > 0 && ((uint8_t)cut.p[cut.n] & 0xc0) == 0x80)
        cut.n--;
    if (!span_mark(ends, cut)) return false;
    size_t n =
        span_prefix(span_of(closes, closes + strlen(closes)), span_of(ends, ends + strlen(ends)));
    if (!span_mark(f->p_close, span_of(closes, closes + n)) ||
        !span_mark(f->p_sep, span_of(closes + n, closes + strlen(closes))))
        return false;
    const char *at = last.p;
    for (size_t i = 0; i < n; i++)
        at += closes[i] == FORM_KEY ? strlen(PROBE_KEY_B) : 1;
    *middle = (span){ c->middle.p, c->middle.n - n_open };
    *end = at;
    return read_types(r, f);
}

/* ---- the list of calls ---- */

/* A digit that counts the calls, at the same distance from the marks' ends, becomes a hole. */
static void find_index(chat_form *f, form_mark m[PROBE_CALLS], bool from_end)
{
    size_t n[PROBE_CALLS], least = FORM_MARK;
    for (int i = 0; i < PROBE_CALLS; i++) {
        n[i] = strlen(m[i]);
        if (n[i] < least) least = n[i];
    }
    for (size_t k = 0; k < least; k++) {
        char *d[PROBE_CALLS];
        for (int i = 0; i < PROBE_CALLS; i++)
            d[i] = from_end ? &m[i][n[i] - 1 - k] : &m[i][k];
        bool counts = (*d[0] == '0' || *d[0] == '1') && *d[1] == *d[0] + 1 && *d[2] == *d[0] + 2;
        if (!counts) continue;
        f->first_index = *d[0] - '0';
        for (int i = 0; i < PROBE_CALLS; i++)
            *d[i] = FORM_INDEX;
    }
}

static bool join(form_mark to, const char *a, const char *b, const char *c)
{
    size_t x = strlen(a), y = strlen(b), z = strlen(c);
    if (x + y + z >= FORM_MARK) return false;
    memmove(to, a, x);
    memcpy(to + x, b, y);
    memcpy(to + x + y, c, z + 1);
    return true;
}

/* What is left of the text behind the last call without the end of a turn. */
static bool read_close(reader *r, chat_form *f, span tail)
{
    const char *c = r->content ? span_find(probe_turn(r->content), PROBE_CONTENT) : NULL;
    span end = whole(c ? c + strlen(PROBE_CONTENT) : "");
    const char *eos = cJSON_GetStringValue(js_get(r->tokens, "eos_token"));
    if (end.n >= strlen(f->content_close)) end = span_after(end, strlen(f->content_close));
    const char *stop = eos && *eos ? span_find(tail, eos) : NULL;
    if (!stop && !blank_span(end)) stop = span_find(tail, end.p);
    if (stop)
        tail.n = (size_t)(stop - tail.p);
    else if (r->how.results)
        tail.n = 0;
    else
        tail.n -= span_suffix(tail, end);
    return span_mark(f->close, tail);
}

static bool read_list(reader *r, chat_form *f, span before)
{
    seen_call c[PROBE_CALLS];
    form_mark s[PROBE_CALLS], m[PROBE_CALLS];
    int n = r->how.calls;
    const char *at = before.p;
    for (int i = 0; i < n; i++) {
        if (!see_call(&c[i], f, at, i)) return false;
        span middle = c[i].middle;
        at = c[i].end;
        if (f->args == FORM_PARAMS && !read_params(r, f, &c[i], &middle, &at)) return false;
        if (!span_mark(s[i], c[i].before) || !span_mark(m[i], middle)) return false;
    }
    f->parallel = n > 1;
    if (n == PROBE_CALLS) {
        find_index(f, s, true);
        find_index(f, m, false);
    }
    span tail = whole(at);
    form_mark begin, left = "";
    size_t k = n > 1 ? span_suffix(whole(s[0]), whole(s[1])) : strlen(s[0]);
    memcpy(begin, s[0] + strlen(s[0]) - k, k + 1);
    if (n > 1) memcpy(left, s[1], strlen(s[1]) - k);
    if (n > 1) left[strlen(s[1]) - k] = 0;
    memcpy(f->open, s[0], strlen(s[0]) - k);
    f->open[strlen(s[0]) - k] = 0;
    if (!join(f->head, begin, (const char[]){ FORM_NAME, 0 }, m[0])) return false;
    size_t room = tail.n < FORM_MARK / 2 ? tail.n : FORM_MARK / 2;
    form_mark ends;
    if (!span_mark(ends, (span){ tail.p, room })) return false;
    k = n > 1 ? span_prefix(whole(left), whole(ends)) : 0;
    memcpy(f->tail, left, k);
    f->tail[k] = 0;
    join(f->sep, left + k, "", "");
    /* an id in a call's end is longer than its hole */
    size_t bytes = k;
    for (size_t i = 0; i < k; i++)
        if (left[i] == FORM_ID) bytes += strlen(probe_ids[0]) - 1;
    if (!read_close(r, f, span_after(tail, bytes))) return false;
    if (n == 1) { /* what closes the call and what ends the list are not told apart */
        join(f->tail, f->close, "", "");
        f->close[0] = 0;
        if (f->args == FORM_JSON) f->tail[strspn(f->tail, " \n}")] = 0; /* then the turn ends */
    }
    if (blank_span(whole(f->open))) f->open[0] = 0;
    if (!f->open[0]) f->close[0] = 0; /* the turn's end after calls is another one */
    return true;
}

/* ---- where the calls begin ---- */

/* r->calls shows the content as it is shown alone, before the calls: *after is what is between. */
static bool behind_content(reader *r, span *after)
{
    span text = probe_turn(r->content), calls = probe_turn(r->calls);
    const char *c = span_find(text, PROBE_CONTENT), *d = span_find(calls, PROBE_CONTENT);
    const char *n = span_find(calls, probe_names[0]);
    if (!c || !d || d > n || d - calls.p > c - text.p ||
        memcmp(calls.p, text.p, (size_t)(d - calls.p)) != 0)
        return false;
    /* an answer of text alone may begin with the mark of a thought */
    span more = trim(span_of(text.p + (d - calls.p), c));
    if (more.n != last_mark(more).n) return false;
    *after = span_of(d + strlen(PROBE_CONTENT), n);
    return true;
}

static bool read_after_content(reader *r, chat_form *f, span after)
{
    const char *c = span_find(probe_turn(r->content), PROBE_CONTENT);
    size_t k = span_prefix(after, whole(c + strlen(PROBE_CONTENT)));
    if (blank_span((span){ after.p, k })) k = 0;
    return span_mark(f->content_close, (span){ after.p, k }) &&
           read_list(r, f, span_after(after, k));
}

/* From the content, if calls come behind it as content alone is shown; else from the header. */
static bool read_calls(reader *r, chat_form *f)
{
    span after = { NULL, 0 }, other;
    size_t gap[2] = { SIZE_MAX, SIZE_MAX };
    for (int results = 0; results < 2; results++)
        if (render_calls(r, PROBE_CONTENT, results) && behind_content(r, &other))
            gap[results] = other.n;
    if (gap[0] < SIZE_MAX || gap[1] < SIZE_MAX) {
        bool ok = render_calls(r, PROBE_CONTENT, gap[1] < gap[0]) && behind_content(r, &after);
        return ok && read_after_content(r, f, after);
    }
    if (!render_calls(r, "", false) && !render_calls(r, "", true) &&
        !render_calls(r, NULL, false) && !render_calls(r, NULL, true))
        return false;
    span calls = probe_turn(r->calls),
         prompt = r->prompt ? probe_turn(r->prompt) : (span){ NULL, 0 };
    const char *n = span_find(calls, probe_names[0]);
    calls.n = (size_t)(n - calls.p);
    size_t k = span_prefix(calls, probe_turn(r->content));
    if (prompt.n <= calls.n && memcmp(prompt.p, calls.p, prompt.n) == 0) k = prompt.n;
    /* an empty answer's turn, and the header once more */
    span header = last_mark((span){ calls.p, span_prefix(calls, prompt) });
    for (const char *p; header.n && (p = memmem(calls.p + k, calls.n - k, header.p, header.n));)
        k = (size_t)(p - calls.p) + header.n;
    return read_list(r, f, span_after(calls, k));
}

/* The prompt ends with what a call begins with: that is between content and calls. */
static void read_begun(reader *r, chat_form *f)
{
    span prompt = r->prompt ? probe_turn(r->prompt) : (span){ NULL, 0 };
    size_t n = strcspn(f->head, "\x01\x02\x03");
    if (f->open[0] || !n || blank_span((span){ f->head, n }) || prompt.n < n ||
        memcmp(prompt.p + prompt.n - n, f->head, n) != 0)
        return;
    memcpy(f->content_close, f->head, n);
    f->content_close[n] = 0;
    join(f->sep, f->sep, f->content_close, "");
    memmove(f->head, f->head + n, strlen(f->head + n) + 1);
}

/* ---- thoughts ---- */

/* The place of the thought in a turn that has one. */
static char *render_thought(reader *r, span *before, span *after, bool *to_call)
{
    static const probe turns[] = {
        { .content = PROBE_CONTENT, .thought = true },
        { .content = PROBE_CONTENT, .parts = true },
        { .content = PROBE_CONTENT, .thought = true, .no_tools = true },
        { .content = "", .thought = true, .calls = 1, .results = true }
    };
    for (size_t i = 0; i < LQ_COUNT(turns); i++) {
        probe p = turns[i];
        p.text = p.calls && r->how.text;
        char *text = render(r, p);
        span t = text ? probe_turn(text) : (span){ NULL, 0 };
        const char *at = span_find(t, PROBE_THOUGHT);
        const char *end = span_find(t, p.calls ? probe_names[0] : PROBE_CONTENT);
        if (at && end && end > at) {
            *before = span_of(t.p, at);
            *after = span_of(at + strlen(PROBE_THOUGHT), end);
            *to_call = p.calls > 0;
            return text;
        }
        free(text);
    }
    return NULL;
}

static span last_line(span s)
{
    s = trim(s);
    size_t k = s.n;
    while (k > 0 && s.p[k - 1] != '\n')
        k--;
    return span_after(s, k);
}

/* What is between a thought and the beginning of the calls behind it; n 0: not shown. */
static span thought_to_call(reader *r, const chat_form *f, char **text)
{
    probe p = r->how;
    p.thought = true;
    p.content = "";
    *text = r->calls ? render(r, p) : NULL;
    span t = *text ? probe_turn(*text) : (span){ NULL, 0 };
    const char *at = span_find(t, PROBE_THOUGHT), *end = span_find(t, probe_names[0]);
    if (!at || !end || end < at) return (span){ NULL, 0 };
    size_t begin = strlen(f->open) + strcspn(f->head, "\x01");
    span gap = span_of(at + strlen(PROBE_THOUGHT), end);
    if (strchr(f->head, FORM_ID) && strchr(f->head, FORM_ID) < strchr(f->head, FORM_NAME))
        begin += strlen(probe_ids[0]) - 1;
    return begin < gap.n ? (span){ gap.p, gap.n - begin } : gap;
}

static void read_thought(reader *r, chat_form *f)
{
    span before, after, prompt = r->prompt ? probe_turn(r->prompt) : (span){ NULL, 0 };
    bool to_call = false;
    char *text = render_thought(r, &before, &after, &to_call), *with_call = NULL;
    if (!text) return;
    span a = last_mark(before), b = first_mark(after);
    if (pair(a, b)) {
        span rest = trim(span_of(b.p + b.n, after.p + after.n));
        span_mark(f->think_open, a);
        span_mark(f->think_close, b);
        if (!to_call) span_mark(f->content_open, rest);
        free(text);
        return;
    }
    /* channels: the header ends where the prompt does, or where content alone begins to differ */
    size_t k = span_prefix(before, probe_turn(r->content));
    if (prompt.n <= before.n && memcmp(prompt.p, before.p, prompt.n) == 0) k = prompt.n;
    span open = trim(span_after(before, k));
    if (blank_span(open) && prompt.n > before.n && memcmp(prompt.p, before.p, before.n) == 0)
        open = trim(span_after(prompt, before.n));
    if (blank_span(open)) open = a.n ? a : last_line(before);
    span call = thought_to_call(r, f, &with_call);
    size_t n = call.n ? span_prefix(after, call) : b.n;
    if (call.n && n > call.n) n = call.n;
    if (!call.n && b.n) after = span_of(b.p, after.p + after.n);
    if (!blank_span(open) && !blank_span((span){ after.p, n })) {
        span_mark(f->think_open, open);
        span_mark(f->think_close, trim((span){ after.p, n }));
        span rest = trim(span_after(after, n));
        if (!to_call) span_mark(f->content_open, rest);
        if (f->content_open[0] && !f->content_close[0])
            join(f->content_close, f->think_close, "", "");
    }
    free(with_call);
    free(text);
}

/* Templates that show no thought of the past end their prompt with the mark that opens one. */
static void read_prompt(reader *r, chat_form *f)
{
    static const char *const marks[][2] = { { "<think>", "</think>" },
                                            { "[THINK]", "[/THINK]" },
                                            { "<seed:think>", "</seed:think>" },
                                            { "<|START_THINKING|>", "<|END_THINKING|>" },
                                            { "<|inner_prefix|>", "<|inner_suffix|>" } };
    for (size_t i = 0; i < LQ_COUNT(marks) && !f->think_open[0]; i++) {
        probe on = { .prompt = true, .kwarg = "enable_thinking", .value = true };
        char *text = render(r, on);
        if ((r->prompt && strstr(r->prompt, marks[i][0])) || (text && strstr(text, marks[i][0])) ||
            (r->content && strstr(r->content, marks[i][1]))) {
            span_mark(f->think_open, whole(marks[i][0]));
            span_mark(f->think_close, whole(marks[i][1]));
        }
        free(text);
    }
}

/* Content that has a mark of its own before it, right behind the prompt. */
static void read_content(reader *r, chat_form *f)
{
    span prompt = r->prompt ? probe_turn(r->prompt) : (span){ NULL, 0 },
         text = probe_turn(r->content);
    const char *c = span_find(text, PROBE_CONTENT);
    if (!c || !prompt.n) return;
    if (!f->content_open[0] && text.n >= prompt.n && memcmp(prompt.p, text.p, prompt.n) == 0) {
        span open = span_of(text.p + prompt.n, c);
        if (!blank_span(open) && !(f->think_close[0] && span_find(open, f->think_close)))
            span_mark(f->content_open, trim(open));
    }
    span close = first_mark(whole(c + strlen(PROBE_CONTENT)));
    if (f->content_open[0] && !f->content_close[0] && pair(whole(f->content_open), close))
        span_mark(f->content_close, close);
}

/* ---- */

/* DeepSeek-R1-Distill closes the list of calls after the second one. */
static void read_lone(reader *r, chat_form *f)
{
    probe one = r->how;
    form_mark tail;
    if (r->how.calls < 2 || !f->close[0]) return;
    one.calls = 1;
    char *text = render(r, one);
    const char *call = text ? span_find(probe_turn(text), probe_names[0]) : NULL;
    if (call && span_mark(tail, trim(whole(form_skip(f->close)))))
        f->lone_open = !strstr(call, tail);
    free(text);
}

/* Tools change nothing of the prompt. */
static bool ignores_tools(reader *r)
{
    char *plain = render(r, (probe){ .prompt = true, .no_tools = true });
    const bool same = plain && strcmp(plain, r->prompt) == 0;
    free(plain);
    return same;
}

lq_status form_derive(chat_form *f, const tmpl_template *t, const cJSON *tokens, lq_err *why)
{
    reader r = { .t = t, .tokens = tokens };
    *f = (chat_form){ .name = "derived" };
    r.prompt = render(&r, (probe){ .prompt = true });
    f->shows_tools = r.prompt && strstr(r.prompt, probe_names[0]);
    lq_err no_prompt = r.why;
    r.no_tools = !r.prompt;
    if (!r.prompt) r.prompt = render(&r, (probe){ .prompt = true, .no_tools = true });
    r.content = render(&r, (probe){ .content = PROBE_CONTENT });
    if (!r.content) r.content = render(&r, (probe){ .content = PROBE_CONTENT, .no_tools = true });
    *why = (lq_err){ "" };
    if (!r.content) {
        *why = r.why;
    } else {
        bool ok = read_calls(&r, f);
        if (ok) {
            read_begun(&r, f);
            read_lone(&r, f);
            f->text_arguments = r.how.text;
            form_complete(f);
        }
        /* templates with a fault in their third call are known */
        bool reads = false;
        for (probe p = r.how; ok && !reads && p.calls > 0; p.calls--)
            reads = probe_reads_back(f, t, tokens, &p);
        bool wrong = ok && !reads;
        if (wrong) ok = false;
        read_thought(&r, f);
        read_prompt(&r, f);
        read_content(&r, f);
        f->header = strcmp(f->think_open, "<|channel|>analysis" FORM_HEADER_END) == 0;
        const char *row = ok || !r.prompt || !f->shows_tools ? NULL : form_row_of(r.prompt);
        if (!ok) f->args = FORM_NO_CALLS;
        if (row && !form_named(f, row, why)) {
            f->guessed = true;
        } else if (wrong) {
            lq_fail(why, LQ_EUNSUPPORTED,
                    "the calls that it renders are not read as what they are");
        } else if (!ok && r.calls) {
            lq_fail(why, LQ_EUNSUPPORTED, "its calls are spelled in a way that is not understood");
        } else if (!ok && r.no_tools) {
            *why = no_prompt;
        } else if (!ok && f->shows_tools) {
            lq_fail(why, LQ_EUNSUPPORTED, "it shows tools and no calls of them");
        } else if (!ok && r.prompt && !ignores_tools(&r)) {
            lq_fail(why, LQ_EUNSUPPORTED, "its prompt changes with tools and does not show them");
        } else if (!ok) {
            lq_fail(why, LQ_ENOENT, FORM_NO_TOOLS);
        }
    }
    free(r.prompt);
    free(r.content);
    free(r.calls);
    return js_ran_out() ? lq_fail(why, LQ_ENOMEM, "chat template: out of memory") : LQ_OK;
}
