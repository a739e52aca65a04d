/* runtime/chat/chat_call.c - see chat_call.h. */
#include "runtime/chat/chat_call.h"

#include "base/json.h"

enum { MAX_KEY = 256 };

/* Places: of a call that is an object, and of one that is spelled by the head's pieces. */
enum {
    OBJ_START,
    OBJ_KEY,
    OBJ_IN_KEY,
    OBJ_COLON,
    OBJ_VALUE,
    OBJ_IN_VALUE,
    HEAD,      /* the head's next piece */
    NAME,      /* of the function */
    JSON_ARGS, /* the object */
    NEXT,      /* an argument, or the end */
    KEY,
    VALUE,   /* up to p_close */
    LITERAL, /* up to what follows it */
    TAIL
};

mark_match mark_compare(const char *mark, size_t n_mark, const char *text, size_t n)
{
    size_t i = 0, k = 0;
    for (;;) {
        while (i < n_mark && mark_blank(mark[i]))
            i++;
        while (k < n && mark_blank(text[k]))
            k++;
        if (i == n_mark) return k == n ? MARK_FULL : MARK_NO;
        if (k == n) return MARK_PART;
        if (mark[i++] != text[k++]) return MARK_NO;
    }
}

void call_begin(chat_call *c)
{
    lq_buf *all[] = { &c->key, &c->text, &c->name, &c->args };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        lq_buf_clear(all[i]);
    c->bare = false;
    c->announced = c->has_args = c->streams = c->has_name = false;
    c->place = c->f->object ? OBJ_START : HEAD;
    c->at = c->f->head + form_begin_head(c->f);
    c->tool = NULL;
    c->n_params = 0;
    c->full = 0;
}

void call_free(chat_call *c)
{
    lq_buf *all[] = { &c->key, &c->text, &c->name, &c->args };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        lq_buf_free(all[i]);
}

bool call_oom(const chat_call *c)
{
    return c->key.oom || c->text.oom || c->name.oom || c->args.oom;
}

static bool known(const chat_call *c)
{
    return c->o->known(c->o->user, c->name.p ? c->name.p : "", c->name.n);
}

static void announce(chat_call *c)
{
    c->give(c->user, CHAT_CALL, c->name.p ? c->name.p : "", c->name.n);
    c->announced = true;
    if (c->o->parameters) c->tool = c->o->parameters(c->o->user, c->name.p, c->name.n);
}

static void give(chat_call *c, const char *p, size_t n)
{
    if (n) c->give(c->user, CHAT_ARGUMENTS, p, n);
}

static void puts_args(chat_call *c, const char *s) { give(c, s, strlen(s)); }

/* One byte of an object that goes out as it comes; true: it is complete. */
static bool stream_object(chat_call *c, char b)
{
    give(c, &b, 1);
    if (c->in_string) {
        c->in_string = c->escaped || b != '"';
        c->escaped = b == '\\' && !c->escaped;
        return false;
    }
    c->in_string = b == '"';
    c->depth += (b == '{' || b == '[') - (b == '}' || b == ']');
    return c->depth == 0;
}

/* ---- a call that is an object ---- */

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

static bool key_is(const chat_call *c, const char *name)
{
    return c->key.n == strlen(name) && memcmp(c->key.p, name, c->key.n) == 0;
}

/* The form's own name, and what models mix up. */
static bool is_args(const chat_call *c)
{
    return key_is(c, c->f->key_args) || key_is(c, "arguments") || key_is(c, "parameters");
}

static bool end_value(chat_call *c)
{
    c->place = OBJ_KEY;
    if (c->streams) {
        c->streams = false;
        c->has_args = true;
        return true;
    }
    if (key_is(c, c->f->key_name) && !c->has_name) {
        c->has_name = decode(&c->text, &c->name) && known(c);
        if (!c->has_name) return false;
    } else if (is_args(c) && !c->has_args) {
        c->has_args = true;
        if (!decode(&c->text, &c->args)) /* some models spell them as a string */
            lq_buf_add(&c->args, c->text.p, c->text.n);
    }
    if (c->has_name && c->has_args && !c->announced) {
        announce(c);
        give(c, c->args.p, c->args.n);
    }
    return true;
}

static void begin_value(chat_call *c, char b)
{
    c->place = OBJ_IN_VALUE;
    c->depth = 0;
    c->in_string = c->escaped = false;
    lq_buf_clear(&c->text);
    c->streams = b == '{' && is_args(c) && c->has_name && !c->has_args;
    if (c->streams) announce(c);
}

/* One byte of a value; *again: it is not part of it. */
static bool value_byte(chat_call *c, char b, bool *again)
{
    if (c->streams) return stream_object(c, b) ? end_value(c) : true;
    if (c->in_string) {
        lq_buf_add(&c->text, &b, 1);
        c->in_string = c->escaped || b != '"';
        c->escaped = b == '\\' && !c->escaped;
        return c->in_string || c->depth ? true : end_value(c);
    }
    if (c->depth == 0 && (b == ',' || b == '}' || b == ']' || mark_blank(b))) {
        *again = true;
        return end_value(c);
    }
    lq_buf_add(&c->text, &b, 1);
    c->in_string = b == '"';
    c->depth += (b == '{' || b == '[') - (b == '}' || b == ']');
    return c->depth == 0 && (b == '}' || b == ']') ? end_value(c) : true;
}

/* False: it is no call. *closed: the object is complete. */
static bool object_byte(chat_call *c, char b, bool *closed)
{
    bool again = false;
    switch (c->place) {
    case OBJ_START:
        if (b == '{') c->place = OBJ_KEY;
        return b == '{' || mark_blank(b);
    case OBJ_KEY:
        if (b == '"') {
            c->place = OBJ_IN_KEY;
            lq_buf_clear(&c->key);
        }
        *closed = b == '}';
        return b == '"' || b == ',' || b == '}' || mark_blank(b);
    case OBJ_IN_KEY:
        if (b == '"')
            c->place = OBJ_COLON;
        else
            lq_buf_add(&c->key, &b, 1);
        if (b == '"' && c->bare && !c->has_name && !key_is(c, c->f->key_name)) return false;
        return b != '\\' && c->key.n <= 64;
    case OBJ_COLON:
        if (b == ':') c->place = OBJ_VALUE;
        return b == ':' || mark_blank(b);
    case OBJ_VALUE:
        if (mark_blank(b)) return true;
        begin_value(c, b);
        return value_byte(c, b, &again) && !again;
    default:
        if (!value_byte(c, b, &again)) return false;
        return again ? object_byte(c, b, closed) : true;
    }
}

static call_state object_call(chat_call *c, char b)
{
    bool closed = false, ok = object_byte(c, b, &closed);
    if (ok && closed && c->has_name && !c->announced && !c->bare) { /* without arguments */
        announce(c);
        puts_args(c, "{}");
    }
    if (ok && !closed) return CALL_MORE;
    return c->announced ? CALL_DONE : CALL_NONE;
}

/* ---- a call in pieces ---- */

static bool name_char(char b)
{
    return (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z') || (b >= '0' && b <= '9') || b == '_' ||
           b == '-' || b == '.';
}

/* A byte of the head or the tail at c->at; *over: it is behind it. False: it does not fit. */
static bool piece_byte(chat_call *c, char b, bool *over)
{
    *over = false;
    while (*c->at && mark_blank(*c->at))
        c->at++;
    if (!*c->at) {
        *over = true;
        return true;
    }
    if (mark_blank(b)) return true;
    if (*c->at == FORM_ID || *c->at == FORM_INDEX || *c->at == FORM_NAME) {
        if (name_char(b) || b == ':') {
            if (b != c->at[1] || *c->at == FORM_ID) return true;
        }
        c->at++;
        return piece_byte(c, b, over);
    }
    return *c->at++ == b;
}

static void begin_args(chat_call *c)
{
    c->place = c->f->args == FORM_JSON ? JSON_ARGS : NEXT;
    c->depth = 0;
    c->in_string = c->escaped = false;
    lq_buf_clear(&c->text);
}

static void begin_tail(chat_call *c)
{
    c->place = TAIL;
    c->at = c->f->tail;
}

/* Where p_mid differs by type, the type that it says. */
static int type_of_mid(const chat_call *c, size_t *which)
{
    static const int bits[] = { [FORM_STR] = VALUE_STR,
                                [FORM_NUM] = VALUE_NUM | VALUE_NULL,
                                [FORM_BOOL] = VALUE_BOOL | VALUE_NULL,
                                [FORM_OBJ] = VALUE_OBJ | VALUE_NULL,
                                [FORM_ARR] = VALUE_ARR | VALUE_NULL };
    int types = 0;
    const lq_buf *t = &c->text;
    *which = FORM_N_TYPES;
    for (size_t k = 0; k < FORM_N_TYPES; k++) {
        const char *mid = c->f->p_mid[k];
        size_t n = strlen(mid);
        while (n && mark_blank(mid[n - 1]))
            n--;
        for (size_t from = t->n; from-- > 0;) {
            mark_match m = mark_compare(mid, n, t->p + from, t->n - from);
            if (m == MARK_FULL && !mark_blank(t->p[from])) {
                types |= bits[k];
                if (*which == FORM_N_TYPES) *which = k;
            }
            if (t->n - from > 2 * n + 8) break;
        }
    }
    return types;
}

static size_t key_length(const chat_call *c, size_t which)
{
    const char *mid = c->f->p_mid[which];
    size_t n = strlen(mid);
    while (n && mark_blank(mid[n - 1]))
        n--;
    for (size_t from = c->text.n; from-- > 0;)
        if (!mark_blank(c->text.p[from]) &&
            mark_compare(mid, n, c->text.p + from, c->text.n - from) == MARK_FULL)
            return from;
    return 0;
}

static const cJSON *schema_of(const chat_call *c)
{
    char key[MAX_KEY + 1];
    memcpy(key, c->key.p ? c->key.p : "", c->key.n);
    key[c->key.n] = 0;
    return js_get(js_get(c->tool, "properties"), key);
}

/* The key is complete: what its value may be. */
static void begin_param(chat_call *c, int said)
{
    bool quotes = c->f->values == FORM_PY || c->f->values == FORM_GEMMA;
    const cJSON *schema = schema_of(c);
    c->types = schema ? value_types(schema, c->tool) : VALUE_ANY;
    if (said != VALUE_ANY && (c->types & said)) c->types &= said;
    puts_args(c, c->n_params++ ? ", \"" : "{\"");
    lq_buf_clear(&c->args);
    value_escape(&c->args, c->key.p, c->key.n);
    give(c, c->args.p, c->args.n);
    puts_args(c, "\": ");
    c->streams = !quotes && c->types == VALUE_STR;
    if (c->streams) puts_args(c, "\"");
    c->place = quotes ? LITERAL : VALUE;
    c->depth = 0;
    c->quote = 0;
    c->fresh = true;
    lq_buf_clear(&c->text);
}

static void end_param(chat_call *c)
{
    if (c->streams) {
        puts_args(c, "\"");
    } else {
        lq_buf_clear(&c->args);
        value_json(&c->args, c->f, c->text.p ? c->text.p : "", c->text.n, c->types, schema_of(c),
                   c->tool);
        give(c, c->args.p, c->args.n);
    }
    c->streams = false;
    c->place = NEXT;
    c->full = 0;
    lq_buf_clear(&c->text);
}

/* The end of a value, with the key in its hole; *lead: its blanks before the mark. */
static size_t close_mark(const chat_call *c, char *to, size_t room, size_t *lead)
{
    size_t n = 0;
    *lead = 0;
    while (mark_blank(c->f->p_close[*lead]))
        ++*lead;
    for (const char *p = c->f->p_close + *lead; *p && n + MAX_KEY < room; p++) {
        if (*p == FORM_KEY)
            memcpy(to + n, c->key.p, c->key.n), n += c->key.n;
        else
            to[n++] = *p;
    }
    while (n && mark_blank(to[n - 1]))
        n--;
    return n;
}

/* What of a value cannot be its end's beginning goes out. */
static void let_go(chat_call *c, const char *close, size_t n, size_t lead)
{
    lq_buf *t = &c->text;
    size_t keep = t->n < n ? t->n : n;
    while (keep && memcmp(t->p + t->n - keep, close, keep) != 0)
        keep--;
    /* and blanks that the end may begin with */
    while (lead && keep < t->n && mark_blank(t->p[t->n - keep - 1])) {
        keep++;
        lead--;
    }
    lq_buf_clear(&c->args);
    value_escape(&c->args, t->p, t->n - keep);
    give(c, c->args.p, c->args.n);
    memmove(t->p, t->p + t->n - keep, keep);
    t->n = keep;
}

static void value_text(chat_call *c, char b)
{
    char close[FORM_MARK + 2 * MAX_KEY];
    size_t lead, n = close_mark(c, close, sizeof close, &lead);
    const char *mid = c->f->p_mid[FORM_STR];
    if (c->fresh && b == '\n' && *mid && mid[strlen(mid) - 1] == '\n') {
        c->fresh = false;
        return;
    }
    c->fresh = false;
    lq_buf *t = &c->text;
    lq_buf_add(t, &b, 1);
    if (t->n < n || memcmp(t->p + t->n - n, close, n) != 0) {
        if (c->streams) let_go(c, close, n, lead);
        return;
    }
    t->n -= n;
    if (lead && t->n >= lead && memcmp(t->p + t->n - lead, c->f->p_close, lead) == 0) t->n -= lead;
    if (c->streams) {
        lq_buf_clear(&c->args);
        value_escape(&c->args, t->p, t->n);
        give(c, c->args.p, c->args.n);
    }
    end_param(c);
}

/* A byte of a literal; true: it is behind it. */
static bool literal_byte(chat_call *c, char b)
{
    static const char mark[] = "<|\"|>";
    const size_t n = sizeof mark - 1;
    lq_buf *t = &c->text;
    bool gemma = c->f->values == FORM_GEMMA;
    if (!c->quote && c->depth == 0 && (b == ',' || b == *form_skip(c->f->tail))) return true;
    lq_buf_add(t, &b, 1);
    if (gemma) {
        if (t->n >= n && memcmp(t->p + t->n - n, mark, n) == 0) c->quote = (char)!c->quote;
    } else if (c->quote) {
        if (b == c->quote && !c->escaped) c->quote = 0;
        c->escaped = b == '\\' && !c->escaped;
        return false;
    } else if (b == '"' || b == '\'') {
        c->quote = b;
        c->escaped = false;
    }
    if (!c->quote)
        c->depth += (b == '{' || b == '[' || b == '(') - (b == '}' || b == ']' || b == ')');
    return false;
}

static void end_args(chat_call *c)
{
    puts_args(c, c->n_params ? "}" : "{}");
    c->has_args = true;
}

static call_state next_byte(chat_call *c, char b, bool *again);

/* Bytes that were taken for the next mark and are behind it. */
static call_state tell(chat_call *c, size_t from, bool *again)
{
    char rest[FORM_MARK];
    size_t n = c->text.n - from < sizeof rest ? c->text.n - from : sizeof rest;
    call_state s = CALL_MORE;
    memcpy(rest, c->text.p + from, n);
    lq_buf_clear(&c->text);
    for (size_t i = 0; i < n && s == CALL_MORE; i++)
        s = call_byte(c, rest[i], again);
    return s;
}

/* Between arguments: the next one's mark, or the call's end. */
static call_state next_byte(chat_call *c, char b, bool *again)
{
    const char *open = form_skip(c->f->p_open), *tail = form_skip(c->f->tail);
    lq_buf *t = &c->text;
    if (!t->n && mark_blank(b)) return CALL_MORE;
    if (!t->n && c->n_params && b == *form_skip(c->f->p_sep) && b) return CALL_MORE;
    lq_buf_add(t, &b, 1);
    mark_match o = mark_compare(open, strlen(open), t->p, t->n);
    size_t n_tail = strcspn(tail, "\x01\x02\x03");
    mark_match e = n_tail ? mark_compare(tail, n_tail, t->p, t->n) : MARK_NO;
    if (!*open) o = e == MARK_NO ? MARK_FULL : MARK_NO;
    if (o == MARK_FULL) c->full = *open ? t->n : 0;
    if (o == MARK_FULL && e == MARK_NO && *open) {
        c->place = KEY;
        lq_buf_clear(t);
        return CALL_MORE;
    }
    if (e == MARK_FULL || (e == MARK_PART && o == MARK_NO && !c->full)) {
        end_args(c);
        begin_tail(c);
        return tell(c, 0, again);
    }
    if (o != MARK_NO && *open) return CALL_MORE;
    if (e == MARK_PART) return CALL_MORE;
    if (c->full || !*open) { /* an argument, and more of it */
        c->place = KEY;
        return tell(c, c->full, again);
    }
    end_args(c);
    *again = t->n == 1;
    return CALL_DONE;
}

static call_state key_byte(chat_call *c, char b)
{
    size_t which;
    lq_buf_add(&c->text, &b, 1);
    int said = type_of_mid(c, &which);
    if (said) {
        size_t n = key_length(c, which);
        lq_buf_clear(&c->key);
        lq_buf_add(&c->key, c->text.p, n < MAX_KEY ? n : MAX_KEY);
        bool alike = true;
        for (int k = 1; k < FORM_N_TYPES; k++)
            alike &= strcmp(c->f->p_mid[k], c->f->p_mid[0]) == 0;
        begin_param(c, alike ? VALUE_ANY : said);
    }
    if (c->text.n <= MAX_KEY + FORM_MARK) return CALL_MORE;
    end_args(c);
    return CALL_DONE;
}

static call_state json_byte(chat_call *c, char b, bool *again)
{
    if (!c->streams && mark_blank(b)) return CALL_MORE;
    if (!c->streams && b != '{') { /* none */
        end_args(c);
        begin_tail(c);
        return call_byte(c, b, again);
    }
    c->streams = true;
    if (!stream_object(c, b)) return CALL_MORE;
    c->streams = false;
    c->has_args = true;
    begin_tail(c);
    return *form_skip(c->at) ? CALL_MORE : CALL_DONE;
}

static call_state head_byte(chat_call *c, char b, bool *again)
{
    bool over;
    while (mark_blank(*c->at))
        c->at++;
    if (*c->at == FORM_NAME && !c->announced) {
        if (mark_blank(b)) return CALL_MORE;
        c->place = NAME;
        return call_byte(c, b, again);
    }
    if (!piece_byte(c, b, &over)) {
        if (!c->announced) return CALL_NONE;
        end_args(c);
        *again = true;
        return CALL_DONE;
    }
    if (*c->at == FORM_NAME && !c->announced) return CALL_MORE;
    if (!over) {
        while (mark_blank(*c->at))
            c->at++;
        if (!*c->at) begin_args(c);
        return CALL_MORE;
    }
    begin_args(c);
    return call_byte(c, b, again);
}

static call_state name_byte(chat_call *c, char b, bool *again)
{
    bool ends = !name_char(b) || (*form_skip(c->at + 1) == b && known(c));
    if (!ends) {
        lq_buf_add(&c->name, &b, 1);
        return c->name.n > MAX_KEY ? CALL_NONE : CALL_MORE;
    }
    if (!known(c)) return CALL_NONE;
    announce(c);
    c->at++;
    c->place = HEAD;
    while (mark_blank(*c->at))
        c->at++;
    if (!*c->at) begin_args(c);
    return call_byte(c, b, again);
}

static call_state tail_byte(chat_call *c, char b, bool *again)
{
    bool over, fits = piece_byte(c, b, &over);
    if (!fits || over) {
        *again = true;
        return CALL_DONE;
    }
    return *form_skip(c->at) ? CALL_MORE : CALL_DONE;
}

call_state call_byte(chat_call *c, char b, bool *again)
{
    *again = false;
    switch (c->place) {
    case HEAD:
        return head_byte(c, b, again);
    case NAME:
        return name_byte(c, b, again);
    case JSON_ARGS:
        return json_byte(c, b, again);
    case NEXT:
        return next_byte(c, b, again);
    case KEY:
        return key_byte(c, b);
    case VALUE:
        value_text(c, b);
        return CALL_MORE;
    case LITERAL:
        if (!literal_byte(c, b)) return CALL_MORE;
        end_param(c);
        return next_byte(c, b, again);
    case TAIL:
        return tail_byte(c, b, again);
    default:
        return object_call(c, b);
    }
}

void call_end(chat_call *c)
{
    if (!c->announced || c->f->object) return;
    if (c->place == VALUE && c->streams) {
        lq_buf_clear(&c->args);
        value_escape(&c->args, c->text.p, c->text.n);
        give(c, c->args.p, c->args.n);
    }
    if (!c->has_args && (c->place == HEAD || c->place == NEXT)) end_args(c);
}
