/* formats/arch/arch_find.c - the row that config.json names, and the part of config.json that is about it. */
#include "formats/arch/arch_impl.h"

#include "base/json.h"

#include <stdio.h>
#include <strings.h>

static bool same_variant(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

const arch_row *arch_find(const char *arch, const char *variant)
{
    for (const arch_row *r = NULL; (r = arch_next(r));)
        if (strcmp(r->arch, arch) == 0 && same_variant(r->variant, variant)) return r;
    return NULL;
}

static lq_status unknown_arch(const char *what, const char *name, lq_err *err)
{
    int n = 0;
    for (const arch_row *r = NULL; (r = arch_next(r));)
        n += !r->variant; /* the last row of an architecture has none */
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "%s: expected one of the %d of docs/support.md, \"Architectures\", found \"%.80s\" (a "
        "model that computes as one of them does can be given its name in config.json; of any "
        "other "
        "`llmq quantize --model-free` makes a folder for other engines)",
        what, n, name);
}

/* "key=true,other=1": do these values stand in config.json? */
static bool fits(const char *when, const cJSON *j)
{
    while (when && *when) {
        char key[64], want[16], have[16] = "";
        int n = 0;
        if (sscanf(when, "%63[^=]=%15[^,]%n", key, want, &n) != 2) return false;
        const cJSON *v = js_get(j, key);
        if (cJSON_IsBool(v)) snprintf(have, sizeof have, "%s", cJSON_IsTrue(v) ? "true" : "false");
        if (cJSON_IsNumber(v)) snprintf(have, sizeof have, "%.9g", v->valuedouble);
        if (cJSON_IsString(v)) snprintf(have, sizeof have, "%.15s", v->valuestring);
        if (strcmp(have, want) != 0) return false;
        when += n;
        when += *when == ',';
    }
    return true;
}

/* A type as a row has it, or as a text_config calls it: "glm4v_text" is a glm4v. */
static bool same_type(const char *type, const char *own)
{
    const size_t n = strlen(own);
    return strncmp(type, own, n) == 0 && (!type[n] || strcmp(type + n, "_text") == 0);
}

static const arch_row *row_of_type(const char *type, const cJSON *j)
{
    for (const arch_row *r = NULL; (r = arch_next(r));)
        if (same_type(type, r->model_type) && fits(r->when, j)) return r;
    return NULL;
}

/* ---- heads ---- */
static const char *const worded[] = { "ForCausalLM", "LMHeadModel" };
static const struct {
    const char *ending;
    arch_head head;
} heads[] = {
    { "ForSequenceClassification", HEAD_LABELS },
    { "ForMaskedLM", HEAD_NONE },
    { "TextModel", HEAD_NONE },
    { "Model", HEAD_NONE },
};

/* The length of what comes before an ending; 0: it ends otherwise. */
static size_t stem(const char *name, const char *ending)
{
    const size_t n = strlen(name), k = strlen(ending);
    return n > k && strcmp(name + n - k, ending) == 0 ? n - k : 0;
}

static size_t stem_of_row(const arch_row *r)
{
    size_t n = 0;
    for (size_t i = 0; i < LQ_COUNT(worded) && !n; i++)
        n = stem(r->arch, worded[i]);
    return n;
}

/* The first row that fits of this architecture, or of the one that it is with another head.
 * Published files and transformers spell some in different cases (ExaoneMoE, ExaoneMoe). */
static const arch_row *row_of_name(const char *name, const cJSON *j, arch_head *head)
{
    *head = HEAD_WORDS;
    for (const arch_row *r = NULL; (r = arch_next(r));)
        if (strcasecmp(r->arch, name) == 0 && fits(r->when, j)) return r;
    for (size_t i = 0; i < LQ_COUNT(heads); i++) {
        const size_t n = stem(name, heads[i].ending);
        *head = heads[i].head;
        for (const arch_row *r = NULL; n && (r = arch_next(r));)
            if (stem_of_row(r) == n && strncmp(r->arch, name, n) == 0 && fits(r->when, j)) return r;
    }
    return NULL;
}

void arch_full_name(char out[80], const arch_config *c)
{
    const size_t n = stem_of_row(c->row);
    size_t i = LQ_COUNT(heads);
    while (n && i > 0 && heads[i - 1].head != c->head)
        i--;
    if (i && n)
        snprintf(out, 80, "%.*s%s", (int)(n < 40 ? n : 40), c->row->arch, heads[i - 1].ending);
    else
        snprintf(out, 80, "%s", c->row->arch);
}

/* ---- parts ---- */
/* Architectures that hold a language model of any kind in text_config, beside parts that are not
 * used. Where only one kind is possible, its row says so (in_text). */
static const char *const wrappers[] = {
    "AriaForConditionalGeneration",
    "AudioFlamingo3ForConditionalGeneration",
    "AyaVisionForConditionalGeneration",
    "Cohere2VisionForConditionalGeneration",
    "CohereCompassForConditionalGeneration",
    "DeepseekVLForConditionalGeneration",
    "DeepseekVLHybridForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "FastVlmForConditionalGeneration",
    "FunAsrNanoForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm46VForConditionalGeneration",
    "GlmAsrForConditionalGeneration",
    "GotOcr2ForConditionalGeneration",
    "GraniteSpeechForConditionalGeneration",
    "GraniteSpeechPlusForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "Idefics2ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "JanusForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "Lfm3VlForConditionalGeneration",
    "LightOnOcrForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "MiniCPMOcrForConditionalGeneration",
    "MiniCPMV4_6ForConditionalGeneration",
    "MiniCPMV4_7ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "MllamaForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration",
    "MusicFlamingoForConditionalGeneration",
    "NemotronH_Omni_Reasoning_V3",
    "Ovis2ForConditionalGeneration",
    "PerceptionLMForConditionalGeneration",
    "QianfanOCRForConditionalGeneration",
    "Qwen2_5OmniForConditionalGeneration",
    "Qwen2_5OmniModel",
    "Qwen2AudioForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
    "Qwen3ASRForConditionalGeneration",
    "Qwen3OmniMoeForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "Step3p7ForConditionalGeneration",
    "VibeVoiceAsrForConditionalGeneration",
    "VideoLlama3ForConditionalGeneration",
    "VideoLlavaForConditionalGeneration",
    "VipLlavaForConditionalGeneration",
    "VoxtralForConditionalGeneration",
};

static const char *wrapper_of(const char *arch)
{
    for (size_t i = 0; arch && i < LQ_COUNT(wrappers); i++)
        if (strcmp(wrappers[i], arch) == 0) return wrappers[i];
    return NULL;
}

/* The first of config.json's architectures; NULL: none. */
static const char *first_name(const cJSON *config)
{
    const cJSON *a = js_get(config, "architectures");
    return cJSON_IsArray(a) && cJSON_IsString(a->child) ? a->child->valuestring : NULL;
}

/* As transformers does: by the architecture, but a text_config by its type. */
static lq_status find_row(arch_pick *p, const cJSON *config, lq_err *err)
{
    const cJSON *a = js_get(p->j, "architectures");
    const char *type = NULL, *name = first_name(p->j);
    if (name && !(p->j != config && js_get(p->j, "model_type"))) {
        p->row = row_of_name(name, p->j, &p->head);
        return p->row ? LQ_OK : unknown_arch("architectures", name, err);
    }
    if (!name && a && !(cJSON_IsArray(a) && !a->child))
        return lq_fail(err, LQ_EVALUE, "architectures: expected an array of strings");
    lq_status s = js_str(p->j, "model_type", true, &type, err);
    if (s) return s;
    p->row = row_of_type(type, p->j);
    if (!p->row && name) p->row = row_of_name(name, p->j, &p->head); /* Kimi K2 is a DeepSeek V3 */
    return p->row ? LQ_OK : unknown_arch("model_type", type, err);
}

lq_status arch_pick_row(arch_pick *p, const cJSON *config, lq_err *err)
{
    const cJSON *text = js_get(config, "text_config"), *thinker = js_get(config, "thinker_config");
    *p = (arch_pick){ .j = config };
    if (!text) text = js_get(thinker, "text_config"); /* beside a talker */
    if (cJSON_IsObject(text)) p->wrapper = wrapper_of(first_name(config));
    if (p->wrapper) p->j = text;
    lq_status s = find_row(p, config, err);
    if (!s && p->row->w.both_ways && p->head == HEAD_WORDS) p->head = HEAD_NONE; /* an encoder */
    if (s || !p->row->in_text) return s;
    if (cJSON_IsObject(text)) p->j = text;
    if (!p->wrapper) p->wrapper = p->row->arch;
    return LQ_OK;
}

bool arch_row_knows(const arch_config *c, const char *parent, const char *key)
{
    char path[160];
    snprintf(path, sizeof path, "%s%s%s", parent, *parent ? "." : "", key);
    for (const arch_key *k = c->row->keys; k && k->key; k++)
        if (strcmp(k->key, path) == 0) return true;
    return false;
}
