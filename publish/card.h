/* publish/card.h - README.md of an artifact, from its provenance. */
#ifndef LLMQ_PUBLISH_CARD_H
#define LLMQ_PUBLISH_CARD_H

#include "base/json.h"
#include "publish/files.h"

/* The first line after the front matter: this card was made, and may be made anew. */
#define CARD_MARK "<!-- written by llmq publish -->"

/* b += the card of `info` (provenance.json), the files fs, handovers (an array of handover_plan's)
 * and front matter that is carried over (may be ""). */
void card_write(lq_buf *b, const cJSON *info, const pub_files *fs, const cJSON *handovers,
                const char *carried);

#endif
