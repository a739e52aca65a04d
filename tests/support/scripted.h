/* tests/support/scripted.h - the scripted engine: a real model and a real server whose draws a file forces,
 * so that stop strings, split characters, tool calls and ends of answers are exact in a test. Only
 * in build/tests/llmq-scripted, as `llmq serve MODEL --test-script FILE`.
 *
 * FILE is {"scripts": [{"prompt": "...", "ids": [..], "delay_ms": 0, "gate": "FILE",
 * "nan_at": -1}, ...]}. The first script whose `prompt` stands in a request's prompt (as text)
 * rules its answer: output i is ids[i] while that id is not banned (min_tokens, allowed_token_ids,
 * ...: it gets the highest logit, no more than that), each draw takes delay_ms longer and waits
 * until the file gate is there, and the logits of output nan_at hold a NaN. Beyond its ids, and
 * without a script, the model decides. */
#ifndef LLMQ_TESTS_SUPPORT_SCRIPTED_H
#define LLMQ_TESTS_SUPPORT_SCRIPTED_H

#include "runtime/engine/engine.h"

typedef struct test_script test_script;
/* Fills *out, which points to *s. tok is borrowed. */
lq_status test_script_open(test_script **s, eng_script *out, const char *path,
                           const tok_tokenizer *tok, int64_t vocab, int threads, lq_err *err);
void test_script_close(test_script *s); /* NULL allowed */

/* Until the file is there (NULL: not at all), or the job has to stop (NULL: it has not). */
void test_script_wait(const char *gate, const lq_job *job);

#endif
