/* quantize/layer/mix.c - see mix.h. */
#include "quantize/layer/mix.h"

#include "formats/tensor/blocks.h"

#include <stdio.h>
#include <strings.h>

/* Types by GGUF's number; two that qtensor.h holds as QT_UINT besides those of blocks.h. */
enum { Q4_0 = 2, Q8_0 = 8 };

/* Which layers take `more` instead of `base`. */
typedef enum {
    IN_NONE,
    IN_ALL,
    IN_FIRST_2,
    IN_FIRST_4,
    IN_16TH,
    IN_8TH,
    IN_MIDDLE,
    IN_MORE,
    IN_WIDE,
    IN_WIDE_OR_EXPERTS
} mix_in;
typedef struct {
    int type; /* 0: the mix's base */
    mix_in in;
    int rest; /* of the other layers; 0: the base */
} mix_part;
struct mix_row {
    const char *name;
    int base, head;      /* head: of a tied embedding too */
    mix_part v, o, down; /* v: of fused q, k, v too */
    mix_part qk, up;     /* queries and keys; gates too */
    int embed;           /* 0: the base */
};

#define K(n) BLK_##n
#define MIX(n, b, h) .name = n, .base = b, .head = h
static const mix_row mixes[] = {
    { MIX("Q2_K", K(Q2_K), K(Q6_K)), .v = { K(Q4_K), IN_WIDE, K(Q3_K) }, .o = { K(Q3_K), IN_ALL },
      .down = { K(Q3_K), IN_ALL } },
    { MIX("Q3_K_S", K(Q3_K), K(Q6_K)) },
    { MIX("Q3_K_M", K(Q3_K), K(Q6_K)), .v = { K(Q5_K), IN_FIRST_2, K(Q4_K) },
      .o = { K(Q4_K), IN_ALL }, .down = { K(Q5_K), IN_16TH, K(Q4_K) } },
    { MIX("Q3_K_L", K(Q3_K), K(Q6_K)), .v = { K(Q5_K), IN_ALL }, .o = { K(Q5_K), IN_ALL },
      .down = { K(Q5_K), IN_ALL } },
    { MIX("IQ2_XXS", K(IQ2_XXS), K(Q5_K)), .v = { K(Q4_K), IN_WIDE_OR_EXPERTS, K(Q2_K) },
      .down = { K(Q2_K), IN_8TH }, .embed = K(Q2_K) },
    { MIX("IQ2_XS", K(IQ2_XS), K(Q5_K)), .v = { K(Q4_K), IN_WIDE_OR_EXPERTS, K(Q2_K) },
      .down = { K(Q2_K), IN_8TH }, .embed = K(Q2_K) },
    { MIX("IQ2_S", K(IQ2_XS), K(Q5_K)), .v = { K(Q4_K), IN_WIDE_OR_EXPERTS, K(IQ3_S) },
      .o = { K(IQ3_S), IN_ALL }, .down = { K(IQ3_S), IN_8TH }, .embed = K(IQ3_S) },
    { MIX("IQ2_M", K(IQ2_S), K(Q5_K)), .v = { K(Q4_K), IN_WIDE_OR_EXPERTS, K(IQ3_S) },
      .o = { K(IQ3_S), IN_ALL }, .down = { K(IQ3_S), IN_8TH }, .embed = K(IQ3_S) },
    { MIX("IQ3_XXS", K(IQ3_XXS), K(Q5_K)), .v = { K(Q4_K), IN_WIDE }, .o = { K(IQ3_S), IN_ALL },
      .qk = { K(IQ2_S), IN_ALL }, .embed = K(IQ3_S) },
    { MIX("IQ3_XS", K(IQ3_S), K(Q6_K)), .v = { K(Q4_K), IN_WIDE }, .qk = { K(IQ3_XXS), IN_ALL },
      .up = { K(IQ3_XXS), IN_MIDDLE } },
    { MIX("IQ3_S", K(IQ3_S), K(Q6_K)), .v = { K(Q4_K), IN_WIDE } },
    { MIX("IQ3_M", K(IQ3_S), K(Q6_K)), .v = { K(Q4_K), IN_ALL }, .o = { K(Q4_K), IN_ALL },
      .down = { K(Q4_K), IN_8TH } },
    { MIX("IQ4_XS", K(IQ4_XS), K(Q6_K)), .v = { K(Q5_K), IN_WIDE } },
    { MIX("IQ4_NL", K(IQ4_NL), K(Q6_K)), .v = { K(Q5_K), IN_WIDE } },
    { MIX("Q4_0", Q4_0, K(Q6_K)), .down = { K(Q4_1), IN_8TH } },
    { MIX("Q4_1", K(Q4_1), K(Q6_K)) },
    { MIX("Q4_K_S", K(Q4_K), K(Q6_K)), .v = { K(Q5_K), IN_FIRST_4 }, .down = { K(Q5_K), IN_8TH } },
    { MIX("Q4_K_M", K(Q4_K), K(Q6_K)), .v = { K(Q6_K), IN_MORE }, .down = { K(Q6_K), IN_MORE } },
    { MIX("Q5_0", K(Q5_0), K(Q6_K)), .down = { K(Q5_1), IN_8TH } },
    { MIX("Q5_1", K(Q5_1), K(Q6_K)) },
    { MIX("Q5_K_S", K(Q5_K), K(Q6_K)) },
    { MIX("Q5_K_M", K(Q5_K), K(Q6_K)), .v = { K(Q6_K), IN_MORE }, .down = { K(Q6_K), IN_MORE } },
    { MIX("Q6_K", K(Q6_K), K(Q6_K)) },
    { MIX("Q8_0", Q8_0, Q8_0) },
};

lq_status mix_find(const mix_row **m, const char *name, lq_err *err)
{
    char all[300];
    size_t at = 0;
    for (size_t i = 0; i < LQ_COUNT(mixes); i++) {
        *m = &mixes[i];
        if (strcasecmp(mixes[i].name, name) == 0) return LQ_OK;
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", i ? ", " : "", mixes[i].name);
    }
    return lq_fail(err, LQ_EUSAGE, "expected one of %s, found '%.40s'", all, name);
}

const char *mix_name(const mix_row *m) { return m->name; }

/* ---- a tensor ---- */
static bool is_in(mix_in in, const arch_config *c, int64_t l)
{
    const int64_t n = c->layers;
    switch (in) {
    case IN_ALL:
        return true;
    case IN_FIRST_2:
        return l < 2;
    case IN_FIRST_4:
        return l < 4;
    case IN_16TH:
        return l < n / 16;
    case IN_8TH:
        return l < n / 8;
    case IN_MIDDLE:
        return l >= n / 8 && l < 7 * n / 8;
    case IN_MORE:
        return l < n / 8 || l >= 7 * n / 8 || (l - n / 8) % 3 == 2;
    case IN_WIDE:
        return c->heads >= 4 * c->kv_heads;
    case IN_WIDE_OR_EXPERTS:
        return c->heads >= 4 * c->kv_heads || c->experts >= 4;
    default:
        return false;
    }
}

static const mix_part *part_of(const mix_row *m, arch_role r)
{
    static const mix_part none = { 0, IN_NONE, 0 };
    switch (r) {
    case R_V:
    case R_QKV:
        return &m->v;
    case R_O:
        return &m->o;
    case R_DOWN:
    case R_EXPERT_DOWN:
    case R_SHARED_DOWN:
        return &m->down;
    case R_Q:
    case R_K:
        return &m->qk;
    case R_GATE:
    case R_UP:
    case R_GATE_UP:
    case R_EXPERT_GATE:
    case R_EXPERT_UP:
    case R_EXPERT_GATE_UP:
    case R_SHARED_GATE:
    case R_SHARED_UP:
    case R_SHARED_GATE_UP:
        return &m->up;
    default:
        return &none;
    }
}

static bool is_head(const arch_config *c, arch_role r)
{
    return r == R_HEAD || (r == R_EMBED && c->tied);
}

static int type_of(const mix_row *m, const arch_config *c, arch_role r, int64_t layer)
{
    if (is_head(c, r)) return m->head;
    if (r == R_EMBED) return m->embed ? m->embed : m->base;
    const mix_part *p = part_of(m, r);
    if (is_in(p->in, c, layer)) return p->type;
    return p->in != IN_NONE && p->rest ? p->rest : m->base;
}

/* Types of blocks of 32 for rows that blocks of 256 do not divide. */
static int of_32(int type)
{
    static const int in[][2] = { { K(Q2_K), Q4_0 },
                                 { K(Q3_K), Q4_0 },
                                 { K(Q4_K), K(Q5_0) },
                                 { K(Q5_K), K(Q5_1) },
                                 { K(Q6_K), Q8_0 } };
    for (size_t i = 0; i < LQ_COUNT(in); i++)
        if (in[i][0] == type) return in[i][1];
    return K(IQ4_NL); /* of IQ4_XS, IQ3, IQ2 */
}

bool mix_type_scheme(qt_scheme *s, int type, int64_t K)
{
    const blk_type *t = blk_find(type);
    const int64_t group = 32;
    if (t && K % t->elements != 0) type = of_32(type);
    if (K % group != 0) return false;
    *s = (qt_scheme){ .kind = QT_BLOCKS, .blocks = type };
    if (!blk_find(type))
        *s = (qt_scheme){
            .kind = QT_UINT, .bits = type == Q8_0 ? 8 : 4, .group = group, .scale_dtype = LQ_F16
        };
    return true;
}

bool mix_scheme(qt_scheme *s, const mix_row *m, const arch_config *c, arch_role r, int64_t layer,
                int64_t K)
{
    if (!arch_role_linear(r) && r != R_EMBED) return false;
    int type = type_of(m, c, r, layer);
    const blk_type *t = blk_find(type);
    if (t && K % t->elements != 0 && is_head(c, r)) type = Q8_0;
    return mix_type_scheme(s, type, K);
}
