/* formats/hf/patterns.h - regular expressions of published tokenizers, which cut text before merging.
 *
 * As their tokenizer.json has them, in Oniguruma's dialect. Source: the files of Llama 3, Qwen2 and
 * gpt-4o; openai/tiktoken's table of encodings. */
#ifndef LLMQ_FORMATS_HF_PATTERNS_H
#define LLMQ_FORMATS_HF_PATTERNS_H

#define PAT_SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PAT_WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define PAT_SIGNS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
#define PAT_BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PAT_LLAMA3 PAT_SHORT_FORMS "|" PAT_WORD "\\p{N}{1,3}" PAT_SIGNS PAT_BLANKS /* cl100k, too */
#define PAT_QWEN2 PAT_SHORT_FORMS "|" PAT_WORD "\\p{N}" PAT_SIGNS PAT_BLANKS

/* Words of upper- and lower-case letters; `end`: what may follow them. */
#define PAT_BEFORE "[^\\r\\n\\p{L}\\p{N}]?"
#define PAT_CASED(upper, lower, end) \
    PAT_BEFORE upper "*" lower "+" end "|" PAT_BEFORE upper "+" lower "*" end
#define PAT_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define PAT_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PAT_SLASHES "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
#define PAT_O200K \
    PAT_CASED(PAT_UPPER, PAT_LOWER, PAT_SHORT_FORMS "?") "|\\p{N}{1,3}" PAT_SLASHES PAT_BLANKS

#endif
