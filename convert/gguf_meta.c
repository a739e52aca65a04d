/* convert/gguf_meta.c */
#include "convert/gguf_meta.h"
#include "formats/gguf.h"
#include "formats/gguf_tok.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENIZER = 1 << 28, MAX_VOCAB = 1 << 24 };
typedef enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 } token_type;

/* ---- pairs ---- */
void gguf_put_le(js_buf *b, uint64_t v, int bytes)
{
    char c[8];
    for (int i = 0; i < bytes; i++)
        c[i] = (char)(v >> 8 * i & 0xff);
    js_put(b, c, (size_t)bytes);
}

void gguf_put_str(js_buf *b, const char *s, size_t n)
{
    gguf_put_le(b, n, 8);
    js_put(b, s, n);
}

static void key(gguf_pairs *p, const char *name, gguf_type t)
{
    gguf_put_str(&p->b, name, strlen(name));
    gguf_put_le(&p->b, t, 4);
    p->n++;
}

void gguf_pair_int(gguf_pairs *p, const char *name, int64_t v)
{
    key(p, name, GGUF_U32);
    gguf_put_le(&p->b, (uint64_t)v, 4);
}

void gguf_pair_str(gguf_pairs *p, const char *name, const char *v)
{
    key(p, name, GGUF_STRING);
    gguf_put_str(&p->b, v, strlen(v));
}

static void pair_float(gguf_pairs *p, const char *name, double v)
{
    const float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    key(p, name, GGUF_F32);
    gguf_put_le(&p->b, bits, 4);
}

static void pair_bool(gguf_pairs *p, const char *name, bool v)
{
    key(p, name, GGUF_BOOL);
    gguf_put_le(&p->b, v, 1);
}

static void array(gguf_pairs *p, const char *name, gguf_type of, uint64_t n)
{
    key(p, name, GGUF_ARRAY);
    gguf_put_le(&p->b, of, 4);
    gguf_put_le(&p->b, n, 8);
}

/* ---- the model ---- */
lq_status gguf_arch_of(const gguf_arch **a, const arch_config *c, lq_err *err)
{
    char names[200] = "";
    for (size_t i = 0, at = 0; i < GGUF_N_ARCHS; i++) {
        *a = &gguf_archs[i];
        if (!(*a)->written) continue;
        if (strcmp((*a)->hf, c->row->arch) == 0) {
            if (!c->window) return LQ_OK;
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "sliding_window: GGUF's %s has none, found %lld positions", (*a)->gguf,
                           (long long)c->window);
        }
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", (*a)->hf);
    }
    return lq_fail(err, LQ_EUNSUPPORTED, "architectures: GGUF is written of %s, found %s", names,
                   c->row->arch);
}

static lq_status put_scaling(gguf_pairs *p, const gguf_arch *a, const arch_config *c, lq_err *err)
{
    const arch_rope *r = &c->rope[ROPE_MAIN];
    char k[96];
    if (r->kind == ROPE_PLAIN) return LQ_OK;
    if (r->kind == ROPE_LLAMA3) { /* by a tensor; the length is for our own reader */
        snprintf(k, sizeof k, "%s.rope.scaling.original_context_length", a->gguf);
        gguf_pair_int(p, k, r->original_max);
        return LQ_OK;
    }
    if (r->kind != ROPE_LINEAR && r->kind != ROPE_YARN)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope_scaling: GGUF is written of linear, llama3 and "
                       "yarn, found %s",
                       arch_rope_text(r->kind));
    snprintf(k, sizeof k, "%s.rope.scaling.type", a->gguf);
    gguf_pair_str(p, k, arch_rope_text(r->kind));
    snprintf(k, sizeof k, "%s.rope.scaling.factor", a->gguf);
    pair_float(p, k, r->factor);
    if (r->kind != ROPE_YARN) return LQ_OK;
    snprintf(k, sizeof k, "%s.rope.scaling.original_context_length", a->gguf);
    gguf_pair_int(p, k, r->original_max);
    return LQ_OK;
}

lq_status gguf_put_config(gguf_pairs *p, const gguf_arch *a, const arch_config *c, lq_err *err)
{
    const struct {
        const char *key;
        int64_t v;
    } ints[] = { { "block_count", c->layers },
                 { "context_length", c->max_pos },
                 { "embedding_length", c->hidden },
                 { "feed_forward_length", c->ffn },
                 { "attention.head_count", c->heads },
                 { "attention.head_count_kv", c->kv_heads },
                 { "attention.key_length", c->head_dim },
                 { "attention.value_length", c->head_dim },
                 { "rope.dimension_count", c->rope_dims },
                 { "vocab_size", c->vocab } };
    char k[96];
    gguf_pair_str(p, "general.architecture", a->gguf);
    gguf_pair_str(p, "general.type", "model");
    for (size_t i = 0; i < LQ_COUNT(ints); i++) {
        snprintf(k, sizeof k, "%s.%s", a->gguf, ints[i].key);
        gguf_pair_int(p, k, ints[i].v);
    }
    snprintf(k, sizeof k, "%s.rope.freq_base", a->gguf);
    pair_float(p, k, c->rope[ROPE_MAIN].theta);
    snprintf(k, sizeof k, "%s.attention.layer_norm_rms_epsilon", a->gguf);
    pair_float(p, k, c->norm_eps);
    return put_scaling(p, a, c, err);
}

lq_status gguf_rope_factors(float **out, const arch_config *c, lq_arena *a, lq_err *err)
{
    const arch_rope *r = &c->rope[ROPE_MAIN];
    const int64_t n = c->rope_dims / 2;
    *out = NULL;
    if (r->kind != ROPE_LLAMA3) return LQ_OK;
    *out = lq_push(a, (size_t)n * sizeof **out);
    if (!*out) return lq_fail(err, LQ_ENOMEM, "rope_freqs: out of memory");
    for (int64_t i = 0; i < n; i++) {
        const double original = (double)r->original_max;
        const double wave = 2 * 3.14159265358979323846 * pow(r->theta, (double)i / (double)n);
        const double smooth = (original / wave - r->low_freq) / (r->high_freq - r->low_freq);
        double f = 1 / ((1 - smooth) / r->factor + smooth);
        if (wave < original / r->high_freq) f = 1;
        if (wave > original / r->low_freq) f = r->factor;
        (*out)[i] = (float)f;
    }
    return LQ_OK;
}

/* ---- the tokenizer ---- */
typedef struct {
    const char **text; /* by id; NULL: none */
    int32_t *type;
    int64_t n;
} vocab;

static bool set_token(vocab *v, const char *text, const cJSON *id, token_type type)
{
    int64_t i;
    if (!js_whole(id, 0, v->n - 1, &i)) return false;
    v->text[i] = text;
    v->type[i] = (int32_t)type;
    return true;
}

static lq_status read_vocab(vocab *v, const cJSON *t, lq_err *err)
{
    for (const cJSON *e = js_get(js_get(t, "model"), "vocab")->child; e; e = e->next)
        if (!set_token(v, e->string, e, NORMAL))
            return lq_fail(err, LQ_EFORMAT, "tokenizer.json: '%.60s': expected an id below %lld",
                           e->string, (long long)v->n);
    const cJSON *added = js_get(t, "added_tokens");
    for (const cJSON *e = cJSON_IsArray(added) ? added->child : NULL; e; e = e->next) {
        const char *text = NULL;
        bool special = false;
        lq_status s = js_str(e, "content", true, &text, err);
        if (!s) s = js_bool(e, "special", false, &special, err);
        if (!s && !set_token(v, text, js_get(e, "id"), special ? CONTROL : USER_DEFINED))
            s = lq_fail(err, LQ_EFORMAT, "'%.60s': expected an id below %lld", text,
                        (long long)v->n);
        if (s) return lq_wrap(err, s, "tokenizer.json: added_tokens");
    }
    return LQ_OK;
}

static void put_tokens(gguf_pairs *p, const vocab *v)
{
    array(p, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        char pad[32];
        const int len = snprintf(pad, sizeof pad, "[PAD%lld]", (long long)i);
        if (v->text[i])
            gguf_put_str(&p->b, v->text[i], strlen(v->text[i]));
        else
            gguf_put_str(&p->b, pad, (size_t)len);
    }
    array(p, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++)
        gguf_put_le(&p->b, (uint64_t)(v->text[i] ? v->type[i] : UNUSED), 4);
}

/* "a b" or ["a", "b"]. */
static lq_status put_merges(gguf_pairs *p, const cJSON *merges, lq_err *err)
{
    array(p, "tokenizer.ggml.merges", GGUF_STRING, (uint64_t)cJSON_GetArraySize(merges));
    for (const cJSON *m = merges->child; m; m = m->next) {
        const cJSON *a = cJSON_IsArray(m) ? m->child : NULL, *b = a ? a->next : NULL;
        if (cJSON_IsString(m)) {
            gguf_put_str(&p->b, m->valuestring, strlen(m->valuestring));
        } else if (cJSON_IsString(a) && cJSON_IsString(b) && !b->next) {
            const size_t x = strlen(a->valuestring), y = strlen(b->valuestring);
            gguf_put_le(&p->b, x + 1 + y, 8);
            js_put(&p->b, a->valuestring, x);
            js_put(&p->b, " ", 1);
            js_put(&p->b, b->valuestring, y);
        } else {
            return lq_fail(err, LQ_EFORMAT, "tokenizer.json: merges: expected pairs of strings");
        }
    }
    return LQ_OK;
}

/* tokenizer.ggml.pre of byte-level BPE; NULL: text is cut in a way that GGUF has no name for here.
 */
static const char *pre_of(const cJSON *t)
{
    const cJSON *pre = js_get(t, "pre_tokenizer"), *list = js_get(pre, "pretokenizers");
    const char *type = "", *regex = NULL;
    bool own = true;
    if (cJSON_IsArray(list) && cJSON_GetArraySize(list) == 2) {
        js_str(list->child, "type", false, &type, NULL);
        js_str(js_get(list->child, "pattern"), "Regex", false, &regex, NULL);
        if (strcmp(type, "Split") != 0 || !regex) return NULL;
        pre = list->child->next;
    }
    js_str(pre, "type", false, &type, NULL);
    js_bool(pre, "use_regex", false, &own, NULL);
    if (strcmp(type, "ByteLevel") != 0 || own == (regex != NULL)) return NULL;
    return gguf_pre_for(regex);
}

/* Is a special token put before (or after) every text? */
static bool adds(const cJSON *t, bool after)
{
    const cJSON *post = js_get(t, "post_processor"), *list = js_get(post, "processors");
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next)
        if (js_get(e, "single")) post = e;
    const cJSON *e = js_get(post, "single");
    for (e = cJSON_IsArray(e) ? e->child : NULL; after && e && e->next;)
        e = e->next;
    return e && js_get(e, "SpecialToken");
}

/* The id of a token that tokenizer_config.json names, as text or as {"content"}; -1. */
static int64_t special(const cJSON *config, const char *name, const vocab *v)
{
    const cJSON *t = js_get(config, name);
    if (cJSON_IsObject(t)) t = js_get(t, "content");
    for (int64_t i = 0; cJSON_IsString(t) && i < v->n; i++)
        if (v->text[i] && strcmp(v->text[i], t->valuestring) == 0) return i;
    return -1;
}

static void put_special(gguf_pairs *p, const src_source *src, const cJSON *config, const vocab *v)
{
    const arch_config *c = src_config(src);
    const struct {
        const char *key, *name;
        int64_t other;
    } ids[] = { { "tokenizer.ggml.bos_token_id", "bos_token", c->bos },
                { "tokenizer.ggml.eos_token_id", "eos_token", c->n_eos ? c->eos[0] : -1 },
                { "tokenizer.ggml.padding_token_id", "pad_token", -1 } };
    for (size_t i = 0; i < LQ_COUNT(ids); i++) {
        int64_t id = special(config, ids[i].name, v);
        id = id < 0 ? ids[i].other : id;
        if (id >= 0 && id < v->n) gguf_pair_int(p, ids[i].key, id);
    }
}

static void put_template(gguf_pairs *p, const src_source *src, const cJSON *config)
{
    const src_blob *file = src_find_blob(src, "chat_template.jinja");
    const char *text = NULL;
    if (file) {
        key(p, "tokenizer.chat_template", GGUF_STRING);
        gguf_put_str(&p->b, (const char *)file->data, file->bytes);
    } else if (!js_str(config, "chat_template", false, &text, NULL) && text) {
        gguf_pair_str(p, "tokenizer.chat_template", text);
    }
}

static lq_status parse_blob(cJSON **j, const src_source *src, const char *name, lq_err *err)
{
    const src_blob *b = src_find_blob(src, name);
    *j = NULL;
    if (!b) return LQ_OK;
    lq_status s = js_parse(j, (const char *)b->data, b->bytes, MAX_TOKENIZER, 0, err);
    return s ? lq_wrap(err, s, "%s", name) : LQ_OK;
}

static lq_status put_bpe(gguf_pairs *p, const src_source *src, const cJSON *t, const cJSON *config,
                         const char *pre, lq_err *err)
{
    lq_arena a = { 0 };
    vocab v = { .n = src_config(src)->vocab };
    v.text = lq_push(&a, (size_t)v.n * sizeof *v.text);
    v.type = lq_push(&a, (size_t)v.n * sizeof *v.type);
    lq_status s = v.text && v.type ? read_vocab(&v, t, err)
                                   : lq_fail(err, LQ_ENOMEM, "no memory for the vocabulary");
    if (!s) {
        gguf_pair_str(p, "tokenizer.ggml.model", "gpt2");
        gguf_pair_str(p, "tokenizer.ggml.pre", pre);
        put_tokens(p, &v);
        s = put_merges(p, js_get(js_get(t, "model"), "merges"), err);
    }
    if (!s) {
        put_special(p, src, config, &v);
        pair_bool(p, "tokenizer.ggml.add_bos_token", adds(t, false));
        pair_bool(p, "tokenizer.ggml.add_eos_token", adds(t, true));
        put_template(p, src, config);
    }
    lq_arena_free(&a);
    return s;
}

lq_status gguf_put_tokenizer(gguf_pairs *p, const src_source *src, char *note, size_t n,
                             lq_err *err)
{
    cJSON *t, *config = NULL;
    const char *type = "";
    lq_status s = parse_blob(&t, src, "tokenizer.json", err);
    if (!s) s = parse_blob(&config, src, "tokenizer_config.json", err);
    const cJSON *model = js_get(t, "model");
    const char *pre = pre_of(t);
    js_str(model, "type", false, &type, NULL);
    const char *why = !t ? "there is no tokenizer.json"
                      : strcmp(type, "BPE") != 0 || !cJSON_IsObject(js_get(model, "vocab")) ||
                              !cJSON_IsArray(js_get(model, "merges"))
                          ? "only byte-level BPE is written"
                      : !pre ? "GGUF has no name that we know for how it cuts text"
                             : NULL;
    note[0] = 0;
    if (!s && why) {
        gguf_pair_str(p, "tokenizer.ggml.model", "none");
        snprintf(note, n, "the file has no tokenizer: %s", why);
    } else if (!s) {
        s = put_bpe(p, src, t, config, pre, err);
    }
    cJSON_Delete(t);
    cJSON_Delete(config);
    return s;
}
