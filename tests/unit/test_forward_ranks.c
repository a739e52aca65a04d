/* tests/unit/test_forward_ranks.c - whole models on several devices that share each layer
 * (runtime/model/rank.h) against one device: architectures, schemes, cuts of a batch, memory, refusals.
 */
#include "runtime/model/kv_move.h"
#include "tests/support/check.h"
#include "tests/support/devpass.h"

#include <stdio.h>

extern int emu_devices;

static float *on_ranks(const char *name, rig_opts o, const steps *c, int64_t ids, int ranks,
                       int64_t *n)
{
    o.device = true;
    o.ranks = ranks;
    return cut_of(name, o, c, ids, n);
}

static const struct {
    const char *name, *why;
    int ranks;
    bool window; /* so many ids that it matters */
    bool hard;   /* check_hard */
} archs[] = {
    { "llama3-gqa", "grouped heads", 2, false, false },
    { "llama3-gqa", "fewer KV heads than devices", 4, false, false },
    { "llama2-mha", "a head each", 4, false, true },
    { "gemma2", "norms behind the branches, soft-caps, windows in turns", 2, true, false },
    { "cohere", "parallel branches, scaled logits", 2, false, true },
    { "cohere-qk-norm", "a norm of its own for each head", 2, false, true },
    { "olmo2", "a norm over all heads", 2, false, true },
    { "olmoe", "the same, experts", 2, false, true },
    { "gemma3", "one norm for all heads", 2, false, true },
    { "phi2", "plain MLP, biases on every product", 4, false, false },
    { "phi3", "q, k and v in one matrix, gate and up too", 2, false, false },
    { "falcon-40b-gqa", "q, k and v of each group in turn", 2, false, false },
    { "codegen", "q, v and k of each quarter of the heads", 2, false, false },
    { "axk2", "gates on norms, on each head of latents", 2, false, false },
    { "persimmon", "q, k and v of each head in turn, their norms", 2, false, true },
    { "gpt2", "q, k and v one behind the other, learned positions", 4, false, true },
    { "bloom-alibi", "ALiBi", 4, false, true },
    { "opt-350m-postnorm", "norms after the sum, a narrow embedding", 2, false, false },
    { "granite", "branches by a factor", 2, false, true },
    { "smollm3-window", "a window", 2, true, true },
    { "mixtral-moe", "experts", 2, false, false },
    { "qwen2-moe-shared", "a shared MLP by a sigmoid of its own, plain layers between", 2, false,
      true },
    { "gpt-oss-sinks", "gates and ups in turn with biases, sinks, a window", 2, true, false },
    { "glm4-moe", "sigmoid routers with a correction", 2, false, true },
    { "deepseek-v2-mla", "latent attention, values narrower than keys, experts", 4, false, false },
    { "deepseek-v32", "an indexer, whole on each", 2, false, false },
    { "glm-moe-dsa", "one choice of several layers", 4, false, true },
    { "qwen3-next", "a gated delta rule out of two mixed products, gated attention", 2, false,
      false },
    { "qwen3.5", "the same of products apart", 2, false, false },
    { "qwen3.5-moe", "the same and experts", 2, false, true },
    { "kimi-linear", "a decay for each dim of a key, latent attention", 2, false, false },
    { "ling3", "the same with a gate on latent attention", 2, false, true },
    { "mamba2", "no attention at all", 2, false, true },
    { "falcon-h1", "Mamba-2 beside attention", 2, false, false },
    { "bamba", "Mamba-2 in groups, some layers of attention", 2, false, true },
    { "nemotron-h", "layers of one branch", 2, false, true },
    { "nemotron-h-moe", "the same, experts without gates", 2, false, false },
    { "gemma4-dense", "layers of two sizes, V that is K", 2, true, false },
    { "gemma4-unified", "the same", 2, true, true },
    { "deci", "layers without attention or an MLP", 2, false, true },
    { "afmoe", "gates on attention, experts", 2, false, true },
    { "laguna", "gates of each head, layers with other numbers of heads", 2, false, false },
    { "laguna-elements", "gates of each dim", 2, false, true },
    { "step3.5", "layers of two sizes, experts with limits", 2, false, true },
    { "mimo-v2-flash", "values narrower than keys, sinks", 2, false, true },
    { "beam", "biases of heads' gates", 2, false, true },
};

TEST(several_devices_give_the_logits_of_one)
{
    int run = 0, differ = 0;
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        if (archs[i].hard && !check_hard()) continue;
        const int64_t ids = archs[i].window ? WINDOW_IDS : IDS;
        int64_t n, m;
        float *want = on_ranks(archs[i].name, (rig_opts){ 0 }, &prefill_then_decode, ids, 1, &n);
        float *got =
            on_ranks(archs[i].name, (rig_opts){ 0 }, &prefill_then_decode, ids, archs[i].ranks, &m);
        if (want && got) {
            const double d = apart(got, want, n);
            run++;
            differ += d > 0;
            CHECK(d <= ROUNDING, "%s on %d (%s): %.2g of the largest logit", archs[i].name,
                  archs[i].ranks, archs[i].why, d);
        }
        free(want);
        free(got);
    }
    /* The same bytes are one device's, but where its sums of few inputs are cut at the same place. */
    CHECK(4 * differ >= 3 * run, "%d of %d differ from one device", differ, run);
}

static const steps cuts[] = {
    { "the same again", { 8, 5 }, 1, 16 },
    { "token by token", { 1, 1 }, 1, 16 },
    { "chunks of 7, in blocks of 32", { 7, 7 }, 7, 32 },
};

/* The order of ranks is fixed, and how much is exchanged at once changes no order. */
TEST(run_batch_and_chunks_change_no_byte)
{
    int64_t n, m;
    const rig_opts o = { 0 };
    float *want = on_ranks("persimmon", o, &prefill_then_decode, IDS, 4, &n);
    for (size_t k = 0; k < LQ_COUNT(cuts) && want; k++) {
        float *got = on_ranks("persimmon", o, &cuts[k], IDS, 4, &m);
        CHECK(got && memcmp(want, got, (size_t)n * sizeof *got) == 0, "%s", cuts[k].why);
        free(got);
    }
    free(want);
}

TEST(schemes_and_caches_are_shared_too)
{
    static const struct {
        char *scheme;
        kv_dtype kv;
        mm_acts acts;
        bool hard; /* check_hard */
    } kinds[] = { { "u4-g16", KV_F32, MM_F32, false },  { "u4-g16-asym", KV_F16, MM_F32, true },
                  { "i8-row", KV_I8, MM_F32, false },   { "i8-outlier", KV_F32, MM_F32, true },
                  { "nf4-g16", KV_F32, MM_F32, true },  { "fp8-e4m3", KV_F8, MM_F32, false },
                  { "bf16", KV_BF16, MM_F32, false },   { "f16", KV_I4, MM_F32, true },
                  { "u4-g16", KV_BF16, MM_BF16, false } };
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        if (kinds[i].hard && !check_hard()) continue;
        const bool exact = kinds[i].kv == KV_F32;
        rig_opts o = { .change = fill_linears, .user = kinds[i].scheme };
        int64_t n, m;
        float *f32 = exact ? NULL : on_ranks("llama3-gqa", o, &prefill_then_decode, IDS, 1, &n);
        o.kv = kinds[i].kv;
        o.acts = kinds[i].acts;
        float *want = on_ranks("llama3-gqa", o, &prefill_then_decode, IDS, 1, &n);
        float *got = on_ranks("llama3-gqa", o, &prefill_then_decode, IDS, 2, &m);
        if ((exact || f32) && want && got) {
            /* Of inputs or a cache that are rounded, one may be rounded to the next code, or all
             * differences lost. */
            const double d = apart(got, want, n), own = exact ? 0 : apart(want, f32, n);
            CHECK((d > 0 || o.acts != MM_F32) && d <= ROUNDING + 2 * own,
                  "%s, cache %s: %.2g, one device from f32 %.2g", kinds[i].scheme,
                  kv_types_text(kinds[i].kv), d, own);
        }
        free(f32);
        free(want);
        free(got);
    }
}

/* What each device has alike goes out once, from the first, and back to all. */
TEST(blocks_of_latents_are_kept_once_for_all_devices)
{
    enum { BYTES = 48, BLOCKS = 3, LAYERS = 2 };
    dev d[2];
    uint8_t *on[2], host[2][BYTES * BLOCKS * LAYERS], *kept = NULL;
    kv_place place[LAYERS] = { { .stride = BYTES }, { .at = BYTES * BLOCKS, .stride = BYTES } };
    lq_err err = { "" };
    for (int i = 0; i < 2; i++) {
        CHECK(!dev_cuda()->open(&d[i], i, &err), "%s", err.msg);
        on[i] = d[i].ops->alloc(&d[i], sizeof host[i]);
        memset(host[i], 0xee, sizeof host[i]);
        for (int k = 0; k < BYTES && i == 0; k++)
            for (int l = 0; l < LAYERS; l++)
                host[i][(l * BLOCKS + 1) * BYTES + k] = (uint8_t)(100 * l + k);
        d[i].ops->upload(&d[i], on[i], host[i], sizeof host[i]);
    }
    d[0].peer = &d[1];
    const kv_memory m = {
        .place = place, .layers = LAYERS, .data_on = { on[0], on[1] }, .alike = true, .on = d
    };
    kept = d[0].ops->alloc_host(&d[0], LAYERS * BYTES);
    CHECK(kv_move_bytes(&m, KV_ROWS) == LAYERS * BYTES, "%zu", kv_move_bytes(&m, KV_ROWS));
    kv_move(&m, KV_ROWS, 1, kept, NULL);
    CHECK(!d[0].ops->sync(&d[0], &err), "%s", err.msg);
    kv_move(&m, KV_ROWS, 2, NULL, kept);
    for (int i = 0; i < 2; i++) {
        d[i].ops->bind(&d[i]);
        d[i].ops->download(&d[i], host[i], on[i], sizeof host[i]);
        CHECK(!d[i].ops->sync(&d[i], &err), "%s", err.msg);
        for (int l = 0; l < LAYERS; l++)
            CHECK(memcmp(host[i] + (l * BLOCKS + 2) * BYTES, kept + l * BYTES, BYTES) == 0 &&
                      kept[l * BYTES + 1] == 100 * l + 1,
                  "device %d, layer %d", i, l);
    }
    d[0].ops->bind(&d[0]);
    d[0].ops->free_host(&d[0], kept);
    for (int i = 0; i < 2; i++) {
        d[i].ops->bind(&d[i]);
        d[i].ops->free(&d[i], on[i]);
        d[i].ops->close(&d[i]);
    }
}

/* Of experts the routers are whole. */
static void check_parts(const char *name, double most)
{
    rig one, two;
    const bool ok = open_arch(&one, name, (rig_opts){ .device = true });
    const size_t all = ok ? one.m.on->bytes : 0;
    const double flops = ok ? model_row_flops(&one.m) : 0;
    const size_t embed = ok ? one.m.on->w.embed.plane[QT_CODES].bytes : 0;
    rig_close(&one);
    if (open_arch(&two, name, (rig_opts){ .device = true, .ranks = 2 }) && ok) {
        for (const model_on *on = two.m.on; on; on = on->next)
            CHECK((double)(on->bytes - embed) < most * (double)(all - embed),
                  "%s, rank %d: %zu of %zu bytes", name, on->rank, on->bytes - embed, all - embed);
        CHECK(model_ranks(&two.m) == 2 && strstr(model_device(&two.m), " x 2"), "%s",
              model_device(&two.m));
        CHECK(model_row_flops(&two.m) == flops, "what a token costs");
        for (int64_t i = 0; i <= two.m.cfg->layers; i++)
            CHECK(two.m.layer_arenas[i].used == 0, "layer %lld is held", (long long)i);
    }
    rig_close(&two);
}

TEST(each_device_has_its_part_and_the_host_none)
{
    check_parts("llama-128", 0.51);
    check_parts("mixtral-moe", 0.55);
}

TEST(a_pass_takes_no_more_of_each_device_than_was_said)
{
    static const char *const names[] = { "llama3-gqa", "mixtral-moe", "bloom-alibi" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        rig r;
        if (open_arch(&r, names[i], (rig_opts){ .device = true, .ranks = 2, .kv = KV_BF16 })) {
            const fwd_opts o = { .acts = MM_BF16,
                                 .max_rows = 24,
                                 .max_logits = 24,
                                 .max_seqs = 3,
                                 .max_len = 100,
                                 .ranks = 2 };
            const size_t said = fwd_dev_bytes(r.m.cfg, kv_options(r.kv), &o);
            size_t before[2], rank = 0;
            lq_err err = { "" };
            fwd_ctx *f;
            for (dev *d = model_dev(&r.m); d; d = d->peer)
                before[rank++] = d->ops->room(d);
            CHECK(!fwd_open(&f, &r.m, r.kv, r.p, &o, &err), "%s: %s", names[i], err.msg);
            rank = 0;
            for (dev *d = model_dev(&r.m); d; d = d->peer, rank++) {
                const size_t took = before[rank] - d->ops->room(d);
                CHECK(took > 0 && took <= said, "%s, rank %zu: took %zu bytes, said %zu", names[i],
                      rank, took, said);
            }
            fwd_close(f);
        }
        rig_close(&r);
    }
}

/* One device's launches (test_forward_dev.c), and of a layer five more on each: two branches that
 * join x, two sums, and o's inputs, of which each has 16, are arranged too. The rows are so few
 * that a sum is of one piece. */
TEST(a_step_waits_once_for_each_device_and_allocates_nothing)
{
    enum { LAYERS = 4, OF_LAYER = 19, BESIDE = 3, PICK = 2, RANKS = 2, FIRST = 15 };
    golden g;
    rig r;
    const bool ok = open_arch(&r, "smollm3-window",
                              (rig_opts){ .device = true, .ranks = RANKS, .eager = true });
    if (ok && golden_open(&g, "smollm3-window")) {
        kv_seq s[2];
        kv_seq_init(&s[0]);
        kv_seq_init(&s[1]);
        for (int64_t at = 0; at < FIRST + 3; at += at ? 1 : FIRST) {
            const emu_counts c = count_step(&r, &g, s, at, at ? 1 : FIRST);
            const size_t want = RANKS * (LAYERS * OF_LAYER + BESIDE + (at ? 0 : PICK));
            CHECK(c.waits == RANKS && c.allocations == 0 && c.launches == want,
                  "position %lld: %zu waits, %zu allocations, %zu launches (expected %zu), %zu "
                  "copies",
                  (long long)at, c.waits, c.allocations, c.launches, want, c.copies);
        }
        kv_seq_free(r.kv, &s[1]);
        kv_seq_free(r.kv, &s[0]);
        st_close(&g.file);
    }
    rig_close(&r);
}

static const struct {
    const char *name, *scheme, *said;
    int ranks;
} refused[] = {
    { "falcon-40b-gqa", NULL, "KV heads: expected a multiple of 4 devices, found 2", 4 },
    { "olmo-hybrid", NULL, "KV heads: expected a multiple of 2 devices, found 1", 2 },
    { "codegen", NULL, "quarters of the heads: expected a multiple of 8 devices, found 4", 8 },
    { "granite-h", NULL, "key heads of a state: expected a multiple of 2 devices, found 1", 2 },
    { "lfm2", NULL, "states of other layers than the delta rule's and Mamba-2's", 2 },
    { "gemma4-moe", NULL, "experts beside an MLP", 2 },
    { "minimax-m3", NULL, "attention to chosen blocks", 2 },
    { "gemma4-ple", NULL, "layers that read more than the one before gives", 2 },
    { "llama3-gqa", NULL, "heads: expected a multiple of 3 devices, found 4", 3 },
    { "llama3-gqa", "u4-g32",
      "layers.0.mlp.down_proj.weight over 2 devices: inputs 0..80 of 160: expected multiples of "
      "32, "
      "a group",
      2 },
    { "llama3-gqa", "gidx u4-g32", "in an order of their own", 2 },
    { "llama3-gqa", "i8-row-a8", "rounded by the largest of all", 2 },
};

static lq_status load_ranks(const char *name, const char *scheme, int ranks, model *m,
                            src_source **src, lq_err *err)
{
    char path[128], words[40];
    snprintf(path, sizeof path, "tests/golden/arch/%.100s", name);
    lq_status s = src_open(src, path, &(src_opts){ .need_config = true }, err);
    if (!s) s = model_load(m, *src, NULL, NULL, err);
    if (s) return s;
    if (scheme) {
        snprintf(words, sizeof words, "%s", scheme);
        fill_linears(m, words);
    }
    return model_to_device(m, "cuda", &(model_share){ .ranks = ranks }, err);
}

TEST(what_cannot_be_shared_is_refused_by_name)
{
    for (size_t i = 0; i < LQ_COUNT(refused); i++) {
        lq_err err = { "" };
        src_source *src = NULL;
        model m = { 0 };
        const lq_status s =
            load_ranks(refused[i].name, refused[i].scheme, refused[i].ranks, &m, &src, &err);
        CHECK((s == LQ_EUNSUPPORTED || s == LQ_ESHAPE) && strstr(err.msg, refused[i].said),
              "%s on %d: %s: %s", refused[i].name, refused[i].ranks, lq_status_text(s), err.msg);
        CHECK(!m.on, "it is on the CPU");
        model_free(&m);
        src_close(src);
    }
}

TEST(more_devices_than_there_are_say_so)
{
    lq_err err = { "" };
    src_source *src = NULL;
    model m = { 0 };
    emu_devices = 1;
    CHECK(load_ranks("llama3-gqa", NULL, 2, &m, &src, &err) == LQ_EDEVICE &&
              strstr(err.msg, "2 devices: cuda:1: expected the 1 GPU") && !m.on,
          "%s", err.msg);
    model_free(&m);
    src_close(src);
    emu_devices = 4;
}

int main(int argc, char **argv)
{
    const char *want = getenv("LLMQ_TEST_DEVICE");
    if (want && strcmp(want, "cuda") == 0) {
        printf("skipped: shared layers are tested on emulated devices\n0 passed, 0 failed\n");
        return check_end();
    }
    emu_devices = 4;
    RUN(several_devices_give_the_logits_of_one);
    RUN(run_batch_and_chunks_change_no_byte);
    RUN(schemes_and_caches_are_shared_too);
    RUN(blocks_of_latents_are_kept_once_for_all_devices);
    RUN(each_device_has_its_part_and_the_host_none);
    RUN(a_pass_takes_no_more_of_each_device_than_was_said);
    RUN(a_step_waits_once_for_each_device_and_allocates_nothing);
    RUN(what_cannot_be_shared_is_refused_by_name);
    RUN(more_devices_than_there_are_say_so);
    return check_end();
}
