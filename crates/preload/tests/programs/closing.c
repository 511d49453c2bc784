/* A descriptor that one thread closes while another still uses it; its number is then a socket's.
 * Built with -DLIBRARY this is a library behind the shim, whose `close` lets somebody else read
 * just before: the moment that threads hit by chance. */
#include "check.h"

#include <dlfcn.h>
#include <sys/socket.h>

#ifdef LIBRARY

int close(int fd) {
    char byte;
    int kept = errno;
    pread(fd, &byte, 1, 0);
    errno = kept;
    return ((int (*)(int))dlsym(RTLD_NEXT, "close"))(fd);
}

#else

int main(void) {
    int fd = file("file"), ends[2];
    CHECK(write(fd, bytes, 10) == 10);
    CHECK(close(fd) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && ends[0] == fd);
    CHECK(write(fd, bytes, 1000) == 1000);
    return 0;
}

#endif
