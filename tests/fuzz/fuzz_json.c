/* tests/fuzz/fuzz_json.c - any bytes into js_parse: what it takes has a canonical spelling, and that
 * spelling is taken again and spelled the same. */
#include "base/json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    cJSON *j = NULL, *again = NULL;
    lq_buf a = { 0 }, b = { 0 };
    if (!js_parse(&j, (const char *)data, n, 1 << 20, JS_UNIQUE, NULL) &&
        !js_canonical(&a, j, NULL)) {
        if (js_parse(&again, a.p, a.n, 1 << 24, JS_UNIQUE, NULL)) abort();
        if (js_canonical(&b, again, NULL)) abort();
        if (a.n != b.n || memcmp(a.p, b.p, a.n) != 0) abort();
    }
    free(a.p);
    free(b.p);
    cJSON_Delete(j);
    cJSON_Delete(again);
    return 0;
}
