/* tools/cmd_run.c - `llmq run`: one prompt, one answer. */
#include "tools/cli/follow.h"
#include "tools/cli/load.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "runtime/chat/chat.h"
#include "runtime/engine/adapters.h"
#include "runtime/engine/answer.h"
#include "runtime/engine/spec.h"
#include "runtime/load_guess.h"
#include "tools/cli/sampler_opts.h"
#include "tools/cli/structured.h"
#include "tools/inflight/inflight.h"

#include <stdlib.h>

typedef struct {
    const char *prompt, *file, *ids, *system;
    bool plain, chat;
    int64_t max_tokens, min_tokens, top_k, seed, logprobs, max_len, batch_tokens;
    double temperature, top_p, min_p, repetition, presence, frequency;
    int64_t beams;
    double length_penalty;
    int early; /* of earlies */
    bool ignore_eos, special;
    opt_list stop;
    size_t kv_bytes;
    bool ngram, mtp;
    const char *draft, *lora;
    int64_t guesses;
    opt_structured structured;
    opt_samplers samplers;
    opt_model model;
    inflight_opts inflight;
} run_opts;

#define F(field) offsetof(run_opts, field)
static const opt_row prompt_rows[] = {
    { "prompt", 'p', OPT_STR, F(prompt), .arg = "TEXT", .help = "the prompt" },
    { "prompt-file", 'f', OPT_STR, F(file), .arg = "FILE", .help = "the prompt, from a file" },
    { "ids", 0, OPT_STR, F(ids), .arg = "1,2,3",
      .help = "the prompt as token ids: needs no tokenizer" },
    { "chat", 0, OPT_FLAG, F(chat),
      .help = "the prompt is a user's message, put into the model's chat template" },
    OPT_CHAT_TEMPLATE(F(model)),
    { "system", 0, OPT_STR, F(system), .arg = "TEXT", .help = "with --chat: a system message" },
    { "no-bos", 0, OPT_FLAG, F(plain),
      .help = "leave out the special tokens that the tokenizer puts around a text" },
};
static const opt_row answer_rows[] = {
    { "max-tokens", 'n', OPT_INT, F(max_tokens), .def = "128", .lo = 0, .hi = 1e9,
      .help = "longest answer" },
    { "min-tokens", 0, OPT_INT, F(min_tokens), .def = "0", .lo = 0, .hi = 1e9,
      .help = "do not end the answer before this many tokens" },
    { "stop", 0, OPT_LIST, F(stop), .arg = "TEXT", .help = "end before this text" },
    { "ignore-eos", 0, OPT_FLAG, F(ignore_eos), .help = "go on after the end-of-text token" },
    { "show-special", 0, OPT_FLAG, F(special), .help = "print special tokens too" },
    { "logprobs", 0, OPT_INT, F(logprobs), .def = "-1", .lo = -1, .hi = SMP_MAX_LOGPROBS,
      .help = "with --json: log-probabilities, with this many alternatives" },
};
static const opt_row sampling_rows[] = {
    { "temperature", 't', OPT_FLOAT, F(temperature), .def = "0", .lo = 0, .hi = 100,
      .help = "0: always the likeliest token (greedy)" },
    { "top-k", 0, OPT_INT, F(top_k), .def = "0", .lo = -1, .hi = INT32_MAX,
      .help = "sample from the K likeliest (0: all)" },
    { "top-p", 0, OPT_FLOAT, F(top_p), .def = "1", .lo = 0, .hi = 1,
      .help = "sample from the likeliest tokens that add up to this probability" },
    { "min-p", 0, OPT_FLOAT, F(min_p), .def = "0", .lo = 0, .hi = 1,
      .help = "sample from tokens with at least this share of the likeliest one's probability" },
    { "repetition-penalty", 0, OPT_FLOAT, F(repetition), .def = "1", .lo = 0.01, .hi = 100,
      .help = "divides the logits of tokens that have occurred" },
    { "presence-penalty", 0, OPT_FLOAT, F(presence), .def = "0", .lo = -2, .hi = 2,
      .help = "subtracted from the logits of tokens in the answer" },
    { "frequency-penalty", 0, OPT_FLOAT, F(frequency), .def = "0", .lo = -2, .hi = 2,
      .help = "subtracted once for each occurrence" },
    { "seed", 's', OPT_INT, F(seed), .def = "0", .help = "same seed, same answer" },
};
static const char *const earlies[] = {
    [ENG_EARLY_NO_GAIN] = "false", [ENG_EARLY_FULL] = "true", [ENG_EARLY_NEVER] = "never", NULL
};
static const opt_row beam_rows[] = {
    { "beams", 0, OPT_INT, F(beams), .def = "0", .lo = 0, .hi = 128,
      .help = "beam width: the answer is the likeliest of this many beams; no sampling (0: off)" },
    { "length-penalty", 0, OPT_FLOAT, F(length_penalty), .def = "1", .lo = -100, .hi = 100,
      .help = "beams are compared by log-probability / length^X" },
    { "early-stopping", 0, OPT_ENUM, F(early), .def = "false", .words = earlies,
      .help = "once there are as many answers as beams: true ends; false goes on while the best "
              "beam is better at its length; never goes on while it could become better" },
};
static const opt_row engine_rows[] = {
    { "max-model-len", 0, OPT_INT, F(max_len), .def = "0", .lo = 0, .hi = 1e9,
      .help = "context in tokens (0: the model's, if memory allows)" },
    { "max-num-batched-tokens", 0, OPT_INT, F(batch_tokens), .def = "0", .lo = 0, .hi = 1 << 20,
      .help = "prompt tokens computed at a time (0: 512)" },
    { "kv-cache-memory", 0, OPT_SIZE, F(kv_bytes), .def = "0",
      .help = "for keys and values (0: what the context needs, at most a quarter of memory)" },
};

static const opt_row adapter_rows[] = {
    { "lora", 0, OPT_STR, F(lora), .arg = "PATH", .help = OPT_LORA_HELP },
};
static const opt_row guess_rows[] = {
    { "speculative-ngram", 0, OPT_FLAG, F(ngram),
      .help =
          "guess that what followed the last tokens earlier follows again; the answer stays the "
          "same" },
    { "speculative-model", 0, OPT_STR, F(draft), .arg = "DRAFT", .files = FILES_MODEL,
      .help = "let this small model of the same vocabulary guess, or this EAGLE-3 draft for the "
              "model; the answer stays the same" },
    { "speculative-mtp", 0, OPT_FLAG, F(mtp),
      .help =
          "let the model's own head for multi-token prediction guess; the answer stays the same" },
    { "num-speculative-tokens", 0, OPT_INT, F(guesses), .def = "0", .hi = SPEC_MAX,
      .help = "with one of these: guesses a step, at most; 0: 5" },
};

/* Called for each piece of the answer. */
static bool print_text(void *user, const char *text, size_t n)
{
    (void)user;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return true;
}

/* ---- the prompt ---- */

static lq_status parse_prompt_ids(const char *text, int32_t **ids, size_t *n, lq_err *err)
{
    int64_t *wide = NULL, k = 0;
    lq_status s = opt_parse_ints(text, "--ids", 0, INT32_MAX, &wide, &k, err);
    if (!s && !(*ids = malloc((size_t)k * sizeof **ids)))
        s = lq_fail(err, LQ_ENOMEM, "no memory for %lld ids", (long long)k);
    for (int64_t i = 0; !s && i < k; i++)
        (*ids)[i] = (int32_t)wide[i];
    *n = (size_t)k;
    free(wide);
    return s;
}

static bool add_message(cJSON *messages, const char *role, const char *text)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    return cJSON_AddStringToObject(m, "content", text) && cJSON_AddItemToArray(messages, m);
}

static lq_status encode_chat(const run_opts *o, const src_source *src, const tok_tokenizer *t,
                             const char *text, int32_t **ids, size_t *n, lq_err *err)
{
    chat_format *c = NULL;
    cJSON *messages = cJSON_CreateArray();
    lq_status s =
        chat_open(&c, src, t, &(chat_choice){ o->model.chat_template, o->model.tool_format }, err);
    bool ok = (!o->system || add_message(messages, "system", o->system)) &&
              add_message(messages, "user", text);
    if (!s && !ok) s = lq_fail(err, LQ_ENOMEM, "no memory for the messages");
    chat_request q = { .messages = messages, .add_generation_prompt = true };
    if (!s) s = chat_encode(c, &q, ids, n, err);
    cJSON_Delete(messages);
    chat_close(c);
    return s;
}

static lq_status read_prompt(const run_opts *o, const src_source *src, const tok_tokenizer *t,
                             int32_t **ids, size_t *n, lq_err *err)
{
    if (o->ids) return parse_prompt_ids(o->ids, ids, n, err);
    char *text = NULL;
    size_t bytes = o->prompt ? strlen(o->prompt) : 0;
    lq_status s = LQ_OK;
    if (o->file) s = lq_read_file(&text, &bytes, o->file, (size_t)1 << 30, err);
    if (!s && o->chat)
        s = encode_chat(o, src, t, text ? text : o->prompt, ids, n, err);
    else if (!s)
        s = tok_encode(t, text ? text : o->prompt, bytes, o->plain ? 0 : TOK_ADD_SPECIAL, ids, n,
                       err);
    free(text);
    return s;
}

/* What the command line leaves open, the model's generation_config.json says. */
static void take_defaults(run_opts *o, const gen_defaults *g, const cmd_ctx *c)
{
    const struct {
        const char *name;
        bool has;
        double *option, value;
    } fields[] = { { "temperature", g->has_temperature, &o->temperature, g->temperature },
                   { "top-p", g->has_top_p, &o->top_p, g->top_p },
                   { "min-p", g->has_min_p, &o->min_p, g->min_p },
                   { "repetition-penalty", g->has_repetition_penalty, &o->repetition,
                     g->repetition_penalty } };
    for (size_t i = 0; i < LQ_COUNT(fields); i++)
        if (fields[i].has && !opt_given(c, fields[i].name)) *fields[i].option = fields[i].value;
    if (g->has_top_k && !opt_given(c, "top-k")) o->top_k = g->top_k;
    if (g->has_max_new_tokens && !opt_given(c, "max-tokens")) o->max_tokens = g->max_new_tokens;
}

static eng_request request_of(const run_opts *o, const int32_t *ids, size_t n, grammar *g)
{
    return (eng_request){ .prompt = ids,
                          .n_prompt = (int64_t)n,
                          .grammar = g,
                          .max_tokens = o->max_tokens,
                          .min_tokens = o->min_tokens,
                          .params = { .temperature = (float)o->temperature,
                                      .top_k = (int32_t)o->top_k,
                                      .top_p = (float)o->top_p,
                                      .min_p = (float)o->min_p,
                                      .repetition_penalty = (float)o->repetition,
                                      .presence_penalty = (float)o->presence,
                                      .frequency_penalty = (float)o->frequency,
                                      .seed = (uint64_t)o->seed,
                                      .logprobs = (int)o->logprobs },
                          .beam = { .width = o->beams,
                                    .n = o->beams ? 1 : 0,
                                    .length_penalty = o->length_penalty,
                                    .early = (eng_early)o->early },
                          .stop = o->stop.v,
                          .n_stop = o->stop.n,
                          .ignore_eos = o->ignore_eos,
                          .show_special = o->special,
                          .prompt_logprobs = -1 };
}

/* ---- the report ---- */

typedef struct {
    double load, prompt, decode; /* seconds; prompt: until the first token */
    double guesses, right;       /* tokens that were guessed, and those of them that came */
    double sent;                 /* bytes, to other ranks */
} timings;

static double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

static cJSON *logprobs_json(const ans_answer *a)
{
    cJSON *list = cJSON_CreateArray();
    for (int64_t i = 0; i < a->n_ids; i++) {
        const smp_result *r = &a->logprobs[i];
        cJSON *o = cJSON_CreateObject(), *top = cJSON_AddArrayToObject(o, "top");
        cJSON_AddNumberToObject(o, "id", r->id);
        cJSON_AddNumberToObject(o, "logprob", (double)r->logprob);
        for (int k = 0; k < r->n_top; k++) {
            cJSON *t = cJSON_CreateObject();
            cJSON_AddNumberToObject(t, "id", r->top_id[k]);
            cJSON_AddNumberToObject(t, "logprob", (double)r->top_logprob[k]);
            cJSON_AddItemToArray(top, t);
        }
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *document(const ans_answer *a, const timings *t)
{
    cJSON *o = cJSON_CreateObject(), *ids = cJSON_AddArrayToObject(o, "ids");
    cJSON_AddStringToObject(o, "text", a->text ? a->text : "");
    for (int64_t i = 0; i < a->n_ids; i++)
        cJSON_AddItemToArray(ids, cJSON_CreateNumber(a->ids[i]));
    cJSON_AddStringToObject(o, "finish_reason", eng_finish_text(a->finish));
    if (a->stop_string[0]) cJSON_AddStringToObject(o, "stop_reason", a->stop_string);
    if (a->logprobs) cJSON_AddItemToObject(o, "logprobs", logprobs_json(a));
    cJSON *u = cJSON_AddObjectToObject(o, "usage");
    cJSON_AddNumberToObject(u, "prompt_tokens", (double)a->n_prompt);
    cJSON_AddNumberToObject(u, "completion_tokens", (double)a->n_ids);
    cJSON_AddNumberToObject(u, "total_tokens", (double)(a->n_prompt + a->n_ids));
    cJSON *s = cJSON_AddObjectToObject(o, "timings");
    cJSON_AddNumberToObject(s, "load_s", t->load);
    cJSON_AddNumberToObject(s, "prompt_s", t->prompt);
    cJSON_AddNumberToObject(s, "prompt_tok_s", per_second((double)a->n_prompt, t->prompt));
    cJSON_AddNumberToObject(s, "decode_s", t->decode);
    cJSON_AddNumberToObject(s, "decode_tok_s", per_second((double)(a->n_ids - 1), t->decode));
    if (t->sent > 0) {
        cJSON *r = cJSON_AddObjectToObject(o, "ranks");
        cJSON_AddNumberToObject(r, "ranks", comm_size(follow_ranks()));
        cJSON_AddNumberToObject(r, "sent_bytes", t->sent);
    }
    if (t->guesses > 0) {
        cJSON *g = cJSON_AddObjectToObject(o, "speculation");
        cJSON_AddNumberToObject(g, "guesses", t->guesses);
        cJSON_AddNumberToObject(g, "right", t->right);
    }
    return o;
}

static lq_status run_report(const cmd_ctx *c, const ans_answer *a, const timings *t, lq_err *err)
{
    if (c->json) return cmd_print_json(document(a, t), err);
    putchar('\n');
    if (t->decode <= 0 && a->n_ids > 1) { /* a beam search's answer comes at once */
        prog_say(LOG_INFO, "%lld prompt tokens and %lld of the answer in %.2f s, ended by %s",
                 (long long)a->n_prompt, (long long)a->n_ids, t->prompt,
                 eng_finish_text(a->finish));
        return LQ_OK;
    }
    prog_say(LOG_INFO, "%lld prompt tokens in %.2f s, %lld tokens at %.1f per second, ended by %s",
             (long long)a->n_prompt, t->prompt, (long long)a->n_ids,
             per_second((double)(a->n_ids - 1), t->decode), eng_finish_text(a->finish));
    return LQ_OK;
}

/* A model without a tokenizer answers in ids. */
static void print_ids(const ans_answer *a)
{
    for (int64_t i = 0; i < a->n_ids; i++)
        printf(i ? ",%d" : "%d", a->ids[i]);
}

static eng_opts engine_of(const run_opts *o)
{
    return (eng_opts){ .acts = opt_acts(&o->model),
                       .kv = opt_kv(&o->model),
                       .kv_bytes = o->kv_bytes,
                       .room = follow_ranks() ? follow_memory() : 0,
                       .max_len = o->max_len,
                       .max_seqs = o->beams ? o->beams : 1,
                       .guesses = o->guesses,
                       .max_batch_tokens = o->batch_tokens };
}

/* draft: what guesses, or NULL. */
static lq_status generate(ans_answer *a, timings *t, const cmd_ctx *c, const run_opts *o,
                          const model *m, const model *draft, const tok_tokenizer *tok, pool *p,
                          lq_err *err)
{
    int32_t *ids = NULL;
    size_t n = 0;
    engine *e = NULL;
    structured form = { 0 };
    dry_breakers breakers = { 0 };
    eng_opts eo = engine_of(o);
    eng_stats stats = { 0 };
    lora_adapter *adapter = NULL;
    eo.draft = draft;
    if (!draft && !o->ngram) eo.guesses = 0;
    lq_status s = read_prompt(o, m->src, tok, &ids, &n, err);
    if (!s && o->lora) s = lora_open(&adapter, m, o->lora, 0, p, err);
    if (adapter) eo.lora_rank = adapter->rank;
    if (!s) s = structured_open(&form, &o->structured, tok, m->cfg->vocab, err);
    if (!s) s = eng_open(&e, m, tok, p, &eo, err);
    eng_request r = request_of(o, ids, n, form.g);
    r.lora = adapter;
    if (!s) s = opt_samplers_put(&r.params, &breakers, &o->samplers, tok, m->cfg->vocab, err);
    if (!s) s = ans_run(a, e, &r, c->json ? NULL : print_text, NULL, c->job, err);
    t->prompt = (a->t_first > 0 ? a->t_first : a->t_end) - a->t_begin;
    t->decode = o->beams ? 0 : a->t_last - a->t_first;
    if (e) eng_stats_get(e, &stats);
    t->guesses = (double)stats.guesses;
    t->right = (double)stats.right;
    t->sent = (double)stats.sent;
    eng_close(e);
    lora_unref(adapter);
    structured_close(&form);
    dry_breakers_free(&breakers);
    free(ids);
    return s;
}

/* What a GPU is to have room for: of a short prompt and its answer no more than those. */
static load_beside beside_of(const run_opts *o)
{
    const eng_opts eo = engine_of(o);
    load_beside b = eng_beside(&eo);
    if (o->lora) b.also += adapters_path_bytes(o->lora);
    if (b.exact || o->chat || o->beams || !(o->prompt || o->ids)) return b;
    /* A token has a character or more; before them a few that a model wants at the beginning. */
    const size_t prompt = strlen(o->prompt ? o->prompt : o->ids) + 16;
    b.tokens = (int64_t)prompt + o->max_tokens;
    return b;
}

static lq_status run_check(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const run_opts *o = opts;
    const bool given = c->argc > 1;
    if (given + !!o->prompt + !!o->file + !!o->ids != 1)
        return lq_fail(err, LQ_EUSAGE, "expected one of PROMPT, --prompt, --prompt-file and --ids");
    if (!o->chat && o->model.chat_template)
        return lq_fail(err, LQ_EUSAGE, "--chat-template goes with --chat");
    if (o->chat ? o->ids != NULL : o->system != NULL)
        return lq_fail(err, LQ_EUSAGE,
                       o->chat ? "--chat needs a text, not --ids" : "--system goes with --chat");
    if (o->beams
            ? opt_given(c, "temperature") || opt_given(c, "top-k") || opt_given(c, "top-p") ||
                  opt_given(c, "min-p") || opt_given(c, "seed") || opt_samplers_draw(&o->samplers)
            : opt_given(c, "length-penalty") || opt_given(c, "early-stopping"))
        return lq_fail(err, LQ_EUSAGE,
                       o->beams ? "--beams draws nothing: without --temperature, --top-k, --top-p, "
                                  "--min-p and --seed"
                                : "--length-penalty and --early-stopping go with --beams");
    return LQ_OK;
}

static lq_status run_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    run_opts own = *(const run_opts *)opts;
    const run_opts *o = &own;
    gen_defaults g;
    if (c->argc > 1) own.prompt = c->argv[1];
    ans_answer a = { 0 };
    load_model l = { 0 }, draft = { 0 };
    load_tok tok = { 0 };
    pool *p = NULL;
    timings t = { 0 };
    double start = lq_now();
    bool over = false;
    lq_status s = opt_guesses(&own.guesses, o->ngram, o->mtp, o->draft, err);
    if (!s) s = load_ranks(&over, c, &o->model, c->argv[0], err);
    if (over) return s;
    if (!s) s = load_start(&p, c, &o->model, err);
    load_opts how = load_opts_of(c, &o->model);
    how.beside = beside_of(o);
    if (!s) s = load_model_open(&l, c->argv[0], &how, p, c, err);
    if (!s) s = load_tok_open(&tok, l.src, c->argv[0], err);
    if (s == LQ_ENOENT && l.src && o->ids) s = LQ_OK; /* ids in, ids out */
    if (!s) s = load_stops(&l, tok.t, err);
    if (!s) s = load_gen(&g, l.src, c->argv[0], err);
    if (!s) take_defaults(&own, &g, c);
    const load_guess guess = { .path = o->draft, .load = &how, .p = p, .job = c->job };
    const bool guesses = o->draft || o->mtp;
    if (!s && guesses) s = load_guess_open(&draft, &l, tok.t, &guess, err);
    prog_end();
    t.load = lq_now() - start;
    if (!s) s = generate(&a, &t, c, o, &l.m, load_guess_opened(&draft), tok.t, p, err);
    if (!s && !tok.t && !c->json) print_ids(&a);
    if (!s) s = run_report(c, &a, &t, err);
    load_tok_close(&tok);
    load_model_close(&draft);
    load_model_close(&l);
    pool_close(p);
    ans_free(&a);
    return s;
}

const cmd_row cmd_run = {
    .name = "run",
    .summary = "answer one prompt",
    .details =
        "The answer is written to stdout as it comes, the figures to stderr. The same "
        "options and seed give the same bytes, whatever the threads. What is not given here is "
        "taken from the model's generation_config.json, where it has one.",
    .args = { { "MODEL", 1, 1, OPT_MODEL_HELP, FILES_MODEL },
              { "PROMPT", 0, 1, "the same as --prompt PROMPT", FILES_NONE } },
    .groups = { OPT_GROUP("Prompt", prompt_rows, 0), OPT_GROUP("Answer", answer_rows, 0),
                OPT_GROUP("Structured output", opt_structured_rows, F(structured)),
                OPT_GROUP("Sampling", sampling_rows, 0),
                OPT_GROUP("More samplers", opt_samplers_rows, F(samplers)),
                OPT_GROUP("Beam search", beam_rows, 0), OPT_GROUP("Memory", engine_rows, 0),
                OPT_GROUP("Speculation", guess_rows, 0), OPT_GROUP("Adapter", adapter_rows, 0),
                OPT_GROUP("Running the model", opt_model_rows, F(model)),
                OPT_GROUP("Quantizing while loading", inflight_rows, F(inflight)) },
    .examples = "llmq run model.llmq -p 'Once upon a time'\0"
                "llmq run model.llmq -p 'It was' -n 64 --temperature 0.8 --top-p 0.95 --seed 7\0"
                "llmq run ORG/NAME-GGUF --chat 'Who wrote Emma?'\0"
                "llmq run model.llmq --prompt-file essay.txt --stop 'THE END' --json\0"
                "llmq run model.llmq --chat --system 'Be brief.' -p 'Who wrote Emma?'\0"
                "llmq run model.llmq -p 'Is it true? ' --choice yes,no\0"
                "llmq run folder --ids 1,15,27 -n 8 --json\0",
    .opts_bytes = sizeof(run_opts),
    .check = run_check,
    .run = run_run,
    .processes = CMD_SHARED,
};
