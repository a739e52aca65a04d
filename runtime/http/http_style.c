/* runtime/http/http_style.c - OpenAI's shape of errors, which routes without another have. */
#include "runtime/http/http_int.h"

static const char *error_type(int status)
{
    return status == 403   ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status == 503 ? "service_unavailable_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

static void openai_error(jw *w, int status, const char *param, const char *code,
                         const char *message)
{
    jw_open(w, '{');
    jw_key(w, "error");
    jw_open(w, '{');
    jw_key(w, "message");
    jw_cstr(w, message);
    jw_key(w, "type");
    jw_cstr(w, error_type(status));
    jw_key(w, "param");
    jw_cstr(w, param);
    jw_key(w, "code");
    jw_cstr(w, code);
    jw_close(w, '}');
    jw_close(w, '}');
}

const http_style http_openai = { .error = openai_error, .ping = ": ping\n\n" };
const http_style http_form = { .error = openai_error, .takes = "multipart/form-data" };
const http_style http_bare = { .error = openai_error, .untyped = true };

const http_style *http_req_style(const http_req *r) { return r->style ? r->style : &http_openai; }

void http_set_style(http_req *r, const http_style *style) { r->style = style; }
