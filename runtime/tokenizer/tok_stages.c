/* runtime/tokenizer/tok_stages.c - the table of all stages. */
#include "runtime/tokenizer/tok_int.h"

const tok_stage_table *tok_stage_of(tok_stage s)
{
    static const tok_stage_table *const all[] = { &tok_norm_table, &tok_pre_table, &tok_post_table,
                                                  &tok_dec_table };
    return all[s];
}
