/* runtime/api/api_samplers.c - see api_samplers.h. */
#include "runtime/api/api_samplers.h"

#include "runtime/engine/stage.h"

#include <stdio.h>

void api_samplers_init(api_samplers *s)
{
    /* llama.cpp's defaults */
    *s = (api_samplers){ .dynatemp_exponent = 1,
                         .dynatemp_low = 1,
                         .dynatemp_high = 1,
                         .typical_p = 1,
                         .xtc_threshold = 0.1,
                         .mirostat_tau = 5,
                         .mirostat_eta = 0.1,
                         .dry_base = 1.75,
                         .dry_allowed_length = 2,
                         .dry_last_n = -1,
                         .penalties = true,
                         .dry = true };
}

void api_samplers_free(api_samplers *s)
{
    cJSON_Delete(s->own_breakers);
    s->own_breakers = NULL;
}

static bool is(const char *name, const char *a, const char *b)
{
    return strcmp(name, a) == 0 || (b && strcmp(name, b) == 0);
}

/* The number of a stage from 1 on; 0: there is none. */
static uint8_t stage_of(const char *name)
{
    for (int i = 0; i < SMP_STAGES; i++)
        if (is(name, smp_stages[i].name, smp_stages[i].other)) return (uint8_t)(i + 1);
    return 0;
}

lq_status api_read_samplers(api_samplers *s, const cJSON *v, api_error *e)
{
    static const char expected[] =
        "an array of names of samplers, each once: penalties, dry, "
        "top_n_sigma, temperature, top_k, typ_p, top_p, min_p, xtc, infill";
    int n = 0;
    if (!cJSON_IsArray(v)) return api_wrong(e, "samplers", expected, v);
    if (!v->child) return LQ_OK;
    s->ordered = true;
    s->penalties = s->dry = false;
    for (const cJSON *c = v->child; c; c = c->next) {
        const char *name = cJSON_IsString(c) ? c->valuestring : "";
        bool *before = is(name, "penalties", NULL) ? &s->penalties
                       : is(name, "dry", NULL)     ? &s->dry
                                                   : NULL;
        if (before && n > 0)
            return api_fail(e, "samplers", "unsupported_value",
                            "samplers: %s is only done before all others", name);
        const uint8_t stage = before ? 0 : stage_of(name);
        bool twice = before && *before;
        for (int i = 0; i < n; i++)
            twice |= s->order[i] == stage;
        if (twice || (!before && (!stage || is(name, "mirostat", NULL))))
            return api_wrong(e, "samplers", expected, c);
        s->infill |= is(name, "infill", NULL);
        if (before)
            *before = true;
        else
            s->order[n++] = stage;
    }
    return n ? LQ_OK
             : api_fail(e, "samplers", "unsupported_value",
                        "samplers: expected at least one besides penalties and dry");
}

lq_status api_read_breakers(api_samplers *s, const cJSON *v, api_error *e)
{
    static const char name[] = "dry_sequence_breakers";
    static const char expected[] = "an array of at most 32 strings of 1..128 bytes";
    lq_err unused;
    int n = 0;
    if (cJSON_IsString(v)) { /* text-generation-webui: the array's text, or what is in it */
        lq_buf w = { 0 };
        const bool bare = v->valuestring[0] != '[';
        lq_buf_printf(&w, bare ? "[%s]" : "%s", v->valuestring);
        const bool ok =
            !w.oom && !js_parse(&s->own_breakers, w.p, w.n, (size_t)1 << 16, 0, &unused);
        lq_buf_free(&w);
        if (!ok) return api_wrong(e, name, expected, v);
        v = s->own_breakers;
    }
    if (!cJSON_IsArray(v)) return api_wrong(e, name, expected, v);
    for (const cJSON *c = v->child; c; c = c->next) {
        const size_t bytes = cJSON_IsString(c) ? strlen(c->valuestring) : 0;
        if (bytes == 0 || bytes > 128 || ++n > DRY_MAX_BREAKERS)
            return api_wrong(e, name, expected, n > DRY_MAX_BREAKERS ? v : c);
    }
    s->breakers = v;
    return LQ_OK;
}

lq_status api_read_mirostat(api_samplers *s, const char *name, const cJSON *v, api_error *e)
{
    return js_whole(v, 0, 2, &s->mirostat) && s->mirostat != 1 ? LQ_OK
                                                               : api_wrong(e, name, "0 or 2", v);
}

lq_status api_check_samplers(api_samplers *s, double *temperature, api_error *e)
{
    static const uint8_t usual = 1;
    if (s->dynamic) {
        if (s->dynatemp_low > s->dynatemp_high)
            return api_fail(e, "dynatemp_low", "invalid_value",
                            "dynatemp_low: %g is more than dynatemp_high %g", s->dynatemp_low,
                            s->dynatemp_high);
        *temperature = (s->dynatemp_low + s->dynatemp_high) / 2;
        s->dynatemp_range = (s->dynatemp_high - s->dynatemp_low) / 2;
    }
    if (s->mirostat && s->ordered)
        return api_fail(e, "samplers", "unsupported_value",
                        "samplers: mirostat is done with the temperature alone");
    if (!s->temperature_last) return LQ_OK;
    if (s->ordered)
        return api_fail(e, "temperature_last", "unsupported_value",
                        "temperature_last: samplers is given too");
    const uint8_t temperature_stage = stage_of("temperature");
    int n = 0;
    for (uint8_t i = usual; i <= SMP_STAGES; i++)
        if (i != temperature_stage && i != stage_of("mirostat")) s->order[n++] = i;
    s->order[n] = temperature_stage;
    return LQ_OK;
}

const char *api_sampler_on(const api_samplers *s)
{
    return s->typical_p < 1         ? "typical_p"
           : s->top_n_sigma > 0     ? "top_n_sigma"
           : s->dynatemp_range > 0  ? "dynatemp_range"
           : s->xtc_probability > 0 ? "xtc_probability"
           : s->mirostat            ? "mirostat"
           : s->ordered             ? "samplers"
                                    : NULL;
}

void api_samplers_put(smp_params *out, const api_samplers *s, const dry_breakers *b)
{
    out->typical_p = (float)s->typical_p;
    out->top_n_sigma = s->top_n_sigma > 0 ? (float)s->top_n_sigma : 0;
    out->dynatemp_range = (float)s->dynatemp_range;
    out->dynatemp_exponent = (float)s->dynatemp_exponent;
    out->xtc_probability = (float)s->xtc_probability;
    out->xtc_threshold = (float)s->xtc_threshold;
    out->mirostat = (int)s->mirostat;
    out->mirostat_tau = (float)s->mirostat_tau;
    out->mirostat_eta = (float)s->mirostat_eta;
    memcpy(out->order, s->order, sizeof out->order);
    const bool none = s->has_last_n && s->last_n == 0 && !s->all_n;
    if (none || !s->penalties) {
        out->repetition_penalty = 1;
        out->presence_penalty = out->frequency_penalty = 0;
    }
    out->penalty_last_n = s->last_n > 0 ? s->last_n : 0;
    if (s->dry && s->dry_multiplier > 0 && s->dry_last_n != 0)
        out->dry = (smp_dry){ .multiplier = (float)s->dry_multiplier,
                              .base = (float)s->dry_base,
                              .allowed = (int32_t)s->dry_allowed_length,
                              .last_n = s->dry_last_n,
                              .breaks = b->breaks,
                              .runs = b->runs,
                              .n_runs = b->n_runs };
}

lq_status api_breakers(dry_breakers *b, const api_samplers *s, const tok_tokenizer *tok,
                       int64_t vocab, api_error *e)
{
    const char *texts[DRY_MAX_BREAKERS];
    int n = 0;
    lq_err err;
    if (!(s->dry_multiplier > 0)) return LQ_OK;
    if (!tok && s->breakers)
        return api_fail(e, "dry_sequence_breakers", "unsupported_value",
                        "dry_sequence_breakers: the model has no tokenizer");
    if (!tok) return LQ_OK;
    for (const cJSON *c = s->breakers ? s->breakers->child : NULL; c; c = c->next)
        texts[n++] = c->valuestring;
    return dry_breakers_make(b, tok, vocab, s->breakers ? texts : dry_usual,
                             s->breakers ? n : DRY_USUAL, &err)
               ? api_no_memory(e)
               : LQ_OK;
}
