/* runtime/engine/stages/stages.h - the stages: one file each, which says what it does. Contract:
 * runtime/engine/stage.h. */
#ifndef LLMQ_RUNTIME_ENGINE_STAGES_STAGES_H
#define LLMQ_RUNTIME_ENGINE_STAGES_STAGES_H

#include "runtime/engine/sample.h"
#include "runtime/engine/stages/scan.h"

void stage_top_n_sigma(stage_ctx *c, float *x, const smp_params *p); /* arXiv:2411.07641 */
void stage_temperature(stage_ctx *c, float *x, const smp_params *p); /* dynamic: arXiv:2309.02772 */
void stage_top_k(stage_ctx *c, float *x, const smp_params *p);
void stage_typical(stage_ctx *c, float *x, const smp_params *p); /* arXiv:2202.00666 */
void stage_top_p(stage_ctx *c, float *x, const smp_params *p);
void stage_min_p(stage_ctx *c, float *x, const smp_params *p);
void stage_xtc(stage_ctx *c, float *x, const smp_params *p);
void stage_infill(stage_ctx *c, float *x, const smp_params *p);   /* for texts in the middle */
void stage_mirostat(stage_ctx *c, float *x, const smp_params *p); /* arXiv:2007.14966 */

#endif
