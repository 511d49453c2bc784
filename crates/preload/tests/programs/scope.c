/* Scopes of another copy of the stage's library, which hands them to the shim. */
#include "check.h"

#include <dlfcn.h>
#include <stdint.h>

int main(void) {
    uint16_t (*enter)(const char *, size_t, uint16_t);
    enter = (uint16_t (*)(const char *, size_t, uint16_t))dlsym(RTLD_DEFAULT, "tidegate_shim_enter");
    CHECK(enter != NULL);
    int fd = file("file");
    CHECK(write(fd, bytes, 1) == 1);
    uint16_t outside = enter("flush", 5, 0);
    CHECK(write(fd, bytes, 10) == 10);
    uint16_t flush = enter("compaction", 10, 0);
    CHECK(write(fd, bytes, 100) == 100);
    /* A scope that the program sets counts for more than a hint. */
    uint64_t hint = RWH_WRITE_LIFE_SHORT;
    CHECK(fcntl(fd, F_SET_RW_HINT, &hint) == 0);
    CHECK(write(fd, bytes, 100) == 100);
    CHECK(enter(NULL, 0, flush) != flush);
    CHECK(write(fd, bytes, 10) == 10);
    CHECK(enter(NULL, 0, outside) == flush);
    CHECK(write(fd, bytes, 1) == 1);
    return 0;
}
