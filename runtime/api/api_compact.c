/* runtime/api/api_compact.c - POST /v1/responses/compact: a conversation becomes shorter. The answer is the user's
 * messages and one item, which stands for all else and is taken in their place in a later `input`. Here it is a summary
 * that the model writes, to be read by anybody in spite of its name, encrypted_content. Source: OpenAI's API reference,
 * "Compact a response". */
#include "runtime/api/api_items.h"
#include "runtime/api/api_responses.h"

#include <stdio.h>
#include <stdlib.h>

static void add_user_messages(jw *w, const gen *g, const cJSON *list, int *n)
{
    for (const cJSON *v = list ? list->child : NULL; v; v = v->next) {
        const cJSON *type = js_get(v, "type");
        if ((type && !api_is(type, "message")) || !api_is(js_get(v, "role"), "user")) continue;
        cJSON *item = cJSON_Duplicate(v, true);
        char *text = NULL;
        if (item && api_complete_item(item, gen_key(g), (*n)++) &&
            (js_get(item, "status") || cJSON_AddStringToObject(item, "status", "completed")))
            text = js_print(item, false);
        w->b.oom |= !text;
        if (text) jw_json(w, text, strlen(text));
        free(text);
        cJSON_Delete(item);
    }
}

/* A text alone is a message of the user's. */
static void add_text_message(jw *w, const gen *g, const char *text)
{
    cJSON *list = cJSON_CreateArray(), *m = cJSON_CreateObject();
    int n = 0;
    cJSON_AddStringToObject(m, "role", "user");
    cJSON_AddStringToObject(m, "content", text);
    if (!cJSON_AddItemToArray(list, m)) cJSON_Delete(m);
    if (js_ran_out()) w->b.oom = true;
    add_user_messages(w, g, list, &n);
    cJSON_Delete(list);
}

static void write_summary(jw *w, const gen *g, const lq_buf *summary)
{
    char id[96];
    lq_buf text = { 0 };
    snprintf(id, sizeof id, "cmp_%s", gen_key(g));
    lq_buf_puts(&text, API_THOUGHT_MARK);
    lq_buf_add(&text, summary->p, summary->n);
    jw_open(w, '{');
    jw_put_cstr(w, "id", id);
    jw_put_cstr(w, "type", "compaction");
    gen_put_text(w, "encrypted_content", &text);
    jw_close(w, '}');
    w->b.oom |= text.oom;
    lq_buf_free(&text);
}

/* Half a summary would lose the rest without a word: it is an error, which is the exchange's one answer then. */
static bool is_whole(const gen_choice *c, const lq_buf *summary)
{
    if (c->end.finish == ENG_LENGTH)
        http_error(c->g->r, 400, "max_output_tokens", "context_length_exceeded",
                   "the summary is not whole after %lld tokens: expected more room for it",
                   (long long)c->stats.n_output);
    else if (!summary->n && !summary->oom)
        http_error(c->g->r, 500, NULL, "no_summary", "the model wrote no summary");
    else
        return true;
    return false;
}

static void write_answer(gen *g, jw *w)
{
    const gen_choice *c = &g->choices.v[0];
    const cJSON *input = js_get(g->body, "input");
    lq_buf summary = { 0 };
    int n = 0;
    for (int i = 0; i < c->items.n; i++)
        if (c->items.v[i].kind == CHAT_CONTENT)
            lq_buf_add(&summary, c->items.v[i].text.p, c->items.v[i].text.n);
    if (is_whole(c, &summary)) {
        jw_open(w, '{');
        jw_put_cstr(w, "id", g->answer.id);
        jw_put_cstr(w, "object", "response.compaction");
        jw_put_i64(w, "created_at", g->answer.created);
        jw_put_cstr(w, "model", g->answer.model);
        jw_key(w, "output");
        jw_open(w, '[');
        add_user_messages(w, g, g->past, &n);
        if (cJSON_IsString(input))
            add_text_message(w, g, input->valuestring);
        else
            add_user_messages(w, g, input, &n);
        write_summary(w, g, &summary);
        jw_close(w, ']');
        api_write_usage(w, c);
        jw_close(w, '}');
        w->b.oom |= summary.oom || c->text.oom;
    }
    lq_buf_free(&summary);
}

static const gen_shape shape = { .kind = API_CHAT,
                                 .prefix = "resp_",
                                 .secret = true,
                                 .prompt = "input",
                                 .dialect = &api_compact_dialect,
                                 .fills = true,
                                 .take = gen_take_item,
                                 .answer = write_answer };

void api_post_compact(void *app, http_req *r)
{
    api_request q;
    if (api_read_chat(app, r, &shape, &q)) api_generate(app, r, &shape, &q);
}
