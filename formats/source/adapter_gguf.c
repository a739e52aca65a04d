/* formats/source/adapter_gguf.c - an adapter in a GGUF file, as llama.cpp's convert_lora_to_gguf.py
 * writes it:
 *
 *     general.type "adapter", adapter.type "lora", adapter.lora.alpha
 *     blk.N.NAME.weight.lora_a     [rank, inputs]
 *     blk.N.NAME.weight.lora_b     [outputs, rank], rows as GGUF's architecture has them
 *
 * The scale is alpha / rank, and 1 where alpha is 0. */
#include "formats/source/adapter_impl.h"

#include "base/path.h"
#include "formats/gguf/gguf.h"

#include <stdlib.h>

static lq_status expect(gguf_file *f, const char *key, const char *want, lq_err *err)
{
    const char *v = NULL;
    if (gguf_str(f, key, &v) && strcmp(v, want) == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected \"%s\", found %s%.60s%s", key, want,
                   v ? "\"" : "", v ? v : "nothing", v ? "\"" : "");
}

/* The model's weights, and so B's rows, must be as GGUF's architecture has them. */
static lq_status check_arch(gguf_file *f, const gguf_arch **row, const src_source *base,
                            lq_err *err)
{
    src_source *other = NULL;
    *row = gguf_arch_of(src_config(base));
    if (!*row)
        return lq_fail(err, LQ_EUNSUPPORTED, "expected an architecture that GGUF has, found %s",
                       src_config(base)->row->arch);
    lq_status s = expect(f, "general.architecture", (*row)->gguf, err);
    if (s) return s;
    s = src_gguf_form(&other, base, err);
    if (s != LQ_ENOMEM && (s || other))
        s = lq_fail(err, LQ_EUNSUPPORTED,
                    "GGUF has the weights of %s in another form: expected PEFT's folder",
                    src_config(base)->row->arch);
    src_close(other);
    return s;
}

static lq_status scale_of(float *scale, const void *user, const adp_raw *raw, int64_t rank,
                          lq_err *err)
{
    const double *alpha = user;
    (void)raw, (void)err;
    *scale = *alpha != 0 ? (float)(*alpha / (double)rank) : 1;
    return LQ_OK;
}

static bool find_slot(const arch_config *c, const char *name, size_t n, arch_slot *slot)
{
    char *end;
    const bool block = n > 4 && strncmp(name, "blk.", 4) == 0;
    *slot = (arch_slot){ .layer = -1, .expert = -1 };
    if (block) {
        slot->layer = strtol(name + 4, &end, 10);
        if (end == name + 4 || *end != '.' || slot->layer < 0 || slot->layer >= c->layers)
            return false;
        n -= (size_t)(end + 1 - name);
        name = end + 1;
    }
    const gguf_name *row = gguf_name_find(c, name, n, slot->layer);
    if (!row || row->stacked || row->join != JOIN_NONE) return false;
    slot->role = row->role;
    return arch_has(c, row->role, slot->layer);
}

static lq_status put_tensor(adp_reading *r, const gguf_tensor *t, lq_err *err)
{
    static const char *const ends[] = { ".weight.lora_a", ".weight.lora_b" };
    adp_piece p = { .name = t->name, .n_dims = t->n_dims, .data = t->data };
    const int which = lq_has_ending(t->name, ends[1]);
    arch_slot slot;
    if (!lq_has_ending(t->name, ends[which]))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.200s': expected one named ...%s or ...%s, found another", t->name,
                       ends[0], ends[1]);
    p.dtype = t->type == GGML_F32 ? LQ_F32 : t->type == GGML_F16 ? LQ_F16 : LQ_BF16;
    if (t->type != GGML_F32 && t->type != GGML_F16 && t->type != GGML_BF16)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.200s': expected f32, f16 or bf16, found codes", t->name);
    memcpy(p.shape, t->shape, sizeof t->shape);
    if (!find_slot(src_config(r->base), t->name, strlen(t->name) - strlen(ends[which]), &slot))
        return adp_no_target(r->base, t->name, err);
    return adp_put(r, &slot, t->name, which ? ADP_B : ADP_A, &p, err);
}

static lq_status read_file(adp_adapter *a, gguf_file *f, const src_source *base, lq_err *err)
{
    double alpha = 0;
    adp_reading r = { .base = base, .cap = f->n, .scale = scale_of, .user = &alpha };
    lq_status s = expect(f, "general.type", "adapter", err);
    if (!s) s = expect(f, "adapter.type", "lora", err);
    if (!s) s = check_arch(f, &r.order, base, err);
    if (!s && (!gguf_float(f, "adapter.lora.alpha", &alpha) || !isfinite(alpha)))
        s = lq_fail(err, LQ_EFORMAT, "adapter.lora.alpha: expected a number, found none");
    if (!s && gguf_get(f, "adapter.alora.invocation_tokens"))
        s = lq_fail(err, LQ_EUNSUPPORTED, "adapter.alora.invocation_tokens: expected none");
    r.raw = calloc(f->n + 1, sizeof *r.raw);
    if (!s && !r.raw) s = lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < f->n && !s; i++)
        s = put_tensor(&r, &f->tensors[i], err);
    if (!s) s = adp_finish(a, &r, err);
    free(r.raw);
    return s;
}

lq_status adp_open_gguf(adp_adapter *a, const char *file, const src_source *base, lq_err *err)
{
    gguf_file f;
    lq_status s = gguf_open(&f, file, err);
    if (s) return s;
    s = read_file(a, &f, base, err);
    gguf_close(&f);
    return s;
}
