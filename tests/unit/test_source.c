/* tests/unit/test_source.c - HF folders: single file, shards, roles, blobs, refusals. */
#include "base/out_file.h"
#include "formats/source/source.h"

#include "formats/hf/safetensors.h"
#include "formats/llmq/llmq.h"
#include "tests/support/archs.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <unistd.h>

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

/* Of a mixture with experts of images: is it theirs, or of what sees images? */
static bool of_images(const arch_config *c, const char *name)
{
    const char *expert = strstr(name, ".experts.");
    return c->w.corr_more && (strstr(name, "vision_model.") || strstr(name, "resampler_model.") ||
                              strstr(name, "gate.weight_1") ||
                              (expert && strtoll(expert + 9, NULL, 10) >= c->experts));
}

/* Is it of a layer that text does not reach, or what its config says too? */
static bool passed_by(const arch_config *c, const char *name)
{
    if (of_images(c, name)) return true;
    if (strstr(name, ".ple_embedding.") && !strstr(name, ".ngram_embedding"))
        return true; /* whole numbers that src_fit_ngrams checks */
    const char *at = strstr(name, "layers.");
    const int64_t l = at ? strtoll(at + strlen("layers."), NULL, 10) : c->layers;
    return l < c->layers && c->layer[l].mixer == MIX_NONE && c->layer[l].no_mlp;
}

TEST(every_role_of_every_checkpoint_is_found_with_its_shape)
{
    arch_list archs;
    archs_find(&archs, "config.json");
    for (int i = 0; i < archs.n; i++) {
        const char *why = archs.name[i];
        char folder[64];
        lq_err err = { "" };
        snprintf(folder, sizeof folder, "arch/%s", why);
        src_source *s = open_golden(folder);
        if (!s) continue;
        CHECK(!src_check_roles(s, &err), "%s: %s", why, err.msg);
        for (int64_t k = 0; k < src_n_tensors(s); k++) { /* and every tensor of it has one */
            const src_tensor *mine = src_tensor_at(s, k), *t, *bias;
            const arch_config *c = src_config(s);
            arch_slot at;
            if (c->wrapper && strncmp(mine->name, c->prefix, strlen(c->prefix)) != 0 &&
                !strstr(mine->name, "head"))
                continue; /* of what sees images */
            if (passed_by(c, mine->name)) continue;
            CHECK(arch_slot_of(c, mine->name, &at), "%s: %s: no role", why, mine->name);
            CHECK(!src_role(s, at.role, at.layer, at.expert, &t, &bias, &err) &&
                      mine == (at.bias ? bias : t),
                  "%s: %s: %s", why, mine->name, err.msg);
        }
        const src_tensor *head, *embed;
        CHECK(!src_role(s, R_HEAD, -1, -1, &head, NULL, &err) &&
                  !src_role(s, R_EMBED, -1, -1, &embed, NULL, &err) &&
                  (head == embed) == src_config(s)->tied,
              "%s: the head", why);
        src_close(s);
    }
}

/* Element [n,k] of a matrix; of a stored tensor by its place. */
static float element(const qt_tensor *w, int64_t n, int64_t k)
{
    float row[512];
    qt_dequant(row, w, n, n + 1);
    return row[k];
}

static float stored(const src_tensor *t, int64_t i)
{
    float x;
    lq_to_f32(&x, (const uint8_t *)t->t.plane[QT_CODES].data + 2 * i, t->t.scheme.dtype, 1);
    return x;
}

TEST(transposed_and_stacked_tensors_become_matrices_of_outputs_and_inputs)
{
    lq_arena a = { 0 };
    lq_err err = { "" };
    src_source *gpt2 = open_golden("arch/gpt2"), *oss = open_golden("arch/gpt-oss-sinks"),
               *granite = open_golden("arch/granite-moe");
    const src_tensor *t;
    qt_tensor w;
    if (gpt2 && !src_role(gpt2, R_QKV, 1, -1, &t, NULL, &err)) {
        CHECK(!src_matrix(gpt2, R_QKV, 1, -1, &w, &a, &err) && w.N == 192 && w.K == 64, "%s",
              err.msg);
        float x;
        for (int64_t n = 0; n < 192; n += 7)
            for (int64_t k = 0; k < 64; k += 5) {
                lq_to_f32(&x, (const uint8_t *)t->t.plane[QT_CODES].data + 4 * (k * 192 + n),
                          LQ_F32, 1);
                CHECK(element(&w, n, k) == x, "gpt2 [%d,%d]", (int)n, (int)k);
            }
    }
    if (oss && !src_role(oss, R_EXPERT_GATE_UP, 1, 3, &t, NULL, &err)) {
        const float *bias;
        CHECK(t->n_dims == 3, "the whole stack");
        CHECK(!src_matrix(oss, R_EXPERT_GATE_UP, 1, 3, &w, &a, &err) && w.N == 96 && w.K == 64,
              "%s", err.msg);
        for (int64_t n = 0; n < 96; n += 7)
            for (int64_t k = 0; k < 64; k += 5)
                CHECK(element(&w, n, k) == stored(t, (3 * 64 + k) * 96 + n), "gpt-oss [%d,%d]",
                      (int)n, (int)k);
        const src_tensor *b = src_find(oss, "model.layers.1.mlp.experts.gate_up_proj_bias");
        CHECK(!src_vector(oss, R_EXPERT_GATE_UP, 1, 3, true, &bias, &a, &err) && bias && b &&
                  bias[5] == stored(b, 3 * 96 + 5),
              "gpt-oss: the bias of expert 3: %s", err.msg);
    }
    if (granite && !src_role(granite, R_EXPERT_DOWN, 0, 2, &t, NULL, &err)) {
        CHECK(!src_matrix(granite, R_EXPERT_DOWN, 0, 2, &w, &a, &err) && w.N == 32 && w.K == 48,
              "%s", err.msg);
        for (int64_t n = 0; n < 32; n += 3)
            for (int64_t k = 0; k < 48; k += 5)
                CHECK(element(&w, n, k) == stored(t, (2 * 32 + n) * 48 + k), "granite [%d,%d]",
                      (int)n, (int)k);
    }
    src_close(gpt2);
    src_close(oss);
    src_close(granite);
    lq_arena_free(&a);
}

TEST(shards_equal_the_single_file)
{
    src_source *a = open_golden("arch/granite4-dense"), *b = open_golden("sharded/granite4-dense");
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

/* ---- folders made here ---- */
static char dir[] = "/tmp/llmq-source-XXXXXX";

static void put_file(const char *name, const char *text)
{
    char path[128];
    lq_err err = { "" };
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(!lq_write_file(path, text, strlen(text), &err), "%s", err.msg);
}

/* Tensors named by the letters of `names`, each U8 [1]. */
static void put_shard(const char *file, const char *names)
{
    static const uint8_t byte = 1;
    char path[128], name[26][2];
    st_tensor t[26];
    size_t n = 0;
    lq_err err = { "" };
    for (; names[n]; n++) {
        snprintf(name[n], sizeof name[n], "%c", names[n]);
        t[n] = (st_tensor){
            .name = name[n], .dtype = LQ_U8, .n_dims = 1, .shape = { 1 }, .data = &byte, .bytes = 1
        };
    }
    snprintf(path, sizeof path, "%s/%s", dir, file);
    CHECK(!st_write(path, t, n, &err), "%s", err.msg);
}

static void drop(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

#define INDEX "model.safetensors.index.json"
#define MAP(m) "{\"metadata\":{\"total_size\":3},\"weight_map\":{" m "}}"

TEST(a_broken_index_is_refused_by_name)
{
    static const struct {
        const char *why, *index, *says; /* says NULL: it is right */
    } t[] = {
        { "right", MAP("\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\""),
          NULL },
        { "no JSON", "weights", "JSON" },
        { "no map", "{\"metadata\":{}}", "weight_map: expected an object" },
        { "an empty map", MAP(""), "weight_map: expected an object" },
        { "a file that is no text", MAP("\"a\":7"), "'a': expected the name" },
        { "a tensor twice", MAP("\"a\":\"1.safetensors\",\"a\":\"2.safetensors\""), "'a' twice" },
        { "a missing shard",
          MAP("\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"3.safetensors\""),
          "3.safetensors: No such file" },
        { "up", MAP("\"a\":\"../1.safetensors\""), "found \"../1.safetensors\"" },
        { "absolute", MAP("\"a\":\"/etc/1.safetensors\""), "found \"/etc/1.safetensors\"" },
        { "below", MAP("\"a\":\"x/1.safetensors\""), "same folder" },
        { "backslash", MAP("\"a\":\"..\\\\1.safetensors\""), "same folder" },
        { "hidden", MAP("\"a\":\".1.safetensors\""), "same folder" },
        { "only the ending", MAP("\"a\":\".safetensors\""), "same folder" },
        { "another kind of file", MAP("\"a\":\"config.json\""), "same folder" },
        { "a tensor that its shard lacks",
          MAP("\"a\":\"1.safetensors\",\"b\":\"2.safetensors\",\"c\":\"2.safetensors\""),
          "'b': expected in 2.safetensors" },
        { "a tensor that no shard has",
          MAP("\"a\":\"1.safetensors\",\"b\":\"1.safetensors\",\"c\":\"2.safetensors\","
              "\"d\":\"2.safetensors\""),
          "'d': expected in 2.safetensors" },
        { "a tensor that the index lacks", MAP("\"b\":\"1.safetensors\",\"c\":\"2.safetensors\""),
          "1.safetensors: tensor 'a'" },
    };
    put_shard("1.safetensors", "ab");
    put_shard("2.safetensors", "c");
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        src_source *s;
        lq_err err = { "" };
        put_file(INDEX, t[i].index);
        lq_status st = src_open(&s, dir, NULL, &err);
        if (t[i].says) {
            CHECK(st && lq_exit_code(st) == 3, "%s: accepted", t[i].why);
            CHECK(strstr(err.msg, t[i].says), "%s: '%s' does not say '%s'", t[i].why, err.msg,
                  t[i].says);
        } else {
            CHECK(!st && src_n_tensors(s) == 3 && !src_tensor_at(s, 0)->plain, "%s: %s", t[i].why,
                  err.msg);
        }
        if (!st) src_close(s);
    }
    drop(INDEX);
    drop("1.safetensors");
    drop("2.safetensors");
}

TEST(blobs_of_a_llmq_are_files_of_a_model_without_weights_and_code)
{
    static const struct {
        const char *name;
        bool fits;
    } t[] = {
        { "config.json", true },
        { "README.md", true },
        { "LICENSE", true },
        { "Licence-한국어.txt", true },
        { "a.tiktoken", true },
        { "tokenizer.blob", true },
        { "chat_template.tool_use.jinja", true },
        { "model.safetensors", false },
        { "model.safetensors.index.json", false },
        { "pytorch_model.bin", false },
        { "modeling_x.py", false },
        { "llmq.json", false },
        { "provenance.json", false },
        { "quantize_config.json", false },
        { "x.jinja", false },
        { "rest-00001", false },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char path[] = "/tmp/llmq-blobs-XXXXXX";
        const int fd = mkstemp(path);
        lqf_writer *w = NULL;
        src_source *s = NULL;
        lq_err err = { "" };
        CHECK(fd >= 0 && !close(fd) && !lqf_create(&w, path, &err), "%s", err.msg);
        lq_status st = lqf_add_blob(w, t[i].name, "{}", 2, &err);
        CHECK(!st && !lqf_commit(w, &err), "%s: %s", t[i].name, err.msg);
        st = src_open(&s, path, NULL, &err);
        CHECK(t[i].fits == !st, "%s: %s", t[i].name, err.msg);
        CHECK(t[i].fits || (st == LQ_EFORMAT && strstr(err.msg, "neither weights nor code")),
              "%s: %s", t[i].name, err.msg);
        src_close(s);
        unlink(path);
    }
}

#define CONFIG                                                                      \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":4,\"hidden_size\":4," \
    "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"intermediate_size\":6"

TEST(a_folder_that_is_no_model_is_refused)
{
    static const struct {
        const char *why, *config;
        bool weights;
        const char *says;
    } t[] = {
        { "empty", NULL, false, "config.json" },
        { "no weights", CONFIG "}", false, "expected model.safetensors, " INDEX },
        { "no config", NULL, true, "config.json" },
        { "broken config", "{", true, "config.json: JSON" },
        { "unknown architecture", "{\"architectures\":[\"X\"]}", true, "found \"X\"" },
        { "quantized elsewhere", CONFIG ",\"quantization_config\":{\"quant_method\":\"quip\"}}",
          true, "found \"quip\"" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        src_source *s;
        lq_err err = { "" };
        if (t[i].config) put_file("config.json", t[i].config);
        if (t[i].weights) put_shard("model.safetensors", "a");
        lq_status st = src_open(&s, dir, &(src_opts){ .need_config = true }, &err);
        CHECK(st && lq_exit_code(st) == 3 && strstr(err.msg, t[i].says), "%s: '%s'", t[i].why,
              err.msg);
        if (!st) src_close(s);
        drop("config.json");
        drop("model.safetensors");
    }
    src_source *s;
    lq_err err = { "" };
    CHECK(src_open(&s, "/nonexistent/model", NULL, &err) == LQ_ENOENT, "%s", err.msg);
    put_file("x.gguf", "GGUF....");
    char path[128];
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    CHECK(src_open(&s, path, NULL, &err) == LQ_EFORMAT && strstr(err.msg, "byte 8"), "%s", err.msg);
    drop("x.gguf");
}

TEST(a_role_whose_tensor_does_not_fit_is_refused_by_name)
{
    static const float zeros[24];
    static const struct {
        const char *why, *name;
        lq_dtype d;
        int n_dims;
        int64_t shape[2];
        arch_role role;
        lq_status status;
        const char *says;
    } t[] = {
        { "right", "model.layers.0.mlp.up_proj.weight", LQ_F32, 2, { 6, 4 }, R_UP, LQ_OK, "" },
        { "a vector", "model.norm.weight", LQ_F32, 1, { 4 }, R_FINAL_NORM, LQ_OK, "" },
        { "missing",
          "model.layers.0.mlp.up_proj",
          LQ_F32,
          2,
          { 6, 4 },
          R_UP,
          LQ_ENOENT,
          "'model.layers.0.mlp.up_proj.weight' is missing" },
        { "transposed",
          "model.layers.0.mlp.up_proj.weight",
          LQ_F32,
          2,
          { 4, 6 },
          R_UP,
          LQ_ESHAPE,
          "expected shape [6,4], found [4,6]" },
        { "flat",
          "model.layers.0.mlp.up_proj.weight",
          LQ_F32,
          1,
          { 24 },
          R_UP,
          LQ_ESHAPE,
          "found [24]" },
        { "a matrix for a vector",
          "model.norm.weight",
          LQ_F32,
          2,
          { 1, 4 },
          R_FINAL_NORM,
          LQ_ESHAPE,
          "expected shape [4], found [1,4]" },
        { "integers",
          "model.layers.0.mlp.up_proj.weight",
          LQ_I32,
          2,
          { 6, 4 },
          R_UP,
          LQ_EVALUE,
          "expected a float type, found i32" },
    };
    put_file("config.json", CONFIG "}");
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char path[128];
        st_tensor w = { .name = t[i].name,
                        .dtype = t[i].d,
                        .n_dims = t[i].n_dims,
                        .data = (const uint8_t *)zeros };
        memcpy(w.shape, t[i].shape, sizeof t[i].shape);
        st_shape_bytes(w.dtype, w.n_dims, w.shape, &w.bytes);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        lq_err err = { "" };
        CHECK(!st_write(path, &w, 1, &err), "%s", err.msg);
        src_source *s = NULL;
        lq_status st = src_open(&s, dir, &(src_opts){ .need_config = true }, &err);
        CHECK(!st, "%s: %s", t[i].why, err.msg);
        if (st) continue;
        const src_tensor *got, *bias;
        st = src_role(s, t[i].role, arch_role_per_layer(t[i].role) ? 0 : -1, -1, &got, &bias, &err);
        CHECK(st == t[i].status && (!st || strstr(err.msg, t[i].says)), "%s: %s '%s'", t[i].why,
              lq_status_text(st), err.msg);
        CHECK((got != NULL) == !st && !bias, "%s", t[i].why);
        src_close(s);
    }
    drop("config.json");
    drop("model.safetensors");
}

TEST(layers_that_the_config_has_not_are_refused)
{
    static const struct {
        const char *why, *name, *more, *says; /* NULL: taken */
    } t[] = {
        { "its own", "model.layers.0.mlp.up_proj.weight", "", NULL },
        { "a second", "model.layers.1.mlp.up_proj.weight", "",
          "config.json: num_hidden_layers: expected the 2 layers or more that are stored, found 1 "
          "(tensor 'model.layers.1.mlp.up_proj.weight')" },
        { "quantized", "model.layers.12.mlp.up_proj.qweight", "", "expected the 13 layers" },
        { "of another part", "visual.layers.1.mlp.up_proj.weight", "", NULL },
        { "MTP's, as is said", "model.layers.1.mlp.up_proj.weight",
          ",\"num_nextn_predict_layers\":1", NULL },
        { "MTP's, as its tensor says", "model.layers.1.eh_proj.weight", "", NULL },
        { "MTP's, which is denied", "model.layers.1.eh_proj.weight",
          ",\"num_nextn_predict_layers\":0",
          "num_nextn_predict_layers: expected the 1 that are stored, found 0" },
        { "fewer MTP layers than are said", "model.layers.1.eh_proj.weight",
          ",\"num_nextn_predict_layers\":2",
          "num_nextn_predict_layers: expected the 1 that are stored, found 2" },
        { "behind MTP's", "model.layers.2.mlp.up_proj.weight", ",\"num_nextn_predict_layers\":1",
          "expected the 3 layers" },
        { "half a layer", "model.norm.weight", ",\"num_nextn_predict_layers\":0.5",
          "num_nextn_predict_layers: expected an integer" },
    };
    static const float zeros[24];
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char path[128], config[600];
        st_tensor w = { .name = t[i].name,
                        .dtype = LQ_F32,
                        .n_dims = 1,
                        .shape = { 24 },
                        .data = (const uint8_t *)zeros,
                        .bytes = sizeof zeros };
        src_source *s = NULL;
        lq_err err = { "" };
        snprintf(config, sizeof config, CONFIG "%s}", t[i].more);
        put_file("config.json", config);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        CHECK(!st_write(path, &w, 1, &err), "%s", err.msg);
        const lq_status st = src_open(&s, dir, &(src_opts){ .need_config = true }, &err);
        CHECK(!st == !t[i].says && (!st || strstr(err.msg, t[i].says)), "%s: '%s'", t[i].why,
              err.msg);
        CHECK(!st || lq_exit_code(st) == 3, "%s", t[i].why);
        if (!st) src_close(s);
    }
    drop("config.json");
    drop("model.safetensors");
}

TEST(the_files_that_travel_along_are_found)
{
    static const char *const names[] = { "LICENSE",        "LICENSE.md",
                                         "README.md",      "chat_template.jinja",
                                         "tokenizer.json", "tokenizer_config.json" };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        put_file(names[i], names[i]);
    put_file("other.txt", "stays");
    src_source *s = NULL;
    lq_err err = { "" };
    CHECK(!src_open(&s, dir, &(src_opts){ .no_tensors = true }, &err), "%s", err.msg);
    CHECK(s && src_n_blobs(s) == LQ_COUNT(names) && !src_find_blob(s, "other.txt"), "count");
    for (size_t i = 0; s && i < src_n_blobs(s); i++) {
        const src_blob *b = src_blob_at(s, i);
        CHECK(!strcmp(b->name, names[i]) && b->bytes == strlen(names[i]) &&
                  !memcmp(b->data, names[i], b->bytes),
              "%s", b->name);
    }
    src_close(s);
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        drop(names[i]);
    drop("other.txt");
}

TEST(weights_that_are_not_finite_are_named)
{
    static const struct {
        lq_dtype d;
        uint32_t bits;
        const char *says; /* NULL: finite */
    } t[] = {
        { LQ_F32, 0x7f800000, "infinity at element 300" },
        { LQ_F32, 0x7fc00000, "NaN" },
        { LQ_F32, 0x7f7fffff, NULL },
        { LQ_F16, 0x7c00, "infinity" },
        { LQ_F16, 0xfe00, "NaN" },
        { LQ_F16, 0x7bff, NULL },
        { LQ_BF16, 0xff80, "infinity" },
        { LQ_BF16, 0x7f7f, NULL },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t data[4 * 301] = { 0 };
        size_t size = lq_dtype_bytes(t[i].d);
        memcpy(data + 300 * size, &t[i].bits, size);
        src_tensor x = { .name = "w", .plain = true };
        x.t.scheme = (qt_scheme){ .kind = QT_DENSE, .dtype = t[i].d };
        x.t.plane[QT_CODES] = (qt_span){ data, 301 * size };
        lq_err err = { "" };
        lq_status s = src_check_finite(&x, &err);
        CHECK(t[i].says ? s == LQ_EVALUE && strstr(err.msg, t[i].says) : !s, "%08x: '%s'",
              t[i].bits, err.msg);
    }
}

int main(int argc, char **argv)
{
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    RUN(every_role_of_every_checkpoint_is_found_with_its_shape);
    RUN(transposed_and_stacked_tensors_become_matrices_of_outputs_and_inputs);
    RUN(shards_equal_the_single_file);
    RUN(a_broken_index_is_refused_by_name);
    RUN(blobs_of_a_llmq_are_files_of_a_model_without_weights_and_code);
    RUN(a_folder_that_is_no_model_is_refused);
    RUN(a_role_whose_tensor_does_not_fit_is_refused_by_name);
    RUN(layers_that_the_config_has_not_are_refused);
    RUN(the_files_that_travel_along_are_found);
    RUN(weights_that_are_not_finite_are_named);
    CHECK(rmdir(dir) == 0, "a file was left");
    return check_end();
}
