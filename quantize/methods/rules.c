/* quantize/methods/rules.c - see rules.h. */
#include "quantize/methods/rules.h"

#include "formats/tensor/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct rule {
    pcre2_code *re;
    pcre2_match_data *match;
    qt_scheme scheme;
    bool used; /* matched the name of some weight */
};

static lq_status compile(struct rule *r, const char *pattern, size_t n, const char *option,
                         lq_err *err)
{
    int code;
    size_t at;
    r->match = pcre2_match_data_create(1, NULL);
    if (!r->match) return lq_fail(err, LQ_ENOMEM, "no memory");
    r->re = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF, &code, &at, NULL);
    if (r->re) return LQ_OK;
    PCRE2_UCHAR text[128] = "";
    pcre2_get_error_message(code, text, sizeof text);
    return lq_fail(err, LQ_EUSAGE, "%s '%s': %s at character %zu", option, pattern,
                   (const char *)text, at + 1);
}

lq_status qz_scheme_asked(qt_scheme *s, const char *text, const char *option, const qz_method *m,
                          lq_err *err)
{
    lq_status st = qt_scheme_parse(s, text, err);
    if (!st && ((s->zero == QT_ZERO_F16 && !m->fractional) || s->zero == QT_ZERO_BIAS))
        st = lq_fail(err, LQ_EUSAGE, "'%s' needs a method that chooses fractional zero points",
                     text);
    s->recip =
        s->kind == QT_E2M1 && s->scale_dtype == LQ_F8_E4M3; /* as compressed-tensors has it */
    const bool inputs = s->kind == QT_I8 || s->kind == QT_E4M3, blocks = s->kind == QT_BLOCKS;
    const bool made = !blocks || blk_made_of(blk_find(s->blocks));
    if (!st && ((blocks && made) || s->kind == QT_E2M1) && !m->blocks)
        st = lq_fail(err, LQ_EUSAGE, "'%s' is made by rtn, gptq and auto", text);
    if (!st && (!made || (s->kind == QT_E2M1 && s->act) || (s->act && !inputs)))
        st = lq_fail(err, LQ_EUSAGE, "'%s' is read and served, but no method here makes it", text);
    return st ? lq_wrap(err, LQ_EUSAGE, "%s", option) : LQ_OK;
}

lq_status qz_patterns_make(qz_patterns *p, const char *option, const char *const *text, int n,
                           bool schemes, const qz_method *m, lq_err *err)
{
    *p = (qz_patterns){ option, text, calloc((size_t)n + 1, sizeof *p->rule), n };
    if (!p->rule) return lq_fail(err, LQ_ENOMEM, "no memory");
    lq_status s = LQ_OK;
    for (int i = 0; i < n && !s; i++) {
        const char *eq = schemes ? strrchr(text[i], '=') : text[i] + strlen(text[i]);
        if (!eq || (schemes && eq == text[i]))
            return lq_fail(err, LQ_EUSAGE, "%s '%s': expected REGEX=scheme", option, text[i]);
        s = compile(&p->rule[i], text[i], (size_t)(eq - text[i]), option, err);
        if (!s && schemes) s = qz_scheme_asked(&p->rule[i].scheme, eq + 1, option, m, err);
    }
    return s;
}

void qz_patterns_free(qz_patterns *p)
{
    for (int i = 0; p->rule && i < p->n; i++) {
        pcre2_code_free(p->rule[i].re);
        pcre2_match_data_free(p->rule[i].match);
    }
    free(p->rule);
    *p = (qz_patterns){ .n = 0 };
}

bool qz_patterns_match(qz_patterns *p, const char *name, qt_scheme *s)
{
    for (int i = 0; i < p->n; i++) {
        struct rule *r = &p->rule[i];
        if (pcre2_match(r->re, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, NULL) < 0) continue;
        r->used = true;
        if (s) *s = r->scheme;
        return true;
    }
    return false;
}

void qz_patterns_say_unused(const qz_patterns *p, const plan_voice *v)
{
    char line[320];
    for (int i = 0; i < p->n; i++) {
        if (p->rule[i].used || !v || !v->say) continue;
        snprintf(line, sizeof line, "%s '%.240s': takes no weight", p->option, p->text[i]);
        v->say(v->user, line);
    }
}
