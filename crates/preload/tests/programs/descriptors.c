/* Numbers of descriptors that change their meaning. Only what reaches the file counts: 10 bytes at a
 * time to the file, 1000 to whatever else has the number. */
#include "check.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static void small(int fd) { CHECK(write(fd, bytes, 10) == 10); }
static void large(int fd) { CHECK(write(fd, bytes, 1000) == 1000); }

int main(void) {
    int fd = file("a");
    int ends[2];
    small(fd); /* 1 */

    /* dup2 of a socket onto the number of a file, and back again. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    int kept = dup(fd);
    small(kept); /* 2 */
    CHECK(dup2(ends[0], fd) == fd);
    large(fd);
    CHECK(dup3(kept, fd, O_CLOEXEC) == fd);
    small(fd); /* 3 */

    /* A file closed, its number a socket's, and a file's again. */
    CHECK(close(fd) == 0);
    int number = dup(ends[0]);
    CHECK(number == fd);
    large(fd);
    CHECK(close(fd) == 0);
    CHECK(file("b") == fd);
    small(fd); /* 4 */

    /* The same through a system call by number. */
    CHECK(syscall(SYS_close, fd) == 0);
    CHECK(fcntl(ends[0], F_DUPFD, fd) == fd);
    large(fd);
    CHECK(syscall(SYS_dup3, kept, fd, 0) == fd);
    small(fd); /* 5 */

    /* The same with close_range, and with numbers that nobody announced. */
    CHECK(close_range(fd, fd, 0) == 0);
    int pipes[2], more[2];
    CHECK(pipe(pipes) == 0 && pipes[0] == fd);
    CHECK(write(pipes[1], bytes, 1000) == 1000);
    CHECK(close(pipes[0]) == 0 && close(pipes[1]) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, more) == 0 && more[0] == fd);
    large(more[0]);

    /* A stream's descriptor is closed inside the C library. */
    FILE *stream = fopen("c", "w+");
    CHECK(stream != NULL);
    int inner = fileno(stream);
    small(inner); /* 6 */
    CHECK(fclose(stream) == 0);
    CHECK(dup(ends[0]) == inner);
    large(inner);
    CHECK(close(inner) == 0);

    /* Not on storage at all. */
    int null = open("/dev/null", O_WRONLY);
    large(null);
    int event = eventfd(0, 0);
    unsigned long one = 1;
    CHECK(write(event, &one, sizeof one) == sizeof one);
    CHECK(write(-1, bytes, 1) == -1 && errno == EBADF);

    /* A number beyond the table of descriptors that are remembered is no reason to pass by. */
    CHECK(fcntl(kept, F_DUPFD, 900) == 900);
    small(900); /* 7 */
    closefrom(900);
    CHECK(write(900, bytes, 1) == -1 && errno == EBADF);
    small(kept); /* 8 */
    return 0;
}
