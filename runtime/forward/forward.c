/* runtime/forward/forward.c - a step over a ragged batch: embedding, layers, head. A layer's arithmetic is
 * in runtime/forward/forward_layer.c. */
#include "runtime/forward/forward_impl.h"

#include "runtime/model/kv_state.h"

#include <assert.h>
#include <stdlib.h>

struct fwd_ctx {
    const model *m;
    kv_cache *kv;
    fwd_opts opts;
    lq_arena arena;
    fwd_rows rows;
    fwd_lora lora;
    fwd_dev_ctx *dev;      /* NULL: the CPU */
    fwd_rows *host;        /* where rows are placed: &rows, or the device's */
    int64_t first;         /* the layers before it are run on those */
    const model *w;        /* weights in the memory of rows */
    attn_seq *seqs;        /* [max_seqs] */
    fwd_seq_state *states; /* [max_seqs], of models that have them */
    attn_seq *last;        /* [max_seqs] the rows whose logits are wanted */
    attn_seq *packed;      /* [max_seqs] the same, one behind the other */
    int32_t *ids;          /* [max_rows] */
    int64_t *picked;       /* [max_rows] rows whose logits are wanted */
    const fwd_item *items; /* of this step */
    fwd_batch batch;       /* its rows, from fwd_begin to fwd_end */
    int32_t *block[2];     /* [max_rows] rows.row_block; the same of layers with slots of windows */
    bool near;             /* rows and sequences have the tables of those */
    float *raw;            /* [max_logits, fwd_words], where the head's rows come out */
    float *logits;         /* the same on the host */
    float *hidden;         /* [fwd_most_wanted, hidden] on the host: those behind them */
    float *all_hidden;     /* [max_rows, fwd_kept_width] on the host */
    float *residual;       /* the same before the final norm, of a device's head; NULL: rows.x */
    dev_drawn *drawn;      /* [max_logits] on the host; NULL: the CPU */
    fwd_ranks ranks;       /* several devices */
    fwd_parts parts;       /* several processes */

    model_absorbed *absorbed; /* [layers of the CPU]: MLA */
    lq_arena own;             /* of those */
};

static size_t piece(int64_t n, size_t size) { return lq_round_up((size_t)n * size + 1, 64); }

static size_t scratch_bytes(const arch_config *c, const fwd_opts *o, int threads)
{
    size_t layers = fwd_rows_scratch(c, o->max_rows, threads);
    size_t head = mm_scratch_bytes(o->max_logits, c->embed_dim, 1, threads);
    size_t lora = fwd_lora_scratch(c, o->lora_rank, threads);
    if (lora > head) head = lora;
    return layers > head ? layers : head;
}

/* What either kind of pass has in its arena. */
static size_t step_bytes(const arch_config *c, const fwd_opts *o, bool lora_work)
{
    return fwd_lora_bytes(c, o->max_rows, o->lora_rank, lora_work) +
           2 * piece(o->max_rows, sizeof(int32_t)) + 3 * piece(o->max_seqs, sizeof(attn_seq)) +
           piece(o->max_seqs, sizeof(fwd_seq_state)) + piece(o->max_rows, sizeof(int64_t));
}

/* `whole`: of all processes, since each product reads all inputs. */
static size_t pass_bytes(const arch_config *c, const arch_config *whole, const fwd_opts *o,
                         int threads)
{
    return step_bytes(c, o, true) + piece(o->max_rows * fwd_kept_width(c, o), sizeof(float)) +
           piece(o->max_logits * fwd_words(c), sizeof(float)) +
           fwd_rows_bytes(c, o->max_rows, FWD_ALL) + piece(o->max_rows * c->hidden, sizeof(float)) +
           scratch_bytes(whole, o, threads);
}

size_t fwd_bytes(const arch_config *c, const fwd_opts *o, int threads)
{
    size_t n = pass_bytes(c, c, o, threads);
    for (int64_t i = 0; i < c->layers; i++)
        if (arch_mixer_attends(c->layer[i].mixer)) n += model_absorb_bytes(arch_at(c, i));
    return n;
}

/* Of the n layers that the CPU runs: those that attend. */
static lq_status absorb_layers(fwd_ctx *f, int64_t n, lq_err *err)
{
    lq_arena tmp = { 0 };
    lq_status s = LQ_OK;
    if (!f->m->cfg->w.mla || f->m->cfg->w.kv_one) return LQ_OK;
    f->absorbed = lq_push(&f->own, (size_t)(n + 1) * sizeof *f->absorbed);
    if (!f->absorbed) return lq_fail(err, LQ_ENOMEM, "absorbed attention: out of memory");
    for (int64_t i = 0; i < n && !s; i++)
        if (arch_mixer_attends(f->m->cfg->layer[i].mixer))
            s = model_absorb(&f->absorbed[i], arch_at(f->m->cfg, i), &f->m->layers[i].lin[R_KV_B],
                             false, &f->own, &tmp, f->rows.p, err);
    lq_arena_free(&tmp);
    return s;
}

/* lora_work: the CPU has layers. */
static bool cut_step(fwd_ctx *f, bool lora_work)
{
    const fwd_opts *o = &f->opts;
    if (!fwd_lora_cut(&f->lora, f->m->cfg, o->max_rows, o->lora_rank, lora_work, &f->arena))
        return false;
    f->ids = lq_push(&f->arena, (size_t)o->max_rows * sizeof *f->ids);
    f->seqs = lq_push(&f->arena, (size_t)o->max_seqs * sizeof *f->seqs);
    f->last = lq_push(&f->arena, (size_t)o->max_seqs * sizeof *f->last);
    f->packed = lq_push(&f->arena, (size_t)o->max_seqs * sizeof *f->packed);
    f->picked = lq_push(&f->arena, (size_t)o->max_rows * sizeof *f->picked);
    f->states = lq_push(&f->arena, (size_t)o->max_seqs * sizeof *f->states);
    f->block[1] = lq_push(&f->arena, (size_t)o->max_rows * sizeof(int32_t));
    return f->states && f->block[1] && f->ids && f->seqs && f->picked && f->last && f->packed;
}

/* A process that is told what to do (follow.h). */
static bool follows(const fwd_ctx *f) { return f->parts.part && f->parts.part->rank > 0; }
static int64_t words_here(const fwd_ctx *f) { return follows(f) ? 0 : fwd_words(f->m->cfg); }

static bool cut_rows(fwd_ctx *f)
{
    const fwd_opts *o = &f->opts;
    f->logits = lq_push(&f->arena, (size_t)(o->max_logits * words_here(f)) * sizeof(float));
    f->rows.x = lq_push(&f->arena, (size_t)(o->max_rows * f->m->cfg->hidden) * sizeof(float));
    const int64_t hidden = o->max_rows * fwd_kept_width(f->m->cfg, o);
    f->rows.all = f->all_hidden = lq_push(&f->arena, (size_t)hidden * sizeof(float));
    if (o->lora_rank) f->rows.lora = &f->lora;
    return f->logits && f->rows.x && f->all_hidden &&
           fwd_rows_push(&f->rows, f->m->cfg, o->max_rows, true, &f->arena);
}

static lq_status open_cpu(fwd_ctx *f, lq_err *err)
{
    f->rows.ops = &fwd_cpu;
    f->rows.scratch = &f->arena;
    f->w = f->m;
    f->host = &f->rows;
    const arch_config *whole = f->parts.part ? f->parts.part->whole : f->m->cfg;
    lq_status s = lq_arena_init(
        &f->arena, pass_bytes(f->m->cfg, whole, &f->opts, pool_threads(f->rows.p)), err);
    if (!s && !(cut_step(f, true) && cut_rows(f)))
        s = lq_fail(err, LQ_ENOMEM, "forward pass: buffers do not fit");
    if (!s && f->parts.part && fwd_slopes_bytes(f->m->cfg)) fwd_slopes_of_part(&f->rows);
    f->raw = f->logits;
    f->hidden = f->rows.h;
    f->ranks.n = 1;
    return s;
}

static lq_status open_device(fwd_ctx *f, lq_err *err)
{
    fwd_dev_ends ends = { 0 };
    f->w = &f->m->on->w;
    f->first = f->m->on->first;
    const bool both = f->first > 0;
    lq_status s = lq_arena_init(&f->arena, step_bytes(f->m->cfg, &f->opts, both), err);
    if (!s && !cut_step(f, both)) s = lq_fail(err, LQ_ENOMEM, "forward pass: buffers do not fit");
    if (!s) s = fwd_dev_open(&f->dev, &f->rows, &ends, f->m, f->kv, &f->opts, err);
    f->host = ends.host;
    if (!s && both && f->opts.lora_rank) f->host->lora = &f->lora;
    f->raw = ends.raw;
    f->logits = ends.logits;
    f->hidden = ends.hidden;
    f->all_hidden = ends.all;
    f->residual = ends.residual;
    f->drawn = ends.drawn;
    f->ranks.n = 1;
    if (!s && f->m->on->next)
        s = fwd_ranks_open(&f->ranks, &f->rows, f->dev, f->m, f->kv, &f->opts, err);
    return s;
}

lq_status fwd_open(fwd_ctx **out, const model *m, kv_cache *kv, pool *p, const fwd_opts *o,
                   lq_err *err)
{
    *out = NULL;
    if (o->max_rows < 1 || o->max_seqs < 1 || o->max_logits < 0 || o->max_logits > o->max_rows ||
        o->max_rows > 1 << 20)
        return lq_fail(err, LQ_EVALUE,
                       "forward pass: expected 1..%d rows and at most as many logits, found %lld "
                       "rows of %lld sequences, %lld logits",
                       1 << 20, (long long)o->max_rows, (long long)o->max_seqs,
                       (long long)o->max_logits);
    fwd_ctx *f = calloc(1, sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "forward pass: out of memory");
    f->m = m;
    f->kv = kv;
    f->opts = *o;
    f->rows.p = p;
    f->rows.acts = o->acts;
    const bool reads = o->all_hidden || m->cfg->mtp, whole = model_ranks(m) == 1 && !m->part;
    assert(!reads || (whole && (!m->on || m->on->first == 0)));
    lq_status s = m->part ? fwd_parts_open(&f->parts, m->part, o, err) : LQ_OK;
    if (m->part) f->rows.parts = &f->parts;
    if (!s) s = m->on ? open_device(f, err) : open_cpu(f, err);
    if (!s) s = absorb_layers(f, m->on ? f->first : m->cfg->layers, err);
    if (!s && m->part && m->part->rank == 0) s = fwd_lead_open(&f->parts, kv, o, err);
    if (s) {
        fwd_close(f);
        return lq_wrap(err, s, "forward pass of %lld rows", (long long)o->max_rows);
    }
    *out = f;
    return LQ_OK;
}

void fwd_close(fwd_ctx *f)
{
    if (!f) return;
    if (!follows(f)) fwd_lead_close(&f->parts);
    fwd_parts_close(&f->parts);
    fwd_ranks_close(&f->ranks);
    fwd_dev_close(f->dev);
    lq_arena_free(&f->arena);
    lq_arena_free(&f->own);
    free(f);
}

/* Everything that a caller can get wrong about a batch; after this nothing is checked. */
static lq_status check_items(const fwd_ctx *f, const fwd_item *items, int n_items, lq_err *err)
{
    int64_t rows = 0, logits = 0, vocab = f->m->cfg->vocab;
    const int64_t most = fwd_wordless(f->m) ? f->opts.max_rows : f->opts.max_logits;
    for (int i = 0; i < n_items; i++) {
        const fwd_item *it = &items[i];
        if (it->n < 1 || it->n > f->opts.max_rows || it->pos0 < 0 || it->logits_from < 0 ||
            it->logits_from > it->n)
            return lq_fail(err, LQ_EVALUE,
                           "batch item %d: %lld ids at position %lld, logits from %lld", i,
                           (long long)it->n, (long long)it->pos0, (long long)it->logits_from);
        if (it->seq->tokens < it->pos0 + it->n)
            return lq_fail(err, LQ_EVALUE, "batch item %d: %lld positions, reserved %lld", i,
                           (long long)(it->pos0 + it->n), (long long)it->seq->tokens);
        if (it->seq->state && it->seq->state_at != it->pos0)
            return lq_fail(err, LQ_EVALUE, "batch item %d: position %lld, its state is at %lld", i,
                           (long long)it->pos0, (long long)it->seq->state_at);
        for (int64_t t = 0; t < it->n; t++)
            if (it->ids[t] < 0 || it->ids[t] >= vocab)
                return lq_fail(err, LQ_EVALUE,
                               "token id at position %lld: expected 0..%lld, found %d",
                               (long long)(it->pos0 + t), (long long)(vocab - 1), it->ids[t]);
        if (f->opts.max_len && it->pos0 + it->n > f->opts.max_len)
            return lq_fail(err, LQ_EVALUE, "batch item %d: %lld positions, at most %lld", i,
                           (long long)(it->pos0 + it->n), (long long)f->opts.max_len);
        if (it->lora && it->lora->rank > f->opts.lora_rank)
            return lq_fail(err, LQ_EVALUE, "batch item %d: an adapter of rank %lld, at most %lld",
                           i, (long long)it->lora->rank, (long long)f->opts.lora_rank);
        if (f->m->cfg->w.both_ways && it->pos0)
            return lq_fail(err, LQ_EVALUE,
                           "batch item %d: position %lld, expected a whole sequence: its rows see "
                           "those after them",
                           i, (long long)it->pos0);
        lq_status s = model_check_positions(f->m, it->pos0 + it->n, err);
        if (s) return lq_wrap(err, s, "batch item %d", i);
        rows += it->n;
        logits += it->n - it->logits_from;
    }
    if (n_items > f->opts.max_seqs || rows > f->opts.max_rows || logits > most)
        return lq_fail(err, LQ_EVALUE,
                       "batch: %d sequences, %lld rows, %lld logits; at most %lld, %lld, %lld",
                       n_items, (long long)rows, (long long)logits, (long long)f->opts.max_seqs,
                       (long long)f->opts.max_rows, (long long)most);
    return LQ_OK;
}

/* Floats of each of the item's given rows. */
static int64_t given_width(const arch_config *c, const fwd_item *it)
{
    return arch_is_eagle(c) && !it->given_own ? 3 * c->target_hidden : c->hidden;
}

/* Where the item's rows are in layers with slots of windows. */
static void place_near(fwd_ctx *f, const fwd_item *it, int64_t block_size)
{
    for (int64_t t = 0; t < it->n && it->seq->near; t++)
        f->block[1][f->rows.R + t] = it->seq->near[(it->pos0 + t) / block_size];
}

/* Lay the items out as rows; returns how many logits are wanted. */
static int64_t place_items(fwd_ctx *f, const fwd_item *items, int n_items)
{
    int64_t n_picked = 0, block_size = kv_options(f->kv)->block_size;
    f->rows.R = 0;
    f->items = items;
    f->near = false;
    f->block[0] = f->host->row_block;
    f->rows.states = f->host->states = f->states;
    f->rows.n_states = f->host->n_states = n_items;
    for (int i = 0; i < n_items; i++) {
        const fwd_item *it = &items[i];
        f->seqs[i] = (attn_seq){
            .row0 = f->rows.R, .n_rows = it->n, .pos0 = it->pos0, .table = it->seq->table
        };
        f->last[i] = f->seqs[i];
        f->last[i].row0 += it->logits_from;
        f->last[i].pos0 += it->logits_from;
        f->last[i].n_rows -= it->logits_from;
        f->packed[i] = f->last[i];
        f->packed[i].row0 = n_picked;
        fwd_place(f->host, &f->seqs[i], (int)block_size,
                  it->seq_len ? it->seq_len : it->pos0 + it->n);
        for (int64_t t = 0; t < it->n && it->n_first && f->m->cfg->types > 1; t++)
            f->host->row_type[f->rows.R + t] = it->pos0 + t >= it->n_first;
        f->states[i] = (fwd_seq_state){ .row0 = f->rows.R, .n_rows = it->n };
        if (it->run)
            f->states[i].run = *it->run;
        else
            kv_run_begin(f->kv, it->seq, it->pos0, it->n, it->logits_from < it->n,
                         &f->states[i].run);
        place_near(f, it, block_size);
        memcpy(f->ids + f->rows.R, it->ids, (size_t)it->n * sizeof *it->ids);
        if (f->m->cfg->mtp) {
            const int64_t W = given_width(f->m->cfg, it);
            memcpy(f->host->given + f->rows.R * W, it->given,
                   (size_t)(it->n * W) * sizeof *it->given);
            f->rows.given_own = it->given_own;
        }
        for (int64_t t = it->logits_from; t < it->n; t++)
            f->picked[n_picked++] = f->rows.R + t;
        for (int64_t t = 0; t < it->n && f->opts.lora_rank; t++)
            f->lora.of[f->rows.R + t] = it->lora;
        f->rows.R += it->n;
    }
    if (f->opts.lora_rank) fwd_lora_sort(&f->lora, f->rows.R);
    return n_picked;
}

const float *fwd_hidden(const fwd_ctx *f) { return f->hidden; }
const float *fwd_residual(const fwd_ctx *f) { return f->residual ? f->residual : f->rows.x; }
const float *fwd_all_hidden(const fwd_ctx *f) { return f->all_hidden; }

bool fwd_wordless(const model *m) { return m->cfg->head != HEAD_WORDS; }

/* The next layers' blocks are those of windows, or not. */
static void use_tables(fwd_ctx *f, bool near, int n_items)
{
    if (near == f->near) return;
    f->near = near;
    f->host->row_block = f->block[near];
    for (int i = 0; i < n_items; i++)
        f->seqs[i].table = f->last[i].table = f->packed[i].table =
            near ? f->items[i].seq->near : f->items[i].seq->table;
}

/* The states before a layer, where they are wanted. */
static void keep_inputs(fwd_ctx *f, int64_t layer)
{
    for (int k = 0; k < f->opts.n_inputs; k++)
        if (f->opts.inputs[k] == layer)
            f->rows.ops->keep(&f->rows, k * f->m->cfg->hidden,
                              f->opts.n_inputs * f->m->cfg->hidden);
}

static void run_layers(fwd_ctx *f, int64_t from, int64_t to, const fwd_batch *b)
{
    /* All rows go to the end where their hidden states are wanted. */
    const int64_t maker = f->opts.all_hidden ? f->m->cfg->layers : fwd_last_maker(f->m->cfg);
    const kv_opts *o = kv_options(f->kv);
    for (int64_t i = from; i < to; i++) {
        const bool here = i < f->first; /* the CPU's, of a pass that ends on a device */
        /* Only the wanted rows go on, once all have their K and V. */
        const bool last = i == maker;
        const fwd_group all = { .n_rows = f->rows.R,
                                .seqs = last        ? b->last
                                        : i > maker ? b->packed
                                                    : b->seqs,
                                .n_seqs = b->n_seqs };
        if (i > maker && !b->n_picked) break;
        use_tables(f, kv_in_window(f->kv, i), b->n_seqs);
        keep_inputs(f, i);
        const fwd_kv kv = { kv_k(f->kv, i),
                            kv_v(f->kv, i),
                            kv_block_stride(f->kv, i),
                            o->block_size,
                            o->dtype,
                            f->m->cfg->layer[i].kv_back != 0,
                            kv_state_offset(f->m->cfg, i) };
        fwd_rows *r = here ? f->host : &f->rows;
        if (f->absorbed && (here || !f->dev)) r->absorbed = &f->absorbed[i];
        fwd_run_layer(r, here ? &f->m->layers[i] : &f->w->layers[i], i, &kv, &all, 1,
                      last ? b->picked : NULL, b->n_picked);
    }
    use_tables(f, false, b->n_seqs);
}

/* What is left of a step behind the CPU's layers: on a device all is queued. */
static void run_rest(fwd_ctx *f, const fwd_batch *b)
{
    if (f->ranks.n > 1) {
        fwd_ranks_run(&f->ranks, f->kv, f->raw, b);
    } else {
        f->rows.ops->enter(&f->rows);
        run_layers(f, f->first, f->m->cfg->layers, b);
        if (f->opts.all_hidden)
            f->rows.ops->keep_all(&f->rows, f->opts.n_inputs ? NULL : &f->w->final_norm, b);
        else if (fwd_last_maker(f->m->cfg) == f->m->cfg->layers) {
            f->rows.ops->pick(&f->rows, b->picked, b->n_picked);
            f->rows.R = b->n_picked;
        }
        if (b->n_picked && fwd_wordless(f->m))
            fwd_run_final(&f->rows, f->w, b->n_picked);
        else if (b->n_picked)
            fwd_run_head(&f->rows, f->w, f->raw, fwd_words(f->m->cfg), b->n_picked);
    }
    f->rows.ops->leave(&f->rows, b, f->logits, f->hidden, f->raw);
}

bool fwd_on_cpu(const fwd_ctx *f) { return !f->dev || f->first > 0; }

bool fwd_draws(const fwd_ctx *f) { return f->dev && f->m->cfg->vocab <= DEV_DRAW_IDS; }

lq_status fwd_step(fwd_ctx *f, const fwd_item *items, int n_items, const float **logits,
                   lq_err *err)
{
    const dev_drawn *none;
    return fwd_step_draw(f, items, n_items, NULL, 0, logits, &none, err);
}

lq_status fwd_step_draw(fwd_ctx *f, const fwd_item *items, int n_items, const dev_draw *draws,
                        int64_t n_draws, const float **logits, const dev_drawn **drawn, lq_err *err)
{
    const lq_status s = fwd_begin(f, items, n_items, draws, n_draws, err);
    return s ? s : fwd_end(f, logits, drawn, err);
}

/* An exchange has failed: none will do again. */
static lq_status lost(const fwd_ctx *f, lq_err *err)
{
    if (!f->parts.bad) return LQ_OK;
    *err = f->parts.why;
    return LQ_EDEVICE;
}

lq_status fwd_begin(fwd_ctx *f, const fwd_item *items, int n_items, const dev_draw *draws,
                    int64_t n_draws, lq_err *err)
{
    lq_status s = lost(f, err);
    if (!s) s = check_items(f, items, n_items, err);
    assert(n_draws == 0 || fwd_draws(f));
    f->batch.n_seqs = 0;
    if (s || n_items == 0) return s;
    if (fwd_on_cpu(f)) pool_enter(f->rows.p);
    const int64_t n = place_items(f, items, n_items);
    if (f->parts.part && !follows(f)) fwd_lead_step(&f->parts, f->kv, items, f->states, n_items);
    f->host->R = f->rows.R;
    pool_stage(f->rows.p, STAGE_EMBED);
    f->batch =
        (fwd_batch){ f->seqs,   f->last, f->packed, n_items, f->ids,
                     f->picked, n,       draws,     n_draws, f->opts.lora_rank ? &f->lora : NULL };
    const fwd_batch *b = &f->batch;
    f->rows.ops->begin(&f->rows, f->m, b);
    if (f->ranks.n > 1) fwd_ranks_begin(&f->ranks, f->m, b);
    run_layers(f, 0, f->first, b);
    const fwd_how how = f->dev && f->ranks.n == 1 ? fwd_dev_how(f->dev, 0) : FWD_PLAIN;
    if (how != FWD_QUEUED) run_rest(f, b);
    if (how == FWD_CAPTURE && !fwd_dev_kept(f->dev, 0)) run_rest(f, b);
    return LQ_OK;
}

lq_status fwd_alive(fwd_ctx *f, lq_err *err)
{
    if (!f->parts.part || follows(f)) return LQ_OK;
    return fwd_lead_alive(&f->parts, err) ? LQ_EDEVICE : LQ_OK;
}

uint64_t fwd_sent(const fwd_ctx *f) { return f->parts.sent; }

lq_status fwd_end(fwd_ctx *f, const float **logits, const dev_drawn **drawn, lq_err *err)
{
    const fwd_batch *b = &f->batch;
    *logits = f->logits;
    *drawn = f->drawn;
    if (b->n_seqs == 0) return LQ_OK;
    lq_status s = f->rows.ops->end(&f->rows, err);
    if (f->ranks.n > 1) {
        const lq_status others = fwd_ranks_end(&f->ranks, s ? NULL : err);
        s = s ? s : others;
    }
    if (!s) s = lost(f, err);
    for (fwd_run run = { 0 }; !s && !follows(f) && !fwd_wordless(f->m) && fwd_next_run(&run, b);)
        fwd_finish_logits(&f->rows, f->logits + run.row * fwd_words(f->m->cfg), run.n);
    if (fwd_on_cpu(f)) pool_leave(f->rows.p);
    pool_stage(f->rows.p, STAGE_OTHER);
    return s;
}
