/* Signal handlers that interrupt a thread while it waits at a gate: some return, the last does not.
 * Says how many there were. */
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static int fd;
static volatile int handlers;
static sigjmp_buf out;

static void handles(int number) {
    CHECK(write(fd, bytes, 10) == 10);
    if (++handlers == 5)
        siglongjmp(out, 1);
}

int main(void) {
    fd = file("file");
    signal(SIGALRM, handles);
    struct itimerval timer = {{0, 10000}, {0, 10000}}, none = {0};
    if (sigsetjmp(out, 1) == 0) {
        /* Goes at once and leaves a debt, which the next one waits for. */
        CHECK(write(fd, bytes, 10000) == 10000);
        setitimer(ITIMER_REAL, &timer, NULL);
        write(fd, bytes, 1000);
        CHECK(0);
    }
    setitimer(ITIMER_REAL, &none, NULL);
    /* The thread has left the shim, and is gated again. */
    CHECK(write(fd, bytes, 10) == 10);
    printf("%d\n", handlers);
    return 0;
}
