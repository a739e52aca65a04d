/* tests/unit/test_fold.c - factors that go from one tensor into another leave every model's function. */
#include "quantize/transform/fold.h"
#include "tests/support/archs.h"
#include "tests/support/rig.h"

#include <math.h>
#include <stdlib.h>

enum { T = 12 };

/* Sites by the wiring alone: of what a layer has once, and of each expert (-1: no layer has any;
 * else the layers with experts count). A checkpoint that has no row is folded as well. */
typedef struct {
    const char *folder;
    int layer, expert;
} model_sites;
static const model_sites models[] = {
    { "arcee", 4, -1 },
    { "bloom-5-heads", 3, -1 },
    { "bloom-alibi", 3, -1 },
    { "cohere", 3, -1 },
    { "cohere-qk-norm", 3, -1 },
    { "cohere2", 3, -1 },
    { "deepseek-v2-groups", 5, 1 },
    { "deepseek-v2-mla", 6, 1 },
    { "deepseek-v3", 6, 1 },
    { "dots1", 4, 1 },
    { "ernie45", 4, -1 },
    { "exaone4", 2, -1 },
    { "falcon-40b-gqa", 3, -1 },
    { "falcon-7b-mqa", 2, -1 },
    { "falcon-mha-parallel", 2, -1 },
    { "falcon-rw-alibi", 3, -1 },
    { "falcon2-one-norm", 2, -1 },
    { "gemma", 4, -1 },
    { "gemma2", 4, -1 },
    { "gemma3", 4, -1 },
    { "gemma3-rope-scaled", 4, -1 },
    { "gemma3n", 2, -1 },
    { "gemma4-dense", 3, -1 },
    { "gemma4-moe", 4, 1 },
    { "gemma4-ple", 3, -1 },
    { "gemma4-unified", 3, -1 },
    { "glm", 4, -1 },
    { "glm4", 4, -1 },
    { "glm4-moe", 4, 1 },
    { "gpt-bigcode-mha", 3, -1 },
    { "gpt-bigcode-mqa", 3, -1 },
    { "gpt-neo-local", 3, -1 },
    { "gpt-neox", 3, -1 },
    { "gpt-neox-serial", 3, -1 },
    { "gpt-oss-sinks", 3, 0 },
    { "gpt2", 3, -1 },
    { "gptj", 2, -1 },
    { "codegen", 2, -1 },
    { "granite", 4, -1 },
    { "granite-moe", 3, 1 },
    { "helium", 4, -1 },
    { "hunyuan-dense", 4, -1 },
    { "llama-128", 4, -1 },
    { "llama-dynamic-ntk", 4, -1 },
    { "llama-linear-rope", 4, -1 },
    { "llama-yarn", 4, -1 },
    { "llama2-mha", 4, -1 },
    { "llama3-gqa", 4, -1 },
    { "ministral", 4, -1 },
    { "mistral-swa", 4, -1 },
    { "mixtral-moe", 3, 1 },
    { "mpt-6-heads-clipped", 2, -1 },
    { "mpt-alibi", 3, -1 },
    { "nemotron", 4, -1 },
    { "olmo-clipped", 1, -1 },
    { "olmo2", 2, -1 },
    { "olmo3", 2, -1 },
    { "olmoe", 3, 1 },
    { "opt", 4, -1 },
    { "opt-350m-postnorm", 2, -1 },
    { "persimmon", 4, -1 },
    { "phi-qk-layernorm", 2, -1 },
    { "phi2", 2, -1 },
    { "phi3", 4, -1 },
    { "phi3-longrope", 4, -1 },
    { "qwen2", 4, -1 },
    { "qwen2-moe-shared", 4, 1 },
    { "qwen2-moe-window", 4, 1 },
    { "qwen3", 4, -1 },
    { "qwen3-moe", 3, 1 },
    { "qwen3-moe-window", 3, 1 },
    { "seed-oss", 4, -1 },
    { "smollm3-nope", 4, -1 },
    { "smollm3-window", 4, -1 },
    { "stablelm", 4, -1 },
    { "stablelm-parallel", 3, -1 },
    { "stablelm-qk-norms", 4, -1 },
    { "starcoder2", 3, -1 },
    { "vaultgemma", 4, -1 },
    { "xglm-sinusoidal", 3, -1 },
};

/* The layer's tensors as f32, all open; for what it has once the first expert stands for all. */
static lq_status read_layer(fold_layer *f, const src_source *src, int64_t layer, int64_t expert,
                            lq_arena *a, lq_err *err)
{
    const arch_config *c = src_config(src);
    lq_status s = LQ_OK;
    *f = (fold_layer){ .c = arch_at(c, layer), .expert = expert };
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++) {
        qt_tensor w;
        const float *v = NULL, *b = NULL;
        const bool vector = arch_role_kind(r) == ARCH_VECTOR, of_expert = arch_role_per_expert(r);
        if (!arch_has(c, r, layer) || (expert >= 0 && !of_expert)) continue;
        if (r == R_NGRAM_TABLE) continue; /* rows that no norm comes before */
        const int64_t from = of_expert && expert < 0 ? 0 : expert;
        if (vector) s = src_vector(src, r, layer, from, false, &v, a, err);
        if (!s) s = src_vector(src, r, layer, from, true, &b, a, err);
        memcpy(&f->weight[r].w, &v, sizeof v);
        memcpy(&f->bias[r].w, &b, sizeof b);
        if (vector || s) continue;
        s = src_matrix(src, r, layer, from, &w, a, err);
        if (s || !w.N) continue;
        float *W = lq_push(a, (size_t)(w.N * w.K) * sizeof *W);
        if (!W) return LQ_ENOMEM;
        qt_dequant(W, &w, 0, w.N);
        f->lin[r] = (fold_linear){ .present = true, .open = true, .W = W, .N = w.N, .K = w.K };
        f->lin[r].kept = !arch_role_linear(r);
    }
    return s;
}

/* What has changed goes into the model that runs. */
static lq_status put_layer(model_layer *l, const fold_layer *f, lq_arena *a, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++) {
        const fold_linear *x = &f->lin[r];
        if (arch_role_per_expert(r) && f->expert < 0) continue;
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

/* Folds at random wherever it is possible; how many sites there were. *common: the factors of the
 * experts' inputs, set by what the layer has once. */
static int fold_randomly(rig *r, int64_t layer, int64_t expert, const float **common,
                         uint32_t *state, lq_arena *a)
{
    fold_layer f;
    fold_site sites[FOLD_MAX_SITES];
    lq_err err = { "" };
    lq_status s = read_layer(&f, r->src, layer, expert, a, &err);
    for (arch_role role = R_EXPERT_GATE; role < R_EXPERT_DOWN && *common && !s; role++)
        if (f.lin[role].present)
            awq_scale_columns(f.lin[role].W, *common, f.lin[role].N, f.lin[role].K, r->p);
    const int n = s ? -1 : fold_find(sites, &f, a);
    for (int i = 0; i < n && !s; i++)
        s = fold_apply(&f, &sites[i], factors(&sites[i], state, a), 0.5, a, r->p, &err);
    for (arch_role role = R_EXPERT_GATE; role < R_EXPERT_DOWN && expert < 0; role++)
        if (f.lin[role].cols) *common = f.lin[role].cols;
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

static const model_sites *sites_of(const char *folder)
{
    for (size_t i = 0; i < LQ_COUNT(models); i++)
        if (strcmp(models[i].folder, folder) == 0) return &models[i];
    return NULL;
}

TEST(folding_alone_leaves_the_logits)
{
    arch_list archs;
    archs_find(&archs, "config.json");
    size_t known = 0;
    for (int i = 0; i < archs.n; i++) {
        const char *folder = archs.name[i];
        const model_sites *want = sites_of(folder);
        known += want != NULL;
        char path[256];
        rig r;
        uint32_t state = 7;
        lq_arena a = { 0 };
        snprintf(path, sizeof path, "tests/golden/arch/%s", folder);
        if (!rig_open(&r, path, (rig_opts){ 0 })) {
            rig_close(&r);
            continue;
        }
        const arch_config *c = r.m.cfg;
        float *before = lq_push(&a, (size_t)(T * c->vocab) * sizeof *before);
        float *after = lq_push(&a, (size_t)(T * c->vocab) * sizeof *after);
        bool ok = before && after && logits_of(&r, before);
        for (int64_t l = 0; l < c->layers && ok; l++) {
            const float *common = NULL;
            const int n = fold_randomly(&r, l, -1, &common, &state, &a);
            if (want && c->layer[l].moe == (want->expert >= 0))
                CHECK(n == want->layer, "%s: %d sites, expected %d", folder, n, want->layer);
            for (int64_t e = 0; c->layer[l].moe && e < c->experts; e++) {
                const int m = fold_randomly(&r, l, e, &common, &state, &a);
                CHECK(!want || m == want->expert, "%s: expert with %d sites", folder, m);
            }
        }
        lq_err err = { "" };
        ok = ok && !rig_pass(&r, (rig_opts){ 0 }, &err) && logits_of(&r, after);
        double top = 0, off = 0;
        for (int64_t k = 0; k < T * c->vocab && ok; k++) {
            top = fmax(top, fabs((double)before[k]));
            off = fmax(off, fabs((double)before[k] - (double)after[k]));
        }
        CHECK(ok && off <= 1e-5 * top && off > 0, "%s: logits move by %.2g of the largest", folder,
              off / top);
        lq_arena_free(&a);
        rig_close(&r);
    }
    CHECK(known == LQ_COUNT(models), "%zu of the table's %zu models", known, LQ_COUNT(models));
}

int main(int argc, char **argv)
{
    RUN(folding_alone_leaves_the_logits);
    return check_end();
}
