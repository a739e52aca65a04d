/* formats/gguf/gguf_names.h - what llama.cpp calls architectures, tensors and the keys that only some
 * models have, for reader and writer. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_NAMES_H
#define LLMQ_FORMATS_GGUF_GGUF_NAMES_H

#include "formats/arch/arch.h"

/* Rows of attn_qkv: as config.json's architecture has them, or all of q, then k, then v. */
typedef enum { QKV_AS_STORED, QKV_APART } gguf_qkv;
typedef struct {
    const char *gguf, *hf; /* general.architecture; architectures of config.json */
    bool turned;           /* rows of q and k of a head alternate between its halves */
    const char *when;      /* read where "ARCH.when" is there and not 0, "*X": where a tensor's
                         name ends so; NULL: always */
    bool read_only;        /* not written */
    gguf_qkv qkv;
    const char *eps; /* config.json's key; NULL: rms_norm_eps */
} gguf_arch;
/* Two tensors of the file that are one of ours: experts' gate (with up), MLA's k_b (with v_b). */
typedef enum { JOIN_NONE, JOIN_GATE, JOIN_KEY, JOIN_SECOND } gguf_join;
typedef struct {
    arch_role role;
    const char *gguf;    /* without ".weight", and "blk.N." */
    bool stacked;        /* all experts in one tensor; ours are one by one */
    const char *variant; /* of this row of an architecture alone; NULL: of all */
    gguf_join join;
} gguf_name;
/* A number that one architecture's config.json has, and its key after "ARCH.". */
typedef enum {
    OWN_INT,
    OWN_REAL,
    OWN_INVERSE, /* the field is 1 / number */
    OWN_PATTERN, /* of so many layers the last has no window; read also where it is a list */
    OWN_BOOL,    /* read alone, like the following */
    OWN_HAS      /* true where there is a tensor of this name, else false */
} gguf_own_kind;
typedef struct {
    const char *hf; /* architecture */
    const char *key, *gguf;
    gguf_own_kind kind;
    size_t at; /* of the field in arch_config; of those that are written */
} gguf_own;

/* Keys of generation_config.json after "general.sampling." (llama.cpp since 2025-11). */
#define GGUF_SAMPLING "general.sampling."
typedef struct {
    const char *hf, *gguf;
    bool whole; /* a whole number, else f32 */
} gguf_sampling_key;

extern const gguf_sampling_key gguf_sampling[]; /* ends with hf NULL */
/* Ends with gguf NULL; of a name the first whose `when` fits. */
extern const gguf_arch gguf_archs[];
extern const gguf_own gguf_owns[]; /* ends with hf NULL */

/* The row of a tensor's name in GGUF (n bytes: "attn_q") in this model, of a layer or
 * not; NULL: none. */
const gguf_name *gguf_name_find(const arch_config *c, const char *name, size_t n, bool in_layer);
const gguf_name *gguf_name_of(arch_role r); /* NULL: GGUF has none */

/* Heads within which the rows of a role's matrix are turned; 0: as they are. */
int64_t gguf_turned_heads(const gguf_arch *a, const arch_config *c, arch_role r);
/* Row n of ours is stored as row gguf_stored_row(n) where heads are turned (0: as they are): 2i + j
 * of a head for its j * half + i. */
int64_t gguf_stored_row(int64_t n, int64_t N, int64_t heads);
/* Row n of ours of an R_QKV whose q, k and v are apart in the file: c's are grouped by kv head. */
int64_t gguf_apart_row(int64_t n, const arch_config *c);
/* What GGUF has added to a norm's weights: the 1 of Gemma's (1 + w). */
float gguf_norm_offset(const arch_config *c, const arch_slot *slot);

#endif
