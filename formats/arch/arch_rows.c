/* formats/arch/arch_rows.c - the families of architectures. A new model is a row at the end of its family's
 * file in formats/arch/rows/ and, where its names or its config.json differ from its relatives', a table
 * of names or keys there. */
#include "formats/arch/rows/rows.h"

static const arch_row *const families[] = {
    arch_rows_dense,     arch_rows_gemma,         arch_rows_moe,    arch_rows_mla,
    arch_rows_gpt,       arch_rows_encoder,       arch_rows_hybrid, arch_rows_kda,
    arch_rows_ling,      arch_rows_compress,      arch_rows_step,   arch_rows_minimax_m3,
    arch_rows_beam,      arch_rows_mistral_large, arch_rows_ettin,  arch_rows_griffin,
    arch_rows_diffllama, arch_rows_minimax,       arch_rows_muse,   arch_rows_longcat,
    arch_rows_zaya,      arch_rows_zamba,         arch_rows_doge,   arch_rows_outside,
    arch_rows_dots,      arch_rows_inkling,
};

const arch_row *arch_next(const arch_row *row)
{
    bool next = !row;
    for (size_t i = 0; i < LQ_COUNT(families); i++)
        for (const arch_row *r = families[i]; r->arch; r++) {
            if (next) return r;
            next = r == row;
        }
    return NULL;
}
