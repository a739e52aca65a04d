/* tests/unit/test_windows_dev.c - layers over whole windows, as calibration has them, whose products and attention a
 * device makes (runtime/model/offload.h), against the CPU. */
#include "runtime/model/offload.h"
#include "tests/support/check.h"
#include "tests/support/devpass.h"

/* A layer over windows of `len` rows, here and there: launches, where bytes are the same. */
static size_t launches_of_windows(rig *r, int64_t layer, int64_t windows, int64_t len)
{
    const arch_config *c = r->m.cfg;
    const int64_t n = windows * len * fwd_state(c);
    const size_t bytes = (size_t)n * sizeof(float);
    float *x[2] = { malloc(bytes), malloc(bytes) };
    dev d;
    fwd_offload *o;
    lq_err err = { "" };
    lq_arena a;
    CHECK(!lq_arena_init(&a, fwd_layer_scratch(c, windows * len, 1), &err), "%s", err.msg);
    CHECK(!dev_open(&d, "cuda", &err) && !fwd_offload_open(&o, &d, r->p, &err), "%s", err.msg);
    const emu_counts before = emu_counted;
    for (int there = 0; there < 2; there++) {
        uint64_t seed = 3;
        fill_row(x[there], n, &seed);
        CHECK(!fwd_layer(c, &r->m.layers[layer], layer, x[there], windows, len, MM_F32, NULL,
                         there ? o : NULL, &a, r->p, &err),
              "%s", err.msg);
    }
    const size_t launches = counted_since(&before).launches;
    CHECK(memcmp(x[0], x[1], bytes) == 0, "layer %lld, %lld rows: other bytes", (long long)layer,
          (long long)len);
    fwd_offload_close(o);
    d.ops->close(&d);
    lq_arena_free(&a);
    free(x[0]);
    free(x[1]);
    return launches;
}

/* Of a calibration pass: gate, up and down of each expert that has rows, and of the shared one, beside the
 * three products of latent attention's inputs and o. */
TEST(experts_of_a_pass_over_windows_are_multiplied_there_with_the_cpus_bits)
{
    enum { LAYER = 1, ATTENTION = 2 };
    rig r;
    if (!open_arch(&r, "deepseek-v3", (rig_opts){ 0 })) return;
    const size_t launches = launches_of_windows(&r, LAYER, 1, 12), rest = 4 + ATTENTION;
    CHECK(getenv("LLMQ_TEST_DEVICE") || (launches >= rest + 3 * 3 && (launches - rest) % 3 == 0),
          "%zu launches", launches);
    rig_close(&r);
}

/* Another window is another launch, and another that merges. What there is no kernel for is the CPU's. */
TEST(attention_of_a_pass_over_windows_is_there_with_the_cpus_bits)
{
    static const struct {
        const char *arch;
        int64_t layer;
        bool there;
    } kinds[] = {
        { "llama3-gqa", 0, true },  { "gemma2", 0, true },         { "gemma4-dense", 1, true },
        { "deepseek-v3", 0, true }, { "bloom-alibi", 1, true },    { "falcon-rw-alibi", 0, true },
        { "qwen3", 0, true },       { "llama4-chunks", 0, false },
    };
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        rig r;
        if (!open_arch(&r, kinds[i].arch, (rig_opts){ 0 })) continue;
        const size_t one = launches_of_windows(&r, kinds[i].layer, 1, 40),
                     two = launches_of_windows(&r, kinds[i].layer, 2, 40);
        CHECK(getenv("LLMQ_TEST_DEVICE") || two - one == (kinds[i].there ? 2 : 0),
              "%s: %zu launches, of two windows %zu", kinds[i].arch, one, two);
        rig_close(&r);
    }
}

/* Rows that go there in two pieces have the same bytes, as have windows, and logits with one more. */
TEST(attention_of_a_pass_has_long_windows_and_sinks_there)
{
    rig r;
    if (open_arch(&r, "llama3-gqa", (rig_opts){ 0 })) {
        const size_t one = launches_of_windows(&r, 0, 1, 500),
                     two = launches_of_windows(&r, 0, 1, 530);
        CHECK(getenv("LLMQ_TEST_DEVICE") || two == one + 2, "%zu launches, of two pieces %zu", one,
              two);
        rig_close(&r);
    }
    if (!open_arch(&r, "gpt-oss-sinks", (rig_opts){ 0 })) return;
    for (int64_t layer = 0; layer < 2; layer++)
        launches_of_windows(&r, layer, 3, 40);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(experts_of_a_pass_over_windows_are_multiplied_there_with_the_cpus_bits);
    RUN(attention_of_a_pass_over_windows_is_there_with_the_cpus_bits);
    RUN(attention_of_a_pass_has_long_windows_and_sinks_there);
    return check_end();
}
