/* tests/test_fold.c - factors that go from one tensor into another leave every model's function. */
#include "quantize/fold.h"
#include "tests/rig.h"

#include <math.h>
#include <stdlib.h>

enum { T = 12 };

/* Sites of the first layer (experts: of each), by the wiring alone. */
static const struct {
    const char *folder;
    int layer, expert;
} models[] = {
    { "llama2-mha", 4, 0 },
    { "llama3-gqa", 4, 0 },
    { "mistral-swa", 4, 0 },
    { "qwen2", 4, 0 },
    { "qwen3", 4, 0 },
    { "gemma", 4, 0 },
    { "gemma2", 4, 0 },
    { "gemma3", 4, 0 },
    { "phi2", 2, 0 } /* one norm; GELU */,
    { "phi3", 4, 0 },
    { "falcon-7b-mqa", 2, 0 } /* one norm */,
    { "falcon-40b-gqa", 3, 0 },
    { "bloom-alibi", 3, 0 },
    { "mpt-alibi", 3, 0 },
    { "gpt2", 3, 0 },
    { "gpt-bigcode-mqa", 3, 0 },
    { "starcoder2", 3, 0 },
    { "opt", 4, 0 } /* ReLU */,
    { "opt-350m-postnorm", 2, 0 } /* norms after the sum; ReLU */,
    { "gpt-neox", 3, 0 },
    { "gptj", 2, 0 },
    { "gpt-neo-local", 3, 0 },
    { "stablelm", 4, 0 },
    { "olmo2", 2, 0 } /* norms of outputs only */,
    { "cohere", 3, 0 },
    { "granite", 4, 0 },
    { "smollm3-nope", 4, 0 },
    { "xglm-sinusoidal", 3, 0 },
    { "mixtral-moe", 2, 1 } /* the router reads the MLP's norm */,
    { "qwen2-moe-shared", 3, 1 },
    { "qwen3-moe", 2, 1 },
    { "deepseek-v2-mla", 5, 1 },
    { "gpt-oss-sinks", 2, 0 } /* clamped */,
};

/* The layer's tensors as f32, all open. */
static lq_status read_layer(fold_layer *f, const src_source *src, int64_t layer, int64_t expert,
                            lq_arena *a, lq_err *err)
{
    const arch_config *c = src_config(src);
    lq_status s = LQ_OK;
    *f = (fold_layer){ .c = c, .expert = expert };
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++) {
        qt_tensor w;
        const float *v = NULL, *b = NULL;
        const bool vector = arch_role_kind(r) == ARCH_VECTOR;
        if (!arch_has(c, r, layer) || arch_role_per_expert(r) != (expert >= 0)) continue;
        if (vector) s = src_vector(src, r, layer, expert, false, &v, a, err);
        if (!s) s = src_vector(src, r, layer, expert, true, &b, a, err);
        memcpy(&f->weight[r].w, &v, sizeof v);
        memcpy(&f->bias[r].w, &b, sizeof b);
        if (vector || s) continue;
        s = src_matrix(src, r, layer, expert, &w, a, err);
        if (s || !w.N) continue;
        float *W = lq_push(a, (size_t)(w.N * w.K) * sizeof *W);
        if (!W) return LQ_ENOMEM;
        qt_dequant(W, &w, 0, w.N);
        f->lin[r] = (fold_linear){
            .present = true, .open = arch_role_linear(r), .W = W, .N = w.N, .K = w.K
        };
    }
    return s;
}

/* What has changed goes into the model that runs. */
static lq_status put_layer(model_layer *l, const fold_layer *f, lq_arena *a, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++) {
        const fold_linear *x = &f->lin[r];
        model_linear *lin =
            f->expert >= 0 && arch_role_per_expert(r) && l->expert[r - R_EXPERT_GATE]
                ? &l->expert[r - R_EXPERT_GATE][f->expert]
                : &l->lin[r];
        if (f->weight[r].changed) l->vec[r].w = f->weight[r].w;
        if (f->bias[r].changed && x->present)
            lin->bias = f->bias[r].w;
        else if (f->bias[r].changed)
            l->vec[r].bias = f->bias[r].w;
        if (!x->present || !x->open) continue;
        qt_tensor w = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = x->N, .K = x->K };
        w.plane[QT_CODES] = (qt_span){ x->W, (size_t)(x->N * x->K) * sizeof(float) };
        s = mm_pack(&lin->w, &w, a, p, err);
    }
    return s;
}

/* Factors between 1/4 and 4, equal where they must be. */
static float *factors(const fold_site *f, uint32_t *state, lq_arena *a)
{
    float *s = lq_push(a, (size_t)f->K * sizeof *s);
    for (int64_t k = 0; s && k < f->K; k++) {
        *state = *state * 1664525 + 1013904223;
        s[k] = exp2f((float)(int32_t)*state / 1073741824.0f);
        if (f->tie) s[k] = s[f->tie[k]];
    }
    return s;
}

/* Folds at random wherever it is possible; how many sites there were. */
static int fold_randomly(rig *r, int64_t layer, int64_t expert, uint32_t *state, lq_arena *a)
{
    fold_layer f;
    fold_site sites[FOLD_MAX_SITES];
    lq_err err = { "" };
    lq_status s = read_layer(&f, r->src, layer, expert, a, &err);
    const int n = s ? -1 : fold_find(sites, &f, a);
    for (int i = 0; i < n && !s; i++)
        s = fold_apply(&f, &sites[i], factors(&sites[i], state, a), 0.5, a, r->p, &err);
    if (!s) s = put_layer(&r->m.layers[layer], &f, a, r->p, &err);
    CHECK(!s, "%s", err.msg);
    return n;
}

static bool logits_of(rig *r, float *out)
{
    int32_t ids[T];
    kv_seq s;
    const float *logits;
    lq_err err = { "" };
    for (int i = 0; i < T; i++)
        ids[i] = (int32_t)((i * 37 + 5) % r->m.cfg->vocab);
    kv_seq_init(&s);
    lq_status st = kv_reserve(r->kv, &s, T, &err);
    fwd_item it = { .seq = &s, .ids = ids, .n = T };
    if (!st) st = fwd_step(r->f, &it, 1, &logits, &err);
    CHECK(!st, "%s", err.msg);
    if (!st) memcpy(out, logits, (size_t)(T * r->m.cfg->vocab) * sizeof *out);
    kv_seq_free(r->kv, &s);
    return !st;
}

TEST(folding_alone_leaves_the_logits)
{
    for (size_t i = 0; i < LQ_COUNT(models); i++) {
        char path[256];
        rig r;
        uint32_t state = 7;
        lq_arena a = { 0 };
        snprintf(path, sizeof path, "tests/golden/arch/%s", models[i].folder);
        if (!rig_open(&r, path, (rig_opts){ 0 })) {
            rig_close(&r);
            continue;
        }
        const arch_config *c = r.m.cfg;
        float *before = lq_push(&a, (size_t)(T * c->vocab) * sizeof *before);
        float *after = lq_push(&a, (size_t)(T * c->vocab) * sizeof *after);
        bool ok = before && after && logits_of(&r, before);
        for (int64_t l = 0; l < c->layers && ok; l++) {
            const int n = fold_randomly(&r, l, -1, &state, &a);
            CHECK(l > 0 || n == models[i].layer, "%s: %d sites, expected %d", models[i].folder, n,
                  models[i].layer);
            for (int64_t e = 0; c->layer[l].moe && e < c->experts; e++) {
                const int m = fold_randomly(&r, l, e, &state, &a);
                CHECK(m == models[i].expert, "%s: expert with %d sites", models[i].folder, m);
            }
        }
        ok = ok && logits_of(&r, after);
        double top = 0, off = 0;
        for (int64_t k = 0; k < T * c->vocab && ok; k++) {
            top = fmax(top, fabs((double)before[k]));
            off = fmax(off, fabs((double)before[k] - (double)after[k]));
        }
        CHECK(ok && off <= 1e-5 * top && off > 0, "%s: logits move by %.2g of the largest",
              models[i].folder, off / top);
        lq_arena_free(&a);
        rig_close(&r);
    }
}

int main(int argc, char **argv)
{
    RUN(folding_alone_leaves_the_logits);
    return check_end();
}
