/* calib/dataset.h - calibration windows from several files: `--calib a.txt:2,b.jsonl,builtin`.
 *
 * A list of NAME or NAME:WEIGHT, separated by commas. A backslash takes the next character for the
 * name ("C\:notes\,old.txt"). What a name stands for:
 *
 *     builtin       the text inside the program, and where the model has a chat template the
 *                   conversations inside it, an eighth of the windows
 *     NAME.jsonl    JSON lines (calib/jsonl.h)
 *     NAME.ids      token ids, separated by spaces, commas or lines
 *     other names   plain text, one document
 *
 * Every file's documents become one stream of ids, tokenized without special tokens, EOS between
 * documents; the stream is cut into whole windows (no window spans two files). Where the tokenizer
 * puts ids before a text (BOS), each window is those and len less so many of the text: models for
 * which BOS takes the attention that goes nowhere (arXiv:2309.17453) have other states without it,
 * and are never served so. A file with ids is cut as it is. Of the n windows
 * each file gets the share that its weight is of all weights; a file with fewer windows gives all,
 * and the others share what it lacks. Which windows: chosen by the seed (calib/samples.h). The
 * files' windows alternate in the result, each file's in its own order. */
#ifndef LLMQ_CALIB_DATASET_H
#define LLMQ_CALIB_DATASET_H

#include "calib/samples.h"
#include "formats/source/source.h"
#include "runtime/tokenizer/tok.h"

typedef struct {
    const src_source *src;    /* of the model: its vocabulary, EOS and chat template */
    const tok_tokenizer *tok; /* NULL: the model has none; ids alone will do */
    int64_t n, len;
    uint64_t seed;
} dataset_opts;

/* s->parts says what came from where. Errors: LQ_EUSAGE (the list), LQ_ENOENT (a file; a tokenizer
 * or chat template that is needed), LQ_EFORMAT (its contents), LQ_EVALUE (too short for a window;
 * an id outside the vocabulary), LQ_ENOMEM; all name the file. */
lq_status dataset_read(cal_samples *s, const char *list, const dataset_opts *o, lq_err *err);

#endif
