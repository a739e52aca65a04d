/* The engine on a tiny golden model: the same bytes at any load, exactly one end for each request,
 * and blocks that come back. */
#include "base/machine.h"
#include "runtime/engine/spec.h"
#include "tests/support/engine_jobs.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- allocations, counted where the C library lets us stand before it ---- */

static atomic_long n_allocs;
static atomic_bool none_grow; /* realloc gives nothing to threads but the first */
static pthread_t first_thread;
#if defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#if defined(__GLIBC__) && !SANITIZED
#define COUNTS_ALLOCS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)
{
    atomic_fetch_add(&n_allocs, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_allocs, 1);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_allocs, 1);
    if (atomic_load(&none_grow) && !pthread_equal(pthread_self(), first_thread)) return NULL;
    return __libc_realloc(p, n);
}
#else
#define COUNTS_ALLOCS 0
#endif

/* Of the tests that are run with and without. */
static int64_t guesses;
static const model *drafting;

/* A model that writes what the script wants: four letters over and over, and another now and then.
 */
static float scripted_rows[2][512];
static const float *write_pattern(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                                  int64_t n_output, const float *row)
{
    (void)ids, (void)n_prompt;
    int64_t V = golden.cfg->vocab;
    float *out = scripted_rows[thread];
    memcpy(out, row, (size_t)V * sizeof *out);
    int64_t id = n_output % 29 == 28 ? 90 : 60 + n_output % 4;
    out[id] += 20;
    if (self) out[id + 100] += 19; /* either may be drawn */
    return out;
}
static const eng_script pattern = { write_pattern, NULL };
static const eng_script wavering = { write_pattern, scripted_rows };

TEST(the_same_bytes_alone_and_among_others) /* T-38 */
{
    static const struct {
        const char *why;
        int threads;
        eng_opts o;
    } cases[] = {
        { "one thread", 1, { .no_prefix_cache = true } },
        { "two threads", 2, { .max_batch_tokens = 64 } },
        { "seven threads", 7, { .max_batch_tokens = 40, .block_size = 32 } },
        { "static batches of four",
          1,
          { .policy = { .batching = ENG_STATIC }, .max_seqs = 4, .max_batch_tokens = 48 } },
        { "dynamic batches",
          2,
          { .policy = { .batching = ENG_DYNAMIC, .batch_wait = 0.02 }, .max_seqs = 44 } },
        { "held back",
          1,
          { .policy = { .served_ratio = 1.2, .max_waiting_steps = 7 }, .max_batch_tokens = 100 } },
        { "tiny steps, small blocks",
          1,
          { .max_batch_tokens = 1, .max_seqs = 5, .block_size = 8 } },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        if (!rig_open(&r, &golden, cases[i].threads, cases[i].o)) return;
        run_together(&r, 1, cases[i].why);
        if (i == 1) run_together(&r, 1, "from the prefix cache");
        rig_close(&r);
    }
}

TEST(a_pool_for_one_serves_many) /* T-02 */
{
    kv_opts one = { .n_blocks = MAX_LEN / 16 };
    size_t bytes = (size_t)one.n_blocks * kv_block_bytes(golden.cfg, 16, KV_F32);
    rig r;
    eng_opts o = { .kv_bytes = bytes, .max_len = MAX_LEN, .guesses = guesses, .draft = drafting };
    if (!rig_open(&r, &golden, 2, o)) return;
    run_together(&r, 2, "a pool for one");
    eng_stats st;
    eng_stats_get(r.e, &st);
    CHECK(st.preemptions > 0 && st.preemptions < 400, "%llu pre-emptions",
          (unsigned long long)st.preemptions);
    rig_close(&r);
}

static void take_and_free(void *user, const eng_event *e)
{
    machine_give_back(5 << 20);
    take(user, e);
}

/* All sequences wait for it. */
TEST(what_is_freed_on_the_engines_thread_is_given_back_by_another)
{
    rig r;
    job j;
    lq_err err = { "" };
    if (!rig_open(&r, &golden, 1, (eng_opts){ 0 })) return;
    make_job(&j, 0);
    machine_settle();
    CHECK(!eng_submit(r.e, &j.r, take_and_free, &j, &j.id, &err), "%s", err.msg);
    wait_for(&j);
    rig_close(&r);
    const size_t bytes = machine_settle();
    CHECK(bytes >= 5 << 20, "%zu bytes are left", bytes);
}

TEST(greedy_ids_are_those_of_transformers)
{
    st_file f;
    lq_err err = { "" };
    CHECK(!st_open(&f, FOLDER "/expected.safetensors", &err), "%s", err.msg);
    int32_t in[2][32], out[2][48];
    float margin[2][16];
    memcpy(in, st_find(&f, "input_ids")->data, sizeof in);
    memcpy(out, st_find(&f, "greedy")->data, sizeof out);
    memcpy(margin, st_find(&f, "margin")->data, sizeof margin);
    rig r;
    if (!rig_open(&r, &golden, 2, (eng_opts){ .max_batch_tokens = 24 })) return;
    for (int row = 0; row < 2; row++) {
        job j;
        make_job(&j, 0);
        memcpy(j.prompt, in[row], sizeof in[row]);
        j.r.n_prompt = 32, j.r.max_tokens = 16;
        j.r.params = (smp_params){ .logprobs = -1 };
        submit(&r, &j);
        wait_for(&j);
        for (int i = 0; i < 16 && margin[row][i] > 0.02f; i++)
            CHECK(j.ids[i] == out[row][32 + i], "row %d step %d: %d, expected %d", row, i, j.ids[i],
                  out[row][32 + i]);
    }
    rig_close(&r);
    st_close(&f);
}

TEST(a_repeated_prompt_is_cached_and_answers_the_same)
{
    rig r;
    if (!rig_open(&r, &golden, 1, (eng_opts){ .block_size = 16 })) return;
    for (int64_t n = 31; n <= 33; n++) {
        job j[5];
        static const char *const salts[5] = { NULL, NULL, "a", NULL, "a" };
        static const bool hit[5] = { false, true, false, true, true };
        for (int i = 0; i < 5; i++) {
            make_job(&j[i], 1);
            for (int64_t k = 0; k < n; k++)
                j[i].prompt[k] = (int32_t)(10 + 97 * (n - 31) + k);
            j[i].r.n_prompt = n;
            j[i].r.salt = salts[i];
            submit(&r, &j[i]);
            wait_for(&j[i]);
            CHECK(j[i].n_cached == (hit[i] ? (n - 1) / 16 * 16 : 0),
                  "%lld ids, run %d: %lld cached", (long long)n, i, (long long)j[i].n_cached);
            CHECK(same_answer(&j[0], &j[i]), "%lld ids: run %d differs", (long long)n, i);
        }
    }
    eng_stats st;
    eng_stats_get(r.e, &st);
    CHECK(st.prefix_hits == 3 * (16 + 16 + 32) && st.cached_tokens == st.prefix_hits &&
              st.prefix_queries == 5 * (31 + 32 + 33) && st.prompt_tokens == st.prefix_queries,
          "%llu hits of %llu", (unsigned long long)st.prefix_hits,
          (unsigned long long)st.prefix_queries);
    rig_close(&r);
}

/* Dynamic NTK with 24 positions trained and a factor of 2: rows of a prompt beyond 24 take the
 * angles of its whole length, so only prompts of that length may share their blocks. */
TEST(angles_that_follow_the_length_depend_on_nothing_else)
{
    static const struct {
        int64_t n_prompt, cached;
    } t[] = { { 20, 0 }, { 30, 0 }, { 36, 0 }, { 30, 24 }, { 36, 32 }, { 22, 16 } };
    static const eng_opts opts[] = {
        { .max_seqs = 1, .no_prefix_cache = true },
        { .block_size = 8 },
        { .max_batch_tokens = 1, .max_seqs = 8, .block_size = 8 },
    };
    src_source *s;
    model m;
    lq_err err = { "" };
    lq_status st = src_open(&s, "tests/golden/arch/llama-dynamic-ntk",
                            &(src_opts){ .need_config = true }, &err);
    CHECK(!st, "%s", err.msg);
    if (st) return;
    st = model_load(&m, s, NULL, NULL, &err);
    CHECK(!st, "%s", err.msg);
    job want[LQ_COUNT(t)], got;
    for (size_t k = 0; !st && k < LQ_COUNT(opts); k++) {
        rig r;
        if (!rig_open(&r, &m, 1, opts[k])) break;
        CHECK(eng_options(r.e)->max_len == 48, "max_len %lld",
              (long long)eng_options(r.e)->max_len);
        for (size_t i = 0; i < LQ_COUNT(t); i++) {
            job *j = k ? &got : &want[i];
            make_job(j, 0);
            for (int64_t p = 0; p < t[i].n_prompt; p++)
                j->prompt[p] = (int32_t)(10 + p);
            j->r.n_prompt = t[i].n_prompt;
            j->r.max_tokens = 12;
            submit(&r, j);
            wait_for(j);
            CHECK(j->n_cached == (k ? t[i].cached : 0), "options %d, run %d: %lld cached", (int)k,
                  (int)i, (long long)j->n_cached);
            CHECK(!k || same_answer(&want[i], j), "options %d, run %d differs", (int)k, (int)i);
        }
        rig_close(&r);
    }
    model_free(&m);
    src_close(s);
}

TEST(prompt_logprobs_are_those_that_generation_had)
{
    rig r;
    if (!rig_open(&r, &golden, 2, (eng_opts){ .max_batch_tokens = 24 })) return;
    for (int k = 0; k < 6; k++) {
        job a, b;
        make_job(&a, k);
        submit(&r, &a);
        wait_for(&a);
        b = a; /* the whole answer as a prompt, only scored */
        memcpy(b.prompt + a.r.n_prompt, a.ids, (size_t)a.n * sizeof *a.ids);
        b.r.prompt = b.prompt;
        b.r.n_prompt = a.r.n_prompt + a.n;
        b.r.max_tokens = 0;
        b.r.prompt_logprobs = 3;
        b.n = 0;
        atomic_store(&b.n_finals, 0);
        submit(&r, &b);
        wait_for(&b);
        CHECK(b.n_score_events == 1 && b.n == 0 && b.finish == ENG_LENGTH, "%d: %d, %d ids", k,
              b.n_score_events, b.n);
        for (int i = 0; i < a.n; i++)
            CHECK(b.scores[a.r.n_prompt + i].logprob == a.logprobs[i], "%d: id %d", k, i);
        for (int64_t i = 1; i < b.r.n_prompt; i++)
            CHECK(b.scores[i].id == b.prompt[i] && b.scores[i].n_top == 3 &&
                      b.scores[i].top_logprob[0] >= b.scores[i].top_logprob[1],
                  "%d: entry %lld", k, (long long)i);
    }
    rig_close(&r);
}

TEST(scoring_goes_on_after_a_pre_emption)
{
    size_t bytes = 10 * kv_block_bytes(golden.cfg, 16, KV_F32);
    rig r, big;
    if (!rig_open(&r, &golden, 1,
                  (eng_opts){ .kv_bytes = bytes, .max_len = MAX_LEN, .max_batch_tokens = 8 }) ||
        !rig_open(&big, &golden, 1, (eng_opts){ .no_prefix_cache = true }))
        return;
    enum { N = 12 };
    static job a[N], b[N];
    for (int k = 0; k < N; k++) {
        make_job(&a[k], k * 2);
        a[k].r.prompt_logprobs = 2;
        a[k].r.max_tokens = 30;
        b[k] = a[k];
        b[k].r.prompt = b[k].prompt;
        submit(&big, &b[k]);
        wait_for(&b[k]);
    }
    for (int k = 0; k < N; k++)
        submit(&r, &a[k]);
    for (int k = 0; k < N; k++) {
        wait_for(&a[k]);
        CHECK(same_answer(&a[k], &b[k]) && a[k].n_score_events == 1, "%d differs", k);
        CHECK(!memcmp(a[k].scores + 1, b[k].scores + 1,
                      (size_t)(a[k].r.n_prompt - 1) * sizeof *a[k].scores),
              "%d: scores differ", k);
    }
    rig_close(&r);
    rig_close(&big);
}

/* ---- text ---- */

/* A tokenizer of 320 tokens of two letters each, so that stop strings span them. */
static tok_tokenizer *open_letters(uint8_t **blob)
{
    char json[16384];
    size_t n =
        (size_t)snprintf(json, sizeof json,
                         "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,"
                         "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                         "\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,"
                         "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                         "\"trim_offsets\":true,\"use_regex\":false},\"model\":{\"type\":"
                         "\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 320; i++)
        n += (size_t)snprintf(json + n, sizeof json - n, "%s\"%c%c\":%d", i ? "," : "",
                              'a' + i / 18, 'a' + i % 18, i);
    n += (size_t)snprintf(json + n, sizeof json - n, "}}}");
    tok_tokenizer *t = NULL;
    lq_err err = { "" };
    size_t bytes;
    lq_status s = tok_compile(blob, &bytes, json, n, &err);
    if (!s) s = tok_open(&t, *blob, bytes, &err);
    CHECK(!s, "%s", err.msg);
    return t;
}

/* Greedy request 3 with a stop string. */
static void run_stop(rig *r, job *j, const char *stop, int64_t max, int64_t min, bool include)
{
    make_job(j, 3);
    j->r.stop = &stop;
    j->r.n_stop = stop ? 1 : 0;
    j->r.max_tokens = max;
    j->r.min_tokens = min;
    j->r.include_stop = include;
    submit(r, j);
    wait_for(j);
}

TEST(stop_strings_end_the_text_wherever_tokens_split)
{
    uint8_t *blob = NULL;
    tok = open_letters(&blob);
    rig r;
    if (!tok || !rig_open(&r, &golden, 1, (eng_opts){ .guesses = guesses, .draft = drafting }))
        return;
    enum { N = 12 };
    job whole, j;
    run_stop(&r, &whole, NULL, N, 0, false);
    CHECK(whole.n_text == 2 * N && whole.finish == ENG_LENGTH, "%zu bytes", whole.n_text);
    for (size_t from = 0; from < 2 * N; from++)
        for (size_t len = 1; len <= 5 && from + len <= 2 * N; len++) {
            char stop[8] = { 0 };
            memcpy(stop, whole.text + from, len);
            size_t at = (size_t)(strstr(whole.text, stop) - whole.text);
            int tokens = (int)((at + len + 1) / 2);   /* the one that completes it */
            run_stop(&r, &j, stop, tokens, 0, false); /* also the last that it may have */
            CHECK(j.finish == ENG_STOP && j.n == tokens && j.n_text == at &&
                      !memcmp(j.text, whole.text, at) && !strcmp(j.stop_string, stop),
                  "'%s' in '%s': %s after %d, text '%.*s'", stop, whole.text,
                  eng_finish_text(j.finish), j.n, (int)j.n_text, j.text);
        }
    char stop[4] = { whole.text[1], whole.text[2], whole.text[3] };
    run_stop(&r, &j, stop, N, 0, true);
    CHECK(j.n_text == 4 && j.finish == ENG_STOP, "included: %zu bytes", j.n_text);
    run_stop(&r, &j, stop, N, 5, false);
    CHECK(j.n >= 5 && j.n_text >= 8 && !memcmp(j.text, whole.text, 8), "min_tokens: %d", j.n);
    stop[2] = '!';
    run_stop(&r, &j, stop, N, 0, false);
    CHECK(j.finish == ENG_LENGTH && j.n_text == 2 * N && !j.stop_string[0], "disproved");
    rig_close(&r);
    tok_close(tok);
    tok = NULL;
    free(blob);
}

/* Answers under a grammar: sentences of it, ended by it, the same alone and among others. */
TEST(structured_answers_are_sentences)
{
    static const struct {
        const char *regex;
        int tokens; /* 0: ends at max_tokens */
    } cases[] = { { "([a-f][a-r]){3}", 3 },
                  { "(ab|cd|ef)*", 0 },
                  { "aaabac", 3 },
                  { "[^a]*", 0 },
                  { "([a-r][a-r]){20}", 20 } };
    enum { N = 16, MAX = 24 };
    uint8_t *blob = NULL;
    tok = open_letters(&blob);
    gr_vocab *v = NULL;
    grammar *g[LQ_COUNT(cases)] = { NULL };
    lq_err err = { "" };
    rig r;
    eng_opts o = { .max_batch_tokens = 24,
                   .max_seqs = 6,
                   .guesses = guesses,
                   .draft = drafting,
                   .script = guesses ? &pattern : NULL };
    if (!tok || !rig_open(&r, &golden, 2, o)) return;
    CHECK(!gr_vocab_open(&v, tok, golden.cfg->vocab, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        gr_spec spec = { .kind = GR_REGEX, .text = cases[i].regex, .n = strlen(cases[i].regex) };
        CHECK(!gr_compile(&g[i], &spec, v, &err), "%s", err.msg);
    }
    job *many = malloc(N * sizeof *many), *one = malloc(sizeof *one);
    for (int k = 0; k < N; k++) {
        make_job(&many[k], k);
        many[k].r.max_tokens = MAX;
        many[k].r.grammar = g[k % (int)LQ_COUNT(cases)];
        submit(&r, &many[k]);
    }
    for (int k = 0; k < N; k++)
        wait_for(&many[k]);
    for (int k = 0; k < N; k++) {
        const size_t c = (size_t)k % LQ_COUNT(cases);
        gr_matcher *m = NULL;
        bool ok = false;
        make_job(one, k);
        one->r.max_tokens = MAX;
        one->r.grammar = g[c];
        submit(&r, one);
        wait_for(one);
        CHECK(same_answer(one, &many[k]), "job %d: '%.*s' alone, '%.*s' among others: %s", k,
              (int)one->n_text, one->text, (int)many[k].n_text, many[k].text, many[k].error);
        CHECK(one->finish == (cases[c].tokens ? ENG_STOP : ENG_LENGTH) &&
                  one->n == (cases[c].tokens ? cases[c].tokens : MAX),
              "%s: %d tokens, %s %s", cases[c].regex, one->n, eng_finish_text(one->finish),
              one->error);
        CHECK(!gr_matcher_new(&m, g[c], &err) &&
                  !gr_accept(m, (const uint8_t *)one->text, one->n_text, &ok, &err) && ok,
              "%s does not take '%.*s'", cases[c].regex, (int)one->n_text, one->text);
        gr_matcher_free(m);
    }
    eng_stats st;
    eng_stats_get(r.e, &st);
    CHECK(!guesses || drafting || (st.right > 50 && st.right < st.guesses),
          "%llu of %llu guesses were right", (unsigned long long)st.right,
          (unsigned long long)st.guesses);
    make_job(one, 1);
    one->r.grammar = g[0];
    int32_t only = 319; /* a token that the grammar never takes */
    one->r.params.allowed = &only, one->r.params.n_allowed = 1;
    submit(&r, one);
    wait_for(one);
    CHECK(one->finish == ENG_ERROR && strstr(one->error, "banned"), "%s", one->error);
    free(many);
    free(one);
    rig_close(&r);
    for (size_t i = 0; i < LQ_COUNT(cases); i++)
        gr_unref(g[i]);
    gr_vocab_close(v);
    tok_close(tok);
    tok = NULL;
    free(blob);
}

/* A grammar that sleeps until a text: free text is guessed, and what comes after the text follows
 * it, the same with guesses and without. */
TEST(guesses_go_on_while_a_grammar_sleeps)
{
    static const struct {
        const char *why, *text, *regex, *then;
        bool often;
    } cases[] = { { "at a rare token", "fa", "(ka|kb)kc", "faka", false },
                  { "inside a token", "f", "akakc", "faka", false },
                  { "at a token that is guessed", "dj", "kakc", "djkakcdidjkakc", true },
                  { "over two tokens", "didj", "kakc", "didjkakcdidjkakc", true } };
    enum { N = 100 };
    uint8_t *blob = NULL;
    lq_err err = { "" };
    gr_vocab *v = NULL;
    tok = open_letters(&blob);
    CHECK(!gr_vocab_open(&v, tok, golden.cfg->vocab, &err), "%s", err.msg);
    job *j = malloc(2 * sizeof *j);
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const gr_spec spec = { .kind = GR_REGEX,
                               .text = cases[i].regex,
                               .n = strlen(cases[i].regex) };
        const eng_wake wake = { .text = cases[i].text, .feed = "" };
        grammar *g = NULL;
        eng_stats st[2];
        CHECK(!gr_compile(&g, &spec, v, &err), "%s", err.msg);
        for (int k = 0; k < 2; k++) {
            rig r;
            if (!rig_open(&r, &golden, 1, (eng_opts){ .script = &pattern, .guesses = k ? 5 : 0 }))
                break;
            make_job(&j[k], 3);
            j[k].r.max_tokens = N;
            j[k].r.grammar = g;
            j[k].r.wakes = &wake;
            j[k].r.n_wakes = 1;
            submit(&r, &j[k]);
            wait_for(&j[k]);
            eng_stats_get(r.e, &st[k]);
            rig_close(&r);
        }
        CHECK(same_answer(&j[0], &j[1]), "%s: '%.*s' without guesses, '%.*s' with", cases[i].why,
              (int)j[0].n_text, j[0].text, (int)j[1].n_text, j[1].text);
        CHECK(memmem(j[1].text, j[1].n_text, cases[i].then, strlen(cases[i].then)), "%s: '%.*s'",
              cases[i].why, (int)j[1].n_text, j[1].text);
        CHECK(st[1].right >= (cases[i].often ? 20 : 40), "%s: %llu guesses were right",
              cases[i].why, (unsigned long long)st[1].right);
        gr_unref(g);
    }
    free(j);
    gr_vocab_close(v);
    tok_close(tok);
    tok = NULL;
    free(blob);
}

/* Allocations between the first and the last token of everything that runs. */
static long allocs_first, allocs_last;
static void take_counting(void *user, const eng_event *e)
{
    if (e->n_ids && e->n_output == 1) allocs_first = atomic_load(&n_allocs);
    if (e->n_ids) allocs_last = atomic_load(&n_allocs);
    take(user, e);
}

TEST(the_token_path_allocates_nothing) /* T-23 */
{
    uint8_t *blob = NULL;
    tok = open_letters(&blob);
    rig r;
    if (!tok || !rig_open(&r, &golden, 2, (eng_opts){ .guesses = guesses, .draft = drafting }))
        return;
    enum { N = 64 }; /* all places of a step */
    static const char *const stops[] = { "!never!" };
    job *j = malloc(N * sizeof *j);
    for (int i = 0; i < N; i++) {
        lq_err err = { "" };
        make_job(&j[i], i);
        j[i].r.max_tokens = 50;
        j[i].r.stop = stops, j[i].r.n_stop = 1;
        lq_status s = eng_submit(r.e, &j[i].r, take_counting, &j[i], &j[i].id, &err);
        CHECK(!s, "%s", err.msg);
    }
    for (int i = 0; i < N; i++)
        wait_for(&j[i]);
    CHECK(!COUNTS_ALLOCS || allocs_first > 0, "the counter does not count");
    CHECK(!COUNTS_ALLOCS || allocs_last == allocs_first, "%ld allocations in 49 steps of %d",
          allocs_last - allocs_first, N);
    rig_close(&r);
    tok_close(tok);
    tok = NULL;
    free(blob);
    free(j);
}

/* A request whose table of blocks finds no memory ends, though nobody runs whose end would give
 * any: it had been tried again for ever. */
TEST(no_memory_for_a_table_ends_the_request)
{
    if (!COUNTS_ALLOCS) {
        CHECK_SKIP("skipped: a sanitizer has its own allocator here");
        return;
    }
    rig r;
    job starved, fed;
    first_thread = pthread_self();
    if (!rig_open(&r, &golden, 1, (eng_opts){ .no_prefix_cache = true })) return;
    make_job(&starved, 0);
    make_job(&fed, 0);
    atomic_store(&none_grow, true);
    submit(&r, &starved);
    wait_for(&starved);
    atomic_store(&none_grow, false);
    CHECK(starved.finish == ENG_ERROR && strstr(starved.error, "out of memory"),
          "ended with %d: %s", starved.finish, starved.error);
    submit(&r, &fed);
    wait_for(&fed);
    CHECK(fed.finish == ENG_LENGTH || fed.finish == ENG_STOP, "ended with %d", fed.finish);
    rig_close(&r);
}

/* ---- the same with speculation ---- */

TEST(with_guesses_a_pool_for_one_serves_many)
{
    guesses = 5;
    a_pool_for_one_serves_many();
    guesses = 0;
}

TEST(with_guesses_stop_strings_end_the_text_wherever_tokens_split) /* T-47 */
{
    guesses = 5;
    stop_strings_end_the_text_wherever_tokens_split();
    guesses = 0;
}

TEST(with_guesses_structured_answers_are_sentences)
{
    guesses = 5;
    structured_answers_are_sentences();
    guesses = 0;
}

TEST(with_guesses_the_token_path_allocates_nothing)
{
    guesses = 5;
    the_token_path_allocates_nothing();
    guesses = 0;
}

TEST(with_a_draft_the_same_holds)
{
    guesses = 5;
    drafting = &golden;
    stop_strings_end_the_text_wherever_tokens_split();
    structured_answers_are_sentences();
    the_token_path_allocates_nothing();
    drafting = NULL;
    guesses = 0;
}

TEST(the_same_bytes_with_and_without_guesses) /* T-45 */
{
    static const struct {
        const char *why;
        int threads;
        eng_opts o;
    } cases[] = {
        { "five", 1, { .guesses = 5, .max_seqs = 8, .script = &wavering } },
        { "one at a time",
          2,
          { .guesses = 1, .max_seqs = 12, .max_batch_tokens = 24, .script = &wavering } },
        { "many, of few sequences",
          2,
          { .guesses = SPEC_MAX, .max_seqs = 3, .block_size = 8, .script = &wavering } },
        { "in tiny steps",
          1,
          { .guesses = 4, .max_seqs = 5, .max_batch_tokens = 1, .script = &wavering } },
        { "in static batches",
          2,
          { .guesses = 5,
            .max_seqs = 6,
            .policy = { .batching = ENG_STATIC },
            .script = &wavering } },
    };
    run_alone((eng_opts){ .script = &wavering });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        rig r;
        eng_stats st;
        if (!rig_open(&r, &golden, cases[i].threads, cases[i].o)) break;
        run_together(&r, 2, cases[i].why);
        eng_stats_get(r.e, &st);
        CHECK(st.right > 50 && st.right < st.guesses && st.drafts <= st.guesses,
              "%s: %llu of %llu guesses were right", cases[i].why, (unsigned long long)st.right,
              (unsigned long long)st.guesses);
        rig_close(&r);
    }
    run_alone((eng_opts){ 0 });
}

/* 60 tokens that repeat: most guesses are right, fewer steps are taken, and the answer, its
 * logprobs and where it ends are the same. */
TEST(guesses_that_are_right_save_steps)
{
    static const int32_t stop_id[] = { 90 };
    for (int kind = 0; kind < 14; kind++) {
        job j[2];
        uint64_t steps[2];
        for (int g = 0; g < 2; g++) {
            rig r;
            eng_stats st;
            if (!rig_open(&r, &golden, 1, (eng_opts){ .script = &pattern, .guesses = g ? 8 : 0 }))
                return;
            make_job(&j[g], 3);
            j[g].r.max_tokens = 60;
            j[g].r.params = (smp_params){ .logprobs = 2, .seed = 9 };
            if (kind == 1) j[g].r.params.temperature = 1.5f, j[g].r.params.presence_penalty = 0.1f;
            if (kind == 2) j[g].r.stop_ids = stop_id, j[g].r.n_stop_ids = 1, j[g].r.min_tokens = 20;
            if (kind == 3) j[g].r.max_tokens = 31;
            if (kind >= 4) /* until something else wins */
                j[g].r.params.frequency_penalty = 2.5f + 0.1f * (float)(kind - 4);
            submit(&r, &j[g]);
            wait_for(&j[g]);
            eng_stats_get(r.e, &st);
            steps[g] = st.steps;
            rig_close(&r);
        }
        CHECK(same_answer(&j[0], &j[1]), "kind %d: the answer differs at %d ids", kind, j[1].n);
        CHECK(kind == 2 ? j[1].n == 29 && j[1].finish == ENG_STOP : j[1].finish == ENG_LENGTH,
              "kind %d: %d ids, %s", kind, j[1].n, eng_finish_text(j[1].finish));
        CHECK((kind < 4 ? 2 : 1) * steps[1] < steps[0], "kind %d: %llu steps of %llu", kind,
              (unsigned long long)steps[1], (unsigned long long)steps[0]);
    }
}

int main(int argc, char **argv)
{
    if (!golden_open()) return 1;
    run_alone((eng_opts){ 0 });
    RUN(the_same_bytes_alone_and_among_others);
    RUN(a_pool_for_one_serves_many);
    RUN(what_is_freed_on_the_engines_thread_is_given_back_by_another);
    RUN(greedy_ids_are_those_of_transformers);
    RUN(a_repeated_prompt_is_cached_and_answers_the_same);
    RUN(angles_that_follow_the_length_depend_on_nothing_else);
    RUN(prompt_logprobs_are_those_that_generation_had);
    RUN(scoring_goes_on_after_a_pre_emption);
    RUN(stop_strings_end_the_text_wherever_tokens_split);
    RUN(structured_answers_are_sentences);
    RUN(the_token_path_allocates_nothing);
    RUN(no_memory_for_a_table_ends_the_request);
    RUN(with_guesses_a_pool_for_one_serves_many);
    RUN(with_guesses_stop_strings_end_the_text_wherever_tokens_split);
    RUN(with_guesses_structured_answers_are_sentences);
    RUN(with_guesses_the_token_path_allocates_nothing);
    RUN(with_a_draft_the_same_holds);
    RUN(the_same_bytes_with_and_without_guesses);
    RUN(guesses_that_are_right_save_steps);
    RUN(guesses_go_on_while_a_grammar_sleeps);
    golden_close();
    return check_end();
}
