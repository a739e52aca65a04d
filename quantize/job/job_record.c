/* quantize/job/job_record.c - recipe, provenance and the key of a run. */
#include <cblas.h>
#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/path.h"
#include "base/version.h"
#include "formats/llmq/llmq.h"
#include "kernels/ops.h"
#include "quantize/job/job_impl.h"

static const char self_name[] = "self";

/* What the model is to write is known before; its hash is not. */
static void plan_self(cJSON *calibration, const qz_job *j)
{
    cJSON *files = cJSON_GetObjectItemCaseSensitive(calibration, "files");
    if (!j->self_windows) return;
    if (!files) files = cJSON_AddArrayToObject(calibration, "files");
    cJSON *f = cJSON_CreateObject();
    cJSON_AddItemToArray(files, f);
    cJSON_AddStringToObject(f, "name", self_name);
    cJSON_AddStringToObject(f, "kind", self_name);
    cJSON_AddNumberToObject(f, "windows", (double)j->self_windows);
    cJSON_AddNumberToObject(f, "tokens", (double)(j->self_windows * j->samples->len));
}

cJSON *job_self_record(const cJSON *provenance)
{
    const cJSON *calibration = cJSON_GetObjectItemCaseSensitive(provenance, "calibration");
    cJSON *f;
    cJSON_ArrayForEach(f, cJSON_GetObjectItemCaseSensitive(calibration, "files"))
    {
        const cJSON *kind = cJSON_GetObjectItemCaseSensitive(f, "kind");
        if (cJSON_IsString(kind) && strcmp(kind->valuestring, self_name) == 0) return f;
    }
    return NULL;
}

/* NULL: out of memory. */
static cJSON *provenance(const job_run *r)
{
    lq_hash h;
    char hex[33];
    if (src_fingerprint(&h, r->src, NULL)) return NULL;
    cJSON *o = cJSON_CreateObject(), *src = cJSON_AddObjectToObject(o, "source");
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(o, "llmq", LLMQ_VERSION);
    cJSON_AddStringToObject(src, "format", src_format(r->src));
    cJSON_AddStringToObject(src, "xxh3", hex);
    if (!r->j->samples) return o;
    cJSON *cal = cal_samples_json(r->j->samples);
    cJSON_AddNumberToObject(cal, "seed", (double)r->j->seed);
    if (r->j->stats) cJSON_AddStringToObject(cal, "inputs", "source"); /* of no rounded layers */
    plan_self(cal, r->j);
    cJSON_AddItemToObject(o, "calibration", cal);
    cJSON_AddStringToObject(o, "kernels", r->j->reproducible ? "any" : k_name());
    cJSON_AddStringToObject(o, "blas", openblas_get_corename());
    return o;
}

/* *what borrows recipe and provenance: everything that the tensors of the result follow from. */
lq_status job_describe(job_run *r, cJSON **what, lq_err *err)
{
    cJSON *config = arch_config_json(&r->plan.cfg);
    r->recipe = qz_recipe(r->j->o);
    r->provenance = provenance(r);
    *what = cJSON_CreateObject();
    if (!config || !cJSON_AddItemToObject(*what, "config", config)) cJSON_Delete(config);
    if (!js_ran_out() && *what && config && r->recipe && r->provenance &&
        cJSON_AddItemReferenceToObject(*what, "recipe", r->recipe) &&
        cJSON_AddItemReferenceToObject(*what, "provenance", r->provenance) &&
        cJSON_AddStringToObject(*what, QZ_STATE_TO, r->j->to ? r->j->to : "llmq"))
        return LQ_OK;
    return lq_fail(err, LQ_ENOMEM, "no memory for the recipe");
}

/* The files that travel along are part of the result; tokenizer.blob follows from them. */
static bool same_blobs(const lqf_file *f, const src_source *src)
{
    size_t same = 0, want = 0;
    for (size_t i = 0; i < src_n_blobs(src); i++)
        want += strcmp(src_blob_at(src, i)->name, "tokenizer.blob") != 0;
    for (size_t i = 0; i < f->n_blobs; i++) {
        const lqf_blob *b = &f->blobs[i];
        if (strcmp(b->name, "tokenizer.blob") == 0) continue;
        const src_blob *s = src_find_blob(src, b->name);
        if (!s || s->bytes != b->span.bytes || memcmp(s->data, b->span.data, s->bytes) != 0)
            return false;
        same++;
    }
    return same == want;
}

/* With --resume, is OUT what this run would make? Then there is nothing left to do. (A check is no
 * part of what was asked for.) */
bool job_already_there(const job_run *r, qz_check *check)
{
    lqf_file f;
    if (!lq_exists(r->out_path) || lqf_open(&f, r->out_path, NULL)) return false;
    qz_check_read(check, f.provenance);
    cJSON *p = cJSON_Duplicate(f.provenance, true);
    cJSON_DeleteItemFromObjectCaseSensitive(p, "check");
    cJSON_DeleteItemFromObjectCaseSensitive(job_self_record(p), "xxh3");
    cJSON_DeleteItemFromObjectCaseSensitive(job_self_record(p), "missing");
    bool same = f.recipe && p && cJSON_Compare(f.recipe, r->recipe, true) &&
                cJSON_Compare(p, r->provenance, true) && same_blobs(&f, r->src);
    cJSON_Delete(p);
    lqf_close(&f);
    return same;
}

/* What another version of llmq made, or of other files beside the weights, may be made again. */
lq_status job_check_other(const job_run *r, lq_err *err)
{
    lqf_file f;
    if (!lq_exists(r->out_path)) return LQ_OK;
    lq_status s = lqf_open(&f, r->out_path, err);
    if (s) return s;
    const cJSON *source = js_get(f.provenance, "source"), *ours = js_get(r->provenance, "source");
    if (!source || !cJSON_Compare(source, ours, true))
        s = lq_fail(err, LQ_EUSAGE, "%s: holds another model; remove it, or name another file",
                    r->out_path);
    else if (!f.recipe || !cJSON_Compare(f.recipe, r->recipe, true))
        s = lq_fail(err, LQ_EUSAGE,
                    "%s: holds this model by another recipe; remove it, or name another file",
                    r->out_path);
    lqf_close(&f);
    return s;
}
