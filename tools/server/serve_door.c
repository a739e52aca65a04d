/* tools/server/serve_door.c - see serve_door.h. */
#include "tools/server/serve_door.h"

#include "tools/cli/outputs.h"
#include "tools/cli/progress.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/stat.h>

enum { WEB_AUTO, WEB_ON, WEB_OFF };
const char *const door_webs[] = { "auto", "on", "off", NULL };

/* An address of this machine alone: 127.0.0.0/8, ::1, or its name. */
static bool is_loopback(const char *host)
{
    struct in_addr a;
    if (inet_pton(AF_INET, host, &a) == 1) return ntohl(a.s_addr) >> 24 == 127;
    return strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

/* Without keys, on this machine alone, pages of the web could call under a name of their own. */
static bool checks_host(const door *d)
{
    const door_opts *o = d->o;
    bool keyed = d->keys.list.n_keys || d->keys.list.n_admin_keys;
    return o->hosts.n || (!keyed && !o->unix_path && is_loopback(o->host));
}

bool door_shows_page(const door_opts *o)
{
    return o->web == WEB_ON || (o->web == WEB_AUTO && !o->unix_path && is_loopback(o->host));
}

void door_paths(const door_opts *o, iso_path out[DOOR_PATHS])
{
    const bool log_file = o->access_log && strcmp(o->access_log, "-") != 0;
    const iso_path all[DOOR_PATHS] = {
        { o->keys.key_file, ISO_REPLACED },
        { o->keys.admin_key_file, ISO_REPLACED },
        { o->cert, ISO_REPLACED },
        { o->cert_key, ISO_REPLACED },
        { log_file ? o->access_log : NULL, ISO_LOG },
        { o->unix_path, ISO_SOCKET },
    };
    memcpy(out, all, sizeof all);
}

http_opts door_limits(const door_opts *o)
{
    http_opts h = { .max_connections = (int)o->connections,
                    .max_body = o->max_body,
                    .max_bodies = o->request_memory,
                    .header_seconds = o->head_seconds,
                    .body_seconds = o->body_seconds,
                    .ping_seconds = o->ping_seconds };
    http_defaults(&h);
    return h;
}

lq_status door_check(const door_opts *o, lq_err *err)
{
    if (o->request_memory >= o->max_body) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "--request-memory: expected --max-body-size (%zu) or more, found %zu",
                   o->max_body, o->request_memory);
}

/* What a log is appended to: "-" is stdout, and a pipe or a device holds nothing. */
static bool is_file(const char *path)
{
    struct stat st;
    return strcmp(path, "-") != 0 && (stat(path, &st) != 0 || S_ISREG(st.st_mode));
}

lq_status door_read(door *d, const door_opts *o, const char *model, lq_err *err)
{
    d->o = o;
    lq_status s = ops_keys_read(&d->keys, &o->keys, err);
    if (!s) s = ops_tls_read(&d->tls, o->cert, o->cert_key, err);
    if (!s && o->access_log && is_file(o->access_log))
        s = output_check_place("--access-log", o->access_log, false, NULL, model, err);
    return s ? s : ops_log_open(&d->log, o->access_log, err);
}

lq_status door_open(door *d, const http_opts *h, lq_err *err)
{
    const door_opts *o = d->o;
    http_opts ho = door_limits(o);
    ho.routes = h->routes;
    ho.n_routes = h->n_routes;
    ho.log = h->log;
    ho.tick = h->tick;
    ho.app = h->app;
    ho.host = o->host;
    ho.port = (int)o->port;
    ho.unix_path = o->unix_path;
    ho.keys = d->keys.list;
    ho.tls_cert = d->tls.cert;
    ho.tls_key = d->tls.key;
    ho.origins = o->origins.v;
    ho.n_origins = o->origins.n;
    ho.check_host = checks_host(d);
    ho.hosts = o->hosts.v;
    ho.n_hosts = o->hosts.n;
    lq_status s = http_open(&d->http, &ho, err);
    if (s) return s;
    bool v6 = strchr(o->host, ':') != NULL;
    if (o->unix_path)
        snprintf(d->url, sizeof d->url, "%s", o->unix_path);
    else
        snprintf(d->url, sizeof d->url, "%s://%s%s%s:%d", o->cert ? "https" : "http", v6 ? "[" : "",
                 o->host, v6 ? "]" : "", http_port(d->http));
    return LQ_OK;
}

static lq_status reload_keys(door *d, lq_err *err)
{
    ops_keys fresh;
    lq_status s = ops_keys_read(&fresh, &d->o->keys, err);
    if (s) return s;
    s = http_set_keys(d->http, &fresh.list, err);
    ops_keys_free(&fresh);
    return s;
}

static lq_status reload_tls(door *d, lq_err *err)
{
    ops_tls fresh;
    lq_status s = ops_tls_read(&fresh, d->o->cert, d->o->cert_key, err);
    if (!s && fresh.cert) s = http_set_tls(d->http, fresh.cert, fresh.key, err);
    ops_tls_free(&fresh);
    return s;
}

static lq_status reload_log(door *d, lq_err *err)
{
    return ops_log_reopen(&d->log, d->o->access_log, err);
}

/* A file that cannot be read leaves what it is for as it was: a half-written one locks nobody out.
 * The others are read all the same. */
void door_ready(const iso_report *given_up, iso_mode asked)
{
    if (asked != ISO_OFF)
        prog_say(LOG_INFO, "given up: %s%s%s", given_up->on,
                 given_up->missing[0] ? "; not given up: " : "", given_up->missing);
    ops_notify("READY=1");
}

void door_reload(door *d)
{
    static lq_status (*const parts[])(door * d, lq_err * err) = { reload_keys, reload_tls,
                                                                  reload_log };
    int bad = 0;
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        lq_err err;
        if (!parts[i](d, &err)) continue;
        prog_say(LOG_ERROR, "SIGHUP: %s; what was stays", err.msg);
        bad++;
    }
    if (!bad) prog_say(LOG_INFO, "SIGHUP: keys, certificate and log are read again");
}

void door_shut(door *d)
{
    http_close(d->http);
    d->http = NULL;
}

void door_close(door *d)
{
    door_shut(d);
    ops_keys_free(&d->keys);
    ops_tls_free(&d->tls);
    ops_log_close(&d->log);
}
