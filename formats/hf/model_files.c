/* formats/hf/model_files.c */
#include "formats/hf/model_files.h"

#include "base/base.h"
#include "base/json.h"
#include "base/path.h"
#include "base/utf8.h"

#include <strings.h>

#define MEDIA "application/vnd.llmq."

static const struct {
    const char *begin, *end; /* of the name; "" any */
    model_file file;
} kinds[] = {
    { "", ".llmq", { MEDIA "weights.llmq.v1", true } },
    { "", ".gguf", { MEDIA "weights.gguf.v1", true } },
    { "", ".safetensors", { MEDIA "weights.safetensors.v1", true } },
    { "provenance.json", "", { MEDIA "provenance.v1+json", false } },
    { "tekken.json", "", { MEDIA "tokenizer.v1+json", false } },
    { "tokenizer", ".json", { MEDIA "tokenizer.v1+json", false } },
    { "", ".json", { MEDIA "config.v1+json", false } },
    { "", ".model", { MEDIA "tokenizer.v1", false } },
    { "", ".tiktoken", { MEDIA "tokenizer.v1", false } },
    { "merges.txt", "", { MEDIA "tokenizer.v1", false } },
    { "vocab.txt", "", { MEDIA "tokenizer.v1", false } },
    { "", ".jinja", { MEDIA "template.v1", false } },
    { "", ".md", { "text/markdown", false } },
    { "licen", "", { "text/plain", false } },
    { "notice", "", { "text/plain", false } },
    { "SHA256SUMS", "", { MEDIA "sums.v1", false } },
    { ".gitattributes", "", { "text/plain", false } },
};

/* Whole words of the table are the whole name, but for those that begin it. */
static bool fits(const char *name, const char *begin, const char *end)
{
    const size_t n = strlen(name), b = strlen(begin), e = strlen(end);
    const bool prefix = e || strcmp(begin, "licen") == 0 || strcmp(begin, "notice") == 0;
    if (n < b + e || strcasecmp(name + n - e, end) != 0) return false;
    return prefix ? strncasecmp(name, begin, b) == 0 : strcmp(name, begin) == 0;
}

const model_file *model_file_of(const char *name)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    for (size_t i = 0; i < LQ_COUNT(kinds); i++)
        if (fits(file, kinds[i].begin, kinds[i].end)) return &kinds[i].file;
    return NULL;
}

/* ---- what travels inside a .llmq ---- */
bool model_plain_name(const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 127 || name[i] == '/') return false;
    return n > 0 && n < 256 && name[0] != '.' && lq_utf8_valid(name, n, NULL);
}

bool model_licence(const char *name)
{
    return model_plain_name(name) &&
           (strncasecmp(name, "license", 7) == 0 || strncasecmp(name, "licence", 7) == 0);
}

static bool ends(const char *name, const char *end)
{
    const size_t n = strlen(name), e = strlen(end);
    return n > e && strcmp(name + n - e, end) == 0;
}

bool model_template(const char *name) { return model_plain_name(name) && ends(name, ".jinja"); }

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

bool model_tokenizer_file(const char *name)
{
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer_config.json",
        "tokenizer.model",   "tekken.json",
        "vocab.json",        "merges.txt",
        "added_tokens.json", "special_tokens_map.json",
    };
    if (is_one_of(name, names, LQ_COUNT(names))) return true;
    const bool versioned = strncmp(name, "tokenizer.model.v", 17) == 0; /* Mistral's */
    return model_plain_name(name) && (versioned || ends(name, ".tiktoken"));
}

bool model_own_file(const char *name)
{
    static const char *const names[] = {
        "config.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "README.md",
    };
    return is_one_of(name, names, LQ_COUNT(names)) || model_tokenizer_file(name) ||
           model_licence(name);
}

bool model_side_file(const char *name)
{
    static const char *const ends_of[] = { ".py",    ".pyi", ".txt",  ".yaml", ".yml", ".toml",
                                           ".csv",   ".tsv", ".html", ".rst",  ".cfg", ".ini",
                                           ".png",   ".jpg", ".jpeg", ".gif",  ".svg", ".webp",
                                           ".pdf",   ".wav", ".mp3",  ".mp4",  ".bpe", ".spm",
                                           ".vocab", ".sh",  ".jsonl" };
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    for (size_t i = 0; i < LQ_COUNT(ends_of); i++)
        if (lq_has_ending(file, ends_of[i])) return true;
    return false;
}

/* How much of a name is "1_Pooling"; 0: it begins otherwise. */
static size_t module_folder(const char *name)
{
    const size_t digits = strspn(name, "0123456789");
    if (!digits || name[digits] != '_') return 0;
    size_t n = digits + 1;
    while (name[n] == '_' || (name[n] >= '0' && name[n] <= '9') ||
           (name[n] >= 'A' && name[n] <= 'Z') || (name[n] >= 'a' && name[n] <= 'z'))
        n++;
    return n > digits + 1 ? n : 0;
}

/* How much of a name a module's folder may be called; 0: none. */
static size_t any_folder(const char *name)
{
    const size_t n =
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");
    const bool templates = n == strlen(MODEL_TEMPLATES) && memcmp(name, MODEL_TEMPLATES, n) == 0;
    return n < 80 && !templates ? n : 0;
}

bool model_module_folder(const char *name)
{
    const size_t n = any_folder(name);
    return n && !name[n];
}

bool model_module_file(const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, "model.safetensors") == 0;
}

bool model_module_path(const char *name)
{
    const size_t n = module_folder(name);
    return n && name[n] == '/' && model_module_file(name + n + 1);
}

bool model_module_blob(const char *name, size_t *folder)
{
    const size_t n = any_folder(name);
    if (folder) *folder = n;
    return n && name[n] == '.' && model_module_file(name + n + 1);
}

bool model_blob(const char *name)
{
    static const char one[] = "chat_template."; /* of MODEL_TEMPLATES */
    const size_t n = sizeof one - 1;
    return model_own_file(name) || model_module_blob(name, NULL) ||
           strcmp(name, "tokenizer.blob") == 0 ||
           (strncmp(name, one, n) == 0 && model_template(name + n) && model_plain_name(name));
}
