/* tests/fuzz/fuzz_index.c - any bytes as the index of shards, beside a config and two shards that
 * hold the tensors a, b and c. What is taken has named each of a shard's tensors, or none. */
#include "formats/source/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define CONFIG                                                                                    \
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,"       \
    "\"intermediate_size\":8,\"num_attention_heads\":1,\"num_hidden_layers\":1,\"vocab_size\":8," \
    "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":8}"
#define FIRST                                                          \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"  \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}  " \
    "12"
#define SECOND "{\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}3"

static char dir[64];
static const char INDEX[] = "model.safetensors.index.json", A[] = "1.safetensors",
                  B[] = "2.safetensors", C[] = "config.json";

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void clean(void)
{
    const char *const names[] = { INDEX, A, B, C };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        unlink(at(names[i]));
    rmdir(dir);
}

static void put(const char *name, const void *head, size_t n_head, const void *data, size_t n)
{
    FILE *f = fopen(at(name), "wb");
    if (!f || fwrite(head, 1, n_head, f) != n_head || fwrite(data, 1, n, f) != n || fclose(f))
        abort();
}

/* weights: bytes behind the header, whose length comes first. */
static void put_shard(const char *name, const char *text, size_t weights)
{
    const uint64_t n = strlen(text) - weights;
    put(name, &n, sizeof n, text, strlen(text));
}

static void make_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.40s/llmq-index-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) abort();
    atexit(clean);
    put(C, "", 0, CONFIG, strlen(CONFIG));
    put_shard(A, FIRST, 2);
    put_shard(B, SECOND, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    src_source *s;
    if (!dir[0]) make_folder();
    put(INDEX, "", 0, data, n);
    if (src_open(&s, dir, &(src_opts){ 0 }, NULL)) return 0;
    const bool a = src_find(s, "a"), b = src_find(s, "b"), c = src_find(s, "c");
    if (a != b || !(a || c)) abort();
    src_close(s);
    return 0;
}
