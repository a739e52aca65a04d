/* runtime/api/api_usage.c - the tokens of an answer, which every kind of answer ends with. */
#include "runtime/api/api_gen_int.h"

void gen_write_usage(jw *w, const gen *g)
{
    int64_t out = 0, cached = 0;
    for (int i = 0; i < g->choices.n; i++) {
        out += g->choices.v[i].stats.n_output;
        if (g->choices.v[i].sample == 0) cached += g->choices.v[i].stats.n_cached;
    }
    jw_key(w, "usage");
    jw_open(w, '{');
    jw_key(w, "prompt_tokens");
    jw_i64(w, g->prompts.n_ids);
    jw_key(w, "completion_tokens");
    jw_i64(w, out);
    jw_key(w, "total_tokens");
    jw_i64(w, g->prompts.n_ids + out);
    jw_key(w, "prompt_tokens_details");
    jw_open(w, '{');
    jw_key(w, "cached_tokens");
    jw_i64(w, cached);
    jw_close(w, '}');
    jw_close(w, '}');
}
