/* tests/unit/test_forward_dev.c - whole models on a device (tests/support/emulated.c says which) against the
 * CPU: schemes, cache types, and the ways to cut a batch; architectures: test_forward_archs_dev.c. */
#include "tests/support/check.h"
#include "tests/support/devpass.h"

static float *logits_of(const char *name, rig_opts o, int64_t *n)
{
    return cut_of(name, o, &prefill_then_decode, IDS, n);
}

TEST(schemes_give_the_cpus_logits)
{
    static char *const schemes[] = { "u4-g16",  "u4-g16-asym", "gidx u4-g32-asym",
                                     "nf4-g16", "i8-row",      "i8-outlier",
                                     "bf16",    "u3-g16",      "fp8-e4m3",
                                     "mxfp4" };
    /* Not those that round their inputs: the largest of a group lies half-way between two codes by
     * definition (x / scale = 127.5), so the last bit of f32 decides. They are in test_dev.c. */
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        double d = device_apart("ministral",
                                (rig_opts){ .change = fill_linears, .user = schemes[i] }, IDS);
        CHECK(d <= ROUNDING, "%s: %.2g of the largest logit", schemes[i], d);
    }
}

/* Experts of two schemes in turn: two products in place of one. */
static void fill_experts(model *m, void *user)
{
    static const char *const names[] = { "u4-g16", "i8-outlier" };
    lq_err err = { "" };
    (void)user;
    for (int64_t i = 0; i < m->cfg->layers; i++)
        for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++)
            for (int64_t e = 0; m->layers[i].expert[r] && e < m->cfg->experts; e++) {
                model_linear *l = &m->layers[i].expert[r][e];
                qt_scheme s = fill_scheme(names[e % 2]);
                if (!l->present) continue;
                if (s.kind == QT_I8_OUTLIER) s.n_out = l->w.K / 9 + e;
                const qt_tensor t =
                    fill_tensor(s, l->w.N, l->w.K, &m->arena, (uint64_t)(10 * i + e));
                CHECK(!mm_pack(&l->w, &t, &m->arena, NULL, &err), "%s", err.msg);
            }
}

TEST(experts_of_two_schemes_give_the_cpus_logits)
{
    const double d = device_apart("mixtral-moe", (rig_opts){ .change = fill_experts }, IDS);
    CHECK(d <= ROUNDING, "%.2g of the largest logit", d);
}

/* bf16 has a half-way point for every input, and 8 bits; whichever side of it an input falls to is
 * left to the last bit of f32. So the device may be as far from f32 as the CPU is, on another side.
 */
TEST(bf16_strays_no_further_than_the_cpu_does)
{
    static char *const schemes[] = { "u4-g16", "nf4-g16", "bf16" };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        rig_opts o = { .change = fill_linears, .user = schemes[i] };
        int64_t n;
        float *exact = logits_of("ministral", o, &n);
        o.acts = MM_BF16;
        float *cpu = logits_of("ministral", o, &n);
        o.device = true;
        float *got = logits_of("ministral", o, &n);
        if (exact && cpu && got) {
            const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
            CHECK(own > 0 && d <= 2 * own, "%s: %.2g, the CPU from f32 %.2g", schemes[i], d, own);
        }
        free(exact);
        free(cpu);
        free(got);
    }
}

/* Likewise: a key or value may be rounded to the next code. */
TEST(caches_stray_no_further_than_the_cpus_do)
{
    static const kv_dtype kinds[] = { KV_F16, KV_BF16, KV_I8, KV_I4, KV_F8 };
    static const char *const names[] = { "ministral", "gemma4-ple" /* K and V of another */,
                                         "gemma3n" };
    for (size_t i = 0; i < LQ_COUNT(names) * LQ_COUNT(kinds); i++) {
        const char *name = names[i / LQ_COUNT(kinds)];
        const kv_dtype kind = kinds[i % LQ_COUNT(kinds)];
        rig_opts o = { 0 };
        int64_t n;
        float *exact = logits_of(name, o, &n);
        o.kv = kind;
        float *cpu = logits_of(name, o, &n);
        o.device = true;
        float *got = logits_of(name, o, &n);
        if (exact && cpu && got) {
            const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
            CHECK(own > 0 && d <= 2 * own, "%s, %s: %.2g, the CPU from f32 %.2g", name,
                  kv_types_text(kind), d, own);
        }
        free(exact);
        free(cpu);
        free(got);
    }
}

/* The factors of R_KV_B's codes are f16 then, and attention goes through the matrix units. */
TEST(latent_attention_strays_no_further_than_the_cpus)
{
    static const struct {
        char *scheme;
        kv_dtype kv;
        mm_acts acts;
    } cases[] = { { "u4-g16", KV_BF16, MM_BF16 }, { "bf16", KV_F16, MM_BF16 },
                  { "u4-g16", KV_I8, MM_BF16 },   { "bf16", KV_F8, MM_BF16 },
                  { "bf16", KV_I4, MM_BF16 },     { "u4-g16", KV_I8, MM_F32 } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig_opts o = { .change = fill_linears, .user = cases[i].scheme };
        int64_t n;
        float *exact = logits_of("deepseek-v2-mla", o, &n);
        o.acts = cases[i].acts;
        o.kv = cases[i].kv;
        float *cpu = logits_of("deepseek-v2-mla", o, &n);
        o.device = true;
        float *got = logits_of("deepseek-v2-mla", o, &n);
        if (exact && cpu && got) {
            const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
            CHECK(own > 0 && d <= 2 * own, "%s, %s: %.2g, the CPU from f32 %.2g", cases[i].scheme,
                  kv_types_text(cases[i].kv), d, own);
            if (getenv("SHOW")) printf("%s %.2g of %.2g\n", cases[i].scheme, d, own);
        }
        free(exact);
        free(cpu);
        free(got);
    }
}

static const steps cuts[] = {
    { "token by token", { 1, 1 }, 1, 16 },
    { "a prefill beside a decode, in blocks of 8", { 1, 6 }, 2, 8 },
    { "chunks of 7, in blocks of 32", { 7, 7 }, 7, 32 },
};

/* Prompts of more than DEV_ATTN_FEW rows; and cut so that none is. */
static const steps many = { "a prefill of many rows", { 20, 18 }, 1, 16 },
                   fewer = { "at most 16 rows", { 16, 16 }, 4, 16 };

/* Which kernel attention was is seen by the bytes: all other products of either cut have the same
 * order. */
TEST(attention_of_many_rows_takes_the_units_unless_under_f32)
{
    for (int acts = 0; acts < 3; acts++) {
        /* On a device int8 (what is not asked for) is bf16. */
        rig_opts o = { .acts = acts ? MM_BF16 : MM_F32, .kv = KV_BF16 };
        int64_t n;
        float *cpu = cut_of("ministral", o, &many, WINDOW_IDS, &n);
        o.acts = MM_F32;
        float *exact = cut_of("ministral", o, &many, WINDOW_IDS, &n);
        o.acts = acts == 2 ? MM_I8 : acts ? MM_BF16 : MM_F32;
        o.device = true;
        float *got = cut_of("ministral", o, &many, WINDOW_IDS, &n);
        float *other = cut_of("ministral", o, &fewer, WINDOW_IDS, &n);
        if (cpu && exact && got && other) {
            const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
            CHECK(acts ? own > 0 && d <= 2 * own : d <= ROUNDING,
                  "acts %d: %.2g, the CPU from f32 %.2g", acts, d, own);
            const size_t first16 = (size_t)(16 * n / (2 * WINDOW_IDS)) * sizeof *got;
            CHECK((memcmp(got, other, first16) == 0) == !acts, "acts %d: the kernel", acts);
        }
        free(cpu);
        free(exact);
        free(got);
        free(other);
    }
}

/* On 9.0 codes become bf16 first, elsewhere they are multiplied as they are; the bytes tell which. With a window
 * and without; one prompt is 14 tokens long when its many rows come. */
TEST(many_rows_over_a_cache_of_codes_stray_no_further_than_the_cpus)
{
    enum { ALL = 32 };
    static const kv_dtype kinds[] = { KV_I8, KV_I4, KV_F8 };
    static const char *const names[] = { "ministral", "llama-128" };
    const steps parts = { "many rows at the beginning and later", { 20, 14 }, 18, 8 };
    const int own_cc = emu_cc;
    const bool emulated = !getenv("LLMQ_TEST_DEVICE");
    for (size_t i = 0; i < LQ_COUNT(kinds) * LQ_COUNT(names); i++) {
        const kv_dtype kind = kinds[i % LQ_COUNT(kinds)];
        const char *name = names[i / LQ_COUNT(kinds)];
        rig_opts o = { .acts = MM_F32, .kv = KV_F32 };
        int64_t n;
        float *exact = cut_of(name, o, &parts, ALL, &n);
        o.acts = MM_BF16;
        o.kv = kind;
        float *cpu = cut_of(name, o, &parts, ALL, &n), *got[2] = { NULL };
        o.device = true;
        for (int k = 0; k < 1 + emulated; k++) {
            emu_cc = k ? 86 : own_cc;
            got[k] = cut_of(name, o, &parts, ALL, &n);
            if (!cpu || !exact || !got[k]) continue;
            const double own = apart(cpu, exact, n), d = apart(got[k], cpu, n);
            CHECK(own > 0 && d <= 2 * own, "%s, %s, %d: %.2g, the CPU from f32 %.2g", name,
                  kv_types_text(kind), emu_cc, d, own);
        }
        emu_cc = own_cc;
        if (got[0] && got[1])
            CHECK((memcmp(got[0], got[1], (size_t)n * sizeof(float)) == 0) == (own_cc != 90),
                  "%s, %s: the kernel", name, kv_types_text(kind));
        free(exact);
        free(cpu);
        free(got[0]);
        free(got[1]);
    }
}

/* In f32 a row's sums have one order whatever shares the batch, as on the CPU. Each model has one of the cuts, all of
 * them by check_hard. */
TEST(batch_chunks_and_blocks_change_no_byte)
{
    static const struct {
        const char *name;
        int64_t ids;
    } models[] = { { "ministral", WINDOW_IDS }, { "deepseek-v2-mla", IDS },
                   { "qwen3-next", IDS },       { "falcon-mamba", IDS },
                   { "gemma4-ple", IDS },       { "mimo-v2-flash", IDS },
                   { "deepseek-v32", IDS },     { "glm-moe-dsa", INDEX_IDS },
                   { "gemma3n", WINDOW_IDS },   { "hy-v4", INDEX_IDS },
                   { "minimax-m3", INDEX_IDS } };
    const rig_opts o = { .device = true };
    int64_t n, m;
    for (size_t i = 0; i < LQ_COUNT(models); i++) {
        float *want = cut_of(models[i].name, o, &prefill_then_decode, models[i].ids, &n);
        for (size_t k = 0; k < LQ_COUNT(cuts) && want; k++) {
            if (k != i % LQ_COUNT(cuts) && !check_hard()) continue;
            float *got = cut_of(models[i].name, o, &cuts[k], models[i].ids, &m);
            CHECK(got && memcmp(want, got, (size_t)n * sizeof *got) == 0, "%s: %s", models[i].name,
                  cuts[k].why);
            free(got);
        }
        free(want);
    }
}

/* Logits of the last of n ids in one step, of which no other is wanted: [V]. */
static float *last_alone(const char *name, rig_opts o, int64_t n)
{
    golden g;
    rig r;
    kv_seq s;
    float *out = NULL;
    if (!golden_open(&g, name)) return NULL;
    kv_seq_init(&s);
    if (open_arch(&r, name, o)) {
        const float *logits;
        const fwd_item it = {
            .seq = &s, .ids = g.ids[0], .n = n, .logits_from = n - 1, .seq_len = n
        };
        lq_status st = kv_reserve(r.kv, &s, n, NULL);
        if (!st) st = fwd_step(r.f, &it, 1, &logits, NULL);
        CHECK(!st, "%s: %s", name, lq_status_text(st));
        if (!st && (out = malloc((size_t)g.V * sizeof *out)))
            memcpy(out, logits, (size_t)g.V * sizeof *out);
        kv_seq_free(r.kv, &s);
    }
    rig_close(&r);
    st_close(&g.file);
    return out;
}

/* Only they go through the layers after the last that makes K and V. */
TEST(a_row_that_is_wanted_alone_has_the_same_bytes)
{
    static const struct {
        const char *name;
        int64_t layers; /* on the device; 0: all */
    } cases[] = { { "ministral", 0 },  { "gemma4-ple", 0 },     { "gemma4-ple", 4 },
                  { "laguna", 0 },     { "deepseek-v32", 0 },   { "gemma3n", 0 },
                  { "hy-v4", 0 },      { "hy-v4", 1 },          { "axk2", 0 },
                  { "dots3-note", 2 }, { "mistral-large4", 0 }, { "glm5-next", 0 },
                  { "glm5-next", 2 } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const char *name = cases[i].name;
        const rig_opts o = { .device = true, .gpu_layers = cases[i].layers };
        int64_t n = 0;
        float *all = cut_of(name, o, &(steps){ "one step", { IDS, 1 }, 1, 16 }, IDS, &n);
        float *got = last_alone(name, o, IDS);
        const int64_t V = n / (2 * IDS);
        CHECK(all && got && memcmp(got, all + (IDS - 1) * V, (size_t)V * sizeof *got) == 0,
              "%s, %lld layers", name, (long long)o.gpu_layers);
        free(all);
        free(got);
    }
}

/* Of 16 positions: a step of rows of two chunks, some in the middle of one, and one by one over the end of one. */
TEST(attention_in_chunks_sees_those_of_its_own)
{
    enum { N = 22 };
    static const steps ways[] = { { "one step", { N, 19 }, 1, 8 },
                                  { "a step over an end", { 9, 17 }, 13, 16 },
                                  { "one by one", { 14, 15 }, 1, 16 } };
    int64_t n, m;
    float *want = cut_of("llama4-chunks", (rig_opts){ 0 }, &ways[0], N, &n), *first = NULL;
    for (size_t i = 0; i < LQ_COUNT(ways) && want; i++) {
        const rig_opts o = { .device = true };
        float *got = cut_of("llama4-chunks", o, &ways[i], N, &m);
        CHECK(got && apart(got, want, n) <= ROUNDING, "%s: %.2g of the largest logit", ways[i].why,
              got ? apart(got, want, n) : 0);
        CHECK(got && (!first || memcmp(got, first, (size_t)n * sizeof *got) == 0),
              "%s: other bytes", ways[i].why);
        if (!first)
            first = got;
        else
            free(got);
    }
    for (int64_t rows = 16; rows <= N && first; rows++) { /* the last alone */
        float *got = last_alone("llama4-chunks", (rig_opts){ .device = true }, rows);
        const int64_t V = n / (2 * N);
        CHECK(got && memcmp(got, first + (rows - 1) * V, (size_t)V * sizeof *got) == 0, "row %lld",
              (long long)rows);
        free(got);
    }
    /* through the units, and with what a decode step does by itself */
    const rig_opts cpu = { .acts = MM_BF16, .kv = KV_BF16 },
                   there = { .acts = MM_BF16, .kv = KV_BF16, .device = true };
    for (size_t i = 0; i < LQ_COUNT(ways) && want; i++) {
        float *own = cut_of("llama4-chunks", cpu, &ways[i], N, &m),
              *got = cut_of("llama4-chunks", there, &ways[i], N, &m);
        const double strays = own ? apart(own, want, n) : 0,
                     d = own && got ? apart(got, own, n) : 1;
        CHECK(strays > 0 && d <= 2 * strays, "%s: %.2g, the CPU from f32 %.2g", ways[i].why, d,
              strays);
        free(own);
        free(got);
    }
    free(want);
    free(first);
}

/* Steps of 1, 6, 12 and 20 rows: the kernels that there are for so many. Without the flag some
 * bytes are others, or it would say nothing; not where attention is exact, as so few inputs (at
 * most a unit of mm_thin.cu) are added alike by all kernels. */
TEST(with_batch_invariant_no_byte_depends_on_a_batch_in_bf16)
{
    static const steps widths[] = {
        { "token by token", { 1, 1 }, 1, 16 },
        { "a prefill beside a decode, in blocks of 8", { 1, 6 }, 2, 8 },
        { "chunks of 12", { 12, 12 }, 4, 16 },
        { "a prefill of many rows", { 20, 18 }, 1, 16 },
    };
    static const struct {
        const char *name;
        kv_dtype kv;
        char *scheme; /* NULL: as it is */
        bool alike;
    } models[] = {
        { "ministral", KV_BF16, "u4-g16", false },
        { "ministral", KV_F32, NULL, true },
        { "mixtral-moe", KV_I8, NULL, false },
    };
    for (size_t i = 0; i < LQ_COUNT(models); i++)
        for (int invariant = 1; invariant >= 0; invariant--) {
            int64_t others = 0;
            const rig_opts o = { .device = true,
                                 .acts = MM_BF16,
                                 .kv = models[i].kv,
                                 .change = models[i].scheme ? fill_linears : NULL,
                                 .user = models[i].scheme,
                                 .batch_invariant = invariant };
            int64_t n, m;
            float *want = cut_of(models[i].name, o, &widths[0], WINDOW_IDS, &n);
            for (size_t k = 1; k < LQ_COUNT(widths) && want; k++) {
                float *got = cut_of(models[i].name, o, &widths[k], WINDOW_IDS, &m);
                const bool same = got && memcmp(want, got, (size_t)n * sizeof *got) == 0;
                others += !same;
                CHECK(same || !invariant, "%s: %s", models[i].name, widths[k].why);
                free(got);
            }
            CHECK(invariant || (others == 0) == models[i].alike,
                  "%s: %lld cuts change bytes without it", models[i].name, (long long)others);
            free(want);
        }
}

/* Integer products have one order too; and are there where asked for alone. So has attention of few
 * rows, over keys of 16 bits and of codes. */
TEST(int8_is_that_where_asked_for_and_depends_on_no_batch)
{
    static char *const schemes[] = { "u4-g16", "i8-outlier" };
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        rig_opts o = { .change = fill_linears, .user = schemes[i], .kv = i ? KV_I8 : KV_BF16 };
        int64_t n;
        float *exact = cut_of("ministral", o, &prefill_then_decode, WINDOW_IDS, &n);
        o.acts = MM_I8;
        float *cpu = cut_of("ministral", o, &prefill_then_decode, WINDOW_IDS, &n);
        o.device = true;
        float *unasked = cut_of("ministral", o, &prefill_then_decode, WINDOW_IDS, &n);
        o.acts = MM_BF16;
        float *bf16 = cut_of("ministral", o, &prefill_then_decode, WINDOW_IDS, &n);
        o.acts = MM_I8;
        o.int8 = true;
        float *got = cut_of("ministral", o, &prefill_then_decode, WINDOW_IDS, &n);
        const size_t bytes = (size_t)n * sizeof *got;
        if (exact && cpu && unasked && bf16 && got) {
            const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
            CHECK(own > 0 && d <= 2 * own, "%s: %.2g, the CPU from f32 %.2g", schemes[i], d, own);
            CHECK(memcmp(unasked, bf16, bytes) == 0 && memcmp(unasked, got, bytes), "%s",
                  schemes[i]);
        }
        for (size_t k = 0; k < LQ_COUNT(cuts) && got; k++) {
            float *other = cut_of("ministral", o, &cuts[k], WINDOW_IDS, &n);
            CHECK(other && memcmp(other, got, bytes) == 0, "%s, %s", schemes[i], cuts[k].why);
            free(other);
        }
        free(exact);
        free(cpu);
        free(unasked);
        free(bf16);
        free(got);
    }
}

/* ---- states ---- */

/* Logits of ids n .. n + more - 1 of the first prompt after a step of all n, in which `wrong` others came behind
 * them and were taken back; [more, V]. */
static float *after_guesses(const char *name, rig_opts o, int64_t n, int64_t more, int64_t wrong)
{
    golden g;
    rig r;
    kv_seq s;
    float *out = NULL;
    const bool ok = open_arch(&r, name, o);
    if (!golden_open(&g, name)) return NULL;
    kv_seq_init(&s);
    int32_t ids[IDS + 4];
    const float *logits;
    for (int64_t i = 0; i < n + wrong; i++)
        ids[i] = i < n ? g.ids[0][i] : (g.ids[0][i] + 7) % (int32_t)g.V;
    fwd_item it = { .seq = &s, .ids = ids, .n = 4, .seq_len = IDS };
    lq_status st = ok ? kv_reserve(r.kv, &s, n + wrong, NULL) : LQ_EVALUE;
    if (!st) st = fwd_step(r.f, &it, 1, &logits, NULL);
    it.pos0 = 4;
    it.ids = ids + 4;
    it.n = n + wrong - 4;
    if (!st && wrong) CHECK(kv_keep_states(r.kv, &s, wrong) == wrong, "no room for states");
    if (!st) st = fwd_step(r.f, &it, 1, &logits, NULL);
    if (!st) kv_truncate(r.kv, &s, n);
    if (!st) st = kv_reserve(r.kv, &s, n + more, NULL);
    it = (fwd_item){ .seq = &s, .ids = g.ids[0] + n, .n = more, .pos0 = n, .seq_len = IDS };
    if (!st) st = fwd_step(r.f, &it, 1, &logits, NULL);
    CHECK(!st, "%s: %s", name, lq_status_text(st));
    if (!st) {
        out = malloc((size_t)(more * g.V) * sizeof *out);
        memcpy(out, logits, (size_t)(more * g.V) * sizeof *out);
    }
    if (ok) kv_seq_free(r.kv, &s);
    if (ok) rig_close(&r);
    st_close(&g.file);
    return out;
}

TEST(a_state_goes_back_to_before_guesses_that_were_wrong)
{
    static const struct {
        const char *name;
        int64_t layers; /* on the device; 0: all */
    } cases[] = { { "qwen3-next", 0 }, { "lfm2", 1 }, { "falcon-mamba", 0 } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const rig_opts o = { .device = true, .gpu_layers = cases[i].layers };
        float *want = after_guesses(cases[i].name, o, 7, 2, 0);
        for (int64_t wrong = 1; wrong <= 3; wrong++) {
            float *got = after_guesses(cases[i].name, o, 7, 2, wrong);
            CHECK(want && got && memcmp(want, got, 2 * 64 * sizeof *got) == 0,
                  "%s: %lld guesses that were wrong", cases[i].name, (long long)wrong);
            free(got);
        }
        free(want);
    }
}

/* ---- layers between GPU and CPU ---- */

/* Embeddings, positions, windows, angles, latent attention, experts: on either side of it. */
static const struct {
    const char *name;
    int64_t layers; /* on the device */
    int64_t ids;
    bool hard; /* check_hard */
} halves[] = {
    { "smollm3-window", 1, WINDOW_IDS, false },
    { "smollm3-window", 3, WINDOW_IDS, true },
    { "gemma2", 1, WINDOW_IDS, true },
    { "cohere2", 2, WINDOW_IDS, true },
    { "gpt-oss-sinks", 1, WINDOW_IDS, false },
    { "deepseek-v2-mla", 1, IDS, false },
    { "deepseek-v32", 1, IDS, false },
    { "glm-moe-dsa", 1, INDEX_IDS, true },
    { "glm-moe-dsa", 2, INDEX_IDS, false }, /* the first of them attends to what the CPU's chose */
    { "minimax-m3", 2, IDS, false },
    { "mixtral-moe", 1, IDS, false },
    { "bloom-5-heads", 1, IDS, false },
    { "opt-350m-postnorm", 1, IDS, false },
    { "qwen3-next", 2, IDS, false },
    { "mamba2", 1, IDS, false },
    { "gemma4-ple", 4, IDS, false },
    { "hy-v4", 1, IDS, false },
    { "hy-v4", 2, IDS, true },
};

TEST(a_part_of_the_layers_on_the_device_gives_the_logits_of_all_and_of_none)
{
    for (size_t i = 0; i < LQ_COUNT(halves); i++) {
        const char *name = halves[i].name;
        if (halves[i].hard && !check_hard()) continue;
        const steps *c = &prefill_then_decode;
        int64_t n;
        float *cpu = cut_of(name, (rig_opts){ 0 }, c, halves[i].ids, &n);
        float *all = cut_of(name, (rig_opts){ .device = true }, c, halves[i].ids, &n);
        const rig_opts o = { .device = true, .gpu_layers = halves[i].layers };
        float *got = cut_of(name, o, c, halves[i].ids, &n);
        if (cpu && all && got) {
            CHECK(apart(got, cpu, n) <= ROUNDING && apart(got, all, n) <= ROUNDING,
                  "%s, %lld layers: %.2g of the largest logit from the CPU's, %.2g from the GPU's",
                  name, (long long)o.gpu_layers, apart(got, cpu, n), apart(got, all, n));
            /* Each side has sums in an order of its own: all equal would be the wrong side. */
            const size_t bytes = (size_t)n * sizeof *got;
            CHECK(memcmp(got, cpu, bytes) && memcmp(got, all, bytes), "%s: nothing is shared",
                  name);
        }
        free(cpu);
        free(all);
        free(got);
    }
}

TEST(the_bytes_of_a_shared_model_depend_on_no_batch)
{
    const rig_opts o = { .device = true, .gpu_layers = 2 };
    int64_t n, m;
    float *want = cut_of("smollm3-window", o, &prefill_then_decode, WINDOW_IDS, &n);
    for (size_t k = 0; k <= LQ_COUNT(cuts) && want; k++) { /* the last: once more, with threads */
        rig_opts again = o;
        again.threads = k == LQ_COUNT(cuts) ? 2 : 1;
        const steps *c = k == LQ_COUNT(cuts) ? &prefill_then_decode : &cuts[k];
        float *got = cut_of("smollm3-window", again, c, WINDOW_IDS, &m);
        CHECK(got && memcmp(want, got, (size_t)n * sizeof *got) == 0, "%s", c->why);
        free(got);
    }
    free(want);
}

/* Copies on the host are in arenas: these files are not tiled. */
static int64_t layers_held(const model *m)
{
    int64_t n = 0;
    for (int64_t i = 0; i <= m->cfg->layers; i++)
        n += m->layer_arenas[i].used > 0;
    return n;
}

TEST(what_is_on_the_device_leaves_the_hosts_memory)
{
    rig r;
    for (int64_t n = -1; n <= 4; n++) { /* -1: the CPU alone; 0: all on the device */
        const rig_opts o = { .device = n >= 0, .gpu_layers = n > 0 ? n : 0 };
        if (open_arch(&r, "smollm3-window", o)) {
            const int64_t want = n < 0 ? 5 : n == 0 ? 0 : 4 - n;
            CHECK(layers_held(&r.m) == want, "%lld on the device: %lld layers and head held",
                  (long long)n, (long long)layers_held(&r.m));
            CHECK(model_count_bytes(&r.m) == r.m.weight_bytes && r.m.weight_bytes > 0,
                  "what is read per token: %zu of %zu bytes", model_count_bytes(&r.m),
                  r.m.weight_bytes);
        }
        rig_close(&r);
    }
}

/* Of matrices of the layers that the device has. */
static int in_rows(const model *m)
{
    int n = 0;
    for (int64_t i = 0; i < m->cfg->layers; i++)
        for (int r = 0; r < ARCH_N_ROLES; r++)
            n += m->on->w.layers[i].lin[r].w.t.layout == QT_PORTABLE &&
                 m->on->w.layers[i].lin[r].present;
    return n;
}

TEST(dense_weights_lie_in_rows_where_cublas_may_have_them)
{
    static const struct {
        char *scheme;
        bool batch_invariant, rows;
    } cases[] = { { "bf16", false, true }, { "bf16", true, false }, { "u4-g16", false, false } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        const rig_opts o = { .device = true,
                             .change = fill_linears,
                             .user = cases[i].scheme,
                             .batch_invariant = cases[i].batch_invariant };
        if (open_arch(&r, "llama3-gqa", o)) {
            if (r.m.on->d.ops->blas(&r.m.on->d)) /* of a real machine: where it is */
                CHECK((in_rows(&r.m) > 0) == cases[i].rows, "%s: %d", cases[i].scheme,
                      in_rows(&r.m));
            const model_linear *head = &r.m.on->w.head;
            CHECK(head->w.t.layout == QT_TILE16, "the head is read by few rows");
        }
        rig_close(&r);
    }
}

/* What expands quantized weights for cuBLAS (dev_mm_wide) has it before the first step. */
TEST(a_device_that_expands_quantized_weights_has_cublas)
{
    static const struct {
        const char *why;
        int cc;
        bool batch_invariant, want;
    } cases[] = { { "8.0", 80, false, true },
                  { "one order for any number of rows", 80, true, false },
                  { "9.0, though it has wgmma", 90, false, true } };
    const int own = emu_cc;
    if (check_real_gpu("its compute capability is what it is")) return;
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        emu_cc = cases[i].cc;
        const rig_opts o = { .device = true,
                             .change = fill_linears,
                             .user = (char[]){ "u4-g16" },
                             .batch_invariant = cases[i].batch_invariant };
        if (open_arch(&r, "llama3-gqa", o)) {
            CHECK((r.m.on->d.blas_room != NULL) == cases[i].want, "%s", cases[i].why);
            CHECK(!r.m.on->rows, "%s: no weight is in rows", cases[i].why);
        }
        rig_close(&r);
    }
    emu_cc = own;
}

TEST(a_pass_takes_no_more_of_a_device_than_was_said)
{
    static const char *const names[] = { "llama3-gqa",      "gemma2",        "mixtral-moe",
                                         "deepseek-v2-mla", "bloom-5-heads", "gpt-oss-sinks",
                                         "gemma4-ple",      "gemma4-moe",    "mimo-v2-flash",
                                         "glm-moe-dsa",     "gemma3n",       "hy-v4",
                                         "minimax-m3" };
    if (check_real_gpu("memory comes in pieces of 2 MiB")) return;
    for (size_t i = 0; i < 2 * LQ_COUNT(names); i++) {
        const char *name = names[i / 2];
        rig r;
        if (open_arch(&r, name, (rig_opts){ .device = true, .kv = KV_BF16 })) {
            dev *d = model_dev(&r.m);
            lq_err err = { "" };
            fwd_ctx *f;
            const fwd_opts o = { .acts = MM_BF16,
                                 .max_rows = i % 2 ? DEV_MM_WIDE_LEAST : 24,
                                 .max_logits = 8,
                                 .max_seqs = 3,
                                 .max_len = 100,
                                 .lora_rank = i % 3 ? 0 : 20 };
            const size_t said = fwd_dev_bytes(r.m.cfg, kv_options(r.kv), &o);
            const size_t before = d->ops->room(d);
            lq_status s = fwd_open(&f, &r.m, r.kv, r.p, &o, &err);
            CHECK(!s, "%s: %s", name, err.msg);
            const size_t took = before - d->ops->room(d);
            /* of many rows most of it is what a product may take, whichever they are */
            CHECK(took <= said && (i % 2 || said <= 2 * took), "%s: took %zu bytes, said %zu", name,
                  took, said);
            fwd_close(f);
            /* It is one piece: a byte less, and nothing is taken. */
            const size_t memory = emu_memory;
            emu_memory -= before - took + 1;
            s = fwd_open(&f, &r.m, r.kv, r.p, &o, &err);
            char want[80];
            snprintf(want, sizeof want, "a step need %zu bytes, found %zu free", took, took - 1);
            CHECK(s == LQ_ENOMEM && strstr(err.msg, want), "%s: '%s', not '%s'", name, err.msg,
                  want);
            CHECK(d->ops->room(d) == took - 1, "%s: %zu", name, d->ops->room(d));
            emu_memory = memory;
            s = fwd_open(&f, &r.m, r.kv, r.p, &o, &err);
            CHECK(!s, "%s, after a failure: %s", name, err.msg);
            if (!s) fwd_close(f);
        }
        rig_close(&r);
    }
}

/* Sizes that no golden model has: what a product takes of what is said for all of a step. */
TEST(real_products_take_no_more_than_was_said)
{
    static const struct {
        int64_t hidden, heads, kv_heads, ffn, vocab;
    } of[] = { { 2048, 32, 8, 8192, 128256 },
               { 4096, 32, 8, 14336, 128256 },
               { 8192, 64, 8, 28672, 32000 } };
    static const char *const schemes[] = { "u4-g128", "u8-g32", "mxfp4", "bf16" };
    static const int64_t rows[] = { 8, 33, 64, 255, 256, 511, 512, 2048, 8192 };
    rig r;
    if (open_arch(&r, "llama3-gqa", (rig_opts){ .device = true }))
        for (size_t i = 0; i < LQ_COUNT(of); i++)
            for (size_t j = 0, before = 0; j < LQ_COUNT(rows); j++) {
                arch_config c = *r.m.cfg;
                c.hidden = c.embed_dim = of[i].hidden;
                c.heads = of[i].heads;
                c.kv_heads = of[i].kv_heads;
                c.head_dim = c.v_dim = 128;
                c.ffn = of[i].ffn;
                c.vocab = of[i].vocab;
                const fwd_opts o = { .acts = MM_BF16,
                                     .max_rows = rows[j],
                                     .max_logits = 8,
                                     .max_seqs = 8,
                                     .max_len = 100 };
                const size_t said = fwd_dev_bytes(&c, kv_options(r.kv), &o);
                size_t most = 0;
                for (arch_role role = 0; role < ARCH_N_ROLES; role++)
                    for (size_t k = 0; k < LQ_COUNT(schemes); k++) {
                        dev_weight w = { .t.scheme = fill_scheme(schemes[k]),
                                         .t.layout = QT_TILE16 };
                        arch_role_shape(&c, role, &w.t.N, &w.t.K);
                        if (!arch_role_linear(role) || !w.t.N || !w.t.K) continue;
                        w.s = tiles_shape(&w.t.scheme, w.t.N, w.t.K);
                        const size_t n = model_dev(&r.m)->ops->mm_scratch(
                            &w, role == R_HEAD ? o.max_logits : o.max_rows);
                        if (n > most) most = n;
                    }
                CHECK(most <= said, "%lld wide, %lld rows: %zu bytes, said %zu",
                      (long long)of[i].hidden, (long long)rows[j], most, said);
                /* what is expanded for cuBLAS is where the parts of fewer rows are */
                CHECK(rows[j] != DEV_MM_WIDE_LEAST || said - before < DEV_MM_WIDE_BYTES,
                      "%lld wide: %zu bytes for a row more", (long long)of[i].hidden,
                      said - before);
                before = said;
            }
    rig_close(&r);
}

TEST(as_many_layers_fit_as_memory_says)
{
    static const size_t layer[] = { 30, 20, 10, 5 }; /* of three layers; the last: head and norm */
    static const struct {
        const char *why;
        size_t room, more, more_layer, embed;
        int64_t want;
    } cases[] = {
        { "nothing", 0, 0, 0, 0, 0 },
        { "the head alone", 5, 0, 0, 0, 0 },
        { "one byte short of a layer", 14, 0, 0, 0, 0 },
        { "the last layer", 15, 0, 0, 0, 1 },
        { "two", 35, 0, 0, 0, 2 },
        { "all", 65, 0, 0, 0, 3 },
        { "but not the embedding", 65, 0, 0, 1, 2 },
        { "all of it", 66, 0, 0, 1, 3 },
        { "a step beside", 35, 1, 0, 0, 1 },
        { "a cache beside each", 37, 0, 1, 0, 2 },
        { "a cache that is larger", 36, 0, 1, 0, 1 },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const model_sizes z = { layer, 3, cases[i].embed, 0 };
        const model_share s = { .more = cases[i].more, .more_layer = cases[i].more_layer };
        const int64_t n = model_fit(&z, &s, cases[i].room);
        CHECK(n == cases[i].want, "%s: %lld", cases[i].why, (long long)n);
    }
    /* layers that read K and V of others are where those are */
    const model_sizes shared = { layer, 3, 0, .least = 2 };
    for (int64_t want = 1; want <= 3; want++) {
        const model_share s = { .layers = want };
        lq_err err = { "" };
        int64_t n;
        const lq_status st = model_choose_layers(&n, &shared, &s, "x", 1, 1000, &err);
        CHECK(want < 2
                  ? st == LQ_ENOMEM &&
                        strstr(err.msg, "the last layers read the K and V of layer 1: expected "
                                        "at least 2 of 3 layers there, found 1")
                  : !st && n == want,
              "%lld: '%s'", (long long)want, err.msg);
    }
}

/* The open block of a fork is copied, on the device and on the host. */
static void check_copied(int64_t gpu_layers)
{
    enum { N = 11 }; /* a full block and three positions of the next */
    golden g;
    rig r;
    float want[MAX_V];
    const bool ok = open_arch(
        &r, "llama3-gqa", (rig_opts){ .block_size = 8, .device = true, .gpu_layers = gpu_layers });
    if (ok && golden_open(&g, "llama3-gqa")) {
        kv_seq s[2];
        const float *logits;
        kv_seq_init(&s[0]);
        kv_seq_init(&s[1]);
        fwd_item it = { .seq = &s[0], .ids = g.ids[0], .n = N, .logits_from = N };
        CHECK(!kv_reserve(r.kv, &s[0], N, NULL) && !fwd_step(r.f, &it, 1, &logits, NULL), "step");
        CHECK(!kv_fork(r.kv, &s[1], &s[0], NULL) && !kv_reserve(r.kv, &s[1], N + 1, NULL), "fork");
        CHECK(s[0].table[1] != s[1].table[1] && s[0].table[0] == s[1].table[0], "what is shared");
        for (int i = 0; i < 2; i++) {
            it = (fwd_item){ .seq = &s[i], .ids = g.ids[0] + N, .n = 1, .pos0 = N };
            CHECK(!kv_reserve(r.kv, &s[i], N + 1, NULL) && !fwd_step(r.f, &it, 1, &logits, NULL),
                  "step");
            if (i) CHECK(memcmp(want, logits, (size_t)g.V * 4) == 0, "the fork's logits");
            memcpy(want, logits, (size_t)g.V * 4);
            CHECK(isfinite(want[0]), "no number");
        }
        kv_seq_free(r.kv, &s[1]);
        kv_seq_free(r.kv, &s[0]);
        st_close(&g.file);
    }
    rig_close(&r);
}

TEST(copied_blocks_change_no_byte)
{
    check_copied(0);
    check_copied(1);
}

TEST(a_step_allocates_nothing_there_and_gives_back_all)
{
    golden g;
    rig r;
    dev d;
    lq_err err = { "" };
    CHECK(!dev_open(&d, "cuda", &err), "%s", err.msg);
    const size_t before = d.ops->room(&d);
    if (open_arch(&r, "llama3-gqa", (rig_opts){ .device = true }) &&
        golden_open(&g, "llama3-gqa")) {
        /* a real one loads kernels when they are first launched */
        if (getenv("LLMQ_TEST_DEVICE")) free(run_steps(&r, &g, &cuts[1], 4));
        const size_t open = d.ops->room(&d);
        free(run_steps(&r, &g, &cuts[1], 4));
        CHECK(open < before && d.ops->room(&d) == open, "%zu, %zu, then %zu bytes left", before,
              open, d.ops->room(&d));
        st_close(&g.file);
    }
    rig_close(&r);
    if (!getenv("LLMQ_TEST_DEVICE")) /* a real one may have other users */
        CHECK(d.ops->room(&d) == before, "%zu of %zu bytes came back", d.ops->room(&d), before);
    d.ops->close(&d);
}

/* Of a layer: two norms, q, k and v as one, rotation with the cache, attention and its merge, o,
 * whose 48 inputs are arranged in tiles of 32 before, gate and up as one, activation, down; beside
 * them the embedding, a norm and the head, and where not all rows have logits two that pick
 * those. Up: the plan of the step, and of a shared model x; down: logits and rows behind them.
 * Under bf16 norms leave the inputs of the layers' products as those take them of more than eight
 * rows (so would the activation, but 48 of its outputs are arranged), and of fewer q, k and v and gate and up begin with their norm, gate and up end with the
 * activation, and attention rotates and merges: five launches, and o's arrangement. The second step
 * of a shape is captured: from then on that is one launch. Where multiprocessors are many K is cut, and
 * the launches are as many. */
TEST(a_step_has_one_wait_few_copies_and_the_launches_that_its_layers_need)
{
    enum { PICK = 2, FUSED = 5, MANY = 132 };
    const int usual = emu_sm;
    golden g;
    if (check_real_gpu("nobody counts launches")) return;
    for (int64_t i = 0; i < 10; i++) {
        const int64_t n = i % 4 + 1; /* layers on the device, of 4 */
        const bool bf16 = i >= 4;
        emu_sm = i < 8 ? usual : MANY;
        const size_t of_layer = 11, beside = 3;
        rig r;
        const bool ok = open_arch(&r, "smollm3-window",
                                  (rig_opts){ .device = true,
                                              .gpu_layers = n,
                                              .acts = bf16 ? MM_BF16 : MM_F32,
                                              .kv = bf16 ? KV_F16 : KV_F32 });
        if (ok && golden_open(&g, "smollm3-window")) {
            kv_seq s[2];
            kv_seq_init(&s[0]);
            kv_seq_init(&s[1]);
            const size_t down = 2, up = n < 4 ? 2 : 1, lookup = n < 4 ? 0 : 1;
            for (int64_t at = 0; at < 24; at += at ? 1 : 17) {
                const emu_counts c = count_step(&r, &g, s, at, at ? 1 : 17);
                /* of many rows no split is merged here, but in the last layer, which has one: there
                 * a norm and the activation are a product's */
                const size_t fused = !bf16 ? 0 : at ? (size_t)n * FUSED : (size_t)n - 1 + 2;
                const size_t arranged = at || !bf16 ? 0 : (size_t)n - 1; /* the last has one row */
                const size_t want =
                    (size_t)n * of_layer - fused + beside - 1 + lookup + arranged + (at ? 0 : PICK);
                const bool graph = at > 17;
                CHECK(c.waits == 1 && c.allocations == 0 && c.copies == up + down &&
                          c.launches == (graph ? 0 : want) && c.nodes == (graph ? want : 0) &&
                          c.graphs == graph && c.kept == (at == 18),
                      "%lld layers, bf16 %d, position %lld: %zu waits, %zu allocations, %zu "
                      "copies, %zu launches, %zu of %zu graphs (expected %zu)",
                      (long long)n, bf16, (long long)at, c.waits, c.allocations, c.copies,
                      c.launches, c.nodes, c.graphs, want);
            }
            kv_seq_free(r.kv, &s[1]);
            kv_seq_free(r.kv, &s[0]);
            st_close(&g.file);
        }
        rig_close(&r);
    }
    emu_sm = usual;
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(schemes_give_the_cpus_logits);
    RUN(experts_of_two_schemes_give_the_cpus_logits);
    RUN(bf16_strays_no_further_than_the_cpu_does);
    RUN(caches_stray_no_further_than_the_cpus_do);
    RUN(latent_attention_strays_no_further_than_the_cpus);
    RUN(attention_of_many_rows_takes_the_units_unless_under_f32);
    RUN(many_rows_over_a_cache_of_codes_stray_no_further_than_the_cpus);
    RUN(batch_chunks_and_blocks_change_no_byte);
    RUN(a_row_that_is_wanted_alone_has_the_same_bytes);
    RUN(attention_in_chunks_sees_those_of_its_own);
    RUN(with_batch_invariant_no_byte_depends_on_a_batch_in_bf16);
    RUN(int8_is_that_where_asked_for_and_depends_on_no_batch);
    RUN(a_state_goes_back_to_before_guesses_that_were_wrong);
    RUN(a_part_of_the_layers_on_the_device_gives_the_logits_of_all_and_of_none);
    RUN(the_bytes_of_a_shared_model_depend_on_no_batch);
    RUN(what_is_on_the_device_leaves_the_hosts_memory);
    RUN(dense_weights_lie_in_rows_where_cublas_may_have_them);
    RUN(a_device_that_expands_quantized_weights_has_cublas);
    RUN(a_pass_takes_no_more_of_a_device_than_was_said);
    RUN(real_products_take_no_more_than_was_said);
    RUN(as_many_layers_fit_as_memory_says);
    RUN(copied_blocks_change_no_byte);
    RUN(a_step_allocates_nothing_there_and_gives_back_all);
    RUN(a_step_has_one_wait_few_copies_and_the_launches_that_its_layers_need);
    return check_end();
}
