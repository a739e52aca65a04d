/* quantize/layer/apply.c - see apply.h. */
#include "quantize/layer/apply.h"

static lq_status put_vector(const float **out, const qz_item *item, lq_arena *a, lq_err *err)
{
    float *v = lq_push(a, (size_t)item->t.K * sizeof *v);
    if (!v) return lq_fail(err, LQ_ENOMEM, "%s: no memory", item->e->name);
    qt_dequant(v, &item->t, 0, 1);
    *out = v;
    return LQ_OK;
}

static lq_status put_matrix(model_linear *lin, const arch_config *c, const qz_item *item,
                            int64_t expert, lq_arena *a, pool *p, lq_err *err)
{
    qt_tensor w;
    lq_arena copy = { 0 }; /* of a matrix that is stored transposed */
    lq_status s = src_slice(&w, c, item->e->role, expert, &item->t, &copy, err);
    if (!s) s = mm_pack(&lin->w, &w, a, p, err);
    lq_arena_free(&copy);
    return s ? lq_wrap(err, s, "%s", item->e->name) : LQ_OK;
}

lq_status qz_layer_apply(model_layer *l, const arch_config *c, const qz_item *items, size_t n,
                         lq_arena *a, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < n && !s; i++) {
        const plan_entry *e = items[i].e;
        const bool matrix = arch_role_kind(e->role) != ARCH_VECTOR;
        const bool of_expert = arch_role_per_expert(e->role);
        model_vector *vec = &l->vec[e->role];
        model_linear *lin = of_expert ? l->expert[e->role - R_EXPERT_GATE] : &l->lin[e->role];
        if (of_expert && e->expert >= 0) lin += e->expert;
        if (e->role == R_NGRAM_TABLE)
            model_put_ngrams(l, e->part, &items[i].t);
        else if (e->is_bias)
            s = put_vector(matrix ? &lin->bias : &vec->bias, &items[i], a, err);
        else if (!matrix)
            s = put_vector(&vec->w, &items[i], a, err);
        else if (of_expert && e->expert < 0)
            for (int64_t x = 0; x < c->experts && !s; x++)
                s = put_matrix(&lin[x], c, &items[i], x, a, p, err);
        else
            s = put_matrix(lin, c, &items[i], e->expert, a, p, err);
    }
    return s;
}

lq_status qz_frame_apply(model *m, const arch_config *c, const qz_item *items, size_t n, pool *p,
                         lq_err *err)
{
    const struct {
        arch_role role;
        model_vector *vec;
        model_linear *lin;
    } places[] = { { R_EMBED_NORM, &m->embed_norm, NULL }, { R_FINAL_NORM, &m->final_norm, NULL },
                   { R_HEAD_NORM, &m->head_norm, NULL },   { R_PROJ_IN, NULL, &m->proj_in },
                   { R_PROJ_OUT, NULL, &m->proj_out },     { R_HEAD, NULL, &m->head } };
    lq_status s = LQ_OK;
    for (size_t i = 0; i < n && !s; i++) {
        const arch_role role = items[i].e->role;
        const bool bias = items[i].e->is_bias;
        if (role == R_EMBED) m->embed = items[i].t;
        if (role == R_POS_EMBED) m->pos_embed = items[i].t;
        if (role == R_EMBED && c->tied)
            s = put_matrix(&m->head, c, &items[i], -1, &m->arena, p, err);
        for (size_t k = 0; k < LQ_COUNT(places) && !s; k++) {
            if (places[k].role != role) continue;
            model_vector *vec = places[k].vec;
            model_linear *lin = places[k].lin;
            if (bias)
                s = put_vector(vec ? &vec->bias : &lin->bias, &items[i], &m->arena, err);
            else if (vec)
                s = put_vector(&vec->w, &items[i], &m->arena, err);
            else
                s = put_matrix(lin, c, &items[i], -1, &m->arena, p, err);
        }
    }
    return s ? s : model_head_lengths(m, err);
}
