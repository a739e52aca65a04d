/* formats/source/source_gguf.c - a GGUF file as a model: metadata becomes a config, tensors get their
 * Hugging Face names, blocks our schemes (formats/gguf/gguf_blocks.h). */
#include "formats/source/source_impl.h"

#include "base/json.h"
#include "formats/arch/generation_config.h"
#include "formats/gguf/gguf_config.h"
#include "formats/gguf/gguf_tok.h"
#include "formats/source/history.h"
#include "formats/source/source_gguf_tensors.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- blobs ---- */
static lq_status add_blob(src_source *s, const char *name, const lq_buf *b, lq_err *err)
{
    char *copy = b->oom ? NULL : lq_push(&s->arena, b->n + 1);
    if (!copy) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(copy, b->p, b->n);
    s->blobs[s->n_blobs++] = (src_blob){ name, (const uint8_t *)copy, b->n };
    return LQ_OK;
}

static lq_status read_text(src_source *s, lq_err *err)
{
    lq_buf b = { 0 };
    gguf_reason why = { "" };
    const bool pieces = gguf_is_sentencepiece(&s->gguf);
    lq_status st = pieces ? gguf_sentencepiece(&b, &s->gguf, &why, err)
                          : gguf_tokenizer(&b, &s->gguf, &why, err);
    if (!st && b.n) st = add_blob(s, pieces ? "tokenizer.model" : "tokenizer.json", &b, err);
    if (!st && !b.n)
        st = src_no_tokenizer(s, err, "the tokenizer of this GGUF file is not used: %s", why.text);
    else if (!st && *why.text)
        st = src_note(s, err, "%s", why.text);
    b.n = 0;
    if (!st) st = gguf_tokenizer_config(&b, &s->gguf, err);
    if (!st) st = add_blob(s, "tokenizer_config.json", &b, err);
    free(b.p);
    return st;
}

static lq_status read_config(src_source *s, const gguf_arch *row, bool need, lq_err *err)
{
    cJSON *j;
    lq_buf text = { 0 };
    lq_status st = gguf_config(&j, &s->gguf, row, err);
    if (!st) st = arch_config_parse(&s->config, j, NULL, err);
    s->has_config = !st;
    if (!st) st = js_canonical(&text, j, err);
    if (!st) st = add_blob(s, "config.json", &text, err);
    free(text.p);
    cJSON_Delete(j);
    if (!st || need || st == LQ_ENOMEM) return st;
    lq_wrap(err, st, "%s", s->path);
    return src_set_unfit(s, st, err, err);
}

/* The block after the model's that guesses further tokens. */
static lq_status read_head(src_source *s, const gguf_arch *row, lq_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%lld.nextn.eh_proj.weight", (long long)s->config.layers);
    if (!s->has_config || !row->further || !gguf_find(&s->gguf, name)) return LQ_OK;
    const lq_status st = arch_config_mtp(&s->head, &s->config, err);
    s->has_head = !st;
    return st;
}

/* The makers' sampling, as generation_config.json says it. Numbers are f32 there. */
static lq_status read_sampling(src_source *s, lq_err *err)
{
    lq_buf b = { 0 };
    gen_defaults g;
    lq_err why;
    for (const gguf_sampling_key *k = gguf_sampling; k->hf; k++) {
        char text[64], key[64];
        double v;
        int64_t n;
        snprintf(key, sizeof key, GGUF_SAMPLING "%s", k->gguf);
        if (k->whole && gguf_int(&s->gguf, key, &n))
            snprintf(text, sizeof text, "%s\"%s\":%lld", b.n ? "," : "{", k->hf, (long long)n);
        else if (!k->whole && gguf_float(&s->gguf, key, &v) && isfinite(v))
            snprintf(text, sizeof text, "%s\"%s\":%.7g", b.n ? "," : "{", k->hf, v);
        else
            continue;
        lq_buf_puts(&b, text);
    }
    if (b.n) lq_buf_puts(&b, "}");
    lq_status st = LQ_OK;
    if (!b.oom && gen_read(&g, (const uint8_t *)b.p, b.n, &why))
        st = src_note(s, err, "the sampling that this GGUF file asks for is not used: %.300s",
                      why.msg);
    else if (b.n || b.oom)
        st = add_blob(s, "generation_config.json", &b, err);
    free(b.p);
    return st;
}

/* Keys of llmq: the recipe of what this file was converted from, if the tensors are still those. */
static lq_status read_history(src_source *s, lq_err *err)
{
    static const char *const parts[] = { HISTORY_RECIPE, HISTORY_PROVENANCE, HISTORY_CONVERTED };
    char hex[33];
    const char *was = NULL, *text;
    if (!gguf_str(&s->gguf, HISTORY_TENSORS, &was)) return LQ_OK;
    const lq_hash h = gguf_tensors_hash(s->gguf.tensors, s->gguf.n);
    lq_hash_hex(hex, &h);
    if (strcmp(hex, was) != 0)
        return src_note(s, err,
                        HISTORY_TENSORS " is of other tensors than these: the recipe that stands "
                                        "beside it is not used");
    cJSON *j = cJSON_CreateObject();
    lq_status st = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(parts) && !st; i++) {
        char key[64];
        cJSON *part = NULL;
        snprintf(key, sizeof key, HISTORY_GGUF "%s", parts[i]);
        if (!gguf_str(&s->gguf, key, &text)) continue;
        st = js_parse(&part, text, strlen(text), (size_t)16 << 20, JS_UNIQUE, err);
        if (st) lq_wrap(err, st, "%s", key);
        if (part && !cJSON_AddItemToObject(j, parts[i], part))
            st = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    src_set_history(s, j);
    return st;
}

static lq_status read_about(src_source *s, lq_err *err)
{
    gguf_str(&s->gguf, "general.license", &s->license);
    lq_status st = read_sampling(s, err);
    return st ? st : read_history(s, err);
}

/* ---- the file, or files ---- */
static lq_status unknown_arch(const char *arch, lq_err *err)
{
    if (strcmp(arch, "clip") == 0)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "general.architecture: \"clip\": this is an mmproj file, the vision or audio "
            "part of a model: expected the file of its language model");
    char names[400] = "";
    size_t at = 0;
    for (const gguf_arch *a = gguf_archs; a->gguf && at < sizeof names; a++) {
        if (a > gguf_archs && strcmp(a->gguf, a[-1].gguf) == 0) continue;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", a->gguf);
    }
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "general.architecture: found \"%.40s\", expected one of %s", arch, names);
}

lq_status src_gguf_read(src_source *s, const src_opts *o, lq_err *err)
{
    enum { MAX_BLOBS = 10 };
    const char *arch = "";
    int64_t parts = 1;
    s->format = "gguf";
    s->blobs = lq_push(&s->arena, MAX_BLOBS * sizeof *s->blobs);
    if (!s->blobs) return lq_fail(err, LQ_ENOMEM, "out of memory");
    gguf_str(&s->gguf, "general.architecture", &arch);
    gguf_int(&s->gguf, "split.count", &parts);
    if (parts > 1 && parts != (int64_t)s->n_splits + 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "split.count: expected one file, found one of %lld",
                       (long long)parts);
    const gguf_arch *row = gguf_arch_find(&s->gguf);
    lq_status st = LQ_OK;
    if (row) st = read_config(s, row, o->need_config, err);
    if (row && !st)
        st = read_head(s, row, err);
    else if (!row)
        st = unknown_arch(arch, err);
    if (st == LQ_EUNSUPPORTED && !row && !o->need_config) {
        lq_wrap(err, st, "%s", s->path);
        st = src_set_unfit(s, st, err, err);
    }
    if (!st) st = read_text(s, err);
    if (!st) st = read_about(s, err);
    if (!st && row) st = src_gguf_modules(s, row, err);
    if (!st && !o->no_tensors) st = src_gguf_tensors(s, row, err);
    return st || o->no_tensors || !s->has_config ? st : src_check_denied(s, err);
}

/* "...-00001-of-00003.gguf": the name of another part of it. */
static lq_status split_path(char *out, size_t n, const char *first, int64_t i, int64_t parts,
                            lq_err *err)
{
    char begin[40], ending[40];
    snprintf(begin, sizeof begin, "-00001-of-%05lld.gguf", (long long)parts);
    snprintf(ending, sizeof ending, "-%05lld-of-%05lld.gguf", (long long)i + 1, (long long)parts);
    const size_t len = strlen(first), k = strlen(begin);
    if (len < k || strcmp(first + len - k, begin) != 0 || len >= n)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "split.count: expected the first of %lld files, named ...%s",
                       (long long)parts, begin);
    snprintf(out, n, "%.*s%s", (int)(len - k), first, ending);
    return LQ_OK;
}

static lq_status open_split(src_source *s, int64_t i, int64_t parts, lq_err *err)
{
    char path[4200];
    int64_t no = -1, count = -1;
    gguf_file *f = &s->splits[s->n_splits];
    lq_status st = split_path(path, sizeof path, s->path, i, parts, err);
    if (!st) st = gguf_open(f, path, err);
    if (st) return st;
    s->n_splits++;
    gguf_int(f, "split.no", &no);
    gguf_int(f, "split.count", &count);
    if (no != i || count != parts)
        return lq_fail(err, LQ_EFORMAT, "%s: expected part %lld of %lld, found %lld of %lld", path,
                       (long long)i, (long long)parts, (long long)no, (long long)count);
    return src_stamp_file(s, path, err);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

/* The tensors of all parts as if they were in the first. */
static lq_status join(src_source *s, lq_err *err)
{
    size_t n = s->gguf.n;
    int64_t want = -1;
    for (size_t i = 0; i < s->n_splits; i++)
        n += s->splits[i].n;
    if (gguf_int(&s->gguf, "split.tensors.count", &want) && want != (int64_t)n)
        return lq_fail(err, LQ_EFORMAT, "split.tensors.count: expected %lld tensors, found %zu",
                       (long long)want, n);
    gguf_tensor *all = lq_push(&s->arena, (n + 1) * sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(all, s->gguf.tensors, s->gguf.n * sizeof *all);
    size_t at = s->gguf.n;
    for (size_t i = 0; i < s->n_splits; i++) {
        if (s->splits[i].n) memcpy(all + at, s->splits[i].tensors, s->splits[i].n * sizeof *all);
        at += s->splits[i].n;
    }
    qsort(all, n, sizeof *all, by_tensor_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s' is in two parts", all[i].name);
    s->gguf.tensors = all;
    s->gguf.n = n;
    return LQ_OK;
}

static lq_status open_splits(src_source *s, lq_err *err)
{
    enum { MAX_PARTS = 9999 };
    int64_t parts = 1, no = 0;
    gguf_int(&s->gguf, "split.count", &parts);
    gguf_int(&s->gguf, "split.no", &no);
    if (parts <= 1) return LQ_OK;
    if (no != 0 || parts > MAX_PARTS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "split.no: expected the first of at most %d files, found no. %lld of %lld",
                       MAX_PARTS, (long long)no + 1, (long long)parts);
    s->splits = lq_push(&s->arena, (size_t)parts * sizeof *s->splits);
    if (!s->splits) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status st = LQ_OK;
    for (int64_t i = 1; i < parts && !st; i++)
        st = open_split(s, i, parts, err);
    return st ? st : join(s, err);
}

lq_status src_gguf_open(src_source *s, const src_opts *o, lq_err *err)
{
    lq_status st = gguf_open(&s->gguf, s->path, err);
    if (!st) st = src_stamp_file(s, s->path, err);
    if (st) return st;
    st = open_splits(s, err);
    if (!st) st = src_gguf_read(s, o, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}

lq_status src_check_cover(const src_source *s,
                          void (*bad)(void *user, const char *name, const char *what), void *user,
                          lq_err *err)
{
    const gguf_file *f = &s->gguf;
    lq_status st = f->map.size ? gguf_check_cover(f, f->tensors, f->n, bad, user, err) : LQ_OK;
    for (size_t i = 0; i < s->n_splits && !st; i++)
        st = gguf_check_cover(&s->splits[i], f->tensors, f->n, bad, user, err);
    return st;
}
