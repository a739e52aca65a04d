/* formats/source/source_form.c - a model's weights as GGUF's architecture of it has them, where config.json's
 * has others:
 *
 *     Qwen3.5      the value heads of a key head, which follow each other: by turns, one of each key head
 *     Qwen3-Next   one matrix of q, k, v and gates, by key heads: q, k and v of all, and the gates apart
 *     Falcon-H1    config.json's factors: multiplied into the weights
 *     Baichuan,    one matrix of q, k and v: three. They are Llamas then; Baichuan 13 B, which has ALiBi, is not
 *     InternLM 2,
 *     Ling 1
 *
 * Row n of such a tensor is a row of one of the base's, times a factor. */
#include "base/json.h"
#include "formats/source/source_impl.h"

#include <math.h>
#include <stdlib.h>

/* A tensor of the form and the one of the base that it is made of. */
typedef struct {
    arch_role role, from;
    int64_t (*row)(const arch_config *c, int64_t n); /* which row of `from` is row n; NULL: n */
    int64_t (*head)(const arch_config *c,
                    int64_t h); /* likewise of the mix_value columns of a head */
    double (*factor)(const arch_config *c, int64_t n); /* of row n; NULL: 1 */
    size_t at; /* of the field that is the factor of all rows; 0: none */
} form_rule;

typedef struct {
    const char *arch;
    bool (*differs)(const arch_config *c);
    bool (*change)(cJSON *own, const arch_config *c); /* arch_config_json of c; false: no memory */
    const form_rule *rules;                           /* ends with role ARCH_N_ROLES */
} form_kind;

#define AT(field) offsetof(arch_config, field)
#define FORM_END             \
    {                        \
        .role = ARCH_N_ROLES \
    }

/* ---- Qwen3.5, Qwen4-Exp ---- */
static bool is_grouped(const arch_config *c)
{
    return !c->w.mix_tiled && c->mix_heads != c->mix_groups;
}

static bool tile(cJSON *own, const arch_config *c)
{
    (void)c;
    return cJSON_AddTrueToObject(own, "wiring_mix_tiled") != NULL;
}

/* Head h by turns is which of those that follow each other? */
static int64_t head_of(const arch_config *c, int64_t h)
{
    return h % c->mix_groups * (c->mix_heads / c->mix_groups) + h / c->mix_groups;
}

static int64_t value_row(const arch_config *c, int64_t n)
{
    return head_of(c, n / c->mix_value) * c->mix_value + n % c->mix_value;
}

static int64_t qkv_row(const arch_config *c, int64_t n)
{
    const int64_t keys = 2 * c->mix_groups * c->mix_key;
    return n < keys ? n : keys + value_row(c, n - keys);
}

static const form_rule qwen35_rules[] = {
    { R_MIX_IN, R_MIX_IN, .row = qkv_row },
    { R_MIX_CONV, R_MIX_CONV, .row = qkv_row },
    { R_MIX_GATE, R_MIX_GATE, .row = value_row },
    { R_MIX_B, R_MIX_B, .row = head_of },
    { R_MIX_A, R_MIX_A, .row = head_of },
    { R_MIX_DT, R_MIX_DT, .row = head_of },
    { R_MIX_A_LOG, R_MIX_A_LOG, .row = head_of },
    { R_MIX_OUT, R_MIX_OUT, .head = head_of },
    FORM_END,
};

/* ---- Qwen3-Next ---- */
static bool is_mixed(const arch_config *c) { return c->w.mix_mixed; }

static bool part(cJSON *own, const arch_config *c)
{
    (void)c;
    return cJSON_AddStringToObject(own, "variant", ARCH_APART) != NULL;
}

/* Row i of part `at` .. of the rows of key head g: q, k, its values, its gates. */
static int64_t mixed_row(const arch_config *c, int64_t g, int64_t at)
{
    return g * 2 * (c->mix_key + c->mix_heads / c->mix_groups * c->mix_value) + at;
}

static int64_t apart_qkv_row(const arch_config *c, int64_t n)
{
    const int64_t D = c->mix_key, all = c->mix_groups * D;
    const int64_t V = c->mix_heads / c->mix_groups * c->mix_value, v = n - 2 * all;
    if (v >= 0) return mixed_row(c, v / V, 2 * D + v % V);
    return mixed_row(c, n % all / D, n / all * D + n % D);
}

static int64_t apart_gate_row(const arch_config *c, int64_t n)
{
    const int64_t V = c->mix_heads / c->mix_groups * c->mix_value;
    return mixed_row(c, n / V, 2 * c->mix_key + V + n % V);
}

static const form_rule qwen3_next_rules[] = {
    { R_MIX_IN, R_MIX_IN, .row = apart_qkv_row },
    { R_MIX_GATE, R_MIX_IN, .row = apart_gate_row },
    FORM_END,
};

/* ---- Falcon-H1 ---- */
static const char *const factor_keys[] = { "embed_scale",    "logit_scale", "gate_scale",
                                           "down_scale",     "o_scale",     "mix_out_scale",
                                           "mix_scale_gate", "mix_scale_x", "mix_scale_b",
                                           "mix_scale_c",    "mix_scale_dt" };

/* What K is multiplied with: the scores' factor beyond the usual one. */
static double key_factor(const arch_config *c, int64_t n)
{
    (void)n;
    return c->attn_scale * sqrt((double)c->head_dim);
}

static bool has_factors(const arch_config *c)
{
    cJSON *own = arch_config_json(c);
    bool any = fabs(key_factor(c, 0) - 1) > 1e-9;
    for (size_t i = 0; i < LQ_COUNT(factor_keys); i++)
        any = any || js_get(own, factor_keys[i]);
    cJSON_Delete(own);
    return any;
}

/* Embedding and head have factors of their own. Without a norm its place says nothing. */
static bool multiply(cJSON *own, const arch_config *c)
{
    for (size_t i = 0; i < LQ_COUNT(factor_keys); i++)
        cJSON_DeleteItemFromObjectCaseSensitive(own, factor_keys[i]);
    if (!arch_name_of(c, R_MIX_NORM))
        cJSON_DeleteItemFromObjectCaseSensitive(own, "wiring_mix_norm_1st");
    cJSON_DeleteItemFromObjectCaseSensitive(own, "attn_scale");
    cJSON_DeleteItemFromObjectCaseSensitive(own, "tied");
    return cJSON_AddNumberToObject(own, "attn_scale", 1 / sqrt((double)c->head_dim)) &&
           cJSON_AddFalseToObject(own, "tied");
}

static double mix_in_factor(const arch_config *c, int64_t n)
{
    const int64_t all = arch_mix_width(c, MIX_BOTH), keys = c->mix_groups * c->mix_key;
    const int64_t ends[] = { all, 2 * all, 2 * all + keys, 2 * all + 2 * keys };
    size_t i = 0;
    while (i < LQ_COUNT(ends) && n >= ends[i])
        i++;
    return c->mix_scale[i];
}

static const form_rule falcon_h1_rules[] = {
    { R_EMBED, R_EMBED, .at = AT(embed_scale) },
    { R_HEAD, R_EMBED, .at = AT(logit_scale) }, /* of a tied model */
    { R_HEAD, R_HEAD, .at = AT(logit_scale) },
    { R_K, R_K, .factor = key_factor },
    { R_O, R_O, .at = AT(o_scale) },
    { R_GATE, R_GATE, .at = AT(gate_scale) },
    { R_DOWN, R_DOWN, .at = AT(down_scale) },
    { R_MIX_IN, R_MIX_IN, .factor = mix_in_factor },
    { R_MIX_OUT, R_MIX_OUT, .at = AT(mix_out_scale) },
    FORM_END,
};

/* ---- Baichuan, InternLM 2 ---- */
static bool has_qkv(const arch_config *c) { return arch_name_of(c, R_QKV) != NULL; }

static bool rename_arch(cJSON *own, const arch_config *c)
{
    if (c->w.pos != POS_ROPE) return cJSON_AddStringToObject(own, "variant", ARCH_APART) != NULL;
    cJSON *name = cJSON_CreateString("LlamaForCausalLM");
    return name && cJSON_ReplaceItemInObjectCaseSensitive(own, "arch", name);
}

/* Of heads that come in groups, q first, then k and v; else all q, k, v. */
static int64_t head_row(const arch_config *c, int64_t group, int64_t at, int64_t n)
{
    const int64_t of = c->heads / c->kv_heads + 2;
    return (group * of + at) * c->head_dim + n % c->head_dim;
}

static int64_t q_row(const arch_config *c, int64_t n)
{
    const int64_t h = n / c->head_dim, of = c->heads / c->kv_heads;
    return c->w.qkv_grouped ? head_row(c, h / of, h % of, n) : n;
}

static int64_t k_row(const arch_config *c, int64_t n)
{
    const int64_t h = n / c->head_dim;
    return c->w.qkv_grouped ? head_row(c, h, c->heads / c->kv_heads, n)
                            : c->heads * c->head_dim + n;
}

static int64_t v_row(const arch_config *c, int64_t n)
{
    const int64_t h = n / c->head_dim;
    return c->w.qkv_grouped ? head_row(c, h, c->heads / c->kv_heads + 1, n)
                            : (c->heads + c->kv_heads) * c->head_dim + n;
}

static const form_rule qkv_rules[] = {
    { R_Q, R_QKV, .row = q_row },
    { R_K, R_QKV, .row = k_row },
    { R_V, R_QKV, .row = v_row },
    FORM_END,
};

static const form_kind kinds[] = {
    { "BaichuanForCausalLM", has_qkv, rename_arch, qkv_rules },
    { "InternLM2ForCausalLM", has_qkv, rename_arch, qkv_rules },
    { "BailingMoeForCausalLM", has_qkv, part, qkv_rules },
    { "Qwen3_5ForCausalLM", is_grouped, tile, qwen35_rules },
    { "Qwen3_5MoeForCausalLM", is_grouped, tile, qwen35_rules },
    { "Qwen4ExpForCausalLM", is_grouped, tile, qwen35_rules },
    { "Qwen3NextForCausalLM", is_mixed, part, qwen3_next_rules },
    { "FalconH1ForCausalLM", has_factors, multiply, falcon_h1_rules },
};

/* ---- one tensor ---- */
typedef struct {
    const src_source *base;
    const src_tensor *t;
    const form_rule *rule;
    int64_t rows, cols; /* of elements */
} formed;

static double factor_of(const formed *f, int64_t n)
{
    const arch_config *c = &f->base->config;
    double v = 1;
    if (f->rule->factor) return f->rule->factor(c, n);
    if (f->rule->at) memcpy(&v, (const char *)c + f->rule->at, sizeof v);
    return v;
}

static bool multiplies(const form_rule *r) { return r->factor || r->at; }

/* n numbers as floats, times a factor. */
static void scale_row(float *to, const uint8_t *from, lq_dtype d, int64_t n, double factor)
{
    lq_to_f32(to, from, d, (size_t)n);
    for (int64_t k = 0; k < n; k++)
        to[k] *= (float)factor;
}

static void source_form_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const formed *f = from;
    const arch_config *c = &f->base->config;
    const form_rule *r = f->rule;
    qt_tensor q;
    src_load(&q, f->base, f->t);
    const size_t e = lq_dtype_bytes(q.scheme.dtype), row = (size_t)f->cols * e;
    const size_t out = (size_t)f->cols * lq_dtype_bytes(t->scheme.dtype);
    const size_t head = r->head ? (size_t)c->mix_value * e : row;
    for (int64_t n = 0; n < f->rows; n++) {
        uint8_t *to = (uint8_t *)w[QT_CODES] + (size_t)n * out;
        const int64_t m = r->row ? r->row(c, n) : n;
        const uint8_t *at = (const uint8_t *)q.plane[QT_CODES].data + (size_t)m * row;
        if (multiplies(r)) {
            scale_row((float *)(void *)to, at, q.scheme.dtype, f->cols, factor_of(f, n));
            continue;
        }
        for (size_t h = 0; h * head < row; h++)
            memcpy(to + h * head, at + (r->head ? (size_t)r->head(c, (int64_t)h) : h) * head, head);
    }
    src_unload(f->base, f->t);
}

static const char *name_of(src_source *s, arch_role r, const arch_slot *slot)
{
    char name[256];
    if (!arch_tensor_name(&s->config, r, slot->layer, slot->expert, slot->bias, name, sizeof name))
        return NULL;
    return lq_push_str(&s->arena, name, strlen(name));
}

/* Of its tensor t, which is of this role. */
static lq_status make_one(src_source *s, const src_tensor *t, const arch_slot *slot,
                          const form_rule *rule, lq_err *err)
{
    const src_source *base = s->base;
    int64_t N, K, rows;
    arch_role_shape(&base->config, rule->from, &N, &K);
    if (slot->bias) K = 1;
    if (!t->plain || t->t.scheme.kind != QT_DENSE)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.100s': GGUF has its values in another order or with a factor: "
                       "expected floats, found codes (quantize the checkpoint with --to gguf)",
                       t->name);
    if (src_elements(t) != N * K)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld elements, found %lld",
                       t->name, (long long)(N * K), (long long)src_elements(t));
    formed *f = lq_push(&s->arena, sizeof *f);
    src_tensor *to = &s->tensors[s->n_tensors];
    *to = (src_tensor){ .n_dims = t->n_dims, .raw_dtype = t->raw_dtype };
    memcpy(to->shape, t->shape, sizeof to->shape);
    arch_role_shape(&s->config, rule->role, &rows, &K);
    if (t->n_dims == 2 || slot->bias) to->shape[0] = rows;
    to->name = name_of(s, rule->role, slot);
    if (!f || !to->name) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
    const int64_t cols = t->n_dims == 1 ? 1 : t->t.K;
    if (t->n_dims != 2 && !slot->bias) rows = src_elements(t) / cols;
    *f = (formed){ base, t, rule, rows, cols };
    to->t.scheme = (qt_scheme){ .kind = QT_DENSE };
    to->t.scheme.dtype = multiplies(rule) ? LQ_F32 : t->t.scheme.dtype;
    to->t.K = slot->bias ? rows : t->t.K;
    to->t.N = rows * cols / to->t.K;
    s->n_tensors++;
    return src_make(s, to, source_form_fill, f, err);
}

/* Whatever the form has of it. */
static lq_status make_all(src_source *s, const src_tensor *t, const form_kind *kind, lq_err *err)
{
    arch_slot slot;
    const bool ours = arch_slot_of(&s->base->config, t->name, &slot);
    bool any = false;
    lq_status st = LQ_OK;
    for (const form_rule *r = kind->rules; ours && r->role != ARCH_N_ROLES && !st; r++) {
        if (r->from != slot.role || (slot.bias && !r->row) ||
            (r->role != r->from && r->role == R_HEAD && !s->base->config.tied))
            continue;
        st = make_one(s, t, &slot, r, err);
        any = true;
    }
    if (any || st) return st;
    src_tensor *to = &s->tensors[s->n_tensors++];
    *to = *t;
    if (ours) to->name = name_of(s, slot.role, &slot);
    return to->name ? LQ_OK : lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->base->path);
}

/* ---- all ---- */
static lq_status form_config(src_source *s, const form_kind *kind, lq_err *err)
{
    cJSON *own = arch_config_json(&s->base->config);
    lq_status st = own && kind->change(own, &s->base->config)
                       ? arch_config_from_json(&s->config, own, err)
                       : lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->base->path);
    cJSON_Delete(own);
    s->has_config = !st;
    if (!st) s->config.wrapper = s->base->config.wrapper;
    return st;
}

static const form_kind *kind_of(const src_source *s)
{
    for (size_t i = 0; s->has_config && i < LQ_COUNT(kinds); i++)
        if (strcmp(kinds[i].arch, s->config.row->arch) == 0 && kinds[i].differs(&s->config))
            return &kinds[i];
    return NULL;
}

lq_status src_gguf_form(src_source **out, const src_source *base, lq_err *err)
{
    enum { MOST = 3 }; /* tensors that one is made into */
    const form_kind *kind = kind_of(base);
    *out = NULL;
    if (!kind) return LQ_OK;
    src_source *s = src_begin_derived(base, err);
    if (!s) return LQ_ENOMEM;
    lq_status st = form_config(s, kind, err);
    s->tensors = lq_push(&s->arena, MOST * (base->n_tensors + 1) * sizeof *s->tensors);
    if (!st && !s->tensors) st = lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
    for (size_t i = 0; i < base->n_tensors && !st; i++)
        st = make_all(s, &base->tensors[i], kind, err);
    if (!st) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    if (!st) st = src_make_room(s, err);
    if (st)
        src_close(s);
    else
        *out = s;
    return st;
}
