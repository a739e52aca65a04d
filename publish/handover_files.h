/* publish/handover_files.h - a plan of handover.h as a file for what runs engines on other machines.
 *
 * YAML, every text in JSON's quotes. A form is a row of the table in handover_files.c. Names of
 * volumes and paths on the nodes are examples, and the file's comments say which. */
#ifndef LLMQ_PUBLISH_HANDOVER_FILES_H
#define LLMQ_PUBLISH_HANDOVER_FILES_H

#include "base/json.h"

typedef enum {
    HAND_NONE,
    HAND_RAY,
    HAND_KSERVE,
    HAND_LLM_D,
    HAND_COMPOSE,
    HAND_FORMS
} handover_form;
extern const char *const handover_forms[HAND_FORMS + 1]; /* their names, then NULL */

/* parts: over how many GPUs the model is divided. folder: what relative paths of a file for Docker
 * Compose begin with; "." is the file's own. Errors: LQ_EUSAGE - the engine has no such form, or
 * the model cannot be divided so; LQ_EUNSUPPORTED - the engine refuses the model; LQ_ENOMEM. */
lq_status handover_file(lq_buf *b, const cJSON *plan, handover_form form, int64_t parts,
                        const char *folder, lq_err *err);
/* What the file is called unless it is said: "NAME-ENGINE.FORM.yaml". */
void handover_file_name(char *out, size_t n, const cJSON *plan, handover_form form);

#endif
