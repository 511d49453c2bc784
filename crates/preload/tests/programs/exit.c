/* What a stream holds when the program ends, and what one says to standard output. */
#include "check.h"

int main(void) {
    FILE *stream = fopen("left", "w");
    CHECK(stream != NULL && fputs("seven b", stream) >= 0);
    CHECK(freopen("out", "w", stdout) != NULL);
    CHECK(puts("five") >= 0);
    CHECK(putchar('!') == '!');
    return 0;
}
