/* publish/http_client.h - an HTTP client: one request at a time, over libcurl.
 *
 * Only http and https; redirects of GET and HEAD are followed here, five at most, never from https
 * to http, and Authorization goes to the first address's host alone. Bodies that are not streamed
 * are bounded. A request that in `patience` seconds carries less than 1 KiB of a body for each of
 * them, sent or received, is given up: so none lasts longer than that and a second for each KiB. */
#ifndef LLMQ_PUBLISH_HTTP_CLIENT_H
#define LLMQ_PUBLISH_HTTP_CLIENT_H

#include "publish/files.h"

typedef struct hc_client hc_client;

/* What a part of a file or some bytes are sent from. */
typedef struct {
    const pub_file *file; /* NULL: data */
    const void *data;
    uint64_t off, bytes;
} hc_body;

typedef struct {
    const char *method, *url;
    const char *headers[6];    /* "Name: value" */
    const char *authorization; /* value of the header, or NULL */
    const hc_body *body;       /* NULL: none (POST: an empty one) */
    /* Of an answer with a status of 200 to 299. begin sees the headers before the first byte; an
     * error of either ends the request. NULL: the body goes to hc_answer.body. */
    lq_status (*begin)(void *user, lq_err *err);
    pub_sink *sink;
    void *user;
} hc_request;

enum { HC_VALUE = 4096, HC_AUTHORIZATION = 16384 };
typedef struct {
    int status; /* 0: none came */
    char location[HC_VALUE], range[64], content_range[128], challenge[HC_VALUE];
    char docker_digest[128], content_type[128];
    char error_code[64], error_message[256], link[HC_VALUE]; /* Hugging Face's X-Error-...; Link */
    uint64_t chunk_min;
    int64_t retry_after; /* seconds, -1: not said */
    char *body;          /* NUL-terminated; until the next request */
    size_t body_bytes;
    uint64_t sent;
    bool lost; /* LQ_EIO of the network: worth another try */
} hc_answer;

/* ca: a PEM file of certificates to trust; NULL: that of SSL_CERT_FILE, REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, else the
 * system's. patience: 0: PUB_PATIENCE. */
lq_status hc_open(hc_client **c, const char *ca, int patience, const lq_job *job, lq_err *err);
void hc_close(hc_client *c);
/* Any status is LQ_OK. Errors: LQ_EIO - no whole answer (lost says whether trying again makes
 * sense); LQ_EFORMAT - an address or a redirect that is not followed, a body too large; what sink
 * and begin return; LQ_EINTR. */
lq_status hc_do(hc_client *c, const hc_request *r, hc_answer *a, lq_err *err);
/* The answer, for begin and sink while the request is under way. */
const hc_answer *hc_current(const hc_client *c);

/* Scheme, host and port the same? */
bool hc_same_origin(const char *a, const char *b);
/* `location`, against `base` where it has no host. LQ_EFORMAT: neither http nor https, or http
 * where `base` is https. */
lq_status hc_resolve(char *out, size_t n, const char *base, const char *location, lq_err *err);
/* `s` as a value in a URL's query, malloc'd; NULL: out of memory. */
char *hc_escape(const char *s);

#endif
