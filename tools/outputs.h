/* tools/outputs.h - may the result of a command be written where the user says? One rule for all
 * that make a model of a model. */
#ifndef LLMQ_TOOLS_OUTPUTS_H
#define LLMQ_TOOLS_OUTPUTS_H

#include "formats/source.h"

/* option: "--out", for the message. src: what was opened from `given`. out: the name of a file, or
 * of a folder. LQ_EUSAGE: it is what is read; a folder inside the source's folder; a file of
 * weights there that would change what the source stands for (the folder has SHA256SUMS, or stands
 * for the one .llmq or GGUF file in it, or the result is one more .safetensors). */
lq_status output_check_place(const char *option, const char *out, bool folder,
                             const src_source *src, const char *given, lq_err *err);
/* Is the name's ending another format's? format: "llmq", "gguf", "safetensors" for the one file;
 * folder: the result is one, whatever its format. LQ_EUSAGE names both. */
lq_status output_check_ending(const char *option, const char *out, const char *format, bool folder,
                              lq_err *err);

#endif
