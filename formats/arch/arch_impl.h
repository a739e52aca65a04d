/* formats/arch/arch_impl.h - what the files that make a config share; only formats/arch/ includes this.
 */
#ifndef LLMQ_FORMATS_ARCH_ARCH_IMPL_H
#define LLMQ_FORMATS_ARCH_ARCH_IMPL_H

#include "formats/arch/arch.h"

enum {
    ARCH_MAX_WIDTH = 1 << 22, /* of any one dimension but the vocabulary's */
    ARCH_MAX_LAYERS = 65536,
    ARCH_MAX_EXPERTS = 65536,
    ARCH_MAX_TAPS = 8,
    ARCH_MAX_PARTS = 65536 /* of a table */
};

/* ---- arch_find.c ---- */
typedef struct {
    const arch_row *row;
    const cJSON *j; /* what config.json says of the language model: itself, or its text_config */
    const char *wrapper; /* see arch_config */
    arch_head head;
} arch_pick;
lq_status arch_pick_row(arch_pick *p, const cJSON *config, lq_err *err);

/* ---- arch_config.c: config.json to numbers; row and wiring are there ---- */
lq_status arch_read_sizes(arch_config *c, const cJSON *j, lq_err *err);
lq_status arch_read_words(arch_config *c, const cJSON *j, const cJSON *outer, lq_err *err);
lq_status arch_read_experts(arch_config *c, const cJSON *j, lq_err *err);
lq_status arch_read_layers(arch_config *c, const cJSON *j, lq_err *err);
/* The ids of eos_token_id (a number or an array) that are not there yet. */
lq_status arch_read_eos(arch_config *c, const cJSON *v, lq_err *err);
/* "gelu_tanh"; and any of its spellings back. */
const char *arch_act_text(arch_act a);
bool arch_act_from_text(arch_act *a, const char *text);
/* Is this a key that config.json's readers above or arch_rope_parse look at? */
bool arch_key_is_read(const char *key);
/* The key of those that says the number at this offset of an arch_config; NULL: none does. */
const char *arch_key_spelled(const cJSON *j, size_t at);

/* ---- arch_keys.c ---- */
/* Has the row a meaning for this key (of the object `parent`, or "")? */
bool arch_row_knows(const arch_config *c, const char *parent, const char *key);
lq_status arch_apply_keys(arch_config *c, const cJSON *j, lq_err *err);
/* Refuses, by name, keys that touch the computation and are not understood. */
lq_status arch_check_keys(const arch_config *c, const cJSON *j, lq_err *err);

/* Of a failed check, whose message begins with our name of a number: it begins with config.json's. Returns s. */
lq_status arch_name_key(const arch_config *c, const cJSON *j, lq_status s, lq_err *err);

/* Do layers with a window have a rotation of their own? */
bool arch_rope_local(const arch_config *c, const cJSON *config);

/* z [layers]: each layer gets its sizes, the config the largest of each. All else in c is there and
 * stays. (arch_sizes.c) */
lq_status arch_set_sizes(arch_config *c, const arch_sizes *z, lq_err *err);
arch_sizes arch_sizes_of(const arch_config *c, int64_t layer);
void arch_free_sizes(arch_config *c);

/* Of a config that has all else: its layers with n-grams are counted, and what those need is there. (arch_ngrams.c) */
lq_status arch_ngrams_fit(arch_config *c, lq_err *err);

/* What must hold between a config's numbers wherever they came from. */
lq_status arch_config_check(const arch_config *c, lq_err *err);

#endif
