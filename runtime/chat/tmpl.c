/* runtime/chat/tmpl.c - parse and render: limits, variables from JSON, the two places where errors land.
 */
#include "runtime/chat/tmpl.h"

#include "base/json_text.h"
#include "base/machine.h"
#include "runtime/chat/tmpl_int.h"
#include "runtime/tokenizer/tok_text.h"

#include <errno.h>
#include <stdlib.h>

lq_status tmpl_parse(tmpl_template **out, const char *src, size_t n, lq_err *err)
{
    size_t bad;
    *out = NULL;
    if (n > TP_MAX_SOURCE)
        return lq_fail(err, LQ_EVALUE, "template: expected at most %d bytes, found %zu",
                       TP_MAX_SOURCE, n);
    if (!lq_utf8_valid((const uint8_t *)src, n, &bad))
        return lq_fail(err, LQ_EFORMAT, "template: invalid UTF-8 at byte %zu", bad);
    tmpl_template *t = calloc(1, sizeof *t);
    if (!t) return lq_fail(err, LQ_ENOMEM, "template: out of memory");
    t->base.err = err;
    t->base.limit = TP_MAX_TREE_BYTES;
    lq_status s = lq_arena_init(&t->base.arena, 0, err);
    if (!s && setjmp(t->base.out) == 0) t->root = tp_parse(t, src, n);
    if (!s) s = t->base.status;
    t->base.err = NULL;
    if (s)
        tmpl_free(t);
    else
        *out = t;
    return s;
}

void tmpl_free(tmpl_template *t)
{
    if (!t) return;
    lq_arena_free(&t->base.arena);
    free(t);
}

static tv json_string(tp_run *r, const char *s, bool own)
{
    size_t n = strlen(s);
    char *p = tp_take(&r->base, n + 1);
    n = jt_copy(p, s);
    if (!lq_utf8_valid((const uint8_t *)p, n, NULL))
        tp_fail(&r->base, LQ_EVALUE, "template: a variable that is no UTF-8");
    return own ? tv_own(p, n) : tv_str(p, n);
}

/* Python tells 1 from 1.0: by the number's spelling where jt_parse kept it, else by its value. */
static tv json_number(tp_run *r, const cJSON *j)
{
    const char *s = j->valuestring;
    double f = j->valuedouble;
    if (s && strpbrk(s, ".eE")) return tv_float(f);
    if (s) {
        errno = 0;
        long long i = strtoll(s, NULL, 10);
        if (!errno) return tv_int(i);
        tv big = json_string(r, s, false);
        big.k = TV_BIG;
        return big;
    }
    return f == floor(f) && fabs(f) < 9007199254740992.0 ? tv_int((int64_t)f) : tv_float(f);
}

static tv from_json(tp_run *r, const cJSON *j, int depth)
{
    const cJSON *e;
    tv v;
    tp_charge(r, 0);
    if (depth > TP_MAX_NEST) tp_fail(&r->base, LQ_EVALUE, "template: variables nested too deep");
    switch (j->type & 0xFF) {
    case cJSON_True:
        return tv_bool(true);
    case cJSON_False:
        return tv_bool(false);
    case cJSON_Number:
        return json_number(r, j);
    case cJSON_String:
        return json_string(r, j->valuestring, j->valueint == TMPL_OWN);
    case cJSON_Array:
        v = tv_new_list(r, TV_LIST);
        cJSON_ArrayForEach(e, j) tv_push(r, v, from_json(r, e, depth + 1));
        return v;
    case cJSON_Object:
        v = tv_new_dict(r);
        cJSON_ArrayForEach(e, j)
            tv_set(r, v, json_string(r, e->string, false), from_json(r, e, depth + 1));
        return v;
    default:
        return tv_none();
    }
}

/* Only variables that the template names are read. */
static void read_vars(tp_run *r, const cJSON *vars)
{
    const tmpl_template *t = r->t;
    tp_frame *f = tp_take(&r->base, sizeof *f);
    f->vars = tp_take(&r->base, (t->n_names + 1) * sizeof *f->vars);
    f->cap = t->n_names + 1;
    for (size_t i = 0; i < t->n_names; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(vars, t->names[i]);
        if (!v) continue;
        f->vars[f->n].name = t->names[i];
        f->vars[f->n++].v = from_json(r, v, 0);
    }
    r->frame = f;
}

/* What the text became, in two blocks that the caller frees. */
static lq_status hand_over(const tp_text *text, char **out, uint8_t **own, size_t *n, lq_err *err)
{
    *out = malloc(text->n + 1);
    if (own) *own = malloc(text->n + 1);
    if (!*out || (own && !*own)) {
        free(*out);
        *out = NULL;
        return lq_fail(err, LQ_ENOMEM, "template: out of memory");
    }
    if (text->n) memcpy(*out, text->p, text->n);
    if (text->n && own) memcpy(*own, text->own, text->n);
    (*out)[text->n] = 0;
    *n = text->n;
    return LQ_OK;
}

lq_status tmpl_render_own(const tmpl_template *t, const cJSON *vars, char **out, uint8_t **own,
                          size_t *n, lq_err *err)
{
    *out = NULL;
    if (own) *own = NULL;
    *n = 0;
    tp_run *r = calloc(1, sizeof *r);
    tp_text *text = calloc(1, sizeof *text);
    lq_status s = r && text ? LQ_OK : lq_fail(err, LQ_ENOMEM, "template: out of memory");
    if (!s) s = lq_arena_init(&r->base.arena, 0, err);
    if (s) goto done;
    r->t = t;
    r->out = text;
    r->base.err = err;
    r->base.limit = TP_MAX_BYTES;
    if (setjmp(r->base.out) == 0) {
        read_vars(r, vars);
        tp_exec(r, t->root);
    }
    s = r->base.status;
    if (!s) s = hand_over(text, out, own, n, err);
    const size_t used = r->base.arena.used;
    lq_arena_free(&r->base.arena);
    machine_give_back(used);
done:
    free(text);
    free(r);
    return s;
}

lq_status tmpl_render(const tmpl_template *t, const cJSON *vars, char **out, size_t *n, lq_err *err)
{
    return tmpl_render_own(t, vars, out, NULL, n, err);
}
