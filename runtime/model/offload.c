/* runtime/model/offload.c - see offload.h. */
#include "runtime/model/offload.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 256,              /* that the host has in f32 at a time; whole tiles */
    SPARE = 64 << 20,        /* bytes that weights leave on the device */
    ATTN_PIECE = 512,        /* rows that attention takes at a time at most, */
    ATTN_SCRATCH = 256 << 20 /* ... or as many as take so much scratch */
};

/* Memory on the device that grows. */
typedef struct {
    float *at;
    size_t bytes;
} room;

typedef struct {
    const mm_weight *of;
    float *w; /* [N, K] on the device */
} held;

struct fwd_offload {
    dev *d;
    pool *p;
    held *held; /* [n_held], cap */
    int n_held, cap;
    room x, y;                             /* on the device */
    room q, out, kv, parts, plan, vectors; /* likewise, of attention */
    void *plan_here;
    size_t plan_bytes;
    float *x_here, *y_here;    /* inputs in rows of K; [ROWS, N] of what came down */
    size_t x_floats, y_floats; /* they have room for */
    lq_status bad;             /* of the host or of the device */
    lq_err why;
};

lq_status fwd_offload_open(fwd_offload **out, dev *d, pool *p, lq_err *err)
{
    fwd_offload *o = *out = calloc(1, sizeof *o);
    if (!o) return lq_fail(err, LQ_ENOMEM, "out of memory");
    o->d = d;
    o->p = p;
    return LQ_OK;
}

void fwd_offload_drop(fwd_offload *o)
{
    while (o->n_held)
        o->d->ops->free(o->d, o->held[--o->n_held].w);
}

void fwd_offload_close(fwd_offload *o)
{
    if (!o) return;
    o->d->ops->bind(o->d);
    fwd_offload_drop(o);
    room *const all[] = { &o->x, &o->y, &o->q, &o->out, &o->kv, &o->parts, &o->plan, &o->vectors };
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        o->d->ops->free(o->d, all[i]->at);
    free(o->plan_here);
    free(o->x_here);
    free(o->y_here);
    free(o->held);
    free(o);
}

static void failed(fwd_offload *o, lq_status s, const lq_err *why)
{
    if (o->bad) return;
    o->bad = s;
    o->why = *why;
}

lq_status fwd_offload_check(fwd_offload *o, lq_err *err)
{
    lq_err why = { "" };
    const lq_status s = o->d->ops->sync(o->d, &why), was = s && !o->bad ? s : o->bad;
    if (was && err) *err = o->bad ? o->why : why;
    o->bad = LQ_OK;
    return was;
}

static void offload_no_memory(fwd_offload *o)
{
    lq_err why = { "" };
    failed(o, lq_fail(&why, LQ_ENOMEM, "out of memory"), &why);
}

/* Memory of the device; weights make room. */
static float *take(fwd_offload *o, size_t bytes)
{
    if (o->n_held && o->d->ops->room(o->d) < bytes + SPARE) fwd_offload_drop(o);
    return o->d->ops->alloc(o->d, bytes);
}

static float *grown(fwd_offload *o, room *r, size_t bytes)
{
    if (bytes > r->bytes) {
        o->d->ops->free(o->d, r->at);
        r->at = take(o, bytes);
        r->bytes = r->at ? bytes : 0;
    }
    return r->at;
}

typedef struct {
    float *to;
    const qt_tensor *t;
} dequant;

static void dequant_rows(void *ctx, int64_t item, int thread)
{
    const dequant *q = ctx;
    const int64_t n0 = item * TILE_N, n1 = n0 + TILE_N < q->t->N ? n0 + TILE_N : q->t->N;
    (void)thread;
    qt_dequant(q->to + n0 * q->t->K, q->t, n0, n1);
}

/* Rows n0 .. n1 of w in f32, and up; false: out of memory. */
static bool put_rows(fwd_offload *o, float *on, const mm_weight *w, int64_t n0, int64_t n1)
{
    qt_tensor tiled, t;
    void *planes[QT_N_PLANES] = { NULL };
    const int64_t K = w->t.K;
    float *here = malloc((size_t)((n1 - n0) * K) * sizeof *here);
    bool ok = here && tiles_rows(&tiled, &w->t, n0, n1);
    t = (qt_tensor){ .scheme = w->t.scheme, .layout = QT_PORTABLE, .N = n1 - n0, .K = K };
    for (int i = 0; i < QT_N_PLANES && ok; i++) {
        const size_t n = qt_plane_bytes(&t.scheme, QT_PORTABLE, t.N, K, (qt_plane)i);
        if (!n) continue;
        planes[i] = malloc(n);
        t.plane[i] = (qt_span){ planes[i], n };
        ok = planes[i];
    }
    if (ok) ok = !tiles_unpack(planes, &tiled, NULL);
    if (ok) pool_run(o->p, lq_ceil_div(t.N, TILE_N), dequant_rows, &(dequant){ here, &t });
    if (ok) o->d->ops->upload(o->d, on + n0 * K, here, (size_t)(t.N * K) * sizeof *here);
    for (int i = 0; i < QT_N_PLANES; i++)
        free(planes[i]);
    free(here);
    return ok;
}

/* The weight there; NULL after a failure. */
static const float *weight(fwd_offload *o, const mm_weight *w)
{
    for (int i = 0; i < o->n_held; i++)
        if (o->held[i].of == w) return o->held[i].w;
    if (o->n_held == o->cap) {
        const int cap = o->cap ? 2 * o->cap : 16;
        held *more = realloc(o->held, (size_t)cap * sizeof *more);
        if (!more) offload_no_memory(o);
        if (!more) return NULL;
        o->held = more;
        o->cap = cap;
    }
    float *on = take(o, (size_t)(w->t.N * w->t.K) * sizeof *on);
    if (!on) return NULL;
    bool ok = true;
    for (int64_t n = 0; n < w->t.N && ok; n += ROWS)
        ok = put_rows(o, on, w, n, n + ROWS < w->t.N ? n + ROWS : w->t.N);
    if (!ok) offload_no_memory(o);
    o->held[o->n_held].of = w;
    o->held[o->n_held++].w = on;
    return on;
}

/* n rows of out's product, which begin at y on the device. */
static void take_rows(fwd_offload *o, const mm_out *out, int64_t m0, const float *y, int64_t n)
{
    const int64_t N = out->w->t.N;
    lq_err why = { "" };
    o->d->ops->download(o->d, o->y_here, y, (size_t)(n * N) * sizeof *y);
    const lq_status s = o->d->ops->sync(o->d, &why);
    if (s) failed(o, s, &why);
    for (int64_t m = 0; m < n && !s; m++)
        for (int64_t i = 0; i < N; i++) {
            float *to = out->y + (m0 + m) * out->ldy + i;
            const float v = o->y_here[m * N + i] + (out->bias ? out->bias[i] : 0.0f);
            *to = out->add ? *to + v : v;
        }
}

/* Room for n floats on the host. */
static bool grown_here(fwd_offload *o, float **at, size_t *floats, size_t n)
{
    if (n > *floats) {
        free(*at);
        *at = malloc(n * sizeof **at);
        *floats = *at ? n : 0;
    }
    if (!*at) offload_no_memory(o);
    return *at;
}

/* One product from the inputs that are there already. */
static void product(fwd_offload *o, const mm_out *out, int64_t M)
{
    const int64_t N = out->w->t.N, K = out->w->t.K;
    const size_t rows = (size_t)(ROWS * N);
    float *y = grown(o, &o->y, (size_t)(M * N) * sizeof *y);
    const float *w = weight(o, out->w); /* last: what else is taken may drop it */
    if (!grown_here(o, &o->y_here, &o->y_floats, rows) || !w || !y) return;
    o->d->ops->gemm(o->d, &(dev_gemm_args){ .C = y,
                                            .A = o->x.at,
                                            .B = w,
                                            .ldc = N,
                                            .lda = K,
                                            .ldb = K,
                                            .M = M,
                                            .N = N,
                                            .K = K,
                                            .tb = true });
    for (int64_t m = 0; m < M && !o->bad; m += ROWS)
        take_rows(o, out, m, y + m * N, M - m < ROWS ? M - m : ROWS);
}

/* That mm_run sums over K in its order, and all at once. */
static bool in_order(const qt_scheme *s)
{
    return !s->act && s->kind != QT_I8_OUTLIER && s->kind != QT_BLOCKS &&
           !(s->kind == QT_UINT && s->act_order);
}

/* A job's inputs, in rows of K; NULL: no memory. */
static const float *inputs(fwd_offload *o, const mm_job *j)
{
    const int64_t K = j->outs->w->t.K;
    if (j->ldx == K && !j->rows) return j->x;
    if (!grown_here(o, &o->x_here, &o->x_floats, (size_t)(j->M * K))) return NULL;
    for (int64_t m = 0; m < j->M; m++)
        memcpy(o->x_here + m * K, j->x + (j->rows ? j->rows[m] : m) * j->ldx,
               (size_t)K * sizeof *o->x_here);
    return o->x_here;
}

bool fwd_offload_products(fwd_offload *o, const mm_job *j)
{
    const size_t bytes = (size_t)(j->M * j->outs->w->t.K) * sizeof(float);
    for (int i = 0; i < j->n_outs; i++)
        if (!in_order(&j->outs[i].w->t.scheme) || j->outs[i].up) return false;
    if (o->bad || j->M == 0) return true;
    o->d->ops->bind(o->d);
    float *on = grown(o, &o->x, bytes);
    const float *x = on ? inputs(o, j) : NULL;
    if (x) o->d->ops->upload(o->d, on, x, bytes);
    for (int i = 0; i < j->n_outs && x; i++)
        product(o, &j->outs[i], j->M);
    return true;
}

/* ---- attention ---- */

/* A kind of attention that DEV_ATTN_EXACT knows, over numbers in f32. */
static bool known(const attn_args *a, bool latent)
{
    const int64_t most = latent ? DEV_ATTN_LATENT_WIDTH : a->alibi ? DEV_ATTN_WIDTH : DEV_ATTN_HEAD;
    return kv_of(a->dtype, true) == KV_F32 && kv_of(a->dtype, false) == KV_F32 && !a->turned &&
           !a->bf16 && !a->paired && !a->chunks && !a->dist_bias && !a->dist_row && !a->keys &&
           a->D <= most && a->Dv <= most && a->D % 4 == 0 && a->Dv % 4 == 0 &&
           !(latent && (a->alibi || a->sinks));
}

/* A sequence's blocks begin at a->k, one after the other. */
static int64_t blocks_of(const attn_args *a, const attn_seq *s)
{
    const int64_t n = lq_ceil_div(s->pos0 + s->n_rows, a->block_size);
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++)
        most = s->table[i] > most ? s->table[i] : most;
    return most + 1;
}

/* Rows of a sequence that are planned together. */
typedef struct {
    attn_seq seq;
    int64_t end; /* of dev_attn_plan */
    int64_t n_chunks, n_slots;
    size_t chunks, chunk_of,
        bytes; /* where they begin in the plan, after the table; of all of it */
    size_t scratch;
} piece;

static piece piece_of(const attn_args *a, const attn_seq *s, int64_t from, int64_t rows)
{
    const int64_t left = s->n_rows - from;
    piece p = {
        .seq = { .row0 = from, .n_rows = left < rows ? left : rows, .pos0 = s->pos0 + from },
        .end = a->both ? s->pos0 + s->n_rows : 0
    };
    dev_attn_plan(DEV_ATTN_EXACT, NULL, &p.n_chunks, NULL, &p.n_slots, &p.seq, 0, ATTN_SPLIT, a->H,
                  a->Hkv, a->window, p.end);
    p.chunks =
        lq_round_up((size_t)lq_ceil_div(s->pos0 + s->n_rows, a->block_size) * sizeof *s->table, 64);
    p.chunk_of = p.chunks + lq_round_up((size_t)p.n_chunks * sizeof(dev_attn_chunk), 64);
    p.bytes = p.chunk_of + (size_t)p.n_slots * sizeof(int32_t);
    p.scratch = dev_attn_scratch(DEV_ATTN_EXACT, p.n_slots, a->H, a->Hkv, a->Dv);
    return p;
}

/* The plan of a piece, up. */
static bool put_plan(fwd_offload *o, const attn_args *a, const attn_seq *s, const piece *p)
{
    if (p->bytes > o->plan_bytes) {
        free(o->plan_here);
        o->plan_here = malloc(p->bytes);
        o->plan_bytes = o->plan_here ? p->bytes : 0;
    }
    if (!o->plan_here) offload_no_memory(o);
    if (!o->plan_here || !grown(o, &o->plan, p->bytes)) return false;
    char *here = o->plan_here;
    int64_t chunks = 0, slots = 0;
    memcpy(here, s->table,
           (size_t)lq_ceil_div(s->pos0 + s->n_rows, a->block_size) * sizeof *s->table);
    dev_attn_plan(DEV_ATTN_EXACT, (dev_attn_chunk *)(void *)(here + p->chunks), &chunks,
                  (int32_t *)(void *)(here + p->chunk_of), &slots, &p->seq, 0, ATTN_SPLIT, a->H,
                  a->Hkv, a->window, p->end);
    o->d->ops->upload(o->d, o->plan.at, here, p->bytes);
    return true;
}

/* Slopes of ALiBi, and sinks, up: [2][H]. */
static bool put_vectors(fwd_offload *o, const attn_args *a)
{
    const size_t bytes = (size_t)a->H * sizeof(float);
    if (!a->alibi && !a->sinks) return true;
    if (!grown(o, &o->vectors, 2 * bytes)) return false;
    if (a->alibi) o->d->ops->upload(o->d, o->vectors.at, a->alibi, bytes);
    if (a->sinks) o->d->ops->upload(o->d, o->vectors.at + a->H, a->sinks, bytes);
    return true;
}

static bool attend(fwd_offload *o, const attn_args *a, const attn_seq *s, bool latent)
{
    const size_t kv = (size_t)blocks_of(a, s) * a->block_stride;
    const int64_t ldo = a->H * a->Dv;
    int64_t rows = ATTN_PIECE;
    while (rows > 1 &&
           piece_of(a, s, s->n_rows - rows < 0 ? 0 : s->n_rows - rows, rows).scratch > ATTN_SCRATCH)
        rows /= 2;
    if (!grown(o, &o->kv, kv) || !put_vectors(o, a)) return false;
    const uint8_t *cache = (const uint8_t *)o->kv.at;
    o->d->ops->upload(o->d, o->kv.at, a->k, kv);
    dev_attn_args on = { .how = DEV_ATTN_EXACT,
                         .split = ATTN_SPLIT,
                         .k = cache,
                         .v = cache + (a->v - a->k),
                         .alibi = a->alibi ? o->vectors.at : NULL,
                         .sinks = a->sinks ? o->vectors.at + a->H : NULL,
                         .ldq = a->ldq,
                         .ldo = ldo,
                         .H = a->H,
                         .Hkv = a->Hkv,
                         .D = a->D,
                         .Dv = a->Dv,
                         .window = a->window,
                         .block_stride = a->block_stride,
                         .block_size = a->block_size,
                         .dtype = KV_F32,
                         .scale = a->scale,
                         .softcap = a->softcap,
                         .alibi_scaled = a->alibi_scaled,
                         .alibi_bf16 = a->alibi_bf16,
                         .both = a->both,
                         .latent = latent };
    for (int64_t i = 0; i < s->n_rows; i += rows) {
        piece p = piece_of(a, s, i, rows);
        const int64_t n = p.seq.n_rows;
        const size_t q = (size_t)(n * a->ldq) * sizeof(float),
                     out = (size_t)(n * ldo) * sizeof(float);
        p.seq.row0 = 0;
        if (!put_plan(o, a, s, &p) || !grown(o, &o->q, q) || !grown(o, &o->out, out) ||
            !grown(o, &o->parts, p.scratch))
            return false;
        const char *plan = (const char *)o->plan.at;
        o->d->ops->upload(o->d, o->q.at, a->q + (s->row0 + i) * a->ldq, q);
        on.q = o->q.at;
        on.out = o->out.at;
        on.scratch = o->parts.at;
        on.tables = (const int32_t *)(const void *)plan;
        on.chunks = (const dev_attn_chunk *)(const void *)(plan + p.chunks);
        on.chunk_of = (const int32_t *)(const void *)(plan + p.chunk_of);
        on.n_chunks = p.n_chunks;
        on.n_slots = p.n_slots;
        o->d->ops->attn(o->d, &on);
        o->d->ops->download(o->d, a->out + (s->row0 + i) * a->ldo, o->out.at, out);
    }
    return true;
}

bool fwd_offload_attention(fwd_offload *o, const attn_args *a)
{
    lq_err why = { "" };
    const bool latent = a->v == a->k;
    if (!known(a, latent) || a->ldo != a->H * a->Dv) return false;
    if (o->bad) return true;
    o->d->ops->bind(o->d);
    for (int i = 0; i < a->n_seqs; i++)
        if (!attend(o, a, &a->seqs[i], latent)) return true;
    const lq_status s = o->d->ops->sync(o->d, &why);
    if (s) failed(o, s, &why);
    return true;
}
