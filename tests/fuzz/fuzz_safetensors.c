/* tests/fuzz/fuzz_safetensors.c - any bytes into the reader; what it takes is within the bytes. */
#include "formats/hf/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n); /* T-64 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1); /* exact, so that reading past the end is seen */
    if (!copy) return 0;
    memcpy(copy, data, n);
    st_file f;
    if (!st_open_bytes(&f, copy, n, NULL)) {
        volatile uint8_t sum = 0;
        for (size_t i = 0; i < f.n; i++) {
            const st_tensor *t = &f.tensors[i];
            size_t bytes;
            if (!st_shape_bytes(t->dtype, t->n_dims, t->shape, &bytes) || bytes != t->bytes)
                abort();
            for (size_t k = 0; k < t->bytes; k++)
                sum = (uint8_t)(sum + t->data[k]);
            if (st_find(&f, t->name) != t) abort();
        }
        st_close(&f);
    }
    free(copy);
    return 0;
}
