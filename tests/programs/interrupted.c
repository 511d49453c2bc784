/* Writes from a signal handler while the main program writes: each counts its own bytes. */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static char block[4096];
static int from_handler;
static volatile sig_atomic_t alarms;
static sigjmp_buf back;

static void on_alarm(int signal) {
    (void)signal;
    int before = errno;
    if (write(from_handler, block, 100) != 100) {
        _exit(8);
    }
    alarms++;
    errno = before;
    /* Now and then it leaves for another place altogether. */
    if (alarms % 16 == 0) {
        siglongjmp(back, 1);
    }
}

int main(void) {
    int file = open("main", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    from_handler = open("handler", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    struct sigaction action = {0};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    (void)sigsetjmp(back, 1);
    while (alarms < 300) {
        ssize_t count = write(file, block, sizeof block);
        if (count != sizeof block && !(count < 0 && errno == EINTR)) {
            return 9;
        }
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
