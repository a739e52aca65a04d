/* runtime/kl_base.c - see kl_base.h. */
#include "runtime/kl_base.h"

#include "kernels/ops.h"

#include <stdlib.h>

enum { HEAD = 20, ROW_HEAD = 8, CHUNK = 256 };
static const char magic[] = "_logits_";
static const float LEAST = 16; /* nats below the largest, and of probabilities that count */

int64_t kl_base_first(int64_t ctx) { return ctx / 2 + 1; }
size_t kl_base_row_bytes(int64_t V) { return ROW_HEAD + 2 * (size_t)(V + V % 2); }

static int64_t int_at(const uint8_t *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The bytes of such a file; false: none can be as long. */
static bool file_bytes(const kl_base *b, size_t *n)
{
    size_t ids, rows;
    const bool ok = lq_mul((size_t)b->windows, (size_t)b->ctx * sizeof *b->ids, &ids) &&
                    lq_mul((size_t)b->windows, (size_t)(b->ctx - kl_base_first(b->ctx)), &rows) &&
                    lq_mul(rows, kl_base_row_bytes(b->V), &rows) && rows <= SIZE_MAX - ids - HEAD;
    *n = HEAD + ids + rows;
    return ok;
}

static lq_status read_sizes(kl_base *b, lq_err *err)
{
    const uint8_t *p = b->map.data;
    size_t want;
    if (b->map.size < HEAD || memcmp(p, magic, sizeof magic - 1) != 0)
        return lq_fail(err, LQ_EFORMAT,
                       "expected a file of llama-perplexity --kl-divergence-base, which begins "
                       "with %s",
                       magic);
    b->ctx = int_at(p + 8);
    b->V = int_at(p + 12);
    b->windows = int_at(p + 16);
    if (b->ctx < 3 || b->V < 1 || b->windows < 1)
        return lq_fail(err, LQ_EFORMAT,
                       "expected windows of at least 3 tokens, found %lld windows of %lld tokens "
                       "and a vocabulary of %lld",
                       (long long)b->windows, (long long)b->ctx, (long long)b->V);
    if (!file_bytes(b, &want) || want != b->map.size)
        return lq_fail(err, LQ_EFORMAT,
                       "%lld windows of %lld tokens and a vocabulary of %lld: expected %zu bytes, "
                       "found %zu",
                       (long long)b->windows, (long long)b->ctx, (long long)b->V, want,
                       b->map.size);
    return LQ_OK;
}

lq_status kl_base_open(kl_base *b, const char *path, lq_err *err)
{
    memset(b, 0, sizeof *b);
    lq_status s = lq_map_open(&b->map, path, err);
    if (s) return s;
    if ((s = read_sizes(b, err))) return lq_wrap(err, s, "%s", path);
    const size_t ids = (size_t)(b->windows * b->ctx) * sizeof *b->ids;
    if (!(b->ids = malloc(ids))) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    memcpy(b->ids, b->map.data + HEAD, ids);
    b->rows = b->map.data + HEAD + ids;
    return LQ_OK;
}

void kl_base_close(kl_base *b)
{
    free(b->ids);
    lq_map_close(&b->map);
    memset(b, 0, sizeof *b);
}

/* A row's log probabilities from `at` on. */
typedef struct {
    float step, least;
    const uint8_t *codes;
} base_row;

static float log_p(const base_row *r, int64_t v)
{
    uint16_t code;
    memcpy(&code, r->codes + 2 * v, sizeof code);
    return r->step * (float)code + r->least;
}

eval_score kl_base_score(const kl_base *b, int64_t row, const float *x, int64_t target)
{
    const uint8_t *p = b->rows + (size_t)row * kl_base_row_bytes(b->V);
    base_row r = { .codes = p + ROW_HEAD };
    int64_t top, ref_top = 0;
    float most = -INFINITY;
    memcpy(&r.step, p, sizeof r.step);
    memcpy(&r.least, p + 4, sizeof r.least);
    const double lse = eval_log_sum(x, b->V, &top);
    eval_score s = { .nll = lse - (double)x[target], .ref_nll = -(double)log_p(&r, target) };
    for (int64_t at = 0; at < b->V; at += CHUNK) {
        float lp[CHUNK], e[CHUNK];
        const int64_t m = b->V - at < CHUNK ? b->V - at : CHUNK;
        for (int64_t i = 0; i < m; i++) {
            lp[i] = log_p(&r, at + i);
            if (lp[i] > most) {
                most = lp[i];
                ref_top = at + i;
            }
        }
        k_exp_minus(e, lp, 0, m);
        for (int64_t i = 0; i < m; i++)
            if (lp[i] > -LEAST) s.kl += (double)e[i] * ((double)lp[i] - ((double)x[at + i] - lse));
    }
    s.agree = top == ref_top;
    return s;
}

void kl_base_encode(uint8_t *row, const float *x, int64_t V)
{
    int64_t top;
    const float lse = (float)(eval_log_sum(x, V, &top) - (double)x[top]); /* over the largest */
    float least = x[0];
    for (int64_t i = 1; i < V; i++)
        least = x[i] < least ? x[i] : least;
    if (least < x[top] - LEAST) least = x[top] - LEAST;
    const float step = (x[top] - least) / 65535.0f, inv = step > 0 ? 1 / step : 0;
    const float least_p = least - x[top] - lse;
    memset(row, 0, kl_base_row_bytes(V));
    memcpy(row, &step, sizeof step);
    memcpy(row + 4, &least_p, sizeof least_p);
    for (int64_t i = 0; i < V; i++) {
        const float q = x[i] > least ? rintf(inv * (x[i] - least)) : 0;
        const uint16_t code = (uint16_t)(q < 65535.0f ? q : 65535.0f);
        memcpy(row + ROW_HEAD + 2 * i, &code, sizeof code);
    }
}

lq_status kl_base_begin(lq_out *out, int64_t ctx, int64_t V, const int32_t *ids, int64_t windows,
                        lq_err *err)
{
    const int32_t sizes[] = { (int32_t)ctx, (int32_t)V, (int32_t)windows };
    lq_status s = lq_out_write(out, magic, sizeof magic - 1, err);
    if (!s) s = lq_out_write(out, sizes, sizeof sizes, err);
    return s ? s : lq_out_write(out, ids, (size_t)(windows * ctx) * sizeof *ids, err);
}
