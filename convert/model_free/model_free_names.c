/* convert/model_free/model_free_names.c - see model_free_names.h. */
#include "convert/model_free/model_free_names.h"

#include <stdio.h>
#include <stdlib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define PART(words) "(^|\\.)(" words ")(\\.|$)" /* a whole part of the name */
#define LAST(words) "(^|\\.)(" words ")$"

/* As the recipes of llm-compressor and the configs of published checkpoints leave them; in- and output
 * projections of state-space layers are matrices as others are. */
static const struct {
    const char *regex, *why;
} rows[] = {
    { PART("visual|vision\\w*|vit|vpm|\\w*tower\\w*|images?_\\w+|audio\\w*|speech\\w*|siglip\\w*|"
           "clip\\w*|\\w*projector\\w*|mm_\\w+|mlp1|resampler|connector|aligner|merger|"
           "perceiver\\w*"),
      MF_TOWER },
    { PART("\\w*embed\\w*|emb|wte|wpe|tok_embd"), "an embedding" },
    { LAST("lm_head|shared_head\\.head|embed_out") "|^((model|transformer)\\.)?(output|head|score|"
                                                   "classifier)$",
      "the output head" },
    { LAST("\\w*router\\w*|gates?|wg|\\w*_gate|(router|gate)\\.\\w+"), "a router or gate" },
    { PART("\\w*conv\\w*"), "a convolution" },
    { LAST("A_log|D|dt\\w*|x_proj|in_proj_(ba?|a)"), "a part of a state-space layer" },
    { PART("\\w*norm\\d?|ln\\w*"), "a norm" },
};

struct mf_names {
    pcre2_code *re[LQ_COUNT(rows)];
    pcre2_match_data *match;
};

lq_status mf_names_open(mf_names **out, lq_err *err)
{
    int code;
    size_t at;
    mf_names *n = *out = calloc(1, sizeof *n);
    bool ok = n && (n->match = pcre2_match_data_create(1, NULL));
    for (size_t i = 0; i < LQ_COUNT(rows) && ok; i++)
        ok = (n->re[i] = pcre2_compile((PCRE2_SPTR)rows[i].regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                                       &code, &at, NULL));
    if (ok) return LQ_OK;
    mf_names_close(n);
    *out = NULL;
    return lq_fail(err, LQ_ENOMEM, "no memory for the patterns of names");
}

void mf_names_close(mf_names *n)
{
    if (!n) return;
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        pcre2_code_free(n->re[i]);
    pcre2_match_data_free(n->match);
    free(n);
}

const char *mf_names_leaves(mf_names *n, const char *module)
{
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        if (pcre2_match(n->re[i], (PCRE2_SPTR)module, strlen(module), 0, 0, n->match, NULL) >= 0)
            return rows[i].why;
    return NULL;
}

bool mf_names_sibling(char *out, size_t n, const char *module, int i)
{
    static const char *const sets[][3] = {
        { "q_proj", "k_proj", "v_proj" }, { "wq", "wk", "wv" },
        { "query", "key", "value" },      { "q_a_proj", "kv_a_proj_with_mqa" },
        { "gate_proj", "up_proj" },       { "w1", "w3" },
    };
    const char *dot = strrchr(module, '.'), *last = dot ? dot + 1 : module;
    for (size_t k = 0; k < LQ_COUNT(sets); k++)
        for (int m = 0; m < 3 && sets[k][m]; m++) {
            if (strcmp(sets[k][m], last) != 0) continue;
            if (i >= 3 || !sets[k][i]) return false;
            snprintf(out, n, "%.*s%s", (int)(last - module), module, sets[k][i]);
            return true;
        }
    return false;
}
