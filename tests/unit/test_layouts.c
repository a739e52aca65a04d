/* tests/unit/test_layouts.c - the packers of published layouts: words worked by hand, and random
 * matrices there and back through the layouts' readers. Other projects' bytes:
 * tests/e2e/test_writers.py. */
#include "convert/layouts/layout.h"
#include "formats/hf/awq_words.h"
#include "formats/source/hf_quant.h"
#include "tests/support/check.h"

#include <stdlib.h>

static const char CONFIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"intermediate_size\":64,\"vocab_size\":32,"
    "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"torch_dtype\":"
    "\"bfloat16\"}";

typedef struct {
    arch_config config;
    conv_weight w;
    conv_plan plan;
    cJSON *quant;
    uint8_t *bytes;
    uint8_t *dst[CONV_PARTS];
    lq_err err;
} packed;

static void done(packed *p)
{
    cJSON_Delete(p->quant);
    free(p->bytes);
    arch_config_free(&p->config);
}

/* q as the layout stores it. */
static lq_status pack(packed *p, const char *layout, const qt_tensor *q)
{
    const conv_layout *l = conv_layout_find(layout);
    cJSON *j = NULL;
    memset(p, 0, sizeof *p);
    lq_status s = js_parse(&j, CONFIG, strlen(CONFIG), 1 << 16, 0, &p->err);
    if (!s) s = arch_config_parse(&p->config, j, NULL, &p->err);
    cJSON_Delete(j);
    CHECK(!s && l, "%s: %s", layout, p->err.msg);
    p->w = (conv_weight){ .module = "m",
                          .slot = { .role = R_Q },
                          .linear = true,
                          .quantized = true,
                          .scheme = q->scheme,
                          .N = q->N,
                          .K = q->K };
    p->plan = (conv_plan){ .config = &p->config, .w = &p->w, .n = 1, .variant = l->variant };
    s = l->plan(&p->w, &p->plan, &p->err);
    if (s) return s;
    p->quant = cJSON_CreateObject();
    s = l->config(p->quant, &p->plan, &p->err);
    size_t at[CONV_PARTS] = { 0 }, total = 0;
    for (int i = 0; i < p->w.n_parts; i++) {
        size_t n;
        CHECK(st_shape_bytes(p->w.parts[i].dtype, p->w.parts[i].n_dims, p->w.parts[i].shape, &n),
              "%s", p->w.parts[i].suffix);
        at[i] = total;
        total += n;
    }
    p->bytes = calloc(1, total + 1);
    for (int i = 0; i < CONV_PARTS; i++)
        p->dst[i] = p->bytes + at[i];
    return s ? s : l->pack(p->dst, &p->w, q, &p->plan, &p->err);
}

static int by_name(const void *a, const void *b)
{
    const src_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* The layout's reader on what was packed. */
static src_source *reread(packed *p)
{
    src_source *s = calloc(1, sizeof *s);
    s->path = strdup("model");
    s->quant = cJSON_Duplicate(p->quant, true);
    s->tensors = lq_push(&s->arena, CONV_PARTS * sizeof *s->tensors);
    for (int i = 0; i < p->w.n_parts; i++) {
        const conv_part *part = &p->w.parts[i];
        char name[100];
        size_t n;
        const int len = snprintf(name, sizeof name, "m%s", part->suffix);
        st_shape_bytes(part->dtype, part->n_dims, part->shape, &n);
        src_fill_plain(&s->tensors[s->n_tensors++], lq_push_str(&s->arena, name, (size_t)len),
                       part->dtype, part->n_dims, part->shape, p->dst[i], n, NULL);
    }
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    lq_status st = hf_quant_read(s, &p->err);
    if (!st) return s;
    src_close(s);
    return NULL;
}

static bool same(const qt_tensor *a, const qt_tensor *b)
{
    bool yes = a->N == b->N && a->K == b->K && a->scheme.kind == b->scheme.kind &&
               a->scheme.bits == b->scheme.bits && a->scheme.group == b->scheme.group &&
               a->scheme.zero == b->scheme.zero && a->scheme.act_order == b->scheme.act_order;
    for (int i = 0; i < QT_N_PLANES && yes; i++)
        yes =
            a->plane[i].bytes == b->plane[i].bytes &&
            (!a->plane[i].bytes || !memcmp(a->plane[i].data, b->plane[i].data, a->plane[i].bytes));
    return yes;
}

/* Bit by bit the same weights, whatever makes them. */
static bool same_values(const qt_tensor *a, const qt_tensor *b)
{
    const size_t n = (size_t)(a->N * a->K);
    float *x = malloc(2 * n * sizeof *x);
    bool yes = a->N == b->N && a->K == b->K;
    if (yes) {
        qt_dequant(x, a, 0, a->N);
        qt_dequant(x + n, b, 0, b->N);
    }
    for (size_t i = 0; i < n && yes; i++)
        yes = !(x[i] < x[n + i]) && !(x[i] > x[n + i]);
    free(x);
    return yes;
}

/* ---- random matrices ---- */
static uint64_t seed = 7;
static unsigned draw(unsigned n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % n;
}

static void fill_row(uint8_t *row, int64_t n, int bits, unsigned lo, unsigned hi)
{
    uint8_t codes[768];
    for (int64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(lo + draw(hi - lo + 1));
    qt_pack_row(row, codes, n, bits);
}

static void fill_floats(void *dst, lq_dtype d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float v = ((float)draw(2000) - 1000.0f) / 512.0f;
        lq_from_f32((uint8_t *)dst + i * lq_dtype_bytes(d), &v, d, 1);
    }
}

/* Every plane of a tensor of the scheme; whole zero points in 1..2^bits-1, which both versions of
 * gptq have a place for. */
static void fill(void *const w[QT_N_PLANES], const qt_tensor *t)
{
    const qt_scheme *s = &t->scheme;
    if (s->kind == QT_UINT) {
        const int64_t ng = t->K / s->group;
        const unsigned top = (1u << s->bits) - 1;
        for (int64_t n = 0; n < t->N; n++) {
            fill_row((uint8_t *)w[QT_CODES] + (size_t)n * qt_row_bytes(t->K, s->bits), t->K,
                     s->bits, 0, top);
            if (s->zero == QT_ZERO_INT)
                fill_row((uint8_t *)w[QT_ZEROS] + (size_t)n * qt_row_bytes(ng, s->zbits), ng,
                         s->zbits, 1, top);
        }
        fill_floats(w[QT_SCALES], s->scale_dtype, (size_t)(t->N * ng));
        if (s->zero == QT_ZERO_BIAS) fill_floats(w[QT_ZEROS], s->scale_dtype, (size_t)(t->N * ng));
        if (s->zero == QT_ZERO_F16) fill_floats(w[QT_ZEROS], LQ_F16, (size_t)(t->N * ng));
        for (int64_t k = 0; s->act_order && k < t->K; k++) { /* every ng-th input */
            const int32_t g = (int32_t)(k % ng);
            memcpy((uint8_t *)w[QT_GIDX] + 4 * k, &g, 4);
        }
        return;
    }
    for (size_t i = 0; i < t->plane[QT_CODES].bytes; i++)
        ((uint8_t *)w[QT_CODES])[i] = (uint8_t)draw(256);
    if (s->dbl)
        for (size_t i = 0; i < t->plane[QT_SCALES].bytes; i++)
            ((uint8_t *)w[QT_SCALES])[i] = (uint8_t)draw(256);
    else
        fill_floats(w[QT_SCALES], LQ_F32, t->plane[QT_SCALES].bytes / 4);
    static const qt_plane tables[] = { QT_MAP, QT_SCALES2, QT_MAP2 };
    for (size_t i = 0; i < LQ_COUNT(tables); i++)
        fill_floats(w[tables[i]], LQ_F32, t->plane[tables[i]].bytes / 4);
}

/* A scheme that the layout holds, for a shape that it holds. */
static qt_scheme scheme_for(const char *layout, int64_t *N, int64_t *K)
{
    static const int bits[] = { 2, 3, 4, 8 };
    static const lq_dtype floats[] = { LQ_F16, LQ_BF16, LQ_F32 };
    qt_scheme s = { .kind = QT_UINT, .bits = bits[draw(4)], .scale_dtype = floats[draw(2)] };
    *N = 32 * (1 + draw(3));
    *K = 64 * (1 + draw(4));
    s.group = draw(3) ? 32 * (1 + draw(2)) : *K;
    s.zero = draw(2) ? QT_ZERO_INT : QT_ZERO_NONE;
    if (strcmp(layout, "awq") == 0) {
        s.bits = 4;
        s.zero = QT_ZERO_INT;
        *N = 8 * (1 + draw(9));
    } else if (strcmp(layout, "compressed-tensors") == 0) {
        s.scale_dtype = floats[draw(3)];
        *N = 1 + draw(50);
        *K = s.group * (1 + draw(3));
    } else if (strcmp(layout, "fp8") == 0) {
        const int64_t block = 16 * (1 + draw(8));
        s = (qt_scheme){
            .kind = QT_E4M3, .rows = block, .group = block, .act = QT_ACT_F8, .act_group = block
        };
        *N = 1 + draw(300);
        *K = 1 + draw(300);
    } else if (strcmp(layout, "bnb") == 0) {
        s = (qt_scheme){ .kind = draw(3) ? QT_LUT4 : QT_I8, .group = 64 };
        *N = 1 + draw(30);
        *K = 1 + draw(200);
        s.div127 = s.kind == QT_I8;
        if (s.kind == QT_I8) s.group = 0;
        s.fp4 = s.kind == QT_LUT4 && draw(2);
        s.dbl = s.kind == QT_LUT4 && draw(2);
        s.offset = s.dbl ? ((float)draw(1000) + 1) / 7e6f : 0;
    } else if (strcmp(layout, "mlx") == 0) {
        static const qt_zero zeros[] = { QT_ZERO_NONE, QT_ZERO_INT, QT_ZERO_F16, QT_ZERO_BIAS };
        s.group = 32 << draw(3);
        s.zero = zeros[draw(4)];
        if (s.zero == QT_ZERO_BIAS) s.scale_dtype = floats[draw(3)];
        *N = 1 + draw(50);
        *K = s.group * (1 + draw(3));
    } else {
        s.act_order = s.group < *K && draw(2);
    }
    s.zbits = s.bits;
    return s;
}

TEST(a_thousand_random_matrices_of_each_layout_come_back)
{
    const char *name;
    for (size_t i = 0; (name = conv_layout_at(i)); i++)
        for (int round = 0; round < 1000; round++) {
            int64_t N, K;
            lq_arena a = { 0 };
            qt_tensor q, r;
            void *w[QT_N_PLANES];
            packed p;
            lq_err err = { "" };
            const qt_scheme s = scheme_for(name, &N, &K);
            CHECK(!qt_alloc(&q, w, &s, N, K, &a, &err), "%s: %s", name, err.msg);
            fill(w, &q);
            lq_status st = pack(&p, name, &q);
            CHECK(!st, "%s %d: %s", name, round, p.err.msg);
            src_source *src = st ? NULL : reread(&p);
            CHECK(src, "%s %d: %s", name, round, p.err.msg);
            const src_tensor *t = src ? src_find(src, "m.weight") : NULL;
            if (t) {
                char text[40];
                qt_scheme_text(text, &s);
                src_load(&r, src, t);
                const bool turns = strcmp(name, "mlx") == 0 && s.zero != QT_ZERO_BIAS;
                CHECK(turns ? same_values(&q, &r) : same(&q, &r), "%s %d: %s [%lld,%lld]%s", name,
                      round, text, (long long)N, (long long)K,
                      s.act_order ? " in an order of its own" : "");
                src_unload(src, t);
            }
            if (src) src_close(src);
            done(&p);
            lq_arena_free(&a);
            if (check_bad) return;
        }
}

/* ---- words worked by hand ---- */
/* A tensor whose code (n, k) is code[n * n_step + k * k_step] mod m, scales 1. */
static void grid(qt_tensor *q, lq_arena *a, int bits, int64_t N, int64_t K, int n_step, int k_step)
{
    const qt_scheme s = {
        .kind = QT_UINT, .bits = bits, .zbits = bits, .group = K, .scale_dtype = LQ_F16
    };
    void *w[QT_N_PLANES];
    lq_err err = { "" };
    CHECK(!qt_alloc(q, w, &s, N, K, a, &err), "%s", err.msg);
    for (int64_t n = 0; n < N; n++) {
        uint8_t codes[64];
        for (int64_t k = 0; k < K; k++)
            codes[k] = (uint8_t)((n * n_step + k * k_step) % (1 << bits));
        qt_pack_row((uint8_t *)w[QT_CODES] + (size_t)n * qt_row_bytes(K, bits), codes, K, bits);
    }
}

TEST(words_are_those_worked_by_hand)
{
    static const struct {
        const char *why, *layout;
        int bits, n_step, k_step, part, step; /* every step-th word of the part */
        uint32_t words[4];
        int n;
    } t[] = {
        { "gptq, 4 bits", "gptq", 4, 0, 1, 0, 32, { 0x76543210, 0xfedcba98, 0x76543210 }, 3 },
        { "gptq, 2 bits", "gptq", 2, 0, 1, 0, 32, { 0xe4e4e4e4, 0xe4e4e4e4 }, 2 },
        { "gptq, 8 bits", "gptq", 8, 0, 1, 0, 32, { 0x03020100, 0x07060504 }, 2 },
        { "gptq, 3 bits", "gptq_v2", 3, 0, 1, 0, 32, { 0x88fac688, 0xc688fac6, 0xfac688fa }, 3 },
        { "v1 zeros, 2 bits", "gptq", 2, 0, 1, 1, 1, { 0x55555555, 0x55555555 }, 2 },
        { "v1 zeros, 4 bits", "gptq", 4, 0, 1, 1, 1, { 0x77777777, 0x77777777 }, 2 },
        { "v1 zeros, 8 bits", "gptq", 8, 0, 1, 1, 1, { 0x7f7f7f7f, 0x7f7f7f7f }, 2 },
        { "3 bits are v2", "gptq", 3, 0, 1, 1, 1, { 0x24924924, 0x49249249, 0x92492492 }, 3 },
        { "v2 zeros, 2 bits", "gptq_v2", 2, 0, 1, 1, 1, { 0xaaaaaaaa, 0xaaaaaaaa }, 2 },
        { "v2 zeros, 4 bits", "gptq_v2", 4, 0, 1, 1, 1, { 0x88888888, 0x88888888 }, 2 },
        { "awq, outputs in its order", "awq", 4, 1, 0, 0, 4, { 0x75316420, 0x75316420 }, 2 },
        { "awq zeros", "awq", 4, 1, 0, 1, 1, { 0x88888888, 0x88888888 }, 2 },
        { "pack-quantized, 4 bits",
          "compressed-tensors",
          4,
          0,
          1,
          0,
          1,
          { 0x76543210, 0xfedcba98 },
          2 },
        { "pack-quantized, 3 bits",
          "compressed-tensors",
          3,
          0,
          1,
          0,
          1,
          { 0x88fac688, 0xc688fac6, 0xfac688fa },
          3 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_arena a = { 0 };
        qt_tensor q;
        packed p;
        grid(&q, &a, t[i].bits, 32, 32, t[i].n_step, t[i].k_step);
        CHECK(!pack(&p, t[i].layout, &q), "%s: %s", t[i].why, p.err.msg);
        for (int k = 0; k < t[i].n; k++) {
            const uint32_t w = hf_word(p.dst[t[i].part], k * t[i].step);
            CHECK(w == t[i].words[k], "%s: word %d is %08x", t[i].why, k, w);
        }
        done(&p);
        lq_arena_free(&a);
    }
}

TEST(the_state_of_a_bitsandbytes_weight_is_spelled_as_python_does)
{
    static const struct {
        float offset;
        bool dbl;
        const char *text;
    } t[] = {
        { 0, false,
          "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [3, "
          "5]}" },
        { 0.04367734491825104f, true, /* repr(float(np.float32(0.043677345))) */
          "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [3, "
          "5], "
          "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": "
          "0.04367734491825104}" },
        { 2, true,
          "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [3, "
          "5], "
          "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": 2.0}" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const qt_scheme s = {
            .kind = QT_LUT4, .group = 64, .dbl = t[i].dbl, .offset = t[i].offset
        };
        lq_arena a = { 0 };
        qt_tensor q;
        void *w[QT_N_PLANES];
        packed p;
        lq_err err = { "" };
        CHECK(!qt_alloc(&q, w, &s, 3, 5, &a, &err), "%s", err.msg);
        CHECK(!pack(&p, "bnb", &q), "%s", p.err.msg);
        const size_t n = (size_t)p.w.parts[3].shape[0];
        CHECK(n == strlen(t[i].text) && !memcmp(p.dst[3], t[i].text, n), "%.*s", (int)n, p.dst[3]);
        done(&p);
        lq_arena_free(&a);
    }
}

/* ---- refusals ---- */
TEST(what_has_no_place_is_refused_with_the_reason)
{
    static const struct {
        const char *layout, *scheme, *says;
        int64_t N, K;
    } t[] = {
        { "gptq", "nf4", "gptq holds codes with a scale for each group of inputs, found nf4", 32,
          64 },
        { "gptq", "u4-g32-fzero", "fractional", 32, 64 },
        { "gptq", "u4-g32-bias", "biases", 32, 64 },
        { "gptq", "u4-g32", "multiples of 32 and inputs in multiples of 32, found 40 and 64", 40,
          64 },
        { "gptq", "i8-row-a8", "found i8-row-a8", 32, 64 },
        { "awq", "u8-g32", "4 bits, found 8", 32, 64 },
        { "awq", "u4-g32", "outputs in multiples of 8", 12, 64 },
        { "compressed-tensors", "i8-outlier", "found i8-outlier", 32, 64 },
        { "compressed-tensors", "nf4", "found nf4", 32, 64 },
        { "bnb", "u4-g32", "bitsandbytes holds nf4, fp4 and symmetric int8 by rows, found u4-g32",
          32, 64 },
        { "bnb", "nf4-g48", "blocks of 32, 64, ... 4096, found 48", 32, 64 },
        { "bnb", "i8-row-asym", "found i8-row-asym", 32, 64 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        packed p;
        lq_err err = { "" };
        qt_tensor q = { .N = t[i].N, .K = t[i].K };
        CHECK(!qt_scheme_parse(&q.scheme, t[i].scheme, &err), "%s", err.msg);
        const lq_status s = pack(&p, t[i].layout, &q);
        CHECK((s == LQ_EUNSUPPORTED || s == LQ_ESHAPE) && strstr(p.err.msg, t[i].says), "%s %s: %s",
              t[i].layout, t[i].scheme, p.err.msg);
        done(&p);
    }
}

TEST(zero_points_beyond_a_layouts_range_are_refused)
{
    static const struct {
        const char *layout;
        uint8_t zero;
        const char *says; /* NULL: held */
    } t[] = {
        { "gptq", 0, "version 1 holds zero points 1..16, found 0 (output 0, group 0)" },
        { "gptq", 1, NULL },
        { "gptq", 16, NULL },
        { "gptq_v2", 0, NULL },
        { "gptq_v2", 16, "version 2 holds zero points 0..15, found 16" },
        { "awq", 0, NULL },
        { "awq", 16, "awq holds zero points 0..15, found 16" },
        { "compressed-tensors", 15, NULL },
        { "compressed-tensors", 16, "holds zero points 0..15, found 16" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const qt_scheme s = { .kind = QT_UINT,
                              .bits = 4,
                              .zbits = 8,
                              .zero = QT_ZERO_INT,
                              .group = 32,
                              .scale_dtype = LQ_F16 };
        lq_arena a = { 0 };
        qt_tensor q;
        void *w[QT_N_PLANES];
        packed p;
        lq_err err = { "" };
        CHECK(!qt_alloc(&q, w, &s, 32, 32, &a, &err), "%s", err.msg);
        memset(w[QT_ZEROS], t[i].zero, 32);
        const lq_status st = pack(&p, t[i].layout, &q);
        if (t[i].says)
            CHECK(st == LQ_EUNSUPPORTED && strstr(p.err.msg, t[i].says), "%s", p.err.msg);
        else
            CHECK(!st, "%s", p.err.msg);
        done(&p);
        lq_arena_free(&a);
    }
}

/* ---- awq's words ---- */
static unsigned nibble(const uint8_t *p, size_t i) { return p[i / 2] >> (i & 1 ? 4 : 0) & 15; }

TEST(words_of_awq_hold_each_nibble_in_its_place)
{
    static const struct {
        const char *why;
        int64_t rows, N;
        size_t row_bytes;
    } t[] = { { "one word of one input", 1, 8, 1 },
              { "an odd number of inputs", 5, 16, 3 },
              { "one tile", 32, 128, 16 },
              { "one short of a tile each way", 31, 120, 16 },
              { "one more than a tile each way", 33, 136, 17 },
              { "several, and rows with room behind them", 97, 392, 64 } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const int64_t rows = t[i].rows, N = t[i].N;
        const size_t n_words = (size_t)(rows * N / 2), n_rows = (size_t)N * t[i].row_bytes;
        uint8_t *words = malloc(n_words), *back = malloc(n_words), *out = malloc(n_rows);
        for (size_t k = 0; k < n_words; k++)
            words[k] = (uint8_t)(k * 37 + k / 251);
        memset(out, 0, n_rows);
        memset(back, 0xee, n_words);
        awq_unpack(out, t[i].row_bytes, words, rows, N);
        int64_t wrong = 0;
        for (int64_t k = 0; k < rows; k++)
            for (int64_t n = 0; n < N; n++) {
                const size_t word = (size_t)(k * (N / 8) + n / 8);
                int at = 0;
                while (AWQ_ORDER[at] != n % 8)
                    at++;
                wrong += nibble(out + (size_t)n * t[i].row_bytes, (size_t)k) !=
                         nibble(words, 8 * word + (size_t)at);
            }
        CHECK(wrong == 0, "%s: %lld nibbles", t[i].why, (long long)wrong);
        for (int64_t n = 0; n < N; n++) /* behind the last input: nothing */
            for (size_t k = (size_t)rows; k < 2 * t[i].row_bytes; k++)
                wrong += nibble(out + (size_t)n * t[i].row_bytes, k) != 0;
        CHECK(wrong == 0, "%s: %lld nibbles behind the rows", t[i].why, (long long)wrong);
        awq_pack(back, out, t[i].row_bytes, rows, N);
        CHECK(memcmp(words, back, n_words) == 0, "%s: not the same words", t[i].why);
        free(words);
        free(back);
        free(out);
    }
}

int main(int argc, char **argv)
{
    RUN(words_of_awq_hold_each_nibble_in_its_place);
    RUN(a_thousand_random_matrices_of_each_layout_come_back);
    RUN(words_are_those_worked_by_hand);
    RUN(the_state_of_a_bitsandbytes_weight_is_spelled_as_python_does);
    RUN(what_has_no_place_is_refused_with_the_reason);
    RUN(zero_points_beyond_a_layouts_range_are_refused);
    return check_end();
}
