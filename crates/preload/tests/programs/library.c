/* A library that is opened while the program runs, and does its own I/O. */
#include "check.h"

void work(void) {
    int fd = file("library");
    CHECK(write(fd, bytes, 10) == 10);
    FILE *stream = fdopen(fd, "w");
    CHECK(stream != NULL && fwrite(bytes, 1, 100, stream) == 100 && fclose(stream) == 0);
}
