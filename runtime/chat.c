/* runtime/chat.c - see chat.h. */
#include "runtime/chat.h"

#include <stdlib.h>

#include "formats/json.h"
#include "runtime/tmpl.h"

enum { MAX_FILE = 64 << 20, N_MARKS = 64 };

typedef struct {
    const char *s; /* in the tokenizer */
    size_t n;
} text_ref;

struct chat_format {
    const tok_tokenizer *tok;
    tmpl_template *plain, *tools; /* tools NULL: the plain one serves */
    cJSON *vars;                  /* bos_token, eos_token, ... */
    text_ref *special;            /* grouped by first byte, longest first */
    size_t first[257];            /* special[first[b] .. first[b+1]) begin with byte b */
};

/* ---- opening ---- */

static int by_first_byte(const void *a, const void *b)
{
    const text_ref *p = a, *q = b;
    if (p->s[0] != q->s[0]) return (unsigned char)p->s[0] < (unsigned char)q->s[0] ? -1 : 1;
    return (p->n < q->n) - (p->n > q->n);
}

static lq_status list_specials(chat_format *c, lq_err *err)
{
    int32_t n = tok_vocab(c->tok);
    size_t k = 0;
    for (int32_t id = 0; id < n; id++)
        k += tok_is_special(c->tok, id);
    c->special = calloc(k ? k : 1, sizeof *c->special);
    if (!c->special) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    k = 0;
    for (int32_t id = 0; id < n; id++) {
        if (!tok_is_special(c->tok, id)) continue;
        text_ref t = { 0 };
        t.s = tok_token(c->tok, id, &t.n);
        if (t.s && t.n) c->special[k++] = t;
    }
    qsort(c->special, k, sizeof *c->special, by_first_byte);
    for (size_t b = 0, i = 0; b <= 256; b++) {
        while (i < k && (unsigned char)c->special[i].s[0] < b)
            i++;
        c->first[b] = i;
    }
    return LQ_OK;
}

static lq_status parse_blob(cJSON **out, const src_source *src, const char *name, lq_err *err)
{
    const src_blob *b = src_find_blob(src, name);
    *out = NULL;
    if (!b) return LQ_OK;
    lq_status s = js_parse(out, (const char *)b->data, b->bytes, MAX_FILE, 0, err);
    return s ? lq_wrap(err, s, "%s", name) : LQ_OK;
}

/* "<s>", or {"content": "<s>", ...} */
static const char *token_text(const cJSON *files[2], const char *key)
{
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(files[i], key);
        if (cJSON_IsObject(v)) v = cJSON_GetObjectItemCaseSensitive(v, "content");
        if (cJSON_IsString(v)) return v->valuestring;
    }
    return NULL;
}

static lq_status special_vars(chat_format *c, const cJSON *files[2], lq_err *err)
{
    static const char *const keys[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token" };
    c->vars = cJSON_CreateObject();
    bool ok = c->vars != NULL;
    for (size_t i = 0; ok && i < LQ_COUNT(keys); i++) {
        const char *t = token_text(files, keys[i]);
        ok = !t || cJSON_AddStringToObject(c->vars, keys[i], t);
    }
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
}

/* The template named `name` of a list of them; a lone string is "default". */
static const char *find_template(const cJSON *t, const char *name)
{
    const cJSON *e;
    if (cJSON_IsString(t)) return strcmp(name, "default") == 0 ? t->valuestring : NULL;
    cJSON_ArrayForEach(e, t)
    {
        const char *n = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(e, "name"));
        const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(e, "template"));
        if (n && s && strcmp(n, name) == 0) return s;
    }
    return NULL;
}

static lq_status parse_templates(chat_format *c, const src_source *src, const cJSON *config,
                                 lq_err *err)
{
    const src_blob *file = src_find_blob(src, "chat_template.jinja");
    if (file) {
        lq_status s = tmpl_parse(&c->plain, (const char *)file->data, file->bytes, err);
        return s ? lq_wrap(err, s, "chat_template.jinja") : LQ_OK;
    }
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(config, "chat_template");
    const char *plain = find_template(t, "default"), *tools = find_template(t, "tool_use");
    if (!plain) return lq_fail(err, LQ_ENOENT, "the model has no chat template");
    lq_status s = tmpl_parse(&c->plain, plain, strlen(plain), err);
    if (!s && tools) s = tmpl_parse(&c->tools, tools, strlen(tools), err);
    return s ? lq_wrap(err, s, "tokenizer_config.json: chat_template") : LQ_OK;
}

lq_status chat_open(chat_format **out, const src_source *src, const tok_tokenizer *tok, lq_err *err)
{
    *out = NULL;
    chat_format *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    c->tok = tok;
    cJSON *config = NULL, *map = NULL;
    lq_status s = parse_blob(&config, src, "tokenizer_config.json", err);
    if (!s) s = parse_blob(&map, src, "special_tokens_map.json", err);
    if (!s) s = parse_templates(c, src, config, err);
    if (!s) s = special_vars(c, (const cJSON *[2]){ config, map }, err);
    if (!s) s = list_specials(c, err);
    cJSON_Delete(config);
    cJSON_Delete(map);
    if (s)
        chat_close(c);
    else
        *out = c;
    return s;
}

void chat_close(chat_format *c)
{
    if (!c) return;
    tmpl_free(c->plain);
    tmpl_free(c->tools);
    cJSON_Delete(c->vars);
    free(c->special);
    free(c);
}

/* ---- marks around special tokens in what users wrote ---- */

/* The special token that begins here: the longest. */
static size_t special_at(const chat_format *c, const char *s, size_t n)
{
    unsigned char b = (unsigned char)s[0];
    for (size_t i = c->first[b]; i < c->first[b + 1]; i++)
        if (c->special[i].n <= n && memcmp(s, c->special[i].s, c->special[i].n) == 0)
            return c->special[i].n;
    return 0;
}

/* Two neighbouring characters of plane 15: opening and closing mark, 4 bytes each. */
typedef struct {
    char open[5], close[5];
} marks;

static marks marks_at(int k)
{
    marks m = { "\xf3\xb0\x80", "\xf3\xb0\x80" };
    m.open[2] = m.close[2] = (char)(0x80 + k / 32);
    m.open[3] = (char)(0x80 + 2 * (k % 32));
    m.close[3] = (char)(m.open[3] + 1);
    return m;
}

static bool any_text(const cJSON *v, const char *needle)
{
    for (; v; v = v->next)
        if ((v->string && strstr(v->string, needle)) ||
            (cJSON_IsString(v) && strstr(v->valuestring, needle)) || any_text(v->child, needle))
            return true;
    return false;
}

static bool free_marks(const cJSON *v, const marks *m)
{
    return !any_text(v, m->open) && !any_text(v, m->close);
}

static bool choose_marks(marks *m, const chat_request *r)
{
    for (int k = 0; k < N_MARKS; k++) {
        *m = marks_at(k);
        if (free_marks(r->messages, m) && free_marks(r->tools, m) && free_marks(r->kwargs, m))
            return true;
    }
    return false;
}

/* `s` with the marks in it, from cJSON's allocator; NULL with *oom false: it needs none. */
static char *marked(const chat_format *c, const char *s, const marks *m, bool *oom)
{
    size_t n = strlen(s), hits = 0, k, w = 0;
    for (size_t i = 0; i < n; i += k ? k : 1)
        hits += (k = special_at(c, s + i, n - i)) > 0;
    if (!hits) return NULL;
    char *out = cJSON_malloc(n + hits * 8 + 1);
    if (!out) {
        *oom = true;
        return NULL;
    }
    for (size_t i = 0; i < n; i += k ? k : 1) {
        k = special_at(c, s + i, n - i);
        if (k) memcpy(out + w, m->open, 4), w += 4;
        memcpy(out + w, s + i, k ? k : 1);
        w += k ? k : 1;
        if (k) memcpy(out + w, m->close, 4), w += 4;
    }
    out[w] = 0;
    return out;
}

static bool mark_all(const chat_format *c, cJSON *v, const marks *m)
{
    bool oom = false;
    for (; v && !oom; v = v->next) {
        char *s = cJSON_IsString(v) ? marked(c, v->valuestring, m, &oom) : NULL;
        if (s) {
            cJSON_free(v->valuestring);
            v->valuestring = s;
        }
        s = v->string && !oom ? marked(c, v->string, m, &oom) : NULL;
        if (s) {
            if (!(v->type & cJSON_StringIsConst)) cJSON_free(v->string);
            v->type &= ~cJSON_StringIsConst;
            v->string = s;
        }
        if (!oom && !mark_all(c, v->child, m)) oom = true;
    }
    return !oom;
}

/* ---- variables of a render ---- */

/* OpenAI sends a call's arguments as the text of an object; templates expect the object. */
static void parse_arguments(cJSON *messages)
{
    cJSON *m, *call;
    cJSON_ArrayForEach(m, messages)
    {
        cJSON_ArrayForEach(call, cJSON_GetObjectItemCaseSensitive(m, "tool_calls"))
        {
            cJSON *f = cJSON_GetObjectItemCaseSensitive(call, "function"), *parsed = NULL;
            const char *a = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(f, "arguments"));
            if (!a || js_parse(&parsed, a, strlen(a), MAX_FILE, 0, NULL)) continue;
            if (!cJSON_IsObject(parsed) ||
                !cJSON_ReplaceItemInObjectCaseSensitive(f, "arguments", parsed))
                cJSON_Delete(parsed);
        }
    }
}

/* A copy of `v` (or null) under `key`, replacing what is there. */
static bool put(cJSON *o, const char *key, const cJSON *v)
{
    cJSON *copy = v ? cJSON_Duplicate(v, true) : cJSON_CreateNull();
    if (!copy) return false;
    cJSON_DeleteItemFromObjectCaseSensitive(o, key);
    if (cJSON_AddItemToObject(o, key, copy)) return true;
    cJSON_Delete(copy);
    return false;
}

static bool reserved(const char *key)
{
    return strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0 ||
           strcmp(key, "add_generation_prompt") == 0;
}

/* m NULL: nothing is marked. */
static cJSON *variables(const chat_format *c, const chat_request *r, const marks *m)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o && put(o, "messages", r->messages) && put(o, "tools", r->tools) &&
              put(o, "documents", NULL);
    if (ok) parse_arguments(cJSON_GetObjectItemCaseSensitive(o, "messages"));
    for (const cJSON *e = r->kwargs ? r->kwargs->child : NULL; ok && e; e = e->next)
        ok = !e->string || reserved(e->string) || put(o, e->string, e);
    if (ok && m) ok = mark_all(c, o->child, m);
    for (const cJSON *e = c->vars->child; ok && e; e = e->next)
        ok = cJSON_HasObjectItem(o, e->string) || put(o, e->string, e);
    ok = ok && cJSON_AddBoolToObject(o, "add_generation_prompt", r->add_generation_prompt);
    if (ok) return o;
    cJSON_Delete(o);
    return NULL;
}

static bool is_space(char ch) { return ch == ' ' || (ch >= '\t' && ch <= '\r'); }

/* Cut the text behind the last message, as transformers does: with its own trailing space where the
 * template keeps that. */
static lq_status cut_after_final(char *text, size_t *n, const cJSON *vars, lq_err *err)
{
    const cJSON *messages = cJSON_GetObjectItemCaseSensitive(vars, "messages");
    const cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1);
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(last, "content"));
    if (!s) return lq_fail(err, LQ_EVALUE, "continue_final_message: the last message has no text");
    while (is_space(*s))
        s++;
    size_t full = strlen(s), len = full;
    while (len > 0 && is_space(s[len - 1]))
        len--;
    for (size_t at = *n >= len ? *n - len + 1 : 0; at-- > 0;) {
        if (memcmp(text + at, s, len) != 0) continue;
        bool kept = *n - at >= full && memcmp(text + at, s, full) == 0;
        *n = at + (kept ? full : len);
        text[*n] = 0;
        return LQ_OK;
    }
    return lq_fail(err, LQ_EVALUE,
                   "continue_final_message: the template does not show the last message as it is");
}

static lq_status render(const chat_format *c, const chat_request *r, const marks *m, char **text,
                        size_t *n, lq_err *err)
{
    *text = NULL;
    if (!cJSON_IsArray(r->messages) || !r->messages->child)
        return lq_fail(err, LQ_EVALUE, "messages: expected an array of at least one message");
    if (r->continue_final && r->add_generation_prompt)
        return lq_fail(err, LQ_EVALUE,
                       "continue_final_message: expected add_generation_prompt to be off");
    cJSON *vars = variables(c, r, m);
    if (!vars) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    bool tools = c->tools && cJSON_IsArray(r->tools) && r->tools->child;
    lq_status s = tmpl_render(tools ? c->tools : c->plain, vars, text, n, err);
    if (!s && r->continue_final) s = cut_after_final(*text, n, vars, err);
    cJSON_Delete(vars);
    if (s) {
        free(*text);
        *text = NULL;
    }
    return s;
}

lq_status chat_render(const chat_format *c, const chat_request *r, char **text, size_t *n,
                      lq_err *err)
{
    return render(c, r, NULL, text, n, err);
}

/* ---- ids ---- */

typedef struct {
    int32_t *ids;
    size_t n;
} id_list;

static lq_status append(id_list *l, const chat_format *c, const char *s, size_t n, unsigned flags,
                        lq_err *err)
{
    if (!n) return LQ_OK;
    int32_t *ids = NULL;
    size_t k = 0;
    lq_status st = tok_encode(c->tok, s, n, flags, &ids, &k, err);
    int32_t *all = st ? NULL : realloc(l->ids, (l->n + k + 1) * sizeof *all);
    if (!st && !all) st = lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    if (!st) {
        memcpy(all + l->n, ids, k * sizeof *ids);
        l->ids = all;
        l->n += k;
    }
    free(ids);
    return st;
}

/* Take the marks out of text, in place; quoted[i]: byte i belongs to a special token between marks.
 * A mark without its pair (the template cut between) just goes. Returns the new length. */
static size_t unmark(const chat_format *c, char *text, size_t n, const marks *m, bool *quoted)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 4 && memcmp(text + i, m->close, 4) == 0) {
            i += 4;
        } else if (n - i >= 4 && memcmp(text + i, m->open, 4) == 0) {
            i += 4;
            size_t k = i < n ? special_at(c, text + i, n - i) : 0;
            if (!k || n - i - k < 4 || memcmp(text + i + k, m->close, 4) != 0) continue;
            memmove(text + w, text + i, k);
            memset(quoted + w, true, k);
            w += k;
            i += k + 4;
        } else {
            quoted[w] = false;
            text[w++] = text[i++];
        }
    }
    return w;
}

/* Pieces between the template's own special tokens are encoded apart, those with quoted tokens as
 * plain text; the tokenizer splits at the same places, so the others' ids are what they would be.
 */
static lq_status encode_quoted(id_list *l, const chat_format *c, const char *text, size_t n,
                               const bool *quoted, lq_err *err)
{
    size_t done = 0, piece = 0; /* text before `done` is encoded; the piece begins at `piece` */
    bool dirty = false;
    lq_status s = LQ_OK;
    for (size_t i = 0; i <= n && !s;) {
        size_t k = i < n && !quoted[i] ? special_at(c, text + i, n - i) : 0;
        if (i < n && !k) {
            dirty |= quoted[i++];
            continue;
        }
        if (dirty) {
            s = append(l, c, text + done, piece - done, 0, err);
            if (!s) s = append(l, c, text + piece, i - piece, TOK_PLAIN_SPECIAL, err);
            done = i;
        }
        dirty = false;
        piece = i + k;
        if (i == n) break;
        i += k;
    }
    return s ? s : append(l, c, text + done, n - done, 0, err);
}

lq_status chat_encode(const chat_format *c, const chat_request *r, int32_t **ids, size_t *n,
                      lq_err *err)
{
    *ids = NULL;
    *n = 0;
    marks m;
    char *text = NULL;
    size_t n_text = 0;
    if (!choose_marks(&m, r))
        return lq_fail(err, LQ_EVALUE, "messages: too many private-use characters of plane 15");
    lq_status s = render(c, r, &m, &text, &n_text, err);
    if (s) return s;
    bool *quoted = calloc(n_text + 1, sizeof *quoted);
    id_list l = { 0 };
    if (!quoted) s = lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    if (!s) {
        size_t len = unmark(c, text, n_text, &m, quoted);
        s = encode_quoted(&l, c, text, len, quoted, err);
    }
    if (!s && !l.n) s = lq_fail(err, LQ_EVALUE, "the chat template gives an empty prompt");
    free(quoted);
    free(text);
    if (s) {
        free(l.ids);
        return s;
    }
    *ids = l.ids;
    *n = l.n;
    return LQ_OK;
}
