/* formats/source/source_fit.c - what a folder stores against what its config says: an output head of its own or
 * none, tensors that it denies, and experts that are stacked in one tensor. */
#include "base/path.h"
#include "formats/source/source_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the output head ---- */
/* Are both the same values? Quantized ones are not compared: a head with codes is its own. */
static bool same_matrix(const src_tensor *a, const src_tensor *b)
{
    enum { PIECE = 256 };
    if (a->made || b->made || a->t.scheme.kind != QT_DENSE || b->t.scheme.kind != QT_DENSE)
        return false;
    if (a->t.N != b->t.N || a->t.K != b->t.K) return false;
    const qt_span x = a->t.plane[QT_CODES], y = b->t.plane[QT_CODES];
    const lq_dtype dx = a->t.scheme.dtype, dy = b->t.scheme.dtype;
    if (dx == dy) return memcmp(x.data, y.data, x.bytes) == 0;
    float p[PIECE], q[PIECE];
    const size_t all = (size_t)(a->t.N * a->t.K);
    for (size_t i = 0; i < all; i += PIECE) {
        const size_t n = all - i < PIECE ? all - i : PIECE;
        lq_to_f32(p, (const uint8_t *)x.data + i * lq_dtype_bytes(dx), dx, n);
        lq_to_f32(q, (const uint8_t *)y.data + i * lq_dtype_bytes(dy), dy, n);
        if (memcmp(p, q, n * sizeof *p) != 0) return false;
    }
    return true;
}

/* A bias belongs to a head that is not the embedding: the head is then a tensor with the embedding's values. */
static lq_status add_head(src_source *s, const char *name, const src_tensor *embed, lq_err *err)
{
    src_tensor *all = lq_push(&s->arena, (s->n_tensors + 1) * sizeof *all);
    const char *copy = lq_push_str(&s->arena, name, strlen(name));
    if (!all || !copy) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    memcpy(all, s->tensors, s->n_tensors * sizeof *all);
    all[s->n_tensors] = *embed;
    all[s->n_tensors++].name = copy;
    qsort(all, s->n_tensors, sizeof *all, src_by_name);
    s->tensors = all;
    return LQ_OK;
}

static bool has_head_bias(const src_source *s)
{
    char name[256];
    return arch_wants_bias(&s->config, R_HEAD) &&
           arch_tensor_name(&s->config, R_HEAD, -1, -1, true, name, sizeof name) &&
           src_find(s, name);
}

/* A tensor of the head's shape and last name that stands elsewhere, or NULL. */
static const src_tensor *head_elsewhere(const src_source *s, const char *head, const src_tensor *e)
{
    const size_t n = strlen(head);
    for (int64_t i = 0; i < src_n_tensors(s); i++) {
        const src_tensor *t = src_tensor_at(s, i);
        const size_t k = strlen(t->name);
        if (t->plain && t->n_dims == 2 && t->shape[0] == e->shape[0] &&
            t->shape[1] == e->shape[1] && k > n && t->name[k - n - 1] == '.' &&
            strcmp(t->name + k - n, head) == 0)
            return t;
    }
    return NULL;
}

lq_status src_fit_head(src_source *s, lq_err *err)
{
    char head[256], embed[256];
    arch_config *c = &s->config;
    if (!arch_tensor_name(c, R_HEAD, -1, -1, false, head, sizeof head) ||
        !arch_tensor_name(c, R_EMBED, -1, -1, false, embed, sizeof embed))
        return LQ_OK;
    if (c->head != HEAD_WORDS) return LQ_OK;
    const src_tensor *h = src_find(s, head), *e = src_find(s, embed);
    if (h && h->n_dims == 2 && h->shape[0] == arch_words(c)) c->head_more = 0;
    if (c->tied && e && has_head_bias(s)) {
        c->tied = false;
        return h ? LQ_OK : add_head(s, head, e, err);
    }
    if (c->tied == !h || !e || !e->plain || (h && !h->plain)) return LQ_OK;
    if (!h) {
        const src_tensor *other = head_elsewhere(s, head, e);
        if (other)
            return lq_fail(err, LQ_EUNSUPPORTED, "output head: expected '%.100s', found '%.100s'",
                           head, other->name);
        c->tied = true;
        return src_note(s, err,
                        "no output head ('%.100s') is stored, though tie_word_embeddings is false: "
                        "the embedding is used as one",
                        head);
    }
    if (same_matrix(h, e)) return LQ_OK;
    c->tied = false;
    return src_note(s, err,
                    "the output head ('%.100s') differs from the embedding, though "
                    "tie_word_embeddings is true: the stored head is used",
                    head);
}

/* ---- factors on frequencies ---- */
lq_status src_fit_turn(src_source *s, lq_err *err)
{
    enum { MOST = 1024 };
    char name[256];
    float f[MOST];
    const int64_t n = s->config.rope_dims / 2;
    if (!arch_tensor_name(&s->config, R_ROPE_LOG, -1, -1, false, name, sizeof name)) return LQ_OK;
    const src_tensor *t = src_find(s, name);
    if (!t || !t->plain || t->t.scheme.kind != QT_DENSE || t->t.N * t->t.K != n || n > MOST)
        return lq_fail(err, LQ_EVALUE, "%s: tensor '%.100s': expected %lld numbers, found %s",
                       s->path, name, (long long)n, t ? "others" : "none");
    lq_to_f32(f, t->t.plane[QT_CODES].data, t->t.scheme.dtype, (size_t)n);
    const lq_status st = arch_rope_turn(&s->config, f, err);
    return st ? lq_wrap(err, st, "%s: tensor '%.100s'", s->path, name) : LQ_OK;
}

/* ---- an EAGLE-3 draft's layer ---- */
void src_fit_draft(src_source *s)
{
    char name[256];
    arch_config *c = &s->config;
    const arch_row *other = arch_is_eagle(c) ? arch_find(c->row->arch, ARCH_DRAFT_OTHER) : NULL;
    if (!other || (arch_tensor_name(c, R_MTP_EMBED_NORM, -1, -1, false, name, sizeof name) &&
                   src_find(s, name)))
        return;
    c->row = other;
    c->mtp = other->mtp;
}

/* ---- transformers beside the residual ---- */
static bool same_bytes(const src_tensor *a, const src_tensor *b)
{
    return a->raw_dtype == b->raw_dtype && a->raw.bytes == b->raw.bytes &&
           (!a->raw.bytes || memcmp(a->raw.data, b->raw.data, a->raw.bytes) == 0);
}

/* Is a tensor stored by the name that it has where nothing is shared, with other values than the shared one's? */
static bool stores_own(const src_source *s, const arch_config *own, int64_t layer)
{
    char name[256], shared[256];
    for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
        if (!arch_has(own, r, layer) ||
            !arch_tensor_name(own, r, layer, -1, false, name, sizeof name) ||
            !arch_tensor_name(&s->config, r, layer, -1, false, shared, sizeof shared))
            continue;
        const src_tensor *t = strcmp(name, shared) != 0 ? src_find(s, name) : NULL, *u;
        if (t && (!(u = src_find(s, shared)) || !same_bytes(t, u))) return true;
    }
    return false;
}

void src_fit_asides(src_source *s)
{
    arch_config own = s->config;
    if (!own.asides) return;
    own.asides = 0;
    for (int64_t i = 0; i < own.layers; i++)
        own.asides += own.layer[i].mixer == MIX_ATTENTION;
    for (int64_t i = 0; i < own.layers; i++)
        if (arch_is_aside(&own, i) && stores_own(s, &own, i)) s->config.asides = own.asides;
}

/* ---- names of a saved copy ---- */
/* transformers loads with some names replaced, and replaces them back in all layers when it saves, also
 * where the name had been another. */
typedef struct {
    const char *arch, *saved, *own; /* parts of names */
} saved_name;

static const saved_name saved_names[] = {
    { "OlmoHybridForCausalLM", ".feedforward_layer_norm.", ".post_attention_layernorm." },
    { "KimiLinearForCausalLM", ".block_sparse_moe.", ".mlp." },
    { "DeepseekV4ForCausalLM", "model.layers.", "layers." },
    { "DeepseekV4ForCausalLM", "model.norm.", "norm." },
    { "DeepseekV4ForCausalLM", "model.embed_tokens.", "embed." },
    { "DeepseekV4ForCausalLM", "model.hc_head.hc_", "hc_head_" },
    { "DeepseekV4ForCausalLM", ".attn.norm.", ".attn.kv_norm." },
    { "HYV4ForCausalLM", ".mlp.linear_gate.", ".mlp.gate_proj." },
    { "HYV4ForCausalLM", "_experts.linear_gate.", "_experts.gate_proj." },
    { "HYV4ForCausalLM", ".hc_pre.hc_", ".hc_" }, /* its own files have it too */
};

static bool is_needed(const arch_config *c, const char *name)
{
    arch_slot at;
    return arch_slot_of(c, name, &at) && arch_has(c, at.role, at.layer);
}

/* The name that a tensor has in the model's own files: all of the architecture's replacements, one after the
 * other; false: its name is that. */
static bool own_name(char out[256], const src_source *s, const char *name)
{
    char was[256];
    if (is_needed(&s->config, name) || strlen(name) >= sizeof was) return false;
    snprintf(out, 256, "%s", name);
    for (size_t k = 0; k < LQ_COUNT(saved_names); k++) {
        const saved_name *n = &saved_names[k];
        const char *at = strcmp(n->arch, s->config.row->arch) == 0 ? strstr(out, n->saved) : NULL;
        if (!at) continue;
        memcpy(was, out, sizeof was);
        snprintf(out, 256, "%.*s%s%s", (int)(at - out), was, n->own,
                 was + (at - out) + strlen(n->saved));
    }
    return is_needed(&s->config, out) && !src_find(s, out);
}

lq_status src_fit_saved(src_source *s, lq_err *err)
{
    char name[256];
    bool any = false;
    for (size_t k = 0; k < LQ_COUNT(saved_names); k++)
        any |= strcmp(saved_names[k].arch, s->config.row->arch) == 0;
    if (!any) return LQ_OK;
    const char **names = lq_push(&s->arena, (s->n_tensors + 1) * sizeof *names);
    for (size_t i = 0; names && i < s->n_tensors; i++) {
        names[i] = s->tensors[i].name;
        if (own_name(name, s, names[i])) names[i] = lq_push_str(&s->arena, name, strlen(name));
        if (!names[i]) names = NULL;
    }
    if (!names) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    for (size_t i = 0; i < s->n_tensors; i++)
        s->tensors[i].name = names[i];
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    return LQ_OK;
}

/* ---- what the config denies ---- */
static bool all_zero(const src_tensor *t)
{
    const uint8_t *b = t->raw.data;
    for (size_t i = 0; i < t->raw.bytes; i++)
        if (b[i]) return false;
    return t->raw.data;
}

/* Is it one of the architecture's that this model has not? Biases of zeros are written by packers of GPTQ. Of a
 * head src_fit_head decides. */
static bool is_denied(const arch_config *c, const src_tensor *t)
{
    arch_slot at;
    if (!arch_slot_of(c, t->name, &at)) return false;
    if (at.role == R_POS_EMBED) return false; /* DeBERTa's training may leave it */
    if (!at.bias) return at.role != R_HEAD && !arch_has(c, at.role, at.layer);
    return arch_wants_bias(c, at.role) == 0 && !all_zero(t);
}

lq_status src_check_denied(const src_source *s, lq_err *err)
{
    const char *by = strcmp(s->format, "gguf") == 0 ? "the metadata" : "config.json";
    for (size_t i = 0; i < s->n_tensors; i++)
        if (is_denied(&s->config, &s->tensors[i]))
            return lq_fail(err, LQ_EVALUE, "tensor '%.100s': expected none, by %s, found one",
                           s->tensors[i].name, by);
    return LQ_OK;
}

/* ---- stacked experts ---- */
/* transformers 5: gate_up_proj [E, 2 F, H] and down_proj [E, H, F], and the scales of both. */
typedef struct {
    const char *ending; /* behind "layers.N.MLP" */
    bool halves;        /* the rows of gate, then those of up */
    const char *part;   /* of each expert's name, in the place of "weight" */
} stack_name;

static const stack_name stack_names[] = {
    { ".experts.gate_up_proj", true, "weight" },
    { ".experts.down_proj", false, "weight" },
    { ".experts.gate_up_proj_scale_inv", true, "weight_scale_inv" },
    { ".experts.down_proj_scale_inv", false, "weight_scale_inv" },
};

/* Is the layer's first expert where the stack is? The part between layer and experts may have another name
 * (Mixtral's block_sparse_moe is mlp in what transformers 5 saves). */
static bool is_stack_of(const arch_config *c, int64_t layer, const char *name)
{
    char first[256];
    const char *end = strstr(name, ".experts.");
    size_t n = end ? (size_t)(end - name) : 0;
    while (n && name[n - 1] != '.')
        n--;
    return n && arch_tensor_name(c, R_EXPERT_GATE, layer, 0, false, first, sizeof first) &&
           strncmp(first, name, n) == 0;
}

/* What has stacks: the model, or its MTP head (row NULL: there is none). */
typedef struct {
    src_source *s;
    arch_config mtp;
} stack_owner;

/* The kind of stack that a tensor is, whose, and its layer; NULL: none. */
static const stack_name *stack_of(const arch_config **of, int64_t *layer, const stack_owner *o,
                                  const src_tensor *t)
{
    const arch_config *c = &o->s->config;
    const char *at = strstr(t->name, "layers.");
    size_t i = 0;
    long long l;
    while (i < LQ_COUNT(stack_names) && !lq_has_ending(t->name, stack_names[i].ending))
        i++;
    if (i == LQ_COUNT(stack_names) || !at || sscanf(at, "layers.%lld.", &l) != 1 ||
        t->n_dims != 3 || t->shape[0] != c->experts || !t->raw.bytes)
        return NULL;
    const bool model = l >= 0 && l < c->layers && is_stack_of(c, l, t->name);
    *of = model ? c : &o->mtp;
    *layer = model ? l : 0;
    return model || (o->mtp.row && is_stack_of(&o->mtp, 0, t->name)) ? &stack_names[i] : NULL;
}

/* Rows of one expert as a tensor of its own, in place. */
static lq_status put_expert(src_source *s, src_tensor *out, const src_tensor *stack,
                            const arch_config *of, arch_role r, int64_t layer, int64_t e,
                            const stack_name *kind, lq_err *err)
{
    char name[300];
    const bool weight = strcmp(kind->part, "weight") == 0;
    const int64_t rows = stack->shape[1], shared = kind->halves && rows == 1;
    const int64_t n = kind->halves && !shared ? rows / 2 : rows;
    const int64_t from = r == R_EXPERT_UP && !shared ? n : 0, shape[2] = { n, stack->shape[2] };
    const size_t one = stack->raw.bytes / (size_t)(stack->shape[0] * rows);
    arch_tensor_name(of, r, layer, e, false, name, 256);
    if (!weight) snprintf(name + strlen(name) - strlen("weight"), 40, "%s", kind->part);
    const char *copy = lq_push_str(&s->arena, name, strlen(name));
    if (!copy) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    return src_fill_plain(out, copy, stack->raw_dtype, 2, shape,
                          (const uint8_t *)stack->raw.data + (size_t)(e * rows + from) * one,
                          (size_t)n * one, err);
}

/* The experts of a tensor that is a stack, else itself. */
static lq_status unstack(const stack_owner *o, src_tensor *all, size_t *n, const src_tensor *t,
                         lq_err *err)
{
    static const arch_role roles[2][3] = {
        { R_EXPERT_DOWN, ARCH_N_ROLES },
        { R_EXPERT_GATE, R_EXPERT_UP, ARCH_N_ROLES },
    };
    const arch_config *of;
    int64_t layer;
    const stack_name *kind = stack_of(&of, &layer, o, t);
    lq_status st = LQ_OK;
    if (!kind) return all[(*n)++] = *t, LQ_OK;
    if (kind->halves && t->shape[1] != 1 && t->shape[1] % 2)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected rows of gate and up, found %lld",
                       t->name, (long long)t->shape[1]);
    for (int64_t e = 0; e < of->experts; e++)
        for (const arch_role *r = roles[kind->halves]; *r != ARCH_N_ROLES && !st; r++)
            st = put_expert(o->s, &all[(*n)++], t, of, *r, layer, e, kind, err);
    return st;
}

/* Is a layer's stack [experts, outputs, inputs]? Of a square matrix nothing is known. */
static bool is_stack_of_rows(const src_source *s, arch_role r, int64_t layer)
{
    char name[256];
    int64_t N, K;
    if (!arch_tensor_name(&s->config, r, layer, -1, false, name, sizeof name)) return false;
    const src_tensor *t = src_find(s, name);
    arch_role_shape(&s->config, r, &N, &K);
    return t && t->n_dims == 3 && t->shape[1] == N && t->shape[2] == K && N != K;
}

void src_fit_stacked_rows(src_source *s)
{
    int64_t layer = 0;
    arch_config *c = &s->config;
    const arch_row *rows = arch_find(c->row->arch, ARCH_STACKED_ROWS);
    while (layer + 1 < c->layers && !c->layer[layer].moe)
        layer++;
    if (rows &&
        (is_stack_of_rows(s, R_EXPERT_GATE_UP, layer) || is_stack_of_rows(s, R_EXPERT_DOWN, layer)))
        c->row = rows;
}

void src_fit_flat(src_source *s)
{
    const arch_config *c = &s->config;
    arch_slot at;
    for (size_t i = 0; i < s->n_tensors; i++) {
        src_tensor *t = &s->tensors[i];
        if (t->n_dims != 2 || !c->experts || t->shape[0] % c->experts ||
            !arch_slot_of(c, t->name, &at) || !(arch_name_of(c, at.role)->flags & NAME_FLAT))
            continue;
        t->n_dims = 3;
        t->shape[2] = t->shape[1];
        t->shape[1] = t->shape[0] / c->experts;
        t->shape[0] = c->experts;
    }
}

/* All tensors again, by name, with room for `more`. */
static lq_status unstack_all(const stack_owner *o, size_t more, lq_err *err)
{
    src_source *s = o->s;
    size_t n = 0;
    src_tensor *all = lq_push(&s->arena, (s->n_tensors + more) * sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    lq_status st = LQ_OK;
    for (size_t i = 0; i < s->n_tensors && !st; i++)
        st = unstack(o, all, &n, &s->tensors[i], err);
    if (st) return lq_wrap(err, st, "%s", s->path);
    qsort(all, n, sizeof *all, src_by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(all[i - 1].name, all[i].name) == 0)
            return lq_fail(err, LQ_EFORMAT, "%s: tensor '%.100s': stored both alone and stacked",
                           s->path, all[i].name);
    s->tensors = all;
    s->n_tensors = n;
    return LQ_OK;
}

lq_status src_fit_experts(src_source *s, lq_err *err)
{
    const arch_config *c = &s->config, *of;
    const arch_name *a = arch_name_of(c, R_EXPERT_GATE);
    stack_owner o = { .s = s };
    lq_err none; /* no MTP head of such a model is known */
    int64_t layer;
    size_t more = 0;
    if (!c->experts || !a || (a->flags & NAME_STACKED)) return LQ_OK;
    if (arch_config_mtp(&o.mtp, c, &none) == LQ_ENOMEM)
        return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    for (size_t i = 0; i < s->n_tensors; i++)
        more += stack_of(&of, &layer, &o, &s->tensors[i]) ? 2 * (size_t)c->experts : 0;
    const lq_status st = more ? unstack_all(&o, more, err) : LQ_OK;
    arch_config_free(&o.mtp);
    return st;
}
