/* runtime/chat/rerank.c - see rerank.h. */
#include "runtime/chat/rerank.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>

struct rerank_format {
    tmpl_template *t;    /* NULL: query and document follow each other */
    const chat_set *set; /* for its special tokens; NULL: none */
    const tok_tokenizer *tok;
    int32_t labels[2];
    bool scored, paired;
};

/* What the authors of Qwen3-Reranker document. */
static const char qwen3[] =
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n"
    "<Instruct>: {{ messages|selectattr('role', 'eq', 'system')|map(attribute='content')|first|"
    "default('Given a web search query, retrieve relevant passages that answer the query') }}\n"
    "<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n";

void rerank_close(rerank_format *f)
{
    if (!f) return;
    tmpl_free(f->t);
    free(f);
}

const int32_t *rerank_labels(const rerank_format *f) { return f->scored ? NULL : f->labels; }

/* ---- the template ---- */

/* {query} and {document} as Jinja spells them; a newline at the end, which Jinja drops, stays. */
static lq_status to_jinja(lq_buf *to, const char *text, lq_err *err)
{
    static const struct {
        const char *from, *to;
    } marks[] = { { "{query}", "{{ query }}" }, { "{document}", "{{ document }}" } };
    for (const char *at = text; *at;) {
        size_t i = 0;
        while (i < LQ_COUNT(marks) && strncmp(at, marks[i].from, strlen(marks[i].from)) != 0)
            i++;
        if (i < LQ_COUNT(marks)) {
            lq_buf_puts(to, marks[i].to);
            at += strlen(marks[i].from);
        } else {
            lq_buf_add(to, at++, 1);
        }
    }
    lq_buf_puts(to, "{{ '' }}");
    return to->oom ? lq_fail(err, LQ_ENOMEM, "rerank template: out of memory") : LQ_OK;
}

static lq_status parse(rerank_format *f, const char *text, lq_err *err)
{
    lq_buf b = { 0 };
    const bool marked = strstr(text, "{query}") && strstr(text, "{document}");
    lq_status s = marked ? to_jinja(&b, text, err) : LQ_OK;
    if (!s) s = tmpl_parse(&f->t, marked ? b.p : text, marked ? b.n : strlen(text), err);
    lq_buf_free(&b);
    return s;
}

static bool add_message(cJSON *messages, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();
    const bool ok = cJSON_AddStringToObject(m, "role", role) &&
                    cJSON_AddStringToObject(m, "content", content) &&
                    cJSON_AddItemToArray(messages, m);
    if (!ok) cJSON_Delete(m);
    return ok;
}

static bool add_copy(cJSON *o, const cJSON *v)
{
    if (cJSON_GetObjectItemCaseSensitive(o, v->string)) return true;
    cJSON *copy = cJSON_Duplicate(v, true);
    const bool ok = copy && cJSON_AddItemToObject(o, v->string, copy);
    if (!ok) cJSON_Delete(copy);
    return ok;
}

static cJSON *variables(const rerank_format *f, const rerank_pair *p, const char *const roles[2])
{
    cJSON *o = cJSON_CreateObject(), *messages = cJSON_AddArrayToObject(o, "messages");
    bool ok = messages && cJSON_AddStringToObject(o, "query", p->query) &&
              cJSON_AddStringToObject(o, "document", p->document) &&
              cJSON_AddBoolToObject(o, "add_generation_prompt", true);
    if (ok && p->instruction) ok = add_message(messages, "system", p->instruction);
    ok = ok && add_message(messages, roles[0], p->query) &&
         add_message(messages, roles[1], p->document);
    const cJSON *const more[] = { p->kwargs, f->set ? chat_set_tokens(f->set) : NULL };
    for (size_t i = 0; i < LQ_COUNT(more); i++)
        for (const cJSON *v = more[i] ? more[i]->child : NULL; ok && v; v = v->next)
            ok = add_copy(o, v);
    if (ok) return o;
    cJSON_Delete(o);
    return NULL;
}

static const char *const roles[2] = { "query", "document" };

static lq_status render(const rerank_format *f, const rerank_pair *p, const char *const as[2],
                        char **text, uint8_t **own, size_t *n, lq_err *err)
{
    cJSON *vars = variables(f, p, as);
    *text = NULL;
    *own = NULL;
    lq_status s = vars ? tmpl_render_own(f->t, vars, text, own, n, err)
                       : lq_fail(err, LQ_ENOMEM, "rerank template: out of memory");
    cJSON_Delete(vars);
    return s;
}

/* The template shows both messages, and otherwise than those of roles that nobody knows. */
static bool knows_roles(const rerank_format *f)
{
    static const char *const nobody[2] = { "quxxx", "docuxxxx" };
    const rerank_pair p = { .query = "PROBEQ", .document = "PROBED" };
    char *a = NULL, *b = NULL;
    uint8_t *unused[2];
    size_t n = 0;
    if (render(f, &p, roles, &a, &unused[0], &n, NULL)) a = NULL;
    if (render(f, &p, nobody, &b, &unused[1], &n, NULL)) b = NULL;
    bool knows = a && strstr(a, p.query) && strstr(a, p.document);
    for (int i = 0; knows && i < 2; i++)
        for (char *at = b; at && (at = strstr(at, nobody[i])); at++)
            memcpy(at, roles[i], strlen(roles[i]));
    knows = knows && !(b && strcmp(a, b) == 0);
    free(a);
    free(b);
    free(unused[0]);
    free(unused[1]);
    return knows;
}

static lq_status take_choice(rerank_format *f, const char *choice, lq_err *err)
{
    char *text = NULL;
    size_t n = 0;
    lq_status s = strcmp(choice, "qwen3-reranker") == 0
                      ? parse(f, qwen3, err)
                      : lq_read_file(&text, &n, choice, CHAT_MAX_TEMPLATE, err);
    if (text) s = parse(f, text, err);
    free(text);
    return s ? lq_wrap(err, s, "--rerank-template") : LQ_OK;
}

static lq_status take_own(rerank_format *f, lq_err *err)
{
    static const char *const names[] = { "rerank", "reranker", "default" };
    for (size_t i = 0; f->set && i < LQ_COUNT(names); i++) {
        const char *text = chat_set_text(f->set, names[i]);
        lq_status s = text ? parse(f, text, err) : LQ_ENOENT;
        const bool chat = i == LQ_COUNT(names) - 1;
        if (!s && (!chat || knows_roles(f))) return LQ_OK;
        if (s == LQ_ENOMEM || (s && s != LQ_ENOENT && !chat)) return s;
        tmpl_free(f->t);
        f->t = NULL;
    }
    return lq_fail(err, LQ_ENOENT,
                   "the model has no template that judges a document: --rerank-template NAME gives "
                   "it one");
}

/* ---- the labels ---- */

static lq_status find_label(rerank_format *f, int i, const char *text, size_t n, lq_err *err)
{
    int32_t *ids = NULL;
    size_t count = 0;
    lq_status s = tok_encode(f->tok, text, n, 0, &ids, &count, err);
    if (!s && count != 1)
        s = lq_fail(err, LQ_EVALUE, "--rerank-labels: '%.*s': expected one token, found %zu",
                    (int)n, text, count);
    if (!s) f->labels[i] = ids[0];
    free(ids);
    return s;
}

static lq_status find_labels(rerank_format *f, const char *text, lq_err *err)
{
    const char *comma = strchr(text, ',');
    if (!comma)
        return lq_fail(err, LQ_EVALUE, "--rerank-labels: expected two words YES,NO, found '%s'",
                       text);
    lq_status s = find_label(f, 0, text, (size_t)(comma - text), err);
    return s ? s : find_label(f, 1, comma + 1, strlen(comma + 1), err);
}

/* The model's own score is the judgement. */
static lq_status take_score(rerank_format *f, const rerank_choice *choice, lq_err *err)
{
    f->scored = true;
    f->paired = choice->paired;
    if (choice->labels)
        return lq_fail(err, LQ_EVALUE,
                       "--rerank-labels: the model judges by a score, not by words");
    if (choice->scores == 1) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "the model gives %lld scores, and a judgement is one",
                   (long long)choice->scores);
}

lq_status rerank_open(rerank_format **out, const chat_set *set, const tok_tokenizer *tok,
                      const rerank_choice *choice, lq_err *err)
{
    *out = NULL;
    rerank_format *f = calloc(1, sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "rerank template: out of memory");
    f->set = set;
    f->tok = tok;
    lq_status s = choice->template ? take_choice(f, choice->template, err) : take_own(f, err);
    if (choice->scores && (!s || (s == LQ_ENOENT && !choice->template)))
        s = take_score(f, choice, err);
    else if (!s)
        s = find_labels(f, choice->labels ? choice->labels : "yes,no", err);
    if (s)
        rerank_close(f);
    else
        *out = f;
    return s;
}

/* ---- prompts ---- */

static lq_status too_long(size_t n, const rerank_pair *p, lq_err *err)
{
    return lq_fail(err, LQ_ESHAPE, "query and document have %zu bytes, expected at most %zu", n,
                   p->max_bytes);
}

/* As a tokenizer encodes two texts; where it has nothing for a pair, each with the special tokens of a text. */
static lq_status join(const rerank_format *f, int32_t *const part[2], const size_t len[2],
                      rerank_prompt *out, lq_err *err)
{
    int32_t *whole[2] = { NULL, NULL };
    size_t n[2] = { 0, 0 };
    lq_status s = tok_add_special_pair(f->tok, part[0], len[0], part[1], len[1], &out->ids, &out->n,
                                       &out->n_first, err);
    if (s != LQ_EUNSUPPORTED || f->paired) return s;
    s = LQ_OK;
    for (int i = 0; i < 2 && !s; i++)
        s = tok_add_special(f->tok, part[i], len[i], &whole[i], &n[i], err);
    if (!s && !(out->ids = malloc((n[0] + n[1] + 1) * sizeof *out->ids)))
        s = lq_fail(err, LQ_ENOMEM, "query and document: out of memory");
    for (int i = 0; i < 2 && !s; i++) {
        memcpy(out->ids + out->n, whole[i], n[i] * sizeof *out->ids);
        out->n += n[i];
    }
    free(whole[0]);
    free(whole[1]);
    return s;
}

/* Of two texts that are too long together the longer ends where it is as long as the other, then both do; of an odd
 * number the second has one more, or the longer. */
static void cut_longer(size_t len[2], size_t most)
{
    if (len[0] + len[1] <= most) return;
    const int longer = len[0] > len[1] ? 0 : 1;
    size_t few = len[!longer], many = most > 2 * few ? most - few : few;
    if (few + many > most) {
        few = most / 2;
        many = few + most % 2;
    }
    len[!longer] = few;
    len[longer] = many;
}

static lq_status cut_pair(const rerank_format *f, size_t len[2], size_t most, lq_err *err)
{
    const size_t none[2] = { 0, 0 };
    int32_t *const part[2] = { NULL, NULL };
    rerank_prompt special = { 0 };
    const lq_status s = join(f, part, none, &special, err);
    free(special.ids);
    if (s) return s;
    if (most < special.n)
        return lq_fail(err, LQ_EUSAGE,
                       "expected at least the %zu special tokens of a pair, found %zu", special.n,
                       most);
    cut_longer(len, most - special.n);
    return LQ_OK;
}

static lq_status encode_both(const rerank_format *f, const rerank_pair *p, rerank_prompt *out,
                             lq_err *err)
{
    const char *const texts[] = { p->query, p->document };
    int32_t *part[2] = { NULL, NULL };
    size_t len[2] = { 0, 0 };
    const size_t bytes = strlen(p->query) + strlen(p->document);
    if (p->instruction || (p->kwargs && p->kwargs->child))
        return lq_fail(err, LQ_EVALUE,
                       "the model has no template that an instruction would go into");
    if (p->max_bytes && bytes > p->max_bytes) return too_long(bytes, p, err);
    lq_status s = LQ_OK;
    for (int i = 0; i < 2 && !s; i++)
        s = tok_encode(f->tok, texts[i], strlen(texts[i]), TOK_PLAIN_SPECIAL, &part[i], &len[i],
                       err);
    if (!s && p->max_tokens) s = cut_pair(f, len, p->max_tokens, err);
    if (!s) s = join(f, part, len, out, err);
    free(part[0]);
    free(part[1]);
    return s;
}

lq_status rerank_encode(const rerank_format *f, const rerank_pair *p, rerank_prompt *out,
                        lq_err *err)
{
    char *text;
    uint8_t *own;
    size_t n_text = 0;
    *out = (rerank_prompt){ 0 };
    if (!f->t) return encode_both(f, p, out, err);
    if (p->max_tokens)
        return lq_fail(err, LQ_EUSAGE,
                       "not of a prompt that a template makes, whose question may be at its end: "
                       "max_tokens_per_doc cuts documents");
    lq_status s = render(f, p, roles, &text, &own, &n_text, err);
    if (!s && p->max_bytes && n_text > p->max_bytes) s = too_long(n_text, p, err);
    if (!s) s = tok_encode_own(f->tok, text, own, n_text, &out->ids, &out->n, err);
    free(own);
    free(text);
    return s;
}
