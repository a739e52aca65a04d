/* runtime/chat/chat_out.c - see chat_out.h. One byte at a time through a small automaton; `held` is the
 * text that may still be the beginning of a mark, `raw` that of a call that is not sure yet. */
#include "runtime/chat/chat_out.h"

#include <stdlib.h>

#include "base/buf.h"
#include "base/json.h"

static const char open_think[] = "<think>", close_think[] = "</think>";
enum { MAX_NEWLINES = 64 }; /* so many before a mark are dropped */
static const char open_call[] = "<tool_call>", close_call[] = "</tool_call>";

typedef enum {
    BEFORE_THINK, /* white space, then perhaps <think> */
    THINK,        /* up to </think> */
    BEFORE_TEXT,  /* newlines after </think> */
    FIRST,        /* Llama 3: white space, then perhaps { */
    TEXT,         /* up to <tool_call> where there is that style */
    IN_CALL,      /* the object */
    AFTER_ARGS,   /* the rest of the object: what else it says is not wanted */
    AFTER_CALL,   /* Hermes: up to </tool_call>; Llama 3: ; and perhaps { */
    DROP          /* one_call: the rest */
} state;

/* Where in the object of a call we are. */
typedef enum { AT_START, AT_KEY, IN_KEY, AT_COLON, AT_VALUE, IN_VALUE } place;

struct chat_out {
    chat_out_opts o;
    state state;
    lq_buf held, raw;
    /* what goes to the sink next, all of one part */
    chat_part part;
    lq_buf news;
    /* the call */
    place place;
    lq_buf key, value, name, args;
    bool has_name, has_args, announced, streams; /* streams: the value goes out as it comes */
    int depth;
    bool in_string, escaped;
    bool fresh; /* just after <think>: newlines are dropped */
};

lq_status chat_out_open(chat_out **out, const chat_out_opts *o, lq_err *err)
{
    chat_out *c = *out = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "out of memory");
    c->o = *o;
    c->fresh = true;
    c->state = o->thinking                     ? THINK
               : o->thinks                     ? BEFORE_THINK
               : o->calls == CHAT_CALLS_LLAMA3 ? FIRST
                                               : TEXT;
    return LQ_OK;
}

void chat_out_close(chat_out *c)
{
    if (!c) return;
    lq_buf *all[] = { &c->held, &c->raw, &c->news, &c->key, &c->value, &c->name, &c->args };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        lq_buf_free(all[i]);
    free(c);
}

/* ---- out ---- */

static void flush(chat_out *c)
{
    if (c->news.n) c->o.sink(c->o.user, c->part, c->news.p, c->news.n);
    lq_buf_clear(&c->news);
}

static void give(chat_out *c, chat_part part, const char *p, size_t n)
{
    if (part != c->part) flush(c);
    c->part = part;
    lq_buf_add(&c->news, p, n);
}

static void give_all(chat_out *c, chat_part part, lq_buf *from)
{
    give(c, part, from->p ? from->p : "", from->n);
    lq_buf_clear(from);
}

/* ---- marks ---- */

static bool is_blank(char b) { return b == ' ' || b == '\n' || b == '\t' || b == '\r'; }

/* One more byte of newlines (a few) and then `tag`. `held` is what may still be them; what cannot
 * goes out as `part`. True: the tag is complete, and held with its newlines. */
static bool match(chat_out *c, const char *tag, chat_part part, char b)
{
    lq_buf *h = &c->held;
    size_t lead = 0, len = strlen(tag);
    while (lead < h->n && h->p[lead] == '\n')
        lead++;
    size_t n = h->n - lead; /* bytes of the tag so far */
    if (n || b != '\n' || lead < MAX_NEWLINES) {
        if (n ? tag[n] == b : b == '\n' || b == tag[0]) {
            lq_buf_add(h, &b, 1);
            return n + 1 == len;
        }
    }
    /* A tag begins with '<' and has no other: what was held is no tag, b may begin one. */
    give_all(c, part, h);
    if (b == '\n' || b == tag[0])
        lq_buf_add(h, &b, 1);
    else
        give(c, part, &b, 1);
    return false;
}

/* ---- the object of a call ---- */

static void begin_call(chat_out *c)
{
    lq_buf *all[] = { &c->key, &c->value, &c->name, &c->args };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        lq_buf_clear(all[i]);
    c->state = IN_CALL;
    c->place = AT_START;
    c->has_name = c->has_args = c->announced = c->streams = false;
}

static void announce(chat_out *c)
{
    flush(c);
    c->o.sink(c->o.user, CHAT_CALL, c->name.p ? c->name.p : "", c->name.n);
    c->announced = true;
}

static bool is_args(const chat_out *c)
{
    return (c->key.n == 9 && memcmp(c->key.p, "arguments", 9) == 0) ||
           (c->key.n == 10 && memcmp(c->key.p, "parameters", 10) == 0);
}

static bool is_name(const chat_out *c) { return c->key.n == 4 && !memcmp(c->key.p, "name", 4); }

/* The value as a string of JSON, decoded; false when it is none. */
static bool decode(const lq_buf *value, lq_buf *out)
{
    cJSON *v = NULL;
    bool ok = value->n && value->p[0] == '"' &&
              js_parse(&v, value->p, value->n, SIZE_MAX, 0, NULL) == LQ_OK;
    lq_buf_clear(out);
    if (ok) lq_buf_puts(out, v->valuestring);
    cJSON_Delete(v);
    return ok;
}

/* The value of a member is complete. False: this is no call. */
static bool end_value(chat_out *c)
{
    c->place = AT_KEY;
    if (is_name(c) && !c->has_name) {
        c->has_name = decode(&c->value, &c->name) &&
                      c->o.known(c->o.user, c->name.p ? c->name.p : "", c->name.n);
        if (!c->has_name) return false;
    } else if (is_args(c) && !c->has_args) {
        c->has_args = true;
        if (!c->streams && !decode(&c->value, &c->args)) /* some models spell them as a string */
            lq_buf_add(&c->args, c->value.p, c->value.n);
    }
    if (c->has_name && c->has_args && !c->announced) {
        announce(c);
        give_all(c, CHAT_ARGUMENTS, &c->args);
    }
    return true;
}

static void begin_value(chat_out *c, char b)
{
    c->place = IN_VALUE;
    c->depth = 0;
    c->in_string = c->escaped = false;
    lq_buf_clear(&c->value);
    c->streams = b == '{' && is_args(c) && c->has_name && !c->has_args;
    if (c->streams) announce(c);
}

static void keep_value(chat_out *c, char b)
{
    if (c->streams)
        give(c, CHAT_ARGUMENTS, &b, 1);
    else
        lq_buf_add(&c->value, &b, 1);
}

/* One byte of a value; *again: it is not part of it. */
static bool value_byte(chat_out *c, char b, bool *again)
{
    if (c->in_string) {
        keep_value(c, b);
        c->in_string = c->escaped || b != '"';
        c->escaped = b == '\\' && !c->escaped;
        return c->in_string || c->depth ? true : end_value(c);
    }
    bool ends = c->depth == 0 && (b == ',' || b == '}' || b == ']' || is_blank(b));
    if (ends) {
        *again = true;
        return end_value(c);
    }
    keep_value(c, b);
    c->in_string = b == '"';
    c->depth += (b == '{' || b == '[') - (b == '}' || b == ']');
    return c->depth == 0 && (b == '}' || b == ']') ? end_value(c) : true;
}

/* One byte of the object. False: it is no call. *closed: the object is complete. */
static bool object_byte(chat_out *c, char b, bool *closed)
{
    bool again = false;
    switch (c->place) {
    case AT_START:
        if (b == '{') c->place = AT_KEY;
        return b == '{' || is_blank(b);
    case AT_KEY:
        if (b == '"') {
            c->place = IN_KEY;
            lq_buf_clear(&c->key);
        }
        *closed = b == '}';
        return b == '"' || b == ',' || b == '}' || is_blank(b);
    case IN_KEY:
        if (b == '"')
            c->place = AT_COLON;
        else
            lq_buf_add(&c->key, &b, 1);
        return b != '\\' && c->key.n <= 64;
    case AT_COLON:
        if (b == ':') c->place = AT_VALUE;
        return b == ':' || is_blank(b);
    case AT_VALUE:
        if (is_blank(b)) return true;
        begin_value(c, b);
        return value_byte(c, b, &again) && !again;
    case IN_VALUE:
        if (!value_byte(c, b, &again)) return false;
        return again ? object_byte(c, b, closed) : true;
    }
    return false;
}

/* ---- a byte ---- */

static void after_call(chat_out *c) { c->state = c->o.one_call ? DROP : AFTER_CALL; }

static void chat_out_step(chat_out *c, char b);

/* What was held as the beginning of a mark is text. */
static void retell(chat_out *c, state next)
{
    lq_buf was = c->held;
    c->held = (lq_buf){ 0 };
    c->state = next;
    for (size_t i = 0; i < was.n; i++)
        chat_out_step(c, was.p[i]);
    lq_buf_free(&was);
}

static void call_byte(chat_out *c, char b)
{
    bool closed = false;
    if (!c->announced) lq_buf_add(&c->raw, &b, 1);
    bool ok = object_byte(c, b, &closed);
    if (ok && closed && c->has_name && !c->announced) { /* a call without arguments */
        announce(c);
        give(c, CHAT_ARGUMENTS, "{}", 2);
    }
    if (c->announced) {
        lq_buf_clear(&c->raw);
        if (closed)
            after_call(c);
        else if (!ok || c->has_args)
            c->state = AFTER_ARGS;
    } else if (!ok || closed) {
        c->state = TEXT;
        give_all(c, CHAT_CONTENT, &c->raw);
    }
}

static state first_text(const chat_out *c)
{
    return c->o.calls == CHAT_CALLS_LLAMA3 ? FIRST : TEXT;
}

static void chat_out_step(chat_out *c, char b)
{
    bool hermes = c->o.calls == CHAT_CALLS_HERMES, closed = false;
    switch (c->state) {
    case BEFORE_THINK: {
        size_t lead = 0;
        while (lead < c->held.n && is_blank(c->held.p[lead]))
            lead++;
        size_t n = c->held.n - lead;
        lq_buf_add(&c->held, &b, 1);
        if (n == 0 && is_blank(b) && lead < MAX_NEWLINES) break;
        if (open_think[n] != b) {
            retell(c, first_text(c));
        } else if (!open_think[n + 1]) {
            lq_buf_clear(&c->held);
            c->state = THINK;
            c->fresh = true;
        }
        break;
    }
    case THINK:
        if (c->fresh && b == '\n') break;
        c->fresh = false;
        if (match(c, close_think, CHAT_REASONING, b)) {
            lq_buf_clear(&c->held);
            c->state = BEFORE_TEXT;
        }
        break;
    case BEFORE_TEXT:
        if (b == '\n') break;
        c->state = first_text(c);
        chat_out_step(c, b);
        break;
    case FIRST:
        if (b == '{') {
            lq_buf_add(&c->raw, c->held.p ? c->held.p : "",
                       c->held.n); /* text, should it be no call */
            lq_buf_clear(&c->held);
            begin_call(c);
            call_byte(c, b);
            break;
        }
        lq_buf_add(&c->held, &b, 1);
        if (!is_blank(b)) retell(c, TEXT);
        break;
    case TEXT:
        if (!hermes) {
            give(c, CHAT_CONTENT, &b, 1);
        } else if (match(c, open_call, CHAT_CONTENT, b)) {
            lq_buf_add(&c->raw, c->held.p, c->held.n);
            lq_buf_clear(&c->held);
            begin_call(c);
        }
        break;
    case IN_CALL:
        call_byte(c, b);
        break;
    case AFTER_ARGS:
        if (hermes) {
            after_call(c);
            chat_out_step(c, b);
        } else if (!object_byte(c, b, &closed) || closed) {
            after_call(c);
        }
        break;
    case AFTER_CALL:
        if (hermes) {
            flush(c);
            if (match(c, close_call, CHAT_CONTENT, b)) {
                lq_buf_clear(&c->held);
                c->state = TEXT;
            }
            lq_buf_clear(&c->news); /* what stands between the object and its closing mark */
        } else if (!is_blank(b) && b != ';') {
            c->state = FIRST;
            chat_out_step(c, b);
        }
        break;
    case DROP:
        break;
    }
}

static lq_status told(const chat_out *c, lq_err *err)
{
    bool oom = c->held.oom || c->raw.oom || c->news.oom || c->key.oom || c->value.oom ||
               c->name.oom || c->args.oom;
    return oom ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
}

lq_status chat_out_push(chat_out *c, const char *text, size_t n, lq_err *err)
{
    for (size_t i = 0; i < n; i++)
        chat_out_step(c, text[i]);
    flush(c);
    return told(c, err);
}

lq_status chat_out_end(chat_out *c, lq_err *err)
{
    if (c->state == BEFORE_THINK || c->state == FIRST || c->state == TEXT)
        give_all(c, CHAT_CONTENT, &c->held);
    else if (c->state == THINK)
        give_all(c, CHAT_REASONING, &c->held);
    else if (c->state == IN_CALL && !c->announced)
        give_all(c, CHAT_CONTENT, &c->raw);
    flush(c);
    return told(c, err);
}
