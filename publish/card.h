/* publish/card.h - README.md of an artifact, from its provenance. */
#ifndef LLMQ_PUBLISH_CARD_H
#define LLMQ_PUBLISH_CARD_H

#include "formats/json.h"
#include "publish/files.h"

/* The first line behind the front matter: this card was made, and may be made anew. */
#define CARD_MARK "<!-- written by llmq publish -->"

/* A key with its lines (a list's too) of a card's YAML front matter, as they stand; NULL: it is not
 * there. free() it. Lines of more than a word, a quoted text or a list of such are left out. */
char *card_front_matter(const char *card, size_t n, const char *key);

/* b += the card of `info` (provenance.json), the files fs, handovers (an array of handover_plan's)
 * and front matter that is carried over (may be ""). */
void card_write(js_buf *b, const cJSON *info, const pub_files *fs, const cJSON *handovers,
                const char *carried);

#endif
