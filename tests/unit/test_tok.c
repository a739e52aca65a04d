/* tests/unit/test_tok.c - tokenizers against the library's own output, and what must be refused.
 * Golden data: tests/golden/make/tokenizers_.py. */
#include "base/file.h"
#include "base/utf8.h"
#include "runtime/tokenizer/tok.h"
#include "runtime/tokenizer/tok_regex.h"
#include "runtime/tokenizer/tok_text.h"
#include "tests/support/check.h"
#include "tests/support/jsonl.h"

#define DIR "tests/golden/tokenizers/"

static const char *const kinds[] = {
    "added-token-flags",
    "bert-wordpiece",
    "bloom-split",
    "ctc-wordlevel",
    "deepseek3-sequence",
    "falcon-punct-digits",
    "gemma-no-prefix",
    "gpt2-bytelevel",
    "llama2-spm-bpe",
    "llama3-split-ignore-merges",
    "mistral-metaspace-first",
    "neox-prefix-space",
    "o200k-style",
    "precompiled-unigram",
    "qwen2-nfc",
    "starcoder-digits",
    "suffix-bpe",
    "unigram-metaspace",
};

static tok_tokenizer *open_kind(const char *kind)
{
    char path[128];
    lq_err err = { "" };
    tok_tokenizer *t = NULL;
    snprintf(path, sizeof path, DIR "%s/tokenizer.json", kind);
    lq_status s = tok_open_file(&t, path, &err);
    CHECK(s == LQ_OK, "%s: %s", kind, err.msg);
    return t;
}

static bool open_cases(jsonl *j, const char *kind)
{
    char path[128];
    snprintf(path, sizeof path, DIR "%s/cases.jsonl", kind);
    return jsonl_open(j, path);
}

static bool same_ids(const cJSON *want, const int32_t *ids, size_t n)
{
    if ((size_t)cJSON_GetArraySize(want) != n) return false;
    const cJSON *e = want->child;
    for (size_t i = 0; i < n; i++, e = e->next)
        if (e->valueint != ids[i]) return false;
    return true;
}

static void check_encode(const tok_tokenizer *t, const char *kind, const cJSON *c, const char *key,
                         unsigned flags)
{
    size_t n_text, n = 0;
    char *text = jsonl_text(cJSON_GetObjectItem(c, "text"), &n_text);
    int32_t *ids = NULL;
    lq_err err = { "" };
    lq_status s = tok_encode(t, text, n_text, flags, &ids, &n, &err);
    CHECK(s == LQ_OK, "%s: '%s': %s", kind, text, err.msg);
    const cJSON *want = cJSON_GetObjectItem(c, key);
    if (!s && !same_ids(want, ids, n)) {
        char *w = cJSON_PrintUnformatted(want);
        fprintf(stderr, "%s %s '%s'\n want %s\n  got [", kind, key, text, w);
        for (size_t i = 0; i < n; i++)
            fprintf(stderr, "%d,", ids[i]);
        fprintf(stderr, "]\n");
        free(w);
        CHECK(false, "ids differ");
    }
    free(ids);
    free(text);
}

static void check_decode(const tok_tokenizer *t, const char *kind, const int32_t *ids, size_t n,
                         bool skip, const cJSON *want)
{
    size_t n_want, n_got = 0;
    char *w = jsonl_text(want, &n_want), *got = NULL;
    lq_err err = { "" };
    CHECK(!tok_decode(t, ids, n, skip, &got, &n_got, &err), "%s: %s", kind, err.msg);
    CHECK(got && n_got == n_want && memcmp(got, w, n_want) == 0, "%s: want '%s', got '%s'", kind, w,
          got);
    free(got);
    free(w);
}

/* The ids of a JSON array; free them. */
static int32_t *read_ids(const cJSON *a, size_t *n)
{
    *n = (size_t)cJSON_GetArraySize(a);
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    const cJSON *e = a->child;
    for (size_t i = 0; i < *n; i++, e = e->next)
        ids[i] = e->valueint;
    return ids;
}

TEST(every_kind_gives_the_librarys_ids_and_texts) /* T-33 */
{
    int n_cases = 0;
    for (size_t k = 0; k < LQ_COUNT(kinds); k++) {
        jsonl j;
        cJSON *c;
        tok_tokenizer *t = open_kind(kinds[k]);
        if (!t || !open_cases(&j, kinds[k])) continue;
        for (; (c = jsonl_next(&j, 0)); cJSON_Delete(c), n_cases++) {
            check_encode(t, kinds[k], c, "ids", TOK_ADD_SPECIAL);
            check_encode(t, kinds[k], c, "ids_plain", 0);
            size_t n;
            int32_t *ids = read_ids(cJSON_GetObjectItem(c, "ids"), &n);
            check_decode(t, kinds[k], ids, n, false, cJSON_GetObjectItem(c, "decoded"));
            check_decode(t, kinds[k], ids, n, true, cJSON_GetObjectItem(c, "decoded_skip"));
            free(ids);
            ids = read_ids(cJSON_GetObjectItem(c, "ids_plain"), &n);
            const cJSON *piece = cJSON_GetObjectItem(c, "pieces")->child;
            for (size_t i = 0; piece; piece = piece->next, i++)
                check_decode(t, kinds[k], ids + i, 1, false, piece);
            free(ids);
        }
        jsonl_close(&j);
        tok_close(t);
    }
    CHECK(n_cases == 18 * 68, "%d cases", n_cases);
}

/* Push ids through a stream; every delta must be whole UTF-8 and their sum the decoded text. */
static void check_stream(const tok_tokenizer *t, const char *kind, const int32_t *ids, size_t n,
                         bool skip)
{
    tok_stream *s = NULL;
    lq_buf sum = { 0 };
    char *whole = NULL;
    size_t n_whole = 0, n_delta = 0;
    const char *delta = NULL;
    lq_err err = { "" };
    CHECK(!tok_decode(t, ids, n, skip, &whole, &n_whole, &err), "%s: %s", kind, err.msg);
    CHECK(!tok_stream_new(&s, t, skip, &err), "%s", err.msg);
    for (size_t i = 0; i <= n; i++) {
        lq_status e = i < n ? tok_stream_push(s, ids[i], &delta, &n_delta, &err)
                            : tok_stream_flush(s, &delta, &n_delta, &err);
        CHECK(!e, "%s: %s", kind, err.msg);
        CHECK(lq_utf8_valid((const uint8_t *)delta, n_delta, NULL), "%s: a split code point", kind);
        lq_buf_add(&sum, delta, n_delta);
        /* Never late: what is out is all that these ids decode to, but for an open code point
         * (at most three bytes, each shown as U+FFFD) at the end. */
        char *now = NULL;
        size_t n_now = 0;
        if (i < n && i < 60 && !tok_decode(t, ids, i + 1, skip, &now, &n_now, NULL)) {
            while (n_now > sum.n && n_now >= 3 && !memcmp(now + n_now - 3, "\xEF\xBF\xBD", 3))
                n_now -= 3;
            CHECK(n_now <= sum.n, "%s: %zu bytes are out, %zu are known", kind, sum.n, n_now);
        }
        free(now);
    }
    CHECK(sum.n == n_whole && (n_whole == 0 || !memcmp(sum.u, whole, n_whole)),
          "%s: '%.*s' is not '%s'", kind, (int)sum.n, (const char *)sum.u, whole);
    tok_stream_free(s);
    lq_buf_free(&sum);
    free(whole);
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

TEST(a_stream_gives_what_decode_gives_and_never_splits_a_character) /* T-30, T-31 */
{
    uint32_t rnd = 1;
    for (size_t k = 0; k < LQ_COUNT(kinds); k++) {
        jsonl j;
        cJSON *c;
        tok_tokenizer *t = open_kind(kinds[k]);
        if (!t || !open_cases(&j, kinds[k])) continue;
        for (; (c = jsonl_next(&j, 0)); cJSON_Delete(c)) {
            size_t n;
            int32_t *ids = read_ids(cJSON_GetObjectItem(c, "ids"), &n);
            check_stream(t, kinds[k], ids, n, false);
            check_stream(t, kinds[k], ids, n / 2, true); /* a text cut off anywhere */
            free(ids);
        }
        jsonl_close(&j);
        for (int round = 0; round < 40; round++) { /* what a model without sense may say */
            int32_t ids[50];
            int32_t range = round % 2 ? 300 : tok_vocab(t);
            for (size_t i = 0; i < LQ_COUNT(ids); i++)
                ids[i] = (int32_t)(next_random(&rnd) % (uint32_t)range);
            check_stream(t, kinds[k], ids, LQ_COUNT(ids), round % 3 == 0);
        }
        tok_close(t);
    }
}

TEST(a_primed_stream_goes_on_where_the_prompt_ends)
{
    tok_tokenizer *t = open_kind("llama2-spm-bpe");
    int32_t *ids = NULL;
    size_t n = 0, n_delta = 0;
    tok_stream *s = NULL;
    const char *delta = NULL;
    CHECK(!tok_encode(t, "Hello world", 11, TOK_ADD_SPECIAL, &ids, &n, NULL) && n > 2, "encode");
    size_t at = n;
    for (size_t i = 1; i < n && at == n; i++) { /* the token that begins " w" */
        size_t len;
        const char *text = tok_token(t, ids[i], &len);
        if (i > 1 && len > 3 && !memcmp(text, "\xE2\x96\x81w", 4)) at = i;
    }
    CHECK(at < n, "a token begins with a space");
    CHECK(!tok_stream_new(&s, t, true, NULL) && !tok_stream_prime(s, ids, at, NULL), "prime");
    CHECK(!tok_stream_push(s, ids[at], &delta, &n_delta, NULL), "push");
    CHECK(n_delta > 1 && delta[0] == ' ' && delta[1] == 'w', "its space is kept: '%s'", delta);
    tok_stream_free(s);
    free(ids);
    tok_close(t);
}

/* The answer's deltas are the whole text without the prompt's, whatever the prompt ends with. */
static void check_primed(const tok_tokenizer *t, const char *why, const int32_t *ids, size_t n,
                         size_t at)
{
    tok_stream *s = NULL;
    lq_buf sum = { 0 };
    char *before = NULL, *whole = NULL;
    const char *delta = "";
    size_t n_before = 0, n_whole = 0, n_delta = 0, same = 0, len;
    lq_err err = { "" };
    lq_status st = tok_decode(t, ids, at, false, &before, &n_before, &err);
    if (!st) st = tok_decode(t, ids, n, false, &whole, &n_whole, &err);
    if (!st) st = tok_stream_new(&s, t, false, &err);
    if (!st) st = tok_stream_prime(s, ids, at, &err);
    for (size_t i = at; i < n && !st; i++) {
        st = tok_stream_push(s, ids[i], &delta, &n_delta, &err);
        if (!st) lq_buf_add(&sum, delta, n_delta);
    }
    if (!st) st = tok_stream_flush(s, &delta, &n_delta, &err);
    if (!st) lq_buf_add(&sum, delta, n_delta);
    CHECK(!st, "%s: %s", why, err.msg);
    while (!st && same < n_before && same < n_whole) {
        (void)lq_utf8_get((const uint8_t *)whole + same, &len);
        if (len > n_before - same || memcmp(before + same, whole + same, len) != 0) break;
        same += len;
    }
    CHECK(st || (sum.n == n_whole - same && (!sum.n || !memcmp(sum.p, whole + same, sum.n))),
          "%s: after '%.*s' came '%.*s' of '%s'", why, (int)n_before, before, (int)sum.n,
          sum.p ? sum.p : "", whole);
    tok_stream_free(s);
    lq_buf_free(&sum);
    free(before);
    free(whole);
}

/* Chains of decoders that transformers and converters write, in a tokenizer's own JSON. */
static tok_tokenizer *open_with_decoder(const char *kind, const char *decoder, uint8_t **blob)
{
    char path[128], *text = NULL;
    size_t n = 0;
    tok_tokenizer *t = NULL;
    lq_err err = { "" };
    snprintf(path, sizeof path, DIR "%s/tokenizer.json", kind);
    *blob = NULL;
    if (lq_read_file(&text, &n, path, 1 << 26, &err)) return NULL;
    cJSON *j = cJSON_ParseWithLength(text, n), *d = cJSON_Parse(decoder);
    free(text);
    CHECK(j && d, "%s: %s", kind, decoder);
    cJSON_DeleteItemFromObjectCaseSensitive(j, "decoder");
    cJSON_AddItemToObject(j, "decoder", d);
    text = cJSON_PrintUnformatted(j);
    cJSON_Delete(j);
    lq_status s = tok_compile(blob, &n, text, strlen(text), &err);
    if (!s) s = tok_open(&t, *blob, n, &err);
    CHECK(!s, "%s: %s: %s", kind, decoder, err.msg);
    cJSON_free(text);
    return t;
}

TEST(an_answers_deltas_are_the_text_after_the_prompts)
{
#define BYTE_LEVEL "{\"type\":\"ByteLevel\"}"
#define FUSE "{\"type\":\"Fuse\"}"
#define FALLBACK "{\"type\":\"ByteFallback\"}"
#define SPACES "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"}"
#define STRIP "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define STRIP_END "{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}"
#define CHAIN(...) "{\"type\":\"Sequence\",\"decoders\":[" __VA_ARGS__ "]}"
    static const char *const chains[] = {
        BYTE_LEVEL,
        CHAIN(FUSE "," BYTE_LEVEL),
        CHAIN(FALLBACK "," FUSE "," SPACES "," BYTE_LEVEL),
        CHAIN(SPACES "," FALLBACK "," FUSE "," STRIP),
        CHAIN(SPACES "," FUSE "," FALLBACK "," STRIP_END),
        CHAIN(FUSE "," SPACES "," STRIP),
        CHAIN(FUSE ",{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"),
        CHAIN(BYTE_LEVEL "," FUSE "," STRIP_END),
        "{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}",
        "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\"}",
    };
    static const char *const of[] = { "llama3-split-ignore-merges", "llama2-spm-bpe",
                                      "gemma-no-prefix", "gpt2-bytelevel" };
    uint32_t rnd = 7;
    for (size_t k = 0; k < LQ_COUNT(chains) * LQ_COUNT(of); k++) {
        const char *chain = chains[k / LQ_COUNT(of)];
        uint8_t *blob;
        tok_tokenizer *t = open_with_decoder(of[k % LQ_COUNT(of)], chain, &blob);
        for (int round = 0; round < 60 && t; round++) {
            int32_t ids[24];
            const uint32_t range = round % 2 ? 300 : (uint32_t)tok_vocab(t);
            for (size_t i = 0; i < LQ_COUNT(ids); i++)
                ids[i] = (int32_t)(next_random(&rnd) % range);
            check_primed(t, chain, ids, LQ_COUNT(ids), next_random(&rnd) % LQ_COUNT(ids));
        }
        tok_close(t);
        free(blob);
    }
}

TEST(tokens_that_became_one_text_are_streamed_one_by_one)
{
    uint8_t *blob;
    tok_tokenizer *t = open_with_decoder("gpt2-bytelevel", CHAIN(FUSE "," BYTE_LEVEL), &blob);
    int32_t *ids = NULL;
    size_t n = 0, n_delta = 0, out = 0;
    tok_stream *s = NULL;
    const char *delta;
    CHECK(t && !tok_encode(t, "one two three", 13, 0, &ids, &n, NULL) && n > 2, "encode");
    CHECK(!tok_stream_new(&s, t, false, NULL), "stream");
    for (size_t i = 0; i < n; i++) {
        CHECK(!tok_stream_push(s, ids[i], &delta, &n_delta, NULL) && n_delta > 0, "token %zu", i);
        out += n_delta;
    }
    CHECK(out == 13, "%zu of 13 bytes before the end", out);
    tok_stream_free(s);
    tok_close(t);
    free(ids);
    free(blob);
}

TEST(token_bytes_are_what_the_token_stands_for)
{
    static const struct {
        const char *why, *kind, *token, *bytes;
    } cases[] = {
        { "byte alphabet", "gpt2-bytelevel", "\xC4\xA0the", " the" },
        { "a byte token", "llama2-spm-bpe", "<0x0A>", "\n" },
        { "metaspace by Replace", "llama2-spm-bpe", "\xE2\x96\x81the", " the" },
        { "metaspace", "unigram-metaspace", "\xE2\x96\x81", " " },
        { "special", "llama2-spm-bpe", "<s>", "<s>" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        tok_tokenizer *t = open_kind(cases[i].kind);
        uint8_t out[64];
        int32_t id = tok_find(t, cases[i].token, strlen(cases[i].token));
        size_t n = tok_token_bytes(t, id, out, sizeof out);
        CHECK(id >= 0 && n == strlen(cases[i].bytes) && !memcmp(out, cases[i].bytes, n),
              "%s: id %d, %zu bytes", cases[i].why, id, n);
        tok_close(t);
    }
}

TEST(special_tokens_of_user_text_can_be_plain_text)
{
    tok_tokenizer *t = open_kind("llama3-split-ignore-merges");
    static const char text[] = "a<|eot_id|>b";
    int32_t eot = tok_find(t, "<|eot_id|>", 10), *ids = NULL;
    size_t n = 0, hits[2] = { 0 };
    for (unsigned plain = 0; plain < 2; plain++) {
        CHECK(!tok_encode(t, text, sizeof text - 1, plain ? TOK_PLAIN_SPECIAL : 0, &ids, &n, NULL),
              "plain %u", plain);
        for (size_t i = 0; i < n; i++)
            hits[plain] += ids[i] == eot;
        free(ids);
    }
    CHECK(hits[0] == 1 && hits[1] == 0, "%zu and %zu", hits[0], hits[1]);
    tok_close(t);
}

TEST(a_long_run_of_anything_is_encoded)
{
    static const struct {
        const char *why, *unit;
    } texts[] = {
        { "one letter", "a" },
        { "spaces", " " },
        { "emoji", "\xF0\x9F\x98\x80" },
        { "newlines", "\n" },
        { "space, letter", "a " },
        { "capitals", "A" },
        { "marks", "\xCC\x81" },
        { "unordered marks", "\xCC\x81\xCC\xA3" },
        { "digits", "7" },
        { "invalid", "\xFF" },
        { "punctuation", "!" },
        { "metaspace", "\xE2\x96\x81" },
    };
    enum { BYTES = 1 << 16 }; /* long enough that quadratic time would show */
    char *text = malloc(BYTES);
    for (size_t k = 0; k < LQ_COUNT(kinds); k++) {
        tok_tokenizer *t = open_kind(kinds[k]);
        for (size_t i = 0; i < LQ_COUNT(texts); i++) {
            size_t u = strlen(texts[i].unit), n = 0;
            int32_t *ids = NULL;
            lq_err err = { "" };
            for (size_t b = 0; b + u <= BYTES; b += u)
                memcpy(text + b, texts[i].unit, u);
            CHECK(!tok_encode(t, text, BYTES / u * u, 0, &ids, &n, &err), "%s: %s: %s", kinds[k],
                  texts[i].why, err.msg);
            free(ids);
        }
        tok_close(t);
    }
    free(text);
}

/* ---- refusals ---- */
#define BPE(rest) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}," rest "}}"
#define WITH(rest) "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}," rest "}"

TEST(broken_and_unknown_tokenizers_are_refused)
{
    static const struct {
        const char *why;
        lq_status want;
        const char *json;
    } cases[] = {
        { "empty", LQ_EFORMAT, "" },
        { "cut off", LQ_EFORMAT, "{\"model\":{" },
        { "an array", LQ_EFORMAT, "[]" },
        { "no model", LQ_EFORMAT, "{}" },
        { "unknown model", LQ_EUNSUPPORTED, "{\"model\":{\"type\":\"Magic\"}}" },
        { "vocab is an array", LQ_EFORMAT,
          "{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}" },
        { "no merges", LQ_EFORMAT, BPE("\"x\":0") },
        { "a merge of strangers", LQ_EFORMAT, BPE("\"merges\":[\"a c\"]") },
        { "a merge of three", LQ_EFORMAT, BPE("\"merges\":[\"a b c\"]") },
        { "a merge without its sum", LQ_EFORMAT, BPE("\"merges\":[[\"b\",\"a\"]]") },
        { "a merge of numbers", LQ_EFORMAT, BPE("\"merges\":[[1,2]]") },
        { "unk outside the vocabulary", LQ_EFORMAT, BPE("\"unk_token\":\"?\",\"merges\":[]") },
        { "dropout", LQ_EUNSUPPORTED, BPE("\"dropout\":0.1,\"merges\":[]") },
        { "a negative id", LQ_EFORMAT,
          "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}" },
        { "a huge id", LQ_EFORMAT,
          "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4294967295},\"merges\":[]}}" },
        { "half an id", LQ_EFORMAT,
          "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}" },
        { "one id twice", LQ_EFORMAT,
          "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}" },
        { "a scoreless token", LQ_EFORMAT,
          "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\"]]}}" },
        { "unk_id too high", LQ_EFORMAT,
          "{\"model\":{\"type\":\"Unigram\",\"unk_id\":9,\"vocab\":[[\"a\",0]]}}" },
        { "added_tokens is an object", LQ_EFORMAT, WITH("\"added_tokens\":{}") },
        { "an added token without content", LQ_EFORMAT, WITH("\"added_tokens\":[{\"id\":1}]") },
        { "unknown normalizer", LQ_EUNSUPPORTED, WITH("\"normalizer\":{\"type\":\"Magic\"}") },
        { "unknown pre-tokenizer", LQ_EUNSUPPORTED,
          WITH("\"pre_tokenizer\":{\"type\":\"Magic\"}") },
        { "unknown decoder", LQ_EUNSUPPORTED, WITH("\"decoder\":{\"type\":\"Magic\"}") },
        { "unknown behaviour", LQ_EUNSUPPORTED,
          WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Eaten\",\"pattern\":{"
               "\"String\":\"a\"}}") },
        { "no pattern", LQ_EFORMAT, WITH("\"pre_tokenizer\":{\"type\":\"Split\"}") },
        { "a broken regex", LQ_EFORMAT,
          WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"}}") },
        { "a WordPiece without its unknown", LQ_EFORMAT,
          "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"a\":0}}}" },
        { "a step of tokenizer.model alone", LQ_EUNSUPPORTED,
          WITH("\"normalizer\":{\"type\":\"SentencePiece\"}") },
        { "a charsmap that is no base64", LQ_EFORMAT,
          WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"a\"}") },
        { "a charsmap whose trie is longer than it", LQ_EFORMAT,
          WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAA=\"}") },
        { "an absent operator", LQ_EUNSUPPORTED,
          WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?~a)\"}}") },
        { "an unknown property", LQ_EUNSUPPORTED,
          WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Magic}\"}}") },
        { "a template's id outside the vocabulary", LQ_EFORMAT,
          WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
               "{\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[7]}}}") },
        { "a template of nothing known", LQ_EFORMAT,
          WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{}]}") },
        { "a sequence without members", LQ_EFORMAT,
          WITH("\"normalizer\":{\"type\":\"Sequence\"}") },
        { "metaspace of two characters", LQ_EFORMAT,
          WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}") },
        { "an empty stripped character", LQ_EFORMAT,
          WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\"\",\"start\":1,\"stop\":0}") },
        { "invalid UTF-8", LQ_EFORMAT, "{\"model\":\"\xFF\"}" },
        { "a lone surrogate", LQ_EFORMAT, "{\"model\":\"\\ud800\"}" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        uint8_t *blob = NULL;
        size_t n = 0;
        tok_tokenizer *t = NULL;
        lq_err err = { "" };
        lq_status s = tok_compile(&blob, &n, cases[i].json, strlen(cases[i].json), &err);
        if (!s) s = tok_open(&t, blob, n, &err);
        CHECK(s == cases[i].want && err.msg[0], "%s: %s: %s", cases[i].why, lq_status_text(s),
              err.msg);
        tok_close(t);
        free(blob);
    }
}

/* Whatever a damaged blob says, it is refused or it works. */
static void try_blob(const uint8_t *blob, size_t n)
{
    tok_tokenizer *t = NULL;
    lq_err err = { "" };
    if (tok_open(&t, blob, n, &err)) {
        CHECK(err.msg[0], "a refusal says why");
        return;
    }
    static const char text[] = "Hello <s>w\xC3\xB6rld</s> 123\n";
    int32_t *ids = NULL;
    size_t n_ids = 0, n_text = 0;
    char *back = NULL;
    if (!tok_encode(t, text, sizeof text - 1, TOK_ADD_SPECIAL, &ids, &n_ids, &err))
        tok_decode(t, ids, n_ids, false, &back, &n_text, &err);
    free(ids);
    free(back);
    tok_close(t);
}

TEST(a_damaged_blob_is_refused_or_harmless)
{
    static const char *const some[] = { "added-token-flags", "llama2-spm-bpe",
                                        "unigram-metaspace" };
    uint32_t rnd = 7;
    for (size_t k = 0; k < LQ_COUNT(some); k++) {
        char path[128], *json = NULL;
        uint8_t *blob = NULL;
        size_t n_json = 0, n = 0;
        snprintf(path, sizeof path, DIR "%s/tokenizer.json", some[k]);
        CHECK(!lq_read_file(&json, &n_json, path, 1 << 20, NULL), "%s", path);
        CHECK(!tok_compile(&blob, &n, json, n_json, NULL), "%s", path);
        uint8_t *copy = malloc(n);
        for (size_t cut = 0; cut < n; cut += n / 40 + 1) {
            uint8_t *part = malloc(cut + 1); /* its own end, for the sanitizer */
            memcpy(part, blob, cut);
            try_blob(part, cut);
            if (cut >= 16) { /* and with a head that says the length is right */
                uint64_t len = cut;
                memcpy(part + 8, &len, sizeof len);
                try_blob(part, cut);
            }
            free(part);
        }
        for (int round = 0; round < 400; round++) {
            memcpy(copy, blob, n);
            size_t region = round % 2 ? 512 : n; /* the head as often as all else */
            for (uint32_t hits = 1 + next_random(&rnd) % 4; hits > 0; hits--)
                copy[next_random(&rnd) % region] ^= (uint8_t)(1u << next_random(&rnd) % 8);
            for (size_t tail = 0; round % 3 == 0 && tail < 16; tail++)
                copy[n - 1 - next_random(&rnd) % 512] = (uint8_t)next_random(&rnd);
            try_blob(copy, n);
        }
        free(copy);
        free(blob);
        free(json);
    }
}

TEST(damaged_json_is_refused_or_harmless)
{
    static const char *const some[] = { "llama3-split-ignore-merges", "unigram-metaspace" };
    uint32_t rnd = 11;
    for (size_t k = 0; k < LQ_COUNT(some); k++) {
        char path[128], *json = NULL;
        size_t n = 0;
        snprintf(path, sizeof path, DIR "%s/tokenizer.json", some[k]);
        CHECK(!lq_read_file(&json, &n, path, 1 << 20, NULL), "%s", path);
        for (int round = 0; round < 60; round++) {
            char *copy = malloc(n);
            memcpy(copy, json, n);
            size_t cut = round % 3 ? n : next_random(&rnd) % n;
            for (int hits = 0; hits < 3; hits++)
                copy[next_random(&rnd) % n] = "\"{}[],:0\\ \xC3"[next_random(&rnd) % 11];
            uint8_t *blob = NULL;
            size_t n_blob = 0;
            if (!tok_compile(&blob, &n_blob, copy, cut, NULL)) try_blob(blob, n_blob);
            free(blob);
            free(copy);
        }
        free(json);
    }
}

TEST(wrong_ids_are_refused)
{
    tok_tokenizer *t = open_kind("gpt2-bytelevel");
    const int32_t bad[] = { -1, INT32_MIN, tok_vocab(t), INT32_MAX };
    for (size_t i = 0; i < LQ_COUNT(bad); i++) {
        char *text = NULL;
        size_t n;
        lq_err err = { "" };
        CHECK(tok_decode(t, &bad[i], 1, false, &text, &n, &err) == LQ_EVALUE && err.msg[0], "%d",
              bad[i]);
        CHECK(tok_token(t, bad[i], &n) == NULL && !tok_is_special(t, bad[i]), "%d", bad[i]);
        free(text);
    }
    tok_close(t);
}

/* Matches of a pattern in a text as "start-end ", against what Oniguruma finds (Ruby syntax). */
TEST(patterns_match_as_in_onigurumas_dialect)
{
    static const struct {
        const char *why, *pattern, *text, *want;
    } cases[] = {
        { "nested class", "[^(a|[.,])]+", "xy(,z", "0-2 4-5 " },
        { "intersection", "[a-z&&[^aeiou]]+", "hello", "0-1 2-4 " },
        { "negated set in a class", "[\\W_]+", "a_ b", "1-3 " },
        { "negated class with a negated set", "[^\\W_]+", "a_ b", "0-1 3-4 " },
        { "possessive plus", "a++b|a+", "aab aa", "0-3 4-6 " },
        { "plus after an interval repeats it", "\\p{N}{1,3}+", "12345", "0-5 " },
        { "fixed interval, question mark", "a{2}?b", "aab b", "0-3 4-5 " },
        { "interval from nothing", "a{,2}b", "aaab", "1-4 " },
        { "a brace of its own", "a{x", "a{x", "0-3 " },
        { "m is dotall", "(?m:a.)", "a\n", "0-2 " },
        { "dot stops at a newline", "a.", "a\nab", "2-4 " },
        { "dollar at each line", "a$", "a\na", "0-1 2-3 " },
        { "h is a hex digit", "\\h+", "xfF9g", "1-4 " },
        { "NEL is space", "\\s+", "a\xC2\x85z", "1-3 " },
        { "U+180E is no space", "\\s", "\xE1\xA0\x8E", "" },
        { "word has marks", "\\w+", "e\xCC\x81!", "0-3 " },
        { "word border", "\\bab\\b", "ab cab ab", "0-2 7-9 " },
        { "posix bracket", "[[:alpha:]]+",
          "a\xC3\xA9"
          "1",
          "0-3 " },
        { "posix punct", "[[:punct:]]+", "a$.b", "1-3 " },
        { "negated posix", "[[:^digit:]]+", "a1b", "0-1 2-3 " },
        { "long property", "\\p{Letter}+", "ab1", "0-2 " },
        { "negated by a caret", "\\p{^L}+", "a12", "1-3 " },
        { "script", "\\p{Han}+", "a\xE4\xB8\x80", "1-4 " },
        { "flag to the end of its group", "a(?i)b|c", "aB aC c", "0-2 3-5 " },
        { "code point", "\\x{AC00}", "\xEA\xB0\x80", "0-3 " },
        { "bracket first in a class", "[]a]+", "]a", "0-2 " },
        { "hyphen last in a class", "[a-]+", "a-b", "0-2 " },
        { "empty matches", "x*", "ab", "0-0 1-1 2-2 " },
        { "comment", "a(?#no)b", "ab", "0-2 " },
    };
    tok_matcher *m = tok_matcher_new();
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        tok_pattern *p = NULL;
        lq_err err = { "" };
        char got[128] = "";
        size_t s, e;
        CHECK(!tok_pattern_new(&p, cases[i].pattern, strlen(cases[i].pattern), true, &err),
              "%s: %s", cases[i].why, err.msg);
        if (!p) continue;
        tok_scan f = tok_scan_all(p, (const uint8_t *)cases[i].text, strlen(cases[i].text));
        for (bool found = true; !tok_scan_next(&f, m, &found, &s, &e, &err) && found;)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%zu-%zu ", s, e);
        CHECK(strcmp(got, cases[i].want) == 0, "%s: want %s, got %s", cases[i].why, cases[i].want,
              got);
        tok_pattern_free(p);
    }
    tok_matcher_free(m);
}

/* As the library's own tables have it (tok_unicode.py). */
TEST(characters_are_of_the_librarys_unicode)
{
    enum { PUNCT = 1, MARK = 2, NONSPACING = 4, OTHER = 8, NUMBER = 16 };
    static const struct {
        const char *why;
        uint32_t cp;
        unsigned is;
        uint32_t lower;
    } cases[] = {
        { "punctuation of Unicode 8.0", 0x2E42, PUNCT, 0x2E42 },
        { "punctuation of Unicode 9.0", 0x2E43, 0, 0x2E43 },
        { "was punctuation, is a symbol now", 0x166D, PUNCT, 0x166D },
        { "was punctuation, is a mark now", 0x111C9, PUNCT, 0x111C9 },
        { "mark of Unicode 8.0", 0x8E3, MARK | NONSPACING, 0x8E3 },
        { "mark of Unicode 9.0", 0x8D4, MARK, 0x8D4 },
        { "mark of Unicode 14.0", 0x898, 0, 0x898 },
        { "format control", 0x200B, OTHER, 0x200B },
        { "format control of Unicode 14.0", 0x890, 0, 0x890 },
        { "digit of Unicode 16.0", 0x10D40, NUMBER, 0x10D40 },
        { "capital of Unicode 16.0", 0x10D51, 0, 0x10D71 },
        { "capital of Unicode 17.0", 0x16EB8, 0, 0x16ED3 },
        { "capital with an older small letter", 0xA7CB, 0, 0x264 },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const uint32_t cp = cases[i].cp;
        const unsigned is = (tok_is_punct(cp) ? PUNCT : 0u) | (tok_is_mark(cp) ? MARK : 0u) |
                            (tok_is_nonspacing(cp) ? NONSPACING : 0u) |
                            (tok_is_other(cp) ? OTHER : 0u) | (tok_is_numeric(cp) ? NUMBER : 0u);
        CHECK(is == cases[i].is, "%s: U+%04X: want %u, got %u", cases[i].why, cp, cases[i].is, is);
        lq_buf in = { 0 }, got = { 0 }, want = { 0 };
        lq_buf_cp(&in, cp);
        lq_buf_cp(&want, cases[i].lower);
        tok_lowercase(&got, in.u, in.n);
        CHECK(got.n == want.n && memcmp(got.u, want.u, want.n) == 0, "%s: U+%04X: lower case",
              cases[i].why, cp);
        lq_buf_free(&in);
        lq_buf_free(&got);
        lq_buf_free(&want);
    }
}

int main(int argc, char **argv)
{
    RUN(every_kind_gives_the_librarys_ids_and_texts);
    RUN(a_stream_gives_what_decode_gives_and_never_splits_a_character);
    RUN(a_primed_stream_goes_on_where_the_prompt_ends);
    RUN(an_answers_deltas_are_the_text_after_the_prompts);
    RUN(tokens_that_became_one_text_are_streamed_one_by_one);
    RUN(token_bytes_are_what_the_token_stands_for);
    RUN(special_tokens_of_user_text_can_be_plain_text);
    RUN(a_long_run_of_anything_is_encoded);
    RUN(broken_and_unknown_tokenizers_are_refused);
    RUN(a_damaged_blob_is_refused_or_harmless);
    RUN(damaged_json_is_refused_or_harmless);
    RUN(wrong_ids_are_refused);
    RUN(patterns_match_as_in_onigurumas_dialect);
    RUN(characters_are_of_the_librarys_unicode);
    return check_end();
}
