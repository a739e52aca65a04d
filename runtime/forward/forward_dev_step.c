/* runtime/forward/forward_dev_step.c - the beginning and the end of a device's step: what it has to know is
 * staged and goes up, and what comes out of it comes down. */
#include "runtime/forward/forward_dev.h"

#include <assert.h>

/* Slots of no chunk behind the others, up to a power of two, so that a context that grows has few
 * shapes. Steps of several launches are not captured: what those do takes longer than launching. */
static void pad_slots(fwd_dev_ctx *f, fwd_launch *at, int64_t most, bool several)
{
    int64_t n = 1;
    f->steady = !several;
    while (n < at->n_slots)
        n *= 2;
    if (n > most) n = most;
    while (f->steady && at->n_slots && at->n_slots < n)
        f->chunk_of[at->n_slots++] = -1;
}

static bool takes(const fwd_dev_kind *k, dev_attn_how how, const attn_seq *s)
{
    return how == (s->n_rows > DEV_ATTN_FEW ? k->many : k->few);
}

/* Keys of a split of those of these sequences that are for `how`. */
static int64_t split_of(const fwd_dev_ctx *f, const fwd_dev_kind *k, dev_attn_how how,
                        const attn_seq *seqs, int n)
{
    int64_t blocks = 0;
    for (int i = 0; i < n; i++)
        if (takes(k, how, &seqs[i]))
            blocks += k->chosen ? seqs[i].n_rows * dev_attn_blocks(how, 1, k->heads.H, k->heads.Hkv)
                                : dev_attn_blocks(how, seqs[i].n_rows, k->heads.H, k->heads.Hkv);
    return dev_attn_split(f->d, how, blocks);
}

/* Rows from `row` on of a sequence that are planned together, at most `rows`. Where it sees chunks of `every`
 * positions, those of one: as of a sequence that begins there, at block *block of its table; *fresh: the first of
 * the call's rows that it sees. */
static attn_seq next_rows(const attn_seq *s, int64_t row, int64_t rows, int64_t every,
                          int block_size, int32_t *block, int32_t *fresh)
{
    const int64_t left = s->n_rows - row, pos = s->pos0 + row, from = every ? pos - pos % every : 0;
    int64_t n = left < rows ? left : rows;
    if (every && n > from + every - pos) n = from + every - pos;
    *block = (int32_t)(from / block_size);
    *fresh = (int32_t)(s->pos0 > from ? s->pos0 - from : 0);
    return (attn_seq){ s->row0 + row, n, pos - from, NULL };
}

/* The chunks of those of these sequences that are for `how`, in launches of at most launch_slots,
 * for which there is scratch; without splits none is needed. */
static void stage_plan(fwd_dev_ctx *f, fwd_dev_kind *of, dev_attn_how how, fwd_dev_which which,
                       int n, const arch_config *c)
{
    const attn_seq *seqs = f->rows_of[which];
    fwd_plan *p = &of->plans[how][which];
    const int64_t H = of->heads.H, Hkv = of->heads.Hkv,
                  rows = of->chosen ? 1 : dev_attn_rows(how, H, Hkv);
    const int64_t split = split_of(f, of, how, seqs, n), most = of->launch_slots[how];
    const int64_t seen = of->window ? c->window : 0,
                  every = c->row->window == WINDOW_CHUNKS ? seen : 0, window = every ? 0 : seen;
    fwd_launch at = { 0 };
    p->n_launches = 0;
    p->split = split;
    for (int i = 0; i < n; i++) {
        if (!takes(of, how, &seqs[i])) continue;
        const int64_t end = c->w.both_ways ? seqs[i].pos0 + seqs[i].n_rows : 0;
        for (int64_t row = 0, here; row < seqs[i].n_rows; row += here) {
            int32_t block, fresh;
            attn_seq one = next_rows(&seqs[i], row, rows, every, f->block_size, &block, &fresh);
            if (of->chosen) one.pos0 = fwd_dev_listed(c, one.pos0) - 1; /* in its list */
            int64_t chunks = 0, slots = 0;
            here = one.n_rows;
            dev_attn_plan(how, NULL, &chunks, NULL, &slots, &one, 0, split, H, Hkv, window, end);
            if (split != DEV_ATTN_WHOLE && at.n_slots + slots > most) {
                p->launches[p->n_launches++] = at;
                at = (fwd_launch){ .chunk = at.chunk + at.n_chunks, .slot = at.slot + at.n_slots };
            }
            assert(at.chunk + at.n_chunks < f->max_chunks &&
                   at.slot + at.n_slots + slots <= f->max_slots);
            const int64_t first = at.n_chunks;
            dev_attn_plan(how, f->chunks + at.chunk, &at.n_chunks, f->chunk_of + at.slot,
                          &at.n_slots, &one, f->table_at[i] + block, split, H, Hkv, window, end);
            for (int64_t k = first; k < at.n_chunks && !end; k++)
                f->chunks[at.chunk + k].fresh = fresh;
        }
    }
    if (f->steady) pad_slots(f, &at, most, p->n_launches > 0);
    if (at.n_slots) p->launches[p->n_launches++] = at;
    p->chunks = fwd_dev_stage(f, f->chunks, (size_t)(at.chunk + at.n_chunks) * sizeof *f->chunks);
    p->chunk_of =
        fwd_dev_stage(f, f->chunk_of, (size_t)(at.slot + at.n_slots) * sizeof *f->chunk_of);
}

static void stage_plans(fwd_dev_ctx *f, fwd_dev_kind *k, int n_seqs, const arch_config *c)
{
    for (int which = 0; which < FWD_DEV_ROWS; which++) {
        if (!k->has[which]) continue;
        if (k->widens) /* of the step before */
            k->plans[DEV_ATTN_UNITS][which].n_launches = k->plans[DEV_ATTN_WIDE][which].n_launches =
                0;
        stage_plan(f, k, k->few, which, n_seqs, c);
        if (k->many != k->few) stage_plan(f, k, k->many, which, n_seqs, c);
    }
}

static size_t table_bytes(const fwd_dev_ctx *f, const attn_seq *s)
{
    return (size_t)lq_ceil_div(s->pos0 + s->n_rows, f->block_size) * sizeof *s->table;
}

/* Where each sequence's table will be. */
static void place_tables(fwd_dev_ctx *f, const fwd_batch *b)
{
    size_t at = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        f->table_at[i] = (int32_t)(at / sizeof *f->tables);
        at += lq_round_up(table_bytes(f, &b->seqs[i]), FWD_DEV_ALIGN);
    }
}

static void stage_tables(fwd_dev_ctx *f, const fwd_batch *b)
{
    f->tables = (const int32_t *)(const void *)(f->stage_on + f->staged);
    for (int i = 0; i < b->n_seqs; i++)
        fwd_dev_stage(f, b->seqs[i].table, table_bytes(f, &b->seqs[i]));
}

/* Rows of `width` floats that the step wants, beside each other. */
static float *stage_wanted(fwd_dev_ctx *f, const float *rows, int64_t width, const fwd_batch *b)
{
    const size_t n = (size_t)width * sizeof *rows;
    uint8_t *to = f->stage + f->staged;
    float *there = (float *)(void *)(f->stage_on + f->staged);
    f->staged = lq_round_up(f->staged + n * (size_t)b->n_picked, FWD_DEV_ALIGN);
    assert(f->staged <= f->stage_bytes);
    for (int64_t i = 0; i < b->n_picked && n; i++, to += n)
        memcpy(to, rows + b->picked[i] * width, n);
    return there;
}

/* What fwd_place has written, for the rows of r. */
static void stage_places(fwd_dev_ctx *f, fwd_rows *r, const fwd_batch *b)
{
    const size_t R = (size_t)r->R;
    r->row_block = fwd_dev_stage(f, f->host.row_block, R * sizeof *r->row_block);
    r->row_slot = fwd_dev_stage(f, f->host.row_slot, R * sizeof *r->row_slot);
    if (r->c->index_every)
        r->row_group = fwd_dev_stage(f, f->host.row_group, R * sizeof *r->row_group);
    for (arch_rope_use u = ROPE_MAIN; u <= ROPE_LOCAL; u++) {
        const size_t n = R * (size_t)fwd_angles(r->c, u) * sizeof(float);
        r->cos[u] = fwd_dev_stage(f, f->host.cos[u], n);
        r->sin[u] = fwd_dev_stage(f, f->host.sin[u], n);
        f->packed_cos[u] = f->packed_sin[u] = NULL;
        if (!fwd_dev_packs(r->c)) continue;
        f->packed_cos[u] = stage_wanted(f, f->host.cos[u], fwd_angles(r->c, u), b);
        f->packed_sin[u] = stage_wanted(f, f->host.sin[u], fwd_angles(r->c, u), b);
    }
    const int64_t turns = fwd_turns(r->c);
    r->turns = fwd_dev_stage(f, f->host.turns, R * (size_t)turns * sizeof(float));
    if (fwd_dev_packs(r->c)) f->packed_turns = stage_wanted(f, f->host.turns, turns, b);
    for (int i = 0; i < 2; i++)
        r->grow[i] = fwd_dev_stage(f, f->host.grow[i], R * (size_t)fwd_grows(r->c) * sizeof(float));
}

/* Where the rows of each of H heads begin, R of each. */
static const int32_t *stage_firsts(fwd_dev_ctx *f, int64_t H, int64_t R)
{
    for (int64_t h = 0; h <= H; h++)
        f->head_rows[h] = (int32_t)(h * R);
    return fwd_dev_stage(f, f->head_rows, (size_t)(H + 1) * sizeof *f->head_rows);
}

/* MLA's heads as a group of weights: each has all rows, or the wanted ones. */
static void stage_heads(fwd_dev_ctx *f, const fwd_rows *r, int64_t wanted)
{
    const int64_t H = f->heads.H;
    int32_t *busy = f->head_rows + H + 1;
    if (!f->heads.latent) return;
    for (int64_t h = 0; h <= H; h++)
        busy[h] = h < H ? (int32_t)h : -1;
    f->head_first = stage_firsts(f, H, r->R);
    if (fwd_dev_packs(r->c)) f->packed_head_first = stage_firsts(f, H, wanted);
    f->head_busy = fwd_dev_stage(f, busy, (size_t)(H + 1) * sizeof *busy);
}

/* What the staged draws point to. */
static void stage_draw_lists(fwd_dev_ctx *f, dev_draw *draws, int64_t n, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++) {
        dev_draw *d = &draws[i];
        if (d->mask)
            d->mask = fwd_dev_stage(f, d->mask, (size_t)fwd_mask_words(vocab) * sizeof *d->mask);
        if (d->n_edits)
            d->edits = fwd_dev_stage(f, d->edits, (size_t)d->n_edits * sizeof *d->edits);
    }
}

/* All rows have logits, so that no buffers change places and each layer has the same rows, and
 * attention is that of few rows. */
static bool is_even(const fwd_rows *r, const fwd_batch *b)
{
    if (b->n_picked != r->R) return false;
    for (int i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].n_rows > DEV_ATTN_FEW) return false;
    return true;
}

static void set_shape(fwd_dev_ctx *f, const fwd_rows *r, const fwd_batch *b)
{
    fwd_shape *s = &f->shape;
    *s = (fwd_shape){ .rows = r->R, .n_draws = b->n_draws, .fixed = (int64_t)f->staged };
    s->runs = f->n_runs;
    s->given_own = r->given_own;
    s->lora.panels = f->lora.all.n;
    s->lora.rank = f->lora.rank;
    s->lora.dora = f->lora.dora;
    for (int64_t i = 0; i < b->n_draws; i++)
        s->drawn[b->draws[i].row / 64] |= UINT64_C(1) << b->draws[i].row % 64;
    for (int k = 0; k < f->n_kinds; k++) {
        const fwd_dev_kind *of = &f->kind[k];
        int which = 0;
        while (!of->has[which]) /* all rows are wanted: they have the same plans */
            which++;
        const fwd_plan *p = &of->plans[of->few][which];
        assert(p->n_launches <= 1);
        s->attn[k].chunks = p->n_launches ? p->launches[0].n_chunks : 0;
        s->attn[k].slots = p->n_launches ? p->launches[0].n_slots : 0;
    }
}

static void embed(fwd_dev_ctx *f, fwd_rows *r)
{
    const arch_config *c = r->c;
    const model *w = &f->on->w;
    f->d->ops->embed(f->d, &(dev_embed_args){ .x = r->x,
                                              .table = w->embed.plane[QT_CODES].data,
                                              .dtype = w->embed.scheme.dtype,
                                              .ids = f->ids,
                                              .T = r->R,
                                              .K = c->hidden,
                                              .scale = (float)c->embed_scale });
    if (w->embed_norm.w) r->ops->norm(r, r->x, r->x, &w->embed_norm, r->R, c->hidden);
}

/* What a step tells of its sequences' states. */
static void stage_runs(fwd_dev_ctx *f, const fwd_rows *r)
{
    f->n_runs = f->states ? r->n_states : 0;
    for (int64_t i = 0; i < f->n_runs; i++) {
        const fwd_seq_state *s = &r->states[i];
        const kv_run_slots at = kv_slots_of_run(f->kv, &s->run);
        dev_run *to = &f->run_of[i];
        *to = (dev_run){
            (int32_t)s->row0, (int32_t)s->n_rows, at.state - 1, at.n_marks, { { 0, 0 } }
        };
        for (int m = 0; m < at.n_marks; m++) {
            to->mark[m].after = (int32_t)at.marks[m].after;
            to->mark[m].slot = (int32_t)at.marks[m].slot;
        }
    }
    f->runs = fwd_dev_stage(f, f->run_of, (size_t)f->n_runs * sizeof *f->run_of);
}
static_assert((int)DEV_MARKS >= (int)KV_MARKS + (int)KV_UNDO, "a run's copies");

void fwd_dev_begin(fwd_rows *r, const model *m, const fwd_batch *b)
{
    fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->bind(f->d);
    f->staged = 0;
    r->x = f->home.x; /* graphs of one step's pieces may have been captured in different steps */
    r->y = f->home.y;
    r->h = f->home.h;
    r->a = f->home.a;
    r->q = f->home.q;
    r->mix = f->home.mix;
    r->mix_out = f->home.mix_out;
    r->ple = f->home.ple;
    r->ple_row = f->home.ple_row;
    r->streams = f->home.streams;
    r->streams_row = f->home.streams_row;
    r->first = f->home.first;
    r->hyper = f->home.hyper;
    r->hyper_row = f->home.hyper_row;
    r->index_keys = f->home.index_keys;
    r->index_keys_row = f->home.index_keys_row;
    r->beside = f->home.beside;
    /* its work is then that of every other step of its shape */
    f->even = is_even(r, b);
    f->steady = !f->on->eager && r->R <= FWD_GRAPH_ROWS && f->even;
    f->late_norm.T = f->late_rope.T = 0;
    f->ordered = NULL;
    f->ids = fwd_dev_stage(f, b->ids, (size_t)r->R * sizeof *f->ids);
    for (int64_t i = 0; i < b->n_picked; i++)
        f->words[i] = (int32_t)b->picked[i];
    f->picked = fwd_dev_stage(f, f->words, (size_t)b->n_picked * sizeof *f->picked);
    dev_draw *draws = (dev_draw *)(void *)(f->stage + f->staged);
    f->draws = fwd_dev_stage(f, b->draws, (size_t)b->n_draws * sizeof *f->draws);
    stage_places(f, r, b);
    stage_heads(f, r, b->n_picked);
    stage_runs(f, r);
    place_tables(f, b);
    f->rows_of[FWD_DEV_ALL] = b->seqs;
    f->rows_of[FWD_DEV_LAST] = b->last;
    f->rows_of[FWD_DEV_PACKED] = b->packed;
    fwd_dev_index_begin(f, b->n_seqs);
    fwd_dev_widen_begin(f, b, c);
    for (int k = 0; k < f->n_kinds; k++)
        stage_plans(f, &f->kind[k], b->n_seqs, c);
    fwd_dev_lora_begin(f, b, r->R);
    if (f->steady) set_shape(f, r, b);
    /* Only data point to what follows, and to f->tables, whose place does not depend on it. */
    stage_tables(f, b);
    fwd_dev_widen_tables(f, b);
    stage_draw_lists(f, draws, b->n_draws, c->vocab);
    f->d->ops->upload(f->d, f->stage_on, f->stage, f->staged);
    if (!f->on->w.embed.N && !f->first) fwd_embed_rows(&f->host, m, b->ids); /* with its norm */
    if (c->ple_dim) fwd_dev_ple_send(r, m, b->ids);
}

fwd_how fwd_dev_how(fwd_dev_ctx *f, int64_t piece)
{
    if (piece == 0) fwd_graphs_begin(&f->graphs, f->d, f->steady ? &f->shape : NULL);
    return fwd_graphs_piece(&f->graphs, f->d, piece, f->on);
}

bool fwd_dev_kept(fwd_dev_ctx *f, int64_t piece)
{
    return fwd_graphs_end(&f->graphs, f->d, piece, f->on);
}

void fwd_dev_enter(fwd_rows *r)
{
    fwd_dev_ctx *f = r->self;
    const size_t n = (size_t)(r->R * r->c->hidden);
    if (f->on->w.embed.N)
        embed(f, r);
    else
        f->d->ops->upload(f->d, r->x, f->host.x, n * sizeof *r->x);
    if (f->on->first && r->c->layer[f->on->first].index_shared)
        f->d->ops->upload(f->d, r->index_keys, f->host.index_keys,
                          (size_t)(r->R * r->c->index_topk) * sizeof *r->index_keys);
    if (r->c->mtp) fwd_dev_read_given(r);
    if (r->c->ple_dim) fwd_dev_ple_rows(r);
    if (r->c->streams) fwd_dev_streams_begin(r);
    if (r->c->w.shortcut) fwd_dev_shortcut_begin(r);
    if (r->c->hyper) fwd_dev_hyper_begin(r);
}

void fwd_dev_leave(const fwd_rows *r, const fwd_batch *b, float *logits, float *hidden, float *raw)
{
    fwd_dev_ctx *f = r->self;
    const int64_t V = fwd_words(r->c), H = r->c->hidden;
    for (fwd_run at = { 0 }; fwd_next_run(&at, b);) {
        const size_t n = (size_t)at.n * sizeof *logits;
        f->d->ops->download(f->d, logits + at.row * V, raw + at.row * V, n * (size_t)V);
        f->d->ops->download(f->d, hidden + at.row * H, r->h + at.row * H, n * (size_t)H);
    }
    if (f->residual)
        f->d->ops->download(f->d, f->residual, r->x,
                            (size_t)(b->n_picked * H) * sizeof *f->residual);
    if (!V) return;
    f->d->ops->draw(f->d, &(dev_draw_args){ .logits = raw,
                                            .how = f->draws,
                                            .out = f->drawn_on,
                                            .scratch = f->draw_scratch,
                                            .n = b->n_draws,
                                            .V = V,
                                            .scale = (float)r->c->logit_scale,
                                            .cap = (float)r->c->final_softcap });
    f->d->ops->download(f->d, f->drawn, f->drawn_on, (size_t)b->n_draws * sizeof *f->drawn);
}

lq_status fwd_dev_end(const fwd_rows *r, lq_err *err)
{
    const fwd_dev_ctx *f = r->self;
    return f->d->ops->sync(f->d, err);
}
