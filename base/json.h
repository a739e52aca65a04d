/* base/json.h - JSON in, checked strictly before cJSON parses it; JSON out in one canonical
 * spelling.
 *
 * In: size, grammar, depth, number of values and UTF-8 are checked first, because cJSON accepts
 * control characters as blanks, "01" and a NUL in a string. Typed getters say what was expected.
 * Look members up with js_get or iterate ->child, ->next: cJSON's lists are linked, so an index or
 * a look-up in a loop is quadratic.
 *
 * Out: js_canonical writes the spelling that files and hashes use. Output is always UTF-8: each
 * byte of a string that is not becomes U+FFFD.
 *
 * Source: RFC 8259; cJSON (MIT). Duplicate keys are refused when JS_UNIQUE is set (quadratic-free).
 */
#ifndef LLMQ_BASE_JSON_H
#define LLMQ_BASE_JSON_H

#include "base/buf.h"

#include <cjson/cJSON.h>

/* JS_SPELLED: a number whose text its value does not tell ("1.0", "1e3", "-0", more than 15 digits)
 * has that text as its `valuestring`. */
typedef enum { JS_UNIQUE = 1, JS_SPELLED = 2 } js_flags;
enum { JS_DEPTH = 64, JS_MAX_VALUES = 1 << 24 };
#define JS_MAX_INT 9007199254740991 /* 2^53 - 1: a larger integer may have been rounded */

/* Parse exactly n bytes (no trailing garbage but white space). max_bytes bounds n. Free with
 * cJSON_Delete. Errors: LQ_EFORMAT says what and at which byte; LQ_ENOMEM. */
lq_status js_parse(cJSON **out, const char *text, size_t n, size_t max_bytes, unsigned flags,
                   lq_err *err);
lq_status js_parse_file(cJSON **out, const char *path, size_t max_bytes, unsigned flags,
                        lq_err *err);
/* As Python's json reads: of a key twice the last counts, and `twice` is the first such key (""; cut);
 * Infinity is a number beyond all (1e999), NaN the string "NaN"; JS_SPELLED. What Python would not read is
 * refused. */
lq_status js_parse_python(cJSON **out, char twice[64], const char *text, size_t n, size_t max_bytes,
                          lq_err *err);
lq_status js_parse_python_file(cJSON **out, char twice[64], const char *path, size_t max_bytes,
                               lq_err *err);
/* In place: each \ud800..\udfff of a JSON text that is no half of a pair becomes \ufffd, as what cuts texts between
 * UTF-16 units (JavaScript's slice) leaves them and js_parse refuses them. */
void js_mend(char *text, size_t n);
/* Print this tree's spelled numbers as they were spelled ("1.0"): no getter takes them any more. */
void js_keep_spelling(cJSON *tree);
/* The gate alone, without a tree: checks the text as js_parse does (but for JS_UNIQUE), and says
 * how many bytes of memory its tree would take, spelled. */
lq_status js_measure(size_t *tree_bytes, const char *text, size_t n, lq_err *err);
/* The tree of a text that js_measure has accepted. */
lq_status js_tree(cJSON **out, const char *text, size_t n, unsigned flags, lq_err *err);
/* JS_SPELLED, for a tree that was parsed from text[n]; false: out of memory. */
bool js_spell_numbers(cJSON *tree, const char *text, size_t n);

/* Member of an object, by exact name; NULL when absent, null, or o is no object. */
const cJSON *js_get(const cJSON *o, const char *key);
/* "an object", "the number 1.5", "\"abc\"": for messages. NULL: "nothing". */
const char *js_describe(char out[64], const cJSON *v);

/* The source text of a member's value in an object's text[n], which js_parse has accepted; NULL: no
 * member is spelled so. *len: its bytes. */
const char *js_member_source(const char *text, size_t n, const char *key, size_t *len);

/* Getters on an object: absent (or null) leaves *v and returns LQ_OK with `required` false; a wrong
 * type or an integer that is not whole or not within lo..hi is LQ_EVALUE: "hidden_size: expected an
 * integer 1..1048576, found 1.5". */
lq_status js_i64(const cJSON *o, const char *key, bool required, int64_t lo, int64_t hi, int64_t *v,
                 lq_err *err);
lq_status js_f64(const cJSON *o, const char *key, bool required, double lo, double hi, double *v,
                 lq_err *err);
lq_status js_bool(const cJSON *o, const char *key, bool required, bool *v, lq_err *err);
lq_status js_str(const cJSON *o, const char *key, bool required, const char **v, lq_err *err);
/* Of an object: the value of a key, in place of an earlier one (v is its own from here on); none; and the value of `from` as that
 * of `to`, where this has none. */
void js_put(cJSON *o, const char *key, cJSON *v);
void js_drop(cJSON *o, const char *key);
void js_rename(cJSON *o, const char *from, const char *to);
/* One value as a whole number within lo..hi; false otherwise. */
bool js_whole(const cJSON *v, int64_t lo, int64_t hi, int64_t *out);

/* Canonical spelling: no blanks, keys sorted by bytes, whole numbers below 2^53 without a point,
 * others in the fewest digits (15 to 17) that read back the same; strings escape only ", \ and
 * control characters. LQ_EVALUE: NaN, infinity or a key twice. */
lq_status js_canonical(lq_buf *b, const cJSON *v, lq_err *err);
/* cJSON's spelling; free() it. NULL: v is NULL, or out of memory. */
char *js_print(const cJSON *v, bool indented);

/* Trees are built without a look at each cJSON_Add...: has an allocation of cJSON's failed on this
 * thread since the last call? Then what was built lacks values. js_canonical and js_print ask and
 * say so; who uses a tree that was built in another way asks. */
bool js_ran_out(void);

#endif
