/* tools/inflight/words.c - see words.h. */
#include "tools/inflight/words.h"

#include "quantize/methods/methods.h"

#include <stdio.h>

/* Which method makes a scheme. */
typedef struct {
    qt_kind kind;
    bool fp4, fractional;
    const char *method;
} maker_row;
static const maker_row makers[] = {
    { QT_UINT, .method = "rtn" },  { QT_UINT, .fractional = true, .method = "hqq" },
    { QT_LUT4, .method = "nf4" },  { QT_LUT4, .fp4 = true, .method = "fp4" },
    { QT_I8, .method = "absmax" }, { QT_I8_OUTLIER, .method = "int8" },
};

static const maker_row *maker_of(const qt_scheme *s)
{
    for (size_t i = 0; i < LQ_COUNT(makers); i++)
        if (makers[i].kind == s->kind && makers[i].fp4 == s->fp4 &&
            makers[i].fractional == (s->zero == QT_ZERO_F16))
            return &makers[i];
    return NULL;
}

/* Do these options give the scheme to the letter? Else it has more than the method knows: "-bias",
 * "-a8". */
static bool gives(const qz_opts *o, const qt_scheme *wanted)
{
    qt_scheme made;
    lq_err none;
    char a[40], b[40];
    if (qz_calibrated(o)) return true; /* is refused as that */
    if (o->method->scheme(&made, o, &none)) return false;
    if (made.group < 0) made.group = 0; /* the row */
    qt_scheme_text(a, &made);
    qt_scheme_text(b, wanted);
    return strcmp(a, b) == 0;
}

static bool by_scheme(qz_opts *o, const char *text)
{
    qt_scheme s;
    lq_err none;
    const maker_row *m = qt_scheme_parse(&s, text, &none) ? NULL : maker_of(&s);
    if (!m || qz_method_find(&o->method, m->method, &none)) return false;
    const bool grouped = s.kind == QT_UINT || s.kind == QT_LUT4;
    o->bits = s.bits;
    o->group = !grouped ? 0 : s.group ? s.group : -1;
    o->sym = s.kind == QT_UINT && s.zero == QT_ZERO_NONE;
    o->asym = s.kind == QT_I8 && s.zero != QT_ZERO_NONE;
    o->dbl = s.dbl;
    return gives(o, &s);
}

/* "rtn, hqq": the methods that need no text. */
static const char *without_text(char *buf, size_t n)
{
    const qz_method *m;
    size_t at = 0;
    *buf = 0;
    for (size_t i = 0; (m = qz_method_at(i)); i++)
        if (!qz_calibrated(&(qz_opts){ .method = m }) && at < n)
            at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? ", " : "", m->name);
    return buf;
}

lq_status inflight_word(qz_opts *o, const char *word, lq_err *err)
{
    char list[128];
    lq_err none;
    *o = (qz_opts){ 0 };
    const bool known = by_scheme(o, strcmp(word, "int8") == 0 ? "i8-row" : word);
    if (!known) *o = (qz_opts){ 0 };
    o->outer = QZ_OUTER;
    if (!known && qz_method_find(&o->method, word, &none))
        return lq_fail(err, LQ_EUSAGE,
                       "--quantize: expected int8, nf4|fp4[-gG][-double], "
                       "u{2,3,4,8}-gG[-asym|-fzero], i8-row[-asym], or a method that needs no text "
                       "(%s), found '%.40s'",
                       without_text(list, sizeof list), word);
    if (!qz_calibrated(o)) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "--quantize %s: the method %s needs calibration text: expected a file that "
                   "`llmq quantize MODEL -o OUT.llmq --method %s` made, in place of MODEL",
                   word, o->method->name, o->method->name);
}
