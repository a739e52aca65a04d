/* formats/tensor/scheme_text.c - the names of schemes: "u4-g128-asym", "nf4-double". */
#include "formats/tensor/blocks.h"

#include <stdio.h>

/* ---- names ---- */
static const char *const zero_suffix[QT_N_ZEROS] = { "", "-asym", "-fzero", "-bias" };

static const char *const act_suffix[QT_N_ACTS] = { "", "-a8", "-af8" };

/* A count of rows or inputs that share something; `all` for 0. */
static const char *count_text(char out[24], int64_t n, const char *all)
{
    snprintf(out, 24, "%lld", (long long)n);
    return n ? out : all;
}

static int blocks_text(char *out, size_t room, const qt_scheme *s)
{
    const blk_type *t = blk_find(s->blocks);
    const int n = snprintf(out, room, "%s", t ? t->name : "?");
    for (char *c = out; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + ('a' - 'A') : *c);
    return n;
}

static int weight_text(char *out, size_t room, const qt_scheme *s)
{
    char a[24], b[24], group[32] = "";
    switch (s->kind) {
    case QT_DENSE:
        return snprintf(out, room, "%s", lq_dtype_text(s->dtype));
    case QT_UINT:
        return snprintf(out, room, "u%d-g%lld%s", s->bits, (long long)s->group,
                        zero_suffix[s->zero]);
    case QT_I8:
        return snprintf(out, room, "i8-row%s", s->zero ? "-asym" : "");
    case QT_I8_OUTLIER:
        return snprintf(out, room, "i8-outlier");
    case QT_LUT4:
        if (s->group != 64) snprintf(group, sizeof group, "-g%lld", (long long)s->group);
        return snprintf(out, room, "%s%s%s", s->fp4 ? "fp4" : "nf4", group,
                        s->dbl ? "-double" : "");
    case QT_E4M3:
        if (!s->group && s->rows < 2)
            return snprintf(out, room, "fp8-e4m3%s", s->rows ? "" : "-tensor");
        return snprintf(out, room, "fp8-e4m3-b%sx%s", count_text(a, s->rows, "N"),
                        count_text(b, s->group, "K"));
    case QT_E2M1:
        return snprintf(out, room, "%s", s->scale_dtype == LQ_F8_E8M0 ? "mxfp4" : "nvfp4");
    case QT_BLOCKS:
        return blocks_text(out, room, s);
    default:
        return snprintf(out, room, "?");
    }
}

void qt_scheme_text(char out[40], const qt_scheme *s)
{
    char group[32] = "";
    int n = weight_text(out, 40, s);
    if (!s->act || n < 0 || n >= 40) return;
    if (s->act_group) snprintf(group, sizeof group, "-g%lld", (long long)s->act_group);
    snprintf(out + n, (size_t)(40 - n), "%s%s%s", act_suffix[s->act], group,
             s->act_scale != 0 ? "-static" : "");
}

/* A number, or the letter `all` for 0. */
static bool take_count(const char **p, char all, int64_t *n)
{
    const char *q = *p;
    if (*q == all) {
        *n = 0;
        *p = q + 1;
        return true;
    }
    int64_t v = 0;
    int digits = 0;
    for (; *q >= '0' && *q <= '9' && digits < 10; q++, digits++)
        v = v * 10 + (*q - '0');
    if (!digits || v == 0) return false;
    *n = v;
    *p = q;
    return true;
}

/* "-gNUMBER" or "-gK" at *p: moves *p behind it. K is written as group 0. */
static bool take_group(const char **p, int64_t *group)
{
    if (strncmp(*p, "-g", 2) != 0) return false;
    const char *q = *p + 2;
    if (!take_count(&q, 'K', group)) return false;
    *p = q;
    return true;
}

static bool scheme_text_take(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return false;
    *p += n;
    return true;
}

lq_status qt_scheme_parse(qt_scheme *out, const char *text, lq_err *err)
{
    const char *p = text;
    qt_scheme s = { 0 };
    bool ok = false;
    if (lq_dtype_from_text(&s.dtype, text) && lq_dtype_is_float(s.dtype)) {
        *out = s; /* kind 0 is QT_DENSE */
        return LQ_OK;
    }
    s.dtype = LQ_F32;
    if (scheme_text_take(&p, "i8-row")) {
        s.kind = QT_I8;
        s.zero = scheme_text_take(&p, "-asym") ? QT_ZERO_INT : QT_ZERO_NONE;
        s.div127 = !s.zero;
        ok = true;
    } else if (scheme_text_take(&p, "i8-outlier")) {
        s.kind = QT_I8_OUTLIER;
        s.div127 = true;
        ok = true;
    } else if (scheme_text_take(&p, "nf4") || scheme_text_take(&p, "fp4")) {
        s.kind = QT_LUT4;
        s.fp4 = text[0] == 'f';
        s.group = 64;
        take_group(&p, &s.group);
        s.dbl = scheme_text_take(&p, "-double");
        ok = s.group > 0;
    } else if (scheme_text_take(&p, "fp8-e4m3")) {
        s.kind = QT_E4M3;
        ok = true;
        if (scheme_text_take(&p, "-b"))
            ok = take_count(&p, 'N', &s.rows) && scheme_text_take(&p, "x") &&
                 take_count(&p, 'K', &s.group);
        else
            s.rows = scheme_text_take(&p, "-tensor") ? 0 : 1;
    } else if (scheme_text_take(&p, "mxfp4") || scheme_text_take(&p, "nvfp4")) {
        s.kind = QT_E2M1;
        s.scale_dtype = text[0] == 'm' ? LQ_F8_E8M0 : LQ_F8_E4M3;
        s.group = text[0] == 'm' ? 32 : 16;
        ok = true;
    } else if (*p == 'u' && p[1] && strchr("2348", p[1])) {
        s.kind = QT_UINT;
        s.bits = p[1] - '0';
        s.zbits = s.bits;
        s.scale_dtype = LQ_F16;
        p += 2;
        ok = take_group(&p, &s.group);
        if (scheme_text_take(&p, "-asym"))
            s.zero = QT_ZERO_INT;
        else if (scheme_text_take(&p, "-fzero"))
            s.zero = QT_ZERO_F16;
        else if (scheme_text_take(&p, "-bias"))
            s.zero = QT_ZERO_BIAS;
    }
    if (scheme_text_take(&p, act_suffix[QT_ACT_I8]))
        s.act = QT_ACT_I8;
    else if (scheme_text_take(&p, act_suffix[QT_ACT_F8]))
        s.act = QT_ACT_F8;
    if (s.act) take_group(&p, &s.act_group);
    if (!ok || *p)
        return lq_fail(err, LQ_EVALUE,
                       "scheme '%s': expected f32, f16, bf16, i8-row[-asym], i8-outlier, "
                       "u{2,3,4,8}-gG[-asym|-fzero|-bias], nf4|fp4[-gG][-double], "
                       "fp8-e4m3[-tensor|-bRxG], mxfp4 or nvfp4, then [-a8|-af8[-gG]]",
                       text);
    *out = s;
    return LQ_OK;
}
