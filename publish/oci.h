/* publish/oci.h - the target "oci://REGISTRY/NAME:TAG": an OCI artifact in a registry. For oci*.c.
 *
 * Every file is a layer with its name as org.opencontainers.image.title, so that `oras pull` gives
 * the same folder; the manifest goes last, so that nobody can pull what is not whole.
 *
 * Source: OCI distribution specification 1.1 (end-1 to end-13) and image specification 1.1;
 * tokens: distribution.github.io's "Token Authentication Specification". */
#ifndef LLMQ_PUBLISH_OCI_H
#define LLMQ_PUBLISH_OCI_H

#include "base/json.h"
#include "publish/retry.h"

#define OCI_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define OCI_ARTIFACT "application/vnd.llmq.model.v1"
#define OCI_TITLE "org.opencontainers.image.title"

typedef struct {
    const pub_opts *o;
    hc_client *http;
    char base[300];   /* "https://registry:5000" */
    char name[256];   /* "group/model" */
    char ref[140];    /* a tag, or "sha256:..." */
    char *basic;      /* "Basic ...", or NULL */
    char *authorized; /* what the registry last accepted, or NULL */
    retry_state retry;
} oci_conn;

/* where: what follows "oci://". oci_close also after an error. Errors: LQ_EUSAGE; LQ_EFORMAT - a
 * broken config.json of docker; LQ_EIO. */
lq_status oci_open(oci_conn *c, const char *where, const pub_opts *o, lq_err *err);
void oci_close(oci_conn *c);

/* One request with authorization; a 401 is answered once. */
lq_status oci_call(oci_conn *c, const hc_request *r, hc_answer *a, lq_err *err);
/* oci_call until it has an answer that is not worth another try. */
lq_status oci_insist(oci_conn *c, const hc_request *r, hc_answer *a, lq_err *err);
/* An answer that is none of those expected: what, the status, the registry's words. */
lq_status oci_refused(const oci_conn *c, const hc_answer *a, const char *what, lq_err *err);

/* "BASE/v2/NAME/" and the rest. */
__attribute__((format(printf, 4, 5))) void oci_url(char *out, size_t n, const oci_conn *c,
                                                   const char *fmt, ...);
/* The manifest of c->ref, checked against it and the registry's own digest of it. *status: 404
 * with LQ_OK and *text NULL. free(*text). */
lq_status oci_get_manifest(char **text, size_t *n, char digest[80], oci_conn *c, lq_err *err);

lq_status oci_push(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                   lq_err *err);

#endif
