/* tests/golden/arch/llama_logits.c - logits of a GGUF in llama.cpp, for make_llama.py: f32 K and V, no flash attention.
 *
 * usage: llama_logits FILE.gguf ID...    writes [ids, vocab] floats to stdout */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv)
{
    const int n = argc - 2;
    if (n < 1) return 2;
    llama_log_set(quiet, NULL);
    struct llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = false;
    struct llama_model *m = llama_model_load_from_file(argv[1], mp);
    if (!m) return 1;
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 256;
    cp.n_batch = cp.n_ubatch = 256;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *c = llama_init_from_model(m, cp);
    if (!c) return 1;
    struct llama_batch b = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        b.token[i] = atoi(argv[2 + i]);
        b.pos[i] = i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = 1;
    }
    b.n_tokens = n;
    if (llama_decode(c, b)) return 1;
    const size_t V = (size_t)llama_vocab_n_tokens(llama_model_get_vocab(m));
    for (int i = 0; i < n; i++)
        fwrite(llama_get_logits_ith(c, i), sizeof(float), V, stdout);
    return 0;
}
