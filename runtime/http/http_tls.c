/* runtime/http/http_tls.c - certificates that are exchanged while the server runs.
 *
 * libmicrohttpd takes a certificate once, when it starts. A later one is given to each connection
 * before its handshake, in the place of the library's. Those before it are kept until the end:
 * connections may still use them, and they are as few as the times that one was exchanged. */
#include "runtime/http/http_int.h"

#include <assert.h>
#include <gnutls/gnutls.h>
#include <stdlib.h>

struct http_tls {
    gnutls_certificate_credentials_t held;
    http_tls *before;
};

lq_status http_set_tls(http_server *s, const char *cert, const char *key, lq_err *err)
{
    assert(s->o.tls_cert);
    gnutls_datum_t c = { (unsigned char *)(uintptr_t)cert, (unsigned)strlen(cert) };
    gnutls_datum_t k = { (unsigned char *)(uintptr_t)key, (unsigned)strlen(key) };
    http_tls *t = calloc(1, sizeof *t);
    if (!t || gnutls_certificate_allocate_credentials(&t->held)) {
        free(t);
        return lq_fail(err, LQ_ENOMEM, "TLS: out of memory");
    }
    int e = gnutls_certificate_set_x509_key_mem(t->held, &c, &k, GNUTLS_X509_FMT_PEM);
    if (e < 0) {
        gnutls_certificate_free_credentials(t->held);
        free(t);
        return lq_fail(err, LQ_EFORMAT,
                       "TLS: expected a certificate and its private key in PEM, found: %s",
                       gnutls_strerror(e));
    }
    pthread_mutex_lock(&s->mu);
    t->before = s->tls;
    s->tls = t;
    pthread_mutex_unlock(&s->mu);
    return LQ_OK;
}

void http_tls_give(http_server *s, struct MHD_Connection *mhd)
{
    pthread_mutex_lock(&s->mu);
    http_tls *t = s->tls;
    pthread_mutex_unlock(&s->mu);
    const union MHD_ConnectionInfo *info =
        t ? MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION) : NULL;
    if (info && info->tls_session)
        gnutls_credentials_set(info->tls_session, GNUTLS_CRD_CERTIFICATE, t->held);
}

void http_tls_free(http_server *s)
{
    while (s->tls) {
        http_tls *t = s->tls;
        s->tls = t->before;
        gnutls_certificate_free_credentials(t->held);
        free(t);
    }
}
