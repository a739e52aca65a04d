/* tests/unit/test_graph_dev.c - steps that a device's pass captures and replays
 * (runtime/forward/forward_graph.c) give the bytes of plain launches, at other positions, blocks and ids
 * than those of the capture; and how many launches are left. The device is tests/support/emulated.c's. */
#include "base/cpus.h"
#include "runtime/forward/forward_impl.h"
#include "tests/support/check.h"
#include "tests/support/devpass.h"

extern int emu_devices;

enum { SEQS = 3 };

static bool counts(void) { return !getenv("LLMQ_TEST_DEVICE"); } /* nobody counts on a real one */

/* Three sequences: prompt 0, prompt 1 and prompt 0 from its second id. */
static const int32_t *ids_of(const golden *g, int s) { return s == 2 ? g->ids[0] + 1 : g->ids[s]; }

/* Logits [SEQS, n, V] of n ids of each from position `from` on, before which the cache is zeros, in
 * steps of one id for each sequence that has begun; sequence s begins s steps late. ahead: blocks
 * that somebody else holds first. */
static float *decode(rig *r, const golden *g, int64_t from, int64_t n, int64_t ahead)
{
    kv_seq s[SEQS], other;
    const size_t row = (size_t)g->V * sizeof(float);
    float *out = calloc((size_t)(SEQS * n), row);
    kv_seq_init(&other);
    kv_zero(r->kv);
    if (ahead) CHECK(!kv_reserve(r->kv, &other, ahead * 16, NULL), "reserve");
    for (int i = 0; i < SEQS; i++)
        kv_seq_init(&s[i]);
    for (int64_t step = 0; out && step < n + SEQS - 1; step++) {
        fwd_item items[SEQS];
        const float *logits;
        int k = 0;
        for (int i = 0; i < SEQS; i++) {
            const int64_t at = step - i;
            if (at < 0 || at >= n) continue;
            CHECK(!kv_reserve(r->kv, &s[i], from + at + 1, NULL), "reserve");
            items[k++] = (fwd_item){ .seq = &s[i],
                                     .ids = ids_of(g, i) + at,
                                     .n = 1,
                                     .pos0 = from + at,
                                     .seq_len = from + n };
        }
        lq_err err = { "" };
        CHECK(!fwd_step(r->f, items, k, &logits, &err), "%s", err.msg);
        for (int i = 0; i < SEQS; i++)
            if (step - i >= 0 && step - i < n) {
                memcpy(out + (i * n + step - i) * g->V, logits, row);
                logits += g->V;
            }
    }
    for (int i = 0; i < SEQS; i++)
        kv_seq_free(r->kv, &s[i]);
    kv_seq_free(r->kv, &other);
    return out;
}

static const struct {
    const char *name, *why;
    mm_acts acts;
    kv_dtype kv;
    int64_t layers; /* on the device; 0: all */
    char *scheme;   /* NULL: the checkpoint's weights */
    bool hard;      /* check_hard */
} models[] = {
    { "llama3-gqa", "grouped heads", MM_F32, KV_F32, 0, NULL, false },
    { "llama3-gqa", "inputs that are arranged, a cache for the units", MM_BF16, KV_BF16, 0, NULL,
      false },
    { "ministral", "a window", MM_F32, KV_I8, 0, NULL, true },
    { "gemma2", "windows in turns, soft-caps", MM_BF16, KV_BF16, 0, NULL, false },
    { "gemma3", "two tables of angles", MM_F32, KV_F32, 0, NULL, true },
    { "smollm3-window", "layers without positions, others with a window", MM_F32, KV_F16, 0, NULL,
      true },
    { "smollm3-window", "layers on both: x comes over", MM_F32, KV_F32, 2, NULL, false },
    { "mixtral-moe", "experts", MM_F32, KV_F32, 0, NULL, true },
    { "qwen2-moe-shared", "a shared MLP", MM_BF16, KV_BF16, 0, NULL, true },
    { "gpt-oss-sinks", "experts, sinks, a window", MM_F32, KV_F32, 0, NULL, false },
    { "deepseek-v2-mla", "latent attention, experts", MM_F32, KV_F32, 0, NULL, false },
    { "deepseek-v32", "an indexer", MM_F32, KV_F32, 0, NULL, false },
    { "glm-moe-dsa", "one choice of several layers", MM_BF16, KV_BF16, 0, NULL, true },
    { "glm-moe-dsa", "... and it comes over", MM_F32, KV_F32, 2, NULL, false },
    { "minimax-m3", "chosen blocks", MM_F32, KV_F32, 0, NULL, false },
    { "bloom-5-heads", "ALiBi", MM_F32, KV_F32, 0, NULL, true },
    { "phi3", "q, k and v in one product", MM_F32, KV_F32, 0, NULL, true },
    { "opt-350m-postnorm", "learned positions, rows looked up on the host", MM_F32, KV_F32, 0, NULL,
      false },
    { "llama3-gqa", "integers: inputs are quantized", MM_I8, KV_BF16, 0, "u4-g16", false },
    { "qwen3-next", "states, in other slots", MM_F32, KV_F32, 0, NULL, false },
    { "gemma4-ple", "rows of the host's table, layers of two sizes, K and V of another", MM_F32,
      KV_F32, 0, NULL, false },
    { "gemma3n", "several residual streams, gates that are cut", MM_F32, KV_F32, 0, NULL, false },
    { "gemma3n", "the same in bf16", MM_BF16, KV_BF16, 0, NULL, true },
    { "hy-v4", "hyper-connections, chosen positions", MM_F32, KV_F32, 0, NULL, false },
    { "hy-v4", "the same, of which the CPU has a layer", MM_BF16, KV_BF16, 2, NULL, true },
    { "mimo-v2-flash", "two kinds of layers", MM_BF16, KV_BF16, 0, NULL, true },
    { "lfm2", "short convolutions, some layers on the CPU", MM_F32, KV_F32, 2, NULL, true },
};

/* From a position on that is inside of one block and of one window (16), to one that is not. */
TEST(replayed_steps_give_the_bytes_of_plain_ones)
{
    enum { FROM = 13, N = 6, STEPS = N + SEQS - 1, GRAPHS = 0, AGAIN, EAGER, RUNS };
    for (size_t i = 0; i < LQ_COUNT(models); i++) {
        float *got[RUNS] = { 0 };
        emu_counts c[RUNS] = { 0 };
        golden g;
        rig r;
        if ((models[i].hard && !check_hard()) || !golden_open(&g, models[i].name)) continue;
        for (int run = 0; run < RUNS; run++) {
            const rig_opts o = { .device = true,
                                 .acts = models[i].acts,
                                 .kv = models[i].kv,
                                 .gpu_layers = models[i].layers,
                                 .int8 = models[i].acts == MM_I8,
                                 .change = models[i].scheme ? fill_linears : NULL,
                                 .user = models[i].scheme,
                                 .eager = run == EAGER };
            const bool open = run == AGAIN ? got[GRAPHS] != NULL : open_arch(&r, models[i].name, o);
            const emu_counts before = emu_counted;
            /* A state is of all that came before. */
            const int64_t from = open && arch_has_state(r.m.cfg) ? 0 : FROM;
            if (open) got[run] = decode(&r, &g, from, N, run == AGAIN ? 3 : 0);
            c[run] = counted_since(&before);
            if (run != GRAPHS) rig_close(&r);
        }
        const emu_counts *plain = &c[EAGER];
        const size_t bytes = (size_t)(SEQS * N * g.V) * sizeof(float);
        for (int run = 0; run < EAGER; run++) {
            const bool again = run == AGAIN;
            CHECK(got[run] && got[EAGER] && memcmp(got[run], got[EAGER], bytes) == 0, "%s (%s), %s",
                  models[i].name, models[i].why, again ? "in other blocks" : "at first");
            if (!counts()) continue;
            /* One, two and three rows: each plain once, then captured. */
            CHECK(c[run].graphs == STEPS - (again ? 0 : 3) && c[run].kept == (again ? 0 : 3) &&
                      (again ? c[run].launches == 0 : c[run].launches > 0),
                  "%s: %zu graphs of %zu, %zu launches", models[i].name, c[run].graphs, c[run].kept,
                  c[run].launches);
            CHECK(c[run].launches + c[run].nodes == plain->launches &&
                      c[run].copies == plain->copies && c[run].waits == plain->waits &&
                      c[run].allocations == 0,
                  "%s: %zu and %zu launches, %zu without; %zu copies, %zu without", models[i].name,
                  c[run].launches, c[run].nodes, plain->launches, c[run].copies, plain->copies);
        }
        CHECK(!counts() || plain->graphs + plain->kept == 0, "%s: graphs", models[i].name);
        if (getenv("SHOW"))
            printf("%-20s launches a step: %.1f, with graphs %.1f\n", models[i].name,
                   (double)plain->launches / STEPS,
                   (double)(c[AGAIN].launches + c[AGAIN].graphs) / STEPS);
        for (int run = 0; run < RUNS; run++)
            free(got[run]);
        st_close(&g.file);
    }
}

static const struct {
    const char *name, *why;
    int ranks, pieces; /* between the exchanges of its layers */
    mm_acts acts;
    char *scheme;
} shared[] = {
    { "llama3-gqa", "two layers", 2, 5, MM_F32, NULL },
    { "gpt2", "more devices", 4, 5, MM_BF16, NULL },
    { "olmo2", "squares are summed too", 2, 7, MM_F32, NULL },
    { "llama3-gqa", "integers", 2, 5, MM_I8, "u4-g16" },
};

/* Of several devices every piece between exchanges is a graph; a prefill, which leaves the rows'
 * buffers exchanged, comes between the captures and the replays. */
TEST(pieces_between_exchanges_give_the_bytes_of_plain_ones)
{
    enum { FROM = 13, N = 5, STEPS = N + SEQS - 1 };
    if (check_real_gpu("there may be one alone")) return;
    for (size_t i = 0; i < LQ_COUNT(shared); i++) {
        float *got[2][2] = { { 0 } };
        emu_counts c[2];
        golden g;
        if (!golden_open(&g, shared[i].name)) continue;
        for (int eager = 0; eager < 2; eager++) {
            rig r;
            const rig_opts o = { .device = true,
                                 .ranks = shared[i].ranks,
                                 .acts = shared[i].acts,
                                 .int8 = shared[i].acts == MM_I8,
                                 .change = shared[i].scheme ? fill_linears : NULL,
                                 .user = shared[i].scheme,
                                 .eager = eager };
            kv_seq s[2];
            kv_seq_init(&s[0]);
            kv_seq_init(&s[1]);
            if (open_arch(&r, shared[i].name, o)) {
                got[eager][0] = decode(&r, &g, FROM, N, 0);
                count_step(&r, &g, s, 0, 4);
                const emu_counts before = emu_counted;
                got[eager][1] = decode(&r, &g, FROM, N, 3);
                c[eager] = counted_since(&before);
                kv_seq_free(r.kv, &s[1]);
                kv_seq_free(r.kv, &s[0]);
            }
            rig_close(&r);
        }
        const size_t bytes = (size_t)(SEQS * N * g.V) * sizeof(float);
        for (int again = 0; again < 2; again++)
            CHECK(got[0][again] && got[1][again] &&
                      memcmp(got[0][again], got[1][again], bytes) == 0,
                  "%s (%s), %s", shared[i].name, shared[i].why, again ? "again" : "at first");
        CHECK(c[0].graphs == (size_t)(STEPS * shared[i].ranks * shared[i].pieces) &&
                  c[1].graphs == 0 && c[0].kept == 0 &&
                  c[0].launches + c[0].nodes == c[1].launches && c[0].copies == c[1].copies,
              "%s: %zu graphs, %zu and %zu launches, %zu without; %zu copies, %zu without",
              shared[i].name, c[0].graphs, c[0].launches, c[0].nodes, c[1].launches, c[0].copies,
              c[1].copies);
        if (getenv("SHOW"))
            printf("%-20s launches a step on %d: %.1f, with graphs %.1f\n", shared[i].name,
                   shared[i].ranks, (double)c[1].launches / STEPS,
                   (double)(c[0].launches + c[0].graphs) / STEPS);
        for (int k = 0; k < 4; k++)
            free(got[k / 2][k % 2]);
        st_close(&g.file);
    }
}

/* A context that grows past splits of attention has another number of them, rounded up to a power
 * of two: a shape of its own, as soon as that changes. */
TEST(a_context_that_grows_changes_its_shape_and_no_byte)
{
    enum { FROM = ATTN_SPLIT - 2, STEPS = 6 };
    golden g;
    float *got[2] = { 0 };
    emu_counts c = { 0 };
    if (!golden_open(&g, "llama3-gqa")) return;
    for (int eager = 0; eager < 2; eager++) {
        rig r;
        kv_seq s[2];
        const float *logits;
        lq_err err = { "" };
        if (open_arch(&r, "llama3-gqa", (rig_opts){ .device = true, .eager = eager })) {
            got[eager] = calloc((size_t)(2 * STEPS * g.V), sizeof(float));
            for (int b = 0; b < 2; b++) {
                kv_seq_init(&s[b]);
                CHECK(!kv_reserve(r.kv, &s[b], FROM + STEPS, &err), "%s", err.msg);
            }
            kv_zero(r.kv);
            const emu_counts before = emu_counted;
            for (int64_t i = 0; i < STEPS && got[eager]; i++) {
                fwd_item it[2] = {
                    { .seq = &s[0],
                      .ids = g.ids[0] + i,
                      .n = 1,
                      .pos0 = FROM + i,
                      .seq_len = FROM + STEPS },
                    { .seq = &s[1], .ids = g.ids[1] + i, .n = 1, .pos0 = 1 + i, .seq_len = 2 + i }
                };
                CHECK(!fwd_step(r.f, it, 2, &logits, &err), "%s", err.msg);
                memcpy(got[eager] + 2 * i * g.V, logits, (size_t)(2 * g.V) * sizeof *logits);
            }
            if (!eager) c = counted_since(&before);
            kv_seq_free(r.kv, &s[0]);
            kv_seq_free(r.kv, &s[1]);
        }
        rig_close(&r);
    }
    /* Two splits at positions 510 and 511: plain, captured. Three, of four slots, from 512 on. */
    CHECK(got[0] && got[1] && memcmp(got[0], got[1], (size_t)(2 * STEPS * g.V) * 4) == 0, "bytes");
    CHECK(!counts() || (c.kept == 2 && c.graphs == STEPS - 2), "%zu kept, %zu launched", c.kept,
          c.graphs);
    free(got[0]);
    free(got[1]);
    st_close(&g.file);
}

/* One id of each of ROWS sequences at the same position; those whose bits are set are drawn from.
 * logits [ROWS, V]: of the drawn ones the id is the first number. */
enum { ROWS = 6 };
static bool draw(rig *r, const golden *g, kv_seq *s, unsigned which, float *out)
{
    fwd_item items[ROWS];
    dev_draw how[ROWS];
    const dev_drawn *drawn;
    const float *logits;
    lq_err err = { "" };
    int64_t n = 0;
    for (int i = 0; i < ROWS; i++) {
        items[i] = (fwd_item){ .seq = &s[i], .ids = g->ids[0] + i, .n = 1, .seq_len = 1 };
        if (which >> i & 1) how[n++] = (dev_draw){ .row = i, .repetition = 1, .logprobs = -1 };
    }
    lq_status st = fwd_step_draw(r->f, items, ROWS, how, n, &logits, &drawn, &err);
    CHECK(!st, "%s", err.msg);
    for (int64_t i = 0, d = 0; i < ROWS && !st; i++)
        if (which >> i & 1)
            out[i * g->V] = (float)drawn[d++].id;
        else
            memcpy(out + i * g->V, logits + i * g->V, (size_t)g->V * sizeof *out);
    return !st;
}

static void open_rows(rig *r, kv_seq *s)
{
    for (int i = 0; i < ROWS; i++) {
        kv_seq_init(&s[i]);
        CHECK(!kv_reserve(r->kv, &s[i], 1, NULL), "reserve");
    }
}

TEST(graphs_are_bounded_and_the_one_not_used_for_longest_goes_first)
{
    enum { SHAPES = FWD_GRAPHS + 3, MADE = 5 }; /* of the first of them graphs */
    golden g;
    rig r;
    kv_seq s[ROWS];
    if (check_real_gpu("nobody counts launches")) return;
    if (open_arch(&r, "llama3-gqa", (rig_opts){ .device = true }) &&
        golden_open(&g, "llama3-gqa")) {
        float *out = calloc((size_t)(ROWS * g.V), sizeof *out);
        emu_counts before = emu_counted, c;
        open_rows(&r, s);
        for (unsigned shape = 0; out && shape < SHAPES; shape++)
            for (int i = 0; i < (shape < MADE ? 3 : 1); i++) /* plain, captured, replayed */
                draw(&r, &g, s, shape, out);
        c = counted_since(&before);
        CHECK(c.kept == MADE && c.graphs == 2 * MADE, "%zu kept, %zu launched", c.kept, c.graphs);
        static const struct {
            unsigned shape;
            size_t graphs;
        } after[] = { { 3, 1 }, { 2, 0 }, { 3, 1 }, { 4, 0 }, { 2, 1 } };
        for (size_t i = 0; out && i < LQ_COUNT(after); i++) {
            before = emu_counted;
            draw(&r, &g, s, after[i].shape, out);
            c = counted_since(&before);
            CHECK(c.graphs == after[i].graphs, "shape %u, at %zu: %zu graphs", after[i].shape, i,
                  c.graphs);
        }
        for (int i = 0; i < ROWS; i++)
            kv_seq_free(r.kv, &s[i]);
        free(out);
        st_close(&g.file);
    }
    rig_close(&r);
}

static int notes;
static char noted[300];
static void note(const char *what, const char *text)
{
    notes++;
    snprintf(noted, sizeof noted, "%s: %s", what, text);
}

TEST(a_capture_that_fails_is_said_once_and_the_step_is_launched_plainly)
{
    golden g;
    rig r;
    kv_seq s[ROWS];
    if (check_real_gpu("nobody counts launches")) return;
    notes = 0;
    if (open_arch(&r, "mixtral-moe", (rig_opts){ .device = true, .note = note }) &&
        golden_open(&g, "mixtral-moe")) {
        const size_t bytes = (size_t)(ROWS * g.V) * sizeof(float);
        float *want = calloc(1, bytes), *out = calloc(1, bytes);
        open_rows(&r, s);
        emu_graphs = 1;
        for (unsigned shape = 0; want && out && shape < 3; shape++) {
            const emu_counts before = emu_counted;
            for (int i = 0; i < 4; i++) {
                memset(out, 0, bytes);
                draw(&r, &g, s, shape, out);
                if (i == 0) memcpy(want, out, bytes);
                CHECK(memcmp(want, out, bytes) == 0, "shape %u, step %d", shape, i);
            }
            const emu_counts c = counted_since(&before);
            CHECK(c.graphs == (shape ? 0 : 3), "shape %u: %zu graphs", shape, c.graphs);
            CHECK(notes == (shape > 0), "shape %u: %d notes", shape, notes);
        }
        const emu_counts before = emu_counted;
        draw(&r, &g, s, 0, out);
        CHECK(counted_since(&before).graphs == 1, "the graph that was made is still used");
        CHECK(strcmp(noted, "CUDA graphs: off, each operation is launched by itself (emulated: "
                            "cudaGraphInstantiate: out of memory)") == 0,
              "%s", noted);
        emu_graphs = SIZE_MAX;
        for (int i = 0; i < ROWS; i++)
            kv_seq_free(r.kv, &s[i]);
        free(want);
        free(out);
        st_close(&g.file);
    }
    rig_close(&r);
}

/* Threads that wait for work are bound while a step is under way, its caller too. */
TEST(a_step_of_a_device_alone_does_not_call_the_cpus_threads)
{
    os_cpus before, during, after;
    cpu_places where;
    os_cpus_allowed(&before);
    places_here(&where, false);
    for (int part = 0; part < 2; part++) {
        const rig_opts o = { .device = true, .threads = 2, .gpu_layers = part };
        kv_seq s;
        golden g;
        rig r;
        if (!golden_open(&g, "llama3-gqa")) return;
        kv_seq_init(&s);
        if (open_arch(&r, "llama3-gqa", o) && where.n > 1 && !pool_pin(r.p, &where, NULL)) {
            const fwd_item item = { .seq = &s, .ids = g.ids[0], .n = 1 };
            const dev_drawn *drawn;
            const float *logits;
            lq_err err = { "" };
            CHECK(!kv_reserve(r.kv, &s, 1, NULL), "reserve");
            lq_status st = fwd_begin(r.f, &item, 1, NULL, 0, &err);
            os_cpus_allowed(&during);
            if (!st) st = fwd_end(r.f, &logits, &drawn, &err);
            os_cpus_allowed(&after);
            CHECK(!st, "%s", err.msg);
            CHECK((memcmp(&before, &during, sizeof before) == 0) == !part, "%d layers on the GPU",
                  part);
            CHECK(memcmp(&before, &after, sizeof before) == 0, "left as it was");
        }
        kv_seq_free(r.kv, &s);
        rig_close(&r);
        st_close(&g.file);
    }
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    if (counts()) emu_devices = 4;
    RUN(replayed_steps_give_the_bytes_of_plain_ones);
    RUN(pieces_between_exchanges_give_the_bytes_of_plain_ones);
    RUN(a_context_that_grows_changes_its_shape_and_no_byte);
    RUN(graphs_are_bounded_and_the_one_not_used_for_longest_goes_first);
    RUN(a_step_of_a_device_alone_does_not_call_the_cpus_threads);
    RUN(a_capture_that_fails_is_said_once_and_the_step_is_launched_plainly);
    return check_end();
}
