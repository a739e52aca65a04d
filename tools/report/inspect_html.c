/* tools/report/inspect_html.c - see inspect_html.h. */
#include "tools/report/inspect_html.h"

#include "base/embed.h"
#include "formats/source/totals.h"
#include "formats/tensor/blocks.h"
#include "formats/tensor/tiles.h"
#include "tools/cli/html_page.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_SAMPLES = 512, MAX_SCHEMES = 64, ELEMENTS = 16, FLOATS = 4, HEAD = 32, REACH = 1 << 14 };
LQ_EMBED(ihtml_page, "tools/report/inspect.html");

/* ---- where a code lies ---- */
/* Bits shift .. shift + n of a code are bits `bit` .. of byte `byte` of the plane. */
typedef struct {
    size_t byte;
    int bit, n, shift;
} segment;

/* Of place p of row 0 in tiles (formats/tensor/tiles.h); returns how many. */
static int tile_segments(segment s[8], int bits, int64_t place)
{
    const size_t p = (size_t)place;
    if (bits >= 16) { /* dense: f32 [place][16 rows], else [place / 2][16 rows][2] */
        const size_t at = bits == 32 ? 64 * p : 64 * (p / 2) + 2 * (p % 2);
        for (int i = 0; i < bits / 8; i++)
            s[i] = (segment){ at + (size_t)i, 0, 8, 8 * i };
        return bits / 8;
    }
    const size_t step = p / 32 * (size_t)(64 * bits), q = p % 32;
    if (bits == 8) s[0] = (segment){ step + q / 4 * 64 + q % 4, 0, 8, 0 };
    if (bits == 4) s[0] = (segment){ step + q / 8 * 64 + q % 4, (int)(q % 8 / 4 * 4), 4, 0 };
    if (bits == 2 || bits == 3)
        s[0] = (segment){ step + q / 16 * 64 + q % 4, (int)(q % 16 / 4 * 2), 2, 0 };
    if (bits == 3) s[1] = (segment){ step + 128 + q % 4, (int)(q / 4), 1, 2 };
    return bits == 3 ? 2 : 1;
}

/* In blocks: the bits that change the code of element k, found by changing each. 0 where a code is
 * not made of bits of its own (points of lattices, digits to the base 3). */
static int block_segments(segment s[8], const qt_tensor *t, int64_t k)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const size_t block = (size_t)k / (size_t)type->elements * (size_t)type->bytes;
    const size_t at = (size_t)k % (size_t)type->elements;
    uint8_t bytes[256];
    blk_parts was, is;
    int n = 0, all = 0;
    memcpy(bytes, (const uint8_t *)t->plane[QT_CODES].data + block, (size_t)type->bytes);
    blk_take(&was, type, bytes);
    for (int i = 0; i < 8 * type->bytes; i++) {
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        blk_take(&is, type, bytes);
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        const int change = is.code[at] ^ was.code[at];
        if (!change) continue;
        if (n == 8 || (change & (change - 1)) || (all & change)) return 0;
        int shift = 0;
        while (change >> shift != 1)
            shift++;
        all |= change;
        s[n++] = (segment){ block + (size_t)i / 8, i % 8, 1, shift };
    }
    return all == (1 << type->bits) - 1 ? n : 0;
}

static int segments(segment s[8], const qt_tensor *t, int64_t k)
{
    if (t->scheme.kind == QT_BLOCKS) return block_segments(s, t, k);
    const int bits = tiles_bits(&t->scheme);
    if (t->layout == QT_TILE16) {
        const tile_shape shape = tiles_shape(&t->scheme, t->N, t->K);
        return tile_segments(s, bits, k / shape.G * shape.Gp + k % shape.G);
    }
    if (t->scheme.kind == QT_LUT4) {
        s[0] = (segment){ (size_t)k / 2, k % 2 ? 0 : 4, 4, 0 };
        return 1;
    }
    int n = 0;
    for (int done = 0; done < bits; n++) { /* a stream, low bits first */
        const size_t at = (size_t)k * (size_t)bits + (size_t)done;
        const int bit = (int)(at % 8), room = 8 - bit, left = bits - done;
        s[n] = (segment){ at / 8, bit, left < room ? left : room, done };
        done += s[n].n;
    }
    return n;
}

/* ---- what it stands for ---- */
static float number(const qt_tensor *t, qt_plane p, lq_dtype d, int64_t i)
{
    float v;
    lq_to_f32(&v, (const uint8_t *)t->plane[p].data + (size_t)i * lq_dtype_bytes(d), d, 1);
    return v;
}

typedef struct {
    float level, scale, bias; /* value = scale * level + bias */
    bool biased;
} meaning;

/* Of element k of row 0 of a portable tensor whose code is `code`. */
static meaning explain(const qt_tensor *t, uint32_t code, int64_t k)
{
    const qt_scheme *s = &t->scheme;
    meaning m = { .scale = 1 };
    int32_t g = s->kind == QT_UINT ? (int32_t)(k / s->group) : 0;
    if (s->kind == QT_BLOCKS) {
        const blk_type *type = blk_find(s->blocks);
        const int at = (int)(k % type->elements) / type->group;
        blk_parts b;
        blk_take(&b, type,
                 (const uint8_t *)t->plane[QT_CODES].data +
                     blk_row_bytes(type, k / type->elements * type->elements));
        m = (meaning){ (float)blk_value(type, code), blk_scale(type, &b, at), 0, type->bias != 0 };
        if (m.biased) m.bias = blk_bias(type, &b, at);
        return m;
    }
    if (s->act_order) memcpy(&g, (const uint8_t *)t->plane[QT_GIDX].data + 4 * k, 4);
    const uint8_t *zeros = t->plane[QT_ZEROS].data;
    if (s->kind == QT_UINT) {
        m.scale = number(t, QT_SCALES, s->scale_dtype, g);
        m.level = (float)code;
        m.biased = s->zero == QT_ZERO_BIAS;
        if (m.biased) m.bias = number(t, QT_ZEROS, s->scale_dtype, g);
        if (s->zero == QT_ZERO_NONE) m.level -= (float)(1 << (s->bits - 1));
        if (s->zero == QT_ZERO_INT) m.level -= (float)qt_get(zeros, g, s->zbits);
        if (s->zero == QT_ZERO_F16) m.level -= number(t, QT_ZEROS, LQ_F16, g);
    } else if (s->kind == QT_I8 || s->kind == QT_I8_OUTLIER) {
        m.scale = number(t, QT_SCALES, LQ_F32, 0) / (s->div127 ? 127 : 1);
        m.level = (float)((int)(code ^ 0x80) - 128 - (zeros ? (int8_t)zeros[0] : 0));
    } else if (s->kind == QT_LUT4) {
        m.scale = qt_lut_absmax(t, k / s->group);
        m.level = number(t, QT_MAP, LQ_F32, code);
    } else if (s->kind == QT_E4M3 || s->kind == QT_E2M1) {
        m.scale = qt_scale(t, 0, k);
        m.level = s->kind == QT_E4M3 ? lq_e4m3_to_f32((uint8_t)code) : qt_e2m1[code];
    }
    return m;
}

/* ---- JSON ---- */
static bool add_number(cJSON *o, const char *key, double v)
{
    return cJSON_AddNumberToObject(o, key, v) != NULL;
}

static bool add_segments(cJSON *o, const segment *s, int n)
{
    cJSON *list = cJSON_AddArrayToObject(o, "bits");
    for (int i = 0; i < n; i++) {
        const int v[] = { (int)s[i].byte, s[i].bit, s[i].n, s[i].shift };
        if (!cJSON_AddItemToArray(list, cJSON_CreateIntArray(v, 4))) return false;
    }
    return list != NULL;
}

/* Elements of row 0: `stored` as it lies, `plain` the same in the portable layout. */
static bool add_elements(cJSON *sample, const qt_tensor *stored, const qt_tensor *plain,
                         const float *row)
{
    const qt_scheme *scheme = &plain->scheme;
    const int64_t most = scheme->kind == QT_DENSE ? FLOATS : ELEMENTS;
    const uint8_t *codes = stored->plane[QT_CODES].data;
    const bool flip = stored->layout == QT_TILE16 &&
                      (scheme->kind == QT_I8 || scheme->kind == QT_I8_OUTLIER); /* + 128 there */
    cJSON *list = cJSON_AddArrayToObject(sample, "elements");
    bool ok = list != NULL;
    for (int64_t k = 0; k < plain->K && k < most && ok; k++) {
        segment at[8];
        const int n = segments(at, stored, k);
        if (!n) break;
        uint32_t code = 0;
        for (int i = 0; i < n; i++)
            code |= ((uint32_t)codes[at[i].byte] >> at[i].bit & ((1u << at[i].n) - 1))
                    << at[i].shift;
        int32_t in = (int32_t)k; /* input at place k: tiles bring the inputs of a group together */
        if (stored->layout == QT_TILE16 && scheme->act_order)
            memcpy(&in, (const uint8_t *)stored->plane[QT_GIDX].data + 4 * k, 4);
        cJSON *o = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(list, o) && add_number(o, "input", in) &&
             add_segments(o, at, n) && add_number(o, "code", code) &&
             add_number(o, "value", (double)row[in]);
        if (!ok || scheme->kind == QT_DENSE) continue;
        const meaning m = explain(plain, flip ? code ^ 0x80 : code, in);
        ok = add_number(o, "level", (double)m.level) && add_number(o, "scale", (double)m.scale) &&
             (!m.biased || add_number(o, "bias", (double)m.bias));
    }
    return ok;
}

/* First bytes in hex. */
static bool add_head(cJSON *o, qt_span p)
{
    char hex[2 * HEAD + 1] = "";
    for (size_t i = 0; i < p.bytes && i < HEAD; i++)
        snprintf(hex + 2 * i, 3, "%02x", ((const uint8_t *)p.data)[i]);
    return cJSON_AddStringToObject(o, "head", hex) != NULL;
}

/* The bytes that the elements' segments are in, by offset. */
static bool add_bytes(cJSON *sample, const qt_tensor *stored)
{
    const int64_t most = stored->scheme.kind == QT_DENSE ? FLOATS : ELEMENTS;
    cJSON *list = cJSON_AddArrayToObject(sample, "bytes");
    bool seen[REACH] = { false }, ok = list != NULL;
    for (int64_t k = 0; k < stored->K && k < most; k++) {
        segment at[8];
        for (int i = segments(at, stored, k) - 1; i >= 0; i--)
            if (at[i].byte < LQ_COUNT(seen)) seen[at[i].byte] = true;
    }
    for (size_t i = 0; i < LQ_COUNT(seen) && ok; i++)
        if (seen[i]) {
            const int v[] = { (int)i, ((const uint8_t *)stored->plane[QT_CODES].data)[i] };
            ok = cJSON_AddItemToArray(list, cJSON_CreateIntArray(v, 2));
        }
    return ok;
}

static bool add_planes(cJSON *sample, const qt_tensor *t)
{
    cJSON *list = cJSON_AddArrayToObject(sample, "planes");
    bool ok = list != NULL;
    for (int p = 0; p < QT_N_PLANES && ok; p++) {
        if (!t->plane[p].bytes) continue;
        cJSON *o = cJSON_CreateObject();
        ok = cJSON_AddItemToArray(list, o) &&
             cJSON_AddStringToObject(o, "name", qt_plane_text((qt_plane)p)) &&
             add_number(o, "bytes", (double)t->plane[p].bytes) && add_head(o, t->plane[p]);
    }
    return ok;
}

static lq_status add_sample(cJSON *tensor, const qt_tensor *t, lq_err *err)
{
    lq_arena a = { 0 };
    qt_tensor plain;
    float *row = malloc((size_t)t->K * sizeof *row);
    cJSON *sample = cJSON_AddObjectToObject(tensor, "sample");
    lq_status st = row && sample ? src_first_rows(&plain, t, &a, err) : LQ_ENOMEM;
    if (!st) {
        qt_dequant(row, &plain, 0, 1);
        const qt_scheme *s = &t->scheme;
        const bool ok = add_number(sample, "group", (double)s->group) &&
                        add_number(sample, "code_bits", tiles_bits(s)) && add_planes(sample, t) &&
                        add_bytes(sample, t) && add_elements(sample, t, &plain, row);
        if (!ok) st = LQ_ENOMEM;
    }
    lq_arena_free(&a);
    free(row);
    return st == LQ_ENOMEM ? lq_fail(err, st, "no memory for the page") : st;
}

/* The first tensors are drawn, and whatever has a scheme that none before it has. */
static bool is_drawn(char seen[MAX_SCHEMES][40], int *n_seen, const src_source *s, int64_t i)
{
    const src_tensor *x = src_tensor_at(s, i);
    char scheme[40];
    int k = 0;
    if (!x->plain || src_elements(x) < 1) return false;
    src_scheme_text(scheme, x);
    while (k < *n_seen && strcmp(seen[k], scheme) != 0)
        k++;
    if (k < *n_seen || k == MAX_SCHEMES) return i < MAX_SAMPLES;
    memcpy(seen[(*n_seen)++], scheme, sizeof scheme);
    return true;
}

lq_status ihtml_write(const char *path, cJSON *doc, const src_source *s, lq_err *err)
{
    cJSON *tensor = cJSON_GetObjectItemCaseSensitive(doc, "tensors")->child;
    char seen[MAX_SCHEMES][40];
    int n_seen = 0;
    lq_status st = LQ_OK;
    for (int64_t i = 0; i < src_n_tensors(s) && !st; i++, tensor = tensor->next) {
        if (!is_drawn(seen, &n_seen, s, i)) continue;
        qt_tensor t;
        src_load(&t, s, src_tensor_at(s, i));
        st = add_sample(tensor, &t, err);
        src_unload(s, src_tensor_at(s, i));
    }
    return st ? st : html_write(path, ihtml_page, ihtml_page_end, doc, err);
}
