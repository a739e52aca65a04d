/* tests/fuzz/fuzz_body.c - any bytes as the body of an API that is made into a chat: refused with a message, or
 * a chat whose parameters are read, and which lives no longer than the body. The first byte chooses
 * the API. */
#include "runtime/api/api_messages.h"
#include "runtime/api/api_ollama.h"
#include "runtime/api/api_responses.h"
#include "runtime/engine/adapters.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Adapters want models, which a fuzzer is linked without (scripts/ci/fuzz.sh). */
__attribute__((weak)) bool adapters_have(adapters *a, const char *name)
{
    (void)a, (void)name;
    return false;
}

static void check(bool ok)
{
    if (!ok) abort();
}

static const struct {
    char name;
    const api_dialect *d;
} dialects[] = { { 'm', &api_messages_dialect },
                 { 'c', &api_count_dialect },
                 { 'r', &api_responses_dialect },
                 { 'o', &api_ollama_chat },
                 { 'g', &api_ollama_generate } };

static const api_dialect *dialect_of(uint8_t name)
{
    for (size_t i = 0; i < LQ_COUNT(dialects); i++)
        if ((uint8_t)dialects[i].name == name) return dialects[i].d;
    return dialects[name % LQ_COUNT(dialects)].d;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char *names[] = { NULL };
    static const chat_form form = { .think_open = "<think>", .think_close = "</think>" };
    static api a = { .names = names, .m.form = &form, .m.max_len = 4096 };
    static const gen_defaults none;
    cJSON *doc = NULL;
    api_error e = { 0 };
    if (n < 1) return 0;
    if (js_parse(&doc, (const char *)data + 1, n - 1, 1 << 16, JS_UNIQUE | JS_SPELLED, NULL) ||
        !cJSON_IsObject(doc)) {
        cJSON_Delete(doc);
        return 0;
    }
    const api_dialect *d = dialect_of(data[0]);
    api_request q = { .doc = doc };
    lq_status s = api_body_translate(&a, d, &q, &e);
    if (!s) {
        check(cJSON_IsArray(js_get(q.doc, "messages")));
        s = api_params_read(&q.p, q.doc, API_CHAT, &none, 300, false, &e);
    }
    if (s) {
        api_body_error(d, &e);
        check(e.status >= 400 && e.status < 600 && e.err.msg[0]);
    }
    char *text = js_print(q.doc, false);
    check(text != NULL);
    free(text);
    api_request_free(&q);
    return 0;
}
