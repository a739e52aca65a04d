/* tools/cli/outputs.h - may the result of a command be written where the user says? One rule for all
 * that make a model of a model. */
#ifndef LLMQ_TOOLS_CLI_OUTPUTS_H
#define LLMQ_TOOLS_CLI_OUTPUTS_H

#include "formats/source/source.h"

/* option: "--out", for the message. src: what was opened from `given`; NULL: nothing yet, names
 * alone decide. out: the name of a file, or of a folder. LQ_EUSAGE:
 *
 *     neither, but a pipe, a device, a folder for a file, a file for a folder
 *     what is read, or a folder that what is read is in
 *     a folder inside the source's folder
 *     next to the source, a file of the model that it is or would be part of: a name of
 *     publish/files.h, unless one .llmq or GGUF file is read and nothing of that name is there
 *     next to the source, weights that would change what it stands for: the folder has SHA256SUMS,
 *     or stands for the one .llmq or GGUF file in it; the result is one more .safetensors, or takes
 *     the place of a shard */
lq_status output_check_place(const char *option, const char *out, bool folder,
                             const src_source *src, const char *given, lq_err *err);
/* Is it one of the files that are read? LQ_EUSAGE names it. out NULL: there is none. */
lq_status output_check_own(const char *option, const char *out, const char *const *read, int n,
                           lq_err *err);
/* Is the name's ending another format's? format: "llmq", "gguf", "safetensors" for the one file;
 * folder: the result is one, whatever its format. LQ_EUSAGE names both; or a file is there
 * and is no model's. */
lq_status output_check_ending(const char *option, const char *out, const char *format, bool folder,
                              lq_err *err);
/* Has what is there, if it is not empty, this text in its first 256 bytes? what: "an HTML page",
 * for the message. LQ_EUSAGE: somebody's file of another kind. */
lq_status output_check_kind(const char *option, const char *out, const char *text, const char *what,
                            lq_err *err);

#endif
