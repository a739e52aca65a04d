/* runtime/forward/forward_embed.c - from ids to the rows that the first layer reads:
 * norm(proj_in(embedding[id] * scale) + type[its] + position[pos]), each part where the model has it, or proj_in of the
 * others' norm (arch_wiring.proj_late); of an MTP head
 * (arXiv:2412.19437, equation 21) mtp_proj [norm(embedding[id]), norm(given)], or the other way round; of an
 * EAGLE-3 draft mtp_proj given, or its own state, and beside it what attention reads. */
#include "runtime/forward/forward_impl.h"

typedef struct {
    const model *m;
    const int32_t *ids;
    float *wide; /* the embedding's rows */
} embed_arg;

/* sin and cos of (pos + offset) * freq (arXiv:1706.03762, the halves side by side). */
static void sinusoid(float *x, const model *m, int64_t pos)
{
    const int64_t half = m->cfg->hidden / 2;
    const float p = (float)(pos + m->cfg->pos_offset);
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)(p * m->pos_freq[i]);
        x[i] = (float)sin(angle);
        x[half + i] = (float)cos(angle);
    }
    if (m->cfg->hidden % 2) x[2 * half] = 0;
}

static void lookup_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const embed_arg *a = arg;
    model_embed(a->m, a->wide + row * r->c->embed_dim, a->ids + row, n);
}

/* What types and positions are added to. */
static int64_t first_width(const arch_config *c)
{
    return c->w.proj_late ? c->embed_dim : c->hidden;
}
static float *first_rows(const fwd_rows *r)
{
    return r->c->w.proj_late && r->c->embed_dim != r->c->hidden ? r->e : r->x;
}

static void finish_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const embed_arg *a = arg;
    const model *m = a->m;
    const arch_config *c = r->c;
    const int64_t K = first_width(c);
    float *const to = first_rows(r);
    for (int64_t t = row; t < row + n; t++) {
        float *x = to + t * K, *pos = r->h + t * c->hidden;
        if (m->pos_embed.N) {
            int64_t at = r->row_pos[t] + c->pos_offset;
            qt_dequant(pos, &m->pos_embed, at, at + 1);
        } else if (m->pos_freq) {
            sinusoid(pos, m, r->row_pos[t]);
        }
        if (m->type_embed) k_add(x, m->type_embed + r->row_type[t] * K, K);
        if (m->pos_embed.N || m->pos_freq) k_add(x, pos, K);
    }
}

/* x and what is given, side by side. */
static void pair_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model *m = arg;
    const int64_t H = r->c->hidden;
    const model_vector *a = &m->mtp_embed_norm, *b = &m->mtp_hidden_norm;
    const int64_t embed = r->c->mtp->hidden_first ? H : 0;
    float *to = r->mtp_in + row * 2 * H;
    k_rmsnorm(to + embed, 2 * H, r->x + row * H, H, a->w, a->offset, n, H, a->eps);
    k_rmsnorm(to + H - embed, 2 * H, r->given + row * H, H, b->w, b->offset, n, H, b->eps);
}

/* The model's states, of which each or all as one are normed. */
static void norm_states(const fwd_rows *r, const model *m)
{
    const model_vector *v = &m->mtp_states_norm;
    const int64_t T = r->c->target_hidden, all = 3 * T, n = r->c->norm_each ? T : all;
    for (int64_t at = 0; at < all; at += n)
        k_rmsnorm(r->given + at, all, r->given + at, all, v->w + at, v->offset, r->R, n, v->eps);
}

/* x becomes what is given; mtp_in [norm(embedding[id]), norm(x)]. */
static void eagle_rows(const fwd_rows *r, const model *m)
{
    const arch_config *c = r->c;
    const int64_t H = c->hidden, R = r->R;
    const model_vector *embed = &m->mtp_embed_norm, *hidden = &m->mtp_hidden_norm,
                       *own = &m->final_norm;
    k_rmsnorm(r->mtp_in, 2 * H, r->x, H, embed->w, embed->offset, R, H, embed->eps);
    if (r->given_own && c->norm_own) {
        k_rmsnorm(r->x, H, r->given, H, own->w, own->offset, R, H, own->eps);
    } else if (r->given_own) {
        memcpy(r->x, r->given, (size_t)(R * H) * sizeof *r->x);
    } else {
        if (m->mtp_states_norm.w) norm_states(r, m);
        const mm_out out = fwd_out(&m->mtp_proj, r->x, H, false);
        mm_run(&out, 1, r->given, 3 * c->target_hidden, R, r->acts, r->scratch, r->p);
    }
    k_rmsnorm(r->mtp_in + H, 2 * H, r->x, H, hidden->w, hidden->offset, R, H, hidden->eps);
    for (int64_t t = 0; t < R && c->norm_first; t++)
        memcpy(r->x + t * H, r->mtp_in + (2 * t + 1) * H, (size_t)H * sizeof *r->x);
}

static void project(const fwd_rows *r, const model *m)
{
    const mm_out in = fwd_out(&m->proj_in, r->x, r->c->hidden, false);
    mm_run(&in, 1, r->e, r->c->embed_dim, r->R, r->acts, r->scratch, r->p);
}

static void affine_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_vector *v = arg;
    const int64_t H = r->c->hidden;
    float *x = r->x + row * H;
    for (int64_t i = 0; i < n * H; i++)
        x[i] = v->w[i % H] * x[i] + v->bias[i % H];
}

void fwd_embed_rows(const fwd_rows *r, const model *m, const int32_t *ids)
{
    const arch_config *c = r->c;
    embed_arg a = { .m = m, .ids = ids, .wide = m->proj_in.present ? r->e : r->x };
    fwd_each(r, r->R, lookup_chunk, &a);
    if (m->proj_in.present && !c->w.proj_late) project(r, m);
    if (m->pos_embed.N || m->pos_freq || m->type_embed) fwd_each(r, r->R, finish_chunk, &a);
    if (arch_is_eagle(c) && r->mtp_in) { /* else a device goes on */
        eagle_rows(r, m);
    } else if (m->mtp_proj.present && r->mtp_in) {
        const int64_t H = c->hidden;
        const mm_out out = fwd_out(&m->mtp_proj, r->x, H, false);
        fwd_each(r, r->R, pair_chunk, m);
        mm_run(&out, 1, r->mtp_in, 2 * H, r->R, r->acts, r->scratch, r->p);
    }
    float *const first = first_rows(r);
    if (m->embed_by.w) fwd_each(r, r->R, affine_chunk, &m->embed_by);
    if (m->embed_norm.w) r->ops->norm(r, first, first, &m->embed_norm, r->R, first_width(c));
    if (m->proj_in.present && c->w.proj_late) project(r, m);
    if (c->ple_dim && r->ple) fwd_ple_rows(r, m, ids); /* else a device makes them */
    if (c->streams && r->streams) fwd_streams_begin(r, m);
    if (c->hyper && r->streams) fwd_hyper_begin(r);
    if (c->asides) fwd_aside_begin(r);
    if (fwd_by_token(c)) memcpy(r->ids, ids, (size_t)r->R * sizeof *ids);
}
