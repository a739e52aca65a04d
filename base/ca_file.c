/* base/ca_file.c - see ca_file.h. */
#include "base/ca_file.h"

#include "base/base.h"

#include <stdlib.h>
#include <unistd.h>

const char *ca_file_variable(void)
{
    static const char *const names[] = { "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE" };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (getenv(names[i]) && *getenv(names[i])) return names[i];
    return NULL;
}

const char *ca_file(const char *own)
{
    static const char *const files[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch, Alpine */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
        "/etc/ssl/ca-bundle.pem",             /* openSUSE */
        "/etc/ssl/cert.pem",                  /* Alpine, BSD */
    };
    const char *name = ca_file_variable();
    if (name) return getenv(name);
    for (size_t i = 0; (!own || access(own, R_OK) != 0) && i < LQ_COUNT(files); i++)
        if (access(files[i], R_OK) == 0) return files[i];
    return NULL;
}
