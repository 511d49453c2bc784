/* Results and errno are those of the C library: after a failure its error, after a success what was
 * there before. */
#include "check.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#define FAILS(call, error)                    \
    do {                                      \
        errno = 4711;                         \
        CHECK((call) == -1 && errno == error); \
    } while (0)

#define WORKS(call, result)                      \
    do {                                         \
        errno = 4711;                            \
        CHECK((call) == result && errno == 4711); \
    } while (0)

int main(void) {
    int fd = file("a");
    struct stat status;
    FAILS(read(-1, bytes, 1), EBADF);
    FAILS(read(99, bytes, 1), EBADF);
    FAILS(pread(fd, bytes, 1, -5), EINVAL);
    FAILS(write(fd, NULL, 1), EFAULT);
    FAILS(readv(fd, NULL, 3), EFAULT);
    FAILS(writev(fd, NULL, -1), EINVAL);
    FAILS(open("/nowhere/at/all", O_RDONLY), ENOENT);
    FAILS(stat("/nowhere/at/all", &status), ENOENT);
    FAILS(close(99), EBADF);
    FAILS(dup2(99, 5), EBADF);
    FAILS(fcntl(99, F_GETFD), EBADF);
    FAILS(copy_file_range(99, NULL, fd, NULL, 1, 0), EBADF);
    FAILS(syscall(SYS_write, 99, bytes, 1), EBADF);
    FAILS(execve("/nowhere/at/all", (char *[]){NULL}, (char *[]){NULL}), ENOENT);
    FAILS(unlink("nowhere"), ENOENT);
    CHECK(open(".", O_WRONLY) == -1 && errno == EISDIR);
    CHECK(fopen("/nowhere/at/all", "r") == NULL && errno == ENOENT);
    CHECK(posix_fallocate(99, 0, 1) == EBADF);

    WORKS(write(fd, bytes, 10), 10);
    WORKS(pread(fd, bytes, 10, 0), 10);
    WORKS(pread(fd, bytes, 100, 0), 10);
    WORKS(pread(fd, bytes, 100, 50), 0);
    WORKS(fsync(fd), 0);
    WORKS(stat("a", &status), 0);
    WORKS(fstat(fd, &status), 0);
    WORKS(write(fd, bytes, 0), 0);

    /* A full pipe takes a part, a socket without a reader fails. */
    int ends[2];
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    ssize_t taken = write(ends[1], bytes, sizeof bytes);
    CHECK(taken > 0 && taken < (ssize_t)sizeof bytes);
    FAILS(write(ends[1], bytes, 1), EAGAIN);
    FAILS(read(ends[1], bytes, 1), EBADF);
    return 0;
}
