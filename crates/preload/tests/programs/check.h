/* What the test programs share. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ends the program if something is not as it has to be. Standard error is a pipe. */
#define CHECK(holds)                                                                   \
    do {                                                                               \
        if (!(holds)) {                                                                \
            dprintf(2, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #holds, errno);   \
            _exit(1);                                                                  \
        }                                                                              \
    } while (0)

static char bytes[1 << 20];

/* Opens a file in the working directory for everything. */
static int file(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    return fd;
}
