/* runtime/chat/tmpl_value.c - Python's values as templates see them: truth, equality, order, str(),
 * repr(), JSON. */
#include "runtime/chat/tmpl_int.h"

#include "runtime/tokenizer/tok_text.h"

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

const uint8_t tp_own_all[1] = { 1 };

static void add_bytes(tp_run *r, tp_text *t, const char *s, size_t n, const uint8_t *own)
{
    if (n > TP_MAX_OUTPUT || t->n > TP_MAX_OUTPUT - n)
        tp_fail(&r->base, LQ_EVALUE, "template: a text of more than %d bytes", TP_MAX_OUTPUT);
    if (t->n + n > t->cap) {
        size_t cap = (t->n + n) * 2 + 64;
        char *p = tp_take(&r->base, cap * 2);
        uint8_t *q = (uint8_t *)p + cap;
        if (t->n) {
            memcpy(p, t->p, t->n);
            memcpy(q, t->own, t->n);
        }
        t->p = p;
        t->own = q;
        t->cap = cap;
    }
    if (n) {
        memcpy(t->p + t->n, s, n);
        if (own && own != tp_own_all)
            memcpy(t->own + t->n, own, n);
        else
            memset(t->own + t->n, own != NULL, n);
    }
    t->n += n;
    tp_charge(r, n / 64);
}

void tp_add(tp_run *r, tp_text *t, const char *s, size_t n) { add_bytes(r, t, s, n, NULL); }

void tp_add_str(tp_run *r, tp_text *t, tv s) { add_bytes(r, t, s.u.s.p, s.u.s.n, s.u.s.own); }

void tp_puts(tp_run *r, tp_text *t, const char *s) { tp_add(r, t, s, strlen(s)); }

/* ---- making ---- */
tv tv_cstr(const char *s) { return tv_str(s, strlen(s)); }

tv tv_sub(tv s, size_t at, size_t n)
{
    if (s.u.s.own && s.u.s.own != tp_own_all) s.u.s.own += at;
    s.u.s.p += at;
    s.u.s.n = n;
    return s;
}

tv tv_derived(const tp_text *t, tv from)
{
    bool own = from.u.s.own != NULL;
    if (from.u.s.own != tp_own_all)
        for (size_t i = 0; own && i < from.u.s.n; i++)
            own = from.u.s.own[i];
    tv v = tv_text(t);
    v.u.s.own = own ? tp_own_all : NULL;
    v.safe = from.safe;
    return v;
}

tv tv_undef(const char *name)
{
    tv v = { .k = TV_UNDEF };
    v.u.undef.name = name;
    return v;
}

tv tv_nothing(const char *why)
{
    tv v = tv_undef(why);
    v.u.undef.how = UNDEF_HINT;
    return v;
}

void tp_no_value(tp_run *r, tv v)
{
    const char *name = v.u.undef.name, *of = v.u.undef.of;
    if (v.u.undef.how == UNDEF_ATTR)
        tp_fail(&r->base, LQ_EVALUE, "'%s' has no attribute '%s'", of, name);
    if (v.u.undef.how == UNDEF_ELEMENT)
        tp_fail(&r->base, LQ_EVALUE, "%s has no element %s", of, name);
    if (v.u.undef.how == UNDEF_HINT) tp_fail(&r->base, LQ_EVALUE, "%s", name);
    tp_fail(&r->base, LQ_EVALUE, "'%s' is undefined", name);
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

void tp_deeper(tp_run *r)
{
    tp_charge(r, 0);
    if (++r->depth > TP_MAX_DEPTH)
        tp_fail(&r->base, LQ_EVALUE, "template: line %d: nested deeper than %d", r->base.line,
                TP_MAX_DEPTH);
}

/* Equal keys have equal hashes: numbers by their value as a double, tuples by their members. */
static uint32_t hash_key(tp_run *r, tv k)
{
    double f;
    uint32_t h = 17;
    switch (k.k) {
    case TV_STR:
    case TV_BIG:
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
    case TV_RANGE:
        tp_deeper(r);
        for (size_t i = 0; i < k.u.list->n; i++)
            h = h * 31 + hash_key(r, k.u.list->v[i]);
        r->depth--;
        return h;
    case TV_LIST:
    case TV_DICT:
    case TV_KEYS:
    case TV_ITEMS:
        tp_fail(&r->base, LQ_EVALUE, "unhashable type: '%s'", tv_type(k));
    default: /* told apart by what they are, not by what they hold */
        return (uint32_t)k.k;
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
    case TV_BIG:
        return v.u.s.n != 0;
    case TV_LIST:
    case TV_TUPLE:
    case TV_RANGE:
    case TV_KEYS:
    case TV_VALUES:
    case TV_ITEMS:
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

static const struct {
    const char *type, *object; /* Python's name; Jinja's for "has no attribute" */
} kinds[] = {
    [TV_UNDEF] = { "Undefined", "jinja2.runtime.Undefined object" },
    [TV_NONE] = { "NoneType", "None" },
    [TV_BOOL] = { "bool", "bool object" },
    [TV_INT] = { "int", "int object" },
    [TV_BIG] = { "int", "int object" },
    [TV_FLOAT] = { "float", "float object" },
    [TV_STR] = { "str", "str object" },
    [TV_LIST] = { "list", "list object" },
    [TV_TUPLE] = { "tuple", "tuple object" },
    [TV_RANGE] = { "range", "range object" },
    [TV_GEN] = { "generator", "generator object" },
    [TV_KEYS] = { "dict_keys", "dict_keys object" },
    [TV_VALUES] = { "dict_values", "dict_values object" },
    [TV_ITEMS] = { "dict_items", "dict_items object" },
    [TV_DICT] = { "dict", "dict object" },
    [TV_SPACE] = { "Namespace", "jinja2.utils.Namespace object" },
    [TV_LOOP] = { "LoopContext", "jinja2.runtime.LoopContext object" },
    [TV_MACRO] = { "Macro", "jinja2.runtime.Macro object" },
    [TV_CALL] = { "function", "function object" },
};

const char *tv_type(tv v) { return v.k == TV_STR && v.safe ? "Markup" : kinds[v.k].type; }

const char *tv_type_of(tv v)
{
    return v.k == TV_STR && v.safe ? "markupsafe.Markup object" : kinds[v.k].object;
}

bool tv_is_list(tv v) { return v.k >= TV_LIST && v.k <= TV_ITEMS; }

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
    tp_deeper(r);
    switch (a.k) {
    case TV_UNDEF:
    case TV_NONE:
        same = true;
        break;
    case TV_STR:
    case TV_BIG:
        tp_charge(r, a.u.s.n / 64);
        same = a.u.s.n == b.u.s.n && (a.u.s.n == 0 || memcmp(a.u.s.p, b.u.s.p, a.u.s.n) == 0);
        break;
    case TV_LIST:
    case TV_TUPLE:
    case TV_RANGE:
    case TV_KEYS:
    case TV_ITEMS:
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
    tp_deeper(r);
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
    if (!tv_is_list(in))
        tp_fail(&r->base, LQ_EVALUE, "argument of type '%s' is not iterable", tv_type(in));
    const tv_list *l = tv_iter(r, in).u.list;
    for (size_t i = 0; i < l->n; i++)
        if (tv_equal(r, l->v[i], v)) return true;
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
    case TV_RANGE:
    case TV_KEYS:
    case TV_VALUES:
    case TV_ITEMS:
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
    if (tv_is_list(v) && v.k != TV_GEN) return v;
    tv out = tv_new_list(r, TV_LIST);
    if (v.k == TV_GEN) {
        *out.u.list = *v.u.list; /* it is empty from now on */
        v.u.list->n = 0;
    } else if (v.k == TV_LOOP) {
        return (tv){ .k = TV_LIST, .u.list = v.u.loop->items };
    } else if (v.k == TV_DICT) {
        for (size_t i = 0; i < v.u.dict->n; i++)
            tv_push(r, out, v.u.dict->e[i].key);
    } else if (v.k == TV_STR) {
        for (size_t i = 0, len; i < v.u.s.n; i += len) {
            (void)lq_utf8_get((const uint8_t *)v.u.s.p + i, &len);
            tv c = tv_sub(v, i, len);
            c.safe = false;
            tv_push(r, out, c);
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
    if (v.k != TV_STR && v.k != TV_LIST && v.k != TV_TUPLE && v.k != TV_RANGE)
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
        return tv_sub(v, a, z - a);
    }
    tv all = tv_iter(r, v), out = tv_new_list(r, v.k == TV_STR ? TV_LIST : v.k);
    tp_text text = { 0 };
    if (v.k == TV_RANGE) {
        const int64_t *g = v.u.list->range;
        int64_t *to_g = out.u.list->range;
        to_g[0] = g[0] + from * g[2];
        to_g[1] = g[0] + to * g[2];
        to_g[2] = g[2] * by;
    }
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
        tv e = all.u.list->v[i];
        if (v.k == TV_STR)
            tp_add_str(r, &text, e);
        else
            tv_push(r, out, e);
        if (by > 0 ? by > to - i : by < to - i) break; /* i + by could overflow */
        i += by;
    }
    if (v.k != TV_STR) return out;
    tv s = tv_text(&text);
    s.safe = v.safe;
    return s;
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

bool tv_printable(uint32_t cp)
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
    if (v.safe) tp_puts(r, t, "Markup(");
    const char *p = v.u.s.p;
    bool single = v.u.s.n && memchr(p, '\'', v.u.s.n), twice = v.u.s.n && memchr(p, '"', v.u.s.n);
    char quote = single && !twice ? '"' : '\'';
    tp_add(r, t, &quote, 1);
    for (size_t i = 0, len; i < v.u.s.n; i += len) {
        char text[16] = "";
        uint32_t cp = lq_utf8_get((const uint8_t *)p + i, &len);
        if (cp == (uint8_t)quote || cp == '\\')
            snprintf(text, sizeof text, "\\%c", (char)cp);
        else if (cp == '\n')
            snprintf(text, sizeof text, "\\n");
        else if (cp == '\r')
            snprintf(text, sizeof text, "\\r");
        else if (cp == '\t')
            snprintf(text, sizeof text, "\\t");
        else if (tv_printable(cp))
            tp_add_str(r, t, tv_sub(v, i, len));
        else
            snprintf(text, sizeof text,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
        tp_puts(r, t, text);
    }
    tp_add(r, t, &quote, 1);
    if (v.safe) tp_puts(r, t, ")");
}

static void repr_range(tp_run *r, tp_text *t, const int64_t *g)
{
    char text[80];
    int n = snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, g[0], g[1]);
    if (g[2] != 1) snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64, g[2]);
    tp_puts(r, t, text);
    tp_puts(r, t, ")");
}

static void repr_view(tp_run *r, tp_text *t, tv v)
{
    tp_puts(r, t, tv_type(v));
    tp_puts(r, t, "(");
    tv_repr(r, t, (tv){ .k = TV_LIST, .u.list = v.u.list });
    tp_puts(r, t, ")");
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
    char text[64];
    tp_deeper(r);
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
    case TV_BIG:
        tp_add_str(r, t, v);
        break;
    case TV_RANGE:
        repr_range(r, t, v.u.list->range);
        break;
    case TV_KEYS:
    case TV_VALUES:
    case TV_ITEMS:
        repr_view(r, t, v);
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
    case TV_LOOP:
        snprintf(text, sizeof text, "%zu/%zu", v.u.loop->i + 1, v.u.loop->items->n);
        tp_puts(r, t, "<LoopContext ");
        tp_puts(r, t, text);
        tp_puts(r, t, ">");
        break;
    default: /* Python shows an address */
        tp_fail(&r->base, LQ_EVALUE, "a %s cannot be printed", tv_type(v));
    }
    r->depth--;
}

void tv_print(tp_run *r, tp_text *t, tv v)
{
    if (v.k == TV_STR)
        tp_add_str(r, t, v);
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
