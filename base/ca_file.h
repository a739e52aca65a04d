/* base/ca_file.h - whom a client of HTTPS trusts where nobody says. */
#ifndef LLMQ_BASE_CA_FILE_H
#define LLMQ_BASE_CA_FILE_H

/* A file of certificates that the environment names (SSL_CERT_FILE, REQUESTS_CA_BUNDLE,
 * CURL_CA_BUNDLE), else the system's, by whatever name it has there, where the library's `own`
 * (NULL: it has none) is not there; NULL: the library's. Borrowed. */
const char *ca_file(const char *own);
/* The variable that names it; NULL: none does. */
const char *ca_file_variable(void);

#endif
