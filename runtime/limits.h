/* runtime/limits.h - the fixed limits of what a request, its template and its grammar may take, by
 * name. What an option sets is not here (`llmq serve --print-limits` lists both), nor what bounds a
 * model's own files. JS_DEPTH and JS_MAX_VALUES, of any JSON, are base/json.h's. */
#ifndef LLMQ_RUNTIME_LIMITS_H
#define LLMQ_RUNTIME_LIMITS_H

#include "base/json_text.h" /* JT_DEPTH */

/* X(name, value, what it bounds) */
#define LIMITS(X)                                                                                \
    /* HTTP */                                                                                   \
    X(HTTP_HEAD_BYTES_MAX, 32768, "bytes of a head's fields")                                    \
    X(HTTP_HEAD_FIELDS_MAX, 100, "fields of a head")                                             \
    X(HTTP_CONN_MEMORY_MAX, 262144, "bytes for a connection's head and answer's head")           \
    X(HTTP_DROP_BODY_MAX, 65536, "bytes of a refused body that are read")                        \
    X(HTTP_MAX_PARTS, 1000, "parameters of a query, parts of a cookie: 56 bytes each")           \
    X(HTTP_PATH_MAX, 1024, "bytes of a path")                                                    \
    X(HTTP_ID_MAX, 128, "bytes of an X-Request-Id")                                              \
    X(HTTP_KEY_MAX, 1024, "bytes of a key")                                                      \
    X(HTTP_CORS_FIELDS_MAX, 2048, "bytes of the fields that a preflight asks for")               \
    X(HTTP_HEADERS_MAX, 8, "fields that an answer's route adds")                                 \
    /* requests */                                                                               \
    X(API_MAX_PROMPTS, 1024, "prompts of a request")                                             \
    X(API_MAX_N, 128, "n and best_of")                                                           \
    X(API_MAX_CHOICES, 2048, "sequences of a request")                                           \
    X(API_MAX_STOPS, 32, "stop strings")                                                         \
    X(API_MAX_STOP_BYTES, 1024, "bytes of a stop string, a bad word or a salt")                  \
    X(API_MAX_IDS, 1024, "entries of logit_bias, stop_token_ids and allowed_token_ids")          \
    X(API_MAX_BAD_WORDS, 128, "bad words")                                                       \
    X(API_MAX_CUT, 8, "times the context's bytes, that truncate_prompt_tokens cuts a chat from") \
    X(API_STORE_BYTES, 64 << 20, "bytes of kept responses (--response-store)")                   \
    X(API_MAX_BATCHES, 256, "batches that are known (--file-store)")                             \
    X(API_BATCH_WINDOW, 64, "requests of a batch at the same time")                              \
    X(API_MAX_CUSTOM_ID, 64, "bytes of the custom_id of a message batch's request")              \
    X(API_BATCH_ERRORS, 32, "lines of a batch whose errors are told")                            \
    X(API_BOUNDARY_MAX, 70, "bytes of a form's boundary")                                        \
    X(API_MAX_TOOLS, 128, "tools")                                                               \
    X(API_MAX_TOOL_NAME, 130, "bytes of a tool's name")                                          \
    X(SMP_MAX_LOGPROBS, 20, "alternatives of a token: logprobs, top_logprobs")                   \
    X(DRY_MAX_BREAKERS, 32, "dry_sequence_breakers")                                             \
    X(DRY_MAX_RUN, 16, "ids of one of them that is no token")                                    \
    X(SPEC_MAX, 15, "guesses of a sequence in a step")                                           \
    X(BEAM_MAX_MIB, 256, "MiB that one beam search keeps of its lines")                          \
    X(BEAM_MAX_ENDS, 7, "ids that end a line of a search, which it makes room for")              \
    X(JT_MAX_DEPTH, JT_DEPTH, "nesting of JSON that keeps its spelling")                         \
    /* structured output */                                                                      \
    X(GR_MAX_TEXT, 1 << 20, "bytes of a grammar's or schema's text")                             \
    X(GR_MAX_TREE, 1 << 19, "parts of a grammar")                                                \
    X(GR_MAX_TREE_BYTES, 128 << 20, "bytes of those, while it is compiled")                      \
    X(GR_MAX_TREE_NEST, 1000, "nesting of those")                                                \
    X(GR_MAX_RULES, 1 << 15, "rules of a grammar")                                               \
    X(GR_MAX_RULE_NAME, 64, "bytes of a rule's name")                                            \
    X(GR_MAX_LEFT, 64, "rules of a grammar that begin with themselves or each other")            \
    X(GR_MAX_NODES, 1 << 17, "nodes of a grammar's automaton")                                   \
    X(GR_MAX_CLOSURES, 1 << 22, "nodes in all its closures")                                     \
    X(GR_MAX_REPEAT, 1 << 14, "bounds of a repetition: x{1,16384}")                              \
    X(GR_MAX_DEPTH, 200, "nested rules in an answer")                                            \
    X(GR_MAX_PAREN_NEST, 100, "nesting of parentheses in a grammar")                             \
    X(GR_MAX_CLASS_RANGES, 1024, "ranges of a class in a grammar")                               \
    X(GR_MAX_REGEX_NEST, 150, "nesting of groups in a regular expression")                       \
    X(GR_MAX_REGEX_RANGES, 4096, "ranges of a class in a regular expression")                    \
    X(GR_MAX_REGEX_PROPERTIES, 32, "\\p{..} in a regular expression")                            \
    X(GR_MAX_CHAR_PARTS, 1 << 14, "byte sequences of a class of characters")                     \
    X(GR_MAX_LARK_NAMES, 256, "names of rules and terminals in a lark grammar")                  \
    X(GR_MAX_LARK_IGNORED, 16, "%ignore of a lark grammar")                                      \
    X(GR_MAX_LARK_NEST, 40, "nesting of terminals and groups in a lark grammar")                 \
    X(GR_MAX_PROPERTIES, 1000, "properties of an object in a schema")                            \
    X(GR_MAX_PREFIX, 1000, "prefixItems of an array in a schema")                                \
    X(GR_MAX_NAME_TRIE, 64, "bytes of a name that told names must differ in")                    \
    X(GR_MAX_COPIED, 1 << 19, "values of a schema that are copied to merge it")                  \
    X(GR_MAX_REFS, 64, "$ref behind $ref in a schema")                                           \
    X(GR_MAX_PRODUCT, 256, "alternatives that merging two anyOf makes")                          \
    X(GR_MAX_LENGTH, 1 << 22, "characters of a string in a schema")                              \
    X(GR_MAX_DIGITS, 18, "digits of a schema's bounds of integers")                              \
    X(GR_MAX_WORK, 1 << 24, "steps of an automaton in one operation")                            \
    X(GR_MAX_STATE_BYTES, 128 << 20, "bytes of one grammar's states and masks")                  \
    X(GR_MAX_ALL_BYTES, 1 << 30, "bytes of all grammars together")                               \
    X(GR_CACHE_MAX, 32, "compiled grammars that are kept")                                       \
    /* chat templates */                                                                         \
    X(TP_MAX_SOURCE, 4 << 20, "bytes of a template")                                             \
    X(TP_MAX_TREE_BYTES, 256 << 20, "bytes of a template's tree")                                \
    X(TP_MAX_NEST, 100, "nesting of brackets, statements and variables in a template")           \
    X(TP_MAX_DEPTH, 1000, "nesting of nodes, macros and values while it is rendered")            \
    X(TP_MAX_STEPS, 20000000, "nodes visited and elements touched by one rendering")             \
    X(TP_MAX_OUTPUT, 64 << 20, "bytes that a template renders to")                               \
    X(TP_MAX_BYTES, 512 << 20, "bytes of all values of one rendering")                           \
    X(TP_MAX_RANGE, 100000, "elements of range(), as in Jinja's sandbox")                        \
    X(TP_MAX_WIDTH, 100, "width of a field of format()")                                         \
    X(TP_MAX_DATE, 4096, "bytes of strftime_now()")                                              \
    X(TP_MAX_NAMES, 4096, "names in a template")

enum {
#define X(name, value, what) name = (value),
    LIMITS(X)
#undef X
};

#endif
