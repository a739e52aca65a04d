/* tests/fuzz/fuzz_config.c - any JSON as a config.json, or as our own spelling of one: what is
 * taken has a spelling that is taken again and spelled the same, names, shapes and rotary tables.
 */
#include "base/json.h"
#include "formats/arch/arch.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const arch_config *c)
{
    enum { MOST = 1 << 12 };
    char name[256];
    int64_t N, K;
    arch_slot slot;
    for (int r = 0; r < ARCH_N_ROLES; r++) {
        const int64_t layer = arch_role_per_layer((arch_role)r) ? c->layers - 1 : -1;
        arch_role_shape(c, (arch_role)r, &N, &K);
        if (!arch_name_of(c, (arch_role)r) || !arch_has(c, (arch_role)r, layer)) continue;
        if (N < 1 || K < 1) abort();
        if (!arch_tensor_name(c, (arch_role)r, layer, 0, false, name, sizeof name)) abort();
        if (!arch_slot_of(c, name, &slot) || slot.role != (arch_role)r) abort();
    }
    if (c->w.pos == POS_ROPE && c->rope_dims <= MOST) {
        float cos_t[MOST], sin_t[MOST];
        for (int which = ROPE_MAIN; which <= ROPE_LOCAL; which++)
            arch_rope_table(c, (arch_rope_use)which, 5, 1, 1 << 20, cos_t, sin_t);
    }
    if (c->w.pos == POS_ALIBI && c->heads <= MOST) {
        float slopes[MOST];
        arch_alibi_slopes(c, slopes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    cJSON *j = NULL;
    arch_config c, again;
    if (js_parse(&j, (const char *)data, n, 1 << 20, JS_UNIQUE, NULL)) return 0;
    lq_status s = js_get(j, "arch") ? arch_config_from_json(&c, j, NULL)
                                    : arch_config_parse(&c, j, js_get(j, "generation"), NULL);
    cJSON_Delete(j);
    if (s) return 0;
    use(&c);
    if (arch_is_eagle(&c)) { /* no .llmq has one */
        arch_config_free(&c);
        return 0;
    }
    lq_buf a = { 0 }, b = { 0 };
    cJSON *own = arch_config_json(&c);
    lq_err err = { "" };
    if (!own || arch_config_from_json(&again, own, &err)) abort();
    cJSON *own2 = arch_config_json(&again);
    if (js_canonical(&a, own, NULL) || js_canonical(&b, own2, NULL)) abort();
    if (a.n != b.n || memcmp(a.p, b.p, a.n) != 0) abort();
    free(a.p);
    free(b.p);
    cJSON_Delete(own);
    cJSON_Delete(own2);
    arch_config_free(&again);
    arch_config_free(&c);
    return 0;
}
