/* formats/gguf/gguf_ends.c - see gguf_ends.h. */
#include "formats/gguf/gguf_ends.h"

#include "formats/hf/spm.h"

static const char *const keys[] = {
    "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
};

/* `always`: no text has the name by chance. The others end an answer where their type is CONTROL. */
static const struct {
    const char *name;
    bool always;
} names[] = {
    { "<|eot_id|>", true },   { "<|im_end|>", true },       { "<|end|>", true },
    { "<|return|>", true },   { "<|call|>", true },         { "<|flush|>", true },
    { "<|calls|>", true },    { "<end_of_turn>", true },    { "<|endoftext|>", true },
    { "<|eom_id|>", true },   { "<|end_of_text|>", true },  { "<end_of_utterance>", true },
    { "<turn|>", true },      { "<|tool_response>", true }, { "<｜end▁of▁sentence｜>", true },
    { "[e~[", true },         { "<|fim_pad|>", true },      { "<|repo_name|>", true },
    { "<|file_sep|>", true }, { "<EOT>", false },           { "_<EOT>", false },
    { "[EOT]", false },       { "[EOS]", false },           { "</s>", false },
    { "<eos>", false },
};

typedef struct {
    int64_t *ids;
    int n;
    int64_t end;                  /* "<|end|>"; -1 */
    bool returns, calls, flushes; /* gpt-oss, Solar Open: a message ends, not the answer */
} found;

static void add(found *f, int64_t id)
{
    for (int i = 0; i < f->n; i++)
        if (f->ids[i] == id) return;
    if (f->n < GGUF_MAX_ENDS) f->ids[f->n++] = id;
}

static bool same(gguf_text t, const char *name)
{
    return t.n == strlen(name) && memcmp(t.s, name, t.n) == 0;
}

static int name_at(gguf_text t)
{
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (same(t, names[i].name)) return (int)i;
    return -1;
}

bool gguf_is_end_name(const char *s, size_t n)
{
    const int i = name_at((gguf_text){ s, n });
    return i >= 0 && names[i].always;
}

static void add_named(found *f, const gguf_kv *tokens, const gguf_kv *types)
{
    const uint8_t *at = tokens->data;
    for (uint64_t id = 0; id < tokens->n; id++) {
        const gguf_text t = gguf_next(&at);
        const int k = t.n < 32 ? name_at(t) : -1;
        if (k < 0 || (!names[k].always && (!types || gguf_int_at(types, id) != SPM_CONTROL)))
            continue;
        add(f, (int64_t)id);
        if (same(t, "<|end|>")) f->end = (int64_t)id;
        f->returns = f->returns || same(t, "<|return|>");
        f->calls = f->calls || same(t, "<|call|>") || same(t, "<|calls|>");
        f->flushes = f->flushes || same(t, "<|flush|>");
    }
}

int gguf_ends(int64_t ids[GGUF_MAX_ENDS], const gguf_file *f)
{
    found e = { .ids = ids, .end = -1 };
    const gguf_kv *tokens = gguf_get(f, "tokenizer.ggml.tokens");
    int64_t id, eos = -1;
    if (tokens && (!tokens->array || tokens->type != GGUF_STRING)) tokens = NULL;
    const gguf_kv *types = tokens ? gguf_integers(f, "tokenizer.ggml.token_type", tokens->n) : NULL;
    for (size_t i = 0; i < LQ_COUNT(keys); i++)
        if (gguf_int(f, keys[i], &id) && id >= 0 && (!tokens || (uint64_t)id < tokens->n))
            add(&e, id);
    gguf_int(f, keys[0], &eos);
    if (tokens) add_named(&e, tokens, types);
    if (e.end < 0 || e.end == eos || !e.calls || !(e.returns || e.flushes)) return e.n;
    int n = 0;
    for (int i = 0; i < e.n; i++)
        if (ids[i] != e.end) ids[n++] = ids[i];
    return n;
}
