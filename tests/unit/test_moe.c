/* tests/unit/test_moe.c - what calibration sees of each expert. Logits, and the company that a row
 * keeps, are in test_forward.c. */
#include "tests/support/check.h"
#include "tests/support/rig.h"

#include <stdio.h>

enum { MAX_T = 40 };

/* The first prompt of a golden folder, and its model. */
typedef struct {
    int32_t ids[MAX_T];
    int64_t T;
} golden;

static bool golden_open(golden *g, rig *r, const char *name)
{
    char path[128];
    st_file f;
    lq_err err = { "" };
    snprintf(path, sizeof path, "tests/golden/arch/%s/expected.safetensors", name);
    lq_status s = st_open(&f, path, &err);
    CHECK(!s, "%s", err.msg);
    if (s) return false;
    const st_tensor *ids = st_find(&f, "input_ids");
    g->T = ids->shape[1] < MAX_T ? ids->shape[1] : MAX_T;
    memcpy(g->ids, ids->data, (size_t)g->T * 4);
    st_close(&f);
    snprintf(path, sizeof path, "tests/golden/arch/%s", name);
    return rig_open(r, path, (rig_opts){ .threads = 2 });
}

typedef struct {
    int64_t rows[ARCH_N_ROLES]; /* seen by the experts of a role together */
    int64_t in_rows[64], down_rows[64];
    bool apart; /* an expert came twice, or without rows */
} expert_log;

static void log_experts(void *user, arch_role role, int64_t expert, const float *x, int64_t ldx,
                        int64_t n, int64_t K)
{
    (void)x, (void)ldx, (void)K;
    expert_log *l = user;
    l->rows[role] += n;
    if (expert < 0 || role == R_EXPERT_UP) return;
    int64_t *of = role == R_EXPERT_DOWN ? l->down_rows : l->in_rows;
    l->apart |= of[expert] != 0 || n == 0;
    of[expert] = n;
}

TEST(experts_are_tapped_with_the_rows_sent_to_them)
{
    static const char *const some[] = { "mixtral-moe", "qwen2-moe-shared", "gpt-oss-sinks" };
    for (size_t i = 0; i < LQ_COUNT(some); i++) {
        golden g;
        rig r;
        if (!golden_open(&g, &r, some[i])) continue;
        const arch_config *c = r.m.cfg;
        lq_arena a;
        lq_err err = { "" };
        const size_t rows = (size_t)(g.T * c->hidden) * sizeof(float);
        CHECK(!lq_arena_init(&a, rows + 64 + fwd_layer_scratch(c, g.T, 2), &err), "%s", err.msg);
        float *x = lq_push(&a, rows);
        expert_log log = { 0 };
        fwd_tap tap = { .tap = log_experts, .user = &log };
        lq_status s = fwd_embed(&r.m, x, g.ids, 1, g.T, MM_F32, &a, r.p, &err);
        if (!s) s = fwd_layer(c, &r.m.layers[0], 0, x, 1, g.T, MM_F32, &tap, NULL, &a, r.p, &err);
        CHECK(!s, "%s: %s", some[i], err.msg);
        const bool fused = arch_name_of(c, R_EXPERT_GATE_UP);
        const int64_t all = g.T * c->experts_used;
        CHECK(log.rows[fused ? R_EXPERT_GATE_UP : R_EXPERT_GATE] == all &&
                  log.rows[R_EXPERT_UP] == (fused ? 0 : all) && log.rows[R_EXPERT_DOWN] == all &&
                  log.rows[R_SHARED_DOWN] == (c->shared_ffn ? g.T : 0) && !log.apart,
              "%s: %lld rows to downs, of %lld", some[i], (long long)log.rows[R_EXPERT_DOWN],
              (long long)all);
        CHECK(memcmp(log.in_rows, log.down_rows, sizeof log.in_rows) == 0, "%s: unlike rows",
              some[i]);
        lq_arena_free(&a);
        rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    RUN(experts_are_tapped_with_the_rows_sent_to_them);
    return check_end();
}
