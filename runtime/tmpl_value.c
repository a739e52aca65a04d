/* runtime/tmpl_value.c - Python's values as templates see them: truth, equality, order, str(),
 * repr(), JSON. */
#include "runtime/tmpl_int.h"

#include "runtime/tok_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- arena, errors ---- */
void tp_fail(tp_base *b, lq_status s, const char *fmt, ...)
{
    va_list ap;
    b->status = s;
    if (b->err) {
        va_start(ap, fmt);
        vsnprintf(b->err->msg, sizeof b->err->msg, fmt, ap);
        va_end(ap);
    }
    longjmp(b->out, 1);
}

void *tp_take(tp_base *b, size_t n)
{
    void *p = NULL;
    if (n > b->limit || b->arena.used > b->limit - n)
        tp_fail(b, LQ_EVALUE, "template: more than %zu bytes of values", b->limit);
    p = lq_push(&b->arena, n ? n : 1);
    if (!p) tp_fail(b, LQ_ENOMEM, "template: out of memory");
    return p;
}

char *tp_copy(tp_base *b, const char *s, size_t n)
{
    char *p = tp_take(b, n + 1);
    if (n) memcpy(p, s, n);
    return p;
}

void tp_charge(tp_run *r, size_t n)
{
    r->steps += (int64_t)n + 1;
    if (r->steps > TP_MAX_STEPS)
        tp_fail(&r->base, LQ_EVALUE, "template: line %d: more than %d steps", r->base.line,
                TP_MAX_STEPS);
}

void tp_add(tp_run *r, tp_text *t, const char *s, size_t n)
{
    if (t->n + n > TP_MAX_OUTPUT)
        tp_fail(&r->base, LQ_EVALUE, "template: a text of more than %d bytes", TP_MAX_OUTPUT);
    if (t->n + n > t->cap) {
        size_t cap = (t->n + n) * 2 + 64;
        char *p = tp_take(&r->base, cap);
        if (t->n) memcpy(p, t->p, t->n);
        t->p = p;
        t->cap = cap;
    }
    if (n) memcpy(t->p + t->n, s, n);
    t->n += n;
    tp_charge(r, n / 64);
}

void tp_puts(tp_run *r, tp_text *t, const char *s) { tp_add(r, t, s, strlen(s)); }

/* ---- making ---- */
tv tv_cstr(const char *s) { return tv_str(s, strlen(s)); }

tv tv_undef(const char *name)
{
    tv v = { .k = TV_UNDEF };
    v.u.undef.name = name;
    return v;
}

void tp_no_value(tp_run *r, tv v)
{
    if (v.u.undef.of)
        tp_fail(&r->base, LQ_EVALUE, "'%s' has no attribute '%s'", v.u.undef.of, v.u.undef.name);
    tp_fail(&r->base, LQ_EVALUE, "'%s' is undefined", v.u.undef.name);
}

tv tv_new_list(tp_run *r, tv_kind k)
{
    return (tv){ .k = k, .u.list = tp_take(&r->base, sizeof(tv_list)) };
}

void tv_push(tp_run *r, tv list, tv v)
{
    tv_list *l = list.u.list;
    tp_charge(r, 0);
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        tv *p = tp_take(&r->base, cap * sizeof *p);
        if (l->n) memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

tv tv_new_dict(tp_run *r)
{
    return (tv){ .k = TV_DICT, .u.dict = tp_take(&r->base, sizeof(tv_dict)) };
}

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)s[i]) * 16777619u;
    return h;
}

static void deeper(tp_run *r)
{
    tp_charge(r, 0);
    if (++r->depth > TP_MAX_DEPTH)
        tp_fail(&r->base, LQ_EVALUE, "template: line %d: values nested too deep", r->base.line);
}

/* Equal keys have equal hashes: numbers by their value as a double, tuples by their members. */
static uint32_t hash_key(tp_run *r, tv k)
{
    double f;
    uint32_t h = 17;
    switch (k.k) {
    case TV_STR:
        return hash_bytes(k.u.s.p, k.u.s.n);
    case TV_NONE:
        return 3;
    case TV_BOOL:
    case TV_INT:
    case TV_FLOAT:
        f = tv_as_float(k);
        if (f == 0) f = 0; /* -0.0 */
        return hash_bytes((const char *)&f, sizeof f);
    case TV_TUPLE:
        deeper(r);
        for (size_t i = 0; i < k.u.list->n; i++)
            h = h * 31 + hash_key(r, k.u.list->v[i]);
        r->depth--;
        return h;
    default:
        tp_fail(&r->base, LQ_EVALUE, "unhashable type: '%s'", tv_type(k));
    }
}

enum { SMALL_DICT = 8 };

static void index_entry(tv_dict *d, size_t i, uint32_t hash)
{
    size_t mask = d->n_index - 1, k = hash & mask;
    while (d->index[k])
        k = (k + 1) & mask;
    d->index[k] = (uint32_t)i + 1;
}

static tv_entry *find(tp_run *r, tv_dict *d, tv key, uint32_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (tv_equal(r, d->e[i].key, key)) return &d->e[i];
        return NULL;
    }
    for (size_t k = hash & (d->n_index - 1); d->index[k]; k = (k + 1) & (d->n_index - 1)) {
        tv_entry *e = &d->e[d->index[k] - 1];
        tp_charge(r, 0);
        if (tv_equal(r, e->key, key)) return e;
    }
    return NULL;
}

const tv *tv_get(tp_run *r, tv dict, tv key)
{
    tv_entry *e = find(r, dict.u.dict, key, hash_key(r, key));
    return e ? &e->value : NULL;
}

void tv_set(tp_run *r, tv dict, tv key, tv value)
{
    tv_dict *d = dict.u.dict;
    uint32_t hash = hash_key(r, key);
    tv_entry *e = find(r, d, key, hash);
    tp_charge(r, 0);
    if (e) {
        e->value = value;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        tv_entry *p = tp_take(&r->base, cap * sizeof *p);
        if (d->n) memcpy(p, d->e, d->n * sizeof *p);
        d->e = p;
        d->cap = cap;
    }
    d->e[d->n++] = (tv_entry){ key, value };
    if (d->n > SMALL_DICT && d->n * 2 > d->n_index) {
        d->n_index = d->n_index ? d->n_index * 2 : 32;
        d->index = tp_take(&r->base, d->n_index * sizeof *d->index);
        for (size_t i = 0; i < d->n; i++)
            index_entry(d, i, hash_key(r, d->e[i].key));
    } else if (d->index) {
        index_entry(d, d->n - 1, hash);
    }
}

/* ---- questions ---- */
bool tv_true(tv v)
{
    switch (v.k) {
    case TV_UNDEF:
    case TV_NONE:
        return false;
    case TV_BOOL:
        return v.u.b;
    case TV_INT:
        return v.u.i != 0;
    case TV_FLOAT:
        return v.u.f != 0;
    case TV_STR:
        return v.u.s.n != 0;
    case TV_LIST:
    case TV_TUPLE:
        return v.u.list->n != 0;
    case TV_DICT:
        return v.u.dict->n != 0;
    default:
        return true;
    }
}

bool tv_is_num(tv v) { return v.k == TV_BOOL || v.k == TV_INT || v.k == TV_FLOAT; }

double tv_as_float(tv v)
{
    return v.k == TV_FLOAT ? v.u.f : v.k == TV_INT ? (double)v.u.i : v.u.b ? 1.0 : 0.0;
}

bool tv_as_int(tv v, int64_t *i)
{
    if (v.k == TV_INT)
        *i = v.u.i;
    else if (v.k == TV_BOOL)
        *i = v.u.b;
    else
        return false;
    return true;
}

const char *tv_type(tv v)
{
    static const char *const names[] = { "Undefined",   "NoneType", "bool",    "int",  "float",
                                         "str",         "list",     "tuple",   "dict", "Namespace",
                                         "LoopContext", "Macro",    "function" };
    return names[v.k];
}

const char *tv_type_of(tv v)
{
    static const char *const names[] = {
        "Undefined",          "None",         "bool object",    "int object",  "float object",
        "str object",         "list object",  "tuple object",   "dict object", "Namespace object",
        "LoopContext object", "Macro object", "function object"
    };
    return names[v.k];
}

static bool lists_equal(tp_run *r, const tv_list *a, const tv_list *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!tv_equal(r, a->v[i], b->v[i])) return false;
    return true;
}

static bool dicts_equal(tp_run *r, tv a, tv b)
{
    if (a.u.dict->n != b.u.dict->n) return false;
    for (size_t i = 0; i < a.u.dict->n; i++) {
        const tv *other = tv_get(r, b, a.u.dict->e[i].key);
        if (!other || !tv_equal(r, a.u.dict->e[i].value, *other)) return false;
    }
    return true;
}

bool tv_equal(tp_run *r, tv a, tv b)
{
    bool same = false;
    if (tv_is_num(a) && tv_is_num(b)) {
        int64_t x, y;
        return tv_as_int(a, &x) && tv_as_int(b, &y) ? x == y : tv_as_float(a) == tv_as_float(b);
    }
    if (a.k != b.k) return false;
    deeper(r);
    switch (a.k) {
    case TV_UNDEF:
    case TV_NONE:
        same = true;
        break;
    case TV_STR:
        tp_charge(r, a.u.s.n / 64);
        same = a.u.s.n == b.u.s.n && (a.u.s.n == 0 || memcmp(a.u.s.p, b.u.s.p, a.u.s.n) == 0);
        break;
    case TV_LIST:
    case TV_TUPLE:
        same = lists_equal(r, a.u.list, b.u.list);
        break;
    case TV_DICT:
        same = dicts_equal(r, a, b);
        break;
    case TV_CALL:
        same = a.u.call.row == b.u.call.row && a.u.call.self == b.u.call.self;
        break;
    default:
        same = a.u.dict == b.u.dict;
        break;
    }
    r->depth--;
    return same;
}

int tv_compare(tp_run *r, tv a, tv b, const char *op)
{
    if (a.k == TV_UNDEF) tp_no_value(r, a);
    if (b.k == TV_UNDEF) tp_no_value(r, b);
    if (tv_is_num(a) && tv_is_num(b)) {
        int64_t x, y;
        if (tv_as_int(a, &x) && tv_as_int(b, &y)) return (x > y) - (x < y);
        double f = tv_as_float(a), g = tv_as_float(b);
        return (f > g) - (f < g);
    }
    if (a.k == TV_STR && b.k == TV_STR) { /* code points sort as their UTF-8 does */
        size_t n = a.u.s.n < b.u.s.n ? a.u.s.n : b.u.s.n;
        tp_charge(r, n / 64);
        int c = n ? memcmp(a.u.s.p, b.u.s.p, n) : 0;
        return c ? c : (a.u.s.n > b.u.s.n) - (a.u.s.n < b.u.s.n);
    }
    if (a.k != b.k || (a.k != TV_LIST && a.k != TV_TUPLE))
        tp_fail(&r->base, LQ_EVALUE, "'%s' not supported between instances of '%s' and '%s'", op,
                tv_type(a), tv_type(b));
    const tv_list *x = a.u.list, *y = b.u.list;
    int c = 0;
    deeper(r);
    for (size_t i = 0; i < x->n && i < y->n && c == 0; i++)
        if (!tv_equal(r, x->v[i], y->v[i])) c = tv_compare(r, x->v[i], y->v[i], op);
    r->depth--;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

bool tv_contains(tp_run *r, tv in, tv v)
{
    if (in.k == TV_DICT) return tv_get(r, in, v) != NULL;
    if (in.k == TV_STR) {
        if (v.k == TV_UNDEF) tp_no_value(r, v);
        if (v.k != TV_STR)
            tp_fail(&r->base, LQ_EVALUE, "'in <string>' requires string as left operand, not %s",
                    tv_type(v));
        tp_charge(r, in.u.s.n / 16);
        return v.u.s.n == 0 || memmem(in.u.s.p, in.u.s.n, v.u.s.p, v.u.s.n) != NULL;
    }
    if (in.k == TV_UNDEF) return false;
    if (in.k != TV_LIST && in.k != TV_TUPLE)
        tp_fail(&r->base, LQ_EVALUE, "argument of type '%s' is not iterable", tv_type(in));
    for (size_t i = 0; i < in.u.list->n; i++)
        if (tv_equal(r, in.u.list->v[i], v)) return true;
    return false;
}

size_t tv_chars(tv s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.u.s.n; i++)
        n += ((uint8_t)s.u.s.p[i] & 0xC0) != 0x80;
    return n;
}

size_t tv_char_at(tv s, size_t i)
{
    size_t at = 0;
    for (; at < s.u.s.n; at++)
        if (((uint8_t)s.u.s.p[at] & 0xC0) != 0x80 && i-- == 0) break;
    return at;
}

int64_t tv_len(tp_run *r, tv v)
{
    switch (v.k) {
    case TV_UNDEF:
        return 0;
    case TV_STR:
        tp_charge(r, v.u.s.n / 64);
        return (int64_t)tv_chars(v);
    case TV_LIST:
    case TV_TUPLE:
        return (int64_t)v.u.list->n;
    case TV_DICT:
        return (int64_t)v.u.dict->n;
    case TV_LOOP:
        return (int64_t)v.u.loop->items->n;
    default:
        tp_fail(&r->base, LQ_EVALUE, "object of type '%s' has no len()", tv_type(v));
    }
}

tv tv_iter(tp_run *r, tv v)
{
    if (v.k == TV_LIST || v.k == TV_TUPLE) return v;
    tv out = tv_new_list(r, TV_LIST);
    if (v.k == TV_DICT) {
        for (size_t i = 0; i < v.u.dict->n; i++)
            tv_push(r, out, v.u.dict->e[i].key);
    } else if (v.k == TV_STR) {
        for (size_t i = 0, len; i < v.u.s.n; i += len) {
            (void)tok_utf8_get((const uint8_t *)v.u.s.p + i, &len);
            tv_push(r, out, tv_str(v.u.s.p + i, len));
        }
    } else if (v.k != TV_UNDEF) {
        tp_fail(&r->base, LQ_EVALUE, "'%s' object is not iterable", tv_type(v));
    }
    return out;
}

/* A slice's bound as Python clamps it. */
static int64_t bound(tp_run *r, tv v, int64_t n, int64_t otherwise, bool back)
{
    int64_t i, lo = back ? -1 : 0, hi = back ? n - 1 : n;
    if (v.k == TV_NONE) return otherwise;
    if (!tv_as_int(v, &i))
        tp_fail(&r->base, LQ_EVALUE,
                "slice indices must be integers or None or have an __index__ method");
    if (i < 0) i = i < -n ? lo : i + n;
    return i < lo ? lo : i > hi ? hi : i;
}

tv tv_slice(tp_run *r, tv v, tv start, tv stop, tv step)
{
    int64_t by = 1;
    if (v.k == TV_UNDEF) tp_no_value(r, v);
    if (v.k != TV_STR && v.k != TV_LIST && v.k != TV_TUPLE)
        tp_fail(&r->base, LQ_EVALUE, "'%s' object is not subscriptable", tv_type(v));
    if (step.k != TV_NONE && !tv_as_int(step, &by))
        tp_fail(&r->base, LQ_EVALUE,
                "slice indices must be integers or None or have an __index__ method");
    if (by == 0) tp_fail(&r->base, LQ_EVALUE, "slice step cannot be zero");
    int64_t n = tv_len(r, v), from = bound(r, start, n, by < 0 ? n - 1 : 0, by < 0),
            to = bound(r, stop, n, by < 0 ? -1 : n, by < 0);
    if (v.k == TV_STR && by == 1) {
        if (to < from) to = from;
        size_t a = tv_char_at(v, (size_t)from), z = tv_char_at(v, (size_t)to);
        return tv_str(v.u.s.p + a, z - a);
    }
    tv all = tv_iter(r, v), out = tv_new_list(r, v.k == TV_TUPLE ? TV_TUPLE : TV_LIST);
    tp_text text = { 0 };
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
        tv e = all.u.list->v[i];
        if (v.k == TV_STR)
            tp_add(r, &text, e.u.s.p, e.u.s.n);
        else
            tv_push(r, out, e);
        if (by > 0 ? by > to - i : by < to - i) break; /* i + by could overflow */
        i += by;
    }
    return v.k == TV_STR ? tv_text(&text) : out;
}

/* ---- str() and repr() ---- */
void tv_print_float(tp_run *r, tp_text *t, double f)
{
    char digits[40], out[64];
    if (!isfinite(f)) {
        tp_puts(r, t, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int p = 0; p < 17; p++) { /* the shortest that reads back the same */
        snprintf(digits, sizeof digits, "%.*e", p, f);
        if (strtod(digits, NULL) == f) break;
    }
    char *e = strchr(digits, 'e');
    int exp = atoi(e + 1);
    *e = 0;
    int places = (int)strlen(digits) - (digits[0] == '-') - 2; /* digits behind the point */
    if (places < 0) places = 0;
    if (exp < -4 || exp >= 16)
        snprintf(out, sizeof out, "%se%c%02d", digits, exp < 0 ? '-' : '+', abs(exp));
    else
        snprintf(out, sizeof out, "%.*f", places > exp ? places - exp : 1, f);
    tp_puts(r, t, out);
}

static bool printable(uint32_t cp)
{
    if (cp == ' ') return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static void repr_str(tp_run *r, tp_text *t, tv v)
{
    const char *p = v.u.s.p;
    bool single = v.u.s.n && memchr(p, '\'', v.u.s.n), twice = v.u.s.n && memchr(p, '"', v.u.s.n);
    char quote = single && !twice ? '"' : '\'';
    tp_add(r, t, &quote, 1);
    for (size_t i = 0, len; i < v.u.s.n; i += len) {
        char text[16] = "";
        uint32_t cp = tok_utf8_get((const uint8_t *)p + i, &len);
        if (cp == (uint8_t)quote || cp == '\\')
            snprintf(text, sizeof text, "\\%c", (char)cp);
        else if (cp == '\n')
            snprintf(text, sizeof text, "\\n");
        else if (cp == '\r')
            snprintf(text, sizeof text, "\\r");
        else if (cp == '\t')
            snprintf(text, sizeof text, "\\t");
        else if (printable(cp))
            tp_add(r, t, p + i, len);
        else
            snprintf(text, sizeof text,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
        tp_puts(r, t, text);
    }
    tp_add(r, t, &quote, 1);
}

static void repr_list(tp_run *r, tp_text *t, tv v)
{
    const bool tuple = v.k == TV_TUPLE;
    tp_puts(r, t, tuple ? "(" : "[");
    for (size_t i = 0; i < v.u.list->n; i++) {
        if (i) tp_puts(r, t, ", ");
        tv_repr(r, t, v.u.list->v[i]);
    }
    tp_puts(r, t, !tuple ? "]" : v.u.list->n == 1 ? ",)" : ")");
}

static void repr_dict(tp_run *r, tp_text *t, const tv_dict *d)
{
    tp_puts(r, t, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) tp_puts(r, t, ", ");
        tv_repr(r, t, d->e[i].key);
        tp_puts(r, t, ": ");
        tv_repr(r, t, d->e[i].value);
    }
    tp_puts(r, t, "}");
}

void tv_repr(tp_run *r, tp_text *t, tv v)
{
    char text[32];
    deeper(r);
    switch (v.k) {
    case TV_UNDEF:
        tp_puts(r, t, "Undefined");
        break;
    case TV_NONE:
        tp_puts(r, t, "None");
        break;
    case TV_BOOL:
        tp_puts(r, t, v.u.b ? "True" : "False");
        break;
    case TV_INT:
        snprintf(text, sizeof text, "%" PRId64, v.u.i);
        tp_puts(r, t, text);
        break;
    case TV_FLOAT:
        tv_print_float(r, t, v.u.f);
        break;
    case TV_STR:
        repr_str(r, t, v);
        break;
    case TV_LIST:
    case TV_TUPLE:
        repr_list(r, t, v);
        break;
    case TV_DICT:
        repr_dict(r, t, v.u.dict);
        break;
    case TV_SPACE:
        tp_puts(r, t, "<Namespace ");
        repr_dict(r, t, v.u.dict);
        tp_puts(r, t, ">");
        break;
    default:
        tp_fail(&r->base, LQ_EVALUE, "a %s cannot be printed", tv_type(v));
    }
    r->depth--;
}

void tv_print(tp_run *r, tp_text *t, tv v)
{
    if (v.k == TV_STR)
        tp_add(r, t, v.u.s.p, v.u.s.n);
    else if (v.k != TV_UNDEF)
        tv_repr(r, t, v);
}

tv tv_to_str(tp_run *r, tv v)
{
    tp_text t = { 0 };
    if (v.k == TV_STR) return v;
    tv_print(r, &t, v);
    return tv_text(&t);
}

/* ---- JSON, as Python's json.dumps writes it ---- */
static void json_str(tp_run *r, tp_text *t, tv v, bool ascii)
{
    tp_puts(r, t, "\"");
    for (size_t i = 0, len; i < v.u.s.n; i += len) {
        static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
        char text[16] = "";
        uint32_t cp = tok_utf8_get((const uint8_t *)v.u.s.p + i, &len);
        const char *hit = cp && cp < 128 ? strchr(from, (int)cp) : NULL;
        if (hit)
            snprintf(text, sizeof text, "\\%c", to[hit - from]);
        else if (cp < 0x20 || (ascii && cp > 0x7E && cp < 0x10000))
            snprintf(text, sizeof text, "\\u%04x", cp);
        else if (ascii && cp >= 0x10000)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                     0xDC00 + ((cp - 0x10000) & 0x3FF));
        else
            tp_add(r, t, v.u.s.p + i, len);
        tp_puts(r, t, text);
    }
    tp_puts(r, t, "\"");
}

static void json_line(tp_run *r, tp_text *t, const tv_json_opts *o, int level)
{
    if (!o->indent) return;
    tp_puts(r, t, "\n");
    for (int i = 0; i < level; i++)
        tp_add(r, t, o->indent, o->n_indent);
}

static void json_float(tp_run *r, tp_text *t, double f)
{
    if (isnan(f))
        tp_puts(r, t, "NaN");
    else if (isinf(f))
        tp_puts(r, t, f < 0 ? "-Infinity" : "Infinity");
    else
        tv_print_float(r, t, f);
}

static void json_key(tp_run *r, tp_text *t, tv key, const tv_json_opts *o)
{
    if (key.k == TV_STR) {
        json_str(r, t, key, o->ascii);
        return;
    }
    if (!tv_is_num(key) && key.k != TV_NONE)
        tp_fail(&r->base, LQ_EVALUE, "keys must be str, int, float, bool or None, not %s",
                tv_type(key));
    tp_puts(r, t, "\"");
    tv_json(r, t, key, o, 0);
    tp_puts(r, t, "\"");
}

typedef struct {
    const tv_entry *e;
    size_t place;
} sort_entry;

static int by_key(const void *a, const void *b)
{
    const sort_entry *x = a, *y = b;
    tv k = x->e->key, l = y->e->key;
    size_t n = k.u.s.n < l.u.s.n ? k.u.s.n : l.u.s.n;
    int c = n ? memcmp(k.u.s.p, l.u.s.p, n) : 0;
    if (c) return c;
    if (k.u.s.n != l.u.s.n) return k.u.s.n < l.u.s.n ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static void json_dict(tp_run *r, tp_text *t, const tv_dict *d, const tv_json_opts *o, int level)
{
    sort_entry *order = tp_take(&r->base, (d->n + 1) * sizeof *order);
    for (size_t i = 0; i < d->n; i++) {
        order[i] = (sort_entry){ &d->e[i], i };
        if (o->sort && d->e[i].key.k != TV_STR)
            tp_fail(&r->base, LQ_EVALUE, "sort_keys: expected keys of type str, found %s",
                    tv_type(d->e[i].key));
    }
    if (o->sort) qsort(order, d->n, sizeof *order, by_key);
    tp_puts(r, t, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) tv_print(r, t, o->item_sep);
        json_line(r, t, o, level + 1);
        json_key(r, t, order[i].e->key, o);
        tv_print(r, t, o->key_sep);
        tv_json(r, t, order[i].e->value, o, level + 1);
    }
    if (d->n) json_line(r, t, o, level);
    tp_puts(r, t, "}");
}

void tv_json(tp_run *r, tp_text *t, tv v, const tv_json_opts *o, int level)
{
    deeper(r);
    switch (v.k) {
    case TV_NONE:
        tp_puts(r, t, "null");
        break;
    case TV_BOOL:
        tp_puts(r, t, v.u.b ? "true" : "false");
        break;
    case TV_INT:
        tv_repr(r, t, v);
        break;
    case TV_FLOAT:
        json_float(r, t, v.u.f);
        break;
    case TV_STR:
        json_str(r, t, v, o->ascii);
        break;
    case TV_DICT:
        json_dict(r, t, v.u.dict, o, level);
        break;
    case TV_LIST:
    case TV_TUPLE:
        tp_puts(r, t, "[");
        for (size_t i = 0; i < v.u.list->n; i++) {
            if (i) tv_print(r, t, o->item_sep);
            json_line(r, t, o, level + 1);
            tv_json(r, t, v.u.list->v[i], o, level + 1);
        }
        if (v.u.list->n) json_line(r, t, o, level);
        tp_puts(r, t, "]");
        break;
    default:
        tp_fail(&r->base, LQ_EVALUE, "Object of type %s is not JSON serializable", tv_type(v));
    }
    r->depth--;
}
