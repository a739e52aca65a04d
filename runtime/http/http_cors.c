/* runtime/http/http_cors.c - pages of other origins: they may call only where the operator has named
 * their origin (or "*"). The origin is echoed exactly, never "*", and credentials are never
 * allowed: a page must know a key. Such a page may send any field: client libraries add their own
 * (x-stainless-os, ...). Source: the Fetch standard, "CORS protocol". */
#include "runtime/http/http_int.h"

const char *http_cors_origin(const http_server *s, struct MHD_Connection *mhd)
{
    const char *origin = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Origin");
    for (int i = 0; origin && i < s->o.n_origins; i++)
        if (strcmp(s->o.origins[i], "*") == 0 || strcmp(s->o.origins[i], origin) == 0)
            return origin;
    return NULL;
}

const char *http_cors_fields(struct MHD_Connection *mhd)
{
    static const char token[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "!#$%&'*+-.^_`|~, ";
    const char *asked =
        MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, "Access-Control-Request-Headers");
    const size_t n = asked ? strlen(asked) : 0;
    return n > 0 && n <= HTTP_CORS_FIELDS_MAX && strspn(asked, token) == n
               ? asked
               : "Authorization, Content-Type, X-Api-Key, X-Request-Id";
}

void http_cors_headers(const http_server *s, struct MHD_Connection *mhd, struct MHD_Response *m)
{
    if (!s->o.n_origins) return;
    const char *origin = http_cors_origin(s, mhd);
    MHD_add_response_header(m, "Vary", "Origin");
    if (!origin) return;
    MHD_add_response_header(m, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(m, "Access-Control-Expose-Headers",
                            "X-Request-Id, Retry-After, x-should-retry");
}
