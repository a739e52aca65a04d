/* tests/test_dev_attn.c - attention of a device table against the CPU's. */
#include "tests/devrig.h"

typedef struct {
    const char *why;
    int64_t H, Hkv, D, Dv;
    kv_dtype dtype;
    float softcap;
    int64_t window;
    bool alibi, falcon, sinks;
    struct {
        int64_t pos0, n;
    } seq[2];
} attn_case;

static const attn_case attn_cases[] = {
    { "decode, one head", 1, 1, 16, 16, KV_F32, 0, 0, 0, 0, 0, { { 0, 1 }, { 40, 1 } } },
    { "decode, groups, a long context",
      8,
      2,
      64,
      64,
      KV_F16,
      0,
      0,
      0,
      0,
      0,
      { { 1090, 1 }, { 511, 1 } } },
    { "prefill beside decode", 4, 2, 32, 32, KV_BF16, 0, 0, 0, 0, 0, { { 0, 19 }, { 70, 1 } } },
    { "a chunk over a split", 6, 1, 20, 20, KV_F32, 0, 0, 0, 0, 0, { { 509, 6 }, { 0, 3 } } },
    { "more heads than a pass", 20, 1, 8, 8, KV_F16, 0, 0, 0, 0, 0, { { 5, 3 }, { 33, 2 } } },
    { "int8, soft-cap", 4, 2, 40, 24, KV_I8, 2.0f, 0, 0, 0, 0, { { 30, 5 }, { 64, 1 } } },
    { "int4", 4, 2, 64, 64, KV_I4, 0, 0, 0, 0, 0, { { 37, 2 }, { 0, 5 } } },
    { "fp8", 4, 2, 32, 32, KV_F8, 0, 0, 0, 0, 0, { { 37, 2 }, { 0, 5 } } },
    { "alibi", 4, 4, 32, 32, KV_F32, 0, 0, true, 0, 0, { { 62, 4 }, { 0, 1 } } },
    { "alibi in bf16, scaled",
      4,
      4,
      16,
      16,
      KV_F16,
      0,
      0,
      true,
      true,
      0,
      { { 300, 2 }, { 0, 1 } } },
    { "window and sinks over splits",
      2,
      1,
      16,
      16,
      KV_F16,
      0,
      600,
      0,
      0,
      true,
      { { 1096, 4 }, { 9, 9 } } },
    { "a window of one, wide heads",
      2,
      2,
      256,
      256,
      KV_BF16,
      0,
      1,
      0,
      0,
      0,
      { { 33, 2 }, { 7, 1 } } },
};
static const float slopes[] = { 0.5f, 0.25f, 0.125f, 0.0625f };
static const float sink_logits[] = { 0.5f, -1 };

static void one_attention(const attn_case *c)
{
    enum { BLOCK = 16, SEQS = 2 };
    const size_t kb = attn_kv_row_bytes(c->dtype, c->D) * (size_t)(c->Hkv * BLOCK);
    const size_t stride = kb + attn_kv_row_bytes(c->dtype, c->Dv) * (size_t)(c->Hkv * BLOCK);
    const int64_t per_seq = 80, n_blocks = 2 * SEQS * per_seq;
    int64_t rows = 0, n_chunks = 0, n_slots = 0, qw = c->H * c->D, ow = c->H * c->Dv;
    rig r;
    rig_open(&r);
    uint8_t *cache = lq_push(&r.a, stride * (size_t)n_blocks);
    memset(cache, 0xff, stride * (size_t)n_blocks); /* NaN where nothing is cached */
    int32_t *tables = lq_push(&r.a, (size_t)(SEQS * per_seq) * 4);
    attn_seq seqs[SEQS];
    for (int i = 0; i < SEQS; i++) {
        int32_t *table = tables + i * per_seq;
        seqs[i] = (attn_seq){ rows, c->seq[i].n, c->seq[i].pos0, table };
        rows += c->seq[i].n;
        for (int64_t b = 0; b < per_seq; b++)
            table[b] = (int32_t)(n_blocks - 1 - 2 * (i * per_seq + b));
        for (int64_t p = 0; p < c->seq[i].pos0 + c->seq[i].n; p++) {
            uint8_t *block = cache + (size_t)table[p / BLOCK] * stride;
            float *k = floats(&r, c->Hkv * c->D, (uint64_t)p),
                  *v = floats(&r, c->Hkv * c->Dv, (uint64_t)p + 7);
            attn_kv_write(block, (int)(p % BLOCK), BLOCK, k, c->Hkv, c->D, c->dtype);
            attn_kv_write(block + kb, (int)(p % BLOCK), BLOCK, v, c->Hkv, c->Dv, c->dtype);
        }
        dev_attn_plan(NULL, &n_chunks, NULL, &n_slots, &seqs[i], 0, c->H, c->Hkv, c->window);
    }
    dev_attn_chunk *chunks = lq_push(&r.a, (size_t)n_chunks * sizeof *chunks);
    int32_t *chunk_of = lq_push(&r.a, (size_t)n_slots * 4);
    n_chunks = n_slots = 0;
    for (int i = 0; i < SEQS; i++)
        dev_attn_plan(chunks, &n_chunks, chunk_of, &n_slots, &seqs[i], (int32_t)(i * per_seq), c->H,
                      c->Hkv, c->window);
    float *q = floats(&r, rows * qw, 1), *want = floats(&r, rows * ow, 2),
          *got = floats(&r, rows * ow, 3);
    for (int64_t i = 0; i < rows * qw; i++)
        q[i] *= 3;
    attn_args twin = { .q = q,
                       .ldq = qw,
                       .out = want,
                       .ldo = ow,
                       .k = cache,
                       .v = cache + kb,
                       .block_stride = stride,
                       .block_size = BLOCK,
                       .dtype = c->dtype,
                       .H = c->H,
                       .Hkv = c->Hkv,
                       .D = c->D,
                       .Dv = c->Dv,
                       .scale = 0.3f,
                       .softcap = c->softcap,
                       .window = c->window,
                       .alibi = c->alibi ? slopes : NULL,
                       .alibi_scaled = c->falcon,
                       .alibi_bf16 = c->falcon,
                       .sinks = c->sinks ? sink_logits : NULL,
                       .seqs = seqs,
                       .n_seqs = SEQS };
    lq_arena scratch;
    lq_arena_init(&scratch, attn_scratch_bytes(c->H, c->D > c->Dv ? c->D : c->Dv, 1), NULL);
    attn_run(&twin, &scratch, NULL);
    lq_arena_free(&scratch);
    uint8_t *on = put(&r, cache, stride * (size_t)n_blocks);
    dev_attn_args a = { .q = put(&r, q, (size_t)(rows * qw) * 4),
                        .out = put(&r, NULL, (size_t)(rows * ow) * 4),
                        .k = on,
                        .v = on + kb,
                        .alibi = c->alibi ? put(&r, slopes, sizeof slopes) : NULL,
                        .sinks = c->sinks ? put(&r, sink_logits, sizeof sink_logits) : NULL,
                        .chunks = put(&r, chunks, (size_t)n_chunks * sizeof *chunks),
                        .chunk_of = put(&r, chunk_of, (size_t)n_slots * 4),
                        .tables = put(&r, tables, (size_t)(SEQS * per_seq) * 4),
                        .ldq = qw,
                        .ldo = ow,
                        .n_chunks = n_chunks,
                        .n_slots = n_slots,
                        .H = c->H,
                        .Hkv = c->Hkv,
                        .D = c->D,
                        .Dv = c->Dv,
                        .window = c->window,
                        .block_stride = stride,
                        .block_size = BLOCK,
                        .dtype = c->dtype,
                        .scale = 0.3f,
                        .softcap = c->softcap,
                        .alibi_scaled = c->falcon,
                        .alibi_bf16 = c->falcon };
    a.scratch = put(&r, NULL, ops->attn_scratch(&a));
    ops->attn(&r.d, &a);
    if (get(&r, got, a.out, (size_t)(rows * ow) * 4, c->why))
        CHECK(memcmp(got, want, (size_t)(rows * ow) * 4) == 0, "%s: off by %g of a value", c->why,
              share(got, want, rows * ow, 1));
    rig_close(&r);
}

TEST(attention_is_the_cpus_bits)
{
    for (size_t i = 0; i < LQ_COUNT(attn_cases); i++)
        one_attention(&attn_cases[i]);
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(attention_is_the_cpus_bits);
    return check_end();
}
