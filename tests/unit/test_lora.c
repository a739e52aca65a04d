/* tests/unit/test_lora.c - adapters beside a model's weights: what they do to every architecture, and to
 * rows of one batch. Against peft: tests/e2e/test_lora.py. */
#include "runtime/model/lora.h"

#include "runtime/forward/whole.h"
#include "tests/support/archs.h"
#include "tests/support/lora_made.h"
#include "tests/support/lora_rows.h"

#include <stdio.h>
#include <stdlib.h>

enum { RANK = 3, T = 12 };

/* The largest difference of logits, as a share of the largest. */
static double apart(const float *x, const float *y, int64_t n)
{
    double most = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        top = fmax(top, fabs((double)y[i]));
    }
    return top > 0 ? most / top : 0;
}

static lq_status merged_logits(float **out, const rig *r, const adp_adapter *a, const int32_t *ids,
                               lq_err *err)
{
    src_source *src = NULL;
    model m = { 0 };
    *out = NULL;
    lq_status s = src_merge(&src, r->src, a, true, err);
    if (!s) s = model_load(&m, src, r->p, NULL, err);
    if (!s) s = fwd_whole(out, &m, NULL, ids, T, MM_F32, KV_F32, r->p, NULL, err);
    model_free(&m);
    src_close(src);
    return s;
}

static int check_arch(const char *arch, bool dora)
{
    char folder[128];
    rig r;
    adp_adapter a = { 0 };
    lora_adapter *l = NULL;
    lq_err err = { "" };
    int32_t ids[T];
    float *base = NULL, *beside = NULL, *merged = NULL;
    snprintf(folder, sizeof folder, "tests/golden/arch/%s", arch);
    if (!rig_open(&r, folder, (rig_opts){ .threads = 2 })) return 0;
    const int64_t V = r.m.cfg->vocab;
    for (int i = 0; i < T; i++)
        ids[i] = (int32_t)((7 * i + 3) % V);
    if (r.m.cfg->head == HEAD_WORDS && !r.m.cfg->mtp) make_adapter(&a, &r.m, RANK, dora, 5);
    const int n = (int)a.n;
    if (n) {
        lq_status s = lora_make(&l, &r.m, &a, RANK, r.p, &err);
        if (!s) s = fwd_whole(&base, &r.m, NULL, ids, T, MM_F32, KV_F32, r.p, NULL, &err);
        if (!s) s = fwd_whole(&beside, &r.m, l, ids, T, MM_F32, KV_F32, r.p, NULL, &err);
        if (!s) s = merged_logits(&merged, &r, &a, ids, &err);
        CHECK(!s, "%s: %s", arch, err.msg);
        /* f32 sums in another order, through at most a few layers of a few hundred inputs */
        CHECK(s || apart(beside, merged, T * V) < 1e-4, "%s%s: %g", arch, dora ? ", dora" : "",
              apart(beside, merged, T * V));
        CHECK(s || apart(base, merged, T * V) > 1e-3, "%s: it changes little", arch);
    }
    free(base);
    free(beside);
    free(merged);
    lora_unref(l);
    adp_close(&a);
    rig_close(&r);
    return n;
}

TEST(beside_the_weights_it_does_what_it_does_in_them)
{
    arch_list archs;
    int n = 0;
    archs_find(&archs, "config.json");
    for (int i = 0; i < archs.n; i++) {
        n += check_arch(archs.name[i], false) > 0;
        check_arch(archs.name[i], true);
    }
    CHECK(n > 80, "%d architectures", n);
}

/* ---- rows of one batch ---- */

enum { N_SEQS = LORA_SEQS, LEN = LORA_LEN };

static void check_mix(const char *folder, rig_opts o, const char *const paths[2])
{
    rig r;
    lora_adapter *l[2] = { NULL };
    lora_seq alone[N_SEQS], mixed[N_SEQS];
    lq_err err = { "" };
    o.lora_rank = 8;
    if (!rig_open(&r, folder, o)) return;
    const int64_t V = r.m.cfg->vocab;
    for (int i = 0; i < 2; i++)
        CHECK(!lora_open(&l[i], &r.m, paths[i], 8, r.p, &err), "%s", err.msg);
    const lora_adapter *of[N_SEQS] = { l[0], NULL, l[1], l[0], NULL };
    for (int i = 0; i < N_SEQS; i++) {
        lora_begin(&alone[i], i, LEN, of[i], V);
        lora_begin(&mixed[i], i, LEN, of[i], V);
        lora_step(&r, &alone[i], 1, (int64_t[]){ LEN }, false);
    }
    static const int64_t steps[][N_SEQS] = { { 9, 0, 3, 1, 5 },
                                             { 1, 9, 1, 1, 1 },
                                             { 1, 1, 9, 1, 1 },
                                             { 2, 4, 0, 10, 0 },
                                             { 1, 0, 1, 1, 7 } };
    for (size_t k = 0; k < LQ_COUNT(steps); k++)
        lora_step(&r, mixed, N_SEQS, steps[k], false);
    for (int i = 0; i < N_SEQS; i++) {
        CHECK(mixed[i].done == LEN, "sequence %d: %d rows", i, (int)mixed[i].done);
        CHECK(memcmp(alone[i].logits, mixed[i].logits, (size_t)(LEN * V) * sizeof(float)) == 0,
              "%s, activations %d: sequence %d differs among others", folder, (int)o.acts, i);
    }
    for (int i = 0; i < N_SEQS; i++) {
        lora_end(&r, &alone[i]);
        lora_end(&r, &mixed[i]);
    }
    lora_unref(l[0]);
    lora_unref(l[1]);
    rig_close(&r);
}

TEST(a_row_does_not_depend_on_the_adapters_beside_it)
{
    static const char *const paths[] = { "tests/golden/lora/plain", "tests/golden/lora/dora" };
    for (int threads = 1; threads <= 3; threads += 2)
        for (mm_acts acts = MM_F32; acts < MM_N_ACTS; acts++)
            check_mix("models/novels-1m", (rig_opts){ .threads = threads, .acts = acts }, paths);
}

TEST(a_larger_rank_than_there_is_room_for_is_refused)
{
    rig r;
    lora_adapter *l;
    lq_err err = { "" };
    if (!rig_open(&r, "models/novels-1m", (rig_opts){ .threads = 1 })) return;
    CHECK(lora_open(&l, &r.m, "tests/golden/lora/plain", 1, r.p, &err) == LQ_EVALUE && !l &&
              strstr(err.msg, "expected a rank of at most 1 (--max-lora-rank), found 2"),
          "%s", err.msg);
    CHECK(!lora_open(&l, &r.m, "tests/golden/lora/plain", 2, r.p, &err), "%s", err.msg);
    lora_unref(l);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    RUN(beside_the_weights_it_does_what_it_does_in_them);
    RUN(a_row_does_not_depend_on_the_adapters_beside_it);
    RUN(a_larger_rank_than_there_is_room_for_is_refused);
    return check_end();
}
