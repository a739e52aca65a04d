/* runtime/tokenizer/tok_compile.c - tokenizer.json to the blob that tok_int.h draws. */
#include "runtime/tokenizer/tok_int.h"

#include "base/json_text.h"

enum { MAX_JSON_BYTES = 1 << 30, MAX_SEQUENCE_DEPTH = 8 };

/* ---- vocabulary ---- */
static const uint8_t *text_of(const tok_builder *b, tok_str s) { return b->heap.u + s.off; }

static lq_status bad_vocab(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_EFORMAT, "tokenizer.json: model.vocab: %s", what);
}

/* {"token": id, ...} */
static lq_status read_vocab(tok_builder *b, const cJSON *vocab, lq_err *err)
{
    size_t n = 0, n_ids = 0;
    const cJSON *e;
    if (!cJSON_IsObject(vocab)) return bad_vocab(err, "expected an object");
    cJSON_ArrayForEach(e, vocab)
    {
        double id = cJSON_IsNumber(e) ? e->valuedouble : -1;
        if (!(id >= 0 && id < TOK_MAX_IDS) || id != floor(id))
            return bad_vocab(err, "expected ids 0..16777215");
        if ((size_t)id + 1 > n_ids) n_ids = (size_t)id + 1;
        n++;
    }
    lq_status s = tok_begin_vocab(b, n_ids, n, err);
    if (s) return s;
    cJSON_ArrayForEach(e, vocab)
    {
        s = tok_put_token(b, tok_put_text(b, e->string), (uint32_t)e->valuedouble, err);
        if (s) return s;
    }
    return LQ_OK;
}

/* [["token", score], ...]: ids in order */
static lq_status read_scored_vocab(tok_builder *b, const cJSON *vocab, lq_err *err)
{
    if (!cJSON_IsArray(vocab)) return bad_vocab(err, "expected an array");
    size_t n = (size_t)cJSON_GetArraySize(vocab);
    if (n >= TOK_MAX_IDS) return bad_vocab(err, "expected at most 16777215 entries");
    lq_status s = tok_begin_vocab(b, n, n, err);
    uint32_t id = 0;
    const cJSON *e;
    if (s) return s;
    cJSON_ArrayForEach(e, vocab)
    {
        const cJSON *text = e->child, *score = text ? text->next : NULL;
        if (!cJSON_IsArray(e) || !cJSON_IsString(text) || !cJSON_IsNumber(score) ||
            !isfinite(score->valuedouble))
            return bad_vocab(err, "expected [text, score]");
        lq_buf_add(&b->scores, &score->valuedouble, sizeof(double));
        s = tok_put_token(b, tok_put_text(b, text->valuestring), id++, err);
        if (s) return s;
    }
    return LQ_OK;
}

/* ---- merges ---- */
typedef struct {
    const char *left, *right;
    size_t n_left, n_right;
} pair;

static bool split_merge(const cJSON *e, pair *p)
{
    if (cJSON_IsString(e)) { /* "left right" */
        const char *s = e->valuestring, *space = strchr(s, ' ');
        if (!space || strchr(space + 1, ' ')) return false;
        *p = (pair){ s, space + 1, (size_t)(space - s), strlen(space + 1) };
        return true;
    }
    const cJSON *a = cJSON_IsArray(e) ? e->child : NULL, *c = a ? a->next : NULL;
    if (!cJSON_IsString(a) || !cJSON_IsString(c) || c->next) return false;
    *p = (pair){ a->valuestring, c->valuestring, strlen(a->valuestring), strlen(c->valuestring) };
    return true;
}

static lq_status add_merge(tok_builder *b, const pair *p, uint32_t rank, lq_err *err)
{
    size_t n_prefix = b->head.prefix.off == TOK_NONE ? 0 : b->head.prefix.len;
    lq_buf joined = { 0 };
    uint32_t left = TOK_NONE, right = TOK_NONE, id = TOK_NONE;
    if (!lq_buf_room(&joined, p->n_left + p->n_right + 2)) return tok_oom(err);
    /* The tree spells U+0000 in two bytes: undo that in the whole pair and in each half. */
    char *w = joined.p;
    memcpy(w, p->left, p->n_left);
    w[p->n_left] = 0;
    size_t n_left = jt_copy(w, w);
    memcpy(w + n_left, p->right, p->n_right);
    w[n_left + p->n_right] = 0;
    size_t n_right = jt_copy(w + n_left, w + n_left);
    left = tok_find_text(b, w, n_left);
    right = tok_find_text(b, w + n_left, n_right);
    if (n_right >= n_prefix) {
        memmove(w + n_left, w + n_left + n_prefix, n_right - n_prefix);
        id = tok_find_text(b, w, n_left + n_right - n_prefix);
    }
    lq_buf_free(&joined);
    if (left == TOK_NONE || right == TOK_NONE || id == TOK_NONE)
        return lq_fail(
            err, LQ_EFORMAT,
            "tokenizer.json: model.merges[%u]: a part or its sum is not in the vocabulary", rank);
    tok_put_merge(b, left, right, rank, id);
    return LQ_OK;
}

static lq_status read_merges(tok_builder *b, const cJSON *merges, lq_err *err)
{
    if (!cJSON_IsArray(merges))
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: model.merges: expected an array");
    size_t n = (size_t)cJSON_GetArraySize(merges);
    uint32_t rank = 0;
    const cJSON *e;
    lq_status s = tok_begin_merges(b, n, err);
    if (s) return s;
    cJSON_ArrayForEach(e, merges)
    {
        pair p;
        if (cJSON_IsString(e) && strncmp(e->valuestring, "#version", 8) == 0) continue;
        if (!split_merge(e, &p))
            return lq_fail(err, LQ_EFORMAT, "tokenizer.json: model.merges[%u]: expected a pair",
                           rank);
        s = add_merge(b, &p, rank++, err);
        if (s) return s;
    }
    return LQ_OK;
}

/* ---- models ---- */
static tok_str optional_text(tok_builder *b, const cJSON *o, const char *key)
{
    const char *s = tok_json_str(o, key);
    return s && *s ? tok_put_text(b, s) : (tok_str){ TOK_NONE, 0 };
}

static lq_status find_unk(tok_builder *b, const cJSON *m, lq_err *err)
{
    const char *unk = tok_json_str(m, "unk_token");
    if (!unk) return LQ_OK;
    tok_str s = tok_put_text(b, unk);
    if (b->heap.oom) return tok_oom(err);
    b->head.unk = tok_find_text(b, text_of(b, s), s.len);
    if (b->head.unk == TOK_NONE)
        return lq_fail(err, LQ_EFORMAT,
                       "tokenizer.json: model.unk_token '%.60s' is not in the vocabulary", unk);
    return LQ_OK;
}

static lq_status compile_bpe(tok_builder *b, const cJSON *m, lq_err *err)
{
    const cJSON *dropout = cJSON_GetObjectItemCaseSensitive(m, "dropout");
    if (cJSON_IsNumber(dropout) && dropout->valuedouble != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "tokenizer.json: model.dropout is not supported");
    b->head.prefix = optional_text(b, m, "continuing_subword_prefix");
    b->head.suffix = optional_text(b, m, "end_of_word_suffix");
    if (tok_json_bool(m, "fuse_unk", false)) b->head.flags |= TOK_FUSE_UNK;
    if (tok_json_bool(m, "byte_fallback", false)) b->head.flags |= TOK_BYTE_FALLBACK;
    if (tok_json_bool(m, "ignore_merges", false)) b->head.flags |= TOK_IGNORE_MERGES;
    lq_status s = read_vocab(b, cJSON_GetObjectItemCaseSensitive(m, "vocab"), err);
    if (!s) s = find_unk(b, m, err);
    return s ? s : read_merges(b, cJSON_GetObjectItemCaseSensitive(m, "merges"), err);
}

static lq_status compile_unigram(tok_builder *b, const cJSON *m, lq_err *err)
{
    const cJSON *unk = cJSON_GetObjectItemCaseSensitive(m, "unk_id");
    lq_status s = read_scored_vocab(b, cJSON_GetObjectItemCaseSensitive(m, "vocab"), err);
    if (s) return s;
    size_t n = b->tokens.n / sizeof(tok_str);
    if (tok_json_bool(m, "byte_fallback", false)) b->head.flags |= TOK_BYTE_FALLBACK;
    if (!cJSON_IsNumber(unk)) return LQ_OK;
    if (!(unk->valuedouble >= 0 && unk->valuedouble < (double)n))
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: model.unk_id: expected 0..%zu, found %g",
                       n, unk->valuedouble);
    b->head.unk = (uint32_t)unk->valuedouble;
    return LQ_OK;
}

static lq_status compile_wordpiece(tok_builder *b, const cJSON *m, lq_err *err)
{
    const cJSON *max = cJSON_GetObjectItemCaseSensitive(m, "max_input_chars_per_word");
    double chars = cJSON_IsNumber(max) ? max->valuedouble : 100;
    const char *prefix = tok_json_str(m, "continuing_subword_prefix");
    if (!(chars >= 0 && chars < UINT32_MAX))
        return bad_vocab(err, "expected max_input_chars_per_word below 2^32");
    b->head.max_chars = (uint32_t)chars;
    b->head.prefix = tok_put_text(b, prefix ? prefix : "##");
    lq_status s = read_vocab(b, cJSON_GetObjectItemCaseSensitive(m, "vocab"), err);
    if (!s) s = find_unk(b, m, err);
    if (!s && b->head.unk == TOK_NONE) s = bad_vocab(err, "WordPiece without its unk_token");
    return s;
}

static lq_status compile_wordlevel(tok_builder *b, const cJSON *m, lq_err *err)
{
    lq_status s = read_vocab(b, cJSON_GetObjectItemCaseSensitive(m, "vocab"), err);
    return s ? s : find_unk(b, m, err);
}

lq_status tok_compile_model(tok_builder *b, const cJSON *m, lq_err *err)
{
    static const struct {
        const char *name;
        lq_status (*compile)(tok_builder *, const cJSON *, lq_err *);
    } models[TOK_N_MODELS] = {
        [TOK_BPE] = { "BPE", compile_bpe },
        [TOK_UNIGRAM] = { "Unigram", compile_unigram },
        [TOK_WORDLEVEL] = { "WordLevel", compile_wordlevel },
        [TOK_WORDPIECE] = { "WordPiece", compile_wordpiece },
    };
    if (!cJSON_IsObject(m))
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: model: expected an object");
    const char *type = tok_json_str(m, "type");
    if (!type)
        type = cJSON_HasObjectItem(m, "merges") ? "BPE" : "(none)"; /* as old files have it */
    for (uint32_t i = 0; i < TOK_N_MODELS; i++) {
        if (strcmp(type, models[i].name) != 0) continue;
        b->head.model = i;
        return models[i].compile(b, m, err);
    }
    return lq_fail(err, LQ_EUNSUPPORTED, "tokenizer.json: model type '%.60s' is not supported",
                   type);
}

/* ---- added tokens: the library gives ids by text, not by what the file says ---- */
static bool same_text(const tok_builder *b, tok_str x, tok_str y)
{
    return x.len == y.len && memcmp(text_of(b, x), text_of(b, y), x.len) == 0;
}

static size_t count_model(const tok_builder *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->tokens.n / sizeof(tok_str); i++)
        n += ((const tok_str *)(const void *)b->tokens.u)[i].off != TOK_NONE;
    return n;
}

static lq_status read_added(tok_builder *b, const cJSON *list, lq_err *err)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } flags[] = { { "special", TOK_SPECIAL },
                  { "single_word", TOK_SINGLE_WORD },
                  { "lstrip", TOK_LSTRIP },
                  { "rstrip", TOK_RSTRIP },
                  { "normalized", TOK_NORMALIZED } };
    enum { MAX_ADDED = 1 << 16 };
    const size_t n_model = count_model(b);
    int64_t highest = -1;
    const cJSON *e;
    if (!list || cJSON_IsNull(list)) return LQ_OK;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > MAX_ADDED)
        return lq_fail(err, LQ_EFORMAT,
                       "tokenizer.json: added_tokens: expected an array of at most %d", MAX_ADDED);
    tok_trie *seen = tok_trie_new();
    lq_status s = seen ? LQ_OK : tok_oom(err);
    for (e = list->child; e && !s; e = e->next) {
        const char *content = tok_json_str(e, "content");
        if (!content) {
            s = lq_fail(err, LQ_EFORMAT, "tokenizer.json: added_tokens: expected a content");
            break;
        }
        tok_added a = { .text = tok_put_text(b, content) };
        if (b->heap.oom || a.text.len == 0) continue;
        for (size_t k = 0; k < LQ_COUNT(flags); k++)
            if (tok_json_bool(e, flags[k].key, false)) a.flags |= flags[k].flag;
        /* An earlier token of this text keeps its id and takes the new flags. */
        size_t len;
        uint32_t before = tok_trie_longest(seen, text_of(b, a.text), a.text.len, &len);
        tok_added *all = (tok_added *)(void *)b->added.u;
        if (before != TOK_NONE && same_text(b, all[before].text, a.text)) {
            all[before].flags = a.flags;
            continue;
        }
        a.id = tok_find_text(b, text_of(b, a.text), a.text.len);
        const cJSON *given = cJSON_GetObjectItemCaseSensitive(e, "id");
        if (b->ids_given && cJSON_IsNumber(given)) {
            if (!(given->valuedouble >= 0 && given->valuedouble < TOK_MAX_IDS))
                s = lq_fail(err, LQ_EFORMAT, "added tokens: expected ids 0..16777215");
            else
                a.id = (uint32_t)given->valuedouble;
        } else if (a.id == TOK_NONE)
            a.id = (uint32_t)(highest >= (int64_t)n_model || (n_model == 0 && highest >= 0)
                                  ? highest + 1
                                  : (int64_t)n_model);
        if ((int64_t)a.id > highest) highest = a.id;
        if (!tok_trie_add(seen, text_of(b, a.text), a.text.len,
                          (uint32_t)(b->added.n / sizeof(tok_added))))
            s = tok_oom(err);
        lq_buf_add(&b->added, &a, sizeof a);
    }
    tok_trie_free(seen);
    return s;
}

/* ---- stages ---- */
static lq_status compile_stage(tok_builder *b, const cJSON *j, tok_stage stage, int depth,
                               lq_err *err)
{
    const tok_stage_table *table = tok_stage_of(stage);
    if (!j || cJSON_IsNull(j)) return LQ_OK;
    const char *type = tok_json_str(j, "type");
    if (!type)
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: %s: expected an object with a type",
                       table->name);
    if (strcmp(type, "Sequence") == 0) {
        const cJSON *e, *all = cJSON_GetObjectItemCaseSensitive(j, table->member);
        if (!cJSON_IsArray(all) || depth == MAX_SEQUENCE_DEPTH)
            return lq_fail(err, LQ_EFORMAT,
                           "tokenizer.json: %s: expected an array %s, nested at most %d",
                           table->name, table->member, MAX_SEQUENCE_DEPTH);
        cJSON_ArrayForEach(e, all)
        {
            lq_status s = compile_stage(b, e, stage, depth + 1, err);
            if (s) return s;
        }
        return LQ_OK;
    }
    for (uint32_t i = 0; i < table->n_kinds; i++) {
        if (strcmp(type, table->kinds[i].name) != 0) continue;
        tok_op op = { .kind = i, .s = { { TOK_NONE, 0 }, { TOK_NONE, 0 } } };
        lq_status s = table->kinds[i].compile ? table->kinds[i].compile(b, j, &op, err) : LQ_OK;
        lq_buf_add(&b->ops[stage], &op, sizeof op);
        return s;
    }
    return lq_fail(err, LQ_EUNSUPPORTED, "tokenizer.json: %s '%.60s' is not supported", table->name,
                   type);
}

lq_status tok_compile_rest(tok_builder *b, const cJSON *root, lq_err *err)
{
    static const char *const stages[] = { "normalizer", "pre_tokenizer", "post_processor",
                                          "decoder" };
    lq_status s = read_added(b, cJSON_GetObjectItemCaseSensitive(root, "added_tokens"), err);
    for (int i = 0; i < TOK_N_STAGES && !s; i++)
        s = compile_stage(b, cJSON_GetObjectItemCaseSensitive(root, stages[i]), (tok_stage)i, 0,
                          err);
    return s;
}

lq_status tok_compile(uint8_t **blob, size_t *blob_bytes, const char *json, size_t json_bytes,
                      lq_err *err)
{
    tok_builder b;
    cJSON *root = NULL;
    *blob = NULL;
    *blob_bytes = 0;
    if (json_bytes > MAX_JSON_BYTES)
        return lq_fail(err, LQ_EVALUE, "tokenizer.json: expected at most %d bytes, found %zu",
                       MAX_JSON_BYTES, json_bytes);
    lq_status s = jt_parse(&root, json, json_bytes, 0, err);
    if (s) return lq_wrap(err, s, "tokenizer.json");
    tok_build_init(&b, "tokenizer.json: model.vocab");
    s = tok_compile_model(&b, cJSON_GetObjectItemCaseSensitive(root, "model"), err);
    if (!s) s = tok_compile_rest(&b, root, err);
    if (!s) s = tok_build_finish(&b, blob, blob_bytes, err);
    cJSON_Delete(root);
    tok_build_free(&b);
    return s;
}
