/* tests/test_source.c - HF folders: single file, shards, roles, blobs, refusals. */
#include "formats/source.h"
#include "tests/check.h"

static const char *const archs[] = {
    "llama2-mha",
    "llama3-gqa",
    "llama-linear-rope",
    "llama-yarn",
    "llama-dynamic-ntk",
    "mistral-swa",
    "qwen2",
    "qwen3",
    "llama-128",
};

static src_source *open_golden(const char *folder)
{
    char path[256];
    src_source *s = NULL;
    lq_err err = { "" };
    snprintf(path, sizeof path, "tests/golden/%s", folder);
    lq_status st = src_open(&s, path, &(src_opts){ .need_config = true }, &err);
    CHECK(!st, "%s: %s", folder, err.msg);
    return s;
}

TEST(every_role_of_every_checkpoint_is_found_with_its_shape)
{
    for (size_t i = 0; i < LQ_COUNT(archs); i++) {
        char folder[64];
        snprintf(folder, sizeof folder, "arch/%s", archs[i]);
        src_source *s = open_golden(folder);
        if (!s) continue;
        const arch_config *c = src_config(s);
        int64_t found = 0;
        for (int r = 0; r < ARCH_N_ROLES; r++)
            for (int64_t l = 0; l < (arch_role_per_layer((arch_role)r) ? c->layers : 1); l++) {
                const src_tensor *t, *bias;
                lq_err err = { "" };
                lq_status st = src_role(s, (arch_role)r, l, &t, &bias, &err);
                CHECK(!st, "%s: %s", archs[i], err.msg);
                bool norm = r == R_Q_NORM || r == R_K_NORM;
                CHECK((t != NULL) == (!norm || c->row->qk_norm), "%s: %s", archs[i],
                      arch_role_text((arch_role)r));
                if (r == R_HEAD && c->tied)
                    CHECK(t == src_find(s, "model.embed_tokens.weight"), "tied head");
                else
                    found += (t != NULL) + (bias != NULL);
            }
        CHECK(found == src_n_tensors(s), "%s: %d of %d tensors have a role", archs[i], (int)found,
              (int)src_n_tensors(s));
        src_close(s);
    }
}

TEST(shards_equal_the_single_file)
{
    src_source *a = open_golden("arch/llama-128"), *b = open_golden("sharded/llama-128");
    if (!a || !b) return;
    CHECK(src_n_tensors(a) == src_n_tensors(b), "counts");
    for (int64_t i = 0; i < src_n_tensors(a); i++) {
        const src_tensor *x = src_tensor_at(a, i), *y = src_find(b, x->name);
        CHECK(y && x->raw.bytes == y->raw.bytes && !memcmp(x->raw.data, y->raw.data, x->raw.bytes),
              "%s", x->name);
    }
    src_close(a);
    src_close(b);
}

int main(int argc, char **argv)
{
    RUN(every_role_of_every_checkpoint_is_found_with_its_shape);
    RUN(shards_equal_the_single_file);
    return check_end();
}
