/* A thread with descriptors of its own: to it the number of a file is a socket. `parted HOW`. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

static int fd, socket_end;
static int by_unshare;

static void *parts(void *unused) {
    if (by_unshare)
        CHECK(unshare(CLONE_FILES) == 0);
    else
        CHECK(close_range(1000, 1001, CLOSE_RANGE_UNSHARE) == 0);
    CHECK(dup2(socket_end, fd) == fd);
    CHECK(write(fd, bytes, 1000) == 1000);
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t thread;
    int ends[2];
    by_unshare = strcmp(arguments[1], "unshare") == 0;
    fd = file("file");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    socket_end = ends[0];
    CHECK(write(fd, bytes, 10) == 10);
    CHECK(pthread_create(&thread, NULL, parts, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(write(fd, bytes, 10) == 10);
    return 0;
}
