/* tests/unit/test_dev_attn.c - attention of a device table against the CPU's: its bits, or, through the
 * matrix units, the definition's numbers within the bound of kernels/device.h. */
#include "tests/support/attn_cases.h"
#include "tests/support/devrig.h"
#include "tests/support/emucounts.h"

static bool sees_after; /* rows see the keys after them too */

static const float slopes[] = { 0.5f, 0.25f, 0.125f, 0.0625f };
static const float sink_logits[] = { 0.5f, -1 };

enum { SEQS = 2, NOBODYS = 2 }; /* NOBODYS: slots of no chunk */

/* Slots of a block in the i-th case. */
static int block_of(size_t i) { return 8 << i % 3; }

static void round_row(float *x, int64_t n, kv_dtype d)
{
    uint16_t w;
    if (d != KV_F16 && d != KV_BF16) return;
    const lq_dtype as = d == KV_F16 ? LQ_F16 : LQ_BF16;
    for (int64_t i = 0; i < n; i++) {
        lq_from_f32(&w, x + i, as, 1);
        lq_to_f32(x + i, &w, as, 1);
    }
}
/* Of a cache of codes: the row as it is there, a scale and then codes (attn.h). */
static void read_codes(float *x, const uint8_t *cache, int64_t row, int64_t n, kv_dtype d)
{
    const uint8_t *at = cache + (size_t)row * attn_kv_row_bytes(d, n);
    float scale;
    uint32_t head;
    memcpy(&scale, at, sizeof scale);
    memcpy(&head, at, sizeof head);
    for (int64_t i = 0; i < n; i++) {
        if (d == KV_I4)
            scale = attn_i4_scale(lq_bf16_to_f32((uint16_t)(head >> 16)),
                                  head >> 4 * (i / attn_i4_block(n)));
        const uint8_t c = at[4 + (d == KV_I4 ? i / 2 : i)];
        if (d == KV_I8) x[i] = scale * (float)(int8_t)c;
        if (d == KV_I4) x[i] = scale * (float)((c >> i % 2 * 4 & 15) - 8);
        if (d == KV_F8) x[i] = scale * lq_e4m3_to_f32(c);
    }
}
static double bf16(double x)
{
    float f = (float)x;
    round_row(&f, 1, KV_BF16);
    return (double)f;
}

/* A row and head of a sequence whose keys and values are k [., Hkv, D] and v [., Hkv, Dv], by the
 * definition and in f64: out [Dv], and the bound of each (dev.h), u the weights' rounding. */
static void by_hand(double *out, double *bound, const attn_case *c, const float *q, const float *k,
                    const float *v, int64_t query, int64_t end, int64_t h, double u)
{
    const int64_t far = c->window && query + c->window < end ? query + c->window : end;
    const int64_t kvh = h / (c->H / c->Hkv), n = sees_after ? far : query + 1;
    const int64_t first = c->window && query + 1 > c->window ? query + 1 - c->window : 0;
    double score[2200], max = -INFINITY, sum = 0, off = 0;
    CHECK(n <= (int64_t)LQ_COUNT(score), "%s: too many keys for this test", c->why);
    for (int64_t j = first; j < n; j++) {
        double s = 0, size = 0, slope = c->alibi ? (double)slopes[h] : 0, bias;
        for (int64_t d = 0; d < c->D; d++) {
            const double x = (double)q[d] * (double)k[(j * c->Hkv + kvh) * c->D + d] * (double)0.3f;
            s += x;
            size += fabs(x);
        }
        if (c->softcap > 0) s = (double)c->softcap * tanh(s / (double)c->softcap);
        bias = c->falcon ? (double)0.3f * bf16(bf16(slope) * bf16((double)j))
                         : slope * (double)(j > query ? query - j : j - query);
        score[j] = s + bias;
        max = fmax(max, score[j]);
        off = fmax(off, (u + (double)(c->D + 8) * 0x1p-23) * size +
                            0x1p-21 * (1 + fabs(bias) + fabs(s)));
    }
    for (int64_t j = first; j < n; j++)
        sum += score[j] = exp(score[j] - max);
    if (c->sinks) sum += exp((double)sink_logits[h] - max);
    for (int64_t d = 0; d < c->Dv; d++) {
        double size = 0, all = 0;
        out[d] = 0;
        for (int64_t j = first; j < n; j++) {
            const double x = (double)v[(j * c->Hkv + kvh) * c->Dv + d];
            out[d] += score[j] / sum * x;
            size += score[j] / sum * fabs(x);
            all += fabs(x);
        }
        bound[d] = size * (expm1(2 * off) + u + (double)(n + 64) * 0x1p-23) +
                   (c->dtype == KV_F16 && u > 0 ? 0x1p-24 * all : 0) + 1e-30;
    }
}

/* One call of attention: what is cached, the plan, q; out is not written yet. */
typedef struct {
    rig r;
    uint8_t *cache; /* here; what is there is a's */
    size_t kb, stride;
    int64_t per_seq, rows, n_blocks;
    int32_t *tables;
    attn_seq seqs[SEQS];
    float *keys[SEQS], *values[SEQS]; /* as they are read from the cache: by_hand's */
    float *q;
    dev_attn_args a;
} call;

/* Of each head all rows of q, where out is to be. */
static void heads_apart(call *o, const attn_case *c)
{
    const int64_t n = o->rows * c->H * c->D;
    float *q = floats(&o->r, n, 1);
    for (int64_t t = 0; t < o->rows; t++)
        for (int64_t h = 0; h < c->H; h++)
            memcpy(q + (h * o->rows + t) * c->D, o->q + (t * c->H + h) * c->D,
                   (size_t)c->D * sizeof *q);
    o->a.latent = true;
    o->a.v = NULL;
    o->a.q = o->a.out = put(&o->r, q, (size_t)n * sizeof *q);
    o->a.ldq = o->a.ldo = c->D;
    o->a.hq = o->a.ho = o->rows * c->D;
}

/* What came out to want's places, [rows, H, Dv]. */
static bool get_out(call *o, const attn_case *c, float *to)
{
    const int64_t n = o->rows * c->H;
    float *out = floats(&o->r, n * (c->latent ? c->D : c->Dv), 4);
    const bool ok = get(&o->r, out, o->a.out, (size_t)(n * (c->latent ? c->D : c->Dv)) * 4, c->why);
    for (int64_t t = 0; t < o->rows; t++)
        for (int64_t h = 0; h < c->H; h++)
            memcpy(to + (t * c->H + h) * c->Dv,
                   c->latent ? out + (h * o->rows + t) * c->D : out + (t * c->H + h) * c->Dv,
                   (size_t)c->Dv * sizeof *to);
    return ok;
}

/* Behind the last key of sequence i, where rows see both ways. */
static int64_t end_of(const attn_case *c, int i)
{
    return sees_after ? c->seq[i].pos0 + c->seq[i].n : 0;
}

static void call_open(call *o, const attn_case *c, dev_attn_how how, bool whole, bool flat,
                      int block)
{
    rig *r = &o->r;
    const size_t kb = attn_kv_row_bytes(c->dtype, c->D) * (size_t)(c->Hkv * block);
    const size_t vb = attn_kv_row_bytes(c->dtype, c->Dv) * (size_t)(c->Hkv * block),
                 stride = kb + (c->latent ? 0 : vb);
    const int64_t longest = c->seq[0].pos0 + c->seq[0].n > c->seq[1].pos0 + c->seq[1].n
                                ? c->seq[0].pos0 + c->seq[0].n
                                : c->seq[1].pos0 + c->seq[1].n;
    const int64_t per_seq = longest / block + 1, n_blocks = 2 * SEQS * per_seq;
    int64_t n_chunks = 0, n_slots = 0, qw = c->H * c->D, ow = c->H * c->Dv;
    const dev many = { .n_sm = 1 }, few = { .n_sm = 1 << 20 };
    const int64_t split = dev_attn_split(whole ? &many : &few, how, 2);
    *o = (call){ .kb = kb, .stride = stride, .per_seq = per_seq, .n_blocks = n_blocks };
    rig_open(r);
    o->cache = lq_push(&r->a, stride * (size_t)n_blocks);
    memset(o->cache, 0xff, stride * (size_t)n_blocks); /* NaN where nothing is cached */
    o->tables = lq_push(&r->a, (size_t)(SEQS * per_seq) * 4);
    for (int i = 0; i < SEQS; i++) {
        int32_t *table = o->tables + i * per_seq;
        o->seqs[i] = (attn_seq){ o->rows, c->seq[i].n, c->seq[i].pos0, table };
        o->rows += c->seq[i].n;
        for (int64_t b = 0; b < per_seq; b++)
            table[b] = (int32_t)(n_blocks - 1 - 2 * (i * per_seq + b));
        o->keys[i] = floats(r, longest * c->Hkv * c->D, (uint64_t)i + 10);
        o->values[i] = floats(r, longest * c->Hkv * c->Dv, (uint64_t)i + 20);
        /* What no row's window reaches stays NaN, but for wgmma, which multiplies it by 0. */
        const int64_t before = c->seq[i].pos0 - c->window + 1;
        const int64_t first = c->window && before > 0 && how != DEV_ATTN_WIDE ? before : 0;
        for (int64_t p = first; p < c->seq[i].pos0 + c->seq[i].n; p++) {
            uint8_t *in = o->cache + (size_t)table[p / block] * stride;
            float *k = o->keys[i] + p * c->Hkv * c->D, *v = o->values[i] + p * c->Hkv * c->Dv;
            round_row(k, c->Hkv * c->D, c->dtype);
            round_row(v, c->Hkv * c->Dv, c->dtype);
            attn_kv_write(in, (int)(p % block), block, k, c->Hkv, c->D, c->dtype);
            if (c->latent) {
                read_codes(k, in, p % block, c->D, c->dtype);
                memcpy(v, k, (size_t)c->Dv * sizeof *v);
                continue;
            }
            attn_kv_write(in + kb, (int)(p % block), block, v, c->Hkv, c->Dv, c->dtype);
            for (int64_t h = 0; h < c->Hkv; h++) {
                const int64_t row = h * block + p % block;
                read_codes(k + h * c->D, in, row, c->D, c->dtype);
                read_codes(v + h * c->Dv, in + kb, row, c->Dv, c->dtype);
            }
        }
        dev_attn_plan(how, NULL, &n_chunks, NULL, &n_slots, &o->seqs[i], 0, split, c->H, c->Hkv,
                      c->window, end_of(c, i));
    }
    dev_attn_chunk *chunks = lq_push(&r->a, (size_t)n_chunks * sizeof *chunks);
    int32_t *chunk_of = lq_push(&r->a, (size_t)(n_slots + NOBODYS) * 4);
    n_chunks = n_slots = 0;
    for (int i = 0; i < SEQS; i++)
        dev_attn_plan(how, chunks, &n_chunks, chunk_of, &n_slots, &o->seqs[i],
                      (int32_t)(i * per_seq), split, c->H, c->Hkv, c->window, end_of(c, i));
    if (how == DEV_ATTN_EXACT || how == DEV_ATTN_DECODE || (how == DEV_ATTN_LATENT && !whole))
        for (int i = 0; i < NOBODYS; i++)
            chunk_of[n_slots++] = -1;
    o->q = floats(r, o->rows * qw, 1);
    for (int64_t i = 0; i < o->rows * qw; i++)
        o->q[i] *= flat ? 0 : 3;
    uint8_t *on = put(r, o->cache, stride * (size_t)n_blocks);
    o->a = (dev_attn_args){ .how = how,
                            .split = split,
                            .q = put(r, o->q, (size_t)(o->rows * qw) * 4),
                            .out = put(r, NULL, (size_t)(o->rows * ow) * 4),
                            .k = on,
                            .v = on + kb,
                            .alibi = c->alibi ? put(r, slopes, sizeof slopes) : NULL,
                            .sinks = c->sinks ? put(r, sink_logits, sizeof sink_logits) : NULL,
                            .chunks = put(r, chunks, (size_t)n_chunks * sizeof *chunks),
                            .chunk_of = put(r, chunk_of, (size_t)n_slots * 4),
                            .tables = put(r, o->tables, (size_t)(SEQS * per_seq) * 4),
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
                            .block_size = block,
                            .dtype = c->dtype,
                            .scale = 0.3f,
                            .softcap = c->softcap,
                            .alibi_scaled = c->falcon,
                            .alibi_bf16 = c->falcon,
                            .both = sees_after };
    if (c->latent) heads_apart(o, c);
    o->a.scratch = put(r, NULL, ops->attn_scratch(&o->a));
}

/* flat: q is 0, all keys weigh the same, and nothing is rounded: a key too many or too few shows.
 */
static void one_attention(const attn_case *c, dev_attn_how how, bool whole, bool flat, int block)
{
    const int64_t qw = c->H * c->D, ow = c->H * c->Dv;
    call o;
    call_open(&o, c, how, whole, flat, block);
    rig *r = &o.r;
    const int64_t rows = o.rows;
    float *want = floats(r, rows * ow, 2), *got = floats(r, rows * ow, 3);
    ops->attn(&r->d, &o.a);
    const bool ok = get_out(&o, c, got);
    if (how == DEV_ATTN_EXACT) {
        const int64_t Dv = c->latent ? c->D : c->Dv; /* the CPU's rows are keys and values */
        float *all = floats(r, rows * c->H * Dv, 5);
        attn_args twin = { .q = o.q,
                           .ldq = qw,
                           .out = all,
                           .ldo = c->H * Dv,
                           .k = o.cache,
                           .v = c->latent ? o.cache : o.cache + o.kb,
                           .block_stride = o.stride,
                           .block_size = block,
                           .dtype = c->dtype,
                           .H = c->H,
                           .Hkv = c->Hkv,
                           .D = c->D,
                           .Dv = Dv,
                           .scale = 0.3f,
                           .softcap = c->softcap,
                           .window = c->window,
                           .alibi = c->alibi ? slopes : NULL,
                           .alibi_scaled = c->falcon,
                           .alibi_bf16 = c->falcon,
                           .both = sees_after,
                           .sinks = c->sinks ? sink_logits : NULL,
                           .seqs = o.seqs,
                           .n_seqs = SEQS };
        lq_arena scratch;
        lq_arena_init(&scratch, attn_scratch_bytes(c->H, c->D > c->Dv ? c->D : c->Dv, 1), NULL);
        attn_run(&twin, &scratch, NULL);
        lq_arena_free(&scratch);
        for (int64_t i = 0; i < rows * c->H; i++)
            memcpy(want + i * c->Dv, all + i * Dv, (size_t)c->Dv * sizeof *want);
        if (ok)
            CHECK(memcmp(got, want, (size_t)(rows * ow) * 4) == 0, "%s: off by %g of a value",
                  c->why, share(got, want, rows * ow, 1));
    }
    /* weights of 1 times a value's scale are rounded too */
    const bool scaled = (how == DEV_ATTN_UNITS || how == DEV_ATTN_LATENT) && c->dtype != KV_F16 &&
                        c->dtype != KV_BF16;
    const double u = flat && !scaled          ? 0
                     : how == DEV_ATTN_DECODE ? 0x1p-16
                     : c->dtype == KV_F16     ? 0x1p-11
                                              : 0x1p-8;
    double out[DEV_ATTN_LATENT_WIDTH], bound[DEV_ATTN_LATENT_WIDTH], worst = 0; /* NaN stays */
    for (int i = 0; i < SEQS && ok && how != DEV_ATTN_EXACT; i++)
        for (int64_t t = 0; t < c->seq[i].n; t++)
            for (int64_t h = 0; h < c->H; h++) {
                const int64_t row = o.seqs[i].row0 + t;
                by_hand(out, bound, c, o.q + row * qw + h * c->D, o.keys[i], o.values[i],
                        c->seq[i].pos0 + t, c->seq[i].pos0 + c->seq[i].n, h, u);
                for (int64_t d = 0; d < c->Dv; d++) {
                    const double diff = fabs((double)got[row * ow + h * c->Dv + d] - out[d]);
                    if (worst >= 0 && !(diff <= worst * bound[d])) worst = diff / bound[d];
                }
            }
    CHECK(worst <= 1, "%s%s: %g of the bound", c->why, flat ? ", flat" : "", worst);
    if (getenv("SHOW")) printf("%s%s: %g of the bound\n", c->why, flat ? ", flat" : "", worst);
    rig_close(r);
}

/* A decode step's attention that rotates, writes the cache and merges by itself leaves the bytes
 * that it does with launches for those. The step's own keys are not in its cache: what they lie on
 * is NaN. */
static void one_joined(const attn_case *c, int block, bool half, bool in_rows)
{
    const int64_t H = c->H, Hkv = c->Hkv, D = c->D, Dv = c->Dv, R = D / 8 * 4,
                  w = H * D + Hkv * (D + Dv);
    call o;
    call_open(&o, c, DEV_ATTN_DECODE, false, false, block);
    rig *r = &o.r;
    const int64_t rows = o.rows, n_done = dev_attn_done(o.a.n_chunks, H, Hkv);
    const size_t bytes = o.stride * (size_t)o.n_blocks, out = (size_t)(rows * H * Dv) * 4;
    int32_t *blocks = lq_push(&r->a, (size_t)rows * 4), *slots = lq_push(&r->a, (size_t)rows * 4),
            *done = lq_push(&r->a, (size_t)n_done * 4);
    uint8_t *caches[2] = { lq_push(&r->a, bytes), lq_push(&r->a, bytes) };
    float *outs[2] = { floats(r, rows * H * Dv, 2), floats(r, rows * H * Dv, 3) };
    for (int i = 0; i < SEQS; i++)
        for (int64_t t = 0; t < c->seq[i].n; t++) {
            const int64_t p = c->seq[i].pos0 + t, row = o.seqs[i].row0 + t;
            blocks[row] = o.seqs[i].table[p / block];
            slots[row] = (int32_t)(p % block);
            for (int64_t h = 0; h < Hkv; h++) {
                uint8_t *in = o.cache + (size_t)blocks[row] * o.stride;
                const size_t kr = attn_kv_row_bytes(c->dtype, D),
                             vr = attn_kv_row_bytes(c->dtype, Dv),
                             line = (size_t)(h * block + p % block);
                memset(in + line * kr, 0xff, kr);
                memset(in + o.kb + line * vr, 0xff, vr);
            }
        }
    memset(done, 0, (size_t)n_done * 4);
    float *qkv = floats(r, rows * w, 4), *cos = floats(r, rows * (R / 2), 5),
          *sin = floats(r, rows * (R / 2), 6);
    dev_rope_args rope = { .cos = put(r, cos, (size_t)(rows * (R / 2)) * 4),
                           .sin = put(r, sin, (size_t)(rows * (R / 2)) * 4),
                           .block = put(r, blocks, (size_t)rows * 4),
                           .slot = put(r, slots, (size_t)rows * 4),
                           .block_stride = o.stride,
                           .block_size = block,
                           .dtype = c->dtype,
                           .half = half,
                           .T = rows,
                           .H = H,
                           .Hkv = Hkv,
                           .D = D,
                           .Dv = Dv,
                           .R = R,
                           .ld = in_rows ? w : 0 };
    int32_t *done_on = put(r, done, (size_t)n_done * 4);
    bool ok = true;
    for (int joined = 0; joined < 2 && ok; joined++) {
        uint8_t *on = put(r, o.cache, bytes);
        float *all = put(r, qkv, (size_t)(rows * w) * 4);
        rope.q = all;
        rope.k = all + H * D * (in_rows ? 1 : rows);
        rope.v = rope.k + Hkv * D * (in_rows ? 1 : rows);
        rope.cache_k = on;
        rope.cache_v = on + o.kb;
        o.a.q = all;
        o.a.ldq = in_rows ? w : H * D;
        o.a.k = on;
        o.a.v = on + o.kb;
        o.a.rope = joined ? &rope : NULL;
        o.a.done = joined ? done_on : NULL;
        if (!joined) ops->rope(&r->d, &rope);
        const size_t before = emu_counted.launches;
        ops->attn(&r->d, &o.a);
        CHECK(getenv("LLMQ_TEST_DEVICE") || emu_counted.launches - before == (joined ? 1 : 2),
              "%s: %zu launches", c->why, emu_counted.launches - before);
        ok = get(r, outs[joined], o.a.out, out, c->why) &&
             get(r, caches[joined], on, bytes, c->why) &&
             get(r, done, done_on, (size_t)n_done * 4, c->why);
    }
    CHECK(!ok || memcmp(outs[0], outs[1], out) == 0, "%s: other bits", c->why);
    CHECK(!ok || memcmp(caches[0], caches[1], bytes) == 0, "%s: another cache", c->why);
    for (int64_t i = 0; i < n_done; i++)
        CHECK(done[i] == 0, "%s: %d blocks too many", c->why, done[i]);
    rig_close(r);
}

TEST(attention_is_the_cpus_bits)
{
    for (size_t i = 0; i < LQ_COUNT(attn_cases); i++)
        one_attention(&attn_cases[i], DEV_ATTN_EXACT, false, false, block_of(i));
}

/* Exact, and through the matrix units; every other case of each. */
TEST(attention_that_sees_both_ways_is_as_good)
{
    sees_after = true;
    for (size_t i = 0; i < LQ_COUNT(attn_cases); i += check_hard() ? 1 : 2)
        one_attention(&attn_cases[i], DEV_ATTN_EXACT, false, false, block_of(i));
    one_attention(&wide_cases[0], DEV_ATTN_EXACT, false, false, block_of(0));
    for (size_t i = 0; i < LQ_COUNT(unit_cases); i += check_hard() ? 1 : 2) {
        one_attention(&unit_cases[i], DEV_ATTN_UNITS, i % 4 == 0, false, block_of(i));
        if (!unit_cases[i].alibi)
            one_attention(&unit_cases[i], DEV_ATTN_UNITS, i % 4 != 0, true, block_of(i));
    }
    sees_after = false;
}

TEST(attention_of_wide_heads_is_the_cpus_bits)
{
    for (size_t i = 0; i < LQ_COUNT(wide_cases); i++)
        one_attention(&wide_cases[i], DEV_ATTN_EXACT, false, false, block_of(i));
    for (size_t i = 0; i < LQ_COUNT(wide_exact_cases); i++)
        one_attention(&wide_exact_cases[i], DEV_ATTN_EXACT, false, false, block_of(i));
}

TEST(attention_over_latents_is_the_cpus_bits)
{
    for (size_t i = 0; i < LQ_COUNT(latent_cases); i++)
        one_attention(&latent_cases[i], DEV_ATTN_EXACT, false, false, block_of(i));
}

static void both_ways(const attn_case *c, size_t i)
{
    CHECK(dev_attn_units(c->dtype, c->D, c->Dv, c->latent), "%s: not for the units", c->why);
    one_attention(c, DEV_ATTN_LATENT, i % 2, false, block_of(i));
    one_attention(c, DEV_ATTN_LATENT, i % 2 == 0, true, block_of(i));
}

TEST(attention_over_latents_through_the_matrix_units_stays_within_their_bound)
{
    for (size_t i = 0; i < LQ_COUNT(latent_cases); i++)
        both_ways(&latent_cases[i], i);
}

TEST(attention_of_wide_heads_through_the_matrix_units_stays_within_their_bound)
{
    for (size_t i = 0; i < LQ_COUNT(wide_cases); i++)
        both_ways(&wide_cases[i], i);
}

TEST(attention_through_the_matrix_units_stays_within_its_bound)
{
    for (size_t i = 0; i < LQ_COUNT(unit_cases); i++) {
        const attn_case *c = &unit_cases[i];
        CHECK(dev_attn_units(c->dtype, c->D, c->Dv, false), "%s: not for the units", c->why);
        one_attention(c, DEV_ATTN_UNITS, i % 2, false, block_of(i));
        if (!c->alibi) one_attention(c, DEV_ATTN_UNITS, i % 2 == 0, true, block_of(i));
    }
}

TEST(attention_through_wgmma_stays_within_the_same_bound)
{
    static const attn_case more[] = {
        { "two warpgroups, groups of 5, tiles over a split",
          10,
          2,
          128,
          96,
          KV_BF16,
          0,
          0,
          0,
          0,
          0,
          false,
          { { 2040, 33 }, { 0, 130 } } },
    };
    rig r;
    rig_open(&r);
    const dev on = { .cc = r.d.cc };
    rig_close(&r);
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(unit_cases) + LQ_COUNT(more) && on.cc == 90; i++) {
        const attn_case *c =
            i < LQ_COUNT(unit_cases) ? &unit_cases[i] : &more[i - LQ_COUNT(unit_cases)];
        if (dev_attn_choose(&on, MM_BF16, c->dtype, c->D, c->Dv, false, DEV_ATTN_FEW + 1) !=
            DEV_ATTN_WIDE)
            continue;
        n++;
        one_attention(c, DEV_ATTN_WIDE, i % 2, false, block_of(i));
        if (i >= LQ_COUNT(unit_cases) && !check_hard()) continue; /* as long as all the others */
        if (!c->alibi) one_attention(c, DEV_ATTN_WIDE, i % 2 == 0, true, block_of(i));
    }
    CHECK(on.cc != 90 || n > 8, "%d cases", n);
}

TEST(attention_of_few_rows_through_the_matrix_units_is_as_good_as_f32s)
{
    for (size_t i = 0; i < LQ_COUNT(attn_cases) + LQ_COUNT(unit_cases); i++) {
        const attn_case *c =
            i < LQ_COUNT(attn_cases) ? &attn_cases[i] : &unit_cases[i - LQ_COUNT(attn_cases)];
        if (!dev_attn_units(c->dtype, c->D, c->Dv, false)) continue;
        one_attention(c, DEV_ATTN_DECODE, false, false, block_of(i));
        if (!c->alibi) one_attention(c, DEV_ATTN_DECODE, false, true, block_of(i));
    }
}

TEST(attention_that_does_a_steps_other_work_too_leaves_the_same_bytes)
{
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(attn_cases); i++) {
        if (!dev_attn_units(attn_cases[i].dtype, attn_cases[i].D, attn_cases[i].Dv, false))
            continue;
        one_joined(&attn_cases[i], block_of(i), n % 2, n / 2 % 2);
        n++;
    }
    CHECK(n > 8, "%d cases", n);
}

TEST(the_units_are_for_whole_pieces_and_not_for_f32)
{
    const dev hopper = { .cc = 90 }, other = { .cc = 89 };
    CHECK(dev_attn_choose(&hopper, MM_BF16, KV_F16, 128, 64, false, 17) == DEV_ATTN_WIDE &&
              dev_attn_choose(&hopper, MM_BF16, KV_F16, 256, 64, false, 17) == DEV_ATTN_UNITS &&
              dev_attn_choose(&other, MM_BF16, KV_F16, 128, 64, false, 17) == DEV_ATTN_UNITS &&
              dev_attn_choose(&other, MM_BF16, KV_F16, 128, 64, false, 16) == DEV_ATTN_DECODE &&
              dev_attn_choose(&other, MM_BF16, KV_I4, 128, 64, false, 17) == DEV_ATTN_UNITS &&
              dev_attn_choose(&hopper, MM_BF16, KV_I8, 128, 64, false, 17) == DEV_ATTN_UNITS &&
              dev_attn_choose(&other, MM_F32, KV_F16, 128, 64, false, 17) == DEV_ATTN_EXACT,
          "which takes what");
    CHECK(dev_attn_units(KV_F16, 128, 64, false) && dev_attn_units(KV_BF16, 8, 256, false),
          "what they take");
    CHECK(!dev_attn_units(KV_F32, 64, 64, false) && dev_attn_units(KV_I8, 64, 64, false),
          "other caches");
    CHECK(dev_attn_units(KV_F16, 576, 512, true) && !dev_attn_units(KV_F16, 576, 512, false) &&
              dev_attn_units(KV_F16, 512, 264, false) &&
              dev_attn_choose(&other, MM_BF16, KV_F16, 576, 512, true, 1) == DEV_ATTN_LATENT &&
              dev_attn_choose(&hopper, MM_BF16, KV_I8, 576, 512, true, 17) == DEV_ATTN_LATENT &&
              dev_attn_choose(&hopper, MM_F32, KV_F16, 576, 512, true, 17) == DEV_ATTN_EXACT,
          "latents");
    CHECK(dev_attn_choose(&hopper, MM_BF16, KV_BF16, 512, 512, false, 1) == DEV_ATTN_LATENT &&
              dev_attn_choose(&other, MM_BF16, KV_F16, 64, 264, false, 17) == DEV_ATTN_LATENT &&
              dev_attn_choose(&other, MM_F32, KV_F16, 512, 512, false, 1) == DEV_ATTN_EXACT,
          "wide heads");
    CHECK(!dev_attn_units(KV_F16, 36, 64, false) && !dev_attn_units(KV_F16, 64, 20, false),
          "parts of a piece");
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(attention_is_the_cpus_bits);
    RUN(attention_over_latents_is_the_cpus_bits);
    RUN(attention_over_latents_through_the_matrix_units_stays_within_their_bound);
    RUN(attention_that_sees_both_ways_is_as_good);
    RUN(attention_of_wide_heads_is_the_cpus_bits);
    RUN(attention_of_wide_heads_through_the_matrix_units_stays_within_their_bound);
    RUN(attention_through_the_matrix_units_stays_within_its_bound);
    RUN(attention_through_wgmma_stays_within_the_same_bound);
    RUN(attention_of_few_rows_through_the_matrix_units_is_as_good_as_f32s);
    RUN(attention_that_does_a_steps_other_work_too_leaves_the_same_bytes);
    RUN(the_units_are_for_whole_pieces_and_not_for_f32);
    return check_end();
}
