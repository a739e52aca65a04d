/* tests/unit/test_forward_draw_dev.c - draws of a step on a device (tests/support/emulated.c says which): what comes
 * back, and what stays with the host. */
#include "runtime/engine/sample.h"
#include "tests/support/check.h"
#include "tests/support/devpass.h"

/* The first 5 ids of the first prompt, with the logits of the last 3, and 4 of the second, with
 * those of the last. which: bits of the 4 rows that are drawn from. got: logits [4, V] and draws.
 * False: a check has failed. */
enum { DRAWN_FROM = 4, EDITS = 64 };
static bool draw_step(rig *r, const golden *g, unsigned which, const smp_params *p, float *got,
                      dev_drawn *ids, emu_counts *counts)
{
    kv_seq s[2];
    fwd_item items[2];
    dev_draw how[DRAWN_FROM];
    dev_edit edits[DRAWN_FROM][EDITS];
    smp_ctx *smp;
    const float *logits;
    const dev_drawn *drawn;
    int64_t n = 0;
    lq_err err = { "" };
    for (int b = 0; b < 2; b++) {
        kv_seq_init(&s[b]);
        CHECK(!kv_reserve(r->kv, &s[b], 5, NULL), "reserve");
        items[b] = (fwd_item){
            .seq = &s[b], .ids = g->ids[b], .n = 5 - b, .logits_from = b ? 3 : 2, .seq_len = 5
        };
    }
    CHECK(!smp_open(&smp, g->V, &err), "%s", err.msg);
    for (int64_t i = 0; i < DRAWN_FROM; i++)
        if (which >> i & 1)
            CHECK(smp_on_device(smp, &how[n++], edits[i], EDITS, &p[i], g->ids[0], 3, g->ids[1], 4,
                                (uint64_t)i, i),
                  "not drawn there");
    smp_close(smp);
    const emu_counts before = emu_counted;
    lq_status st = fwd_step_draw(r->f, items, 2, how, n, &logits, &drawn, &err);
    CHECK(!st, "%s", err.msg);
    *counts = counted_since(&before);
    for (int64_t i = 0, d = 0; i < DRAWN_FROM && !st; i++) {
        if (which >> i & 1)
            ids[i] = drawn[d++];
        else
            memcpy(got + i * g->V, logits + i * g->V, (size_t)g->V * sizeof *got);
    }
    kv_seq_free(r->kv, &s[0]);
    kv_seq_free(r->kv, &s[1]);
    return !st;
}

/* Plain; with scaled logits; with soft-capped ones. */
static void check_draws(const char *name)
{
    static const smp_bias bias[] = { { 1, 4 }, { 5, -INFINITY } };
    static const uint32_t mask[64] = { 0xf0f0f0f1, 7, 1 }; /* of at most 2,048 ids */
    static const smp_params p[DRAWN_FROM] = {
        { .logprobs = 3, .mask = mask },
        { .temperature = 1.2f, .seed = 3, .logprobs = -1, .bias = bias, .n_bias = 2 },
        { .temperature = 0.8f,
          .top_k = 12,
          .seed = 4,
          .logprobs = 20,
          .mask = mask,
          .repetition_penalty = 1.5f,
          .frequency_penalty = 0.2f },
        { .temperature = 1, .top_p = 0.8f, .min_p = 0.01f, .seed = 5, .logprobs = 0 },
    };
    static const struct {
        unsigned which; /* rows that are drawn from */
        size_t runs;    /* of the others */
    } sets[] = { { 1, 1 }, { 6, 2 }, { 9, 1 }, { 15, 0 } };
    golden g;
    rig r;
    smp_ctx *smp = NULL;
    if (open_arch(&r, name, (rig_opts){ .device = true }) && golden_open(&g, name)) {
        const size_t row = (size_t)g.V * sizeof(float);
        float *want = malloc(DRAWN_FROM * row), *got = malloc(DRAWN_FROM * row);
        emu_counts plain, c;
        lq_err err = { "" };
        CHECK(!smp_open(&smp, g.V, &err) && want && got, "%s", err.msg);
        draw_step(&r, &g, 0, p, want, NULL, &plain);
        for (size_t k = 0; k < LQ_COUNT(sets); k++) {
            const unsigned which = sets[k].which;
            dev_drawn drawn[DRAWN_FROM] = { 0 };
            if (!draw_step(&r, &g, which, p, got, drawn, &c)) break;
            /* Logits and rows of each run that is left between draws; and what was drawn. */
            CHECK(getenv("LLMQ_TEST_DEVICE") ||
                      (c.copies == plain.copies - 2 + 2 * sets[k].runs + 1 && c.waits == 1 &&
                       c.allocations == 0 && c.launches == plain.launches + 1),
                  "%s, rows %x: %zu copies, %zu waits, %zu launches", name, which, c.copies,
                  c.waits, c.launches - plain.launches);
            for (int64_t i = 0; i < DRAWN_FROM; i++) {
                smp_result one, mine;
                if (!(which >> i & 1)) {
                    CHECK(memcmp(want + i * g.V, got + i * g.V, row) == 0, "%s: logits %d", name,
                          (int)i);
                    continue;
                }
                CHECK(!smp_sample(smp, &one, want + i * g.V, &p[i], g.ids[0], 3, g.ids[1], 4,
                                  (uint64_t)i, &err) &&
                          !smp_take(&mine, &drawn[i], &err),
                      "%s", err.msg);
                CHECK(mine.id == one.id && mine.logprob == one.logprob && mine.n_top == one.n_top &&
                          memcmp(mine.top_id, one.top_id, (size_t)one.n_top * 4) == 0 &&
                          memcmp(mine.top_logprob, one.top_logprob, (size_t)one.n_top * 4) == 0,
                      "%s, rows %x, row %d: %d, expected %d", name, which, (int)i, mine.id, one.id);
            }
        }
        free(want);
        free(got);
        st_close(&g.file);
    }
    smp_close(smp);
    rig_close(&r);
}

TEST(of_rows_that_are_drawn_from_only_the_draws_come_back)
{
    check_draws("smollm3-window");
    check_draws("cohere");
    check_draws("gemma2");
}

TEST(what_a_device_cannot_draw_stays_with_the_host)
{
    static const smp_bias bias = { 1, 2 };
    static const int32_t allowed[] = { 1, 2 };
    static const uint32_t mask[] = { 7 };
    static const struct {
        const char *why;
        bool there;
        smp_params p;
        int n_edits;
    } cases[] = {
        { "greedy", true, { .logprobs = -1 }, 0 },
        { "a penalty of 1", true, { .repetition_penalty = 1 }, 0 },
        { "bias", true, { .bias = &bias, .n_bias = 1 }, 1 },
        { "allowed ids", false, { .allowed = allowed, .n_allowed = 2 }, 0 },
        { "a mask", true, { .mask = mask }, 0 },
        { "repetition", false, { .repetition_penalty = 1.1f }, 0 }, /* five ids, room for four */
        { "presence", true, { .presence_penalty = 0.5f }, 3 },
        { "frequency", true, { .frequency_penalty = -0.5f, .bias = &bias, .n_bias = 1 }, 4 },
    };
    static const int32_t prompt[] = { 9, 7, 3, 9, 4 }, output[] = { 3, 4, 3, 8 };
    static const dev_edit want[] = { { 3, 2, 0 }, { 4, 1, 0 }, { 8, 1, 0 }, { 1, 0, 2 } };
    smp_ctx *smp;
    lq_err none;
    CHECK(!smp_open(&smp, 16, &none), "%s", none.msg);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        dev_draw d;
        dev_edit edits[LQ_COUNT(want)];
        const bool there =
            smp_on_device(smp, &d, edits, LQ_COUNT(want), &cases[i].p, prompt, 5, output, 4, 0, 0);
        CHECK(there == cases[i].there && (!there || d.n_edits == cases[i].n_edits), "%s",
              cases[i].why);
        if (there && d.n_edits >= 3)
            CHECK(memcmp(edits, want, (size_t)d.n_edits * sizeof *want) == 0, "%s", cases[i].why);
    }
    smp_close(smp);
    static const dev_drawn bad = { .id = -1, .bad = 17, .value = NAN };
    smp_result out;
    lq_err err;
    CHECK(smp_take(&out, &bad, &err) == LQ_EVALUE &&
              strcmp(err.msg, "logits: expected finite numbers, found NaN for token 17") == 0,
          "%s", err.msg);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(of_rows_that_are_drawn_from_only_the_draws_come_back);
    RUN(what_a_device_cannot_draw_stays_with_the_host);
    return check_end();
}
