/* tests/fuzz/fuzz_form.c - any bytes as a form: refused with a message, or parts that are inside of it. The first
 * line is the Content-Type. */
#include "runtime/api/multipart.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool ok)
{
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data, *end = n ? memchr(text, '\n', n) : NULL;
    if (!end || memchr(text, 0, (size_t)(end - text))) return 0;
    char *type = strndup(text, (size_t)(end - text));
    const char *body = end + 1, *stop = text + n;
    multipart m;
    form_part p;
    lq_err err = { "" };
    bool more = true;
    lq_status s = multipart_open(&m, type, body, (size_t)(stop - body), &err);
    while (!s && !(s = multipart_next(&m, &p, &more, &err)) && more) {
        check(p.name[0] && memchr(p.name, 0, sizeof p.name) && memchr(p.file, 0, sizeof p.file));
        check(p.data >= body && p.data <= stop && p.n <= (size_t)(stop - p.data));
    }
    check(!s || err.msg[0]);
    free(type);
    return 0;
}
