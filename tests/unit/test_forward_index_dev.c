/* tests/unit/test_forward_index_dev.c - models that choose the positions that they attend to, on a device
 * (tests/support/emulated.c says which) against the CPU: caches and activations; what is refused. In f32: test_forward_archs_dev.c. */
#include "tests/support/check.h"
#include "tests/support/devpass.h"

/* Rows, of n numbers in `rows` rows, that are further apart than `most`. */
static int64_t rows_apart(const float *got, const float *want, int64_t n, int64_t rows, double most)
{
    int64_t far = 0;
    double top = 0;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)want[i]));
    for (int64_t r = 0; r < rows; r++) {
        double d = 0;
        for (int64_t i = r * n / rows; i < (r + 1) * n / rows; i++)
            d = fmax(d, fabs((double)got[i] - (double)want[i]));
        far += !(d <= most * top);
    }
    return far;
}

/* Where two scores are nearly the same, rounding chooses another position, on the CPU as on a device. Under f32 no row
 * of these has such scores; under bf16 few have, and the others' products and sums stray by some 2^-8 each. */
TEST(chosen_positions_stray_no_further_than_the_cpus)
{
    static const char *const names[] = { "deepseek-v32", "glm-moe-dsa", "hy-v4", "minimax-m3",
                                         "axk2" };
    static const kv_dtype kinds[] = { KV_F16, KV_BF16 };
    for (size_t i = 0; i < LQ_COUNT(names) * 4; i++) {
        const char *name = names[i / 4];
        rig_opts o = { 0 };
        int64_t n;
        float *exact = cut_of(name, o, &prefill_then_decode, INDEX_IDS, &n);
        o.acts = i % 4 < 2 ? MM_F32 : MM_BF16;
        o.kv = kinds[i % 2];
        float *cpu = cut_of(name, o, &prefill_then_decode, INDEX_IDS, &n);
        o.device = true;
        float *got = cut_of(name, o, &prefill_then_decode, INDEX_IDS, &n);
        if (exact && cpu && got) {
            const double own = apart(cpu, exact, n), d = apart(got, cpu, n);
            const int64_t far = rows_apart(got, cpu, n, 2 * INDEX_IDS, 0x1p-5);
            CHECK(own > 0 && (o.acts == MM_F32 ? d <= own : far <= INDEX_IDS / 4),
                  "%s, %s: %.2g, the CPU from f32 %.2g; %d rows are far", name, kv_types_text(o.kv),
                  d, own, (int)far);
        }
        free(exact);
        free(cpu);
        free(got);
    }
}

/* Codes of the indexer's rows begin at whole words: of so few dims they do not. */
TEST(keys_of_an_indexer_that_are_no_whole_words_are_refused)
{
    rig r;
    if (open_arch(&r, "deepseek-v32", (rig_opts){ .device = true, .kv = KV_F32 })) {
        const kv_opts codes = {
            .n_blocks = 4, .block_size = 16, .dtype = KV_I8, .on = model_dev(&r.m)
        };
        const fwd_opts o = { .max_rows = 4, .max_logits = 4, .max_seqs = 1 };
        kv_cache *kv;
        fwd_ctx *f = NULL;
        lq_err err = { "" };
        CHECK(!kv_open(&kv, r.m.cfg, &codes, &err), "%s", err.msg);
        CHECK(fwd_open(&f, &r.m, kv, r.p, &o, &err) == LQ_EUNSUPPORTED &&
                  strstr(err.msg, "not on cuda yet: int8 keys of an indexer of 6"),
              "'%s'", err.msg);
        fwd_close(f);
        kv_close(kv);
    }
    rig_close(&r);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(chosen_positions_stray_no_further_than_the_cpus);
    RUN(keys_of_an_indexer_that_are_no_whole_words_are_refused);
    return check_end();
}
