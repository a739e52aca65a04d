/* tests/unit/test_grammar.c - structured output: which texts a grammar takes, which masks it makes, and
 * what it refuses. The cases' truth is outside: tests/golden/make/make_grammar.py checks them
 * against Python's re and jsonschema; random regular expressions are compared with PCRE2 here. */
#include "base/json.h"
#include "runtime/grammar/grammar_int.h"
#include "tests/support/check.h"
#include "tests/support/jsonl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static uint64_t rng = 1;
static uint32_t draw(uint32_t n) /* 0..n-1 */
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}

/* of the processor: others may be at work beside it */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gr_kind kind_named(const char *name)
{
    for (int k = 0; k < GR_N_KINDS; k++)
        if (strcmp(gr_kind_text((gr_kind)k), name) == 0 ||
            (k == GR_SCHEMA && strcmp(name, "schema") == 0))
            return (gr_kind)k;
    return GR_N_KINDS;
}

static lq_status compile(grammar **g, gr_kind kind, const char *text, const gr_vocab *v,
                         lq_err *err)
{
    gr_spec spec = { .kind = kind, .text = text, .n = strlen(text) };
    return gr_compile(g, &spec, v, err);
}

/* In random pieces: how a text is cut must not matter. */
static bool takes(grammar *g, const char *s, size_t n)
{
    gr_matcher *m;
    lq_err err;
    bool ok = !gr_matcher_new(&m, g, &err);
    for (size_t i = 0, k; i < n && ok; i += k) {
        k = 1 + draw(4);
        if (k > n - i) k = n - i;
        if (gr_accept(m, (const uint8_t *)s + i, k, &ok, &err)) ok = false;
    }
    ok = ok && gr_may_end(m);
    gr_matcher_free(m);
    return ok;
}

TEST(the_cases_are_taken_and_refused)
{
    jsonl file;
    int n = 0;
    CHECK(jsonl_open(&file, "tests/golden/grammar/cases.jsonl"), "no cases");
    for (cJSON *row; (row = jsonl_next(&file, 0)); cJSON_Delete(row), n++) {
        size_t n_text, n_s;
        char *text = jsonl_text(js_get(row, "text"), &n_text);
        const char *kind = js_get(row, "kind")->valuestring;
        const cJSON *error = js_get(row, "error");
        gr_spec spec = { .kind = kind_named(kind), .text = text, .n = n_text };
        grammar *g = NULL;
        lq_err err = { "" };
        lq_status s = gr_compile(&g, &spec, NULL, &err);
        if (error) {
            CHECK((s == LQ_EVALUE || s == LQ_EUNSUPPORTED) && strstr(err.msg, error->valuestring),
                  "%s %.80s: expected \"%s\", found %s \"%s\"", kind, text, error->valuestring,
                  lq_status_text(s), err.msg);
        } else {
            CHECK(!s, "%s %.80s: %s", kind, text, err.msg);
            for (int want = 0; !s && want < 2; want++)
                for (const cJSON *c = js_get(row, want ? "yes" : "no")->child; c; c = c->next) {
                    char *str = jsonl_text(c, &n_s);
                    CHECK(takes(g, str, n_s) == want, "%s %.80s: '%.80s' should %sbe taken", kind,
                          text, str, want ? "" : "not ");
                    free(str);
                }
        }
        gr_unref(g);
        free(text);
    }
    CHECK(n >= 150, "%d cases", n);
    jsonl_close(&file);
}

/* ---- random regular expressions against PCRE2 ---- */

/* ---- long strings ---- */

/* Lengths at and around the bounds; is `n` taken? */
TEST(lengths_beyond_a_repetition_are_counted)
{
    static const struct {
        const char *schema;
        size_t n;
        bool taken;
    } cases[] = { { "{\"type\":\"string\",\"maxLength\":20000}", 0, true },
                  { "{\"type\":\"string\",\"maxLength\":20000}", 1024, true },
                  { "{\"type\":\"string\",\"maxLength\":20000}", 19457, true },
                  { "{\"type\":\"string\",\"maxLength\":20000}", 20000, true },
                  { "{\"type\":\"string\",\"maxLength\":20000}", 20001, false },
                  { "{\"type\":\"string\",\"minLength\":3,\"maxLength\":17411}", 2, false },
                  { "{\"type\":\"string\",\"minLength\":3,\"maxLength\":17411}", 3, true },
                  { "{\"type\":\"string\",\"minLength\":3,\"maxLength\":17411}", 17411, true },
                  { "{\"type\":\"string\",\"minLength\":3,\"maxLength\":17411}", 17412, false },
                  { "{\"type\":\"string\",\"minLength\":16384,\"maxLength\":16390}", 16384, true },
                  { "{\"type\":\"string\",\"minLength\":16384,\"maxLength\":16390}", 16390, true },
                  { "{\"type\":\"string\",\"minLength\":16384,\"maxLength\":16390}", 16391, false },
                  { "{\"type\":\"string\",\"minLength\":16384,\"maxLength\":16390}", 40000, false },
                  { "{\"type\":\"string\",\"maxLength\":2147483647}", 30000, true } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        grammar *g = NULL;
        lq_err err;
        char *text = malloc(cases[i].n + 2);
        memset(text, 'a', cases[i].n + 2);
        text[0] = text[cases[i].n + 1] = '"';
        CHECK(!compile(&g, GR_SCHEMA, cases[i].schema, NULL, &err), "%s", err.msg);
        CHECK(g && takes(g, text, cases[i].n + 2) == cases[i].taken, "%s: %zu", cases[i].schema,
              cases[i].n);
        gr_unref(g);
        free(text);
    }
}

static void put(char *out, const char *s) { strcat(out, s); }

static void random_regex(char *out, int depth)
{
    static const char *const atoms[] = { "a", "b", "c", "[ab]", "[^a]", ".", "\\w", "[b-d]", "é" };
    static const char *const counts[] = {
        "*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", ""
    };
    int parts = 1 + (int)draw(3);
    for (int i = 0; i < parts && strlen(out) < 160; i++) {
        if (depth > 0 && draw(3) == 0) {
            put(out, draw(2) ? "(" : "(?:");
            random_regex(out, depth - 1);
            if (draw(2)) {
                put(out, "|");
                if (draw(4)) random_regex(out, depth - 1);
            }
            put(out, ")");
        } else {
            put(out, atoms[draw(LQ_COUNT(atoms))]);
        }
        if (draw(3) == 0) put(out, counts[draw(LQ_COUNT(counts))]);
    }
}

TEST(random_regular_expressions_agree_with_pcre2)
{
    static const char *const letters[] = { "a", "b", "c", "d", "é", "\n" };
    int64_t texts = 0, matched = 0;
    for (int k = 0; k < 400; k++) {
        char re[512] = "";
        random_regex(re, 3);
        int code;
        PCRE2_SIZE at;
        pcre2_code *p =
            pcre2_compile((PCRE2_SPTR)re, PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &at, NULL);
        pcre2_match_data *data = p ? pcre2_match_data_create_from_pattern(p, NULL) : NULL;
        grammar *g = NULL;
        lq_err err = { "" };
        CHECK(p && data, "PCRE2 does not take %s", re);
        CHECK(!compile(&g, GR_REGEX, re, NULL, &err), "%s: %s", re, err.msg);
        for (int t = 0; t < 60 && g && data; t++) {
            char s[64] = "";
            for (int n = (int)draw(8); n > 0; n--)
                strcat(s, letters[draw(LQ_COUNT(letters))]);
            bool want = pcre2_match(p, (PCRE2_SPTR)s, strlen(s), 0, 0, data, NULL) >= 0;
            CHECK(takes(g, s, strlen(s)) == want, "%s: '%s' is %s match", re, s, want ? "a" : "no");
            texts++;
            matched += want;
        }
        gr_unref(g);
        pcre2_match_data_free(data);
        pcre2_code_free(p);
    }
    CHECK(matched > texts / 50 && matched < texts, "%lld of %lld matched", (long long)matched,
          (long long)texts);
}

/* ---- a vocabulary of bytes and of pieces of JSON ---- */

enum { N_PIECES = 600, V_SMALL = 256 + N_PIECES };
static uint8_t vocab_bytes[256 + 16 * N_PIECES];
static size_t vocab_off[V_SMALL + 1];

static gr_vocab *small_vocab(void)
{
    static const char *const bits[] = { "\"",   "{",    "}",    "[",   "]",    ":",    ",",
                                        " ",    "\\",   "1",    "0",   ".",    "a",    "b",
                                        "true", "null", "\": ", "\",", "\xc3", "\xa9", "é",
                                        "-",    "\n",   "  ",   "u00", "한" };
    size_t n = 0;
    rng = 7;
    for (int i = 0; i < V_SMALL; i++) {
        vocab_off[i] = n;
        if (i < 256) vocab_bytes[n++] = (uint8_t)i;
        for (uint32_t k = i < 256 ? 0 : 1 + draw(4), j = 0; j < k; j++) {
            const char *s = bits[draw(LQ_COUNT(bits))];
            if (n - vocab_off[i] + strlen(s) > 16) break;
            memcpy(vocab_bytes + n, s, strlen(s));
            n += strlen(s);
        }
    }
    vocab_off[V_SMALL] = n;
    gr_vocab *v = NULL;
    lq_err err;
    CHECK(!gr_vocab_of(&v, vocab_bytes, vocab_off, V_SMALL, &err), "%s", err.msg);
    return v;
}

static bool in_mask(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }

static const struct {
    gr_kind kind;
    const char *text;
} grammars[] = {
    { GR_JSON, "" },
    { GR_SCHEMA, "{}" },
    { GR_SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}" },
    { GR_SCHEMA,
      "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":5},\"b\":"
      "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-10,\"maximum\":110}},"
      "\"c\":{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#\"}]}},\"required\":[\"a\"],"
      "\"additionalProperties\":{\"type\":\"boolean\"}}" },
    { GR_SCHEMA, "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",\"b\"]},\"maxItems\":4}" },
    { GR_SCHEMA, "{\"type\":\"number\",\"minimum\":-1.5}" },
    { GR_REGEX, "([ab]{1,3}|é+|[^\"]\\.)*" },
    { GR_REGEX, "\\{a*\\}|\\[(10)+\\]" },
    { GR_REGEX, "(\"{0,60}|a{3,40}b|(ab){5,30})c" },
    { GR_CHOICE, "[\"a\",\"aa\",\"ab\",\"true\",\"nullnull\"]" },
    { GR_GRAMMAR,
      "root ::= s\ns ::= \"\" | \"[\" s \"]\" s | \"{\" s \"}\" | \"a\" s \"b\" | \"a\" s \"a\"" },
    { GR_GRAMMAR, "root ::= \"(\" root \")\" | \"a\" root \"b\" | \".\"" },
};

/* The mask after each step of a random walk, against each token tried on a clone. */
TEST(masks_agree_with_every_token_tried_alone)
{
    gr_vocab *v = small_vocab();
    int64_t allowed = 0, tried = 0;
    for (size_t k = 0; k < LQ_COUNT(grammars) && v; k++) {
        grammar *g = NULL;
        lq_err err = { "" };
        CHECK(!compile(&g, grammars[k].kind, grammars[k].text, v, &err), "%s", err.msg);
        for (int walk = 0; walk < 3 && g; walk++) {
            gr_matcher *m, *c;
            uint32_t mask[V_SMALL / 32 + 1];
            gr_matcher_new(&m, g, &err);
            for (int step = 0; step < 25; step++) {
                int32_t some[V_SMALL], n = 0;
                bool ok;
                CHECK(!gr_mask(m, mask, &err), "%s", err.msg);
                gr_matcher_clone(&c, m, &err);
                for (int32_t id = 0; id < V_SMALL; id++) {
                    gr_accept_token(c, id, &ok, &err);
                    if (ok) gr_rollback(c, 1);
                    CHECK(in_mask(mask, id) == ok,
                          "%s: token %d '%.*s' after %d steps: %d, mask %d", grammars[k].text, id,
                          (int)(vocab_off[id + 1] - vocab_off[id]), vocab_bytes + vocab_off[id],
                          step, ok, in_mask(mask, id));
                    if (ok) some[n++] = id;
                    tried++;
                }
                allowed += n;
                gr_matcher_free(c);
                CHECK(n > 0 || gr_must_end(m), "%s: a dead end", grammars[k].text);
                if (n == 0) break;
                gr_accept_token(m, some[draw((uint32_t)n)], &ok, &err);
                CHECK(ok, "an allowed token is not taken");
            }
            gr_matcher_free(m);
        }
        gr_unref(g);
    }
    CHECK(allowed > 1000 && allowed < tried, "%lld of %lld", (long long)allowed, (long long)tried);
    gr_vocab_close(v);
}

/* Bytes drawn from the masks, ended where the grammar lets it: whole sentences, here JSON. */
TEST(what_is_drawn_under_a_mask_is_json)
{
    gr_vocab *v = small_vocab();
    for (size_t k = 0; k < 6 && v; k++) {
        grammar *g = NULL;
        lq_err err = { "" };
        int ended = 0;
        CHECK(!compile(&g, grammars[k].kind, grammars[k].text, v, &err), "%s", err.msg);
        for (int walk = 0; walk < 30 && g; walk++) {
            gr_matcher *m;
            char text[8192];
            size_t n_text = 0;
            uint32_t mask[V_SMALL / 32 + 1];
            gr_matcher_new(&m, g, &err);
            for (int step = 0; step < 300; step++) {
                int32_t some[V_SMALL], n = 0;
                bool ok;
                if (gr_may_end(m) && (gr_must_end(m) || draw(4) == 0)) {
                    cJSON *j = NULL;
                    ended++;
                    CHECK(!js_parse(&j, text, n_text, sizeof text, 0, &err) ||
                              strstr(err.msg, "depth"),
                          "%.*s: %s", (int)n_text, text, err.msg);
                    cJSON_Delete(j);
                    break;
                }
                CHECK(!gr_mask(m, mask, &err), "%s", err.msg);
                for (int32_t id = 0; id < V_SMALL; id++)
                    if (in_mask(mask, id)) some[n++] = id;
                CHECK(n > 0, "a dead end after %.*s", (int)n_text, text);
                if (n == 0) break;
                int32_t id = some[draw((uint32_t)n)];
                size_t len = vocab_off[id + 1] - vocab_off[id];
                memcpy(text + n_text, vocab_bytes + vocab_off[id], len);
                n_text += len;
                gr_accept_token(m, id, &ok, &err);
                CHECK(ok, "an allowed token is not taken");
            }
            gr_matcher_free(m);
        }
        CHECK(ended > 0, "%s: nothing ended", grammars[k].text);
        gr_unref(g);
    }
    gr_vocab_close(v);
}

/* ---- matchers ---- */

TEST(a_matcher_goes_back_and_clones_go_their_own_way)
{
    grammar *g = NULL;
    gr_matcher *m, *c;
    lq_err err;
    bool ok;
    CHECK(!compile(&g, GR_REGEX, "(ab|ac)*", NULL, &err), "%s", err.msg);
    gr_matcher_new(&m, g, &err);
    CHECK(!gr_rollback(m, 1), "nothing to take back");
    gr_accept(m, (const uint8_t *)"a", 1, &ok, &err);
    gr_matcher_clone(&c, m, &err);
    gr_accept(c, (const uint8_t *)"b", 1, &ok, &err);
    CHECK(ok && gr_may_end(c) && !gr_may_end(m), "the clone alone moved");
    gr_accept(m, (const uint8_t *)"x", 1, &ok, &err);
    CHECK(!ok, "x");
    gr_accept(m, (const uint8_t *)"c", 1, &ok, &err);
    CHECK(ok && gr_may_end(m), "what is refused changes nothing");
    CHECK(gr_rollback(m, 2) && gr_may_end(m) && !gr_rollback(m, 1), "back at the start");
    for (int i = 0; i < 200; i++)
        gr_accept(m, (const uint8_t *)(i % 2 ? "b" : "a"), 1, &ok, &err);
    CHECK(gr_rollback(m, GR_ROLLBACK) && !gr_rollback(m, 1), "as many as are remembered");
    gr_matcher_free(m);
    gr_matcher_free(c);
    gr_unref(g);
}

/* Deep nesting is not an error: the mask stops offering it, and what was opened can be closed. */
TEST(nesting_ends_before_the_stack_does)
{
    gr_vocab *v = small_vocab();
    for (size_t k = 10; k < LQ_COUNT(grammars); k++) {
        grammar *g = NULL;
        gr_matcher *m;
        lq_err err;
        uint32_t mask[V_SMALL / 32 + 1];
        bool ok = true;
        int deep = 0;
        const char *open = k == 10 ? "[" : "(";
        CHECK(!compile(&g, grammars[k].kind, grammars[k].text, v, &err), "%s", err.msg);
        gr_matcher_new(&m, g, &err);
        for (; deep < 1000 && ok; deep += ok) {
            CHECK(!gr_mask(m, mask, &err), "%s", err.msg);
            bool offered = in_mask(mask, open[0]);
            gr_accept(m, (const uint8_t *)open, 1, &ok, &err);
            CHECK(offered == ok, "mask and matcher agree at depth %d", deep);
        }
        CHECK(deep > 50 && deep <= GR_MAX_DEPTH, "%d levels", deep);
        if (k > 10) gr_accept(m, (const uint8_t *)".", 1, &ok, &err);
        for (int i = 0; i < deep; i++)
            gr_accept(m, (const uint8_t *)(k == 10 ? "]" : ")"), 1, &ok, &err);
        CHECK(ok && gr_may_end(m), "all %d are closed", deep);
        gr_matcher_free(m);
        gr_unref(g);
    }
    gr_vocab_close(v);
}

/* ---- bounds ---- */

TEST(hostile_grammars_end_within_bounds) /* T-52, T-58 */
{
    static char text[1 << 20];
    static const struct {
        const char *why;
        gr_kind kind;
        const char *head, *unit, *tail;
        int times;
        const char *walk; /* accepted byte by byte where the grammar compiles */
    } cases[] = {
        { "parentheses", GR_REGEX, "", "(", "", 60000, "" },
        { "parentheses", GR_GRAMMAR, "root ::= ", "(", "", 60000, "" },
        { "deep JSON", GR_SCHEMA, "", "[", "", 100000, "" },
        { "a long plain text", GR_REGEX, "", "(a+)+", "$", 20000,
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" },
        { "nested stars", GR_REGEX, "((((((((((a*)*)*)*)*)*)*)*)*)*b", "", "", 0,
          "aaaaaaaaaaaaaab" },
        { "many alternatives", GR_REGEX, "(a", "|aa", ")*", 20000, "aaaaaaaaaaaaaaaaaaaa" },
        { "exponential subsets", GR_REGEX, "(a|b)*a", "(a|b)", "", 2000,
          "abababbbabababaabbababababbabaabbbaab" },
        { "large classes", GR_REGEX, "", "\\p{L}", "", 200, "" },
        { "many properties", GR_REGEX, "", "\\p{L}", "", 20000, "" },
        { "a long tuple", GR_SCHEMA, "{\"prefixItems\":[{}", ",{}", "]}", 100000, "" },
        { "much in one enum", GR_SCHEMA, "{\"enum\":[1", ",\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
          "]}", 20000, "" },
        { "branches of branches", GR_SCHEMA, "", "{\"anyOf\":[{},", "{}", 60, "" },
        { "ambiguous nesting", GR_GRAMMAR,
          "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\" s \"d\" | \"\" ", "", "", 0,
          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcdbcdbcd" },
    };
    gr_vocab *v = small_vocab();
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        grammar *g = NULL;
        lq_err err = { "" };
        double start = seconds();
        size_t n = strlen(cases[i].head), unit = strlen(cases[i].unit);
        memcpy(text, cases[i].head, n);
        for (int k = 0; k < cases[i].times; k++, n += unit)
            memcpy(text + n, cases[i].unit, unit);
        strcpy(text + n, cases[i].tail);
        lq_status s = compile(&g, cases[i].kind, text, v, &err);
        CHECK(s == LQ_OK || s == LQ_EVALUE || s == LQ_EUNSUPPORTED, "%s: %s", cases[i].why,
              lq_status_text(s));
        if (!s) {
            gr_matcher *m;
            uint32_t mask[V_SMALL / 32 + 1];
            gr_stats stats;
            bool ok = true;
            gr_matcher_new(&m, g, &err);
            for (const char *p = cases[i].walk; *p && !s; p++) {
                s = gr_accept(m, (const uint8_t *)p, 1, &ok, &err);
                if (!s) s = gr_mask(m, mask, &err);
            }
            CHECK(!s || s == LQ_EVALUE, "%s: %s", cases[i].why, lq_status_text(s));
            gr_stats_get(g, &stats);
            CHECK(stats.bytes < (size_t)200 << 20, "%s: %zu bytes", cases[i].why, stats.bytes);
            gr_matcher_free(m);
        }
        double took = seconds() - start;
        CHECK(took < 60, "%s: %.1f s", cases[i].why, took); /* under sanitizers */
        gr_unref(g);
    }
    gr_vocab_close(v);
}

/* The middle of a long repetition is walked once: no token sees its ends from there. */
TEST(places_that_look_alike_share_their_masks)
{
    gr_vocab *v = small_vocab();
    static const struct {
        gr_kind kind;
        const char *text, *open;
    } cases[] = { { GR_REGEX, "[ab]{2000}", "" },
                  { GR_SCHEMA, "{\"type\":\"string\",\"minLength\":1000,\"maxLength\":3000}",
                    "\"" } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        grammar *g = NULL;
        gr_matcher *m;
        lq_err err;
        gr_stats stats;
        bool ok;
        uint32_t mask[V_SMALL / 32 + 1];
        CHECK(!compile(&g, cases[i].kind, cases[i].text, v, &err), "%s", err.msg);
        gr_matcher_new(&m, g, &err);
        gr_accept(m, (const uint8_t *)cases[i].open, strlen(cases[i].open), &ok, &err);
        for (int k = 0; k < 2000; k++) {
            CHECK(!gr_mask(m, mask, &err), "%s", err.msg);
            gr_accept(m, (const uint8_t *)"a", 1, &ok, &err);
            CHECK(ok && in_mask(mask, 'a'), "%s after %d", cases[i].text, k);
        }
        gr_stats_get(g, &stats);
        CHECK(stats.states >= 2000 && stats.masks < 100, "%lld states, %lld masks",
              (long long)stats.states, (long long)stats.masks);
        gr_matcher_free(m);
        gr_unref(g);
    }
    gr_vocab_close(v);
}

/* States are collected when they fill their memory; what matchers stand on survives it. */
TEST(collecting_states_changes_no_answer)
{
    gr_vocab *v = small_vocab();
    grammar *g = NULL;
    lq_err err;
    gr_matcher *m;
    gr_stats stats;
    uint32_t mask[V_SMALL / 32 + 1];
    int64_t most = 0, last = 0;
    bool ok = true, fell = false;
    rng = 3;
    CHECK(!compile(&g, GR_REGEX, "(a|b)*a(a|b){60}([ab]|x)*", v, &err), "%s", err.msg);
    gr_matcher_new(&m, g, &err);
    for (int i = 0; i < 40000 && ok && !fell; i++) {
        gr_accept(m, (const uint8_t *)(draw(2) ? "a" : "b"), 1, &ok, &err);
        if (i % 50 == 0) CHECK(!gr_mask(m, mask, &err) && in_mask(mask, 'a'), "step %d", i);
        gr_stats_get(g, &stats);
        fell = stats.states < last;
        last = stats.states;
        if (last > most) most = last;
    }
    CHECK(ok && fell, "%lld states and no collection", (long long)most);
    gr_accept(m, (const uint8_t *)"a", 1, &ok, &err);
    CHECK(ok && gr_rollback(m, 10), "as before");
    gr_accept(m, (const uint8_t *)"q", 1, &ok, &err);
    CHECK(!ok, "q");
    gr_matcher_free(m);
    gr_unref(g);
    gr_vocab_close(v);
}

typedef struct {
    grammar *g;
    uint32_t sum;
} shared;

static void *walk_shared(void *arg)
{
    shared *s = arg;
    uint32_t mask[V_SMALL / 32 + 1];
    for (int k = 0; k < 20; k++) {
        gr_matcher *m;
        lq_err err;
        bool ok;
        if (gr_matcher_new(&m, s->g, &err)) return NULL;
        for (int step = 0; step < 30; step++) {
            if (gr_mask(m, mask, &err)) break;
            int32_t id = -1, want = (step * 37 + k * 11) % V_SMALL;
            for (int32_t i = 0; i < V_SMALL && id < 0; i++)
                if (in_mask(mask, (want + i) % V_SMALL)) id = (want + i) % V_SMALL;
            if (id < 0) break;
            gr_accept_token(m, id, &ok, &err);
            s->sum = s->sum * 31 + (uint32_t)id;
        }
        gr_matcher_free(m);
    }
    return NULL;
}

TEST(all_grammars_together_are_counted_and_bounded)
{
    gr_vocab *v = small_vocab();
    const gr_spec spec = { .kind = GR_REGEX, .text = "[a-z]{1,99}", .n = 11 };
    grammar *a = NULL, *b = NULL;
    lq_err err = { "" };
    CHECK(atomic_load(v->held) == 0, "nothing yet");
    CHECK(!gr_compile(&a, &spec, v, &err), "%s", err.msg);
    const size_t one = atomic_load(v->held);
    CHECK(one > 0, "one is counted");
    gr_matcher *m = NULL;
    uint32_t mask[1024];
    CHECK(!gr_matcher_new(&m, a, &err) && !gr_mask(m, mask, &err), "%s", err.msg);
    const size_t grown = atomic_load(v->held);
    CHECK(grown > one, "and what it grows by: %zu, then %zu", one, grown);
    atomic_fetch_add(v->held, GR_MAX_ALL_BYTES); /* as if there were others */
    CHECK(gr_compile(&b, &spec, v, &err) == LQ_ENOMEM && !b, "no room for another");
    CHECK(!gr_mask(m, mask, &err), "who is there goes on: %s", err.msg);
    atomic_fetch_sub(v->held, GR_MAX_ALL_BYTES);
    CHECK(!gr_compile(&b, &spec, v, &err), "%s", err.msg);
    gr_matcher_free(m);
    gr_unref(a);
    gr_unref(b);
    CHECK(atomic_load(v->held) == 0, "%zu bytes are left", atomic_load(v->held));
    gr_vocab_close(v);
}

TEST(threads_share_a_grammar_and_see_the_same_masks)
{
    gr_vocab *v = small_vocab();
    grammar *g = NULL;
    lq_err err;
    pthread_t t[4];
    shared s[4];
    CHECK(!compile(&g, GR_SCHEMA, grammars[3].text, v, &err), "%s", err.msg);
    for (int i = 0; i < 4; i++) {
        s[i] = (shared){ g, 0 };
        pthread_create(&t[i], NULL, walk_shared, &s[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        CHECK(s[i].sum == s[0].sum && s[i].sum, "thread %d", i);
    }
    gr_unref(g);
    gr_vocab_close(v);
}

TEST(the_cache_gives_the_same_grammar_for_the_same_text)
{
    tok_tokenizer *t = NULL;
    gr_cache *c = NULL;
    lq_err err = { "" };
    grammar *a = NULL, *b = NULL, *d = NULL;
    gr_spec x = { .kind = GR_REGEX, .text = "a*", .n = 2 }, y = x;
    CHECK(!tok_open_file(&t, "models/novels-1m/tokenizer.json", &err), "%s", err.msg);
    CHECK(!gr_cache_open(&c, t, tok_vocab(t), 2, &err), "%s", err.msg);
    CHECK(!gr_cache_get(c, &a, &x, &err) && !gr_cache_get(c, &b, &x, &err) && a == b,
          "one grammar");
    y.compact = true; /* part of the key */
    CHECK(!gr_cache_get(c, &d, &y, &err) && d != a, "another");
    gr_unref(d);
    y.text = "b*";
    CHECK(!gr_cache_get(c, &d, &y, &err), "%s", err.msg);
    gr_unref(d);
    y.text = "c*";
    CHECK(!gr_cache_get(c, &d, &y, &err), "%s", err.msg);
    gr_unref(d);
    CHECK(!gr_cache_get(c, &d, &x, &err) && d != a, "the oldest has gone");
    gr_unref(d);
    y.text = "(";
    y.n = 1;
    CHECK(gr_cache_get(c, &d, &y, &err) == LQ_EVALUE && !d, "an error is no entry");
    gr_matcher *m;
    bool ok;
    uint32_t *mask = calloc((size_t)tok_vocab(t) / 32 + 1, sizeof *mask);
    gr_matcher_new(&m, a, &err); /* still good */
    CHECK(!gr_mask(m, mask, &err), "%s", err.msg);
    uint8_t bytes[64];
    for (int32_t id = 0; id < tok_vocab(t); id++) {
        size_t n = tok_token_bytes(t, id, bytes, sizeof bytes), k = 0;
        while (k < n && k < sizeof bytes && bytes[k] == 'a')
            k++;
        CHECK(in_mask(mask, id) == (n > 0 && k == n && !tok_is_special(t, id)), "token %d", id);
        gr_accept_token(m, id, &ok, &err);
        if (ok) gr_rollback(m, 1);
        CHECK(ok == in_mask(mask, id), "token %d", id);
    }
    free(mask);
    gr_matcher_free(m);
    gr_unref(a);
    gr_unref(b);
    gr_cache_close(c);
    tok_close(t);
}

int main(int argc, char **argv)
{
    RUN(the_cases_are_taken_and_refused);
    RUN(lengths_beyond_a_repetition_are_counted);
    RUN(random_regular_expressions_agree_with_pcre2);
    RUN(masks_agree_with_every_token_tried_alone);
    RUN(what_is_drawn_under_a_mask_is_json);
    RUN(a_matcher_goes_back_and_clones_go_their_own_way);
    RUN(nesting_ends_before_the_stack_does);
    RUN(hostile_grammars_end_within_bounds);
    RUN(places_that_look_alike_share_their_masks);
    RUN(collecting_states_changes_no_answer);
    RUN(all_grammars_together_are_counted_and_bounded);
    RUN(threads_share_a_grammar_and_see_the_same_masks);
    RUN(the_cache_gives_the_same_grammar_for_the_same_text);
    return check_end();
}
