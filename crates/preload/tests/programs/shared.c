/* Threads that share a stream: what each of them sees of the buffer must be its own doing. */
#include "check.h"

#include <pthread.h>

static FILE *out, *in;

static void *writes(void *text) {
    for (int line = 0; line < 20000; line++)
        CHECK(fputs(text, out) >= 0);
    return NULL;
}

static void *reads(void *taken) {
    char line[64];
    while (fgets(line, sizeof line, in))
        *(long *)taken += strlen(line);
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    char *lines[] = {"short\n", "somewhat longer\n", "1234567\n", "and another one\n"};
    long taken[4] = {0}, total = 0, all = 0;
    out = fopen("shared", "w");
    for (int index = 0; index < 4; index++) {
        CHECK(pthread_create(&threads[index], NULL, writes, lines[index]) == 0);
        total += 20000 * strlen(lines[index]);
    }
    for (int index = 0; index < 4; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    CHECK(fclose(out) == 0);
    in = fopen("shared", "r");
    for (int index = 0; index < 4; index++)
        CHECK(pthread_create(&threads[index], NULL, reads, &taken[index]) == 0);
    for (int index = 0; index < 4; index++) {
        CHECK(pthread_join(threads[index], NULL) == 0);
        all += taken[index];
    }
    CHECK(all == total && fclose(in) == 0);
    printf("%ld\n", total);
    return 0;
}
