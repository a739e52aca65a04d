/* tools/router/catalog.h - the models that a router can serve: those of a folder, or of a JSON file
 *
 *     { "models": [ { "model": "small.llmq", "name": "small", "aliases": ["gpt-4o-mini"],
 *                     "options": ["--kv-cache-dtype", "int8"], "preload": true,
 *                     "adapters": { "sql": "adapters/sql" }, "idle_unload": 600 }, ... ] }
 *
 * model: a .llmq or .gguf file, a Hugging Face folder (from the file's own folder on), or ORG/NAME on
 * the hub; only this member must be there. name: what requests call it, else the file's name. options: of
 * `llmq serve`, for this model alone. adapters: LoRA's of this model by the names that requests call them,
 * each a folder or a file, likewise from the file's folder on. preload: loaded when the router starts.
 * idle_unload: seconds, --idle-unload for this model. */
#ifndef LLMQ_TOOLS_ROUTER_CATALOG_H
#define LLMQ_TOOLS_ROUTER_CATALOG_H

#include "base/base.h"

enum { CAT_ADAPTER_NAME = 200 /* bytes, as adapters.h has it */ };

typedef struct {
    char *path;      /* or a name on the hub */
    char **names;    /* the first is the canonical one; ends with NULL */
    char **options;  /* ends with NULL */
    char **adapters; /* "NAME=PATH"; ends with NULL. NULL: none */
    bool preload;
    double idle_seconds; /* < 0: the router's */
} cat_model;

typedef struct {
    cat_model *m; /* [n] in the file's order; of a folder by name */
    int n;
} catalog;

/* Is the folder no model itself, but one in which models are? */
bool cat_is_folder(const char *path);
lq_status cat_read_folder(catalog *c, const char *path, lq_err *err);
/* Errors: LQ_EIO, LQ_EFORMAT, LQ_EVALUE, LQ_ENOENT; they name the member. */
lq_status cat_read_file(catalog *c, const char *path, lq_err *err);
void cat_free(catalog *c); /* zeroed allowed */
/* Changes with the model's files and its adapters', as far as their tables say: other sizes, times or names. 0: they are
 * not here (a name on the hub). */
uint64_t cat_stamp(const cat_model *m);
/* The model of that name, or -1. */
int cat_find(const catalog *c, const char *name);

#endif
