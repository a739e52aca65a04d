/* publish/hub/env.c - see env.h. */
#include "publish/hub/env.h"

#include "base/file.h"
#include "base/path.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* Set, and not to nothing. */
static const char *variable(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool is_true(const char *name)
{
    static const char *const yes[] = { "1", "on", "yes", "true" };
    const char *v = variable(name);
    for (size_t i = 0; v && i < LQ_COUNT(yes); i++)
        if (strcasecmp(v, yes[i]) == 0) return true;
    return false;
}

/* `value`, whose "~/" is the home, and what follows it. */
static lq_status place(char *out, size_t n, const char *value, const char *rest, lq_err *err)
{
    const char *home = variable("HOME");
    const bool tilde = value[0] == '~' && (value[1] == '/' || !value[1]);
    if (tilde && !home)
        return lq_fail(err, LQ_EUSAGE, "the hub's cache: expected HOME, HF_HOME or HF_HUB_CACHE");
    const int len = tilde ? snprintf(out, n, "%s%s%s", home, value + 1, rest)
                          : snprintf(out, n, "%s%s", value, rest);
    return len > 0 && (size_t)len < n
               ? LQ_OK
               : lq_fail(err, LQ_EUSAGE, "the hub's cache: %.100s...: too long", value);
}

/* HF_HOME and what follows it. */
static lq_status in_home(char *out, size_t n, const char *rest, lq_err *err)
{
    char base[4096];
    const char *home = variable("HF_HOME"), *xdg = variable("XDG_CACHE_HOME");
    if (home) return place(out, n, home, rest, err);
    lq_status s = place(base, sizeof base, xdg ? xdg : "~/.cache", "/huggingface", err);
    return s ? s : place(out, n, base, rest, err);
}

static lq_status read_endpoint(hub_env *e, lq_err *err)
{
    const char *v = variable("HF_ENDPOINT");
    if (!v) v = "https://huggingface.co";
    size_t n = strlen(v);
    while (n && v[n - 1] == '/')
        n--;
    if ((strncmp(v, "https://", 8) != 0 && strncmp(v, "http://", 7) != 0) ||
        n >= sizeof e->endpoint)
        return lq_fail(err, LQ_EUSAGE, "HF_ENDPOINT: expected http:// or https://, found '%.200s'",
                       v);
    snprintf(e->endpoint, sizeof e->endpoint, "%.*s", (int)n, v);
    return LQ_OK;
}

static lq_status read_token_file(hub_env *e, lq_err *err)
{
    char path[4200], *text = NULL;
    size_t n;
    const char *v = variable("HF_TOKEN_PATH");
    lq_status s =
        v ? place(path, sizeof path, v, "", err) : in_home(path, sizeof path, "/token", err);
    if (s || !lq_exists(path)) return s;
    s = lq_read_file(&text, &n, path, sizeof e->token - 1, err);
    if (!s) snprintf(e->token, sizeof e->token, "%s", text);
    e->token_of = "the token of `hf auth login`";
    free(text);
    return s;
}

static lq_status read_token(hub_env *e, lq_err *err)
{
    static const char *const names[] = { "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN" };
    if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(names) && !e->token_of; i++) {
        const char *v = variable(names[i]);
        if (!v) continue;
        if (strlen(v) >= sizeof e->token)
            return lq_fail(err, LQ_EUSAGE, "%s: expected a token, found %zu bytes", names[i],
                           strlen(v));
        snprintf(e->token, sizeof e->token, "%s", v);
        e->token_of = names[i];
    }
    lq_status s = e->token_of ? LQ_OK : read_token_file(e, err);
    for (size_t n = strlen(e->token); n && isspace((unsigned char)e->token[n - 1]);)
        e->token[--n] = 0;
    for (const char *p = e->token; !s && *p; p++)
        if (*p <= ' ' || *p == 127)
            s = lq_fail(err, LQ_EUSAGE, "%s: expected one word", e->token_of);
    return s;
}

lq_status hub_env_read(hub_env *e, lq_err *err)
{
    *e = (hub_env){ .offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE") };
    const char *cache = variable("HF_HUB_CACHE");
    if (!cache) cache = variable("HUGGINGFACE_HUB_CACHE");
    lq_status s = cache ? place(e->cache, sizeof e->cache, cache, "", err)
                        : in_home(e->cache, sizeof e->cache, "/hub", err);
    if (!s) s = read_endpoint(e, err);
    return s || e->offline ? s : read_token(e, err);
}
