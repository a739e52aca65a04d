/* runtime/api/api_props.c - GET /props and /slots: what llama.cpp's clients ask of the server. A slot is one of the
 * sequences that may run; which one a request has is not told. */
#include "runtime/api/api_int.h"

/* What a request that says nothing has. */
static void write_params(jw *w, const gen_defaults *d)
{
    jw_key(w, "params");
    jw_open(w, '{');
    jw_put_f64(w, "temperature", d->has_temperature ? d->temperature : 1);
    jw_put_i64(w, "top_k", d->has_top_k ? d->top_k : 0);
    jw_put_f64(w, "top_p", d->has_top_p ? d->top_p : 1);
    jw_put_f64(w, "min_p", d->has_min_p ? d->min_p : 0);
    jw_put_f64(w, "repeat_penalty", d->has_repetition_penalty ? d->repetition_penalty : 1);
    jw_put_f64(w, "presence_penalty", 0);
    jw_put_f64(w, "frequency_penalty", 0);
    jw_put_i64(w, "n_predict", d->has_max_new_tokens ? d->max_new_tokens : -1);
    jw_close(w, '}');
}

static void put_token(jw *w, const api *a, const char *name)
{
    const char *text = cJSON_GetStringValue(js_get(a->m.chat_tokens, name));
    jw_cstr(w, text ? text : "");
}

void api_get_props(void *app, http_req *r)
{
    api *a = app;
    jw w = { 0 };
    if (!api_ready(a, r)) return;
    jw_open(&w, '{');
    jw_key(&w, "default_generation_settings");
    jw_open(&w, '{');
    jw_put_i64(&w, "n_ctx", a->m.max_len);
    write_params(&w, &a->m.defaults);
    jw_close(&w, '}');
    jw_put_i64(&w, "total_slots", a->m.max_seqs);
    jw_key(&w, "model_alias");
    jw_cstr(&w, a->names[0]);
    jw_key(&w, "chat_template");
    jw_cstr(&w, a->m.chat_text ? a->m.chat_text : "");
    jw_key(&w, "bos_token");
    put_token(&w, a, "bos_token");
    jw_key(&w, "eos_token");
    put_token(&w, a, "eos_token");
    jw_key(&w, "modalities");
    jw_json(&w, "{\"vision\":false,\"audio\":false}", 30);
    jw_key(&w, "build_info");
    lq_buf_printf(&w.b, "\"llmq %s\"", a->o.version);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

void api_get_slots(void *app, http_req *r)
{
    api *a = app;
    eng_stats s;
    jw w = { 0 };
    if (!api_ready(a, r)) return;
    a->m.backend.stats(a->m.backend.self, &s);
    jw_open(&w, '[');
    for (int64_t i = 0; i < a->m.max_seqs; i++) {
        jw_open(&w, '{');
        jw_put_i64(&w, "id", i);
        jw_put_i64(&w, "n_ctx", a->m.max_len);
        jw_key(&w, "is_processing");
        jw_bool(&w, i < s.running);
        jw_close(&w, '}');
    }
    jw_close(&w, ']');
    api_reply(r, 200, &w);
}
