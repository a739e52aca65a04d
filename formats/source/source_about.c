/* formats/source/source_about.c - what a source says about itself: its layout, notes, why it cannot run,
 * and where it came from when llmq converted it. */
#include "base/json.h"
#include "base/path.h"
#include "formats/source/history.h"
#include "formats/source/source_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what it says ---- */
static lq_status keep_note(src_source *s, const char **kept, lq_err *err, const char *fmt,
                           va_list args)
{
    char text[sizeof err->msg];
    vsnprintf(text, sizeof text, fmt, args);
    lq_printable(text);
    for (size_t i = 0; i < s->n_notes; i++)
        if (strcmp(s->notes[i], text) == 0) return LQ_OK;
    const char *copy = lq_push_str(&s->arena, text, strlen(text));
    if (!copy) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    if (kept) *kept = copy;
    if (s->n_notes < LQ_COUNT(s->notes)) s->notes[s->n_notes++] = copy;
    return LQ_OK;
}

lq_status src_note(src_source *s, lq_err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const lq_status st = keep_note(s, NULL, err, fmt, args);
    va_end(args);
    return st;
}

lq_status src_no_tokenizer(src_source *s, lq_err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const lq_status st = keep_note(s, &s->no_tokenizer, err, fmt, args);
    va_end(args);
    return st;
}

lq_status src_set_unfit(src_source *s, lq_status why, const lq_err *said, lq_err *err)
{
    if (s->unfit) return LQ_OK;
    s->unfit = lq_push_str(&s->arena, said->msg, strlen(said->msg));
    s->unfit_as = why;
    return s->unfit ? LQ_OK : lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
}

const struct gguf_file *src_gguf(const src_source *s)
{
    const src_source *base = src_base(s);
    return base->gguf.kv ? &base->gguf : NULL;
}
bool src_has_other_tokenizer(const src_source *s) { return src_base(s)->tokenizer; }
const char *src_why_no_tokenizer(const src_source *s) { return src_base(s)->no_tokenizer; }
size_t src_n_notes(const src_source *s) { return s->n_notes; }
const char *src_note_at(const src_source *s, size_t i) { return s->notes[i]; }
const char *src_layout(const src_source *s) { return s->layout[0] ? s->layout : NULL; }
const char *src_license(const src_source *s) { return s->license; }
size_t src_n_files(const src_source *s) { return src_base(s)->n_stamps; }
const char *src_file_at(const src_source *s, size_t i) { return src_base(s)->stamps[i].path; }
const cJSON *src_recipe(const src_source *s) { return s->recipe; }
const cJSON *src_provenance(const src_source *s) { return s->provenance; }
const cJSON *src_conversion(const src_source *s) { return s->conversion; }

const char *src_unfit(const src_source *s, lq_status *as)
{
    if (as) *as = s->unfit_as;
    return s->unfit;
}

uint64_t src_file_bytes(const src_source *s)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < src_base(s)->n_stamps; i++)
        sum += src_base(s)->stamps[i].size;
    return sum;
}

/* ---- where it came from ---- */
void src_set_history(src_source *s, cJSON *history)
{
    cJSON_Delete(s->history);
    s->history = history;
    s->recipe = js_get(history, HISTORY_RECIPE);
    s->provenance = js_get(history, HISTORY_PROVENANCE);
    cJSON *within = cJSON_DetachItemFromObjectCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(history, HISTORY_PROVENANCE), HISTORY_CONVERTED);
    if (within && js_get(history, HISTORY_CONVERTED))
        cJSON_Delete(within);
    else if (within)
        cJSON_AddItemToObject(history, HISTORY_CONVERTED, within);
    s->conversion = js_get(history, HISTORY_CONVERTED);
}

/* Is every file that was opened the one that was written then? */
static bool same_files(const src_source *s, const cJSON *files)
{
    bool same = cJSON_IsObject(files);
    for (size_t i = 0; i < s->n_shards && same; i++) {
        char hex[33];
        const char *slash = strrchr(s->stamps[i].path, '/'), *was = "";
        const cJSON *f = js_get(files, slash ? slash + 1 : s->stamps[i].path);
        const lq_hash h = history_header(&s->shards[i].map);
        lq_hash_hex(hex, &h);
        js_str(f, HISTORY_HEADER, false, &was, NULL);
        same = strcmp(was, hex) == 0;
    }
    return same;
}

lq_status src_read_history(src_source *s, const char *dir, lq_err *err)
{
    char path[4200];
    cJSON *j;
    lq_err why;
    lq_status st = lq_path_join(path, sizeof path, dir, HISTORY_FILE, err);
    if (st || !lq_exists(path)) return st;
    st = js_parse_file(&j, path, (size_t)16 << 20, JS_UNIQUE, &why);
    if (st == LQ_ENOMEM) return lq_fail(err, st, "%s", why.msg);
    if (st) return src_note(s, err, "%.300s: the recipe in it is not used", why.msg);
    if (same_files(s, js_get(j, HISTORY_FILES))) {
        src_set_history(s, j);
        return LQ_OK;
    }
    cJSON_Delete(j);
    return src_note(s, err,
                    HISTORY_FILE " is of other files than these: the recipe in it is not used");
}

lq_hash history_header(const lq_map *m)
{
    uint64_t n = 0;
    if (m->size >= 8)
        for (int i = 0; i < 8; i++)
            n |= (uint64_t)m->data[i] << 8 * i;
    return lq_hash_bytes(m->data, m->size < 8 || n > m->size - 8 ? m->size : (size_t)n + 8);
}
