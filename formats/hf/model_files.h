/* formats/hf/model_files.h - the names of the files in a model's folder. */
#ifndef LLMQ_FORMATS_HF_MODEL_FILES_H
#define LLMQ_FORMATS_HF_MODEL_FILES_H

#include <stdbool.h>
#include <stddef.h>

#define MODEL_TEMPLATES "additional_chat_templates" /* a folder in a model's */

typedef struct {
    const char *media; /* OCI media type of its layer */
    bool weights;      /* may be large: git-lfs */
} model_file;

/* Of "FILE", or of a path's last part; NULL: no file of a model is called so. */
const model_file *model_file_of(const char *name);

/* Does a .llmq keep a file of this name as it is, and convert give it back: of texts, settings and
 * the tokenizer those that a checkpoint is known to have, no weights, no code? `name` is in no
 * folder; printable UTF-8 of at most 255 bytes. */
bool model_own_file(const char *name);
/* A file of a module of sentence-transformers, as that library calls the folders: "1_Pooling/config.json",
 * "2_Dense/model.safetensors". A model's modules.json may name others: letters, digits, '_' and '-'. */
bool model_module_path(const char *name);
bool model_module_folder(const char *name); /* "1_Pooling", "pooling" */
bool model_module_file(const char *name);   /* one in such a folder */
/* Its name in a .llmq, "1_Pooling.config.json": *folder, which may be NULL, is how much of it the
 * folder's is. */
bool model_module_blob(const char *name, size_t *folder);
/* Or the other names of a model's .llmq: of modules, chat_template.NAME.jinja, tokenizer.blob. */
bool model_blob(const char *name);
/* What a repository has beside a model: its code, texts, pictures, samples; no weights. */
bool model_side_file(const char *name);
bool model_tokenizer_file(const char *name); /* of those, the files of a tokenizer */
bool model_plain_name(const char *name);     /* such a name at all, not hidden */
bool model_licence(const char *name);
bool model_template(const char *name); /* one in MODEL_TEMPLATES */

#endif
