/* runtime/tokenizer/tok_files.c - see tok_files.h. */
#include "runtime/tokenizer/tok_files.h"

#include "base/json_text.h"
#include "base/machine.h"
#include "base/utf8.h"
#include "formats/hf/patterns.h"
#include "runtime/tokenizer/tok_int.h"

#include <math.h>
#include <stdlib.h>

/* ---- tokenizer_config.json ---- */

/* What a class of slow tokenizers does where the file does not say. */
typedef struct {
    const char *name;
    bool bos, eos;
    const char *pattern; /* vocab.json: NULL is GPT-2's */
    bool nfc;
} tok_class;

static const tok_class spm_classes[] = {
    { "LlamaTokenizer", true, false, NULL, false },
    { "CodeLlamaTokenizer", true, false, NULL, false },
    { "GemmaTokenizer", true, false, NULL, false },
    { "BaichuanTokenizer", true, false, NULL, false },
    { "InternLMTokenizer", true, false, NULL, false },
    { "InternLM2Tokenizer", true, false, NULL, false },
    { "T5Tokenizer", false, true, NULL, false },
};
static const tok_class bpe_classes[] = {
    { "GPT2Tokenizer", false, false, NULL, false },
    { "CodeGenTokenizer", false, false, NULL, false },
    { "Qwen2Tokenizer", false, false, PAT_QWEN2, true },
};

static const char *text_of(const cJSON *config, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(config, key);
    return cJSON_IsObject(v) ? tok_json_str(v, "content") : cJSON_GetStringValue(v);
}

static lq_status find_class(const tok_class **out, const cJSON *config, const tok_class *all,
                            size_t n, const char *file, lq_err *err)
{
    const char *name = tok_json_str(config, "tokenizer_class");
    *out = &all[0];
    if (!name || strcmp(name, "PreTrainedTokenizerFast") == 0) return LQ_OK;
    size_t len = strlen(name);
    if (len > 4 && strcmp(name + len - 4, "Fast") == 0) len -= 4;
    for (size_t i = 0; i < n; i++)
        if (strlen(all[i].name) == len && memcmp(all[i].name, name, len) == 0)
            return *out = &all[i], LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "tokenizer_config.json: tokenizer_class '%.60s' with a %s is not supported: "
                   "expected a tokenizer.json beside it",
                   name, file);
}

static bool has_content(const cJSON *list, const char *text)
{
    const cJSON *e;
    cJSON_ArrayForEach(e, list)
    {
        const char *s = tok_json_str(e, "content");
        if (s && strcmp(s, text) == 0) return true;
    }
    return false;
}

static int by_id(const void *a, const void *b)
{
    const cJSON *const *x = a, *const *y = b;
    double p = cJSON_GetObjectItemCaseSensitive(*x, "id")->valuedouble;
    double q = cJSON_GetObjectItemCaseSensitive(*y, "id")->valuedouble;
    return p < q ? -1 : p > q;
}

static cJSON *new_entry(const char *content, bool special)
{
    cJSON *o = cJSON_CreateObject();
    if (o && cJSON_AddStringToObject(o, "content", content) &&
        cJSON_AddBoolToObject(o, "special", special))
        return o;
    return cJSON_Delete(o), NULL;
}

/* An entry with its id; what transformers adds is found in the text as it stands. */
static lq_status tok_files_add_entry(cJSON *list, cJSON *entry, double id, const char *file,
                                     lq_err *err)
{
    const bool fits = id >= 0 && id < TOK_MAX_IDS && !(id < floor(id)) && !(id > floor(id));
    cJSON_DeleteItemFromObjectCaseSensitive(entry, "id");
    if (entry && fits && cJSON_AddNumberToObject(entry, "id", id) &&
        cJSON_AddItemToArray(list, entry))
        return LQ_OK;
    cJSON_Delete(entry);
    return fits ? tok_oom(err)
                : lq_fail(err, LQ_EFORMAT, "%s: expected ids 0..%d", file, TOK_MAX_IDS - 1);
}

/* added_tokens_decoder {"7": {"content": ...}} and added_tokens.json {"text": 7}, by id. */
static lq_status read_added(cJSON *list, const cJSON *config, const cJSON *more, lq_err *err)
{
    const cJSON *e, *map = cJSON_GetObjectItemCaseSensitive(config, "added_tokens_decoder");
    lq_status s = LQ_OK;
    cJSON_ArrayForEach(e, map)
    {
        char *end = NULL;
        double id = cJSON_IsObject(map) ? strtod(e->string, &end) : 0;
        if (!end || *end || end == e->string || !tok_json_str(e, "content"))
            return lq_fail(err, LQ_EFORMAT,
                           "tokenizer_config.json: added_tokens_decoder: expected ids of tokens "
                           "with a content");
        cJSON *copy = cJSON_Duplicate(e, true);
        if (copy) {
            free(copy->string);
            copy->string = NULL;
        }
        s = tok_files_add_entry(list, copy, id, "tokenizer_config.json: added_tokens_decoder", err);
        if (s) return s;
    }
    cJSON_ArrayForEach(e, more)
    {
        if (!cJSON_IsNumber(e)) return lq_fail(err, LQ_EFORMAT, "added_tokens.json: expected ids");
        if (s || has_content(list, e->string)) continue;
        s = tok_files_add_entry(list, new_entry(e->string, false), e->valuedouble,
                                "added_tokens.json", err);
    }
    const size_t n = (size_t)cJSON_GetArraySize(list);
    cJSON **order = calloc(n + 1, sizeof(cJSON *));
    if (!s && !order) s = tok_oom(err);
    for (size_t i = 0; i < n && !s; i++)
        order[i] = cJSON_DetachItemFromArray(list, 0);
    if (!s && n > 1) qsort(order, n, sizeof(cJSON *), by_id);
    for (size_t i = 0; i < n && !s; i++)
        cJSON_AddItemToArray(list, order[i]);
    free(order);
    return s;
}

/* The tokens that the configuration names by their parts, where the vocabulary has them. */
static lq_status add_named(const tok_builder *b, cJSON *list, const cJSON *config, lq_err *err)
{
    static const char *const keys[] = { "bos_token", "eos_token", "unk_token", "pad_token" };
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        const char *s = text_of(config, keys[i]);
        if (!s || has_content(list, s)) continue;
        uint32_t id = tok_find_text(b, s, strlen(s));
        if (id == TOK_NONE) continue;
        lq_status e = tok_files_add_entry(list, new_entry(s, true), id, keys[i], err);
        if (e) return e;
    }
    return LQ_OK;
}

static void folder_free(tok_folder *f)
{
    cJSON_Delete(f->config);
    cJSON_Delete(f->tree);
    memset(f, 0, sizeof *f);
}

static const src_blob *find(const src_blob *files, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    return NULL;
}

static lq_status parse(cJSON **out, const src_blob *file, lq_err *err)
{
    *out = NULL;
    if (!file) return LQ_OK;
    lq_status s = jt_parse(out, (const char *)file->data, file->bytes, 0, err);
    if (!s && !cJSON_IsObject(*out)) s = lq_fail(err, LQ_EFORMAT, "expected an object");
    return s ? lq_wrap(err, s, "%s", file->name) : LQ_OK;
}

static lq_status folder_open(tok_folder *f, const src_blob *files, size_t n, lq_err *err)
{
    cJSON *more = NULL, *list = NULL;
    memset(f, 0, sizeof *f);
    lq_status s = parse(&f->config, find(files, n, "tokenizer_config.json"), err);
    if (!s) s = parse(&more, find(files, n, "added_tokens.json"), err);
    if (!s && !(f->tree = cJSON_CreateObject())) s = tok_oom(err);
    if (!s && !(list = cJSON_AddArrayToObject(f->tree, "added_tokens"))) s = tok_oom(err);
    if (!s) s = read_added(list, f->config, more, err);
    f->bos_text = text_of(f->config, "bos_token");
    f->eos_text = text_of(f->config, "eos_token");
    cJSON_Delete(more);
    return s;
}

static void take_class(tok_folder *f, const tok_class *c)
{
    f->bos = tok_json_bool(f->config, "add_bos_token", c->bos);
    f->eos = tok_json_bool(f->config, "add_eos_token", c->eos);
}

/* ---- tokenizer.model ---- */
static lq_status compile_model_file(uint8_t **blob, size_t *n_blob, const src_blob *m,
                                    tok_folder *f, lq_err *err)
{
    const tok_class *c;
    if (tok_is_ranks(m->data, m->bytes))
        return tok_compile_ranks(blob, n_blob, m->name, m->data, m->bytes, f, err);
    lq_status s =
        find_class(&c, f->config, spm_classes, LQ_COUNT(spm_classes), "tokenizer.model", err);
    if (s) return s;
    take_class(f, c);
    if (!f->bos_text) f->bos_text = "<s>";
    if (!f->eos_text) f->eos_text = "</s>";
    f->legacy = tok_json_bool(f->config, "legacy", true);
    f->no_prefix = !tok_json_bool(f->config, "add_prefix_space", true);
    cJSON *e;
    cJSON_ArrayForEach(e, cJSON_GetObjectItemCaseSensitive(f->tree, "added_tokens"))
        cJSON_DeleteItemFromObjectCaseSensitive(e, "normalized");
    return tok_compile_spm(blob, n_blob, m->data, m->bytes, f, err);
}

/* ---- vocab.json and merges.txt: a tokenizer.json's tree made of them ---- */
static lq_status add_merges(cJSON *model, const src_blob *file, lq_err *err)
{
    cJSON *list = cJSON_AddArrayToObject(model, "merges");
    const char *p = (const char *)file->data, *end = p + file->bytes;
    lq_status s = list ? LQ_OK : tok_oom(err);
    size_t bad;
    if (!lq_utf8_valid(file->data, file->bytes, &bad) || memchr(p, 0, file->bytes))
        return lq_fail(err, LQ_EFORMAT, "merges.txt: NUL or invalid UTF-8");
    for (const char *line = p; line < end && !s;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((stop ? stop : end) - line);
        if (n && line[n - 1] == '\r') n--;
        if (n && !(line == p && n > 8 && memcmp(line, "#version", 8) == 0)) {
            char *copy = strndup(line, n);
            cJSON *o = copy ? cJSON_CreateString(copy) : NULL;
            if (!o || !cJSON_AddItemToArray(list, o)) s = tok_oom(err);
            free(copy);
        }
        line = stop ? stop + 1 : end;
    }
    return s;
}

static lq_status compile_bpe_files(uint8_t **blob, size_t *n_blob, const src_blob *vocab,
                                   const src_blob *merges, tok_folder *f, lq_err *err)
{
    const tok_class *c;
    cJSON *v = NULL, *model = NULL;
    tok_builder b;
    tok_build_init(&b, "vocab.json");
    b.ids_given = true;
    lq_status s = find_class(&c, f->config, bpe_classes, LQ_COUNT(bpe_classes), "vocab.json", err);
    if (!s) take_class(f, c);
    if (!s) s = parse(&v, vocab, err);
    if (!s && !(model = cJSON_CreateObject())) s = tok_oom(err);
    if (!s && !cJSON_AddItemToObject(model, "vocab", v)) s = tok_oom(err);
    if (!s) v = NULL;
    if (!s && !cJSON_AddStringToObject(model, "type", "BPE")) s = tok_oom(err);
    if (!s) s = add_merges(model, merges, err);
    if (!s) s = tok_compile_model(&b, model, err);
    if (!s) s = add_named(&b, cJSON_GetObjectItem(f->tree, "added_tokens"), f->config, err);
    if (!s) s = tok_put_template(&b, f->tree, f, err);
    if (!s)
        s = tok_put_byte_level(f->tree, c->pattern, c->nfc,
                               tok_json_bool(f->config, "add_prefix_space", false), err);
    if (!s) s = tok_compile_rest(&b, f->tree, err);
    if (!s) s = tok_build_finish(&b, blob, n_blob, err);
    cJSON_Delete(v);
    cJSON_Delete(model);
    tok_build_free(&b);
    return s;
}

static lq_status compile_tekken_file(uint8_t **blob, size_t *n_blob, const src_blob *file,
                                     tok_folder *f, lq_err *err)
{
    cJSON *root;
    lq_status s = parse(&root, file, err);
    if (!s) s = tok_compile_tekken(blob, n_blob, root, f, err);
    cJSON_Delete(root);
    return s;
}

lq_status tok_compile_files(uint8_t **blob, size_t *blob_bytes, const src_blob *files,
                            size_t n_files, lq_err *err)
{
    const src_blob *json = find(files, n_files, "tokenizer.json");
    const src_blob *tekken = find(files, n_files, "tekken.json");
    const src_blob *model = find(files, n_files, "tokenizer.model");
    const src_blob *vocab = find(files, n_files, "vocab.json");
    const src_blob *merges = find(files, n_files, "merges.txt"), *ranks = NULL;
    tok_folder f;
    *blob = NULL;
    *blob_bytes = 0;
    for (size_t i = 0; i < n_files; i++) {
        const size_t n = strlen(files[i].name);
        if (n > 9 && strcmp(files[i].name + n - 9, ".tiktoken") == 0) ranks = &files[i];
        if (!model && strncmp(files[i].name, "tokenizer.model.v", 17) == 0) model = &files[i];
    }
    if (json) return tok_compile(blob, blob_bytes, (const char *)json->data, json->bytes, err);
    if (!tekken && !model && !ranks && !(vocab && merges))
        return lq_fail(err, LQ_ENOENT,
                       "expected a tokenizer.json, tekken.json, tokenizer.model, *.tiktoken or "
                       "vocab.json with merges.txt, found none");
    lq_status s = folder_open(&f, files, n_files, err);
    if (!s && tekken)
        s = compile_tekken_file(blob, blob_bytes, tekken, &f, err);
    else if (!s && model)
        s = compile_model_file(blob, blob_bytes, model, &f, err);
    else if (!s && ranks)
        s = tok_compile_ranks(blob, blob_bytes, ranks->name, ranks->data, ranks->bytes, &f, err);
    else if (!s)
        s = compile_bpe_files(blob, blob_bytes, vocab, merges, &f, err);
    folder_free(&f);
    return s;
}

lq_status tok_compile_source(uint8_t **blob, size_t *blob_bytes, const src_source *src, lq_err *err)
{
    const size_t n = src_n_blobs(src);
    size_t bytes = 0;
    lq_status s = tok_compile_files(blob, blob_bytes, n ? src_blob_at(src, 0) : NULL, n, err);
    for (size_t i = 0; i < n; i++)
        bytes += src_blob_at(src, i)->bytes;
    machine_give_back(bytes); /* their trees, ten times as large, are freed */
    const char *why = s == LQ_ENOENT ? src_why_no_tokenizer(src) : NULL;
    return why ? lq_fail(err, s, "%s", why) : s;
}
