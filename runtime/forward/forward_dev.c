/* runtime/forward/forward_dev.c - a device's part of a pass: its buffers on both sides, whose sizes are the
 * most that a step can need. Nothing is allocated after it is opened. */
#include "runtime/forward/forward_dev.h"

#include "runtime/model/kv_state.h"

#include <assert.h>
#include <stdlib.h>

/* ---- memory ---- */

/* A buffer on the device. All are taken twice: first to count (what is returned then is not used),
 * then out of one piece of memory of just that size. */
static void *take_device(void *from, size_t bytes)
{
    fwd_dev_ctx *f = from;
    const size_t at = f->mem_used;
    if (bytes == 0) bytes = 1; /* not the next one's first byte */
    f->mem_used += lq_round_up(bytes, FWD_DEV_ALIGN);
    if (!f->mem) return f;
    f->d->ops->part(f->d, f->mem + at, bytes);
    return f->mem + at;
}

/* What goes to the device and comes back lies in pinned memory: copies wait for nothing, and the
 * one wait at the end of a step is the only one. */
static void *take_pinned(fwd_dev_ctx *f, size_t bytes)
{
    assert(f->n_pinned < FWD_DEV_PINNED);
    void *p = f->d->ops->alloc_host(f->d, bytes);
    if (p) f->pinned[f->n_pinned++] = p;
    return p;
}

static void *take_host(void *from, size_t bytes)
{
    fwd_dev_ctx *f = from;
    return lq_push(&f->arena, bytes);
}

/* All products of the layers begin with rounding to bf16, nothing else reads their inputs, and
 * those are made by norms (or, with norms after the sum, known not to be), activations, attention.
 */
static bool all_round(const model_on *on, mm_acts acts)
{
    const arch_config *c = on->w.cfg;
    if (c->experts || c->w.mla || c->norm_rank || c->ple_dim || c->act == ARCH_XIELU ||
        c->w.norm_stays || arch_has_state(c))
        return false;
    for (int64_t i = on->first; i < c->layers; i++) {
        const model_vector *v = on->w.layers[i].vec;
        if (v[R_O_NORM].w || v[R_DOWN_NORM].w) return false;
        if (!c->w.norm_after_add && !(v[R_ATTN_NORM].w && (c->w.parallel || v[R_MLP_NORM].w)))
            return false;
        for (int r = 0; r < ARCH_N_ROLES; r++) {
            const model_linear *l = &on->w.layers[i].lin[r];
            if (!l->present) continue;
            const dev_weight w = fwd_dev_weight(&l->w);
            if (!dev_rounds(&w, acts)) return false;
        }
    }
    return true;
}

/* ---- opening ---- */

/* Of the layers that the CPU runs. */
static size_t layers_scratch(const arch_config *c, const fwd_opts *o, int threads)
{
    const size_t rows = fwd_rows_scratch(c, o->max_rows, threads),
                 lora = fwd_lora_scratch(c, o->lora_rank, threads);
    return rows > lora ? rows : lora;
}

static bool open_plans(fwd_dev_ctx *f, fwd_dev_kind *k)
{
    bool ok = true;
    for (int how = 0; how < DEV_ATTN_N; how++)
        for (int which = 0; which < FWD_DEV_ROWS; which++)
            if (k->has[which] && ok &&
                (how == (int)k->few || how == (int)k->many || (k->widens && how == DEV_ATTN_WIDE)))
                ok = (k->plans[how][which].launches =
                          take_host(f, (size_t)f->max_chunks * sizeof(fwd_launch)));
    return ok;
}

static bool open_host(fwd_dev_ctx *f, fwd_rows *r, const arch_config *c, const fwd_opts *o)
{
    const size_t floats = (size_t)o->max_rows * sizeof(float);
    f->chunks = take_host(f, (size_t)f->max_chunks * sizeof *f->chunks);
    f->chunk_of = take_host(f, (size_t)f->max_slots * sizeof *f->chunk_of);
    f->table_at = take_host(f, (size_t)o->max_seqs * sizeof *f->table_at);
    f->words = take_host(f, (size_t)o->max_rows * sizeof *f->words);
    f->key_row_of = take_host(f, (size_t)o->max_rows * sizeof *f->key_row_of);
    f->run_of = take_host(f, f->states ? (size_t)o->max_seqs * sizeof *f->run_of : 1);
    f->head_rows = take_host(f, (size_t)(2 * (f->heads.H + 1)) * sizeof *f->head_rows);
    const bool lora = fwd_dev_lora_host(f, o, take_host, f);
    f->stage = take_pinned(f, f->stage_bytes);
    const bool layers = f->on->first > 0;
    bool ok = lora && f->run_of && f->head_rows && f->chunks && f->chunk_of && f->table_at &&
              f->words && f->key_row_of && f->stage &&
              (f->first ? true
               : layers ? fwd_rows_push(&f->host, c, o->max_rows, true, &f->arena)
                        : fwd_rows_cut(&f->host, c, o->max_rows, FWD_PLACED, take_host, f));
    for (int k = 0; k < f->n_kinds && ok; k++)
        ok = open_plans(f, &f->kind[k]);
    if (f->first) f->host = f->first->host;
    if (!ok || f->first) return ok;
    f->host.ops = &fwd_cpu;
    f->host.p = r->p;
    f->host.acts = r->acts;
    f->host.scratch = &f->scratch;
    if (c->ple_dim && !(f->ple = take_pinned(f, floats * (size_t)fwd_ple_width(c)))) return false;
    if (c->mtp && !(f->host.given = take_pinned(f, floats * (size_t)fwd_given_width(c))))
        return false;
    if (layers && c->layer[f->on->first].index_shared &&
        !(f->host.index_keys = take_pinned(f, floats * (size_t)c->index_topk)))
        return false;
    if (fwd_streams_width(c) && layers &&
        !(f->host.streams = take_pinned(f, floats * (size_t)fwd_streams_width(c))))
        return false;
    if (f->on->w.embed.N) return true;
    const int threads = pool_threads(r->p);
    ok = (f->host.x = take_pinned(f, floats * (size_t)c->hidden)) &&
         (layers || ((f->host.h = take_host(f, floats * (size_t)c->hidden)) &&
                     (f->host.e = take_host(f, floats * (size_t)c->embed_dim))));
    return ok && !lq_arena_init(&f->scratch,
                                layers ? layers_scratch(c, o, threads)
                                       : mm_scratch_bytes(o->max_rows, c->embed_dim, 1, threads),
                                NULL);
}

static size_t attn_scratch(const fwd_dev_ctx *f)
{
    size_t most = 0;
    for (int i = 0; i < 3 * f->n_kinds; i++) {
        const fwd_dev_kind *k = &f->kind[i / 3];
        const fwd_dev_heads h = k->heads;
        const dev_attn_how how = i % 3 == 0                 ? k->few
                                 : i % 3 == 1 || !k->widens ? k->many
                                                            : DEV_ATTN_WIDE;
        const size_t n = f->d->ops->attn_scratch(&(dev_attn_args){ .how = how,
                                                                   .n_slots = k->launch_slots[how],
                                                                   .H = h.H,
                                                                   .Hkv = h.Hkv,
                                                                   .D = h.D,
                                                                   .Dv = h.Dv });
        if (n > most) most = n;
    }
    return most;
}

static void cut_buffers(fwd_dev_ctx *f, fwd_rows *r, fwd_dev_ends *ends, const arch_config *c,
                        const fwd_opts *o)
{
    f->stage_on = take_device(f, f->stage_bytes);
    f->attn_scratch = take_device(f, attn_scratch(f));
    f->mm_scratch = take_device(f, fwd_dev_products_scratch(f->d, &f->on->w, o));
    f->attn_done = take_device(f, fwd_dev_done_bytes(f));
    f->widen.to = take_device(f, fwd_dev_widen_bytes(f));
    f->topk_scratch = take_device(f, fwd_dev_index_bytes(f, c, o));
    f->fixed = take_device(f, fwd_dev_fixed_bytes(c));
    r->x = take_device(f, (size_t)(o->max_rows * c->hidden) * sizeof(float));
    f->first_of = take_device(f, (size_t)(c->experts + 1) * sizeof *f->first_of);
    f->busy = take_device(f, (size_t)(c->experts + 1) * sizeof *f->busy);
    fwd_rows_cut(r, c, o->max_rows, FWD_HELD, take_device, f);
    if (fwd_dev_joined_width(c))
        r->qkv = take_device(f, (size_t)(o->max_rows * fwd_dev_joined_width(c)) * sizeof(float));
    fwd_dev_lora_cut(f, c, o, take_device, f);
    if (f->all_width)
        r->all = take_device(f, (size_t)(o->max_rows * f->all_width) * sizeof *r->all);
    if (!ends) return;
    ends->raw = take_device(f, (size_t)(o->max_logits * fwd_words(c)) * sizeof(float));
    f->drawn_on = take_device(f, (size_t)o->max_logits * sizeof *f->drawn_on);
    f->draw_scratch = take_device(f, dev_draw_scratch(o->max_logits));
}

static lq_status open_buffers(fwd_dev_ctx *f, fwd_rows *r, fwd_dev_ends *ends, const arch_config *c,
                              const fwd_opts *o, lq_err *err)
{
    void *all;
    cut_buffers(f, r, ends, c, o);
    lq_status s = dev_take(&all, f->d, f->mem_used, "the buffers of a step need", err);
    if (s) return s;
    f->mem = all;
    f->mem_used = 0;
    cut_buffers(f, r, ends, c, o);
    return LQ_OK;
}

/* Where logits and draws come out on the host. */
static bool open_ends(fwd_dev_ctx *f, fwd_dev_ends *ends, const arch_config *c, const fwd_opts *o)
{
    const size_t logits = (size_t)(o->max_logits * fwd_words(c)) * sizeof(float);
    ends->logits = take_pinned(f, logits ? logits : sizeof(float));
    ends->hidden = take_pinned(f, (size_t)(fwd_most_wanted(c, o) * c->hidden) * sizeof(float));
    f->drawn = ends->drawn = take_pinned(f, (size_t)o->max_logits * sizeof *f->drawn);
    const size_t residual = (size_t)(c->mtp ? o->max_logits * c->hidden : 0) * sizeof(float),
                 all = (size_t)(o->max_rows * f->all_width) * sizeof(float);
    f->residual = ends->residual = residual ? take_pinned(f, residual) : NULL;
    f->all = ends->all = all ? take_pinned(f, all) : NULL;
    return ends->logits && ends->hidden && f->drawn && !f->residual == !residual && !f->all == !all;
}

/* Those of its own heads. */
static void put_slopes(fwd_dev_ctx *f, const fwd_rows *r, const arch_config *whole)
{
    const size_t n = fwd_slopes_bytes(r->c);
    if (n == 0) return;
    fwd_slopes(whole, (float *)(void *)f->stage); /* the buffer is large enough for it: see stage */
    f->d->ops->upload(f->d, r->slopes, f->stage + (size_t)f->on->rank * n, n);
}

/* The pass of one device; ends: of the first rank. */
/* The kernels whose masks are not causal, in place of `many`; addends of distances one of them has. */
static dev_attn_how both_ways_by(dev_attn_how many, const arch_config *c)
{
    const bool units = many == DEV_ATTN_UNITS || many == DEV_ATTN_WIDE;
    return units && !c->dist_buckets ? DEV_ATTN_UNITS : DEV_ATTN_EXACT;
}

static lq_status open_pass(fwd_dev_ctx **out, fwd_rows *r, fwd_dev_ends *ends, model_on *on,
                           const fwd_dev_ctx *first, const model *m, const kv_cache *kv,
                           const fwd_opts *o, lq_err *err)
{
    const arch_config *c = on->w.cfg;
    const kv_opts *k = kv_options(kv);
    if (!kv_alike(k->dtype))
        return lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: a cache of two types, %s",
                       kv_types_text(k->dtype));
    for (int64_t i = 0; i < c->layers && k->dtype == KV_I4; i++) {
        const fwd_dev_heads h = fwd_dev_heads_of(arch_at(c, i), k->dtype);
        if (h.D % 8 || (!h.latent && h.Dv % 8))
            return lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: int4 keys of heads of %lld",
                           (long long)h.D);
    }
    const int64_t unit = k->dtype == KV_I4 ? 8 : 4; /* numbers that begin at whole words */
    if (arch_indexed(c) && attn_kv_head(kv_of(k->dtype, false)) && c->index_dim % unit)
        return lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: %s keys of an indexer of %lld",
                       kv_types_text(k->dtype), (long long)c->index_dim);
    if (c->row->window == WINDOW_CHUNKS && c->window % k->block_size)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "not on cuda yet: attention in chunks of %lld with KV blocks of %d",
                       (long long)c->window, k->block_size);
    fwd_dev_ctx *f = *out = calloc(1, sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "out of memory");
    f->d = &on->d;
    f->on = on;
    f->first = first;
    if (ends) ends->host = &f->host;
    r->ops = &fwd_dev;
    r->self = f;
    r->c = r->whole = c;
    f->all_width = fwd_kept_width(c, o);
    f->kv = kv;
    f->states = kv_state_on(kv, on->rank, &f->state_stride);
    f->state0 = kv_state_offset(m->cfg, on->first);
    fwd_dev_size_stage(f, c, on->first, k, o);
    for (int i = 0; i < f->n_kinds; i++) {
        fwd_dev_kind *of = &f->kind[i];
        const fwd_dev_heads own = of->heads;
        const kv_dtype t = kv_of(k->dtype, true);
        of->few = dev_attn_choose(f->d, o->acts, t, own.D, own.Dv, own.latent, DEV_ATTN_FEW);
        of->many = dev_attn_choose(f->d, o->acts, t, own.D, own.Dv, own.latent, DEV_ATTN_FEW + 1);
        if (c->w.both_ways) /* the others' masks are causal */
            of->few = of->many = both_ways_by(of->many, c);
        if (of->chosen && of->few != DEV_ATTN_EXACT)
            of->few = of->many = DEV_ATTN_LATENT; /* lists */
    }
    fwd_dev_widen_open(f, c->w.both_ways);
    if (f->stage_bytes < fwd_slopes_bytes(m->cfg)) f->stage_bytes = fwd_slopes_bytes(m->cfg);
    lq_status s = lq_arena_init(&f->arena, 0, err);
    if (!s && !open_host(f, r, m->cfg, o)) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s) s = open_buffers(f, r, ends, c, o, err);
    if (!s && ends && !open_ends(f, ends, c, o)) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    const bool ranks = on->ranks > 1;
    if (!s && !fwd_graphs_open(&f->graphs, ranks ? FWD_RANK_GRAPHS : FWD_GRAPHS,
                               ranks ? fwd_ranks_pieces(c) : 1))
        s = lq_fail(err, LQ_ENOMEM, "out of memory");
    f->home.x = r->x;
    f->home.y = r->y;
    f->home.h = r->h;
    f->home.a = r->a;
    f->home.q = r->q;
    f->home.mix = r->mix;
    f->home.mix_out = r->mix_out;
    f->home.ple = r->ple;
    f->home.ple_row = r->ple_row;
    f->home.streams = r->streams;
    f->home.streams_row = r->streams_row;
    f->home.first = r->first;
    f->home.hyper = r->hyper;
    f->home.hyper_row = r->hyper_row;
    f->home.index_keys = r->index_keys;
    f->home.index_keys_row = r->index_keys_row;
    f->home.beside = r->beside;
    if (r->acts == MM_I8 && !on->int8) r->acts = MM_BF16;
    f->rounds = all_round(on, r->acts);
    if (!s) put_slopes(f, r, m->cfg);
    if (!s) fwd_dev_fixed_put(f, c);
    if (!s) f->d->ops->zero(f->d, f->attn_done, fwd_dev_done_bytes(f));
    lq_status queued = f->d->ops->sync(f->d, err);
    return queued ? queued : s;
}

lq_status fwd_dev_open(fwd_dev_ctx **out, fwd_rows *r, fwd_dev_ends *ends, const model *m,
                       const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    assert(kv_options(kv)->on == model_dev(m) && kv_options(kv)->first == m->on->first);
    return open_pass(out, r, ends, m->on, NULL, m, kv, o, err);
}

lq_status fwd_dev_open_rank(fwd_dev_ctx **out, fwd_rows *r, model_on *on, fwd_dev_ctx *first,
                            const model *m, const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    return open_pass(out, r, NULL, on, first, m, kv, o, err);
}

void fwd_dev_close(fwd_dev_ctx *f)
{
    if (!f) return;
    fwd_graphs_close(&f->graphs, f->d);
    f->d->ops->free(f->d, f->mem);
    while (f->n_pinned)
        f->d->ops->free_host(f->d, f->pinned[--f->n_pinned]);
    lq_arena_free(&f->arena);
    lq_arena_free(&f->scratch);
    free(f);
}
