/* formats/hf/spm.c */
#include "formats/hf/spm.h"

#include "base/json.h"
#include "base/utf8.h"

#include <stdlib.h>

/* ---- protobuf ---- */
typedef struct {
    uint32_t number, wire;
    uint64_t v;  /* varint, fixed 32 */
    spm_bytes b; /* length-delimited */
} field;

static lq_status bad(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_EFORMAT, "tokenizer.model: %s", what);
}

static bool varint(spm_bytes *m, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; shift < 64 && m->n; shift += 7) {
        uint8_t c = *m->p++;
        m->n--;
        *v |= (uint64_t)(c & 0x7F) << shift;
        if (c < 0x80) return true;
    }
    return false;
}

/* The next field of a message; false at its end. */
static lq_status next_field(spm_bytes *m, field *f, bool *found, lq_err *err)
{
    enum { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };
    uint64_t key, n;
    *found = m->n > 0;
    if (!*found) return LQ_OK;
    memset(f, 0, sizeof *f);
    if (!varint(m, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX)
        return bad(err, "expected a field, found none");
    f->number = (uint32_t)(key >> 3);
    f->wire = key & 7;
    if (f->wire == VARINT) return varint(m, &f->v) ? LQ_OK : bad(err, "a number is cut off");
    if (f->wire == FIXED64 || f->wire == FIXED32)
        n = f->wire == FIXED64 ? 8 : 4;
    else if (f->wire != LENGTH)
        return bad(err, "expected a protobuf field, found an unknown wire type");
    else if (!varint(m, &n))
        return bad(err, "a length is cut off");
    if (n > m->n) return bad(err, "a field reaches beyond the end");
    f->b = (spm_bytes){ m->p, (size_t)n };
    for (unsigned i = 0; f->wire == FIXED32 && i < 4; i++)
        f->v |= (uint64_t)m->p[i] << 8 * i;
    m->p += n;
    m->n -= (size_t)n;
    return LQ_OK;
}

/* ---- the model ---- */
static lq_status read_piece(spm_model *m, spm_bytes b, lq_err *err)
{
    spm_piece p = { .type = SPM_NORMAL };
    field f;
    bool found;
    lq_status s;
    while (!(s = next_field(&b, &f, &found, err)) && found) {
        uint32_t bits = (uint32_t)f.v;
        if (f.number == 1) p.text = f.b;
        if (f.number == 2) memcpy(&p.score, &bits, sizeof p.score);
        if (f.number == 3) p.type = bits;
    }
    if (s) return s;
    if (m->n == SPM_MAX_PIECES) return bad(err, "expected at most 16777216 pieces");
    if (p.type < SPM_NORMAL || p.type > SPM_BYTE) return bad(err, "a piece of an unknown type");
    if (p.text.n == 0 || !isfinite(p.score)) return bad(err, "a piece without its text or score");
    if (!lq_utf8_valid((const char *)p.text.p, p.text.n, NULL) || memchr(p.text.p, 0, p.text.n))
        return lq_fail(err, LQ_EFORMAT, "tokenizer.model: piece %zu: NUL or invalid UTF-8", m->n);
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 1024;
        spm_piece *more = realloc(m->pieces, cap * sizeof *more);
        if (!more) return lq_fail(err, LQ_ENOMEM, "tokenizer.model: out of memory");
        m->pieces = more;
        m->cap = cap;
    }
    m->pieces[m->n++] = p;
    return LQ_OK;
}

static lq_status read_trainer(spm_model *m, spm_bytes b, lq_err *err)
{
    field f;
    bool found;
    lq_status s;
    while (!(s = next_field(&b, &f, &found, err)) && found) {
        if (f.number == 3) m->type = f.v;
        if (f.number == 24) m->suffix = f.v != 0;
        if (f.number == 35) m->byte_fallback = f.v != 0;
    }
    return s;
}

static lq_status read_normalizer(spm_model *m, spm_bytes b, lq_err *err)
{
    field f;
    bool found;
    lq_status s;
    while (!(s = next_field(&b, &f, &found, err)) && found) {
        if (f.number == 2) m->charsmap = f.b;
        if (f.number == 3) m->dummy_prefix = f.v != 0;
        if (f.number == 4) m->squeeze = f.v != 0;
        if (f.number == 5) m->escape = f.v != 0;
    }
    return s;
}

static lq_status read_model(spm_model *m, spm_bytes b, lq_err *err)
{
    field f;
    bool found;
    lq_status s;
    *m = (spm_model){ .type = SPM_UNIGRAM, .dummy_prefix = true, .squeeze = true, .escape = true };
    while (!(s = next_field(&b, &f, &found, err)) && found) {
        if (f.number == 1) s = read_piece(m, f.b, err);
        if (f.number == 2) s = read_trainer(m, f.b, err);
        if (f.number == 3) s = read_normalizer(m, f.b, err);
        if (s) return s;
    }
    if (s) return s;
    if (m->n == 0) return bad(err, "expected pieces, found none");
    if (m->type != SPM_UNIGRAM && m->type != SPM_BPE)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tokenizer.model: model_type %llu: expected 1 (unigram) or 2 (bpe)",
                       (unsigned long long)m->type);
    return LQ_OK;
}

lq_status spm_read(spm_model *m, const uint8_t *data, size_t n, lq_err *err)
{
    const lq_status s = read_model(m, (spm_bytes){ data, n }, err);
    if (s) spm_free(m);
    return s;
}

void spm_free(spm_model *m)
{
    free(m->pieces);
    *m = (spm_model){ .pieces = NULL };
}
