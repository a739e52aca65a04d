/* runtime/http/http_keys.c - see http_keys.h. */
#include "runtime/http/http_keys.h"

#include "base/file.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    char **v;
    int n;
} key_set;

struct http_keys {
    pthread_mutex_t mu;
    key_set user, admin;
};

static void set_free(key_set *s)
{
    for (int i = 0; s->v && i < s->n; i++)
        free(s->v[i]);
    free(s->v);
    *s = (key_set){ NULL, 0 };
}

static lq_status set_copy(key_set *s, const char *const *keys, int n, lq_err *err)
{
    *s = (key_set){ calloc((size_t)n + 1, sizeof *s->v), 0 };
    for (; s->v && s->n < n; s->n++)
        if (!(s->v[s->n] = strdup(keys[s->n]))) break;
    if (s->v && s->n == n) return LQ_OK;
    set_free(s);
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

lq_status http_keys_set(http_keys *k, const http_key_list *l, lq_err *err)
{
    key_set user = { NULL, 0 }, admin = { NULL, 0 }, old_user, old_admin;
    lq_status s = set_copy(&user, l->keys, l->n_keys, err);
    if (!s) s = set_copy(&admin, l->admin_keys, l->n_admin_keys, err);
    if (s) {
        set_free(&user);
        return s;
    }
    pthread_mutex_lock(&k->mu);
    old_user = k->user;
    old_admin = k->admin;
    k->user = user;
    k->admin = admin;
    pthread_mutex_unlock(&k->mu);
    set_free(&old_user);
    set_free(&old_admin);
    return LQ_OK;
}

lq_status http_keys_open(http_keys **out, const http_key_list *l, lq_err *err)
{
    http_keys *k = *out = calloc(1, sizeof *k);
    if (!k) return lq_fail(err, LQ_ENOMEM, "out of memory");
    pthread_mutex_init(&k->mu, NULL);
    lq_status s = http_keys_set(k, l, err);
    if (!s) return s;
    http_keys_close(k);
    *out = NULL;
    return s;
}

void http_keys_close(http_keys *k)
{
    if (!k) return;
    set_free(&k->user);
    set_free(&k->admin);
    pthread_mutex_destroy(&k->mu);
    free(k);
}

static bool equal(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned diff = n != m;
    for (size_t i = 0; i < m; i++)
        diff |= (unsigned)((uint8_t)given[i] ^ (uint8_t)key[n ? i % n : 0]);
    return diff == 0;
}

static bool holds(const key_set *s, const char *given)
{
    bool found = false;
    for (int i = 0; i < s->n; i++)
        found |= equal(s->v[i], given);
    return found;
}

http_role http_keys_role(http_keys *k, const char *given)
{
    pthread_mutex_lock(&k->mu);
    bool none = k->user.n + k->admin.n == 0;
    bool user = given && holds(&k->user, given), admin = given && holds(&k->admin, given);
    pthread_mutex_unlock(&k->mu);
    return none || admin ? HTTP_ADMIN : user ? HTTP_USER : HTTP_NOBODY;
}

/* ---- a file of keys ---- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/* The line without white space at its ends, NUL-terminated in place. */
static char *trim(char *line)
{
    while (is_space(*line))
        line++;
    size_t n = strlen(line);
    while (n && is_space(line[n - 1]))
        line[--n] = 0;
    return line;
}

static bool sendable(const char *key)
{
    size_t n = strlen(key);
    for (const char *p = key; *p; p++)
        if ((uint8_t)*p <= 0x20 || (uint8_t)*p >= 0x7f) return false;
    return n <= HTTP_KEY_MAX;
}

lq_status http_keys_read(const char ***keys, int *n, char **text, const char *path, lq_err *err)
{
    size_t size, lines = 1;
    *keys = NULL;
    *n = 0;
    lq_status s = lq_read_file(text, &size, path, 1 << 20, err);
    if (s) return s;
    for (size_t i = 0; i < size; i++)
        lines += (*text)[i] == '\n';
    *keys = calloc(lines, sizeof **keys);
    if (!*keys) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    size_t line = 0;
    for (char *p = *text, *next; !s && p; p = next) {
        line++;
        if ((next = strchr(p, '\n')) != NULL) *next++ = 0;
        char *key = trim(p);
        if (!*key || *key == '#') continue;
        if (!sendable(key))
            s = lq_fail(err, LQ_EFORMAT,
                        "%s: line %zu: expected a key of at most %d printable ASCII characters "
                        "without blanks",
                        path, line, HTTP_KEY_MAX);
        (*keys)[(*n)++] = key;
    }
    if (!s && !*n) s = lq_fail(err, LQ_EFORMAT, "%s: expected at least one key", path);
    if (!s) return s;
    free(*keys);
    free(*text);
    *keys = NULL;
    *text = NULL;
    return s;
}
