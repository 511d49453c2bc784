/* Everything that prints, with more arguments than there are registers, of both kinds. Says how many
 * bytes that were. */
#include "check.h"

#include <stdarg.h>

static int lists(FILE *stream, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int printed = vfprintf(stream, format, list);
    va_end(list);
    return printed;
}

int main(void) {
    const char *format = "%d %s %f %d %g %d %s %f %ld %c %f %f %f %f %f %f %f %f %d\n";
#define ARGUMENTS 1, "two", 3.0, 4, 5.5, 6, "seven", 8.25, 9L, 'x', 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, \
                  17.0, 18.0, 19
    char line[512];
    int length = snprintf(line, sizeof line, format, ARGUMENTS);
    long total = 0;
    FILE *stream = fopen("printed", "w+");
    int fd = fileno(stream), out = dup(1);
    CHECK(freopen("output", "w", stdout) != NULL);
    for (int round = 0; round < 200; round++) {
        CHECK(fprintf(stream, format, ARGUMENTS) == length);
        CHECK(lists(stream, format, ARGUMENTS) == length);
        CHECK(printf(format, ARGUMENTS) == length);
        CHECK(fprintf(stream, "plain\n") == 6);
        total += 3 * length + 6;
    }
    CHECK(fflush(stream) == 0);
    CHECK(dprintf(fd, format, ARGUMENTS) == length);
    total += length;

    rewind(stream);
    char found[512];
    CHECK(fgets(found, sizeof found, stream) && strcmp(found, line) == 0);
    CHECK(fclose(stream) == 0 && fclose(stdout) == 0);
    dprintf(out, "%ld\n", total);
    return 0;
}
