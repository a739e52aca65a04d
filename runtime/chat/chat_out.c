/* runtime/chat/chat_out.c - see chat_out.h. One byte at a time through a small automaton; `held` is the
 * text that may still be the beginning of a mark, `raw` that of a call that is not sure yet. */
#include "runtime/chat/chat_out.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "runtime/chat/chat_call.h"

enum {
    MAX_NEWLINES = 64, /* so many before a mark are dropped */
    MAX_HEADER = 512,
    MAX_MARKS = 9
};

typedef enum {
    START,   /* before a part: its mark, or content */
    THINK,   /* up to think_close */
    TEXT,    /* up to a call's mark, or content_close */
    IN_CALL, /* one call */
    CLOSE,   /* a call that was an object: up to what ends it */
    DROP     /* one_call: the rest */
} state;

typedef struct {
    form_mark text;
    state next;
    bool call, fence;
} mark;

struct chat_out {
    chat_out_opts o;
    state state;
    bool thought;    /* there was one */
    bool after_call; /* START: what separates calls, or ends the list, may come */
    bool fresh;      /* newlines are dropped */
    bool fenced;     /* START: what ends a block of code around a bare call may come */
    lq_buf held, raw;
    chat_call call;
    form_mark first, next; /* a call's marks */
    form_mark rest;        /* what ends a call behind its object */
    /* what goes to the sink next, all of one part */
    chat_part part;
    lq_buf news;
};

static void give(void *user, chat_part part, const char *p, size_t n);

static bool any_mark(const chat_out_opts *o)
{
    const chat_form *f = o->form;
    return f && (o->calls || (o->thinks && f->think_open[0]) || f->content_open[0]);
}

lq_status chat_out_open(chat_out **out, const chat_out_opts *o, lq_err *err)
{
    chat_out *c = *out = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "out of memory");
    c->o = *o;
    if (!o->form || o->form->args == FORM_NO_CALLS) c->o.calls = false;
    c->fresh = true;
    c->state = o->thinking ? THINK : any_mark(&c->o) ? START : TEXT;
    if (!c->o.calls) return LQ_OK;
    const char *end = strrchr(o->form->tail, '}');
    c->call = (chat_call){ .f = o->form, .o = &c->o, .give = give, .user = c };
    form_begin(c->first, o->form, true);
    form_begin(c->next, o->form, false);
    if (o->form->object && end) memcpy(c->rest, form_skip(end + 1), strlen(form_skip(end + 1)) + 1);
    return LQ_OK;
}

void chat_out_close(chat_out *c)
{
    if (!c) return;
    lq_buf *all[] = { &c->held, &c->raw, &c->news };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        lq_buf_free(all[i]);
    call_free(&c->call);
    free(c);
}

/* ---- out ---- */

static void flush(chat_out *c)
{
    if (c->news.n) c->o.sink(c->o.user, c->part, c->news.p, c->news.n);
    lq_buf_clear(&c->news);
}

static void give(void *user, chat_part part, const char *p, size_t n)
{
    chat_out *c = user;
    if (part != c->part || part == CHAT_CALL) flush(c);
    c->part = part;
    if (part == CHAT_CALL)
        c->o.sink(c->o.user, part, p, n);
    else
        lq_buf_add(&c->news, p, n);
}

static void give_all(chat_out *c, chat_part part, lq_buf *from)
{
    give(c, part, from->p ? from->p : "", from->n);
    lq_buf_clear(from);
}

/* ---- marks ---- */

static void out_step(chat_out *c, char b);

static size_t newlines(const lq_buf *h)
{
    size_t n = 0;
    while (n < h->n && h->p[n] == '\n')
        n++;
    return n;
}

/* One more byte of newlines (a few) and then one of the marks; what can be neither goes out as
 * `part`. The mark that is complete, and held with its newlines; -1: none. */
static int match(chat_out *c, const char *const *marks, int n, chat_part part, char b)
{
    lq_buf *h = &c->held;
    lq_buf_add(h, &b, 1);
    while (h->n) {
        size_t lead = newlines(h), gone = lead + 1;
        if (lead == h->n && lead <= MAX_NEWLINES) return -1;
        for (int i = 0; i < n && lead < h->n; i++) {
            if (!marks[i][0] || h->p[lead] != marks[i][0]) continue;
            mark_match m = mark_compare(marks[i], strlen(marks[i]), h->p + lead, h->n - lead);
            if (m == MARK_FULL) return i;
            if (m == MARK_PART) return -1;
        }
        if (lead == h->n) gone = 1;
        give(c, part, h->p, gone);
        memmove(h->p, h->p + gone, h->n - gone);
        h->n -= gone;
    }
    return -1;
}

/* What was held as the beginning of a mark is text. */
static void retell(chat_out *c, state next)
{
    lq_buf was = c->held;
    c->held = (lq_buf){ 0 };
    c->state = next;
    for (size_t i = 0; i < was.n; i++)
        out_step(c, was.p[i]);
    lq_buf_free(&was);
}

/* ---- calls ---- */

static void begin_call(chat_out *c)
{
    lq_buf_add(&c->raw, c->held.p ? c->held.p : "", c->held.n); /* text, should it be no call */
    lq_buf_clear(&c->held);
    call_begin(&c->call);
    c->state = IN_CALL;
}

static void after_call(chat_out *c)
{
    const chat_form *f = c->o.form;
    flush(c);
    lq_buf_clear(&c->held);
    /* calls without a list, with nothing but blanks between them, are looked for in the text */
    bool text = !f->open[0] && !*form_skip(f->sep) && c->first[0] && !f->content_open[0];
    c->state = c->o.one_call ? DROP : text && !c->call.bare ? TEXT : START;
    c->after_call = true;
}

static void call_step(chat_out *c, char b)
{
    bool again = false;
    if (!c->call.announced) lq_buf_add(&c->raw, &b, 1);
    call_state s = call_byte(&c->call, b, &again);
    if (c->call.announced) lq_buf_clear(&c->raw);
    if (s == CALL_MORE) return;
    if (s == CALL_NONE) {
        c->state = TEXT;
        c->fenced = false;
        give_all(c, CHAT_CONTENT, &c->raw);
        return;
    }
    if (c->rest[0] && !c->o.one_call && !c->call.bare)
        c->state = CLOSE;
    else
        after_call(c);
    if (again) out_step(c, b);
}

static void close_step(chat_out *c, char b)
{
    const char *marks[] = { c->rest };
    flush(c);
    if (match(c, marks, 1, CHAT_CONTENT, b) == 0) after_call(c);
    lq_buf_clear(&c->news); /* what is between the object and its closing mark */
}

/* ---- the beginning of a part ---- */

static state begin_think(chat_out *c)
{
    c->fresh = true;
    c->thought = true;
    return THINK;
}

/* Harmony's header is complete, in held: the part that it begins. */
static void read_header(chat_out *c)
{
    lq_buf *h = &c->held;
    static const char to[] = "to=functions.";
    const char *name = memmem(h->p, h->n, to, strlen(to));
    bool thought = memmem(h->p, h->n, "analysis", 8) != NULL;
    if (!name || !c->o.calls) {
        lq_buf_clear(h);
        c->state = thought && c->o.thinks ? begin_think(c) : TEXT;
        return;
    }
    name += strlen(to);
    size_t n = 0;
    while (name + n < h->p + h->n && name[n] != '<' && name[n] != ' ')
        n++;
    lq_buf plain = { 0 };
    lq_buf_add(&plain, name, n);
    begin_call(c);
    c->call.place = 0; /* the header in the form's own order */
    call_begin(&c->call);
    bool again = false;
    call_state s = CALL_MORE;
    for (size_t i = 0; i < plain.n && s == CALL_MORE; i++)
        s = call_byte(&c->call, plain.p[i], &again);
    const char *rest = c->o.form->head + form_begin_head(c->o.form) + 1;
    for (; *rest && s == CALL_MORE; rest++)
        s = call_byte(&c->call, *rest, &again);
    c->raw.oom |= plain.oom;
    lq_buf_free(&plain);
    if (c->call.announced) lq_buf_clear(&c->raw);
    if (s != CALL_MORE) {
        c->state = TEXT;
        give_all(c, CHAT_CONTENT, &c->raw);
    }
}

static void header_step(chat_out *c, char b)
{
    static const char end[] = FORM_HEADER_END;
    const size_t n = sizeof end - 1;
    lq_buf *h = &c->held;
    lq_buf_add(h, &b, 1);
    bool may = mark_compare("<|channel|>", 11, h->p, h->n < 11 ? h->n : 11) != MARK_NO ||
               mark_compare("to=", 3, h->p, h->n < 4 ? h->n : 4) != MARK_NO ||
               mark_compare("<|start|>assistant", 18, h->p, h->n < 18 ? h->n : 18) != MARK_NO;
    if (!may || h->n > MAX_HEADER)
        retell(c, TEXT);
    else if (h->n >= n && memcmp(h->p + h->n - n, end, n) == 0)
        read_header(c);
}

/* A call that is an object may come without its marks, by itself or as a block of code: small models leave
 * them out. */
static bool may_be_bare(const chat_out *c)
{
    return c->o.calls && c->o.form->object && c->first[0];
}

/* The marks that may come; returns how many. */
static int start_marks(const chat_out *c, mark m[MAX_MARKS])
{
    const chat_form *f = c->o.form;
    bool thinks = c->o.thinks && (!c->thought || f->content_open[0]);
    const struct {
        bool on;
        const char *text;
        state next;
        bool call, fence;
    } all[] = { { c->after_call && *form_skip(f->sep), f->sep, START, false, false },
                { c->after_call, f->close, TEXT, false, false },
                { c->after_call && c->o.calls && f->open[0], c->next, IN_CALL, true, false },
                { thinks, f->think_open, THINK, false, false },
                { true, f->content_open, TEXT, false, false },
                { c->o.calls, c->first, IN_CALL, true, false },
                { c->after_call && c->call.bare, c->rest, START, false, false },
                { c->fenced, "```", START, false, false },
                { may_be_bare(c) && !c->fenced, "```json", IN_CALL, true, true } };
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        if (!all[i].on || !*form_skip(all[i].text)) continue;
        snprintf(m[n].text, FORM_MARK, "%s", form_skip(all[i].text));
        m[n].next = all[i].next;
        m[n].fence = all[i].fence;
        m[n++].call = all[i].call;
    }
    return n;
}

/* The mark that a call has here; "" where it has none, as the second of a list. */
static const char *call_mark(const chat_out *c)
{
    return c->after_call && c->o.form->open[0] ? c->next : c->first;
}

/* A call may begin without a mark: with its object, or its name. */
static bool bare(const chat_out *c, char b)
{
    if (!c->o.calls || (call_mark(c)[0] && !may_be_bare(c))) return false;
    return c->o.form->object ? b == '{'
                             : (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || b == '_';
}

static void start_step(chat_out *c, char b)
{
    lq_buf *h = &c->held;
    mark m[MAX_MARKS];
    if (c->thought && !h->n && b == '\n') return;
    if (c->o.form->header && !c->after_call) {
        header_step(c, b);
        return;
    }
    bool part = false;
    lq_buf_add(h, &b, 1);
    if (h->oom) return;
    size_t lead = 0;
    while (lead < h->n && mark_blank(h->p[lead]))
        lead++;
    for (int i = 0, n = start_marks(c, m); i < n && lead <= MAX_NEWLINES; i++) {
        mark_match got = mark_compare(m[i].text, strlen(m[i].text), h->p, h->n);
        part |= got == MARK_PART;
        if (got != MARK_FULL) continue;
        c->fenced = m[i].fence;
        if (m[i].call) {
            begin_call(c);
            c->call.bare = m[i].fence;
            return;
        }
        lq_buf_clear(h);
        c->state = m[i].next == THINK ? begin_think(c) : m[i].next;
        return;
    }
    if (part) return;
    if (lead == h->n && lead <= MAX_NEWLINES) return;
    if (lead + 1 == h->n && bare(c, b)) {
        h->n--;
        const bool without = call_mark(c)[0];
        begin_call(c);
        c->call.bare = without;
        call_step(c, b);
        return;
    }
    if (c->after_call && lead + 1 == h->n && (b == ',' || b == ';') && c->o.form->object) {
        lq_buf_clear(h);
        return;
    }
    retell(c, TEXT);
}

/* ---- a byte ---- */

static void think_step(chat_out *c, char b)
{
    const char *marks[] = { c->o.form->think_close };
    if (c->fresh && b == '\n') return;
    c->fresh = false;
    if (match(c, marks, 1, CHAT_REASONING, b) < 0) return;
    lq_buf_clear(&c->held);
    c->thought = true;
    c->state = START;
}

static void text_step(chat_out *c, char b)
{
    const char *marks[] = { c->o.calls ? c->first : "",
                            c->o.form ? form_skip(c->o.form->content_close) : "" };
    if (!marks[0][0] && !marks[1][0]) {
        give(c, CHAT_CONTENT, &b, 1);
        return;
    }
    int i = match(c, marks, 2, CHAT_CONTENT, b);
    if (i == 0) begin_call(c);
    if (i != 1) return;
    lq_buf_clear(&c->held);
    c->after_call = false;
    c->state = START;
}

static void out_step(chat_out *c, char b)
{
    static void (*const steps[])(chat_out *, char) = { [START] = start_step,
                                                       [THINK] = think_step,
                                                       [TEXT] = text_step,
                                                       [IN_CALL] = call_step,
                                                       [CLOSE] = close_step };
    if (c->state != DROP) steps[c->state](c, b);
}

static lq_status told(const chat_out *c, lq_err *err)
{
    bool oom = c->held.oom || c->raw.oom || c->news.oom || call_oom(&c->call);
    return oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}

lq_status chat_out_push(chat_out *c, const char *text, size_t n, lq_err *err)
{
    for (size_t i = 0; i < n; i++)
        out_step(c, text[i]);
    flush(c);
    return told(c, err);
}

/* Blanks behind calls are no content. */
static bool only_blanks(const lq_buf *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (!mark_blank(b->p[i])) return false;
    return true;
}

lq_status chat_out_end(chat_out *c, lq_err *err)
{
    if (c->state == TEXT || (c->state == START && !(c->after_call && only_blanks(&c->held))))
        give_all(c, CHAT_CONTENT, &c->held);
    else if (c->state == THINK)
        give_all(c, CHAT_REASONING, &c->held);
    else if (c->state == IN_CALL && !c->call.announced)
        give_all(c, CHAT_CONTENT, &c->raw);
    else if (c->state == IN_CALL)
        call_end(&c->call);
    flush(c);
    return told(c, err);
}
