/* convert/model_free/config_text.c - see config_text.h. */
#include "convert/model_free/config_text.h"

#include "base/buf.h"

#include <stdlib.h>

lq_status conv_write_config(const conv_folder *f, const src_blob *config, const cJSON *quant,
                            lq_err *err)
{
    const char *text = (const char *)config->data;
    size_t last = config->bytes;
    lq_buf out = { 0 };
    while (last && text[last - 1] != '}')
        last--;
    last -= last > 0;
    while (last && strchr(" \t\r\n", text[last - 1]))
        last--;
    char *more = js_print(quant, true);
    if (!more) return lq_fail(err, LQ_ENOMEM, "config.json: no memory");
    lq_buf_add(&out, text, last);
    lq_buf_puts(&out, last && text[last - 1] == '{' ? "\n" : ",\n");
    lq_buf_puts(&out, "  \"quantization_config\": ");
    lq_buf_puts(&out, more);
    lq_buf_puts(&out, "\n}\n");
    lq_status s = out.oom ? lq_fail(err, LQ_ENOMEM, "config.json: no memory")
                          : folder_write(f, "config.json", out.p, out.n, err);
    free(more);
    lq_buf_free(&out);
    return s;
}
