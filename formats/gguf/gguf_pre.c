/* formats/gguf/gguf_pre.c - see gguf_pre.h. */
#include "formats/gguf/gguf_pre.h"

#include "base/json_write.h"
#include "formats/hf/patterns.h"

/* ---- patterns ---- */
#define UFAKZEKA PAT_WORD "\\p{N}" PAT_SIGNS PAT_BLANKS
#define MINICPM5 PAT_SHORT_FORMS "|" PAT_WORD "\\p{N}+" PAT_SIGNS PAT_BLANKS
#define QWEN35                                        \
    PAT_SHORT_FORMS                                   \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| " \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" PAT_BLANKS
#define JAIS2                                                                       \
    PAT_SHORT_FORMS                                                                 \
    "|" PAT_WORD "\\p{N}{1,3}" PAT_SIGNS                                            \
    "\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|" \
    "\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"
#define SEED_CODER                                                                  \
    PAT_SHORT_FORMS                                                                 \
    "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|" \
    "\\s+(?!\\S)|\\s+"
#define BAILING                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|" \
    "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define EXAONE_MOE                                                                         \
    PAT_SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|" \
                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"

#define YOUTU PAT_CASED(PAT_UPPER, PAT_LOWER, PAT_SHORT_FORMS "?") "|\\p{N}" PAT_SLASHES PAT_BLANKS
#define TEKKEN PAT_CASED(PAT_UPPER, PAT_LOWER, "") "|\\p{N}" PAT_SLASHES PAT_BLANKS
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI                                         \
    "[\\p{Han}]+|" PAT_CASED(KIMI_UPPER, KIMI_LOWER, \
                             PAT_SHORT_FORMS "?") "|\\p{N}{1,3}" PAT_SIGNS PAT_BLANKS

/* Characters of scripts, as the patterns list them. clang-format breaks such lines anywhere. */
/* clang-format off */
#define DEEPSEEK_WORDS \
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ" \
    "-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐ" \
    "ῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ" \
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
#define YOUTU_CJK \
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
#define AFMOE_ASIAN \
    "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
/* clang-format on */
#define DEEPSEEK_SIGNS "\\s?[!-/:-~！-／：-～‘-‟　-。]+"
#define DEEPSEEK_CJK "[一-龥ࠀ-一가-퟿]+"
#define DEEPSEEK3_CJK "[一-龥぀-ゟ゠-ヿ]+"
#define ASCII_SIGN "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK3_WORDS ASCII_SIGN "[A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
#define DEEPSEEK3 DEEPSEEK3_WORDS " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
#define SPARK DEEPSEEK3_WORDS " ?[\\p{P}\\p{S}]+|[\r\n]|\\s+(?!\\S)|\\s+"
#define BLOOM " ?[^(\\s|[.,!?…。，、।۔،])]+"
#define THREES "(?=(?:\\p{N}{3})*(?:\\P{N}|$))" /* the digits that follow are in threes */

/* ---- cuts ---- */
typedef enum {
    END,
    SPLIT,      /* matches of `regex` are pieces, and so is what is between them */
    DIGITS,     /* each digit is a piece */
    DIGIT_RUNS, /* a run of digits is a piece */
    PUNCT,      /* each sign of punctuation is a piece */
    PUNCT_RUNS, /* a run of punctuation is a piece */
    NOT_BLANK,  /* white space is dropped */
    GPT2,       /* GPT-2's expression; bytes become letters */
    BYTES,      /* bytes become letters */
    TEXT        /* a piece ends with the spaces that follow it; bytes are "<0x0A>" */
} step_kind;

typedef struct {
    step_kind kind;
    const char *regex; /* of SPLIT */
} step;

enum { MAX_STEPS = 7 };
typedef const step cut[MAX_STEPS];

#define ONE(regex)                        \
    {                                     \
        { SPLIT, regex }, { BYTES, NULL } \
    }
#define TWO(a, b)                                   \
    {                                               \
        { SPLIT, a }, { SPLIT, b }, { BYTES, NULL } \
    }
static cut gpt2 = { { GPT2, NULL } };
static cut digits_gpt2 = { { DIGITS, NULL }, { GPT2, NULL } };
static cut llama3 = ONE(PAT_LLAMA3);
static cut qwen2 = ONE(PAT_QWEN2);
static cut qwen35 = ONE(QWEN35);
static cut o200k = ONE(PAT_O200K);
static cut tekken = ONE(TEKKEN);
static cut kimi = ONE(KIMI);
static cut jais2 = ONE(JAIS2);
static cut bailing = ONE(BAILING);
static cut seed_coder = ONE(SEED_CODER);
static cut exaone_moe = ONE(EXAONE_MOE);
static cut ufakzeka = ONE(UFAKZEKA);
static cut bloom = ONE(BLOOM);
static cut minicpm5 = TWO("\\p{N}{1,3}", MINICPM5);
static cut laguna = TWO("[^\\n]+|[\\n]+", PAT_QWEN2);
static cut tiny_aya = TWO("\\d{1,3}(?=(?:\\d{3})*\\b)", PAT_O200K);
static cut youtu = TWO(YOUTU_CJK, YOUTU);
static cut superbpe = TWO("\\p{N}+", "(?=(\\d{3})+(?!\\d))");
static cut viking = { { SPLIT, BLOOM }, { DIGITS, NULL }, { BYTES, NULL } };
static cut falcon = {
    { PUNCT_RUNS, NULL }, { GPT2, NULL }, { DIGIT_RUNS, NULL }, { SPLIT, "[0-9][0-9][0-9]" }
};
static cut deepseek = { { SPLIT, "[\r\n]" }, { SPLIT, DEEPSEEK_WORDS }, { SPLIT, DEEPSEEK_SIGNS },
                        { SPLIT, "\\s+$" },  { SPLIT, DEEPSEEK_CJK },   { DIGITS, NULL },
                        { BYTES, NULL } };
static cut deepseek_coder = { { SPLIT, "[\r\n]" },      { SPLIT, "\\s?\\p{L}+" },
                              { SPLIT, "\\s?\\p{P}+" }, { SPLIT, DEEPSEEK_CJK },
                              { DIGITS, NULL },         { BYTES, NULL } };
static cut deepseek3 = {
    { SPLIT, "\\p{N}{1,3}" }, { SPLIT, DEEPSEEK3_CJK }, { SPLIT, DEEPSEEK3 }, { BYTES, NULL }
};
static cut spark = { { SPLIT, "\\p{N}{1,3}" },
                     { SPLIT, DEEPSEEK3_CJK },
                     { SPLIT, SPARK },
                     { DIGITS, NULL },
                     { BYTES, NULL } };
static cut afmoe = {
    { SPLIT, "\\p{N}{1,3}" THREES }, { SPLIT, AFMOE_ASIAN }, { SPLIT, DEEPSEEK3 }, { BYTES, NULL }
};
static cut chameleon = { { SPLIT, "<sentinel:[0-9]+>" },
                         { SPLIT, "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z" },
                         { SPLIT, "([\\t\\n]|    |  )" },
                         { DIGITS, NULL },
                         { PUNCT, NULL },
                         { GPT2, NULL } };
static cut words = { { NOT_BLANK, NULL } };
static cut text = { { TEXT, NULL } };

struct gguf_pre {
    const char *name;
    const step *cut;
    enum { NFC = 1, BOS = 2, WHOLE = 4 } flags; /* WHOLE: "ignore_merges" */
};

/* Of names with the same cut and flags the first is written. */
static const gguf_pre rows[] = {
    { "gpt-2", gpt2, 0 },
    { "llama-bpe", llama3, BOS | WHOLE },
    { "qwen2", qwen2, NFC },
    { "qwen35", qwen35, NFC },
    { "gpt-4o", o200k, 0 },
    { "tekken", tekken, BOS | WHOLE },
    { "deepseek-v3", deepseek3, 0 },
    { "deepseek-llm", deepseek, 0 },
    { "deepseek-coder", deepseek_coder, 0 },
    { "smollm", digits_gpt2, 0 },
    { "smaug-bpe", llama3, 0 },
    { "glm4", llama3, WHOLE },
    { "kimi-k2", kimi, 0 },
    { "gemma4", text, 0 },
    { "mpt", gpt2, NFC },
    { "falcon", falcon, 0 },
    { "bloom", bloom, 0 },
    { "stablelm2", qwen2, 0 },
    { "minimax-m2", o200k, 0 },
    { "a.x-4.0", gpt2, 0 },
    { "afmoe", afmoe, 0 },
    { "bailingmoe", bailing, 0 },
    { "bailingmoe2", bailing, 0 },
    { "chameleon", chameleon, BOS },
    { "chatglm-bpe", llama3, 0 },
    { "codeshell", digits_gpt2, 0 },
    { "cohere2moe", tiny_aya, 0 },
    { "command-r", digits_gpt2, 0 },
    { "dbrx", llama3, 0 },
    { "deepseek-r1-qwen", qwen2, 0 },
    { "default", gpt2, 0 },
    { "exaone", digits_gpt2, 0 },
    { "exaone-moe", exaone_moe, 0 },
    { "exaone4", gpt2, 0 },
    { "f2llmv2", qwen2, 0 },
    { "falcon-h1", llama3, BOS | WHOLE },
    { "falcon3", llama3, BOS | WHOLE },
    { "gigachat", gpt2, 0 },
    { "glm5", llama3, WHOLE },
    { "gpt3-finnish", bloom, 0 },
    { "granite-docling", gpt2, 0 },
    { "granite-embed-multi-311m", text, 0 },
    { "granite-embed-multi-97m", o200k, WHOLE },
    { "grok-2", qwen2, 0 },
    { "hunyuan", qwen2, 0 },
    { "hunyuan-dense", deepseek3, 0 },
    { "hy_v4", deepseek3, 0 },
    { "jais", gpt2, 0 },
    { "jais-2", jais2, 0 },
    { "jina-de", gpt2, 0 },
    { "jina-es", gpt2, 0 },
    { "jina-v1-en", gpt2, 0 },
    { "jina-v2-code", gpt2, 0 },
    { "jina-v2-de", gpt2, 0 },
    { "jina-v2-es", gpt2, 0 },
    { "jina-v5-nano", llama3, BOS | WHOLE },
    { "joyai-llm", deepseek3, 0 },
    { "kanana2", o200k, 0 },
    { "kormo", qwen2, 0 },
    { "laguna", laguna, 0 },
    { "lfm2", llama3, BOS | WHOLE },
    { "llada-moe", bailing, 0 },
    { "llama-v3", llama3, BOS | WHOLE },
    { "llama3", llama3, BOS | WHOLE },
    { "llama4", o200k, 0 },
    { "megrez", qwen2, 0 },
    { "mellum", gpt2, 0 },
    { "mellum2", digits_gpt2, 0 },
    { "midm-2.0", llama3, BOS | WHOLE },
    { "minerva-7b", digits_gpt2, 0 },
    { "minicpm5", minicpm5, WHOLE },
    { "modern-bert", gpt2, 0 },
    { "olmo", gpt2, NFC },
    { "phi-2", gpt2, 0 },
    { "pixtral", llama3, BOS | WHOLE },
    { "poro-chat", bloom, 0 },
    { "refact", digits_gpt2, 0 },
    { "roberta-bpe", gpt2, 0 },
    { "sarvam-moe", text, 0 },
    { "seed-coder", seed_coder, 0 },
    { "solar-open", qwen2, 0 },
    { "spark2_5", spark, 0 },
    { "starcoder", digits_gpt2, 0 },
    { "superbpe", superbpe, 0 },
    { "talkie", o200k, 0 },
    { "tiny_aya", tiny_aya, 0 },
    { "trillion", gpt2, 0 },
    { "ufakzeka", ufakzeka, 0 },
    { "viking", viking, 0 },
    { "whitespace", words, 0 },
    { "youtu", youtu, WHOLE },
};

const gguf_pre *gguf_pre_find(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

bool gguf_pre_adds_bos(const gguf_pre *p) { return p->flags & BOS; }
bool gguf_pre_ignores_merges(const gguf_pre *p) { return p->flags & WHOLE; }
bool gguf_pre_is_text(const gguf_pre *p) { return p->cut->kind == TEXT; }

/* ---- as JSON ---- */
/* A step's object up to where the pattern goes. */
static const char *const objects[] = {
    [SPLIT] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":",
    [DIGITS] = "{\"type\":\"Digits\",\"individual_digits\":true}",
    [DIGIT_RUNS] = "{\"type\":\"Digits\",\"individual_digits\":false}",
    [PUNCT] = "{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}",
    [PUNCT_RUNS] = "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}",
    [NOT_BLANK] = "{\"type\":\"WhitespaceSplit\"}",
    [GPT2] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
             "\"use_regex\":true}",
    [BYTES] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
              "\"use_regex\":false}",
    [TEXT] = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":"
             "\"MergedWithPrevious\",\"invert\":false}",
};

static int count(const step *steps)
{
    int n = 0;
    while (n < MAX_STEPS && steps[n].kind != END)
        n++;
    return n;
}

static void put_steps(lq_buf *b, const step *steps)
{
    const int n = count(steps);
    if (n > 1) lq_buf_puts(b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < n; i++) {
        if (i) lq_buf_puts(b, ",");
        lq_buf_puts(b, objects[steps[i].kind]);
        if (steps[i].kind != SPLIT) continue;
        js_put_str(b, steps[i].regex);
        lq_buf_puts(b, "},\"behavior\":\"Isolated\",\"invert\":false}");
    }
    if (n > 1) lq_buf_puts(b, "]}");
}

void gguf_pre_put(lq_buf *b, const gguf_pre *p)
{
    lq_buf_puts(b, "\"normalizer\":");
    lq_buf_puts(b, p->cut->kind == TEXT
                       ? "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"▁\"}"
                   : p->flags & NFC ? "{\"type\":\"NFC\"}"
                                    : "null");
    lq_buf_puts(b, ",\"pre_tokenizer\":");
    put_steps(b, p->cut);
}

void gguf_pre_put_decoder(lq_buf *b, const gguf_pre *p)
{
    lq_buf_puts(b, "\"decoder\":");
    lq_buf_puts(b,
                p->cut->kind == TEXT
                    ? "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
                      "\"String\":\"▁\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
                      "\"Fuse\"}]}"
                    : "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
                      "\"use_regex\":true}");
}

/* ---- from JSON ---- */
static bool is(const cJSON *o, const char *key, const char *want)
{
    const cJSON *v = js_get(o, key);
    return cJSON_IsString(v) && strcmp(v->valuestring, want) == 0;
}

static bool flag(const cJSON *o, const char *key, bool otherwise)
{
    const cJSON *v = js_get(o, key);
    return cJSON_IsBool(v) ? cJSON_IsTrue(v) : otherwise;
}

/* One sign of a pattern, where "\n" and "\"" may be spelled with or without a backslash. */
static char sign(const char **p)
{
    const char *s = *p;
    if (s[0] == '\\' && (s[1] == 'r' || s[1] == 'n' || s[1] == '"')) {
        *p += 2;
        return s[1] == 'r' ? '\r' : s[1] == 'n' ? '\n' : '"';
    }
    *p += s[0] == '\\' && s[1] ? 2 : 1;
    return s[0] == '\\' ? (char)(s[1] | 0x80) : s[0];
}

static bool same_pattern(const char *a, const char *b)
{
    while (*a && *b)
        if (sign(&a) != sign(&b)) return false;
    return !*a && !*b;
}

/* What kind of step is this object? END: one that no row has. */
static step_kind kind_of(const cJSON *o)
{
    const bool isolated = is(o, "behavior", "Isolated");
    if (is(o, "type", "Split"))
        return isolated && !flag(o, "invert", false) ? SPLIT
               : is(o, "behavior", "MergedWithPrevious") && is(js_get(o, "pattern"), "String", " ")
                   ? TEXT
                   : END;
    if (is(o, "type", "Digits")) return flag(o, "individual_digits", false) ? DIGITS : DIGIT_RUNS;
    if (is(o, "type", "Punctuation"))
        return isolated ? PUNCT : is(o, "behavior", "Contiguous") ? PUNCT_RUNS : END;
    if (is(o, "type", "WhitespaceSplit")) return NOT_BLANK;
    if (is(o, "type", "ByteLevel") && !flag(o, "add_prefix_space", true))
        return flag(o, "use_regex", true) ? GPT2 : BYTES;
    return END;
}

static bool same_cut(const step *steps, const cJSON *first, int n)
{
    if (count(steps) != n) return false;
    for (int i = 0; i < n; i++, first = first->next) {
        if (kind_of(first) != steps[i].kind) return false;
        if (steps[i].kind != SPLIT) continue;
        const cJSON *regex = js_get(js_get(first, "pattern"), "Regex");
        if (!cJSON_IsString(regex) || !same_pattern(regex->valuestring, steps[i].regex))
            return false;
    }
    return true;
}

/* Nothing or NFC, which llama.cpp does not apply; of text, U+2581 for a space. */
static bool same_normalizer(const gguf_pre *p, const cJSON *normalizer)
{
    if (p->cut->kind == TEXT)
        return is(normalizer, "type", "Replace") && is(normalizer, "content", "▁") &&
               is(js_get(normalizer, "pattern"), "String", " ");
    return !normalizer || is(normalizer, "type", "NFC");
}

const char *gguf_pre_of(const cJSON *tokenizer)
{
    const cJSON *pre = js_get(tokenizer, "pre_tokenizer"), *list = js_get(pre, "pretokenizers");
    const cJSON *normalizer = js_get(tokenizer, "normalizer"), *first = pre;
    const bool whole = flag(js_get(tokenizer, "model"), "ignore_merges", false);
    const char *found = NULL;
    int n = pre ? 1 : 0, best = -1;
    if (cJSON_IsArray(list)) {
        n = cJSON_GetArraySize(list);
        first = list->child;
    }
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        const gguf_pre *p = &rows[i];
        if (!same_normalizer(p, normalizer) || !same_cut(p->cut, first, n)) continue;
        /* the cut decides; then whether merges are ignored, then NFC, which llama.cpp lacks */
        const int points = 2 * (gguf_pre_ignores_merges(p) == whole) +
                           ((p->flags & NFC) != 0) * (normalizer != NULL) +
                           ((p->flags & NFC) == 0) * (normalizer == NULL);
        if (points > best) {
            best = points;
            found = p->name;
        }
    }
    return found;
}
