/* runtime/chat/tmpl_json.c - values as JSON, as Python's json.dumps writes it. */
#include "runtime/chat/tmpl_int.h"

#include "runtime/tokenizer/tok_text.h"

#include <stdio.h>
#include <stdlib.h>

static void json_str(tp_run *r, tp_text *t, tv v, bool ascii)
{
    tp_puts(r, t, "\"");
    for (size_t i = 0, len; i < v.u.s.n; i += len) {
        static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
        char text[16] = "";
        uint32_t cp = lq_utf8_get((const uint8_t *)v.u.s.p + i, &len);
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
    if (!tv_is_num(key) && key.k != TV_BIG && key.k != TV_NONE)
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
    tp_deeper(r);
    switch (v.k) {
    case TV_NONE:
        tp_puts(r, t, "null");
        break;
    case TV_BOOL:
        tp_puts(r, t, v.u.b ? "true" : "false");
        break;
    case TV_INT:
    case TV_BIG:
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
