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
    bool mlp_norm_post;    /* the norm before the MLP is called post_attention_norm */
    gguf_qkv qkv;
    const char *eps;     /* config.json's key; NULL: rms_norm_eps */
    bool sections;       /* llama.cpp needs mrope_section, which text does not */
    bool layered;        /* sizes by layer: gguf_layers.h */
    bool gate_up_one;    /* experts' gate and up are one tensor, as ours */
    bool state;          /* some layers carry a state: gguf_state.h */
    bool ffn_of_experts; /* feed_forward_length is an expert's */
    bool experts;        /* written so only where there are experts */
    bool attends;        /* written so only where no layer carries a state */
    bool lists;          /* heads and widths may be lists: gguf_lists.h */
    bool values;         /* of a width of their own: attention.value_length */
    bool half_turns;     /* of a head that sees everything half rotates, whatever the file says */
    bool tied;           /* llama.cpp runs it without an output head of its own */
    bool
        kv_apart; /* MLA's keys and values are two tensors, and llama.cpp attends to what both read */
    bool whole_heads; /* llama.cpp runs heads that make up hidden alone, and no tied head */
    bool
        all_experts; /* llama.cpp runs experts in each layer, heads that turn whole, and no tied head */
    bool all_heads;    /* llama.cpp runs as many heads of k as of q, all of which turn, by 10000 */
    int64_t blocks;    /* read where there are so many; 0: whatever their number */
    const char *alone; /* read alone: what llama.cpp runs otherwise; NULL: written too */
    /* Its name in config.json where it sees both ways, without words; NULL: neither. */
    const char *both_ways;
    bool two_halves;  /* feed_forward_length is of gate and up together */
    bool gates_apart; /* an MLP's gate and up are two tensors, of ours that are one */
    bool compress;    /* some layers attend to compressed positions: gguf_compress.h */
    bool
        q_factor; /* norms of q and k have no weights, but one factor on q: attn_q_norm; attn_k_norm is 1 */
    bool further; /* its MTP head goes along, as a block after the model's */
    bool ngrams;  /* gguf_ngrams.h */
} gguf_arch;
/* Two tensors of the file that are one of ours: experts' gate (with up), MLA's k_b (with v_b), rows and those after
 * them. */
typedef enum { JOIN_NONE, JOIN_GATE, JOIN_KEY, JOIN_ROWS, JOIN_SECOND } gguf_join;
typedef struct {
    arch_role role;
    const char *gguf;    /* without ".weight", and "blk.N."; or with an ending of its own */
    bool stacked;        /* all experts in one tensor; ours are one by one */
    const char *variant; /* of this row of an architecture, or model_type, alone; NULL: of all */
    gguf_join join;
    arch_mixer mixer; /* of architectures with this one alone; MIX_ATTENTION: of all */
    bool bare;        /* the file's name has no ".weight" */
    bool further;     /* of an MTP head's block alone */
    bool once;        /* a layer's tensor that no block has: there is one such layer */
} gguf_name;
/* A number that one architecture's config.json has, and its key after "ARCH.". */
typedef enum {
    OWN_INT,
    OWN_REAL,
    OWN_INVERSE, /* the field is 1 / number */
    OWN_LIMIT,   /* a real; 0: none, and no key */
    OWN_PATTERN, /* of so many layers the last has no window; read also where it is a list */
    OWN_WINDOWS, /* a list: has a layer a window? Read as a pattern */
    OWN_BOOL,
    OWN_SHARED,     /* shared experts: the field is the width of all of them */
    OWN_SHARED_FFN, /* likewise, but config.json has the width */
    OWN_BLOCKS,     /* the field is in positions of blocks of index_block */
    OWN_TYPES,    /* of each layer: has it a tensor of this name? M3's words of that; read alone */
    OWN_DENSE,    /* layers before the first with experts */
    OWN_STEP,     /* of so many layers the last has experts */
    OWN_GATING,   /* the router's function: 1 softmax, 2 sigmoid */
    OWN_HAS,      /* true where there is a tensor of this name, else false */
    OWN_INDEXERS, /* of each layer: has it an indexer? */
    OWN_ROTATES,  /* of each layer: does it rotate? Where all do, no key */
    OWN_LIMITS, /* of each layer a real, 0: none; `at` is of arch_layer. Where all are 0, no key */
    OWN_RATIO   /* the number is a multiple of hidden; read alone */
} gguf_own_kind;
typedef struct {
    const char *hf;         /* architecture */
    const char *key, *gguf; /* key NULL: written alone, the architecture says it */
    gguf_own_kind kind;
    size_t at; /* of the field in arch_config; 0: the number is read alone */
} gguf_own;

/* Keys of generation_config.json after "general.sampling." (llama.cpp since 2025-11). */
#define GGUF_SAMPLING "general.sampling."
typedef struct {
    const char *hf, *gguf;
    bool whole; /* a whole number, else f32 */
} gguf_sampling_key;

/* A tensor of one number in each layer, which the file has as a list of f32. */
typedef struct {
    arch_role role;
    const char *key;
} gguf_list;

extern const gguf_sampling_key gguf_sampling[]; /* ends with hf NULL */
extern const gguf_list gguf_lists[];            /* ends with key NULL */
/* Ends with gguf NULL; of a name the first whose `when` fits. */
extern const gguf_arch gguf_archs[];
extern const gguf_own gguf_owns[]; /* ends with hf NULL */

/* The row of an architecture; NULL: GGUF has no name for it. */
const gguf_arch *gguf_arch_of(const arch_config *c);
/* The row of a tensor's name in GGUF (n bytes: "attn_q") in this model or MTP head, of a block (-1: of
 * none); of several one that the layer has. NULL: none. */
const gguf_name *gguf_name_find(const arch_config *c, const char *name, size_t n, int64_t layer);
/* The tensors in which the file has this role: 0 (GGUF has none), 1, or 2 that are one of ours. */
int gguf_names_of(const gguf_name *out[2], const gguf_arch *a, const arch_config *c, arch_role r);

/* Is it a tensor that says gguf_arch.q_factor, and none of the model? */
bool gguf_is_q_factor(const gguf_arch *a, const char *tensor);
/* Has it an ending of its own? */
bool gguf_name_is_whole(const gguf_name *g);
/* "blk.3.attn_q.weight" */
void gguf_tensor_name(char out[64], const gguf_name *g, const arch_slot *slot);

/* How the rows of a matrix, or the elements of a vector, are ordered in the file:
 *     TURNED     the rows of q and k of a head, or those that rotate, alternate between their halves (llama)
 *     APART      all q, then k, then v; ours are grouped by kv head (gptneox, falcon, bloom)
 *     GATE_UP    of each expert gate and up, in two tensors; ours are one, whose rows follow or
 *                alternate (gpt-oss)
 *     ROWS       the first `ffn` in one tensor, those after them in another
 *     KEY_VALUE  of each head of MLA keys, whose rows and columns change places, and values, in two
 *                tensors; of the writer alone */
typedef enum {
    GGUF_AS_STORED,
    GGUF_TURNED,
    GGUF_APART,
    GGUF_GATE_UP,
    GGUF_ROWS,
    GGUF_KEY_VALUE
} gguf_order_kind;
typedef struct {
    gguf_order_kind kind;
    const arch_config *c;
    int64_t heads, dims; /* TURNED: the first dims of each head; 0: all */
    int64_t ffn;         /* GATE_UP: rows of gate, and of up, of an expert; ROWS: see there */
} gguf_order;
gguf_order gguf_order_of(const gguf_arch *a, const arch_config *c, const arch_slot *slot);
/* Where our row n of N is in the file; GATE_UP: in the second tensor (up)? The inverse: which of our
 * rows is row m of M of that tensor. */
int64_t gguf_stored_row(const gguf_order *o, int64_t n, int64_t N, bool *second);
int64_t gguf_own_row(const gguf_order *o, int64_t m, int64_t M, bool second);
/* Is it -exp(x) of our x there (A of A_log): -1; exp(x): 1? 0: neither. */
int gguf_decay(const arch_config *c, const arch_slot *slot);
/* The list that has a role's tensors; NULL: they are tensors. */
const gguf_list *gguf_list_of(arch_role r);
/* The file's dims of a vector of layers with a state; 0: as they are. */
int gguf_vector_dims(int64_t shape[3], const arch_config *c, const arch_slot *slot);

#endif
