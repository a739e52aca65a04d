/* tests/unit/test_forward_archs_dev.c - every golden checkpoint on a device (tests/support/emulated.c says
 * which): the CPU's logits, or a refusal that names what is not there. */
#include "tests/support/archs.h"
#include "tests/support/check.h"
#include "tests/support/devpass.h"

/* What model_check_device says of a checkpoint; "": it runs. */
static void refusal(char why[256], const char *name)
{
    char path[128];
    lq_err err = { "" };
    src_source *src;
    snprintf(path, sizeof path, "tests/golden/arch/%.100s", name);
    lq_status s = src_open(&src, path, &(src_opts){ .need_config = true }, &err);
    CHECK(!s, "%s", err.msg);
    if (!s) s = model_check_device(src_config(src), &err);
    CHECK(!s || s == LQ_EUNSUPPORTED, "%s: %s", name, lq_status_text(s));
    snprintf(why, 256, "%.255s", s ? err.msg : "");
    src_close(src);
}

static const struct {
    const char *name, *why;
    bool window; /* so many ids that it matters */
    bool hard;   /* check_hard */
} archs[] = {
    { "llama3-gqa", "grouped heads, scaled angles", false, false },
    { "gemma2", "norms behind the branches, soft-caps, windows in turns", true, false },
    { "gemma3", "two tables of angles, a norm of each head", false, true },
    { "ministral", "a window", true, false },
    { "ministral3", "queries that grow with their position", false, false },
    { "olmo2", "norms of all heads, none before", false, true },
    { "cohere", "layer norm, parallel, scaled logits", false, true },
    { "phi2", "plain MLP, a part of each head rotated, biases", false, false },
    { "phi3", "q, k and v in one product, gate and up too", false, true },
    { "falcon-40b-gqa", "q, k and v of each group in turn", false, false },
    { "codegen", "q, v and k of each quarter of the heads in turn", false, false },
    { "bloom-5-heads", "ALiBi, a norm of the embedding", false, true },
    { "mixtral-moe", "experts", false, false },
    { "qwen2-moe-shared", "a shared MLP by a sigmoid of its own, plain layers between", false,
      false },
    { "gpt-oss-sinks", "gates and ups in turn with biases, sinks, a window", true, false },
    { "glm4-moe", "sigmoid routers with a correction", false, true },
    { "deepseek-v2-mla", "latent attention, values narrower than keys, experts", false, false },
    { "deepseek-v32", "an indexer that chooses 5 positions", false, false },
    { "glm-moe-dsa", "a choice that two layers share", false, false },
    { "minimax-m3", "blocks that each kv head chooses, a layer without", false, false },
    { "olmo-clipped", "clipped q, k and v", false, true },
    { "cohere-qk-norm", "a norm of its own for each head", false, true },
    { "stablelm-qk-norms", "the same, each a tensor", false, true },
    { "opt-350m-postnorm", "norms after the sum, learned positions, a narrow embedding", false,
      false },
    { "qwen3-next", "a gated delta rule out of two mixed products, gated attention", false, false },
    { "qwen3.5", "the same of products apart", false, true },
    { "olmo-hybrid", "betas up to 2, three convolutions, attention without positions", false,
      true },
    { "kimi-linear", "a decay for each dim of a key, latent attention", false, false },
    { "ling3", "the same with a gate on latent attention", false, true },
    { "mamba2", "no attention at all", false, false },
    { "falcon-h1-norm", "Mamba-2 beside attention, each part with a factor", false, false },
    { "bamba", "Mamba-2 in groups, some layers of attention", false, true },
    { "nemotron-h-moe", "layers of one branch, experts without gates", false, false },
    { "falcon-mamba", "a rate for each channel, norms of the steps", false, false },
    { "jamba", "the same and experts", false, true },
    { "lfm2", "short convolutions", false, false },
    { "gemma3n", "several residual streams, Laurel, gates that are cut", true, false },
    { "hy-v4", "hyper-connections, chosen positions, limits on routed experts", false, false },
    { "axk2", "gates on norms, on what heads of latent attention give, an indexer", false, false },
    { "dots3-note", "latents of two sizes, windows over some, a norm of keys that rotate", false,
      false },
    { "mistral-large4",
      "latents that layers share, some without rotation, heads that grow with their position",
      false, false },
    { "minimax", "lightning attention, a residual that is what norms give", false, false },
    { "smallthinker", "a router that reads what attention reads", false, false },
    { "arctic", "experts that do", false, true },
    { "longcat-flash", "experts that join a layer later, some of which pass on what they read",
      false, false },
    { "glm5-next", "hyper-connections that mix, attention to groups of positions", false, false },
    { "afmoe", "a gate for each dim of attention's output", false, false },
};

TEST(architectures_give_the_cpus_logits)
{
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        if (archs[i].hard && !check_hard()) continue;
        double d = device_apart(archs[i].name, (rig_opts){ 0 }, archs[i].window ? WINDOW_IDS : IDS);
        CHECK(d <= ROUNDING, "%s (%s): %.2g of the largest logit", archs[i].name, archs[i].why, d);
        if (getenv("SHOW")) printf("%-20s %.2g\n", archs[i].name, d);
    }
}

static bool has_row(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(archs); i++)
        if (strcmp(archs[i].name, name) == 0) return check_hard() || !archs[i].hard;
    return false;
}

/* What a device takes, it computes: also what no row above is about. */
TEST(every_architecture_that_is_taken_gives_the_cpus_logits)
{
    arch_list all;
    archs_find(&all, "config.json");
    for (int i = 0; i < all.n; i++) {
        char why[256];
        refusal(why, all.name[i]);
        if (why[0] || has_row(all.name[i])) continue;
        const double d = device_apart(all.name[i], (rig_opts){ 0 }, IDS);
        CHECK(d <= ROUNDING, "%s: %.2g of the largest logit", all.name[i], d);
        if (getenv("SHOW")) printf("%-20s %.2g\n", all.name[i], d);
    }
}

TEST(what_is_not_there_is_refused_by_name)
{
    int run = 0;
    arch_list all;
    archs_find(&all, "config.json");
    for (int i = 0; i < all.n; i++) {
        char why[256];
        refusal(why, all.name[i]);
        CHECK(!why[0] || strncmp(why, "not on cuda yet: ", 17) == 0, "%s: %s", all.name[i], why);
        run += !why[0];
        if (getenv("SHOW") && why[0]) printf("%s: %s\n", all.name[i], why);
    }
    CHECK((run >= 40 && run < all.n) || archs_are_some(), "%d run on the device", run);
}

int main(int argc, char **argv)
{
    lq_err err = { "" };
    if (dev_count(&err) == 0) {
        printf("skipped: %s\n0 passed, 0 failed\n", err.msg);
        return 0;
    }
    RUN(architectures_give_the_cpus_logits);
    RUN(every_architecture_that_is_taken_gives_the_cpus_logits);
    RUN(what_is_not_there_is_refused_by_name);
    return check_end();
}
