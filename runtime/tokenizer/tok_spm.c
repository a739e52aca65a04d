/* runtime/tokenizer/tok_spm.c - tokenizer.model: SentencePiece's protobuf to the blob.
 *
 * BPE takes as merges all ways to cut a piece into two others, ranked by the piece's score; equal
 * scores rank alike, so that the leftmost goes first, as there. Unigram searches the normal pieces.
 * User-defined pieces are cut out of the text before and after it is normalized; control pieces and
 * the unknown one are special tokens, as transformers has them.
 * Source: sentencepiece src/sentencepiece_model.proto, normalizer.cc, bpe_model.cc,
 * unigram_model.cc; transformers' conversion of slow tokenizers. */
#include "formats/hf/spm.h"
#include "runtime/tokenizer/tok_int.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- vocabulary ---- */
static lq_status bad(lq_err *err, const char *what)
{
    return lq_fail(err, LQ_EFORMAT, "tokenizer.model: %s", what);
}

static lq_status put_pieces(tok_builder *b, const spm_model *m, lq_err *err)
{
    lq_status s = tok_begin_vocab(b, m->n, m->n, err);
    for (size_t i = 0; i < m->n && !s; i++) {
        const spm_piece *p = &m->pieces[i];
        if (tok_find_text(b, p->text.p, p->text.n) != TOK_NONE)
            return lq_fail(err, LQ_EFORMAT, "tokenizer.model: piece %zu '%.*s' is there twice", i,
                           p->text.n > 60 ? 60 : (int)p->text.n, (const char *)p->text.p);
        s = tok_put_token(b, tok_put_bytes(b, p->text.p, p->text.n), (uint32_t)i, err);
        if (p->type != SPM_UNKNOWN) continue;
        if (b->head.unk != TOK_NONE) return bad(err, "two unknown pieces");
        b->head.unk = (uint32_t)i;
    }
    if (!s && b->head.unk == TOK_NONE && !m->byte_fallback) return bad(err, "no unknown piece");
    return s;
}

/* The ids by falling score; those that never merge are left out. */
typedef struct {
    float score;
    uint32_t id;
} ranked;

static int by_score(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static lq_status put_bpe(tok_builder *b, const spm_model *m, lq_err *err)
{
    ranked *order = malloc(m->n * sizeof *order);
    uint32_t *rank = malloc(m->n * sizeof *rank), r = 0;
    size_t n = 0;
    lq_status s = order && rank ? LQ_OK : tok_oom(err);
    for (size_t i = 0; i < m->n && !s; i++) {
        rank[i] = TOK_NONE;
        if (m->pieces[i].type == SPM_NORMAL)
            order[n++] = (ranked){ m->pieces[i].score, (uint32_t)i };
    }
    if (!s && n) qsort(order, n, sizeof *order, by_score);
    for (size_t i = 0; i < n && !s; i++) {
        if (i && order[i].score != order[i - 1].score) r++;
        rank[order[i].id] = r;
    }
    b->head.model = TOK_BPE;
    b->head.flags |= TOK_FUSE_UNK;
    if (!s) s = tok_put_splits(b, rank, err);
    free(order);
    free(rank);
    return s;
}

static lq_status put_unigram(tok_builder *b, const spm_model *m, lq_err *err)
{
    float lowest = 0;
    bool any = false;
    for (size_t i = 0; i < m->n; i++)
        if (m->pieces[i].type == SPM_NORMAL && (!any || m->pieces[i].score < lowest))
            any = true, lowest = m->pieces[i].score;
    /* The score of an unknown is taken from the lowest of all: what is no normal piece keeps out.
     */
    for (size_t i = 0; i < m->n; i++) {
        const spm_piece *p = &m->pieces[i];
        double score = p->type == SPM_NORMAL ? (double)p->score : (double)(lowest > 0 ? lowest : 0);
        lq_buf_add(&b->scores, &score, sizeof score);
    }
    for (size_t i = 0; i < m->n; i++)
        if (m->pieces[i].type != SPM_NORMAL) {
            uint32_t id = (uint32_t)i;
            lq_buf_add(&b->apart, &id, sizeof id);
        }
    b->head.model = TOK_UNIGRAM;
    b->head.flags |= TOK_SENTENCEPIECE;
    return b->apart.oom || b->scores.oom ? tok_oom(err) : LQ_OK;
}

/* ---- what surrounds the model ---- */
static lq_status put_user_defined(tok_builder *b, const spm_model *m, lq_err *err)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->pieces[i].type != SPM_USER_DEFINED) continue;
        tok_added a = { .id = (uint32_t)i, .flags = TOK_NORMALIZED | TOK_VERBATIM };
        a.text = ((const tok_str *)(const void *)b->tokens.u)[i];
        lq_buf_add(&b->added, &a, sizeof a);
    }
    return b->added.oom ? tok_oom(err) : LQ_OK;
}

static bool add_special(cJSON *list, const spm_piece *p)
{
    char *text = strndup((const char *)p->text.p, p->text.n);
    cJSON *o = text ? cJSON_CreateObject() : NULL;
    bool ok = o && cJSON_AddStringToObject(o, "content", text) &&
              cJSON_AddTrueToObject(o, "special") && cJSON_AddItemToArray(list, o);
    if (!ok) cJSON_Delete(o);
    free(text);
    return ok;
}

/* added_tokens: control and unknown pieces, then what the folder's configuration says. */
static lq_status put_specials(cJSON *root, const spm_model *m, lq_err *err)
{
    cJSON *list = cJSON_CreateArray(), *more = cJSON_DetachItemFromObject(root, "added_tokens");
    bool ok = list != NULL;
    for (size_t i = 0; i < m->n && ok; i++)
        if (m->pieces[i].type == SPM_CONTROL || m->pieces[i].type == SPM_UNKNOWN)
            ok = add_special(list, &m->pieces[i]);
    while (ok && more && more->child)
        ok = cJSON_AddItemToArray(list, cJSON_DetachItemViaPointer(more, more->child));
    cJSON_Delete(more);
    if (ok) ok = cJSON_AddItemToObject(root, "added_tokens", list);
    if (!ok) cJSON_Delete(list);
    return ok ? LQ_OK : tok_oom(err);
}

static lq_status put_decoder(cJSON *root, bool escape, bool prefix, lq_err *err)
{
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},";
    static const char strip[] = ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}";
    char text[512];
    snprintf(text, sizeof text,
             "{\"type\":\"Sequence\",\"decoders\":[%s{\"type\":\"ByteFallback\"},{\"type\":"
             "\"Fuse\"}%s]}",
             escape ? replace : "", prefix ? strip : "");
    cJSON *o = cJSON_Parse(text);
    return o && cJSON_AddItemToObject(root, "decoder", o) ? LQ_OK : tok_oom(err);
}

static uint32_t normalizer_flags(const spm_model *m, bool legacy)
{
    uint32_t f = m->escape ? TOK_SP_ESCAPE : 0;
    if (m->dummy_prefix) f |= TOK_SP_PREFIX;
    if (m->suffix) f |= TOK_SP_SUFFIX;
    if (m->squeeze) f |= TOK_SP_SQUEEZE;
    return legacy ? f : f | TOK_SP_FIRST_ONLY;
}

lq_status tok_compile_spm(uint8_t **blob, size_t *blob_bytes, const uint8_t *data, size_t n,
                          tok_folder *f, lq_err *err)
{
    tok_builder b;
    spm_model m = { 0 };
    tok_build_init(&b, "tokenizer.model");
    b.ids_given = true;
    lq_status s = spm_read(&m, data, n, err);
    if (!s && f->no_prefix) m.dummy_prefix = false;
    if (!s) s = put_pieces(&b, &m, err);
    if (!s && m.byte_fallback) b.head.flags |= TOK_BYTE_FALLBACK;
    if (!s) s = m.type == SPM_BPE ? put_bpe(&b, &m, err) : put_unigram(&b, &m, err);
    if (!s) s = put_user_defined(&b, &m, err);
    if (!s) s = put_specials(f->tree, &m, err);
    if (!s) s = put_decoder(f->tree, m.escape, m.dummy_prefix && !m.suffix, err);
    if (!s) s = tok_put_template(&b, f->tree, f, err);
    if (!s) s = tok_compile_rest(&b, f->tree, err);
    if (!s)
        s = tok_put_sentencepiece(&b, m.charsmap.p, m.charsmap.n, normalizer_flags(&m, f->legacy),
                                  err);
    if (!s) s = tok_build_finish(&b, blob, blob_bytes, err);
    spm_free(&m);
    tok_build_free(&b);
    return s;
}
