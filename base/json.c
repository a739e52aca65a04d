/* base/json.c - the gate before cJSON, getters, canonical text.
 *
 * The gate is a strict RFC 8259 scanner without recursion: a bit per open bracket says object or
 * array, JS_DEPTH of them fit one word. */
#include "base/json.h"

#include "base/file.h"
#include "base/json_write.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(JS_DEPTH <= 64, "one bit per level");

/* ---- cJSON's memory ---- */
static _Thread_local bool ran_out;

static void *get_memory(size_t n)
{
    void *p = malloc(n);
    if (!p) ran_out = true;
    return p;
}

/* Before main: no tree is built by one allocator and freed by another. */
__attribute__((constructor)) static void watch_memory(void)
{
    cJSON_Hooks hooks = { .malloc_fn = get_memory, .free_fn = free };
    cJSON_InitHooks(&hooks);
}

bool js_ran_out(void)
{
    const bool was = ran_out;
    ran_out = false;
    return was;
}

/* ---- the scanner ---- */
typedef struct {
    const uint8_t *s;
    size_t n, i;
    size_t tree; /* bytes of the tree so far, see js_measure */
    lq_err *err;
} scan;

/* What malloc takes for n bytes: its word and alignment, on 64 bits. */
static size_t taken(size_t n) { return n < 24 ? 32 : (n + 8 + 15) & ~(size_t)15; }

static lq_status scan_fail(const scan *c, const char *expected)
{
    if (c->i >= c->n)
        return lq_fail(c->err, LQ_EFORMAT, "JSON: expected %s at byte %zu, found the end", expected,
                       c->i);
    uint8_t b = c->s[c->i];
    if (b > 0x20 && b < 0x7f)
        return lq_fail(c->err, LQ_EFORMAT, "JSON: expected %s at byte %zu, found '%c'", expected,
                       c->i, b);
    return lq_fail(c->err, LQ_EFORMAT, "JSON: expected %s at byte %zu, found 0x%02x", expected,
                   c->i, b);
}

static void skip_blanks(scan *c)
{
    while (c->i < c->n && c->s[c->i] && strchr(" \t\r\n", c->s[c->i]))
        c->i++;
}

static bool next_is(scan *c, char want)
{
    if (c->i >= c->n || c->s[c->i] != (uint8_t)want) return false;
    c->i++;
    return true;
}

static int hex4(const scan *c, size_t at)
{
    if (c->n - at < 4) return -1;
    int v = 0;
    for (size_t k = 0; k < 4; k++) {
        uint8_t b = c->s[at + k];
        int d = b >= '0' && b <= '9'   ? b - '0'
                : b >= 'a' && b <= 'f' ? b - 'a' + 10
                : b >= 'A' && b <= 'F' ? b - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* After the backslash. A NUL would cut the string short in C; lone surrogates are no characters. */
static lq_status scan_escape(scan *c)
{
    if (c->i < c->n && c->s[c->i] && strchr("\"\\/bfnrt", c->s[c->i])) {
        c->i++;
        return LQ_OK;
    }
    if (!next_is(c, 'u')) return scan_fail(c, "an escape");
    int v = hex4(c, c->i);
    if (v == 0) return scan_fail(c, "another character than U+0000");
    if (v < 0 || (v >= 0xdc00 && v <= 0xdfff))
        return scan_fail(c, "four hex digits of a character");
    c->i += 4;
    if (v < 0xd800 || v > 0xdbff) return LQ_OK;
    int low =
        c->n - c->i >= 6 && c->s[c->i] == '\\' && c->s[c->i + 1] == 'u' ? hex4(c, c->i + 2) : -1;
    if (low < 0xdc00 || low > 0xdfff) return scan_fail(c, "the second half of a surrogate pair");
    c->i += 6;
    return LQ_OK;
}

/* Is s[i..] the escape of one half of a surrogate pair, lo..lo+0x3ff? */
static bool half_at(const scan *c, size_t i, int lo)
{
    if (c->n - i < 6 || c->s[i] != '\\' || c->s[i + 1] != 'u') return false;
    const int v = hex4(c, i + 2);
    return v >= lo && v < lo + 0x400;
}

void js_mend(char *text, size_t n)
{
    const scan c = { .s = (const uint8_t *)text, .n = n };
    const char *found;
    for (size_t i = 0; i < n && (found = memchr(text + i, '\\', n - i));) {
        i = (size_t)(found - text);
        const bool high = half_at(&c, i, 0xd800);
        if (high && half_at(&c, i + 6, 0xdc00)) {
            i += 12;
        } else if (high || half_at(&c, i, 0xdc00)) {
            memcpy(text + i, "\\ufffd", 6);
            i += 6;
        } else {
            i += 2;
        }
    }
}

static lq_status scan_string(scan *c)
{
    if (!next_is(c, '"')) return scan_fail(c, "a string");
    const size_t from = c->i;
    for (;;) {
        if (c->i >= c->n) return scan_fail(c, "the string's closing quote");
        uint8_t b = c->s[c->i];
        if (b == '"') {
            c->tree += taken(c->i - from + 1);
            c->i++;
            return LQ_OK;
        }
        if (b == '\\') {
            c->i++;
            lq_status s = scan_escape(c);
            if (s) return s;
            continue;
        }
        if (b < 0x20) return scan_fail(c, "an escaped control character");
        size_t len = lq_utf8_len(c->s + c->i, c->n - c->i);
        if (!len) return scan_fail(c, "valid UTF-8");
        c->i += len;
    }
}

static bool scan_digits(scan *c)
{
    size_t from = c->i;
    while (c->i < c->n && c->s[c->i] >= '0' && c->s[c->i] <= '9')
        c->i++;
    return c->i > from;
}

/* Does the value of the number s[n] not tell how it was spelled? */
static bool needs_spelling(const char *s, size_t n)
{
    enum { EXACT = 15 }; /* digits that a double keeps */
    const size_t sign = s[0] == '-';
    if (n - sign > EXACT || (sign && s[1] == '0')) return true;
    for (size_t i = sign; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return true;
    return false;
}

static lq_status scan_number(scan *c)
{
    enum { CJSON_DIGITS = 63 }; /* cJSON's buffer */
    size_t from = c->i;
    next_is(c, '-');
    if (!next_is(c, '0') && !scan_digits(c)) return scan_fail(c, "a digit");
    if (next_is(c, '.') && !scan_digits(c)) return scan_fail(c, "a digit");
    if (next_is(c, 'e') || next_is(c, 'E')) {
        if (!next_is(c, '+')) next_is(c, '-');
        if (!scan_digits(c)) return scan_fail(c, "a digit");
    }
    if (c->i - from > CJSON_DIGITS)
        return lq_fail(c->err, LQ_EFORMAT,
                       "JSON: expected a number of at most %d characters at byte %zu, found %zu",
                       CJSON_DIGITS, from, c->i - from);
    if (needs_spelling((const char *)c->s + from, c->i - from)) c->tree += taken(c->i - from + 1);
    return LQ_OK;
}

/* A value that is no object or array. */
static lq_status scan_scalar(scan *c)
{
    static const char *const words[] = { "true", "false", "null" };
    if (c->i >= c->n) return scan_fail(c, "a value");
    uint8_t b = c->s[c->i];
    if (b == '"') return scan_string(c);
    if (b == '-' || (b >= '0' && b <= '9')) return scan_number(c);
    for (size_t k = 0; k < LQ_COUNT(words); k++) {
        size_t len = strlen(words[k]);
        if (c->n - c->i >= len && memcmp(c->s + c->i, words[k], len) == 0) {
            c->i += len;
            return LQ_OK;
        }
    }
    return scan_fail(c, "a value");
}

static lq_status scan_key(scan *c)
{
    skip_blanks(c);
    lq_status s = scan_string(c);
    if (s) return s;
    skip_blanks(c);
    return next_is(c, ':') ? LQ_OK : scan_fail(c, "':'");
}

static lq_status scan_all(scan *c)
{
    uint64_t objects = 0; /* bit d: level d is an object */
    int depth = 0;
    int64_t values = 0;
    lq_status s;
    for (;;) { /* one value per turn */
        if (++values > JS_MAX_VALUES)
            return lq_fail(c->err, LQ_EFORMAT, "JSON: expected at most %d values, found more",
                           JS_MAX_VALUES);
        c->tree += taken(sizeof(cJSON));
        skip_blanks(c);
        bool object = next_is(c, '{');
        if (object || next_is(c, '[')) {
            if (depth == JS_DEPTH)
                return lq_fail(c->err, LQ_EFORMAT, "JSON: expected at most %d levels, found more",
                               JS_DEPTH);
            objects = (objects & ~(UINT64_C(1) << depth)) | ((uint64_t)object << depth);
            depth++;
            skip_blanks(c);
            if (!next_is(c, object ? '}' : ']')) { /* not empty: its first member */
                if (object && (s = scan_key(c))) return s;
                continue;
            }
            depth--;
        } else if ((s = scan_scalar(c))) {
            return s;
        }
        for (;;) { /* a value ended: close levels until one goes on */
            skip_blanks(c);
            if (!depth) return c->i == c->n ? LQ_OK : scan_fail(c, "the end");
            bool in_object = (objects >> (depth - 1)) & 1;
            if (next_is(c, ',')) {
                if (in_object && (s = scan_key(c))) return s;
                break;
            }
            if (!next_is(c, in_object ? '}' : ']'))
                return scan_fail(c, in_object ? "',' or '}'" : "',' or ']'");
            depth--;
        }
    }
}

/* ---- members in order of their keys ---- */
static int by_key(const void *a, const void *b)
{
    const cJSON *const *x = a, *const *y = b;
    return strcmp((*x)->string, (*y)->string);
}

/* Malloc'd array of an object's members, sorted; a key twice is refused. */
static lq_status sorted_members(const cJSON ***out, size_t *n, const cJSON *object, lq_err *err)
{
    *n = 0;
    for (const cJSON *m = object->child; m; m = m->next)
        ++*n;
    *out = malloc((*n ? *n : 1) * sizeof **out);
    if (!*out) return lq_fail(err, LQ_ENOMEM, "JSON: no memory for %zu keys", *n);
    size_t i = 0;
    for (const cJSON *m = object->child; m; m = m->next)
        (*out)[i++] = m;
    qsort(*out, *n, sizeof **out, by_key);
    for (i = 1; i < *n; i++)
        if (strcmp((*out)[i - 1]->string, (*out)[i]->string) == 0) {
            lq_fail(err, LQ_EFORMAT, "JSON: expected each key once, found '%.100s' twice",
                    (*out)[i]->string);
            free(*out);
            *out = NULL;
            return LQ_EFORMAT;
        }
    return LQ_OK;
}

static lq_status check_unique(const cJSON *v, lq_err *err) /* depth was bounded */
{
    lq_status s = LQ_OK;
    if (cJSON_IsObject(v)) {
        const cJSON **members;
        size_t n;
        s = sorted_members(&members, &n, v, err);
        free(members);
    }
    for (const cJSON *m = v->child; m && !s; m = m->next)
        s = check_unique(m, err);
    return s;
}

lq_status js_measure(size_t *tree_bytes, const char *text, size_t n, lq_err *err)
{
    scan c = { .s = (const uint8_t *)text, .n = n, .err = err };
    lq_status s = scan_all(&c);
    *tree_bytes = c.tree;
    return s;
}

/* The next number of the text at or after *at, outside strings; its length. */
static size_t next_number(const char *s, size_t n, size_t *at)
{
    bool quoted = false;
    for (size_t i = *at; i < n; i++) {
        if (quoted && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            quoted = !quoted;
        else if (!quoted && (s[i] == '-' || (s[i] >= '0' && s[i] <= '9'))) {
            size_t e = i;
            while (e < n && s[e] && strchr("+-.eE0123456789", s[e]))
                e++;
            *at = i;
            return e - i;
        }
    }
    return 0;
}

/* The tree's numbers in the order of the text, which is the order of a walk down the tree. */
static bool spell(cJSON *item, const char *s, size_t n, size_t *at)
{
    for (; item; item = item->next) {
        if (cJSON_IsNumber(item)) {
            size_t len = next_number(s, n, at);
            if (needs_spelling(s + *at, len)) {
                item->valuestring = malloc(len + 1);
                if (!item->valuestring) return false;
                memcpy(item->valuestring, s + *at, len);
                item->valuestring[len] = 0;
            }
            *at += len;
        }
        if (item->child && !spell(item->child, s, n, at)) return false;
    }
    return true;
}

bool js_spell_numbers(cJSON *tree, const char *text, size_t n)
{
    size_t at = 0;
    return spell(tree, text, n, &at);
}

lq_status js_tree(cJSON **out, const char *text, size_t n, unsigned flags, lq_err *err)
{
    *out = NULL;
    const bool before = ran_out;
    cJSON *j = cJSON_ParseWithLength(text, n);
    if (!j) ran_out = before; /* said here */
    bool ok = j && (!(flags & JS_SPELLED) || js_spell_numbers(j, text, n));
    lq_status s =
        ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "JSON: no memory for the tree of %zu bytes", n);
    if (!s && (flags & JS_UNIQUE)) s = check_unique(j, err);
    if (s)
        cJSON_Delete(j);
    else
        *out = j;
    return s;
}

lq_status js_parse(cJSON **out, const char *text, size_t n, size_t max_bytes, unsigned flags,
                   lq_err *err)
{
    *out = NULL;
    if (n > max_bytes)
        return lq_fail(err, LQ_EFORMAT, "JSON: expected at most %zu bytes, found %zu", max_bytes,
                       n);
    scan c = { .s = (const uint8_t *)text, .n = n, .err = err };
    lq_status s = scan_all(&c);
    return s ? s : js_tree(out, text, n, flags, err);
}

lq_status js_parse_file(cJSON **out, const char *path, size_t max_bytes, unsigned flags,
                        lq_err *err)
{
    *out = NULL;
    char *text;
    size_t n;
    lq_status s = lq_read_file(&text, &n, path, max_bytes, err);
    if (s) return s;
    s = js_parse(out, text, n, max_bytes, flags, err);
    free(text);
    return s ? lq_wrap(err, s, "%s", path) : LQ_OK;
}

/* ---- getters ---- */
static size_t past_blanks(const char *text, size_t n, size_t i)
{
    while (i < n && strchr(" \t\r\n", text[i]))
        i++;
    return i;
}

/* Past the string that begins at i. */
static size_t past_string(const char *text, size_t n, size_t i)
{
    for (i++; i < n && text[i] != '"'; i++)
        i += text[i] == '\\';
    return i + 1;
}

/* Past the value that begins at i: strings end and brackets match, since the text was checked. */
static size_t past_value(const char *text, size_t n, size_t i)
{
    int depth = 0;
    while (i < n) {
        char c = text[i];
        if (depth == 0 && strchr(",}] \t\r\n", c)) break;
        i = c == '"' ? past_string(text, n, i) : i + 1;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if (depth == 0 && (c == '"' || c == '}' || c == ']')) break;
    }
    return i;
}

const char *js_member_source(const char *text, size_t n, const char *key, size_t *len)
{
    size_t n_key = strlen(key), i = past_blanks(text, n, 0);
    if (i >= n || text[i++] != '{') return NULL;
    while ((i = past_blanks(text, n, i)) < n && text[i] == '"') {
        size_t name = i + 1, end = past_string(text, n, i);
        size_t value = past_blanks(text, n, past_blanks(text, n, end) + 1);
        i = past_value(text, n, value);
        if (end - 1 - name == n_key && memcmp(text + name, key, n_key) == 0) {
            *len = i - value;
            return text + value;
        }
        i = past_blanks(text, n, i) + 1;
    }
    return NULL;
}

const cJSON *js_get(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_IsObject(o) ? cJSON_GetObjectItemCaseSensitive(o, key) : NULL;
    return cJSON_IsNull(v) ? NULL : v;
}

void js_drop(cJSON *o, const char *key) { cJSON_DeleteItemFromObjectCaseSensitive(o, key); }

void js_put(cJSON *o, const char *key, cJSON *v)
{
    js_drop(o, key);
    cJSON_AddItemToObject(o, key, v);
}

void js_rename(cJSON *o, const char *from, const char *to)
{
    cJSON *v = js_get(o, to) ? NULL : cJSON_DetachItemFromObjectCaseSensitive(o, from);
    if (v) js_put(o, to, v);
}

const char *js_describe(char out[64], const cJSON *v)
{
    if (!v)
        snprintf(out, 64, "nothing");
    else if (cJSON_IsNumber(v))
        snprintf(out, 64, "%.17g", v->valuedouble);
    else if (cJSON_IsString(v))
        snprintf(out, 64, "\"%.40s\"", v->valuestring);
    else if (cJSON_IsBool(v))
        snprintf(out, 64, "%s", cJSON_IsTrue(v) ? "true" : "false");
    else
        snprintf(out, 64, "%s",
                 cJSON_IsObject(v)  ? "an object"
                 : cJSON_IsArray(v) ? "an array"
                                    : "null");
    return out;
}

static lq_status expected(const cJSON *v, const char *key, const char *what, lq_err *err)
{
    char found[64];
    return lq_fail(err, LQ_EVALUE, "%s: expected %s, found %s", key, what, js_describe(found, v));
}

bool js_whole(const cJSON *v, int64_t lo, int64_t hi, int64_t *out)
{
    if (!cJSON_IsNumber(v)) return false;
    double d = v->valuedouble;
    if (!(fabs(d) <= (double)JS_MAX_INT) || floor(d) < d) return false;
    int64_t i = (int64_t)d;
    if (i < lo || i > hi) return false;
    *out = i;
    return true;
}

lq_status js_i64(const cJSON *o, const char *key, bool required, int64_t lo, int64_t hi, int64_t *v,
                 lq_err *err)
{
    const cJSON *m = js_get(o, key);
    if ((!m && !required) || js_whole(m, lo, hi, v)) return LQ_OK;
    char what[96];
    snprintf(what, sizeof what, "an integer %" PRId64 "..%" PRId64, lo, hi);
    return expected(m, key, what, err);
}

lq_status js_f64(const cJSON *o, const char *key, bool required, double lo, double hi, double *v,
                 lq_err *err)
{
    const cJSON *m = js_get(o, key);
    if (!m && !required) return LQ_OK;
    if (cJSON_IsNumber(m) && m->valuedouble >= lo && m->valuedouble <= hi) {
        *v = m->valuedouble;
        return LQ_OK;
    }
    char what[96];
    snprintf(what, sizeof what, "a number %g..%g", lo, hi);
    return expected(m, key, what, err);
}

lq_status js_bool(const cJSON *o, const char *key, bool required, bool *v, lq_err *err)
{
    const cJSON *m = js_get(o, key);
    if (!m && !required) return LQ_OK;
    if (!cJSON_IsBool(m)) return expected(m, key, "true or false", err);
    *v = cJSON_IsTrue(m);
    return LQ_OK;
}

lq_status js_str(const cJSON *o, const char *key, bool required, const char **v, lq_err *err)
{
    const cJSON *m = js_get(o, key);
    if (!m && !required) return LQ_OK;
    if (!cJSON_IsString(m)) return expected(m, key, "a string", err);
    *v = m->valuestring;
    return LQ_OK;
}

/* ---- text out ---- */
static lq_status put_number(lq_buf *b, double d, lq_err *err)
{
    if (!isfinite(d)) return lq_fail(err, LQ_EVALUE, "JSON: expected finite numbers, found %g", d);
    if (fabs(d) <= (double)JS_MAX_INT && floor(d) >= d && !(d == 0 && signbit(d))) { // NOLINT
        js_put_i64(b, (int64_t)d);
        return LQ_OK;
    }
    char t[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(t, sizeof t, "%.*g", digits, d);
        double back = strtod(t, NULL);
        if (memcmp(&back, &d, sizeof d) == 0) break;
    }
    lq_buf_puts(b, t);
    return LQ_OK;
}

static lq_status put_value(lq_buf *b, const cJSON *v, lq_err *err);

static lq_status put_object(lq_buf *b, const cJSON *v, lq_err *err)
{
    const cJSON **members;
    size_t n;
    lq_status s = sorted_members(&members, &n, v, err);
    lq_buf_add(b, "{", 1);
    for (size_t i = 0; i < n && !s; i++) {
        if (i) lq_buf_add(b, ",", 1);
        js_put_str(b, members[i]->string);
        lq_buf_add(b, ":", 1);
        s = put_value(b, members[i], err);
    }
    lq_buf_add(b, "}", 1);
    free(members);
    return s;
}

static lq_status put_value(lq_buf *b, const cJSON *v, lq_err *err)
{
    lq_status s = LQ_OK;
    if (cJSON_IsObject(v)) {
        s = put_object(b, v, err);
    } else if (cJSON_IsArray(v)) {
        lq_buf_add(b, "[", 1);
        for (const cJSON *m = v->child; m && !s; m = m->next) {
            if (m != v->child) lq_buf_add(b, ",", 1);
            s = put_value(b, m, err);
        }
        lq_buf_add(b, "]", 1);
    } else if (cJSON_IsNumber(v)) {
        s = put_number(b, v->valuedouble, err);
    } else if (cJSON_IsString(v)) {
        js_put_str(b, v->valuestring);
    } else {
        lq_buf_puts(b, cJSON_IsTrue(v) ? "true" : cJSON_IsFalse(v) ? "false" : "null");
    }
    return s;
}

lq_status js_canonical(lq_buf *b, const cJSON *v, lq_err *err)
{
    const lq_status s = put_value(b, v, err);
    const bool whole = !js_ran_out() && !b->oom;
    if (!s && !whole) return lq_fail(err, LQ_ENOMEM, "JSON: no memory for the text");
    return s;
}

/* Text with each byte that is no UTF-8 as U+FFFD, and its NUL. */
static char *make_valid(const char *text)
{
    const size_t n = strlen(text);
    lq_buf b = { 0 };
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        len = lq_utf8_len((const uint8_t *)text + i, n - i);
        lq_buf_add(&b, len ? text + i : "\xef\xbf\xbd", len ? len : 3);
    }
    lq_buf_add(&b, "", 1);
    if (b.oom) lq_buf_free(&b);
    return b.p;
}

char *js_print(const cJSON *v, bool indented)
{
    char *text = !v ? NULL : indented ? cJSON_Print(v) : cJSON_PrintUnformatted(v);
    const bool whole = !js_ran_out() && text;
    if (whole && lq_utf8_valid(text, strlen(text), NULL)) return text;
    char *valid = whole ? make_valid(text) : NULL;
    free(text);
    return valid;
}
