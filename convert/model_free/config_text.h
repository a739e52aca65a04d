/* convert/model_free/config_text.h - config.json with one more key, to the letter of the source. For convert/ only. */
#ifndef LLMQ_CONVERT_MODEL_FREE_CONFIG_TEXT_H
#define LLMQ_CONVERT_MODEL_FREE_CONFIG_TEXT_H

#include "convert/folder.h"
#include "formats/source/source.h"

/* Write `config` (a JSON object that has no quantization_config) with one: all else stays as it is written, 1.0
 * too, which transformers 5 refuses as 1 where a field is a float. LQ_ENOMEM, LQ_EIO. */
lq_status conv_write_config(const conv_folder *f, const src_blob *config, const cJSON *quant,
                            lq_err *err);

#endif
