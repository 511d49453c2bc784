/* Functions of the C library that replace the standard descriptors inside. 10 bytes at a time go to a
 * file, 1000 to whatever takes the place of standard output. */
#include "check.h"

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

static void small(int fd) { CHECK(write(fd, bytes, 10) == 10); }
static void large(int fd) { CHECK(write(fd, bytes, 1000) == 1000); }

/* Waits for a child, which has to end well. */
static void ended(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    int ends[2], of_terminal, terminal;
    CHECK(dup2(file("a"), 1) == 1);
    small(1); /* 1 */

    /* The daemon's standard output is /dev/null; it writes to the pipe when it has got so far. */
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(daemon(1, 0) == 0);
        large(1);
        CHECK(write(ends[1], "k", 1) == 1);
        _exit(0);
    }
    ended(child);
    CHECK(close(ends[1]) == 0);
    char end = 0;
    CHECK(read(ends[0], &end, 1) == 1 && end == 'k');
    small(1); /* 2 */

    CHECK(openpty(&of_terminal, &terminal, NULL, NULL, NULL) == 0);
    child = fork();
    if (child == 0) {
        CHECK(login_tty(terminal) == 0);
        large(1);
        _exit(0);
    }
    ended(child);

    child = forkpty(&of_terminal, NULL, NULL, NULL);
    if (child == 0) {
        large(1);
        _exit(0);
    }
    ended(child);
    small(1); /* 3 */
    return 0;
}
