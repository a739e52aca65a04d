/* tests/unit/test_heads.c - models without words: hidden states and scores of labels, against transformers. */
#include "tests/support/rig.h"

#include <stdio.h>

enum { B = 2, T = 16, H = 32, MAX_LABELS = 3 };

static bool open_head(rig *r, st_file *want, const char *name)
{
    char path[128];
    lq_err err = { "" };
    snprintf(path, sizeof path, "tests/golden/heads/%s", name);
    if (!rig_open(r, path, (rig_opts){ .threads = 1 })) return false;
    strcat(path, "/expected.safetensors");
    CHECK(!st_open(want, path, &err), "%s", err.msg);
    return true;
}

/* Normed hidden states [T, H] of a prompt. */
static void run_prompt(rig *r, const int32_t *ids, float *hidden)
{
    kv_seq s;
    lq_err err = { "" };
    const float *logits;
    kv_seq_init(&s);
    CHECK(!kv_reserve(r->kv, &s, T, NULL), "reserve");
    const fwd_item it = { .seq = &s, .ids = ids, .n = T };
    CHECK(!fwd_step(r->f, &it, 1, &logits, &err), "%s", err.msg);
    memcpy(hidden, fwd_hidden(r->f), sizeof(float) * T * H);
    kv_seq_free(r->kv, &s);
}

static void near_all(const char *why, const double *got, const float *want, int64_t n)
{
    double top = 0;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)want[i]));
    for (int64_t i = 0; i < n; i++)
        CHECK(fabs(got[i] - (double)want[i]) <= 1e-5 * top, "%s: %lld: %g, expected %g", why,
              (long long)i, got[i], (double)want[i]);
}

TEST(scores_are_those_of_transformers)
{
    static const char *const names[] = { "qwen3-labels", "llama-one-label" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        rig r;
        st_file f;
        if (!open_head(&r, &f, names[i])) continue;
        const int64_t L = r.m.cfg->labels;
        const float *want = (const float *)st_find(&f, "scores")->data;
        const int32_t *ids = (const int32_t *)st_find(&f, "input_ids")->data;
        for (int b = 0; b < B; b++) {
            float hidden[T * H];
            double last[H], scores[MAX_LABELS];
            run_prompt(&r, ids + b * T, hidden);
            for (int k = 0; k < H; k++)
                last[k] = (double)hidden[(T - 1) * H + k];
            model_score(&r.m, last, scores);
            near_all(names[i], scores, want + b * L, L);
        }
        st_close(&f);
        rig_close(&r);
    }
}

static void check_hidden(const char *name)
{
    rig r;
    st_file f;
    if (!open_head(&r, &f, name)) return;
    const float *want = (const float *)st_find(&f, "hidden")->data;
    const int32_t *ids = (const int32_t *)st_find(&f, "input_ids")->data;
    for (int b = 0; b < B; b++) {
        float hidden[T * H];
        double got[T * H];
        run_prompt(&r, ids + b * T, hidden);
        for (int k = 0; k < T * H; k++)
            got[k] = (double)hidden[k];
        near_all(name, got, want + b * T * H, T * H);
    }
    st_close(&f);
    rig_close(&r);
}

TEST(hidden_states_are_those_of_transformers)
{
    check_hidden("qwen3-model");
    check_hidden("embeddinggemma");
    check_hidden("llama-both-ways");
}

TEST(encoders_have_the_hidden_states_of_transformers)
{
    check_hidden("bert");
    check_hidden("xlm-roberta");
    check_hidden("roberta-masked");
    check_hidden("electra");
    check_hidden("electra-small");
    check_hidden("albert");
    check_hidden("xlm-roberta-xl");
    check_hidden("deberta-v2");
    check_hidden("deberta-v2-apart");
    check_hidden("mpnet");
    check_hidden("gte");
    check_hidden("gte-ntk");
    check_hidden("jina-bert");
    check_hidden("distilbert");
    check_hidden("nomic-bert");
    check_hidden("nomic-moe");
    check_hidden("modernbert");
    check_hidden("eurobert");
}

/* What comes after a position counts for it: a part of a sequence is refused. */
TEST(a_model_that_looks_both_ways_takes_whole_sequences)
{
    rig r;
    st_file f;
    kv_seq s;
    lq_err err = { "" };
    const float *logits;
    if (!open_head(&r, &f, "embeddinggemma")) return;
    const int32_t *ids = (const int32_t *)st_find(&f, "input_ids")->data;
    kv_seq_init(&s);
    CHECK(!kv_reserve(r.kv, &s, T, NULL), "reserve");
    const fwd_item late = { .seq = &s, .ids = ids, .n = 3, .pos0 = 2 };
    CHECK(fwd_step(r.f, &late, 1, &logits, &err) == LQ_EVALUE && strstr(err.msg, "whole sequence"),
          "%s", err.msg);
    float first[H], cut[H];
    fwd_item it = { .seq = &s, .ids = ids, .n = T };
    CHECK(!fwd_step(r.f, &it, 1, &logits, &err), "%s", err.msg);
    memcpy(first, fwd_hidden(r.f), sizeof first);
    it.logits_from = T - 1; /* of the last row alone: its bytes are the same */
    float last[H];
    memcpy(last, fwd_hidden(r.f) + (T - 1) * H, sizeof last);
    CHECK(!fwd_step(r.f, &it, 1, &logits, &err) && memcmp(fwd_hidden(r.f), last, sizeof last) == 0,
          "the last row alone");
    it = (fwd_item){ .seq = &s, .ids = ids, .n = T - 1 };
    CHECK(!fwd_step(r.f, &it, 1, &logits, &err), "%s", err.msg);
    memcpy(cut, fwd_hidden(r.f), sizeof cut);
    CHECK(memcmp(first, cut, sizeof cut) != 0, "the last id changes nothing");
    kv_seq_free(r.kv, &s);
    st_close(&f);
    rig_close(&r);
}

TEST(words_are_refused_by_name)
{
    static const struct {
        const char *folder, *message;
    } t[] = {
        { "heads/qwen3-labels",
          "a Qwen3ForSequenceClassification gives scores and embeddings, not words: it has no "
          "output head" },
        { "heads/qwen3-model", "a Qwen3Model gives embeddings, not words: it has no output head" },
        { "arch/qwen3", "" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        char path[64];
        src_source *s = NULL;
        lq_err err = { "" };
        snprintf(path, sizeof path, "tests/golden/%s", t[i].folder);
        CHECK(!src_open(&s, path, &(src_opts){ .need_config = true }, &err), "%s", err.msg);
        if (!s) continue;
        const lq_status st = model_check_words(src_config(s), &err);
        CHECK((st == LQ_OK) == !t[i].message[0] && strcmp(err.msg, t[i].message) == 0, "%s: %s",
              t[i].folder, err.msg);
        src_close(s);
    }
}

int main(int argc, char **argv)
{
    RUN(scores_are_those_of_transformers);
    RUN(hidden_states_are_those_of_transformers);
    RUN(encoders_have_the_hidden_states_of_transformers);
    RUN(a_model_that_looks_both_ways_takes_whole_sequences);
    RUN(words_are_refused_by_name);
    return check_end();
}
