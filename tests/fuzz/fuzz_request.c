/* tests/fuzz/fuzz_request.c - any bytes as the body of a generation request: refused with a message
 * and the name of what is wrong, or taken within the bounds that the table states. The first byte
 * is the kind ('1' completions, '2' chat, '4' embeddings, + 8: strict; 'r' rerank, 's' score). */
#include "runtime/api/api_params.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n); /* T-62 */

static void check(bool ok)
{
    if (!ok) abort();
}

static void check_taken(const api_params *p, int64_t vocab)
{
    check(p->n >= 1 && p->n <= API_MAX_N && p->best_of >= p->n && p->best_of <= API_MAX_N);
    check(p->max_tokens >= -1 && p->min_tokens >= 0);
    check(p->temperature >= 0 && p->temperature <= 2 && p->top_p > 0 && p->top_p <= 1);
    check(p->min_p >= 0 && p->min_p <= 1 && p->logprobs >= -1 && p->prompt_logprobs >= -1);
    check(p->n_stop >= 0 && p->n_stop <= API_MAX_STOPS);
    for (int i = 0; i < p->n_stop; i++)
        check(p->stop[i] && strlen(p->stop[i]) <= API_MAX_STOP_BYTES);
    check(p->n_stop_ids <= API_MAX_IDS && p->n_allowed <= vocab);
    for (int i = 0; i < p->n_stop_ids; i++)
        check(p->stop_ids[i] >= 0 && p->stop_ids[i] < vocab);
    for (int i = 0; i < p->n_allowed; i++)
        check(p->allowed[i] >= 0 && p->allowed[i] < vocab);
    for (int i = 0; i < p->n_bias; i++)
        check(p->bias[i].id >= 0 && p->bias[i].id < vocab && p->bias[i].bias >= -100 &&
              p->bias[i].bias <= 100);
    check(!p->structured.param == !p->structured.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { VOCAB = 300 };
    static const gen_defaults none;
    cJSON *doc = NULL;
    api_params p;
    api_error e = { .status = 0 };
    if (n < 1) return 0;
    const char *text = (const char *)data + 1;
    const api_kind kind = data[0] == 'r'   ? API_RERANK
                          : data[0] == 's' ? API_SCORE
                          : data[0] & 4    ? API_EMBEDDINGS
                          : data[0] & 2    ? API_CHAT
                                           : API_COMPLETIONS;
    if (js_parse(&doc, text, n - 1, 1 << 16, JS_UNIQUE | JS_SPELLED, NULL) ||
        !cJSON_IsObject(doc)) {
        cJSON_Delete(doc);
        return 0;
    }
    if (api_params_read(&p, doc, kind, &none, VOCAB, data[0] & 8, &e))
        check(e.status >= 400 && e.status < 600 && e.err.msg[0] &&
              strlen(e.param) < sizeof e.param);
    else
        check_taken(&p, VOCAB);
    api_params_free(&p);
    cJSON_Delete(doc);
    return 0;
}
