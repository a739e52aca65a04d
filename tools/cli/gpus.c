/* tools/cli/gpus.c - see gpus.h. */
#include "tools/cli/gpus.h"

#include <ctype.h>
#include <stdio.h>

#define DATA "NVIDIA's datasheet"
#define GA100 "NVIDIA A100 whitepaper"
#define GA102 "NVIDIA Ampere GA102 whitepaper"
#define ADA "NVIDIA Ada whitepaper"
#define RTX_BLACKWELL "NVIDIA RTX Blackwell whitepaper"

/* Where a datasheet has figures with sparsity alone, half of them. Of GeForce parts products with
 * sums in f32 are half as fast as those with sums in f16, which nobody here makes. A memory of
 * 80 GB is 80 * 2^30 bytes on the card; taken as 80 * 10^9 it is about what error correction and
 * the driver leave of it. */
static const gpu_row table[] = {
    { "b200", "NVIDIA B200", 180, 8000, 2250, DATA },
    { "gb200", "NVIDIA GB200", 186, 8000, 2500, DATA },
    { "h200", "NVIDIA H200", 141, 4800, 989, DATA },
    { "h200-nvl", "NVIDIA H200 NVL", 141, 4800, 835, DATA },
    { "h100-sxm", "NVIDIA H100 80GB HBM3", 80, 3350, 989, DATA },
    { "h100-nvl", "NVIDIA H100 NVL", 94, 3900, 835, DATA },
    { "h100-pcie", "NVIDIA H100 PCIe", 80, 2000, 756, DATA },
    { "a100-sxm-80", "NVIDIA A100-SXM4-80GB", 80, 2039, 312, DATA },
    { "a100-pcie-80", "NVIDIA A100 80GB PCIe", 80, 1935, 312, DATA },
    { "a100-sxm-40", "NVIDIA A100-SXM4-40GB", 40, 1555, 312, GA100 },
    { "a100-pcie-40", "NVIDIA A100-PCIE-40GB", 40, 1555, 312, GA100 },
    { "a40", "NVIDIA A40", 48, 696, 149.7, DATA },
    { "a30", "NVIDIA A30", 24, 933, 165, DATA },
    { "a10", "NVIDIA A10", 24, 600, 125, DATA },
    { "l40s", "NVIDIA L40S", 48, 864, 362, DATA },
    { "l40", "NVIDIA L40", 48, 864, 181, DATA },
    { "l4", "NVIDIA L4", 24, 300, 121, DATA },
    { "rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 48, 960, 364.2, ADA },
    { "rtx-a6000", "NVIDIA RTX A6000", 48, 768, 154.8, GA102 },
    { "rtx-5090", "NVIDIA GeForce RTX 5090", 32, 1792, 209.5, RTX_BLACKWELL },
    { "rtx-4090", "NVIDIA GeForce RTX 4090", 24, 1008, 165.2, ADA },
    { "rtx-4080", "NVIDIA GeForce RTX 4080", 16, 717, 97.5, ADA },
    { "rtx-3090", "NVIDIA GeForce RTX 3090", 24, 936, 71, GA102 },
    { "rtx-3080", "NVIDIA GeForce RTX 3080", 10, 760, 59.5, GA102 },
};

/* The next letter or digit, in one case; 0 at the end. */
static int next(const char **s)
{
    while (**s && !isalnum((unsigned char)**s))
        ++*s;
    return **s ? tolower((unsigned char)*(*s)++) : 0;
}

static bool same(const char *a, const char *b)
{
    int c;
    do
        if ((c = next(&a)) != next(&b)) return false;
    while (c);
    return true;
}

const gpu_row *gpu_find(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(table); i++)
        if (same(name, table[i].name) || same(name, table[i].driver)) return &table[i];
    return NULL;
}

lq_status gpu_choose(const gpu_row **row, const char *name, lq_err *err)
{
    char names[400] = "";
    size_t n = 0;
    *row = gpu_find(name);
    if (*row) return LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(table) && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", table[i].name);
    return lq_fail(err, LQ_EUSAGE, "--gpu: expected one of %s; found '%s'", names, name);
}
