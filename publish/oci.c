/* publish/oci.c - addresses, authorization, answers of a registry. */
#include "publish/oci.h"

#include "base/path.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>

/* ---- the address ---- */
/* Nobody else's name that only begins so: what goes there is not encrypted. */
static bool is_loopback(const char *host)
{
    char name[256];
    struct in_addr a;
    if (strncmp(host, "[::1]", 5) == 0) return !host[5] || host[5] == ':';
    snprintf(name, sizeof name, "%.*s", (int)strcspn(host, ":"), host);
    return strcasecmp(name, "localhost") == 0 ||
           (inet_pton(AF_INET, name, &a) == 1 && ntohl(a.s_addr) >> 24 == 127);
}

/* Lower-case words of letters and digits, joined by . _ - or /. */
static bool is_name(const char *s)
{
    const size_t n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        const bool letter = islower((unsigned char)s[i]) || isdigit((unsigned char)s[i]);
        if (!letter && !(strchr("._-/", s[i]) && i && i + 1 < n)) return false;
        if (s[i] == '/' && (!isalnum((unsigned char)s[i - 1]) || !isalnum((unsigned char)s[i + 1])))
            return false;
        if (s[i] == '.' && s[i + 1] == '.') return false;
    }
    return n > 0;
}

static bool is_tag(const char *s)
{
    for (size_t i = 0; s[i]; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && !(i && strchr(".-", s[i])))
            return false;
    return *s && strlen(s) <= 128;
}

static bool is_host(const char *s)
{
    for (size_t i = 0; s[i]; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr(".-:[]", s[i])) return false;
    return isalnum((unsigned char)*s) || *s == '[';
}

/* A port behind a host, of 1 to 65535, or none. */
static bool has_good_port(const char *host)
{
    const char *colon = strrchr(host, ':'), *inner = strrchr(host, ']');
    if (!colon || (inner && inner > colon)) return true;
    const size_t n = strspn(colon + 1, "0123456789");
    const long port = strtol(colon + 1, NULL, 10);
    return n && n <= 5 && !colon[1 + n] && port >= 1 && port <= 65535;
}

static bool is_digest(const char *s)
{
    return strncmp(s, "sha256:", 7) == 0 && sha_is_hex(s + 7, strlen(s + 7));
}

static lq_status parse_where(oci_conn *c, const char *where, lq_err *err)
{
    char text[290], *slash, *at, *colon;
    const int n = snprintf(text, sizeof text, "%s", where);
    const char *ref = "latest";
    if (n < 0 || (size_t)n >= sizeof text || !(slash = strchr(text, '/'))) goto wrong;
    *slash++ = 0;
    if ((at = strchr(slash, '@'))) {
        *at = 0;
        ref = at + 1;
        if (!is_digest(ref)) goto wrong;
    } else if ((colon = strrchr(slash, ':'))) {
        *colon = 0;
        ref = colon + 1;
        if (!is_tag(ref))
            return lq_fail(err, LQ_EUSAGE,
                           "oci://: expected a tag of 1 to 128 letters, digits, '_', '.' and '-', "
                           "found '%.140s'",
                           ref);
    }
    if (is_host(text) && !has_good_port(text))
        return lq_fail(err, LQ_EUSAGE, "oci://: expected a port of 1..65535, found '%.100s'", text);
    if (!is_host(text) || !is_name(slash) || strlen(text) > 255 || strlen(slash) > 255) goto wrong;
    const bool plain = c->o->plain_http || (is_loopback(text) && !c->o->ca);
    snprintf(c->base, sizeof c->base, "%s://%s", plain ? "http" : "https", text);
    snprintf(c->name, sizeof c->name, "%s", slash);
    snprintf(c->ref, sizeof c->ref, "%s", ref);
    return LQ_OK;
wrong:
    return lq_fail(err, LQ_EUSAGE,
                   "oci://: expected REGISTRY[:PORT]/NAME[:TAG or @sha256:DIGEST] with a name in "
                   "lower case, found '%.200s'",
                   where);
}

void oci_url(char *out, size_t n, const oci_conn *c, const char *fmt, ...)
{
    va_list args;
    const int at = snprintf(out, n, "%s/v2/%s/", c->base, c->name);
    va_start(args, fmt);
    if (at > 0 && (size_t)at < n) vsnprintf(out + at, n - (size_t)at, fmt, args);
    va_end(args);
}

/* ---- who we are ---- */
/* "Basic " and user:password in base64, malloc'd. */
static char *basic_of(const char *user, const char *password)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t n = strlen(user) + 1 + strlen(password);
    char *text = malloc(n + 1), *out = malloc(6 + (n + 2) / 3 * 4 + 1);
    if (!text || !out) {
        free(text);
        free(out);
        return NULL;
    }
    snprintf(text, n + 1, "%s:%s", user, password);
    size_t o = (size_t)sprintf(out, "Basic ");
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)(uint8_t)text[i] << 16;
        if (i + 1 < n) v |= (uint32_t)(uint8_t)text[i + 1] << 8;
        if (i + 2 < n) v |= (uint8_t)text[i + 2];
        for (size_t k = 0; k < 4; k++)
            out[o++] = k > n - i ? '=' : digits[v >> (18 - 6 * k) & 63];
    }
    out[o] = 0;
    free(text);
    return out;
}

static lq_status read_password(oci_conn *c, lq_err *err)
{
    char line[1024] = "";
    const char *path = c->o->password_file;
    const bool in = strcmp(path, "-") == 0;
    FILE *f = in ? stdin : fopen(path, "re");
    if (!f) return lq_open_failed(err, path);
    const bool ok = fgets(line, sizeof line, f) != NULL;
    if (!in) fclose(f);
    line[strcspn(line, "\r\n")] = 0;
    if (!ok || !*line)
        return lq_fail(err, LQ_EUSAGE, "%s: expected a password in its first line", path);
    c->basic = basic_of(c->o->username, line);
    return c->basic ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* What `docker login` keeps. Helpers that hold passwords elsewhere are not asked. */
static lq_status read_docker(oci_conn *c, lq_err *err)
{
    char path[4200];
    const char *dir = getenv("DOCKER_CONFIG"), *home = getenv("HOME"), *auth = NULL;
    const int n = dir    ? snprintf(path, sizeof path, "%s/config.json", dir)
                  : home ? snprintf(path, sizeof path, "%s/.docker/config.json", home)
                         : -1;
    if (n < 0 || (size_t)n >= sizeof path || !lq_exists(path)) return LQ_OK;
    cJSON *doc;
    lq_status s = js_parse_file(&doc, path, PUB_MAX_SMALL, 0, err);
    if (s) return s;
    js_str(js_get(js_get(doc, "auths"), strstr(c->base, "://") + 3), "auth", false, &auth, NULL);
    if (auth && strlen(auth) < HC_AUTHORIZATION - 8 && !strpbrk(auth, " \r\n") &&
        asprintf(&c->basic, "Basic %s", auth) < 0) {
        c->basic = NULL;
        s = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    cJSON_Delete(doc);
    return s;
}

lq_status oci_open(oci_conn *c, const char *where, const pub_opts *o, lq_err *err)
{
    *c = (oci_conn){ .o = o, .retry = { .o = o, .base = c->base } };
    lq_status s = parse_where(c, where, err);
    if (!s && !o->username != !o->password_file)
        s = lq_fail(err, LQ_EUSAGE, "--username and --password-file: expected both or none");
    if (!s) s = o->username ? read_password(c, err) : read_docker(c, err);
    return s ? s : hc_open(&c->http, o->ca, o->patience, o->job, err);
}

void oci_close(oci_conn *c)
{
    hc_close(c->http);
    free(c->basic);
    free(c->authorized);
}

/* The value of a parameter in `Bearer realm="...",service="..."`; false: it is not there. */
static bool parameter(char *out, size_t n, const char *challenge, const char *name)
{
    const size_t len = strlen(name);
    for (const char *p = challenge; (p = strcasestr(p, name)); p += len) {
        if ((p > challenge && isalnum((unsigned char)p[-1])) || p[len] != '=') continue;
        const bool quoted = p[len + 1] == '"';
        const char *v = p + len + 1 + quoted;
        const size_t k = strcspn(v, quoted ? "\"" : ", ");
        if (k >= n) return false;
        snprintf(out, n, "%.*s", (int)k, v);
        return true;
    }
    return false;
}

static lq_status token_url(char *out, size_t n, const oci_conn *c, const char *challenge,
                           lq_err *err)
{
    char realm[1024], value[1024];
    static const char *const names[] = { "service", "scope" };
    if (!parameter(realm, sizeof realm, challenge, "realm"))
        return lq_fail(err, LQ_EFORMAT, "%s: expected a realm for tokens, found '%.200s'", c->base,
                       challenge);
    lq_status s = hc_resolve(out, n, c->base, realm, err);
    char sep = strchr(realm, '?') ? '&' : '?';
    for (size_t i = 0; i < LQ_COUNT(names) && !s; i++) {
        if (!parameter(value, sizeof value, challenge, names[i])) continue;
        char *text = hc_escape(value);
        const size_t at = strlen(out);
        if (!text || (size_t)snprintf(out + at, n - at, "%c%s=%s", sep, names[i], text) >= n - at)
            s = lq_fail(err, LQ_EFORMAT, "%s: the address for tokens is too long", c->base);
        free(text);
        sep = '&';
    }
    return s;
}

static lq_status take_token(oci_conn *c, const hc_answer *a, lq_err *err)
{
    cJSON *doc;
    const char *token = NULL;
    lq_status s = js_parse(&doc, a->body ? a->body : "", a->body_bytes, PUB_MAX_SMALL, 0, err);
    if (s) return lq_wrap(err, s, "%s: token", c->base);
    js_str(doc, "token", false, &token, NULL);
    if (!token) js_str(doc, "access_token", false, &token, NULL);
    if (!token || !*token || strlen(token) >= HC_AUTHORIZATION - 8 || strpbrk(token, " \r\n")) {
        s = lq_fail(err, LQ_EFORMAT, "%s: token: expected a word, found none", c->base);
    } else if (asprintf(&c->authorized, "Bearer %s", token) < 0) {
        c->authorized = NULL;
        s = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    cJSON_Delete(doc);
    return s;
}

/* What a 401 asks for. */
static lq_status authorize(oci_conn *c, const char *challenge, lq_err *err)
{
    char url[HC_VALUE];
    hc_answer a;
    free(c->authorized);
    c->authorized = NULL;
    if (strncasecmp(challenge, "Basic", 5) == 0) {
        if (c->basic && !(c->authorized = strdup(c->basic)))
            return lq_fail(err, LQ_ENOMEM, "out of memory");
        return LQ_OK;
    }
    if (strncasecmp(challenge, "Bearer", 6) != 0) return LQ_OK;
    lq_status s = token_url(url, sizeof url, c, challenge, err);
    if (s) return s;
    const hc_request r = { .method = "GET", .url = url, .authorization = c->basic };
    do
        s = hc_do(c->http, &r, &a, err);
    while (retry_again(&c->retry, &s, &a, err));
    if (s) return s;
    return a.status == 200 ? take_token(c, &a, err) : oci_refused(c, &a, "a token", err);
}

lq_status oci_call(oci_conn *c, const hc_request *r, hc_answer *a, lq_err *err)
{
    hc_request with = *r;
    const bool ours = hc_same_origin(c->base, r->url);
    with.authorization = ours ? c->authorized : NULL;
    lq_status s = hc_do(c->http, &with, a, err);
    if (s || a->status != 401 || !ours) return s;
    s = authorize(c, a->challenge, err);
    with.authorization = c->authorized;
    return s || !c->authorized ? s : hc_do(c->http, &with, a, err);
}

/* ---- answers ---- */
lq_status oci_insist(oci_conn *c, const hc_request *r, hc_answer *a, lq_err *err)
{
    lq_status s;
    const int before = c->retry.tries; /* of what this request is a part of */
    c->retry.tries = 0;
    do
        s = oci_call(c, r, a, err);
    while (retry_again(&c->retry, &s, a, err));
    c->retry.tries = before;
    return s;
}

/* The registry's words, without what a terminal would obey. */
static void words_of(char *out, size_t n, const hc_answer *a)
{
    cJSON *doc = NULL;
    const char *code = NULL, *message = NULL;
    const cJSON *first = NULL;
    out[0] = 0;
    if (a->body && !js_parse(&doc, a->body, a->body_bytes, PUB_MAX_SMALL, 0, NULL)) {
        const cJSON *list = js_get(doc, "errors");
        first = cJSON_IsArray(list) ? list->child : NULL;
        js_str(first, "code", false, &code, NULL);
        js_str(first, "message", false, &message, NULL);
    }
    if (code || message) snprintf(out, n, " (%s: %s)", code ? code : "", message ? message : "");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127) *p = ' ';
    cJSON_Delete(doc);
}

lq_status oci_refused(const oci_conn *c, const hc_answer *a, const char *what, lq_err *err)
{
    char words[200];
    words_of(words, sizeof words, a);
    const bool denied = a->status == 401 || a->status == 403;
    const char *hint = !denied    ? ""
                       : c->basic ? ": these credentials may not do that"
                                  : ": it wants --username and --password-file, or docker login";
    return lq_fail(err, a->status == 404 ? LQ_ENOENT : LQ_EIO, "%s: asked for %s, answered %d%s%s",
                   c->base, what, a->status, words, hint);
}

/* ---- the manifest ---- */
lq_status oci_get_manifest(char **text, size_t *n, char digest[80], oci_conn *c, lq_err *err)
{
    char url[HC_VALUE], hex[SHA_HEX];
    hc_answer a;
    *text = NULL;
    oci_url(url, sizeof url, c, "manifests/%s", c->ref);
    const hc_request r = { .method = "GET",
                           .url = url,
                           .headers = { "Accept: " OCI_MANIFEST
                                        ", application/vnd.oci.image.index.v1+json" } };
    lq_status s = oci_insist(c, &r, &a, err);
    if (s || a.status == 404) return s;
    if (a.status != 200) return oci_refused(c, &a, "the manifest", err);
    sha_of(hex, a.body ? a.body : "", a.body_bytes);
    snprintf(digest, 80, "sha256:%s", hex);
    const char *want = is_digest(c->ref) ? c->ref : a.docker_digest;
    if (*want && strcmp(want, digest) != 0)
        return lq_fail(err, LQ_ECHECK, "manifest: expected digest %.80s, found %s", want, digest);
    *text = malloc(a.body_bytes + 1);
    if (!*text) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(*text, a.body ? a.body : "", a.body_bytes);
    *n = a.body_bytes;
    return LQ_OK;
}
