/* tests/fuzz/fuzz_adapter.c - any bytes as an adapter of a model: which model, u16 length of adapter_config.json, that JSON,
 * adapter_model.safetensors; a length of 65535: the rest is a GGUF file. What is taken has finite numbers of the model's
 * shapes, is the same when it is read again, and the model with it merged can be read. */
#include "formats/source/adapter.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { HEAD = 3, GGUF = 65535 };
static const char *const models[] = { "tests/golden/arch/qwen2", "tests/golden/arch/phi3",
                                      "tests/golden/arch/qwen3-moe" };
static src_source *bases[LQ_COUNT(models)];
static char dir[64], config[96], tensors[96], gguf[96];

static void clean(void)
{
    for (size_t i = 0; i < LQ_COUNT(models); i++)
        src_close(bases[i]);
    unlink(config);
    unlink(tensors);
    unlink(gguf);
    rmdir(dir);
}

static void begin(void)
{
    lq_err err;
    if (dir[0]) return;
    strcpy(dir, "/tmp/llmq-adapter-XXXXXX");
    if (!mkdtemp(dir)) abort();
    snprintf(config, sizeof config, "%s/adapter_config.json", dir);
    snprintf(tensors, sizeof tensors, "%s/adapter_model.safetensors", dir);
    snprintf(gguf, sizeof gguf, "%s/adapter.gguf", dir);
    for (size_t i = 0; i < LQ_COUNT(models); i++)
        if (src_open(&bases[i], models[i], &(src_opts){ .need_config = true }, &err)) abort();
    atexit(clean);
}

static void put(const char *path, const uint8_t *p, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    close(fd);
}

static void check_numbers(const void *x, lq_dtype dtype, int64_t n)
{
    float *f = malloc((size_t)n * sizeof *f);
    if (!f) abort();
    lq_to_f32(f, x, dtype, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(f[i])) abort();
    free(f);
}

static void check_parts(const adp_adapter *a, const src_source *base)
{
    const arch_config *c = src_config(base);
    if (!a->n || !a->id) abort();
    for (size_t i = 0; i < a->n; i++) {
        const adp_part *p = &a->parts[i];
        int64_t N, K;
        arch_role_shape(arch_at(c, p->slot.layer), p->slot.role, &N, &K);
        if (p->N != N || p->K != K || p->rank < 1 || p->rank > a->rank || !isfinite(p->scale))
            abort();
        if (p->magnitude && !a->dora) abort();
        check_numbers(p->a, p->dtype, p->rank * K);
        check_numbers(p->b, p->dtype, N * p->rank);
        if (p->magnitude) check_numbers(p->magnitude, LQ_F32, N);
    }
}

/* All of the tensors that the adapter changes. */
static void read_merged(const adp_adapter *a, const src_source *base)
{
    src_source *merged = NULL;
    lq_err err;
    if (src_merge(&merged, base, a, true, &err)) return;
    for (size_t i = 0; i < a->n; i++) {
        const arch_slot *s = &a->parts[i].slot;
        lq_arena arena = { 0 };
        qt_tensor t;
        if (!src_matrix(merged, s->role, s->layer, s->expert, &t, &arena, &err)) {
            float *row = malloc((size_t)t.K * sizeof *row);
            for (int64_t n = 0; row && n < t.N; n++)
                qt_dequant(row, &t, n, n + 1);
            free(row);
            src_matrix_done(merged, s->role, s->layer, s->expert);
        }
        lq_arena_free(&arena);
    }
    src_close(merged);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    adp_adapter a, again;
    lq_err err;
    if (n < HEAD) return 0;
    begin();
    const src_source *base = bases[data[0] % LQ_COUNT(models)];
    const size_t length = data[1] | (size_t)data[2] << 8, rest = n - HEAD;
    const bool folder = length != GGUF;
    if (folder && length > rest) return 0;
    if (folder) {
        put(config, data + HEAD, length);
        put(tensors, data + HEAD + length, rest - length);
    } else {
        put(gguf, data + HEAD, rest);
    }
    const char *path = folder ? dir : gguf;
    if (adp_open(&a, path, base, &err)) return 0;
    check_parts(&a, base);
    if (adp_open(&again, path, base, &err) || again.id != a.id) abort();
    adp_close(&again);
    read_merged(&a, base);
    adp_close(&a);
    return 0;
}
