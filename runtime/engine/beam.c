/* runtime/engine/beam.c - see beam.h. */
#include "runtime/engine/beam.h"

lq_status beam_fits(const seq *s, int64_t max_seqs, const kv_opts *kv, lq_err *err)
{
    int64_t width = s->r.beam.width, shared = s->n_prompt / kv->block_size;
    int64_t whole = lq_ceil_div(s->n_prompt + s->max_new, kv->block_size);
    int64_t need = shared + width * (whole - shared);
    if (width > max_seqs)
        return lq_fail(err, LQ_EVALUE,
                       "beam search: expected a width of at most %lld (--max-num-seqs), found %lld",
                       (long long)max_seqs, (long long)width);
    if (width && need > kv->n_blocks)
        return lq_fail(err, LQ_EVALUE,
                       "beam search: %lld lines of this length may need %lld KV blocks, the cache "
                       "has %lld",
                       (long long)width, (long long)need, (long long)kv->n_blocks);
    const int64_t near = whole < kv->windows_each ? whole : kv->windows_each;
    if (width && width * near > kv->n_windows)
        return lq_fail(
            err, LQ_EVALUE,
            "beam search: %lld lines of this length may need %lld slots of layers with a "
            "window, the cache has %lld",
            (long long)width, (long long)(width * near), (long long)kv->n_windows);
    if (width && kv->n_states && width > kv->n_states)
        return lq_fail(err, LQ_EVALUE,
                       "beam search: %lld lines need %lld states of sequences, the cache has %lld",
                       (long long)width, (long long)width, (long long)kv->n_states);
    return LQ_OK;
}

/* ---- blocks ---- */

lq_status beam_reserve(kv_cache *kv, seq *s, int64_t tokens, lq_err *err)
{
    beam_set *b = s->beams;
    if (!b || !b->n_lines) return kv_reserve(kv, &s->kv, tokens, err);
    lq_status st = LQ_OK;
    for (int64_t i = 0; i < b->n_lines && !st; i++)
        st = kv_reserve(kv, &b->lines[i].kv, tokens, err);
    return st;
}

int beam_items(const seq *s, fwd_item *items)
{
    const beam_set *b = s->beams;
    for (int64_t i = 0; i < b->n_lines; i++)
        items[i] = (fwd_item){ .seq = &b->lines[i].kv,
                               .ids = &b->nodes[b->lines[i].node].id,
                               .n = 1,
                               .pos0 = s->n_done,
                               .seq_len = s->n_prompt,
                               .lora = s->r.lora };
    return (int)b->n_lines;
}

void beam_release(kv_cache *kv, seq *s)
{
    kv_seq_free(kv, &s->kv);
    for (int64_t i = 0; s->beams && i < s->beams->o.width; i++) {
        kv_seq_free(kv, &s->beams->lines[i].kv);
        kv_seq_free(kv, &s->beams->next[i].kv);
    }
}

void beam_restart(seq *s)
{
    beam_set *b = s->beams;
    if (!b) return;
    b->n_lines = b->n_answers = b->n_nodes = 0;
    s->n_ids = s->n_prompt;
}

/* ---- proposals ---- */

/* The n ids up to `node`. */
static void path_ids(const beam_set *b, int32_t node, int32_t *ids, int64_t n)
{
    for (int64_t i = n; i-- > 0; node = b->nodes[node].parent)
        ids[i] = b->nodes[node].id;
}

lq_status beam_draw(seq *s, smp_ctx *smp, const float *(*row)(void *user, int64_t i), void *user,
                    lq_err *err)
{
    beam_set *b = s->beams;
    int64_t n = seq_output(s);
    int32_t *out = s->ids + s->n_prompt;
    lq_status st = LQ_OK;
    for (int64_t i = 0; i < beam_rows(s) && !st; i++) {
        if (n > 0) path_ids(b, b->lines[i].node, out, n);
        st = seq_mask(s, n, err);
        if (!st)
            st = smp_best(smp, b->cands + i * b->per, b->per, &b->n_cands[i],
                          b->tops ? &b->tops[n * b->o.width + i] : NULL, row(user, i),
                          seq_params(s, n), s->ids, s->n_prompt, out, n, err);
    }
    return st;
}

/* The best of all lines' proposals in falling order, earlier lines first; returns how many. */
static int64_t merge(beam_set *b, int64_t rows)
{
    int64_t n = 0;
    for (int64_t i = 0; i < rows; i++)
        b->at[i] = 0;
    for (; n < b->keep; n++) {
        beam_proposal best = { .line = -1 };
        for (int64_t i = 0; i < rows; i++) {
            if (b->at[i] == b->n_cands[i]) continue;
            const smp_cand *c = &b->cands[i * b->per + b->at[i]];
            double sum = (b->n_lines ? b->lines[i].sum : 0) + (double)c->score;
            if (best.line < 0 || sum > best.sum) best = (beam_proposal){ sum, (int32_t)i, *c };
        }
        if (best.line < 0) break;
        b->at[best.line]++;
        b->proposals[n] = best;
    }
    return n;
}

/* ---- what becomes of them ---- */

/* Would this id end the line's answer? s is left as it was. */
static lq_status ends(seq *s, const beam_proposal *p, const arch_config *c, const tok_tokenizer *t,
                      bool *yes, lq_err *err)
{
    const beam_set *b = s->beams;
    int64_t n = seq_output(s);
    const char *text;
    size_t n_text;
    lq_status st = LQ_OK;
    if (s->r.n_stop == 0) t = NULL; /* its text cannot end it */
    if (t) {
        path_ids(b, b->n_lines ? b->lines[p->line].node : -1, s->ids + s->n_prompt, n);
        st = seq_rewind(s, t, err);
        for (int64_t i = 0; i < n && !st; i++) {
            st = seq_append(s, s->ids[s->n_ids], c, t, err);
            stop_take(s->stop, &text, &n_text); /* nobody wants it yet */
        }
    }
    if (!st) st = seq_append(s, p->c.id, c, t, err);
    *yes = s->finish != ENG_RUNNING;
    s->n_ids = s->n_prompt + n;
    s->finish = ENG_RUNNING;
    s->stop_id = s->stop_matched = -1;
    return st;
}

static int32_t add_node(beam_set *b, const beam_proposal *p, int64_t step)
{
    int32_t i = (int32_t)b->n_nodes++;
    b->nodes[i] = (beam_node){ .id = p->c.id,
                               .parent = b->n_lines ? b->lines[p->line].node : -1,
                               .logprob = p->c.logprob,
                               .row = (int32_t)(step * b->o.width) + p->line };
    return i;
}

/* The proposal, an answer of n ids, among the answers if it is good enough. */
static void add_answer(beam_set *b, const beam_proposal *p, int64_t n)
{
    double score = p->sum / pow((double)n, b->o.length_penalty);
    int64_t i = b->n_answers;
    if (i == b->o.width && !(score > b->answers[i - 1].score)) return;
    if (i < b->o.width) b->n_answers++;
    for (i = b->n_answers - 1; i > 0 && score > b->answers[i - 1].score; i--)
        b->answers[i] = b->answers[i - 1];
    b->answers[i] = (beam_answer){ score, add_node(b, p, n - 1), n };
}

/* After n ids: can no line that goes on become one of the answers? */
static bool is_over(const beam_set *b, int64_t n_next, int64_t n)
{
    if (n_next == 0) return true;
    if (b->n_answers < b->o.width) return false;
    if (b->o.early == ENG_EARLY_FULL) return true;
    bool longest = b->o.early == ENG_EARLY_NEVER && b->o.length_penalty > 0;
    double best = b->next[0].sum / pow((double)(longest ? b->max_new : n), b->o.length_penalty);
    return !(best > b->answers[b->n_answers - 1].score);
}

/* The lines of the next step take the blocks of those that they come from. */
static lq_status fork_lines(seq *s, kv_cache *kv, int64_t n, lq_err *err)
{
    beam_set *b = s->beams;
    lq_status st = LQ_OK;
    for (int64_t i = 0; i < n && !st; i++)
        st = kv_fork(kv, &b->next[i].kv, b->n_lines ? &b->lines[b->next[i].from].kv : &s->kv, err);
    if (b->n_lines == 0) kv_seq_free(kv, &s->kv);
    for (int64_t i = 0; i < b->n_lines; i++)
        kv_truncate(kv, &b->lines[i].kv, 0);
    beam_line *lines = b->lines;
    b->lines = b->next;
    b->next = lines;
    b->n_lines = n;
    return st;
}

lq_status beam_take(seq *s, kv_cache *kv, const arch_config *c, const tok_tokenizer *t, lq_err *err)
{
    beam_set *b = s->beams;
    int64_t n = seq_output(s) + 1, n_next = 0, rows = beam_rows(s), found = merge(b, rows);
    if (found == 0) return lq_fail(err, LQ_ENOENT, "beam search: every token is banned");
    for (int64_t i = 0; i < found; i++) {
        beam_proposal *p = &b->proposals[i];
        bool end = false;
        if (n_next == b->o.width && i >= b->o.width) break;
        lq_status st = ends(s, p, c, t, &end, err);
        if (st) return st;
        if (end && i < b->o.width) {
            add_answer(b, p, n);
        } else if (!end && n_next < b->o.width) {
            beam_line *l = &b->next[n_next++];
            l->sum = p->sum;
            l->from = p->line;
            l->node = add_node(b, p, n - 1);
        }
    }
    b->over = is_over(b, n_next, n);
    if (!b->over) {
        s->ids[s->n_ids++] = b->nodes[b->next[0].node].id; /* one more; whose is in the nodes */
        return fork_lines(s, kv, n_next, err);
    }
    if (b->n_answers < b->o.n)
        return lq_fail(err, LQ_ENOENT,
                       "beam search: expected %lld answers, and what is not banned makes only %lld",
                       (long long)b->o.n, (long long)b->n_answers);
    return LQ_OK;
}

void beam_path(const beam_set *b, int64_t a, int32_t *ids)
{
    int32_t node = b->answers[a].node;
    for (int64_t i = b->answers[a].n; i-- > 0; node = b->nodes[node].parent) {
        const beam_node *x = &b->nodes[node];
        ids[i] = x->id;
        if (b->tops) b->results[i] = b->tops[x->row];
        b->results[i].id = x->id;
        b->results[i].logprob = x->logprob;
    }
}
