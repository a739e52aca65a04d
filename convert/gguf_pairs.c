/* convert/gguf_pairs.c - see gguf_meta.h: keys and their values. */
#include "convert/gguf_meta.h"

void gguf_put_le(lq_buf *b, uint64_t v, int bytes)
{
    char c[8];
    for (int i = 0; i < bytes; i++)
        c[i] = (char)(v >> 8 * i & 0xff);
    lq_buf_add(b, c, (size_t)bytes);
}

void gguf_put_str(lq_buf *b, const char *s, size_t n)
{
    gguf_put_le(b, n, 8);
    lq_buf_add(b, s, n);
}

void gguf_pair_key(gguf_pairs *p, const char *name, gguf_type t)
{
    gguf_put_str(&p->b, name, strlen(name));
    gguf_put_le(&p->b, t, 4);
    p->n++;
}

void gguf_pair_int(gguf_pairs *p, const char *name, int64_t v)
{
    gguf_pair_key(p, name, GGUF_U32);
    gguf_put_le(&p->b, (uint64_t)v, 4);
}

void gguf_pair_str(gguf_pairs *p, const char *name, const char *v)
{
    gguf_pair_key(p, name, GGUF_STRING);
    gguf_put_str(&p->b, v, strlen(v));
}

void gguf_put_f32(gguf_pairs *p, double v)
{
    const float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    gguf_put_le(&p->b, bits, 4);
}

void gguf_pair_bool(gguf_pairs *p, const char *name, bool v)
{
    gguf_pair_key(p, name, GGUF_BOOL);
    gguf_put_le(&p->b, v, 1);
}

void gguf_pair_array(gguf_pairs *p, const char *name, gguf_type of, uint64_t n)
{
    gguf_pair_key(p, name, GGUF_ARRAY);
    gguf_put_le(&p->b, of, 4);
    gguf_put_le(&p->b, n, 8);
}
