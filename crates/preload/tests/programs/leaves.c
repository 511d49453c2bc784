/* A library that makes a call. */
#include <stddef.h>
#include <unistd.h>

void reads(int fd, void *buffer, size_t length) {
    if (pread(fd, buffer, length, 0) < 0)
        _exit(8);
}
