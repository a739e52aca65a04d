/* runtime/http/http_exchange.c - an exchange as libmicrohttpd tells it: the head is checked, the body
 * taken, the handler called.
 *
 * The course of an exchange, in the order of libmicrohttpd's calls:
 *
 *     on_uri        the request line is there: a new http_req, its path decoded here (MHD's own
 *                   decoding would let %00 cut it)
 *     on_request    first call: the head is there; key, route, type and length are checked, and
 *                   what is refused with a long body to come is answered without reading it
 *     on_request    once per piece of the body
 *     on_request    the body is complete: the handler runs; then answer or sleep
 *     on_request    again after each wake-up
 *     on_completed  answered, or the connection broke
 */
#include "runtime/http/http_int.h"

#include "base/clock.h"
#include "base/os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>

/* Sent bytes that the kernel keeps for a client that is slow to read. */
enum { SEND_BUFFER = 262144 };
/* Strictness to clients. Before 1.0 it adds no more than two checks, which are ours then: of a
 * blank in a path, and of the Host field, which 0.9.75 answers with the head of its page twice. */
enum { STRICT = MHD_VERSION >= 0x01000000 };

/* ---- paths ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The path of a request target, percent-decoded once; empty when it is malformed: no slash first,
 * too long, a bad escape, a control byte, a blank as it is. Nothing is normalized: a path with "//"
 * or ".." in it is not the path of any route. */
static void decode_path(char out[HTTP_PATH_MAX], const char *uri)
{
    size_t n = 0;
    out[0] = 0;
    if (strncasecmp(uri, "http://", 7) == 0 || strncasecmp(uri, "https://", 8) == 0) {
        uri = strchr(uri, ':') + 3; /* the absolute form: as a proxy is asked */
        uri += strcspn(uri, "/");
    }
    if (uri[0] != '/') return;
    for (const char *p = uri; *p && *p != '?' && *p != '#'; p++) {
        int c = (uint8_t)*p;
        if (c == '%') {
            int hi = hex_digit(p[1]), lo = hi < 0 ? -1 : hex_digit(p[2]);
            if (lo < 0) {
                out[0] = 0;
                return;
            }
            c = hi << 4 | lo;
            p += 2;
        }
        if (c < 0x20 || c == 0x7f || *p == ' ' || n + 1 >= HTTP_PATH_MAX) {
            out[0] = 0;
            return;
        }
        out[n++] = (char)c;
    }
    out[n] = 0;
}

/* Bytes of the whole segments with which both begin. */
static size_t shared_path(const char *a, const char *b)
{
    size_t n = 0, i = 0;
    for (;; i++) {
        const bool ends = (!a[i] || a[i] == '/') && (!b[i] || b[i] == '/');
        if (ends) n = i;
        if (!a[i] || a[i] != b[i]) return n;
    }
}

/* Errors that come before the route is found have its shape too; where there is none, that of the first which is nearest
 * ("/v1/messages" of "/v1/messages/nothing"). */
static const http_style *style_of(const http_server *s, const char *path)
{
    const http_style *near = NULL;
    for (size_t i = 0, most = 0; i < s->o.n_routes; i++) {
        const http_route *r = &s->o.routes[i];
        if (http_route_rest(r, path)) return r->style;
        const size_t n = shared_path(r->path, path);
        if (n > most) most = n, near = r->style;
    }
    return near;
}

static const char *header(struct MHD_Connection *mhd, const char *name)
{
    return MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, name);
}

/* The key that was sent, or NULL. */
static const char *key_of(struct MHD_Connection *mhd)
{
    const char *auth = header(mhd, "Authorization");
    if (auth && strncasecmp(auth, "Bearer ", 7) == 0) return auth + 7 + strspn(auth + 7, " ");
    return header(mhd, "X-Api-Key");
}

static http_role role_of(const http_server *s, struct MHD_Connection *mhd)
{
    return http_keys_role(s->keys, key_of(mhd));
}

lq_hash http_client(const http_req *r)
{
    const bool keyed = r->mhd && http_keys_role(r->s->keys, NULL) == HTTP_NOBODY;
    const char *key = keyed ? key_of(r->mhd) : NULL;
    return key ? lq_hash_bytes(key, strlen(key)) : (lq_hash){ { 0 } };
}

/* The fields of a head: their bytes as they were sent, how many they are, and those that say where
 * the request ends and whom it is for, of which libmicrohttpd looks at the first alone. */
typedef struct {
    size_t bytes, n;
    int n_hosts, n_codings;
    const char *host, *length, *coding; /* the first ones, or NULL */
    bool lengths_differ;
} head;

static enum MHD_Result add_field(void *cls, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    (void)kind;
    head *h = cls;
    if (!value) value = "";
    h->bytes += strlen(name) + strlen(value) + 4;
    h->n++;
    if (strcasecmp(name, "Host") == 0 && h->n_hosts++ == 0) h->host = value;
    if (strcasecmp(name, "Transfer-Encoding") == 0 && h->n_codings++ == 0) h->coding = value;
    if (strcasecmp(name, "Content-Length") == 0) {
        h->lengths_differ |= h->length && strcmp(h->length, value) != 0;
        if (!h->length) h->length = value;
    }
    return MHD_YES;
}

/* A head after which it is open to dispute where the body ends, or who shall answer: the answer is
 * given, and the connection must end. Source: RFC 9112, sections 3.2, 6.1 and 6.3. */
static bool refuse_head(http_req *r, const head *h, const char *version)
{
    if (h->bytes > HTTP_HEAD_BYTES_MAX)
        http_error(r, 431, NULL, NULL, "the header has %zu bytes, more than %d", h->bytes,
                   HTTP_HEAD_BYTES_MAX);
    else if (h->n > HTTP_HEAD_FIELDS_MAX)
        http_error(r, 431, NULL, NULL, "the header has %zu fields, more than %d", h->n,
                   HTTP_HEAD_FIELDS_MAX);
    else if (h->n_hosts != 1 && (h->n_hosts || strcmp(version, "HTTP/1.0") != 0))
        http_error(r, 400, NULL, NULL, "expected one Host field, found %d", h->n_hosts);
    else if (h->lengths_differ)
        http_error(r, 400, NULL, NULL, "two Content-Length fields differ");
    else if (h->length && h->coding)
        http_error(r, 400, NULL, NULL, "both Content-Length and Transfer-Encoding were given");
    else if (h->coding && strcmp(version, "HTTP/1.0") == 0)
        http_error(r, 400, NULL, NULL, "Transfer-Encoding is not part of HTTP/1.0");
    else if (h->coding && (h->n_codings > 1 || strcasecmp(h->coding, "chunked") != 0))
        http_error(r, 501, NULL, NULL, "Transfer-Encoding: expected chunked, found %.64s",
                   h->n_codings > 1 ? "several fields" : h->coding);
    return r->answer != ANS_NONE;
}

static bool is_type(const char *type, size_t n, const char *want)
{
    return n == strlen(want) && strncasecmp(type, want, n) == 0;
}

/* A POST's body has the type that its route takes. One that a page can send without a preflight is
 * taken from pages that may call alone. `curl -d` says that its body is a form; a page's form cannot
 * spell an object of JSON. */
static bool check_type(http_req *r, struct MHD_Connection *mhd)
{
    static const char json[] = "application/json", form[] = "application/x-www-form-urlencoded";
    const http_style *style = r->route->style;
    const char *takes = style ? style->takes : NULL, *type = header(mhd, "Content-Type");
    const char *want = takes ? takes : json;
    const size_t n = type ? strcspn(type, "; \t") : 0;
    const bool untyped = style && style->untyped && (!type || is_type(type, n, form));
    if (!untyped && !is_type(type, n, want))
        http_error(r, 415, NULL, NULL, "expected Content-Type: %s, found %.64s", want,
                   type ? type : "none");
    else if ((takes || untyped) && header(mhd, "Origin") && !http_cors_origin(r->s, mhd))
        http_error(r, 403, NULL, "origin_not_allowed",
                   "pages of this origin may not call (--cors-origin)");
    return r->answer == ANS_NONE;
}

static void set_request_id(http_req *r, const char *given)
{
    size_t n = given ? strlen(given) : 0;
    bool clean = n > 0 && n <= HTTP_ID_MAX;
    for (size_t i = 0; clean && i < n; i++) {
        char c = given[i];
        clean = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                strchr("._-:+/=", c) != NULL;
    }
    if (clean) {
        memcpy(r->id, given, n + 1);
        return;
    }
    uint64_t v[2] = { 0 };
    if (!os_random(v, sizeof v)) v[0] = (uint64_t)(lq_now() * 1e9);
    snprintf(r->id, sizeof r->id, "req-%016llx%016llx", (unsigned long long)v[0],
             (unsigned long long)v[1]);
}

static void refuse_method(http_req *r)
{
    char allow[64] = "Allow: ";
    for (size_t i = 0; i < r->s->o.n_routes; i++) {
        const http_route *t = &r->s->o.routes[i];
        if (!http_route_rest(t, r->path) || strstr(allow, t->method)) continue;
        size_t n = strlen(allow);
        snprintf(allow + n, sizeof allow - n, "%s%s", n > 7 ? ", " : "", t->method);
        if (strcmp(t->method, "GET") == 0) strncat(allow, ", HEAD", sizeof allow - n - 10);
    }
    const char *headers[] = { allow };
    jw w = { 0 };
    http_req_style(r)->error(&w, 405, NULL, NULL, "this path does not take that method");
    http_reply(r, 405, w.b.p, w.b.n, &(http_extra){ .headers = headers, .n_headers = 1 });
    jw_free(&w);
}

/* Sets r->route; false when path or method lead nowhere (answered). */
static bool find_route(http_req *r)
{
    const char *method = strcmp(r->method, "HEAD") == 0 ? "GET" : r->method;
    bool path_known = false;
    for (size_t i = 0; i < r->s->o.n_routes; i++) {
        const http_route *t = &r->s->o.routes[i];
        if (!http_route_rest(t, r->path)) continue;
        path_known = true;
        if (strcmp(t->method, method) == 0) {
            r->route = t;
            return true;
        }
    }
    if (path_known)
        refuse_method(r);
    else
        http_error(r, 404, NULL, NULL, "no such path");
    return false;
}

static bool is_open_path(const http_server *s, const char *path)
{
    for (size_t i = 0; i < s->o.n_routes; i++)
        if (s->o.routes[i].need == HTTP_NOBODY && http_route_rest(&s->o.routes[i], path))
            return true;
    return false;
}

/* An OPTIONS of a page that may call is answered here. */
static bool preflight(http_req *r, struct MHD_Connection *mhd)
{
    char allowed[HTTP_CORS_FIELDS_MAX + 64];
    const char *const headers[] = {
        "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE",
        allowed,
        "Access-Control-Max-Age: 600",
    };
    snprintf(allowed, sizeof allowed, "Access-Control-Allow-Headers: %s", http_cors_fields(mhd));
    if (strcmp(r->method, "OPTIONS") != 0 || !http_cors_origin(r->s, mhd)) return false;
    http_reply(r, 204, "", 0, &(http_extra){ .headers = headers, .n_headers = LQ_COUNT(headers) });
    return true;
}

/* Checks the head; what is wrong is answered (r->answer is set). Returns the announced length, -1
 * when there is none (chunked), INT64_MAX when the body must not be read. */
static int64_t check_head(http_req *r, struct MHD_Connection *mhd, const char *version)
{
    const char *encoding = header(mhd, "Content-Encoding");
    http_role role = role_of(r->s, mhd);
    head h = { 0 };
    MHD_get_connection_values(mhd, MHD_HEADER_KIND, add_field, &h);
    int64_t n = h.length ? strtoll(h.length, NULL, 10) : h.coding ? -1 : 0; /* MHD checked it */
    if (refuse_head(r, &h, version)) {
        r->closing = true;
        n = INT64_MAX;
    } else if (!r->path[0]) {
        http_error(r, 400, NULL, NULL, "the request's path is malformed or too long");
    } else if (!http_host_served(r->s, h.host)) {
        http_error(r, 403, NULL, "host_not_allowed",
                   "Host: this server does not answer to the name %.64s (--allowed-host)", h.host);
    } else if (preflight(r, mhd)) {
        r->discard = true;
    } else if (!is_open_path(r->s, r->path) && role == HTTP_NOBODY) {
        atomic_fetch_add(&r->s->n_unauthorized, 1);
        http_error(r, 401, NULL, "invalid_api_key",
                   "a valid API key is required: Authorization: Bearer KEY");
    } else if (!find_route(r)) {
        r->discard = true;
    } else if (r->route->need == HTTP_ADMIN && role != HTTP_ADMIN) {
        http_error(r, 403, NULL, "admin_key_required", "this path needs an administrator's key");
    } else if (strcmp(r->route->method, "POST") == 0 ||
               (r->style && r->style->bodied && strcmp(r->route->method, "DELETE") == 0)) {
        if (!check_type(r, mhd)) {
            /* answered */
        } else if (encoding && strcasecmp(encoding, "identity") != 0) {
            http_error(r, 415, NULL, NULL, "Content-Encoding is not supported");
        } else if (n > 0 && (size_t)n > r->s->o.max_body) {
            http_error(r, 413, NULL, NULL, "the body is larger than %zu bytes", r->s->o.max_body);
            n = INT64_MAX;
        }
    } else {
        r->discard = true; /* a GET or DELETE with a body */
    }
    return n;
}

/* ---- libmicrohttpd's calls ---- */

static void set_state(http_req *r, conn_state state)
{
    pthread_mutex_lock(&r->s->mu);
    r->c->state = state;
    r->c->since = lq_now();
    pthread_mutex_unlock(&r->s->mu);
}

/* A client beyond the limit is told at once, by the end of its connection. */
static enum MHD_Result on_accept(void *cls, const struct sockaddr *addr, socklen_t len)
{
    (void)addr;
    (void)len;
    http_server *s = cls;
    pthread_mutex_lock(&s->mu);
    const bool room = s->n_conns < s->o.max_connections && !s->closing;
    pthread_mutex_unlock(&s->mu);
    return room ? MHD_YES : MHD_NO;
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    http_server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        conn *c = *socket_context;
        if (!c) return;
        pthread_mutex_lock(&s->mu);
        if (c->prev)
            c->prev->next = c->next;
        else
            s->conns = c->next;
        if (c->next) c->next->prev = c->prev;
        s->n_conns--;
        pthread_mutex_unlock(&s->mu);
        free(c);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    conn *c = *socket_context = info ? calloc(1, sizeof *c) : NULL;
    if (!c) return; /* its requests are refused in on_uri */
    c->fd = info->connect_fd;
    http_tls_give(s, mhd);
    int size = SEND_BUFFER; /* so that max_backlog says what it means */
    setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    c->since = lq_now();
    pthread_mutex_lock(&s->mu);
    c->id = s->next_id++;
    c->next = s->conns;
    if (c->next) c->next->prev = c;
    s->conns = c;
    s->n_conns++;
    pthread_mutex_unlock(&s->mu);
    http_watch_add(s, c);
}

static void *on_uri(void *cls, const char *uri, struct MHD_Connection *mhd)
{
    http_server *s = cls;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    conn *c = info ? info->socket_context : NULL;
    http_req *r = c ? http_req_new(s, c) : NULL;
    if (!r) return NULL;
    decode_path(r->path, uri);
    r->style = style_of(s, r->path);
    http_early_uri(s, c, uri);
    r->mhd = mhd;
    set_state(r, CONN_HEAD);
    pthread_mutex_lock(&s->mu);
    c->req = r;
    c->thread = pthread_self();
    s->n_open++;
    pthread_mutex_unlock(&s->mu);
    return r;
}

static enum MHD_Result on_head(http_req *r, struct MHD_Connection *mhd, const char *method,
                               const char *version)
{
    snprintf(r->method, sizeof r->method, "%s", method);
    set_request_id(r, header(mhd, "X-Request-Id"));
    atomic_fetch_add(&r->s->n_requests, 1);
    int64_t n = check_head(r, mhd, version);
    r->phase = REQ_BODY;
    set_state(r, CONN_BODY);
    if (r->answer == ANS_NONE) return MHD_YES;
    r->discard = true;
    /* who waits for "100 Continue" before it sends a body is not asked for one */
    bool waits = n > 0 && header(mhd, "Expect");
    return n >= 0 && n <= HTTP_DROP_BODY_MAX && !waits ? MHD_YES : http_req_advance(r, mhd);
}

/* False: the connection is to be cut. What is refused is read to its end, so that the client sees
 * why, but not for ever. */
static bool on_body(http_req *r, const char *data, size_t n)
{
    if (r->discard) {
        r->discarded += n;
        return r->discarded <= r->s->o.max_body;
    }
    if (r->body.n + n > r->s->o.max_body) {
        http_error(r, 413, NULL, NULL, "the body is larger than %zu bytes", r->s->o.max_body);
    } else if (http_req_count(r, n)) {
        lq_buf_add(&r->body, data, n);
        if (!r->body.oom) return true;
        http_error(r, 503, NULL, NULL, "out of memory");
    }
    r->discard = true;
    lq_buf_free(&r->body);
    return true;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **con_cls)
{
    (void)url;
    http_server *s = cls;
    http_req *r = *con_cls;
    if (!r) return MHD_NO;
    if (r->phase == REQ_NEW) return on_head(r, mhd, method, version);
    if (*n_data) {
        bool more = on_body(r, data, *n_data);
        *n_data = 0;
        return more ? MHD_YES : MHD_NO;
    }
    if (r->phase == REQ_BODY) {
        pthread_mutex_lock(&s->mu);
        bool cut = r->c->cut;
        r->c->state = CONN_BUSY;
        pthread_mutex_unlock(&s->mu);
        if (cut) return MHD_NO;
        r->phase = REQ_HANDLED;
        http_watch_again(s, r->c);
        if (r->answer == ANS_NONE) http_req_handle(r, s->o.app);
    }
    return http_req_advance(r, mhd);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                         enum MHD_RequestTerminationCode how)
{
    (void)mhd;
    http_server *s = cls;
    http_req *r = *con_cls;
    if (!r) return;
    *con_cls = NULL;
    pthread_mutex_lock(&r->mu);
    r->mhd = NULL;
    pthread_mutex_unlock(&r->mu);
    pthread_mutex_lock(&s->mu);
    r->c->req = NULL;
    r->c->state = CONN_IDLE;
    r->c->since = lq_now();
    pthread_mutex_unlock(&s->mu);

    bool whole = how == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    http_req_cut(r);
    if (!whole && r->phase != REQ_NEW) atomic_fetch_add(&s->n_gone, 1);
    if (s->o.log && r->phase != REQ_NEW) {
        http_log_line l = { r->method,        r->path,  r->id, whole ? r->status : 499,
                            lq_now() - r->t0, r->body.n };
        s->o.log(s->o.app, &l);
    }
    http_req_unref(r);
    pthread_mutex_lock(&s->mu);
    if (--s->n_open == 0) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->mu);
}

static size_t no_unescape(void *cls, struct MHD_Connection *mhd, char *text)
{
    (void)cls;
    (void)mhd;
    return strlen(text); /* on_uri has done it */
}

lq_status http_exchange_start(http_server *s, lq_err *err)
{
    unsigned idle = (unsigned)ceil(s->o.idle_seconds);
    /* The library's own limit is each thread's share, and leaves what exceeds it to wait: above
     * ours for every thread, so that on_accept decides. */
    unsigned limit = (unsigned)s->o.threads * ((unsigned)s->o.max_connections + 16);
    struct MHD_OptionItem tls[] = {
        { MHD_OPTION_HTTPS_PRIORITIES, 0, NULL },
        { MHD_OPTION_HTTPS_MEM_CERT, 0, NULL },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, NULL },
        { MHD_OPTION_END, 0, NULL },
    };
    if (s->o.tls_cert) {
        static const char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
        const char *const texts[] = { priorities, s->o.tls_cert, s->o.tls_key };
        for (size_t i = 0; i < LQ_COUNT(texts); i++) /* the library only reads them */
            memcpy(&tls[i].ptr_value, &texts[i], sizeof texts[i]);
    }
    struct MHD_OptionItem *more = s->o.tls_cert ? tls : tls + LQ_COUNT(tls) - 1;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    if (s->o.tls_cert) flags |= MHD_USE_TLS;
    errno = 0;
    s->daemon = MHD_start_daemon(
        flags, 0, on_accept, s, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, http_early_message, s,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)s->o.threads,
        MHD_OPTION_CONNECTION_LIMIT, limit, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HTTP_CONN_MEMORY_MAX, MHD_OPTION_CONNECTION_TIMEOUT, idle,
        MHD_OPTION_STRICT_FOR_CLIENT, STRICT, MHD_OPTION_URI_LOG_CALLBACK, on_uri, s,
        MHD_OPTION_UNESCAPE_CALLBACK, no_unescape, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_ARRAY, more,
        MHD_OPTION_END);
    if (!s->daemon && s->o.tls_cert)
        return lq_fail(err, LQ_EFORMAT,
                       "TLS did not start: expected a certificate and its private key in PEM");
    if (!s->daemon)
        return lq_fail(err, LQ_EIO, "the HTTP server did not start: %s",
                       errno ? strerror(errno) : "no reason is known");
    s->listen_fd = -1; /* the daemon owns it */
    return LQ_OK;
}
