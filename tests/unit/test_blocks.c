/* tests/unit/test_blocks.c - GGUF's blocks as published. Golden values: gguf-py 0.19 and ggml
 * (tests/golden/make/gguf_blocks.py). */
#include "base/file.h"
#include "formats/gguf/gguf_blocks.h"
#include "formats/tensor/blocks_uint.h"
#include "formats/tensor/error_bound.h"
#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <stdlib.h>

#define GOLDEN "tests/golden/gguf/blocks.bin"
enum { NAME = 16, K = 256, MOST = 512 };

static const ggml_type all[] = {
#define X(name, id, elements, bytes) GGML_##name,
    GGUF_TENSOR_TYPES(X)
#undef X
};

static bool type_named(ggml_type *t, const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (strcmp(gguf_type_text(all[i]), name) == 0) return *t = all[i], true;
    return false;
}

/* The record of a type: its blocks and values. */
static bool golden(const lq_map *m, ggml_type t, const uint8_t **blocks, float want[K])
{
    for (const uint8_t *p = m->data; p < m->data + m->size;) {
        uint32_t n;
        char name[NAME + 1] = "";
        ggml_type found;
        memcpy(name, p, NAME);
        memcpy(&n, p + NAME, 4);
        if (type_named(&found, name) && found == t) {
            *blocks = p + NAME + 4;
            memcpy(want, *blocks + n, K * sizeof *want);
            return true;
        }
        p += NAME + 4 + n + K * 4;
    }
    return false;
}

/* One row of a type's golden blocks in our scheme. */
static bool read_row(qt_tensor *q, void *w[QT_N_PLANES], const lq_map *m, ggml_type t,
                     float want[K], lq_arena *a)
{
    const qt_scheme s = gguf_scheme(t);
    const uint8_t *blocks;
    lq_err err = { "" };
    if (!golden(m, t, &blocks, want)) return false;
    CHECK(!qt_alloc(q, w, &s, 1, K, a, &err), "%s: %s", gguf_type_text(t), err.msg);
    gguf_unpack_row(w, q, 0, t, blocks);
    const float one = 1;
    if (w[QT_SCALES2]) memcpy(w[QT_SCALES2], &one, 4); /* NVFP4's, which blocks do not have */
    CHECK(!qt_check_view(q, &err), "%s: %s", gguf_type_text(t), err.msg);
    return true;
}

TEST(blocks_are_put_together_as_they_were_taken_apart)
{
    uint64_t seed = 3;
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        const blk_type *t = blk_find((int64_t)all[i]);
        if (!t || !blk_made_of(t)) continue;
        n++;
        for (int round = 0; round < 50; round++) {
            uint8_t block[256], again[256];
            blk_parts b;
            for (int k = 0; k < t->bytes; k++)
                block[k] = (uint8_t)fill_u32(&seed);
            blk_take(&b, t, block);
            blk_put(again, t, &b);
            CHECK(memcmp(block, again, (size_t)t->bytes) == 0, "%s", t->name);
        }
    }
    CHECK(n == 15, "%d types are made", n);
}

TEST(values_are_those_of_gguf_py_to_the_bit)
{
    lq_map m;
    lq_err err = { "" };
    CHECK(!lq_map_open(&m, GOLDEN, &err), "%s", err.msg);
    size_t n = 0;
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        qt_tensor q;
        void *w[QT_N_PLANES];
        lq_arena a = { 0 };
        float want[K], got[K];
        if (!read_row(&q, w, &m, all[i], want, &a)) continue;
        qt_dequant(got, &q, 0, 1);
        for (int k = 0; k < K; k++) {
            if (gguf_scheme(all[i]).kind == QT_E2M1) /* a code of -0 is 0 there */
                got[k] += 0.0f, want[k] += 0.0f;
            CHECK(memcmp(&got[k], &want[k], 4) == 0, "%s[%d]: %a instead of %a",
                  gguf_type_text(all[i]), k, (double)got[k], (double)want[k]);
            if (check_bad) return;
        }
        CHECK(!val_check(&q, true, &err), "%s", err.msg);
        lq_arena_free(&a);
        n++;
    }
    CHECK(n == 25, "%zu types", n);
    lq_map_close(&m);
}

TEST(blocks_come_back_byte_for_byte)
{
    lq_map m;
    lq_err err = { "" };
    CHECK(!lq_map_open(&m, GOLDEN, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        qt_tensor q;
        void *w[QT_N_PLANES];
        lq_arena a = { 0 };
        float want[K];
        const uint8_t *blocks;
        uint8_t out[MOST] = { 0 };
        ggml_type t;
        if (!read_row(&q, w, &m, all[i], want, &a)) continue;
        golden(&m, all[i], &blocks, want);
        CHECK(gguf_type_for(&t, &q, 0), "%s has no way back", gguf_type_text(all[i]));
        bool held = gguf_pack_row(out, &q, 0, t); /* Q8_0: Q5_0 is tried before it */
        for (size_t k = 1; !held && gguf_type_for(&t, &q, k); k++) {
            memset(out, 0, sizeof out);
            held = gguf_pack_row(out, &q, 0, t);
        }
        CHECK(held && t == all[i], "%s came back as %s", gguf_type_text(all[i]), gguf_type_text(t));
        CHECK(memcmp(out, blocks, gguf_row_bytes(t, K)) == 0, "%s: other bytes", gguf_type_text(t));
        lq_arena_free(&a);
    }
    lq_map_close(&m);
}

TEST(tiles_and_uint_hold_the_same_values)
{
    lq_map m;
    lq_err err = { "" };
    CHECK(!lq_map_open(&m, GOLDEN, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        qt_tensor q, uint;
        void *w[QT_N_PLANES], *tw[QT_N_PLANES];
        lq_arena a = { 0 };
        float want[K], got[K], tile[K * TILE_N];
        if (gguf_scheme(all[i]).kind != QT_BLOCKS) continue;
        CHECK(read_row(&q, w, &m, all[i], want, &a), "%s", gguf_type_text(all[i]));
        qt_tensor tiled = { .scheme = q.scheme, .layout = QT_TILE16, .N = 1, .K = K };
        for (int p = 0; p < QT_N_PLANES; p++) {
            const size_t n = qt_plane_bytes(&tiled.scheme, QT_TILE16, 1, K, (qt_plane)p);
            tw[p] = n ? lq_push(&a, n) : NULL;
            tiled.plane[p] = (qt_span){ tw[p], n };
        }
        tiles_pack(tw, &q, 0, 1);
        tiles_blocks(tile, &tiled, 0);
        CHECK(!blk_to_uint(&uint, &q, &a, &err), "%s", err.msg);
        CHECK(!qt_check_view(&uint, &err), "%s", err.msg);
        CHECK(qt_check_view(&tiled, &err) == LQ_EFORMAT, "tiles of blocks in a file");
        qt_dequant(want, &q, 0, 1);
        qt_dequant(got, &uint, 0, 1);
        for (int k = 0; k < K; k++)
            CHECK(got[k] >= want[k] && got[k] <= want[k] &&
                      memcmp(&tile[k * TILE_N], &want[k], 4) == 0,
                  "%s[%d]: %g and %g instead of %g", gguf_type_text(all[i]), k, (double)got[k],
                  (double)tile[k * TILE_N], (double)want[k]);
        lq_arena_free(&a);
        if (check_bad) return;
    }
    lq_map_close(&m);
}

/* A weight that a block stands for is within the block's bound of itself. */
TEST(every_value_is_within_its_bound)
{
    lq_map m;
    lq_err err = { "" };
    CHECK(!lq_map_open(&m, GOLDEN, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(all); i++) {
        qt_tensor q;
        void *w[QT_N_PLANES];
        lq_arena a = { 0 };
        float want[K], lo[K], hi[K], tol[K];
        if (gguf_scheme(all[i]).kind != QT_BLOCKS) continue;
        CHECK(read_row(&q, w, &m, all[i], want, &a), "%s", gguf_type_text(all[i]));
        bound_row(lo, hi, tol, &q, 0, LQ_F32);
        for (int k = 0; k < K; k++)
            CHECK(lo[k] <= want[k] && want[k] <= hi[k] && tol[k] >= 0, "%s[%d]: %g not in %g..%g",
                  gguf_type_text(all[i]), k, (double)want[k], (double)lo[k], (double)hi[k]);
        lq_arena_free(&a);
        if (check_bad) return;
    }
    lq_map_close(&m);
}

TEST(blocks_that_cannot_be_are_refused)
{
    static const struct {
        const char *why;
        int blocks;
        int64_t K;
        lq_status status;
    } t[] = { { "no such type", 9, 256, LQ_EUNSUPPORTED },
              { "none at all", 0, 256, LQ_EUNSUPPORTED },
              { "a row of a half block", BLK_Q4_K, 384, LQ_ESHAPE },
              { "a small block fits", BLK_IQ4_NL, 96, LQ_OK } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const qt_scheme s = { .kind = QT_BLOCKS, .blocks = t[i].blocks };
        lq_err err;
        CHECK(qt_check(&s, 2, t[i].K, &err) == t[i].status, "%s", t[i].why);
    }
    for (size_t i = 0; i < LQ_COUNT(all); i++) { /* infinity as d */
        const qt_scheme s = gguf_scheme(all[i]);
        if (s.kind != QT_BLOCKS) continue;
        uint8_t block[MOST];
        memset(block, 0, sizeof block);
        const blk_type *type = blk_find((int64_t)all[i]);
        if (type->d_at < 0) continue;
        block[type->d_at + 1] = 0x7c;
        qt_tensor q = { .scheme = s, .N = 1, .K = type->elements };
        q.plane[QT_CODES] = (qt_span){ block, (size_t)type->bytes };
        lq_err err;
        CHECK(val_check(&q, true, &err) == LQ_EVALUE, "%s: infinity was accepted", type->name);
    }
}

int main(int argc, char **argv)
{
    RUN(values_are_those_of_gguf_py_to_the_bit);
    RUN(blocks_are_put_together_as_they_were_taken_apart);
    RUN(blocks_come_back_byte_for_byte);
    RUN(tiles_and_uint_hold_the_same_values);
    RUN(every_value_is_within_its_bound);
    RUN(blocks_that_cannot_be_are_refused);
    return check_end();
}
