/* runtime/engine/mtp.c - see mtp.h. */
#include "runtime/engine/mtp.h"

#include <stdlib.h>

#include "runtime/engine/draft.h"

/* The logit of an id that a draft does not guess: finite, as the sampler wants them, penalized too. */
#define NEVER (-1e30f)

struct mtp {
    const model *head;
    kv_cache *kv;
    fwd_ctx *fwd;
    int64_t longest, max_seqs;
    float *wide;        /* [vocab] logits of a draft that guesses among fewer ids; else NULL */
    seq **read;         /* [max_seqs] whose rows a pass has, item by item */
    fwd_item *items;    /* [max_seqs] */
    seq *at[SPEC_ROWS]; /* those that are guessed for in this step */
    int64_t want[SPEC_ROWS];
    int64_t row[SPEC_ROWS]; /* of its logits in this pass; -1: none */
};

fwd_opts mtp_step(const fwd_opts *f)
{
    fwd_opts fo = *f;
    fo.max_logits = SPEC_ROWS;
    if (fo.max_rows < SPEC_ROWS) fo.max_rows = SPEC_ROWS;
    if (fo.max_seqs < SPEC_ROWS) fo.max_seqs = SPEC_ROWS;
    fo.all_hidden = false;
    fo.n_inputs = 0;
    fo.lora_rank = 0;
    return fo;
}

lq_status mtp_open(mtp **out, const model *head, const kv_opts *cache, const fwd_opts *f, pool *p,
                   lq_err *err)
{
    *out = NULL;
    mtp *m = calloc(1, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "MTP head: out of memory");
    kv_opts ko = *cache;
    ko.n_windows = 0; /* guesses' rows are taken back further than a window's slots allow */
    ko.on = model_dev(head);
    ko.first = 0;
    if (arch_rope_by_length(&head->cfg->rope[ROPE_MAIN])) ko.prefix_cache = false; /* as drafts */
    const fwd_opts fo = mtp_step(f);
    m->head = head;
    m->longest = head->cfg->max_pos > 0 ? head->cfg->max_pos : INT32_MAX;
    m->max_seqs = fo.max_seqs;
    m->read = calloc((size_t)fo.max_seqs, sizeof *m->read);
    m->items = calloc((size_t)fo.max_seqs, sizeof *m->items);
    const int64_t wide = head->drafted ? head->cfg->vocab : 0;
    if (wide) m->wide = malloc((size_t)wide * sizeof *m->wide);
    for (int64_t i = 0; i < wide && m->wide; i++)
        m->wide[i] = NEVER;
    lq_status s = m->read && m->items && (m->wide || !wide)
                      ? LQ_OK
                      : lq_fail(err, LQ_ENOMEM, "MTP head: out of memory");
    if (!s) s = kv_open(&m->kv, head->cfg, &ko, err);
    if (!s) s = fwd_open(&m->fwd, head, m->kv, p, &fo, err);
    if (s)
        mtp_close(m);
    else
        *out = m;
    return s;
}

void mtp_close(mtp *m)
{
    if (!m) return;
    if (m->fwd) fwd_close(m->fwd);
    kv_close(m->kv);
    free(m->read);
    free(m->items);
    free(m->wide);
    free(m);
}

void mtp_begin(mtp *m, seq *s)
{
    lq_err ignored; /* no block is free: there will be */
    if (kv_reserve(m->kv, &s->draft.kv, 1, &ignored)) kv_truncate(m->kv, &s->draft.kv, 0);
}

void mtp_forget(mtp *m, seq *s)
{
    if (m) kv_seq_free(m->kv, &s->draft.kv);
}

/* Nothing is read: the next row is the first. */
static void begin_anew(mtp *m, seq *s, int64_t first)
{
    kv_truncate(m->kv, &s->draft.kv, 0);
    s->draft.n_done = 0;
    s->draft.first = first;
}

/* The row of position p holds the id of p + 1: so are its blocks known. */
static void find_prefix(mtp *m, seq *s, int64_t from)
{
    seq_draft *x = &s->draft;
    begin_anew(m, s, 0);
    const int64_t n = kv_match_prefix(m->kv, &x->kv, s->ids + 1, s->n_ids - 1, s->r.salt);
    if (n < from)
        begin_anew(m, s, from);
    else
        x->n_done = n;
}

/* The rows of states that s has not read, as an item; false: there are none, or no block is free. */
static bool read_item(mtp *m, seq *s, const float *hidden, fwd_item *item)
{
    seq_draft *x = &s->draft;
    const arch_config *c = m->head->cfg;
    const int64_t W = arch_is_eagle(c) ? 3 * c->target_hidden : c->hidden, pos = x->hidden.pos;
    const int64_t end = pos + x->hidden.n < s->n_done ? pos + x->hidden.n : s->n_done;
    lq_err ignored;
    x->hidden.n = 0;
    if (end <= pos) return false;
    kv_truncate(m->kv, &x->kv, x->n_done); /* guesses' rows */
    if (x->first + x->n_done < pos || x->n_done == 0) find_prefix(m, s, pos);
    if (x->first == 0) kv_register(m->kv, &x->kv, s->ids + 1, x->n_done, s->r.salt);
    const int64_t next = x->first + x->n_done, n = end - next;
    if (n <= 0 || kv_reserve(m->kv, &x->kv, x->n_done + n, &ignored)) return false;
    *item = (fwd_item){ .seq = &x->kv,
                        .ids = s->ids + next + 1,
                        .given = hidden + (x->hidden.row + next - pos) * W,
                        .n = n,
                        .pos0 = x->n_done,
                        .logits_from = n,
                        .seq_len = s->n_prompt };
    return true;
}

/* All rows that there are to read; returns the items. */
static int read_all(mtp *m, seq *const *run, int64_t n, const float *hidden)
{
    int items = 0;
    for (int64_t i = 0; i < n; i++)
        if (read_item(m, run[i], hidden, &m->items[items])) m->read[items++] = run[i];
    return items;
}

/* Who is guessed for: of those whose last row is about to be read. Returns how many. */
static int mtp_choose(mtp *m, seq *const *run, int64_t n, int64_t max, int items)
{
    draft_turns t = draft_turns_of(run, n, max);
    int64_t want;
    int k = 0, i = 0;
    for (seq *s; max > 0 && (s = draft_next(&t, &want));) {
        lq_err ignored;
        while (i < items && m->read[i] != s) /* both in the order of `run` */
            i++;
        if (i == items) break;
        const int64_t rows = m->items[i].pos0 + m->items[i].n;
        if (want > m->longest - s->n_ids) want = m->longest - s->n_ids;
        if (want <= 0 || s->draft.first + rows != s->n_done ||
            kv_reserve(m->kv, &s->draft.kv, rows + want - 1, &ignored))
            continue;
        m->items[i].logits_from = m->items[i].n - 1;
        m->row[k] = k;
        m->at[k] = s;
        m->want[k++] = want;
        t.left -= want;
    }
    return k;
}

/* One more guess for each that wants it, of its own last state; NULL: nobody does, or it failed. */
static const float *guess_pass(mtp *m, int k)
{
    const float *logits = NULL, *last = fwd_residual(m->fwd);
    int items = 0;
    lq_err ignored;
    for (int i = 0; i < k; i++) {
        seq *s = m->at[i];
        const int64_t from = m->row[i];
        m->row[i] = -1;
        if (s->n_draft >= m->want[i]) continue;
        m->items[items] = (fwd_item){ .seq = &s->draft.kv,
                                      .ids = s->ids + s->n_ids + s->n_draft - 1,
                                      .given = last + from * m->head->cfg->hidden,
                                      .given_own = true,
                                      .n = 1,
                                      .pos0 = s->draft.n_done + s->n_draft - 1,
                                      .seq_len = s->n_prompt };
        m->row[i] = items++;
    }
    return items && !fwd_step(m->fwd, m->items, items, &logits, &ignored) ? logits : NULL;
}

/* Row i of a pass's logits, of all ids. */
static const float *all_ids(mtp *m, const float *logits, int64_t i)
{
    const int64_t n = arch_words(m->head->cfg);
    const float *row = logits + i * n;
    if (!m->wide) return row;
    for (int64_t k = 0; k < n; k++)
        m->wide[m->head->drafted[k]] = row[k];
    return m->wide;
}

bool mtp_guess(mtp *m, seq *const *run, int64_t n, int64_t max, const float *hidden, smp_ctx *smp)
{
    bool only_guesses = true;
    lq_err ignored;
    const float *logits;
    for (int64_t i = 0; i < n; i++)
        run[i]->n_draft = 0;
    const int items = read_all(m, run, n, hidden), k = mtp_choose(m, run, n, max, items);
    if (!items) return true;
    const bool failed = fwd_step(m->fwd, m->items, items, &logits, &ignored) != LQ_OK;
    for (int i = 0; i < items; i++) {
        only_guesses &= m->items[i].n <= 1 + SPEC_MAX;
        m->read[i]->draft.n_done += m->items[i].n;
        if (failed) begin_anew(m, m->read[i], 0);
    }
    for (; k && !failed && logits; logits = guess_pass(m, k))
        for (int i = 0; i < k; i++) {
            seq *s = m->at[i];
            if (m->row[i] < 0) continue;
            if (!seq_guess_from(s, smp, all_ids(m, logits, m->row[i]))) m->want[i] = 0;
        }
    for (int i = 0; i < k; i++)
        seq_guess_end(m->at[i]);
    return only_guesses;
}
