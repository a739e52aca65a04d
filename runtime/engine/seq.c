/* runtime/engine/seq.c - see seq.h. */
#include "runtime/engine/seq.h"

#include "runtime/model/model.h"

#include <stdio.h>
#include <stdlib.h>

/* Ids of the prompt that shape how the first output is spelled (spaces, split characters). */
enum { PRIME_IDS = 32 };

/* ---- a request, checked and copied ---- */

static lq_status check_ids(const char *what, const int32_t *ids, int64_t n, int64_t vocab,
                           lq_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return lq_fail(err, LQ_EVALUE, "%s: token id %d is not in the vocabulary of %lld", what,
                           ids[i], (long long)vocab);
    return LQ_OK;
}

static bool bad_runs_fit(const eng_request *r, int64_t vocab)
{
    for (int i = 0; i < r->n_bad; i += 1 + r->bad[i]) {
        if (r->bad[i] < 1 || r->bad[i] > r->n_bad - i - 1) return false;
        for (int k = 1; k <= r->bad[i]; k++)
            if (r->bad[i + k] < 0 || r->bad[i + k] >= vocab) return false;
    }
    return true;
}

static lq_status check_request(const eng_request *r, const arch_config *c, int64_t max_len,
                               bool has_tok, lq_err *err)
{
    const int64_t vocab = c->vocab;
    if (!r->pool && c->head != HEAD_WORDS) return model_check_words(c, err);
    if (r->n_prompt < 1) return lq_fail(err, LQ_EVALUE, "prompt: expected at least one token");
    if (r->n_prompt > max_len)
        return lq_fail(err, LQ_EVALUE, "prompt of %lld tokens: the context holds %lld",
                       (long long)r->n_prompt, (long long)max_len);
    if (r->max_tokens < 0)
        return lq_fail(err, LQ_EVALUE, "max_tokens: expected 0 or more, found %lld",
                       (long long)r->max_tokens);
    if (r->max_tokens > 0 && r->n_prompt == max_len)
        return lq_fail(err, LQ_EVALUE,
                       "prompt of %lld tokens: leaves no room for output in a context of %lld",
                       (long long)r->n_prompt, (long long)max_len);
    if (r->min_tokens < 0 || r->min_tokens > r->max_tokens)
        return lq_fail(err, LQ_EVALUE, "min_tokens: expected 0..max_tokens (%lld), found %lld",
                       (long long)r->max_tokens, (long long)r->min_tokens);
    if (r->prompt_logprobs < -1 || r->prompt_logprobs > SMP_MAX_LOGPROBS)
        return lq_fail(err, LQ_EVALUE, "prompt_logprobs: expected -1..%d, found %d",
                       SMP_MAX_LOGPROBS, r->prompt_logprobs);
    if (r->pool && (r->max_tokens > 0 || r->prompt_logprobs >= 0))
        return lq_fail(err, LQ_EVALUE, "an embedding has neither output nor prompt_logprobs");
    if (!bad_runs_fit(r, vocab))
        return lq_fail(err, LQ_EVALUE, "bad words: expected runs of ids, each after its length");
    if (r->n_stop > 0 && !has_tok)
        return lq_fail(err, LQ_EVALUE, "stop strings need a tokenizer, and this model has none");
    for (int i = 0; i < r->n_stop; i++)
        if (!r->stop[i][0])
            return lq_fail(err, LQ_EVALUE, "stop: expected a string that is not empty");
    if (r->grammar && (!has_tok || gr_mask_ids(r->grammar) != vocab))
        return lq_fail(err, LQ_EVALUE, "structured output needs the model's tokenizer");
    lq_status s = check_ids("prompt", r->prompt, r->n_prompt, vocab, err);
    if (!s) s = check_ids("stop ids", r->stop_ids, r->n_stop_ids, vocab, err);
    if (!s) s = smp_check(&r->params, vocab, err);
    return s;
}

/* A copy of n elements of `size`; NULL for none. */
static const void *copy_of(lq_arena *a, const void *src, int64_t n, size_t size, bool *ok)
{
    size_t bytes;
    if (!*ok || n <= 0 || !lq_mul((size_t)n, size, &bytes)) return NULL;
    void *p = lq_push(a, bytes);
    if (p)
        memcpy(p, src, bytes);
    else
        *ok = false;
    return p;
}

static const char *copy_text(lq_arena *a, const char *text, bool *ok)
{
    return text ? copy_of(a, text, (int64_t)strlen(text) + 1, 1, ok) : NULL;
}

static bool copy_wakes(seq *s, const eng_request *r)
{
    bool ok = true;
    eng_wake *w = lq_push(&s->arena, (size_t)r->n_wakes * sizeof *w);
    for (int i = 0; w && i < r->n_wakes; i++)
        w[i] = (eng_wake){ .text = copy_text(&s->arena, r->wakes[i].text, &ok),
                           .feed = copy_text(&s->arena, r->wakes[i].feed, &ok),
                           .begins = r->wakes[i].begins };
    s->r.wakes = w;
    s->r.wake_begin = copy_text(&s->arena, r->wake_begin, &ok);
    s->r.wake_after = copy_text(&s->arena, r->wake_after, &ok);
    s->tail = lq_push(&s->arena, ENG_TAIL);
    return ok && w && s->tail;
}

static bool copy_request(seq *s, const eng_request *r, int64_t vocab)
{
    bool ok = true;
    s->r = *r;
    thought_begin(&s->thought, r->thought ? r->thought : &(thought_limit){ .budget = -1 });
    s->r.thought = NULL;
    if (s->r.grammar) gr_ref(s->r.grammar);
    lora_ref(s->r.lora);
    s->r.prompt = copy_of(&s->arena, r->prompt, r->n_prompt, sizeof *r->prompt, &ok);
    s->r.stop_ids = copy_of(&s->arena, r->stop_ids, r->n_stop_ids, sizeof *r->stop_ids, &ok);
    s->r.bad = copy_of(&s->arena, r->bad, r->n_bad, sizeof *r->bad, &ok);
    smp_params *p = &s->r.params;
    p->bias = copy_of(&s->arena, p->bias, p->n_bias, sizeof *p->bias, &ok);
    if (p->allowed)
        p->allowed = copy_of(&s->arena, p->allowed, p->n_allowed, sizeof *p->allowed, &ok);
    p->asked = copy_of(&s->arena, p->asked, p->n_asked, sizeof *p->asked, &ok);
    const int64_t words = (vocab + 31) / 32;
    p->dry.runs = copy_of(&s->arena, p->dry.runs, p->dry.n_runs, sizeof *p->dry.runs, &ok);
    if (p->dry.breaks)
        p->dry.breaks = copy_of(&s->arena, p->dry.breaks, words, sizeof *p->dry.breaks, &ok);
    s->r.show_ids = copy_of(&s->arena, r->show_ids, r->n_show_ids, sizeof *r->show_ids, &ok);
    if (ok && r->n_wakes) ok = copy_wakes(s, r);
    if (r->salt) s->r.salt = copy_of(&s->arena, r->salt, (int64_t)strlen(r->salt) + 1, 1, &ok);
    if (!ok || r->n_stop <= 0) return ok;
    const char **stop = lq_push(&s->arena, (size_t)r->n_stop * sizeof *stop);
    for (int i = 0; stop && ok && i < r->n_stop; i++)
        stop[i] = copy_of(&s->arena, r->stop[i], (int64_t)strlen(r->stop[i]) + 1, 1, &ok);
    s->r.stop = stop;
    return ok && stop;
}

/* Where angles depend on the prompt's length, so do the blocks: the salt then names the length. */
static bool salt_length(seq *s, const arch_config *c)
{
    const arch_rope *rope = &c->rope[ROPE_MAIN];
    if (c->w.pos != POS_ROPE || !arch_rope_by_length(rope) || s->n_prompt <= rope->original_max)
        return true;
    const char *was = s->r.salt ? s->r.salt : "";
    size_t n = strlen(was) + 32;
    char *salt = lq_push(&s->arena, n);
    if (salt) snprintf(salt, n, "%lld tokens %s", (long long)s->n_prompt, was);
    s->r.salt = salt;
    return salt != NULL;
}

lq_status seq_new(seq **out, const eng_request *r, const arch_config *c, int64_t max_len,
                  bool has_tok, lq_err *err)
{
    *out = NULL;
    lq_status st = check_request(r, c, max_len, has_tok, err);
    if (st) return st;
    seq *s = calloc(1, sizeof *s);
    if (s) s->n_prompt = s->n_ids = r->n_prompt;
    if (!s || lq_arena_init(&s->arena, 0, err) || !copy_request(s, r, c->vocab) ||
        !salt_length(s, c)) {
        seq_free(s);
        return lq_fail(err, LQ_ENOMEM, "request: out of memory");
    }
    kv_seq_init(&s->kv);
    if (r->lora) s->kv.adapter = s->draft.kv.adapter = r->lora->id;
    int64_t room = max_len - r->n_prompt;
    s->max_new = r->max_tokens < room ? r->max_tokens : room;
    st = beam_check(r, s->max_new, err);
    if (st) {
        seq_free(s);
        return st;
    }
    s->stop_id = s->stop_matched = -1;
    s->mu = 2 * r->params.mirostat_tau;
    *out = s;
    return LQ_OK;
}

void seq_need_of(seq_need *n, const arch_config *c, int64_t max_len, int64_t guesses,
                 int block_size)
{
    enum { PIECES = 65536, TEXT = 65536 }; /* an arena's; of a stream and of stop strings */
    const size_t len = (size_t)max_len, vocab = (size_t)c->vocab;
    const size_t bad = (size_t)2 * API_MAX_BAD_WORDS * (API_MAX_STOP_BYTES + 1) * sizeof(int32_t);
    const size_t bias = (size_t)API_MAX_IDS * (sizeof(smp_bias) + 2 * sizeof(int32_t));
    n->waiting =
        sizeof(seq) + len * sizeof(int32_t) + bad + bias +
        (API_MAX_STOPS + 1) * (API_MAX_STOP_BYTES + 1) + (vocab / 32 + 1) * sizeof(uint32_t) +
        (size_t)DRY_MAX_BREAKERS * (DRY_MAX_RUN + 1) * sizeof(int32_t) + 4 * (size_t)PIECES;
    /* ids, prompt_logprobs or a search's lines, masks, tables of blocks (a draft's and windows' too) */
    n->running = len * (sizeof(int32_t) + 2 * sizeof(smp_result) + 2 * sizeof(beam_node)) +
                 (size_t)(1 + guesses) * sizeof(smp_result) + (vocab / 32 + 1) * sizeof(uint32_t) +
                 (size_t)c->hidden * sizeof(double) + bias +
                 3 * (len / (size_t)block_size + 2) * sizeof(int32_t) + TEXT + 4 * (size_t)PIECES;
}

void seq_free(seq *s)
{
    if (!s) return;
    tok_stream_free(s->stream);
    stop_close(s->stop);
    gr_matcher_free(s->matcher);
    gr_unref(s->r.grammar);
    lora_unref(s->r.lora);
    lq_arena_free(&s->arena);
    free(s);
}

/* ---- admission ---- */

static bool has_id(const int32_t *ids, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static int by_id(const void *a, const void *b)
{
    const smp_bias *p = a, *q = b;
    return (p->id > q->id) - (p->id < q->id);
}

/* s->early: the request's bias with every id that would end the answer banned. */
static lq_status ban_stops(seq *s, const arch_config *c, lq_err *err)
{
    s->early = s->r.params;
    if (s->r.min_tokens == 0) return LQ_OK;
    int n_eos = s->r.ignore_eos ? 0 : c->n_eos, n = s->r.params.n_bias, k = 0;
    smp_bias *b = lq_push(&s->arena, (size_t)(n + n_eos + s->r.n_stop_ids + 1) * sizeof *b);
    if (!b) return lq_fail(err, LQ_ENOMEM, "request: out of memory");
    for (int i = 0; i < n_eos + s->r.n_stop_ids; i++)
        b[k++] = (smp_bias){ i < n_eos ? c->eos[i] : s->r.stop_ids[i - n_eos], -INFINITY };
    int n_bans = k;
    for (int i = 0; i < n; i++) {
        bool banned = false;
        for (int j = 0; j < n_bans; j++)
            banned |= b[j].id == s->r.params.bias[i].id;
        if (!banned) b[k++] = s->r.params.bias[i];
    }
    qsort(b, (size_t)k, sizeof *b, by_id);
    int w = 0;
    for (int i = 0; i < k; i++) /* eos ids may be stop ids too, and an unset one is -1 */
        if (b[i].id >= 0 && b[i].id < c->vocab && (w == 0 || b[w - 1].id != b[i].id)) b[w++] = b[i];
    s->early.bias = b;
    s->early.n_bias = w;
    return LQ_OK;
}

/* The mask of draws, if anything sets it. Before ban_stops copies the parameters. */
static lq_status prepare_mask(seq *s, const arch_config *c, lq_err *err)
{
    if ((!s->r.grammar && s->r.n_bad == 0 && !thought_watches(&s->thought)) || s->max_new == 0)
        return LQ_OK;
    s->n_mask = (size_t)c->vocab / 32 + 1;
    s->mask = lq_push(&s->arena, s->n_mask * sizeof *s->mask);
    s->r.params.mask = s->mask;
    return s->mask ? LQ_OK : lq_fail(err, LQ_ENOMEM, "request: out of memory");
}

/* The matcher, and the ids that end an answer. */
static lq_status prepare_grammar(seq *s, const arch_config *c, const tok_tokenizer *t, lq_err *err)
{
    if (!s->r.grammar || s->max_new == 0) return LQ_OK;
    int n_eos = s->r.ignore_eos ? 0 : c->n_eos, n = 0;
    int32_t *ids = lq_push(&s->arena, (size_t)(n_eos + s->r.n_stop_ids + 1) * sizeof *ids);
    if (!ids) return lq_fail(err, LQ_ENOMEM, "request: out of memory");
    for (int i = 0; i < n_eos; i++)
        if (c->eos[i] >= 0 && c->eos[i] < c->vocab) ids[n++] = c->eos[i];
    for (int i = 0; i < s->r.n_stop_ids; i++)
        if (tok_is_special(t, s->r.stop_ids[i])) ids[n++] = s->r.stop_ids[i];
    s->end_ids = ids;
    s->n_end_ids = n;
    return s->r.n_wakes ? LQ_OK : gr_matcher_new(&s->matcher, s->r.grammar, err);
}

static lq_status prime_text(seq *s, const tok_tokenizer *t, lq_err *err)
{
    lq_status st = LQ_OK;
    int64_t prime = s->n_prompt < PRIME_IDS ? s->n_prompt : PRIME_IDS;
    const int32_t *tail = s->r.prompt + s->n_prompt - prime;
    while (prime > 0 && tail[0] >= tok_vocab(t)) /* rows of the head that no token has */
        tail++, prime--;
    for (int64_t i = 0; !st && i < prime; i++)
        if (tail[i] < tok_vocab(t)) st = tok_stream_prime(s->stream, tail + i, 1, err);
    return st;
}

static lq_status prepare_text(seq *s, const tok_tokenizer *t, lq_err *err)
{
    const bool skips = !s->r.show_special && !s->r.n_show_ids;
    lq_status st = tok_stream_new(&s->stream, t, skips, err);
    if (!st) st = prime_text(s, t, err);
    if (!st)
        st = stop_open(&s->stop, s->r.stop, s->r.n_stop, s->r.include_stop,
                       4 * tok_max_token_bytes(t) + 64, err);
    return st;
}

lq_status seq_prepare(seq *s, const arch_config *c, const tok_tokenizer *t, int64_t guesses,
                      lq_err *err)
{
    s->prepared = true;
    s->ids = lq_push(&s->arena, (size_t)(s->n_prompt + s->max_new) * sizeof *s->ids);
    s->samples = lq_push(&s->arena, (size_t)(1 + guesses) * sizeof *s->samples);
    if (!s->ids || !s->samples) return lq_fail(err, LQ_ENOMEM, "request: out of memory");
    memcpy(s->ids, s->r.prompt, (size_t)s->n_prompt * sizeof *s->ids);
    if (s->r.prompt_logprobs >= 0) {
        size_t bytes;
        if (!lq_mul((size_t)s->n_prompt, sizeof *s->scores, &bytes) ||
            !(s->scores = lq_push(&s->arena, bytes)))
            return lq_fail(err, LQ_ENOMEM, "request: out of memory for prompt_logprobs");
        s->scores[0].id = s->ids[0];
    }
    if (s->r.pool && !(s->pooled = lq_push(&s->arena, (size_t)c->hidden * sizeof *s->pooled)))
        return lq_fail(err, LQ_ENOMEM, "request: out of memory");
    if (s->r.infill && t) {
        s->r.params.infill.tok = t;
        s->r.params.infill.ends = c->eos;
        s->r.params.infill.n_ends = c->n_eos;
    }
    lq_status st = prepare_mask(s, c, err);
    if (!st) st = prepare_grammar(s, c, t, err);
    if (!st) st = ban_stops(s, c, err);
    if (!st && s->r.beam.width)
        st = beam_set_new(&s->beams, &s->arena, &s->r, s->max_new, c->vocab,
                          (s->r.ignore_eos ? 0 : c->n_eos) + s->r.n_stop_ids, err);
    if (!st && t) st = prepare_text(s, t, err);
    return st;
}

/* ---- output ---- */

int64_t seq_guesses(seq *s, int64_t max)
{
    int64_t room = s->max_new - seq_output(s) - 1;
    if (thought_watches(&s->thought)) return 0;
    if (max <= 0 || room <= 0 || s->beams || s->n_ids - s->n_done != 1 || seq_scoring(s)) return 0;
    int64_t n = spec_length(&s->spec, max);
    return n < room ? n : room;
}

void seq_guess(seq *s, int64_t max)
{
    int64_t n = seq_guesses(s, max);
    s->n_draft = n > 0 ? spec_ngram(s->ids + s->n_ids, n, s->ids, s->n_ids) : 0;
}

/* Takes out of the mask what would complete a bad word behind n ids of output. */
static void ban_bad_words(seq *s, int64_t n)
{
    const int32_t *out = s->ids + s->n_prompt, *run = s->r.bad;
    for (const int32_t *end = run + s->r.n_bad; run < end; run += 1 + run[0]) {
        int64_t before = run[0] - 1;
        int32_t last = run[run[0]];
        if (before <= n && !memcmp(out + n - before, run + 1, (size_t)before * sizeof *out))
            s->mask[last >> 5] &= ~(1u << (last & 31));
    }
}

/* A thought whose budget is spent is closed, as soon as the grammar lets it. */
static void close_thought(seq *s, int64_t n)
{
    const int32_t id = thought_next(&s->thought, n);
    const uint32_t bit = 1u << (id & 31);
    if (id < 0 || (s->matcher && !(s->mask[id >> 5] & bit))) return;
    memset(s->mask, 0, s->n_mask * sizeof *s->mask);
    s->mask[id >> 5] = bit;
}

lq_status seq_mask(seq *s, int64_t n, lq_err *err)
{
    if (!s->mask) return LQ_OK;
    if (!s->matcher) {
        memset(s->mask, 0xff, s->n_mask * sizeof *s->mask);
        ban_bad_words(s, n);
        close_thought(s, n);
        return LQ_OK;
    }
    lq_status st = gr_mask(s->matcher, s->mask, err);
    bool may_end = gr_may_end(s->matcher);
    for (int i = 0; i < s->n_end_ids && !st; i++) {
        uint32_t bit = 1u << (s->end_ids[i] & 31), *word = &s->mask[s->end_ids[i] >> 5];
        if (may_end) *word |= bit; /* a grammar's own text may have one too */
    }
    if (!st) ban_bad_words(s, n);
    if (!st) close_thought(s, n);
    return st;
}

/* The matcher along a guess that was right; *on: the mask of the next draw can be made. */
static lq_status follow(seq *s, int32_t id, int64_t *steps, bool *on, lq_err *err)
{
    *on = !s->matcher || !has_id(s->end_ids, s->n_end_ids, id);
    if (!s->matcher || !*on) return LQ_OK;
    lq_status st = gr_accept_token(s->matcher, id, on, err);
    *steps += !st && *on;
    if (!st && *on) *on = !gr_must_end(s->matcher);
    return st;
}

bool seq_guess_from(seq *s, smp_ctx *smp, const float *row)
{
    int64_t n = seq_output(s) + s->n_draft;
    smp_params p = *seq_params(s, n);
    smp_result guess;
    lq_err ignored;
    bool on = true;
    p.logprobs = -1;
    p.temperature = 0; /* the likeliest: drawn ones were right less often */
    if (seq_mask(s, n, &ignored) || smp_sample(smp, &guess, row, &p, s->ids, s->n_prompt,
                                               s->ids + s->n_prompt, n, (uint64_t)n, &ignored))
        return false;
    s->ids[s->n_ids + s->n_draft++] = guess.id;
    return !follow(s, guess.id, &s->draft.steps, &on, &ignored) && on;
}

void seq_guess_end(seq *s)
{
    if (s->draft.steps > 0) gr_rollback(s->matcher, s->draft.steps);
    s->draft.steps = 0;
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Behind the last mark in text[n]; 0: there is none. */
static size_t behind_last(const char *text, size_t n, const char *mark)
{
    const size_t m = mark ? strlen(mark) : 0;
    for (size_t at = n; m && at >= m; at--)
        if (memcmp(text + at - m, mark, m) == 0) return at;
    return 0;
}

/* eng_wake.begins, of the tail's first `end` bytes. */
static bool begins_with(const seq *s, size_t end, const char *text)
{
    size_t at = behind_last(s->tail, end, s->r.wake_begin);
    if (!at && s->cut_tail && !s->behind_call) return false;
    for (; at < end; at++) {
        if (is_blank(s->tail[at])) continue;
        if (s->tail[at] != *text) return false;
        text++;
    }
    return !*text;
}

/* The text before the last n bytes of the tail may have a waking text behind it. */
static bool may_wake(const seq *s, size_t n)
{
    if (!s->r.wake_after) return true;
    size_t k = s->n_tail - n, m = strlen(s->r.wake_after);
    while (k && (s->tail[k - 1] == ' ' || s->tail[k - 1] == '\n'))
        k--;
    if (k == 0) return !s->cut_tail;
    return m && k >= m && memcmp(s->tail + k - m, s->r.wake_after, m) == 0;
}

/* The tail's first `end` bytes, with `rest` behind them, end with the text. */
static bool hears(const seq *s, const eng_wake *w, size_t end, size_t rest)
{
    const size_t len = strlen(w->text);
    if (len > end || s->tail[end - 1] != w->text[len - 1]) return false;
    if (w->begins) return begins_with(s, end, w->text);
    return memcmp(s->tail + end - len, w->text, len) == 0 && may_wake(s, len + rest);
}

/* The grammar wakes at text w, which ends `rest` bytes before the tail's end; *ok false: what follows
 * does not fit. */
static lq_status wake_up(seq *s, const eng_wake *w, size_t rest, bool *ok, lq_err *err)
{
    lq_status st = gr_matcher_new(&s->matcher, s->r.grammar, err);
    if (!st) st = gr_accept_text(s->matcher, w->feed, ok, err);
    if (!st && *ok && rest)
        st = gr_accept(s->matcher, (const uint8_t *)s->tail + s->n_tail - rest, rest, ok, err);
    if (!st && *ok) return LQ_OK;
    gr_matcher_free(s->matcher);
    s->matcher = NULL;
    return st;
}

/* The tail has grown by n bytes: does one of the texts end in them? */
static lq_status listen(seq *s, size_t n, lq_err *err)
{
    lq_status st = LQ_OK;
    for (size_t rest = n; rest-- > 0 && !s->matcher && !st;)
        for (int i = 0; i < s->r.n_wakes && !s->matcher && !st; i++) {
            bool ok = true;
            if (!hears(s, &s->r.wakes[i], s->n_tail - rest, rest)) continue;
            st = wake_up(s, &s->r.wakes[i], rest, &ok, err);
        }
    return st;
}

enum { ID_BYTES = ENG_TAIL / 2 };
/* An id's text, a special one's as it is spelled; none where it is longer. */
static size_t bytes_of(uint8_t bytes[ID_BYTES], int32_t id, const tok_tokenizer *t)
{
    const size_t n = id < tok_vocab(t) ? tok_token_bytes(t, id, bytes, ID_BYTES) : 0;
    return n <= ID_BYTES ? n : 0;
}

/* A sleeping grammar hears an id. */
static lq_status hear(seq *s, int32_t id, const tok_tokenizer *t, lq_err *err)
{
    uint8_t bytes[ID_BYTES];
    const size_t n = bytes_of(bytes, id, t);
    if (s->n_tail + n > ENG_TAIL) {
        size_t drop = s->n_tail + n - ENG_TAIL + ENG_TAIL / 4;
        if (drop > s->n_tail) drop = s->n_tail;
        memmove(s->tail, s->tail + drop, s->n_tail - drop);
        s->n_tail -= drop;
        s->cut_tail = true;
        s->behind_call = false;
    }
    memcpy(s->tail + s->n_tail, bytes, n);
    s->n_tail += n;
    return listen(s, n, err);
}

static bool sleeps(const seq *s, const tok_tokenizer *t)
{
    return s->r.n_wakes && !s->matcher && s->tail && t;
}

/* What a sleeping grammar has heard. */
typedef struct {
    char tail[ENG_TAIL];
    size_t n;
    bool cut, behind_call;
} ear;

static void remember(ear *e, const seq *s)
{
    memcpy(e->tail, s->tail, s->n_tail);
    e->n = s->n_tail;
    e->cut = s->cut_tail;
    e->behind_call = s->behind_call;
}

/* It sleeps again, and has heard no more than that. */
static void forget(seq *s, const ear *e)
{
    gr_matcher_free(s->matcher);
    s->matcher = NULL;
    memcpy(s->tail, e->tail, e->n);
    s->n_tail = e->n;
    s->cut_tail = e->cut;
    s->behind_call = e->behind_call;
}

lq_status seq_draw(seq *s, smp_ctx *smp, const dev_drawn *drawn,
                   const float *(*row)(void *user, int64_t i), void *user, const tok_tokenizer *t,
                   lq_err *err)
{
    ear before;
    const bool asleep = s->plan_draft > 0 && sleeps(s, t);
    int64_t n = seq_output(s), steps = 0;
    lq_status st = LQ_OK;
    bool on = true;
    s->n_samples = 0;
    if (asleep) remember(&before, s);
    for (int64_t k = 0; k <= s->plan_draft && on && !st; k++) {
        smp_result *out = &s->samples[k];
        st = drawn ? smp_take(out, drawn + k, err) : seq_mask(s, n + k, err);
        smp_params p = *seq_params(s, n + k);
        p.mu = s->mu;
        if (!st && !drawn)
            st = smp_sample(smp, out, row(user, n + k), &p, s->ids, s->n_prompt,
                            s->ids + s->n_prompt, n + k, (uint64_t)(n + k), err);
        if (st) break;
        if (p.mirostat && p.temperature > 0) s->mu = smp_mirostat(&p, smp_surprise(smp));
        s->n_samples++;
        if (k == s->plan_draft || out->id != s->ids[s->n_ids + k]) break;
        st = asleep ? hear(s, out->id, t, err) : follow(s, out->id, &steps, &on, err);
        if (asleep) on = !s->matcher; /* what follows a waking is drawn after it */
    }
    /* seq_append takes and hears them again */
    if (asleep) forget(s, &before);
    if (steps > 0) gr_rollback(s->matcher, steps);
    return s->n_samples > 0 ? LQ_OK : st; /* it comes again if it is ever reached */
}

/* The matcher past the id; *ends: nothing can follow. */
static lq_status match(seq *s, int32_t id, const tok_tokenizer *t, bool *ends, lq_err *err)
{
    bool ok = true;
    if (sleeps(s, t)) return hear(s, id, t, err);
    if (!s->matcher || has_id(s->end_ids, s->n_end_ids, id)) return LQ_OK;
    lq_status st = gr_accept_token(s->matcher, id, &ok, err);
    if (!st && !ok)
        st = lq_fail(err, LQ_EVALUE, "token %d was drawn and does not fit the grammar", id);
    *ends = !st && gr_must_end(s->matcher);
    if (!*ends || !s->r.n_wakes) return st;
    gr_matcher_free(s->matcher); /* the call is over, and the text goes on */
    s->matcher = NULL;
    s->n_tail = 0;
    s->cut_tail = s->behind_call = true;
    *ends = false;
    return st;
}

static lq_status push_text(seq *s, const tok_tokenizer *t, int32_t id, lq_err *err)
{
    if (id >= tok_vocab(t)) return LQ_OK; /* a padding row of the head: no text */
    if (s->r.n_show_ids && !s->r.show_special && tok_is_special(t, id) &&
        !has_id(s->r.show_ids, s->r.n_show_ids, id))
        return LQ_OK;
    const char *text;
    size_t n;
    lq_status st = tok_stream_push(s->stream, id, &text, &n, err);
    if (!st) st = stop_push(s->stop, text, n, seq_output(s) >= s->r.min_tokens, err);
    return st;
}

static lq_status flush_text(seq *s, lq_err *err)
{
    const char *text;
    size_t n;
    lq_status st = tok_stream_flush(s->stream, &text, &n, err);
    if (!st) st = stop_push(s->stop, text, n, seq_output(s) >= s->r.min_tokens, err);
    if (!st) stop_end(s->stop);
    return st;
}

lq_status seq_append(seq *s, int32_t id, const arch_config *c, const tok_tokenizer *t, lq_err *err)
{
    s->ids[s->n_ids++] = id;
    bool eos = !s->r.ignore_eos && has_id(c->eos, c->n_eos, id);
    bool stop_id = has_id(s->r.stop_ids, s->r.n_stop_ids, id);
    bool show = stop_id ? s->r.include_stop : eos ? s->r.show_special : true;
    bool ends = false;
    lq_status st = match(s, id, t, &ends, err);
    if (t && thought_watches(&s->thought)) {
        uint8_t bytes[ID_BYTES];
        thought_add(&s->thought, id, (const char *)bytes, bytes_of(bytes, id, t), seq_output(s));
    }
    if (!st && t && show) st = push_text(s, t, id, err);
    if (st) return st;
    if (stop_id) s->stop_id = id;
    if (stop_id || eos || ends)
        s->finish = ENG_STOP;
    else if (seq_output(s) >= s->max_new)
        s->finish = ENG_LENGTH;
    if (!t) return LQ_OK;
    if (s->finish && stop_matched(s->stop) < 0) st = flush_text(s, err);
    if (!st && stop_matched(s->stop) >= 0) {
        s->finish = ENG_STOP;
        if (s->stop_id < 0) s->stop_matched = stop_matched(s->stop);
    }
    return st;
}

lq_status seq_rewind(seq *s, const tok_tokenizer *t, lq_err *err)
{
    s->n_ids = s->n_prompt;
    s->finish = ENG_RUNNING;
    s->stop_id = s->stop_matched = -1;
    thought_begin(&s->thought, &(thought_limit){ .budget = -1 }); /* of a search, which has none */
    if (!t) return LQ_OK;
    stop_reset(s->stop);
    tok_stream_reset(s->stream);
    return prime_text(s, t, err);
}
